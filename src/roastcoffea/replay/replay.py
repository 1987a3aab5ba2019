"""A simulated run of chunks on a simulated cluster: what its wall time would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.engine import NOTHING, Counts, Host, Worked, simulated

SATURATION: Final = 1.1
"""Tasks that Dask gives to a worker beside its threads (`distributed.scheduler.worker-saturation`)."""

ROOTISH: Final = 2
"""Chunks beside all threads up to which Dask hands them out all at once."""

STEAL_SECONDS: Final = 0.05
"""Until a worker without work gets some of another's: Dask looks each 0.1 s."""

CROWDED: Final = 0.25
"""How much more CPU time the same work takes for each doubling of the jobs on a core: they take its caches in turn.

Measured on one machine of two cores, where chunks took 1.30 times as much with four processes as with two.
"""

STEPS_TO_STRETCH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What there is to do: of each chunk, in the order of priority, seconds of CPU, of waiting, and of CPU again."""

    before: Numbers
    wait: Numbers
    after: Numbers

    def __len__(self) -> int:
        return len(self.wait)

    @property
    def cpu(self) -> Numbers:
        """CPU seconds of each chunk."""
        return self.before + self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """How results are merged: `fan_in` at a time, in a tree.

    A merge takes `cpu` and `wait` seconds for each result that it takes, and before it starts `fetch` to get them
    together. Without merging `fan_in` is 0.
    """

    fan_in: int = 0
    cpu: float = 0.0
    wait: float = 0.0
    fetch: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What Dask and the start of processes add, in seconds.

    `gap` lies between two tasks of a thread, `latency` between an assignment and its start where a thread is free; the
    scheduler takes `scheduler` CPU for each task, the event loop of a worker `own`. `cold_cpu` and `cold_wait` are what
    the first task of a process takes more. `crowded` is no time: so much more CPU time the same work takes for each
    doubling of the jobs on a core.
    """

    gap: float = 0.0
    latency: float = 0.0
    scheduler: float = 0.0
    own: float = 0.0
    cold_cpu: float = 0.0
    cold_wait: float = 0.0
    steal: float = STEAL_SECONDS
    crowded: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Worker processes on hosts: `hosts` has the number of workers and of cores (inf: as many as needed) of each.

    `scheduler_here` tells that the scheduler shares the cores of the last host.
    """

    threads: int
    hosts: Sequence[tuple[int, float]]
    scheduler_here: bool = False

    @property
    def workers(self) -> int:
        """Worker processes."""
        return sum(workers for workers, _ in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a simulated run.

    `seconds` is its wall time. `stretch` is how much longer computing took than its CPU time, for want of cores;
    `scheduler_use` the share of the time in which the scheduler was busy.
    """

    seconds: float
    stretch: float
    scheduler_use: float


def replayed(
    load: Load, cluster: Cluster, costs: Costs, merging: Merging | None = None, *, serial: bool = False
) -> Replayed:
    """Work through chunks and merges on a cluster.

    Parameters
    ----------
    serial
        Threads of a process compute one after the other, as under one interpreter that nobody releases.
    """
    if not len(load):
        return Replayed(seconds=0.0, stretch=1.0, scheduler_use=0.0)
    done = _simulated(load, cluster, costs, merging or Merging(), serial)
    return Replayed(
        seconds=done.wall,
        stretch=_stretch(done.computing / done.computed, costs.crowded) if done.computed else 1.0,
        scheduler_use=done.scheduling / done.wall if done.wall else 0.0,
    )


def _stretch(longer: float, crowded: float) -> float:
    """How much longer than its CPU time computing takes that takes so much longer than it would alone."""
    stretch = longer
    for _ in range(STEPS_TO_STRETCH):
        stretch = longer / (1 + crowded * log2(max(stretch, 1.0)))
    return float(stretch)


def tree(chunks: int, fan_in: int) -> tuple[Counts, Counts]:
    """Merge that takes the result of each task (-1 for the last), and how many results each merge takes."""
    parents, inputs, first, width = [], [], 0, chunks
    while fan_in > 1 and width > 1:
        above = ceil(width / fan_in)
        parents.append(first + width + np.arange(width) // fan_in)
        inputs.append(np.bincount(np.arange(width) // fan_in))
        first, width = first + width, above
    last = np.full(width, NOTHING)
    return np.concatenate([*parents, last]), np.concatenate([np.zeros(0, np.int64), *inputs])


def _simulated(load: Load, cluster: Cluster, costs: Costs, merging: Merging, serial: bool) -> Worked:
    parent, inputs = tree(len(load), merging.fan_in)
    chunks, workers, threads = len(load), cluster.workers, cluster.threads
    at_once = chunks <= ROOTISH * workers * threads
    return simulated(
        settings=(chunks, workers, threads, chunks if at_once else ceil(SATURATION * threads), int(serial)),
        costs=(
            *(costs.gap, costs.latency, merging.fetch, costs.steal),
            *(costs.scheduler, costs.own, costs.cold_cpu, costs.cold_wait, costs.crowded),
        ),
        tasks=(
            np.concatenate([load.before, inputs * merging.cpu]),
            np.concatenate([load.wait, inputs * merging.wait]),
            np.concatenate([load.after, np.zeros(len(inputs))]),
        ),
        parent=parent,
        hosts=_hosts(cluster),
    )


def _hosts(cluster: Cluster) -> list[Host]:
    """Hosts with their jobs; the scheduler has one of its own where it shares none."""
    hosts = [Host(workers * (cluster.threads + 1), cores) for workers, cores in cluster.hosts]
    if cluster.scheduler_here:
        return [*hosts[:-1], Host(hosts[-1].jobs + 1, hosts[-1].cores)]
    return [*hosts, Host(1, 1.0)]
