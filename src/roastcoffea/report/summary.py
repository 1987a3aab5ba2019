"""Tables of a run's metrics for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from roastcoffea.diagnosis import Verdict
from roastcoffea.errors import root_cause
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metric, Metrics, TimeLedger, phases
from roastcoffea.metrics.catalogue import BYTES, RAW, TIME, NotMeasuredError
from roastcoffea.metrics.failures import failed_files
from roastcoffea.metrics.ledger import RESIDUAL, TOTAL
from roastcoffea.records.run import FAILED, Run
from roastcoffea.report.terminal import (
    INDENT,
    NARROWEST_NAME,
    QUIET,
    REASON,
    bare_table,
    console_for,
    named_table,
    verbatim,
)
from roastcoffea.units import BYTE, COUNT, FRACTION, RATIO, SECOND, STRUCTURE, WORD, Unit, moment, number, share_text

LABEL_WIDTH: Final = 26
NOT_KNOWN: Final = "-"
NOTHING: Final = "not measured"

DATASET_COLUMNS: Final[Sequence[tuple[str, str, Unit]]] = (
    ("chunks", "num_chunks", COUNT),
    ("failed", "num_failed", COUNT),
    ("events", "total_events", COUNT),
    ("wall/chunk", "mean_duration", SECOND),
    ("wall (ok)", "total_duration", SECOND),
    ("CPU (all)", "cpu_seconds", SECOND),
)


SECTION_COLUMNS: Final[Sequence[tuple[str, str, Unit]]] = (
    ("count", "count", COUNT),
    ("wall", "wall_seconds", SECOND),
    ("self", "self_seconds", SECOND),
    ("CPU", "cpu_seconds", SECOND),
    ("max", "max_seconds", SECOND),
    ("bytes", "bytes", BYTE),
    ("memory", "memory_peak", BYTE),
    ("errors", "errors", COUNT),
)
DISPENSABLE: Final = ("max", "self", "CPU", "memory", "bytes", "errors", "count", "wall")
"""Columns of sections that are left out first where the terminal is too narrow: `measurement.sections` has all."""

BRANCH_COLUMNS: Final = (
    ("payload", "bytes_payload"),
    ("re-read", "bytes_reread"),
    ("uncompressed", "bytes_uncompressed"),
)
MOST_BRANCHES: Final = 10
TRANSFERRED: Final = "transferred"
MOST_FILES: Final = 10
MOST_WORKERS: Final = 10
LONGEST_LINE: Final = 200

WORKER_COLUMNS: Final[Sequence[tuple[str, str, Unit]]] = (
    ("chunks", "chunks", COUNT),
    ("in chunks", "busy_share", FRACTION),
    ("CPU", "cpu_share", FRACTION),
    ("bound", "bound", WORD),
    ("slow", "slowness", RATIO),
    ("spill", "spill_seconds", SECOND),
    ("fetched", "transfer_bytes", BYTE),
    ("clock", "clock_offset", SECOND),
)
SMALL_OFFSET: Final = 0.01
"""Seconds below which clocks agree for all that people look at; times are set right all the same."""
TIME_ROWS: Final = (*phases.TIME_NAMES, TOTAL)
LEDGER_ROWS: Final = (*phases.BYTE_NAMES, TOTAL, TRANSFERRED)
"""Labels of the metrics that the table of the byte ledger shows."""


def print_summary(run: Run, metrics: Metrics, file: IO[str] | None = None) -> None:
    """Print the metrics of a run by group, with the reason where one is missing, and the run's problems.

    Colours appear only where the output is a terminal and NO_COLOR is not set. Tables take the terminal's
    width up to 100 columns, and 80 where the output is no terminal.
    """
    console = console_for(file)
    _print_heading(console, run)
    _print_verdict(console, run, metrics)
    _print_failed_files(console, run, metrics)
    shown = [metric for metric in CATALOGUE.metrics() if metric.group != RAW and metric.unit is not STRUCTURE]
    for group, members in groupby(shown, key=lambda metric: metric.group):
        if group == BYTES and "byte_ledger" in metrics:
            _print_bytes(console, list(members), metrics)
        elif group == TIME and "time_ledger" in metrics:
            _print_time(console, list(members), metrics)
        else:
            _print_group(console, group, list(members), metrics)
    _print_workers(console, metrics.tables["worker_balance"])
    if metrics.get("per_dataset"):
        _print_datasets(console, metrics["per_dataset"])
    if metrics.get("sections"):
        _print_sections(console, metrics["sections"])
    _print_problems(console, [*run.problems, *metrics.problems])


def title_of(run: Run) -> str:
    """Name of the run, else the processors that ran."""
    return run.name or ", ".join(dict.fromkeys(call.processor for call in run.calls)) or run.id


def _print_heading(console: Console, run: Run) -> None:
    console.print(Text.assemble(("\nroastcoffea  ", "bold"), verbatim(console, title_of(run))), overflow="fold")
    what = verbatim(console, f"{moment(run.start)}, {run.backend}, {run.outcome}, {run.id[:8]}")
    what.stylize(QUIET)
    console.print(what)
    if run.outcome == FAILED:
        error = verbatim(console, run.error or "no error text was kept")
        console.print(Text.assemble(("\nThis run failed: ", "bold red"), error), overflow="fold")
    if run.reported is not None:
        reporter = verbatim(console, f"Numbers as reported by {run.reported_by}; they were not computed anew.")
        reporter.stylize(REASON)
        console.print("\n", reporter, sep="")


def _print_verdict(console: Console, run: Run, metrics: Metrics) -> None:
    """Print what binds the run, and what could be won."""
    if "verdict" in metrics:
        _print_title(console, f"verdict: {bound_line(metrics)}")
        _print_list(console, verdict_lines(run, metrics["verdict"]))


def bound_line(metrics: Metrics) -> str:
    """What binds the run, in a title."""
    return f"bound by {metrics['bound']}" if "bound" in metrics else "incomplete"


def verdict_lines(run: Run, verdict: Verdict) -> list[str]:
    """What could be won, a line each; what there is to say where that is nothing."""
    elapsed = run.stop - run.start
    lines = [
        f"{finding.cause}, worth {SECOND.text(finding.seconds)} of {SECOND.text(elapsed)}: {finding.text}."
        for finding in verdict
    ]
    if verdict.incomplete:
        reasons = "; ".join(verdict.incomplete)
        lines.insert(0, f"Incomplete, so that nothing is said of idle time: {reasons}.")
    if verdict.healthy and run.outcome != FAILED:
        lines = ["Nothing was found that could be won by a change of the settings."]
    return lines or ["Nothing was found before it failed."]


def _print_failed_files(console: Console, run: Run, metrics: Metrics) -> None:
    """Print the files in which attempts failed, and what is missing of them."""
    try:
        with metrics.computing("failed_files"):
            files = failed_files(run)
    except NotMeasuredError:
        return
    if not len(files):
        return
    _print_title(console, f"files with failed attempts ({number(len(files))})")
    for row in files.slice(0, MOST_FILES).to_pylist():
        lacking = "nothing came of it" if row["missing"] is None else f"{_chunks(row['missing'])} missing"
        outcome = lacking if row["missing"] != 0 else "nothing missing"
        error = root_cause(row["error"])[:LONGEST_LINE]
        _print_list(console, [f"{row['file']}, {row['dataset']}: {row['attempts']} failed, {outcome}; {error}"])
    if len(files) > MOST_FILES:
        console.print(Padding(Text(f"and {number(len(files) - MOST_FILES)} more", style=QUIET), INDENT))
    elsewhere = (metrics.get("num_missing_chunks") or 0) - (pc.sum(files["missing"]).as_py() or 0)
    if elsewhere:
        is_missing = "is missing" if elsewhere == 1 else "are missing"
        _print_list(console, [f"Of other files {_chunks(elsewhere)} {is_missing} as well"])


def _chunks(amount: int) -> str:
    return f"{number(amount)} chunk" + "s" * (amount != 1)


def _print_workers(console: Console, workers: pa.Table | str) -> None:
    """Print the workers side by side, those with the least to do first."""
    if isinstance(workers, str) or not len(workers) or workers["chunks"].null_count:
        return
    rows = workers.sort_by("busy_share").to_pylist()
    shown = {
        header: [_amount(unit, row[key]) for row in rows]
        for header, key, unit in WORKER_COLUMNS
        if any(row[key] for row in rows) and (key != "clock_offset" or _clocks_differ(rows))
    }
    _print_title(console, f"workers ({number(len(rows))})")
    table = named_table("worker", shown)
    for row, *cells in list(zip(rows, *shown.values(), strict=True))[:MOST_WORKERS]:
        table.add_row(verbatim(console, row["worker"]), *cells)
    _print_table(console, table)
    if len(rows) > MOST_WORKERS:
        console.print(Padding(Text(f"and {number(len(rows) - MOST_WORKERS)} that do more", style=QUIET), INDENT))


def _clocks_differ(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(abs(row["clock_offset"] or 0.0) >= SMALL_OFFSET for row in rows)


def _print_title(console: Console, title: str) -> None:
    console.print(Text(f"\n{title[0].upper()}{title[1:]}", style="bold"))


def _print_group(console: Console, group: str, members: list[Metric], metrics: Metrics) -> None:
    _print_title(console, group)
    _print_values(console, members, metrics)


def _print_values(console: Console, members: list[Metric], metrics: Metrics) -> None:
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
    table = bare_table(show_header=bool(headers))
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
    table = named_table("dataset", (header for header, _, _ in DATASET_COLUMNS))
    for name, amounts in datasets.items():
        cells = (_amount(unit, amounts.get(key)) for _, key, unit in DATASET_COLUMNS)
        table.add_row(verbatim(console, name), *cells)
    _print_table(console, table)


def _print_sections(console: Console, sections: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    rows = [
        (f"{name}, {dataset}", amounts) for name, datasets in sections.items() for dataset, amounts in datasets.items()
    ]
    columns = {
        header: [_amount(unit, amounts.get(key)) for _, amounts in rows]
        for header, key, unit in SECTION_COLUMNS
        if any(amounts.get(key) for _, amounts in rows)
    }
    room = console.width - INDENT[3] - NARROWEST_NAME - 2
    while sum(max(map(len, (header, *cells))) + 2 for header, cells in columns.items()) > room:
        del columns[next(header for header in DISPENSABLE if header in columns)]
    _print_title(console, "sections")
    table = named_table("section, dataset", columns)
    for (label, _), *cells in zip(rows, *columns.values(), strict=True):
        table.add_row(verbatim(console, label), *cells)
    _print_table(console, table)


def _print_bytes(console: Console, members: list[Metric], metrics: Metrics) -> None:
    """Print the byte ledger, the metrics that are not in it, and the branches."""
    _print_title(console, BYTES)
    ledger: ByteLedger = metrics["byte_ledger"]
    table = _ledger_table(ledger, ledger.total, BYTE)
    if ledger.transferred is not None:
        table.add_row(TRANSFERRED, BYTE.text(ledger.transferred), gaps_text(ledger.gaps or 0))
    _print_table(console, table)
    _print_lines(console, [str(ledger.certificate), *_transfer(ledger)])
    console.print()
    _print_values(console, [metric for metric in members if metric.label not in LEDGER_ROWS], metrics)
    if ledger.advice:
        _print_title(console, "to read fewer bytes")
        _print_list(console, [saving.text for saving in ledger.advice])
    _print_branches(console, ledger)


def _print_time(console: Console, members: list[Metric], metrics: Metrics) -> None:
    """Print the time ledger, and the metrics that are not in it."""
    _print_title(console, "thread time")
    ledger: TimeLedger = metrics["time_ledger"]
    _print_table(console, _ledger_table(ledger, ledger.total, SECOND))
    _print_lines(console, [str(ledger.certificate), *time_notes(ledger)])
    console.print()
    _print_values(console, [metric for metric in members if metric.label not in TIME_ROWS], metrics)


def time_notes(ledger: TimeLedger) -> list[str]:
    """Why work failed, and what was not measured."""
    failed = [f"{SECOND.text(seconds)} {reason}" for reason, seconds in ledger.failed.items() if seconds]
    lines = [f"Failed: {', '.join(failed)}."] if failed else []
    reasons = dict.fromkeys(ledger.unknown.values())
    names = {why: [f'"{name}"' for name, reason in ledger.unknown.items() if reason == why] for why in reasons}
    return lines + [f"Not measured: {', '.join(words)}: {reason}." for reason, words in names.items()]


def _ledger_table(ledger: Mapping[str, float | None], total: float | None, unit: Unit) -> Table:
    """Classes with their amounts and shares of the total; one that did not occur is left out, but for the residual."""
    table = _table("amount", "share")
    for name, amount in (*ledger.items(), (TOTAL, total)):
        if unit is SECOND and amount == 0 and name not in {TOTAL, RESIDUAL}:
            continue
        share = share_text(amount / total) if total and amount is not None else ""
        table.add_row(name, _amount(unit, amount), share)
    return table


def gaps_text(gaps: int) -> str:
    """What came beyond what was requested, or was requested and never came."""
    return f"{BYTE.text(gaps)} not requested" if gaps >= 0 else f"{BYTE.text(-gaps)} requested never came"


def _transfer(ledger: ByteLedger) -> list[str]:
    """Why it is not known what was transferred."""
    return [] if ledger.transferred is not None else [f"Transferred: {ledger.transferred_absent}."]


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(Padding(verbatim(console, line), INDENT), overflow="fold")


def _print_branches(console: Console, ledger: ByteLedger) -> None:
    """Print the branches of which the most was read."""
    branches = ledger.branches.group_by("branch").aggregate(
        [(name, "sum", pc.ScalarAggregateOptions(skip_nulls=False)) for _, name in BRANCH_COLUMNS]
    )
    if len(branches) == 0:
        return
    rows = branches.to_pylist()
    rows.sort(key=lambda row: (-(row["bytes_payload_sum"] or 0) - (row["bytes_reread_sum"] or 0), row["branch"]))
    _print_title(console, "branches")
    table = named_table("branch", (header for header, _ in BRANCH_COLUMNS))
    for row in rows[:MOST_BRANCHES]:
        table.add_row(
            verbatim(console, row["branch"]), *(_amount(BYTE, row[f"{name}_sum"]) for _, name in BRANCH_COLUMNS)
        )
    _print_table(console, table)
    if len(rows) > MOST_BRANCHES:
        console.print(Padding(Text(f"and {number(len(rows) - MOST_BRANCHES)} more", style=QUIET), INDENT))


def _print_problems(console: Console, problems: Sequence[str]) -> None:
    _print_title(console, f"problems ({len(problems)})" if problems else "no problems with the measuring")
    if problems:
        _print_list(console, problems)


def _print_list(console: Console, texts: Sequence[str]) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(overflow="fold")
    for text in texts:
        table.add_row("-", verbatim(console, text))
    _print_table(console, table)
