"""Arithmetic of Dask's counts: seconds and bytes by activity, task prefix and span.

This module may be pickled by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
