"""Parts of chunks, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_runs import made_run, plan

from roastcoffea.replay.changes import Chunks, chunks_in_parts


def parts_of(*plans: Mapping[str, Any], seconds: float = 10.0, stragglers: pa.Table | str = "none") -> Chunks:
    run = made_run(plans, 1)
    return chunks_in_parts(run.chunks, np.full(len(plans), seconds), stragglers)


def with_columns(table: pa.Table, **values: float) -> pa.Table:
    """The table with other values in these columns."""
    for name, value in values.items():
        table = table.set_column(table.column_names.index(name), name, pa.array([value]))
    return table


def first(chunks: Chunks) -> dict[str, float]:
    return {name: float(seconds[0]) for name, seconds in chunks.parts._asdict().items() if seconds[0]}


def test_parts_sum_to_the_time_of_the_task() -> None:
    found = parts_of(plan(1.0, 2.0, open_cpu=0.5, open_wait=0.25, read=3.0))
    assert first(found) == pytest.approx(
        {"open_cpu": 0.5, "open_wait": 0.25, "read": 3.0, "wait": 2.0, "cpu": 1.0, "overhead": 3.25}
    )
    assert found.parts.total.tolist() == pytest.approx([10.0])
    load = found.load()
    assert [float(part[0]) for part in (load.before, load.wait, load.after)] == pytest.approx([0.5, 5.25, 4.25])


def test_waiting_for_a_core_is_taken_out() -> None:
    found = parts_of(plan(1.0, core_wait=3.0), seconds=4.0)
    assert first(found) == pytest.approx({"cpu": 1.0, "contention": 3.0})
    # four on a core: each doubling of the load takes more CPU time for the same work
    assert first(found.with_cpu(1 / (1 + 0.25 * np.array([2.0])))) == pytest.approx(
        {"cpu": 1.0 / 1.5, "contention": 3.0}
    )


def test_waiting_for_a_core_while_opening_is_no_waiting_for_storage() -> None:
    """Of 3 s in which the file was opened, 2 s were spent waiting for a core, like 1 s in process()."""
    table = made_run([plan(1.0, 2.0, open_wait=1.0, read=1.0, core_wait=3.0)], 1).chunks
    assert table is not None
    opening = with_columns(table, open_seconds=3.0, contention_seconds=1.0, process_seconds=5.0)
    found = chunks_in_parts(opening, np.array([8.0]))
    assert first(found) == pytest.approx({"open_wait": 1.0, "read": 1.0, "wait": 2.0, "cpu": 1.0, "contention": 3.0})


def test_decompression_and_the_interpreters_lock_are_told_apart_where_they_are_recorded() -> None:
    run = made_run([plan(2.0, 3.0)], 1)
    assert run.chunks is not None
    row = with_columns(run.chunks, decompress_seconds=0.5, compute_seconds=1.5, lock_seconds=1.0, blocked_seconds=2.0)
    found = chunks_in_parts(row, np.array([5.0]))
    assert first(found) == pytest.approx({"decompress": 0.5, "cpu": 1.5, "lock": 1.0, "wait": 2.0})


def test_stragglers_take_a_part_of_what_they_took() -> None:
    stragglers = pa.table({"id": [1], "expected_seconds": [1.0], "wall_seconds": [4.0]})
    found = parts_of(plan(1.0), plan(4.0), plan(1.0), stragglers=stragglers)
    assert found.factor.tolist() == [1.0, 0.25, 1.0]
    assert parts_of(plan(1.0), stragglers="no ledger").factor.tolist() == [1.0]


def test_datasets_files_and_events() -> None:
    found = parts_of(plan(1.0, dataset="a", file="x"), plan(1.0, dataset="b", file="y", events=50))
    assert found.datasets == ("a", "b")
    assert (found.dataset.tolist(), found.file.tolist()) == ([0, 1], [0, 1])
    assert found.events.tolist() == [100.0, 50.0]


def test_each_part_is_changed_alike() -> None:
    found = parts_of(plan(1.0, 2.0))
    assert found.parts.each(lambda seconds: 2 * seconds).total.tolist() == pytest.approx([20.0])
