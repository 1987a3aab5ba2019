"""Tables of a run's metrics for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import IO, Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from roastcoffea.metrics import CATALOGUE, Metric, Metrics
from roastcoffea.metrics.catalogue import RAW
from roastcoffea.records.run import FAILED, Run
from roastcoffea.units import COUNT, SECOND, STRUCTURE, Unit

WIDEST: Final = 100
NARROWEST: Final = 80
"""In a narrower terminal lines run on: a number that is cut would be another number."""

INDENT: Final = (0, 0, 0, 2)
LABEL_WIDTH: Final = 26
NARROWEST_NAME: Final = 12
NOT_KNOWN: Final = "-"
NOTHING: Final = "not measured"
QUIET: Final = "dim"
REASON: Final = "italic dim"

DATASET_COLUMNS: Final[Sequence[tuple[str, str, Unit]]] = (
    ("chunks", "num_chunks", COUNT),
    ("failed", "num_failed", COUNT),
    ("events", "total_events", COUNT),
    ("wall/chunk", "mean_duration", SECOND),
    ("wall (ok)", "total_duration", SECOND),
    ("CPU (all)", "cpu_seconds", SECOND),
)


def print_summary(run: Run, metrics: Metrics, file: IO[str] | None = None) -> None:
    """Print the metrics of a run by group, with the reason where one is missing, and the run's problems.

    Colours appear only where the output is a terminal and NO_COLOR is not set. Tables take the terminal's
    width up to 100 columns, and 80 where the output is no terminal.
    """
    console = console_for(file)
    _print_heading(console, run)
    shown = [metric for metric in CATALOGUE.metrics() if metric.group != RAW and metric.unit is not STRUCTURE]
    for group, members in groupby(shown, key=lambda metric: metric.group):
        _print_group(console, group, list(members), metrics)
    if metrics.get("per_dataset"):
        _print_datasets(console, metrics["per_dataset"])
    _print_problems(console, run.problems)


def console_for(file: IO[str] | None) -> Console:
    """Console that takes no markup from what it prints."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, NARROWEST), WIDEST)
    return console


def verbatim(console: Console, text: object) -> Text:
    """Text as it is, line by line; control characters, and what the output cannot encode, as escapes."""
    lines = ["".join(map(_visible, line)) for line in str(text).splitlines()]
    return Text("\n".join(lines).encode(console.encoding, "backslashreplace").decode(console.encoding))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _title(run: Run) -> str:
    """Name of the run, else the processors that ran."""
    return run.name or ", ".join(dict.fromkeys(call.processor for call in run.calls)) or run.id


def _print_heading(console: Console, run: Run) -> None:
    console.print(Text.assemble(("\nroastcoffea  ", "bold"), verbatim(console, _title(run))), overflow="fold")
    started = datetime.fromtimestamp(run.start)
    what = verbatim(console, f"{started:%Y-%m-%d %H:%M:%S}, {run.backend}, {run.outcome}, {run.id[:8]}")
    what.stylize(QUIET)
    console.print(what)
    if run.outcome == FAILED:
        error = verbatim(console, run.error or "no error text was kept")
        console.print(Text.assemble(("\nThis run failed: ", "bold red"), error), overflow="fold")
    if run.reported is not None:
        reporter = verbatim(console, f"Numbers as reported by {run.reported_by}; they were not computed anew.")
        reporter.stylize(REASON)
        console.print("\n", reporter, sep="")


def _print_title(console: Console, title: str) -> None:
    console.print(Text(f"\n{title[0].upper()}{title[1:]}", style="bold"))


def _print_group(console: Console, group: str, members: list[Metric], metrics: Metrics) -> None:
    _print_title(console, group)
    values = _table()
    for metric in members:
        if metric.statistic is None and metric.name in metrics:
            values.add_row(metric.label, _amount(metric.unit, metrics[metric.name]))
    for reason, labels in _missing(members, metrics).items():
        values.add_row("\n".join(labels), Text.assemble(verbatim(console, reason), style=REASON))
    _print_table(console, values)
    spread = [metric for metric in members if metric.statistic is not None and metric.name in metrics]
    if spread:
        _print_table(console, _distributions(spread, metrics))


def _print_table(console: Console, table: Table) -> None:
    console.print(Padding(table, INDENT, expand=False))


def _table(*headers: str) -> Table:
    """Table of labels with amounts flush right under the headers; without headers, with one value each."""
    table = Table(box=None, show_header=bool(headers), padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("", width=LABEL_WIDTH, overflow="fold")
    for header in headers or ("",):
        table.add_column(header, justify="right" if headers else "left", overflow="fold")
    return table


def _amount(unit: Unit, value: Any) -> str:
    return NOT_KNOWN if value is None else unit.text(value)


def _missing(members: list[Metric], metrics: Metrics) -> dict[str, list[str]]:
    """Labels of missing metrics by their reason.

    A row of statistics that is missing whole has one label, and so has a whole group that is missing for one
    reason.
    """
    reasons = {metrics.missing.get(metric.name) for metric in members}
    if len(reasons) == 1 and None not in reasons:
        return {str(reasons.pop()): [NOTHING]}
    partly = {metric.label for metric in members if metric.statistic and metric.name in metrics}
    labels: dict[str, list[str]] = {}
    for metric in members:
        if metric.name in metrics.missing:
            label = f"{metric.label} ({metric.statistic})" if metric.label in partly else metric.label
            of_reason = labels.setdefault(metrics.missing[metric.name], [])
            if label not in of_reason:
                of_reason.append(label)
    return labels


def _distributions(members: list[Metric], metrics: Metrics) -> Table:
    """One line per quantity of a chunk, its statistics side by side."""
    statistics = list(dict.fromkeys(str(metric.statistic) for metric in members))
    table = _table(*statistics)
    for label, same_label in groupby(members, key=lambda metric: metric.label):
        amounts = {metric.statistic: _amount(metric.unit, metrics[metric.name]) for metric in same_label}
        table.add_row(f"{label} per chunk", *(amounts.get(statistic, "") for statistic in statistics))
    return table


def _print_datasets(console: Console, datasets: Mapping[str, Mapping[str, Any]]) -> None:
    _print_title(console, "datasets")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("dataset", min_width=NARROWEST_NAME, overflow="fold")
    for header, _, _ in DATASET_COLUMNS:
        table.add_column(header, justify="right", overflow="fold")
    for name, amounts in datasets.items():
        cells = (_amount(unit, amounts.get(key)) for _, key, unit in DATASET_COLUMNS)
        table.add_row(verbatim(console, name), *cells)
    _print_table(console, table)


def _print_problems(console: Console, problems: Sequence[str]) -> None:
    _print_title(console, f"problems ({len(problems)})" if problems else "no problems with the measuring")
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(overflow="fold")
    for problem in problems:
        table.add_row("-", verbatim(console, problem))
    if problems:
        _print_table(console, table)
