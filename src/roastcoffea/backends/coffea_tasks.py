"""Kind and chunk of coffea's tasks, read on the scheduler from the task itself, without a collector.

This module may be pickled by value.
"""

from __future__ import annotations

from typing import Any

from roastcoffea.records.tasks import KINDS, MERGE, PREPROCESSING, PROCESSOR

COFFEA = "coffea"

OF_TYPES = {"WorkItem": PROCESSOR, "FileMeta": PREPROCESSING, "_reduce": MERGE}
"""Kind of a task by the class of its first argument or function, if coffea defines that class."""

PARTS = ("dataset", "filename", "treename", "entrystart", "entrystop")
"""Attributes of a `WorkItem` that identify its chunk."""


class CoffeaTasks:
    """Recognizes coffea's tasks.

    Merges of preprocessing results belong to the preprocessing, as in a measurement.
    """

    def __init__(self) -> None:
        self._preparing: set[Any] = set()

    def described(self, task: Any) -> tuple[Any, ...]:
        """Code of a task's kind, and for a chunk its `PARTS`; empty for tasks that are not coffea's."""
        spec = task.run_spec
        item = first_of(getattr(spec, "args", None))
        kind = kind_by(type(item)) or kind_by(type(getattr(spec, "func", None)))
        if kind is None:
            return ()
        if kind == MERGE and any(other.key in self._preparing for other in task.dependencies):
            kind = PREPROCESSING
        if kind == PREPROCESSING:
            self._preparing.add(task.key)
        code = KINDS.index(kind)
        return (code, *(getattr(item, part) for part in PARTS)) if kind == PROCESSOR else (code,)

    def forget(self, key: Any) -> None:
        """Forget a task that the scheduler has released."""
        self._preparing.discard(key)


def kind_by(of: type) -> str | None:
    """Kind of the tasks of a class; None if it is not coffea's. No class is remembered: users' come and go."""
    return OF_TYPES.get(of.__name__) if of.__module__.partition(".")[0] == COFFEA else None


def chunk_of(task: Any) -> list[Any] | None:
    """The `PARTS` of a task's chunk as JSON values; None for a task of another kind."""
    item = first_of(getattr(getattr(task, "run_spec", None), "args", None))
    if not all(hasattr(item, part) for part in PARTS):
        return None
    return [None if (value := getattr(item, part)) is None else plain_part(value) for part in PARTS]


def plain_part(part: Any) -> Any:
    """A part of a key, or of a chunk's identity, as a JSON value."""
    try:
        return part.__index__()
    except (AttributeError, TypeError):
        return str(part)


def first_of(arguments: Any) -> Any:
    """The first argument of a task; with heavy input coffea's executor passes a pair."""
    first: Any = arguments[0] if arguments else None
    if type(first).__name__ == "Tuple":
        return first_of(first.args)
    return first[0] if type(first) is tuple and first else first
