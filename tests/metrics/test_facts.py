"""Tasks and their records are joined as a dictionary of keys and run ids would do it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from roastcoffea.log.received import attempt_numbers
from roastcoffea.metrics.facts import identities


def table(rows: list[tuple[str | None, int | None]]) -> pa.Table:
    keys, runs = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"key": pa.array(keys, pa.string()), "run_id": pa.array(runs, pa.int64())})


RECORDS: dict[str, list[tuple[str | None, int | None]]] = {
    "each once": [("a", 3), ("b", 1), ("c", 2)],
    "several in a task": [("a", 3), ("a", 3), ("b", 1)],
    "a run id of two keys": [("a", 1), ("b", 1), ("c", 2)],
    "without key or run id": [("a", 1), (None, 2), ("b", None), ("c", 5)],
    "none": [],
}
TASKS: list[tuple[str | None, int | None]] = [("a", 1), ("a", 3), ("b", 1), ("c", 2), ("c", 7), ("d", 5), ("b", None)]


@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def test_tasks_find_their_records(records: list[tuple[str | None, int | None]]) -> None:
    of_records, of_tasks = identities(table(TASKS), table(records))
    for task, wanted in zip(TASKS, of_tasks, strict=True):
        matches = [row for row, own in zip(records, of_records, strict=True) if own == wanted >= 0]
        assert matches == [row for row in records if row == task and None not in row], task


def test_attempts_are_numbered_by_key() -> None:
    random = np.random.default_rng(3)
    keys = [None if number == 0 else f"k{number}" for number in random.integers(0, 20, 100)]
    expected = [1 if key is None else keys[: row + 1].count(key) for row, key in enumerate(keys)]
    assert attempt_numbers(pa.array(keys, pa.string())).tolist() == expected
    assert attempt_numbers(pa.array(["a", "b"])).tolist() == [1, 1]
