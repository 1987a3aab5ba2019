"""Tasks recorded on a cluster: tables, plots, comparisons, saving and loading."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.compat import older_keywords
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


def tables_of(watched: Watched) -> tuple[pa.Table, ...]:
    rows = [
        {"key": json.dumps(task["key"]), "kind": task["kind"], "chunk": task["chunk"] and json.dumps(task["chunk"])}
        for task in watched.history.tasks
    ]
    tasks = pa.Table.from_pylist(rows, schema=pa.schema(dict.fromkeys(("key", "kind", "chunk"), pa.string())))
    return tasks, watched.history.states, watched.attempts, watched.lifetimes


def watched_of(period: Mapping[str, Any], tables: Iterable[pa.Table]) -> Watched:
    """Restore a saved period, and raise an error if it is damaged."""
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
    ours = {MONITOR_FILE, *(table_file(path, name).name for name in TABLES)}
    return holds_only(path, ours) and has_format(path / MONITOR_FILE, MONITOR_FORMAT)


class RecordedTasks(Presented):
    """Tasks recorded by a `TaskMonitor`, printed and displayed as a table.

    Parameters
    ----------
    watched : iterable of Watched
        Records for each period between start and stop.
    interval : float
        Seconds between consecutive `snapshots`.
    problems : iterable of str
        Problems encountered during recording.
    """

    def __init__(self, watched: Iterable[Watched], interval: float, problems: Iterable[str]) -> None:
        self.interval = interval
        self._past = list(watched)
        self._problems = list(problems)

    def _periods(self) -> list[Watched]:
        return list(self._past)

    @property
    def problems(self) -> list[str]:
        """Problems encountered during recording, such as dropped rows."""
        of_periods = (problem for period in self._past for problem in period.problems)
        return list(dict.fromkeys(map(redacted, (*self._problems, *of_periods))))

    @property
    def snapshots(self) -> list[Snapshot]:
        """Snapshots of the scheduler's tasks, one per `interval`.

        The last snapshot is taken at the stop or, while the monitor is running, at the current time. Times without
        tasks are skipped.
        """
        return [snapshot for period in self._periods() for snapshot in period.snapshots(self.interval)]

    @property
    def attempts(self) -> pd.DataFrame:
        """Task attempts, including those still active at the end, one per row.

        The columns are the same as in `Measurement.tasks`, but `kind` has the same values as in `to_dataframe`.
        """
        return _frame_of_tasks(tables.ATTEMPT_COLUMNS, attempts_of(self._periods()))

    def get_all_tasks(self) -> list[dict[str, Any]]:
        """Return one dict per task key, in order of first appearance.

        The fields have the same names, units and meanings as in `to_dataframe`. Unknown values are None, and tuple keys
        stay tuples. If a task was computed more than once, its fields describe the last successful attempt, or the
        last attempt if none succeeded.
        """
        watched = self._periods()
        # read the states first: if a task ends between the two reads, its attempt still supplies the result
        states = states_of(watched)
        attempts = tables.best_attempts(attempts_of(watched))
        return [tables.complete_task(task, attempts.get(key, {})) for key, task in states.items()]

    def to_dataframe(self) -> pd.DataFrame:
        """Return the tasks as a DataFrame with one row per task.

        The content is the same as in `get_all_tasks`. `attrs["columns"]` contains the meaning and unit of each column.
        """
        return _frame_of_tasks(tables.MONITOR_COLUMNS, self.get_all_tasks())

    def per_worker(self) -> pd.DataFrame:
        """Return the number and size of the results computed by each worker."""
        return tables.per_worker(self.get_all_tasks())

    @property
    def worker_tasks(self) -> list[dict[str, Any]]:
        """The workers' views of the tasks, one dict per task and worker.

        The list is empty unless `worker_view=True` was passed.

        In addition to the results that it computed, a worker holds results that it fetched as inputs for other tasks.
        If a worker forgets a key and receives it again, the key is listed twice. Times are Unix seconds on the client's
        clock. Most names are taken from the worker's `TaskState`:

        - `key`, `worker`, `run_id`, `span`, `thread`, `annotations`, `metadata` (plain values only), `priority`,
          `resource_restrictions`;
        - `state`: the last state before the worker released the task; `transitions`: a list of (state, time) tuples;
        - `dependencies`: a list of at most 1000 keys; `num_dependencies`: the total number of dependencies;
          `dependents` and `num_dependents`: the tasks that needed this task while it was on this worker;
          `waiting_for_data`: the keys for which the task had to wait; `who_has`: the workers that held the result, if
          this worker fetched it; `coming_from`: the worker from which the result was fetched;
        - `startstops`: the action, start, stop and source of each action timed by Dask; `transfer`, `disk` (reads and
          writes), `deserialize` and `compute`: the total time of these actions in seconds; `start` and `stop`: when the
          computation began and ended;
        - `duration`: the compute time in seconds that Dask expected, unlike the measured `compute`; None for the first
          tasks with a prefix; `start_time`: when the worker passed the task to a thread; `stop_time`: the time recorded
          by Dask, or `stop` if Dask recorded no time;
        - `nbytes` (B), `type`, `exception` and `traceback` (text); `suspicious_count`: how often a dependency was not
          where the worker expected it; `suspicious`: the number of workers that died while the task was assigned to
          them;
        - `run_spec`: the task's call as text, with secrets redacted; None unless `run_spec` was passed.

        None means that the worker does not know the value, or that the action did not happen.
        """
        watched = self._periods()
        states = states_of(watched)
        return [tables.complete_view(view, states.get(view["key"], {})) for period in watched for view in period.views]

    def joined(self, measurement: Any) -> pd.DataFrame:
        """Join the attempts of chunk tasks to their chunks, one row per attempt.

        Parameters
        ----------
        measurement : Measurement or MetricsCollector
            A collector that was open while the tasks ran, or its measurement. If a task has no chunk record, its row
            contains the fields of coffea's work item.
        """
        rows = joined_rows(attempts_of(self._periods()), measurement_of(measurement))
        return frame_of(table_of_rows(JOINED_COLUMNS, rows), JOINED_COLUMNS)

    def compare_with_report(self, report: Mapping[str, Any], measurement: Any = None) -> ReportComparison:
        """Compare chunks recorded from tasks with coffea's report.

        Parameters
        ----------
        report : mapping
            The report that a `Runner` with `savemetrics=True` returns with the output.
        measurement : Measurement or MetricsCollector, optional
            A collector that was open while the tasks ran, or its measurement. Without this argument, the number of
            bytes read by the chunks and the time they spent in `process()` are unknown.

        Returns
        -------
        ReportComparison
            `chunks` has a row for each chunk that returned a result, with its input and output bytes, bytes per event,
            throughput and worker. `totals` compares the numbers of chunks, events and bytes and the process time from
            the tasks with those in the report, and includes the size of the results. `totals.attrs["missing"]` explains
            why a number is missing.

        Raises
        ------
        TypeError, ValueError
            If the report is not a mapping, or has none of a report's keys.
        """
        measured, watched = measurement_of(measurement), self._periods()
        return compared(joined_rows(attempts_of(watched), measured), report, measured is not None, bool(watched))

    @property
    def run(self) -> Run:
        """Tasks and workers as a `Run` for plots such as `plot_task_stream`."""
        return monitor_run(self._periods())

    @older_keywords(output_path="path")
    def plot(
        self, *, ax: Axes | None = None, path: str | os.PathLike[str] | None = None, overwrite: bool = False
    ) -> tuple[Figure, Axes]:
        """Plot the number of tasks in each state over time.

        Parameters
        ----------
        ax
            Axes to draw on. By default, a new figure is created.
        path
            Output file. Its suffix (png, pdf or svg) selects the format.
        overwrite
            Overwrite an existing file.

        Raises
        ------
        ValueError
            If no task was recorded.
        MeasurementError
            If the file exists or cannot be written.
        """
        return plot_states(self._periods(), ax, path, overwrite=overwrite)

    def sheets(self) -> Sequence[Sheet]:
        return monitor_sheets(self._periods(), self.get_all_tasks(), self.problems)

    @older_keywords(folder="path")
    def save(self, path: str | os.PathLike[str], name: str | None = None, *, overwrite: bool = False) -> Path:
        """Save the records so far in the folder `path/name`, and return its path.

        Parameters
        ----------
        path
            Parent folder.
        name
            Name of the new folder. The default is the monitor's start time (UTC).
        overwrite
            Overwrite a saved monitor with that name. A folder with any other content is never overwritten.

        Raises
        ------
        MeasurementError
            If the folder exists or cannot be written.
        """
        watched, folder = self._periods(), Path(path)
        if not watched:
            raise MeasurementError("this TaskMonitor has recorded nothing: there is nothing to save")
        began = f"tasks-{datetime.fromtimestamp(watched[0].start, timezone.utc):%Y-%m-%dT%H%M%SZ}"
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
        """Load the records saved by a monitor.

        Raises
        ------
        MeasurementError
            If the folder contains no saved records, or they cannot be read.
        """
        folder = Path(path)
        file = folder / MONITOR_FILE
        if not file.exists():
            what = f"it has no {MONITOR_FILE}; pass the folder of a saved monitor"
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
    """Convert tasks to a DataFrame that contains Dask's original keys."""
    import pandas as pd

    keys = [row["key"] for row in rows]
    frame = frame_of(table_of_rows(columns, ({**row, "key": str(row["key"])} for row in rows)), columns)
    frame["key"] = pd.Series(keys, dtype=object)
    return frame
