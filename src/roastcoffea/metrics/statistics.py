"""Statistics over intervals of time and over samples; empty input is the caller's to refuse."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def clipped(starts: Numbers, stops: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """Parts of intervals that lie between low and high; one that does not has length zero."""
    return np.clip(starts, low, high), np.clip(stops, low, high)


def integral(starts: Numbers, stops: Numbers, heights: Numbers) -> float:
    """Time integral of the sum of intervals, each of its own height."""
    return float(np.sum((stops - starts) * heights))


def highest_concurrency(starts: Numbers, stops: Numbers) -> int:
    """Most intervals at one moment; where one ends and the next begins at the same instant it is one."""
    lasting = stops > starts
    starts, stops = np.sort(starts[lasting]), np.sort(stops[lasting])
    open_at_start = np.arange(1, len(starts) + 1) - np.searchsorted(stops, starts, side="right")
    return int(open_at_start.max(initial=0))


def union_length(starts: Numbers, stops: Numbers) -> float:
    """Length of time that at least one interval covers."""
    order = np.argsort(starts)
    starts, stops = starts[order], stops[order]
    covered_until = np.concatenate([starts[:1], np.maximum.accumulate(stops)[:-1]])
    return float(np.sum(np.maximum(stops - np.maximum(starts, covered_until), 0.0)))


def time_weighted_mean(times: Numbers, values: Numbers) -> float:
    """Mean of a quantity over the time between its first and its last sample, linear between samples.

    Samples that were all taken at one moment give their plain mean.
    """
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    steps = np.diff(times)
    if steps.sum() == 0:
        return float(values.mean())
    return float(np.sum(steps * (values[1:] + values[:-1]) / 2) / steps.sum())


def sample_deviation(values: Numbers) -> float:
    """Standard deviation of what the values are a sample of (n - 1); it takes two values at least."""
    return float(np.std(values, ddof=1))
