"""What taking a cause out changes in the replay of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from handmade import evidence_of
from limited_runs import edited
from made_runs import made_run, plan, savings_of

from roastcoffea.diagnosis.finding import CAUSES
from roastcoffea.diagnosis.savings import Taken, without_excess
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.replay.cluster import Merging


def with_overhead(run: Run, seconds: float) -> Run:
    """The same run, whose tasks take so much longer than their chunks."""
    assert run.tasks is not None
    rows = [row | {"start": row["start"] - seconds} for row in run.tasks.to_pylist()]
    return dataclasses.replace(run, tasks=table_of_rows(TASK_COLUMNS, rows))


RUN = with_overhead(made_run([plan(2.0, open_cpu=0.5, open_wait=0.5)] * 8, 2), 0.25)
"""Eight chunks of one file, that take 0.25 s of overhead each."""


def test_compressing_large_outputs_is_taken_out_with_merging_and_not_with_scheduling() -> None:
    """Where they take longer than Dask's own handling of the tasks."""
    merging = Merging(fan_in=4, cpu=1.0, wait=1.0, fetch=1.0)
    for cause, size, overhead, left in (
        ("scheduler", 0, 0.0, (1.0, 1.0, 0.0)),
        ("merge", 2_000_000, 0.0, (0.0, 0.0, 0.0)),
    ):
        run = edited(RUN, tasks=lambda row, size=size: {"nbytes": size})
        (found,) = CAUSES[cause].findings(evidence_of(run))
        assert found.taken is not None
        assert found.taken.removal is not None
        scenario, replay = found.taken.removal.scenario, savings_of(run).replay
        assert not isinstance(replay, str)
        (chunks,) = replay.chunks
        assert float(np.sum(scenario.chunks(chunks).parts.overhead)) == pytest.approx(overhead)
        after = scenario.merging(merging)
        assert (after.cpu, after.wait, after.fetch) == left


def slow_file(phase: str, core_wait: float, times: float = 10.0) -> tuple[Run, Run]:
    """A run with a file that takes longer in a phase, and the same without."""
    plans = [plan(1.0, file=f"{place // 10}", open_wait=0.25, read=0.5, core_wait=core_wait) for place in range(40)]
    slow = [dict(one) | ({phase: times * one[phase]} if one["file"] == "3" else {}) for one in plans]
    return made_run(slow, 4), made_run(plans, 4)


@pytest.mark.parametrize("core_wait", [0.0, 2.0, 4.0])
def test_contention_of_a_file_that_is_slow_to_read_is_left(core_wait: float) -> None:
    slow, others = slow_file("read", core_wait)
    assert slow.chunks is not None
    is_slow = [file == "3" for file in slow.chunks["file"].to_pylist()]
    # 6.25 s and 1.75 s of what is no contention
    factors = np.where(is_slow, 1.75 / 6.25, 1.0)
    phases = ["read" if one else None for one in is_slow]
    found = savings_of(slow).of(Taken(without_excess(factors, phases)))
    assert found.seconds == pytest.approx((slow.stop - slow.start) - (others.stop - others.start), rel=0.02)


def test_contention_of_a_worker_that_computes_slowly_goes_with_its_cpu_time() -> None:
    run, _ = slow_file("cpu", 2.0)
    savings = savings_of(run)
    replay = savings.replay
    assert not isinstance(replay, str)
    (chunks,) = replay.chunks
    for phase in ("compute", None):
        change = without_excess(np.full(40, 0.5), [phase] * 40).scenario
        after, before = change.chunks(chunks).parts, chunks.parts
        worked = [one.total - one.contention for one in (after, before)]
        assert worked[0] == pytest.approx(worked[1] / 2)
        assert after.contention / before.contention == pytest.approx(after.computing / before.computing)
