"""Law of a chunk's duration: linear in its events and bytes, fitted robustly against slow chunks."""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy

from roastcoffea.metrics.statistics import Flags, Integers, Numbers

FEWEST_TO_FIT: Final = 8
"""Chunks that a dataset needs for a law of its own; smaller datasets share one."""

ROUNDS: Final = 20
MOST_TO_FIT: Final = 2_000
"""Chunks drawn at random for the fit: enough for three parameters."""

SMALLEST: Final = 1e-9


def typical_seconds(dataset: Integers, traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Duration predicted from a chunk's traits, by the law of its dataset, or of all datasets if it has few chunks."""
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = predicted(traits, seconds, usual) if few.any() else np.empty(len(seconds))
    order = np.argsort(dataset, kind="stable")
    for rows in np.split(order, np.cumsum(numbers)[:-1]):
        if len(rows) >= FEWEST_TO_FIT:
            typical[rows] = predicted(traits[rows], seconds[rows], usual[rows])
    return typical


def predicted(traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Durations by a linear law in the traits, fitted to the usual chunks with least absolute deviations.

    Coefficients are not negative, so a few extra bytes cannot explain a straggler, nor can a small difference between
    two files explain why one of them is many times slower.
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
        law = scipy.optimize.nnls(triangle, basis.T @ (aims * weights))[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(aims - fitted @ law), finest))
    # where few chunks have such traits, a law may fall below every recorded chunk
    return np.asarray(np.maximum(scaled @ law, max(float(seconds.min()), SMALLEST)))
