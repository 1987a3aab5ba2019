"""`roastcoffea compare`."""

from __future__ import annotations

import traceback
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
def command(
    *, runs: tuple[str, ...], form: str, output: Path | None, everything: bool, overwrite: bool, **evidence: Any
) -> int:
    """Compare measurements with the first one: what differs, why, and how certain it is.

    Each of A, B, ... is a measurement, a folder of repeats or of the jobs of a campaign, a quoted pattern such as
    'runs/new-*', or a name to which repeats have added a number (runs/new for runs/new-1, runs/new-2). With --fail-if
    the exit status is 0; 1 if a condition holds with evidence; 2 if that is undecided or the input cannot be used.
    Changes are relative to A: in %, otherwise in the metric's unit.
    """
    try:
        from roastcoffea.studies.compare.compare import compare

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
