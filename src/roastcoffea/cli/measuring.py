"""Commands that measure the demo, scripts, clusters and facilities, or recover lost runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError

if TYPE_CHECKING:
    from roastcoffea.log.journals import Journal


CHUNKSIZE: Final = "Approximate number of events per task; coffea splits each file into equal chunks."


@shell.command("demo --workers 4 --open")
@shell.bounded("--files", click.IntRange(1, 1000), 4, "Number of files in each of two datasets.")
@shell.bounded(
    "--events", click.IntRange(100, 10_000_000), 50_000, "Number of events per file; 10,000 events take 1.5 MB on disk."
)
@shell.bounded("--chunksize", click.IntRange(10, 10_000_000), 10_000, CHUNKSIZE)
@shell.bounded("--workers", click.IntRange(1, 64), 2, "Number of worker processes.")
@shell.bounded("--threads", click.IntRange(1, 64), 1, "Number of threads per worker.")
@click.option(
    "--folder",
    type=shell.FOLDER,
    help="Folder in which to keep the sample; temporary by default.",
)
@shell.measurements_folder("Folder for the measurement.")
@shell.opened
def demo_command(*, folder: Path | None, output: Path, open_page: bool, **size: Any) -> None:
    """Measure a small analysis on a local cluster.

    Creates two datasets of NanoAOD-like files, histograms their dijet mass on a local Dask cluster, prints a summary,
    and saves the measurement. By default, the analysis reads 400,000 events in 40 tasks and takes less than a minute.
    """
    from roastcoffea.cli.sample import run_demo
    from roastcoffea.generations import runner_and_executor
    from roastcoffea.storage.store import PAGE_FILE

    if runner_and_executor() is None:
        raise RoastcoffeaError(
            f"the demo needs a Runner, and coffea {version('coffea')} has none: install coffea 2025.7 or newer, or "
            "wrap the dask.compute(...) of your own analysis in MetricsCollector"
        )
    path = run_demo(folder=folder, out=output, **size)
    if open_page:
        shell.show_page(path / PAGE_FILE, open_page)


@shell.command("facility /var/lib/roastcoffea -o runs.html -o runs.csv")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--day", help="Include only this day (UTC), e.g. 2026-11-24.")
@shell.bounded("--watts-per-core", click.FloatRange(min=0), None, "Power per core, for an energy estimate.")
@click.option("--save", "measurements", is_flag=True, help="Save each finished run as a measurement.")
@click.option("--page", type=shell.FILE, hidden=True)
@click.option("--csv", type=shell.FILE, hidden=True)
@click.option("--parquet", type=shell.FILE, hidden=True)
@shell.output(
    "File to write: a page (.html) or the table of runs (.csv, .parquet). With --save, it can also be the"
    f" folder for measurements, which defaults to {shell.RUNS_FOLDER}. May be repeated.",
    shell.ANY,
    multiple=True,
)
@shell.opened
@shell.overwrite()
def facility_command(
    *,
    folder: Path,
    day: str | None,
    watts_per_core: float | None,
    measurements: bool,
    output: tuple[Path, ...],
    open_page: bool,
    overwrite: bool,
    **older: Path | None,
) -> int:
    """List the runs recorded by a scheduler and what they cost.

    To record runs, start the scheduler with `dask scheduler --preload roastcoffea.facility --roastcoffea-journal
    FOLDER`.
    """
    from roastcoffea.recording.facility.index import index_of, save_ended, sheets, write_page
    from roastcoffea.report.exports.tables import WRITERS
    from roastcoffea.sheets.terminal import print_sheets
    from roastcoffea.storage.folders import whole_file

    endings = (".html", *(f".{form}" for form in WRITERS))
    files = {path: path.suffix for path in output if path.suffix in endings}
    files |= {path: f".{form}".replace("page", "html") for form, path in older.items() if path is not None}
    if open_page and ".html" not in files.values():
        files[Path("facility.html")] = ".html"
    folders = [path for path in output if path not in files]
    if len(folders) > measurements:
        raise click.UsageError(
            f"-o {folders[0]}: a file name must end in {', '.join(endings)}; for a folder, add --save"
        )
    for path in files:
        shell.new_file(path, overwrite)
    found = index_of(folder, day, watts_per_core)
    print_sheets(sheets(found))
    for path, ending in files.items():
        if ending == ".html":
            shell.show_page(write_page(found, path, overwrite=overwrite), open_page)
            continue
        with whole_file(path, overwrite=overwrite) as file:
            WRITERS[ending[1:]](found.runs, file)
        shell.say(path)
    for path in save_ended(found, *folders or [shell.RUNS_FOLDER]) if measurements else ():
        shell.say(path)
    return 0


@shell.command("recover --list")
@click.argument("folder", type=shell.FOLDER, required=False)
@shell.measurements_folder("Folder for the measurements.")
@click.option("--list", "list_only", is_flag=True, help="Only list the journals; change nothing.")
@click.option("--keep", is_flag=True, help="Keep the journals of recovered runs.")
def recover_command(folder: Path | None, output: Path, list_only: bool, keep: bool) -> int:
    """Save measurements of runs whose client was killed.

    While a run is being measured, its records are written to a journal. FOLDER is a journal or a folder of journals. It
    defaults to a folder in the user's state directory ($XDG_STATE_HOME or ~/.local/state). Journals still in use by a
    running process are left alone.
    """
    from roastcoffea.log.journals import journals_in
    from roastcoffea.recording.assembly import state_folder
    from roastcoffea.recording.facility.index import is_facility
    from roastcoffea.report.runs import sheet_of_journals
    from roastcoffea.sheets.terminal import print_sheets

    place = folder or state_folder()
    found, unreadable = journals_in(place)
    journals = [journal for journal in found if not is_facility(journal)]
    if len(journals) < len(found):
        unreadable.append(f"{place} contains scheduler journals; use roastcoffea facility {place} --save")
    if journals:
        print_sheets([sheet_of_journals(journals)])
    elif folder is not None and not folder.exists():
        unreadable.append(f"{folder} does not exist; pass a journal or a folder of journals")
    elif not unreadable:
        shell.say(f"There are no journals in {place}.")
    for problem in unreadable:
        shell.fail(problem, shell.FAILED)
    lost = [] if list_only else [journal for journal in journals if not journal.is_written]
    made = [_recover(journal, output, keep) for journal in lost]
    return 0 if all(made) and not unreadable else shell.FAILED


def _recover(journal: Journal, output: Path, keep: bool) -> bool:
    from roastcoffea.errors import MeasurementError, RoastcoffeaError, reported
    from roastcoffea.log.journal import remove_journal
    from roastcoffea.log.journals import CLAIM, DAMAGED, claimed
    from roastcoffea.recording.importers import recovered

    expected = (RoastcoffeaError, *DAMAGED)
    what = f"{journal.folder} was not recovered"
    with (
        reported(lambda reason: shell.fail(reason, shell.FAILED), what, expected),
        claimed(journal.folder) as ours,
    ):
        if not ours:
            left = f"; if no process is using it, remove {journal.folder / CLAIM}" * (journal.folder / CLAIM).exists()
            shell.say(f"{what}: another process is writing or recovering it, or has removed it{left}")
            return True
        measurement = recovered(journal)
        try:
            path = measurement.save(output)
        except MeasurementError as error:
            if error.saved is None:
                raise
            path = error.saved  # with all records: recovering again would save the run twice
            shell.say(str(error))
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


@shell.command("run --open analysis.py --year 2018", context_settings={"allow_interspersed_args": False})
@shell.measurements_folder("Folder for the measurements.", envvar="ROASTCOFFEA", show_envvar=True)
@click.option("--name", callback=_given, help="Name of the measurements, used as their title and folder name.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module name, as with python -m.")
@click.option(
    "--profile/--no-profile", default=True, help="Profile process() by sampling its call stack.  [default: profile]"
)
@click.option("--open", "open_page", is_flag=True, help="Open the last measurement's page in a browser.")
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
    """Run a script as python would, and measure its Runner calls.

    The output and exit status are the script's own. Each call becomes a measurement, which is saved when the call ends,
    even if it fails or is interrupted. At the end, an HTML page is written for each measurement, and a summary is
    printed to stderr. Put options for this command before SCRIPT, and options for the script after it.
    """
    from roastcoffea.recording.auto import runnable

    try:
        return runnable(
            script, list(arguments), as_module=as_module, out=output, profile=profile, open_page=open_page, name=name
        )
    except OSError as error:
        raise click.UsageError(f"can't open file {script!r}: {error.strerror}") from error


def _share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    return float(click.FloatRange(0, 100, min_open=True)(text.removesuffix("%"), parameter, context)) / 100


def _counts(context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    words = [] if text is None else text.split(",")
    return [click.IntRange(1, 10_000)(word, parameter, context) for word in words] or None


@shell.command("plan --sample 2% analysis.py --year 2018", context_settings={"allow_interspersed_args": False})
@click.option("--sample", callback=_share, default="2%", show_default=True, help="Percentage of the chunks to run.")
@click.option("--workers", callback=_counts, metavar="N,N,...", help="Numbers of worker processes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for drawing the sample.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@shell.study
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan_command(
    *,
    sample: float,
    workers: list[int] | None,
    seed: int,
    script: str,
    arguments: tuple[str, ...],
    as_module: bool,
    **options: Any,
) -> Callable[[], None]:
    """Forecast the cost of a Runner call from a sample of its chunks.

    Runs the script up to its first Runner call, processes a random sample of the chunks, prints the forecast and ends
    the script. Files that process() and postprocess() write are written. Options for this command go before SCRIPT,
    options for the script after it. With --json, what the script itself prints goes to stderr.

    The JSON has "cpu", "memory", "endpoints" and "output" (each with "value", "low" and "high", in seconds and bytes),
    "clusters" (by number of workers), "request", "workers", "chunksize" and "missing".
    """
    from roastcoffea.recording.auto import AtFirstCall, runnable_with

    show = _shown("plan.html", options)

    def forecast(runner: Any, **given: Any) -> None:
        from roastcoffea.studies.plan import plan  # not before the script has imported numerical libraries

        show(plan(runner, **given, sample=sample, workers=workers, seed=seed))

    planner = AtFirstCall(forecast, "there is no forecast")
    try:
        run = runnable_with(planner, planner.say_end, script, list(arguments), as_module=as_module)
    except OSError as error:
        raise click.UsageError(f"can't open file {script!r}: {error.strerror}") from error

    def planned() -> None:
        with redirect_stdout(sys.stderr) if options["as_json"] else nullcontext():
            run()
        if not planner.has_acted:
            raise SystemExit(1)

    return planned


def _shown(default: str, options: dict[str, Any]) -> Callable[[Any], None]:
    """Create a function that presents a result while a script runs."""
    if options["output"] is not None or options["open_page"]:  # the script may change the working directory
        options["output"] = shell.new_file(options["output"] or Path(default), options["overwrite"]).absolute()
    stdout = sys.stdout

    def show(found: Any) -> None:
        with redirect_stdout(stdout):
            shell.present(lambda: found, default, **options)

    return show


@shell.command("duet --minutes 10 before.py after.py --year 2018", context_settings={"allow_interspersed_args": False})
@shell.bounded("--minutes", click.FloatRange(0, min_open=True), 10.0, "Time for processing chunks.")
@click.option("-m", "as_module", is_flag=True, help="A and B are module names, as with python -m.")
@shell.study
@click.argument("a")
@click.argument("b")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def duet_command(
    *, minutes: float, as_module: bool, a: str, b: str, arguments: tuple[str, ...], **options: Any
) -> Callable[[], None]:
    """Compare two versions of a processor on the same chunks.

    A and B are scripts that call a Runner. Script B runs up to its first Runner call, which shows the processor. Then
    script A runs up to its first Runner call. Instead of it, its Runner processes chunks of its fileset with both
    processors, one right after the other in random order. The change in CPU time is printed, and the script ends. Files
    that process() writes are written by both. Options for this command go before A, options for both scripts after B.

    The JSON has "names", "seconds", "verdict", "changes" (for "cpu", "wall", "bytes" and "memory", each with "a", "b",
    "change", "low", "high" and "detectable"), "differences" between the outputs, "missing" and "pairs".
    """
    from roastcoffea.recording.auto import AtFirstCall, modules_in, runnable_with

    show, known = _shown("duet.html", options), {*sys.modules}
    places = [Path.cwd() if as_module else Path(script).resolve().parent for script in (a, b)]
    pickled: list[bytes] = []

    def keep(place: Path, processor: Any) -> None:
        import cloudpickle

        # scripts in the same folder share their modules, others have their own
        modules = modules_in(place, known) if places[0] != places[1] else {}
        for module in modules.values():
            cloudpickle.register_pickle_by_value(module)
        pickled.append(cloudpickle.dumps(processor))
        for name in modules:
            del sys.modules[name]

    def compare(runner: Any, processor_instance: Any, **given: Any) -> None:
        from roastcoffea.studies.duet import duet  # not before the script has imported numerical libraries

        keep(places[0], processor_instance)
        show(replace(duet(pickled[1], pickled[0], runner, **given, minutes=minutes), names=(a, b)))

    before = AtFirstCall(compare, "there is no duet")
    missing, ending = f"there is no processor in {b}", f"{b} is version B"
    after = AtFirstCall(lambda *_, processor_instance, **__: keep(places[1], processor_instance), missing, ending)
    try:
        first, second = (
            runnable_with(one, one.say_end, script, list(arguments), as_module=as_module)
            for one, script in ((after, b), (before, a))
        )
    except OSError as error:
        raise click.UsageError(f"can't open file {error.filename!r}: {error.strerror}") from error

    def dueled() -> None:
        with redirect_stdout(sys.stderr) if options["as_json"] else nullcontext():
            try:
                first()
            except SystemExit:
                if not pickled:
                    raise
            if pickled:
                after.stop()
                second()
        if not before.has_acted:
            raise SystemExit(1)

    return dueled


if TYPE_CHECKING:
    from distributed import Client

    from roastcoffea.monitor.history import Snapshot
    from roastcoffea.monitor.shown import Look


@shell.command("watch tcp://scheduler:8786 --seconds 60")
@click.argument("address", metavar="SCHEDULER")
@shell.bounded("--interval", click.FloatRange(0.05), 0.5, "Seconds between updates.")
@shell.bounded(
    "--seconds", click.FloatRange(0, min_open=True), None, "Number of seconds to watch; by default, until Ctrl-C."
)
@click.option("--json", "as_json", is_flag=True, help="Print only JSON, one line per update.")
@shell.output("Record every task, and save the records in this folder.", shell.FOLDER)
def watch_command(*, address: str, interval: float, seconds: float | None, as_json: bool, output: Path | None) -> int:
    """Watch all tasks on a cluster.

    In a terminal, the bottom rows show tasks by prefix and state; otherwise, a line is printed for each change. The
    numbers are Dask's own counts, so nothing is installed on the scheduler. With --output, a small scheduler plugin
    records every task, and a table is printed at the end.
    """
    client = shell.client_at(address)
    with client:
        ended = (
            _look(client, interval, seconds, as_json)
            if output is None
            else _record(client, interval, seconds, as_json, output)
        )
    return 0 if ended else shell.fail(f"the scheduler at {address} is gone", shell.FAILED)


def _look(client: Client, interval: float, seconds: float | None, as_json: bool) -> bool:
    """Poll Dask's task counts; return whether the scheduler was still available at the end."""
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
    """Record and save every task; return whether the scheduler was still available at the end."""
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
    if monitor._periods():
        shell.say(monitor.save(output), err=as_json)
    return ended


def _follow(
    watch: Iterable[Look | Snapshot],
    interval: float,
    seconds: float | None,
    show: Callable[[Any], None],
) -> bool:
    """Show updates until the time is up or the user presses Ctrl-C; return False if the scheduler is gone."""
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
