"""The hook into coffea: it is there while a collector is open, and leaves executors alone that it cannot watch."""

from __future__ import annotations

from typing import Any

import analyses
import pytest
from analyses import OwnCopy, runner_for
from coffea.processor import IterativeExecutor, Runner
from coffea.processor.executor import ExecutorBase

from roastcoffea.collector import MetricsCollector


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


def test_an_executor_that_cannot_be_watched_runs_all_the_same(client: Any, sample: Any) -> None:
    class Refusing(OwnCopy):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "__class__":
                raise TypeError("no other class")
            super().__setattr__(name, value)

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
