"""`roastcoffea demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from roastcoffea.cli import shell

CHUNKSIZE: Final = "Approximate number of events per task; coffea splits each file equally."


@click.command
@shell.bounded("--files", click.IntRange(1, 1000), 4, "Files in each of two datasets.")
@shell.bounded("--events", click.IntRange(100, 10_000_000), 50_000, "Events in each file; 10,000 take 1.5 MB of disk.")
@shell.bounded("--chunksize", click.IntRange(10, 10_000_000), 10_000, CHUNKSIZE)
@shell.bounded("--workers", click.IntRange(1, 64), 2, "Worker processes.")
@shell.bounded("--threads", click.IntRange(1, 64), 1, "Threads per worker.")
@click.option(
    "--folder",
    type=shell.FOLDER,
    help="Folder to keep the sample for reuse; by default it is temporary.",
)
@shell.measurements_folder("Folder for the measurement.")
def command(*, folder: Path | None, output: Path, **size: Any) -> None:
    """Measure a small analysis on a cluster on this machine.

    Makes two datasets of NanoAOD-like files, fills histograms of the dijet mass from them on a local Dask cluster,
    prints a summary, and saves the measurement. Without options it reads 400,000 events in 40 tasks, in well under a
    minute.
    """
    from roastcoffea.cli.demonstration import run_demo

    run_demo(folder=folder, out=output, **size)
