"""The context manager around an analysis: it opens the probes, closes them, and makes one Run."""

from __future__ import annotations

import copy
import math
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.dask import DaskMetricsBackend
from roastcoffea.backends.local import LocalMetricsBackend
from roastcoffea.backends.spans import RunSpan
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.instrument.hook import end_open_calls, take_new_records, unwatch, watch
from roastcoffea.instrument.probe import Probe
from roastcoffea.interrupts import exit_in_any_case, uninterrupted
from roastcoffea.log.received import row_codes
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.checks import checked, with_report
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.asked import ASKED_COLUMNS
from roastcoffea.records.chunks import ERROR
from roastcoffea.records.run import FAILED, FINISHED, Environment, Run, RunnerCall
from roastcoffea.records.tasks import PROCESSOR
from roastcoffea.redaction import redacted, redacted_each, redacted_values
from roastcoffea.report.live import LiveLine, Progress

VERSIONS_OF = ("roastcoffea", "coffea", "awkward", "uproot", "dask", "distributed", "numpy")
TABLES = ("chunks", "branch_reads", "sections", "preprocessing", "tasks", "samples", "lifetimes", "pauses")
FROM_CHUNKS = ("branch_reads", "sections")
"""Tables that hold parts of the records of chunks."""

ATTEMPT = ["key", "run_id"]
"""What identifies an attempt of a Dask task."""

NO_RUN = -(2**63)
"""Stands for a run_id that is not known."""

EQUAL_CHUNKS = "equal to another chunk (a file that is listed twice), one task for Dask, twice in coffea's report"

OLD_OUTPUT_KEY = "__roastcoffea_metrics__"


class MetricsCollector:
    """Measures what runs inside of its `with`: on the cluster of a Dask client, or on this machine.

    The analysis needs no change: while the collector is open, Runner calls are noticed and their chunks are recorded.
    After the `with` (also where it failed) `measurement` has everything. A collector measures once. Ctrl-C while the
    `with` is left takes effect when the measurement is there and the cluster is as it was.

    Parameters
    ----------
    client : distributed.Client, optional
        A connected, synchronous client; without one what runs on this machine is measured, whatever the executor.
    backend : {"dask", "local"}, optional
        Where the analysis runs; by default "dask" where there is a client.
    track_workers : bool
        Whether to sample the workers' memory, CPU and tasks.
    worker_tracking_interval : float
        Seconds between samples; workers report less often than each half second.
    processor_instance : optional
        Not needed: the hook finds the processor itself.
    live : bool
        Whether a line tells how the run goes on: in a notebook, or in the lowest row of the terminal behind stderr.

    Raises
    ------
    ValueError
        Backend "dask" without a client, a client that is not connected, an unknown backend, an interval that is not
        positive.
    TypeError
        An asynchronous client.

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
        backend: str | None = None,
        track_workers: bool = True,
        worker_tracking_interval: float = 1.0,
        processor_instance: Any = None,
        live: bool = False,
    ) -> None:
        self.processor_instance = processor_instance
        self.problems: list[str] = []
        self._interval = _checked_interval(worker_tracking_interval) if track_workers else None
        self._backend = _backend(client, backend)
        self._span = RunSpan("roastcoffea", self._backend.name)
        self._calls: list[RunnerCall] = []
        self._asked: list[pa.Table] = [arrow_schema(ASKED_COLUMNS).empty_table()]
        self._chunks_asked = self._files_asked = 0
        self._began_calls: list[str] = []
        self._items_unseen = False
        self._chunks_unseen: str | None = None
        self._report: Any = None
        self._custom: Any = None
        self._id = uuid.uuid4().hex
        self._entered = self._left = False
        self._awaited_end: Any = None
        self._start: float | None = None
        self._began = math.nan
        self._measurement: Measurement | None = None
        self._why_no_measurement = "there is no measurement yet: leave the with of the MetricsCollector first"
        self._live = LiveLine(self._progress, self.note) if live else None

    # the run

    def __enter__(self) -> Self:
        if self._entered:
            text = "this MetricsCollector has been used already; make a new one for each run"
            raise RoastcoffeaError(text)
        self._entered = True
        try:
            self._open()
        except BaseException as error:
            uninterrupted(partial(self._leave, error))
            raise
        return self

    @exit_in_any_case
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        uninterrupted(partial(self._leave, error))

    @property
    def _is_open(self) -> bool:
        return self._entered and not self._left

    def _leave(self, error: BaseException | None) -> None:
        """End all that `__enter__` began, whatever of it fails, and make the measurement."""
        if self._left:
            return
        self._left, self._awaited_end = True, None
        elapsed = time.perf_counter() - self._began
        with reported(self.note, "Runner calls that went on were not recorded", Exception):
            if error is not None:
                end_open_calls(self, error)
        for end in (partial(unwatch, self), self._leave_span, self._backend.close):
            with reported(self.note, "roastcoffea failed as the collector was left", Exception):
                end()
        with reported(self.note, "the live line could not be taken away", Exception):
            if self._live is not None:
                self._live.stop()
        if self._start is None:
            self._why_no_measurement = "there is no measurement: the MetricsCollector could not be entered"
        else:
            self._measure(self._start, self._start + elapsed, error)

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
        """How far the run has come, as far as records have come home."""
        take_new_records()
        tally = self._backend.received.tally
        return Progress(
            chunks=tally.chunks,
            chunks_asked=self._chunks_asked,
            files=tally.files,
            files_asked=self._files_asked,
            failed=tally.failed,
            events=tally.events,
            bytes=tally.bytes,
            workers=self._backend.workers_now(),
        )

    def _open(self) -> None:
        span = self._span.__enter__()
        try:
            self._backend.open(self._interval, span)
        except Exception as problem:  # noqa: BLE001  (the analysis must run where it cannot be measured)
            self.note(f"the cluster is not seen: {error_text(problem)}")
        watch(self)
        self._start, self._began = time.time(), time.perf_counter()
        if self._live is not None:
            self._live.start()

    def _leave_span(self) -> None:
        try:
            self._span.__exit__()
        except ValueError:
            self.note("the with was left in another context than it was entered in: its span stays open there")

    # what the hook asks

    @property
    def topic(self) -> str:
        """Name of the plugin that takes this collector's records."""
        return self._backend.name

    def out_of_reach(self, executor: Any) -> str | None:
        """Why what runs on this executor is no part of what the collector sees; None where it is."""
        if self._backend.reaches(executor):
            return None
        if self._backend.kind == "local":
            return "it runs on a Dask cluster, whose client the collector must be given: MetricsCollector(client)"
        return "it does not run on the cluster of the collector's client"

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
            self._backend.saw_executor(executor)

    def chunks_unseen(self, reason: str) -> None:
        """Learn why the chunks of a Runner call are not recorded."""
        self.note(reason)
        self._chunks_unseen = reason

    def items_asked(self, call: str, items: Sequence[Any]) -> None:
        """Learn what a Runner call asked for: files for preprocessing, or chunks."""
        uuids = [getattr(item, "fileuuid", None) for item in items]
        chunks = sum(hasattr(item, "entrystart") for item in items)
        self._chunks_asked += chunks
        self._files_asked += len(items) - chunks
        files = [str(item.filename) for item in items]
        clean_files = redacted_each(files)
        merged = len(set(files)) - len(set(clean_files))
        if merged:
            self.note(f"{merged} file(s) differ from others only in what is masked in their names, and count as one")
        columns = {
            "call": [call] * len(items),
            "dataset": redacted_each(str(item.dataset) for item in items),
            "file": clean_files,
            "tree": redacted_each(None if item.treename is None else str(item.treename) for item in items),
            "uuid": [None if uuid is None else uuid.hex() for uuid in uuids],
            "entry_start": [getattr(item, "entrystart", None) for item in items],
            "entry_stop": [getattr(item, "entrystop", None) for item in items],
        }
        self._asked.append(pa.table(columns, schema=arrow_schema(ASKED_COLUMNS)))

    def items_unseen(self) -> None:
        """Learn that it is not known what a Runner call asked for."""
        self._items_unseen = True

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""
        self._calls.append(call)

    def fetch_records(self) -> None:
        """Get the records of Runner calls that have ended from where they are."""
        try:
            self._backend.drain()
        except Exception as problem:  # noqa: BLE001  (the analysis must go on)
            self.chunks_unseen(f"records could not be brought home after a Runner call: {error_text(problem)}")

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
        tables: dict[str, Any] = {"asked": pa.concat_tables(self._asked)}
        absent = {}
        for name in TABLES:
            with reported(self.note, f"the records of {name} could not be read", Exception):
                tables[name] = self._table(name, start, stop, tables.get("chunks"))
            if name not in tables:
                absent[name] = self.problems[-1]
        absent = self._backend.absent | absent
        if self._interval is None:
            absent["samples"] = "track_workers=False"
        if self._items_unseen:
            absent["asked"] = "what was asked for was not recorded"
        with reported(self.note, "records of chunks and tasks could not be compared", Exception):
            absent |= self._reasons_against_chunks(tables["chunks"], tables["asked"])
            if tables.get("tasks") is not None:
                self._note_attempts_without_record(tables["tasks"], tables["chunks"])
        return self._run(start, stop, error, tables, absent)

    def _table(self, name: str, start: float, stop: float, chunks: pa.Table | None) -> pa.Table | None:
        backend = self._backend
        if name == "chunks":
            backend.saw_chunks(backend.received.preprocessing())
            chunks = backend.received.chunks(set(self._began_calls))
            backend.saw_chunks(chunks)
            return chunks
        if name in FROM_CHUNKS:
            return None if chunks is None else getattr(backend.received, name)(chunks)
        if name == "preprocessing":
            return backend.received.preprocessing()
        if name == "tasks":
            return backend.tasks()
        if name in ("lifetimes", "pauses"):
            return getattr(backend, name)(start, stop)
        return backend.samples() if self._interval is not None else None

    def _reasons_against_chunks(self, chunks: pa.Table, asked: pa.Table) -> dict[str, str]:
        """Why no number can be made of the records of chunks, where that is so; what they lack is noted."""
        running = len(set(self._began_calls) - {call.id for call in self._calls})
        if running:
            self.chunks_unseen(f"{running} Runner call(s) still ran when the collector was left")
        if self._chunks_unseen is not None:
            return dict.fromkeys(("chunks", *FROM_CHUNKS), self._chunks_unseen)
        if not self._calls:
            return dict.fromkeys(("chunks", *FROM_CHUNKS), "no Runner call was seen")
        self._note_chunks_without_record(chunks, asked)
        return {}

    def _note_chunks_without_record(self, chunks: pa.Table, asked: pa.Table) -> None:
        recorded = _ended_chunks(chunks)
        for call in self._calls:
            lacking = (call.chunks or 0) - recorded.get(call.id, 0)
            if call.outcome == FINISHED and lacking > 0:
                equal = min(lacking, _equal_chunks(asked, call.id)) if self._backend.kind == "dask" else 0
                self.note(
                    f"{lacking} of {call.chunks} chunks have no record of their own: "
                    f"{'; '.join(self._reasons_for_lack(equal, lacking - equal))}"
                )

    def _reasons_for_lack(self, equal: int, others: int) -> Iterator[str]:
        """Why chunks have no record: those that are equal to another one, and the others."""
        if equal:
            yield f"{EQUAL_CHUNKS}: {equal}"
        dropped, refused = self._backend.dropped.get("chunks", 0), self._backend.refused
        if others and dropped:
            yield f"records that were dropped on the scheduler: {dropped}"
        if others and refused:
            yield f"entries of the scheduler's log that were refused: {refused}"
        if others > dropped + refused:
            yield f"for an unknown reason: {others - dropped - refused}"

    def _note_attempts_without_record(self, tasks: pa.Table, chunks: pa.Table) -> None:
        attempts = tasks.select([*ATTEMPT, "outcome"]).filter(pc.equal(tasks["kind"], PROCESSOR))
        lacking = attempts["outcome"].filter(pa.array(~_are_recorded(attempts, chunks.select(ATTEMPT))))
        for count in lacking.value_counts().to_pylist():
            self.note(
                f"{count['counts']} attempt(s) of chunks left no record (the task's outcome: {count['values']}): "
                "the sums over chunks lack what they used"
            )

    def _run(
        self,
        start: float,
        stop: float,
        error: BaseException | None,
        tables: dict[str, Any],
        absent: dict[str, str],
    ) -> Run:
        backend = self._backend
        environment, notes = Environment(versions={}, client_host=None), []
        with reported(self.note, "the environment of the run could not be described", Exception):
            environment = Environment(versions=_versions(), client_host=socket.gethostname(), hosts=backend.hosts)
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
            calls=tuple(self._calls),
            **tables,
            span_metrics=backend.span_metrics,
            span_metrics_per_worker=backend.span_metrics_per_worker,
            coffea_report=self._report,
            custom_metrics=self._custom,
            attempts=backend.attempts,
            scheduler_clock_offset=backend.clock_offset,
            dropped=backend.dropped,
            absent=redacted_values(absent),
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
                text = f"set_coffea_report: {name} must be a mapping, not {type(value).__name__}"
                raise TypeError(text)
        report, custom_metrics = redacted_values(copy.deepcopy((report, custom_metrics)))
        self._report, self._custom = report, custom_metrics
        if self._measurement is not None:
            self._measurement = Measurement(with_report(self._measurement.run, report, custom_metrics))

    def get_metrics(self) -> Mapping[str, Any]:
        """Values of the metrics under their names; one that is missing raises a KeyError with the reason."""
        return self.measurement.metrics

    metrics = property(get_metrics)

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

    @property
    def chunk_metrics(self) -> list[dict[str, Any]]:
        """One dict for each chunk that gave a result; `measurement.chunks` has every attempt."""
        return list(self.metrics["raw_chunk_metrics"])

    @property
    def tracking_data(self) -> Mapping[str, Any] | None:
        """Samples of the workers by field and worker; None where they were not sampled."""
        data: Mapping[str, Any] | None = self.metrics.get("tracking_data")
        return data

    @property
    def span_metrics(self) -> Mapping[tuple[Any, ...], float]:
        """The span's cumulative metrics under tuple keys; empty where there are none."""
        return self.measurement.run.span_metrics or {}

    def extract_metrics_from_output(self, output: Any) -> None:
        """Take what older versions left in an output out of it, in place."""
        if isinstance(output, dict):
            output.pop(OLD_OUTPUT_KEY, None)


def _ended_chunks(chunks: pa.Table) -> dict[str, int]:
    """Number of chunks that have a record of their end, by Runner call; attempts of one task are one chunk."""
    ended = pc.fill_null(pc.not_equal(chunks["outcome"], ERROR), True)
    counts = {row["values"]: row["counts"] for row in chunks["call"].filter(ended).value_counts().to_pylist()}
    tried_again = chunks["key"].filter(pc.greater(chunks["attempt"], 1)).drop_null()
    if len(tried_again):
        of_these = pc.is_in(chunks["key"], tried_again.combine_chunks())
        again = chunks.select(["call", "key"]).filter(pc.and_(ended, of_these)).group_by("call")
        for row in again.aggregate([("key", "count"), ("key", "count_distinct")]).to_pylist():
            counts[row["call"]] -= row["key_count"] - row["key_count_distinct"]
    return counts


def _equal_chunks(asked: pa.Table, call: str) -> int:
    """How many of the chunks that a Runner call asked for equal another one of it."""
    chunks = asked.filter(pc.and_(pc.equal(asked["call"], call), pc.is_valid(asked["entry_start"])))
    codes = row_codes(chunks.select(["file", "entry_start"]))
    in_order = np.sort(codes)
    # most chunks can be told from all others by file and entry alone
    alike = chunks.filter(pa.array(np.isin(codes, in_order[1:][in_order[1:] == in_order[:-1]])))
    return len(alike) - len(alike.group_by(alike.column_names, use_threads=False).aggregate([]))


def _are_recorded(attempts: pa.Table, records: pa.Table) -> npt.NDArray[np.bool_]:
    """For each attempt of a task, whether a record has its key and run_id; null equals null."""
    if not len(records):
        return np.zeros(len(attempts), np.bool_)
    wanted, known = (pc.fill_null(table["run_id"], NO_RUN).to_numpy() for table in (attempts, records))
    order = np.argsort(known)
    first = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    same_key = pc.equal(attempts["key"], records["key"].combine_chunks().take(pa.array(first)))
    recorded: npt.NDArray[np.bool_] = (known[first] == wanted) & pc.fill_null(same_key, False).to_numpy()
    # nearly always one record has the run_id; the others are compared as a whole
    others = np.flatnonzero(~recorded)
    if len(others):
        near = records.filter(pa.array(np.isin(known, wanted[others])))
        recorded[others] = _are_among(attempts.select(ATTEMPT).take(pa.array(others)), near)
    return recorded


def _are_among(rows: pa.Table, others: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row, whether another table has it; null equals null."""
    codes = row_codes(pa.concat_tables([rows, others]))
    return np.isin(codes[: len(rows)], codes[len(rows) :])


def _backend(client: Any, backend: str | None) -> AbstractMetricsBackend:
    if backend not in (None, "dask", "local"):
        text = f'unknown backend {backend!r}; there are "dask" and "local"'
        raise ValueError(text)
    if backend == "local" or (backend is None and client is None):
        return LocalMetricsBackend()
    if client is None:
        text = 'the backend "dask" needs a distributed.Client: MetricsCollector(client)'
        raise ValueError(text)
    return DaskMetricsBackend(client, carried=Probe)


def _checked_interval(interval: float) -> float:
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not (number and math.isfinite(interval) and interval > 0):
        text = f"worker_tracking_interval must be a positive number of seconds, not {interval!r}"
        raise ValueError(text)
    return float(interval)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    versions = {"python": python_version()}
    for package in VERSIONS_OF:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
