"""Recorded tasks of a cluster: tables, plots and comparisons; saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import MeasurementError
from roastcoffea.log.kinds import STATES
from roastcoffea.monitor import shown as tables
from roastcoffea.monitor.history import History, Snapshot, Watched, from_json, hashable
from roastcoffea.monitor.shown import (
    JOINED_COLUMNS,
    ReportComparison,
    attempts_of,
    compared,
    joined_rows,
    measurement_of,
    monitor_run,
    monitor_sheets,
    plot_states,
    states_of,
)
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.redaction import redacted
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Sheet
from roastcoffea.storage.document import table_file, write_table
from roastcoffea.storage.folders import OR_OVERWRITE, file_name, holds_only, new_folder, synced_file
from roastcoffea.storage.parquet import Room, read_parquet
from roastcoffea.storage.reading import has_format, json_of, reading
from roastcoffea.storage.store import MONITOR_FILE, MONITOR_FORMAT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roastcoffea.records.columns import Column
    from roastcoffea.records.run import Run


SCHEMA: Final = 1
TABLES: Final = ("tasks", "states", "attempts", "lifetimes")
PERIOD: Final = "period"
"""Column of saved tables with the number of the period."""


def tables_of(watched: Watched) -> tuple[pa.Table, ...]:
    """Tables of a period as they are saved, with keys and items of coffea as JSON."""
    rows = [
        {"key": json.dumps(task["key"]), "kind": task["kind"], "chunk": task["chunk"] and json.dumps(task["chunk"])}
        for task in watched.history.tasks
    ]
    tasks = pa.Table.from_pylist(rows, schema=pa.schema(dict.fromkeys(("key", "kind", "chunk"), pa.string())))
    return tasks, watched.history.states, watched.attempts, watched.lifetimes


def watched_of(period: Mapping[str, Any], tables: Iterable[pa.Table]) -> Watched:
    """A saved period; raises if it is damaged."""
    names, states, attempts, lifetimes = tables
    tasks = [
        row | {"key": hashable(json.loads(row["key"])), "chunk": row["chunk"] and json.loads(row["chunk"])}
        for row in names.to_pylist()
    ]
    if len(states) and (
        pc.index_in(states["state"], pa.array(STATES)).null_count or pc.max(states["task"]).as_py() >= len(tasks)
    ):
        raise ValueError("it has an unknown state or task")
    return Watched(
        start=float(period["start"]),
        stop=float(period["stop"]),
        history=History(states, tasks),
        attempts=attempts,
        lifetimes=lifetimes,
        views=[view | from_json(view) for view in period["views"]],
        problems=list(map(str, period["problems"])),
    )


def is_replaceable(path: Path) -> bool:
    """Whether a folder holds only a saved monitor, even a damaged one."""
    ours = {MONITOR_FILE, *(table_file(path, name).name for name in TABLES)}
    return holds_only(path, ours) and has_format(path / MONITOR_FILE, MONITOR_FORMAT)


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
        return tables.per_worker(self.get_all_tasks())

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
        return compared(joined_rows(attempts_of(watched), measured), report, measured is not None, bool(watched))

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
        watched, folder = self.watched(), Path(folder)
        if not watched:
            raise MeasurementError("this TaskMonitor has recorded nothing: there is nothing to save")
        began = f"tasks-{datetime.fromtimestamp(watched[0].start, UTC):%Y-%m-%dT%H%M%SZ}"
        target = folder / file_name(began if name is None else name)
        periods = [{name: getattr(one, name) for name in ("start", "stop", "problems", "views")} for one in watched]
        document = {"format": MONITOR_FORMAT, "schema": SCHEMA, "interval": self.interval}
        document |= {"problems": self.problems, "periods": periods}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with new_folder(folder, target.name) as new:
                for table, parts in zip(TABLES, zip(*map(tables_of, watched), strict=True), strict=True):
                    numbers = pa.array(np.repeat(np.arange(len(parts)), [*map(len, parts)]))
                    write_table(new.path, table, pa.concat_tables(parts).append_column(PERIOD, numbers))
                with synced_file(new.path / MONITOR_FILE) as file:
                    file.write(json.dumps(document).encode())
                new.complete()
                if not new.put_in_place(target, is_replaceable if overwrite else None):
                    raise MeasurementError(f"{target} exists; {OR_OVERWRITE}")
        except OSError as error:
            raise MeasurementError(f"nothing was saved in {folder}: {error}") from error
        return target

    @staticmethod
    def load(path: str | os.PathLike[str]) -> RecordedTasks:
        """Load the saved records of a monitor.

        Raises
        ------
        MeasurementError
            If there is none, or it cannot be read.
        """
        folder = Path(path)
        file = folder / MONITOR_FILE
        if not file.exists():
            what = f"it has no {MONITOR_FILE}; pass the folder of one"
            raise MeasurementError(f"{folder} is not a saved TaskMonitor: {what}")
        with reading(file):
            document = json_of(file)
            found = document["format"], document["schema"]
            if found != (MONITOR_FORMAT, SCHEMA):
                raise ValueError(f"it is {found[0]} {found[1]}; this version reads {MONITOR_FORMAT} {SCHEMA}")
        room = Room()
        tables = [read_parquet(table_file(folder, name), pa.schema([]), room) for name in TABLES]
        with reading(folder):
            watched = [
                watched_of(
                    period, [table.filter(pc.equal(table[PERIOD], number)).drop_columns(PERIOD) for table in tables]
                )
                for number, period in enumerate(document["periods"])
            ]
            return RecordedTasks(watched, float(document["interval"]), map(str, document["problems"]))


def _frame_of_tasks(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """DataFrame of tasks, with keys in Dask's form."""
    import pandas as pd

    keys = [row["key"] for row in rows]
    frame = frame_of(table_of_rows(columns, ({**row, "key": str(row["key"])} for row in rows)), columns)
    frame["key"] = pd.Series(keys, dtype=object)
    return frame
