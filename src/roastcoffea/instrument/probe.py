"""The probe around coffea's function for a chunk, or for a file's metadata; it needs coffea and the standard library.

It patches nothing. It wraps the function that coffea hands to the executor, and replaces arguments of coffea's closure
in it, once for each attempt that coffea makes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.attempt import Attempt, Clocks
from roastcoffea.instrument.channels import DaskTask, WaysHome
from roastcoffea.instrument.meter.meter import Meter
from roastcoffea.instrument.shared import made_once
from roastcoffea.log.packing import PROBLEMS, packed_records
from roastcoffea.records.chunks import ERROR, OK, SKIPPED
from roastcoffea.redaction import Added, added_patterns, redacted

LOST = "a record was lost on a worker"


class Probe:
    """Callable in place of coffea's function; its result and its exceptions are those of the function.

    Parameters
    ----------
    function : callable
        What coffea handed to the executor.
    name : str
        Name for the Dask task; its prefix derives from it.
    call : str, optional
        Identity of the Runner call.
    ways : tuple
        Topics, spool and whether in the output: the ways home of the records, see `WaysHome`.
    of_files : bool
        The function fetches metadata of a file, and does not process a chunk.
    added : tuple, optional
        Patterns of secrets that the user has added; by default those of this process.
    """

    def __init__(  # noqa: PLR0917  (what travels is given by place)
        self,
        function: Callable[..., Any],
        name: str,
        call: str | None,
        ways: tuple[tuple[str, ...], str | None, bool] = ((), None, False),
        of_files: bool = False,
        added: Added | None = None,
    ) -> None:
        self.function = function
        self.call = call
        self.home = WaysHome(*ways)
        self.of_files = of_files
        self.added = added_patterns() if added is None else added
        self.__name__ = name

    def __call__(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self._watch(item)
        function = self.function if watch is None else watch.watched(self.function)
        try:
            output = function(item, *args, **kwargs)
        except BaseException:
            self._deliver(watch, None, failed=True)
            raise
        if watch is not None:
            watch.gave(output)
        return self._deliver(watch, output, failed=False)

    def _watch(self, item: Any) -> _Watch | None:
        with reported(self._complain, LOST, Exception):
            watch = _FileWatch if self.of_files else _ChunkWatch
            return watch(item, self.call, self.home.task(), self._complain, self.added)
        return None

    def _deliver(self, watch: _Watch | None, output: Any, *, failed: bool) -> Any:
        if watch is not None:
            with reported(self._complain, LOST, Exception):
                records = packed_records(watch.records)
                return self.home.deliver(watch.task, records, output, failed=failed)
        return output

    def _complain(self, problem: str) -> None:
        problem = redacted(problem, self.added)
        logging.getLogger(__name__).warning(problem)
        self.home.tell({"problem": problem})

    def __str__(self) -> str:
        return self.__name__

    def __dask_tokenize__(self) -> tuple[str, str | None]:
        return ("roastcoffea-probe", self.call)

    def __reduce__(self) -> tuple[Any, ...]:
        home = self.home
        ways = (home.topics, home.spool, home.in_output)
        return Probe, (self.function, self.__name__, self.call, ways, self.of_files, self.added)


class _Watch:
    """The attempts that coffea makes at one item, in one call of its function; it stands in for coffea's closure."""

    closure: Callable[..., Any]

    def __init__(
        self, item: Any, call: str | None, task: DaskTask, complain: Callable[[str], None], added: Added
    ) -> None:
        self.complain = complain
        self.added = added
        self.task = task
        self.records: list[dict[str, Any]] = []
        self.identity = self.identified(item[0] if isinstance(item, tuple) else item) | {"call": call}

    def identified(self, work: Any) -> dict[str, Any]:
        """What the records say of the item itself."""
        raise NotImplementedError

    def place(self, work: Any) -> dict[str, Any]:
        """Dataset, file and tree of the item, without secrets; a Parquet file has no tree."""
        names = {"dataset": work.dataset, "file": work.filename, "tree": work.treename}
        return {column: None if name is None else redacted(str(name), self.added) for column, name in names.items()}

    def begun(self) -> Any:
        """An attempt that begins."""
        raise NotImplementedError

    def run(self, attempt: Any, *args: Any, **kwargs: Any) -> Any:
        """What coffea's closure gives, with the attempt's probes in it."""
        raise NotImplementedError

    def record(self, attempt: Any, output: Any, error: BaseException | None = None) -> dict[str, Any]:
        """Record of an attempt that has ended."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attempt = None
        with reported(self.complain, LOST, Exception):
            attempt = self.begun()
        if attempt is None:
            return self.closure(*args, **kwargs)
        try:
            output = self.run(attempt, *args, **kwargs)
        except BaseException as error:
            self._end(attempt, None, error)
            raise
        self._end(attempt, output)
        return output

    def _end(self, attempt: Any, output: Any, error: BaseException | None = None) -> None:
        with reported(self.complain, LOST, Exception):
            self.records.append(self.record(attempt, output, error))

    def gave(self, output: Any) -> None:
        """Learn what the whole call gave."""

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, with coffea's closure watched inside of its automatic retries."""
        if isinstance(function, partial) and len(function.args) > 2 and callable(function.args[2]):
            retries, skipped, self.closure, *rest = function.args
            return partial(function.func, retries, skipped, self, *rest, **function.keywords)
        self.closure = function
        return self


class _ChunkWatch(_Watch):
    """Watches attempts at a chunk."""

    def identified(self, work: Any) -> dict[str, Any]:
        self.events = work.entrystop - work.entrystart
        return self.place(work) | {
            "uuid": work.fileuuid.hex(),
            "entry_start": work.entrystart,
            "entry_stop": work.entrystop,
        }

    def begun(self) -> Attempt:
        return Attempt(self.task, self.added)

    def run(self, attempt: Attempt, item: Any, *args: Any, **kwargs: Any) -> Any:
        item, replaced = _replaced(self.closure, item, attempt)
        with attempt.current():
            return self.closure(item, *args, **(kwargs | replaced))

    def record(self, attempt: Attempt, output: Any, error: BaseException | None = None) -> dict[str, Any]:
        record = attempt.end(error) | self.identity
        if record["outcome"] != ERROR:
            record["events"] = self.events
        return record | _coffea_metrics(output) if record["outcome"] == OK else record

    def gave(self, output: Any) -> None:
        """An attempt that failed, and after which the call gives nothing, was skipped."""
        if output is None and self.records and self.records[-1]["outcome"] == ERROR:
            self.records[-1]["outcome"] = SKIPPED


class _FileWatch(_Watch):
    """Watches attempts to fetch the metadata of a file."""

    def identified(self, work: Any) -> dict[str, Any]:
        return self.place(work)

    def begun(self) -> _Opening:
        return _Opening(self.task, self.closure, self.added)

    def run(self, attempt: _Opening, *args: Any, **kwargs: Any) -> Any:
        return attempt.watched(*args, **kwargs)

    def record(self, attempt: _Opening, output: Any, error: BaseException | None = None) -> dict[str, Any]:
        return self.identity | attempt.end(None if error is None else error_text(error, self.added))


class _Opening:
    """One attempt to fetch the metadata of a file."""

    def __init__(self, task: DaskTask, closure: Callable[..., Any], added: Added) -> None:
        self.added = added
        self.meter = Meter()
        self.watched = _through_meter(closure, self.meter)
        self.clocks = Clocks(task)

    def end(self, error: str | None) -> dict[str, Any]:
        """Close everything; give the record."""
        meter = self.meter
        meter.close()
        return self.clocks.measured() | {
            "preprocessing": True,
            "bytes_requested": meter.requested(),
            "bytes_transferred": None
            if "bytes_transferred" in meter.unknown or not meter.source
            else meter.transferred,
            "source": meter.source,
            "outcome": OK if error is None else ERROR,
            "error": error,
            PROBLEMS: [redacted(problem, self.added) for problem in meter.problems],
        }


def _through_meter(closure: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    """coffea's fetcher of metadata with other options for uproot: its last bound argument."""
    if isinstance(closure, partial) and closure.args and isinstance(closure.args[-1], dict):
        *others, options = closure.args
        return partial(closure.func, *others, meter.options(options), **closure.keywords)
    return closure


def _coffea_metrics(output: Any) -> dict[str, Any]:
    metrics = output.get("metrics") if isinstance(output, dict) else None
    if not isinstance(metrics, dict):
        return {}
    return {
        "coffea_bytes_read": metrics.get("bytesread"),
        "coffea_entries": metrics.get("entries"),
        "coffea_process_seconds": metrics.get("processtime"),
        "coffea_columns": metrics.get("columns"),
    }


def _replaced(closure: Callable[..., Any], item: Any, attempt: Attempt) -> tuple[Any, dict[str, Any]]:
    """The item, and arguments of coffea's closure that take the attempt's probes in; where that fails, as they were."""
    given = closure.keywords if isinstance(closure, partial) else {}
    try:
        item, replaced = _with_processor(given, item, attempt)
        if isinstance(given.get("uproot_options"), dict):
            replaced["uproot_options"] = attempt.meter.options(given["uproot_options"])
        if callable(given.get("cache_function")):
            attempt.cache_function = given["cache_function"]
            replaced["cache_function"] = attempt.cache
    except Exception as problem:  # noqa: BLE001  (coffea tells the user what is wrong with his own arguments)
        attempt.problems.append(f"the inside of a chunk was not seen: {error_text(problem)}")
        return item, {}
    return item, replaced


def _with_processor(given: dict[str, Any], item: Any, attempt: Attempt) -> tuple[Any, dict[str, Any]]:
    """The item, which may carry the processor, and the arguments in which processor and checkpointer are watched."""
    processor = given.get("processor_instance")
    if processor is None:
        return item, {}
    heavy = isinstance(processor, str) and processor == "heavy"
    processor = _unpacked(item[1] if heavy else processor)
    watched = _watched_processor(processor, attempt)
    replaced: dict[str, Any] = {} if heavy else {"processor_instance": watched}
    if given.get("checkpointer") is not None:
        replaced["checkpointer"] = _watched_checkpointer(given["checkpointer"], processor, attempt)
    return (item[0], watched) if heavy else item, replaced


def _unpacked(processor: Any) -> Any:
    """The processor, out of the form in which coffea sends it."""
    if not isinstance(processor, bytes):
        return processor
    import cloudpickle
    import lz4.frame

    return cloudpickle.loads(lz4.frame.decompress(processor))


def _watched_processor(processor: Any, attempt: Attempt) -> Any:
    watched = made_once(_processor_class)
    of_coffea: Any = watched.__base__
    return watched(processor.process if isinstance(processor, of_coffea) else processor, attempt)


def _watched_checkpointer(checkpointer: Any, processor: Any, attempt: Attempt) -> Any:
    from coffea.processor.checkpointer import CheckpointerABC

    if not isinstance(checkpointer, CheckpointerABC):
        return checkpointer
    return made_once(_checkpointer_class)(checkpointer, processor, attempt)


def _processor_class() -> type:
    from coffea.processor import ProcessorABC

    class WatchedProcessor(ProcessorABC):  # type: ignore[misc]
        def __init__(self, of_user: Callable[[Any], Any], attempt: Attempt) -> None:
            self._of_user = of_user
            self._attempt = attempt

        def process(self, events: Any) -> Any:
            return self._attempt.process(self._of_user, events)

        __call__ = process
        """Until 2026.7 coffea takes what cannot be called for packed."""

        def postprocess(self, accumulator: Any) -> Any:
            return accumulator

    return WatchedProcessor


def _checkpointer_class() -> type:
    from coffea.processor.checkpointer import CheckpointerABC

    class WatchedCheckpointer(CheckpointerABC):  # type: ignore[misc]
        def __init__(self, inner: Any, processor: Any, attempt: Attempt) -> None:
            self._inner = inner
            self._processor = processor
            self._attempt = attempt

        def load(self, metadata: Any, processor_instance: Any) -> Any:
            return self._attempt.load(self._inner, metadata, self._processor)

        def save(self, output: Any, metadata: Any, processor_instance: Any) -> None:
            self._attempt.save(self._inner, output, metadata, self._processor)

    return WatchedCheckpointer
