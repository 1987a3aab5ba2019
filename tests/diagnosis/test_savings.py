"""Savings against schedules that are worked out by hand, and against runs that are made without the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from handmade import evidence_of
from limited_runs import edited, merged
from made_runs import made_run, plan, savings_of

from roastcoffea.diagnosis.finding import CAUSES, Finding
from roastcoffea.diagnosis.savings import Removal, Saving, Taken, without_cpu, without_excess
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run

EACH = 0.01
"""Relative difference that gaps between tasks may make."""


def slow(place: int) -> float:
    return 14.0 if place in {0, 15, 30} else 1.0


def taken_out(cause: str, run: Run) -> Saving:
    """What a run saves without a cause."""
    evidence = evidence_of(run)
    (one,) = CAUSES[cause].findings(evidence)
    return evidence.savings.of(taken_by(one))


def taken_by(one: Finding) -> Taken:
    return replace(one.taken or Taken(), rows=one.rows)


def test_a_slow_worker_taken_out_gives_the_list_schedule() -> None:
    """Forty chunks on two workers, of which one took 14 times as long for its three: 42 s, and 20 s without that."""
    run = made_run([plan(slow(place)) for place in range(40)], 2)
    assert run.stop - run.start == pytest.approx(42.0)
    factors = np.array([1 / slow(place) for place in range(40)])
    found = savings_of(run).of(Taken(without_excess(factors, [None] * 40)))
    assert found.seconds == pytest.approx(22.0, rel=EACH)
    assert 0 < found.low < 22.0 < found.high
    assert not found.at_most


def test_other_possible_removals_extend_the_interval() -> None:
    """Chunks 14 times as long as others, or 12 to 16 times: with 12 each still takes 14 / 12 s without the cause."""
    run = made_run([plan(slow(place)) for place in range(40)], 2)
    likely, shorter, longer = (
        without_excess(np.array([1.0 if slow(place) == 1 else 1 / factor for place in range(40)]), [None] * 40)
        for factor in (14, 12, 16)
    )
    savings = savings_of(run)
    alone, both = (savings.of(Taken(likely, others=others)) for others in ((), (shorter, longer)))
    assert (alone.seconds, alone.high) == (both.seconds, pytest.approx(both.high, rel=0.02))
    less = savings.of(Taken(shorter)).seconds
    error = np.hypot(alone.seconds - alone.low, alone.seconds - less)
    assert both.low == pytest.approx(alone.seconds - error)


def test_a_slow_workers_saving_covers_the_interval_of_its_factor() -> None:
    random, free, plans = np.random.default_rng(1), [0.0] * 4, []
    for _ in range(80):  # each on the worker that is free first; the last worker needs twice as long
        worker = free.index(min(free))
        seconds = float(random.normal(1.0, 0.1)) * (1 + (worker == 3))
        free[worker] += seconds
        plans.append(plan(seconds))
    evidence = Measurement(made_run(plans, 4)).metrics.evaluator.value("evidence")
    (one,) = CAUSES["slow worker"].findings(evidence)
    (slow,) = evidence.slow or ()
    taken = taken_by(one)
    assert len(taken.others) == 2
    savings = [evidence.savings.of(replace(taken, removal=each, others=())).seconds for each in taken.others]
    found, alone = evidence.savings.of(taken), evidence.savings.of(replace(taken, others=()))
    assert slow.interval[0] < slow.factor < slow.interval[1]
    assert savings[0] < found.seconds < savings[1]
    assert found.seconds - found.low == pytest.approx(np.hypot(alone.seconds - alone.low, found.seconds - savings[0]))


MIXED = [plan(1.0, 2.0, open_cpu=0.25, open_wait=0.25, read=1.0, file=file) for file in ("a", "b") for _ in range(16)]


@pytest.mark.parametrize(
    ("cause", "seconds", "at_most"),
    [
        ("storage", 10.0, False),  # half of 1.25 s for each of 16 chunks on a thread
        ("blocked", 32.0, True),
        ("client", 5.0, True),
    ],
)
def test_causes_by_hand(cause: str, seconds: float, at_most: bool) -> None:
    found = taken_out(cause, made_run(MIXED, 2, before=5.0))
    assert found.seconds == pytest.approx(seconds, rel=EACH, abs=0.05)
    assert found.low <= seconds + 0.05
    assert found.high >= seconds - 0.05
    assert found.at_most == at_most


@pytest.mark.parametrize(
    ("removal", "seconds"),
    [(without_cpu(np.full(32, 0.5)), 8.0), (without_excess(np.repeat([0.5, 1.0], 16), [None] * 32), 18.0)],
)
def test_seconds_of_chunks_by_hand(removal: Removal, seconds: float) -> None:
    found = savings_of(made_run(MIXED, 2)).of(Taken(removal))
    assert found.seconds == pytest.approx(seconds, rel=EACH, abs=0.05)


def test_the_tail_is_what_balance_would_save() -> None:
    """Three chunks of 4 s on two workers: 8 s, of which 4 s of one thread are idle."""
    found = taken_out("tail", made_run([plan(4.0)] * 3, 2))
    assert found.seconds == pytest.approx(2.0, rel=0.02)


def test_all_together_save_no_more_than_the_run() -> None:
    run = made_run(MIXED, 2, before=5.0)
    evidence = evidence_of(run)
    each = [taken_by(one) for cause in ("blocked", "storage", "client") for one in CAUSES[cause].findings(evidence)]
    together = evidence.savings.together(each)
    # all chunks are alike, and nothing overlaps
    assert together == pytest.approx(sum(evidence.savings.of(one).seconds or 0.0 for one in each), rel=0.02)
    every = [taken_by(one) for cause in CAUSES.values() for one in cause.findings(evidence) if not one.incomplete]
    assert together <= evidence.savings.together(every) <= run.stop - run.start


def test_a_saving_within_its_error_is_not_certain() -> None:
    """A run whose replay takes 5 s less than it did, as nothing tells of the gap between its chunks."""
    run = made_run([plan(1.0, 0.1)] * 10, 1)
    half = run.start + 5.0

    def later(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] + 3.0 * (row["start"] > half) for name in ("start", "stop", "seen")}

    late = edited(replace(run, stop=run.stop + 3.0), tasks=later)
    assert taken_out("blocked", late).low == 0.0


# Without a replay


def without_tasks(run: Run) -> Run:
    return replace(run, tasks=None, absent={"tasks": "no scheduler"})


def test_without_tasks_it_is_a_share_of_the_threads_time() -> None:
    found = taken_out("blocked", without_tasks(made_run([plan(1.0, 3.0)] * 8, 2)))
    assert found.seconds == pytest.approx(12.0, rel=0.01)
    assert (found.low, found.high, found.at_most) == (0.0, found.seconds, True)


@pytest.mark.parametrize(("phase", "together"), [("read", 6.0), ("compute", 8.0)])
def test_without_a_replay_somebody_slow_is_not_added_to_the_classes_it_lies_in(phase: str, together: float) -> None:
    """Of 16 s of reading on two threads 8 s are a slow file's: half of the other 8 s, and these."""
    evidence = evidence_of(without_tasks(made_run([plan(1.0, read=2.0)] * 8, 2)))
    (reading,) = CAUSES["storage"].findings(evidence)
    slow = Taken(seconds=8.0, inside={phase: 8.0})
    assert evidence.savings.together([taken_by(reading), slow]) == pytest.approx(together)
    assert evidence.savings.together([slow]) == pytest.approx(4.0)


def test_what_a_replay_does_not_know_is_a_share() -> None:
    found = savings_of(made_run([plan(1.0)] * 8, 2)).of(Taken(seconds=2.0))
    assert (found.seconds, found.at_most) == (pytest.approx(1.0), True)


def test_fetching_is_a_saving_of_transfer_and_not_of_merging() -> None:
    run = merged(1.0, 5.0)
    transfer, merge = (taken_out(cause, run).seconds or 0.0 for cause in ("transfer", "merge"))
    assert transfer == pytest.approx(10.0, rel=0.05)  # two rounds of merges
    assert 0 < merge < transfer / 2


# Runs that are made
