"""Inputs and outputs of a simulation by name, in structures that compiled code supports."""

from __future__ import annotations

from typing import Final, NamedTuple

from roastcoffea.metrics.statistics import Integers, Numbers

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
