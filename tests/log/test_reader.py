"""Entries of the scheduler's log as a client reads them, also those that cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from stand_ins import READERS, WORKER, T, entries, read

from roastcoffea.log import kinds
from roastcoffea.log.kinds import Kind
from roastcoffea.log.workers import ClusterLog

FREE_TEXT = (kinds.STRING, kinds.TASK_ERROR, kinds.PROBLEM)
"""Kinds of entries that hold nothing but text: whatever bytes there are can be read."""


def damages(payload: bytes) -> Iterator[bytes]:
    """Payloads that nobody can have written."""
    yield b""
    yield payload[: len(payload) // 2]
    yield b"\xff" * len(payload)


@pytest.mark.parametrize("reader", READERS)
def test_each_kind_is_read_as_what_it_is(reader: str) -> None:
    read_log = read(reader, [entry for entry in entries() if entry[0] in READERS[reader]])
    log, found = read_log.log, read_log.tables()
    assert log.problems == ["a worker is slow"]
    assert [row["key"] for row in found["tasks"]] == ["Jets-1", "Jets-2", "Jets-3"]
    assert log.attempts.table(0.0)["error"].to_pylist() == ["OSError: planted", None, None]
    merged = log.attempts.table(0.0).select(["merge_level", "inputs", "input_bytes"]).to_pylist()
    assert [list(row.values()) for row in merged] == [[None] * 3, [None] * 3, [2, 20, 3_000_000]]
    used = ["loop_cpu_seconds", "loop_queue_seconds", "process_cpu_seconds", "transitions"]
    assert [[row[name] for name in used] for row in found["sampling"]] == [[1.5, 0.25, 2.5, 40], [None] * 4]
    assert [row["time"] for row in found["samples"]] == [T, T + 1]
    assert [row["time"] for row in found["sampling"]] == [T, T + 1]
    assert [(row["time"], row["processing"]) for row in found["worker states"]] == [(T, 0), (T + 1, 1)]
    assert [(row["start"], row["stop"], row["cpu_seconds"]) for row in found["lifetimes"]] == [
        (T, T + 5, 1.5),
        (T + 6, T + 100, None),
    ]
    assert found["pauses"] == [{"worker": WORKER, "start": T + 1, "stop": T + 5}]
    assert [row["id"] for row in found["chunks"]] == [1, 2]
    assert log.workers.gaps == [(T + 7, T + 9)]
    assert found["counted"] == {WORKER: {("execute", "Jets", "thread-cpu", "seconds"): 2.5}}
    if reader == "monitor":
        assert [row["key"] for row in found["states"]] == ["Jets-1", "Jets-2", "Jets-3"]
        assert [row["key"] for row in found["views"]] == ["Jets-1", "Jets-2"]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_an_entry_that_cannot_be_read_is_skipped_and_reported(reader: str) -> None:
    good = [entry for entry in entries() if entry[0] in READERS[reader]]
    checked, wanted = set(), read(reader, good).tables()
    for place, (kind, payload) in enumerate(good):
        if kind in FREE_TEXT:
            continue
        for damage in damages(payload):
            found = read(reader, [*good[:place], (kind, damage), *good[place:]])
            assert found.tables() == wanted, (kind, damage)
            (problem,) = found.problems
            assert ("could not be read" if kind != kinds.CHUNK else "could not be unpacked") in problem
            checked.add(kind)
    assert checked == READERS[reader] - set(FREE_TEXT)


@pytest.mark.parametrize("reader", READERS)
def test_an_entry_that_is_lost_takes_no_other_with_it(reader: str) -> None:
    """Its rows are missing; names, texts and errors of all others stay their own."""
    good = [entry for entry in entries() if entry[0] in READERS[reader]]
    complete = read(reader, good).tables()
    for place, (kind, payload) in enumerate(good):
        if kind in FREE_TEXT or kind in {kinds.ARRIVAL, kinds.GPU}:  # samples lack the load of a GPU that is lost
            continue
        damaged = read(reader, [*good[:place], (kind, payload[:3]), *good[place + 1 :]]).tables()
        for name in ("tasks", "samples", "states", "views", "chunks"):
            assert all(row in complete[name] for row in damaged.get(name, ())), (kind, name)


def test_kinds_that_nobody_knows_and_ends_that_are_missing_are_reported() -> None:
    unknown = Kind(b"\xfe", ())
    assert "kind 254" in read("monitor", [(unknown, b"?"), *entries()]).problems[-1]
    log = ClusterLog()
    log.feed(struct.pack(kinds.HEADER, kinds.STRING.code, 1) + b"a" + kinds.STRING.code)
    assert "a truncated header" in log.problems[-1]
