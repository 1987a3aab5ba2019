"""Laws that are fitted to rates which follow them."""

from __future__ import annotations

import numpy as np
import pytest

from roastcoffea.studies.scaling import laws_of
from roastcoffea.studies.scaling_limits import Between

NUMBERS = np.array([1.0, 2.0, 4.0, 8.0])


def rates(contention: float, coherency: float = 0.0, scatter: float = 0.0) -> np.ndarray:
    """Rates by a law, and others that scatter about them."""
    exact = 100 * NUMBERS / (1 + contention * (NUMBERS - 1) + coherency * NUMBERS * (NUMBERS - 1))
    drawn = np.random.default_rng(1).normal(1.0, scatter, (len(NUMBERS), 200)) if scatter else np.ones((4, 200))
    return np.column_stack([exact, exact[:, None] * drawn])


def test_a_number_without_scatter_has_no_interval() -> None:
    assert Between.of(np.full(5, 2.0)) == Between(2.0)
    assert Between.of(np.array([2.0, *range(101)])) == Between(2.0, 2.5, 97.5)


def test_both_laws_find_what_they_were_made_of() -> None:
    laws, missing = laws_of(NUMBERS, rates(0.1, 0.01), strong=True)
    assert missing == {}
    law = laws["USL"]
    assert (law.rate, law.contention.value, law.coherency.value) == pytest.approx((100.0, 0.1, 0.01))
    assert law.peak == pytest.approx((0.9 / 0.01) ** 0.5)
    assert law.speedup(NUMBERS) == pytest.approx(rates(0.1, 0.01)[:, 0] / 100.0)
    assert laws["Amdahl"].deviation > law.deviation == pytest.approx(0.0, abs=1e-9)


def test_without_loss_there_is_no_end() -> None:
    laws, _ = laws_of(NUMBERS, rates(0.0), strong=True)
    assert (laws["Amdahl"].worth, laws["Amdahl"].peak) == (None, None)


def test_scatter_makes_an_interval() -> None:
    law = laws_of(NUMBERS, rates(0.1, scatter=0.02), strong=True)[0]["Amdahl"]
    assert law.contention.low is not None
    assert law.contention.high is not None
    assert law.contention.low < 0.1 < law.contention.high


def test_why_laws_are_missing() -> None:
    laws, missing = laws_of(NUMBERS[:2], rates(0.1)[:2], strong=True)
    assert laws == {}
    assert missing["USL"] == "it needs runs with 4 different numbers of workers, not 2"
    assert laws_of(NUMBERS, rates(0.1), strong=False)[1].keys() == {"Amdahl"}
    laws, missing = laws_of(NUMBERS, rates(1.5), strong=True)
    assert laws == {}
    assert all("more workers made the run slower" in reason for reason in missing.values())
