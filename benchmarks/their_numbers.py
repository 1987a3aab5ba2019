"""What numbers of coffea and Dask mean: `python benchmarks/their_numbers.py` prints what docs/their-numbers.md shows.

One analysis of generated files on a LocalCluster, and plain tasks that spin, sleep and spill. The monitor of the
interpreter lock needs `pip install gilknocker`.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import dask
import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed import Client, LocalCluster, wait

from roastcoffea import Measurement, MetricsCollector
from roastcoffea.demo import DijetProcessor, write_sample

MB = 1e6


class Sleepy(ProcessorABC):  # type: ignore[misc]
    """Reads two branches, and sleeps."""

    def process(self, events: Any) -> dict[str, Any]:
        """Sum of two branches, 50 ms later than it could be."""
        time.sleep(0.05)
        return {"jets": float(np.sum(events.MET.pt + events.MET.phi))}


def analysis(
    client: Client, fileset: Any, chunksize: int, processor: Any, **options: Any
) -> tuple[dict[str, Any], Measurement]:
    """coffea's report and measurement of one Runner call."""
    executor = DaskExecutor(client=client, status=False, **options)
    runner = Runner(executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector(client) as collector:
        _, report = runner(fileset, treename="Events", processor_instance=processor)
    return report, collector.measurement


def counted(client: Client, function: Any, *inputs: Any) -> tuple[dict[str, float], float]:
    """What Dask counted in tasks of a function, by activity and unit, and their wall time."""
    with MetricsCollector(client, everything=True) as collector:
        wait(client.map(function, *inputs, pure=False))
    found: dict[str, float] = {}
    for (context, _, activity, unit), amount in collector.measurement.fine_metrics.items():
        if context == "execute" and activity:
            name = f"{activity} [{unit}]"
            found[name] = found.get(name, 0) + amount
    return found, collector.measurement.metrics["elapsed_time_seconds"]


def spin(seconds: float) -> float:
    """Compute in pure Python for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
    return end


def nap(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def block(number: int) -> Any:
    """An array of 40 MB that does not compress."""
    return np.random.default_rng(number).random(5_000_000)


def total(array: Any) -> float:
    """Sum of an array."""
    return float(array.sum())


def lock_monitor(threads: int) -> float | None:
    """What gilknocker, Dask's monitor of the interpreter lock, reads while threads of this process spin."""
    try:
        from gilknocker import KnockKnock
    except ImportError:
        return None
    spinning = [threading.Thread(target=spin, args=(4,)) for _ in range(threads)]
    monitor = KnockKnock(polling_interval_micros=1000)  # as Dask has it
    for thread in spinning:
        thread.start()
    monitor.start()
    time.sleep(3)
    read = float(monitor.contention_metric)
    monitor.stop()
    for thread in spinning:
        thread.join()
    return read


def show(name: str, report: dict[str, Any], run: Measurement) -> None:
    """Print numbers of coffea and Dask, and what they consist of."""
    chunks, results = run.chunks, run.tasks[run.tasks.kind == "processor"].nbytes
    prefixes = {"DijetProcessor", "Sleepy"}
    fine = {key[2:]: round(amount, 4) for key, amount in run.fine_metrics.items() if key[1] in prefixes}
    phases = {column: round(float(chunks[column].sum()), 3) for column in chunks if str(column).endswith("_seconds")}
    print(f"\n{name}: {len(chunks)} chunks\n  bytesread {report['bytesread'] / MB:.1f} MB")
    print("  byte ledger", {what: f"{amount / MB:.3f} MB" for what, amount in run.byte_ledger.items() if amount})
    print(f"  size of the files {chunks.groupby('file').file_bytes.first().sum() / MB:.1f} MB")
    print(f"  processtime {report['processtime']:.2f} s, and phases {phases}")
    print(f"  Dask's fine metrics {fine}\n  nbytes {results.min()} to {results.max()} B a result")


def main() -> None:
    """Print them all."""
    packages = ["coffea", "distributed", "uproot", "awkward", "gilknocker"]
    for package in packages:
        try:
            print(package, version(package), end="; ")
        except PackageNotFoundError:
            print(package, "-", end="; ")
    print("Python", sys.version.split()[0])
    with tempfile.TemporaryDirectory() as scratch:
        fileset = write_sample(scratch, datasets=["zprime"], files=2, events=100_000)
        dask.config.set({"temporary-directory": scratch, "distributed.admin.system-monitor.gil.enabled": False})
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            analysis(client, fileset, 100_000, DijetProcessor())  # imports
            for chunksize in (50_000, 5_000):
                show("dijets", *analysis(client, fileset, chunksize, DijetProcessor()))
            show("results not compressed", *analysis(client, fileset, 50_000, DijetProcessor(), compression=None))
            show("50 ms of sleep a chunk", *analysis(client, fileset, 10_000, Sleepy()))
        with (
            LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            for name, function, inputs in (("spin", spin, [2.0, 2.0]), ("sleep", nap, [2.0, 2.0])):
                print(f"\ntwo threads {name}", *counted(client, function, inputs))
        limits = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": "800MB", "dashboard_address": None}
        with LocalCluster(**limits) as cluster, Client(cluster) as client:
            with MetricsCollector(client, everything=True) as collector:
                blocks = client.map(block, range(20))
                wait(blocks)
                wait(client.map(total, blocks))
            print("\nspilling", {key: round(value, 3) for key, value in collector.measurement.fine_metrics.items()})
            del blocks
    for threads in (0, 1, 2):
        print(f"\nlock monitor, {threads} spinning threads", lock_monitor(threads))


if __name__ == "__main__":
    main()
