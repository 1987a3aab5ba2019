"""Causes of idleness against written-down cases, and against a count in steps of a millisecond."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.metrics.slots import CAUSES, CLIENT, PLACEMENT, QUEUED, TAIL, Moments, Presence, Slots, idle_slots

FIELDS = Moments._fields


def slots(
    attempts: list[tuple[float, ...]], workers: list[tuple[float, float, int]], stop: float, start: float = 0.0
) -> Slots:
    """Attempts are (worker, runnable, assigned, arrived, ready, start, stop, seen), workers (start, stop, threads)."""
    columns = np.array(attempts, dtype=float).reshape(-1, len(FIELDS)).T
    moments = Moments(columns[0].astype(np.int64), *columns[1:])
    begin, end, threads = np.array(workers, dtype=float).T
    presence = Presence(np.arange(len(workers)), begin, end, threads.astype(np.int64))
    return idle_slots(moments, presence, start, stop)


def totals(found: Slots) -> dict[str, float]:
    return {cause: round(float(seconds.sum()), 6) for cause, seconds in found.seconds.items() if seconds.sum() > 1e-9}


def test_one_runnable_task_keeps_one_slot_of_a_hundred() -> None:
    attempt = (0, 1.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0)
    found = totals(slots([attempt], [(0, 10, 50), (0, 10, 50)], 10))
    assert found == {QUEUED: 2.0, TAIL: 99.0, CLIENT: 1000.0 - 1.0 - 2.0 - 99.0}


def test_the_way_of_a_task() -> None:
    attempt = (0, 0.0, 1.0, 2.0, 4.0, 7.0, 8.0, 8.5)
    assert totals(slots([attempt], [(0, 10, 1)], 10)) == {
        "transfer": 2.0,
        "worker": 3.0,
        "on the way": 1.5,
        QUEUED: 1.0,
        CLIENT: 1.5,
    }


def test_ready_tasks_on_another_worker_are_placement() -> None:
    here = [(0, 0.0, 0.0, 0.0, 0.0, begin, begin + 1.0, begin + 1.0) for begin in (0.0, 1.0, 2.0)]
    found = slots(here, [(0, 3, 1), (0, 3, 1)], 3)
    assert totals(found) == {PLACEMENT: 2.0, TAIL: 1.0}
    assert found.seconds[PLACEMENT].tolist() == [0.0, 2.0]


def test_a_cause_is_shared_in_proportion_to_free_slots() -> None:
    queued = (0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    found = slots([queued], [(0, 2, 1), (0, 2, 3)], 2)
    assert found.seconds[QUEUED].tolist() == pytest.approx([0.5, 1.5])


def test_more_tasks_than_threads_are_told() -> None:
    both = [(0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0)] * 2
    assert slots(both, [(0, 1.5, 1)], 2).beyond == pytest.approx(2 * 2 - 1.5)


def test_a_run_without_tasks_is_the_client_s() -> None:
    assert totals(slots([], [(0, 4, 2), (1, 3, 1)], 4)) == {CLIENT: 10.0}


def counted(
    attempts: list[tuple[float, ...]], workers: list[tuple[float, float, int]], stop: float
) -> dict[str, float]:
    """The same from the definition, moment by moment."""
    sums = dict.fromkeys(CAUSES, 0.0)
    for moment in np.arange(0.5, stop * 1000) / 1000:
        free_of, surplus, active = {}, 0, 0
        for worker, (begin, end, threads) in enumerate(workers):
            here = [row for row in attempts if row[0] == worker]
            between = [
                sum(row[early] <= moment < row[late] for row in here)
                for early, late in ((5, 6), (4, 5), (3, 4), (2, 3), (6, 7))
            ]
            busy, ready, arriving, assigned, reported = between
            active += sum(between)
            free = max((threads if begin <= moment < end else 0) - busy, 0)
            surplus += max(ready - free, 0)
            for cause, number in (("worker", ready), ("transfer", arriving), ("on the way", assigned + reported)):
                filled = min(free, number)
                sums[cause] += filled / 1000
                free -= filled
            free_of[worker] = free
        left = sum(free_of.values())
        for cause, number in ((QUEUED, sum(row[1] <= moment < row[2] for row in attempts)), (PLACEMENT, surplus)):
            filled = min(left, number)
            sums[cause] += filled / 1000
            left -= filled
        sums[TAIL if active else CLIENT] += left / 1000
    return sums


@pytest.mark.parametrize("seed", range(12))
def test_drawn_runs_are_counted_as_by_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    stop = 3.0
    workers = [(float(random.integers(0, 800)) / 1000, float(random.integers(1500, 3001)) / 1000, 2) for _ in range(3)]
    attempts = []
    for worker, (begin, end, threads) in enumerate(workers):
        for _ in range(threads):
            at = begin
            while at < end:
                steps = random.integers(0, 200, 6) / 1000
                moments = at + np.cumsum(steps)
                if moments[-1] > end:
                    break
                # the slot is busy from start to stop alone: what comes before may overlap with the task before
                attempts.append((worker, *np.maximum(moments[:4] - 0.3, 0.0), *moments[3:]))
                at = moments[4]
    attempts = [(row[0], *np.maximum.accumulate(row[1:])) for row in attempts]
    found = slots(attempts, workers, stop)
    offered = sum((end - begin) * threads for begin, end, threads in workers)
    busy = sum(row[6] - row[5] for row in attempts)
    assert found.beyond == 0
    assert sum(float(seconds.sum()) for seconds in found.seconds.values()) == pytest.approx(offered - busy, abs=1e-5)
    expected = counted(attempts, workers, stop)
    for cause, seconds in found.seconds.items():
        assert float(seconds.sum()) == pytest.approx(expected[cause], abs=2e-3), cause
