"""`roastcoffea show`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@shell.measurement
@click.option("--all", "everything", is_flag=True, help="Print all tables.")
@click.option("--group", help="Print the tables of one group.")
@shell.share
def command(*, path: Path, everything: bool, group: str | None, share: bool) -> None:
    """Print the measurement in PATH on one screen: what ran, where time and bytes went, what to change.

    \b
    Groups of tables are verdict, failures, throughput, bytes, events,
    resources, timing, time, "scheduler and client", "fine metrics", chunks,
    phases, workers, "batch jobs", datasets, sections, values, problems.
    """
    from roastcoffea.studies.merging import measurement_at

    try:
        measurement = measurement_at(path)
        (measurement.share() if share else measurement).print_summary(all=everything, group=group)
    except ValueError as error:
        if group is None:
            raise
        raise click.UsageError(str(error)) from None
