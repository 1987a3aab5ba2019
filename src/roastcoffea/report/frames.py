"""Tables of a run as DataFrames: recorded ones, derived ones, and breakdowns of the ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from roastcoffea.diagnosis.balance import BALANCE_COLUMNS
from roastcoffea.diagnosis.stragglers import STRAGGLER_COLUMNS
from roastcoffea.metrics import ByteLedger, Metrics, TimeLedger
from roastcoffea.metrics import byte_ledger as byte_metrics
from roastcoffea.metrics import time_ledger as time_metrics
from roastcoffea.metrics.allocation import JOB_COLUMNS
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.custom import CUSTOM_TOTALS
from roastcoffea.metrics.endpoints import SERVER_COLUMNS
from roastcoffea.metrics.facts import reason_of_absence
from roastcoffea.metrics.failures import FAILED_COLUMNS, FAILED_FILE_COLUMNS
from roastcoffea.metrics.memory import DATASET_MEMORY_COLUMNS, WORKER_MEMORY_COLUMNS
from roastcoffea.metrics.merges import MERGE_COLUMNS
from roastcoffea.metrics.phases import with_sum_of_waits
from roastcoffea.metrics.profile import FUNCTION_COLUMNS, HOT_COLUMNS
from roastcoffea.metrics.sections import SECTION_TOTALS
from roastcoffea.records.arrow import absent_frame, frame_of
from roastcoffea.records.calls import ASKED_COLUMNS, PREPROCESSING_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.client import CLIENT_STEP_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import (
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    WORKER_STATE_COLUMNS,
)

if TYPE_CHECKING:
    import pandas as pd


class Table(NamedTuple):
    """A table: its columns, the function that makes it (None if nothing was recorded), and the run's field behind
    it."""

    columns: Sequence[Column]
    make: Callable[[Run, Metrics], pa.Table | None]
    field: str = ""


def _recorded(field: str, columns: Sequence[Column]) -> Table:
    return Table(columns, lambda run, _: getattr(run, field), field)


def _derived(name: str, columns: Sequence[Column]) -> Table:
    """A table from the catalogue of metrics, by its name there."""
    return Table(columns, lambda _, metrics: metrics.evaluator.value(name))


TABLES: Final[Mapping[str, Table]] = {
    "chunks": Table(CHUNK_COLUMNS, lambda run, _: with_sum_of_waits(run.chunks), "chunks"),
    "tasks": _recorded("tasks", TASK_COLUMNS),
    "workers": _recorded("samples", SAMPLE_COLUMNS),
    "lifetimes": _recorded("lifetimes", LIFETIME_COLUMNS),
    "pauses": _recorded("pauses", PAUSE_COLUMNS),
    "sampling": _recorded("sampling", SAMPLING_COLUMNS),
    "worker_states": _recorded("worker_states", WORKER_STATE_COLUMNS),
    "client_steps": _recorded("client_steps", CLIENT_STEP_COLUMNS),
    "merges": _derived("merges", MERGE_COLUMNS),
    "branches": _derived("branches", BRANCH_COLUMNS),
    "custom": _derived("custom_totals", CUSTOM_TOTALS),
    "sections": _derived("section_totals", SECTION_TOTALS),
    "functions": _derived("functions", FUNCTION_COLUMNS),
    "hot_functions": _derived("hot_functions", HOT_COLUMNS),
    "preprocessing": _recorded("preprocessing", PREPROCESSING_COLUMNS),
    "failed": _derived("failed_work", FAILED_COLUMNS),
    "failed_files": _derived("failed_files", FAILED_FILE_COLUMNS),
    "missing": _derived("missing_work", ASKED_COLUMNS),
    "stragglers": _derived("stragglers", STRAGGLER_COLUMNS),
    "worker_balance": _derived("worker_balance", BALANCE_COLUMNS),
    "endpoints": _derived("endpoints", SERVER_COLUMNS),
    "worker_memory": _derived("worker_memory", WORKER_MEMORY_COLUMNS),
    "dataset_memory": _derived("dataset_memory", DATASET_MEMORY_COLUMNS),
    "jobs": _derived("jobs", JOB_COLUMNS),
}
"""Tables available as attributes of a measurement."""


class Breakdown(NamedTuple):
    """A ledger, its possible breakdowns, and the meanings of their columns."""

    ledger: type[ByteLedger | TimeLedger]
    by: Sequence[str]
    meanings: Mapping[str, str]


BREAKDOWNS: Final[Mapping[str, Breakdown]] = {
    "byte_ledger": Breakdown(ByteLedger, byte_metrics.BREAKDOWNS, byte_metrics.MEANINGS),
    "time_ledger": Breakdown(TimeLedger, time_metrics.BREAKDOWNS, time_metrics.MEANINGS),
}
NAMES: Final = (*TABLES, *(f"{ledger}_by_{what}" for ledger, each in BREAKDOWNS.items() for what in each.by))
"""All tables, including breakdowns of the ledgers."""


def frame_named(name: str, run: Run, metrics: Metrics) -> pd.DataFrame:
    """One of the tables; if it is not available, it is empty with the reason in `attrs["absent"]`.

    Raises
    ------
    ValueError
        If there is no such table.
    """
    if name not in NAMES:
        raise ValueError(f"unknown table {name!r}; see `tables`")
    ledger, _, what = name.partition("_by_")
    return _frame(name, run, metrics) if name in TABLES else _breakdown(ledger, what, metrics)


def _frame(name: str, run: Run, metrics: Metrics) -> pd.DataFrame:
    columns, make, field = TABLES[name]
    try:
        with metrics.computing(name):
            table = make(run, metrics)
            return absent_frame(columns, reason_of_absence(run, field)) if table is None else frame_of(table, columns)
    except NotMeasuredError as reason:
        return absent_frame(columns, str(reason))


def _breakdown(name: str, what: Any, metrics: Metrics) -> pd.DataFrame:
    """Breakdown of a ledger; if it is not available, it is empty with the reason."""
    ledger, _, meanings = BREAKDOWNS[name]
    try:
        with metrics.computing(f"{name}.by({what!r})"):
            found = metrics[name] if name in metrics else ledger.not_measured(metrics.missing[name])
            return _documented(found, what, meanings)
    except NotMeasuredError as reason:
        return _documented(ledger.not_measured(str(reason)), what, meanings)


def _documented(ledger: ByteLedger | TimeLedger, what: Any, meanings: Mapping[str, str]) -> pd.DataFrame:
    """Breakdown of a ledger as a table with documented columns."""
    key = "address" if what == "worker" else what  # "worker" is a class of the time ledger
    frame = ledger.by(what).rename_axis(index=key).reset_index()
    amounts = [name for name in frame.columns if name != key]
    of_amounts = {name: f"{meanings.get(name, name)} [{ledger.unit}]" for name in amounts}
    frame.attrs = {
        "columns": {key: f"{key} of the {what}" if key != what else what} | of_amounts,
        "units": dict.fromkeys(amounts, str(ledger.unit)),
        **({} if ledger.absent is None else {"absent": ledger.absent}),
    }
    return frame
