"""Tasks joined with the chunks they processed, and their sums next to coffea's report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from distributed.utils import key_split_group

from roastcoffea.measurement import Measurement
from roastcoffea.monitor.history import CHUNK
from roastcoffea.monitor.tables import GROUP, OF_ATTEMPT, distance, known_total, quotient
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column
from roastcoffea.records.tasks import PROCESSOR

if TYPE_CHECKING:
    import pandas as pd

RESULT: Final = (OK, CHECKPOINT)
"""Outcomes of chunks with a result."""

OF_CHUNK: Final = {column.name: column for column in CHUNK_COLUMNS}

OF_PLACE: Final = ("dataset", "file", "entry_start", "entry_stop")
REQUESTED: Final = "requested from the file (coffea's savemetrics, otherwise the chunk's own record)"
OUTCOME: Final = f"of the chunk: {OF_CHUNK['outcome'].meaning}; without a record, that of the task"
JOINED_COLUMNS: Final[tuple[Column, ...]] = (
    *(OF_ATTEMPT[name] for name in ("key", "run_id", "prefix")),
    GROUP,
    *(OF_CHUNK[name] for name in ("dataset", "file", "tree", "entry_start", "entry_stop", "events")),
    Column("bytes", "integer", "B", REQUESTED),
    *(OF_ATTEMPT[name] for name in ("nbytes", "type", "worker", "thread", "start", "stop")),
    Column("outcome", "text", None, OUTCOME),
)
COMPARED_COLUMNS: Final[tuple[Column, ...]] = (
    *(OF_CHUNK[name] for name in ("dataset", "file", "entry_start", "entry_stop", "events")),
    Column("input_bytes", "integer", "B", REQUESTED),
    Column("output_bytes", "integer", "B", "size of the task's result in memory, compressed if the executor does so"),
    Column("bytes_per_event", "number", "B", "input bytes over events"),
    Column("seconds", "number", "s", "duration of the task"),
    Column("throughput", "number", "B/s", "input bytes over the duration of the task"),
    OF_ATTEMPT["worker"],
)
TOTAL_COLUMNS: Final[tuple[Column, ...]] = (
    Column("quantity", "text", None, "what is compared; result_bytes are the sizes of results in memory"),
    Column("unit", "text", None, "unit of the row's numbers"),
    Column("tasks", "number", None, "sum over the tasks with a result"),
    Column("report", "number", None, "coffea's report, which has no sizes of results"),
    Column("difference", "number", None, "tasks minus report"),
)

AMOUNTS: Final = ("tasks", "report", "difference")
QUANTITIES: Final = {
    "chunks": ("chunks", None),
    "entries": ("events", "events"),
    "bytesread": ("B", "bytes"),
    "processtime": ("s", "process_seconds"),
    "result_bytes": ("B", "nbytes"),
}
"""Compared quantities with their units and the columns of chunks to sum."""

OF_RECORDS: Final = ("bytesread", "processtime")
"""Fields found only in a chunk's record."""

NO_MEASUREMENT: Final = "pass the collector that was open at the time, or its measurement: only its records have it"
NO_RECORD: Final = "the record of at least one chunk is missing"
NO_CHUNK: Final = "the monitor recorded no chunk with a result"
NOT_STARTED: Final = "the monitor was not started: nothing was recorded"

identity: Final = itemgetter("key", "run_id")
"""What identifies an attempt."""


class ReportComparison(NamedTuple):
    """Chunks as seen by their tasks, and their sums next to coffea's report."""

    chunks: pd.DataFrame
    totals: pd.DataFrame


def measurement_of(source: Any) -> Measurement | None:
    """A measurement, possibly that of a collector; None if none is given.

    Raises
    ------
    TypeError
        If it is something else.
    """
    found = getattr(source, "measurement", source)
    if found is not None and not isinstance(found, Measurement):
        raise TypeError(f"pass a Measurement or a MetricsCollector, not {type(source).__name__}")
    return found


def joined_rows(attempts: Iterable[Mapping[str, Any]], measurement: Measurement | None) -> list[dict[str, Any]]:
    """Attempts of chunks' tasks with fields of the chunks' records, or of coffea's work items."""
    if measurement is None:
        return [joined_row(attempt, {}) for attempt in attempts if attempt["kind"] == CHUNK]
    rows = [[] if table is None else table.to_pylist() for table in (measurement.run.chunks, measurement.run.tasks)]
    of_processors: dict[Any, Mapping[str, Any]] = {identity(row): {} for row in rows[1] if row["kind"] == PROCESSOR}
    chunks = of_processors | {identity(row): row for row in rows[0]}
    return [joined_row(attempt, chunks[identity(attempt)]) for attempt in attempts if identity(attempt) in chunks]


def compared(
    rows: Iterable[Mapping[str, Any]], report: Mapping[str, Any], measurement: Measurement | None, started: bool
) -> ReportComparison:
    """Chunks of joined rows with a result, and their sums next to coffea's report."""
    import pandas as pd

    check_report(report)
    worked = list({row["key"]: row for row in rows if row["outcome"] in RESULT}.values())
    chunks = frame_of(table_of_rows(COMPARED_COLUMNS, map(compared_chunk, worked)), COMPARED_COLUMNS)
    sums = compared_sums(worked, measurement is not None, started)
    totals = frame_of(table_of_rows(TOTAL_COLUMNS, compared_totals(sums, report)), TOTAL_COLUMNS)
    for name in AMOUNTS:  # with mixed units, pandas would print them all with one exponent
        totals[name] = pd.Series(map(whole, totals[name]), dtype=object)
    totals.attrs["missing"] = {name: found for name, found in sums.items() if isinstance(found, str)}
    return ReportComparison(chunks, totals)


def check_report(report: Any) -> None:
    """Reject anything that is not a coffea report.

    Raises
    ------
    TypeError
        If it is not a mapping.
    ValueError
        If it has no key of a report.
    """
    expected = "the report that a Runner with savemetrics=True returns with its output"
    if not isinstance(report, Mapping):
        raise TypeError(f"the report is {report!r}, not {expected}")
    if not QUANTITIES.keys() & report.keys():
        found = ", ".join(map(repr, report)) or "nothing"
        raise ValueError(f"the report has {found}, and none of {', '.join(QUANTITIES)}: pass {expected}")


def whole(amount: float) -> float:
    """An integer if a number is one."""
    return int(amount) if amount == amount // 1 else amount


def joined_row(attempt: Mapping[str, Any], chunk: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt of a task with fields of its chunk's record."""
    of_coffea = chunk.get("coffea_bytes_read")
    size = chunk.get("bytes_requested") if of_coffea is None else of_coffea
    facts = {"bytes": size, "process_seconds": chunk.get("coffea_process_seconds")}
    outcome = chunk.get("outcome", attempt["outcome"])
    of_item = attempt.get("chunk") or {}
    # an attempt itself knows its chunk only if it failed
    own = {name: value for name, value in attempt.items() if value is not None or name not in OF_PLACE}
    return {**of_item, **chunk, **own, "group": key_split_group(attempt["key"]), **facts, "outcome": outcome}


def compared_chunk(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of a chunk by its task."""
    seconds, size = distance(row["start"], row["stop"]), row["bytes"]
    rates = {"bytes_per_event": quotient(size, row.get("events")), "throughput": quotient(size, seconds)}
    return {**row, "input_bytes": size, "output_bytes": row["nbytes"], "seconds": seconds, **rates}


def compared_sums(rows: Sequence[Mapping[str, Any]], measured: bool, started: bool) -> dict[str, float | str]:
    """Sums over tasks, or why they are unknown."""
    if not started:
        return dict.fromkeys(QUANTITIES, NOT_STARTED)
    sums: dict[str, float | str] = {}
    for name, (_, column) in QUANTITIES.items():
        total = len(rows) if column is None else known_total(row.get(column) for row in rows)
        if name in OF_RECORDS and not measured:
            sums[name] = NO_MEASUREMENT
        elif column is not None and not rows:
            sums[name] = NO_CHUNK
        else:
            sums[name] = NO_RECORD if total is None else total
    return sums


def compared_totals(sums: Mapping[str, float | str], report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Sums over tasks next to the report's."""
    for name, (unit, _) in QUANTITIES.items():
        found, of_report = sums[name], report.get(name)
        total = None if isinstance(found, str) else found
        difference = distance(of_report, total)
        yield {"quantity": name, "unit": unit, "tasks": total, "report": of_report, "difference": difference}
