"""Points of scaling, from runs that are written down by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.studies.scaling.laws import RESAMPLES, THREADS, WORKERS, Scaled, point_of, resampled_rates, scaled

RUN = Measurement(made_run([plan(1.0)] * 8, 2, cores=4))


def test_what_is_taken_of_a_run() -> None:
    found = scaled("it", RUN, WORKERS)
    assert (found.name, found.workers, found.threads, found.seconds, found.events) == ("it", 2, 2, 4.0, 800)
    assert (found.rate, found.cores, found.failed, found.scatter) == (200.0, 4, False, 0.0)
    assert found.missing == pytest.approx(0.0)
    assert found.classes["compute"] == pytest.approx(8.0 / 800)
    assert scaled("it", Measurement(made_run([plan(1.0)] * 8, 2, cores=1)), THREADS).cores == 1
    assert scaled("it", Measurement(made_run([plan(1.0)] * 8, 2, cores=None)), THREADS).cores is None


def repeats(*seconds: float) -> list[Scaled]:
    return [replace(scaled("it", RUN, WORKERS), seconds=each) for each in seconds]


def test_repeats_are_drawn_again() -> None:
    rates = resampled_rates(repeats(3.0, 4.0, 6.0), 0)
    assert len(rates) == RESAMPLES + 1
    assert rates[0] == pytest.approx(800 / (3.0 * 4.0 * 6.0) ** (1 / 3))
    assert (rates.min(), rates.max()) == pytest.approx((800 / 6.0, 800 / 3.0))
    assert (resampled_rates(repeats(3.0, 4.0, 6.0), 1)[1:] != rates[1:]).any()


def test_a_run_alone_scatters_as_its_chunks_do() -> None:
    (alone,) = repeats(4.0)
    assert resampled_rates([alone], 0).tolist() == pytest.approx([200.0] * (RESAMPLES + 1))
    rates = np.log(resampled_rates([replace(alone, scatter=0.1)], 0)[1:])
    assert rates.mean() == pytest.approx(np.log(200.0), abs=0.02)
    assert rates.std() == pytest.approx(0.1, rel=0.1)


def test_a_point_beside_that_of_the_fewest() -> None:
    least, rates = np.array([100.0, 90.0, 110.0]), np.array([300.0, 280.0, 310.0])
    group = [replace(each, workers=8) for each in repeats(2.0, 4.0)]
    point = point_of(group, rates, 2, least)
    assert (point.workers, point.runs, point.seconds) == (8, 2, 3.0)
    assert (point.rate.value, point.speedup.value, point.efficiency.value) == (300.0, 6.0, 0.75)
    assert point_of(group, least, 8, least).efficiency.low is None
