"""What the scheduler's half costs per transition, and how a long run goes from the scheduler to its metrics.

The first part times each call of the plugin on the scheduler of a real cluster that runs many short tasks. The second
sends the tasks of an hour through recording, draining, unpacking, saving, loading, and the ledger with all metrics;
each has its seconds and its peak of memory. There the plugin is fed by stand-ins, and reads the clock of the run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from operator import add
from pathlib import Path
from typing import Any, Final

import dask
import numpy as np
from distributed import Client, LocalCluster, wait

from roastcoffea.backends import attempts
from roastcoffea.backends import scheduler as plugins
from roastcoffea.backends.deployment import DRAIN_BYTES
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.completeness import Losses, attempts_without_record, chunks_without_record
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.log.workers import ClusterLog
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import ASKED_COLUMNS, FINISHED, Environment, Run, RunnerCall
from roastcoffea.storage.store import load_run, save_run

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from stand_ins import NAME, SPAN, Scheduler, Task, started_plugin

BEGINNING: Final = 1_700_000_000.0
MOST_PER_TRANSITION: Final = 15.0
"""Microseconds that a transition may take in the median."""

MOST_SECONDS: Final = 8.0
MOST_MEMORY: Final = 1.5e9
"""What ledger and metrics may take of 1,000,000 tasks."""

THREADS: Final = 4
PREFIX: Final = "DijetProcessor"
CALL: Final = "fedcba9876543210" * 2
ANNOTATIONS: Final = {
    ANNOTATION: {"collectors": [NAME], "step": "processing", "prefix": PREFIX},
    "span": {"name": ("roastcoffea",), "ids": (SPAN,)},
}


def runner_call(stop: float, chunks: int) -> RunnerCall:
    """The only Runner call of a run."""
    return RunnerCall(
        id=CALL,
        processor=PREFIX,
        executor="DaskExecutor",
        start=BEGINNING,
        stop=stop,
        outcome=FINISHED,
        chunks=chunks,
    )


# The plugin on a real scheduler


def seconds_per_transition(tasks: int) -> dict[str, list[float]]:
    """Seconds of each call of the plugin, by what changed; the tasks are marked as the collector's own."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
        MetricsCollector(client) as collector,
    ):
        timed = timed_plugin(cluster.scheduler.plugins[collector._watcher.topic])
        mark = {"collectors": [collector._watcher.topic], "step": "processing", "prefix": "add"}
        with dask.annotate(**{ANNOTATION: mark}):
            wait(client.map(add, range(tasks), range(tasks), pure=False))
    return timed


def timed_plugin(plugin: Any) -> dict[str, list[float]]:
    """Have a plugin count what its transitions take."""
    found: dict[str, list[float]] = {}
    original = plugin.transition

    def transition(key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter_ns()
        original(key, start, finish, *args, **kwargs)
        found.setdefault(f"{start} to {finish}", []).append(1e-9 * (time.perf_counter_ns() - began))

    plugin.transition = transition
    return found


# A long run


@dataclass(frozen=True, slots=True)
class Load:
    """A run: every thread has one task after the other, every worker reports at this interval."""

    workers: int
    seconds: int
    tasks: int
    interval: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a step took: seconds, and the process's memory before it and at its peak."""

    name: str
    seconds: float
    before: int | None
    peak: int | None
    told: str = ""


class Clock:
    """Stands for the module `time`: the plugin reads the time of the run."""

    def __init__(self) -> None:
        self.now = BEGINNING

    def time(self) -> float:
        return self.now


class Watch:
    """Measures steps of this process; the mark of the highest memory is taken back before each one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, name: str, work: Callable[[], Any], told: Callable[[Any], str] = lambda _: "") -> Any:
        before = reset_peak()
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        self.steps.append(Step(name, seconds, before, peak_memory(), told(result)))
        return result


def reset_peak() -> int | None:
    """Forget the highest memory so far; give the memory now, None where the system cannot do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return status("VmRSS")


def peak_memory() -> int:
    """Highest memory of this process since it was last forgotten."""
    return status("VmHWM") or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), None)


def times_of_tasks(load: Load) -> np.ndarray[Any, Any]:
    """Row by row: assigned, arrived, ready, start, stop and seen of a task, and its worker; in seconds of the run."""
    random = np.random.default_rng(1)
    per_thread = load.tasks // (load.workers * THREADS)
    mean = 0.95 * load.seconds / per_thread
    duration = random.gamma(4.0, mean / 4.0, (load.workers * THREADS, per_thread))
    gap = random.exponential(0.005, duration.shape)
    stop = 5.0 + np.cumsum(duration + gap, axis=1)
    scale = np.minimum((load.seconds - 5.0) / stop[:, -1:], 1.0)
    duration, stop = duration * scale, stop * scale
    start = (stop - duration).ravel()
    worker = np.repeat(np.arange(load.workers), THREADS * per_thread)
    # Dask has one task more on a worker than it has threads
    assigned = np.maximum(start - 1.0, 4.0 + 0.9 * random.random(len(start)))
    columns = [assigned, assigned + 0.001, assigned + 0.002, start, stop.ravel(), stop.ravel() + 0.003, worker]
    return np.stack(columns, axis=1)


def chunk_record(number: int, start: float, stop: float, worker: str) -> bytes:
    """Record of a chunk, about as a worker packs it; its branches are left out."""
    wall = stop - start - 0.001
    parts = {
        "open": 0.05,
        "build": 0.05,
        "read": 0.2,
        "decompress": 0.1,
        "interpret": 0.1,
        "compute": 0.4,
        "wait": 0.05,
    }
    phases = {f"{name}_seconds": part * wall for name, part in parts.items()} | {"checkpoint_seconds": 0.0}
    sizes = {"bytes_requested": 4_000_000 + number, "bytes_payload": 3_500_000, "bytes_metadata": 500_000}
    memory = dict.fromkeys(("memory_before", "memory_after", "memory_peak"), 2_000_000_000 + number)
    record = {
        "id": number,
        "dataset": ("TTToSemiLeptonic_UL18", "QCD_UL18", "SingleMuon_2018A")[number % 3],
        "file": f"root://storage.example.org//store/mc/NanoAODv9/{number // 10:06d}.root",
        "tree": "Events",
        "uuid": f"{number // 10:032x}",
        "worker": worker,
        "thread": 140_000_000_000_000 + number % THREADS,
        "key": f"{PREFIX}-{number:032x}",
        "run_id": number,
        "call": CALL,
        "outcome": "ok",
        "start": BEGINNING + start,
        "stop": BEGINNING + start + wall,
        "wall_seconds": wall,
        "cpu_seconds": 0.6 * wall,
        "helper_cpu_seconds": 0.0,
        "process_cpu_seconds": 2.0 * wall,
        "process_seconds": 0.85 * wall,
        "result_seconds": 0.05 * wall,
        "entry_start": 100_000 * (number % 10),
        "entry_stop": 100_000 * (number % 10 + 1),
        "events": 100_000,
        "overlaps": 3,
    }
    return packed_records([record | phases | sizes | memory])


def recorded(load: Load, folder: Path) -> list[Step]:
    """Recording and draining; what was drained is in files."""
    times = times_of_tasks(load)
    clock = attempts.time = plugins.time = Clock()
    scheduler = Scheduler(load.workers)
    before = reset_peak()
    plugin = started_plugin(scheduler)
    spent = {"transitions": 0.0, "samples": 0.0, "draining": 0.0}
    drained = 0
    with (folder / "log").open("wb") as log:
        for second, events in enumerate(seconds_of(times, scheduler, load)):
            spent["transitions"] += timed(lambda events=events: run_events(plugin, scheduler, clock, events))
            if second % load.interval == 0:
                scheduler.beat(BEGINNING + second)
                spent["samples"] += timed(plugin.sample)
            spent["draining"] += timed(lambda: log.write(whole_log(plugin)))
        drained = log.tell()
    assert (plugin.log.dropped, plugin.problems.failures) == ({}, 0)
    told = {
        "transitions": f"{1e6 * spent['transitions'] / (3 * load.tasks):.1f} us each",
        "draining": f"{drained / 1e6:.0f} MB",
    }
    return [Step(name, seconds, before, peak_memory(), told.get(name, "")) for name, seconds in spent.items()]


Event = tuple[float, Task, bool]


def seconds_of(times: np.ndarray[Any, Any], scheduler: Scheduler, load: Load) -> Iterator[list[Event]]:
    """For each second of the run what happens in it, in order: tasks that begin and that end."""
    workers = list(scheduler.workers.values())
    moments = np.concatenate([times[:, 0], times[:, 5]])
    order = np.argsort(moments, kind="stable")
    ends = np.searchsorted(moments[order], np.arange(1, int(max(moments[order[-1]], load.seconds)) + 2))
    open_tasks: dict[int, Task] = {}
    begin = 0
    for end in ends:
        events = []
        for place in order[begin:end].tolist():
            number, ends_here = place % len(times), place >= len(times)
            if not ends_here:
                open_tasks[number] = task_of(number, times[number], workers)
            task = open_tasks.pop(number) if ends_here else open_tasks[number]
            events.append((moments[place], task, ends_here))
        begin = end
        yield events


def task_of(number: int, times: np.ndarray[Any, Any], workers: list[Any]) -> Task:
    _, arrived, ready, start, stop, _, worker = times.tolist()
    address = workers[int(worker)].address
    own = [BEGINNING + moment for moment in (arrived, ready, start)]
    record = chunk_record(number, start, stop, address)
    return Task(
        key=f"{PREFIX}-{number:032x}",
        worker=workers[int(worker)],
        run_id=number,
        annotations=ANNOTATIONS,
        metadata={METADATA_KEY: record, NAME: [*own, 0.0]},
        start=BEGINNING + start,
        stop=BEGINNING + stop,
        nbytes=number,
    )


def run_events(plugin: Any, scheduler: Scheduler, clock: Clock, events: list[Event]) -> None:
    """Tell the plugin of transitions: a task waits, is given to a worker, and is done."""
    for moment, task, ends in events:
        clock.now = BEGINNING + moment
        if ends:
            plugin.transition(task.key, "processing", "memory", stimulus_id="task-finished-1", **task.told())
            del scheduler.tasks[task.key]
        else:
            scheduler.tasks[task.key] = task
            plugin.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
            plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")


def whole_log(plugin: Any) -> bytes:
    """All that waits to be drained, in pieces as the client asks for them."""
    pieces = []
    more = True
    while more:
        answer = plugin.drain(DRAIN_BYTES, plugin.log.given)
        pieces.append(answer["data"])
        more = answer["more"]
    return b"".join(pieces)


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def unpacked(load: Load, folder: Path) -> list[Step]:
    """On the client: unpacking as it drains, tables at the end, saving."""
    watch = Watch()
    log = watch("unpacking", lambda: fed(folder / "log"))
    run = watch("tables", lambda: run_of(log, load))
    watch("comparing", lambda: compared(run), lambda problems: f"{len(problems)} problems")
    watch("saving", lambda: save_run(run, folder, "run"), lambda path: f"{size_of(path) / 1e6:.0f} MB on disk")
    return watch.steps


def fed(path: Path) -> ClusterLog:
    """A client's log that got these entries, in pieces that end where an entry ends."""
    from roastcoffea.log.kinds import HEADER_SIZE

    log = ClusterLog()
    with path.open("rb") as file:
        rest = b""
        while piece := file.read(DRAIN_BYTES):
            data = rest + piece
            at = 0
            while at + HEADER_SIZE <= len(data):
                after = at + HEADER_SIZE + int.from_bytes(data[at + 1 : at + HEADER_SIZE], "little")
                if after > len(data):
                    break
                at = after
            log.feed(data[:at])
            rest = data[at:]
    return log


def run_of(log: ClusterLog, load: Load) -> Run:
    stop = BEGINNING + load.seconds + 60
    lifetimes, samples, tasks = (
        log.workers.lifetimes(0.0, BEGINNING, stop),
        log.workers.samples(0.0),
        log.attempts.table(0.0),
    )
    chunks = log.received.chunks({CALL})
    call = runner_call(stop, len(chunks))
    return Run(
        id="0123abcd",
        name=None,
        start=BEGINNING,
        stop=stop,
        outcome=FINISHED,
        error=None,
        backend="dask",
        environment=Environment(versions={}, client_host=None),
        calls=(call,),
        chunks=chunks,
        branch_reads=log.received.branch_reads(chunks),
        sections=log.received.sections(chunks),
        preprocessing=log.received.preprocessing(),
        tasks=tasks,
        samples=samples,
        lifetimes=lifetimes,
        pauses=log.workers.pauses(0.0, BEGINNING, stop),
        span_metrics={},
    )


def compared(run: Run) -> list[str]:
    """What leaving says of chunks and attempts without a record."""
    asked = table_of_rows(ASKED_COLUMNS, [])
    of_chunks = chunks_without_record(run.calls, run.chunks, asked, Losses(equal_run_once=True))
    return [*of_chunks, *attempts_without_record(run.tasks, run.chunks)]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def computed(folder: Path) -> list[Step]:
    """Loading, the ledger with all metrics, and a timeline."""
    watch = Watch()
    run = watch("loading", lambda: load_run(folder / "run"), lambda run: f"{len(run.tasks):,} tasks")
    measurement = Measurement(run)
    watch("ledger and metrics", lambda: len(measurement.metrics), lambda number: f"{number} metrics")
    ledger, missing = measurement.time_ledger, len(measurement.metrics.missing)
    print(f"  residual {ledger.residual:.3f} s of {ledger.total:.0f} s, {missing} metrics are missing")
    print(f"  not complete: {ledger.certificate.reasons}" if ledger.certificate.reasons else "  complete")
    watch("timeline, 500 bins", lambda: ledger.timeline(500))
    return watch.steps


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# What is printed


def reference() -> float:
    """Seconds to sort ten million whole numbers: what this machine is worth today."""
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 10_000_000)
    return timed(lambda: np.sort(numbers))


def print_transitions(found: dict[str, list[float]], tasks: int) -> None:
    """Print what the plugin took on a real scheduler."""
    every = 1e6 * np.concatenate([np.asarray(seconds) for seconds in found.values()])
    middle = float(np.median(every))
    kept = "kept" if middle < MOST_PER_TRANSITION else "MISSED"
    print(f"plugin on a LocalCluster's scheduler, {tasks:,} short tasks, {len(every):,} transitions")
    print(f"  median {middle:.2f} us (below {MOST_PER_TRANSITION:g}: {kept}), mean {every.mean():.2f} us")
    print(f"  a task in all {every.sum() / tasks:.1f} us")
    for name, seconds in found.items():
        print(f"    {name:<26}{1e6 * float(np.median(seconds)):8.2f} us  x {len(seconds):,}")


def print_steps(steps: list[Step]) -> None:
    """Print seconds and memory of each step."""
    for step in steps:
        memory = "memory not known" if step.peak is None else f"peak {step.peak / 1e9:5.2f} GB"
        grown = "" if step.before is None or step.peak is None else f" (+{(step.peak - step.before) / 1e9:.2f})"
        print(f"  {step.name:<26}{step.seconds:8.2f} s   {memory}{grown}   {step.told}", flush=True)


def main() -> None:
    """Run both parts and print what they give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="default 1000")
    parser.add_argument("--seconds", type=int, default=3600, help="of the run (default 3600)")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--interval", type=int, default=6, help="between samples; Dask's with 1000 workers is 6 s")
    parser.add_argument("--short-tasks", type=int, default=5000, help="on the real cluster (default 5000)")
    options = parser.parse_args()
    print(f"np.sort of 10 million whole numbers: {reference():.2f} s\n")
    print_transitions(apart(seconds_per_transition, options.short_tasks), options.short_tasks)
    load = Load(options.workers, options.seconds, options.tasks, options.interval)
    print(f"\n{load.tasks:,} tasks on {load.workers:,} workers in {load.seconds:,} s, sampled each {load.interval} s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_steps(apart(recorded, load, folder))
        print_steps(apart(unpacked, load, folder))
        steps = apart(computed, folder)
        print_steps(steps)
    ledger = next(step for step in steps if step.name == "ledger and metrics")
    kept = ledger.seconds < MOST_SECONDS and ledger.peak is not None and ledger.peak < MOST_MEMORY
    print(f"ledger and metrics within {MOST_SECONDS:g} s and {MOST_MEMORY / 1e9:g} GB: {'kept' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
