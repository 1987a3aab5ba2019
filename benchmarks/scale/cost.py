"""What measuring costs at the size of a data challenge: 2000 workers and 1,000,000 chunks with their merges.

The plugin on the scheduler is fed by stand-ins for the scheduler and its states, the client by what the plugin wrote;
each part has a process of its own. Seconds are printed with the CPU time of the process, which another program on the
machine changes less. How much of a scheduler's CPU time is ours is measured on a real one as well.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks.page import forgotten, memory
from benchmarks.scheduler import (
    ANNOTATIONS,
    BEGINNING,
    CALL,
    PREFIX,
    THREADS,
    Load,
    chunk_record,
    times_of_tasks,
)

from roastcoffea.backends import attempts, scheduler, workers
from roastcoffea.backends.deployment import DRAIN_BYTES
from roastcoffea.backends.replayed import ReplayedCluster
from roastcoffea.log.journal import LOG
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.log.writer import BLOCK, LOG_CAP
from roastcoffea.measurement import Measurement, load
from roastcoffea.recording.assembly import RunRecords
from roastcoffea.records.run import FINISHED, RunnerCall

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


class Figure(NamedTuple):
    """A figure, with what it has to stay below; None for no goal."""

    name: str
    amount: float
    unit: str
    goal: float | None = None
    note: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether the goal is missed."""
        return self.goal is not None and self.amount > self.goal

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"goal {self.goal:g}: {'MISSED' if self.is_missed else 'kept'}"
        return f"  {self.name:<44}{self.amount:10.3f} {self.unit:<7}{goal:<20}{self.note}".rstrip()


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
    attempts.time = workers.time = scheduler.time = clock  # type: ignore[assignment]
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
        spent = timed_calls(cluster.scheduler.plugins[collector.topic])
        mark = {"collectors": [collector.topic], "step": "processing", "prefix": "add"}
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


# The client


@dataclass(frozen=True)
class Item:
    """What coffea gives an executor for a chunk."""

    dataset: str
    filename: str
    treename: str
    entrystart: int
    entrystop: int
    fileuuid: bytes
    usermeta: Any = None


def on_client(size: Load, folder: Path) -> list[Figure]:
    """Take what was drained, piece by piece; leave; save."""
    pieces = pickle.loads((folder / "pieces").read_bytes())
    backend, records = ReplayedCluster(), RunRecords("0123abcd", "cost", PATIENCE, profile=False)
    records.started(BEGINNING)
    records.call_began(CALL)
    asked = watched(lambda: records.items_requested(CALL, [*items(size.tasks)]))
    costs = []
    with (folder / "log").open("rb") as file:
        for piece in pieces:
            data = file.read(piece)
            costs.append(timed(lambda data=data: backend.take(LOG, data)))
    stop = BEGINNING + len(pieces)
    backend.learn({"recorded": True, "hosts": [], "problems": [], **FACTS})
    call = RunnerCall(
        id=CALL,
        processor=PREFIX,
        executor="DaskExecutor",
        start=BEGINNING,
        stop=stop,
        outcome=FINISHED,
        chunks=size.tasks,
    )
    records.call_ended(call)
    runs: list[Any] = []
    leaving = watched(lambda: runs.append(records.run(backend, BEGINNING, stop, (FINISHED, None))))
    measurement = Measurement(runs[0])
    computing = watched(lambda: len(measurement.metrics))
    saving = watched(lambda: measurement.save(folder, "run"))
    assert len(runs[0].chunks) == size.tasks, len(runs[0].chunks)
    speed = size.seconds * RATE / size.tasks
    return [
        Figure("unpacking", sum(cost.seconds for cost in costs), "s", None, f"CPU {sum(c.cpu for c in costs):.1f} s"),
        Figure("lag of the client's drains", lag(costs, PATIENCE), "s", 5, f"in {size.seconds} s"),
        Figure(f"the same at {RATE} chunks/s", lag(costs, PATIENCE / speed), "s", 5, "all that a scheduler can do"),
        Figure("noting what was requested", asked.seconds, "s", None, asked.note),
        Figure("leaving", leaving.seconds, "s", 0.1 + 1e-6 * size.tasks, leaving.note),
        Figure("metrics and ledger of the new run", computing.seconds, "s", None, computing.note),
        Figure("saving", saving.seconds, "s", 10, f"{saving.note}, {size_of(folder / 'run') / MEGABYTE:.0f} MB"),
        Figure("problems", len(runs[0].problems), "", None, "; ".join(runs[0].problems)),
    ]


RATE: Final = 900
"""Chunks per second that Dask's scheduler can do."""
FACTS: Final = {"clock_offset": 0.0, "dropped": {}, "refused": 0, "failures": 0, "withheld": {}, "asked": {}}


def items(chunks: int) -> Iterator[Item]:
    """Chunks as an executor gets them, which are those of the records."""
    for number in range(chunks):
        yield Item(*place_of(number), number.to_bytes(16, "big"))


def place_of(number: int) -> tuple[str, str, str, int, int]:
    """Dataset, file, tree and entries of a chunk, as in its record."""
    dataset = ("TTToSemiLeptonic_UL18", "QCD_UL18", "SingleMuon_2018A")[number % 3]
    file = f"root://storage.example.org//store/mc/NanoAODv9/{number // 10:06d}.root"
    begin = 100_000 * (number % 10)
    return dataset, file, "Events", begin, begin + 100_000


def lag(costs: Sequence[Timed], interval: float) -> float:
    """The most by which a client is behind that takes a piece each interval."""
    done = most = 0.0
    for number, cost in enumerate(costs):
        done = max(done, number * interval) + cost.seconds
        most = max(most, done - number * interval)
    return most


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


# The measurement


def of_measurement(folder: Path) -> list[Figure]:
    """Load, compute, and make the page."""
    found: list[Measurement] = []
    loading = watched(lambda: found.append(load(folder / "run")))
    (measurement,) = found
    computing = watched(lambda: len(measurement.metrics))
    ledger, merges = measurement.time_ledger, measurement.merges
    path = folder / "page.html"
    page = watched(lambda: measurement.report(path))
    levels = ", ".join(f"{row.merges} of {row.inputs / row.merges:.3g} inputs" for row in merges.itertuples())
    return [
        Figure("loading", loading.seconds, "s", 3, loading.note),
        Figure("metrics and ledger", computing.seconds, "s", 8, computing.note),
        Figure("  memory, with the run", computing.peak, "GB", 1.5),
        Figure("page", page.seconds, "s", 15, page.note),
        Figure("  memory beyond the run", page.grown, "GB", 0.6),
        Figure("  size", path.stat().st_size / MEGABYTE, "MB", 4),
        Figure("residual of the ledger", abs(ledger.residual or 0.0) / (ledger.total or 1.0), "", 0.001),
        Figure("levels of merges", len(merges), "", None, levels),
        Figure("merged", float(merges["input_bytes"].sum()) / MEGABYTE, "MB"),
    ]


class Watched(NamedTuple):
    """Seconds, CPU time, peak memory and growth (GB) of some work."""

    seconds: float
    cpu: float
    peak: float
    grown: float

    @property
    def note(self) -> str:
        return f"CPU {self.cpu:.1f} s, peak {self.peak:.2f} GB"


class Timed(NamedTuple):
    """Seconds and CPU time of some work."""

    seconds: float
    cpu: float


def timed(work: Callable[[], Any]) -> Timed:
    """Time some work of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Timed(time.perf_counter() - began, time.process_time() - cpu)


def watched(work: Callable[[], Any]) -> Watched:
    """Measure some work of this process, and its memory."""
    before = forgotten()
    seconds, cpu = timed(work)
    peak = memory("VmHWM")
    return Watched(seconds, cpu, peak, peak - before)


def apart(function: Callable[..., list[Figure]], *arguments: Any) -> list[Figure]:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(given: Sequence[str] | None = None) -> int:
    """Print each figure with its goal; the exit status is 1 where one was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2000, help="with four threads each (default 2000)")
    parser.add_argument("--chunks", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--seconds", type=int, default=3600, help="of the run (default 3600)")
    parser.add_argument("--tasks", type=int, default=5000, help="of the real scheduler (default 5000)")
    options = parser.parse_args(given)
    threads = options.workers * THREADS
    size = Load(options.workers, options.seconds, options.chunks // threads * threads, HEARTBEAT)
    began = time.perf_counter()
    print(f"{size.tasks:,} chunks on {size.workers:,} workers; {os.getloadavg()[0]:.1f} processes want a core")
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, part in (
            ("a real scheduler", lambda: apart(share_of_real_scheduler, options.tasks)),
            ("scheduler", lambda: apart(on_scheduler, size, folder)),
            ("client", lambda: apart(on_client, size, folder)),
            ("measurement", lambda: apart(of_measurement, folder)),
        ):
            figures = part()
            print(f"{title}\n" + "\n".join(map(str, figures)), flush=True)
            found += figures
    missed = [figure.name.strip() for figure in found if figure.is_missed]
    print(f"{time.perf_counter() - began:.0f} s; {'MISSED: ' + ', '.join(missed) if missed else 'all goals are kept'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
