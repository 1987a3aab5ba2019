"""Recorded tasks of a cluster: tables, plots and comparisons; saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roastcoffea.monitor import tables
from roastcoffea.monitor.history import Snapshot
from roastcoffea.monitor.joined import JOINED_COLUMNS, ReportComparison, compared, joined_rows, measurement_of
from roastcoffea.monitor.saved import load_watched, save_watched
from roastcoffea.monitor.shown import monitor_run, monitor_sheets, plot_states
from roastcoffea.monitor.watch import Watched, attempts_of, states_of
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.redaction import redacted
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from roastcoffea.records.columns import Column
    from roastcoffea.records.run import Run


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
