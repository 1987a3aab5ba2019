"""The probe around coffea's function for one chunk; it runs on workers with coffea and the standard library alone.

It patches nothing. It wraps the function that coffea hands to the executor, and replaces arguments of coffea's closure.
The record of an attempt that gave a result travels in the metadata of its Dask task, so it arrives with the same
message as the task's end. The record of one that erred travels as a worker event.
"""

from __future__ import annotations

import logging
import operator
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from roastcoffea.errors import error_text
from roastcoffea.instrument.gauges import Interval
from roastcoffea.records.chunks import CHECKPOINT, ERROR, OK, SKIPPED
from roastcoffea.records.wire import METADATA_KEY, packed_record


class Probe:
    """Callable in place of coffea's function for a chunk; its result and its exceptions are those of the function.

    Parameters
    ----------
    function : callable
        What coffea handed to the executor.
    call : str
        Identity of the Runner call.
    topics : tuple of str
        Where records of failed attempts are sent, one topic per collector.
    name : str
        Name for the Dask task; its prefix derives from it.
    packed_class : bytes, optional
        This class pickled by value, for clusters without the package.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        call: str,
        topics: tuple[str, ...],
        name: str,
        packed_class: bytes | None = None,
    ) -> None:
        self.function = function
        self.call = call
        self.topics = topics
        self.packed_class = packed_class
        self.__name__ = name

    def __call__(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = self._begun()
        try:
            output = _watched(self.function, attempt)(item, *args, **kwargs)
        except BaseException as error:
            self._end(attempt, item, error=error)
            raise
        self._end(attempt, item, output=output)
        return output

    def _begun(self) -> _Attempt | None:
        try:
            return _Attempt()
        except Exception as problem:  # noqa: BLE001  (a probe that fails must not fail the analysis)
            self._complain(problem)
            return None

    def _end(
        self, attempt: _Attempt | None, item: Any, *, output: Any = None, error: BaseException | None = None
    ) -> None:
        if attempt is None:
            return
        try:
            measured = attempt.measured() | {"call": self.call}
            blob = packed_record(measured | _outcome(item, output, error, attempt))
            attempt.task.send(blob, self.topics, failed=error is not None)
        except Exception as problem:  # noqa: BLE001  (as above)
            self._complain(problem)

    def _complain(self, problem: Exception) -> None:
        text = f"a chunk's record was lost on a worker: {error_text(problem)}"
        logging.getLogger(__name__).warning(text, exc_info=problem)
        _DaskTask.tell(self.topics, {"problem": text})

    def __str__(self) -> str:
        return self.__name__

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("roastcoffea-probe", self.call)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.function, self.call, self.topics, self.__name__, self.packed_class)
        if self.packed_class is None:
            return Probe, state
        return operator.call, (_Packed(self.packed_class), *state)


class _Packed:
    """Stands for an object that was pickled already, and unpickles to it."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.packed,)


class _Attempt:
    """One attempt of a chunk while it runs: its gauges, and what is seen inside of coffea's closure."""

    error: str | None = None
    loaded_from_checkpoint = False

    def __init__(self) -> None:
        self.task = _DaskTask()
        self._memory = Interval()
        self._start, self._wall = time.time(), time.perf_counter()
        self._cpu, self._process_cpu = time.thread_time(), time.process_time()

    def measured(self) -> dict[str, Any]:
        """Close the gauges, and give what they and the task tell."""
        cpu, process_cpu = time.thread_time(), time.process_time()
        wall, stop = time.perf_counter(), time.time()
        self._memory.close()
        return {
            "start": self._start,
            "stop": stop,
            "wall_seconds": wall - self._wall,
            "cpu_seconds": cpu - self._cpu,
            "process_cpu_seconds": process_cpu - self._process_cpu,
            "memory_before": self._memory.before,
            "memory_after": self._memory.after,
            "memory_peak": self._memory.peak,
            "overlaps": self._memory.overlaps,
            "worker": self.task.worker_address,
            "thread": threading.get_ident(),
            "key": self.task.key,
            "run_id": self.task.run_id,
        }


class _DaskTask:
    """The Dask task that runs on this thread, if there is one."""

    worker_address: str | None = None
    key: str | None = None
    run_id: int | None = None

    def __init__(self) -> None:
        self._state = None
        worker = _dask_worker()
        if worker is not None:
            key = worker.get_current_task()
            self._state = worker.state.tasks[key]
            self.worker_address = worker.address
            self.key = str(key)
            self.run_id = self._state.run_id

    def send(self, blob: bytes, topics: tuple[str, ...], *, failed: bool) -> None:
        """Send a record home; outside of Dask it stays."""
        if failed:
            self.tell(topics, {"chunk": blob})
        elif self._state is not None:
            self._state.metadata[METADATA_KEY] = blob

    @staticmethod
    def tell(topics: tuple[str, ...], message: dict[str, Any]) -> None:
        """Send a message to the scheduler's plugins of these names, as long as they are there."""
        worker = _dask_worker()
        if worker is not None:
            for topic in topics:
                # the scheduler would keep the event for good once its plugin has gone
                if topic in worker.plugins:
                    worker.log_event(topic, message)


def _dask_worker() -> Any | None:
    """The worker whose task runs on this thread."""
    distributed = sys.modules.get("distributed.worker")
    if distributed is None:
        return None
    try:
        worker = distributed.get_worker()
        worker.get_current_task()
    except ValueError:
        return None
    return worker


def _outcome(item: Any, output: Any, error: BaseException | None, attempt: _Attempt) -> dict[str, Any]:
    work = item[0] if isinstance(item, tuple) else item
    record = _identity(work)
    if error is not None:
        return record | {"outcome": ERROR, "error": error_text(error)}
    if output is None:
        return record | {"outcome": SKIPPED, "error": attempt.error}
    record["events"] = work.entrystop - work.entrystart
    if attempt.loaded_from_checkpoint:
        return record | {"outcome": CHECKPOINT}
    return record | {"outcome": OK} | _coffea_metrics(output)


def _identity(work: Any) -> dict[str, Any]:
    return {
        "dataset": str(work.dataset),
        "file": str(work.filename),
        "tree": str(work.treename),
        "uuid": work.fileuuid.hex(),
        "entry_start": work.entrystart,
        "entry_stop": work.entrystop,
    }


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


def _watched(function: Callable[..., Any], attempt: _Attempt | None) -> Callable[..., Any]:
    """The same call, with coffea's closure watched inside of its automatic retries."""
    if attempt is None or not (isinstance(function, partial) and len(function.args) > 2 and callable(function.args[2])):
        return function
    retries, skipped, closure, *rest = function.args
    return partial(function.func, retries, skipped, _Closure(closure, attempt), *rest, **function.keywords)


class _Closure:
    """coffea's closure for one chunk, which notes errors that are swallowed and checkpoints that are loaded."""

    def __init__(self, closure: Callable[..., Any], attempt: _Attempt) -> None:
        self.closure = closure
        self.attempt = attempt

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.closure(*args, **kwargs, **self._replaced())
        except Exception as error:
            self.attempt.error = error_text(error)
            raise

    def _replaced(self) -> dict[str, Any]:
        keywords = self.closure.keywords if isinstance(self.closure, partial) else {}
        checkpointer = keywords.get("checkpointer")
        return {} if checkpointer is None else {"checkpointer": _watched_checkpointer(checkpointer, self.attempt)}


def _watched_checkpointer(checkpointer: Any, attempt: _Attempt) -> Any:
    from coffea.processor.checkpointer import CheckpointerABC

    if not isinstance(checkpointer, CheckpointerABC):
        return checkpointer

    class WatchedCheckpointer(CheckpointerABC):  # type: ignore[misc]
        def load(self, metadata: Any, processor_instance: Any) -> Any:
            output = checkpointer.load(metadata, processor_instance)
            attempt.loaded_from_checkpoint = output is not None
            return output

        def save(self, output: Any, metadata: Any, processor_instance: Any) -> None:
            checkpointer.save(output, metadata, processor_instance)

    return WatchedCheckpointer()
