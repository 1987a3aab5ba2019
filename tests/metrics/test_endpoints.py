"""Servers: what their openings sum up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from handmade import handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.endpoints import (
    LOCAL,
    SERVER_COLUMNS,
    SERVICEX,
    XCACHE,
    endpoint,
    hosts_of_urls,
    origin,
    service,
)
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS, PREPROCESSING_COLUMNS, Run

URL = "root://redirector//store/{}.root"
TOLD: dict[str, Any] = {
    "endpoint": "data-1:1095",
    "outcome": "ok",
    "attempt": 1,
    "opens": 1,
    "connect_seconds": 0.5,
    "requests": 5,
    "vector_reads": 3,
    "request_seconds": 2.0,
    "shortest_request_seconds": 0.1,
    "metadata_requests": 2,
    "metadata_request_seconds": 0.4,
    "bytes_requested": 1000,
    "bytes_transferred": 1100,
    "bytes_metadata": 200,
}


def run_of(chunks: list[dict[str, Any]], preprocessing: list[dict[str, Any]]) -> Run:
    return replace(
        handmade_run(),
        chunks=table_of_rows(CHUNK_COLUMNS, chunks),
        preprocessing=table_of_rows(PREPROCESSING_COLUMNS, preprocessing),
    )


def rows_of(run: Run) -> dict[str, dict[str, Any]]:
    """Row of each server, without what was not measured."""
    frame = Measurement(run).endpoints
    assert list(frame.columns) == [column.name for column in SERVER_COLUMNS]
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {row["endpoint"]: {name: value for name, value in row.items() if value is not None} for row in rows}


def test_openings_add_up_by_the_server_behind_the_redirector() -> None:
    a = TOLD | {"file": URL.format("a")}
    failed = a | {"outcome": "error", "attempt": 1, "opens": 0}
    again = a | {"attempt": 2, "shortest_request_seconds": 0.05, "left_endpoint": "data-2:1095"}
    opening = {
        name: value for name, value in (TOLD | {"file": URL.format("b")}).items() if not name.startswith("metadata_")
    }
    rows = rows_of(run_of([a, failed, again], [opening]))
    assert rows == {
        "data-1:1095": {
            "endpoint": "data-1:1095",
            "redirector": "redirector",
            "files": 2,
            "attempts": 4,
            "errors": 1,
            "retries": 1,
            "losses": 0,
            "opens": 3,
            "seconds_per_open": pytest.approx(2.0 / 3),
            "requests": 20,
            "vector_reads": 12,
            "bytes_requested": 4000,
            "bytes_transferred": 4400,
            "bytes_per_request": 220.0,
            "latency": pytest.approx(0.4),
            "metadata_latency": pytest.approx(0.2),
            "shortest_latency": 0.05,
            "rate": pytest.approx(550.0),
            # of three attempts at chunks: 600 B in 1.2 s with 6 round trips, 2400 B in 4.8 s with 9
            "metadata_rate": pytest.approx(600 / (1.2 - 6 * 0.05)),
            "payload_rate": pytest.approx(2400 / (4.8 - 9 * 0.05)),
        },
        "data-2:1095": {"endpoint": "data-2:1095", "attempts": 0, "losses": 1},
    }


def test_of_others_only_what_they_tell_is_known() -> None:
    chunks = [
        {"file": "https://web/a.root", "outcome": "ok", "bytes_requested": 10, "bytes_transferred": 12},
        {"file": "/data/b.root", "outcome": "skipped", "bytes_requested": 5},
    ]
    rows = rows_of(run_of(chunks, []))
    assert rows["web"] == {
        "endpoint": "web",
        "files": 1,
        "attempts": 1,
        "errors": 0,
        "bytes_requested": 10,
        "bytes_transferred": 12,
    }
    assert rows[LOCAL]["errors"] == 1


def test_the_same_server_with_and_without_its_usual_port_is_one() -> None:
    chunks = [TOLD | {"file": f"root://{host}//a.root", "endpoint": "data-1"} for host in ("data-1", "data-1:1094")]
    (row,) = rows_of(run_of(chunks, [])).values()
    assert "redirector" not in row
    assert row["attempts"] == 2


def test_ledgers_are_split_by_the_server_behind_the_redirector() -> None:
    measurement = Measurement(handmade_run())
    before = measurement.byte_ledger.by("endpoint").drop(columns="endpoint", errors="ignore")
    run = measurement.run
    assert run.chunks is not None
    told = table_of_rows(CHUNK_COLUMNS, [row | {"endpoint": "data-1"} for row in run.chunks.to_pylist()])
    after = Measurement(replace(run, chunks=told))
    assert "data-1" in after.byte_ledger.by("endpoint").index
    assert after.byte_ledger.by("endpoint")["total"].sum() == before["total"].sum()
    assert "data-1" in after.time_ledger.by("endpoint").index
    assert after.time_ledger.by("endpoint")["total"].sum() == pytest.approx(
        measurement.time_ledger.by("endpoint")["total"].sum()
    )


def test_without_openings_there_are_no_servers() -> None:
    assert "no file was opened" in Measurement(run_of([], [])).endpoints.attrs["absent"]


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("root://xcache.example.org//store/a.root", ("xcache.example.org", XCACHE, None)),
        ("root://cache:1095//root://eos.example.org//eos/a.root", ("cache:1095", XCACHE, "eos.example.org")),
        ("root://cache//root:/eos.example.org:1096//eos/a.root", ("cache", XCACHE, "eos.example.org:1096")),
        ("https://minio-servicex.example.org/b/part.root?X-Amz=1", ("minio-servicex.example.org", SERVICEX, None)),
        ("https://minio.example.org/b/root:::eos.example.org::eos:a.root", ("minio.example.org", SERVICEX, None)),
        ("root://eos.example.org//store/cache/a.root", ("eos.example.org", None, None)),
        ("/data/a.root", (LOCAL, None, None)),
        (None, (None, None, None)),
    ],
)
def test_services_are_known_by_their_names(file: str | None, known: tuple[str | None, ...]) -> None:
    assert (endpoint(file), service(file), origin(file)) == known


URLS = [
    "root://xrootd.example.org:1094//store/a.root",
    "root://xrootd.example.org//store/b.root",
    "https://user:secret@web.example.org/a/b?c=/d",
    "root://host",
    "root:///local",
    "/data/a.root",
    "a.root",
    "dir/a.root",
    "http://[::bad/a.root",
    "root://a.example.org//store/line\nbreak/c.root",
    "",
    None,
]


@pytest.mark.parametrize("more", [[], ["simplecache::root://xrootd.example.org//store/a.root"]])
def test_hosts_of_many_urls_are_those_of_each(more: list[str]) -> None:
    urls = [*URLS, *more, *reversed(URLS)]
    attempts = table_of_rows(CHUNK_COLUMNS, [{"file": url} for url in urls])
    assert hosts_of_urls(attempts).to_pylist() == [endpoint(url) for url in urls]


def test_services_and_sites_stand_with_their_server() -> None:
    file = "root://cache//root://eos.example.org//eos/a.root"
    run = run_of([{"dataset": "a", "file": file, "outcome": "ok"}], [])
    asked = table_of_rows(ASKED_COLUMNS, [{"dataset": "a", "file": file, "site": "T2_CH_CERN"}])
    row = rows_of(replace(run, asked=asked))["cache"]
    assert (row["service"], row["origin"], row["sites"]) == (XCACHE, "eos.example.org", "T2_CH_CERN")
