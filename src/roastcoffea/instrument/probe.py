"""Probe around coffea's function for processing a chunk or fetching a file's metadata.

The probe needs only coffea and the standard library, and it does not patch anything. It wraps the function that coffea
passes to the executor. For each attempt, it replaces arguments of the closure in that function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.generations import arguments_of, marker_of_opening, opens_itself, with_arguments
from roastcoffea.instrument.attempt import Attempt, Clocks, columns_of_returned, further
from roastcoffea.instrument.channels import DaskTask, Transport
from roastcoffea.instrument.meter.files import FilesMeter
from roastcoffea.instrument.meter.openings import openings_noticed
from roastcoffea.instrument.meter.tally import READ
from roastcoffea.instrument.shared import Action, Row, made_once
from roastcoffea.instrument.track import OpenChunk, open_chunk
from roastcoffea.interrupts import interrupts_held, raise_if_interrupted
from roastcoffea.log.packing import PROBLEMS, packed_records
from roastcoffea.records.chunks import ERROR, OK, SKIPPED, TRACED
from roastcoffea.redaction import Added, added_patterns, redacted

LOST = "a record was lost on a worker"

COFFEA_HAS: Final = {
    "coffea_bytes_read": "bytesread",
    "coffea_entries": "entries",
    "coffea_process_seconds": "processtime",
    "coffea_columns": "columns",
}
"""Maps chunk record columns to the names of coffea's own metrics."""


@dataclass(eq=False, repr=False)
class Probe:
    """Replacement for coffea's function that returns the same result and raises the same exceptions.

    Parameters
    ----------
    function : callable
        Function that coffea passed to the executor.
    name : str
        Name for the Dask task; Dask derives the task prefix from it.
    call : str, optional
        ID of the Runner call.
    transport : tuple
        Arguments for `Transport`.
    of_files : bool
        Whether the function fetches a file's metadata instead of processing a chunk.
    added : tuple, optional
        Secret patterns added by the user; by default, those added in this process.
    profile : bool
        Whether to sample the stacks of threads that process chunks.
    peak_memory : bool
        Whether to measure the peak memory of chunks and sections, which requires resetting the kernel's peak value.
    """

    function: Action
    name: str
    call: str | None
    transport: tuple[Any, ...] = ((), None, False)
    of_files: bool = False
    added: Added = field(default_factory=added_patterns)
    profile: bool = False
    peak_memory: bool = True

    def __post_init__(self) -> None:
        self.__name__ = self.name
        self.channel = Transport(*self.transport)
        self.complain = partial(self.channel.complain, self.added)

    def __call__(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        watch = None
        with reported(self.complain, LOST, Exception):
            watch = (_FileWatch if self.of_files else _ChunkWatch)(self, item)
        function = self.function if watch is None else watch.watched(self.function)
        try:
            output = function(item, *args, **kwargs)
        except BaseException:
            self._deliver(watch, None, failed=True)
            raise
        return self._deliver(watch, output, failed=False)

    def task(self) -> DaskTask:
        if self.channel.environment is None:
            return DaskTask(self.channel.topics)
        from roastcoffea.instrument.channels import task_of  # Dask workers may lack the package

        return task_of(self.channel.environment)

    def _deliver(self, watch: _FileWatch | None, output: Any, *, failed: bool) -> Any:
        if watch is not None:
            with reported(self.complain, LOST, Exception):
                last = watch.records[-1] if watch.records and not (failed or self.of_files) else {}
                if output is None and last.get("outcome") == ERROR:  # the call itself returned normally
                    last["outcome"] = SKIPPED
                return self.channel.deliver(watch.task, packed_records(watch.records), output, failed=failed)
        return output

    def __str__(self) -> str:
        return self.__name__

    def __dask_tokenize__(self) -> tuple[str, str | None]:
        return ("roastcoffea-probe", self.call)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self.added, self.profile, self.peak_memory
        return Probe, (self.function, self.name, self.call, self.transport, self.of_files, *settings)


class _FileWatch:
    """Replacement for coffea's closure that records all attempts at an item.

    In this class, the item is a file, and each attempt fetches the file's metadata.
    """

    closure: Action

    def __init__(self, probe: Probe, item: Any) -> None:
        self.probe = probe
        self.task = probe.task()
        self.records: list[Row] = []
        self.work = work = item[0] if isinstance(item, tuple) else item
        # a Parquet file has no tree
        names = {"dataset": work.dataset, "file": work.filename, "tree": work.treename}
        place = {name: None if text is None else redacted(str(text), probe.added) for name, text in names.items()}
        self.identity: Row = {**place, "call": probe.call}
        """The item's redacted record columns."""

    def started(self) -> Any:
        return _Opening(self.task, self.probe.added)

    def run(self, attempt: Any, *args: Any, **kwargs: Any) -> Any:
        with open_chunk(attempt.chunk), openings_noticed(attempt.meter, everything=True):
            return self.closure(*args, **kwargs)

    def record(self, attempt: Any, output: Any, error: BaseException | None) -> Row:
        return {**attempt.end(error), **self.identity}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attempt = None
        try:
            with interrupts_held(), reported(self.probe.complain, LOST, Exception):
                attempt = self.started()
            if attempt is None:
                return self.closure(*args, **kwargs)
            output = self.run(attempt, *args, **kwargs)
        except BaseException as error:
            if attempt is not None:
                self._end(attempt, None, error)
            raise
        self._end(attempt, output)
        return output

    def _end(self, attempt: Any, output: Any, error: BaseException | None = None) -> None:
        with reported(self.probe.complain, LOST, Exception):
            self.records.append(self.record(attempt, output, error))

    def watched(self, function: Action) -> Action:
        """Return the function with coffea's closure replaced by this object, inside coffea's retries."""

        def watching(closure: Action) -> Action:
            self.closure = closure
            return self

        return inside_retries(function, watching)


def inside_retries(function: Action, wrap: Callable[[Action], Action]) -> Action:
    """Return the function that coffea passed to the executor with its closure wrapped, inside coffea's retries."""
    if isinstance(function, partial) and len(function.args) > 2 and callable(function.args[2]):
        retries, skipped, closure, *rest = function.args
        return partial(function.func, retries, skipped, wrap(closure), *rest, **function.keywords)
    return wrap(function)


class TraceWatch(_FileWatch):
    """Records coffea's column tracing, which runs on the client before chunks are created."""

    def __init__(self, closure: Action, first: Any, call: str | None, worker: str | None) -> None:
        super().__init__(Probe(closure, "trace", call, of_files=True), first)
        self.closure = closure
        self.identity |= {"worker": worker, "key": None, "run_id": None}

    def record(self, attempt: _Opening, output: Any, error: BaseException | None) -> Row:
        record = super().record(attempt, output, error)
        return record if error is not None else record | {"outcome": TRACED}


class _ChunkWatch(_FileWatch):
    def __init__(self, probe: Probe, item: Any) -> None:
        super().__init__(probe, item)
        work = self.work
        self.identity |= {"uuid": work.fileuuid.hex(), "entry_start": work.entrystart, "entry_stop": work.entrystop}

    def started(self) -> Attempt:
        probe = self.probe
        attempt = Attempt(self.task, probe.added, profile=probe.profile, peak_memory=probe.peak_memory)
        attempt.meter.preloads = bool(getattr(self.work, "preload", None))
        return attempt

    def run(self, attempt: Attempt, item: Any, *args: Any, **kwargs: Any) -> Any:
        item, closure = with_attempt(self.closure, item, attempt)
        return attempt.run_closure(closure, item, *args, **kwargs)

    def record(self, attempt: Attempt, output: Any, error: BaseException | None) -> Row:
        record = super().record(attempt, output, error)
        if record["outcome"] == ERROR:
            return record
        record["events"] = self.work.entrystop - self.work.entrystart
        if record["outcome"] == OK:
            with reported(self.probe.complain, "errors caught by process() are unknown", Exception):
                self._add_caught(attempt, record, output["out"])
            metrics = output.get("metrics") if isinstance(output, dict) else None
            if isinstance(metrics, dict):
                record |= {ours: metrics.get(name) for ours, name in COFFEA_HAS.items()}
        return record

    def _add_caught(self, attempt: Attempt, record: Row, result: Any) -> None:
        """Add records for files that process() could not open and for exceptions that it returned."""
        added, others = self.probe.added, attempt.meter.others
        failed = [] if others is None else others.columns_of_failed()
        for each in failed + columns_of_returned(result, failed, added):
            named = {name: redacted(str(each[name]), added) for name in ("file", "error") if name in each}
            own = {"events": 0} if named.get("file") == record["file"] else {}
            self.records.append(further(record) | each | named | own)


class _Opening:
    """An attempt to fetch a file's metadata."""

    def __init__(self, task: DaskTask, added: Added) -> None:
        self.added = added
        self.meter = meter = FilesMeter()
        self.chunk = OpenChunk(meter.requested)  # otherwise, the thread would appear to belong to an open chunk
        self.chunk.meter = meter
        self.clocks = Clocks(task)

    def end(self, error: BaseException | None) -> Row:
        meter = self.meter
        meter.close()
        unknown = meter.unknown if meter.source else READ  # Arrow's reads of Parquet files are not metered here
        return self.clocks.measured() | {
            "preprocessing": True,
            "bytes_requested": None if "bytes_requested" in unknown else meter.requested(),
            "bytes_transferred": None if "bytes_transferred" in unknown else meter.transferred,
            "source": meter.source,
            **meter.server_columns(),
            "outcome": OK if error is None else ERROR,
            "error": None if error is None else error_text(error, self.added),
            PROBLEMS: [redacted(problem, self.added) for problem in meter.problems],
        }


def with_attempt(closure: Action, item: Any, attempt: Attempt) -> tuple[Any, Action]:
    """Return the item and coffea's closure, with arguments that let the attempt watch them."""
    try:
        given = arguments_of(closure)
        ours, replaced = _with_processor(given, item, attempt)
        if isinstance(given.get("uproot_options"), dict):
            replaced["uproot_options"] = attempt.meter.options(given["uproot_options"])
        elif opens_itself(given):
            attempt.notice_opening()
        if (marker := marker_of_opening(given)) is not None:
            attempt.cache_function, replaced["cache_function"] = marker, attempt.cache
        probed = with_arguments(closure, replaced)
    except Exception as problem:  # noqa: BLE001  (coffea itself reports what is wrong with users' arguments)
        raise_if_interrupted(problem)
        attempt.problems.append(f"a chunk's phases and reads were not recorded: {error_text(problem)}")
        return item, closure
    return ours, probed


def _with_processor(given: Row, item: Any, attempt: Attempt) -> tuple[Any, Row]:
    """Wrap the processor and the checkpointer to watch them; return the item and the arguments to replace.

    The item may contain the processor.
    """
    processor = given.get("processor_instance")
    if processor is None:
        return item, {}
    heavy = isinstance(processor, str) and processor == "heavy"
    processor = item[1] if heavy else processor
    if isinstance(processor, bytes):
        processor = attempt.unpickled(processor)
    kind: Any = made_once(_processor_class)
    of_user = processor.process if isinstance(processor, kind.__base__) else processor
    watched = kind(partial(attempt.process, attempt.sampled(of_user)))
    replaced: Row = {} if heavy else {"processor_instance": watched}
    if (checkpointer := given.get("checkpointer")) is not None:
        kind = made_once(_checkpointer_class)
        ours = isinstance(checkpointer, kind.__base__)
        replaced["checkpointer"] = kind(checkpointer, processor, attempt) if ours else checkpointer
    return (item[0], watched) if heavy else item, replaced


def _processor_class() -> type:
    from coffea.processor import ProcessorABC

    class WatchedProcessor(ProcessorABC):  # type: ignore[misc]
        def __init__(self, process: Callable[[Any], Any]) -> None:
            self._process = process

        def process(self, events: Any) -> Any:
            return self._process(events)

        __call__ = process
        """Up to version 2026.7, coffea assumes that a processor that is not callable is pickled."""

        def postprocess(self, accumulator: Any) -> Any:
            return accumulator

    return WatchedProcessor


def _checkpointer_class() -> type:
    from coffea.processor.checkpointer import CheckpointerABC

    class WatchedCheckpointer(CheckpointerABC):  # type: ignore[misc]
        def __init__(self, inner: Any, processor: Any, attempt: Attempt) -> None:
            self._of_user = inner, processor
            self._attempt = attempt

        def load(self, metadata: Any, processor_instance: Any) -> Any:
            return self._attempt.load(*self._of_user, metadata)

        def save(self, output: Any, metadata: Any, processor_instance: Any) -> None:
            self._attempt.save(*self._of_user, output, metadata)

    return WatchedCheckpointer
