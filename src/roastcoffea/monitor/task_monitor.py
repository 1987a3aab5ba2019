"""Watching every task of a Dask cluster: its states, its result, and how the workers held it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from dask.utils import key_split
from distributed import Client, Scheduler
from distributed.utils import key_split_group

from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import exit_in_any_case, uninterrupted
from roastcoffea.measurement import Measurement
from roastcoffea.monitor.connection import History, MonitorBackend
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.columns import Column
from roastcoffea.records.frames import frame_of
from roastcoffea.records.tasks import ERROR, PROCESSOR, TASK_COLUMNS
from roastcoffea.redaction import redacted

if TYPE_CHECKING:
    import pandas as pd

CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which an in-process scheduler has to accept a client of ours."""

TOLD_BY_ATTEMPTS: Final = (
    "prefix",
    "worker",
    "thread",
    "runnable",
    "assigned",
    "arrived",
    "ready",
    "start",
    "stop",
    "seen",
    "nbytes",
    "type",
    "outcome",
    "run_id",
    "span",
    "error",
)
ENDS: Final = {OK: "memory", ERROR: "erred"}
"""The state that tells most of a task, by the outcome of its attempt."""

RESULT: Final = (OK, CHECKPOINT)
"""Outcomes of chunks that gave a result."""

TASK_PARTS: Final = ("key", "state", "worker", "nbytes", "type")
"""What a snapshot tells of a task."""

GONE: Final = ("released", "forgotten")
"""States of a task whose result is no longer there."""

OF_ATTEMPT: Final = {column.name: column for column in TASK_COLUMNS}
OF_CHUNK: Final = {column.name: column for column in CHUNK_COLUMNS}

MONITOR_COLUMNS: Final[tuple[Column, ...]] = (
    OF_ATTEMPT["key"],
    OF_ATTEMPT["prefix"],
    Column("group", "text", None, "task group: tasks of one collection, or of one call"),
    Column(
        "state",
        "text",
        None,
        'the last state at the scheduler before it was forgotten: "memory", "erred", "processing", ...',
    ),
    *(OF_ATTEMPT[name] for name in TOLD_BY_ATTEMPTS[1:9]),
    Column("duration", "number", "s", "from the beginning to the end of computing"),
    Column("created", "number", "s", "when it was first seen at the scheduler (Unix time, the client's clock)"),
    *(OF_ATTEMPT[name] for name in TOLD_BY_ATTEMPTS[9:]),
    Column("attempts", "integer", "attempts", "attempts that ended, of any outcome"),
    Column("suspicious", "integer", None, "times that a worker died while it had the task"),
)
"""What is known of a task; the times and the result are those of its last attempt that worked, if one did."""

WORKER_COLUMNS: Final[tuple[Column, ...]] = (
    OF_ATTEMPT["worker"],
    Column("tasks", "integer", "tasks", "tasks whose result it computed"),
    Column("nbytes", "integer", "B", "size of these results in memory"),
    Column("mean_nbytes", "number", "B", "mean size of a result"),
    Column("seconds", "number", "s", "time in which it computed them, summed over its threads"),
)

INPUT: Final = Column(
    "bytes", "integer", "B", "requested of the file (coffea's savemetrics, else the chunk's own record)"
)
JOINED_COLUMNS: Final[tuple[Column, ...]] = (
    *(OF_ATTEMPT[name] for name in ("key", "run_id", "prefix")),
    Column("group", "text", None, "task group: tasks of one collection, or of one call"),
    *(OF_CHUNK[name] for name in ("dataset", "file", "tree", "entry_start", "entry_stop", "events")),
    INPUT,
    *(OF_ATTEMPT[name] for name in ("nbytes", "type", "worker", "thread", "start", "stop")),
    Column(
        "outcome", "text", None, f"of the chunk: {OF_CHUNK['outcome'].meaning}; without its record that of the task"
    ),
)
COMPARED_COLUMNS: Final[tuple[Column, ...]] = (
    *(OF_CHUNK[name] for name in ("dataset", "file", "entry_start", "entry_stop", "events")),
    Column("input_bytes", "integer", "B", INPUT.meaning),
    Column("output_bytes", "integer", "B", "size of the task's result in memory, compressed if the executor does that"),
    Column("bytes_per_event", "number", "B", "input bytes over events"),
    Column("seconds", "number", "s", "duration of the task"),
    Column("throughput", "number", "B/s", "input bytes over the duration of the task"),
    OF_ATTEMPT["worker"],
)
TOTAL_COLUMNS: Final[tuple[Column, ...]] = (
    Column("quantity", "text", None, "what is compared"),
    Column("tasks", "number", None, "sum over the tasks that gave a result"),
    Column("report", "number", None, "coffea's report"),
    Column("difference", "number", None, "tasks less report"),
)


VIEW_NAMES: Final = (
    "key",
    "worker",
    "state",
    "run_id",
    "start",
    "stop",
    "duration",
    "transfer",
    "disk",
    "deserialize",
    "compute",
    "nbytes",
    "type",
    "thread",
    "priority",
    "suspicious",
    "exception",
    "traceback",
    "num_dependencies",
    "dependencies",
    "num_dependents",
    "dependents",
    "waiting_for_data",
    "who_has",
    "coming_from",
    "resource_restrictions",
    "transitions",
    "startstops",
    "annotations",
    "metadata",
    "span",
)
"""What a worker tells of a task."""


EMPTY: Final[Mapping[str, type]] = {
    "num_dependencies": int,
    "num_dependents": int,
    "dependencies": list,
    "dependents": list,
    "waiting_for_data": list,
    "who_has": list,
    "resource_restrictions": dict,
    "annotations": dict,
    "metadata": dict,
}
"""What a worker knew to be empty: it does not send that."""


class ReportComparison(NamedTuple):
    """Chunks as their tasks show them, and their sums beside coffea's report."""

    chunks: pd.DataFrame
    totals: pd.DataFrame


class Snapshot(Mapping[str, Any]):
    """The tasks that the scheduler knew at one moment; its parts are attributes, and entries as well.

    Attributes
    ----------
    timestamp : float
        Unix seconds, on the client's clock.
    num_tasks : int
        Tasks that the scheduler knew.
    num_workers : int
        Workers that the scheduler knew.
    tasks : list of dict
        `key`, `state`, `worker` (None where no worker has it), `nbytes` and `type` (None where not known yet).
    """

    PARTS = ("timestamp", "num_tasks", "num_workers", "tasks")

    def __init__(self, timestamp: float, num_tasks: int, num_workers: int, history: History, rows: int) -> None:
        self.timestamp = timestamp
        self.num_tasks = num_tasks
        self.num_workers = num_workers
        self._history = history
        self._rows = rows

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, made anew at each access."""
        latest = self._history.described(self._history.latest(self._rows))
        return [{part: task[part] for part in TASK_PARTS} for task in latest]

    def __getitem__(self, part: str) -> Any:
        if part not in self.PARTS:
            raise KeyError(part)
        return getattr(self, part)

    def __iter__(self) -> Iterator[str]:
        return iter(self.PARTS)

    def __len__(self) -> int:
        return len(self.PARTS)

    def __repr__(self) -> str:
        return f"<Snapshot at {self.timestamp:.3f}: {self.num_tasks} tasks, {self.num_workers} workers>"


class Watch:
    """One period from start to stop: what the cluster told, and what is drawn from it."""

    def __init__(self, client: Any, worker_view: bool) -> None:
        self.backend = MonitorBackend(client, worker_view)
        self.stop: float | None = None
        self._drawn: list[Snapshot] | None = None
        self.start = time.time()

    def open(self) -> None:
        """Begin the period."""
        self.backend.open(None)
        self.start = time.time()

    def close(self) -> None:
        """End the period."""
        self.stop = time.time()
        self.backend.close()

    @property
    def end(self) -> float:
        """When it ended; now, while it goes on."""
        return time.time() if self.stop is None else self.stop

    def snapshots(self, interval: float) -> list[Snapshot]:
        """Snapshots at each interval; once the period has ended they are kept."""
        if self._drawn is not None:
            return self._drawn
        drawn = self._draw(interval)
        if self.stop is not None:
            self._drawn = drawn
        return drawn

    def _draw(self, interval: float) -> list[Snapshot]:
        history, end = self.backend.history(), self.end
        moments = self.start + interval * np.arange(1 + math.floor((end - self.start) / interval))
        rows = np.searchsorted(history.rows["time"], moments, side="right")
        tasks = np.concatenate([[0], history.count_after_each()])[rows]
        parts = zip(moments.tolist(), tasks.tolist(), self._workers_at(moments, end), rows.tolist(), strict=True)
        return [Snapshot(moment, count, workers, history, row) for moment, count, workers, row in parts]

    def _workers_at(self, moments: np.ndarray[Any, Any], end: float) -> list[int]:
        lifetimes = self.backend.lifetimes(self.start, end)
        arrived, left = (np.sort(lifetimes[name].to_numpy()) for name in ("start", "stop"))
        here = np.searchsorted(arrived, moments, side="right") - np.searchsorted(left, moments, side="left")
        return [int(count) for count in here]


class TaskMonitor:
    """Watches every task of a Dask cluster, whoever submitted it, from the events of its scheduler.

    Nothing is polled, so that no task is missed however short it is and however soon its result is released. What is
    seen comes to the client each second; the scheduler's memory for it is bounded.

    Parameters
    ----------
    client_or_scheduler : distributed.Client or distributed.Scheduler
        A connected, synchronous client; or a scheduler of this process, such as `LocalCluster.scheduler`.
    interval : float
        Seconds between snapshots. They are drawn afterwards: a short interval costs the run nothing.
    worker_view : bool
        Whether the workers tell how they hold each task (`worker_tasks`). It takes about 0.2 ms of CPU a task on the
        workers, and as much on the scheduler and in the client.

    Attributes
    ----------
    problems : list of str
        What could not be seen, such as rows that were dropped.

    Raises
    ------
    TypeError
        An asynchronous client, or neither a client nor a scheduler.
    ValueError
        A client that is not connected, an interval that is not positive.

    Examples
    --------
    >>> with TaskMonitor(client) as monitor:  # doctest: +SKIP
    ...     output, report = runner(fileset, processor_instance=processor)
    >>> monitor.to_dataframe()  # doctest: +SKIP
    """

    def __init__(self, client_or_scheduler: Any, interval: float = 0.1, worker_view: bool = False) -> None:
        if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0 < interval < math.inf:
            text = f"interval must be a positive number of seconds, not {interval}"
            raise ValueError(text)
        if not isinstance(client_or_scheduler, Scheduler):
            MonitorBackend(client_or_scheduler, worker_view)  # refuses what it cannot use
        self.interval = interval
        self.worker_view = worker_view
        self._source = client_or_scheduler
        self._own_client: Client | None = None
        self._watch: Watch | None = None
        self._awaited_end: Any = None
        self._past: list[Watch] = []
        self._problems: list[str] = []

    # the life of a monitor

    def __enter__(self) -> Self:
        self.start()
        return self

    @exit_in_any_case
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _is_open(self) -> bool:
        return self._watch is not None

    def __repr__(self) -> str:
        return f"<TaskMonitor: {'stopped' if self._watch is None else 'running'}>"

    def start(self) -> None:
        """Begin to watch; after `stop`, go on beside what was seen before. It does nothing where it runs already.

        A cluster that cannot be watched is noted in `problems`: the analysis must run all the same.

        Raises
        ------
        RoastcoffeaError
            On the thread of the scheduler's event loop, where nothing can be waited for.
        """
        if self._watch is not None:
            return
        self._refuse_the_thread_of_the_loop()
        try:
            with reported(self._note, "the cluster is not seen", Exception):
                self._watch = Watch(self._client(), self.worker_view)
                self._watch.open()
                return
        except BaseException:
            uninterrupted(self._give_up)
            raise
        self._give_up()

    def _give_up(self) -> None:
        """Leave a cluster that could not be watched as it was."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self._close_own_client()

    def stop(self) -> None:
        """Bring home what was seen, and leave the cluster as it was. It does nothing where nothing runs."""
        uninterrupted(self._stop)

    def _stop(self) -> None:
        self._awaited_end = None
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        self._past.append(watch)
        try:
            watch.close()
        finally:
            self._close_own_client()

    def reset(self) -> None:
        """Forget what was seen; a monitor that runs goes on from now."""
        running = self._watch is not None
        self.stop()
        self._past, self._problems = [], []
        if running:
            self.start()

    # what was seen

    @property
    def problems(self) -> list[str]:
        """What could not be seen."""
        return list(
            dict.fromkeys(
                map(redacted, [*self._problems, *(note for watch in self._watches() for note in watch.backend.notes())])
            )
        )

    @property
    def snapshots(self) -> list[Snapshot]:
        """The tasks that the scheduler knew, at each `interval` since the start, up to now or the stop."""
        return [snapshot for watch in self._seen() for snapshot in watch.snapshots(self.interval)]

    @property
    def attempts(self) -> pd.DataFrame:
        """Each attempt of a task that ended, in the columns of `Measurement.tasks` without `kind`."""
        tables = [watch.backend.tasks() for watch in self._seen()]
        table = pa.concat_tables(tables) if tables else table_of_rows(TASK_COLUMNS, ())
        return frame_of(table.drop_columns("kind"), [column for column in TASK_COLUMNS if column.name != "kind"])

    def get_all_tasks(self) -> list[dict[str, Any]]:
        """Everything known of each task, one dict per key, in the order in which they were first seen.

        Names, units and meanings are those of `to_dataframe`; None is not known. A task that was computed more than
        once is there as its last attempt that worked, or as the last one where none did.
        """
        states, attempts = self._states(), self._best_attempts()
        return [complete_task(task, attempts.get(key, {})) for key, task in states.items()]

    def to_dataframe(self) -> pd.DataFrame:
        """What `get_all_tasks` tells, a row per task; meaning and unit of columns are in `attrs["columns"]`."""
        return frame_of(table_of_rows(MONITOR_COLUMNS, self.get_all_tasks()), MONITOR_COLUMNS)

    def per_worker(self) -> pd.DataFrame:
        """Number and size of the results that each worker computed, a row per worker."""
        finished: dict[str, list[dict[str, Any]]] = {}
        for task in self.get_all_tasks():
            if task["outcome"] == OK:
                finished.setdefault(task["worker"], []).append(task)
        rows = [worker_row(worker, tasks) for worker, tasks in sorted(finished.items())]
        return frame_of(table_of_rows(WORKER_COLUMNS, rows), WORKER_COLUMNS)

    @property
    def worker_tasks(self) -> list[dict[str, Any]]:
        """How the workers held the tasks: one dict per task and worker; empty without `worker_view=True`.

        A worker that fetched a result for another task holds it as well, without having computed it. A key that
        came to a worker anew after it was forgotten there is listed anew. Times are Unix seconds on the client's clock.

        - `key`, `worker`, `run_id`, `span`, `thread`, `annotations`, `metadata` (its plain values), `priority`,
          `resource_restrictions`;
        - `state`: the last one before the worker let go of it; `transitions`: list of (state, time);
        - `dependencies`, `dependents`: keys, at most 1000 of them, and how many there are in `num_dependencies` and
          `num_dependents`, as this worker knew them last; `waiting_for_data`: keys that it had to wait for;
          `who_has`: workers that had it, where this one fetched it; `coming_from`: the one from which it came;
        - `startstops`: list of action, start, stop and source as Dask timed them, and their sums in seconds:
          `transfer`, `disk` (to and from), `deserialize`, `compute`; `start`, `stop`, `duration` of the computing;
        - `nbytes` (B), `type`, `exception` and `traceback` (text), and `suspicious`, which the scheduler counts.

        None is what the worker did not know, or what did not happen.
        """
        suspicious = {key: state["suspicious"] for key, state in self._states().items()}
        views = [view for watch in self._seen() for view in watch.backend.views()]
        return [complete_view(view, suspicious.get(view["key"])) for view in views]

    def joined(self, measurement: Measurement) -> pd.DataFrame:
        """Attempts of processor tasks with the chunks that they processed, a row per attempt.

        Parameters
        ----------
        measurement : Measurement
            Of a collector that was open meanwhile. A task without a record of its chunk has no dataset and no file.
        """
        rows = self._joined_rows(measurement)
        return frame_of(table_of_rows(JOINED_COLUMNS, rows), JOINED_COLUMNS)

    def compare_with_report(self, report: Mapping[str, Any], measurement: Measurement) -> ReportComparison:
        """Chunks as their tasks show them, and their sums beside coffea's report.

        Parameters
        ----------
        report : mapping
            What a `Runner` with `savemetrics=True` returns beside the output.
        measurement : Measurement
            Of a collector that was open meanwhile.

        Returns
        -------
        ReportComparison
            `chunks`: a row per chunk that gave a result, with its input and output bytes, bytes per event, throughput
            and worker; `totals`: chunks, events, bytes and process seconds, of tasks and report.
        """
        worked = list({row["key"]: row for row in self._joined_rows(measurement) if row["outcome"] in RESULT}.values())
        chunks = table_of_rows(COMPARED_COLUMNS, map(compared_chunk, worked))
        totals = table_of_rows(TOTAL_COLUMNS, compared_totals(worked, report))
        return ReportComparison(frame_of(chunks, COMPARED_COLUMNS), frame_of(totals, TOTAL_COLUMNS))

    # how it does that

    def _client(self) -> Any:
        """The client that was given, or one of ours to a scheduler of this process."""
        if not isinstance(self._source, Scheduler):
            return self._source
        self._own_client = Client(
            self._source.address, security=self._source.security, set_as_default=False, timeout=CONNECT_TIMEOUT
        )
        return self._own_client

    def _close_own_client(self) -> None:
        client, self._own_client = self._own_client, None
        if client is not None:
            client.close()

    def _refuse_the_thread_of_the_loop(self) -> None:
        loop = getattr(getattr(self._source, "loop", None), "asyncio_loop", None)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is loop:
            text = (
                "a TaskMonitor cannot run on the thread of the cluster's event loop: start and stop it on another one"
            )
            raise RoastcoffeaError(text)

    def _note(self, problem: str) -> None:
        self._problems.append(problem)

    def _watches(self) -> list[Watch]:
        return [*self._past, *([] if self._watch is None else [self._watch])]

    def _seen(self) -> list[Watch]:
        """All periods, with what the scheduler has so far."""
        if self._watch is not None:
            try:
                self._watch.backend.drain()
            except (OSError, RuntimeError) as problem:
                self._note(f"what was seen last could not be read: {error_text(problem)}")
        return self._watches()

    def _best_attempts(self) -> dict[str, dict[str, Any]]:
        """The last attempt of each task that worked, or the last one where none did."""
        best: dict[str, dict[str, Any]] = {}
        for watch in self._watches():
            for attempt in watch.backend.tasks().to_pylist():
                before = best.get(attempt["key"])
                attempts = 1 if before is None else before["attempts"] + 1
                if before is None or attempt["outcome"] == OK or before["outcome"] != OK:
                    best[attempt["key"]] = attempt
                best[attempt["key"]]["attempts"] = attempts
        return best

    def _states(self) -> dict[str, dict[str, Any]]:
        """The furthest state of each task, in the order of appearance."""
        states: dict[str, dict[str, Any]] = {}
        for watch in self._seen():
            history = watch.backend.history()
            for task in history.described(history.rows):
                take_state(states, task)
        return states

    def _joined_rows(self, measurement: Measurement) -> list[dict[str, Any]]:
        chunks = {(row["key"], row["run_id"]): row for row in records(measurement.run.chunks)}
        processors = {
            (row["key"], row["run_id"]) for row in records(measurement.run.tasks) if row["kind"] == PROCESSOR
        } | set(chunks)
        attempts = [attempt for watch in self._seen() for attempt in watch.backend.tasks().to_pylist()]
        return [
            joined_row(attempt, chunks.get((attempt["key"], attempt["run_id"]), {}))
            for attempt in attempts
            if (attempt["key"], attempt["run_id"]) in processors
        ]


def records(table: pa.Table | None) -> list[dict[str, Any]]:
    """Rows of a table that may not have been recorded."""
    return [] if table is None else list(table.to_pylist())


def take_state(states: dict[str, dict[str, Any]], task: dict[str, Any]) -> None:
    """Take a state that a task came to, if it tells more than those before."""
    known = states.setdefault(task["key"], task | {"created": task["time"]})
    task["suspicious"] = max(known["suspicious"], task["suspicious"])
    if task["state"] not in GONE:
        known |= {name: value for name, value in task.items() if value is not None}


def complete_task(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> dict[str, Any]:
    """All that states and attempts tell of a task, in the order of `MONITOR_COLUMNS`."""
    told = {name: attempt[name] for name in TOLD_BY_ATTEMPTS if attempt.get(name) is not None}
    names = {"prefix": key_split(task["key"]), "group": key_split_group(task["key"])}
    known = {**task, **names, "attempts": attempt.get("attempts", 0), **told}
    known["state"] = ENDS.get(known.get("outcome", ""), task["state"])
    known["duration"] = distance(known.get("start"), known.get("stop"))
    return {column.name: known.get(column.name) for column in MONITOR_COLUMNS}


def complete_view(view: Mapping[str, Any], suspicious: int | None) -> dict[str, Any]:
    """A worker's view of a task with all names, and what the scheduler counts."""
    held = [state for state, _ in view["transitions"] if state not in GONE]
    empty = {name: kind() for name, kind in EMPTY.items()} if "told" in view else {}
    known = {**empty, **view}
    known |= {"state": held[-1] if held else None, "suspicious": suspicious}
    known["duration"] = distance(known["start"], known["stop"])
    return {name: known.get(name) for name in VIEW_NAMES}


def distance(start: float | None, stop: float | None) -> float | None:
    """From the first to the second; None where one is not known."""
    return None if start is None or stop is None else stop - start


def worker_row(worker: str, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the tasks of a worker."""
    nbytes = known_total(task["nbytes"] for task in tasks)
    return {
        "worker": worker,
        "tasks": len(tasks),
        "nbytes": nbytes,
        "mean_nbytes": quotient(nbytes, len(tasks)),
        "seconds": known_total(task["duration"] for task in tasks),
    }


def known_total(values: Iterable[float | None]) -> float | None:
    """Sum of numbers; None where one is not known."""
    numbers = list(values)
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def joined_row(attempt: Mapping[str, Any], chunk: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt of a task with what its chunk's record tells."""
    of_coffea = chunk.get("coffea_bytes_read")
    return {
        **chunk,
        **attempt,
        "group": key_split_group(attempt["key"]),
        "bytes": chunk.get("bytes_requested") if of_coffea is None else of_coffea,
        "process_seconds": chunk.get("coffea_process_seconds"),
        "outcome": chunk.get("outcome", attempt["outcome"]),
    }


def compared_chunk(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of a chunk by its task."""
    seconds = distance(row["start"], row["stop"])
    return {
        **row,
        "input_bytes": row["bytes"],
        "output_bytes": row["nbytes"],
        "bytes_per_event": quotient(row["bytes"], row.get("events")),
        "seconds": seconds,
        "throughput": quotient(row["bytes"], seconds),
    }


def quotient(amount: float | None, over: float | None) -> float | None:
    """One number over another; None where one is not known, or nothing is divided by."""
    return None if amount is None or not over else amount / over


def compared_totals(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Sums over tasks beside the report's."""
    if not isinstance(report, Mapping):
        raise TypeError(
            f"the report is {report!r}, and not what a Runner with savemetrics=True gives beside its output"
        )
    sums = {
        "chunks": len(rows),
        "entries": known_total(row.get("events") for row in rows),
        "bytesread": known_total(row["bytes"] for row in rows),
        "processtime": known_total(row["process_seconds"] for row in rows),
    }
    for name, of_tasks in sums.items():
        of_report = report.get(name)
        difference = distance(of_report, of_tasks)
        yield {"quantity": name, "tasks": of_tasks, "report": of_report, "difference": difference}
