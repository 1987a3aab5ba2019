"""Collectors that are open in this process, and which of them take the Runner calls of a context."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from roastcoffea.records.run import RunnerCall

IN_EACH: Final = (
    "a thread that no collector was opened in was counted in each collector that was open: open one in that thread"
)


class Watcher(Protocol):
    """What the hook asks of a collector."""

    @property
    def topic(self) -> str:
        """Name of the plugin that takes this collector's records, unique to the collector."""

    @property
    def of_all_contexts(self) -> bool:
        """Whether it also measures Runner calls of contexts, such as threads, that never had a collector."""

    def out_of_reach(self, executor: Any) -> str | None:
        """Why what runs on this executor is no part of what the collector sees; None where it is."""

    def records_came(self, records: bytes) -> None:
        """Take packed records that did not come through a scheduler."""

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of what tasks need, where they cannot import it."""

    def span_ensured(self) -> AbstractContextManager[None]:
        """Context in which tasks are counted in the span of the run."""

    def call_began(self, call: str, executor: Any) -> None:
        """Learn the identity of a Runner call that begins, and its executor."""

    def chunks_unseen(self, reason: str) -> None:
        """Learn why the chunks of a Runner call are not recorded."""

    def items_asked(self, call: str, items: Sequence[Any]) -> None:
        """Learn what a Runner call asked for: files for preprocessing, or chunks."""

    def items_unseen(self) -> None:
        """Learn that it is not known what a Runner call asked for."""

    def call_ended(self, call: RunnerCall) -> None:
        """Take the record of a Runner call."""

    def fetch_records(self) -> None:
        """Get the records of Runner calls that have ended from where they are."""

    def note(self, problem: str) -> None:
        """Take note of what could not be delivered."""


class Watchers(tuple[Watcher, ...]):
    """Collectors that learn the same."""

    __slots__ = ()

    def note(self, problem: str) -> None:
        """Have each take note of a problem."""
        for watcher in self:
            watcher.note(problem)

    def chunks_unseen(self, reason: str) -> None:
        """Tell each why chunks are not recorded."""
        for watcher in self:
            watcher.chunks_unseen(reason)


lock: Final = threading.RLock()
active: Final[list[Watcher]] = []
_outer: Final[dict[str, Watchers]] = {}
"""For the topic of each, those that its context had before."""
here: Final[ContextVar[Watchers | None]] = ContextVar("roastcoffea_collectors", default=None)
"""Those that were opened in a context; None where none ever was."""


def add(watcher: Watcher) -> None:
    """Let a collector take the Runner calls of this context, and those of contexts that have no collector."""
    outer = here.get() or Watchers()
    active.append(watcher)
    _outer[watcher.topic] = outer
    here.set(Watchers((*outer, watcher)))


def remove(watcher: Watcher) -> None:
    """Undo `add`."""
    others = Watchers(other for other in here.get() or () if other is not watcher)
    # a thread in which a call was recorded without its doing is as one that never had a collector
    here.set(others if others or watcher.of_all_contexts else None)
    with lock:
        active.remove(watcher)
        _outer.pop(watcher.topic)


def watchers() -> Watchers:
    """Open collectors of this context; in a thread that never had one, all that measure such threads as well."""
    if here.get() is not None:
        return _of_this_context()
    with lock:
        found = _of_all_contexts()
        if any(other not in _outer[found[-1].topic] for other in found[:-1]):
            found.note(IN_EACH)
        return found


def is_watched() -> bool:
    """Whether a collector measures the Runner calls of this context."""
    return bool(_of_all_contexts() if here.get() is None else _of_this_context())


def _of_this_context() -> Watchers:
    return Watchers(watcher for watcher in here.get() or () if watcher in active)


def _of_all_contexts() -> Watchers:
    return Watchers(watcher for watcher in list(active) if watcher.of_all_contexts)
