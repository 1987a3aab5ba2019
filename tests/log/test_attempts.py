"""Attempts as the client reads them from the log."""

from __future__ import annotations

from math import nan

import pytest
from stand_ins import CLIENT, NAME, TOKEN, Scheduler, T, Task, packed, started_plugin

from roastcoffea.log.attempts import AttemptLog
from roastcoffea.log.kinds import NO_SIZE, NO_STRING, TASK
from roastcoffea.log.layout import Texts
from roastcoffea.log.workers import ClusterLog


def test_tasks_and_workers_with_impossible_times() -> None:
    scheduler = Scheduler(1)
    (worker,) = scheduler.workers.values()
    plugin = started_plugin(scheduler)
    scheduler.run(plugin, Task("inc-1", worker, start=T + 5, stop=T, client=CLIENT))
    scheduler.run(plugin, Task("inc-2", worker, start=T, stop=T + 5, client=CLIENT))
    plugin.log_event(NAME, {"token": TOKEN, "worker": worker.address, "cpu_seconds": 1e9})
    log = ClusterLog()
    log.feed(plugin.drain(1_000_000, 0)["data"])
    assert log.attempts.table(0.0)["start"].to_pylist() == [None, T]
    assert log.workers.lifetimes(0.0, T, T + 10)["cpu_seconds"].to_pylist() == [None]
    assert log.problems == [
        "impossible times of 1 task were discarded: a worker's clock may have been reset",
        "1 worker CPU time was impossible and discarded",
    ]


def attempt(worker: int, **values: float) -> bytes:
    """Entry of an attempt without a type and a span."""
    nothing = {"type": NO_STRING, "span": NO_STRING, "prefix": NO_STRING, "nbytes": NO_SIZE, "run_id": NO_SIZE}
    return packed(
        TASK.fields, worker=worker, **nothing | dict.fromkeys(("shift", "arrived", "ready", "seceded"), nan) | values
    )


def attempts_of(*payloads: bytes) -> AttemptLog:
    """Attempts on two workers."""
    texts = Texts()
    for address in ("tcp://a", "tcp://b"):
        texts.take(address.encode())
    log = AttemptLog(texts)
    for payload in payloads:
        log.readers[TASK](payload)
    return log


def test_a_worker_s_clock_is_bounded_by_what_the_scheduler_saw() -> None:
    """The clock of b is 100 s ahead: its task arrived after T + 1, and ended before T + 6."""
    times = {"shift": 0.0, "assigned": T + 1, "seen": T + 6}
    log = attempts_of(
        attempt(0, start=T + 2, stop=T + 5, arrived=-0.5, ready=-0.25, **times) + b"on-a",
        attempt(1, start=T + 102, stop=T + 105, arrived=-0.5, ready=-0.25, **times) + b"on-b",
    )
    # at least 105 - 6 s, at most 101.5 - 1 s
    assert log.clocks() == {"tcp://a": 0.0, "tcp://b": (99 + 100.5) / 2}
    first, second = log.table(0.0).to_pylist()
    assert (first["start"], first["arrived"], first["ready"]) == (T + 2, T + 1.5, T + 1.75)
    assert (second["start"], second["stop"]) == (T + 102 - 99.75, T + 105 - 99.75)
    assert (second["assigned"], second["seen"]) == (T + 1, T + 6)


def test_tasks_keep_their_times_when_a_worker_s_clock_is_reset() -> None:
    """The clock is set 14 s ahead in the second task; Dask adjusts the fourth one's times, not yet the third one's."""

    def ran(second: float, ahead: float, adjusted: float, jump: float = 0.0) -> bytes:
        start = T + second + ahead - adjusted
        known = {"assigned": T + second - 0.2, "seen": T + second + 0.6, "arrived": -0.1, "ready": -0.05}
        return attempt(0, start=start, stop=start + 0.5 + jump, shift=-adjusted, **known)

    log = attempts_of(ran(1, 0, 0), ran(2, 0, 0, jump=14.0), ran(3, 14, 0), ran(4, 14, 14), ran(5, 14, 14))
    rows = log.table(0.0).to_pylist()
    assert [row["start"] and row["start"] - T for row in rows] == pytest.approx([1, None, None, 4, 5])
    assert [row["stop"] and row["stop"] - T for row in rows] == pytest.approx([1.5, None, None, 4.5, 5.5])
    assert log.problems == ["impossible times of 2 tasks were discarded: a worker's clock may have been reset"]


def test_what_is_not_known_of_an_attempt_is_null() -> None:
    (row,) = attempts_of(attempt(1, seen=T + 6)).table(2.0).to_pylist()
    assert (row["worker"], row["seen"], row["attempt"]) == ("tcp://b", T + 4, 1)
    unknown = ("key", "thread", "start", "stop", "nbytes", "run_id", "type", "span", "prefix", "error")
    assert [row[name] for name in (*unknown, "runnable", "assigned", "arrived", "ready", "seceded")] == [None] * 15


def test_an_attempt_of_no_kind_is_refused() -> None:
    with pytest.raises(LookupError, match="unknown kind 99"):
        attempts_of(attempt(0, kind=99))
