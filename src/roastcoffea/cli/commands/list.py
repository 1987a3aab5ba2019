"""`roastcoffea list`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from roastcoffea.cli import shell

ORDERS = ("started", "name", "processor", "events", "workers", "elapsed", "rate", "bottleneck", "outcome")
NARROWEST = 80
"""Columns that the list needs."""
UNLIMITED = 10_000
"""Columns where the output is no terminal, and COLUMNS is not set."""
OUTCOMES = ("complete", "incomplete", "failed", "interrupted", "lost", "nothing run", "unreadable")


@click.command
@click.argument("folder", type=click.Path(path_type=Path), default=shell.RUNS_FOLDER)
@shell.choice("--sort", "by", among=ORDERS, default="started", help="Sort by this column, oldest or largest first.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only runs with this outcome.")
@click.option("--processor", help="Only runs of this processor.")
def command(folder: Path, by: str, outcome: str | None, processor: str | None) -> int:
    """List the measurements in FOLDER (default: roastcoffea-runs): what ran, how fast, what limits it, how it ended."""
    from roastcoffea.report.runs import entry_of, in_order, sheet_of_runs
    from roastcoffea.report.sheets import Sheet
    from roastcoffea.report.terminal import INDENT, print_sheets
    from roastcoffea.storage.store import is_monitor, list_runs, not_a_measurement

    _mention_lost()
    if folder == Path(shell.RUNS_FOLDER) and not folder.exists():  # nobody gave it
        shell.say(f"There are no measurements here: no folder {folder}.")
        return 0
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        return shell.fail(f"{folder} {found}; give a folder with measurements", shell.FAILED)
    stored = list_runs(folder)
    entries = [
        entry
        for entry in map(entry_of, stored)
        if outcome in (None, entry.outcome) and processor in (None, entry.processor, *entry.processor.split(", "))
    ]
    if not entries:
        nothing = f"There are no {'such ' * bool(stored)}measurements in {folder}."
        shell.say(not_a_measurement(folder) if not stored and is_monitor(folder) else nothing)
        return 0
    listed = {entry.name for entry in entries}
    errors = [run.error for run in stored if run.error is not None and run.name in listed]
    width = _width()
    print_sheets([sheet_of_runs(in_order(entries, by), width - INDENT[3]), Sheet(lead=errors)], width=width)
    return 0


def _mention_lost() -> None:
    """Tell how many runs of this account can be recovered, and where their journals are."""
    from roastcoffea.log.journals import journals_in
    from roastcoffea.recording.black_box import state_folder
    from roastcoffea.units import counted

    place = state_folder()
    lost = sum(not journal.is_written for journal in journals_in(place)[0])
    if lost:
        shell.say(f"{counted(lost, 'lost run')} in {place} can be recovered: roastcoffea recover", err=True)


def _width() -> int:
    """Columns of the list: those of the terminal, else of COLUMNS.

    What reads it from a pipe or a file otherwise wants a line for each run, and names as they are.
    """
    asked = os.environ.get("COLUMNS", "")
    piped = int(asked) if asked.isdecimal() and int(asked) else UNLIMITED
    return max(shutil.get_terminal_size().columns if sys.stdout.isatty() else piped, NARROWEST)
