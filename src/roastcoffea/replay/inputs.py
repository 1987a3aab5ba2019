"""What a simulation takes and gives, by name: it is handed to compiled code, which knows no other structures."""

from __future__ import annotations

from typing import Final, NamedTuple

from roastcoffea.metrics.statistics import Integers, Numbers

NOTHING: Final = -1
"""In place of a task, a merge or a job where there is none."""

STEAL_SECONDS: Final = 0.05
"""Until a worker without work gets some of another's: Dask looks each 0.1 s."""


class Costs(NamedTuple):
    """What Dask and the start of processes add, in seconds.

    `gap` lies between two tasks of a thread, `latency` between an assignment and its start where a thread is free; the
    scheduler takes `scheduler` CPU for each task, the event loop of a worker `own` for one that has a core to itself.
    `cold_cpu` and `cold_wait` are what the first task of a process takes more. `crowded` is no time: so much more CPU
    time the same work takes for each doubling of the jobs on a core.
    """

    gap: float = 0.0
    latency: float = 0.0
    scheduler: float = 0.0
    own: float = 0.0
    cold_cpu: float = 0.0
    cold_wait: float = 0.0
    steal: float = STEAL_SECONDS
    crowded: float = 0.0


class Setting(NamedTuple):
    """Size of a simulation: `chunks` on `workers` of so many `threads`.

    A worker holds `limit` tasks at most. A merge has its inputs `fetch` seconds after it was assigned. With `serial`
    the threads of a process compute one after the other.
    """

    chunks: int
    workers: int
    threads: int
    limit: int
    fetch: float
    serial: bool


class Tasks(NamedTuple):
    """Chunks in the order of their priority, then merges.

    `before`, `wait` and `after` are seconds of each: CPU, waiting, CPU. `parent` is the merge that takes its result, or
    -1; `missing` counts the results that a merge takes.
    """

    before: Numbers
    wait: Numbers
    after: Numbers
    parent: Integers
    missing: Integers


class Hosts(NamedTuple):
    """Hosts with their `cores`; the jobs of each lie between its `first_job` and the next one's."""

    cores: Numbers
    first_job: Integers


class Outcome(NamedTuple):
    """What came of a simulation, in seconds.

    `wall` is when the scheduler knows of the last task. Tasks were `computing` for what they would have `computed` with
    a core each; the scheduler was at work while `scheduling`.
    """

    wall: float
    computing: float
    computed: float
    scheduling: float
