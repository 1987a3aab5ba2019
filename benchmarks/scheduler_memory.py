"""What a collector costs a large cluster's scheduler: bytes held, time per task and sample, and a log nobody drains.

The plugin is fed by stand-ins for the scheduler and its states, so that the figures are those of the plugin alone. Each
scenario has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.deployment import DRAIN_BYTES
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.log.kinds import BLOCK, LOG_CAP
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.log.packing import BASKETS_LISTED, BRANCHES, BRANCHES_HAVE, packed_records
from roastcoffea.log.workers import ClusterLog

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from stand_ins import NAME, SPAN, Scheduler, Task, started_plugin

BEGINNING: Final = 1_700_000_000.0
BYTES_PER_SAMPLE: Final = 100
BYTES_PER_TASK: Final = 200
"""What a row has to stay below, before it is drained."""

TRANSITIONS: Final = 5
"""Of a task, from its creation until it is forgotten."""

ANNOTATIONS: Final = {
    ANNOTATION: {"collectors": [NAME], "step": "processing", "prefix": "DijetProcessor"},
    "span": {"name": ("roastcoffea",), "ids": (SPAN,)},
}


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler goes through; tasks end evenly over the time, and every worker is sampled each second."""

    workers: int
    seconds: int
    tasks: int

    def tasks_of(self, scheduler: Scheduler, record: bytes | None) -> Iterator[Task]:
        """Chunks of an analysis on one worker after the other, with their record."""
        for number, worker in zip(range(self.tasks), cycle(scheduler.workers.values()), strict=False):
            begin = BEGINNING + number * self.seconds / self.tasks
            yield Task(
                key=f"DijetProcessor-{number:032x}",
                worker=worker,
                run_id=number,
                annotations=ANNOTATIONS,
                metadata={} if record is None else {METADATA_KEY: record},
                start=begin,
                stop=begin + 1,
                nbytes=number,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one scenario gave."""

    seconds_per_sample: float
    seconds_per_task: float
    log_peak: int
    process_growth: int
    """Of the process's resident memory, at most."""
    drains: list[float]
    """Seconds that each drain held the scheduler."""
    drained: int
    dropped: dict[str, int]
    notes: list[str]


def chunk_record() -> bytes:
    """Record of a chunk that read 20 columns, about as a worker packs it."""
    names = [f"Jet_{name}{number}" for number in range(5) for name in ("pt", "eta", "phi", "mass")]
    branches: dict[str, Any] = {name: [2**20 + place for place in range(len(names))] for name in BRANCHES_HAVE}
    branches |= {"branch": names, BASKETS_LISTED: [1] * len(names)}
    figures = dict.fromkeys(
        ("start", "stop", "wall_seconds", "cpu_seconds", "process_cpu_seconds"), BEGINNING + 0.123456
    )
    sizes = dict.fromkeys(("memory_before", "memory_after", "memory_peak", "coffea_bytes_read", "thread"), 2**47 - 1)
    texts = {
        "dataset": "TTToSemiLeptonic_UL18",
        "file": "root://storage.example.org//store/mc/RunIISummer20UL18NanoAODv9/TTToSemiLeptonic/0001.root",
        "tree": "Events",
        "uuid": "0123456789abcdef" * 2,
        "worker": "tcp://10.0.0.1:40000",
        "key": f"DijetProcessor-{1:032x}",
        "call": "fedcba9876543210" * 2,
        "outcome": "ok",
    }
    numbers = {
        "id": 2**62,
        "entry_start": 100_000,
        "entry_stop": 200_000,
        "events": 100_000,
        "run_id": 12_345,
        "overlaps": 0,
    }
    columns = {f"{name}-data" for name in names}
    return packed_records([texts | numbers | figures | sizes | {"coffea_columns": columns, BRANCHES: branches}])


def scenario(load: Load, drain: bool) -> Found:
    """The whole load, with a client that drains each second or with one that never does."""
    scheduler = Scheduler(load.workers)
    plugin, bystander = started_plugin(scheduler), SchedulerPlugin()
    tasks = load.tasks_of(scheduler, chunk_record())
    process = psutil.Process()
    before = process.memory_info().rss
    sampling = running = 0.0
    log_peak = growth = drained = 0
    drains: list[float] = []
    for second in range(load.seconds):
        scheduler.beat(BEGINNING + second)
        sampling += seconds_for(plugin.sample)
        due = load.tasks * (second + 1) // load.seconds - load.tasks * second // load.seconds
        ended = list(islice(tasks, due))
        running -= seconds_for(partial(run_all, scheduler, bystander, ended))
        running += seconds_for(partial(run_all, scheduler, plugin, ended))
        log_peak = max(log_peak, plugin.log.size)
        growth = max(growth, process.memory_info().rss - before)
        if drain:
            pieces = list(timed_drains(plugin))
            drains += [seconds for seconds, _ in pieces]
            drained += sum(size for _, size in pieces)
    return Found(
        seconds_per_sample=sampling / (load.workers * load.seconds),
        seconds_per_task=running / load.tasks,
        log_peak=log_peak,
        process_growth=growth,
        drains=drains,
        drained=drained,
        dropped=dict(plugin.log.dropped),
        notes=notes_of_client(plugin),
    )


def seconds_for(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run_all(scheduler: Scheduler, plugin: Any, tasks: Iterable[Task]) -> None:
    """Bring these tasks to their end; a bystander in place of the plugin shows what the stand-ins cost themselves."""
    for task in tasks:
        scheduler.run(plugin, task)


def timed_drains(plugin: ClusterPlugin) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of each call until the log is empty, as the client asks for it."""
    more = True
    while more:
        began = time.perf_counter()
        answer = plugin.drain(DRAIN_BYTES, plugin.log.given)
        yield time.perf_counter() - began, len(answer["data"])
        more = answer["more"]


def notes_of_client(plugin: ClusterPlugin) -> list[str]:
    """What the client says about the run once it has drained what was left."""
    log = ClusterLog()
    more = True
    while more:
        answer = plugin.drain(DRAIN_BYTES, plugin.log.given)
        log.feed(answer["data"])
        more = answer["more"]
    dropped = [f"{rows} row(s) of {table} were dropped on the scheduler" for table, rows in answer["dropped"].items()]
    return log.problems + log.received.problems + dropped


def bytes_per_sample(load: Load) -> float:
    """Traced memory per sample that waits to be drained."""
    scheduler = Scheduler(load.workers)
    plugin = started_plugin(scheduler)
    rounds = 200

    def sample(second: int) -> None:
        scheduler.beat(BEGINNING + second)
        plugin.sample()

    tracemalloc.start()
    sample(0)
    before, _ = tracemalloc.get_traced_memory()
    for second in range(1, rounds + 1):
        sample(second)
    return (tracemalloc.get_traced_memory()[0] - before) / (rounds * load.workers)


def bytes_per_task(load: Load, record: bytes | None) -> float:
    """Traced memory per task that waits to be drained."""
    scheduler = Scheduler(load.workers)
    plugin = started_plugin(scheduler)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run_all(scheduler, plugin, load.tasks_of(scheduler, record))
    return (tracemalloc.get_traced_memory()[0] - before) / load.tasks


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def kept(value: float, limit: float) -> str:
    return f"below {limit:,} bytes: {'kept' if value < limit else 'MISSED'}"


def print_rows(load: Load) -> None:
    """Print the bytes of each kind of row before draining."""
    part = Load(load.workers, load.seconds, min(load.tasks, 20_000))
    record = chunk_record()
    sample, task = apart(bytes_per_sample, part), apart(bytes_per_task, part, None)
    chunk = apart(bytes_per_task, part, record) - task
    print("bytes held before draining (traced allocations)")
    print(f"  per sample of a worker  {sample:7.1f}   {kept(sample, BYTES_PER_SAMPLE)}")
    print(f"  per task                {task:7.1f}   {kept(task, BYTES_PER_TASK)}")
    print(f"  per record of a chunk   {chunk:7.1f}   packed by the worker: {len(record)} bytes for 20 columns")


def print_found(title: str, found: Found) -> None:
    """Print what a scenario gave."""
    per_task = 1e6 * found.seconds_per_task
    print(f"\n{title}")
    print(f"  time per sample         {1e6 * found.seconds_per_sample:7.2f} us")
    print(f"  time per task           {per_task:7.2f} us   {per_task / TRANSITIONS:.2f} us per transition")
    bounded = kept(found.log_peak, LOG_CAP + BLOCK)
    print(f"  log, at most            {found.log_peak / 1e6:7.2f} MB   {bounded}")
    print(f"  process grew by         {found.process_growth / 1e6:7.2f} MB")
    if found.drains:
        print(f"  drained                 {found.drained / 1e6:7.2f} MB   in {len(found.drains)} calls")
        longest = 1e3 * max(found.drains)
        print(f"  time per drain          {1e3 * median(found.drains):7.3f} ms   at most {longest:.3f} ms")
    print(f"  rows dropped            {found.dropped or 'none'}")
    print(f"  the client says         {'; '.join(found.notes) or 'nothing'}")


def main() -> None:
    """Run the scenarios one after the other and print what they give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="default 1000")
    parser.add_argument("--seconds", type=int, default=3600, help="samples of each worker (default 3600)")
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks that end in that time (default 100000)")
    options = parser.parse_args()
    load = Load(options.workers, options.seconds, options.tasks)
    print(f"{load.workers} workers sampled {load.seconds} times, {load.tasks} tasks\n")
    print_rows(load)
    print_found("drained each simulated second", apart(scenario, load, True))
    print_found("never drained", apart(scenario, load, False))


if __name__ == "__main__":
    main()
