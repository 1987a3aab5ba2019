"""More CPU time where jobs share a core and its caches, from the recorded wait in the run queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.stats import kendalltau, linregress

from roastcoffea.metrics.statistics import Flags, Integers, Numbers
from roastcoffea.replay.parts import Chunks, Parts, ratio

FEWEST: Final = 20
"""Fewest chunks for a fit."""

VARIED: Final = 0.5
"""Doublings of the jobs on a core between the least and the most crowded chunks, from which their effect shows."""

CONFIDENCE: Final = 0.95
"""Confidence with which CPU time has to grow."""

PAIR: Final = 2
"""Runs up to which no scatter between runs shows: their chunks alone tell."""

COMPARED: Final = 500
"""Chunks that are compared, each with each."""


def doublings_of(parts: Parts, early: Flags) -> Numbers:
    """How often the jobs on each chunk's core had doubled; NaN for early tasks, which import and compile.

    A chunk that waited in the run queue as long as it computed had half a core: one doubling.
    """
    doublings = np.log2(1 + ratio(parts.contention, parts.computing))
    return np.where(early | (parts.computing <= 0), np.nan, doublings)


def crowding_of(runs: Sequence[tuple[Chunks, Numbers]]) -> float:
    """Increase of a chunk's CPU time for each doubling of the jobs on its core; 0 if the runs do not show any.

    Parameters
    ----------
    runs
        Chunks of runs of the same analysis, and the doublings of each.
    """
    if not runs:
        return 0.0
    every = np.concatenate([doublings for _, doublings in runs])
    relative = np.concatenate([_of_event(chunks) for chunks, _ in runs])
    names = np.concatenate([np.asarray(chunks.datasets, object)[chunks.dataset] for chunks, _ in runs])
    number = np.repeat(np.arange(len(runs)), [len(doublings) for _, doublings in runs])
    usable = np.isfinite(every) & (relative > 0)
    if np.count_nonzero(usable) < FEWEST or np.ptp(np.quantile(every[usable], [0.05, 0.95])) < VARIED:
        return 0.0
    every, relative, names = every[usable], relative[usable], names[usable]
    for name in dict.fromkeys(names):
        relative[names == name] /= np.median(relative[names == name])
    if len(runs) > PAIR and not _grows_with_runs(every, relative, number[usable]):
        return 0.0
    return _slope(every, relative)


def _grows_with_runs(doublings: Numbers, relative: Numbers, number: Integers) -> bool:
    """Whether CPU time is longer in the more crowded runs, beyond what runs differ by chance."""
    of_runs = [number == each for each in np.unique(number)]
    crowded = [float(doublings[rows].mean()) for rows in of_runs]
    if len(of_runs) <= PAIR or not np.ptp(crowded):
        return True
    longer = [float(np.median(relative[rows])) for rows in of_runs]
    return bool(linregress(crowded, longer, alternative="greater").pvalue < 1 - CONFIDENCE)


def _of_event(chunks: Chunks) -> Numbers:
    """CPU time of an event of each chunk."""
    return ratio(chunks.parts.computing, chunks.events)


def _slope(doublings: Numbers, relative: Numbers) -> float:
    """Relative slope of a line through most chunks (Theil and Sen), if both grow together beyond chance."""
    some = slice(None, None, -(-len(doublings) // COMPARED))
    doublings, relative = doublings[some], relative[some]
    together = kendalltau(doublings, relative)
    if not (together.statistic > 0 and together.pvalue < 1 - CONFIDENCE):
        return 0.0
    runs, rises = (np.subtract.outer(values, values) for values in (doublings, relative))
    slope = float(np.median(rises[runs > 0] / runs[runs > 0]))
    alone = float(np.median(relative - slope * doublings))
    return slope / alone if slope > 0 and alone > 0 else 0.0
