"""Commands that measure: the demonstration, scripts, clusters, facilities, and runs that were lost."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.redaction import redacted

if TYPE_CHECKING:
    from roastcoffea.log.journal import Journal


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
def demo_command(*, folder: Path | None, output: Path, **size: Any) -> None:
    """Measure a small analysis on a cluster on this machine.

    Makes two datasets of NanoAOD-like files, fills histograms of the dijet mass from them on a local Dask cluster,
    prints a summary, and saves the measurement. Without options it reads 400,000 events in 40 tasks, in well under a
    minute.
    """
    from roastcoffea.cli.sample import run_demo

    run_demo(folder=folder, out=output, **size)


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
def facility_command(
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
    from roastcoffea.recording.facility.index import index_of, save_ended, sheets, write_page
    from roastcoffea.report.exports.tables import WRITERS
    from roastcoffea.sheets.terminal import print_sheets
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


@click.command
@click.argument("folder", type=shell.FOLDER, required=False)
@shell.measurements_folder("Folder that gets the measurements.")
@click.option("--list", "list_only", is_flag=True, help="List the journals, and change nothing.")
@click.option("--keep", is_flag=True, help="Keep the journals of recovered runs.")
def recover_command(folder: Path | None, output: Path, list_only: bool, keep: bool) -> int:
    """Make measurements of runs that were lost because their client was killed.

    While a run is measured, its records go to a journal. FOLDER is a journal or a folder with journals; without it, the
    journals in the state folder are taken ($XDG_STATE_HOME or ~/.local/state). Those of running processes are left
    alone.
    """
    from roastcoffea.log.journal import journals_in
    from roastcoffea.recording.assembly import state_folder
    from roastcoffea.recording.facility.index import is_facility
    from roastcoffea.report.runs import sheet_of_journals
    from roastcoffea.sheets.terminal import print_sheets

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
    from roastcoffea.log.journal import CLAIM, DAMAGED, claimed, remove_journal
    from roastcoffea.recording.importers import recovered

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


def _given(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    from roastcoffea.instrument.calls import given_name

    try:
        return given_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings={"allow_interspersed_args": False})
@shell.measurements_folder("Folder for the measurements.", envvar="ROASTCOFFEA", show_envvar=True)
@click.option("--name", callback=_given, help="Name of the measurements: their title, and their folders' names.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option(
    "--profile/--no-profile", default=True, help="Sample which functions process() is at.  [default: profile]"
)
@click.option("--open", "open_page", is_flag=True, help="Open the page of the last measurement in a browser.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(
    *,
    output: Path,
    name: str | None,
    as_module: bool,
    profile: bool,
    open_page: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Callable[[], None]:
    """Run SCRIPT as python does, and measure each Runner call in it.

    Output and exit status are those of the script. Each call becomes a measurement, saved when it ends, even if it
    fails or is interrupted. At the end each measurement gets a page for a browser, and its summary is printed on
    stderr. Options of this command come before SCRIPT, those of the script after it.
    """
    from roastcoffea.recording.auto import runnable

    try:
        return runnable(
            script, list(arguments), as_module=as_module, out=output, profile=profile, open_page=open_page, name=name
        )
    except OSError as error:
        raise click.UsageError(f"can't open file {script!r}: {error.strerror}") from error


if TYPE_CHECKING:
    from distributed import Client

    from roastcoffea.monitor.history import Snapshot
    from roastcoffea.monitor.shown import Look


@click.command
@click.argument("address", metavar="SCHEDULER")
@shell.bounded("--interval", click.FloatRange(0.05), 0.5, "Seconds between updates.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Seconds to watch; by default until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each update as one line of JSON, and nothing else.")
@shell.output("Record every task, and save the records in this folder.", shell.FOLDER)
def watch_command(*, address: str, interval: float, seconds: float | None, as_json: bool, output: Path | None) -> int:
    """Watch all tasks of the cluster of SCHEDULER (tcp://host:8786).

    A terminal shows tasks by prefix and state in its lowest rows; otherwise a line is printed for each change. The
    numbers are Dask's own counts: nothing is installed on the scheduler. With --output, a small plugin records every
    task, and a table is printed at the end.
    """
    from distributed import Client
    from distributed.comm import get_address_host_port

    from roastcoffea.backends.deployment import SCHEDULER_TIMEOUT

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it writes a traceback when a scheduler goes
    try:
        get_address_host_port(address)  # a client would try an unknown scheme for a long time
        client = Client(address, timeout=SCHEDULER_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = f"no scheduler answers at {address} ({redacted(str(error))}); use tcp://HOST:PORT"
        raise RoastcoffeaError(reason) from None
    with client:
        ended = (
            _look(client, interval, seconds, as_json)
            if output is None
            else _record(client, interval, seconds, as_json, output)
        )
    return 0 if ended else shell.fail(f"the scheduler at {address} is gone", shell.FAILED)


def _look(client: Client, interval: float, seconds: float | None, as_json: bool) -> bool:
    """Poll Dask's counts; return whether the scheduler was there to the end."""
    from roastcoffea.monitor.shown import look_text, looks
    from roastcoffea.report.live import display_for

    display = None if as_json else display_for(sys.stderr)
    if display is None:
        return _follow(looks(client, interval), interval, seconds, _printer(as_json))
    began, last = time.time(), ""

    def show(look: Any) -> None:
        nonlocal last
        last = look_text(look, time.time() - began)
        display.show(last)

    try:
        return _follow(looks(client, interval), interval, seconds, show)
    finally:
        display.end(last)
        click.echo(last)


def _record(client: Client, interval: float, seconds: float | None, as_json: bool, output: Path) -> bool:
    """Record every task and save them; return whether the scheduler was there to the end."""
    from roastcoffea.monitor.task_monitor import TaskMonitor

    live = not as_json and sys.stderr.isatty()
    with TaskMonitor(client, live=live) as monitor:
        show = (lambda _: None) if live else _printer(as_json)
        ended = not monitor.running or _follow(monitor.watch(interval), interval, seconds, show)
    if as_json:
        for problem in monitor.problems:
            shell.say(problem, err=True)
    else:
        monitor.print()
    if monitor.watched():
        shell.say(monitor.save(output), err=as_json)
    return ended


def _follow(
    watch: Iterable[Look | Snapshot],
    interval: float,
    seconds: float | None,
    show: Callable[[Any], None],
) -> bool:
    """Show updates until the time is over or the user interrupts; return whether the scheduler was there till then."""
    end = inf if seconds is None else time.monotonic() + seconds
    try:
        for look in watch:
            show(look)
            if time.monotonic() + interval > end:
                time.sleep(max(0.0, end - time.monotonic()))
                return True
    except KeyboardInterrupt:
        return True
    return False


def _printer(as_json: bool) -> Callable[[Look | Snapshot], None]:
    """Function that prints updates: each as JSON, or a line for each change."""
    from roastcoffea.units import counted

    before = ""

    def show(look: Look | Snapshot) -> None:
        nonlocal before
        if as_json:
            click.echo(json.dumps({"time": look.time, "workers": look.num_workers, "tasks": look.prefixes}))
            return
        states = ", ".join(f"{count} {state}" for state, count in look.states.items())
        text = (
            f"{counted(look.num_workers, 'worker')}, {counted(look.num_tasks, 'task')}{': ' if states else ''}{states}"
        )
        if text != before:
            click.echo(f"{look.timestamp:%H:%M:%S}  {text}")
        before = text

    return show
