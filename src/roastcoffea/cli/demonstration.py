"""A sample and its analysis on a cluster on this machine, measured as a demonstration."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import dask
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client, LocalCluster

from roastcoffea.cli.sample import TREE, DijetProcessor, Fileset, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.storage.store import PAGE_FILE


def run_demo(
    *, files: int, events: int, chunksize: int, workers: int, threads: int, folder: str | Path | None, out: str | Path
) -> Path:
    """Measure an analysis of a sample on a cluster on this machine, and return the path of the saved measurement.

    Parameters
    ----------
    files, events
        Size of each of the two datasets: files, and events in each file.
    chunksize
        Approximate number of events per task; coffea splits each file into equal chunks.
    workers, threads
        Worker processes, and threads per worker.
    folder
        Folder to keep the sample for reuse; None for a temporary one.
    out
        Folder of saved measurements, in which this one gets a new name.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="roastcoffea-demo-") as scratch:
        click.echo("Making the sample, then measuring its analysis on a cluster of this machine ...")
        fileset = write_sample(folder or scratch, files=files, events=events)
        with local_client(workers, threads, scratch) as client:
            measurement = measure(client, fileset, chunksize)
    path = measurement.save(out)
    measurement.report(path / PAGE_FILE)
    measurement.print_summary()
    click.echo(f"All runs: roastcoffea list {shlex.quote(str(out))}; their numbers: roastcoffea metrics")
    return path


@contextmanager
def local_client(workers: int, threads: int, scratch: str) -> Iterator[Client]:
    """Client of a cluster on this machine that cleans up after itself."""
    with dask.config.set({"temporary-directory": scratch}), ExitStack() as stack:
        settings = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
        with interrupts_ignored():  # to a worker, a scheduler that closes between two heartbeats is an error
            cluster = stack.enter_context(LocalCluster(**settings, silence_logs=logging.CRITICAL))
        yield stack.enter_context(Client(cluster))


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block; processes started in it always ignore it.

    A terminal interrupts all its processes at once, and each worker would print a traceback of its own.
    Blocking the signal would lose none of them, but multiprocessing unblocks it as it starts a process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def measure(client: Client, fileset: Fileset, chunksize: int) -> Measurement:
    """Measurement of the analysis, with everything that a user adds to it."""
    processor = DijetProcessor()
    executor = DaskExecutor(client=client, status=sys.stdout.isatty())
    runner = Runner(executor=executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector(client, processor_instance=processor) as collector:
        runner(fileset, treename=TREE, processor_instance=processor)
    return collector.measurement
