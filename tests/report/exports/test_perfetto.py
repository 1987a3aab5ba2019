"""Traces: slices nest, and are as long as what they show."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any
from urllib.error import URLError

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from analyses import Jets, runner_for
from handmade import CHUNKS, LIFETIMES, TASKS, T, handmade_run

from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, TASK_COLUMNS


@pytest.fixture
def handmade() -> Measurement:
    return Measurement(handmade_run())


def events_of(measurement: Measurement, folder: Path, name: str = "trace.json") -> list[dict[str, Any]]:
    path = measurement.export(folder / name, "perfetto")
    data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    trace = json.loads(data)
    check_format(trace)
    return list(trace["traceEvents"])


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


def check_format(trace: dict[str, Any]) -> None:
    """Check what the format of trace events asks for, and that slices of a track nest."""
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    tracks: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    named: dict[str, set[Any]] = defaultdict(set)
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "C", "M"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event.get("tid")))
        else:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(nanoseconds(event))
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    assert set(tracks) <= named["thread_name"]
    assert {(process, None) for process, _ in tracks} <= named["process_name"]
    threads = [thread for _, thread in named["thread_name"]]
    assert len(set(threads) | {process for process, _ in named["process_name"]}) == len(threads) + len(
        named["process_name"]
    )
    for slices in tracks.values():
        check_nesting(slices)


def check_nesting(slices: list[tuple[int, int]]) -> None:
    """Check that each of two slices lies within the other, or beside it."""
    open_until: list[int] = []
    for start, stop in sorted(slices, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or stop <= open_until[-1]
        open_until.append(stop)


def test_slices_that_cross_fail_the_check() -> None:
    check_nesting([(0, 10), (0, 4), (4, 10), (10, 12)])
    with pytest.raises(AssertionError):
        check_nesting([(0, 10), (5, 11)])


def test_attempts_lie_within_their_tasks_with_their_phases(handmade: Measurement, tmp_path: Path) -> None:
    events = events_of(handmade, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    tasks = {(event["args"]["key"], event["args"].get("run_id")): event for event in slices if event["cat"] in KINDS}
    assert set(tasks) == {(task["key"], task["run_id"]) for task in TASKS}
    times = {key: (event["ts"] / 1e6, event["dur"] / 1e6) for key, event in tasks.items()}
    assert times["k1", 1] == (10, 2.5)
    assert times["r1", None] == (40, 2)
    assert tasks["k2", 2]["args"]["outcome"] == "error"
    assert "cname" in tasks["k2", 2]
    assert "cname" not in tasks["k1", 1]
    chunk = next(event for event in slices if event["cat"] == "chunk" and event["args"].get("bytes_requested") == 3000)
    assert chunk["name"] == "data: a.root"
    assert chunk["args"]["entry_start"] == 100
    assert chunk["args"]["entry_stop"] == 400


def test_phases_are_as_long_as_they_were(tmp_path: Path) -> None:
    chunk = {**CHUNKS[3], "worker": "B", "start": T + 22.25, "stop": T + 28.25}
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, [chunk]))
    slices = [event for event in events_of(Measurement(run), tmp_path) if event["ph"] == "X"]
    phases = {event["name"]: (event["ts"] / 1e6, event["dur"] / 1e6) for event in slices if event["cat"] == "phase"}
    assert phases == {
        "open": (22.25, 0.125),
        "build": (22.375, 0.125),
        "process": (22.5, 5.25),
        "read": (22.5, 1.0),
        "decompress": (23.5, 0.5),
        "interpret": (24.0, 0.25),
        "compute": (24.25, 3.0),
        "contention": (27.25, 0.25),
        "lock": (27.5, 0.125),
        "blocked": (27.625, 0.125),
        "result": (27.75, 0.25),
    }


KINDS = {"processor", "merge", "preprocessing", "other"}


def test_counters_tell_workers_memory_and_rate(handmade: Measurement, tmp_path: Path) -> None:
    counters: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    events = events_of(handmade, tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    for event in events:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            counters[names[event["pid"]], event["name"]].append((event["ts"] / 1e6, value))
    assert counters["run", "workers"] == [(0, 1), (20, 2), (60, 2), (80, 1), (100, 0)]
    assert {type(number) for _, number in counters["run", "workers"]} == {int}
    assert counters["worker A", "memory"] == [(0, 100), (10, 300), (40, 300)]
    # B comes with 500 B, and leaves at 60
    assert counters["run", "memory of all workers"] == [(0, 100), (10, 300), (30, 800), (40, 800), (60, 300)]


def test_an_unknown_worker_has_a_process_of_its_own(handmade: Measurement, tmp_path: Path) -> None:
    unknown = {
        name: table.set_column(
            table.column_names.index("worker"), table.schema.field("worker"), pa.nulls(len(table), pa.string())
        )
        for name in ("samples", "lifetimes")
        if (table := getattr(handmade.run, name)) is not None
    }
    events = events_of(Measurement(replace(handmade.run, **unknown)), tmp_path)
    (place,) = {event["pid"] for event in events if event["name"] == "memory" and event["ph"] == "C"}
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[place] == "unknown worker"


def test_the_rate_adds_up_to_the_bytes(tmp_path: Path) -> None:
    rows = [
        {**CHUNKS[0], "id": number, "start": T + number, "stop": T + number + 4, "bytes_requested": 10**9}
        for number in range(5)
    ]
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), preprocessing=None)
    events = [event for event in events_of(Measurement(run), tmp_path) if event["name"] == "storage rate"]
    times = np.array([event["ts"] / 1e6 for event in events])
    rates = np.array([event["args"]["Gbit/s"] for event in events])
    assert list(times) == [*range(9)]
    assert list(rates) == [2, 4, 6, 8, 8, 6, 4, 2, 0]
    assert np.sum(rates[:-1] * np.diff(times)) == 5 * 8


def overlapping() -> Iterator[dict[str, Any]]:
    times = [(0, 2), (1, 3), (1.5, 2.5), (2.9995, 4), (4, 4), (5, None)]
    for number, (start, stop) in enumerate(times):
        row = {"key": f"k{number}", "run_id": number, "prefix": "p", "kind": "other", "outcome": "ok", "worker": "A"}
        ended = {"stop": T + stop} if stop is not None else {"outcome": "unfinished"}
        yield row | {"thread": 7, "start": T + start} | ended


def test_tasks_of_a_thread_that_overlap_get_tracks_of_their_own(tmp_path: Path) -> None:
    run = handmade_run(tasks=table_of_rows(TASK_COLUMNS, overlapping()), chunks=None, preprocessing=None)
    events = events_of(Measurement(run), tmp_path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = [names[event["tid"]] for event in events if event["ph"] == "X" and event["cat"] == "other"]
    assert tracks == [*["thread 7"] * 4, *["thread 7 (concurrent)"] * 2]
    assert next(event for event in events if event["args"].get("stop") == "unknown")["dur"] == 0


def test_a_trace_can_be_compressed(handmade: Measurement, tmp_path: Path) -> None:
    plain, packed = events_of(handmade, tmp_path), events_of(handmade, tmp_path, "trace.json.gz")
    assert plain == packed


def test_perfetto_reads_the_trace(handmade: Measurement, tmp_path: Path) -> None:
    processors = pytest.importorskip("perfetto.trace_processor", reason="there is no package perfetto to read traces")
    from perfetto.common.exceptions import PerfettoException

    path = handmade.export(tmp_path / "trace.json", "perfetto")
    try:
        processors.TraceProcessor().close()  # without a trace of ours
    except (CalledProcessError, PerfettoException, URLError) as error:  # it fetches its program, with curl or without
        pytest.skip(f"Perfetto's trace processor does not start: {error}")
    with processors.TraceProcessor(trace=str(path)) as processor:
        (found,) = processor.query("select count(*) as number from slice where category = 'chunk'")
        (errors,) = processor.query("select coalesce(sum(value), 0) as number from stats where severity = 'error'")
    events = events_of(handmade, tmp_path, "again.json")
    assert found.number == sum(event.get("cat") == "chunk" for event in events)
    assert errors.number == 0


def test_a_clock_that_is_ahead_is_set_right(tmp_path: Path) -> None:
    lifetimes = pa.Table.from_pylist([{**row, "clock_offset": 5.0} for row in LIFETIMES])
    lifetimes = table_of_rows(LIFETIME_COLUMNS, lifetimes.to_pylist())
    chunk = {**CHUNKS[-1], "worker": "A", "start": T + 15, "stop": T + 23}
    run = handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, [chunk]), lifetimes=lifetimes)
    events = events_of(Measurement(run), tmp_path)
    origin = T - 5  # samples of that clock begin before the run
    (found,) = [event for event in events if event.get("cat") == "chunk"]
    assert found["ts"] / 1e6 + origin == pytest.approx(T + 10)


@pytest.mark.slow
def test_a_real_run_has_a_track_for_each_thread(client: Any, sample: Any, tmp_path: Path) -> None:
    with MetricsCollector(client) as collector:
        runner_for(client, 1000)(sample, processor_instance=Jets())
    measurement = collector.measurement
    events = events_of(measurement, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    timed = measurement.tasks.dropna(subset=["start", "stop"])
    assert len([event for event in slices if event["cat"] in KINDS and "key" in event["args"]]) == len(timed)
    chunks = [event for event in slices if event["cat"] == "chunk"]
    assert sum(event["args"]["events"] for event in chunks) == 16000
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks = {event["tid"] for event in slices if event["cat"] in KINDS}
    assert len(tracks) == timed.groupby(["worker", "thread"]).ngroups
    assert not any("same time" in name for name in names.values())
    for event in chunks:
        assert event["dur"] / 1e6 <= event["args"].get("wall_seconds", 60)
    processed = measurement.chunks["process_seconds"].sum()
    told = sum(event["dur"] for event in slices if event["cat"] == "phase" and event["name"] == "process") / 1e6
    assert told == pytest.approx(processed, rel=0.01)
    folder = measurement.export(tmp_path / "tables", "parquet")
    assert len(pd.read_parquet(folder / "chunks.parquet")) == 16
