"""The context manager around an analysis: it opens and closes the probes, and assembles one Run."""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any, Self

import pyarrow as pa

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.backends.hosts import environment_of
from roastcoffea.backends.recorder import FROM_CHUNKS, PROFILE, SAMPLED, TABLES
from roastcoffea.backends.registry import backend_for
from roastcoffea.backends.spans import RunSpan
from roastcoffea.compat.collector import CollectorOf012
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.instrument.calls import calls_of_tasks
from roastcoffea.instrument.hook import end_open_calls, take_new_records, unwatch, watch
from roastcoffea.instrument.measured import CARRIED, settings_of
from roastcoffea.instrument.names import given_name
from roastcoffea.instrument.own_code import Files
from roastcoffea.interrupts import Enterable
from roastcoffea.log.completeness import AskedItems, Losses, attempts_without_record, chunks_without_record
from roastcoffea.log.profiles import with_files
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked, with_report
from roastcoffea.records.run import FAILED, FINISHED, Environment, Run, RunnerCall
from roastcoffea.redaction import redacted, redacted_values
from roastcoffea.report.live import LiveLine
from roastcoffea.report.progress import Progress
from roastcoffea.units import counted


class MetricsCollector(CollectorOf012, Enterable):
    """Measures everything that runs inside its `with`: on the cluster of a Dask client, or on this machine.

    The analysis needs no changes: while the collector is open, Runner calls and their chunks are recorded. After the
    `with` (even if it failed) `measurement` has the result. A collector measures once. Ctrl-C while the `with` ends
    takes effect after the measurement is made and the cluster is restored.

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

    Raises
    ------
    ValueError
        Backend "dask" without a client, a client that is not connected, an unknown backend, an interval that is not
        positive, `everything` without a Dask client, `events` without `everything`, or a blank `name`.
    TypeError
        An asynchronous client, an invalid backend, a `live` that is not a bool, a `name` that is not text, or `events`
        that is neither a name nor a function.

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
    ) -> None:
        if not isinstance(live, bool):
            raise TypeError(f"live is True or False, not {live!r}")
        self.name = given_name(name)
        self.profile = profile
        self.client, self.processor_instance = client, processor_instance
        self.track_workers, self.worker_tracking_interval = track_workers, worker_tracking_interval
        self.problems: list[str] = []
        self._interval = (
            checked_interval(worker_tracking_interval, "worker_tracking_interval") if track_workers else None
        )
        self._backend = backend_for(backend, client, carried=CARRIED)
        self._backend.functions = settings_of(self._backend.kind, everything, events, profile)
        self.backend = self._backend.kind if backend is None else backend
        self.topic = self._backend.name
        """Name of the plugin that takes this collector's records."""
        self._span = RunSpan("roastcoffea", self._backend.name)
        self._calls: list[RunnerCall] = []
        self._functions: list[RunnerCall] = []
        self._asked = AskedItems()
        self._began_calls: list[str] = []
        self._files_of_functions: dict[str, Files] = {}
        self._requests_unknown = False
        self._why_no_chunks: str | None = None
        self._report: Any = None
        self.custom_metrics: Any = None
        self._id = uuid.uuid4().hex
        self._entered = False
        self.t_start: float | None = None
        """When the `with` was entered and left (Unix seconds)."""
        self.t_end: float | None = None
        self._began = math.nan
        self.outside: dict[str, str] = {}  # what is excluded on purpose, for the ledgers' certificates
        self.paused_at: float | None = None  # the run ends then, by `time.perf_counter`
        self._measurement: Measurement | None = None
        self._why_no_measurement = "there is no measurement yet: leave the with of the MetricsCollector first"
        self._live = LiveLine(self._progress, self.note) if live else None

    # the run

    def __enter__(self) -> Self:
        if self._entered:
            raise RoastcoffeaError("this MetricsCollector has been used already; make a new one for each run")
        self._entered = self._is_open = True
        try:
            self._open()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _leave(self, error: BaseException | None) -> None:
        """End everything that `__enter__` started, despite errors, and make the measurement."""
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
        else:
            self.t_end = self.t_start + elapsed
            self._measure(self.t_start, self.t_end, error)

    def _measure(self, start: float, stop: float, error: BaseException | None) -> None:
        """Make the measurement; if that fails, one with the reason."""

        def note(problem: str) -> None:
            self._why_no_measurement = f"there is no measurement: {problem}"
            self.note(problem)

        with reported(note, "roastcoffea failed while assembling the records", Exception):
            self._measurement = Measurement(checked(self._recorded_run(start, stop, error)))
            return
        absent = dict.fromkeys((*TABLES, "asked", "span_metrics"), self.problems[-1])
        with reported(note, "roastcoffea failed while assembling the records", Exception):
            self._measurement = Measurement(self._run(start, stop, error, {}, absent))

    def _progress(self) -> Progress:
        """Progress of the run, from the records received so far."""
        take_new_records()
        return Progress(
            **asdict(self._backend.received.tally),
            chunks_asked=self._asked.chunks,
            files_asked=self._asked.files,
            workers=self._backend.workers_now(),
            threads=self._backend.threads_now(),
        )

    def _open(self) -> None:
        span = self._span.__enter__()
        with reported(self.note, "the cluster is not recorded", Exception):
            self._backend.open(self._interval, span)
        watch(self)
        self.t_start, self._began = time.time(), time.perf_counter()
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

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value what tasks need if they cannot import it."""
        return self._backend.packed_for_tasks(thing)

    def span_ensured(self) -> AbstractContextManager[None]:
        """Context in which tasks are counted in the span of the run."""
        return self._span.ensured()

    def call_began(self, call: str, files: Files) -> None:
        """Learn the identity of a Runner call that begins, and the files of its processor's functions."""
        self._began_calls.append(call)
        self._files_of_functions[call] = files

    def step(self, executor: Any, call: str | None, *, preprocessing: bool) -> AbstractContextManager[None]:
        """Context in which an executor works for a Runner call: on its chunks, or on the files of preprocessing."""
        return self._backend.step(executor, call, preprocessing=preprocessing)

    def chunks_lost(self, reason: str) -> None:
        """Record why the chunks of a Runner call are missing."""
        self.note(reason)
        self._why_no_chunks = reason

    def items_requested(self, call: str, items: Sequence[Any]) -> None:
        """Record what a Runner call requested: files for preprocessing, or chunks."""
        merged = self._asked.add(call, items)
        if merged:
            names = f"names of {counted(merged, 'file')} differ"
            self.note(f"{names} from others only in masked secrets: they count as one")

    def requests_unknown(self) -> None:
        """Record that a Runner call's requests are unknown."""
        self._requests_unknown = True

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""
        self._calls.append(call)

    def fetch_records(self) -> None:
        """Fetch the records of finished Runner calls."""
        with reported(self.chunks_lost, "records could not be fetched after a Runner call", Exception):
            self._backend.drain()

    def note(self, problem: str) -> None:
        """Add a problem to the measurement."""
        problem = redacted(problem)
        if problem not in self.problems:
            self.problems.append(problem)

    # results

    def _recorded_run(self, start: float, stop: float, error: BaseException | None) -> Run:
        if not self._backend.was_open:
            absent = dict.fromkeys((*TABLES, "span_metrics"), "the cluster was not recorded")
            return self._run(start, stop, error, {}, absent)
        tables: dict[str, Any] = {"asked": self._asked.table()}
        absent = {}
        for name in TABLES:
            with reported(self.note, f"the records of {name} could not be read", Exception):
                if name == "chunks":
                    tables[name] = self._backend.chunks(self._began_calls)
                else:
                    tables[name] = self._table(name, tables.get("chunks"), start, stop)
            if name not in tables:
                absent[name] = self.problems[-1]
        with reported(self.note, "functions without a Runner could not be listed", Exception):
            self._functions = calls_of_tasks(tables["chunks"], tables.get("tasks"))
        absent = self._backend.absent | absent
        if self._interval is None:
            absent |= dict.fromkeys(SAMPLED, "track_workers=False")
        if not self.profile:
            absent[PROFILE] = "profile=False"
        if self._requests_unknown:
            absent["asked"] = "the requests of Runner calls were not recorded"
        elif self._functions and not self._calls:
            absent["asked"] = "functions without a Runner do not report what was requested"
        with reported(self.note, "records of chunks and tasks could not be compared", Exception):
            absent |= self._reasons_against_chunks(tables["chunks"], tables["asked"])
            if tables.get("tasks") is not None:
                for lack in attempts_without_record(tables["tasks"], tables["chunks"]):
                    self.note(lack)
        return self._run(start, stop, error, tables, absent)

    def _table(self, name: str, chunks: pa.Table | None, start: float, stop: float) -> pa.Table | None:
        """One of `TABLES` except the first; None for what is switched off."""
        if (name in SAMPLED and self._interval is None) or (name == PROFILE and not self.profile):
            return None
        table = self._backend.table(name, chunks, start, stop)
        return with_files(table, self._files_of_functions) if name == PROFILE and table is not None else table

    def _reasons_against_chunks(self, chunks: pa.Table, asked: pa.Table) -> dict[str, str]:
        """Why the records of chunks cannot be used for numbers, if so; missing records are noted."""
        running = len(set(self._began_calls) - {call.id for call in self._calls})
        if running:
            self.chunks_lost(f"{counted(running, 'Runner call')} still running when the collector was left")
        if self._why_no_chunks is not None:
            return dict.fromkeys(("chunks", *FROM_CHUNKS), self._why_no_chunks)
        if not (self._calls or self._functions):
            return dict.fromkeys(("chunks", *FROM_CHUNKS), "no Runner call was recorded")
        backend = self._backend
        losses = Losses(backend.merges_equal_chunks, backend.dropped.get("chunks", 0), backend.refused)
        for lack in chunks_without_record(self._calls, chunks, asked, losses):
            self.note(lack)
        return {}

    def _run(
        self, start: float, stop: float, error: BaseException | None, tables: dict[str, Any], absent: dict[str, str]
    ) -> Run:
        backend = self._backend
        environment, notes = Environment(versions={}, client_host=None), []
        with reported(self.note, "the environment of the run could not be described", Exception):
            environment = environment_of(backend.hosts)
        with reported(self.note, "the backend's problems could not be listed", Exception):
            notes = backend.notes()
        return Run(
            id=self._id,
            name=self.name and redacted(self.name),
            start=start,
            stop=stop,
            outcome=FINISHED if error is None else FAILED,
            error=None if error is None else error_text(error),
            backend=backend.kind,
            environment=environment,
            sampling_interval=self._interval,
            calls=(*self._calls, *self._functions),
            **tables,
            span_metrics=backend.span_metrics,
            span_metrics_per_worker=backend.span_metrics_per_worker,
            coffea_report=self._report,
            custom_metrics=self.custom_metrics,
            attempts=backend.attempts,
            scheduler_clock_offset=backend.clock_offset,
            dropped=backend.dropped,
            absent=redacted_values(absent | self.outside),
            problems=tuple(map(redacted, (*self.problems, *notes))),
        )

    @property
    def measurement(self) -> Measurement:
        """The measurement, available after the `with`."""
        if self._measurement is None:
            raise RoastcoffeaError(self._why_no_measurement)
        return self._measurement

    def _repr_html_(self) -> str:
        """Page of the measurement, or the state of the collector."""
        from roastcoffea.report.notebook import html
        from roastcoffea.report.summary import state_of_collector

        if self._measurement is not None:
            return self._measurement._repr_html_()
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
        self._report, self.custom_metrics = report, custom_metrics
        if self._measurement is not None:
            self._measurement = Measurement(with_report(self._measurement.run, report, custom_metrics))

    @property
    def coffea_report(self) -> Any:
        """The report that was set, otherwise that of the last Runner call with one."""
        if self._report is not None:
            return self._report
        return next((call.report for call in reversed(self._calls) if call.report is not None), None)
