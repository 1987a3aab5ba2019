"""`roastcoffea list`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from roastcoffea.cli.options import RUNS_FOLDER
from roastcoffea.cli.output import say

if TYPE_CHECKING:
    from roastcoffea.report.sheets import Sheet
    from roastcoffea.storage.store import StoredRun


@click.command
@click.argument("folder", type=click.Path(path_type=Path), default=RUNS_FOLDER)
def command(folder: Path) -> None:
    """List the measurements in FOLDER (default: roastcoffea-runs)."""
    from roastcoffea.report.terminal import print_sheets
    from roastcoffea.storage.store import list_runs

    stored = list_runs(folder)
    if stored:
        print_sheets(_sheets(stored))
    else:
        say(f"There are no measurements in {folder}.")


def _sheets(stored: list[StoredRun]) -> list[Sheet]:
    """A row for each stored measurement, and the reason where one cannot be read."""
    from roastcoffea.report.sheets import Column, Sheet
    from roastcoffea.units import SECOND, moment

    columns = [Column(name="started"), Column(name="elapsed", unit=SECOND), Column(name="outcome"), Column(name="name")]
    rows = [
        (None if run.start is None else moment(run.start), run.elapsed, run.outcome or "unreadable", run.name)
        for run in stored
    ]
    return [Sheet(columns=columns, rows=rows), Sheet(lead=[run.error for run in stored if run.error is not None])]
