"""Recorded tasks of a cluster: tables, plots and comparisons; saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import MeasurementError
from roastcoffea.log.kinds import NO_SIZE, NO_STATE, NO_STRING, STATE_FIELDS, STATES
from roastcoffea.log.layout import Layout, Texts
from roastcoffea.monitor import tables
from roastcoffea.monitor.history import LINKS, History, Named, Rows, Snapshot, hashable
from roastcoffea.monitor.shown import monitor_run, monitor_sheets, plot_states
from roastcoffea.monitor.tables import JOINED_COLUMNS, ReportComparison, compared, joined_rows, measurement_of
from roastcoffea.monitor.watch import Watched, attempts_of, states_of
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.redaction import redacted
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Sheet
from roastcoffea.storage.folders import OR_OVERWRITE, file_name, holds_only, new_folder, synced_file
from roastcoffea.storage.parquet import Room, read_parquet
from roastcoffea.storage.reading import has_format, json_of, reading
from roastcoffea.storage.store import MONITOR_FILE, MONITOR_FORMAT
from roastcoffea.storage.tables import table_file, write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roastcoffea.records.columns import Column
    from roastcoffea.records.run import Run


SCHEMA: Final = 1
PERIOD: Final = "period"
DTYPE: Final = Layout(STATE_FIELDS, Texts()).dtype


def save_watched(
    watched: Sequence[Watched],
    interval: float,
    problems: Sequence[str],
    folder: Path,
    name: str | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Save periods and return the path of the new folder, which appears when it is complete.

    Raises
    ------
    MeasurementError
        If nothing was recorded, the folder exists, or it cannot be written.
    """
    if not watched:
        raise MeasurementError("this TaskMonitor has recorded nothing: there is nothing to save")
    began = f"tasks-{datetime.fromtimestamp(watched[0].start, UTC):%Y-%m-%dT%H%M%SZ}"
    target = folder / file_name(began if name is None else name)
    periods = [{"start": one.start, "stop": one.stop, "problems": one.problems, "views": one.views} for one in watched]
    document = {
        "format": MONITOR_FORMAT,
        "schema": SCHEMA,
        "interval": interval,
        "problems": list(problems),
        "periods": periods,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder(folder, target.name) as new:
            for table, parts in TABLES.items():
                write_table(new.path, table, pa.concat_tables(_numbered(map(parts, watched))))
            with synced_file(new.path / MONITOR_FILE) as file:
                file.write(json.dumps(document).encode())
            new.complete()
            if not new.put_in_place(target, is_replaceable if overwrite else None):
                raise MeasurementError(f"{target} exists; {OR_OVERWRITE}")
    except OSError as error:
        raise MeasurementError(f"nothing was saved in {folder}: {error}") from error
    return target


def load_watched(path: Path) -> tuple[list[Watched], float, list[str]]:
    """Periods of a saved monitor, the interval of its snapshots, and its problems.

    Raises
    ------
    MeasurementError
        If there is none, or it cannot be read.
    """
    file = path / MONITOR_FILE
    if not file.exists():
        raise MeasurementError(f"{path} is not a saved TaskMonitor: it has no {MONITOR_FILE}; pass the folder of one")
    with reading(file):
        document = json_of(file)
        if document["format"] != MONITOR_FORMAT or document["schema"] > SCHEMA:
            raise ValueError(
                f"it is {document['format']} {document['schema']}; this version reads {MONITOR_FORMAT} {SCHEMA}"
            )
        periods = document["periods"]
    room, tables = Room(), {}
    for name in TABLES:
        tables[name] = read_parquet(table_file(path, name), pa.schema([]), room)
    with reading(path):
        watched = [_watched(period, _of_period(tables, number)) for number, period in enumerate(periods)]
        return watched, float(document["interval"]), list(map(str, document["problems"]))


def is_replaceable(path: Path) -> bool:
    """Whether a folder holds only a saved monitor, even a damaged one."""
    ours = {MONITOR_FILE, *(table_file(path, name).name for name in TABLES)}
    return holds_only(path, ours) and has_format(path / MONITOR_FILE, MONITOR_FORMAT)


# tables of a period


def _tasks(watched: Watched) -> pa.Table:
    rows = [
        {
            "key": json.dumps(task.key),
            "kind": task.kind,
            "chunk": None if task.chunk is None else json.dumps(task.chunk),
        }
        for task in watched.history.tasks
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in ("key", "kind", "chunk")]))


def _states(watched: Watched) -> pa.Table:
    rows, texts = watched.history.rows, pa.array(list(watched.history.texts), pa.string())
    columns: dict[str, Any] = {name: rows[name] for name in DTYPE.names or ()}
    for name, absent, words in (
        *((name, NO_STATE, pa.array(STATES)) for name in ("before", "state")),
        *((name, NO_STRING, texts) for name in ("worker", "type")),
    ):
        columns[name] = words.take(pa.array(rows[name].astype(np.int64), mask=rows[name] == absent))
    columns["nbytes"] = pa.array(rows["nbytes"], mask=rows["nbytes"] == NO_SIZE)
    columns["expected"] = pa.array(rows["expected"], mask=rows["expected"] < 0)
    return pa.table(columns)


TABLES: Final[Mapping[str, Callable[[Watched], pa.Table]]] = {
    "tasks": _tasks,
    "states": _states,
    "attempts": lambda watched: watched.attempts,
    "lifetimes": lambda watched: watched.lifetimes,
}
"""Tables of a saved monitor, with a column for the period in addition to those of each period."""


def _numbered(tables: Any) -> list[pa.Table]:
    return [
        table.append_column(PERIOD, pa.array(np.full(len(table), number, np.int64)))
        for number, table in enumerate(tables)
    ]


def _of_period(tables: Mapping[str, pa.Table], number: int) -> dict[str, pa.Table]:
    """Tables of one period."""
    return {name: table.filter(pc.equal(table[PERIOD], number)).drop_columns(PERIOD) for name, table in tables.items()}


def _watched(period: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Watched:
    views = [
        view
        | {"key": hashable(view["key"]), "transitions": [(state, time) for state, time in view["transitions"]]}
        | {name: list(map(hashable, view[name])) for name in LINKS if name in view}
        for view in period["views"]
    ]
    tasks = [
        Named(hashable(json.loads(row["key"])), row["kind"], None if row["chunk"] is None else json.loads(row["chunk"]))
        for row in tables["tasks"].to_pylist()
    ]
    history = _history(tables["states"], tasks)
    parts = {name: tables[name] for name in ("attempts", "lifetimes")}
    times = {name: float(period[name]) for name in ("start", "stop")}
    return Watched(history=history, views=views, problems=list(map(str, period["problems"])), **parts, **times)


def _history(states: pa.Table, tasks: Sequence[Named]) -> History:
    rows: Rows = np.zeros(len(states), DTYPE)
    texts: list[str] = []
    for name in DTYPE.names or ():
        column = states[name]
        if name in {"before", "state"}:
            rows[name] = _codes(column, STATES, NO_STATE)
        elif name in {"worker", "type"}:
            words = [word for word in column.unique().to_pylist() if word is not None]
            codes = _codes(column, words, NO_STRING)
            rows[name] = np.where(codes == NO_STRING, NO_STRING, codes + len(texts))
            texts += words
        else:
            rows[name] = pc.fill_null(column, -1 if column.null_count else 0).to_numpy()
    if len(rows) and rows["task"].max() >= len(tasks):
        raise ValueError(f"unknown task {rows['task'].max()}")
    return History(rows, tasks, texts)


def _codes(column: pa.ChunkedArray, words: Sequence[str], absent: int) -> Any:
    """Indices of texts among these words."""
    found = pc.index_in(column, value_set=pa.array(words, pa.string()))
    if found.null_count != column.null_count:
        raise ValueError(f"a text is none of {', '.join(words)}")
    return pc.fill_null(found.cast(pa.int64()), absent).to_numpy()


class RecordedTasks(Presented):
    """Tasks recorded by a `TaskMonitor`. It prints and displays as a table of tasks.

    Parameters
    ----------
    watched : iterable of Watched
        Records of each period from a start to a stop.
    interval : float
        Seconds between `snapshots`.
    problems : iterable of str
        Problems of the recording.
    """

    def __init__(self, watched: Iterable[Watched], interval: float, problems: Iterable[str]) -> None:
        self.interval = interval
        self._past = list(watched)
        self._problems = list(problems)

    def watched(self) -> list[Watched]:
        """All periods, including the scheduler's data so far."""
        return list(self._past)

    @property
    def problems(self) -> list[str]:
        """Problems of the recording, such as dropped rows."""
        of_periods = (problem for period in self._past for problem in period.problems)
        return list(dict.fromkeys(map(redacted, (*self._problems, *of_periods))))

    @property
    def snapshots(self) -> list[Snapshot]:
        """The scheduler's tasks at each `interval` from start to stop or now, if there were any."""
        return [snapshot for period in self.watched() for snapshot in period.snapshots(self.interval)]

    @property
    def attempts(self) -> pd.DataFrame:
        """Each attempt that ended, or was active at the end: `Measurement.tasks` with the `kind` of `to_dataframe`."""
        return _frame_of_tasks(tables.ATTEMPT_COLUMNS, attempts_of(self.watched()))

    def get_all_tasks(self) -> list[dict[str, Any]]:
        """Everything known about each task, one dict per key, in order of first appearance.

        Names, units and meanings are those of `to_dataframe`; None is unknown. Tuple keys are kept. A task that was
        computed more than once appears with its last successful attempt, or its last one if none succeeded.
        """
        watched = self.watched()
        # states first: a task that ends in between then has an attempt, which completes its state
        states = states_of(watched)
        attempts = tables.best_attempts(attempts_of(watched))
        return [tables.complete_task(task, attempts.get(key, {})) for key, task in states.items()]

    def to_dataframe(self) -> pd.DataFrame:
        """Content of `get_all_tasks`, one row per task; meanings and units of columns are in `attrs["columns"]`."""
        return _frame_of_tasks(tables.MONITOR_COLUMNS, self.get_all_tasks())

    def per_worker(self) -> pd.DataFrame:
        """Number and size of the results computed by each worker, one row per worker."""
        rows = tables.worker_rows(self.get_all_tasks())
        return frame_of(table_of_rows(tables.WORKER_COLUMNS, rows), tables.WORKER_COLUMNS)

    @property
    def worker_tasks(self) -> list[dict[str, Any]]:
        """The workers' views of the tasks: one dict per task and worker; empty without `worker_view=True`.

        A worker that fetched a result for another task holds it as well, without having computed it. A key that returns
        to a worker after it was forgotten there is listed again. Times are Unix seconds on the client's clock. Names
        are those of the worker's `TaskState`, in addition to ours:

        - `key`, `worker`, `run_id`, `span`, `thread`, `annotations`, `metadata` (its plain values), `priority`,
          `resource_restrictions`;
        - `state`: the last one before the worker released it; `transitions`: list of (state, time);
        - `dependencies`: at most 1000 keys, with their number in `num_dependencies`; `dependents` and
          `num_dependents`: the tasks that needed it while it was on this worker; `waiting_for_data`:
          keys that it had to wait for; `who_has`: workers that had it, if this one fetched it; `coming_from`: the
          one it was fetched from;
        - `startstops`: list of action, start, stop and source as timed by Dask, and their sums in seconds:
          `transfer`, `disk` (to and from), `deserialize`, `compute`; `start`, `stop` of computing;
        - `duration`: computing seconds expected by Dask, as opposed to the measured `compute`; None for the
          first tasks of a prefix, which have no expectation. `start_time`: when the worker passed it to a thread;
          `stop_time`: Dask's, or `stop` if Dask does not set it;
        - `nbytes` (B), `type`, `exception` and `traceback` (text); `suspicious_count`: times that a dependency was not
          where the worker expected it; `suspicious`: number of workers that died while they had the task;
        - `run_spec`: its call, as text without secrets; None without `run_spec=True`.

        None is unknown to the worker, or did not happen.
        """
        watched = self.watched()
        states = states_of(watched)
        return [tables.complete_view(view, states.get(view["key"], {})) for period in watched for view in period.views]

    def joined(self, measurement: Any) -> pd.DataFrame:
        """Attempts of chunks' tasks with the chunks that they processed, a row per attempt.

        Parameters
        ----------
        measurement : Measurement or MetricsCollector
            Of a collector that was open at the time. A task without a chunk record has the fields of coffea's work
            item.
        """
        rows = joined_rows(attempts_of(self.watched()), measurement_of(measurement))
        return frame_of(table_of_rows(JOINED_COLUMNS, rows), JOINED_COLUMNS)

    def compare_with_report(self, report: Mapping[str, Any], measurement: Any = None) -> ReportComparison:
        """Chunks as seen by their tasks, and their sums next to coffea's report.

        Parameters
        ----------
        report : mapping
            The report that a `Runner` with `savemetrics=True` returns with the output.
        measurement : Measurement or MetricsCollector, optional
            Of a collector that was open at the time. Without it, the bytes read by chunks and their time in `process()`
            are unknown.

        Returns
        -------
        ReportComparison
            `chunks`: a row per chunk with a result, with its input and output bytes, bytes per event, throughput
            and worker; `totals`: chunks, events, bytes and process seconds, of tasks and report, and the size of the
            results, each with its unit. Why a number is missing is in `totals.attrs["missing"]`.

        Raises
        ------
        TypeError, ValueError
            If the report is not a mapping, or has no key of a report.
        """
        measured, watched = measurement_of(measurement), self.watched()
        return compared(joined_rows(attempts_of(watched), measured), report, measured, started=bool(watched))

    @property
    def run(self) -> Run:
        """Tasks and workers as a `Run`, for plots such as `plot_task_stream`."""
        return monitor_run(self.watched())

    def plot(self, *, ax: Axes | None = None, output_path: str | os.PathLike[str] | None = None) -> tuple[Figure, Axes]:
        """Draw the number of tasks in each state over time.

        Parameters
        ----------
        ax
            Axes to draw on; by default a new figure.
        output_path
            File to save the figure to, overwriting an existing one.

        Raises
        ------
        ValueError
            If no task was recorded.
        """
        return plot_states(self.watched(), ax, output_path)

    def sheets(self) -> Sequence[Sheet]:
        """Tasks by prefix, as printed."""
        return monitor_sheets(self.watched(), self.get_all_tasks(), self.problems)

    def save(self, folder: str | os.PathLike[str], name: str | None = None, *, overwrite: bool = False) -> Path:
        """Save the records so far, and return the path of the new folder.

        Parameters
        ----------
        folder
            Parent of the new folder.
        name
            Its name; by default the time at which the monitor started (UTC).
        overwrite
            Overwrite a saved monitor of that name; a folder that holds anything else is never overwritten.

        Raises
        ------
        MeasurementError
            If it exists or cannot be written.
        """
        return save_watched(self.watched(), self.interval, self.problems, Path(folder), name, overwrite=overwrite)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> RecordedTasks:
        """Load the saved records of a monitor.

        Raises
        ------
        MeasurementError
            If there is none, or it cannot be read.
        """
        return RecordedTasks(*load_watched(Path(path)))


def _frame_of_tasks(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """DataFrame of tasks, with keys in Dask's form."""
    import pandas as pd

    keys = [row["key"] for row in rows]
    frame = frame_of(table_of_rows(columns, ({**row, "key": str(row["key"])} for row in rows)), columns)
    frame["key"] = pd.Series(keys, dtype=object)
    return frame
