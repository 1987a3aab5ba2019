"""Discrete-event simulation of chunks and merges on a cluster, to predict the wall time.

If there are many chunks, only a sample is simulated, on fewer workers and, if necessary, with fewer chunks per worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, cycle, islice
from math import ceil, inf, log2, sqrt
from typing import Any, Final, NamedTuple

import numpy as np
import scipy

from roastcoffea.metrics.statistics import Integers, Numbers

NOTHING: Final = -1
"""Parent of the final result, which is not merged further."""

MOST: Final = 10_000
"""Maximum number of chunks to simulate. Simulating them takes about half a second."""


class Interpreter(NamedTuple):
    """How threads wait for the GIL, relative to their CPU time.

    `share` is the fraction of its CPU time during which a thread holds the GIL. `delay` is the time for which a thread
    also waits for each other thread that computes: when it has released the GIL, e.g. to read, another one hands it
    over only after a while (the switch interval, by default 5 ms).
    """

    share: float = 0.0
    delay: float = 0.0


class Costs(NamedTuple):
    """Dask's overheads and the cost of starting processes, in seconds.

    `gap` is the time between two consecutive tasks on a thread. `latency` is the time from assigning a task until it
    starts on a free thread. `steal` is the time an idle worker takes to steal a task (Dask rebalances every 0.1 s).
    `scheduler` is the scheduler's CPU time per task. In each process, the first task starts `cold_wait` seconds later
    and uses `cold_before` seconds more CPU time.

    Four costs are not times. `outside` is the CPU time that processes on the host use outside of tasks, per second
    that a task would take alone, and `process` is the fraction of a core that each worker process always uses.
    `crowded` is the relative increase in CPU time each time the number of jobs on a core doubles. `interpreter`
    describes how threads wait for the GIL (the default if the load includes these waits).
    """

    gap: float = 0.0
    latency: float = 0.0
    scheduler: float = 0.0
    cold_before: float = 0.0
    cold_wait: float = 0.0
    steal: float = 0.05
    outside: float = 0.0
    process: float = 0.0
    crowded: float = 0.0
    interpreter: Interpreter = Interpreter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work to simulate: each chunk uses the CPU, waits, and then uses the CPU again.

    Times are in seconds, and chunks are in order of priority. `read` is how long each chunk would wait for shared
    storage if no other chunk were using the storage. `lock` is the part of `wait` that is spent waiting for the GIL.
    """

    before: Numbers
    wait: Numbers
    after: Numbers
    read: Numbers | float = 0.0
    lock: Numbers | float = 0.0

    def __len__(self) -> int:
        return len(self.wait)

    @property
    def alone(self) -> Numbers:
        """Time that each chunk takes with a core, an interpreter and storage of its own."""
        return np.asarray(self.before + self.read + np.maximum(self.wait - self.lock, 0.0) + self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """Shape and cost of the tree that merges `fan_in` results at a time.

    Fetching the results takes `fetch` seconds. The merge then takes `cpu` and `wait` seconds per result. `fan_in` is 0
    if results are not merged.
    """

    fan_in: int = 0
    cpu: float = 0.0
    wait: float = 0.0
    fetch: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster to simulate.

    `hosts` lists the number of workers and the number of cores on each host (inf means as many cores as needed). If
    `scheduler_here` is true, the scheduler shares the last host's cores. `others` is the share of each core that other
    programs would use if they ran alone. `streams` is the number of readers that storage can serve at full rate.
    """

    threads: int
    hosts: Sequence[tuple[int, float]]
    scheduler_here: bool = False
    others: float = 0.0
    streams: float = inf

    @property
    def workers(self) -> int:
        return sum(workers for workers, _ in self.hosts)

    def sample(self, times: float) -> Cluster:
        """Scale the cluster down by a factor of `times`.

        The sample consists of whole hosts if there are enough hosts. Otherwise, each host is scaled down.
        """
        hosts = self.hosts[: round(len(self.hosts) / times)]
        if len(self.hosts) < times:
            some = [(max(round(workers / times), 1), workers, cores) for workers, cores in self.hosts]
            hosts = [(left, cores * left / workers) for left, workers, cores in some]
        part = replace(self, hosts=hosts)
        return replace(part, streams=self.streams * part.workers / self.workers)


class Replayed(NamedTuple):
    """Result of a simulation.

    `seconds` is the wall time. `stretch` is the ratio of computing time to CPU time; CPU contention makes
    it larger than 1. `scheduler_use` is the fraction of the wall time during which the scheduler was busy. `busy` is
    the thread time spent on tasks.
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
    turns: int = 4,
    most: int = MOST,
    seed: int = 0,
) -> Replayed:
    """Simulate chunks and merges on a cluster.

    Parameters
    ----------
    turns
        Number of times each chunk reads, waits and computes. Real chunks read one branch after another, so some chunks
        read while others compute, even if they all started together.
    most
        Maximum number of chunks to simulate. If there are more, only a sample is simulated.
    seed
        Random seed for drawing the sample. If all chunks are simulated, a nonzero seed shuffles them slightly.
    """
    if not len(load):
        return Replayed(seconds=0.0, stretch=1.0, scheduler_use=0.0)
    # keep at least 8 workers, if there are that many
    part = cluster.sample(max(min(cluster.workers / 8, len(load) / most), 1.0))
    times = cluster.workers / part.workers
    chunks = min(round(len(load) / times), most)
    rounds = len(load) / times / chunks
    costs = costs._replace(
        # one scheduler handles the tasks of all workers
        scheduler=costs.scheduler * times,
        cold_before=costs.cold_before / rounds,
        cold_wait=costs.cold_wait / rounds,
    )
    some = _picked(load, chunks, part.workers * cluster.threads, seed)
    done = _Simulation(some, part, costs, merging or Merging(), turns)
    done.run()
    longer, stretch = done.computing / done.computed if done.computed else 1.0, 1.0
    for _ in range(20):  # iterate to the fixed point
        stretch = longer / (1 + costs.crowded * log2(max(stretch, 1.0)))
    use = costs.scheduler * len(done.parent) / done.now if done.now else 0.0
    return Replayed(done.now * rounds, stretch, use, done.busy * rounds * times)


def _picked(load: Load, chunks: int, slots: int, seed: int) -> Load:
    """Take one random chunk from each of `chunks` equal intervals, or all chunks if there are no more than `chunks`."""
    every, random = len(load), np.random.default_rng(seed)
    rows = np.arange(every)
    if chunks < every:
        edges = np.arange(chunks + 1) * every // chunks
        rows = edges[:-1] + (random.random(chunks) * np.diff(edges)).astype(np.int64)
    elif seed:
        rows = np.argsort(rows + 2 * slots * random.random(every))

    def some(values: Numbers) -> Numbers:
        taken = values[rows]
        # rescale to the mean of all chunks, so that rare chunks do not distort the sample
        return taken * (values.mean() / taken.mean()) if chunks < every and taken.any() else taken

    read, lock = (some(each + 0 * load.wait) for each in (load.read, load.lock))
    return Load(before=some(load.before), wait=some(load.wait), after=some(load.after), read=read, lock=lock)


def tree(chunks: int, fan_in: int) -> tuple[Integers, Integers]:
    """Find the merge that consumes each task's result (-1 for the final result), and count the results per merge."""
    parents, inputs, first, width = [], [np.zeros(0, np.int64)], 0, chunks
    while fan_in > 1 and width > 1:
        above = np.arange(width) // fan_in
        parents.append(first + width + above)
        inputs.append(np.bincount(above))
        first, width = first + width, ceil(width / fan_in)
    return np.concatenate([*parents, np.full(width, NOTHING)]), np.concatenate(inputs)


def lock_waits(interpreter: Interpreter, computing: float, apart: float, threads: int) -> list[float]:
    """Mean time for which a thread waits for the GIL, if there are 1, 2 and up to `threads` threads.

    Each thread computes for `computing` seconds on a core of its own, and then spends `apart` seconds without
    computing. Mean value analysis gives the waits for threads that hold the GIL; delays are approximate.
    """
    (share, delay), waits, queue = interpreter, [], 0.0
    for number in range(1, threads + 1):
        turns, cycle = share * queue * computing, computing + apart
        # the others compute for a fraction of the cycle, which their own waits make longer
        delays = 4 * delay * computing * (number - 1) * (computing + turns)
        waits.append((turns - cycle + sqrt((turns + cycle) ** 2 + delays)) / 2)
        queue = number * share * computing * (1 + queue) / (cycle + waits[-1])
    return waits


def computing_at_once(share: float, workers: int, threads: int, most: int) -> list[float]:
    """Mean number of threads on a host that compute while 0, 1 and up to `most` threads would if there were no GIL."""
    number, jobs = np.arange(threads + 1), np.arange(min(workers * threads, most) + 1)
    of_worker = number / np.add(1.0, [0.0, *lock_waits(Interpreter(share), 1.0, 0.0, threads)])
    # the jobs are on any of the threads
    chances = scipy.stats.hypergeom.pmf(number[:, None], workers * threads, threads, jobs)
    return [*map(float, workers * of_worker @ chances)]


# Simulation

_Process = Generator[tuple["_Shared | None", float], None, None]
"""Yields the duration of each step and the shared resource that the step uses, if any."""


@dataclass
class _Shared:
    """A host's cores or the storage streams, shared equally by all jobs.

    `jobs` is a heap, ordered by the value that `served` will have when the job finishes. The first job finishes at time
    `due`. `at_once` is the number of jobs that the GIL lets run, by the number of jobs (of tasks or not); if it is
    empty, all of them.
    """

    places: float
    others: float = 0.0
    crowded: float = 0.0
    at_once: Sequence[float] = ()
    jobs: list[tuple[float, int, _Process]] = field(default_factory=list)
    served: float = 0.0
    since: float = 0.0
    due: float = inf

    @property
    def rate(self) -> float:
        """Seconds of work that each job completes per second."""
        jobs = len(self.jobs)
        running = self.at_once[min(jobs, len(self.at_once) - 1)] if self.at_once else jobs
        load = (running + self.others) / self.places
        rate = 1.0 if load <= 1 else 1 / (load * (1 + self.crowded * log2(load)))
        return rate * (running / (jobs or 1))

    def serve(self, now: float) -> None:
        self.served += (now - self.since) * self.rate
        self.since = now


@dataclass
class _Worker:
    """A simulated worker. `held` counts its running tasks and the waiting tasks in `chunks` and `merges`.

    `computing` counts the tasks that use the CPU or wait for it.
    """

    host: _Shared
    idle: int
    held: int = 0
    cold: bool = True
    computing: int = 0
    chunks: deque[int] = field(default_factory=deque)
    merges: deque[int] = field(default_factory=deque)


class _Simulation:
    def __init__(self, load: Load, cluster: Cluster, costs: Costs, merging: Merging, turns: int) -> None:
        parent, inputs = tree(len(load), merging.fan_in)
        # lists are faster than arrays
        self.before = [*load.before.tolist(), *(inputs * merging.cpu).tolist()]
        self.wait = [*load.wait.tolist(), *(inputs * merging.wait).tolist()]
        (share, delay), outside = costs.interpreter, costs.outside * load.alone
        delays = delay / turns * (load.before + load.after)
        self.read, self.after, self.delay, self.outside = (
            np.append(values, 0.0 * inputs).tolist() for values in (load.read, load.after, delays, outside)
        )
        self.parent, self.missing = parent.tolist(), [*(0 * load.wait), *inputs.tolist()]
        self.costs, self.turns, self.fetch = costs, turns, merging.fetch
        hosts = [
            _Shared(
                max(cores - costs.process * workers, cores / 10),  # tasks always get something
                cluster.others * cores if cores < inf else 0.0,
                costs.crowded,
                computing_at_once(share, workers, cluster.threads, len(load)) if share else (),
            )
            for workers, cores in cluster.hosts
        ]
        self.storage, self.scheduler = _Shared(cluster.streams), hosts[-1] if cluster.scheduler_here else _Shared(1.0)
        self.workers = [
            _Worker(host, cluster.threads)
            for host, (workers, _) in zip(hosts, cluster.hosts, strict=True)
            for _ in range(workers)
        ]
        # if there are few chunks, Dask assigns all of them at once; otherwise, 1.1 per thread (worker-saturation)
        few = len(load) <= 2 * len(self.workers) * cluster.threads
        self.limit = len(load) if few else ceil(1.1 * cluster.threads)
        self.unassigned = iter(range(len(load)))
        self.ended: deque[tuple[int, _Worker]] = deque()
        self.events: list[tuple[float, int, Any]] = []
        self.order, self.left, self.now = count(), len(self.parent), 0.0
        self.busy = self.computing = self.computed = 0.0

    def run(self) -> None:
        # assign the first tasks round-robin
        for worker in islice(cycle(self.workers), self.limit * len(self.workers)):
            if not self._assign(worker):
                break
        while self.left:
            self.now, _, what = heappop(self.events)
            if not isinstance(what, _Shared):
                self._go_on(what)
            elif what.due == self.now:  # if not equal, a job has started or finished since this event was scheduled
                what.serve(self.now)
                *_, process = heappop(what.jobs)
                self._look_ahead(what)
                self._go_on(process)

    def _at(self, time: float, what: _Shared | _Process) -> None:
        heappush(self.events, (time, next(self.order), what))

    def _look_ahead(self, shared: _Shared) -> None:
        shared.due = inf
        if shared.jobs:
            shared.due = self.now + max(shared.jobs[0][0] - shared.served, 0.0) / shared.rate
            self._at(shared.due, shared)

    def _go_on(self, process: _Process) -> None:
        for shared, seconds in process:
            if seconds > 0:
                if shared is None or (shared.places == inf and not shared.at_once):
                    self._at(self.now + seconds, process)
                else:
                    shared.serve(self.now)
                    heappush(shared.jobs, (shared.served + seconds, next(self.order), process))
                    self._look_ahead(shared)
                return

    # tasks on threads

    def _task(self, worker: _Worker, task: int) -> _Process:
        cold, worker.cold = worker.cold, False
        yield None, cold * self.costs.cold_wait
        began = self.now
        yield from self._compute(worker, self.before[task] + cold * self.costs.cold_before)
        for _ in range(self.turns):
            yield self.storage, self.read[task] / self.turns
            yield None, self.wait[task] / self.turns
            yield None, self.delay[task] * worker.computing
            yield from self._compute(worker, self.after[task] / self.turns)
        self.busy += self.now - began
        if self.costs.outside:
            self._go_on(self._outside_tasks(worker, self.outside[task]))
        worker.idle += 1
        self._fill(worker, self.costs.gap)
        self.ended.append((task, worker))
        if len(self.ended) == 1:
            self._go_on(self._schedule())

    def _outside_tasks(self, worker: _Worker, seconds: float) -> _Process:
        yield worker.host, seconds

    def _compute(self, worker: _Worker, seconds: float) -> _Process:
        began = self.now
        worker.computing += 1
        yield worker.host, seconds
        worker.computing -= 1
        self.computing += self.now - began
        self.computed += seconds

    def _fill(self, worker: _Worker, delay: float) -> None:
        while worker.idle and (held := worker.chunks or worker.merges):
            self._start(worker, held.popleft(), delay)

    def _start(self, worker: _Worker, task: int, delay: float) -> None:
        worker.idle -= 1
        self._at(self.now + delay, self._task(worker, task))

    # the scheduler

    def _schedule(self) -> _Process:
        while self.ended:
            yield self.scheduler, self.costs.scheduler
            task, worker = self.ended.popleft()
            worker.held -= 1
            self.left -= 1
            merge = self.parent[task]
            if merge != NOTHING:
                self.missing[merge] -= 1
                if not self.missing[merge]:
                    self._go_on(self._fetch(worker, merge))
            while worker.held < self.limit and self._assign(worker):
                pass
            while worker.idle:
                victim = max(self.workers, key=lambda one: len(one.chunks))
                if not victim.chunks:
                    break
                victim.held -= 1
                worker.held += 1
                self._start(worker, victim.chunks.popleft(), self.costs.steal)

    def _fetch(self, worker: _Worker, merge: int) -> _Process:
        worker.held += 1
        yield None, self.costs.latency + self.fetch
        worker.merges.append(merge)
        self._fill(worker, 0.0)

    def _assign(self, worker: _Worker) -> bool:
        task = next(self.unassigned, None)
        if task is not None:
            worker.held += 1
            worker.chunks.append(task)
            self._fill(worker, self.costs.latency)
        return task is not None
