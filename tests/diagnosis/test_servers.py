"""Why a server answers late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.diagnosis.servers import VECTORS, answering
from roastcoffea.metrics.endpoints import SERVER_COLUMNS
from roastcoffea.records.arrow import table_of_rows

ROW = {
    "endpoint": "data-1",
    "requests": 1200,
    "vector_reads": 1000,
    "bytes_transferred": 1_200_000_000,
    "bytes_per_request": 1e6,
    "latency": 0.25,
    "shortest_latency": 0.001,
    "rate": 4e6,
    "metadata_rate": 5e6,
    "payload_rate": 4e6,
}
FAR = {"latency": 0.15, "shortest_latency": 0.12, "bytes_per_request": 2e4}


def said(*rows: dict[str, Any], endpoint: str = "data-1") -> Any:
    evidence: Any = SimpleNamespace(endpoints=table_of_rows(SERVER_COLUMNS, rows))
    return answering(evidence, endpoint)


def test_a_slow_server_is_compared_with_the_others() -> None:
    other = ROW | {"endpoint": "data-2", "latency": 0.0125, "rate": 80e6, "payload_rate": 80e6}
    assert said(ROW, other).what == (
        "It delivers 4 MB/s to a request, the others 80 MB/s, and answers after 250 ms: the server is slow."
    )
    assert "the others" not in said(ROW).what


def test_round_trips_of_small_requests_are_told() -> None:
    found = said(ROW | FAR)
    assert found.what == (
        "Its 1,200 requests of 20 kB take 150 ms each, and the round trip alone 120 ms: too many small requests over a "
        "wide-area network."
    )
    assert found.remedy is None
    assert said(ROW | FAR | {"vector_reads": 0}).remedy == VECTORS


def test_a_cold_cache_delivers_at_once_what_was_read_before() -> None:
    found = said(ROW | {"metadata_rate": 90e6})
    assert found.what.endswith("at 90 MB/s and what is read for the first time at 4 MB/s: its cache was cold.")


@pytest.mark.parametrize(
    "row", [{"requests": None}, {"requests": 3}, {"latency": None}, {"rate": None}, {"endpoint": "data-3"}]
)
def test_nothing_is_said_of_what_was_not_measured(row: dict[str, Any]) -> None:
    assert said(ROW | row) is None


def test_nothing_is_said_without_a_table() -> None:
    assert answering(SimpleNamespace(endpoints=None), "data-1") is None  # type: ignore[arg-type]
