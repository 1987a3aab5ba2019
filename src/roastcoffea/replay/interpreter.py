"""Threads of a process that share its interpreter: how much of their work needs it, and how long they wait for it.

The threads of a process are a closed queue (mean value analysis): a share of a chunk's CPU time needs the interpreter,
one thread at a time, while all other time passes in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from roastcoffea.metrics.statistics import OF_90_PERCENT
from roastcoffea.replay.changes import Scenario
from roastcoffea.replay.parts import Chunks, Parts

BLOCKS: Final = 4
"""Parts of a run, in order of time, whose shares are compared."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Share of CPU time that needs the interpreter: the most likely one, and the range that the runs leave open."""

    share: float
    low: float
    high: float


def interpreter_of(runs: Sequence[tuple[Chunks, int]]) -> Interpreter | None:
    """Share of runs with several threads per process; None without any that recorded waiting for the interpreter."""
    shares = [
        share_of(chunks.take(rows).parts, threads)
        for chunks, threads in runs
        if threads > 1 and chunks.parts.computing.any()
        for rows in np.array_split(np.arange(len(chunks)), min(BLOCKS, len(chunks)))
    ]
    if not shares:
        return None
    mean, spread = float(np.mean(shares)), OF_90_PERCENT * float(np.std(shares, ddof=1) if len(shares) > 1 else 0.0)
    return Interpreter(mean, max(mean - spread, 0.0), min(mean + spread, 1.0))


def share_of(parts: Parts, threads: int) -> float:
    """Share of CPU time that needs the interpreter, for which threads wait as long as recorded."""
    computing, lock, other = _sums(parts)
    if not lock:
        return 0.0

    def surplus(share: float) -> float:
        return waited(share, computing, other, threads) - lock

    return 1.0 if surplus(1.0) <= 0 else float(scipy.optimize.brentq(surplus, 0.0, 1.0, xtol=1e-4))


def blocked_per_event(runs: Sequence[Chunks]) -> float | None:
    """Seconds of an event in which chunks neither computed nor read; None without any."""
    events = sum(float(chunks.events.sum()) for chunks in runs)
    return sum(_blocked(chunks.parts) for chunks in runs) / events if events else None


def _blocked(parts: Parts) -> float:
    return float(parts.lock.sum() + parts.wait.sum())


def with_least_lock(chunks: Chunks, alone: float | None) -> Chunks:
    """Chunks that wait for the interpreter no longer than they wait more than with one thread per process.

    What is recorded is the longest that it can have been: a thread that sleeps while others compute waits as well.
    """
    parts = chunks.parts
    if alone is None or not parts.lock.any():
        return chunks
    more = max(_blocked(parts) - alone * float(chunks.events.sum()), 0.0)
    lock = parts.lock * min(more / float(parts.lock.sum()), 1.0)
    return chunks.with_parts(lock=lock, wait=parts.wait + parts.lock - lock)


def _sums(parts: Parts) -> tuple[float, float, float]:
    """Seconds of computing, of waiting for the interpreter, and of everything else."""
    computing, lock = float(parts.computing.sum()), float(parts.lock.sum())
    return computing, lock, max(float(parts.total.sum()) - computing - lock, 0.0)


def waited(share: float, computing: float, other: float, threads: int) -> float:
    """Waiting for the interpreter in the time that a thread computes this long."""
    demand, apart = share * computing, (1 - share) * computing + other
    if not demand:
        return 0.0
    queue = took = 0.0
    for number in range(1, threads + 1):
        took = demand * (1 + queue)
        queue = number * took / (took + apart)
    return took - demand


def with_threads(share: float, threads: int) -> Scenario:
    """Chunks that wait for the interpreter as long as this many threads make them."""

    def changed(chunks: Chunks) -> Chunks:
        computing, _, other = _sums(chunks.parts)
        each = waited(share, computing, other, threads) / computing if computing else 0.0
        return chunks.with_parts(lock=chunks.parts.computing * each)

    return Scenario(chunks=changed)
