"""Law of a chunk's duration: linear in its events and bytes, drawn so that slow chunks hardly move it."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.metrics.statistics import Flags, Integers, Numbers

FEWEST_TO_FIT: Final = 8
"""Chunks of a dataset from which a law of its own is drawn; fewer share one with all datasets."""

ROUNDS: Final = 20
MOST_TO_FIT: Final = 2_000
"""So many chunks, drawn at random, tell a law of three numbers well enough."""

SMALLEST: Final = 1e-9


def typical_seconds(dataset: Integers, traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Duration that a chunk's traits predict, by the law of its dataset; of all datasets where it has few chunks."""
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = predicted(traits, seconds, usual) if few.any() else np.empty(len(seconds))
    order = np.argsort(dataset, kind="stable")
    for rows in np.split(order, np.cumsum(numbers)[:-1]):
        if len(rows) >= FEWEST_TO_FIT:
            typical[rows] = predicted(traits[rows], seconds[rows], usual[rows])
    return typical


def predicted(traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Durations by a linear law of the traits with least absolute deviations from the usual chunks.

    No trait makes a chunk shorter: so a straggler with a few bytes more than its like is not as long as expected, and
    what differs little between two files cannot explain that one of them is many times as slow.
    """
    scale = np.abs(traits).max(axis=0)
    scaled = traits[:, scale > 0] / scale[scale > 0]
    rows = np.flatnonzero(usual) if usual.any() else np.arange(len(seconds))
    if len(rows) > MOST_TO_FIT:
        rows = np.random.default_rng(1).choice(rows, MOST_TO_FIT, replace=False)
    fitted, aims = scaled[rows], seconds[rows]
    weights, finest = np.ones(len(aims)), SMALLEST + 1e-3 * np.median(aims)
    for _ in range(ROUNDS):
        basis, triangle = np.linalg.qr(fitted * weights[:, None])
        law = nnls(triangle, basis.T @ (aims * weights))[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(aims - fitted @ law), finest))
    # a law may fall below any chunk that there was, where few have such traits
    return np.asarray(np.maximum(scaled @ law, max(float(seconds.min()), SMALLEST)))
