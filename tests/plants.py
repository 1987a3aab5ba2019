"""Causes of lost time that are planted in real runs, one at a time, with what has to be concluded from each.

Scheduler and workers are processes that commands start. Each run of a plant can be made without its cause as well, and
with other numbers: a factor for its cost, and a seed for what it falls on.
"""

from __future__ import annotations

import importlib
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import uproot
from analyses import Planted, runner_for
from coffea.nanoevents import BaseSchema, NanoAODSchema
from distributed import Client
from planted_work import SLOWER, Analysis, Dijets
from processes import PATIENCE, CommandLineCluster
from stored import served

from roastcoffea.cli.sample import TREE, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement

EVENTS: Final = 12_000
"""Events of a file of the sample."""


class Grown(NamedTuple):
    """A run with a planted cause, and names of which one has to be in the first finding; none where it has no name."""

    measurement: Measurement
    names: tuple[str, ...]


@dataclass(frozen=True)
class Ground:
    """Where plants grow: a folder for files, and numbers that make each plant another one."""

    folder: Path
    factor: float = 1.0
    seed: int = 1

    @cached_property
    def drawn(self) -> random.Random:
        """What the seed makes of chances."""
        return random.Random(self.seed)

    def sample(self, files: int = 4, events: int = EVENTS, datasets: Sequence[str] = ("qcd",)) -> Any:
        """NanoAOD-like files."""
        return write_sample(self.folder / "sample", datasets=datasets, files=files, events=events, compression="lz4")

    def flat(self, files: int, events: int, branches: int, compression: Any = None) -> Path:
        """Folder of files of equal events, with flat branches of numbers that hardly compress, two baskets each."""
        name = "none" if compression is None else f"{type(compression).__name__}{compression.level}"
        folder = self.folder / "sample" / f"flat-{files}x{events}x{branches}-{name}"
        if not folder.is_dir():
            unfinished = folder.with_name(f".{folder.name}-{os.getpid()}")
            unfinished.mkdir(parents=True)
            drawn = np.random.default_rng(1)
            names = [f"weight{number}" for number in range(branches)]
            with uproot.recreate(unfinished / "file0.root", compression=compression) as file:
                file.mktree(TREE, dict.fromkeys(names, np.float32))
                for _ in range(2):
                    values = {name: drawn.exponential(30, events // 2).astype(np.float32) for name in names}
                    file[TREE].extend(values)
            for number in range(1, files):
                shutil.copy(unfinished / "file0.root", unfinished / f"file{number}.root")
            unfinished.rename(folder)
        return folder


def fileset_of(urls: Sequence[str], dataset: str = "data") -> Any:
    """Fileset of one dataset."""
    return {dataset: {"files": dict.fromkeys(urls, TREE)}}


def flat_files(folder: Path) -> Any:
    """Fileset of the files in a folder."""
    return fileset_of([str(path) for path in sorted(folder.glob("*.root"))])


@contextmanager
def cluster(
    workers: int = 2, threads: int = 1, *, slower: float | None = None, memory: int | None = None, fresh: bool = False
) -> Iterator[Client]:
    """Client of a cluster of this host.

    Parameters
    ----------
    slower
        How many times slower one more worker is; its address is found by `slow_worker`.
    memory
        Bytes that a worker may have; a nanny ends and restarts those that need more.
    fresh
        Whether nothing was imported on scheduler and workers; else each has taken part in a short run.
    """
    nanny = ("--nanny", "--memory-limit", str(memory)) if memory else ("--no-nanny", "--memory-limit", "0")
    with tempfile.TemporaryDirectory(prefix="plants-", ignore_cleanup_errors=True) as folder:
        path = str(Path(__file__).parent)
        # a chunk may lose its worker more often than Dask bears
        settings = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "10"}
        started = CommandLineCluster(Path(folder), workers, threads, path, options=nanny, environment=settings)
        try:
            if slower is not None:
                started.add_worker(started_by=("env", f"{SLOWER}={slower}", sys.executable, "-m", "dask"))
            with Client(scheduler_file=str(started.file)) as client:
                client.wait_for_workers(workers + (slower is not None), timeout=PATIENCE)
                if not fresh:
                    client.run(warm)
                    rehearsed(client)
                yield client
        finally:
            started.close()


def warm() -> None:
    """Import and load what a chunk needs, on each thread of a worker."""
    from threading import Thread

    from coffea.processor import IterativeExecutor, Runner

    with tempfile.TemporaryDirectory() as folder:
        fileset = write_sample(folder, datasets=["qcd"], files=1, events=400)

        def run(schema: Any) -> None:
            executor = IterativeExecutor(status=False)
            Runner(executor, pre_executor=executor, schema=schema, chunksize=200, savemetrics=True)(
                fileset, treename=TREE, processor_instance=Analysis(branches=3)
            )

        with redirect_stdout(io.StringIO()):  # coffea shows its bar whatever the status
            for schema in (NanoAODSchema, BaseSchema):
                thread = Thread(target=run, args=(schema,))
                thread.start()
                thread.join()


def rehearsed(client: Client) -> None:
    """Make a short run: client and scheduler import what they need in their first."""
    with tempfile.TemporaryDirectory() as folder:
        fileset = write_sample(folder, datasets=["qcd"], files=1, events=400)
        measured(client, fileset, Analysis(), chunksize=100)


@cache
def warm_once() -> None:
    """Import and load in this process what a client needs."""
    with cluster(workers=1):
        pass


def imported(modules: Sequence[str]) -> None:
    """Import some modules."""
    for module in modules:
        importlib.import_module(module)


def slow_worker(client: Client) -> str:
    """Address of the worker that was made slower."""
    of_workers: dict[str, str] = client.run(os.getenv, SLOWER)
    return next(address for address, factor in of_workers.items() if factor is not None)


def hosts(measurement: Measurement) -> tuple[str, ...]:
    """Names of all hosts."""
    return tuple({str(host) for host in measurement.lifetimes["host"]} | {"127.0.0.1"})


def measured(client: Client, fileset: Any, analysis: Any, chunksize: int = 3000, **options: Any) -> Measurement:
    """Measurement of a run, also of one that fails; coffea's schema is that of NanoAOD unless another is given."""
    pause = options.pop("pause", 0.0)
    with suppress(Exception), MetricsCollector(client) as collector:
        runner_for(client, chunksize, **options)(fileset, treename=TREE, processor_instance=analysis)
        time.sleep(pause)
    return collector.measurement


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """Other programs that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


Growing = Callable[[Ground, bool], Grown]


class Plant(NamedTuple):
    """A cause that is planted, and the causes of which one has to be found first; none where nothing is to be found."""

    name: str
    causes: tuple[str, ...]
    grown: Growing
    counted: bool


PLANTS: Final[dict[str, Plant]] = {}


def plant(*causes: str, counted: bool = True) -> Callable[[Growing], Growing]:
    """Make a function that runs an analysis, with its cause or without it, a plant."""

    def add(grown: Growing) -> Growing:
        name = grown.__name__.replace("_", " ")
        PLANTS[name] = Plant(name, causes, grown, counted)
        return grown

    return add


@plant("blocked")
def sleeping_section(ground: Ground, cause: bool = True) -> Grown:
    section = ground.drawn.choice(["calibration", "lookup", "conditions"])
    with cluster() as client:
        plan = {"section": section, "sleep": 0.15 * ground.factor} if cause else {}
        return Grown(measured(client, ground.sample(), Analysis(cpu=0.1, **plan)), (section,))


@plant("contention")
def foreign_processes(ground: Ground, cause: bool = True) -> Grown:
    processes = round(2 * (os.cpu_count() or 1) * ground.factor) if cause else 0
    with cluster() as client, spinning(processes):
        measurement = measured(client, ground.sample(), Analysis(cpu=0.1))
    return Grown(measurement, hosts(measurement))


@plant("slow chunk")
def one_slow_chunk(ground: Ground, cause: bool = True) -> Grown:
    """Where others have the cores, this is no finding: chunks then differ from what is expected of them."""
    fileset = ground.sample()
    file = ground.drawn.choice(sorted(fileset["qcd"]["files"]))
    with cluster() as client:
        slow = 5.0 * ground.factor if cause else 0.1
        plan = Planted(spin=0.1, straggler=slow, last=9000, file=Path(file).name)
        return Grown(measured(client, fileset, plan), (f"{file}, entries 9000 to 12000",))


@plant("start-up")
def fresh_workers(ground: Ground, cause: bool = True) -> Grown:
    modules = ("scipy.stats", "matplotlib.pyplot", "pandas")
    with cluster(fresh=cause) as client:
        if not cause:
            client.run(imported, modules)
        measurement = measured(client, ground.sample(), Analysis(cpu=0.02, imports=modules), chunksize=6000)
    return Grown(measurement, (*measurement.lifetimes["worker"], *hosts(measurement), "coffea", "awkward", *modules))


@plant("slow worker")
def one_slow_worker(ground: Ground, cause: bool = True) -> Grown:
    # three fast workers have to have cores enough, else nobody would win by repairing the third
    with cluster(workers=2, slower=14 * ground.factor if cause else 1.0) as client:
        measurement = measured(client, ground.sample(), Analysis(cpu=0.06, blocked=0.02), chunksize=2000)
        return Grown(measurement, (slow_worker(client),))


@plant("slow file")
def one_slow_file(ground: Ground, cause: bool = True) -> Grown:
    folder = ground.flat(3, 20_000, 20)
    slow = f"file{ground.drawn.randrange(3)}.root"
    with cluster() as client, served(folder) as server:
        server.delays = {slow: 0.035 * ground.factor} if cause else {}
        fileset = fileset_of([server.url(f"file{number}.root") for number in range(3)])
        plan = Analysis(cpu=0.1, branches=20)
        return Grown(measured(client, fileset, plan, chunksize=2000, schema=BaseSchema), (slow,))


@plant("memory")
def memory_beyond_the_limit(ground: Ground, cause: bool = True) -> Grown:
    limit = 900_000_000
    with cluster(memory=limit) as client, tempfile.TemporaryDirectory() as marks:
        plan = {"hungry": min(0.2 * ground.factor, 1.0), "limit": limit, "folder": marks} if cause else {}
        measurement = measured(client, ground.sample(), Analysis(cpu=0.1, **plan), retries=3)
    return Grown(measurement, (*measurement.lifetimes["worker"], *hosts(measurement), "qcd"))


@plant("interpreter lock")
def threads_of_one_interpreter(ground: Ground, cause: bool = True) -> Grown:
    workers, threads = (1, 4) if cause else (2, 2)
    with cluster(workers, threads) as client:
        measurement = measured(client, ground.sample(), Analysis(function=0.15 * ground.factor))
    return Grown(measurement, (*measurement.lifetimes["worker"], *hosts(measurement), "reweighted"))


@plant("storage")
def slow_storage(ground: Ground, cause: bool = True) -> Grown:
    folder = ground.flat(4, 20_000, 20)
    rate, latency = (2e6 / ground.factor, 0.06 * ground.factor) if cause else (4e6, 0.03)
    with cluster() as client, served(folder, latency, rate) as server:
        fileset = fileset_of([server.url(f"file{number}.root") for number in range(4)])
        plan = Analysis(cpu=0.02, branches=12)
        return Grown(
            measured(client, fileset, plan, chunksize=10_000, schema=BaseSchema), (server.url("").split("/")[2],)
        )


@plant("transfer", "merge")
def large_outputs(ground: Ground, cause: bool = True) -> Grown:
    size = round(40e6 * ground.factor) if cause else 1000
    with cluster() as client:
        return Grown(measured(client, ground.sample(), Analysis(cpu=0.05, size=size)), ())


@plant("chunk size", "scheduler")
def small_chunks(ground: Ground, cause: bool = True) -> Grown:
    with cluster() as client:
        size = round(500 / ground.factor) if cause else 6000
        return Grown(measured(client, ground.sample(8), Analysis(cpu=0.02), chunksize=size), (str(size), "chunk size"))


@plant("tail")
def four_chunks(ground: Ground, cause: bool = True) -> Grown:
    """One of the four is most of the work: more than two that compute would wait for the cores of a small host."""
    with cluster(workers=6) as client:
        large, small = ground.sample(1, 40_000), ground.sample(3, 1000, ("zprime",))
        fileset = {"data": {"files": {**small["zprime"]["files"], **large["qcd"]["files"]}}}
        plan = Analysis(cpu=0.12 * ground.factor)
        return Grown(measured(client, fileset, plan, chunksize=100_000 if cause else 4000), ())


@plant("tail", counted=False)
def four_equal_chunks(ground: Ground, cause: bool = True) -> Grown:
    with cluster(workers=2, threads=6) as client:
        plan = Analysis(cpu=0.15 * ground.factor)
        return Grown(measured(client, ground.sample(), plan, chunksize=100_000 if cause else 1000), ())


@plant("compute")
def heavy_function(ground: Ground, cause: bool = True) -> Grown:
    with cluster() as client:
        plan = {"function": 0.25 * ground.factor} if cause else {}
        return Grown(measured(client, ground.sample(), Analysis(cpu=0.03, **plan)), ("reweighted",))


@plant("failures")
def raising_attempts(ground: Ground, cause: bool = True) -> Grown:
    with cluster() as client, tempfile.TemporaryDirectory() as marks:
        plan = {"failing": 0.6 * ground.factor, "share": 0.6, "folder": marks} if cause else {}
        measurement = measured(client, ground.sample(), Analysis(cpu=0.1, **plan), retries=3)
    return Grown(measurement, ("calibration service", "OSError", *hosts(measurement)))


@plant("missing data")
def missing_file(ground: Ground, cause: bool = True) -> Grown:
    fileset = ground.sample()
    lost = f"lost_{ground.seed}.root"
    files = {**fileset["qcd"]["files"], **({str(ground.folder / lost): TREE} if cause else {})}
    with cluster() as client:
        measurement = measured(client, {"qcd": {"files": files}}, Analysis(cpu=0.1), skipbadfiles=True)
    return Grown(measurement, (lost,))


@plant("client")
def idle_client(ground: Ground, cause: bool = True) -> Grown:
    with cluster() as client:
        pause = 4.0 * ground.factor if cause else 0.0
        return Grown(measured(client, ground.sample(), Analysis(cpu=0.1), pause=pause), ())


@plant("decompression")
def slow_decompression(ground: Ground, cause: bool = True) -> Grown:
    branches, events = round(60 * ground.factor), 60_000
    folder = ground.flat(4, events, branches, uproot.LZMA(9) if cause else uproot.LZ4(1))
    names = ("data", *(f"weight{number}" for number in range(branches)), *(path.name for path in folder.glob("*.root")))
    with cluster() as client:
        plan = Analysis(cpu=0.005, branches=branches)
        return Grown(measured(client, flat_files(folder), plan, chunksize=events // 2, schema=BaseSchema), names)


@plant("slow dataset")
def heavy_dataset(ground: Ground, cause: bool = True) -> Grown:
    heavy = ground.drawn.choice(["qcd", "zprime"])
    with cluster() as client:
        plan = {"heavy": {heavy: 5 * ground.factor}} if cause else {}
        fileset = ground.sample(2, EVENTS, ("qcd", "zprime"))
        return Grown(measured(client, fileset, Analysis(cpu=0.06, **plan), chunksize=2000), (heavy,))


@plant()
def healthy(ground: Ground, cause: bool = True) -> Grown:
    with cluster() as client:
        return Grown(measured(client, ground.sample(events=24_000), Dijets(round(40 * ground.factor)), 12_000), ())


def planted_run(name: str, ground: Ground, *, cause: bool = True) -> Grown:
    """Run of a plant, with its cause or without it; this process has made a run before."""
    warm_once()
    return PLANTS[name].grown(ground, cause)


class Comparison(NamedTuple):
    """Two runs that differ in one thing, and names of the part that has to be the largest of the explanation."""

    name: str
    before: Measurement
    after: Measurement
    causes: tuple[str, ...]


def compared_runs(ground: Ground) -> Iterator[Comparison]:
    """Pairs of runs that differ in one thing each."""
    warm_once()
    factor, fileset = ground.factor, ground.sample()
    plain = Analysis(cpu=0.08)
    with cluster() as client:
        before = measured(client, fileset, plain)
        sleeping = measured(client, fileset, Analysis(cpu=0.08, blocked=0.15 * factor))
        yield Comparison("sleep", before, sleeping, ("blocked", "wait"))
        before = measured(client, fileset, plain)
        computing = measured(client, fileset, Analysis(cpu=0.08 + 0.15 * factor))
        yield Comparison("CPU", before, computing, ("compute",))
        fixed, many = Analysis(cpu=0.0075, each=0.15 * factor), ground.sample(4, 40_000)
        sizes = [measured(client, many, fixed, chunksize=size) for size in (20_000, 2500)]
        yield Comparison("chunks of an eighth, with a fixed cost", *sizes, ("chunk size",))
        with served(ground.flat(4, 20_000, 20), 0.04 * factor) as server:
            remote = fileset_of([server.url(f"file{number}.root") for number in range(4)])
            reading = [
                measured(client, remote, Analysis(cpu=0.03, branches=branches), chunksize=5000, schema=BaseSchema)
                for branches in (4, 10)
            ]
        yield Comparison("six more branches", *reading, ("newly read branches",))
        before = measured(client, fileset, plain)
    with cluster(workers=1) as client:
        yield Comparison("half the workers", before, measured(client, fileset, plain), ("threads",))
