"""What a client pays for 1,000,000 chunks: draining, leaving, saving; and loading them, their metrics and page."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from benchmarks.page import memory
from benchmarks.scale.figures import Figure, Timed, Watched, timed, tried, watched
from benchmarks.scale.scheduler_cost import MEGABYTE, PATIENCE
from benchmarks.scheduler import BEGINNING, CALL, Load, runner_call

from roastcoffea.backends.recorder import LoggedCluster
from roastcoffea.collector import MetricsCollector
from roastcoffea.log.journal import LOG
from roastcoffea.measurement import Measurement, load


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


class Fed(LoggedCluster):
    """A cluster whose log comes from a file."""

    def open(self, interval: float | None, span: str | None = None) -> None:  # noqa: ARG002
        self.learn({"recorded": True, "hosts": [], "problems": [], **FACTS})


def on_client(size: Load, folder: Path) -> list[Figure]:
    """Take what was drained, piece by piece; leave; save."""
    pieces = pickle.loads((folder / "pieces").read_bytes())
    collector = MetricsCollector(name="cost", profile=False, journal=folder / "journals")
    collector._backend = Fed()
    with collector:
        asked, costs = _during(collector, size, folder / "log", pieces)
        stop = BEGINNING + len(pieces)
        collector._watcher.call_ended(runner_call(stop, size.tasks))
        collector.t_start, collector._began = BEGINNING, time.perf_counter() - len(pieces)
        leaving = watched(partial(collector.__exit__, None, None, None))
    making = watched(lambda: collector.measurement)
    measurement = collector.measurement
    run = measurement.run
    assert run.chunks is not None
    assert len(run.chunks) == size.tasks, len(run.chunks)
    computing = watched(lambda: len(measurement.metrics))
    speed = size.seconds * RATE / size.tasks
    return [
        Figure("unpacking", sum(cost.seconds for cost in costs), "s", cpu=sum(cost.cpu for cost in costs)),
        Figure("lag of the client's drains", lag(costs, PATIENCE), "s", 5, f"in {size.seconds} s"),
        Figure(f"the same at {RATE} chunks/s", lag(costs, PATIENCE / speed), "s", 5, "all that a scheduler can do"),
        asked.figure("noting what was requested"),
        leaving.figure("leaving", 0.1 + 1e-6 * size.tasks, "tables are made later"),
        making.figure("tables, when first asked for"),
        computing.figure("metrics and ledger of the new run"),
        tried(
            "saving",
            10,
            lambda: measurement.save(folder, "run", overwrite=True),
            lambda: f"{size_of(folder / 'run') / MEGABYTE:.0f} MB",
        ),
        Figure("problems", len(run.problems), "", None, "; ".join(run.problems)),
    ]


def _during(collector: Any, size: Load, log: Path, pieces: Sequence[int]) -> tuple[Watched, list[Timed]]:
    """What noting the requests of a run takes, and each of its drains."""
    collector._records.started(BEGINNING)
    collector._watcher.call_began(CALL)
    asked = watched(lambda: collector._watcher.items_requested(CALL, [*items(size.tasks)]))
    with log.open("rb") as file:
        take = collector._backend.take
        return asked, [timed(partial(take, LOG, data)) for data in map(file.read, pieces)]


RATE: Final = 900
"""Chunks per second that Dask's scheduler can do."""
FACTS: Final = {"clock_offset": 0.0, "dropped": {}, "refused": 0, "failures": 0, "withheld": {}, "asked": {}}


def items(chunks: int) -> Iterator[Item]:
    """Chunks as an executor gets them, which are those of the records."""
    for number in range(chunks):
        yield Item(*place_of(number), (number // 10).to_bytes(16, "big"))


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


def of_measurement(folder: Path) -> list[Figure]:
    """Load, compute, and make the page."""
    loading = tried("loading", 3, lambda: load(folder / "run"))
    measurement = load(folder / "run")
    tables = pa.total_allocated_bytes()
    metrics, before = measurement.metrics, memory("VmRSS")
    computing = watched(lambda: [name in metrics for name in metrics.unit if name != "verdict"])
    concluding = watched(lambda: metrics["verdict"])
    ledger, merges = measurement.time_ledger, measurement.merges
    summary = watched(lambda: measurement.print_summary(io.StringIO()))
    path = folder / "page.html"
    page = watched(lambda: measurement.report(path, overwrite=True))
    levels = ", ".join(f"{row.merges} of {row.inputs / row.merges:.3g} inputs" for row in merges.itertuples())
    return [
        loading,
        Figure("tables of the run", tables / 1e9, "GB", 0.7),
        Figure("metrics and both ledgers: CPU time", computing.cpu, "s", 6, f"{computing.seconds:.2f} s"),
        Figure("verdict: CPU time", concluding.cpu, "s", 6, f"{concluding.seconds:.2f} s"),
        Figure("  memory beyond the tables", max(computing.peak, concluding.peak) - before, "GB", 1.5),
        summary.figure("first look, when all is computed"),
        page.figure("page", 15),
        Figure("  memory beyond the run", page.grown, "GB", 0.5),
        Figure("  size", path.stat().st_size / MEGABYTE, "MB", 4),
        Figure("residual of the ledger", abs(ledger.residual or 0.0) / (ledger.total or 1.0), "", 0.001),
        Figure("levels of merges", len(merges), "", None, levels),
        Figure("merged", float(merges["input_bytes"].sum()) / MEGABYTE, "MB"),
    ]


SAMPLED: Final = 1000
"""Workers that are sampled each second in a run with many samples."""


def with_samples(folder: Path) -> list[Figure]:
    """Save the run again, with the samples that SAMPLED workers leave if they are taken each second."""
    run = load(folder / "run").run
    assert run.samples is not None
    times, workers = np.arange(run.start, run.stop), run.samples["worker"].to_pylist()
    first = [*{worker: place for place, worker in reversed([*enumerate(workers)])}.values()][-SAMPLED:]
    rows = run.samples.take(np.repeat(first, len(times)))
    # memory that grows and falls, as it does in a run
    memory_of = np.random.default_rng(1).integers(1_000_000_000, 2_000_000_000, len(rows))
    own = dict.fromkeys(("time", "last_seen", "noted"), np.tile(times, len(first))) | {"memory": memory_of}
    for name, values in own.items():
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
    Measurement(replace(run, samples=rows)).save(folder, "sampled", overwrite=True)
    return [Figure("samples", len(rows) / 1e6, "M", None, f"of {len(first)} workers, each second")]


def of_samples(folder: Path) -> list[Figure]:
    """Load the run with many samples, and compute everything."""
    measurement = load(folder / "sampled")
    metrics = measurement.metrics
    computing = watched(lambda: [name in metrics for name in metrics.unit])
    return [
        computing.figure("metrics, both ledgers and verdict"),
        Figure("  memory of the process", computing.peak, "GB", 2.5),
    ]
