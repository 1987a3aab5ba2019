"""Commands that show, list, draw, export and share measurements."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.errors import MeasurementError
from roastcoffea.report.exports import FORMATS, default_name
from roastcoffea.storage.folders import OR_OVERWRITE


@click.command
@shell.measurement
@shell.choice("--format", "file_format", among=list(FORMATS), required=True, help="Output format.")
@shell.output(
    "Folder (csv, parquet, json) or file to write; by default named after the measurement, in this folder.",
    click.Path(path_type=Path),
)
@shell.share
@shell.overwrite("existing output")
def export_command(*, path: Path, file_format: str, output: Path | None, share: bool, overwrite: bool) -> None:
    """Write the measurement in PATH for other programs.

    csv, parquet and json write a folder with a file per table, including metrics, and columns.json with the meanings of
    columns. openmetrics writes a file of metrics for Prometheus, perfetto one with a track per worker thread, for
    https://ui.perfetto.dev (compressed if its name ends with .gz). speedscope and collapsed write the profile, for
    https://www.speedscope.app and flamegraph.pl.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or default_name(path, shell.SHARED * share + FORMATS[file_format].ending)
    shell.say(measurement.export(target, file_format, overwrite, share=share))


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
def list_command(folder: Path, by: str, outcome: str | None, processor: str | None) -> int:
    """List the measurements in FOLDER (default: roastcoffea-runs): what ran, how fast, what limits it, how it ended."""
    from roastcoffea.report.runs import entry_of, in_order, sheet_of_runs
    from roastcoffea.sheets.sheet import Sheet
    from roastcoffea.sheets.terminal import INDENT, print_sheets
    from roastcoffea.storage.store import is_monitor, list_runs, not_a_measurement

    _mention_lost()
    if folder == Path(shell.RUNS_FOLDER) and not folder.exists():  # the default
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
    from roastcoffea.recording.assembly import state_folder
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


@click.command
@click.option("--markdown", is_flag=True, help="Print the page of the documentation.")
def metrics_command(markdown: bool) -> None:
    """Print every metric with its unit, source and meaning."""
    from roastcoffea.report.glossary import metric_reference, print_reference

    if markdown:
        click.echo(metric_reference(), nl=False)
    else:
        print_reference(sys.stdout)


@click.command
@shell.measurement
@click.argument("names", nargs=-1, metavar="[NAME]...")
@shell.output("Folder for the files  [default: roastcoffea-plots/NAME OF THE MEASUREMENT]", shell.FOLDER)
@shell.choice("--format", "suffix", among=shell.PICTURE_FORMATS, default="png", help="File format.")
@click.option("--dark", is_flag=True, help="Draw for a dark background.")
@shell.overwrite("existing files")
def plot_command(
    *, path: Path, names: tuple[str, ...], output: Path | None, suffix: str, dark: bool, overwrite: bool
) -> int:
    """Draw the plots NAME of the measurement in PATH, or all available ones.

    Names are those of the functions, with or without "plot_". The reason for a plot that cannot be drawn is printed on
    stderr; that is a failure if the plot was requested by name, or if no plot could be drawn.
    """
    from roastcoffea.studies.merging import measurement_at
    from roastcoffea.visualization.plots import PLOTS
    from roastcoffea.visualization.registry import figure_alone, registered, save

    try:
        wanted = list(dict.fromkeys(registered(name) for name in names)) or list(PLOTS.values())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    measurement = measurement_at(path)
    folder = Path("roastcoffea-plots", default_name(path, "")) if output is None else output
    files = {entry: folder / f"{entry.name}.{suffix}" for entry in wanted}
    if not overwrite and (taken := next(filter(Path.exists, files.values()), None)):
        raise MeasurementError(f"{taken} exists; {OR_OVERWRITE}")  # before the first is drawn
    drawn = 0
    for entry, file in files.items():
        try:
            figure = figure_alone(entry, measurement, dark=dark)
        except ValueError as reason:
            shell.fail(str(reason), shell.FAILED)
        else:
            shell.say(save(figure, file, overwrite=overwrite))
            drawn += 1
    return 0 if drawn == len(wanted) or (drawn and not names) else shell.FAILED


KEPT = "Names of datasets, sections and the run are kept: check them before publishing."


@click.command
@shell.measurement
@shell.output("Folder of the copy; by default PATH-shared.", shell.FOLDER)
@shell.overwrite("an existing measurement")
def redact_command(*, path: Path, output: Path | None, overwrite: bool) -> None:
    """Copy the measurement in PATH with made-up names of hosts, users and paths, to show it to anybody.

    Equal names stay equal: the first host is host-1 everywhere, and addresses keep their ports. Batch jobs, queues and
    sites have made-up names as well. All numbers are the same.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or _beside(path)
    shell.say(measurement.save(target.parent, target.name, overwrite, share=True))
    shell.say(KEPT, err=True)


def _beside(path: Path) -> Path:
    """Folder of the copy, next to the measurement."""
    folder = path.resolve()
    return (folder.parent if folder.is_file() else folder).with_name(default_name(path, shell.SHARED))


@click.command
@shell.measurement
@shell.output("File to write; by default named after the measurement, in this folder.")
@click.option("--every-task", is_flag=True, help="Include every task, even if there are more than 100,000.")
@shell.share
@shell.overwrite()
def report_command(*, path: Path, output: Path | None, every_task: bool, share: bool, overwrite: bool) -> None:
    """Write the measurement in PATH as one HTML page for any browser.

    It has the verdict, both ledgers, charts over time down to single tasks, and tables of datasets, files, branches,
    sections, workers and failures.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or default_name(path, f"{shell.SHARED * share}.html")
    shell.say(measurement.report(target, every_task=every_task, overwrite=overwrite, share=share))


@click.command
@shell.measurement
@click.option("--all", "everything", is_flag=True, help="Print all tables.")
@click.option("--group", help="Print the tables of one group.")
@shell.share
def show_command(*, path: Path, everything: bool, group: str | None, share: bool) -> None:
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
