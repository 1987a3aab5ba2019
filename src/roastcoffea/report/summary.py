"""A run's summary as sheets, for the terminal, notebooks and pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from numbers import Real
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.completeness import Incompleteness, is_interrupt
from roastcoffea.errors import unknown
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metric, Metrics, catalogue, phases
from roastcoffea.metrics.catalogue import BYTES, RAW, TIME, WRITING
from roastcoffea.metrics.facts import elapsed_seconds, known_names, name_of
from roastcoffea.metrics.failures import skipped_data
from roastcoffea.metrics.outputs import NAMES as WRITTEN_NAMES
from roastcoffea.metrics.phases import TOTAL
from roastcoffea.metrics.profile import UserLine
from roastcoffea.records.run import Run
from roastcoffea.report.tables import FIRST_ROWS, IN_TABLES, allocation, central, failures, known
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import (
    LABELS,
    NO_PROBLEMS,
    NOT_MEASURED,
    SHARED,
    THREAD_TIME,
    TRANSFERRED,
    UNACCOUNTED,
    Amount,
    Cell,
    Column,
    Heading,
    Reason,
    Sheet,
)
from roastcoffea.units import (
    BYTE,
    COUNT,
    FRACTION,
    RATIO,
    SECOND,
    STRUCTURE,
    WORD,
    Unit,
    counted,
    few,
    moment,
    number,
)

MOST_BRANCHES: Final = 10
MOST_WORKERS: Final = 10
ZERO: Final = "Zero: "


class InLedger(NamedTuple):
    """A ledger's name and title, and the labels of the metrics shown in its table."""

    name: str
    title: str
    labels: Sequence[str]


LEDGERS: Final[Mapping[str, InLedger]] = {
    BYTES: InLedger("byte_ledger", BYTES, (*phases.BYTE_NAMES, UNACCOUNTED, TOTAL, TRANSFERRED)),
    WRITING: InLedger("write_ledger", WRITING, (*WRITTEN_NAMES, UNACCOUNTED, TOTAL)),
    TIME: InLedger("time_ledger", THREAD_TIME, (*phases.TIME_NAMES, UNACCOUNTED, TOTAL)),
}

Row = Mapping[str, Any]
Keyed = tuple[str, Column]
"""A value's key in the rows, and the column that shows the value."""


def _keyed(unit: Unit, **names: str) -> tuple[Keyed, ...]:
    return tuple((key, Column(name, unit)) for key, name in names.items())


DATASET_COLUMNS: Final = (
    *_keyed(COUNT, num_chunks="chunks", num_failed="failed", total_events="events"),
    *_keyed(SECOND, mean_duration="wall/chunk", total_duration="wall (ok)", cpu_seconds="CPU (all)"),
)
SECTION_COLUMNS: Final = (
    *_keyed(COUNT, count="count"),
    *_keyed(SECOND, wall_seconds="wall", self_seconds="self", cpu_seconds="CPU", max_seconds="max"),
    *_keyed(BYTE, bytes="bytes", memory_peak="memory"),
    *_keyed(COUNT, errors="errors"),
)
LEAVE_FIRST: Final = ("max", "self", "CPU", "memory", "bytes", "errors", "count", "wall")
"""Columns of the section table, in the order in which they are dropped on narrow terminals."""

CUSTOM: Final = "value, dataset"
CUSTOM_COLUMNS: Final = (
    *_keyed(COUNT, chunks="chunks", sum="sum", mean="mean", min="min", max="max"),
    *_keyed(WORD, texts="texts"),
)
WORKER_COLUMNS: Final = (
    *_keyed(COUNT, chunks="chunks"),
    *_keyed(FRACTION, busy_share="in chunks", cpu_share="CPU"),
    *_keyed(WORD, bound="limited by"),
    *_keyed(RATIO, slowness="slow"),
    *_keyed(SECOND, spill_seconds="spill", transfer_seconds="fetch", clock_offset="clock"),
)
LINE_COLUMNS: Final = (
    ("line", Column("line")),
    *_keyed(FRACTION, share="CPU"),
    *_keyed(SECOND, seconds="CPU/chunk"),
)
LEAST_OF_LINE: Final = 0.005
"""Lines with a smaller share of the CPU time are not shown."""
OF_BRANCH: Final = {"bytes_payload": "payload", "bytes_reread": "re-read", "bytes_uncompressed": "uncompressed"}
BRANCH_COLUMNS: Final = _keyed(BYTE, **{f"{key}_sum": name for key, name in OF_BRANCH.items()})


def summary(run: Run, metrics: Metrics, group: str | None = None) -> Iterator[Sheet]:
    """All tables: metrics by group, with the reasons for missing metrics, and other tables.

    Parameters
    ----------
    group
        Name of a single group to show.

    Raises
    ------
    ValueError
        If there is no such group.
    """
    if group is None:
        yield heading(run)
        for name in GROUPS:
            yield from _sheets(name, run, metrics)
        return
    if group not in GROUPS:
        raise ValueError(f"{unknown('group of tables', group, GROUPS)}; there are {', '.join(GROUPS)}")
    found = list(_sheets(group, run, metrics))
    yield from found or [Sheet(lead=[f"This run has no {group}."])]


def _sheets(group: str, run: Run, metrics: Metrics) -> Iterator[Sheet]:
    match group:
        case "verdict":
            yield from own_sheets(metrics, "verdict")
        case "failures":
            yield from failures(metrics)
        case "your code":
            yield from _user_lines(known(metrics.evaluator, "user_lines") or ())
        case "workers":
            yield from _workers(metrics.tables["worker_balance"], known_names(metrics.evaluator).workers)
        case catalogue.CENTRAL:
            yield from (replace(sheet, notes=()) for sheet in central(metrics))
            yield from _values([each for each in OF_METRICS[group] if each.name not in IN_TABLES], metrics)
        case "batch jobs":
            yield from allocation(metrics)
        case "datasets":
            yield from (sheet for sheet in [datasets(metrics)] if sheet.rows)
        case "sections":
            yield from _sections(metrics.get("sections") or {})
        case "values":
            yield from _custom(metrics.get("custom") or {})
        case "problems":
            names = known_names(metrics.evaluator)
            yield problems([names.in_text(problem) for problem in problems_of_measuring(run, metrics)])
        case _:
            yield from _group(group, OF_METRICS[group], metrics)


OF_METRICS: Final[Mapping[str, Sequence[Metric]]] = {
    group: list(members)
    for group, members in groupby(
        (metric for metric in CATALOGUE.metrics() if metric.group != RAW and metric.unit is not STRUCTURE),
        key=lambda metric: metric.group,
    )
}
GROUPS: Final = (
    "verdict",
    "failures",
    "your code",
    *OF_METRICS,
    "workers",
    "batch jobs",
    "datasets",
    "sections",
    "values",
    "problems",
)


def state_of_collector(state: str, found: Sequence[str]) -> Iterator[Sheet]:
    yield Heading(title="MetricsCollector", lead=[state])
    yield from ([problems(found)] if found else [])


def own_sheets(metrics: Metrics, name: str) -> Sequence[Sheet]:
    """Sheets for a ledger or the verdict; empty if it is missing."""
    result: Presented | None = metrics.get(name)
    return [] if result is None else result.sheets()


# Heading


def title_of(run: Run) -> str:
    """The run's name or, if it has none, the names of its processors or its ID."""
    return name_of(run) or run.id


def heading(run: Run) -> Heading:
    """Heading with the run's name, time, duration, backend, outcome and ID."""
    length = f", {SECOND.text(elapsed_seconds(run))}" if run.stop > run.start else ""
    reporter = f"Numbers as reported by {run.reported_by}; they were not recomputed."
    return Heading(
        title=title_of(run),
        label="roastcoffea",
        lead=[f"{moment(run.start)}{length}, {run.backend}, {run.outcome}, {run.id[:8]}", *[SHARED] * run.shared],
        alarm=_alarm(run),
        notes=[] if run.reported is None else [reporter],
    )


def _alarm(run: Run) -> str:
    if not run.ended_early:
        return ""
    if is_interrupt(run.error):
        return "This run was interrupted"
    return f"This run {run.ending}: {run.error or 'no error message was kept'}"


# Metrics by group


def amount_of(metrics: Metrics, name: str) -> Cell:
    """Cell for a metric: a number or a word."""
    value, unit = metrics[name], metrics.unit[name]
    return Amount(float(value), unit) if isinstance(value, Real) else unit.text(value)


def _group(group: str, members: Sequence[Metric], metrics: Metrics) -> Iterator[Sheet]:
    """Metrics of a group. A ledger's table replaces the metrics that it shows."""
    if group not in LEDGERS or LEDGERS[group].name not in metrics:
        first, *others = _values(members, metrics)
        yield from (replace(first, title=group), *others)
        return
    name, title, in_ledger = LEDGERS[group]
    ledger, *advice = metrics[name].sheets()
    yield replace(ledger, title=title)
    yield from _values([metric for metric in members if metric.label not in in_ledger], metrics)
    yield from advice
    if group == BYTES:
        yield from _branches(metrics[name])


def _values(members: Sequence[Metric], metrics: Metrics) -> Iterator[Sheet]:
    """Values and the reasons for missing values, followed by per-chunk quantities by statistic.

    A note lists the values that are zero.
    """
    known = [metric for metric in members if metric.name in metrics]
    zero = [metric for metric in known if metric.statistic is None and metrics[metric.name] == 0]
    rows = [
        (metric.label, amount_of(metrics, metric.name))
        for metric in known
        if metric.statistic is None and metric not in zero
    ]
    missing = labels_by_reason(members, metrics).items()
    reasons = [("\n".join(labels), Reason(reason)) for reason, labels in missing]
    notes = [f"{ZERO}{', '.join(metric.label for metric in zero)}."] if zero else []
    if rows or reasons or notes:
        yield Sheet(columns=(LABELS, Column("")), rows=[*rows, *reasons], notes=notes)
    spread = [metric for metric in known if metric.statistic is not None]
    if spread:
        yield _distributions(spread, metrics)


def labels_by_reason(members: Sequence[Metric], metrics: Metrics) -> dict[str, Iterable[str]]:
    """Labels of missing metrics, by reason.

    If a whole group or a whole row of statistics is missing for the same reason, it gets a single label.
    """
    reasons = {metrics.missing.get(metric.name) for metric in members}
    if len(reasons) == 1 and None not in reasons:
        return {str(reasons.pop()): [NOT_MEASURED]}
    partly = {metric.label for metric in members if metric.statistic and metric.name in metrics}
    labels: dict[str, dict[str, None]] = {}
    for metric in members:
        if metric.name in metrics.missing:
            label = f"{metric.label} ({metric.statistic})" if metric.label in partly else metric.label
            labels.setdefault(metrics.missing[metric.name], {})[label] = None
    return dict(labels)


def _distributions(members: Sequence[Metric], metrics: Metrics) -> Sheet:
    """One row for each chunk quantity, with its statistics side by side."""
    statistics = list(dict.fromkeys(str(metric.statistic) for metric in members))
    rows = []
    for label, same_label in groupby(members, key=lambda metric: metric.label):
        amounts = {str(metric.statistic): amount_of(metrics, metric.name) for metric in same_label}
        rows.append((f"{label} per chunk", *(amounts.get(statistic, "") for statistic in statistics)))
    return Sheet(columns=(LABELS, *(Column(statistic, COUNT) for statistic in statistics)), rows=rows)


# Tables


def keyed_sheet(names: str, rows: Iterable[Row], columns: Sequence[Keyed], **values: Any) -> Sheet:
    """Sheet with names in the first column, followed by values that are looked up by key."""
    heads = [(names, Column(names)), *columns]
    found = [[row.get(key) for key, _ in heads] for row in rows]
    return Sheet(columns=[column for _, column in heads], rows=found, **values)


def datasets(metrics: Metrics) -> Sheet:
    found = [{"dataset": name, **row} for name, row in (metrics.get("per_dataset") or {}).items()]
    columns = [each for each in DATASET_COLUMNS if each[0] != "num_failed" or any(row.get(each[0]) for row in found)]
    return keyed_sheet("dataset", found, columns, title="datasets", things="datasets", first=FIRST_ROWS)


def _user_lines(lines: Sequence[UserLine]) -> Iterator[Sheet]:
    rows = [
        {"function": one.place.function, "line": f"{PurePath(one.place.file).name}:{one.place.line}", **one._asdict()}
        for one in lines
        if one.share >= LEAST_OF_LINE
    ]
    if rows:
        yield keyed_sheet("function", rows, LINE_COLUMNS, title="your code", things="lines", first=FIRST_ROWS)


def _by_name(found: Mapping[str, Mapping[str, Row]], key: str) -> list[Row]:
    """One row for each name and dataset, combined into a single key."""
    named = ((f"{name}, {dataset}", row) for name, of_it in found.items() for dataset, row in of_it.items())
    return [{key: name, **row} for name, row in named]


def _custom(values: Mapping[str, Mapping[str, Row]]) -> Iterator[Sheet]:
    rows = []
    for row in _by_name(values, CUSTOM):  # the tables contain the full text
        texts = ", ".join(_beginning(text, 40) for text in row["texts"] or ())
        rows.append({**row, "texts": _beginning(texts, 200) or None})
    columns = [(key, column) for key, column in CUSTOM_COLUMNS if any(row.get(key) is not None for row in rows)]
    if rows:
        yield keyed_sheet(CUSTOM, rows, columns, title="recorded values")


def _beginning(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _sections(sections: Mapping[str, Mapping[str, Row]]) -> Iterator[Sheet]:
    rows = _by_name(sections, "section, dataset")
    columns = [
        (key, replace(column, dispensable=LEAVE_FIRST.index(column.name) + 1))
        for key, column in SECTION_COLUMNS
        if any(row.get(key) for row in rows)
    ]
    if rows:
        yield keyed_sheet("section, dataset", rows, columns, title="sections")


def _workers(workers: pa.Table | str, names: Mapping[str, str]) -> Iterator[Sheet]:
    if isinstance(workers, str) or not len(workers) or workers["chunks"].null_count:
        return
    rows = [
        row | {"worker": names.get(row["worker"], row["worker"])} for row in workers.sort_by("busy_share").to_pylist()
    ]
    without = [row["worker"] for row in rows if not row["chunks"]]
    rows = [row for row in rows if row["chunks"]]
    shown = {key for key, _ in WORKER_COLUMNS if any(row[key] for row in rows)}
    if all(abs(row["clock_offset"] or 0.0) < 0.01 for row in rows):  # hide negligible offsets
        shown.discard("clock_offset")
    columns = [each for each in WORKER_COLUMNS if each[0] in shown]
    more = [f"and {counted(len(rows) - MOST_WORKERS, 'busier worker')}"] * (len(rows) > MOST_WORKERS)
    if without:
        more.append(f"Workers without a chunk: {few(without, MOST_WORKERS)}.")
    title = f"workers ({number(len(workers))})"
    yield keyed_sheet("worker", rows[:MOST_WORKERS], columns, title=title, notes=more)


def _branches(ledger: ByteLedger) -> Iterator[Sheet]:
    options = pc.ScalarAggregateOptions(skip_nulls=False)
    amounts = [(key, "sum", options) for key in OF_BRANCH]
    rows = ledger.branches.group_by("branch").aggregate(amounts).to_pylist()
    rows.sort(key=lambda row: (-(row["bytes_payload_sum"] or 0) - (row["bytes_reread_sum"] or 0), row["branch"]))
    if rows:
        columns = [each for each in BRANCH_COLUMNS if any(row[each[0]] != 0 for row in rows)]
        yield keyed_sheet("branch", rows[:MOST_BRANCHES], columns, title="branches", total=len(rows))


def named_problems(run: Run, metrics: Metrics) -> list[str]:
    """Measurement problems, with short names for workers and hosts."""
    names = known_names(metrics.evaluator)
    return [names.in_text(problem) for problem in (*run.problems, *metrics.problems)]


def problems_of_measuring(run: Run, metrics: Metrics) -> Iterator[str]:
    """Measurement problems, except for missing data that a finding already reports."""
    missing: Incompleteness | None = known(metrics.evaluator, "incompleteness")
    lacking = () if missing is None or missing.complete else frozenset(skipped_data(run))
    return (problem for problem in (*run.problems, *metrics.problems) if problem not in lacking)


def problems(found: Sequence[str]) -> Sheet:
    return Sheet(title=f"measurement problems ({len(found)})" if found else NO_PROBLEMS, items=found)
