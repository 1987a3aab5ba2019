"""Correct recorded chunk times for what runs shared or differed in: cores, the GIL and the speed of cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.changes import Chunks, Parts
from roastcoffea.replay.cluster import Costs
from roastcoffea.replay.fitted_storage import crowding_of
from roastcoffea.replay.stages import Recorded
from roastcoffea.units import FRACTION

MOST_CROWDED: Final = 0.2
"""Maximum increase in CPU time per doubling of the number of jobs on a core.

On a machine with two cores, the same chunks needed up to 16 % more per doubling of the number of processes, and up to
11 % for threads (`benchmarks/what_if.py`). If a fit gives more, runs also differ in something else.
"""


def on_own_cores(runs: Sequence[Recorded], crowded: float | None = None) -> list[Recorded]:
    """Correct the runs' compute times and waits for the GIL to what they would be if each chunk had its own core.

    `crowded` is the relative increase in CPU time per doubling of the number of jobs on a core. By default, it is
    fitted to the runs with the same chunk size as the first run, up to MOST_CROWDED.
    """
    if crowded is None:
        alike = [run.stages for run in runs if run.chunksize == runs[0].chunksize]
        chunks = [
            [(one.chunks, one.activity.doublings) for one in stages if one.chunks and one.activity] for stages in alike
        ]
        crowded = min(crowding_of(chunks), MOST_CROWDED)
    return [_on_own_cores(run, crowded, runs) for run in runs]


def _on_own_cores(run: Recorded, crowded: float, runs: Sequence[Recorded]) -> Recorded:
    stages, doubts = [], [*run.doubts]
    for place, stage in enumerate(run.stages):
        recorded, activity, costs = stage.chunks, stage.activity, stage.costs
        chunks = recorded
        if recorded is not None and activity is not None:
            # a process's first task also does the work of an ordinary task, so its CPU time is scaled by the same
            # factor
            known = np.isfinite(activity.doublings)
            usual = np.median(activity.doublings[known]) if known.any() else 0.0
            doublings = np.where(known, activity.doublings, usual)
            chunks = recorded.with_cpu(1 / (1 + crowded * doublings))
            waits = run.threads > 1 and recorded.parts.lock.any() and recorded.events.any()
            alone = _without_threads(run, place, runs) if waits else []
            chunks = with_least_lock(chunks, [each for _, each in alone])
            # threads also hold the GIL for less time
            chunks = chunks.with_parts(lock=chunks.parts.lock / 2**doublings)
            # fewer readers may wait less because of the storage
            as_many = [each for workers, each in alone if workers >= run.workers * run.threads]
            chunks = with_lock_of_reads(chunks, as_many, run.threads - 1)
            kept = chunks.parts.reading.sum() / (recorded.parts.reading.sum() or 1.0)
            if alone and kept < 0.9:
                share = FRACTION.text(1 - kept)
                doubts.append(
                    f"{share} of the read time of {run.name} counts as waiting for the GIL, because runs with one "
                    "thread per process read faster"
                )
            costs = with_outside(costs, recorded, chunks)
        stages.append(replace(stage, costs=costs._replace(crowded=crowded), chunks=chunks))
    return replace(run, stages=tuple(stages), doubts=tuple(doubts))


def _without_threads(run: Recorded, place: int, runs: Sequence[Recorded]) -> list[tuple[int, Chunks]]:
    """Workers and chunks of similar runs with one thread per process, in which chunks do not wait for the GIL."""
    wanted = (1, run.chunksize, len(run.stages))
    alike = [one for one in runs if (one.threads, one.chunksize, len(one.stages)) == wanted]
    return [(one.workers, each) for one in alike if (each := one.stages[place].chunks) and each.events.any()]


def with_least_lock(chunks: Chunks, alone: Sequence[Chunks]) -> Chunks:
    """Cap the total wait for the GIL at the extra time relative to runs with one thread per process.

    The recorded wait is an upper limit, because a thread that sleeps while other threads compute is also recorded as
    waiting for the GIL.
    """
    parts = chunks.parts
    if not alone:
        return chunks
    longer = _longer_than(chunks, alone, lambda parts: parts.lock + parts.wait)
    lock = parts.lock * min(longer / float(parts.lock.sum()), 1.0)
    return chunks.with_parts(lock=lock, wait=parts.wait + parts.lock - lock)


def with_lock_of_reads(chunks: Chunks, alone: Sequence[Chunks], others: int) -> Chunks:
    """Count as waits for the GIL what reads took longer than in runs with one thread per process and as many readers.

    A thread also needs the GIL after each read, but it waits no longer than the `others`, the other threads of its
    process, compute.
    """
    parts, seconds = chunks.parts, chunks.parts.reading
    if not alone or not seconds.any():
        return chunks
    most = others * float(parts.computing.sum()) - float(parts.lock.sum())
    share = min(_longer_than(chunks, alone, lambda parts: parts.reading), max(most, 0.0)) / float(seconds.sum())
    open_wait, read = parts.open_wait * (1 - share), parts.read * (1 - share)
    return chunks.with_parts(open_wait=open_wait, read=read, lock=parts.lock + share * seconds)


def _longer_than(chunks: Chunks, alone: Sequence[Chunks], seconds: Callable[[Parts], Numbers]) -> float:
    """Compute by how many seconds a part of the chunks' time is longer than for as many events in other runs."""
    per_event = sum(seconds(each.parts).sum() for each in alone) / sum(each.events.sum() for each in alone)
    return float(max(seconds(chunks.parts).sum() - per_event * chunks.events.sum(), 0.0))


def with_outside(costs: Costs, recorded: Chunks, corrected: Chunks) -> Costs:
    """Keep the CPU time outside tasks if the duration of chunks is corrected."""
    if not costs.outside or corrected is recorded:
        return costs
    return costs._replace(outside=costs.outside * float(recorded.load().alone.sum() / corrected.load().alone.sum()))


def at_one_speed(runs: Sequence[Sequence[Chunks]]) -> list[Chunks]:
    """Scale the CPU times of chunks, by run and stage, as if the cores of all runs were equally fast."""
    speeds = zip(runs, relative_cpu(runs), strict=True)
    return [chunks.with_cpu(1 / times) for stages, times in speeds for chunks in stages]


MOST_APART: Final = 2.0
"""Largest ratio of CPU times that the speed of cores explains."""


def relative_cpu(runs: Sequence[Sequence[Chunks]]) -> list[float]:
    """CPU time for the same work in each run, relative to the mean of all runs; 1 if it is unknown.

    The CPU time for opening a file does not depend on the size of a chunk. A difference between runs, less its error,
    is therefore a difference in speed, e.g. because of other programs, clock rates or virtual machines. If it is too
    large, files were opened in different ways.
    """
    names = sorted(set.intersection(*({name for each in stages for name in each.datasets} for stages in runs)))
    opened = np.array([[_opening(stages, name) for name in names] for stages in runs]).reshape(len(runs), -1, 2)
    middles, errors = opened[:, np.isfinite(opened).all(axis=(0, 2))].transpose(2, 0, 1)
    found = []
    for own, error in zip(middles - middles.mean(axis=0), errors, strict=True):
        slower, chance = own.sum(), float(np.hypot.reduce(error))
        found.append(float(np.exp((slower - chance**2 / slower) / len(own))) if abs(slower) > chance else 1.0)
    return found if max(found) <= MOST_APART * min(found) else [1.0] * len(runs)


def _opening(stages: Sequence[Chunks], dataset: str) -> tuple[float, float]:
    """Logarithm of the median CPU time for opening a file, and its error; NaN for fewer than eight chunks."""
    known = (each for each in stages if dataset in each.datasets)
    seconds = np.concatenate([each.parts.open_cpu[each.dataset == each.datasets.index(dataset)] for each in known])
    middle = float(np.median(seconds)) if len(seconds) >= 8 else 0.0
    if not middle:
        return np.nan, np.nan
    # the error of a median, from the median absolute deviation
    return float(np.log(middle)), 1.858 * float(np.median(np.abs(seconds / middle - 1))) / len(seconds) ** 0.5
