"""What is said of time limits that end workers."""

from __future__ import annotations

import dataclasses

from handmade import T, evidence_of
from limited_runs import LIMITED, edited

from roastcoffea.diagnosis.causes import CAUSES


def test_a_walltime_has_a_line_to_copy() -> None:
    run = LIMITED["time limit"]()
    (draft,) = CAUSES["time limit"].drafts(evidence_of(run))
    assert draft.what.startswith("2 of 6 workers end after 1 h 0 min: the walltime of their jobs.")
    assert draft.remedy == 'worker_extra_args=["--lifetime", "54m", "--lifetime-stagger", "5m"]'
    assert draft.rows == {"ended by a time limit": 2 * (run.stop - T - 10)}


def test_a_lifetime_needs_a_longer_one() -> None:
    run = edited(LIMITED["time limit"](), lifetimes=lambda row: {"lifetime_end": row["stop"], "job_limit": None})
    (draft,) = CAUSES["time limit"].drafts(evidence_of(run))
    assert "their --lifetime" in draft.what
    assert draft.remedy is None


def test_runs_without_limits_have_none() -> None:
    run = edited(LIMITED["time limit"](), lifetimes=lambda _: {"job_limit": None})
    assert list(CAUSES["time limit"].drafts(evidence_of(run))) == []
    unknown = dataclasses.replace(evidence_of(run), run=dataclasses.replace(run, lifetimes=None))
    assert list(CAUSES["time limit"].drafts(unknown)) == []
