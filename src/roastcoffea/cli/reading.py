"""Commands that show, list, draw, compare, export and share measurements."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from roastcoffea.cli import shell
from roastcoffea.errors import MeasurementError, RoastcoffeaError
from roastcoffea.report.exports import FORMATS, default_name
from roastcoffea.storage.folders import OR_OVERWRITE


@shell.command("export ttbar-001 --format parquet -o tables", shell.LATEST)
@shell.run
@shell.choice(
    *("--format", "file_format"),
    among=list(FORMATS),
    required=True,
    metavar="FORMAT",
    help=f"One of {', '.join(FORMATS)}.",
)
@shell.output("File or folder to write; by default, in the current folder and named after the run.", shell.ANY)
@shell.share
@shell.overwrite("existing output")
def export_command(*, run: str | None, file_format: str, output: Path | None, share: bool, overwrite: bool) -> None:
    """Export a run for other programs: tables, traces, profiles.

    csv, parquet and json write a folder with one file per table (including metrics) and columns.json, which explains
    the columns. openmetrics writes a metrics file for Prometheus. perfetto writes a trace with one track per worker
    thread for https://ui.perfetto.dev (compressed if the name ends in .gz). speedscope and collapsed write the
    profile for https://www.speedscope.app and flamegraph.pl.

    For the next run, preload writes, for each dataset, the branches that coffea should read in one request, and the
    saving predicted by replay. blocklist writes the sites and servers that failed or were slow.
    """
    measurement, path = shell.measurement(run)
    target = output or default_name(path, shell.SHARED * share + FORMATS[file_format].ending)
    shell.say(measurement.export(target, file_format, overwrite, share=share))


ORDERS = ("started", "name", "processor", "events", "workers", "elapsed", "rate", "bottleneck", "outcome")
NARROWEST = 80
"""Minimum terminal width for the list."""
UNLIMITED = 10_000
"""Assumed width if the output is not a terminal and COLUMNS is not set."""
OUTCOMES = ("complete", "incomplete", "failed", "interrupted", "lost", "nothing run", "unreadable")


@shell.command(
    "list --sort rate",
    f"{shell.A_RUN}.\nIt may also be a folder. By default, all runs in {shell.RUNS_FOLDER} are listed.\n\n\b\n",
)
@shell.runs(required=False)
@shell.choice("--sort", "by", among=ORDERS, default="started", help="Sort by this column, oldest or largest first.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="List only runs with this outcome.")
@click.option("--processor", help="List only runs of this processor.")
@shell.as_json
def list_command(*, runs: tuple[str, ...], by: str, outcome: str | None, processor: str | None, as_json: bool) -> None:
    """List runs: what ran, how fast, what limited it, and how it ended.

    The JSON contains "runs", each with "name", "started", "processor", "events", "workers", "elapsed" (s), "rate"
    (kHz), "bottleneck" and "outcome"; null means unknown.
    """
    from roastcoffea.log.journals import journals_in
    from roastcoffea.recording.assembly import state_folder
    from roastcoffea.report.runs import entry_of, in_order, sheet_of_runs
    from roastcoffea.sheets.sheet import Sheet
    from roastcoffea.sheets.terminal import print_sheets
    from roastcoffea.storage.store import stored_runs
    from roastcoffea.units import counted

    place = state_folder()
    if lost := sum(not journal.is_written for journal in journals_in(place)[0]):
        shell.say(f"{counted(lost, 'lost run')} in {place} can be recovered: roastcoffea recover", err=True)
    # not an error: no run has been saved yet
    words = runs or [str(shell.RUNS_FOLDER)] * shell.RUNS_FOLDER.exists()
    stored = stored_runs(shell.paths_of(words)) if words else []
    entries = in_order(
        [
            entry
            for entry in map(entry_of, stored)
            if outcome in (None, entry.outcome) and processor in (None, entry.processor, *entry.processor.split(", "))
        ],
        by,
    )
    if as_json:
        shell.print_json({"format": "roastcoffea list 1", "runs": [entry._asdict() for entry in entries]})
        return
    if not entries:
        nothing = f"There are no measurements here: no folder named {shell.RUNS_FOLDER}."
        shell.say("No measurements match." if stored else nothing)
        return
    listed = {entry.name for entry in entries}
    errors = [run.error for run in stored if run.error is not None and run.name in listed]
    # programs that read the output expect one line per run, and full names
    asked, columns = os.environ.get("COLUMNS", ""), shutil.get_terminal_size().columns
    piped = int(asked) if asked.isdecimal() and int(asked) else UNLIMITED
    width = max(columns if sys.stdout.isatty() else piped, NARROWEST)
    print_sheets([sheet_of_runs(entries, width - NARROWEST), Sheet(lead=errors)], width=width)


@shell.command("metrics")
@click.option("--markdown", is_flag=True, help="Print the documentation page in Markdown.")
def metrics_command(markdown: bool) -> None:
    """Print every metric with its unit, source and meaning."""
    from roastcoffea.report.glossary import metric_reference, print_reference

    if markdown:
        click.echo(metric_reference(), nl=False)
    else:
        print_reference(sys.stdout)


@shell.command("plot ttbar-001 time_ledger throughput_timeline", shell.LATEST)
@click.argument("words", nargs=-1, metavar="[RUN] [NAME]...")
@shell.output("Folder for the files  [default: roastcoffea-plots/NAME OF RUN]", shell.FOLDER)
@shell.choice("--format", "suffix", among=shell.PICTURE_FORMATS, default="png", help="File format.")
@click.option("--dark", is_flag=True, help="Draw for a dark background.")
@shell.overwrite("existing files")
def plot_command(*, words: tuple[str, ...], output: Path | None, suffix: str, dark: bool, overwrite: bool) -> int:
    """Draw the named plots of a run, or all plots that its data support.

    NAME is the name of a plot function, with or without "plot_". If a plot cannot be drawn, the reason is printed to
    stderr. The command fails only if that plot was requested by name, or if no plot could be drawn.
    """
    from roastcoffea.visualization.plots import PLOTS
    from roastcoffea.visualization.registry import figure_alone, registered, save

    is_plot = bool(words) and words[0].removeprefix("plot_") in {each.name for each in PLOTS.values()}
    run, names = (None, words) if is_plot and not Path(words[0]).exists() else (next(iter(words), None), words[1:])
    try:
        wanted = list(dict.fromkeys(registered(name) for name in names)) or list(PLOTS.values())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    measurement, path = shell.measurement(run)
    folder = output or Path("roastcoffea-plots", default_name(path, ""))
    files = {entry: folder / f"{entry.name}.{suffix}" for entry in wanted}
    if not overwrite and (taken := next(filter(Path.exists, files.values()), None)):
        raise MeasurementError(f"{taken} exists; {OR_OVERWRITE}")  # before any plot is drawn
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


@shell.command("share ttbar-001", shell.GIVEN)
@click.argument("run")
@shell.output("Folder for the copy; by default, RUN-shared.", shell.FOLDER)
@shell.overwrite("an existing measurement")
def share_command(*, run: str, output: Path | None, overwrite: bool) -> None:
    """Copy a run, replacing host, user and path names with made-up ones.

    Identical names stay identical: the first host is host-1 everywhere, and addresses keep their ports. Batch jobs,
    queues and sites also get made-up names. All numbers stay the same.
    """
    measurement, path = shell.measurement(run)
    target = output or path.resolve().parent / default_name(path, shell.SHARED)
    shell.say(measurement.save(target.parent, target.name, overwrite, share=True))
    shell.say("The names of datasets, sections and the run are kept: check them before publishing.", err=True)


@shell.command("report ttbar-001 --open", shell.LATEST)
@shell.run
@shell.output("File to write; by default, in the current folder and named after the run.", older=shell.OLDER)
@shell.opened
@click.option("--every-task", is_flag=True, help="Include every task, even if there are more than 100,000.")
@shell.share
@shell.overwrite()
def report_command(
    *, run: str | None, output: Path | None, open_page: bool, every_task: bool, share: bool, overwrite: bool
) -> None:
    """Write a single-file HTML page about a run.

    The page shows the verdict, both ledgers, charts over time down to individual tasks, and tables of datasets, files,
    branches, sections, workers and failures.
    """
    measurement, path = shell.measurement(run)
    target = output or default_name(path, f"{shell.SHARED * share}.html")
    page = shell.new_file(target, overwrite)
    shell.show_page(measurement.report(page, every_task=every_task, overwrite=overwrite, share=share), open_page)


@shell.command("show ttbar-001 --all", shell.LATEST)
@shell.run
@click.option("--all", "everything", is_flag=True, help="Print all tables.")
@click.option("--group", help="Print only this group of tables.")
@shell.share
@shell.as_json
def show_command(*, run: str | None, everything: bool, group: str | None, share: bool, as_json: bool) -> None:
    """Print what ran, where the time and bytes went, and what to change.

    \b
    The table groups are verdict, failures, "your code", throughput, bytes,
    writing, events, resources, timing, time, "scheduler and client", "fine
    metrics", chunks, phases, workers, "batch jobs", datasets, sections, values,
    problems.

    The JSON has the same structure as metrics.json: "id", "name", "start", "stop", "outcome", "error", "metrics" (each
    with "value", "unit" and "source"; "verdict" contains the findings), "missing" (each with its reason) and
    "problems".
    """
    from roastcoffea.report.tables import metrics_json

    measurement, path = shell.measurement(run)
    if share:
        measurement = measurement.share()
        measurement.path = Path(path.name)  # show the name without its folder
    if as_json:
        shell.print_json(json.loads(metrics_json(measurement.run, measurement.metrics)))
        return
    try:
        measurement.print_summary(all=everything, group=group)
    except ValueError as error:
        if group is None:
            raise
        raise click.UsageError(str(error)) from None


FORMS = {".md": "markdown", ".json": "json", ".html": "html"}
"""Maps each file extension to a comparison format."""


@shell.command(
    "compare before-001 after-001 --open",
    f"{shell.A_RUN}.\nIt may also be a folder of repeats or campaign jobs, or a name shared by\nrepeats (ttbar for"
    " ttbar-1, ttbar-2). Without B, the latest run is compared\nwith A; without A and B, the latest run is compared"
    " with the previous run.\n\n\b\n",
)
@click.argument("runs", nargs=-1, metavar="[A [B]...]")
@click.option("--all", "everything", is_flag=True, help="Also show what has not changed.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="Fail if this condition holds, e.g. 'event_rate_core_khz < -10%'; may be repeated.",
)
@shell.bounded(
    "--confidence",
    click.FloatRange(0.5, 1, max_open=True),
    0.95,
    "Confidence level for intervals, verdicts and conditions.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "markdown", "json", "html")),
    help="Output format; by default, inferred from the extension of -o, or text.",
)
@shell.as_json
@shell.output("File to write instead of printing to the terminal.", older=shell.OLDER)
@shell.opened
@shell.overwrite()
def compare_command(
    *,
    runs: tuple[str, ...],
    form: str | None,
    as_json: bool,
    output: Path | None,
    open_page: bool,
    everything: bool,
    overwrite: bool,
    **evidence: Any,
) -> int:
    """Show what differs between runs, why, and how certain that is.

    All runs are compared with the first run. Changes relative to the first run are shown in % or in the metric's unit.
    With --fail-if, all runs must be named, and the exit status is 1 if there is evidence that a condition holds, 2 if
    the evidence is inconclusive or the input cannot be used, and 0 otherwise.

    The JSON contains "sides" (runs), "comparisons" (verdict, clear changes and their explanation), "facts", "metrics",
    "conditions", "confidence" and "status".
    """
    try:
        from roastcoffea.studies.compare import compare

        if len(runs) < 2 and not evidence["fail_if"]:
            runs += tuple(map(str, shell.latest(2 - len(runs))))
        form = form or ("json" if as_json else "html" if open_page else FORMS.get(output.suffix) if output else None)
        file = shell.new_file(output or "comparison.html", overwrite) if output or open_page else None
        comparison = compare(*runs, folder=shell.RUNS_FOLDER, **evidence)
        try:
            comparison.write(file, form or "text", everything=everything, overwrite=overwrite)
        except BrokenPipeError:
            shell.leave_stdout()
        if file and open_page:
            shell.show_page(file, open_page)
    except (RoastcoffeaError, OSError) as error:
        return shell.fail(str(error), shell.UNUSABLE)
    except Exception:  # noqa: BLE001  (Python would exit with the status of a run that got worse)
        traceback.print_exc()
        return shell.UNUSABLE
    return comparison.status


@shell.command("history --open")
@click.argument("folder", type=shell.ANY, default=shell.RUNS_FOLDER)
@click.option("--all", "everything", is_flag=True, help="List all runs, not only the latest.")
@shell.study
def history_command(*, folder: Path, **options: Any) -> None:
    """Show trends across runs, and when something changed.

    For each combination of processor and datasets, shows the rate per core, CPU time and bytes per event, failed
    attempts, and changes in versions and settings. FOLDER contains the runs, and defaults to roastcoffea-runs. Failed
    and incomplete runs are listed but not used.

    The JSON contains "analyses" (each with "runs" and "changes"), "units" and "skipped".
    """
    from roastcoffea.studies.history import history

    shell.present(partial(history, folder), "history.html", **options)


@shell.command("merge jobs --name campaign", shell.GIVEN)
@shell.runs()
@shell.measurements_folder("Folder for the merged measurement.")
@click.option("--name", help="Name of the merged measurement.")
@shell.share
@click.option("--overwrite", is_flag=True, help="Overwrite an existing measurement with that name.")
def merge_command(*, runs: tuple[str, ...], output: Path, name: str | None, share: bool, overwrite: bool) -> None:
    """Merge measurements from independent jobs into one.

    RUN may also be a folder of measurements.
    """
    from roastcoffea.studies.merging import merge
    from roastcoffea.units import counted

    campaign = merge(shell.paths_of(runs), name=name)
    path = campaign.save(output, name, overwrite, share=share)
    shell.say(f"{counted(len(campaign.run.merged) or 1, 'run')} merged: {path}")


@shell.command("scaling 'workers-*' --rate '50 kHz' --open", shell.GIVEN)
@shell.runs()
@click.option(
    "--rate", metavar="RATE", help="Target rate, such as '200 Gbit/s' or '50 kHz', for which to show the requirements."
)
@click.option("--plot", "picture", type=shell.FILE, help="File to which to save a plot.")
@shell.study
def scaling_command(
    *, runs: tuple[str, ...], picture: Path | None, rate: str | None, overwrite: bool, **options: Any
) -> None:
    """Show where adding workers yields diminishing returns, and why.

    Needs runs with at least two different numbers of workers. The runs process either the same files, or a number of
    files proportional to the number of workers. Repeats provide confidence intervals. RUN may also be a folder, or a
    name shared by repeats.

    The JSON contains "points" (by number of workers), "laws", "losses", "explanation", "needs" (for --rate), "doubts",
    "missing", "name", "kind", "unit" and "basis".
    """
    from roastcoffea.studies.scaling import scaling
    from roastcoffea.visualization.registry import save

    formats = shell.PICTURE_FORMATS
    if picture is not None and picture.suffix[1:].lower() not in formats:
        raise click.UsageError(f"--plot {picture}: the file name must end with .{', .'.join(formats)}")
    file = picture and shell.new_file(picture, overwrite)
    paths = shell.paths_of(runs)
    try:
        found = shell.present(partial(scaling, paths, rate=rate), "scaling.html", overwrite=overwrite, **options)
    except ValueError as error:
        if rate is None:
            raise
        raise click.UsageError(f"--rate: {error}") from None
    if file is not None:
        shell.say(save(found.plot(), file, overwrite=overwrite), err=options["as_json"])


class SeveralNumbers(click.Command):
    """Command whose number options accept several values: `--workers 1,2,4` or `--workers 1 2 4`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the option before each additional number, as click requires."""
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        given, option = [""], ""
        for word in args:
            name, _, value = word.rpartition("=")
            numbers = (
                value.strip(",").split(",") if value.replace(",", "").isdecimal() and name in {"", *several} else []
            )
            option = name or option if numbers else word if word in several else ""
            for number in numbers or [word]:
                given += [option] if numbers and option not in {"", given[-1]} else []
                given.append(number)
        return super().parse_args(ctx, given[1:])


def numbers(name: str, most: int | None, text: str) -> shell.Option:
    return click.option(name, multiple=True, type=click.IntRange(1, most), metavar="N,N,...", help=text)


@shell.command("what-if ttbar-001 --workers 8,16,32", shell.LATEST, cls=SeveralNumbers)
@shell.runs(required=False)
@numbers("--workers", 10_000, "Numbers of worker processes.")
@numbers("--threads", 256, "Number of threads per worker.")
@click.option("--same-host", is_flag=True, help="All workers share one host's cores; by default, each adds cores.")
@numbers("--chunksize", None, "Number of events per chunk.")
@shell.bounded("--storage", click.FloatRange(1), 2.0, "Storage speed-up assumed in the storage scenario.")
@shell.study
def what_if_command(*, runs: tuple[str, ...], **options: Any) -> None:
    """Predict the wall time with a different cluster or chunk size.

    The first RUN is replayed. More runs of the same analysis on the same files improve the predictions: repeats show
    how much runs vary, runs with different numbers of workers test the predictions, and runs with a different chunk
    size reveal the fixed cost of a chunk. RUN may also be a folder (its oldest run is replayed), or a name shared by
    repeats.

    The JSON contains "predictions" and "checks" (with seconds), "error", "spread", "doubts" and "same_host".
    """
    from roastcoffea.studies.what_if import what_if

    settings = {name: options.pop(name) for name in ("workers", "threads", "same_host", "chunksize", "storage")}
    shell.present(partial(what_if, *shell.paths_of(runs), **settings), "what-if.html", **options)


@shell.command("storage ttbar-001 --scheduler tcp://scheduler:8786", shell.LATEST, cls=SeveralNumbers)
@shell.run
@click.option("--scheduler", help="Read on the workers of this Dask cluster; by default, in processes on this machine.")
@numbers("--streams", 10_000, "Numbers of simultaneous streams.  [default: 1,2,4,8]")
@shell.bounded("--seconds", click.FloatRange(0, min_open=True), 5.0, "Time limit for each number of streams.")
@shell.bounded("--gigabytes", click.FloatRange(0, min_open=True), 2.0, "Maximum amount to read from each server.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before reading.")
@shell.as_json
def storage_command(
    *,
    run: str | None,
    scheduler: str | None,
    streams: tuple[int, ...],
    seconds: float,
    gigabytes: float,
    yes: bool,
    as_json: bool,
) -> int:
    """Read data of a run again to see what storage can deliver.

    Reads the baskets of randomly drawn chunks, without decompressing them, with 1, 2, 4 and 8 streams at a time, and
    prints the rates and the share of them that the run reached, for each server. The exit status is 1 if nothing could
    be read.

    The JSON contains "endpoints", each with "run", "share", "rates" (in bytes per second) and "errors".
    """
    from roastcoffea.sheets.terminal import printable
    from roastcoffea.studies.rereading import STREAMS, reread

    def agree(text: str) -> None:
        if not (yes or sys.stdin.isatty()):
            raise click.UsageError(f"{text}? There is no terminal to ask; add --yes")
        if not (yes or click.confirm(printable(text), err=True)):
            raise RoastcoffeaError("not read")

    measurement, _ = shell.measurement(run)
    with shell.client_at(scheduler) if scheduler else nullcontext() as client:
        found = reread(
            measurement, client, streams=streams or STREAMS, seconds=seconds, most_bytes=1e9 * gigabytes, agree=agree
        )
    if as_json:
        shell.print_json(found.as_dict())
    else:
        found.print(sys.stdout)
    return 0 if any(one.rates for one in found.endpoints) else shell.FAILED


@shell.command("inspect fileset.json -o clean.json")
@click.argument("fileset", type=shell.FILE)
@click.option("--tree", help="Tree to read if FILESET specifies none; by default, Events or the only tree.")
@click.option("--keep-empty", is_flag=True, help="Keep files without events, e.g. for their sums of weights.")
@shell.bounded("--timeout", click.FloatRange(0, min_open=True), 20.0, "Maximum number of seconds per file.")
@shell.as_json
@shell.output("Write the fileset without the files to drop, as JSON.")
@shell.overwrite()
def inspect_command(*, fileset: Path, as_json: bool, output: Path | None, overwrite: bool, **options: Any) -> int:
    """Check the files in a fileset before a run, and list those to drop.

    FILESET is a JSON file (optionally .gz) with a fileset in any form that coffea accepts. The command reads only
    metadata: event counts, sizes, baskets, codecs, branches. Files to drop are damaged, empty, listed twice, or on a
    server that does not respond. The exit status is 1 if there are files to drop.

    The JSON contains "datasets", "files" (each with "state", "reason" and "drop") and "partial_branches".
    """
    from roastcoffea.studies.inspection import fileset_at, inputs_of, inspect

    target = shell.new_file(output, overwrite) if output else None
    given = fileset_at(fileset)
    length = len(inputs_of(given, None))
    with click.progressbar(length=length, label="files", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        found = inspect(given, **options, done=lambda number: bar.update(number - bar.pos))
    if as_json:
        shell.print_json(found.as_dict())
    else:
        found.print(sys.stdout)
    if target is not None:
        shell.say(found.write(target, overwrite=overwrite), err=as_json)
    return shell.FAILED if found.dropped else 0
