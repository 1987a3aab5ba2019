"""More CPU time where jobs share a core and its caches, from the recorded wait in the run queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import scipy

from roastcoffea.metrics.statistics import Flags, Integers, Numbers
from roastcoffea.replay.parts import Chunks, Parts, ratio

FEWEST: Final = 20
"""Fewest chunks for a fit."""

VARIED: Final = 0.5
"""Doublings of the jobs on a core between the least and the most crowded chunks, from which their effect shows."""

CONFIDENCE: Final = 0.95
"""Confidence with which CPU time has to grow."""

FEWEST_RUNS: Final = 3
"""Fewest runs that show how much they scatter."""

RUNS_VARIED: Final = 0.25
"""Doublings between the least and the most crowded runs from which their medians are compared."""

RUN_SCATTER: Final = 0.02
"""Relative scatter of the CPU time of runs that is assumed at least, as a few runs may agree by chance."""

UNUSUAL: Final = 0.1
"""Increase for a doubling that is no longer usual."""

COMPARED: Final = 500
"""Chunks that are compared, each with each."""


def doublings_of(parts: Parts, early: Flags) -> Numbers:
    """How often the jobs on each chunk's core had doubled; NaN for early tasks, which import and compile.

    A chunk that waited in the run queue as long as it computed had half a core: one doubling.
    """
    doublings = np.log2(1 + ratio(parts.contention, parts.computing))
    return np.where(early | (parts.computing <= 0), np.nan, doublings)


def crowding_of(runs: Sequence[Sequence[tuple[Chunks, Numbers]]]) -> float:
    """Increase of a chunk's CPU time for each doubling of the jobs on its core; 0 if the runs do not show any.

    Parameters
    ----------
    runs
        Runs of the same analysis on the same files: chunks of each stage, and the doublings of each.
    """
    pairs = [pair for run in runs for pair in run]
    if not pairs:
        return 0.0
    every = np.concatenate([doublings for _, doublings in pairs])
    relative = np.concatenate([_of_event(chunks) for chunks, _ in pairs])
    names = np.concatenate([np.asarray(chunks.datasets, object)[chunks.dataset] for chunks, _ in pairs])
    number = np.repeat(np.arange(len(runs)), [sum(len(doublings) for _, doublings in run) for run in runs])
    usable = np.isfinite(every) & (relative > 0)
    if np.count_nonzero(usable) < FEWEST or np.ptp(np.quantile(every[usable], [0.05, 0.95])) < VARIED:
        return 0.0
    every, relative, names = every[usable], relative[usable], names[usable]
    for name in dict.fromkeys(names):
        relative[names == name] /= np.median(relative[names == name])
    of_runs = _of_runs(every, relative, number[usable])
    return _slope(every, relative) if of_runs is None else of_runs


def _of_runs(doublings: Numbers, relative: Numbers, number: Integers) -> float | None:
    """Increase according to the medians of runs; None if these are too few, or their contention differs too little.

    Runs scatter more than their chunks tell, because a machine is not always as fast: a slope that may be chance is
    reduced as if UNUSUAL were the standard deviation of true ones about 0.
    """
    rows = [number == each for each in np.unique(number)]
    crowded, longer = (np.array([np.median(some[own]) for own in rows]) for some in (doublings, relative))
    spread = float(np.ptp(crowded))
    if len(rows) < FEWEST_RUNS or spread < RUNS_VARIED:
        return None
    line = scipy.stats.linregress(crowded, longer)
    if not (line.slope > 0 and line.intercept > 0):
        return 0.0
    slope, error = line.slope / line.intercept, np.hypot(line.stderr / line.intercept, RUN_SCATTER / spread)
    return float(slope * UNUSUAL**2 / (UNUSUAL**2 + error**2))


def _of_event(chunks: Chunks) -> Numbers:
    """CPU time of an event of each chunk."""
    return ratio(chunks.parts.computing, chunks.events)


def _slope(doublings: Numbers, relative: Numbers) -> float:
    """Relative slope of a line through most chunks (Theil and Sen), if both grow together beyond chance."""
    some = slice(None, None, -(-len(doublings) // COMPARED))
    doublings, relative = doublings[some], relative[some]
    together = scipy.stats.kendalltau(doublings, relative)
    if not (together.statistic > 0 and together.pvalue < 1 - CONFIDENCE):
        return 0.0
    runs, rises = (np.subtract.outer(values, values) for values in (doublings, relative))
    slope = float(np.median(rises[runs > 0] / runs[runs > 0]))
    alone = float(np.median(relative - slope * doublings))
    return slope / alone if slope > 0 and alone > 0 else 0.0
