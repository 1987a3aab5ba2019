"""Facts about each task, from its states, attempts and views, and joined with the chunks they processed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dask.utils import key_split
from distributed.utils import key_split_group

from roastcoffea.measurement import Measurement
from roastcoffea.monitor.history import CHUNK, FINISHED, NO_TIMES, Key, Watched
from roastcoffea.monitor.views import READERS
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column
from roastcoffea.records.workers import CANCELLED, ERROR, LOST, PROCESSOR, TASK_COLUMNS, UNFINISHED

if TYPE_CHECKING:
    import pandas as pd


WAY: Final = ("worker", "thread", "runnable", "assigned", "arrived", "ready", "start", "stop")
END: Final = ("seen", "nbytes", "type", "outcome", "run_id", "span", "error")
OF_ATTEMPTS: Final = ("prefix", *WAY, *END)
"""Fields of a task from an attempt: in flight, on its thread, and at its end."""

ENDS: Final = {OK: "memory", ERROR: "erred"}
"""Most informative state of a task, by the outcome of its attempt."""

GONE: Final = ("released", "forgotten")
"""States of a task whose result is gone."""

NOT_BEGUN: Final = ("waiting", "queued", "no-worker")
"""States of a task without a worker: if the scheduler releases it there, it was cancelled."""

RELEASED: Final = "released"
FAILED: Final = "failed"

OF_ATTEMPT: Final = {column.name: column for column in TASK_COLUMNS}

LAST_STATE: Final = 'the last state at the scheduler before it was forgotten: "memory", "erred", "processing", ...'
GROUP: Final = Column("group", "text", None, "task group: tasks of one collection, or of one call")

KIND: Final = Column("kind", "text", None, 'its role in coffea: "chunk", "preprocessing", "merge" or "other"')
EXPECTED: Final = "duration expected by Dask on assignment, from earlier tasks of this prefix; none for the first"

MONITOR_COLUMNS: Final[tuple[Column, ...]] = (
    *(OF_ATTEMPT["key"], OF_ATTEMPT["prefix"], GROUP, KIND),
    Column("state", "text", None, LAST_STATE),
    *(OF_ATTEMPT[name] for name in WAY),
    Column("duration", "number", "s", "time on the thread from start to stop"),
    Column("expected", "number", "s", EXPECTED),
    Column("created", "number", "s", "when it first appeared at the scheduler (Unix time, the client's clock)"),
    *(OF_ATTEMPT[name] for name in END),
    Column("attempts", "integer", "attempts", "finished attempts, with any outcome"),
    Column("suspicious", "integer", None, "number of workers that died while they had the task"),
)
"""Fields of a task; times and result are those of its last successful attempt, if any."""

ATTEMPT_COLUMNS: Final = tuple(KIND if column.name == "kind" else column for column in TASK_COLUMNS)
"""Fields of an attempt."""

WORKER_COLUMNS: Final[tuple[Column, ...]] = (
    OF_ATTEMPT["worker"],
    Column("tasks", "integer", "tasks", "tasks whose result it computed"),
    Column("nbytes", "integer", "B", "size of these results in memory"),
    Column("mean_nbytes", "number", "B", "mean size of a result"),
    Column("seconds", "number", "s", "time to compute them, summed over its threads"),
)

VIEW_NAMES: Final = (
    *("key", "worker", "state", *NO_TIMES, "duration", "thread", "suspicious", "transitions", "startstops"),
    *("metadata", "run_spec", "dependents", "num_dependents", *READERS),
)
"""Fields of a task on a worker."""


def attempts_of(watched: Iterable[Watched]) -> list[dict[str, Any]]:
    """Attempts of tasks that ended in these periods, with keys in Dask's form and coffea's kinds."""
    attempts = []
    for period in watched:
        tasks = {str(task["key"]): task for task in period.history.tasks}
        attempts += [attempt | tasks.get(attempt["key"], {}) for attempt in period.attempts.to_pylist()]
    return attempts


def states_of(watched: Iterable[Watched]) -> dict[Key, dict[str, Any]]:
    """Furthest state of each task in these periods, in order of appearance."""
    states: dict[Key, dict[str, Any]] = {}
    for period in watched:
        for task in period.history.described():
            take_state(states, task)
    return states


def take_state(states: dict[Key, dict[str, Any]], task: dict[str, Any]) -> None:
    """Take a state that a task entered if it is more informative than earlier ones."""
    known = states.setdefault(task["key"], task | {"created": task["time"]})
    task["suspicious"] = max(known["suspicious"], task["suspicious"])
    known["gone"] = task["state"] in GONE
    if task["state"] not in GONE:
        known |= {name: value for name, value in task.items() if value is not None}


def complete_task(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a task from its states and attempts, in the order of `MONITOR_COLUMNS`."""
    of_attempt = {name: attempt[name] for name in OF_ATTEMPTS if attempt.get(name) is not None}
    names = {"prefix": key_split(task["key"]), "group": key_split_group(task["key"])}
    known = {**task, **names, "attempts": attempt.get("attempts", 0), **of_attempt}
    known["state"] = ENDS.get(known.get("outcome", ""), task["state"])
    if (
        known.get("outcome") != OK
        and task["state"] in (*NOT_BEGUN, "processing")
        and task["time"] > attempt.get("seen", 0.0)
    ):
        known["state"] = task["state"]
        if not task["gone"]:
            known["outcome"] = known.get("outcome") and UNFINISHED
        elif task["state"] in NOT_BEGUN:
            known["outcome"] = CANCELLED
    known["duration"] = distance(known.get("start"), known.get("stop"))
    return {column.name: known.get(column.name) for column in MONITOR_COLUMNS}


def fate_of(task: Mapping[str, Any]) -> str:
    """Fate of a task of `get_all_tasks`; each has exactly one."""
    state, outcome = task["state"], task["outcome"]
    if state == "memory":
        return FINISHED
    if state == "erred" or outcome == LOST:
        return FAILED
    if outcome == CANCELLED or state == RELEASED:
        return str(outcome or state)
    return UNFINISHED


def complete_view(view: Mapping[str, Any], of_scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's view of a task with all names, and the scheduler's counts and expectations."""
    held = [state for state, _ in view["transitions"] if state not in GONE]
    empty: dict[str, Any] = {}
    if "described" in view:  # a worker does not send empty values
        empty |= dict.fromkeys(("num_dependencies", "num_dependents", "suspicious_count"), 0)
        empty |= {name: [] for name in ("dependencies", "dependents", "waiting_for_data", "who_has")}
        empty |= {name: {} for name in ("resource_restrictions", "annotations", "metadata")}
    suspicious, expected = (of_scheduler.get(name) for name in ("suspicious", "expected"))
    known = {**empty, **view, "state": held[-1] if held else None, "suspicious": suspicious, "duration": expected}
    return {name: known.get(name) for name in VIEW_NAMES}


def distance(start: float | None, stop: float | None) -> float | None:
    """Difference between both; None if one is unknown."""
    return None if start is None or stop is None else stop - start


def best_attempts(attempts: Iterable[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Last successful attempt of each task, or the last one if none succeeded, with the number of attempts."""
    best: dict[Key, dict[str, Any]] = {}
    for attempt in attempts:
        before = best.get(attempt["key"])
        if before is None or attempt["outcome"] == OK or before["outcome"] != OK:
            best[attempt["key"]] = attempt
        ended = 0 if before is None else before["attempts"]
        best[attempt["key"]]["attempts"] = ended + (attempt["outcome"] != UNFINISHED)
    return best


def worker_rows(tasks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Sums over the tasks computed by each worker."""
    finished: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        if task["outcome"] == OK:
            finished.setdefault(task["worker"], []).append(task)
    for worker, computed in sorted(finished.items()):
        nbytes, seconds = (known_total(task[name] for task in computed) for name in ("nbytes", "duration"))
        mean = quotient(nbytes, len(computed))
        yield {"worker": worker, "tasks": len(computed), "nbytes": nbytes, "mean_nbytes": mean, "seconds": seconds}


def known_total(values: Iterable[float | None]) -> float | None:
    """Sum of numbers; None if one is unknown."""
    numbers = list(values)
    return None if None in numbers else sum(filter(None, numbers))


def quotient(amount: float | None, over: float | None) -> float | None:
    """Quotient of two numbers; None if one is unknown, or the divisor is 0."""
    return None if amount is None or not over else amount / over


OF_CHUNK: Final = {column.name: column for column in CHUNK_COLUMNS}

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

QUANTITIES: Final = {
    "chunks": ("chunks", None),
    "entries": ("events", "events"),
    "bytesread": ("B", "bytes"),
    "processtime": ("s", "process_seconds"),
    "result_bytes": ("B", "nbytes"),
}
"""Compared quantities with their units and the columns of chunks to sum."""


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
    identity, run = itemgetter("key", "run_id"), measurement.run
    known: dict[Any, Mapping[str, Any]] = {}
    for row in [] if run.tasks is None else run.tasks.to_pylist():
        if row["kind"] == PROCESSOR:
            known[identity(row)] = {}
    known |= {identity(row): row for row in ([] if run.chunks is None else run.chunks.to_pylist())}
    return [joined_row(attempt, known[identity(attempt)]) for attempt in attempts if identity(attempt) in known]


def joined_row(attempt: Mapping[str, Any], chunk: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt of a task with fields of its chunk's record."""
    of_coffea = chunk.get("coffea_bytes_read")
    facts = {
        "group": key_split_group(attempt["key"]),
        "bytes": chunk.get("bytes_requested") if of_coffea is None else of_coffea,
        "process_seconds": chunk.get("coffea_process_seconds"),
        "outcome": chunk.get("outcome", attempt["outcome"]),
    }
    # an attempt itself knows its chunk only if it failed
    place = ("dataset", "file", "entry_start", "entry_stop")
    own = {name: value for name, value in attempt.items() if value is not None or name not in place}
    return {**(attempt.get("chunk") or {}), **chunk, **own, **facts}


def compared(
    rows: Iterable[Mapping[str, Any]], report: Mapping[str, Any], measured: bool, started: bool
) -> ReportComparison:
    """Chunks of joined rows with a result, and their sums next to coffea's report.

    Raises
    ------
    TypeError
        If the report is not a mapping.
    ValueError
        If it has no key of a report.
    """
    import pandas as pd

    expected = "the report that a Runner with savemetrics=True returns with its output"
    if not isinstance(report, Mapping):
        raise TypeError(f"the report is {report!r}, not {expected}")
    if not QUANTITIES.keys() & report.keys():
        found = ", ".join(map(repr, report)) or "nothing"
        raise ValueError(f"the report has {found}, and none of {', '.join(QUANTITIES)}: pass {expected}")
    worked = list({row["key"]: row for row in rows if row["outcome"] in (OK, CHECKPOINT)}.values())
    chunks = frame_of(table_of_rows(COMPARED_COLUMNS, map(compared_chunk, worked)), COMPARED_COLUMNS)
    sums, missing = [], {}
    for name, (unit, column) in QUANTITIES.items():
        total = len(worked) if column is None else known_total(row.get(column) for row in worked)
        reason = None if total is not None else "the record of at least one chunk is missing"
        if not started:
            reason = "the monitor was not started: nothing was recorded"
        elif name in {"bytesread", "processtime"} and not measured:
            reason = "pass the collector that was open at the time, or its measurement: only its records have it"
        elif column is not None and not worked:
            reason = "the monitor recorded no chunk with a result"
        if reason:
            total, missing[name] = None, reason
        difference = distance(report.get(name), total)
        sums.append(
            {"quantity": name, "unit": unit, "tasks": total, "report": report.get(name), "difference": difference}
        )
    totals = frame_of(table_of_rows(TOTAL_COLUMNS, sums), TOTAL_COLUMNS)
    for name in ("tasks", "report", "difference"):  # with mixed units, pandas would print them all with one exponent
        whole = [int(amount) if amount == amount // 1 else amount for amount in totals[name]]
        totals[name] = pd.Series(whole, dtype=object)
    totals.attrs["missing"] = missing
    return ReportComparison(chunks, totals)


def compared_chunk(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of a chunk by its task."""
    seconds, size = distance(row["start"], row["stop"]), row["bytes"]
    rates = {"bytes_per_event": quotient(size, row.get("events")), "throughput": quotient(size, seconds)}
    return {**row, "input_bytes": size, "output_bytes": row["nbytes"], "seconds": seconds, **rates}
