"""A collector's marks on the Dask tasks of its run, and arithmetic on Dask's counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

ANNOTATION: Final = "roastcoffea"
"""Annotation key for Dask tasks that belong to a collector's Runner call."""

METADATA_KEY: Final = "roastcoffea"
"""Metadata key under which a Dask task stores its chunk's record."""

FromEnvironment = tuple[tuple[str, str, str], ...]
"""Values that an executor's tasks read from their environment. Each value has a name, an environment variable, and a
pattern for the part to read.

The value named `key` becomes the record's key; all other values describe the process.
"""

IS_MEASURED: Final = "_roastcoffea_measured"
"""Attribute that marks functions that record their own reads, no matter which task runs them."""


def mark_of(task: Any, collector: str) -> Mapping[str, Any] | None:
    """A collector's annotation on a task; None if the task does not belong to the collector."""
    mark = (task.annotations or {}).get(ANNOTATION)
    return mark if isinstance(mark, dict) and collector in mark.get("collectors", ()) else None


def unmark(task: Any, collector: str) -> None:
    """Remove a collector's mark from a task, but keep the marks of other collectors."""
    mark = mark_of(task, collector)
    if mark is None:
        return
    others = _others(task, collector)
    if others:
        task.annotations[ANNOTATION] = {**mark, "collectors": others}
    else:
        del task.annotations[ANNOTATION]


def forget_record(task: Any, collector: str) -> None:
    """Remove the record from a collector's task, unless the task also belongs to another collector."""
    if task.metadata and mark_of(task, collector) is not None and not _others(task, collector):
        task.metadata.pop(METADATA_KEY, None)


def clear_metadata(task: Any, collector: str) -> None:
    """Remove metadata that a collector's worker plugin and probe left on a task.

    The record stays if the task also belongs to another collector, because a task stores its record before the
    scheduler reports that the task has ended.
    """
    if task.metadata and task.metadata.pop(collector, None) is not None and not _others(task, collector):
        task.metadata.pop(METADATA_KEY, None)


def _others(task: Any, collector: str) -> list[str]:
    mark = (task.annotations or {}).get(ANNOTATION)
    return [other for other in mark.get("collectors", ()) if other != collector] if isinstance(mark, dict) else []


def call_of(task: Any) -> Sequence[Any]:
    """Function and positional arguments of a task, or None for both if they are unknown.

    Until version 2024.11, Dask stored them in a tuple.
    """
    spec = getattr(task, "run_spec", None)
    return spec[:2] if isinstance(spec, tuple) else (getattr(spec, "func", None), getattr(spec, "args", None))


def is_measured(task: Any) -> bool:
    function, _ = call_of(task)
    while isinstance(function, partial):
        function = function.func
    return bool(getattr(function, IS_MEASURED, False))


Counts = Mapping[Any, float]


def added_up(counts: Iterable[Counts]) -> dict[Any, float]:
    total: dict[Any, float] = {}
    for mapping in counts:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def of_spans(counted: Counts, spans: Iterable[str | None]) -> dict[Any, float]:
    """Counts from these spans, keyed without span IDs, and counts recorded outside tasks."""
    return added_up(
        {key if key[0] != "execute" else (key[0], *key[2:]): value}
        for key, value in counted.items()
        if key[0] != "execute" or key[1] in spans
    )


def difference(later: Counts, earlier: Counts) -> dict[Any, float]:
    return {key: value - earlier.get(key, 0) for key, value in later.items() if value != earlier.get(key, 0)}


def has_all(counted: Counts, expected: Counts) -> bool:
    """Whether every count has reached its expected value, within rounding."""
    return all(counted.get(key, 0) >= value - 1e-6 * (1 + abs(value)) for key, value in expected.items())
