"""`roastcoffea recover`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from roastcoffea.cli import shell

if TYPE_CHECKING:
    from roastcoffea.log.journals import Journal


@click.command
@click.argument("folder", type=shell.FOLDER, required=False)
@shell.measurements_folder("Folder that gets the measurements.")
@click.option("--list", "list_only", is_flag=True, help="List the journals, and change nothing.")
@click.option("--keep", is_flag=True, help="Keep the journals of recovered runs.")
def command(folder: Path | None, output: Path, list_only: bool, keep: bool) -> int:
    """Make measurements of runs that were lost because their client was killed.

    While a run is measured, its records go to a journal. FOLDER is a journal or a folder with journals; without it, the
    journals in the state folder are taken ($XDG_STATE_HOME or ~/.local/state). Those of running processes are left
    alone.
    """
    from roastcoffea.log.journals import journals_in
    from roastcoffea.recording.black_box import state_folder
    from roastcoffea.recording.facility.journaled import is_facility
    from roastcoffea.report.journals import sheet_of_journals
    from roastcoffea.report.terminal import print_sheets

    place = folder or state_folder()
    found, unreadable = journals_in(place)
    journals = [journal for journal in found if not is_facility(journal)]
    if len(journals) < len(found):
        unreadable.append(f"{place} has journals of a scheduler; use roastcoffea facility {place} --save")
    if journals:
        print_sheets([sheet_of_journals(journals)])
    elif folder is not None and not folder.exists():
        unreadable.append(f"{folder} does not exist; give a journal, or a folder with journals")
    elif not unreadable:
        shell.say(f"There are no journals in {place}.")
    for problem in unreadable:
        shell.fail(problem, shell.FAILED)
    lost = [] if list_only else [journal for journal in journals if not journal.is_written]
    made = [_recover(journal, output, keep) for journal in lost]
    return 0 if all(made) and not unreadable else shell.FAILED


def _recover(journal: Journal, output: Path, keep: bool) -> bool:
    """Save the measurement that a journal has, and remove the journal; whether nothing failed."""
    from roastcoffea.errors import RoastcoffeaError, reported
    from roastcoffea.log.journal import CLAIM, claimed, remove_journal
    from roastcoffea.log.journals import DAMAGED
    from roastcoffea.recording.recovery import recovered

    expected = (RoastcoffeaError, *DAMAGED)
    what = f"{journal.folder} is not recovered"
    with (
        reported(lambda reason: shell.fail(reason, shell.FAILED), what, expected),
        claimed(journal.folder) as ours,
    ):
        if not ours:
            left = f"; if none does, remove {journal.folder / CLAIM}" * (journal.folder / CLAIM).exists()
            shell.say(f"{what}: another process writes, recovers or has removed it{left}")
            return True
        measurement = recovered(journal)
        path = measurement.save(output)
        shell.say(f"{measurement.outcome}: {path}")
        if not keep:
            remove_journal(journal.folder)
        return True
    return False
