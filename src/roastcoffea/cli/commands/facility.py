"""`roastcoffea facility`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--day", help="Only this day (UTC), as 2026-11-24.")
@click.option("--watts-per-core", type=click.FloatRange(min=0), help="Power of a core, for an estimate of energy.")
@click.option("--save", "measurements", is_flag=True, help="Save each run that ended as a measurement, in -o.")
@click.option("--page", type=shell.FILE, help="File for a page for a browser.")
@click.option("--csv", type=shell.FILE, help="File for the table of runs.")
@click.option("--parquet", type=shell.FILE, help="File for the table of runs.")
@shell.measurements_folder("Folder for measurements.")
@shell.overwrite()
def command(
    *,
    folder: Path,
    day: str | None,
    watts_per_core: float | None,
    measurements: bool,
    page: Path | None,
    csv: Path | None,
    parquet: Path | None,
    output: Path,
    overwrite: bool,
) -> int:
    """List the runs that a scheduler recorded in FOLDER, and what each day cost.

    Schedulers record with `dask scheduler --preload roastcoffea.facility --roastcoffea-journal FOLDER`.
    """
    from roastcoffea.recording.facility.index import index_of
    from roastcoffea.recording.facility.presented import sheets, write_page
    from roastcoffea.recording.facility.saving import save_ended
    from roastcoffea.report.exports.tables import WRITERS
    from roastcoffea.report.terminal import print_sheets
    from roastcoffea.storage.folders import whole_file

    found = index_of(folder, day, watts_per_core)
    print_sheets(sheets(found))
    if page is not None:
        shell.say(write_page(found, page, overwrite=overwrite))
    for path, form in ((csv, "csv"), (parquet, "parquet")):
        if path is not None:
            with whole_file(path, overwrite=overwrite) as file:
                WRITERS[form](found.runs, file)
            shell.say(path)
    for path in save_ended(found, output) if measurements else ():
        shell.say(path)
    return 0
