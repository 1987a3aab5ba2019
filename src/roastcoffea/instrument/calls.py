"""Calls of `Runner.run` that go on, and what is recorded of them."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import time
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.watchers import Watcher, Watchers
from roastcoffea.records.run import FAILED, FINISHED, RunnerCall
from roastcoffea.redaction import redacted_each, redacted_values

LONGEST_NAME: Final = 50
"""Where dask cuts the name of a function."""


class OpenCall:
    """A call of `Runner.run` that goes on."""

    def __init__(self, watchers: Watchers, runner: Any, processor: Any) -> None:
        self.id = uuid.uuid4().hex
        self.watchers = watchers
        self.runner = runner
        self._class = type(processor).__name__
        self.processor = processor.__name__ if isinstance(processor, types.FunctionType) else self._class
        self.result: Any = None
        self.chunks: int | None = None
        self.files: int | None = None
        self.fileset: str | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the Runner works; at its end the collectors get the record of the call."""
        for watcher in self.watchers:
            watcher.call_began(self.id, self.runner.executor)
        token = current.set(self)
        self.start, began = time.time(), time.perf_counter()
        error: BaseException | None = None
        open_calls.append(self)
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            current.reset(token)
            open_calls.remove(self)
            with reported(self.watchers.note, "a Runner call was not recorded", Exception):
                record = self._record(self.start + time.perf_counter() - began, error or captured_error(self.result))
                for watcher in self.watchers:
                    watcher.call_ended(record)

    def fetch_records(self) -> None:
        """Have the collectors get what was recorded from where it is."""
        for watcher in self.watchers:
            watcher.fetch_records()

    def end_for(self, watcher: Watcher, error: BaseException) -> None:
        """Give a collector the record of the call as of one that fails now."""
        if watcher in self.watchers:
            watcher.call_ended(self._record(time.time(), error))
            watcher.fetch_records()

    def name(self, executor: Any) -> str:
        """Name of the tasks: that of the processor's class, as coffea has it."""
        return str(getattr(executor, "function_name", None) or self._class)[:LONGEST_NAME]

    def process_chunks(self, items: Sequence[Any]) -> None:
        """Learn the chunks that are handed to the executor."""
        self.chunks = len(items)
        self._items_asked(items)
        with reported(self.watchers.note, "the fileset has no fingerprint", (AttributeError, TypeError, ValueError)):
            self.fileset = fingerprint(items)

    def preprocess_files(self, items: Sequence[Any]) -> None:
        """Learn the files that are handed to the executor for preprocessing."""
        with reported(self.watchers.note, "the files of preprocessing were not counted", Exception):
            self.files = (self.files or 0) + len(items)
            self._items_asked(items)

    def _items_asked(self, items: Sequence[Any]) -> None:
        with reported(self.watchers.note, "what was asked for was not recorded", Exception):
            for watcher in self.watchers:
                watcher.items_asked(self.id, items)
            return
        for watcher in self.watchers:
            watcher.items_unseen()

    def _record(self, stop: float, error: BaseException | None) -> RunnerCall:
        return RunnerCall(
            id=self.id,
            processor=self.processor,
            executor=type(self.runner.executor).__name__,
            start=self.start,
            stop=stop,
            outcome=FINISHED if error is None else FAILED,
            error=None if error is None else error_text(error),
            chunks=self.chunks,
            files=self.files,
            fileset=self.fileset,
            options=_options(self.runner),
            report=coffea_report(self.result),
        )


open_calls: Final[list[OpenCall]] = []
current: Final[ContextVar[OpenCall | None]] = ContextVar("roastcoffea_call", default=None)
"""The call of this context."""


def fingerprint(items: Iterable[Any]) -> str | None:
    """SHA-256 over dataset, file, tree and file uuid of chunks: equal for equal input, whatever chunks and tokens."""
    with suppress(AttributeError):
        files = {(*map(str, (item.dataset, item.filename, item.treename)), item.fileuuid.hex()) for item in items}
        clean = {(*redacted_each(texts), identity) for *texts, identity in files}
        return hashlib.sha256(json.dumps(sorted(clean)).encode()).hexdigest()
    return None


def _options(runner: Any) -> dict[str, Any]:
    """The plain settings of a Runner and its executor, and the name of its schema."""
    options = {"schema": getattr(runner.schema, "__name__", None)}
    for owner, thing in (("", runner), ("executor.", runner.executor)):
        for setting in dataclasses.fields(thing):
            value = getattr(thing, setting.name, None)
            if isinstance(value, (str, int, float, bool)):
                options[owner + setting.name] = value
    return dict(redacted_values(options))


def _output(result: Any) -> Any:
    """What `Runner.run` gave, out of coffea's result type where that was asked for."""
    return result if isinstance(result, Mapping) else getattr(result, "value", None)


def coffea_report(result: Any) -> dict[str, Any] | None:
    """coffea's own metrics, without secrets; None unless the Runner has savemetrics on."""
    output = _output(result)
    metrics = output.get("metrics") if isinstance(output, Mapping) else None
    return redacted_values(copy.deepcopy(dict(metrics))) if isinstance(metrics, Mapping) else None


def captured_error(result: Any) -> BaseException | None:
    """The error that coffea captured instead of raising it."""
    output = _output(result)
    captured = output.get("exception") if isinstance(output, Mapping) else getattr(result, "exception", None)
    return captured if isinstance(captured, BaseException) else None
