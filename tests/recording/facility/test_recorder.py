"""The recorder of a scheduler: each run in a journal of its own, and totals of the scheduler."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import PATIENCE, wait_until
from stand_ins import Observed, made_record

from roastcoffea.log import journal
from roastcoffea.log.journals import Journal, journals_in
from roastcoffea.log.packing import packed_records
from roastcoffea.recording.facility import display
from roastcoffea.recording.facility.index import is_cluster, recorded_in, run_of
from roastcoffea.recording.facility.observer import Observer
from roastcoffea.recording.facility.recorder import NAME, FacilityPlugin
from roastcoffea.records.workers import ERROR, OK


@pytest.fixture
def recorder(observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FacilityPlugin:
    monkeypatch.setattr(journal, "CLOSE_SECONDS", PATIENCE)  # however slow the disk is
    return observed.recorded_in(tmp_path)


def runs_in(folder: Path) -> list[Journal]:
    for thread in threading.enumerate():  # they write the journals
        if thread.name == NAME:
            thread.join(PATIENCE)
    assert wait_until(lambda: len(journals_in(folder)[0]) == len(list(folder.iterdir())))
    journals, _ = journals_in(folder)
    return [journal for journal in journals if not is_cluster(journal)]


def finished(observed: Observed, recorder: FacilityPlugin, numbers: range, call: str, **record: Any) -> None:
    tasks = [observed.chunk(number, call) for number in numbers]
    for task in tasks:
        observed.pass_time(1)
        observed.end(task, 1.0, **record)
        observed.forget(task)


def test_each_run_is_in_a_journal_of_its_own_with_its_tasks_and_chunks(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    first = [observed.chunk(number, "call-1") for number in range(3)]
    second = [observed.chunk(number, "call-2") for number in range(10, 15)]
    for task in (*first, *second):
        observed.pass_time(1)
        observed.end(task, 1.0, call="call-1" if task in first else "call-2")
    recorder.end()
    runs = [run_of(journal) for journal in runs_in(tmp_path)]
    assert sorted(len(run.chunks or ()) for run in runs) == [3, 5]
    for run in runs:
        assert run.tasks is not None
        own = [key for key in run.tasks["key"].to_pylist() if key is not None]
        assert len(own) == len(run.chunks or ())
        assert len(run.tasks) == 8  # those of the other run keep the workers busy as well
        assert run.problems == ()
        assert run.sampling is not None
        assert run.sampling["late_seconds"].null_count == len(run.sampling) > 0  # the facility does not measure it
    assert recorder.failures == 0


def test_a_chunk_without_a_record_is_a_task_and_the_run_says_what_it_lacks(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    finished(observed, recorder, range(4), "call-1")
    recorder.end()
    (run,) = map(run_of, runs_in(tmp_path))
    assert run.chunks is None
    assert "not metered" in run.absent["chunks"]
    assert run.calls[0].chunks == 4
    assert run.tasks is not None
    assert run.tasks["outcome"].to_pylist() == [OK] * 4
    assert run.tasks["kind"].to_pylist() == ["processor"] * 4


def test_a_run_that_ends_has_its_journal_closed(observed: Observed, recorder: FacilityPlugin, tmp_path: Path) -> None:
    finished(observed, recorder, range(2), "call-1")
    assert len(recorder.recorders) == 1
    observed.pass_time(40)
    assert len(recorder.recorders) == 0
    assert wait_until(lambda: [recorded_in(journal).run["ended"] for journal in runs_in(tmp_path)] == [True])
    recorder.end()


def test_chunks_are_recorded_though_their_collector_was_given_up_or_they_come_late(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    tasks = [observed.chunk(number) for number in range(3)]
    observed.observer.runs.collector_left("c-1", observed.now)  # its client was stopped for minutes
    for each in tasks:
        observed.pass_time(1)
        observed.end(each, 1.0, call="call-1")
    observed.pass_time(40)
    late = observed.chunk(3)
    observed.end(late, 1.0, call="call-1")
    recorder.end()
    runs = [run_of(journal) for journal in runs_in(tmp_path)]
    assert sorted(len(run.chunks or ()) for run in runs) == [1, 3]


def test_what_others_ran_when_a_run_ended_is_known_once_it_ends(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    first, theirs = observed.chunk(1, "call-1", "c-1"), observed.chunk(2, "call-2", "c-2")
    observed.pass_time(10)
    observed.end(first, 10.0, call="call-1")
    observed.observer.runs.collector_left("c-1", observed.now)
    for _ in range(5):
        observed.pass_time(1)
    later = observed.chunk(3, "call-2", "c-2")
    observed.end(theirs, 15.0, call="call-2")
    recorder.tick(observed.now)
    assert len(recorder.recorders) == 1
    observed.end(later, 0.1, call="call-2")
    recorder.end()
    run = next(run for run in map(run_of, runs_in(tmp_path)) if run.calls[0].id == "call-1")
    assert run.stop == observed.now - 5
    assert run.tasks is not None
    assert run.tasks["key"].to_pylist() == ["Dijet-1", None]
    assert run.tasks["stop"].to_pylist() == [run.stop, run.stop + 5]


def test_a_failed_attempt_has_its_error_and_record(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    task = observed.chunk(1, "call-1")
    message = {"token": "token", "failed": task.key, "run_id": 1, "times": [1.0], "thread": 7}
    computed = [{"action": "compute", "start": observed.now - 2, "stop": observed.now}]
    packed = packed_records([made_record(1, 2.0) | {"outcome": ERROR, "call": "call-1"}])
    for sent in (message | {"startstops": computed}, {"token": "token", "chunk": packed, "of": (task.key, 1)}):
        recorder.log_event(NAME, sent)
        recorder.log_event(NAME, sent | {"token": "forged"})
    observed.end(task, 2.0, state="erred")
    recorder.end()
    (run,) = map(run_of, runs_in(tmp_path))
    assert run.chunks is not None
    assert run.chunks["outcome"].to_pylist() == [ERROR]
    assert run.tasks is not None
    assert run.tasks["outcome"].to_pylist() == [ERROR]


def test_dask_keeps_none_of_the_messages_of_workers(observed: Observed, recorder: FacilityPlugin) -> None:
    kept = [(0.0, {"token": "token", "worker": observed.worker.address, "job": {}})]
    others = list(kept)
    topics = {NAME: SimpleNamespace(events=kept), "theirs": SimpleNamespace(events=others)}
    observed.scheduler._broker = SimpleNamespace(_topics=topics)
    recorder.log_event("theirs", others[0][1])
    assert (len(kept), len(others)) == (1, 1)
    recorder.log_event(NAME, kept[0][1])
    assert (len(kept), len(others)) == (0, 1)
    assert recorder.failures == 0


def test_totals_have_capacity_and_cpu_also_of_workers_that_left(
    observed: Observed, recorder: FacilityPlugin, tmp_path: Path
) -> None:
    for number, worker in enumerate(observed.scheduler.workers.values()):
        worker.metrics = {NAME: 10.0 + number}
    for _ in range(12):
        observed.pass_time(1)
    left = observed.worker.address
    del observed.scheduler.workers[left]
    recorder.remove_worker(observed.scheduler, left)
    observed.pass_time(10)
    asyncio.run(recorder.close())
    journals, _ = journals_in(tmp_path)
    (cluster,) = filter(is_cluster, journals)
    last = recorded_in(cluster).clusters[-1]
    assert last["cpu_seconds"] == pytest.approx(21.0)
    assert last["capacity_seconds"] == pytest.approx(11 * 8 + 10 * 4)


def test_an_error_of_its_own_is_counted_and_harms_nobody(
    observed: Observed, recorder: FacilityPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    observed.observer.runs.part = None  # type: ignore[assignment, method-assign]
    recorder.moved("key", "released", "waiting", {}, 0.0)
    observed.scheduler.tasks["key"] = observed.worker
    recorder.moved("key", "released", "waiting", {}, 0.0)
    assert recorder.failures == 1
    assert "runs are not recorded completely" in caplog.text
    recorder.end()


def test_the_preload_records_though_a_collector_was_there_first(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Observer] = []

    class Shown:
        def __init__(self, scheduler: Any, make: Any) -> None:
            self.observer = make(scheduler, lambda: None)

        def end(self) -> None:
            ended.append(self.observer)

    monkeypatch.setattr(display, "Shown", Shown)
    shown = display.join(observed.scheduler, "collector", "token")
    recorder = display.join(observed.scheduler, NAME, "own", partial(FacilityPlugin, folder=tmp_path))
    assert (type(shown), type(recorder)) == (Observer, FacilityPlugin)
    assert ended == [shown]
    assert recorder.tokens == {"collector": "token", NAME: "own"}
    assert display.join(observed.scheduler, "another", "third") is recorder
    display.remove(observed.scheduler)
    assert ended == [shown, recorder]
