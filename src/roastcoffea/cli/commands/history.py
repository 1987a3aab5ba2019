"""`roastcoffea history`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@click.argument("folder", type=click.Path(path_type=Path), default=shell.RUNS_FOLDER)
@click.option("--page", "page", type=shell.FILE, help="Write a page for a browser to this file.")
@click.option("--all", "everything", is_flag=True, help="List all runs, not only the latest.")
@shell.as_json
@shell.overwrite("an existing page")
def command(*, folder: Path, page: Path | None, everything: bool, as_json: bool, overwrite: bool) -> None:
    """Show the runs in FOLDER (default: roastcoffea-runs) over time, and the runs at which they changed.

    Shows rate per core, CPU and bytes per event, failed attempts, and the versions and settings that changed, for each
    processor with its datasets. Failed and incomplete runs are listed, but not used.
    """
    from roastcoffea.studies.history.history import history

    found = history(folder)
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        found.print(sys.stdout, everything=everything)
    if page is not None:
        shell.say(found.page(page, overwrite=overwrite), err=as_json)
