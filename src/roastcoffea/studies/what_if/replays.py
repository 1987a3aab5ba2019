"""Replays of whole recorded runs, with what they share: storage, and cores that other programs use as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.changes import UNCHANGED, Chunks, Scenario
from roastcoffea.replay.cluster import Cluster, Replayed, replayed
from roastcoffea.replay.fitted_storage import ALL, blocked_per_event, crowding_of, with_least_lock, with_own_storage
from roastcoffea.replay.recorded import Recorded
from roastcoffea.replay.stages import Stage

STEPS: Final = 8
"""Steps in which the cores of other programs are found, each of which halves their range."""

EXPLAINED: Final = 0.02
SURPLUS_WAIT: Final = 0.15
"""Relative excess of the chunks' time, with their waiting for cores, over what the replay explains: up to the first,
other programs need no cores; from the second on, their load is a caveat."""


def replay(run: Recorded, cluster: Cluster, change: Scenario = UNCHANGED, *, serial: bool = False) -> Replayed:
    """Replay of a whole run: seconds outside all stages, then the stages in sequence."""
    stages = (_replayed(stage, cluster, change, serial) for stage in run.stages)
    seconds, stretches, uses, busy = zip(*stages, strict=True)
    return Replayed(run.client + sum(seconds), max(stretches), max(uses), sum(busy))


def _replayed(stage: Stage, cluster: Cluster, change: Scenario, serial: bool) -> Replayed:
    chunks, shared = own_chunks(stage, cluster.streams), cluster.streams < ALL
    load = change.preprocessing(stage.load) if chunks is None else change.chunks(chunks).load(shared=shared)
    return replayed(load, cluster, change.costs(stage.costs), change.merging(stage.merging), serial=serial)


def own_chunks(stage: Stage, streams: float) -> Chunks | None:
    """Chunks of a stage as if each had storage of its own, which serves this many streams."""
    return None if stage.chunks is None else with_own_storage(stage.chunks, stage.activity, streams)


def on_own_cores(runs: Sequence[Recorded], crowded: float | None = None) -> list[Recorded]:
    """Runs whose chunks compute, and wait for the interpreter, as if each had a core of its own.

    Without `crowded`, the increase of CPU time on crowded cores is that of the runs with chunks of the same size.
    """
    if crowded is None:
        alike = [run.stages for run in runs if run.chunksize == runs[0].chunksize]
        crowded = crowding_of(
            [
                [(one.chunks, one.activity.doublings) for one in stages if one.chunks and one.activity]
                for stages in alike
            ]
        )
    return [_on_own_cores(run, crowded, runs) for run in runs]


def _on_own_cores(run: Recorded, crowded: float, runs: Sequence[Recorded]) -> Recorded:
    stages = []
    for place, stage in enumerate(run.stages):
        chunks, activity = stage.chunks, stage.activity
        if chunks is not None and activity is not None:
            doublings = _known(activity.doublings)
            chunks = with_least_lock(chunks.uncrowded(doublings, crowded), _blocked_alone(run, place, runs))
            # threads that hold the interpreter hold it for less time as well
            chunks = chunks.with_parts(lock=chunks.parts.lock / 2**doublings)
        stages.append(replace(stage, costs=stage.costs._replace(crowded=crowded), chunks=chunks))
    return replace(run, stages=tuple(stages))


def _known(doublings: Numbers) -> Numbers:
    """Doublings with the usual ones for first tasks of processes, whose parts are those of usual tasks as well."""
    known = doublings[np.isfinite(doublings)]
    return np.where(np.isfinite(doublings), doublings, np.median(known) if len(known) else 0.0)


def _blocked_alone(run: Recorded, place: int, runs: Sequence[Recorded]) -> float | None:
    """The same stage in runs with one thread per process: seconds of an event in which it neither computed nor read."""
    if run.threads == 1:
        return None
    wanted = 1, run.chunksize, len(run.stages)
    alike = [one.stages[place] for one in runs if (one.threads, one.chunksize, len(one.stages)) == wanted]
    return blocked_per_event([stage.chunks for stage in alike if stage.chunks is not None])


def median_of(replays: Sequence[Replayed]) -> float:
    """Median wall time."""
    return median(replay.seconds for replay in replays)


def others_of(run: Recorded) -> float:
    """Cores that other programs needed, divided by those of a host, for which chunks waited as long as recorded."""
    waited, cores = run.core_wait, run.cores
    if waited is None or cores is None:
        return 0.0
    stretch = partial(_stretch, run)
    if waited <= (1 + EXPLAINED) * stretch(0.0):
        return 0.0
    low, high = 0.0, waited
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if stretch(middle) < waited else (low, middle)
    return (low + high) / 2


def _stretch(run: Recorded, others: float) -> float:
    return replay(run, replace(run.own_cluster, others=others)).stretch


def foreign_load(run: Recorded, others: float) -> str | None:
    """Foreign load, as a share of the cores, for which chunks waited longer than for the run itself."""
    if run.core_wait is None or not others:
        return None
    explained = replay(run, run.own_cluster).stretch
    if run.core_wait < (1 + SURPLUS_WAIT) * explained:
        return None
    return (
        f"other programs used the cores while {run.name} was recorded: with CPU contention its chunks took "
        f"{run.core_wait:.2f} times their CPU time, where the run alone explains {explained:.2f} times; "
        "predictions assume as much load of others, and are less certain"
    )


def other_branches(one: Recorded, other: Recorded) -> str | None:
    """Branches that only one of two runs of a processor read, a sign that its parameters differ."""
    by_one = sorted(one.branches ^ other.branches)
    if not by_one or not one.branches or not other.branches:
        return None
    named = f"{by_one[0]}{f' and {len(by_one) - 1} more' if len(by_one) > 1 else ''}"
    return f"only one of {one.name} and {other.name} read {named}: they are treated as runs of one analysis"
