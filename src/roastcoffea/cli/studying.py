"""Commands that compare, merge and study measurements."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from roastcoffea.cli import shell
from roastcoffea.errors import RoastcoffeaError


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
        """Repeat the option before each further number, as click requires.

        A further number that names a run is that run, and so is the last one if no other word is a run.
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
        if further:
            values, _, _ = self.make_parser(ctx).parse_args(list(given))
            if not (isinstance(values.get("runs"), Sequence) and values["runs"]):  # click has an object for "not given"
                given[-2:] = given[-1:]
        return super().parse_args(ctx, given)


def _names_run(word: str) -> bool:
    """Whether a word refers to measurements, here or in the default folder."""
    try:
        return bool(shell.paths_of([word]))
    except RoastcoffeaError:
        return False


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

    Several numbers may follow an option. The second and later ones are runs if runs of these names exist, and so is the
    last one if no other RUN is given: --workers 1 --workers 2024 always means the number.
    """
    from roastcoffea.studies.what_if import what_if

    shell.print_study(what_if(*shell.paths_of(runs), **settings), as_json)
