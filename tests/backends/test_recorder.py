"""What the backends of the package have in common: notes, tables of what came, and the names of 0.1.2."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from roastcoffea.backends.recorder import TABLES, Recorder
from roastcoffea.log.packing import packed_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS

T = 1_700_000_000.0


class Plain(Recorder):
    """No more than a backend must have; it takes note of the chunks that it is told of."""

    kind = "plain"
    elsewhere = "it is not here"

    def open(self, interval: float | None, span: str | None = None) -> None:
        self._begin()
        self._period.is_open = self._period.was_open = True
        self.learned: list[tuple[int, bool]] = []

    def close(self) -> None:
        self._period.is_open = False

    def reaches(self, executor: Any) -> bool:
        return True

    def learn_chunks(self, chunks: pa.Table, *, preprocessing: bool = False) -> None:
        self.learned.append((len(chunks), preprocessing))

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        return table_of_rows(LIFETIME_COLUMNS, [{"worker": "w", "threads": 2, "start": start, "stop": stop}])

    def samples(self) -> pa.Table:
        return table_of_rows(SAMPLE_COLUMNS, [{"worker": "w", "time": time.time(), "memory": 1000}])


def test_a_backend_learns_of_openings_and_chunks_before_it_is_asked_for_workers() -> None:
    backend = Plain()
    backend.open(None)
    backend.received.take(
        packed_records([{"id": 1, "call": "mine", "start": T}, {"id": 2, "call": "other", "start": T}])
    )
    chunks = backend.chunks({"mine"})
    assert chunks["id"].to_pylist() == [1]
    assert backend.learned == [(0, True), (1, False)]
    tables = {name: backend.table(name, chunks, T, T + 5) for name in TABLES[1:]}
    assert {name: None if table is None else len(table) for name, table in tables.items()} == {
        "branch_reads": 0,
        "sections": 0,
        "preprocessing": 0,
        "profile": 0,
        "tasks": None,
        "samples": 1,
        "sampling": None,
        "worker_states": None,
        "lifetimes": 1,
        "pauses": 0,
        "client_steps": None,
        "worker_requests": None,
    }
    assert backend.table("sections", None, T, T + 5) is None
    (lifetime,) = tables["lifetimes"].to_pylist()
    assert (lifetime["start"], lifetime["stop"]) == (T, T + 5)


def test_a_collector_that_was_given_a_recorder_has_one_of_its_own() -> None:
    given = Plain()
    given.open(None)
    given.note("of the first")
    fresh = given.renewed(None, None)
    assert type(fresh) is Plain
    assert fresh.name != given.name
    assert (fresh.was_open, fresh.notes()) == (False, [])
    assert (given.is_open, given.notes()) == (True, ["of the first"])
