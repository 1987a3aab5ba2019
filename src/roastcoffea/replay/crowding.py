"""More CPU time where jobs share a core and its caches, from the recorded wait in the run queue."""

from __future__ import annotations

from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.parts import Chunks, ratio

FEWEST: Final = 20
"""Fewest chunks for a fit."""

VARIED: Final = 0.5
"""Doublings of the jobs on a core between the least and the most crowded chunks, from which their effect shows."""

STANDS_OUT: Final = 2.0
"""Standard errors from which CPU time is known to grow."""


def crowding_of(chunks: Chunks) -> float:
    """Increase of a chunk's CPU time for each doubling of the jobs on its core; 0 if the run does not show any.

    A chunk that waited in the run queue as long as it computed had half a core: one doubling.
    """
    cpu = chunks.parts.computing
    doublings = np.log2(1 + ratio(chunks.parts.contention, cpu))
    usable = (cpu > 0) & (chunks.events > 0)
    if np.count_nonzero(usable) < FEWEST or np.ptp(np.quantile(doublings[usable], [0.05, 0.95])) < VARIED:
        return 0.0
    relative = _relative(cpu / np.maximum(chunks.events, 1.0), chunks)
    return _slope(doublings[usable], relative[usable])


def _relative(seconds: Numbers, chunks: Chunks) -> Numbers:
    """CPU time of an event relative to the median of its dataset."""
    relative = seconds.copy()
    for dataset in np.unique(chunks.dataset):
        own = chunks.dataset == dataset
        relative[own] /= np.median(seconds[own]) or 1.0
    return relative


def _slope(doublings: Numbers, relative: Numbers) -> float:
    """Relative slope of a line, if it stands out."""
    relative = np.clip(relative, *np.quantile(relative, [0.05, 0.95]))
    centred = doublings - doublings.mean()
    slope = float(centred @ relative / (centred @ centred))
    left = relative - relative.mean() - slope * centred
    error = float(np.sqrt(left @ left / max(len(left) - 2, 1) / (centred @ centred)))
    alone = float(relative.mean() - slope * doublings.mean())
    return slope / alone if slope > STANDS_OUT * error and alone > 0 else 0.0
