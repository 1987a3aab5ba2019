"""How each cause is removed from a run: what changes in its replay, and the caveats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.records import tasks as task_records
from roastcoffea.replay.calibrated import Removal
from roastcoffea.replay.changes import (
    STORAGE_FACTOR,
    Scenario,
    faster_storage,
    opened_once,
    with_computing,
    without_dask,
)
from roastcoffea.replay.cluster import Cluster
from roastcoffea.replay.parts import Chunks, ratio

DECOMPRESSION_LEFT: Final = 0.3
"""Assumed fraction of the decompression CPU time left with zstd or lz4 instead of LZMA."""

GONE: Final = float("inf")


@dataclass(frozen=True, eq=False)
class Taken:
    """A cause to be removed from a run.

    Parameters
    ----------
    cause
        Its name in findings.
    factors
        For slow workers, hosts, files and datasets: factor on the duration of each counted chunk.
    phases
        Of them as well: phase in which each of these chunks took the most beyond the others, as `Slow.phase` has it.
        Where there is none, all that a chunk does is taken to be slow alike.
    seconds
        For computing and interpretation: thread seconds in each counted chunk; for causes that the replay does not
        and wherever a run cannot be replayed, thread seconds in all, such as the sum of `Slow.seconds`.
    storage
        Factor by which storage is faster (`GONE`: reading takes no time).
    removal
        For a chunk size: chunks of that size, after all other changes.
    outputs
        Whether chunks have large outputs: task overhead is then mostly their compression, which belongs to merging,
        not to scheduling.
    all_of_it
        Whether to remove all of it even though any remedy removes less: the saving is an upper bound.
    """

    cause: str
    factors: Numbers | None = None
    phases: Sequence[str | None] | None = None
    seconds: Numbers | float | None = None
    storage: float = STORAGE_FACTOR
    removal: Removal | None = None
    outputs: bool = False
    all_of_it: bool = False


class Part(NamedTuple):
    """How to remove a cause, and its caveats."""

    removal: Callable[[Taken], Removal]
    rows: tuple[str, ...] = ()
    """Classes of the time ledger that it would free, for runs that cannot be replayed."""
    share: Callable[[Taken], float] = lambda _: 1.0
    """Fraction of these classes that it would free."""
    at_most: bool = False
    reason: str | None = None


def _of_chunks(change: Callable[[Chunks], Chunks]) -> Removal:
    return Removal(Scenario(chunks=change))


def _without_parts(*names: str) -> Removal:
    """Remove these parts of chunks."""
    return _of_chunks(lambda chunks: chunks.with_parts(**{name: np.zeros(len(chunks)) for name in names}))


def _of_merging(**costs: Any) -> Removal:
    """Merges with these costs."""
    return Removal(Scenario(merging=lambda old: replace(old, **costs)))


def _storage(taken: Taken) -> Removal:
    return Removal(faster_storage(taken.storage))


def _decompression(_: Taken) -> Removal:
    return _of_chunks(lambda old: with_computing(old, decompress=DECOMPRESSION_LEFT * old.parts.decompress))


def _start_up(_: Taken) -> Removal:
    scenario = _without_parts("first").scenario
    return Removal(
        replace(scenario, costs=lambda costs: costs._replace(cold_before=0.0, cold_wait=0.0, cold_after=0.0))
    )


def _metadata(taken: Taken) -> Removal:
    return _without_parts("open_cpu", "open_wait") if taken.all_of_it else _of_chunks(opened_once)


def _scheduler(taken: Taken) -> Removal:
    return Removal(without_dask(outputs=taken.outputs))


def _merge(taken: Taken) -> Removal:
    # fetching small results is "transfer"
    if not taken.outputs:
        return _of_merging(cpu=0.0, wait=0.0)
    return _without_parts("overhead").then(_of_merging(cpu=0.0, wait=0.0, fetch=0.0))


def _contention(_: Taken) -> Removal:
    return Removal(replace(_without_parts("contention").scenario, cores=_enough_cores))


def _enough_cores(cluster: Cluster) -> Cluster:
    """A core for each job."""
    hosts = [(1, float("inf"))] * sum(workers for workers, _ in cluster.hosts)
    return replace(cluster, hosts=hosts, scheduler_here=False)


def _compute(taken: Taken) -> Removal:
    def change(chunks: Chunks) -> Chunks:
        cpu = chunks.parts.cpu
        return with_computing(chunks, cpu=np.clip(cpu - _in_order(taken.seconds, chunks, cpu), 0.0, None))

    return _of_chunks(change)


def _in_order(values: Numbers | float | None, chunks: Chunks, otherwise: Numbers) -> Numbers:
    """Values of the counted chunks, matched to these chunks; 0 for failed attempts."""
    if values is None or isinstance(values, float):
        return otherwise
    return np.where(chunks.row >= 0, values[np.maximum(chunks.row, 0)], 0.0)


CPU_PARTS: Final = ("open_cpu", "decompress", "cpu")
SLOW_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "open": ("open_cpu", "open_wait"),
    "build": ("open_cpu", "open_wait"),
    "read": ("read",),
    "blocked": ("wait",),
    "checkpoint": ("wait",),
}
"""Parts of chunks that are slow, by the phase that takes the most of the excess; where that is another one, the CPU."""

BY_CHANCE: Final = ("lock", "contention", "first", "failed", "overhead")
"""Parts that no slow worker or file is blamed for; waiting for cores and the interpreter goes with CPU time."""


def _slow(taken: Taken) -> Removal:
    refuse_if(taken.factors is None, f"it is unknown which chunks a {taken.cause} slowed down")

    def change(chunks: Chunks) -> Chunks:
        ones, old = np.ones(len(chunks)), chunks.parts
        own = {name: seconds for name, seconds in old._asdict().items() if name not in BY_CHANCE}
        factor = np.where(chunks.row >= 0, _in_order(taken.factors, chunks, ones), ones)
        excess = sum(own.values(), 0 * ones) * (1 - factor)
        for phase, rows in _rows_by_phase(taken, chunks):
            names = SLOW_PARTS.get(phase, CPU_PARTS) if phase else tuple(own)
            # what the slow parts do not have is the others'
            for some in (names, tuple(own)):
                total = sum((own[name][rows] for name in some), 0 * excess[rows])
                less = np.minimum(excess[rows], total)
                left = 1 - ratio(less, total)
                for name in some:
                    own[name] = own[name].copy()
                    own[name][rows] *= left
                excess[rows] -= less
        return with_computing(chunks, **own)

    return _of_chunks(change)


def _rows_by_phase(taken: Taken, chunks: Chunks) -> Iterator[tuple[str | None, Integers]]:
    """Chunks that are slow in each phase, and those of which that is not known."""
    slow = np.flatnonzero(chunks.row >= 0)
    if taken.phases is None:
        yield None, slow
        return
    phase = np.array(taken.phases, object)[chunks.row[slow]]
    for name in dict.fromkeys(taken.phases):
        yield name, slow[phase == name]


WAITS: Final = (phases.OPEN, phases.READ)
AROUND: Final = (phases.OVERHEAD, "worker overhead", "in flight", "idle: queued", "idle: misplaced")
AROUND_BEFORE: Final = ("worker", "on the way", "idle: placement")
"""Older names of these classes."""

BOUND: Final = "all of it is removed, because what would replace it is unknown"
PARTS: Final[Mapping[str, Part]] = {
    "storage": Part(
        _storage, WAITS, lambda taken: 1 - 1 / taken.storage, reason="assumes storage that is twice as fast"
    ),
    "decompression": Part(
        _decompression,
        (phases.DECOMPRESS,),
        lambda _: 1 - DECOMPRESSION_LEFT,
        reason=f"assumes that zstd or lz4 needs {DECOMPRESSION_LEFT:g} of the CPU time",
    ),
    "metadata": Part(_metadata, (phases.OPEN,), reason="assumes that each file is opened once"),
    "start-up": Part(_start_up, ("start-up",)),
    "contention": Part(_contention, ("contention",)),
    "interpreter lock": Part(lambda _: _without_parts("lock"), ("interpreter lock",), at_most=True, reason=BOUND),
    "blocked": Part(lambda _: _without_parts("wait"), ("blocked", "wait"), at_most=True, reason=BOUND),
    **dict.fromkeys(("compute", "repeated work"), Part(_compute, (phases.COMPUTE,), at_most=True, reason=BOUND)),
    "scheduler": Part(
        _scheduler, (*AROUND, *AROUND_BEFORE), at_most=True, reason="an upper bound: nothing runs without Dask"
    ),
    "transfer": Part(lambda _: _of_merging(fetch=0.0), (phases.TRANSFER,), at_most=True, reason=BOUND),
    "merge": Part(_merge, (phases.MERGE,), at_most=True, reason=BOUND),
    "preprocessing": Part(
        lambda _: Removal(stages=(task_records.PREPROCESSING,)),
        (phases.PREPROCESSING,),
        reason="assumes metadata from an earlier run",
    ),
    "tail": Part(
        lambda _: Removal(balanced=True),
        (phases.TAIL,),
        at_most=True,
        reason="assumes that all threads work until the end",
    ),
    "interpretation": Part(_compute, (phases.INTERPRET,), at_most=True, reason=BOUND),
    "client": Part(lambda _: Removal(client=True), (phases.CLIENT,), at_most=True, reason=BOUND),
    "failures": Part(
        lambda _: _without_parts("failed"), (phases.FAILED,), reason="assumes that failed attempts take no time"
    ),
    **dict.fromkeys(
        ("slow worker", "slow host", "slow endpoint", "slow file", "slow dataset", "slow chunk"), Part(_slow)
    ),
}
"""How to remove each cause."""
