"""What leaving a collector says of chunks and attempts without a record, against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from roastcoffea.log import received
from roastcoffea.log.completeness import Losses, attempts_without_record, chunks_without_record
from roastcoffea.log.received import numbered_attempts
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.calls import ASKED_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import FINISHED, RunnerCall
from roastcoffea.records.tasks import TASK_COLUMNS

Rows = list[dict[str, Any]]


def calls_of(chunks: dict[str, int]) -> list[RunnerCall]:
    """Runner calls with their numbers of chunks."""
    parts: Any = {"processor": "Jets", "executor": "DaskExecutor", "start": 0.0, "stop": 1.0, "outcome": FINISHED}
    return [RunnerCall(id=call, chunks=number, **parts) for call, number in chunks.items()]


def chunk_table(rows: Rows) -> Any:
    """Table of records of chunks, numbered as those that came home are."""
    return numbered_attempts(table_of_rows(CHUNK_COLUMNS, rows))


def random_chunks(draw: random.Random, number: int) -> Rows:
    """Records with few different keys, run_ids and calls, some of them null."""
    return [
        {
            "id": identity,
            "call": draw.choice(("a", "b", None)),
            "key": draw.choice((None, *map(str, range(number // 2)))),
            "run_id": draw.choice((None, *range(number))),
            "outcome": draw.choice(("ok", "error", "skipped")),
        }
        for identity in range(number)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_counts_of_what_lacks_a_record(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice((0, 1, 5, 40))
    chunks = random_chunks(draw, size)
    names = {"kind": ("processor", "merge"), "outcome": ("ok", "error", "worker lost")}
    tasks = [
        {name: draw.choice(values) for name, values in names.items()}
        | {"key": str(draw.randrange(size // 2 + 1)), "run_id": draw.choice((None, *range(size)))}
        for _ in range(size)
    ]
    chunk_rows = chunk_table(chunks)
    asked = table_of_rows(ASKED_COLUMNS, [])
    of_chunks = chunks_without_record(calls_of({"a": 50, "b": 60}), chunk_rows, asked, Losses(equal_run_once=True))
    of_attempts = attempts_without_record(table_of_rows(TASK_COLUMNS, tasks), chunk_rows)
    ended = {(row["call"], row["key"] or row["id"]) for row in chunks if row["outcome"] != "error"}
    ended_of = Counter(call for call, _ in ended)
    recorded = {(row["key"], row["run_id"]) for row in chunks}
    lacking = Counter(
        task["outcome"]
        for task in tasks
        if task["kind"] == "processor" and (task["key"], task["run_id"]) not in recorded
    )
    assert [problem.split(" have no")[0] for problem in of_chunks] == [
        f"{number - ended_of[call]} of {number} chunks" for call, number in {"a": 50, "b": 60}.items()
    ]
    assert [problem.split(": the sums")[0] for problem in of_attempts] == [
        f"{number} attempt(s) of chunks left no record (the task's outcome: {outcome})"
        for outcome, number in lacking.items()
    ]


@pytest.mark.parametrize("largest", [2**62, 10])
def test_rows_have_equal_codes_where_they_are_equal(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    monkeypatch.setattr(received, "LARGEST_CODE", largest)
    draw = random.Random(1)
    rows: Rows = [{name: draw.choice((None, "1", "2")) for name in ("call", "file", "tree")} for _ in range(100)]
    codes = received.row_codes(table_of_rows(ASKED_COLUMNS, rows))
    by_code = dict(zip(codes.tolist(), rows, strict=True))
    assert all(by_code[code] == row for code, row in zip(codes.tolist(), rows, strict=True))
    assert len(by_code) == len({tuple(row.values()) for row in rows}) > 10
    assert len(received.row_codes(table_of_rows(ASKED_COLUMNS, []))) == 0


def asked_twice(files: dict[str, int]) -> Any:
    """Table of chunks that were asked for, each so many times."""
    rows: Rows = [
        {"call": "a", "dataset": "d", "file": file, "tree": None, "uuid": "u", "entry_start": 0, "entry_stop": 10}
        for file, number in files.items()
        for _ in range(number)
    ]
    others = [{**rows[0], "entry_start": None, "entry_stop": None, "uuid": None}] * 2
    alike = [{**rows[0], "dataset": "e"}, {**rows[0], "entry_stop": 9}, {**rows[0], "call": "b"}]
    return table_of_rows(ASKED_COLUMNS, [*rows, *others, *alike])


EQUAL = "equal to another chunk (a file that is listed twice), one task for Dask, twice in coffea's report"
DROPPED, REFUSED = "records that were dropped on the scheduler", "entries of the scheduler's log that were refused"


@pytest.mark.parametrize(
    ("equal_run_once", "recorded", "dropped", "refused", "reasons"),
    [
        (True, 7, 0, 0, None),
        (True, 4, 0, 0, [f"{EQUAL}: 3"]),
        (True, 6, 5, 5, [f"{EQUAL}: 1"]),
        (True, 2, 0, 0, [f"{EQUAL}: 3", "for an unknown reason: 2"]),
        (True, 1, 1, 0, [f"{EQUAL}: 3", f"{DROPPED}: 1", "for an unknown reason: 2"]),
        (True, 1, 1, 2, [f"{EQUAL}: 3", f"{DROPPED}: 1", f"{REFUSED}: 2"]),
        (False, 4, 0, 0, ["for an unknown reason: 3"]),
    ],
)
def test_the_reason_is_said_only_where_it_is_known(
    equal_run_once: bool, recorded: int, dropped: int, refused: int, reasons: list[str] | None
) -> None:
    rows = [{"id": number, "call": "a", "key": str(number), "outcome": "ok"} for number in range(recorded)]
    losses = Losses(equal_run_once, dropped, refused)
    lacks = chunks_without_record(calls_of({"a": 7}), chunk_table(rows), asked_twice({"x": 3, "y": 2}), losses)
    expected = f"{7 - recorded} of 7 chunks have no record of their own: "
    assert list(lacks) == ([] if reasons is None else [expected + "; ".join(reasons)])
