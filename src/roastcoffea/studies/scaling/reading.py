"""Reading in one run: rates, and how much of the waiting goes with bytes and how much with requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers

if TYPE_CHECKING:
    import pandas as pd

MOST_CHUNKS: Final = 4000
"""Chunks from which waiting is fitted."""

RESAMPLES: Final = 100
SEED: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Waiting for storage of one run, per chunk: what goes with requests, and what with bytes, and possible others."""

    chunks: int
    bytes: float
    requests: float | None
    seconds: float
    """Waiting for storage, summed."""
    of_requests: Numbers
    of_bytes: Numbers


def reading_of(measurement: Measurement) -> Reading | None:
    """Reading of a run; None if it was not measured."""
    chunks = measurement.chunks
    chunks = chunks[chunks["outcome"] == "ok"]
    chunks = chunks[chunks["read_seconds"].notna() & chunks["bytes_requested"].notna()]
    if not len(chunks):
        return None
    wait, traits, own = _observed(chunks)
    fits = _fits(wait, traits)
    mean = traits.sum(axis=0) / len(own)
    requests = float(chunks["requests"].sum()) if chunks["requests"].notna().all() else None
    parts = fits * mean
    total = float(chunks["bytes_requested"].sum())
    return Reading(len(chunks), total, requests, float(wait.sum()), parts[:, 0] + parts[:, 1], parts[:, 2])


def _observed(chunks: pd.DataFrame) -> tuple[Numbers, Numbers, Numbers]:
    """Waits; one, requests and bytes of each; and the chunk of each: readings, and openings that wait."""
    if len(chunks) > MOST_CHUNKS:
        chunks = chunks.sample(MOST_CHUNKS, random_state=SEED)
    opened, metadata = (chunks[name].fillna(0).to_numpy() for name in ("open_seconds", "bytes_metadata"))
    known = chunks["requests"].notna().all() and chunks["metadata_requests"].notna().all()
    before = chunks["metadata_requests"].to_numpy() if known else np.zeros(len(chunks))
    later = chunks["requests"].to_numpy() - before if known else np.zeros(len(chunks))
    one = np.ones(len(chunks))
    read = np.column_stack([one, later, chunks["bytes_requested"].to_numpy() - metadata])
    open_ = np.column_stack([one, before, metadata])
    waits = np.concatenate([chunks["read_seconds"].to_numpy(), opened])
    return waits.astype(np.float64), np.concatenate([read, open_]).astype(np.float64), one


def _fits(wait: Numbers, traits: Numbers) -> Numbers:
    """Coefficients that explain the waits, none negative: first of all chunks, then of resampled ones."""
    scale = np.maximum(traits.max(axis=0), 1e-300)
    random, half = np.random.default_rng(SEED), len(wait) // 2
    found = [_fit(wait, traits / scale)]
    for _ in range(RESAMPLES):
        picked = random.integers(half, size=half)
        rows = np.concatenate([picked, picked + half])
        found.append(_fit(wait[rows], traits[rows] / scale))
    return np.asarray(np.asarray(found) / scale, np.float64)


def _fit(wait: Numbers, traits: Numbers) -> Numbers:
    # by its normal equations, which are of three columns however many chunks there are
    square, right = traits.T @ traits, traits.T @ wait
    root = np.linalg.cholesky(square + 1e-9 * np.trace(square) * np.eye(len(square)))
    found, _ = nnls(root.T, np.linalg.solve(root, right))
    return np.asarray(found)
