"""Runs replayed as they were, against what was measured and schedules that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import made_run, plan

from roastcoffea.diagnosis import savings as calibrated
from roastcoffea.diagnosis.savings import Calibrated, Removal
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import Chunks, Scenario, with_computing
from roastcoffea.replay.stages import Known, recorded_with


def of(run: Run, workers: float = 2) -> Calibrated:
    return Calibrated(recorded_with(run, Known(workers), "made", as_it_was=True))


def without(part: str) -> Removal:
    def change(chunks: Chunks) -> Chunks:
        return chunks.with_parts(**{part: np.zeros(len(chunks))})

    return Removal(Scenario(chunks=change))


def test_the_unchanged_run_takes_what_it_took() -> None:
    found = of(made_run([plan(1.0, 2.0), plan(2.0, 0.5)] * 6, 2, before=3.0))
    assert found.base[0] == pytest.approx(found.measured, rel=1e-3)
    assert found.error == pytest.approx(0.0, abs=1e-3)
    assert found.saved(Removal()) == (0.0, 0.0)


def test_others_on_the_cores_stay_in_the_replay() -> None:
    """Chunks that waited for cores of which there were enough take as long as they did."""
    found = of(made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=64))
    assert found.measured == 16.0
    assert found.error == pytest.approx(0.0, abs=1e-3)
    assert found.saved(without("contention"))[0] == pytest.approx(8.0, rel=1e-2)


def test_what_keeps_a_shared_core_free_is_won_twice() -> None:
    found = of(made_run([plan(1.0, core_wait=1.0)] * 16, 2, cores=1))
    half = Scenario(chunks=lambda chunks: with_computing(chunks, cpu=0.5 * chunks.parts.cpu))
    assert found.saved(Removal(half))[0] == pytest.approx(8.0, rel=0.02)


def test_a_scheduler_was_no_limit_of_a_run_that_was_faster_than_is_assumed_of_it() -> None:
    """A thousand chunks of 20 ms on 40 threads take half a second: 0.5 ms of the scheduler for each at most."""
    found = of(made_run([plan(0.02)] * 1000, 40), 40)
    assert found.measured == pytest.approx(0.5)
    assert found.error == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("workers", [1, 12])
def test_samples_of_long_runs_take_as_long(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    plans = [plan(cpu, 0.5) for cpu in random.gamma(4, 0.25, 1200)]
    whole = of(made_run(plans, workers), workers)
    expected = whole.saved(without("wait"))[0]
    monkeypatch.setattr(calibrated, "MOST", 200)
    sampled = of(made_run(plans, workers), workers)
    assert sampled.error == pytest.approx(whole.error, abs=0.02)
    assert sampled.saved(without("wait"))[0] == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("factor", [0.5, 1.01, 3.0])
def test_where_threads_have_more_to_do_than_there_was_time_no_replay_saves_anything(factor: float) -> None:
    def change(chunks: Chunks) -> Chunks:
        return chunks.with_parts(cpu=factor * chunks.parts.cpu)

    found, removal = of(made_run([plan(1.0)] * 20, 2, before=3.0)), Removal(Scenario(chunks=change))
    assert found.saves_nothing(removal) == (factor > 1)
    assert (found.saved(removal)[0] > 0) == (factor < 1)
