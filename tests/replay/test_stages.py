"""Stages of runs that are written down by hand, as they were recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_runs import Plan, made_run, plan

from roastcoffea.diagnosis.savings import Calibrated, Removal
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.replay.changes import Scenario
from roastcoffea.replay.stages import Known, recorded_with


def with_failed(plans: list[Plan], seconds: float) -> Run:
    """A run whose first task failed after a while, on one worker, before the others."""
    run = made_run(plans, 1, before=seconds)
    assert run.tasks is not None
    given = dict.fromkeys(("runnable", "assigned", "arrived", "ready"), run.start)
    rows: list[dict[str, Any]] = [row | given for row in run.tasks.to_pylist()]
    lost = rows[0] | {"run_id": 99, "outcome": "error", "start": run.start, "stop": run.start + seconds}
    return replace(run, tasks=table_of_rows(TASK_COLUMNS, [lost, *rows]))


def test_failed_attempts_stand_among_the_others() -> None:
    found = Calibrated(recorded_with(with_failed([plan(1.0)] * 6, 4.0), Known(1), "made", as_it_was=True))
    (chunks,) = found.chunks
    assert chunks.parts.failed.tolist() == pytest.approx([4.0, 0, 0, 0, 0, 0, 0])
    assert (chunks.row.tolist(), found.measured) == ([-1, 0, 1, 2, 3, 4, 5], 10.0)
    gone = Scenario(chunks=lambda chunks: chunks.with_parts(failed=0 * chunks.parts.failed))
    assert found.saved(Removal(gone))[0] == pytest.approx(4.0, rel=1e-2)


def test_first_tasks_keep_what_they_took() -> None:
    """Of two processes one began slowly; of the other's first chunk no more is its start than of that one's."""
    slow = [plan(5.0), plan(9.0), *[plan(1.0)] * 14]
    run = recorded_with(made_run(slow, 2), Known(2), "made", as_it_was=True)
    chunks = run.stages[0].chunks
    assert chunks is not None
    assert chunks.parts.first[:3].tolist() == pytest.approx([4.0, 4.0, 0.0])
    assert chunks.parts.total[:3].tolist() == pytest.approx([5.0, 9.0, 1.0])
