"""The context manager around an analysis: it opens the probes, closes them, and makes one Run."""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
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
from roastcoffea.instrument.measured import settings_of
from roastcoffea.instrument.probe import Probe
from roastcoffea.instrument.tasks import call_measured
from roastcoffea.interrupts import Enterable
from roastcoffea.log.completeness import AskedItems, Losses, attempts_without_record, chunks_without_record
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked, with_report
from roastcoffea.records.run import FAILED, FINISHED, Environment, Run, RunnerCall
from roastcoffea.redaction import redacted, redacted_values
from roastcoffea.report.live import LiveLine, Progress
from roastcoffea.units import counted


class MetricsCollector(CollectorOf012, Enterable):
    """Measures what runs inside of its `with`: on the cluster of a Dask client, or on this machine.

    The analysis needs no change: while the collector is open, Runner calls are noticed and their chunks are recorded.
    After the `with` (also where it failed) `measurement` has everything. A collector measures once. Ctrl-C while the
    `with` is left takes effect when the measurement is there and the cluster is as it was.

    Parameters
    ----------
    client : distributed.Client, optional
        A connected, synchronous client; without one what runs on this machine is measured, whatever the executor.
    backend : {"dask", "local"} or AbstractMetricsBackend, optional
        Where the analysis runs, or a backend of your own; by default "dask" where there is a client.
    track_workers : bool
        Whether to sample the workers' memory, CPU and tasks.
    worker_tracking_interval : float
        Seconds between samples. What Dask's scheduler knows is sampled at this pace, down to 0.05 s; workers report
        their memory and CPU with heartbeats, each half second at most.
    processor_instance : optional
        Not needed: the hook finds the processor itself.
    live : bool
        Whether a line tells how the run goes on: in a notebook, or in the lowest row of the terminal behind stderr.
    profile : bool
        Whether to sample which functions and lines process() is at, ten times a second.
    everything : bool
        Whether to measure each task of the client that reads, and not only those of a Runner and `measured` functions.
    events : str or callable, optional
        What counts as events in tasks that `everything` measures, as for `measured`.

    Raises
    ------
    ValueError
        Backend "dask" without a client, a client that is not connected, an unknown backend, an interval that is not
        positive, `everything` without a Dask client, or `events` without `everything`.
    TypeError
        An asynchronous client, a backend that is none, `live` that is no bool, or `events` that is neither name nor
        function.

    Examples
    --------
    >>> with MetricsCollector(client) as collector:  # doctest: +SKIP
    ...     output = runner(fileset, processor_instance=processor)
    >>> collector.print_summary()  # doctest: +SKIP
    """

    of_all_contexts = True
    """Whether Runner calls of threads that never had a collector are measured, too."""

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
    ) -> None:
        if not isinstance(live, bool):
            raise TypeError(f"live is True or False, not {live!r}")
        self.profile = profile
        self.client, self.processor_instance = client, processor_instance
        self.track_workers, self.worker_tracking_interval = track_workers, worker_tracking_interval
        self.problems: list[str] = []
        self._interval = (
            checked_interval(worker_tracking_interval, "worker_tracking_interval") if track_workers else None
        )
        self._backend = backend_for(backend, client, carried={"probe": Probe, "call": call_measured})
        self._backend.functions = settings_of(self._backend.kind, everything, events, profile)
        self.backend = self._backend.kind if backend is None else backend
        self.topic = self._backend.name
        """Name of the plugin that takes this collector's records."""
        self._span = RunSpan("roastcoffea", self._backend.name)
        self._calls: list[RunnerCall] = []
        self._functions: list[RunnerCall] = []
        self._asked = AskedItems()
        self._began_calls: list[str] = []
        self._items_unseen = False
        self._chunks_unseen: str | None = None
        self._report: Any = None
        self.custom_metrics: Any = None
        self._id = uuid.uuid4().hex
        self._entered = False
        self.t_start: float | None = None
        """When the with was entered (Unix seconds), and when it had been left."""
        self.t_end: float | None = None
        self._began = math.nan
        self.outside: dict[str, str] = {}
        """What is no part of the run by intention, for the ledgers' certificates."""
        self.paused_at: float | None = None
        """By `time.perf_counter` since when nothing is measured: the run ends then."""
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
        """End all that `__enter__` began, whatever of it fails, and make the measurement."""
        elapsed = (self.paused_at or time.perf_counter()) - self._began
        with reported(self.note, "Runner calls that went on were not recorded", Exception):
            if error is not None:
                end_open_calls(self, error)
        for end in (partial(unwatch, self), self._backend.leave_span, self._leave_span, self._backend.close):
            with reported(self.note, "roastcoffea failed as the collector was left", Exception):
                end()
        with reported(self.note, "the live line could not be taken away", Exception):
            if self._live is not None:
                self._live.stop()
        if self.t_start is None:
            self._why_no_measurement = "there is no measurement: the MetricsCollector could not be entered"
        else:
            self.t_end = self.t_start + elapsed
            self._measure(self.t_start, self.t_end, error)

    def _measure(self, start: float, stop: float, error: BaseException | None) -> None:
        """Make the measurement of what was seen; where that fails, one that tells why."""

        def note(problem: str) -> None:
            self._why_no_measurement = f"there is no measurement: {problem}"
            self.note(problem)

        with reported(note, "roastcoffea failed as it put the records together", Exception):
            self._measurement = Measurement(checked(self._seen(start, stop, error)))
            return
        absent = dict.fromkeys((*TABLES, "asked", "span_metrics"), self.problems[-1])
        with reported(note, "roastcoffea failed as it put the records together", Exception):
            self._measurement = Measurement(self._run(start, stop, error, {}, absent))

    def _progress(self) -> Progress:
        """Progress of the run, from the records received so far."""
        take_new_records()
        asked = {"chunks_asked": self._asked.chunks, "files_asked": self._asked.files}
        return Progress(**asdict(self._backend.received.tally), **asked, workers=self._backend.workers_now())

    def _open(self) -> None:
        span = self._span.__enter__()
        with reported(self.note, "the cluster is not seen", Exception):
            self._backend.open(self._interval, span)
        watch(self)
        self.t_start, self._began = time.time(), time.perf_counter()
        if self._live is not None:
            self._live.start()

    def _leave_span(self) -> None:
        try:
            self._span.__exit__()
        except ValueError:
            self.note("the with was left in another context than it was entered in: its span stays open there")

    # what the hook asks

    def out_of_reach(self, executor: Any) -> str | None:
        """Why what runs on this executor is no part of what the collector sees; None where it is."""
        return None if self._backend.reaches(executor) else self._backend.elsewhere

    def records_came(self, records: bytes) -> None:
        """Take packed records that did not come through a scheduler."""
        self._backend.received.take(records)

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of what tasks need, where they cannot import it."""
        return self._backend.packed_for_tasks(thing)

    def span_ensured(self) -> AbstractContextManager[None]:
        """Context in which tasks are counted in the span of the run."""
        return self._span.ensured()

    def call_began(self, call: str, executor: Any) -> None:
        """Learn the identity of a Runner call that begins, and its executor."""
        self._began_calls.append(call)
        with reported(self.note, "the size of the executor is not known", Exception):
            self._backend.learn_executor(executor)

    def chunks_unseen(self, reason: str) -> None:
        """Learn why the chunks of a Runner call are not recorded."""
        self.note(reason)
        self._chunks_unseen = reason

    def items_asked(self, call: str, items: Sequence[Any]) -> None:
        """Learn what a Runner call asked for: files for preprocessing, or chunks."""
        merged = self._asked.add(call, items)
        if merged:
            self.note(
                f"names of {counted(merged, 'file')} differ from others only in what is masked: they count as one"
            )

    def items_unseen(self) -> None:
        """Learn that it is not known what a Runner call asked for."""
        self._items_unseen = True

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""
        self._calls.append(call)

    def fetch_records(self) -> None:
        """Get the records of Runner calls that have ended from where they are."""
        with reported(self.chunks_unseen, "records could not be brought home after a Runner call", Exception):
            self._backend.drain()

    def note(self, problem: str) -> None:
        """Take note of what could not be delivered."""
        problem = redacted(problem)
        if problem not in self.problems:
            self.problems.append(problem)

    # what is made of it

    def _seen(self, start: float, stop: float, error: BaseException | None) -> Run:
        if not self._backend.was_open:
            absent = dict.fromkeys((*TABLES, "span_metrics"), "the cluster was not seen")
            return self._run(start, stop, error, {}, absent)
        tables: dict[str, Any] = {"asked": self._asked.table()}
        absent = {}
        for name in TABLES:
            with reported(self.note, f"the records of {name} could not be read", Exception):
                if name == "chunks":
                    tables[name] = self._backend.chunks(self._began_calls)
                    self._functions = calls_of_tasks(tables[name])
                elif (name in SAMPLED and self._interval is None) or (name == PROFILE and not self.profile):
                    tables[name] = None
                else:
                    tables[name] = self._backend.table(name, tables.get("chunks"), start, stop)
            if name not in tables:
                absent[name] = self.problems[-1]
        absent = self._backend.absent | absent
        if self._interval is None:
            absent |= dict.fromkeys(SAMPLED, "track_workers=False")
        if not self.profile:
            absent[PROFILE] = "profile=False"
        if self._items_unseen:
            absent["asked"] = "what was asked for was not recorded"
        elif self._functions and not self._calls:
            absent["asked"] = "functions that tasks run do not tell what was asked for"
        with reported(self.note, "records of chunks and tasks could not be compared", Exception):
            absent |= self._reasons_against_chunks(tables["chunks"], tables["asked"])
            if tables.get("tasks") is not None:
                for lack in attempts_without_record(tables["tasks"], tables["chunks"]):
                    self.note(lack)
        return self._run(start, stop, error, tables, absent)

    def _reasons_against_chunks(self, chunks: pa.Table, asked: pa.Table) -> dict[str, str]:
        """Why no number can be made of the records of chunks, where that is so; what they lack is noted."""
        running = len(set(self._began_calls) - {call.id for call in self._calls})
        if running:
            self.chunks_unseen(f"{counted(running, 'Runner call')} still ran when the collector was left")
        if self._chunks_unseen is not None:
            return dict.fromkeys(("chunks", *FROM_CHUNKS), self._chunks_unseen)
        if not (self._calls or self._functions):
            return dict.fromkeys(("chunks", *FROM_CHUNKS), "no Runner call was seen")
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
        with reported(self.note, "the problems that the backend met could not be listed", Exception):
            notes = backend.notes()
        return Run(
            id=self._id,
            name=None,
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
        """What was measured; it is there once the `with` has been left."""
        if self._measurement is None:
            raise RoastcoffeaError(self._why_no_measurement)
        return self._measurement

    def _repr_html_(self) -> str:
        """Page of the measurement, or of where the collector stands."""
        from roastcoffea.report.notebook import html
        from roastcoffea.report.summary import state_of_collector

        if self._measurement is not None:
            return self._measurement._repr_html_()
        state = "It measures what runs now." if self._entered else "It has not been entered yet."
        return html(state_of_collector(state, self.problems))

    def set_coffea_report(self, report: Mapping[str, Any], custom_metrics: Any = None) -> None:
        """Hand over coffea's report; it wins over the one that the hook saw.

        Parameters
        ----------
        report : mapping
            What the Runner returned beside the output with `savemetrics=True`.
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

    def save_measurement(
        self, output_dir: str | Path, measurement_name: str | None = None, overwrite: bool = False
    ) -> Path:
        """Save the measurement as a folder in `output_dir`; give the folder's path.

        Without a name it gets a new one. One that is there is replaced only with `overwrite`.
        """
        return self.measurement.save(output_dir, measurement_name, overwrite)

    def print_summary(self) -> None:
        """Print the metrics as tables."""
        self.measurement.print_summary()

    @property
    def coffea_report(self) -> Any:
        """The report that was set, else that of the last Runner call that had one."""
        if self._report is not None:
            return self._report
        return next((call.report for call in reversed(self._calls) if call.report is not None), None)
