"""Which workers a time limit ended, and what is said of that."""

from __future__ import annotations

import dataclasses

import pytest
from handmade import T, evidence_of, life, measured
from limited_runs import LIMITED, edited

from roastcoffea.diagnosis.finding import CAUSES
from roastcoffea.diagnosis.findings.lost_work import LIFETIME, WALLTIME, Ended, ended_by_limits


def test_a_worker_is_missing_until_another_arrives() -> None:
    lives = (
        life("a", 0, 30, "1", job_limit=60.0),  # its job started 30 s before the run
        life("b", 0, 30, "2", job_limit=60.0),
        life("c", 40, 100, "3", job_start=T + 35, job_limit=600.0),
    )
    assert ended_by_limits(measured(*lives).run) == [Ended(WALLTIME, 2, 60.0, 2 * 10.0 + 2 * 70.0)]


def test_a_lifetime_ends_workers_that_close() -> None:
    lives = life("a", 0, 50, lifetime_end=T + 46, closing=T + 48), life("b", 51, 100, "2", lifetime_end=T + 100)
    assert ended_by_limits(measured(*lives).run) == [Ended(LIFETIME, 1, 80.0, pytest.approx(2.0))]


@pytest.mark.parametrize(
    "known",
    [
        {"lifetime_end": T + 90, "closing": T + 49},  # an adaptive cluster retires it
        {"job_limit": 3600.0},
        {"job_start": None, "job_limit": 50.0},
        {},
    ],
)
def test_workers_that_leave_for_another_reason_are_none(known: dict[str, float | None]) -> None:
    assert ended_by_limits(measured(life("a", 0, 50, **known)).run) == []


def test_a_worker_that_is_there_at_the_end_was_not_ended() -> None:
    assert ended_by_limits(measured(life("a", 0, 100, job_limit=130.0)).run) == []


def test_a_walltime_has_a_line_to_copy() -> None:
    run = LIMITED["time limit"]()
    (draft,) = CAUSES["time limit"].findings(evidence_of(run))
    assert draft.what.startswith("2 of 6 workers exited after 1 h 0 min, at their jobs' walltime.")
    assert draft.remedy == 'worker_extra_args=["--lifetime", "54m", "--lifetime-stagger", "5m"]'
    assert draft.rows == {"ended by a time limit": 2 * (run.stop - T - 10)}


def test_a_lifetime_needs_a_longer_one() -> None:
    run = edited(LIMITED["time limit"](), lifetimes=lambda row: {"lifetime_end": row["stop"], "job_limit": None})
    (draft,) = CAUSES["time limit"].findings(evidence_of(run))
    assert "their --lifetime" in draft.what
    assert draft.remedy is None


def test_runs_without_limits_have_none() -> None:
    run = edited(LIMITED["time limit"](), lifetimes=lambda _: {"job_limit": None})
    assert list(CAUSES["time limit"].findings(evidence_of(run))) == []
    unknown = dataclasses.replace(evidence_of(run), run=dataclasses.replace(run, lifetimes=None))
    assert list(CAUSES["time limit"].findings(unknown)) == []
