"""Fit how threads wait for the GIL to recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.changes import Chunks, Parts, Scenario
from roastcoffea.replay.cluster import Interpreter, lock_waits

SHARES: Final = np.linspace(0.0, 1.0, 201)
DELAYS: Final = np.append(0.0, np.geomspace(1e-3, 1e3, 200))
"""Values to try in a fit. Longer delays than the longest count as the longest."""


def interpreter_of(runs: Sequence[Chunks], threads: int) -> list[Interpreter]:
    """Find the smallest and the largest share that agree with the recorded waits for the GIL, each with its delay.

    All runs must have the same number of threads per process. The list is empty if no chunk used the CPU.

    The smallest share follows from the fact that a thread waits only while another one holds the GIL; delays explain
    the rest of the wait. A delay also explains what the largest share leaves of the wait of all chunks, if anything.
    """
    blocks = [
        _sums(chunks.take(rows).parts)
        for chunks in runs
        for rows in np.array_split(np.flatnonzero(chunks.parts.computing), 4)
        if len(rows)
    ]
    if not blocks:
        return []
    (least, _), (_, most) = np.quantile([_shares(each, threads) for each in blocks], (0.05, 0.95), axis=0)
    pooled = np.sum(blocks, axis=0)
    return [
        Interpreter(share, _fitted(partial(Interpreter, share), DELAYS, pooled, threads)) for share in (least, most)
    ]


def _sums(parts: Parts) -> Numbers:
    """Seconds of computing (with Dask's overhead, as in a replay), of waiting for the GIL, and of the rest."""
    computing, lock, total = (float(each.sum()) for each in (parts.computing + parts.overhead, parts.lock, parts.total))
    return np.array([computing, lock, max(total - computing - lock, 0.0)])


def _shares(sums: Numbers, threads: int) -> tuple[float, float]:
    computing, lock, _ = sums
    return min(lock / computing / (threads - 1), 1.0), _fitted(Interpreter, SHARES, sums, threads)


def _fitted(model: Callable[[float], Interpreter], values: Numbers, sums: Numbers, threads: int) -> float:
    """Find the value for which threads wait for the GIL as long as they did, or the nearest one."""
    computing, lock, apart = sums
    return float(np.interp(lock, [lock_waits(model(value), computing, apart, threads)[-1] for value in values], values))


def with_interpreter(interpreter: Interpreter) -> Scenario:
    """Simulate the waits for the GIL. They then overlap with the waits for cores."""
    return Scenario(
        chunks=lambda chunks: chunks.with_parts(lock=0.0 * chunks.parts.lock),
        costs=lambda costs: costs._replace(interpreter=interpreter),
    )
