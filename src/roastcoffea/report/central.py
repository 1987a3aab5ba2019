"""Scheduler and client, which cannot use more than one core each: tables that add up, and merges by level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.client import TABLE
from roastcoffea.metrics.phases import TOTAL
from roastcoffea.report.phrases import UNACCOUNTED, absence
from roastcoffea.report.sheets import LABELS, Amount, Column, Sheet
from roastcoffea.units import BYTE, COUNT, FRACTION, SECOND, Unit, counted, number, share_text, three_digits

SCHEDULER_TITLE: Final = "scheduler: one core x time"
CLIENT_TITLE: Final = "client: one core x time"
MERGES_TITLE: Final = "merges of results on workers"

OF_SCHEDULER: Final[Mapping[str, str]] = {
    "scheduler_cpu_seconds": "CPU of its event loop",
    "scheduler_queue_seconds": "CPU contention",
    "scheduler_idle_seconds": "idle",
    "scheduler_unaccounted_seconds": UNACCOUNTED,
}
OF_CLIENT: Final[Mapping[str, str]] = {f"client_{name}_seconds": texts[0] for name, texts in TABLE.items()}
"""Metrics whose sum is the wall time, by their names in the table."""

IN_TABLES: Final = frozenset((*OF_SCHEDULER, *OF_CLIENT))
"""Metrics that have rows of their own."""

MERGE_COLUMNS: Final[Mapping[str, Column]] = {
    "level": Column("level", COUNT),
    "merges": Column("merges", COUNT),
    "inputs_max": Column("inputs (max)", COUNT, dispensable=2),
    "input_bytes": Column("merged", BYTE),
    "output_bytes": Column("results", BYTE, dispensable=1),
    "largest_bytes": Column("largest", BYTE),
    "thread_seconds": Column("thread time", SECOND),
}


def central(metrics: Metrics) -> Iterator[Sheet]:
    """Tables of the scheduler, the client and merges; the reason where one of the first two was not measured."""
    yield _ledger(metrics, SCHEDULER_TITLE, OF_SCHEDULER, _of_scheduler(metrics))
    yield _ledger(metrics, CLIENT_TITLE, OF_CLIENT, _of_client(metrics))
    yield from merge_sheets(metrics)


def _ledger(metrics: Metrics, title: str, names: Mapping[str, str], notes: Sequence[str]) -> Sheet:
    known = {label: metrics[name] for name, label in names.items() if name in metrics}
    if not known:
        return Sheet(title=title, lead=[absence(metrics.missing[next(iter(names))])])
    total = sum(known.values())
    rows = [(label, amount, _share(amount, total)) for label, amount in known.items() if amount or label == UNACCOUNTED]
    columns = LABELS, Column("time", SECOND), Column("share", FRACTION, bars=True)
    whole = (TOTAL, total, _share(total, total))
    return Sheet(title=title, columns=columns, rows=[*rows, whole], notes=notes, form="plain")


def _share(amount: float, total: float) -> Amount | str:
    return Amount(amount / total, FRACTION, share_text(amount / total)) if total else ""


def _of_scheduler(metrics: Metrics) -> list[str]:
    """What the scheduler's event loop did while tasks were in flight, against what one core can do."""
    share, peak = (_text(metrics, f"scheduler_core_share{end}", FRACTION) for end in ("", "_peak"))
    rate, limit = (_text(metrics, f"scheduler_task_{name}", None) for name in ("rate", "rate_limit"))
    lag, most = (_text(metrics, f"scheduler_lag{end}_seconds", SECOND) for end in ("", "_peak"))
    notes = []
    if share and peak:
        notes.append(f"With tasks in flight: {share} of its core, {peak} in the busiest ten seconds.")
    if rate and limit:
        notes.append(f"{rate} tasks/s; one core would do {limit} tasks/s.")
    if "scheduler_idle_seconds" in metrics and "scheduler_queue_seconds" not in metrics:
        notes.append("Idle includes CPU contention: the scheduler's system does not report run-queue times.")
    if most:
        notes.append(f"Lag of its event loop: {f'{lag} on average, ' if lag else ''}{most} at most.")
    return notes


def _of_client(metrics: Metrics) -> list[str]:
    notes = []
    size, tasks = _text(metrics, "graph_bytes", BYTE), _text(metrics, "graph_tasks", COUNT)
    if size and tasks:
        notes.append(f"Graphs sent: {size} for {counted(metrics['graph_tasks'], 'task')}.")
    share = _text(metrics, "client_loop_core_share", FRACTION)
    most = _text(metrics, "client_loop_lag_peak_seconds", SECOND)
    if most:
        shared = f"{share} of a core" if share else "shared with the scheduler"
        notes.append(f"Its event loop: {shared}, lag {most} at most.")
    return notes


def _text(metrics: Metrics, name: str, unit: Unit | None) -> str:
    """A metric as text, numbers with three digits; empty where it is missing."""
    if name not in metrics:
        return ""
    return number(three_digits(metrics[name])) if unit is None else unit.text(metrics[name])


def merge_sheets(metrics: Metrics) -> Iterator[Sheet]:
    """Merges by level; nothing where none was recorded."""
    try:
        rows = metrics.evaluator.value("merges").to_pylist()
    except NotMeasuredError:
        return
    found = [[row[name] for name in MERGE_COLUMNS] for row in rows]
    yield Sheet(title=MERGES_TITLE, columns=list(MERGE_COLUMNS.values()), rows=found, things="levels")
