"""Why a server answers late."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from limited_runs import edited, with_rows
from made_runs import made_run, plan, with_call

from roastcoffea.diagnosis.findings.reading import VECTORS, answering
from roastcoffea.diagnosis.findings.reading import slow_servers as slower_than_others
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.endpoints import SERVER_COLUMNS, XCACHE
from roastcoffea.records.arrow import table_of_rows

ROW = {
    "endpoint": "data-1",
    "requests": 1200,
    "vector_reads": 1000,
    "bytes_transferred": 1_200_000_000,
    "bytes_per_request": 1e6,
    "latency": 0.25,
    "shortest_latency": 0.001,
    "metadata_latency": 0.1,
    "rate": 4e6,
    "metadata_rate": 5e6,
    "payload_rate": 4e6,
}
FAR = {"latency": 0.15, "shortest_latency": 0.12, "bytes_per_request": 2e4}


def said(*rows: dict[str, Any], endpoint: str = "data-1") -> Any:
    evidence: Any = SimpleNamespace(endpoints=table_of_rows(SERVER_COLUMNS, rows), branches_ahead=None)
    return answering(evidence, endpoint)


def test_a_slow_server_is_compared_with_the_others() -> None:
    other = ROW | {"endpoint": "data-2", "latency": 0.0125, "rate": 80e6, "payload_rate": 80e6}
    assert said(ROW, other).what == (
        "serves 4 MB/s per request (others 80 MB/s) and answers after 250 ms with a round trip of 1 ms: the server, "
        "or the link to it, is slow."
    )
    assert said(ROW, other, endpoint="data-2") is None
    assert said(ROW, ROW | {"endpoint": "data-2"}) is None
    assert "others" not in said(ROW).what
    assert said(ROW | {"rate": 60e6}) is None


@pytest.mark.parametrize(
    "row",
    [
        {"bytes_per_request": 3.6e3, "latency": 0.00391, "shortest_latency": 0.00362, "rate": 914e3},
        {"bytes_per_request": 2e4, "latency": 0.004, "shortest_latency": 0.0025, "rate": 5e6},
        {"bytes_per_request": 3e3, "latency": 0.004, "shortest_latency": 0.001, "rate": 750e3},
    ],
)
def test_a_server_is_not_slow_for_round_trips_or_small_requests(row: dict[str, Any]) -> None:
    """However near it is: their rate says nothing of the bandwidth."""
    other = ROW | {"endpoint": "data-2", "latency": 0.0125, "rate": 80e6}
    for others in ((), (other,)):
        assert said(ROW | {"payload_rate": None} | row, *others) is None


def test_round_trips_of_small_requests_are_told() -> None:
    found = said(ROW | FAR)
    assert found.what == (
        "gets 1,200 requests of 20 kB, which take 150 ms each, including a round trip of 120 ms: too many small "
        "requests over a wide-area network."
    )
    assert found.remedy is None
    assert said(ROW | FAR | {"vector_reads": 0}).remedy == VECTORS


HTTP_ROW = ROW | FAR | {"vector_reads": None, "endpoint": "far.org"}


def test_round_trips_of_http_are_saved_by_reading_branches_ahead() -> None:
    """As of a dataset with 224 requests of 30 ms: its rate says nothing of the bandwidth."""
    plans = [plan(0.05, read=0.3, file=f"https://far.org/{number % 4}.root", dataset="ttbar") for number in range(40)]
    chunks = {"requests": 12, "request_seconds": 0.37, "shortest_request_seconds": 0.03, "bytes_requested": 240_000}
    chunks |= {
        "bytes_transferred": 240_000,
        "metadata_requests": 2,
        "metadata_request_seconds": 0.06,
        "bytes_metadata": 40_000,
    }
    names = [f"Jet_{number}" for number in range(9)] + ["nJet"]
    reads = [{"chunk": row, "branch": name, "read_seconds": 0.03} for row in range(40) for name in names]
    run = with_rows(edited(made_run(plans, 2), chunks=lambda row: chunks), branch_reads=reads)
    (found,) = (one for one in Measurement(run).verdict if one.cause == "storage")
    assert "It gets 480 requests of 20 kB, which take 30.8 ms each, including a round trip of 30 ms" in found.what
    assert "per stream" not in found.what
    assert found.remedy == f'fileset["ttbar"]["preload"] = {json.dumps(names)}'
    # of ten round trips of each of 20 chunks of a worker one is left
    assert found.seconds == pytest.approx(20 * 9 * 0.03, rel=0.05)
    # read ahead of process() already
    ahead = edited(
        run, chunks=lambda row: {"metadata_requests": 12, "metadata_request_seconds": 0.37, "bytes_metadata": 240_000}
    )
    (found,) = (one for one in Measurement(ahead).verdict if one.cause == "storage")
    assert (found.remedy, found.advice) == (None, "Use larger chunks, or read a nearer copy.")


def test_slow_servers_and_cold_caches_are_told_of_http_too() -> None:
    row = {"vector_reads": None, "opens": None}
    assert "the server, or the link to it, is slow" in said(ROW | row).what
    assert "its cache was cold" in said(ROW | row | {"metadata_rate": 90e6}).what
    assert said(HTTP_ROW, endpoint="far.org").advice == "Use larger chunks, or read a nearer copy."


def test_a_cold_cache_delivers_at_once_what_was_read_before() -> None:
    found = said(ROW | {"metadata_rate": 90e6})
    assert found.what.endswith("at 90 MB/s but first reads at 4 MB/s: its cache was cold.")
    # requests of less than 4 kB
    assert "slow" in said(ROW | {"metadata_rate": 90e6, "metadata_latency": 4e-5}).what
    named = ROW | {"service": XCACHE, "metadata_latency": 0.01}
    assert said(named).what.endswith("after 10 ms and all requests after 250 ms on average: it was probably cold.")
    assert "slow" in said(named | {"metadata_latency": 0.1}).what


@pytest.mark.parametrize(
    "row", [{"requests": None}, {"requests": 3}, {"latency": None}, {"rate": None}, {"endpoint": "data-3"}]
)
def test_nothing_is_said_of_what_was_not_measured(row: dict[str, Any]) -> None:
    assert said(ROW | row) is None


def test_nothing_is_said_without_a_table() -> None:
    assert answering(SimpleNamespace(endpoints=None), "data-1") is None  # type: ignore[arg-type]


def slower(*rows: dict[str, Any]) -> dict[str, float]:
    evidence: Any = SimpleNamespace(endpoints=table_of_rows(SERVER_COLUMNS, rows))
    return slower_than_others(evidence.endpoints)


def server(name: str, size: float, latency: float, trip: float = 0.001, requests: int = 100) -> dict[str, Any]:
    """Row of a server that answers requests of a size after a latency."""
    told = {
        "endpoint": name,
        "requests": requests,
        "latency": latency,
        "shortest_latency": trip,
        "rate": size / latency,
    }
    return told | {"bytes_per_request": size, "bytes_transferred": round(requests * size)}


def test_servers_are_compared_by_what_requests_of_their_size_take_elsewhere() -> None:
    usual = server("a", 1e6, 0.011)  # 100 MB/s
    assert slower(usual, server("b", 1e6, 0.055)) == {"b": pytest.approx(5.0)}
    assert slower(usual, server("b", 1e6, 0.022)) == {}
    # small requests have a low rate anywhere, and large ones a long latency
    assert slower(usual, server("b", 1e4, 0.0012)) == {}
    assert slower(usual, server("b", 1e7, 0.11)) == {}
    # it may be the round trip
    assert slower(usual, server("b", 1e5, 0.102, trip=0.1)) == {"b": pytest.approx(51.0)}


def test_slow_servers_are_compared_with_the_fast_ones() -> None:
    rows = [server(name, 1e6, latency) for name, latency in (("a", 0.011), ("b", 0.011), ("c", 0.1), ("d", 0.2))]
    assert slower(*rows).keys() == {"c", "d"}
    assert slower(*rows[:1]) == {}
    assert slower(rows[0], server("few", 1e6, 0.2, requests=3)) == {}


@pytest.mark.parametrize(("size", "few"), [(1_000, 8), (150, 22), (120, 27), (90, 0), (None, 0)])
def test_small_files_are_merged_up_to_the_chunk_size(size: int | None, few: int) -> None:
    """Of 64 files of 50 events each, for 4 threads: two files for each thread remain."""
    plans = [plan(0.05, open_wait=0.5, events=50, file=f"{number}.root") for number in range(64)]
    options = {} if size is None else {"chunksize": size}
    run = with_call(made_run(plans, 4), options=options)
    (found,) = (one for one in Measurement(run).verdict if one.cause == "metadata")
    if not few:
        assert "Merge small files:" not in found.advice
        return
    assert found.advice.startswith(f"Merge small files: 64 would become {few}, with one chunk each.")
    assert found.remedy == "hadd -O merged.root FILES"
    assert found.seconds == pytest.approx(64 / 4 * 0.5 * (1 - few / 64), rel=0.1)
