"""A cluster that works through chunks and merges, simulated event by event.

Hosts share their cores equally among all that compute on them (processor sharing): threads of tasks, the workers' event
loops, and the scheduler where it lives there. Waiting takes no core. The scheduler hands out chunks as Dask does: a
worker holds few more than it has threads, gets another for each that the scheduler has heard of, and one that has
nothing takes from those that hold too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

MANY: Final = 10_000
"""Chunks from which on compiling is worth its time."""

NOTHING: Final = -1
BEFORE: Final = 0
WAITING: Final = 1
AFTER: Final = 2
STARTING: Final = 3
"""Stages of a task on its thread: computing, waiting, computing, and the way to its start."""

INFINITY: Final = np.inf

MOST_OWN: Final = 2.0
"""What an event loop computes meanwhile, where tasks wait for cores, beside what it does where they do not.

It looks after itself each 10 ms, but gets the interpreter only when the task's thread is at work.
"""


class Host(NamedTuple):
    """A host: its jobs, and the cores that they share."""

    jobs: int
    cores: float


class Tables(NamedTuple):
    """What a simulation keeps, by what it is of, a row for each quantity: many arrays would take long to compile."""

    jobs: Numbers
    jobs_counts: Counts
    workers_counts: Counts
    queues: Counts
    hosts: Numbers
    hosts_counts: Counts
    tasks: Numbers
    tasks_counts: Counts
    clock: Numbers
    clocks: Counts


class Worked(NamedTuple):
    """What came of a simulation, in seconds.

    `wall` is when the scheduler has heard of the last task. Tasks were `computing` for what they would have `computed`
    with a core each; the scheduler was at work while `scheduling`.
    """

    wall: float
    computing: float
    computed: float
    scheduling: float


class Simulation:
    """A cluster with its tasks; `until_done` lets it work. It runs as it is, and compiled: see `simulated`.

    A task is a chunk (the first `chunks` of them, in the order of their priority) or a merge. `before`, `wait` and
    `after` are seconds of each task: CPU, waiting, CPU; `parent` is the merge that takes its result, or -1. A worker
    holds `limit` tasks at most. `own` is CPU time of its event loop for a task that has a core to itself, `scheduler`
    that of the scheduler. With `serial` the threads of a process compute one after the other.

    Jobs are those that compute or wait: of each worker its threads and then its event loop, at the end the scheduler.
    Those of a host lie between its `first_job` and the next one's. `clock` has the next moment of each job that waits,
    of each host the next end of a job, and at the end that of the first merge which fetches its inputs; `heap` orders
    it, `place` is where each is.
    """

    def __init__(self, settings: Counts, costs: Numbers, tables: Tables) -> None:
        self.chunks, self.workers, self.threads, self.limit = settings[0], settings[1], settings[2], settings[3]
        self.serial = settings[4] == 1
        self.gap, self.latency, self.fetch, self.steal = costs[0], costs[1], costs[2], costs[3]
        self.scheduler, self.own, self.cold_cpu, self.cold_wait = costs[4], costs[5], costs[6], costs[7]
        self.crowded = costs[8]
        self.target, self.began, self.pending = tables.jobs[0], tables.jobs[1], tables.jobs[2]
        self.started = tables.jobs[3]
        self.task, self.stage, self.host = tables.jobs_counts[0], tables.jobs_counts[1], tables.jobs_counts[2]
        self.idle, self.held, self.ready = tables.workers_counts[0], tables.workers_counts[1], tables.workers_counts[2]
        self.cold, self.turn = tables.workers_counts[3], tables.workers_counts[4]
        self.head, self.tail = tables.queues[0], tables.queues[1]
        self.cores, self.virtual, self.last = tables.hosts[0], tables.hosts[1], tables.hosts[2]
        self.first_job, self.active = tables.hosts_counts[0], tables.hosts_counts[1]
        self.before, self.wait, self.after = tables.tasks[0], tables.tasks[1], tables.tasks[2]
        self.merging_at = tables.tasks[3]
        self.parent, self.missing, self.following = (
            tables.tasks_counts[0],
            tables.tasks_counts[1],
            tables.tasks_counts[2],
        )
        self.heard, self.merging = tables.tasks_counts[3], tables.tasks_counts[4]
        self.merging_on = tables.tasks_counts[5]
        self.clock, self.heap, self.place = tables.clock, tables.clocks[0], tables.clocks[1]
        self.next_chunk = self.ready_chunks = self.done = 0
        self.heard_first = self.heard_last = self.merging_first = self.merging_last = 0
        self.computing = self.computed = self.scheduling = 0.0

    # clocks

    def _set_clock(self, which: int, time: float) -> None:
        """Give a clock its next moment: it goes up to where none above is later, then down to where none is earlier."""
        clock, heap, place = self.clock, self.heap, self.place
        clock[which] = time
        at = place[which]
        while at > 0 and clock[heap[(at - 1) >> 1]] > time:
            heap[at] = heap[(at - 1) >> 1]
            place[heap[at]] = at
            at = (at - 1) >> 1
        while 2 * at + 1 < len(heap):
            below = 2 * at + 1
            if below + 1 < len(heap) and clock[heap[below + 1]] < clock[heap[below]]:
                below += 1
            if clock[heap[below]] >= time:
                break
            heap[at] = heap[below]
            place[heap[at]] = at
            at = below
        heap[at] = which
        place[which] = at

    # cores of a host

    def _advance(self, host: int, time: float) -> None:
        """Let a host compute until now: each job gets the same."""
        if self.active[host] > 0:
            self.virtual[host] += (time - self.last[host]) * self._share(host)
        self.last[host] = time

    def _share(self, host: int) -> float:
        """Seconds that each job of a host computes in a second."""
        load = self.active[host] / self.cores[host]
        return 1.0 if load <= 1.0 else 1.0 / (load * (1.0 + self.crowded * math.log2(load)))

    def _first_job(self, host: int) -> int:
        """Job of a host that ends first."""
        target = self.target
        first: int = self.first_job[host]
        for job in range(first + 1, self.first_job[host + 1]):
            if target[job] < target[first]:
                first = job
        return first

    def _look_ahead(self, host: int) -> None:
        """Set when the next job of a host ends."""
        clock, time = len(self.task) + host, INFINITY
        if self.active[host] > 0:
            left = self.target[self._first_job(host)] - self.virtual[host]
            time = self.last[host] + max(left, 0.0) / self._share(host)
        self._set_clock(clock, time)

    def _compute(self, job: int, seconds: float, time: float) -> None:
        """Begin to compute."""
        host = self.host[job]
        self._advance(host, time)
        self.target[job] = self.virtual[host] + seconds
        self.active[host] += 1
        self.began[job] = time
        self._look_ahead(host)

    def _take_core(self, job: int, seconds: float, time: float) -> None:
        """Compute, or queue where the process has one interpreter for all its threads and it is in use."""
        self.computed += seconds
        if self.serial:
            worker = job // (self.threads + 1)
            self.pending[job] = seconds
            if self.turn[worker] != NOTHING:
                return
            self.turn[worker] = job
        self._compute(job, seconds, time)

    def _pass_turn(self, job: int, time: float) -> None:
        """Give the interpreter to a thread of the process that waits for it."""
        worker = job // (self.threads + 1)
        self.pending[job] = 0.0
        self.turn[worker] = NOTHING
        first = worker * (self.threads + 1)
        for other in range(first, first + self.threads):
            if self.pending[other] > 0.0:
                self.turn[worker] = other
                self._compute(other, self.pending[other], time)
                return

    # tasks on threads

    def _begin(self, job: int, task: int, time: float) -> None:
        """Have a thread begin a task at a later time."""
        self.task[job] = task
        self.stage[job] = STARTING
        self._set_clock(job, time)

    def _step(self, job: int, time: float) -> None:
        """Take a task to its next stage; those that take no time are passed."""
        worker, task = job // (self.threads + 1), self.task[job]
        if self.stage[job] == STARTING:
            seconds = self.before[task]
            if self.cold[worker] == 1:
                seconds += self.cold_cpu
                self.cold[worker] = 2
            self.stage[job] = BEFORE
            self.started[job] = time
            if seconds > 0.0:
                self._take_core(job, seconds, time)
                return
        if self.stage[job] == BEFORE:
            seconds = self.wait[task]
            if self.cold[worker] == 2:
                seconds += self.cold_wait
                self.cold[worker] = 0
            self.stage[job] = WAITING
            if seconds > 0.0:
                self._set_clock(job, time + seconds)
                return
        if self.stage[job] == WAITING:
            self.stage[job] = AFTER
            if self.after[task] > 0.0:
                self._take_core(job, self.after[task], time)
                return
        self._end(job, time)

    def _end(self, job: int, time: float) -> None:
        """End a task: tell the scheduler, and go on with what the worker holds."""
        worker, task = job // (self.threads + 1), self.task[job]
        self.task[job] = NOTHING
        self.heard[self.heard_last] = task * self.workers + worker
        self.heard_last += 1
        self._listen(time)
        loop = worker * (self.threads + 1) + self.threads
        self.pending[loop] += self.own * self._longer(job, task, time)
        self._loop(loop, time)
        self.idle[worker] += 1
        self._go_on(worker, time, self.gap)

    def _longer(self, job: int, task: int, time: float) -> float:
        """How many times as long as it needs a task took, as far as the event loop computes more meanwhile."""
        needed = self.before[task] + self.wait[task] + self.after[task]
        if needed <= 0.0:
            return 1.0
        return float(min(max((time - self.started[job]) / needed, 1.0), MOST_OWN))

    def _loop(self, loop: int, time: float) -> None:
        """Have an event loop do what it has to, if it is not at it."""
        if self.target[loop] == INFINITY and self.pending[loop] > 0.0:
            seconds = self.pending[loop]
            self.pending[loop] = 0.0
            self._compute(loop, seconds, time)

    def _go_on(self, worker: int, time: float, delay: float) -> None:
        """Have free threads of a worker begin what it holds: chunks, then merges."""
        while self.idle[worker] > 0:
            queue = worker if self.head[worker] != NOTHING else self.workers + worker
            task = self.head[queue]
            if task == NOTHING:
                return
            self.head[queue] = self.following[task]
            if queue == worker:
                self.ready[worker] -= 1
                self.ready_chunks -= 1
            self._occupy(worker, task, time + delay)

    def _occupy(self, worker: int, task: int, time: float) -> None:
        """Begin a task on a free thread of a worker."""
        first = worker * (self.threads + 1)
        for job in range(first, first + self.threads):
            if self.task[job] == NOTHING:
                self.idle[worker] -= 1
                self._begin(job, task, time)
                return

    def _hold(self, queue: int, task: int) -> None:
        """Put a task at the end of a queue."""
        self.following[task] = NOTHING
        if self.head[queue] == NOTHING:
            self.head[queue] = task
        else:
            self.following[self.tail[queue]] = task
        self.tail[queue] = task

    # the scheduler

    def _listen(self, time: float) -> None:
        """Have the scheduler take the next end of a task, if it is not at one."""
        scheduler = len(self.task) - 1
        if self.target[scheduler] == INFINITY and self.heard_first < self.heard_last:
            self.scheduling += self.scheduler
            self._compute(scheduler, self.scheduler, time)

    def _hear(self, time: float) -> None:
        """Have the scheduler react to the end of a task."""
        heard = self.heard[self.heard_first]
        self.heard_first += 1
        task, worker = heard // self.workers, heard % self.workers
        self.held[worker] -= 1
        self.done += 1
        merge = self.parent[task]
        if merge != NOTHING:
            self.missing[merge] -= 1
            if self.missing[merge] == 0:
                self._send_merge(merge, worker, time)
        self._fill(worker, time)
        if self.idle[worker] > 0:
            self._steal(worker, time)
        self._listen(time)

    def _send_merge(self, merge: int, worker: int, time: float) -> None:
        """Assign a merge; it has its inputs after a while, as do those that were assigned before."""
        self.held[worker] += 1
        at = self.merging_last
        self.merging[at], self.merging_on[at] = merge, worker
        self.merging_at[at] = time + self.latency + self.fetch
        self.merging_last += 1
        if at == self.merging_first:
            self._set_clock(len(self.clock) - 1, self.merging_at[at])

    def _merge_is_ready(self, time: float) -> None:
        at = self.merging_first
        self.merging_first += 1
        later = self.merging_at[at + 1] if at + 1 < self.merging_last else INFINITY
        self._set_clock(len(self.clock) - 1, later)
        worker = self.merging_on[at]
        self._hold(self.workers + worker, self.merging[at])
        self._go_on(worker, time, 0.0)

    def _fill(self, worker: int, time: float) -> None:
        """Assign chunks to a worker until it holds what it may."""
        while self.held[worker] < self.limit and self.next_chunk < self.chunks:
            self._assign(worker, time)

    def _assign(self, worker: int, time: float) -> None:
        task = self.next_chunk
        self.next_chunk += 1
        self.held[worker] += 1
        self._hold(worker, task)
        self.ready[worker] += 1
        self.ready_chunks += 1
        self._go_on(worker, time, self.latency)

    def _steal(self, thief: int, time: float) -> None:
        """Take chunks from the worker that holds the most which it has not begun."""
        while self.idle[thief] > 0 and self.ready_chunks > 0:
            victim = int(np.argmax(self.ready))
            task = self.head[victim]
            self.head[victim] = self.following[task]
            self.ready[victim] -= 1
            self.ready_chunks -= 1
            self.held[victim] -= 1
            self.held[thief] += 1
            self._occupy(thief, task, time + self.steal)

    # the whole

    def until_done(self) -> Worked:
        """Work until the scheduler has heard of the last task."""
        self._hand_out()
        jobs, time = len(self.task), 0.0
        while self.done < len(self.before):
            which = self.heap[0]
            time = self.clock[which]
            if which < jobs:
                self._set_clock(which, INFINITY)
                self._step(which, time)
            elif which == len(self.clock) - 1:
                self._merge_is_ready(time)
            else:
                self._job_ends(which - jobs, time)
        return Worked(time, self.computing, self.computed, self.scheduling)

    def _hand_out(self) -> None:
        """Give each worker its first tasks, one after the other."""
        for _ in range(self.limit):
            for worker in range(self.workers):
                if self.next_chunk < self.chunks:
                    self._assign(worker, 0.0)
            if self.next_chunk == self.chunks:
                return

    def _job_ends(self, host: int, time: float) -> None:
        """Go on after a job of a host has computed what it had to."""
        self._advance(host, time)
        job = self._first_job(host)
        self.target[job] = INFINITY
        self.active[host] -= 1
        self._look_ahead(host)
        if job == len(self.task) - 1:
            self._hear(time)
        elif job % (self.threads + 1) == self.threads:
            self._loop(job, time)
        else:
            self.computing += time - self.began[job]
            if self.serial:
                self._pass_turn(job, time)
            self._step(job, time)


def simulated(
    settings: Sequence[int], costs: Sequence[float], tasks: Sequence[Numbers], parent: Counts, hosts: Sequence[Host]
) -> Worked:
    """What comes of a simulation, which is compiled where there are many chunks.

    Parameters
    ----------
    settings
        Chunks, workers, threads of each, tasks that a worker holds at most, and 1 for serial processes.
    costs
        Seconds of gap, latency, fetch, steal, scheduler, own, cold_cpu, cold_wait, and how crowded cores slow.
    tasks
        Seconds before, wait and after of each task.
    parent
        Merge that takes the result of each task; -1 for the last.
    hosts
        Jobs and cores of each.
    """
    tables = _tables(settings, tasks, parent, hosts)
    arrays = (np.array(settings, np.int64), np.array(costs, np.float64), tables)
    if settings[0] >= MANY:
        return _compiled()(*arrays)
    return Simulation(*_listed(*arrays)).until_done()


def _listed(settings: Counts, costs: Numbers, tables: Tables) -> tuple[Any, Any, Tables]:
    """The same in lists, which are quicker where nothing is compiled."""
    columns: list[Any] = [table.tolist() for table in tables]
    return settings.tolist(), costs.tolist(), Tables(*columns)


def _tables(settings: Sequence[int], tasks: Sequence[Numbers], parent: Counts, hosts: Sequence[Host]) -> Tables:
    _, workers, threads, *_ = settings
    of_hosts, cores = np.array([host.jobs for host in hosts]), np.array([host.cores for host in hosts])
    jobs, none = int(of_hosts.sum()), np.zeros(len(parent), np.int64)
    clocks = jobs + len(hosts) + 1
    missing = np.bincount(parent[parent >= 0], minlength=len(parent))
    nothing, idle = np.full(workers, NOTHING), np.zeros(workers, np.int64)
    return Tables(
        jobs=np.stack([np.full(jobs, INFINITY), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs)]),
        jobs_counts=np.stack(
            [np.full(jobs, NOTHING), np.zeros(jobs, np.int64), np.repeat(np.arange(len(hosts)), of_hosts)]
        ),
        workers_counts=np.stack([np.full(workers, threads), idle, idle, np.ones(workers, np.int64), nothing]),
        queues=np.full((2, 2 * workers), NOTHING),
        hosts=np.stack([np.minimum(cores, float(jobs)), np.zeros(len(hosts)), np.zeros(len(hosts))]),
        hosts_counts=np.stack([np.concatenate([[0], np.cumsum(of_hosts)]), np.zeros(len(hosts) + 1, np.int64)]),
        tasks=np.stack([*tasks, np.zeros(len(parent))]),
        tasks_counts=np.stack([parent, missing, np.full(len(parent), NOTHING), none, none, none]),
        clock=np.full(clocks, INFINITY),
        clocks=np.stack([np.arange(clocks), np.arange(clocks)]),
    )


@cache
def _compiled() -> Callable[..., Worked]:
    """The whole simulation, compiled as a class whose attributes have the types that they have in an example.

    It begins and ends inside: a simulation that were handed out would be compiled for access from Python, which takes
    as long again.
    """
    from numba import njit, typeof
    from numba.experimental import jitclass

    settings, none = (0, 1, 1, 1, 0), np.zeros(0)
    tables = _tables(settings, (none, none, none), np.zeros(0, np.int64), (Host(3, 1.0),))
    example = Simulation(np.array(settings), np.zeros(9), tables)
    compiled = jitclass({name: typeof(value) for name, value in vars(example).items()})(Simulation)

    def whole(settings: Counts, costs: Numbers, tables: Tables) -> Worked:
        worked: Worked = compiled(settings, costs, tables).until_done()
        return worked

    done: Callable[..., Worked] = njit(whole)
    return done
