"""What is kept and what is left when a run fails."""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import analyses
import pytest
from analyses import runner_for
from conftest import wait_until, what_stays
from distributed import Client, LocalCluster
from processes import PATIENCE

from roastcoffea import collector as collector_module
from roastcoffea.backends.dask import DaskRecorder
from roastcoffea.backends.recorder import RunSpan
from roastcoffea.collector import MetricsCollector
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.log.received import ReceivedRecords
from roastcoffea.recording import assembly
from roastcoffea.recording.assembly import RunRecords
from roastcoffea.report.live import LiveLine


def test_an_exception_comes_out_unchanged_and_what_was_seen_is_kept(
    client: Any, sample: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = runner_for(client, 1000, retries=0)
    # the error names the file: of several, any may be the first to fail
    (file, *_) = sample["qcd"]["files"]
    fileset = {"qcd": {"files": {file: "Events"}}}
    with pytest.raises(Exception, match="planted") as plain:
        runner(fileset, processor_instance=analyses.Raising(1000))
    with pytest.raises(Exception, match="planted") as measured, MetricsCollector(client) as collector:
        runner(fileset, processor_instance=analyses.Raising(1000))
    assert type(measured.value) is type(plain.value)
    assert str(measured.value).split("fileuuid")[0] == str(plain.value).split("fileuuid")[0]
    measurement = collector.measurement
    assert measurement.outcome == "failed"
    assert "planted" in str(measurement.error)
    assert measurement.run.calls[0].outcome == "failed"
    failed = measurement.chunks[measurement.chunks["outcome"] == "error"]
    assert set(failed["entry_start"]) == {1000}
    assert all("planted" in error for error in failed["error"])
    erred = measurement.tasks.merge(failed, on=["key", "run_id"])
    assert len(erred) == len(failed) > 0
    assert set(erred["outcome_x"]) == {"error"}
    collector.print_summary()
    assert "planted" in capsys.readouterr().out
    assert collector.save_measurement(tmp_path).is_dir()


def test_each_attempt_that_was_repeated_is_recorded(client: Any, sample: Any, tmp_path: Path) -> None:
    fileset = {"qcd": sample["qcd"]}
    with MetricsCollector(client) as collector:
        output, _ = runner_for(client, 1000, retries=3)(fileset, processor_instance=analyses.RaisingOnce(str(tmp_path)))
    assert output == {"events": 8000}
    chunks = collector.measurement.chunks
    assert chunks["outcome"].value_counts().to_dict() == {"ok": 8, "error": 4}
    assert chunks[chunks["outcome"] == "error"]["error"].str.contains("planted, once").all()
    tasks = collector.measurement.tasks
    joined = chunks.merge(tasks, on=["key", "run_id"], suffixes=("", "_task"))
    assert len(joined) == 12
    assert (joined["outcome"] == joined["outcome_task"]).all()
    assert (joined["worker"] == joined["worker_task"]).all()
    assert (joined["attempt"] == joined["attempt_task"]).all()
    assert collector.metrics["num_chunks"] == 8
    assert collector.metrics["num_failed_chunks"] == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker(sample: Any, tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        with MetricsCollector(client) as collector:
            output, _ = runner_for(client, 1000)(
                {"qcd": sample["qcd"]}, processor_instance=analyses.KillingOnce(str(tmp_path))
            )
        assert wait_until(lambda: what_stays(client) == [])
    assert output == {"events": 8000}
    measurement = collector.measurement
    lost = measurement.tasks[measurement.tasks["outcome"] == "worker lost"]
    killed = lost[lost["kind"] == "processor"]["worker"].unique()
    assert len(killed) == 1
    # what was queued on it took nothing; only one attempt ran
    (attempt,) = measurement.failed[
        (measurement.failed["reason"] == "worker lost") & (measurement.failed["seconds"] > 0)
    ].to_dict("records")
    assert (attempt["worker"], attempt["dataset"], attempt["kind"]) == (killed[0], "qcd", "processor")
    assert attempt["file"] in sample["qcd"]["files"]
    assert (attempt["entry_start"], attempt["entry_stop"]) == (0, 1000)
    assert attempt["seconds"] >= 0.3
    of_tasks = lost[lost["kind"] == "processor"][["dataset", "file", "entry_start", "entry_stop"]]
    assert of_tasks.notna().all().all()
    assert measurement.tasks[measurement.tasks["outcome"] == "ok"]["file"].isna().all()
    # nothing tells of memory: it is a failure, and no more
    assert measurement.worker_memory["killed_by"].isna().all()
    assert measurement.metrics.evaluator.value("failure_evidence").attempts >= 1
    assert killed[0] not in set(measurement.lifetimes["worker"][measurement.lifetimes["stop"] == measurement.run.stop])
    assert collector.metrics["num_chunks"] == 8
    assert collector.metrics["total_events"] == 8000
    assert collector.metrics["peak_workers"] == 2


@pytest.mark.slow
def test_a_client_that_is_closed_inside_of_the_with(shared_client: Any, sample: Any) -> None:
    client = Client(shared_client.scheduler.address)
    with MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
        client.close()
    measurement = collector.measurement
    assert measurement.outcome == "finished"
    assert len(measurement.chunks) == 4
    assert "the client is closed" in measurement.metrics.missing["processor_cpu_time_seconds"]
    assert any("the client is closed" in problem for problem in measurement.problems)
    assert wait_until(lambda: what_stays(shared_client) == [])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_dies_does_not_hide_the_exception(sample: Any, command_line_cluster: Any) -> None:
    cluster = command_line_cluster(workers=1, path=str(Path(__file__).parent))
    client = Client(scheduler_file=str(cluster.file))
    client.wait_for_workers(1)
    began = time.monotonic()
    with pytest.raises(KeyError, match="mine"), MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
        cluster.processes[0].send_signal(signal.SIGKILL)
        cluster.processes[0].wait()
        assert wait_until(lambda: client.status != "running")
        began = time.monotonic()
        raise KeyError("mine")
    assert time.monotonic() - began < PATIENCE / 2  # and not as long as the client would wait
    assert collector.measurement.outcome == "failed"
    assert len(collector.measurement.chunks) == 4
    client.close()


@pytest.mark.slow
def test_the_next_collector_works_after_a_failure(client: Any, sample: Any) -> None:
    with pytest.raises(ValueError, match="mine"), MetricsCollector(client):
        raise ValueError("mine")
    with MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
    assert len(collector.measurement.chunks) == 4
    assert collector.measurement.problems == []


def test_an_interrupt_comes_out_unchanged(client: Any) -> None:
    with pytest.raises(KeyboardInterrupt), MetricsCollector(client) as collector:
        raise KeyboardInterrupt
    assert collector.measurement.outcome == "failed"


class UntellableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_text(client: Any) -> None:
    error = UntellableError()
    with pytest.raises(UntellableError) as raised, MetricsCollector(client) as collector:
        raise error
    assert raised.value is error
    assert collector.measurement.error == "UntellableError: (no message)"


def test_errors_of_ours_do_not_hide_the_exception(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError, match="mine"), MetricsCollector(client) as collector:
        client.run_on_scheduler(break_finish)
        raise ZeroDivisionError("mine")
    assert collector.measurement.outcome == "failed"
    assert "inside of the plugin" in collector.measurement.metrics.missing["processor_cpu_time_seconds"]


def break_finish(dask_scheduler: Any) -> None:
    def broken(**arguments: Any) -> None:
        raise KeyError("inside of the plugin")

    ours = (plugin for name, plugin in dask_scheduler.plugins.items() if name.startswith("roastcoffea"))
    (plugin,) = (plugin for plugin in ours if hasattr(plugin, "finish"))
    plugin.finish = broken


def test_records_that_cannot_be_read_do_not_take_the_others_with_them(
    client: Any, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roastcoffea.log.received import ReceivedRecords

    def broken(self: Any, calls: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(ReceivedRecords, "chunks", broken)
    with MetricsCollector(client) as collector:
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
    assert "planted" in collector.measurement.metrics.missing["num_chunks"]
    assert (collector.measurement.tasks["kind"] == "processor").sum() == 4
    assert collector.metrics["peak_workers"] == 2


PARTS = (
    (collector_module, "unwatch"),
    (RunSpan, "_leave"),
    (DaskRecorder, "close"),
    (DaskRecorder, "notes"),
    (DaskRecorder, "tasks"),
    (DaskRecorder, "lifetimes"),
    (ReceivedRecords, "chunks"),
    (LiveLine, "stop"),
    (assembly, "Run"),
    (RunRecords, "run"),
    (RunRecords, "reasons_against_chunks"),
    (assembly, "attempts_without_record"),
)
"""What leaving a collector, and making its tables, consists of."""


@pytest.mark.parametrize("place", range(len(PARTS)), ids=lambda place: PARTS[place][1])
def test_whatever_fails_at_the_end_is_told_and_hides_nothing(
    shared_client: Any, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    owner, name = PARTS[place]
    raised = ZeroDivisionError("mine") if place % 2 else None  # every other run finishes
    original = getattr(owner, name)

    def broken(*arguments: Any, **others: Any) -> Any:
        if name in ("unwatch", "_leave", "close", "stop"):
            original(*arguments, **others)
        raise TypeError("planted")

    expected = nullcontext() if raised is None else pytest.raises(ZeroDivisionError, match="mine")
    with expected as caught, MetricsCollector(shared_client, live=True) as collector:
        monkeypatch.setattr(owner, name, broken)
        if raised is not None:
            raise raised
    assert caught is None or (caught.value is raised and raised.__context__ is None)
    assert any("TypeError: planted" in problem for problem in collector.problems)  # that makes the tables
    monkeypatch.undo()
    if name == "Run":
        with pytest.raises(RoastcoffeaError, match=r"there is no measurement: roastcoffea failed .* planted"):
            collector.get_metrics()
        return
    measurement = collector.measurement
    assert measurement.outcome == ("finished" if raised is None else "failed")
    assert any("TypeError: planted" in problem for problem in measurement.problems)
    assert wait_until(lambda: what_stays(shared_client) == [])
