"""Stacks as they travel: what the client unpacks is what was packed."""

from __future__ import annotations

from profiled import rows_of

from roastcoffea.log.stacks import IN_BETWEEN, IN_OTHERS, UNSAMPLED, packed_stacks
from roastcoffea.records.chunks import DEEPER, NOT_SAMPLED


def outer() -> None: ...


def inner() -> None: ...


CODES = {1: outer.__code__, 2: inner.__code__, 3: None}


def test_what_was_packed_is_unpacked() -> None:
    counts = {
        ((2, 14), (1, 10)): [3.0, 0.3, 0.1, 0.1, 0.1],
        ((1, 10),): [1.0, 0.1, 0.0, 0.0, 0.1],
        ((2, 14), IN_BETWEEN, (1, 10)): [1.0, 0.05, 0.0, 0.0, 0.0],
        UNSAMPLED: [0.0, 0.5, 0.0, 0.0, 0.0],
        (): [1.0, 0.2, 0.2, 0.0, 0.0],
    }
    rows = {tuple(row["functions"]): row for row in rows_of([packed_stacks(counts, CODES)])}
    sums = {
        functions: [row["samples"], row["seconds"], row["core_seconds"], row["contention_seconds"]]
        for functions, row in rows.items()
    }
    assert sums == {
        ("outer", "inner"): [3, 0.3, 0.1, 0.1],
        ("outer",): [1, 0.1, 0.0, 0.0],
        ("outer", DEEPER, "inner"): [1, 0.05, 0.0, 0.0],
        (NOT_SAMPLED,): [0, 0.5, 0.0, 0.0],
        (): [1, 0.2, 0.2, 0.0],
    }
    assert rows["outer", "inner"]["lines"] == [10, 14]
    assert rows["outer", "inner"]["files"] == [__file__, __file__]


def test_without_samples_nothing_travels() -> None:
    assert packed_stacks({}, CODES) == []
    assert packed_stacks({UNSAMPLED: [0.0, 2e-5, 0.0, 0.0, 0.0], IN_OTHERS: [0.0] * 5}, CODES) == []
