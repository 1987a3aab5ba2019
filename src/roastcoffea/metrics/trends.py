"""Slopes and steps of series, with intervals that hold where the noise wanders."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import scipy

from roastcoffea.metrics.statistics import Numbers

GAINS: Final = (0.0, 0.03, 0.3, 3.0, 30.0, 300.0)
"""Variances of a random walk's steps, relative to the variance of the independent noise: how far a series may drift."""


class Fits(NamedTuple):
    """Coefficient of each candidate (column) in each series (row)."""

    slope: Numbers
    error: Numbers
    likelihood: Numbers
    """Logarithm of the likelihood."""
    freedom: int

    def quantile(self, chance: float) -> float:
        """Number of standard errors that a coefficient exceeds by chance with this probability."""
        return float(-scipy.special.stdtrit(self.freedom, chance))


def fitted(values: Numbers, candidates: Numbers, contrasts: Numbers, *, alike: bool = False) -> Fits:
    """Fit each candidate alone to each series, averaged over how far the series may drift.

    Parameters
    ----------
    values, candidates
        Series and candidates as columns, already multiplied by the contrasts.
    contrasts
        Rows of weights of the moments, which remove levels and whatever else is not to be fitted.
    alike
        Whether the noise of all series wanders alike; their likelihoods are summed.
    """
    freedom, number = len(contrasts) - 1, contrasts.shape[1]
    walk = np.minimum.outer(np.arange(number), np.arange(number))
    found, plain = list[tuple[Numbers, Numbers, Numbers]](), np.zeros(0)
    for gain in GAINS:
        root = np.linalg.cholesky(contrasts @ (np.eye(number) + gain * walk) @ contrasts.T)
        own, each = np.linalg.solve(root, values), np.linalg.solve(root, candidates)
        norm = np.maximum((each**2).sum(axis=0), 1e-12)
        plain = norm if gain == 0 else plain
        slope = own.T @ each / norm
        rest = np.maximum((own**2).sum(axis=0)[:, None] - slope**2 * norm, 1e-30)
        lost = np.log(np.diag(root)).sum() + 0.5 * np.log(norm / plain) + 0.5 * freedom * np.log(rest)
        found.append((slope, rest / (freedom * norm), -lost.sum(axis=0, keepdims=True) if alike else -lost))
    slopes, variances, likelihoods = map(np.array, zip(*found, strict=True))
    weights = scipy.special.softmax(likelihoods, axis=0)
    mean = (weights * slopes).sum(axis=0)
    variance = (weights * (variances + (slopes - mean) ** 2)).sum(axis=0)
    # contrasts that remove nearly all of a candidate leave nothing to fit
    likelihood = np.where(plain > 0.05 * np.max(plain), scipy.special.logsumexp(likelihoods, axis=0), -np.inf)
    return Fits(mean, np.sqrt(variance), likelihood, freedom)
