"""Calls of executors: the probe around their function, and the transport of its records."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dask.utils import funcname

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.carried import CarriedProbe
from roastcoffea.instrument.channels import spooled, taken_from
from roastcoffea.instrument.probe import Probe
from roastcoffea.instrument.watchers import Watcher, Watchers
from roastcoffea.interrupts import interrupts_held
from roastcoffea.redaction import added_patterns

LOST: Final = "records were lost"


class ExecutorCall:
    """One call of an executor, with the probe around its function where the records come home.

    Without a name it is preprocessing: the function gets files, and keeps its own name.
    """

    def __init__(self, watchers: Watchers, executor: Any, call: str | None, name: str | None) -> None:
        from coffea.processor import DaskExecutor

        self._call = call
        self._name = name
        self._on_dask = isinstance(executor, DaskExecutor)
        self._spool: str | None = None
        self._read: dict[str, int] = {}
        self._reading = threading.Lock()
        here = name is None and not self._on_dask
        reasons = [(watcher, watcher.out_of_reach(executor)) for watcher in watchers]
        self._reached = Watchers(watcher for watcher, reason in reasons if here or reason is None)
        for watcher, reason in reasons:
            if watcher not in self._reached:
                self._unseen([watcher], f"of the {type(executor).__name__} were not seen: {reason}")

    def _unseen(self, watchers: Iterable[Watcher], reason: str) -> None:
        for watcher in watchers:
            if self._name is None:
                watcher.note(f"the preprocessing tasks {reason}")
            else:
                watcher.chunks_unseen(f"the chunks {reason}")

    def probed(self, function: Any) -> Any:
        """The function with the probe around it."""
        if not self._reached:
            return function
        try:
            packed = self._reached[-1].packed_for_tasks(CarriedProbe)
        except Exception as problem:  # noqa: BLE001  (the analysis must run where it cannot be measured)
            self._unseen(self._reached, f"were not seen: {error_text(problem)}")
            return function
        topics = tuple(watcher.topic for watcher in self._reached) if self._on_dask else ()
        in_output = not self._on_dask and self._name is not None
        name = self._name or funcname(function)
        state = (self._call, (topics, self._spool, in_output), self._name is None, added_patterns())
        if packed is None:
            return Probe(function, name, *state)
        return CarriedProbe(packed, name, topics[-1], function, state)

    @contextmanager
    def transport(self) -> Iterator[None]:
        """Context in which records can be left in a folder; what is there at its end is taken home."""
        if self._on_dask or not self._reached:
            yield
            return
        with reported(self._reached.note, "there is no folder for the records of attempts that fail", OSError):
            self._spool = tempfile.mkdtemp(prefix="roastcoffea-")
        open_calls.append(self)
        try:
            yield
        finally:
            open_calls.remove(self)
            self.take_new()
            self._remove_folder()

    def take_new(self) -> None:
        """Take what lies in the folder and was not taken yet."""
        with self._reading, reported(self._reached.note, LOST, Exception):
            if self._spool is not None:
                self._take(spooled(self._spool, self._read))

    def _remove_folder(self) -> None:
        with self._reading:
            folder, self._spool = self._spool, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def take_all_for(self, watcher: Watcher) -> None:
        """Have a collector take what lies in the folder so far."""
        if self._spool is not None and watcher in self._reached:
            with reported(self._reached.note, LOST, Exception):
                for packed in spooled(self._spool):
                    watcher.records_came(packed)

    def without_records(self, result: Any) -> Any:
        """What the executor gave, without the records in it."""
        if self._on_dask or not self._reached or not (isinstance(result, tuple) and len(result) == 2):
            return result
        output, error = result
        output, records = taken_from(output)
        with reported(self._reached.note, LOST, Exception):
            self._take(records)
        return output, error

    def _take(self, records: Iterable[bytes]) -> None:
        for packed in records:
            with interrupts_held():
                for watcher in self._reached:
                    watcher.records_came(packed)


open_calls: Final[list[ExecutorCall]] = []
"""Those that have a folder for records."""
