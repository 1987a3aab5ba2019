"""Show a monitor's tasks in live displays, tables and plots, and poll a cluster."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dask.utils import key_split
from distributed.utils import key_split_group

from roastcoffea.backends.deployment import Connection, NoAnswerError
from roastcoffea.log.kinds import STATES
from roastcoffea.measurement import Measurement
from roastcoffea.monitor.history import CHUNK, FINISHED, NO_TIMES, History, Key, Watched
from roastcoffea.monitor.views import READERS
from roastcoffea.records.arrow import arrow_schema, frame_of, rows_in, table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column as RecordColumn
from roastcoffea.records.run import Run, unwatched_run
from roastcoffea.records.workers import CANCELLED, ERROR, LIFETIME_COLUMNS, LOST, PROCESSOR, TASK_COLUMNS, UNFINISHED
from roastcoffea.report.live import NAME
from roastcoffea.sheets.sheet import Cell, Column, Heading, Sheet, columns
from roastcoffea.units import BYTE, COUNT, SECOND, counted, number

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WAY: Final = ("worker", "thread", "runnable", "assigned", "arrived", "ready", "start", "stop")
END: Final = ("seen", "nbytes", "type", "outcome", "run_id", "span", "error")
OF_ATTEMPTS: Final = ("prefix", *WAY, *END)

ENDS: Final = {OK: "memory", ERROR: "erred"}
"""Task state implied by the outcome of the attempt."""

GONE: Final = ("released", "forgotten")

NOT_BEGUN: Final = ("waiting", "queued", "no-worker")
"""States in which a task has no worker. A task released from any of these states was cancelled."""

RELEASED: Final = "released"
FAILED: Final = "failed"

OF_ATTEMPT: Final = {column.name: column for column in TASK_COLUMNS}

LAST_STATE: Final = 'last state on the scheduler before the task was forgotten: "memory", "erred", "processing", ...'
GROUP: Final = RecordColumn("group", "text", None, "Dask's task group: the tasks from one collection or call")

KIND: Final = RecordColumn("kind", "text", None, 'role in coffea: "chunk", "preprocessing", "merge" or "other"')
EXPECTED: Final = "duration that Dask expected, based on earlier tasks with this prefix; none for the first task"

MONITOR_COLUMNS: Final[tuple[RecordColumn, ...]] = (
    *(OF_ATTEMPT["key"], OF_ATTEMPT["prefix"], GROUP, KIND),
    RecordColumn("state", "text", None, LAST_STATE),
    *(OF_ATTEMPT[name] for name in WAY),
    RecordColumn("duration", "number", "s", "time from start to stop on the thread"),
    RecordColumn("expected", "number", "s", EXPECTED),
    RecordColumn(
        "created", "number", "s", "when the task first appeared on the scheduler (Unix time, the client's clock)"
    ),
    *(OF_ATTEMPT[name] for name in END),
    RecordColumn("attempts", "integer", "attempts", "number of finished attempts, whatever their outcome"),
    RecordColumn("suspicious", "integer", None, "number of workers that died while the task was assigned to them"),
)
"""Fields of a task. Times and results come from its last successful attempt, if there is one."""

ATTEMPT_COLUMNS: Final = tuple(KIND if column.name == "kind" else column for column in TASK_COLUMNS)

WORKER_COLUMNS: Final[tuple[RecordColumn, ...]] = (
    OF_ATTEMPT["worker"],
    RecordColumn("tasks", "integer", "tasks", "number of tasks whose results the worker computed"),
    RecordColumn("nbytes", "integer", "B", "total size of these results in memory"),
    RecordColumn("mean_nbytes", "number", "B", "mean size of a result"),
    RecordColumn("seconds", "number", "s", "compute time of these tasks, summed over the worker's threads"),
)

VIEW_NAMES: Final = (
    *("key", "worker", "state", *NO_TIMES, "duration", "thread", "suspicious", "transitions", "startstops"),
    *("metadata", "run_spec", "dependents", "num_dependents", *READERS),
)


def attempts_of(watched: Iterable[Watched]) -> list[dict[str, Any]]:
    attempts = []
    for period in watched:
        tasks = {str(task["key"]): task for task in period.history.tasks}
        attempts += [attempt | tasks.get(attempt["key"], {}) for attempt in period.attempts.to_pylist()]
    return attempts


def states_of(watched: Iterable[Watched]) -> dict[Key, dict[str, Any]]:
    """Return each task's last state before its release, in the order in which tasks appeared."""
    states: dict[Key, dict[str, Any]] = {}
    for task in (task for period in watched for task in period.history.described()):
        known = states.setdefault(task["key"], task | {"created": task["time"]})
        task["suspicious"] = max(known["suspicious"], task["suspicious"])
        known["gone"] = task["state"] in GONE
        if not known["gone"]:  # keep the last state before the result was released
            known |= {name: value for name, value in task.items() if value is not None}
    return states


def complete_task(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> dict[str, Any]:
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
    """Classify a task from `get_all_tasks` by its fate. Each task has exactly one fate."""
    state, outcome = task["state"], task["outcome"]
    if state == "memory":
        return FINISHED
    if state == "erred" or outcome == LOST:
        return FAILED
    if outcome == CANCELLED or state == RELEASED:
        return str(outcome or state)
    return UNFINISHED


def complete_view(view: Mapping[str, Any], of_scheduler: Mapping[str, Any]) -> dict[str, Any]:
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
    return None if start is None or stop is None else stop - start


def best_attempts(attempts: Iterable[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Return each task's last successful attempt, with the number of attempts.

    If no attempt succeeded, the last attempt is returned.
    """
    best: dict[Key, dict[str, Any]] = {}
    for attempt in attempts:
        before = best.get(attempt["key"])
        if before is None or attempt["outcome"] == OK or before["outcome"] != OK:
            best[attempt["key"]] = attempt
        ended = 0 if before is None else before["attempts"]
        best[attempt["key"]]["attempts"] = ended + (attempt["outcome"] != UNFINISHED)
    return best


def per_worker(tasks: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Sum over the tasks computed by each worker. A sum with an unknown term is unknown."""
    import pandas as pd

    frame = pd.DataFrame([task for task in tasks if task["outcome"] == OK], columns=["worker", "nbytes", "duration"])
    groups = frame.astype({"nbytes": float, "duration": float}).groupby("worker")
    sums = groups[["nbytes", "duration"]].sum(skipna=False).assign(tasks=groups.size())
    sums["mean_nbytes"] = sums["nbytes"] / sums["tasks"]
    table = sums.rename(columns={"duration": "seconds"}).reset_index()
    return frame_of(pa.Table.from_pandas(table, arrow_schema(WORKER_COLUMNS), preserve_index=False), WORKER_COLUMNS)


OF_CHUNK: Final = {column.name: column for column in CHUNK_COLUMNS}

REQUESTED: Final = "bytes requested from the file (from coffea's savemetrics, otherwise from the chunk record)"
OUTCOME: Final = f"chunk outcome: {OF_CHUNK['outcome'].meaning}; task outcome if the chunk has no record"
JOINED_COLUMNS: Final[tuple[RecordColumn, ...]] = (
    *(OF_ATTEMPT[name] for name in ("key", "run_id", "prefix")),
    GROUP,
    *(OF_CHUNK[name] for name in ("dataset", "file", "tree", "entry_start", "entry_stop", "events")),
    RecordColumn("bytes", "integer", "B", REQUESTED),
    *(OF_ATTEMPT[name] for name in ("nbytes", "type", "worker", "thread", "start", "stop")),
    RecordColumn("outcome", "text", None, OUTCOME),
)
COMPARED_COLUMNS: Final[tuple[RecordColumn, ...]] = (
    *(OF_CHUNK[name] for name in ("dataset", "file", "entry_start", "entry_stop", "events")),
    RecordColumn("input_bytes", "integer", "B", REQUESTED),
    RecordColumn(
        "output_bytes", "integer", "B", "size of the task's result in memory, compressed if the executor compresses it"
    ),
    RecordColumn("bytes_per_event", "number", "B", "input bytes per event"),
    RecordColumn("seconds", "number", "s", "duration of the task"),
    RecordColumn("throughput", "number", "B/s", "input bytes divided by the task's duration"),
    OF_ATTEMPT["worker"],
)
TOTAL_COLUMNS: Final[tuple[RecordColumn, ...]] = (
    RecordColumn("quantity", "text", None, "compared quantity; result_bytes is the size of the results in memory"),
    RecordColumn("unit", "text", None, "unit of the numbers in the row"),
    RecordColumn("tasks", "number", None, "sum over the tasks that returned a result"),
    RecordColumn("report", "number", None, "value in coffea's report, which contains no result sizes"),
    RecordColumn("difference", "number", None, "tasks minus report"),
)

QUANTITIES: Final = {
    "chunks": ("chunks", None),
    "entries": ("events", "events"),
    "bytesread": ("B", "bytes"),
    "processtime": ("s", "process_seconds"),
    "result_bytes": ("B", "nbytes"),
}
"""Maps each compared quantity to its unit and the chunk column to sum."""


class ReportComparison(NamedTuple):
    """Comparison between chunks recorded from tasks and coffea's report."""

    chunks: pd.DataFrame
    totals: pd.DataFrame


def measurement_of(source: Any) -> Measurement | None:
    found = getattr(source, "measurement", source)
    if found is not None and not isinstance(found, Measurement):
        raise TypeError(f"pass a Measurement or a MetricsCollector, not {type(source).__name__}")
    return found


def joined_rows(attempts: Iterable[Mapping[str, Any]], measurement: Measurement | None) -> Iterator[dict[str, Any]]:
    known: dict[Any, Mapping[str, Any]] = {}
    if measurement is not None:
        tasks, chunks = (rows_in(one) for one in (measurement.run.tasks, measurement.run.chunks))
        known = {(row["key"], row["run_id"]): {} for row in tasks if row["kind"] == PROCESSOR}
        known |= {(row["key"], row["run_id"]): row for row in chunks}
    for attempt in attempts:
        chunk = known.get((attempt["key"], attempt["run_id"]))
        if chunk is None and (measurement is not None or attempt["kind"] != CHUNK):
            continue
        chunk = chunk or {}
        of_coffea = chunk.get("coffea_bytes_read")
        facts = {
            "group": key_split_group(attempt["key"]),
            "bytes": chunk.get("bytes_requested") if of_coffea is None else of_coffea,
            "process_seconds": chunk.get("coffea_process_seconds"),
            "outcome": chunk.get("outcome", attempt["outcome"]),
        }
        # only failed attempts record their own chunk
        place = ("dataset", "file", "entry_start", "entry_stop")
        own = {name: value for name, value in attempt.items() if value is not None or name not in place}
        yield {**(attempt.get("chunk") or {}), **chunk, **own, **facts}


def compared(
    rows: Iterable[Mapping[str, Any]], report: Mapping[str, Any], measured: bool, started: bool
) -> ReportComparison:
    """Compare the chunks that returned a result with coffea's report."""
    import pandas as pd

    expected = "the report that a Runner with savemetrics=True returns with its output"
    if not isinstance(report, Mapping):
        raise TypeError(f"the report is {report!r}, not {expected}")
    if not QUANTITIES.keys() & report.keys():
        found = ", ".join(map(repr, report)) or "nothing"
        raise ValueError(f"the report has {found}, and none of {', '.join(QUANTITIES)}: pass {expected}")
    amounts = dict.fromkeys(("events", "bytes", "nbytes", "process_seconds", "start", "stop"), float)
    ended = {row["key"]: row for row in rows if row["outcome"] in (OK, CHECKPOINT)}
    worked = pd.DataFrame(
        list(ended.values()), columns=["dataset", "file", "entry_start", "entry_stop", "worker", *amounts]
    )
    worked = worked.astype(amounts).assign(input_bytes=lambda own: own["bytes"], output_bytes=lambda own: own["nbytes"])
    worked["seconds"] = worked["stop"] - worked["start"]
    for name, over in (("bytes_per_event", "events"), ("throughput", "seconds")):
        worked[name] = worked["bytes"] / worked[over].replace(0.0, np.nan)
    table = pa.Table.from_pandas(worked, arrow_schema(COMPARED_COLUMNS), preserve_index=False)
    sums, missing = [], {}
    for name, (unit, column) in QUANTITIES.items():
        total: Any = len(worked) if column is None else worked[column].sum(skipna=False)
        reason = "the record of at least one chunk is missing" if math.isnan(total) else None
        if not started:
            reason = "the monitor was not started: nothing was recorded"
        elif name in {"bytesread", "processtime"} and not measured:
            reason = "pass the collector that was open at the time, or its measurement: only their records include this"
        elif column is not None and worked.empty:
            reason = "the monitor recorded no chunk with a result"
        if reason:
            total, missing[name] = None, reason
        difference = distance(report.get(name), total)
        sums.append(
            {"quantity": name, "unit": unit, "tasks": total, "report": report.get(name), "difference": difference}
        )
    totals = frame_of(table_of_rows(TOTAL_COLUMNS, sums), TOTAL_COLUMNS)
    # the units differ, and pandas would print all numbers with the same exponent
    for name in ("tasks", "report", "difference"):
        whole = [int(amount) if amount == amount // 1 else amount for amount in totals[name]]
        totals[name] = pd.Series(whole, dtype=object)
    totals.attrs["missing"] = missing
    return ReportComparison(frame_of(table, COMPARED_COLUMNS), totals)


def ticks(interval: float) -> Iterator[None]:
    """Yield immediately, and then once per interval, skipping late ticks."""
    due = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        due += interval * max(1, math.ceil((now - due) / interval))
        time.sleep(max(0.0, due - now))


@dataclass(frozen=True, kw_only=True)
class Look:
    """Task counts by prefix and state at one moment, read from the scheduler's counters.

    `time` is in Unix seconds on the scheduler's clock. `finished` contains the number of results computed since the
    first look, per prefix.
    """

    time: float
    num_workers: int
    prefixes: Mapping[str, Counter[str]]
    finished: Mapping[str, int]

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.time, timezone.utc).astimezone()

    @property
    def states(self) -> Counter[str]:
        return sum(self.prefixes.values(), Counter())

    @property
    def num_tasks(self) -> int:
        return self.states.total()


def counts_now(dask_scheduler: Any) -> tuple[float, int, dict[str, tuple[dict[str, int], int]]]:
    """Return the time, the number of workers, and each prefix's tasks by state and results so far."""
    counts = {
        prefix.name: (dict(prefix.states), prefix.state_counts["memory"])
        for prefix in dask_scheduler.task_prefixes.values()
    }
    return time.time(), len(dask_scheduler.workers), counts


def looks(client: Any, interval: float) -> Iterator[Look]:
    """Yield one look per interval until the scheduler stops responding."""
    connection, before = Connection(client), None
    for _ in ticks(interval):
        try:
            moment, workers, counts = connection.answer(counts_now, {})
        except NoAnswerError:
            return
        results = {prefix: count for prefix, (_, count) in counts.items()}
        before = results if before is None else before
        finished = {prefix: count - before.get(prefix, 0) for prefix, count in results.items()}
        prefixes = {prefix: known for prefix, (states, _) in counts.items() if (known := _known(states))}
        yield Look(time=moment, num_workers=workers, prefixes=prefixes, finished=finished)


def _known(states: Mapping[str, int]) -> Counter[str]:
    return Counter({state: count for state, count in states.items() if count and state != "forgotten"})


MOST_LIVE: Final = 6
"""Maximum number of prefixes with a separate row in a live display. The other prefixes share a row."""

LIVE_STATES: Final = tuple(state for state in STATES if state not in {"released", "forgotten"})

BINS: Final = 500


# Live


def look_text(look: Look, seconds: float) -> str:
    counts = {name: look.prefixes.get(name, Counter()) + Counter({FINISHED: n}) for name, n in look.finished.items()}
    shown = {name: row for name, row in counts.items() if row}
    passed, workers = SECOND.text(float(round(seconds))), counted(look.num_workers, "worker")
    first = f"{NAME}  {passed}, {workers}, {counted(look.num_tasks, 'task')} on the scheduler"
    return "\n".join([first, *live_rows(shown, (FINISHED,))])


def live_rows(counts: Mapping[str, Counter[str]], sums: tuple[str, ...]) -> list[str]:
    """Format rows for the largest prefixes, with sums, and with counts for the states that occur."""
    import pandas as pd

    frame = pd.DataFrame(counts, [*LIVE_STATES, *sums], dtype=float).T.fillna(0.0)
    ranked = frame.sum(axis=1).sort_values(ascending=False, kind="stable").index
    own, others = ranked[:MOST_LIVE], ranked[MOST_LIVE:]
    shown = pd.concat(
        [frame.loc[sorted(own)], *([frame.loc[others].sum().to_frame("(others)").T] if len(others) else [])]
    )
    shown = shown[[name for name in shown if name in sums or shown[name].any()]].astype(int).map(number)
    table = shown.rename(lambda prefix: prefix[:24]).rename_axis(columns="prefix")
    return [f"  {line.rstrip()}" for line in table.to_string().splitlines()] if counts else []


# Tables

OF_PREFIX: Final = (
    Column("prefix", meaning="the key without its token"),
    Column("kind", meaning="role of the tasks in coffea", dispensable=2),
    *columns(COUNT, "tasks", FINISHED, FAILED),
)
OTHER_FATES: Final = {
    UNFINISHED: "still on the scheduler at the end",
    CANCELLED: "released without a result",
    RELEASED: "released before the monitor started",
}
"""Other task fates. A fate has a column only if it occurs."""

OF_RESULTS: Final = (
    Column("duration", SECOND, "mean compute time"),
    Column("results", BYTE, "total size of the results in memory", dispensable=1),
)


def monitor_sheets(
    watched: Sequence[Watched], tasks: Sequence[Mapping[str, Any]], problems: Sequence[str]
) -> list[Sheet]:
    import pandas as pd

    workers = {worker for period in watched for worker in period.lifetimes["worker"].to_pylist()}
    seconds = SECOND.text(sum(period.stop - period.start for period in watched))
    lead = f"{counted(len(tasks), 'task')} on {counted(len(workers), 'worker')} in {seconds}"
    fates = list(map(fate_of, tasks))
    others = [fate for fate in OTHER_FATES if fate in fates]
    frame = pd.DataFrame(tasks, columns=["prefix", "kind", "duration", "nbytes"]).assign(fate=fates)
    rows: list[list[Cell]] = []
    for (prefix, kind), own in frame.groupby(["prefix", "kind"], sort=False):
        counts = [int((own["fate"] == fate).sum()) for fate in (FINISHED, FAILED, *others)]
        results = own.loc[own["fate"] == FINISHED, "nbytes"].astype(float).sum(skipna=False)
        amounts = [None if pd.isna(amount) else amount for amount in (own["duration"].mean(), results)]
        rows.append([str(prefix), str(kind), len(own), *counts, *amounts])
    none = [] if rows else ["No task was recorded."]
    named = (Column(fate, COUNT, OTHER_FATES[fate]) for fate in others)
    table = Sheet(title="tasks", lead=none, columns=(*OF_PREFIX, *named, *OF_RESULTS), rows=rows, things="prefixes")
    found = [Heading(title="cluster tasks", label=NAME, lead=[lead]), table]
    return [*found, Sheet(title="problems", items=problems)] if problems else found


# Plots


def monitor_run(watched: Sequence[Watched]) -> Run:
    if not watched:
        raise ValueError("this TaskMonitor has recorded nothing: start it before the tasks run")
    kinds = {CHUNK: PROCESSOR}
    rows = [
        attempt | {"key": str(attempt["key"]), "kind": kinds.get(attempt["kind"], attempt["kind"])}
        for attempt in attempts_of(watched)
    ]
    lifetimes: list[dict[str, Any]] = [row for period in watched for row in period.lifetimes.to_pylist()]
    return unwatched_run(
        start=watched[0].start,
        stop=watched[-1].stop,
        backend="dask",
        tasks=table_of_rows(TASK_COLUMNS, rows),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes),
        absent=dict.fromkeys(("chunks", "samples"), "a TaskMonitor records tasks; a MetricsCollector records these"),
    )


def plot_states(
    watched: Sequence[Watched], ax: Axes | None, path: str | PathLike[str] | None, *, overwrite: bool
) -> tuple[Figure, Axes]:
    from roastcoffea.visualization import registry

    seen = [period for period in watched if len(period.history.states)]
    if not seen:
        raise ValueError("there is nothing to draw: no task was recorded")
    if path is not None:
        registry.file_for(path, overwrite=overwrite)
    if ax is None:
        with registry.own_style(), registry.new_figure(registry.SIZE) as figure:
            ax = figure.add_subplot()
            _draw_states(ax, seen)
    else:
        _draw_states(ax, seen)
    figure = registry.figure_of(ax)
    if path is not None:
        registry.save(figure, path, overwrite=overwrite)
    return registry.Drawn(figure, ax)


def _draw_states(ax: Axes, watched: Sequence[Watched]) -> None:
    from roastcoffea.metrics.phases import COMPUTING, HANDLING, IDLING, OPENING, TROUBLE
    from roastcoffea.visualization import draw
    from roastcoffea.visualization.distributions import stacked
    from roastcoffea.visualization.draw import legend, scheme_of

    scheme = scheme_of(ax)
    families = {"released": OPENING, "waiting": IDLING, "queued": HANDLING, "processing": COMPUTING, "erred": TROUBLE}
    colours = {state: scheme.of(family) for state, family in families.items()}
    colours |= {"no-worker": scheme.series[1], "memory": scheme.series[0]}
    start, stop = watched[0].start, max(watched[-1].stop, watched[0].start + 1e-3)
    edges = np.linspace(start, stop, BINS + 1)
    axis = draw.time_axis(ax, start, stop)
    means = sum(states_over_time(period.history, period.stop, edges) for period in watched)
    layers = [(state, mean, colours[state]) for state, mean in zip(STATES, means, strict=True) if state in colours]
    stacked(ax, axis(edges), [layer for layer in layers if layer[1].max() > 0])
    ax.set_ylabel("tasks on the scheduler")
    ax.set_title("Tasks by state")
    draw.whole_numbers(ax.yaxis)
    legend(ax)


def states_over_time(history: History, stop: float, edges: Any) -> Any:
    """Return the mean number of tasks in each state for each interval between edges."""
    states = history.states.sort_by("task")  # a stable sort
    task, begins = states["task"].to_numpy(), states["time"].to_numpy()
    ends = np.where(np.append(task[1:] == task[:-1], False), np.append(begins[1:], stop), stop)
    means = []
    for state in STATES:
        here = pc.equal(states["state"], state).to_numpy()
        seconds = 0.0
        for sign, moments in ((1, np.sort(begins[here])), (-1, np.sort(ends[here]))):
            count = np.searchsorted(moments, edges)  # total time from these moments to each edge
            seconds += sign * (count * edges - np.append(0.0, np.cumsum(moments))[count])
        means.append(np.diff(seconds) / np.diff(edges))
    return np.array(means)
