"""Rates of a run in the units of what limits it: bits and requests read, tasks handled, results merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.tasks import MERGE, PROCESSOR
from roastcoffea.studies.scaling.laws import Between

MIDDLE: Final = (0.1, 0.9)
"""Part of an amount whose rate is that of the run: neither its start nor its tail."""

SLICES: Final = 16
"""Parts of that time; the scatter of their rates gives the interval."""

FEWEST: Final = 4 * SLICES
"""Fewest events of which a rate is known."""

DEVIATIONS: Final = 1.96


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates of a run per second, each None if not measured; and what the run had of each."""

    rates: dict[str, Between]
    amounts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Loop:
    """The scheduler's event loop while tasks were in flight: share of its core, and mean lag in seconds."""

    share: float
    lag: float | None


def loop_of(measurement: Measurement) -> Loop | None:
    """The scheduler's event loop as sampled; None if it was not."""
    metrics = measurement.metrics
    share, lag = (metrics.get(name) for name in ("scheduler_core_share", "scheduler_lag_seconds"))
    return None if share is None else Loop(share, lag)


BYTES: Final = "bytes"
REQUESTS: Final = "requests"
TASKS: Final = "tasks"
MERGED: Final = "merged"
CHUNKS: Final = "chunks"


def pace_of(measurement: Measurement) -> Pace:
    """Rates of a run."""
    rates, amounts = {}, {}
    for name, (times, counted) in _counted(measurement).items():
        known = ~(np.isnan(times) | np.isnan(counted))
        amounts[name] = float(counted[known].sum())
        rate = middle_rate(times[known], counted[known])
        if rate is not None:
            rates[name] = rate
    return Pace(rates, amounts)


def _counted(measurement: Measurement) -> dict[str, tuple[Numbers, Numbers]]:
    """Times and amounts of what is counted."""
    chunks, found = measurement.chunks, {}
    if len(chunks):
        stop = chunks["stop"].to_numpy(np.float64)
        found[BYTES] = stop, chunks["bytes_requested"].to_numpy(np.float64)
        found[CHUNKS] = stop, np.ones(len(stop))
        if chunks["requests"].notna().all():
            found[REQUESTS] = stop, chunks["requests"].to_numpy(np.float64)
    if measurement.run.tasks is not None:
        tasks = measurement.tasks
        seen, size = (tasks[name].to_numpy(np.float64) for name in ("seen", "nbytes"))
        kind, stop = tasks["kind"].to_numpy(), tasks["stop"].to_numpy(np.float64)
        found[TASKS] = seen, np.ones(len(seen))
        # what merges take in are the results of all tasks but the last
        results = np.isin(kind, (PROCESSOR, MERGE))
        last = results & (stop == np.max(stop[results], initial=-np.inf))
        found[MERGED] = stop[results & ~last], size[results & ~last]
    return found


def middle_rate(times: Numbers, amounts: Numbers) -> Between | None:
    """Amount per second while the middle of it came, with an interval; None if there is too little to tell."""
    if len(times) < FEWEST or not amounts.sum():
        return None
    order = np.argsort(times)
    times, came = times[order], np.cumsum(amounts[order]) / amounts.sum()
    begin, end = (float(times[np.searchsorted(came, share)]) for share in MIDDLE)
    if end <= begin:
        return None
    edges = np.linspace(begin, end, SLICES + 1)
    slices, _ = np.histogram(times, edges, weights=amounts[order])
    rates = slices * SLICES / (end - begin)
    mean, error = float(rates.mean()), DEVIATIONS * float(rates.std(ddof=1)) / SLICES**0.5
    return Between(mean, max(mean - error, 0.0), mean + error)
