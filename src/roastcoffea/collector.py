"""The context manager that measures an analysis."""

from __future__ import annotations

import copy
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roastcoffea.backends.base import AbstractMetricsBackend, checked_interval
from roastcoffea.backends.hosts import environment_of
from roastcoffea.backends.recorder import TABLES, Recorder, RunSpan
from roastcoffea.backends.registry import backend_for
from roastcoffea.compat import older_keywords
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.instrument.calls import given_name
from roastcoffea.instrument.hook import end_open_calls, take_new_records, unwatch, watch
from roastcoffea.instrument.tasks import CARRIED, settings_of
from roastcoffea.interrupts import Enterable, interrupts_held
from roastcoffea.recording.assembly import BlackBox, Ending, Place, RunRecords, checked_place
from roastcoffea.records.run import FAILED, FINISHED
from roastcoffea.redaction import redacted_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Self

    from roastcoffea.diagnosis import Verdict
    from roastcoffea.measurement import Measurement
    from roastcoffea.metrics import Metrics
    from roastcoffea.report.live import Progress


class _Watcher:
    """Interface through which the hook calls a collector."""

    of_all_contexts = True
    """Whether to also measure Runner calls from threads that never had a collector."""

    def __init__(self, records: RunRecords, backend: Recorder, journal: BlackBox, span: RunSpan) -> None:
        self.topic = backend.name
        self.profile, self.peak_memory, self.note = records.profile, records.peak_memory, records.note
        self.call_began, self.call_runs, self.call_ended = records.call_began, records.call_runs, records.call_ended
        self.items_requested, self.requests_unknown = records.items_requested, records.requests_unknown
        self.chunks_lost = records.chunks_lost
        self.packed_for_tasks, self.step = backend.packed_for_tasks, backend.step
        self.client_steps, self.span_ensured = backend.take_client_steps, span.ensured
        self._backend, self._journal = backend, journal

    def out_of_reach(self, executor: Any) -> str | None:
        """Return why work on this executor cannot be measured, or None if it can be."""
        return None if self._backend.reaches(executor) else self._backend.elsewhere

    def take_records(self, records: bytes) -> None:
        """Store packed records that bypassed the scheduler."""
        self._backend.received.take(records)
        self._journal.records(records)

    def fetch_records(self) -> None:
        with interrupts_held(), reported(self.note, "records could not be fetched after a Runner call", Exception):
            self._backend.drain()  # records fetched earlier are kept, and missing chunks are counted


class MetricsCollector(Enterable):
    """Measure an analysis on a Dask cluster or on this machine.

    Runner calls inside the `with` block are recorded chunk by chunk; the analysis itself does not need to change. After
    the block, even if the analysis failed, the `measurement` attribute holds the result. On Dask, the measurement's
    tables are built when they are first used. A collector can be used only once. If a signal (e.g. from Ctrl-C) arrives
    while the block is being entered or exited, it is handled afterwards.

    Parameters
    ----------
    client : distributed.Client, optional
        A connected, synchronous client. Without a client, the collector measures work on this machine, regardless of
        the executor.
    backend : {"dask", "local"} or AbstractMetricsBackend, optional
        Where the analysis runs, or a custom backend. The default is "dask" if a client is passed, and "local"
        otherwise.
    track_workers : bool
        Whether to sample each worker's memory, CPU usage and tasks.
    worker_tracking_interval : float
        Time between samples in seconds. The state of Dask's scheduler is sampled at this interval, but at most once
        every 0.05 s. Workers report their memory and CPU usage in their heartbeats, at most once every 0.5 s.
    processor_instance : optional
        Rarely needed, because the collector detects the processor.
    live : bool
        Whether to show a progress line in the notebook or in the bottom row of the terminal (on stderr).
    profile : bool
        Whether to profile the functions and lines of process() by taking ten samples per second.
    everything : bool
        Whether to measure all of the client's tasks that read data, not just Runner calls and `measured` functions.
    events : str or callable, optional
        How to count events in tasks that are measured only because of `everything`; see `measured`.
    name : str, optional
        Name of the run, used in its title and as its folder name. By default, it is taken from the
        processors: their `name`, their configuration, or their class.
    journal : path, bool or None
        Folder for the journal. True selects a folder in `$XDG_STATE_HOME` or `~/.local/state`; False or None disables
        the journal. If this process is killed, `roastcoffea recover` can turn the journal into a measurement. The
        journal is deleted when the measurement is saved or discarded.
    peak_memory : bool
        Whether to measure the peak memory of chunks and sections. If enabled, each chunk resets the kernel's memory
        high-water mark for the process, which also affects other monitoring tools.

    Raises
    ------
    ValueError
        If the backend is unknown or is "dask" without a client, if the client is not connected, if the interval is not
        positive, if `everything` is set without a Dask client, if `events` is set without `everything`, or if `name`
        is blank.
    TypeError
        If the client is asynchronous, the backend is invalid, `live` is not a bool, `name` is not a string, `events`
        is neither a name nor a function, or `journal` is not a path.

    Examples
    --------
    >>> with MetricsCollector(client) as collector:  # doctest: +SKIP
    ...     output = runner(fileset, processor_instance=processor)
    >>> collector.print_summary()  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0917  (the order of version 0.1.2, then new parameters)
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
            raise TypeError(f"live must be True or False, not {live!r}")
        self.name = given_name(name)
        self.profile, self.peak_memory = profile, peak_memory
        self.client, self.processor_instance = client, processor_instance
        self.track_workers, self.worker_tracking_interval = track_workers, worker_tracking_interval
        interval = checked_interval(worker_tracking_interval, "worker_tracking_interval") if track_workers else None
        wanted = {"profile": profile, "peak_memory": peak_memory}
        records = self._records = RunRecords(uuid.uuid4().hex, self.name, interval, **wanted)
        self._note = records.note
        self._backend = backend_for(backend, client, carried=CARRIED)
        self._backend.functions = settings_of(self._backend.kind, everything, events, **wanted)
        self.backend = self._backend.kind if backend is None else backend
        checked_place(journal)
        self._journal = BlackBox(records, self._backend, journal)
        self._span = RunSpan("roastcoffea", self._backend.name)
        self._watcher = _Watcher(records, self._backend, self._journal, self._span)
        self._entered = False
        self.t_start: float | None = None
        """Time when the `with` block was entered, in Unix seconds."""
        self.t_end: float | None = None
        """Time when the `with` block was exited, in Unix seconds."""
        self._began = math.nan
        self._paused_at: float | None = None  # end of the run, according to `time.perf_counter`
        self._measurement: Measurement | None = None
        self._ending: Ending | None = None  # set from the end of the run until the measurement is built
        self._making = threading.RLock()
        self._why_no_measurement = "there is no measurement yet: leave the with block of the MetricsCollector first"
        self._live = None
        if live:
            from roastcoffea.report.live import LiveLine

            self._live = LiveLine(self._progress, self._note)

    # the run

    def __enter__(self) -> Self:
        if self._entered:
            raise RoastcoffeaError("this MetricsCollector has already been used; make a new one for each run")
        self._entered = self._is_open = True
        try:
            with interrupts_held():
                self._open()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _leave(self, error: BaseException | None) -> None:
        """Stop everything started by `__enter__`, even after errors."""
        elapsed = (self._paused_at or time.perf_counter()) - self._began
        with reported(self._note, "active Runner calls were not recorded", Exception):
            if error is not None:
                end_open_calls(self._watcher, error)
        for end in (partial(unwatch, self._watcher), self._backend.leave_span, self._leave_span, self._backend.close):
            with reported(self._note, "roastcoffea failed while leaving the collector", Exception):
                end()
        with reported(self._note, "the live line could not be removed", Exception):
            if self._live is not None:
                self._live.stop()
        if self.t_start is None:
            self._why_no_measurement = "there is no measurement: the MetricsCollector could not be entered"
            self._journal.give_up()
        else:
            self.t_end = self.t_start + elapsed
            self._ending = (FINISHED, None) if error is None else (FAILED, error_text(error))
            with reported(self._note, "the journal could not be closed", Exception):
                run = self._records.run_without_tables(self._backend, self.t_start, self.t_end, self._ending)
                self._journal.end(self, run)
            if not self._backend.holds_all:
                self._made()

    def _made(self) -> Measurement | None:
        """Return the measurement, which is built on the first call, or None.

        Building the tables of a long run takes several seconds and gigabytes of memory. It must not delay an analysis
        that does not need the tables yet.
        """
        with self._making:
            if self._ending is not None and self.t_start is not None and self.t_end is not None:
                self._measure(self.t_start, self.t_end, self._ending)
                with interrupts_held():
                    self._ending = None
                    self._journal.hand_on(self, self._measurement or self)
            return self._measurement

    def _measure(self, start: float, stop: float, ending: Ending) -> None:
        """Build the measurement or, if that fails, an empty measurement with the reason."""

        def note(problem: str) -> None:
            self._why_no_measurement = f"there is no measurement: {problem}"
            self._note(problem)

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
        with reported(self._note, "the run's tasks are not counted in a span", Exception):
            if self._backend.kind == "dask":  # other executors do not use spans
                span = self._span.__enter__()
        with reported(self._note, "the run's environment could not be described", Exception):
            self._records.environment = environment_of(())
        with reported(self._note, "there is no journal of the run", Exception):
            self._journal.open()
        with reported(self._note, "the cluster is not recorded", Exception):
            self._backend.open(self._records.interval, span)
        with reported(self._records.chunks_lost, "Runner calls are not recorded", Exception):
            watch(self._watcher)
        self.t_start, self._began = time.time(), time.perf_counter()
        with reported(self._note, "the run's start was not recorded", Exception):
            self._records.started(self.t_start)
        with reported(self._note, "the live line could not be started", Exception):
            if self._live is not None:
                self._live.start()

    def _leave_span(self) -> None:
        try:
            self._span.__exit__()
        except ValueError:
            self._note("the with block was entered in another context, so its span stays open")

    # results

    @property
    def measurement(self) -> Measurement:
        """The measurement, available after the `with` block."""
        found = self._made()
        if found is None:
            raise RoastcoffeaError(self._why_no_measurement)
        return found

    @property
    def problems(self) -> list[str]:
        """Measurement problems so far."""
        self._made()
        return self._records.problems

    @property
    def verdict(self) -> Verdict:
        """Findings about the run; see `Measurement.verdict`."""
        return self.measurement.verdict

    def report(
        self, path: str | PathLike[str], *, every_task: bool = False, overwrite: bool = False, share: bool = False
    ) -> Path:
        """Write the run's page and return its path; see `Measurement.report`."""
        return self.measurement.report(path, every_task=every_task, overwrite=overwrite, share=share)

    def plot(
        self,
        name: str,
        ax: Axes | None = None,
        *,
        title: str | None = None,
        figsize: tuple[float, float] | None = None,
        dark: bool = False,
        path: str | PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> tuple[Figure, Axes]:
        """Draw the named plot, e.g. "time_ledger"; see `Measurement.plot`."""
        return self.measurement.plot(name, ax, title=title, figsize=figsize, dark=dark, path=path, overwrite=overwrite)

    def save(
        self, path: str | PathLike[str], name: str | None = None, overwrite: bool = False, *, share: bool = False
    ) -> Path:
        """Save the measurement as `path/name` and return that path.

        See `Measurement.save`.
        """
        return self.measurement.save(path, name, overwrite, share=share)

    def print_summary(self, *, all: bool = False, group: str | None = None) -> None:  # noqa: A002
        """Print a summary of the measurement; see `Measurement.print_summary`."""
        self.measurement.print_summary(all=all, group=group)

    def _repr_html_(self) -> str:
        from roastcoffea.report.summary import state_of_collector
        from roastcoffea.sheets.markup import html

        found = self._made()
        if found is not None:
            return found._repr_html_()
        state = "It is measuring." if self._entered else "The `with` block has not been entered yet."
        return html(state_of_collector(state, self.problems))

    def set_coffea_report(self, report: Mapping[str, Any], custom_metrics: Any = None) -> None:
        """Set coffea's report, overriding the report in the Runner's output.

        Parameters
        ----------
        report : mapping
            The report returned, along with the output, by a Runner with `savemetrics=True`.
        custom_metrics : mapping, optional
            Totals to use instead of coffea's totals, in the form
            `{dataset: {"entries", "duration", "performance_counters": {"num_requested_bytes"}}}`.
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
        """Totals that override the totals in coffea's report."""
        return self._records.custom_metrics

    @property
    def coffea_report(self) -> Any:
        """coffea's report: set explicitly, or from the last Runner call with a report."""
        if self._records.report is not None:
            return self._records.report
        return next((call.report for call in reversed(self._records.calls) if call.report is not None), None)

    # names from version 0.1.2

    def get_metrics(self) -> Metrics:
        """Metric values by name; missing metrics raise a KeyError with the reason.

        The values are the same as in `measurement.metrics`, except that `sections` has the form used in version 0.1.2,
        {section: {amount: value}}, and covers only chunks that returned a result.
        """
        from roastcoffea.metrics.chunks import OlderMetrics

        return OlderMetrics(self.measurement.metrics.evaluator)

    metrics = property(get_metrics)

    @property
    def processor_name(self) -> str | None:
        """Class name of the processor passed in, or of the last processor to run."""
        if self.processor_instance is not None:
            return type(self.processor_instance).__name__
        calls = () if self.t_end is None else self.measurement.run.calls
        return calls[-1].processor if calls else None

    @property
    def chunk_metrics(self) -> list[dict[str, Any]]:
        """One dict per chunk with a result; `measurement.chunks` lists all attempts."""
        return list(self.metrics["raw_chunk_metrics"])

    @property
    def tracking_data(self) -> Mapping[str, Any] | None:
        """Worker samples by field and worker, or None if workers were not sampled."""
        data: Mapping[str, Any] | None = self.metrics.get("tracking_data")
        return data

    @property
    def span_metrics(self) -> Mapping[tuple[Any, ...], float]:
        """Cumulative metrics for the run's span, keyed by tuple; may be empty."""
        return self.measurement.run.span_metrics or {}

    def extract_metrics_from_output(self, output: Any) -> None:
        """Remove version 0.1.2's metrics entry from an output, in place."""
        if isinstance(output, dict):
            output.pop("__roastcoffea_metrics__", None)

    @older_keywords(output_dir="path")
    def save_measurement(
        self, path: str | PathLike[str], measurement_name: str | None = None, overwrite: bool = False
    ) -> Path:
        """Save the measurement; an older name for `save`."""
        return self.measurement.save(path, measurement_name, overwrite)
