"""Wall time of chunks and merges on a simulated cluster.

The simulation is compiled for many chunks, and runs in plain Python for few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, log2
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.replay.engine import NOTHING, Costs, Hosts, Outcome, Setting, Simulation, Tasks

MANY: Final = 10_000
"""Fewest chunks for which compiling pays off."""

SATURATION: Final = 1.1
"""Dask's tasks per worker, relative to its threads (`distributed.scheduler.worker-saturation`)."""

ROOTISH: Final = 2
"""Ratio of chunks to threads up to which Dask assigns all of them at once."""

LEAST_LEFT: Final = 0.1
"""Share of a host's cores that its idle processes leave at least, however many there are."""

TURNS: Final = 4
"""Turns in which a chunk reads, waits and computes: it reads one branch after another, so that some chunks read while
others compute, even if all started together."""

OUT_OF_STEP: Final = 100_000
"""Chunks from which one turn is enough: so many are out of step for most of the run, and turns would double the time
of a simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work to do: for each chunk in order of priority, seconds of CPU, of waiting, and of CPU again.

    `read` is waiting for storage that the chunks share, with all of it to itself; None if all waiting is in `wait`.
    """

    before: Numbers
    wait: Numbers
    after: Numbers
    read: Numbers | None = None

    def __len__(self) -> int:
        return len(self.wait)

    @property
    def seconds(self) -> float:
        """Thread time that it takes at least."""
        read = 0.0 if self.read is None else self.read.sum()
        return float(self.before.sum() + read + self.wait.sum() + self.after.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """How results are merged: `fan_in` at a time, in a tree.

    A merge takes `cpu` and `wait` seconds per result, after `fetch` seconds to collect them. Without merging `fan_in`
    is 0.
    """

    fan_in: int = 0
    cpu: float = 0.0
    wait: float = 0.0
    fetch: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Worker processes on hosts: `hosts` has the number of workers and of cores (inf: as many as needed) of each.

    `scheduler_here` means that the scheduler shares the cores of the last host. `others` is how much other programs
    would use of each core on their own, `streams` how many readers storage serves at their full rate.
    """

    threads: int
    hosts: Sequence[tuple[int, float]]
    scheduler_here: bool = False
    others: float = 0.0
    streams: float = float("inf")


class Replayed(NamedTuple):
    """Result of a simulated run.

    `seconds` is its wall time. `stretch` is the ratio of computing to its CPU time, due to CPU contention;
    `scheduler_use` the share of time in which the scheduler was busy. `busy` is the thread time of tasks.
    """

    seconds: float
    stretch: float
    scheduler_use: float
    busy: float = 0.0


def replayed(
    load: Load,
    cluster: Cluster,
    costs: Costs,
    merging: Merging | None = None,
    *,
    serial: bool = False,
    turns: int | None = None,
    compiled: bool | None = None,
) -> Replayed:
    """Work through chunks and merges on a cluster.

    Parameters
    ----------
    serial
        Threads of a process compute serially, as if no work released the interpreter lock.
    turns
        Turns in which a chunk reads, waits and computes; by default TURNS unless there are very many chunks.
    compiled
        Whether to compile the simulation, which takes 5 s; by default for many chunks.
    """
    if not len(load):
        return Replayed(seconds=0.0, stretch=1.0, scheduler_use=0.0)
    merging = merging or Merging()
    turns = turns or (TURNS if len(load) < OUT_OF_STEP else 1)
    setting, tasks = _work(load, cluster, merging, serial=serial, turns=turns)
    # one type of costs, even with integers among them: each type would be compiled separately
    given = setting, Costs(*map(float, costs)), tasks, _hosts(cluster, costs.idle)
    done = _compiled()(*given) if (len(load) >= MANY if compiled is None else compiled) else _simulated(*given)
    return Replayed(
        seconds=done.wall,
        stretch=_stretch(done.computing / done.computed, costs.crowded) if done.computed else 1.0,
        scheduler_use=done.scheduling / done.wall if done.wall else 0.0,
        busy=done.computing
        + done.reading
        + float(load.wait.sum())
        + merging.wait * int(tree(len(load), merging.fan_in)[1].sum()),
    )


def _stretch(longer: float, crowded: float) -> float:
    """Ratio of computing to its CPU time, for work that took this much longer than alone."""
    stretch = longer
    for _ in range(20):  # steps towards the fixed point
        stretch = longer / (1 + crowded * log2(max(stretch, 1.0)))
    return float(stretch)


def tree(chunks: int, fan_in: int) -> tuple[Integers, Integers]:
    """Merge for the result of each task (-1 for the last), and the number of results of each merge."""
    parents, inputs, first, width = [], [], 0, chunks
    while fan_in > 1 and width > 1:
        above = np.arange(width) // fan_in
        parents.append(first + width + above)
        inputs.append(np.bincount(above))
        first, width = first + width, ceil(width / fan_in)
    last = np.full(width, NOTHING)
    return np.concatenate([*parents, last]), np.concatenate([np.zeros(0, np.int64), *inputs])


def _work(load: Load, cluster: Cluster, merging: Merging, *, serial: bool, turns: int) -> tuple[Setting, Tasks]:
    """Chunks and merges, and how many of them workers hold."""
    parent, inputs = tree(len(load), merging.fan_in)
    chunks, merges, workers = len(load), len(inputs), sum(workers for workers, _ in cluster.hosts)
    limit = chunks if chunks <= ROOTISH * workers * cluster.threads else ceil(SATURATION * cluster.threads)
    tasks = Tasks(
        before=np.concatenate([load.before, inputs * merging.cpu]),
        read=np.concatenate([0.0 * load.wait if load.read is None else load.read, np.zeros(merges)]),
        wait=np.concatenate([load.wait, inputs * merging.wait]),
        after=np.concatenate([load.after, np.zeros(merges)]),
        parent=parent,
        missing=np.concatenate([np.zeros(chunks, np.int64), inputs]),
    )
    fetch, streams = float(merging.fetch), float(cluster.streams)
    return Setting(chunks, workers, cluster.threads, turns, limit, fetch, serial, streams), tasks


def _simulated(setting: Setting, costs: Costs, tasks: Tasks, hosts: Hosts) -> Outcome:
    """The simulation without compiling."""
    simulation = Simulation(setting, costs, tasks, hosts)
    for name, value in vars(simulation).items():
        if isinstance(value, np.ndarray):  # lists are faster without compiling
            setattr(simulation, name, value.tolist())
    return simulation.until_done()


def _hosts(cluster: Cluster, idle: float) -> Hosts:
    """Hosts with their jobs and the cores that idle processes leave; the scheduler has its own unless it shares one."""
    jobs = [workers * (cluster.threads + 1) for workers, _ in cluster.hosts]
    cores = [max(some - idle * workers, LEAST_LEFT * some) if some < inf else some for workers, some in cluster.hosts]
    others = [cluster.others * some if some < inf else 0.0 for _, some in cluster.hosts]
    if cluster.scheduler_here:
        jobs[-1] += 1
    else:
        jobs, cores, others = [*jobs, 1], [*cores, 1.0], [*others, 0.0]
    own = np.where(np.isinf(cores), np.asarray(jobs, np.float64), cores)
    return Hosts(cores=own, others=np.array(others), first_job=np.concatenate([[0], np.cumsum(jobs)]))


@cache
def _compiled() -> Callable[[Setting, Costs, Tasks, Hosts], Outcome]:
    """The whole simulation, compiled as a class with attribute types from an example.

    It starts and ends inside: returning a simulation would compile it for access from Python, which takes as long
    again.
    """
    from numba import njit, typeof
    from numba.experimental import jitclass

    none, counts = np.zeros(0), np.zeros(0, np.int64)
    setting = Setting(chunks=0, workers=1, threads=1, turns=1, limit=1, fetch=0.0, serial=False, streams=1.0)
    tasks = Tasks(before=none, read=none, wait=none, after=none, parent=counts, missing=counts)
    hosts = Hosts(cores=np.ones(1), others=np.zeros(1), first_job=np.array([0, 3]))
    example = Simulation(setting, Costs(), tasks, hosts)
    compiled = jitclass({name: typeof(value) for name, value in vars(example).items()})(Simulation)
    whole: Callable[[Setting, Costs, Tasks, Hosts], Outcome] = njit(
        lambda setting, costs, tasks, hosts: compiled(setting, costs, tasks, hosts).until_done()
    )
    return whole
