"""The context manager around an analysis: it opens and closes the probes, and assembles one Run."""

from __future__ import annotations

import copy
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.backends.hosts import environment_of
from roastcoffea.backends.recorder import TABLES, RunSpan
from roastcoffea.backends.registry import backend_for
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.instrument.calls import given_name
from roastcoffea.instrument.hook import end_open_calls, take_new_records, unwatch, watch
from roastcoffea.instrument.tasks import CARRIED, settings_of
from roastcoffea.interrupts import Enterable, interrupts_held
from roastcoffea.log.marks import FromEnvironment
from roastcoffea.recording.assembly import BlackBox, Ending, Place, RunRecords, checked_place
from roastcoffea.records.run import FAILED, FINISHED
from roastcoffea.redaction import redacted_values

if TYPE_CHECKING:
    from roastcoffea.measurement import Measurement
    from roastcoffea.metrics import Metrics
    from roastcoffea.report.live import Progress


class MetricsCollector(Enterable):
    """Measures everything that runs inside its `with`: on the cluster of a Dask client, or on this machine.

    The analysis needs no changes: while the collector is open, Runner calls and their chunks are recorded. After the
    `with` (even if it failed) `measurement` has the result; on Dask its tables are made when it is first asked for. A
    collector measures once. A signal, such as Ctrl-C, that comes as the `with` begins or ends takes effect after that.

    Parameters
    ----------
    client : distributed.Client, optional
        A connected, synchronous client; without one, work on this machine is measured, with any executor.
    backend : {"dask", "local"} or AbstractMetricsBackend, optional
        Where the analysis runs, or your own backend; by default "dask" if there is a client.
    track_workers : bool
        Whether to sample the workers' memory, CPU and tasks.
    worker_tracking_interval : float
        Seconds between samples. The state of Dask's scheduler is sampled at this interval, down to 0.05 s; workers
        report memory and CPU with their heartbeats, at most every half second.
    processor_instance : optional
        Not needed: the hook finds the processor itself.
    live : bool
        Whether to show progress in a line: in a notebook, or in the lowest row of the terminal on stderr.
    profile : bool
        Whether to sample functions and lines of process(), ten times a second.
    everything : bool
        Whether to measure every task of the client that reads, in addition to Runner calls and `measured` functions.
    events : str or callable, optional
        What counts as events in tasks that `everything` measures, as for `measured`.
    name : str, optional
        Name of the run, which is its title and names the folder it is saved in; by default the title is the processors'
        names.
    journal : path, bool or None
        Folder for the journal, from which `roastcoffea recover` makes a measurement if this process is killed; by
        default below `$XDG_STATE_HOME` or `~/.local/state`, with None there is none. It is removed when the measurement
        is saved or dropped.
    peak_memory : bool
        Whether to measure the peak memory of chunks and sections. For that the kernel's high-water mark of the process
        is reset at each chunk, which other monitors may read.

    Raises
    ------
    ValueError
        Backend "dask" without a client, a client that is not connected, an unknown backend, an interval that is not
        positive, `everything` without a Dask client, `events` without `everything`, or a blank `name`.
    TypeError
        An asynchronous client, an invalid backend, a `live` that is not a bool, a `name` that is not text, `events`
        that is neither a name nor a function, or a `journal` that is no path.

    Examples
    --------
    >>> with MetricsCollector(client) as collector:  # doctest: +SKIP
    ...     output = runner(fileset, processor_instance=processor)
    >>> collector.print_summary()  # doctest: +SKIP
    """

    of_all_contexts = True
    """Whether to measure Runner calls of threads that never had a collector, too."""

    def __init__(  # noqa: PLR0917  (the order in which 0.1.2 took them, and ours behind)
        self,
        client: Any = None,
        backend: str | AbstractMetricsBackend | None = None,
        track_workers: bool = True,
        worker_tracking_interval: float = 1.0,
        processor_instance: Any = None,
        live: bool = False,
        profile: bool = True,
        everything: bool = False,
        events: str | Callable[[Any], Any] | None = None,
        name: str | None = None,
        journal: Place = True,
        peak_memory: bool = True,
    ) -> None:
        if not isinstance(live, bool):
            raise TypeError(f"live is True or False, not {live!r}")
        self.name = given_name(name)
        self.profile, self.peak_memory = profile, peak_memory
        self.client, self.processor_instance = client, processor_instance
        self.track_workers, self.worker_tracking_interval = track_workers, worker_tracking_interval
        interval = checked_interval(worker_tracking_interval, "worker_tracking_interval") if track_workers else None
        wanted = {"profile": profile, "peak_memory": peak_memory}
        records = self._records = RunRecords(uuid.uuid4().hex, self.name, interval, **wanted)
        self.note = records.note
        # what the hook tells
        self.call_began, self.call_runs, self.call_ended = records.call_began, records.call_runs, records.call_ended
        self.items_requested, self.requests_unknown = records.items_requested, records.requests_unknown
        self.chunks_lost = records.chunks_lost
        self._backend = backend_for(backend, client, carried=CARRIED)
        self._backend.functions = settings_of(self._backend.kind, everything, events, **wanted)
        self.backend = self._backend.kind if backend is None else backend
        self.topic = self._backend.name
        """Name of the plugin that takes this collector's records."""
        checked_place(journal)
        self._journal = BlackBox(records, self._backend, journal)
        self._span = RunSpan("roastcoffea", self._backend.name)
        self._entered = False
        self.t_start: float | None = None
        """When the `with` was entered and left (Unix seconds)."""
        self.t_end: float | None = None
        self._began = math.nan
        self.paused_at: float | None = None  # the run ends then, by `time.perf_counter`
        self._measurement: Measurement | None = None
        self._ending: Ending | None = None  # of a run whose measurement is still to be made
        self._making = threading.RLock()
        self._why_no_measurement = "there is no measurement yet: leave the with of the MetricsCollector first"
        self._live = None
        if live:
            from roastcoffea.report.live import LiveLine

            self._live = LiveLine(self._progress, self.note)

    # the run

    def __enter__(self) -> Self:
        if self._entered:
            raise RoastcoffeaError("this MetricsCollector has been used already; make a new one for each run")
        self._entered = self._is_open = True
        try:
            with interrupts_held():
                self._open()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _leave(self, error: BaseException | None) -> None:
        """End everything that `__enter__` started, despite errors."""
        elapsed = (self.paused_at or time.perf_counter()) - self._began
        with reported(self.note, "active Runner calls were not recorded", Exception):
            if error is not None:
                end_open_calls(self, error)
        for end in (partial(unwatch, self), self._backend.leave_span, self._leave_span, self._backend.close):
            with reported(self.note, "roastcoffea failed while leaving the collector", Exception):
                end()
        with reported(self.note, "the live line could not be removed", Exception):
            if self._live is not None:
                self._live.stop()
        if self.t_start is None:
            self._why_no_measurement = "there is no measurement: the MetricsCollector could not be entered"
            self._journal.give_up()
        else:
            self.t_end = self.t_start + elapsed
            self._ending = (FINISHED, None) if error is None else (FAILED, error_text(error))
            with reported(self.note, "the journal could not be ended", Exception):
                run = self._records.run_without_tables(self._backend, self.t_start, self.t_end, self._ending)
                self._journal.end(self, run)
            if not self._backend.holds_all:
                self._made()

    def _made(self) -> Measurement | None:
        """The measurement, which is made now unless it was; None if there is none.

        Tables of a long run take seconds and gigabytes, which must not delay an analysis that does not need them yet.
        """
        with self._making:
            if self._ending is not None and self.t_start is not None and self.t_end is not None:
                self._measure(self.t_start, self.t_end, self._ending)
                with interrupts_held():
                    self._ending = None
                    self._journal.hand_on(self, self._measurement or self)
            return self._measurement

    def _measure(self, start: float, stop: float, ending: Ending) -> None:
        """Make the measurement; if that fails, one with the reason."""

        def note(problem: str) -> None:
            self._why_no_measurement = f"there is no measurement: {problem}"
            self.note(problem)

        with reported(note, "roastcoffea failed while assembling the records", Exception):
            from roastcoffea.measurement import Measurement
            from roastcoffea.metrics.failures import checked

            run = checked(self._records.run(self._backend, start, stop, ending))
            self._measurement = Measurement(run, self._records.problems)
            return
        absent = dict.fromkeys((*TABLES, "asked", "span_metrics"), self._records.problems[-1])
        with reported(note, "roastcoffea failed while assembling the records", Exception):
            from roastcoffea.measurement import Measurement

            run = self._records.run_of(self._backend, start, stop, ending, {}, absent)
            self._measurement = Measurement(run, self._records.problems)

    def _progress(self) -> Progress:
        """Progress of the run, from the records received so far."""
        from roastcoffea.report.live import Progress

        take_new_records()
        return Progress(
            **asdict(self._backend.received.tally),
            chunks_asked=self._records.asked.chunks,
            files_asked=self._records.asked.files,
            workers=self._backend.workers_now(),
            threads=self._backend.threads_now(),
        )

    def _open(self) -> None:
        span = None
        with reported(self.note, "tasks are not counted in a span of the run", Exception):
            if self._backend.kind == "dask":  # the others have no use for it
                span = self._span.__enter__()
        with reported(self.note, "the environment of the run could not be described", Exception):
            self._records.environment = environment_of(())
        with reported(self.note, "there is no journal of the run", Exception):
            self._journal.open()
        with reported(self.note, "the cluster is not recorded", Exception):
            self._backend.open(self._records.interval, span)
        with reported(self._records.chunks_lost, "Runner calls are not recorded", Exception):
            watch(self)
        self.t_start, self._began = time.time(), time.perf_counter()
        with reported(self.note, "the run's start is not in its records", Exception):
            self._records.started(self.t_start)
        with reported(self.note, "there is no live line", Exception):
            if self._live is not None:
                self._live.start()

    def _leave_span(self) -> None:
        try:
            self._span.__exit__()
        except ValueError:
            self.note("the with was left in another context than it was entered in, where its span stays open")

    # requests of the hook

    def out_of_reach(self, executor: Any) -> str | None:
        """Why work on this executor is outside the collector's reach; None if it is not."""
        return None if self._backend.reaches(executor) else self._backend.elsewhere

    def take_records(self, records: bytes) -> None:
        """Take packed records that did not pass through a scheduler."""
        self._backend.received.take(records)
        self._journal.records(records)

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value what tasks need if they cannot import it."""
        return self._backend.packed_for_tasks(thing)

    def span_ensured(self) -> AbstractContextManager[None]:
        """Context in which tasks are counted in the span of the run."""
        return self._span.ensured()

    def step(
        self, executor: Any, call: str | None, *, preprocessing: bool
    ) -> AbstractContextManager[FromEnvironment | None]:
        """Context in which an executor works for a Runner call: on its chunks, or on the files of preprocessing.

        It returns what the tasks are to report of their environment.
        """
        return self._backend.step(executor, call, preprocessing=preprocessing)

    def client_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Take what the client's thread did for an executor on Dask."""
        self._backend.take_client_steps(steps)

    def fetch_records(self) -> None:
        """Fetch the records of finished Runner calls."""
        with interrupts_held(), reported(self.note, "records could not be fetched after a Runner call", Exception):
            self._backend.drain()  # what came before is kept, and missing chunks are counted

    # results

    @property
    def measurement(self) -> Measurement:
        """The measurement, available after the `with`."""
        found = self._made()
        if found is None:
            raise RoastcoffeaError(self._why_no_measurement)
        return found

    @property
    def problems(self) -> list[str]:
        """Problems of the measuring so far."""
        self._made()
        return self._records.problems

    def _repr_html_(self) -> str:
        """Page of the measurement, or the state of the collector."""
        from roastcoffea.report.summary import state_of_collector
        from roastcoffea.sheets.markup import html

        found = self._made()
        if found is not None:
            return found._repr_html_()
        state = "It measures what runs now." if self._entered else "It has not been entered yet."
        return html(state_of_collector(state, self.problems))

    def set_coffea_report(self, report: Mapping[str, Any], custom_metrics: Any = None) -> None:
        """Set coffea's report, which takes precedence over the one found by the hook.

        Parameters
        ----------
        report : mapping
            The report that a Runner with `savemetrics=True` returned with the output.
        custom_metrics : mapping, optional
            `{dataset: {"entries", "duration", "performance_counters": {"num_requested_bytes"}}}`, which replaces
            coffea's totals.
        """
        for name, value in (("report", report), ("custom_metrics", custom_metrics)):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"set_coffea_report: {name} must be a mapping, not {type(value).__name__}")
        report, custom_metrics = redacted_values(copy.deepcopy((report, custom_metrics)))
        with self._making:
            self._records.take_report(report, custom_metrics)
            before = self._measurement
            if before is not None:
                from roastcoffea.metrics.failures import with_report

                changed = with_report(before.run, report, custom_metrics)
                self._measurement = type(before)(changed, self._records.problems)
            self._journal.hand_on(before or self, self._measurement or self)

    @property
    def custom_metrics(self) -> Any:
        """What was set to replace coffea's totals."""
        return self._records.custom_metrics

    @property
    def coffea_report(self) -> Any:
        """The report that was set, otherwise that of the last Runner call with one."""
        if self._records.report is not None:
            return self._records.report
        return next((call.report for call in reversed(self._records.calls) if call.report is not None), None)

    # by the names of 0.1.2

    def get_metrics(self) -> Metrics:
        """Values of the metrics by name; a missing one raises a KeyError with the reason.

        They are those of `measurement.metrics`, except `sections`, which has the shape of 0.1.2: {section: {amount:
        value}}, over chunks with a result.
        """
        from roastcoffea.metrics.chunks import OlderMetrics

        return OlderMetrics(self.measurement.metrics.evaluator)

    metrics = property(get_metrics)

    @property
    def processor_name(self) -> str | None:
        """Name of the given processor's class; otherwise, at the end, that of the last one that ran."""
        if self.processor_instance is not None:
            return type(self.processor_instance).__name__
        calls = () if self.t_end is None else self.measurement.run.calls
        return calls[-1].processor if calls else None

    @property
    def chunk_metrics(self) -> list[dict[str, Any]]:
        """One dict for each chunk with a result; `measurement.chunks` has every attempt."""
        return list(self.metrics["raw_chunk_metrics"])

    @property
    def tracking_data(self) -> Mapping[str, Any] | None:
        """Samples of the workers by field and worker; None if they were not sampled."""
        data: Mapping[str, Any] | None = self.metrics.get("tracking_data")
        return data

    @property
    def span_metrics(self) -> Mapping[tuple[Any, ...], float]:
        """The span's cumulative metrics by tuple; empty if there are none."""
        return self.measurement.run.span_metrics or {}

    def extract_metrics_from_output(self, output: Any) -> None:
        """Remove from an output what older versions left in it, in place."""
        if isinstance(output, dict):
            output.pop("__roastcoffea_metrics__", None)

    def save_measurement(
        self, output_dir: str | PathLike[str], measurement_name: str | None = None, overwrite: bool = False
    ) -> Path:
        """Save the measurement as a folder in `output_dir`, and return the folder's path.

        Without a name it gets a new one: that of the run and a number, or the time. An existing measurement is
        overwritten only with `overwrite`.
        """
        return self.measurement.save(output_dir, measurement_name, overwrite)

    def print_summary(self, *, all: bool = False, group: str | None = None) -> None:  # noqa: A002
        """Print what ran, where time and bytes went and what to change; or all tables, or those of a group."""
        self.measurement.print_summary(all=all, group=group)
