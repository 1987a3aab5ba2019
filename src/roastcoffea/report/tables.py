"""A run's tables as DataFrames and sheets, and the content of `metrics.json`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import roastcoffea
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.diagnosis.slowness import BALANCE_COLUMNS, STRAGGLER_COLUMNS
from roastcoffea.errors import root_cause
from roastcoffea.metrics import CATALOGUE, ByteLedger, Metrics, TimeLedger, WriteLedger
from roastcoffea.metrics import byte_ledger as byte_metrics
from roastcoffea.metrics import outputs as write_metrics
from roastcoffea.metrics import time_ledger as time_metrics
from roastcoffea.metrics.arrivals import ARRIVAL_COLUMNS
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.chunks import CUSTOM_TOTALS
from roastcoffea.metrics.endpoints import SERVER_COLUMNS
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import reason_of_absence
from roastcoffea.metrics.failures import FAILED_COLUMNS, FAILED_FILE_COLUMNS
from roastcoffea.metrics.memory import (
    CLASSES,
    DATASET_MEMORY_COLUMNS,
    GROWTH_COLUMNS,
    JOB_COLUMNS,
    WORKER_MEMORY_COLUMNS,
)
from roastcoffea.metrics.phases import RESIDUAL, TOTAL, with_sum_of_waits
from roastcoffea.metrics.profile import FUNCTION_COLUMNS, HOT_COLUMNS, SECTION_TOTALS
from roastcoffea.metrics.scheduler_and_client import MERGE_COLUMNS, TABLE
from roastcoffea.metrics.thread_activity import REPEATED
from roastcoffea.records import workers as tasks
from roastcoffea.records.arrow import absent_frame, frame_of, rows_in
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column as TableColumn
from roastcoffea.records.run import ASKED_COLUMNS, PREPROCESSING_COLUMNS, Run
from roastcoffea.records.workers import (
    CLIENT_STEP_COLUMNS,
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    REQUEST_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    TASK_COLUMNS,
    WORKER_STATE_COLUMNS,
)
from roastcoffea.sheets.sheet import LABELS, UNACCOUNTED, Amount, Cell, Column, Sheet, absence
from roastcoffea.storage.store import METRICS_FILE
from roastcoffea.units import (
    BY_SYMBOL,
    BYTE,
    COUNT,
    FRACTION,
    RATIO,
    SECOND,
    SMALLEST_SHARE,
    Unit,
    are,
    counted,
    moment,
    number,
    share_text,
    three_digits,
    were,
)

if TYPE_CHECKING:
    import pandas as pd


def known(values: Evaluator, name: str) -> Any:
    """Value of a quantity, by name; None if it was not measured."""
    try:
        return values.value(name)
    except NotMeasuredError:
        return None


FIRST_ROWS: Final = 30
"""Number of table rows in the page's HTML. Scripts show the rest."""

MOST_ROWS: Final = 2000

MOMENT: Final = Unit("Unix time", partial(moment, milliseconds=True))
"""Unit for columns in seconds whose meanings describe moments rather than durations."""

_BEFORE_REASON: Final = "Not measured: "

SHARES: Final = {"busy_share": FRACTION, "cpu_share": FRACTION, "slowness": RATIO}

HEADINGS: Final = {RESIDUAL: UNACCOUNTED, "bound": "limited by"}

CAPITALS: Final = {"cpu": "CPU", "gc": "GC"}

IDENTITIES: Final = frozenset({"id", "run_id", "thread"})
"""Numeric ID columns, which are shown with all digits."""


def sheet_of_table(frame: pd.DataFrame, things: str, *, title: str = "", most: int = MOST_ROWS) -> Sheet:
    """Sheet that shows a DataFrame and describes its columns, or explains its absence.

    Measurements set the units and meanings in `frame.attrs`.

    Parameters
    ----------
    things
        Plural noun for the rows.
    most
        Maximum number of rows.
    """
    if "absent" in frame.attrs:
        return not_measured(frame.attrs["absent"], title)
    attributes, frame = frame.attrs, frame.copy(deep=False)
    frame.attrs = {}  # pandas would copy attrs with each column
    frame = _without_small_rest(frame)
    columns = [_column(frame[label], attributes) for label in frame.columns]
    taken = frame.head(most)
    rows = list(zip(*(map(_cell, taken[label]) for label in taken), strict=True))
    return Sheet(title=title, columns=columns, rows=rows, things=things, total=len(frame), first=FIRST_ROWS)


def _without_small_rest(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop a breakdown's "unaccounted" column if it is negligible in all rows."""
    if RESIDUAL not in frame or TOTAL not in frame:
        return frame
    small = frame[RESIDUAL].abs() <= SMALLEST_SHARE * frame[TOTAL]
    return frame.drop(columns=RESIDUAL) if small.all() else frame


def not_measured(reason: str, title: str = "") -> Sheet:
    """Placeholder sheet for a missing table."""
    return Sheet(title=title, lead=[f"{_BEFORE_REASON}{reason}."])


def reason_in(sheet: Sheet) -> str | None:
    """Why a table is missing, according to its placeholder sheet; None for other sheets."""
    lead = sheet.lead[0] if len(sheet.lead) == 1 else ""
    return lead.removeprefix(_BEFORE_REASON).removesuffix(".") if lead.startswith(_BEFORE_REASON) else None


def _column(values: pd.Series, attributes: Mapping[Any, Any]) -> Column:
    label: Any = values.name
    meaning, symbol = (str(attributes.get(name, {}).get(label, "")) for name in ("columns", "units"))
    known = values.dropna().iloc[:100]
    unit: Unit | None = SHARES.get(label) or BY_SYMBOL.get(symbol, COUNT)
    if label in IDENTITIES or not len(known) or not all(map(_is_number, known)):
        unit = None
    elif symbol == SECOND.symbol and MOMENT.symbol in meaning:
        unit = MOMENT
    return Column(heading_of(str(label)), unit, meaning)


def heading_of(name: str) -> str:
    """Heading for a column. The unit is left out, because cells show it."""
    words = name.removesuffix("_seconds").split("_")
    return HEADINGS.get(name) or " ".join(CAPITALS.get(word, word) for word in words)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _cell(value: Any) -> Cell:
    import pandas as pd

    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(map(str, value))
    if pd.isna(value):
        return None
    if not _is_number(value):
        return str(value)
    return int(value) if isinstance(value, Integral) else float(value)


TITLE: Final = "batch jobs: cores x time charged"


def allocation(metrics: Metrics) -> Sequence[Sheet]:
    """Core time of batch jobs by class, with notes; empty if there were no jobs."""
    jobs: pa.Table | None = known(metrics.evaluator, "jobs")
    rows = rows_in(jobs)
    if not rows:
        return []
    charged = [row for row in rows if row["charged"] is not None]
    systems, queues = (
        ", ".join(dict.fromkeys(row[name] for row in rows if row[name])) for name in ("batch_system", "queue")
    )
    going = sum(not row["ended"] for row in rows)
    where = f" on {systems}{f' in {queues}' if queues else ''}"
    still = f"; {going} still running when the run ended, counted up to that point" if going else ""
    notes = [f"{counted(len(rows), 'job')}{where}{still}."]
    if len(charged) < len(rows):
        notes.append(
            f"Left out, because the start time or core count is unknown: {counted(len(rows) - len(charged), 'job')}."
        )
    notes += memory_note(rows)
    if not charged:
        return [Sheet(title=TITLE, lead=notes)]
    labels = {**CLASSES, "residual": UNACCOUNTED}
    amounts = {label: math.fsum(row[name] for row in charged) for name, label in labels.items()}
    return [_shares(TITLE, "core time", amounts, math.fsum(row["charged"] for row in charged), notes)]


def _shares(title: str, of: str, amounts: Mapping[str, float], total: float, notes: Sequence[str]) -> Sheet:
    shown = {label: amount for label, amount in amounts.items() if amount or label == UNACCOUNTED} | {TOTAL: total}
    rows = [
        (label, amount, Amount(amount / total, FRACTION, share_text(amount / total)) if total else "")
        for label, amount in shown.items()
    ]
    columns = LABELS, Column(of, SECOND), Column("share", FRACTION, bars=True)
    return Sheet(title=title, columns=columns, rows=rows, notes=notes, form="plain")


def memory_note(rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Advice on memory requests; empty unless at least half of the requested memory is never used."""
    if not all(row["job_memory"] and row["memory_peak"] is not None for row in rows):
        return []
    peak, least = max(row["memory_peak"] for row in rows), min(row["job_memory"] for row in rows)
    if peak > 0.5 * least:
        return []
    unused = FRACTION.text(1 - peak / least)
    what = (
        f"{unused} of the requested memory is unused: jobs request {BYTE.text(least)} but use only {BYTE.text(peak)}."
    )
    return [f"{what} Request {BYTE.text(1.25 * peak)}: smaller jobs often start sooner."]


SCHEDULER_TITLE: Final = "scheduler: one core x time"
CLIENT_TITLE: Final = "client: one core x time"
MERGES_TITLE: Final = "merges of results on workers"

OF_SCHEDULER: Final[Mapping[str, str]] = {
    "scheduler_cpu_seconds": "event loop CPU",
    "scheduler_queue_seconds": "CPU contention",
    "scheduler_idle_seconds": "idle",
    "scheduler_unaccounted_seconds": UNACCOUNTED,
}
OF_CLIENT: Final[Mapping[str, str]] = {f"client_{name}_seconds": texts[0] for name, texts in TABLE.items()}
"""Labels of the metrics that add up to the wall time."""

IN_TABLES: Final = frozenset((*OF_SCHEDULER, *OF_CLIENT))

SHOWN_OF_MERGES: Final[Mapping[str, Column]] = {
    "level": Column("level", COUNT),
    "merges": Column("merges", COUNT),
    "inputs_max": Column("inputs (max)", COUNT, dispensable=2),
    "input_bytes": Column("merged", BYTE),
    "output_bytes": Column("results", BYTE, dispensable=1),
    "largest_bytes": Column("largest", BYTE),
    "thread_seconds": Column("thread time", SECOND),
}


def central(metrics: Metrics) -> Iterator[Sheet]:
    """Tables for the scheduler, the client and merges. A placeholder states why one of the first two is missing."""
    yield _ledger(metrics, SCHEDULER_TITLE, OF_SCHEDULER, _of_scheduler(metrics))
    yield _ledger(metrics, CLIENT_TITLE, OF_CLIENT, _of_client(metrics))
    yield from merge_sheets(metrics)


def _ledger(metrics: Metrics, title: str, names: Mapping[str, str], notes: Sequence[str]) -> Sheet:
    amounts = {label: metrics[name] for name, label in names.items() if name in metrics}
    if not amounts:
        return Sheet(title=title, lead=[absence(metrics.missing[next(iter(names))])])
    return _shares(title, "time", amounts, sum(amounts.values()), notes)


def _of_scheduler(metrics: Metrics) -> list[str]:
    share, peak = (_text(metrics, f"scheduler_core_share{end}", FRACTION) for end in ("", "_peak"))
    rate, limit = (_text(metrics, f"scheduler_task_{name}", None) for name in ("rate", "rate_limit"))
    lag, most = (_text(metrics, f"scheduler_lag{end}_seconds", SECOND) for end in ("", "_peak"))
    notes = []
    if share and peak:
        notes.append(f"While tasks were in flight: {share} of its core, {peak} in the busiest 10 s.")
    # with few tasks, the scheduler's background work would be attributed to them
    if rate and limit and metrics.get("graph_tasks", 0) >= 1000:
        notes.append(f"{rate} tasks/s; one core can handle {limit} tasks/s.")
    if "scheduler_idle_seconds" in metrics and "scheduler_queue_seconds" not in metrics:
        notes.append("Idle includes CPU contention: the scheduler's host does not report run-queue times.")
    if most:
        notes.append(f"Event loop lag: {f'{lag} on average, ' if lag else ''}{most} at most.")
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
        notes.append(f"Event loop: {shared}, lag {most} at most.")
    return notes


def _text(metrics: Metrics, name: str, unit: Unit | None) -> str:
    """Metric as text, rounded to three digits; empty if the metric is missing."""
    if name not in metrics:
        return ""
    return number(three_digits(metrics[name])) if unit is None else unit.text(metrics[name])


def merge_sheets(metrics: Metrics) -> Iterator[Sheet]:
    merges = known(metrics.evaluator, "merges")
    if merges is not None:
        found = [[row[name] for name in SHOWN_OF_MERGES] for row in merges.to_pylist()]
        yield Sheet(title=MERGES_TITLE, columns=list(SHOWN_OF_MERGES.values()), rows=found, things="levels")


MOST_FILES: Final = 10
LONGEST_LINE: Final = 200

WITHOUT_ERROR: Final = {
    tasks.LOST: "lost with a worker",
    tasks.CANCELLED: "cancelled",
    tasks.UNFINISHED: "unfinished when the run stopped",
    REPEATED: "repeated: another result for the chunk was used",
}


def failures(metrics: Metrics) -> Iterator[Sheet]:
    """Files with errors, and other failures; empty if no failures are known."""
    files, failed = (known(metrics.evaluator, name) for name in ("failed_files", "failed_work"))
    if files is None or failed is None:
        return
    missing = metrics.get("num_missing_chunks") or 0
    if len(files):
        yield Sheet(title=f"files with failed attempts ({number(len(files))})", items=list(_of_files(files, missing)))
        missing = 0
    others = list(_without_error(failed, missing))
    if others:
        yield Sheet(title="other failures" if len(files) else "failures", items=others)


def _of_files(files: pa.Table, missing: int) -> Iterator[str]:
    for row in files.slice(0, MOST_FILES).to_pylist():
        yield _of_file(row)
    if len(files) > MOST_FILES:
        yield f"and {number(len(files) - MOST_FILES)} more"
    elsewhere = missing - (pc.sum(files["missing"]).as_py() or 0)
    if elsewhere:
        yield f"{counted(elsewhere, 'chunk')} in other files {are(elsewhere)} missing as well"


def _of_file(row: Mapping[str, Any]) -> str:
    lacking = "not opened" if row["missing"] is None else f"{counted(row['missing'], 'chunk')} missing"
    outcome, error = lacking if row["missing"] != 0 else "nothing missing", root_cause(row["error"])[:LONGEST_LINE]
    return f"{row['file']}, {row['dataset']}: {row['attempts']} failed, {outcome}; {error}"


def _without_error(failed: pa.Table, missing: int) -> Iterator[str]:
    reasons = Counter(failed.filter(pc.is_null(failed["error"]))["reason"].to_pylist())
    for reason, text in WITHOUT_ERROR.items():
        if reasons[reason]:
            yield f"{counted(reasons[reason], 'attempt')} {were(reasons[reason])} {text}"
    if missing:
        yield f"{counted(missing, 'chunk')} {are(missing)} missing from the output"


class Table(NamedTuple):
    """A table's columns, the function that computes the table, and its field in the run.

    The function returns None if nothing was recorded.
    """

    columns: Sequence[TableColumn]
    make: Callable[[Run, Metrics], pa.Table | None]
    field: str = ""


def _recorded(field: str, columns: Sequence[TableColumn]) -> Table:
    return Table(columns, lambda run, _: getattr(run, field), field)


def _derived(name: str, columns: Sequence[TableColumn]) -> Table:
    return Table(columns, lambda _, metrics: metrics.evaluator.value(name))


TABLES: Final[Mapping[str, Table]] = {
    "chunks": Table(
        CHUNK_COLUMNS, lambda run, _: run.chunks if run.chunks is None else with_sum_of_waits(run.chunks), "chunks"
    ),
    "tasks": _recorded("tasks", TASK_COLUMNS),
    "workers": _recorded("samples", SAMPLE_COLUMNS),
    "lifetimes": _recorded("lifetimes", LIFETIME_COLUMNS),
    "pauses": _recorded("pauses", PAUSE_COLUMNS),
    "sampling": _recorded("sampling", SAMPLING_COLUMNS),
    "worker_states": _recorded("worker_states", WORKER_STATE_COLUMNS),
    "client_steps": _recorded("client_steps", CLIENT_STEP_COLUMNS),
    "worker_requests": _recorded("worker_requests", REQUEST_COLUMNS),
    "arrivals": _derived("arrivals", ARRIVAL_COLUMNS),
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
    "outputs": _derived("outputs", write_metrics.OUTPUT_COLUMNS),
    "worker_memory": _derived("worker_memory", WORKER_MEMORY_COLUMNS),
    "dataset_memory": _derived("dataset_memory", DATASET_MEMORY_COLUMNS),
    "memory_growth": _derived("memory_growth", GROWTH_COLUMNS),
    "jobs": _derived("jobs", JOB_COLUMNS),
}


class Breakdown(NamedTuple):
    """A ledger, its possible breakdowns, and descriptions of their columns."""

    ledger: type[ByteLedger | TimeLedger | WriteLedger]
    by: Sequence[str]
    meanings: Mapping[str, str]


BREAKDOWNS: Final[Mapping[str, Breakdown]] = {
    "byte_ledger": Breakdown(ByteLedger, byte_metrics.BREAKDOWNS, byte_metrics.MEANINGS),
    "write_ledger": Breakdown(WriteLedger, write_metrics.BREAKDOWNS, write_metrics.MEANINGS),
    "time_ledger": Breakdown(TimeLedger, time_metrics.BREAKDOWNS, time_metrics.MEANINGS),
}
NAMES: Final = (*TABLES, *(f"{ledger}_by_{what}" for ledger, each in BREAKDOWNS.items() for what in each.by))


def frame_named(name: str, run: Run, metrics: Metrics) -> pd.DataFrame:
    """Table with this name. A missing table is returned empty, with the reason in `attrs["absent"]`.

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
    """Breakdown of a ledger. A missing breakdown is returned empty, with the reason."""
    ledger, _, meanings = BREAKDOWNS[name]
    try:
        with metrics.computing(f"{name}.by({what!r})"):
            found = metrics[name] if name in metrics else ledger.not_measured(metrics.missing[name])
            return _documented(found, what, meanings)
    except NotMeasuredError as reason:
        return _documented(ledger.not_measured(str(reason)), what, meanings)


def _documented(ledger: ByteLedger | TimeLedger | WriteLedger, what: Any, meanings: Mapping[str, str]) -> pd.DataFrame:
    key = "address" if what == "worker" else what  # "worker" is a class of the time ledger
    frame = ledger.by(what).rename_axis(index=key).reset_index()
    amounts = [name for name in frame.columns if name != key]
    of_amounts = {name: f"{meanings.get(name, name)} [{ledger.unit}]" for name in amounts}
    frame.attrs = {
        "columns": {key: f"{what} {key}" if key != what else what} | of_amounts,
        "units": dict.fromkeys(amounts, str(ledger.unit)),
        **({} if ledger.absent is None else {"absent": ledger.absent}),
    }
    return frame


ON_REQUEST: Final = frozenset(metric.name for metric in CATALOGUE.metrics() if metric.on_request)


def metrics_json(run: Run, metrics: Metrics) -> bytes:
    """Content of `metrics.json`. If computing the metrics fails, it contains only the reason.

    This is standard JSON: {"metrics": {name: {"value", "unit", "source"}}, "missing": {name: reason}}, with the run's
    identity and the version that computed the metrics. Raw structures are left out. Numbers that JSON cannot represent
    are the strings "NaN", "Infinity" and "-Infinity".
    """
    try:
        with metrics.computing(METRICS_FILE):
            return _document(run, metrics, metrics, metrics.missing)
    except NotMeasuredError as error:
        return _document(run, metrics, (), {metric.name: str(error) for metric in CATALOGUE.metrics()})


def _document(run: Run, metrics: Metrics, names: Iterable[str], missing: Mapping[str, str]) -> bytes:
    document = {
        "format": "roastcoffea metrics 1",
        "version": roastcoffea.__version__,
        **{name: getattr(run, name) for name in ("id", "name", "start", "stop", "outcome", "error")},
        "metrics": {
            name: {"value": metrics[name], "unit": str(metrics.unit[name]), "source": metrics.source[name]}
            for name in names
            if name not in ON_REQUEST
        },
        "missing": {name: reason for name, reason in missing.items() if name not in ON_REQUEST},
        "problems": [*run.problems, *metrics.problems],
    }
    return json.dumps(standard(document), indent=1, allow_nan=False).encode()


def standard(value: Any) -> Any:
    """Convert a value to standard JSON types. Values of any other type become text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Finding):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): standard(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [standard(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else json.dumps(number)
    return str(value)
