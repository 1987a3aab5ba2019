"""Causes of idleness against written-down cases, and against a count in steps of a millisecond."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.metrics import slots as slots_module
from roastcoffea.metrics.phases import CLIENT, IDLE, MISPLACED, PAUSED, QUEUED, STARTUP, TAIL, UNRECORDED
from roastcoffea.metrics.slots import CLIENT_OF, TAIL_OF, Moments, Presence, Slots, idle_slots
from roastcoffea.metrics.statistics import axes
from roastcoffea.records.workers import KINDS, MERGE, OTHER, PREPROCESSING, PROCESSOR

FIELDS = Moments._fields[:-1]


def slots(
    attempts: list[tuple[float, ...]],
    workers: list[tuple[float, float, int]],
    stop: float,
    kinds: list[str] | None = None,
    pauses: list[tuple[float, ...]] | None = None,
    bins: int = 1,
    together: bool = False,
    gaps: list[tuple[float, ...]] | None = None,
) -> Slots:
    """Attempts are (worker, runnable, assigned, arrived, ready, start, stop, seen), workers (start, stop, threads).

    Pauses and gaps are (worker, start, stop).
    """
    columns = np.array(attempts, dtype=float).reshape(-1, len(FIELDS)).T
    kind = np.array([KINDS.index(kind) for kind in kinds or [PROCESSOR] * len(attempts)], np.int64)
    moments = Moments(columns[0].astype(np.int64), *columns[1:], kind)
    begin, end, threads = np.array(workers, dtype=float).T
    presence = Presence(np.arange(len(workers)), begin, end, threads.astype(np.int64))
    pausing, unknown = map(of_one_thread, (pauses or [], gaps or []))
    row = np.zeros(len(workers), np.int64) if together else np.arange(len(workers))
    where = axes(0.0, stop, row, int(row.max()) + 1, bins)
    first, alone = of_one_thread([]), np.zeros(len(workers), np.int64)
    return idle_slots(moments, presence, pausing, where, first=first, gaps=unknown, together=alone)


def of_one_thread(spans: list[tuple[float, ...]]) -> Presence:
    worker, *times = np.array(spans, dtype=float).reshape(-1, 3).T
    return Presence(worker.astype(np.int64), *times, np.ones(len(worker), np.int64))


def totals(found: Slots) -> dict[str, float]:
    return {cause: round(float(seconds.sum()), 6) for cause, seconds in found.seconds.items() if seconds.sum() > 1e-9}


def test_the_way_of_a_task() -> None:
    attempt = (0, 0.0, 1.0, 2.0, 4.0, 7.0, 8.0, 8.5)
    assert totals(slots([attempt], [(0, 10, 1)], 10)) == {
        "transfer": 2.0,
        "worker overhead": 3.0,
        "in flight": 1.5,
        QUEUED: 1.0,
        CLIENT: 1.5,
    }


def test_ready_tasks_on_another_worker_are_misplaced_slots() -> None:
    here = [(0, 0.0, 0.0, 0.0, 0.0, begin, begin + 1.0, begin + 1.0) for begin in (0.0, 1.0, 2.0)]
    found = slots(here, [(0, 3, 1), (0, 3, 1)], 3)
    assert totals(found) == {MISPLACED: 2.0, TAIL: 1.0}
    assert found.seconds[MISPLACED].tolist() == [[0.0], [2.0]]


def test_a_cause_is_shared_in_proportion_to_free_slots() -> None:
    queued = (0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    found = slots([queued], [(0, 2, 1), (0, 2, 3)], 2)
    assert found.seconds[QUEUED].ravel().tolist() == pytest.approx([0.5, 1.5])


def test_more_tasks_than_threads_are_told() -> None:
    both = [(0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0)] * 2
    assert slots(both, [(0, 1.5, 1)], 2).beyond == pytest.approx(2 * 2 - 1.5)


def test_a_paused_worker_begins_nothing_and_its_ready_tasks_are_there_for_others() -> None:
    waiting = (0, 0.0, 0.0, 0.0, 1.0, 4.0, 5.0, 5.0)
    found = slots([waiting], [(0, 5, 2), (0, 5, 1)], 5, pauses=[(0, 0.5, 3.0)])
    assert totals(found) == {
        "transfer": 0.5,
        PAUSED: 5.0,
        "worker overhead": 1.0,
        # of the other slots: while the task is ready on the worker that is paused, and the rest
        MISPLACED: 2.0,
        TAIL: 6.5 - 2.0 + 1.0,
    }
    assert found.seconds[MISPLACED].ravel().tolist() == [0.0, 2.0]


def test_in_a_gap_nothing_is_known_of_free_slots() -> None:
    ran = (0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0)
    waited = (1, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0, 5.0)
    spans = [(0, 1.0, 3.5), (1, 1.0, 3.5)]
    found = slots([ran, waited], [(0, 5, 1), (0, 5, 1)], 5, pauses=[(1, 2.0, 5.0)], gaps=spans)
    assert totals(found) == {
        "transfer": 1.0,
        UNRECORDED: 0.5 + 2.5,
        PAUSED: 0.5,
        MISPLACED: 0.5,
        TAIL: 1.0,
    }


def at_once(worker: int, begin: float, end: float) -> tuple[float, ...]:
    """An attempt that waits for nothing."""
    return (worker, begin, begin, begin, begin, begin, end, end)


def test_what_the_tail_and_the_client_wait_for() -> None:
    spans = {PREPROCESSING: (1, 2), PROCESSOR: (3, 6), MERGE: (5, 8), OTHER: (7, 8.5)}
    attempts = [at_once(0, *span) for span in spans.values()]
    found = slots(attempts, [(0, 10, 4), (0, 10, 1)], 10, kinds=list(spans))
    assert found.tail_of == pytest.approx({PROCESSOR: 3 * 5 - 4, PREPROCESSING: 4, MERGE: 2 * 5 - 3, OTHER: 2})
    assert found.client_of == pytest.approx({"before": 5, "between": 5, "after": 7.5})
    assert totals(found) == {TAIL: sum(found.tail_of.values()), CLIENT: sum(found.client_of.values())}


def test_bins_have_what_lies_in_them() -> None:
    attempts = [(0, 0.0, 1.0, 1.0, 1.0, 1.0, 4.0, 4.0)]
    found = slots(attempts, [(0, 8, 1), (0, 8, 3)], 8, pauses=[(1, 5.0, 7.0)], bins=4)
    assert found.seconds[QUEUED].tolist() == [[0.25, 0, 0, 0], [0.75, 0, 0, 0]]
    assert found.seconds[TAIL].tolist() == [[0, 0, 0, 0], [3, 6, 0, 0]]
    assert found.seconds[PAUSED].tolist() == [[0, 0, 0, 0], [0, 0, 3, 3]]
    assert found.seconds[CLIENT].tolist() == [[0.75, 0, 2, 2], [2.25, 0, 3, 3]]


def counted(
    attempts: list[tuple[float, ...]],
    workers: list[tuple[float, float, int]],
    stop: float,
    kinds: list[str],
    pauses: list[tuple[float, ...]],
) -> dict[str, float]:
    """The same from the definition, moment by moment."""
    sums = dict.fromkeys((*IDLE, UNRECORDED, *TAIL_OF, *CLIENT_OF), 0.0)
    first, last = min(row[2] for row in attempts), max(row[7] for row in attempts)
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
            if any(pause[0] == worker and pause[1] <= moment < pause[2] for pause in pauses):
                sums[PAUSED] += free / 1000
                free = 0
            surplus += max(ready - free, 0)
            for cause, number in (
                ("worker overhead", ready),
                ("transfer", arriving),
                ("in flight", assigned + reported),
            ):
                filled = min(free, number)
                sums[cause] += filled / 1000
                free -= filled
            free_of[worker] = free
        left = sum(free_of.values())
        for cause, number in ((QUEUED, sum(row[1] <= moment < row[2] for row in attempts)), (MISPLACED, surplus)):
            filled = min(left, number)
            sums[cause] += filled / 1000
            left -= filled
        sums[TAIL if active else CLIENT] += left / 1000
        alive = {kind for kind, row in zip(kinds, attempts, strict=True) if row[2] <= moment < row[7]}
        when = "before" if moment < first else "between" if moment < last else "after"
        sums[next((kind for kind in TAIL_OF if kind in alive), when)] += left / 1000
    return sums


@pytest.mark.parametrize("seed", range(4))
def test_drawn_runs_are_counted_as_by_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "BLOCK", 7)
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
    kinds = random.choice(KINDS, len(attempts)).tolist()
    pauses = [(worker, *np.sort(random.integers(0, 3000, 2)) / 1000) for worker in (0, 2)]
    found = slots(attempts, workers, stop, kinds, pauses)
    offered = sum((end - begin) * threads for begin, end, threads in workers)
    busy = sum(row[6] - row[5] for row in attempts)
    assert found.beyond == 0
    assert sum(float(seconds.sum()) for seconds in found.seconds.values()) == pytest.approx(offered - busy, abs=1e-5)
    expected = counted(attempts, workers, stop, kinds, pauses)
    sums = {cause: float(seconds.sum()) for cause, seconds in found.seconds.items()} | found.tail_of | found.client_of
    assert sums.pop(STARTUP) == 0  # no first task is late
    assert sums == pytest.approx(expected, abs=2e-3)
    for together in (True, False):
        fine = slots(attempts, workers, stop, kinds, pauses, bins=13, together=together)
        for cause, seconds in fine.seconds.items():
            rows = seconds.sum(axis=1)
            assert (seconds >= -1e-9).all()
            assert rows == pytest.approx(found.seconds[cause].sum(axis=1 - together, keepdims=together).ravel())


@pytest.mark.parametrize("bins", [1, 7])
def test_groups_of_workers_are_counted_as_if_each_were_alone(bins: int) -> None:
    generator = np.random.default_rng(7)
    moments = np.sort(generator.uniform(0, 9, (40, 7)), axis=1)
    worker = generator.integers(0, 6, 40)
    kind = generator.integers(0, len(KINDS), 40)
    presence = Presence(np.arange(6), np.zeros(6), np.full(6, 10.0), np.full(6, 2))
    none = of_one_thread([])
    together = np.array([1, 0, 1, 2, 0, 1])
    where = axes(0.0, 10.0, np.arange(6), 6, bins)
    attempts = Moments(worker, *moments.T, kind)
    found = idle_slots(attempts, presence, none, where, first=none, gaps=none, together=together)
    expected = {cause: np.zeros((6, bins)) for cause in found.seconds}
    tail = dict.fromkeys(TAIL_OF, 0.0)
    for group in range(3):
        some, here = together[worker] == group, together == group
        alone = Moments(worker[some], *moments[some].T, kind[some])
        of_group = Presence(*(column[here] for column in presence))
        counted = idle_slots(alone, of_group, none, where, first=none, gaps=none, together=np.zeros(6, np.int64))
        tail = {cause: tail[cause] + counted.tail_of[cause] for cause in tail}
        for cause, seconds in counted.seconds.items():
            expected[cause][here] += seconds[here]
    for cause, seconds in expected.items():
        assert found.seconds[cause] == pytest.approx(seconds), cause
    assert found.tail_of == pytest.approx(tail)
