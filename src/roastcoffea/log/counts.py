"""Arithmetic of what Dask counts: seconds and bytes under keys of activities, tasks and spans.

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
    """What was counted in the tasks of these spans, without their identity, and what was counted in no task."""
    return added_up(
        {key if key[0] != "execute" else (key[0], *key[2:]): value}
        for key, value in counted.items()
        if key[0] != "execute" or key[1] in spans
    )


def difference(later: Counts, earlier: Counts) -> dict[Any, float]:
    """What was added to a mapping of growing numbers."""
    return {key: value - earlier.get(key, 0) for key, value in later.items() if value != earlier.get(key, 0)}


def has_all(counted: Counts, expected: Counts) -> bool:
    """Whether so much, or more, was counted under each key."""
    return all(counted.get(key, 0) >= value - 1e-6 * (1 + abs(value)) for key, value in expected.items())
