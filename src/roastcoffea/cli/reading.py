"""Commands that show, list, draw, export and share measurements."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from roastcoffea.cli import shell
from roastcoffea.errors import MeasurementError, RoastcoffeaError
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
    from roastcoffea.log.journal import journals_in
    from roastcoffea.recording.assembly import state_folder
    from roastcoffea.report.runs import entry_of, in_order, sheet_of_runs
    from roastcoffea.sheets.sheet import Sheet
    from roastcoffea.sheets.terminal import print_sheets
    from roastcoffea.storage.store import is_monitor, list_runs, not_a_measurement
    from roastcoffea.units import counted

    place = state_folder()
    if lost := sum(not journal.is_written for journal in journals_in(place)[0]):
        shell.say(f"{counted(lost, 'lost run')} in {place} can be recovered: roastcoffea recover", err=True)
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
    # what reads it from a pipe or a file otherwise wants a line for each run, and names as they are
    asked, columns = os.environ.get("COLUMNS", ""), shutil.get_terminal_size().columns
    piped = int(asked) if asked.isdecimal() and int(asked) else UNLIMITED
    width = max(columns if sys.stdout.isatty() else piped, NARROWEST)
    print_sheets([sheet_of_runs(in_order(entries, by), width - NARROWEST), Sheet(lead=errors)], width=width)
    return 0


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
    beside = path.resolve().parent if path.is_dir() else path.resolve().parent.parent
    target = output or beside / default_name(path, shell.SHARED)
    shell.say(measurement.save(target.parent, target.name, overwrite, share=True))
    shell.say(KEPT, err=True)


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


@click.command
@click.argument("runs", nargs=-1, metavar="A B [C]...", required=True)
@click.option("--all", "everything", is_flag=True, help="Also show what does not differ.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="An unwanted change, such as 'event_rate_core_khz < -10%'; may be repeated.",
)
@shell.bounded("--confidence", click.FloatRange(0.5, 1, max_open=True), 0.95, "Of intervals, verdicts and conditions.")
@shell.choice("--format", "form", among=("text", "markdown", "json", "html"), default="text", help="Output format.")
@shell.output("File to write instead of printing to the terminal.")
@shell.overwrite()
def compare_command(
    *, runs: tuple[str, ...], form: str, output: Path | None, everything: bool, overwrite: bool, **evidence: Any
) -> int:
    """Compare measurements with the first one: what differs, why, and how certain it is.

    Each of A, B, ... is a measurement, a folder of repeats or of the jobs of a campaign, a quoted pattern such as
    'runs/new-*', or a name to which repeats have added a number (runs/new for runs/new-1, runs/new-2). With --fail-if
    the exit status is 0; 1 if a condition holds with evidence; 2 if that is undecided or the input cannot be used.
    Changes are relative to A: in %, otherwise in the metric's unit.
    """
    try:
        from roastcoffea.studies.compare import compare

        comparison = compare(*runs, folder=shell.RUNS_FOLDER, **evidence)
        try:
            comparison.write(output, form, everything=everything, overwrite=overwrite)
        except BrokenPipeError:
            shell.leave_stdout()
    except (RoastcoffeaError, OSError) as error:
        return shell.fail(str(error), shell.UNUSABLE)
    except Exception:  # noqa: BLE001  (Python's own status for it is that of a run that got worse)
        traceback.print_exc()
        return shell.UNUSABLE
    return comparison.status


@click.command
@click.argument("folder", type=click.Path(path_type=Path), default=shell.RUNS_FOLDER)
@click.option("--page", "page", type=shell.FILE, help="Write a page for a browser to this file.")
@click.option("--all", "everything", is_flag=True, help="List all runs, not only the latest.")
@shell.as_json
@shell.overwrite("an existing page")
def history_command(*, folder: Path, page: Path | None, everything: bool, as_json: bool, overwrite: bool) -> None:
    """Show the runs in FOLDER (default: roastcoffea-runs) over time, and the runs at which they changed.

    Shows rate per core, CPU and bytes per event, failed attempts, and the versions and settings that changed, for each
    processor with its datasets. Failed and incomplete runs are listed, but not used.
    """
    from roastcoffea.studies.history import history

    found = history(folder)
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        found.print(sys.stdout, everything=everything)
    if page is not None:
        shell.say(found.page(page, overwrite=overwrite), err=as_json)


@click.command
@shell.runs
@shell.measurements_folder("Folder for the merged measurement.")
@click.option("--name", help="Name of the merged measurement.")
@shell.share
@click.option("--overwrite", is_flag=True, help="Overwrite a measurement of that name.")
def merge_command(*, runs: tuple[str, ...], output: Path, name: str | None, share: bool, overwrite: bool) -> None:
    """Merge the measurements of independent jobs into one.

    Each RUN is the folder of a measurement, a pattern, or a folder that holds measurements.
    """
    from roastcoffea.studies.merging import merge

    campaign = merge(shell.paths_of(runs), name=name)
    path = campaign.save(output, name, overwrite, share=share)
    shell.say(f"{len(campaign.run.merged)} runs merged: {path}")


@click.command
@shell.runs
@shell.as_json
@click.option("--plot", "picture", type=shell.FILE, help="File for a plot.")
@click.option("--page", "page", type=shell.FILE, help="Write a page for a browser to this file.")
@click.option("--rate", metavar="RATE", help="A rate to reach, such as '200 Gbit/s' or '50 kHz': what has to change.")
@shell.overwrite("an existing page")
def scaling_command(
    *, runs: tuple[str, ...], as_json: bool, picture: Path | None, page: Path | None, rate: str | None, overwrite: bool
) -> None:
    """Show why more workers give less, from how many on, and what would have to change.

    Takes measurements with at least two different numbers of workers, on the same files or on files that grow with the
    workers; repeats provide the intervals. A RUN may also be a folder, a quoted pattern, or a name with repeats.
    """
    from roastcoffea.studies.scaling import scaling

    formats = shell.PICTURE_FORMATS
    if picture is not None and picture.suffix[1:].lower() not in formats:
        raise click.UsageError(f"--plot {picture}: the name of a plot must end with .{', .'.join(formats)}")
    try:
        found = scaling(shell.paths_of(runs), rate=rate)
    except ValueError as error:
        if rate is None:
            raise
        raise click.UsageError(f"--rate: {error}") from None
    shell.print_study(found, as_json)
    if picture is not None:
        found.plot(picture)
        shell.say(picture, err=as_json)
    if page is not None:
        shell.say(found.page(page, overwrite=overwrite), err=as_json)


class SeveralNumbers(click.Command):
    """Command whose integer options take several values at once: `--workers 1 2 4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further number, as click requires."""
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        given, option = [""], ""
        for word in args:
            if word.isdecimal():
                given += [option] if option not in {"", given[-1]} else []
            else:
                option = word.partition("=")[0]
                option = option if option in several else ""
            given.append(word)
        return super().parse_args(ctx, given[1:])


@click.command(cls=SeveralNumbers)
@shell.runs
@click.option("--workers", multiple=True, type=click.IntRange(1, 10_000), help="Numbers of worker processes: 1 2 4.")
@click.option("--threads", multiple=True, type=click.IntRange(1, 256), help="Threads per worker.")
@click.option("--same-host", is_flag=True, help="Workers share the cores of one host; otherwise each adds cores.")
@click.option("--chunksize", multiple=True, type=click.IntRange(1), help="Events per chunk: 25000 100000.")
@shell.bounded("--storage", click.FloatRange(1), 2.0, "Speed-up of storage in its scenario.")
@shell.as_json
def what_if_command(*, runs: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Predict the wall time of RUN on other clusters and with other chunk sizes, with an error estimate.

    The first RUN is replayed. More runs of the same analysis on the same files help: repeats show the spread, runs with
    other workers check the predictions, and runs with another chunk size show the fixed cost of a chunk. A RUN may also
    be a folder (its oldest run first), a quoted pattern, or a name with repeats.

    Several numbers may follow an option. A run whose name is a number comes before the options.
    """
    from roastcoffea.studies.what_if import what_if

    shell.print_study(what_if(*shell.paths_of(runs), **settings), as_json)
