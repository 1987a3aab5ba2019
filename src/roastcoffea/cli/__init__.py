"""The command `roastcoffea`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from roastcoffea import __version__
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.report.terminal import printable

if TYPE_CHECKING:
    from roastcoffea.measurement import Measurement
    from roastcoffea.storage.store import StoredRun
    from roastcoffea.studies.scaling.scaling import Scaling
    from roastcoffea.studies.what_if.prediction import WhatIf

RUNS_FOLDER: Final = Path("roastcoffea-runs")
PLOTS_FOLDER: Final = Path("roastcoffea-plots")
PICTURE_FORMATS: Final = ("png", "pdf", "svg")
EXPORT_FORMATS: Final = ("csv", "parquet", "json", "openmetrics", "perfetto")
COMPARISON_FORMATS: Final = ("text", "markdown", "json", "html")
FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of one command; an error is one line on stderr.

    The script of `roastcoffea run` is executed outside of all this: its errors and its exit are its own.
    """
    try:
        given: int | Callable[[], None] | None = commands.main(
            arguments, prog_name="roastcoffea", standalone_mode=False
        )
        sys.stdout.flush()
    except click.Abort:
        return fail("interrupted", INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "roastcoffea"
        return fail(f"{error.format_message()} (see {command} --help)", error.exit_code)
    except BrokenPipeError:
        leave_stdout()
        return FAILED
    except (RoastcoffeaError, OSError) as error:
        return fail(str(error), FAILED)
    if callable(given):
        given()
        return 0
    return given or 0


def leave_stdout() -> None:
    """Give Python, which flushes once more as it exits, a place to: the reader has gone, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(reason: str, status: int) -> int:
    """Say the reason in one line, and give the status back."""
    click.echo(f"roastcoffea: {printable(' '.join(reason.split()))}", err=True)
    return status


def say(what: object) -> None:
    """Print a line in which names of files and folders cannot steer the terminal."""
    click.echo(printable(str(what)))


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="roastcoffea")
@click.pass_context
def commands(context: click.Context) -> None:
    """Measure coffea analyses."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command()
@click.option(
    "--files",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Files in each of two datasets.",
)
@click.option(
    "--events",
    type=click.IntRange(100, 10_000_000),
    default=50_000,
    show_default=True,
    help="Events in each file; 10,000 take 1.5 MB of disk.",
)
@click.option(
    "--chunksize",
    type=click.IntRange(10, 10_000_000),
    default=10_000,
    show_default=True,
    help="About how many events make one task; coffea divides each file equally.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--threads", type=click.IntRange(1, 64), default=1, show_default=True, help="Threads of a worker.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the sample here, and take it from here the next time; else it is temporary.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS_FOLDER,
    show_default=True,
    help="Folder that gets the measurement.",
)
def demo(
    *, files: int, events: int, chunksize: int, workers: int, threads: int, folder: Path | None, out: Path
) -> None:
    """Measure a small analysis, on a cluster of this machine.

    Makes two datasets of NanoAOD-like files, fills histograms of the dijet mass from them on a local Dask
    cluster, prints what was measured, and saves it. Without options it reads 400,000 events in 40 tasks, and
    ends in well under a minute.
    """
    from roastcoffea.cli.demo import run_demo

    run_demo(
        files=files,
        events=events,
        chunksize=chunksize,
        workers=workers,
        threads=threads,
        folder=folder,
        out=out,
    )


@commands.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="ROASTCOFFEA",
    default=RUNS_FOLDER,
    show_default=True,
    show_envvar=True,
    help="Folder that gets the measurements.",
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(*, out: Path, as_module: bool, script: str, arguments: tuple[str, ...]) -> Callable[[], None]:
    """Run SCRIPT as python does, and measure each Runner call in it.

    Its output and exit status are its own. Each call makes a measurement, saved as it ends, also where it fails or is
    interrupted; their tables come on stderr at the end. Options stand before SCRIPT, what follows it is for the script.
    """
    from roastcoffea.recording.script import runnable

    try:
        return runnable(script, list(arguments), as_module=as_module, out=out)
    except OSError as error:
        raise click.UsageError(f"can't open file {script!r}: {error.strerror}") from error


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
def show(path: Path) -> None:
    """Print the tables of the measurement in PATH."""
    from roastcoffea.measurement import load

    load(path).print_summary()


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets the files  [default: roastcoffea-plots/NAME OF THE MEASUREMENT]",
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(PICTURE_FORMATS),
    default="png",
    show_default=True,
    help="Kind of files.",
)
def plot(path: Path, names: tuple[str, ...], out: Path | None, suffix: str) -> int:
    """Draw the plots NAME of the measurement in PATH, or all that can be drawn of it.

    Names are those of the functions, with or without "plot_". Files that are there are replaced. A plot that cannot be
    drawn is told with its reason on stderr; that is a failure where it was asked for by name, or where there is no
    other.
    """
    from roastcoffea.measurement import load
    from roastcoffea.report.exports.formats import default_name
    from roastcoffea.visualization.plots import PLOTS
    from roastcoffea.visualization.registry import registered

    try:
        wanted = [registered(name) for name in names] or list(PLOTS.values())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    measurement = load(path)
    folder = PLOTS_FOLDER / default_name(path, "") if out is None else out
    files = {entry.name: folder / f"{entry.name}.{suffix}" for entry in wanted}
    drawn = [_drawn(measurement, name, file) for name, file in files.items()]
    return 0 if all(drawn) or (not names and any(drawn)) else FAILED


def _drawn(measurement: Measurement, name: str, file: Path) -> bool:
    """Draw one plot into a file, and name the file; say why it cannot be drawn where that is so."""
    from roastcoffea.visualization.registry import PLOTS, figure_alone, save

    try:
        figure = figure_alone(PLOTS[name], measurement)
    except ValueError as reason:
        fail(str(reason), FAILED)
        return False
    say(save(figure, file))
    return True


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--format", "file_format", type=click.Choice(EXPORT_FORMATS), required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder (csv, parquet, json) or file to write; else it gets the measurement's name, in this folder.",
)
@click.option("--overwrite", is_flag=True, help="Replace the export, or the file, that is there.")
def export(*, path: Path, file_format: str, output: Path | None, overwrite: bool) -> None:
    """Write the measurement in PATH for other programs.

    csv, parquet and json make a folder with a file for each table, the metrics among them, and columns.json, which
    tells what their columns mean. openmetrics makes a file of the metrics for Prometheus, perfetto one with a track for
    each worker thread, for https://ui.perfetto.dev (compressed where its name ends with .gz).
    """
    from roastcoffea.measurement import load
    from roastcoffea.report.exports.formats import FORMATS, default_name

    measurement = load(path)
    file = output or Path(default_name(path, FORMATS[file_format]))
    say(measurement.export(file, file_format, overwrite))


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; else it gets the measurement's name, in this folder.",
)
@click.option("--every-task", is_flag=True, help="Keep every task in it, also where there are more than 100,000.")
@click.option("--overwrite", is_flag=True, help="Replace the file that is there.")
def report(*, path: Path, output: Path | None, every_task: bool, overwrite: bool) -> None:
    """Write the measurement in PATH as one HTML page, which needs nothing but a browser.

    It has the verdict, both ledgers, what went on over time down to single tasks, and tables of datasets, files,
    branches, sections, workers and failures.
    """
    from roastcoffea.measurement import load
    from roastcoffea.report.exports.formats import default_name

    measurement = load(path)
    file = output or Path(default_name(path, ".html"))
    say(measurement.report(file, every_task=every_task, overwrite=overwrite))


@commands.command()
@click.argument("runs", nargs=-1, metavar="A B [C]...", required=True)
@click.option("--all", "everything", is_flag=True, help="Show also what does not differ.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="A change that is not wanted, such as 'event_rate_core_khz < -10%'; may be given several times.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.95,
    show_default=True,
    help="Of intervals, verdicts and conditions.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(COMPARISON_FORMATS),
    default="text",
    show_default=True,
    help="How to write it.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write instead of the terminal."
)
@click.option("--overwrite", is_flag=True, help="Replace the file that is there.")
def compare(
    *,
    runs: tuple[str, ...],
    everything: bool,
    fail_if: tuple[str, ...],
    confidence: float,
    form: str,
    output: Path | None,
    overwrite: bool,
) -> int:
    """Compare measurements with the first one: what differs, why, and whether repeats can tell.

    Each of A, B, ... is a measurement, a folder of repeats, a quoted pattern such as 'runs/new-*', or a name to which
    repeats have added a number (runs/new for runs/new-1, runs/new-2). With --fail-if the exit status is 0, 1 where a
    condition holds with evidence, and 2 where that cannot be told or the input cannot be used. Changes are those
    from A: in %, else in the metric's unit.
    """
    try:
        from roastcoffea.studies.compare.comparison import compare as compared

        comparison = compared(*runs, fail_if=fail_if, confidence=confidence, folder=RUNS_FOLDER)
        try:
            comparison.write(output, form, everything=everything, overwrite=overwrite)
        except BrokenPipeError:
            leave_stdout()
    except (RoastcoffeaError, OSError) as error:
        return fail(str(error), UNUSABLE)
    except Exception:  # noqa: BLE001  (Python's own status for it is that of a run that got worse)
        traceback.print_exc()
        return UNUSABLE
    return comparison.status


@commands.command("list")
@click.argument("folder", type=click.Path(path_type=Path), default=RUNS_FOLDER)
def list_measurements(folder: Path) -> None:
    """List the measurements in FOLDER (default: roastcoffea-runs)."""
    from roastcoffea.storage.store import list_runs

    stored = list_runs(folder)
    if stored:
        print_list(stored)
    else:
        say(f"There are no measurements in {folder}.")


def print_list(stored: Sequence[StoredRun]) -> None:
    """Print a line for each stored measurement, and the reason where one cannot be read."""
    from roastcoffea.report.terminal import bare_table, console_for, verbatim
    from roastcoffea.units import duration, moment

    console = console_for(None)
    table = bare_table()
    table.add_column("started")
    table.add_column("elapsed", justify="right")
    table.add_column("outcome")
    table.add_column("name", overflow="fold")
    for run in stored:
        started = "-" if run.start is None else moment(run.start)
        elapsed = "-" if run.elapsed is None else duration(run.elapsed)
        table.add_row(started, elapsed, verbatim(console, run.outcome or "unreadable"), verbatim(console, run.name))
    console.print(table)
    for run in stored:
        if run.error is not None:
            console.print(verbatim(console, run.error), overflow="fold")


@commands.command()
@click.option("--markdown", is_flag=True, help="As the page of the documentation.")
def metrics(markdown: bool) -> None:
    """Print every metric with its unit, source and meaning."""
    from roastcoffea.report.reference import metric_reference, print_reference

    if markdown:
        click.echo(metric_reference(), nl=False)
    else:
        print_reference(sys.stdout)


class SeveralNumbers(click.Command):
    """Command whose options of whole numbers take several at once: `--workers 1 2 4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further number, which is the form that click knows.

        A further number that names a run is that run, and so is the last one where no other word is a run.
        """
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        given: list[str] = []
        option, before, further = None, None, False
        for word in args:
            number = option is not None and word.isdecimal() and (before == option or not _names_run(word))
            further = number and before != option
            given += [str(option), word] if further else [word]
            if not number:
                option = word.partition("=")[0] if word.partition("=")[0] in several else None
            before = word
        if further and not self._runs_in(ctx, given):
            given[-2:] = given[-1:]
        return super().parse_args(ctx, given)

    def _runs_in(self, ctx: click.Context, given: Sequence[str]) -> bool:
        values, _, _ = self.make_parser(ctx).parse_args(list(given))
        runs = values.get("runs")
        return isinstance(runs, Sequence) and len(runs) > 0  # click has an object of its own for what was not given


def _names_run(word: str) -> bool:
    """Whether a word stands for measurements, here or in the usual folder."""
    from roastcoffea.studies.compare.sides import paths_of

    try:
        return bool(paths_of(word, RUNS_FOLDER))
    except RoastcoffeaError:
        return False


@commands.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="File for a picture.")
def scaling(*, runs: tuple[str, ...], as_json: bool, picture: Path | None) -> None:
    """Tell what more workers gave, from which number on they are wasted, and what eats the loss.

    Takes measurements with at least two different numbers of workers, on the same files or on files that grow with the
    workers; several with one number make the intervals. A RUN may also be a folder, a quoted pattern, or a name with
    repeats.
    """
    from roastcoffea.studies.scaling.scaling import scaling as scaling_of

    if picture is not None and picture.suffix[1:].lower() not in PICTURE_FORMATS:
        raise click.UsageError(f"--plot {picture}: the name of a picture ends with .{', .'.join(PICTURE_FORMATS)}")
    found = scaling_of(_paths_of(runs))
    _print_study(found, as_json)
    if picture is not None:
        found.plot(picture)
        click.echo(printable(str(picture)), err=as_json)


@commands.command("what-if", cls=SeveralNumbers)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--workers", multiple=True, type=click.IntRange(1), help="Numbers of worker processes: 1 2 4.")
@click.option("--threads", multiple=True, type=click.IntRange(1), help="Threads of each worker.")
@click.option("--same-host", is_flag=True, help="Workers share the cores of one host; else each brings as many as now.")
@click.option("--chunksize", multiple=True, type=click.IntRange(1), help="Events in a chunk: 25000 100000.")
@click.option(
    "--storage",
    type=click.FloatRange(1),
    default=2.0,
    show_default=True,
    help="How many times faster the storage is in that scenario.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def what_if(*, runs: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Predict the wall time of RUN on other clusters, and in other chunks, with the error of such predictions.

    The first RUN is replayed. More runs of the same analysis on the same files help: repeats tell their spread, runs
    with other workers are predicted as checks, and those with another chunk size tell what a chunk costs beside its
    events. A RUN may also be a folder (its oldest run first), a quoted pattern, or a name with repeats.

    Several numbers may follow an option. The second and later ones are runs where runs of these names exist, and so is
    the last one where no other RUN is given: --workers 1 --workers 2024 is sure to be the number.
    """
    from roastcoffea.studies.what_if.prediction import what_if as predictions

    _print_study(predictions(*_paths_of(runs), **settings), as_json)


def _paths_of(runs: Sequence[str]) -> list[Path]:
    """Folders of the measurements that paths, patterns or names with repeats stand for, each once."""
    from roastcoffea.studies.compare.sides import paths_of

    return list(dict.fromkeys(path.resolve() for given in runs for path in paths_of(given, RUNS_FOLDER)))


def _print_study(found: Scaling | WhatIf, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        found.print(sys.stdout)
