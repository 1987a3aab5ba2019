"""Event-by-event simulation of a cluster: its inputs and outputs, its clocks, and the storage that readers share."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.metrics.statistics import Integers, Numbers

INFINITY: Final = np.inf


class SharedStorage:
    """Readers share storage equally; up to `streams` of them, each has its full rate.

    `reader` has their jobs as a heap, by what storage will have `served_to` each stream when they end. `Simulation`
    sets all attributes, because compiled classes do not call the constructor of another one.
    """

    streams: float
    clock: Numbers
    heap: Integers
    place: Integers
    storage_clock: int
    reader: Integers
    served_to: Numbers
    began: Numbers
    readers: int
    served: float
    served_at: float
    reading: float

    def _set_clock(self, which: int, time: float) -> None:
        """Set the next moment of a clock: move it up until none above is later, then down until none is earlier."""
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

    def _serve(self, time: float) -> None:
        """Let storage serve until now: each reader gets the same."""
        self.served += (time - self.served_at) * self._stream_share()
        self.served_at = time

    def _stream_share(self) -> float:
        """Rate of each reader relative to that of one alone."""
        return 1.0 if self.readers <= self.streams else self.streams / self.readers

    def _read(self, job: int, seconds: float, time: float) -> None:
        """Start reading: move the job up in the heap until none above ends later."""
        self._serve(time)
        reader, end = self.reader, self.served_to
        end[job] = self.served + seconds
        self.began[job] = time
        at = self.readers
        self.readers += 1
        while at > 0 and end[reader[(at - 1) >> 1]] > end[job]:
            reader[at] = reader[(at - 1) >> 1]
            at = (at - 1) >> 1
        reader[at] = job
        self._look_at_storage()

    def _look_at_storage(self) -> None:
        """Set when the next reading ends."""
        time = INFINITY
        if self.readers > 0:
            left = self.served_to[self.reader[0]] - self.served
            time = self.served_at + max(left, 0.0) / self._stream_share()
        self._set_clock(self.storage_clock, time)

    def _first_reader(self, time: float) -> int:
        """End the first reading, and return its job: move the last one of the heap down from its place."""
        self._serve(time)
        reader, end = self.reader, self.served_to
        job: int = reader[0]
        self.readers -= 1
        last, at = reader[self.readers], 0
        while 2 * at + 1 < self.readers:
            below = 2 * at + 1
            if below + 1 < self.readers and end[reader[below + 1]] < end[reader[below]]:
                below += 1
            if end[reader[below]] >= end[last]:
                break
            reader[at] = reader[below]
            at = below
        reader[at] = last
        self.reading += time - self.began[job]
        self._look_at_storage()
        return job


NOTHING: Final = -1
"""Placeholder for no task, merge or job."""

STEAL_SECONDS: Final = 0.05
"""Seconds until an idle worker steals: Dask balances every 0.1 s."""


class Costs(NamedTuple):
    """Costs of Dask and of starting processes, in seconds.

    `gap` is between two tasks of a thread, `latency` between an assignment and its start on a free thread; the
    scheduler takes `scheduler` CPU per task, the event loop of a worker `own`. The first task of a process takes
    `cold_before`, `cold_wait` and `cold_after` longer: CPU, waiting, CPU. Two are no times: `crowded` is the increase
    of CPU time for each doubling of the jobs on a core, `idle` the share of a core that a worker process always uses.
    """

    gap: float = 0.0
    latency: float = 0.0
    scheduler: float = 0.0
    own: float = 0.0
    cold_before: float = 0.0
    cold_wait: float = 0.0
    cold_after: float = 0.0
    steal: float = STEAL_SECONDS
    crowded: float = 0.0
    idle: float = 0.0


class Setting(NamedTuple):
    """Size of a simulation: `chunks` on `workers` with `threads` each.

    Each chunk reads, waits and computes in `turns`. A worker holds at most `limit` tasks. A merge has its inputs
    `fetch` seconds after its assignment. With `serial` the threads of a process compute serially. Storage serves up to
    `streams` readers at their full rate; more share it.
    """

    chunks: int
    workers: int
    threads: int
    turns: int
    limit: int
    fetch: float
    serial: bool
    streams: float


class Tasks(NamedTuple):
    """Chunks in order of priority, then merges.

    `before`, `read`, `wait` and `after` are seconds of each: CPU, reading with storage of its own, waiting, CPU.
    `parent` is the merge of its result, or -1;
    `missing` is the number of results of a merge.
    """

    before: Numbers
    read: Numbers
    wait: Numbers
    after: Numbers
    parent: Integers
    missing: Integers


class Hosts(NamedTuple):
    """Hosts with their `cores`; the jobs of each start at its `first_job` and end before the next one's.

    `others` is how many cores other programs would use there on their own.
    """

    cores: Numbers
    others: Numbers
    first_job: Integers


class Outcome(NamedTuple):
    """Result of a simulation, in seconds.

    `wall` is when the scheduler has handled the last task. `computing` is the time of tasks that would have `computed`
    that long with a core each; `scheduling` is the scheduler's busy time, `reading` the time of tasks in storage.
    """

    wall: float
    computing: float
    computed: float
    scheduling: float
    reading: float


BEFORE, READING, WAITING, AFTER, STARTING = range(5)
"""Stages of a task on its thread: computing, reading, waiting, computing, and waiting to start."""


class Simulation(SharedStorage):
    """A cluster with its tasks; `until_done` runs it, in plain Python or compiled: see `simulated`.

    Jobs compute or wait: each worker's threads followed by its event loop, and finally the scheduler. `clock` has the
    next moment of each waiting job, the next end of a job on each host, that of the first merge that fetches its
    inputs, and finally the next end of a reading; `heap` orders it, `place` is the index of each.
    """

    def __init__(self, setting: Setting, costs: Costs, tasks: Tasks, hosts: Hosts) -> None:
        self.setting, self.costs, self.streams = setting, costs, setting.streams
        self.chunks, self.workers, self.threads = setting.chunks, setting.workers, setting.threads
        self.before, self.read, self.wait, self.after = tasks.before, tasks.read, tasks.wait, tasks.after
        self.parent, self.missing = tasks.parent, tasks.missing
        self.cores, self.others, self.first_job = hosts.cores, hosts.others, hosts.first_job
        count, jobs, places, workers = len(tasks.before), int(hosts.first_job[-1]), len(hosts.cores), setting.workers
        # of each job
        self.target = np.full(jobs, INFINITY)
        self.began, self.pending = np.zeros(jobs), np.zeros(jobs)
        self.task, self.stage, self.host = np.full(jobs, NOTHING), np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
        self.turns_left = np.zeros(jobs, np.int64)
        for host in range(places):
            self.host[hosts.first_job[host] : hosts.first_job[host + 1]] = host
        # of each worker
        self.idle, self.turn = np.full(workers, setting.threads), np.full(workers, NOTHING)
        self.held, self.ready = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        # 0: warm; 1 to 3: its first task is about to compute, to wait, to compute again; from then on one per turn
        self.cold = np.ones(workers, np.int64)
        # the chunks held by each worker, then the merges
        self.head, self.tail = np.full(2 * workers, NOTHING), np.full(2 * workers, NOTHING)
        self.following = np.full(count, NOTHING)
        # of each host
        self.virtual, self.last, self.active = np.zeros(places), np.zeros(places), np.zeros(places, np.int64)
        # ends not yet handled by the scheduler, and merges that fetch their inputs
        self.ended, self.ended_on = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.merging, self.merging_on = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.merging_at = np.zeros(count)
        # moments
        self.merge_clock, self.storage_clock = jobs + places, jobs + places + 1
        clocks = self.storage_clock + 1
        self.clock, self.heap, self.place = np.full(clocks, INFINITY), np.arange(clocks), np.arange(clocks)
        # readers, as a heap by what storage will have served to each stream when they end
        self.reader, self.served_to = np.full(jobs, NOTHING), np.zeros(jobs)
        self.readers, self.served, self.served_at = 0, 0.0, 0.0
        self.next_chunk = self.ready_chunks = self.done = 0
        self.ended_first = self.ended_last = self.merging_first = self.merging_last = 0
        self.computing = self.computed = self.scheduling = self.reading = 0.0

    # cores of a host

    def _advance(self, host: int, time: float) -> None:
        """Let a host compute until now: each job gets the same."""
        if self.active[host] > 0:
            self.virtual[host] += (time - self.last[host]) * self._share(host)
        self.last[host] = time

    def _share(self, host: int) -> float:
        """Computed seconds per second for each job of a host."""
        jobs: int = self.active[host]
        cores: float = self.cores[host]
        others: float = self.others[host]
        if others >= cores:
            return self._rate((jobs + others) / cores)
        # others that need less than all cores come and go: a job on each core for a share of the time
        share = others / cores
        return (1.0 - share) * self._rate(jobs / cores) + share * self._rate(jobs / cores + 1.0)

    def _rate(self, load: float) -> float:
        """Computed seconds per second for each of so many jobs per core."""
        return 1.0 if load <= 1.0 else 1.0 / (load * (1.0 + self.costs.crowded * math.log2(load)))

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
        """Start computing."""
        host = self.host[job]
        self._advance(host, time)
        self.target[job] = self.virtual[host] + seconds
        self.active[host] += 1
        self.began[job] = time
        self._look_ahead(host)

    def _take_core(self, job: int, seconds: float, time: float) -> None:
        """Compute, or queue if the threads of the process share one interpreter that is in use."""
        self.computed += seconds
        if self.setting.serial:
            worker = job // (self.threads + 1)
            self.pending[job] = seconds
            if self.turn[worker] != NOTHING:
                return
            self.turn[worker] = job
        self._compute(job, seconds, time)

    def _pass_turn(self, job: int, time: float) -> None:
        """Pass the interpreter to a waiting thread of the process."""
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

    def _step(self, job: int, time: float) -> None:
        """Take a task to its next stage, skipping those without time."""
        worker, task, turns = job // (self.threads + 1), self.task[job], self.setting.turns
        if self.stage[job] == STARTING:
            seconds = self.before[task]
            if self.cold[worker] == 1:
                seconds += self.costs.cold_before
                self.cold[worker] = 2
            self.stage[job], self.turns_left[job] = BEFORE, turns
            if seconds > 0.0:
                self._take_core(job, seconds, time)
                return
        while self.turns_left[job] > 0:
            if self.stage[job] == BEFORE:
                self.stage[job] = READING
                if self.read[task] > 0.0:
                    self._read(job, self.read[task] / turns, time)
                    return
            if self.stage[job] == READING:
                seconds = self.wait[task] / turns
                if self.cold[worker] == 2:
                    seconds += self.costs.cold_wait
                    self.cold[worker] = 3
                self.stage[job] = WAITING
                if seconds > 0.0:
                    self._set_clock(job, time + seconds)
                    return
            if self.stage[job] == WAITING:
                seconds = self.after[task] / turns
                if self.cold[worker] >= 3:
                    # what is loaded when it is first used is spread over the turns
                    seconds += self.costs.cold_after / turns
                    self.cold[worker] = (self.cold[worker] + 1) % (3 + turns)
                self.stage[job] = AFTER
                if seconds > 0.0:
                    self._take_core(job, seconds, time)
                    return
            self.stage[job] = BEFORE
            self.turns_left[job] -= 1
        self._end(job, time)

    def _end(self, job: int, time: float) -> None:
        """End a task: tell the scheduler, and continue with what the worker holds."""
        worker, task = job // (self.threads + 1), self.task[job]
        self.task[job] = NOTHING
        self.ended[self.ended_last], self.ended_on[self.ended_last] = task, worker
        self.ended_last += 1
        self._take_note(time)
        loop = worker * (self.threads + 1) + self.threads
        self.pending[loop] += self.costs.own
        self._loop(loop, time)
        self.idle[worker] += 1
        self._go_on(worker, time, self.costs.gap)

    def _loop(self, loop: int, time: float) -> None:
        """Run an event loop if it has work and is idle."""
        if self.target[loop] == INFINITY and self.pending[loop] > 0.0:
            seconds = self.pending[loop]
            self.pending[loop] = 0.0
            self._compute(loop, seconds, time)

    def _go_on(self, worker: int, time: float, delay: float) -> None:
        """Let free threads of a worker start what it holds: chunks, then merges."""
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
        """Let a free thread of a worker start a task at a later time."""
        first = worker * (self.threads + 1)
        for job in range(first, first + self.threads):
            if self.task[job] == NOTHING:
                self.idle[worker] -= 1
                self.task[job], self.stage[job] = task, STARTING
                self._set_clock(job, time)
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

    def _take_note(self, time: float) -> None:
        """Let the scheduler handle the next end of a task if it is idle."""
        scheduler = len(self.task) - 1
        if self.target[scheduler] == INFINITY and self.ended_first < self.ended_last:
            self.scheduling += self.costs.scheduler
            self._compute(scheduler, self.costs.scheduler, time)

    def _react(self, time: float) -> None:
        """Let the scheduler react to the end of a task."""
        task, worker = self.ended[self.ended_first], self.ended_on[self.ended_first]
        self.ended_first += 1
        self.held[worker] -= 1
        self.done += 1
        merge = self.parent[task]
        if merge != NOTHING:
            self.missing[merge] -= 1
            if self.missing[merge] == 0:
                self._send_merge(merge, worker, time)
        # it assigns chunks to a worker up to its limit
        while self.held[worker] < self.setting.limit and self.next_chunk < self.chunks:
            self._assign(worker, time)
        if self.idle[worker] > 0:
            self._steal(worker, time)
        self._take_note(time)

    def _send_merge(self, merge: int, worker: int, time: float) -> None:
        """Assign a merge; its inputs arrive after a while, like those of earlier ones."""
        self.held[worker] += 1
        at = self.merging_last
        self.merging[at], self.merging_on[at] = merge, worker
        self.merging_at[at] = time + self.costs.latency + self.setting.fetch
        self.merging_last += 1
        if at == self.merging_first:
            self._set_clock(self.merge_clock, self.merging_at[at])

    def _merge_is_ready(self, time: float) -> None:
        at = self.merging_first
        self.merging_first += 1
        later = self.merging_at[at + 1] if at + 1 < self.merging_last else INFINITY
        self._set_clock(self.merge_clock, later)
        worker = self.merging_on[at]
        self._hold(self.workers + worker, self.merging[at])
        self._go_on(worker, time, 0.0)

    def _assign(self, worker: int, time: float) -> None:
        """Assign the next chunk to a worker."""
        task = self.next_chunk
        self.next_chunk += 1
        self.held[worker] += 1
        self._hold(worker, task)
        self.ready[worker] += 1
        self.ready_chunks += 1
        self._go_on(worker, time, self.costs.latency)

    def _steal(self, thief: int, time: float) -> None:
        """Take chunks from the worker that holds the most unstarted ones."""
        while self.idle[thief] > 0 and self.ready_chunks > 0:
            victim = int(np.argmax(self.ready))
            task = self.head[victim]
            self.head[victim] = self.following[task]
            self.ready[victim] -= 1
            self.ready_chunks -= 1
            self.held[victim] -= 1
            self.held[thief] += 1
            self._occupy(thief, task, time + self.costs.steal)

    # the whole

    def until_done(self) -> Outcome:
        """Run until the scheduler has handled the last task."""
        # each worker gets its first tasks in turn
        for _ in range(self.setting.limit):
            for worker in range(self.workers):
                if self.next_chunk < self.chunks:
                    self._assign(worker, 0.0)
            if self.next_chunk == self.chunks:
                break
        jobs, time = len(self.task), 0.0
        while self.done < len(self.before):
            which = self.heap[0]
            time = self.clock[which]
            if which < jobs:
                self._set_clock(which, INFINITY)
                self._step(which, time)
            elif which == self.merge_clock:
                self._merge_is_ready(time)
            elif which == self.storage_clock:
                self._step(self._first_reader(time), time)
            else:
                self._job_ends(which - jobs, time)
        return Outcome(time, self.computing, self.computed, self.scheduling, self.reading)

    def _job_ends(self, host: int, time: float) -> None:
        """Continue after a job of a host has finished computing."""
        self._advance(host, time)
        job = self._first_job(host)
        self.target[job] = INFINITY
        self.active[host] -= 1
        self._look_ahead(host)
        if job == len(self.task) - 1:
            self._react(time)
        elif job % (self.threads + 1) == self.threads:
            self._loop(job, time)
        else:
            self.computing += time - self.began[job]
            if self.setting.serial:
                self._pass_turn(job, time)
            self._step(job, time)
