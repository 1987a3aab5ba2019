"""Bins of time: their edges, and amounts that are spread over them."""

from __future__ import annotations

import numpy as np

from roastcoffea.metrics.statistics import axes, spread

ONE = np.zeros(1, np.int64)


def test_seconds_are_spread_over_their_time() -> None:
    begin, end, seconds = (np.array(values, float) for values in ([0.5, 1.0, 3.0], [2.5, 1.0, 9.0], [4.0, 7.0, 1.0]))
    where = axes(0.0, 4.0, np.zeros(1, np.int64), 1, 4)
    # the last one ends beyond the bins
    assert spread(np.zeros(3, np.int64), begin, end, seconds, where).tolist() == [[1.0, 2.0 + 7.0, 1.0, 1.0]]
