"""Predictions, checks and doubts as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from roastcoffea.report.terminal import INDENT, QUIET, console_for, named_table, verbatim
from roastcoffea.studies.tables import line, title
from roastcoffea.units import FRACTION, SECOND, number

if TYPE_CHECKING:
    from roastcoffea.replay.recorded import Recorded
    from roastcoffea.studies.what_if.prediction import Check, Prediction, WhatIf

UNKNOWN: Final = "-"
MOST_COLUMNS: Final = 5


def print_what_if(found: WhatIf, file: IO[str] | None) -> None:
    """Print what runs would take, how good such predictions were, and what makes them doubtful."""
    console = console_for(file)
    recorded = found.runs[0]
    console.print(Text.assemble(("\nwhat if  ", "bold"), verbatim(console, recorded.name)), overflow="fold")
    console.print(Text(_made(recorded), style=QUIET), overflow="fold")
    _print_clusters(console, found, [one for one in found.predictions if not one.rechunked])
    _print_sizes(console, [one for one in found.predictions if one.rechunked])
    _print_checks(console, found)
    _print_doubts(console, found)


def _made(recorded: Recorded) -> str:
    """On what a run was recorded."""
    workers = _cluster(recorded.workers, recorded.threads)
    cores = "an unknown number of cores" if recorded.cores is None else _counted(recorded.cores, "core")
    chunks = "unknown size" if recorded.chunksize is None else f"{number(recorded.chunksize)} events"
    return (
        f"recorded: {SECOND.text(recorded.seconds)} on {workers} worker{'s' * (workers != '1')}, "
        f"{_counted(recorded.hosts, 'host')} of {cores}, chunks of {chunks}"
    )


def _sharing(found: WhatIf) -> str:
    """Which cores the workers of the predicted clusters have."""
    recorded = found.runs[0]
    if recorded.cores is None:
        return "with as many cores as it takes"
    cores, each = _counted(recorded.cores, "core"), recorded.workers_of_host
    if found.same_host:
        return f"workers sharing {cores}"
    return (
        f"each worker with {cores} of its own"
        if each == 1
        else f"each {number(each)} workers with {cores} of their own"
    )


def _counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'s' * (count != 1)}"


def _cluster(workers: int, threads: int) -> str:
    return number(workers) if threads == 1 else f"{number(workers)} x {number(threads)}"


def _size(size: int | None) -> str:
    return UNKNOWN if size is None else number(size)


def _range(one: Prediction) -> str:
    return f"{SECOND.text(one.low)} to {SECOND.text(one.high)}"


def _seconds(one: Prediction) -> str:
    return UNKNOWN if one.seconds is None else SECOND.text(one.seconds)


def _print_clusters(console: Console, found: WhatIf, predictions: Sequence[Prediction]) -> None:
    """Print a row for each cluster as recorded, and a column for each change."""
    names = list(dict.fromkeys(one.scenario for one in predictions))
    clusters = list(dict.fromkeys((one.workers, one.threads) for one in predictions))
    of = {(one.workers, one.threads, one.scenario): one for one in predictions}
    title(console, f"Wall time, {_sharing(found)}; give or take {FRACTION.text(found.error)}")
    table = named_table("workers", ["as recorded", "range", "scheduler busy"])
    for workers, threads in clusters:
        one = of[workers, threads, names[0]]
        table.add_row(_cluster(workers, threads), _seconds(one), _range(one), FRACTION.text(one.scheduler_use))
    console.print(Padding(table, INDENT, expand=False))
    line(console, "Scheduler busy: the share of that time; tasks wait for it long before 100 %.")
    title(console, "Wall time with one thing changed, by workers")
    for begin in range(0, len(clusters), MOST_COLUMNS):
        some = clusters[begin : begin + MOST_COLUMNS]
        changed = named_table("", [_cluster(*cluster) for cluster in some])
        for name in names:
            changed.add_row(name, *(_seconds(of[*cluster, name]) for cluster in some))
        console.print(Padding(changed, INDENT, expand=False))


def _print_sizes(console: Console, predictions: Sequence[Prediction]) -> None:
    if not predictions:
        return
    title(console, "Wall time in chunks of other sizes, on the recorded cluster")
    table = named_table("events", ["wall", "range"])
    for one in predictions:
        table.add_row(_size(one.chunksize), _seconds(one), _range(one))
    console.print(Padding(table, INDENT, expand=False))
    for reason in dict.fromkeys(one.reason for one in predictions if one.reason is not None):
        line(console, f"No number, but what it is between: {reason}.")


def _print_checks(console: Console, found: WhatIf) -> None:
    """Print runs that were really made beside what was predicted for them."""
    title(console, "Runs that were made, and what was predicted for them")
    table = named_table("run", ["workers", "events a chunk", "measured", "predicted", "error", "from"])
    for check in found.checks:
        table.add_row(verbatim(console, check.name), *_check(check))
    console.print(Padding(table, INDENT, expand=False))
    spread = "not known: give more than one run of it" if found.spread is None else FRACTION.text(found.spread)
    line(console, f"Range of repeats of the recorded run: {spread}.")


def _check(check: Check) -> list[str]:
    return [
        _cluster(check.workers, check.threads),
        _size(check.chunksize),
        SECOND.text(check.measured),
        SECOND.text(check.predicted),
        FRACTION.text(check.error),
        "itself" if check.from_itself else "others",
    ]


def _print_doubts(console: Console, found: WhatIf) -> None:
    doubts: dict[str, list[str]] = {doubt: [] for doubt in found.doubts}
    for one in found.predictions:
        for doubt in one.doubts:
            doubts.setdefault(doubt, []).append(_cluster(one.workers, one.threads))
    if not doubts:
        return
    title(console, "Not to be trusted fully")
    for doubt, clusters in doubts.items():
        where = f" ({', '.join(dict.fromkeys(clusters))} workers)" if clusters else ""
        line(console, f"- {doubt}{where}.")
