"""What the observer counts of what distributed tells it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from stand_ins import Observed, Task, made_record

from roastcoffea.log.packing import packed_records
from roastcoffea.recording.facility.observer import PAYLOAD, UNMETERED


def test_a_chunk_counts_once_with_its_events_bytes_and_thread_time(observed: Observed) -> None:
    observed.pass_time(1)
    task = observed.chunk(1)
    observed.pass_time(10)
    observed.end(task, 10.0, events=1000)
    counters = observed.observer.counters
    assert (counters.chunks, counters.events) == ({"ok": 1}, 1000)
    assert {name: size for (name, _), size in counters.bytes.items()} == {PAYLOAD: 80, "metadata": 20}
    busy = {name: counters.seconds[name] for name in ("compute", "read", "open", "task overhead")}
    assert busy == pytest.approx({"compute": 5.0, "read": 3.0, "open": 1.0, "task overhead": 1.0})
    assert observed.observer.failures == 0


def test_capacity_is_threads_times_time_and_free_slots_are_told_apart(observed: Observed) -> None:
    observed.observer.tick(observed.now)
    observed.pass_time(10)
    assert observed.observer.counters.capacity == pytest.approx(80)
    assert observed.observer.counters.seconds == pytest.approx({"idle: client": 80})
    observed.worker.processing = dict.fromkeys(range(5))
    observed.scheduler.queued = range(3)
    observed.pass_time(10)
    seconds = observed.observer.counters.seconds
    assert (seconds["idle: queued"], seconds["idle: tail"]) == pytest.approx((30, 10))
    observed.worker.status = SimpleNamespace(name="paused")
    observed.worker.processing = {}
    observed.scheduler.queued = ()
    observed.pass_time(10)
    assert seconds["paused"] == pytest.approx(40)
    assert (observed.observer.workers, observed.observer.threads, observed.observer.paused) == (2, (8, 0), 1)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("handle-worker-cleanup-1", "worker lost"),
        ("task-erred-1", "error"),
        ("client-releases-keys-1", "cancelled"),
    ],
)
def test_an_attempt_without_a_result_is_a_failed_one(observed: Observed, reason: str, outcome: str) -> None:
    task = observed.chunk(1)
    observed.end(task, state="released", reason=reason)
    assert observed.observer.counters.attempts == {(outcome, "processor"): 1}
    observed.submit(task)
    observed.end(task, 10.0, events=1000)
    (run,) = observed.observer.runs.all.values()
    assert (run.asked, run.tally.chunks, run.tally.failed) == (1, 1, 1)


def test_the_record_of_a_failed_attempt_counts_once_though_two_collectors_receive_it(observed: Observed) -> None:
    observed.observer.tokens = {"c-1": "a", "c-2": "b"}
    packed = packed_records([made_record(7, 1.0) | {"outcome": "error"}])
    for topic, token in (("c-1", "a"), ("c-2", "b"), ("c-1", "forged"), ("other", "a")):
        observed.observer.log_event(topic, {"token": token, "chunk": packed, "of": ("key", 1)})
    assert {name: size for (name, _), size in observed.observer.counters.bytes.items()} == {"failed": 100}


def test_the_time_of_a_failed_attempt_comes_with_the_workers_message(observed: Observed) -> None:
    observed.observer.tokens = {"c-1": "a"}
    task = observed.chunk(1)
    computed = [{"action": "compute", "start": observed.now - 4, "stop": observed.now}]
    message = {"token": "a", "failed": task.key, "run_id": task.run_id, "startstops": computed}
    observed.observer.log_event("c-1", message)
    observed.end(task, state="erred")
    assert observed.observer.counters.seconds["failed"] == pytest.approx(4.0)


def test_tasks_of_others_are_other_tasks(observed: Observed) -> None:
    class Sum(Task):
        run_spec = None

    task = Sum("sum-1", observed.worker, "sum")
    observed.submit(task)
    observed.end(task, 3.0)
    assert observed.observer.counters.seconds == pytest.approx({"other tasks": 3.0})
    assert not observed.observer.runs.all


def test_damaged_records_do_no_harm_and_are_noted(observed: Observed) -> None:
    task = observed.chunk(1)
    task.metadata = {"roastcoffea": b"no record"}
    observed.observer.transition(task.key, "processing", "memory", stimulus_id="s", **task.told())
    assert observed.observer.failures == 1


def test_memory_of_messages_is_bounded(observed: Observed) -> None:
    observed.observer.tokens = {"c-1": "a"}
    for number in range(3000):
        observed.observer.log_event("c-1", {"token": "a", "failed": f"key-{number}", "run_id": 1})
        packed = packed_records([made_record(number, 1.0)])
        observed.observer.log_event("c-1", {"token": "a", "chunk": packed, "of": ("key", number)})
    sizes = [len(value) for value in vars(observed.observer).values() if isinstance(value, dict)]
    assert max(sizes) <= 1000
    assert observed.observer.failures == 0


def test_a_scheduler_that_closes_takes_it_along(observed: Observed) -> None:
    asyncio.run(observed.observer.close())
    assert observed.closed == [True]


def test_chunks_of_clients_without_roastcoffea_have_the_events_of_their_items(observed: Observed) -> None:
    part: Any = SimpleNamespace(run=None, kind="processor", events=400)
    observed.observer.runs.part = lambda task, now: part  # type: ignore[method-assign]
    task = observed.chunk(1)
    observed.end(task, 5.0)
    counters = observed.observer.counters
    assert (counters.events, counters.seconds) == (400, {UNMETERED: 5.0})
