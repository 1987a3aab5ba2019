"""Facts about each task, from its states, attempts and views: columns and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dask.utils import key_split
from distributed.utils import key_split_group

from roastcoffea.monitor.history import FINISHED, NO_TIMES, Key
from roastcoffea.monitor.views import READERS
from roastcoffea.records.chunks import OK
from roastcoffea.records.columns import Column
from roastcoffea.records.tasks import CANCELLED, ERROR, LOST, TASK_COLUMNS, UNFINISHED

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

TO_DO: Final = (*NOT_BEGUN, "processing")

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

OF_DEPENDENTS: Final = ("dependents", "num_dependents")
OF_VIEWS: Final = ("thread", "suspicious", "transitions", "startstops", "metadata", "run_spec", *OF_DEPENDENTS)
VIEW_NAMES: Final = ("key", "worker", "state", *NO_TIMES, "duration", *OF_VIEWS, *READERS)
"""Fields of a task on a worker."""

EMPTY: Final[Mapping[str, type]] = {
    **dict.fromkeys(("num_dependencies", "num_dependents", "suspicious_count"), int),
    **dict.fromkeys(("dependencies", "dependents", "waiting_for_data", "who_has"), list),
    **dict.fromkeys(("resource_restrictions", "annotations", "metadata"), dict),
}
"""Empty values of a worker, which it does not send."""


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
    if known.get("outcome") != OK and task["state"] in TO_DO and task["time"] > attempt.get("seen", 0.0):
        known |= {"state": task["state"], "outcome": _outcome_since(task, known.get("outcome"))}
    known["duration"] = distance(known.get("start"), known.get("stop"))
    return {column.name: known.get(column.name) for column in MONITOR_COLUMNS}


def _outcome_since(task: Mapping[str, Any], outcome: str | None) -> str | None:
    """Fields of the end of a task whose state is later than its last attempt, which had this outcome."""
    if not task["gone"]:
        return outcome and UNFINISHED
    return CANCELLED if task["state"] in NOT_BEGUN else outcome


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
    empty = {name: kind() for name, kind in EMPTY.items()} if "described" in view else {}
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


def worker_rows(tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums over the tasks computed by each worker."""
    finished: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        if task["outcome"] == OK:
            finished.setdefault(task["worker"], []).append(task)
    rows = []
    for worker, computed in sorted(finished.items()):
        nbytes, seconds = (known_total(task[name] for task in computed) for name in ("nbytes", "duration"))
        sums = (worker, len(computed), nbytes, quotient(nbytes, len(computed)), seconds)
        rows.append(dict(zip((column.name for column in WORKER_COLUMNS), sums, strict=True)))
    return rows


def known_total(values: Iterable[float | None]) -> float | None:
    """Sum of numbers; None if one is unknown."""
    numbers = list(values)
    return None if None in numbers else sum(filter(None, numbers))


def quotient(amount: float | None, over: float | None) -> float | None:
    """Quotient of two numbers; None if one is unknown, or the divisor is 0."""
    return None if amount is None or not over else amount / over
