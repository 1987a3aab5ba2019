"""Watching every task of a Dask cluster: its states, its result, and how the workers held it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from distributed import Client, Scheduler

from roastcoffea.backends.connection import Connection
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import Enterable
from roastcoffea.measurement import Measurement
from roastcoffea.monitor import tables
from roastcoffea.monitor.history import Snapshot
from roastcoffea.monitor.joined import JOINED_COLUMNS, ReportComparison, compared, joined_rows
from roastcoffea.monitor.watch import Watch, attempts_of, states_of
from roastcoffea.records.arrow import frame_of, table_of_rows
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.redaction import redacted

if TYPE_CHECKING:
    import pandas as pd

CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which an in-process scheduler has to accept a client of ours."""


class TaskMonitor(Enterable):
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
            raise ValueError(f"interval must be a positive number of seconds, not {interval}")
        if not isinstance(client_or_scheduler, Scheduler):
            Connection(client_or_scheduler)  # refuses what it cannot use
        self.interval = interval
        self.worker_view = worker_view
        self._source = client_or_scheduler
        self._own_client: Client | None = None
        self._watch: Watch | None = None
        self._watches: list[Watch] = []
        self._problems: list[str] = []

    # the life of a monitor

    def __enter__(self) -> Self:
        self.start()
        return self

    def __repr__(self) -> str:
        return f"<TaskMonitor: {'running' if self._is_open else 'stopped'}>"

    def start(self) -> None:
        """Begin to watch; after `stop`, go on beside what was seen before. It does nothing where it runs already.

        A cluster that cannot be watched is noted in `problems`: the analysis must run all the same.

        Raises
        ------
        RoastcoffeaError
            On the thread of the scheduler's event loop, where nothing can be waited for.
        """
        if self._is_open:
            return
        self._refuse_the_thread_of_the_loop()
        self._is_open = True
        try:
            with reported(self._problems.append, "the cluster is not seen", Exception):
                self._watch = Watch(self._client(), self.worker_view)
                self._watch.open()
                self._watches.append(self._watch)
                return
        except BaseException:
            self.stop()
            raise
        self.stop()

    def stop(self) -> None:
        """Bring home what was seen, and leave the cluster as it was. It does nothing where nothing runs."""
        self.__exit__()

    def _leave(self, error: BaseException | None) -> None:  # noqa: ARG002
        watch, self._watch = self._watch, None
        client, self._own_client = self._own_client, None
        try:
            if watch is not None:
                watch.close()
        finally:
            if client is not None:
                client.close()

    def reset(self) -> None:
        """Forget what was seen; a monitor that runs goes on from now."""
        running = self._is_open
        self.stop()
        self._watches, self._problems = [], []
        if running:
            self.start()

    # what was seen

    @property
    def problems(self) -> list[str]:
        """What could not be seen."""
        notes = (note for watch in self._watches for note in watch.notes())
        return list(dict.fromkeys(map(redacted, (*self._problems, *notes))))

    @property
    def snapshots(self) -> list[Snapshot]:
        """The tasks that the scheduler knew, at each `interval` since the start, up to now or the stop."""
        return [snapshot for watch in self._watches_now() for snapshot in watch.snapshots(self.interval)]

    @property
    def attempts(self) -> pd.DataFrame:
        """Each attempt of a task that ended, in the columns of `Measurement.tasks` without `kind`."""
        parts = [watch.attempts() for watch in self._watches_now()]
        table = pa.concat_tables(parts) if parts else table_of_rows(TASK_COLUMNS, ())
        return frame_of(table.drop_columns("kind"), [column for column in TASK_COLUMNS if column.name != "kind"])

    def get_all_tasks(self) -> list[dict[str, Any]]:
        """Everything known of each task, one dict per key, in the order in which they were first seen.

        Names, units and meanings are those of `to_dataframe`; None is not known. A task that was computed more than
        once is there as its last attempt that worked, or as the last one where none did.
        """
        watches = self._watches_now()
        attempts = tables.best_attempts(attempts_of(watches))
        return [tables.complete_task(task, attempts.get(key, {})) for key, task in states_of(watches).items()]

    def to_dataframe(self) -> pd.DataFrame:
        """What `get_all_tasks` tells, a row per task; meaning and unit of columns are in `attrs["columns"]`."""
        return frame_of(table_of_rows(tables.MONITOR_COLUMNS, self.get_all_tasks()), tables.MONITOR_COLUMNS)

    def per_worker(self) -> pd.DataFrame:
        """Number and size of the results that each worker computed, a row per worker."""
        rows = tables.worker_rows(self.get_all_tasks())
        return frame_of(table_of_rows(tables.WORKER_COLUMNS, rows), tables.WORKER_COLUMNS)

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
        watches = self._watches_now()
        suspicious = {key: state["suspicious"] for key, state in states_of(watches).items()}
        return [tables.complete_view(view, suspicious.get(view["key"])) for watch in watches for view in watch.views()]

    def joined(self, measurement: Measurement) -> pd.DataFrame:
        """Attempts of processor tasks with the chunks that they processed, a row per attempt.

        Parameters
        ----------
        measurement : Measurement
            Of a collector that was open meanwhile. A task without a record of its chunk has no dataset and no file.
        """
        rows = joined_rows(attempts_of(self._watches_now()), measurement)
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
        return compared(joined_rows(attempts_of(self._watches_now()), measurement), report)

    # how it does that

    def _client(self) -> Any:
        """The client that was given, or one of ours to a scheduler of this process."""
        if not isinstance(self._source, Scheduler):
            return self._source
        address, security = self._source.address, self._source.security
        self._own_client = Client(address, security=security, set_as_default=False, timeout=CONNECT_TIMEOUT)
        return self._own_client

    def _refuse_the_thread_of_the_loop(self) -> None:
        loop = getattr(getattr(self._source, "loop", None), "asyncio_loop", None)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is loop:
            reason = "cannot run on the thread of the cluster's event loop: start and stop it on another one"
            raise RoastcoffeaError(f"a TaskMonitor {reason}")

    def _watches_now(self) -> list[Watch]:
        """All periods, with what the scheduler has so far."""
        if self._watch is not None:
            try:
                self._watch.drain()
            except (OSError, RuntimeError) as problem:
                self._problems.append(f"what was seen last could not be read: {error_text(problem)}")
        return self._watches
