"""What a run's host was used for beside it, by hand."""

from __future__ import annotations

import pytest
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.replay.stages import Recorded, recorded_run
from roastcoffea.studies.prediction import foreign_load, others_of, replay


def recorded(run: Run) -> Recorded:
    return recorded_run(run, Measurement(run).metrics, "made")


def test_jobs_of_others_are_those_that_explain_the_wait() -> None:
    """Chunks on two cores took three times their CPU time: next to each of ours are two jobs of others."""
    run = recorded(made_run([plan(1.0, core_wait=2.0)] * 16, 2, cores=2))
    assert others_of(run) == pytest.approx(2.0, abs=0.05)
    assert "other programs used the cores" in str(foreign_load(run, others_of(run)))


def test_waiting_that_the_run_explains_needs_no_others() -> None:
    run = recorded(made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=1))
    assert (others_of(run), foreign_load(run, 0.0)) == (0.0, None)
    assert others_of(recorded(made_run([plan(1.0)] * 16, 2, cores=2))) == 0.0
    assert others_of(recorded(made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=None))) == 0.0


def test_a_whole_run_is_replayed_with_the_time_around_it() -> None:
    run = recorded(made_run([plan(1.0)] * 16, 2, before=3.0))
    assert replay(run, run.own_cluster).seconds == pytest.approx(3.0 + 8.0, rel=0.01)
