"""What the plugin costs a scheduler with 2000 workers and 1,000,000 chunks, fed by stand-ins, and a real one.

The plugin is drained each second into a file, which stands for what a client gets.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks.scale.figures import Figure
from benchmarks.scheduler import ANNOTATIONS, BEGINNING, PREFIX, Load, chunk_record, times_of_tasks

from roastcoffea.backends import attempts, scheduler
from roastcoffea.backends.deployment import DRAIN_BYTES
from roastcoffea.log.kinds import BLOCK, LOG_CAP
from roastcoffea.log.marks import METADATA_KEY

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from stand_ins import NAME, Scheduler, Task, started_plugin

TREE: Final = 20
"""Results of a merge, as coffea's `treereduction`."""
MERGE_SECONDS: Final = 0.05
HEARTBEAT: Final = 11
"""Seconds between heartbeats that Dask asks 2000 workers for."""
LOOKS: Final = 8
"""How often what the plugin holds is counted."""
MOST_DROPPED: Final = 10_000
"""Rows dropped for lack of a client after which the log is as large as it gets."""
PATIENCE: Final = 1.0
"""Seconds between drains."""
MEGABYTE: Final = 1e6


class Clock:
    """Stands for the module `time`: the plugin reads the time of the run, a number of its own each time."""

    def __init__(self) -> None:
        self.now = BEGINNING

    def time(self) -> float:
        return self.now + 0.0


# The plan: chunks, and merges of their results


class Plan(NamedTuple):
    """Tasks with their moments, in seconds of the run; merges come after the chunks."""

    chunks: int
    moments: np.ndarray[Any, Any]
    """Assigned, arrived, ready, started, stopped and seen, by task."""
    worker: np.ndarray[Any, Any]
    inputs: list[range]
    """Tasks that each merge merges."""
    levels: list[int]
    """Merges of each level."""


def plan_of(load: Load) -> Plan:
    """Chunks one after the other on each thread, and a tree of merges of those that followed each other."""
    times = times_of_tasks(load)
    moments, worker = [times[:, :6]], [times[:, 6].astype(np.int64)]
    inputs: list[range] = []
    levels: list[int] = []
    first, number = 0, len(times)
    while number > 1:
        groups = [range(at, min(at + TREE, first + number)) for at in range(first, first + number, TREE)]
        seen = np.concatenate(moments)[first:, 5]
        ready = np.array([seen[group.start - first : group.stop - first].max() for group in groups]) + 0.002
        steps = np.array([0.0, 0.001, 0.002, 0.003, 0.003 + MERGE_SECONDS, 0.006 + MERGE_SECONDS])
        moments.append(ready[:, None] + steps)
        worker.append(np.concatenate(worker)[[group.start for group in groups]])
        inputs += groups
        levels.append(len(groups))
        first, number = first + number, len(groups)
    return Plan(len(times), np.concatenate(moments), np.concatenate(worker), inputs, levels)


def tasks_of(plan: Plan, of_workers: Sequence[Any]) -> list[Task]:
    """All tasks; the record of a chunk is added when it ends."""
    found: list[Task] = []
    for number, worker in enumerate(plan.worker.tolist()):
        merge = number - plan.chunks
        dependencies = tuple(found[plan.inputs[merge].start : plan.inputs[merge].stop]) if merge >= 0 else ()
        prefix = PREFIX if merge < 0 else "reduce"
        task = Task(key=f"{prefix}-{number:032x}", worker=of_workers[worker], prefix_name=prefix, run_id=number)
        task.annotations, task.dependencies, task.nbytes = ANNOTATIONS, dependencies, 40_000 + number % 1000
        found.append(task)
    return found


# The scheduler


def on_scheduler(size: Load, folder: Path) -> list[Figure]:
    """Feed the plugin, drain it each second into a file, and tell what it took and held."""
    plan, clock = plan_of(size), Clock()
    attempts.time = scheduler.time = clock  # type: ignore[assignment]
    stand_in = Scheduler(size.workers)
    tasks = tasks_of(plan, [*stand_in.workers.values()])
    stand_in.tasks = {task.key: task for task in tasks}
    plugin = started_plugin(stand_in)  # type: ignore[arg-type]
    plugin.interval = PATIENCE
    spent = {"transitions": 0.0, "samples": 0.0, "drains": 0.0}
    theirs = {
        id(each) for each in (stand_in, stand_in.tasks, clock, *tasks, *stand_in.tasks, *stand_in.workers.values())
    }
    spent["transitions"] += cpu_of(lambda: queue(plugin, tasks, plan.chunks))
    held, log_peak, pieces = [held_by(plugin, theirs)], 0, []
    with (folder / "log").open("wb") as file:
        for second, calls in enumerate(calls_of(plan, tasks)):
            spent["transitions"] += cpu_of(lambda calls=calls: make(plugin, clock, calls))
            for place, worker in enumerate(stand_in.workers.values()):
                if place % HEARTBEAT == second % HEARTBEAT:
                    worker.beat(BEGINNING + second, place)
            clock.now = BEGINNING + second + 1
            spent["samples"] += cpu_of(lambda second=second: plugin.tick(second + 1, 0.0, 0))
            log_peak = max(log_peak, plugin.log.size)
            before, began = file.tell(), time.thread_time()
            drain(plugin, file)
            spent["drains"] += time.thread_time() - began
            pieces.append(file.tell() - before)
            if second % (size.seconds // LOOKS) == 0:
                held.append(held_by(plugin, theirs))
    (folder / "pieces").write_bytes(pickle.dumps(pieces))
    never = log_without_client(plan, tasks, plugin, clock)
    ours = sum(spent.values())
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
    assert plugin.problems.failures == 0
    return [
        Figure("log, drained each second", log_peak / MEGABYTE, "MB", LOG_CAP / MEGABYTE),
        Figure("log, never drained", never / MEGABYTE, "MB", (LOG_CAP + BLOCK) / MEGABYTE),
        Figure("all else of ours", max(held) / MEGABYTE, "MB", 86, f"all chunks queued {held[0] / MEGABYTE:.0f} MB"),
        Figure("CPU of ours in the run", 100 * ours / size.seconds, "%", 5, parts),
        Figure("CPU of ours for a task", 1e6 * ours / len(tasks), "us"),
    ]


def queue(plugin: Any, tasks: Sequence[Task], chunks: int) -> None:
    """The graph arrives: all chunks are runnable, and wait for a worker."""
    for task in tasks[:chunks]:
        plugin.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
        plugin.transition(task.key, "waiting", "queued", stimulus_id="update-graph-1")
    for task in tasks[chunks:]:
        plugin.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")


Call = tuple[float, str, str, str, dict[str, Any]]


def calls_of(plan: Plan, tasks: Sequence[Task]) -> Iterator[list[Call]]:
    """For each second, the transitions of that time with their moments."""
    moments = np.concatenate([plan.moments[:, 0], plan.moments[:, 5]])
    order = np.argsort(moments, kind="stable")
    ends = np.searchsorted(moments[order], np.arange(1, int(moments.max()) + 2))
    for begin, end in pairwise([0, *ends.tolist()]):
        yield [call for place in order[begin:end].tolist() for call in call_at(plan, tasks, place, moments[place])]


def call_at(plan: Plan, tasks: Sequence[Task], place: int, moment: float) -> Iterator[Call]:
    number = place % len(tasks)
    task, at = tasks[number], BEGINNING + moment
    if place < len(tasks):
        task.worker.processing[task.key] = 1.0
        yield at, task.key, "queued" if number < plan.chunks else "waiting", "processing", {}
        return
    _, arrived, ready, start, stop, _ = plan.moments[number].tolist()
    task.start, task.stop = BEGINNING + start, BEGINNING + stop
    task.metadata = {NAME: [BEGINNING + arrived, BEGINNING + ready, BEGINNING + start, 0.0]}
    if number < plan.chunks:
        task.metadata[METADATA_KEY] = chunk_record(number, start, stop, task.worker.address)
    task.worker.processing.pop(task.key, None)
    yield at, task.key, "processing", "memory", task.told()
    task.metadata = {}


def make(plugin: Any, clock: Clock, calls: Iterable[Call]) -> None:
    """Make these transitions."""
    for moment, key, start, finish, told in calls:
        clock.now = moment
        plugin.transition(key, start, finish, stimulus_id="s", **told)


def drain(plugin: Any, file: Any) -> None:
    more = True
    while more:
        answer = plugin.drain(DRAIN_BYTES, plugin.log.given)
        file.write(answer["data"])
        more = answer["more"]


def log_without_client(plan: Plan, tasks: Sequence[Task], plugin: Any, clock: Clock) -> int:
    """The most that the log holds if nobody drains it while tasks end once more, until it has dropped some of them."""
    most = 0
    while sum(plugin.log.dropped.values()) < MOST_DROPPED:
        for calls in calls_of(plan, tasks):
            make(plugin, clock, calls)
            most = max(most, plugin.log.size)
            if sum(plugin.log.dropped.values()) >= MOST_DROPPED:
                break
    return most


def cpu_of(work: Callable[[], Any]) -> float:
    """CPU time of this thread for some work."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def held_by(plugin: Any, theirs: set[int]) -> int:
    """Bytes of all objects that the plugin holds, without the scheduler's and without the log's entries."""
    known, total = {*theirs, id(plugin.log)}, 0
    waiting = [plugin]
    while waiting:
        one = waiting.pop()
        if id(one) in known or isinstance(one, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            continue
        known.add(id(one))
        total += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return total


def share_of_real_scheduler(tasks: int) -> list[Figure]:
    """Part of the CPU time of a real scheduler that its plugin takes, in a run of tasks without work."""
    from operator import add

    import dask
    from distributed import Client, LocalCluster, wait

    from roastcoffea import MetricsCollector
    from roastcoffea.log.marks import ANNOTATION

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
        MetricsCollector(client) as collector,
    ):
        spent = timed_calls(cluster.scheduler.plugins[collector._watcher.topic])
        mark = {"collectors": [collector._watcher.topic], "step": "processing", "prefix": "add"}
        with dask.annotate(**{ANNOTATION: mark}):
            wait(client.map(add, range(tasks), range(tasks), pure=False))
    whole = collector.measurement.metrics["scheduler_cpu_seconds"]
    note = f"{1e6 * spent[0] / tasks:.0f} of {1e6 * whole / tasks:.0f} us a task; the client shares its event loop"
    return [Figure("part of a real scheduler's CPU", 100 * spent[0] / whole, "%", 5, note)]


def timed_calls(plugin: Any) -> list[float]:
    """Have a plugin count the CPU time of its calls."""
    spent = [0.0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                spent[0] += time.thread_time() - began

        return call

    for name in ("transition", "log_event", "drain", "tick"):
        setattr(plugin, name, timed(getattr(plugin, name)))
    return spent
