"""`roastcoffea list`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@click.argument("folder", type=click.Path(path_type=Path), default=shell.RUNS_FOLDER)
def command(folder: Path) -> None:
    """List the measurements in FOLDER (default: roastcoffea-runs)."""
    from roastcoffea.report.sheets import Column, Sheet
    from roastcoffea.report.terminal import print_sheets
    from roastcoffea.storage.store import is_monitor, list_runs, not_a_measurement
    from roastcoffea.units import SECOND, moment

    stored = list_runs(folder)
    if not stored:
        reason = not_a_measurement(folder) if is_monitor(folder) else f"There are no measurements in {folder}."
        shell.say(reason)
        return
    columns = [Column("started"), Column("elapsed", SECOND), Column("outcome"), Column("name")]
    rows = [
        (None if run.start is None else moment(run.start), run.elapsed, run.outcome or "unreadable", run.name)
        for run in stored
    ]
    errors = [run.error for run in stored if run.error is not None]
    print_sheets([Sheet(columns=columns, rows=rows), Sheet(lead=errors)])
