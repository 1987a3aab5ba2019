"""The hook into coffea: it is there while a collector is open, and leaves executors alone that it cannot watch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analyses
import planted_work
import pytest
from analyses import OwnCopy, runner_for
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from coffea.processor.executor import ExecutorBase

from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import load


def test_classes_of_coffea_are_restored(client: Any, sample: Any) -> None:
    before = (Runner.__dict__["run"], ExecutorBase.__dict__["copy"], OwnCopy.__dict__["copy"])
    executor = OwnCopy(client=client, status=False)
    state = dict(vars(executor))
    runner = Runner(executor=executor, schema=analyses.NanoAODSchema, chunksize=4000, metadata_cache={})
    with pytest.raises(ZeroDivisionError), MetricsCollector(client):
        runner(sample, processor_instance=analyses.Jets())
        assert Runner.__dict__["run"] is not before[0]
        raise ZeroDivisionError
    assert (Runner.__dict__["run"], ExecutorBase.__dict__["copy"], OwnCopy.__dict__["copy"]) == before
    assert type(executor) is OwnCopy
    assert {name: value for name, value in vars(executor).items() if name != "heavy_input"} == {
        name: value for name, value in state.items() if name != "heavy_input"
    }


@pytest.mark.slow
def test_a_patch_of_somebody_else_is_left_alone(client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsCollector(client):
        ours = Runner.run

        def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
            return ours(self, *args, **kwargs)

        monkeypatch.setattr(Runner, "run", theirs)
    assert Runner.run is theirs
    output, _ = runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
    assert output["qcd"]["events"] == 8000


class Refusing(OwnCopy):
    """Cannot be watched."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            raise TypeError("no other class")
        super().__setattr__(name, value)


def test_an_executor_that_cannot_be_watched_runs_all_the_same(client: Any, sample: Any) -> None:
    with MetricsCollector(client) as collector:
        output, _ = runner_for(client, 4000, executor=Refusing)(sample, processor_instance=analyses.Jets())
    assert output["qcd"]["events"] == 8000
    assert "no other class" in collector.measurement.metrics.missing["num_chunks"]


def test_an_executor_elsewhere_is_left_alone_and_told(client: Any, sample: Any) -> None:
    runner = Runner(
        executor=IterativeExecutor(status=False),
        schema=analyses.NanoAODSchema,
        chunksize=4000,
        metadata_cache={},
    )
    with MetricsCollector(client) as collector:
        output = runner(sample, processor_instance=analyses.Jets())
    assert output["qcd"]["events"] == 8000
    assert len(collector.measurement.chunks) == 0
    assert any("IterativeExecutor" in problem for problem in collector.measurement.problems)


OUT_OF_REACH = {
    "local": lambda client: IterativeExecutor(status=False),
    "not watched": lambda client: Refusing(client=client, status=False),
}


@pytest.mark.parametrize(("kind", "others"), [("local", "function"), ("not watched", "Runner")])
def test_a_call_out_of_reach_takes_nothing_from_the_others(
    client: Any, sample: Any, kind: str, others: str, tmp_path: Path
) -> None:
    path = next(iter(sample["qcd"]["files"]))

    def reachable() -> None:
        if others == "Runner":
            runner_for(client, 1000, savemetrics=False)(sample, processor_instance=analyses.Jets())
        else:
            client.gather(client.map(planted_work.first_event, [path] * 3, pure=False))

    elsewhere = runner_for(client, 2000, executor=lambda **_: OUT_OF_REACH[kind](client), savemetrics=False)
    with MetricsCollector(client) as alone:
        reachable()
    with MetricsCollector(client) as collector:
        reachable()
        elsewhere({"check": {"files": {path: "Events"}}}, processor_instance=analyses.Jets())
    collector.save_measurement(tmp_path, "saved")
    for found in (collector.measurement, load(tmp_path / "saved")):
        for name in ("total_events", "num_chunks", "bytes_payload", "bytes_metadata", "num_failed_attempts"):
            assert found.metrics[name] == alone.metrics[name]
        assert "were not recorded" in found.metrics.source["total_events"]
        for ledger in (found.byte_ledger, found.time_ledger):
            (reason,) = [reason for reason in ledger.certificate.reasons if "were not recorded" in reason]
            assert ("IterativeExecutor" if kind == "local" else "Refusing") in reason
            assert "1 Runner call for Jets: " in reason
            assert "% of the wall time" in reason
            assert all("left no record" not in reason for reason in ledger.certificate.reasons)
        assert abs(found.time_ledger.residual) < 0.01 * found.time_ledger.total
        assert found.byte_ledger.residual == 0
        assert found.missing.empty


def test_a_local_collector_knows_what_ran_here_beside_a_cluster(client: Any, sample: Any) -> None:
    here = Runner(IterativeExecutor(status=False), chunksize=1000, schema=analyses.NanoAODSchema, metadata_cache={})
    with MetricsCollector() as collector:
        here(sample, processor_instance=analyses.Jets())
        runner_for(client, 1000, executor=DaskExecutor, savemetrics=False)(sample, processor_instance=analyses.Jets())
    found = collector.measurement
    assert found.metrics["total_events"] == 16000
    assert found.time_ledger.certificate.attempts == (16, 16)
    assert "DaskExecutor" in str(found.byte_ledger.certificate)
