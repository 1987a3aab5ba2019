"""Laws of what chunks take, against laws that the chunks were made by."""

import numpy as np
import pytest

from roastcoffea.diagnosis.slowness import predicted, typical_seconds
from roastcoffea.metrics.statistics import Groups


def traits_of(events: np.ndarray) -> np.ndarray:
    return np.stack([np.ones(len(events)), events])


def test_stragglers_do_not_draw_the_law() -> None:
    events = np.arange(100.0, 200.0)
    truth = 0.5 + 0.01 * events
    seconds = truth.copy()
    seconds[::5] *= 10
    assert predicted(traits_of(events), seconds, np.ones(100, bool)) == pytest.approx(truth, rel=0.01)


def test_what_is_not_usual_draws_no_law() -> None:
    events = np.arange(100.0, 200.0)
    truth = 0.5 + 0.01 * events
    usual = np.arange(100) % 3 == 0
    assert predicted(traits_of(events), np.where(usual, truth, 9 * truth), usual) == pytest.approx(truth, rel=0.01)


def test_more_events_make_no_chunk_shorter() -> None:
    events = np.arange(1.0, 51.0)
    found = predicted(traits_of(events), 100 - events, np.ones(50, bool))
    assert np.all(np.diff(found) >= 0)


def test_each_dataset_has_its_law_and_small_ones_share_one() -> None:
    dataset = np.array([0] * 50 + [1] * 50 + [2] * 4)
    events = np.linspace(100, 200, 104)
    seconds = np.choose(dataset, [1.0, 3.0, 1.0]) * 0.01 * events
    found = typical_seconds(Groups(dataset, 3), traits_of(events), seconds, np.ones(104, bool))
    assert found[:100] == pytest.approx(seconds[:100], rel=0.01)
    assert np.ptp(found[100:] / events[100:]) == pytest.approx(0, abs=0.01)
