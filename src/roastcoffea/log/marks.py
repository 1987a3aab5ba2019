"""Marks of a collector on the Dask tasks of its run, and arithmetic of Dask's counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

ANNOTATION: Final = "roastcoffea"
"""Annotation of the Dask tasks that belong to a Runner call under a collector."""

METADATA_KEY: Final = "roastcoffea"
"""Key of a chunk's record in the metadata of its Dask task."""

FromEnvironment = tuple[tuple[str, str, str], ...]
"""What tasks of an executor report of their environment: a name, a variable, and a pattern of what is reported of it.

`key` becomes the key of the record; other names are known of the process.
"""

IS_MEASURED: Final = "_roastcoffea_measured"
"""Attribute of functions that record what they read, whatever task runs them."""


def mark_of(task: Any, collector: str) -> Mapping[str, Any] | None:
    """Annotation of a task that belongs to this collector; None for any other task."""
    mark = (task.annotations or {}).get(ANNOTATION)
    return mark if isinstance(mark, dict) and collector in mark.get("collectors", ()) else None


def unmark(task: Any, collector: str) -> None:
    """Remove a collector's mark from a task, but not another collector's."""
    mark = mark_of(task, collector)
    if mark is None:
        return
    others = _others(task, collector)
    if others:
        task.annotations[ANNOTATION] = {**mark, "collectors": others}
    else:
        del task.annotations[ANNOTATION]


def forget_record(task: Any, collector: str) -> None:
    """Remove the record of a task of a collector that nobody takes, unless it belongs to another one as well."""
    if task.metadata and mark_of(task, collector) is not None and not _others(task, collector):
        task.metadata.pop(METADATA_KEY, None)


def clear_metadata(task: Any, collector: str) -> None:
    """Remove the metadata that the collector's worker plugin and probe left on a task.

    A record that another collector waits for is kept: a task puts it there before the scheduler reports its end.
    """
    if task.metadata and task.metadata.pop(collector, None) is not None and not _others(task, collector):
        task.metadata.pop(METADATA_KEY, None)


def _others(task: Any, collector: str) -> list[str]:
    """The other collectors that a task belongs to."""
    mark = (task.annotations or {}).get(ANNOTATION)
    return [other for other in mark.get("collectors", ()) if other != collector] if isinstance(mark, dict) else []


def is_measured(task: Any) -> bool:
    """Whether a task runs a function that records what it reads."""
    function = getattr(getattr(task, "run_spec", None), "func", None)
    while isinstance(function, partial):
        function = function.func
    return bool(getattr(function, IS_MEASURED, False))


Counts = Mapping[Any, float]


def added_up(counts: Iterable[Counts]) -> dict[Any, float]:
    """Sum of mappings, key by key."""
    total: dict[Any, float] = {}
    for mapping in counts:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def of_spans(counted: Counts, spans: Iterable[str | None]) -> dict[Any, float]:
    """Counts in the tasks of these spans, without the span's identity, and counts outside tasks."""
    return added_up(
        {key if key[0] != "execute" else (key[0], *key[2:]): value}
        for key, value in counted.items()
        if key[0] != "execute" or key[1] in spans
    )


def difference(later: Counts, earlier: Counts) -> dict[Any, float]:
    """Increase of a mapping of growing numbers."""
    return {key: value - earlier.get(key, 0) for key, value in later.items() if value != earlier.get(key, 0)}


def has_all(counted: Counts, expected: Counts) -> bool:
    """Whether each key has at least the expected count."""
    return all(counted.get(key, 0) >= value - 1e-6 * (1 + abs(value)) for key, value in expected.items())
