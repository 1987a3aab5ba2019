"""A small run that is written down by hand; what its metrics must be is worked out beside it, in EXPECTED."""

from __future__ import annotations

from math import sqrt
from typing import Any

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import FAILED, FINISHED, Environment, Run, RunnerCall
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS

T = 1_700_000_000.0
MIB = 2**20


def chunk(dataset: str, key: str | None, run_id: int | None, outcome: str, **values: Any) -> dict[str, Any]:
    """Row of the chunk table; `memory` is what there was before, after and at the peak, in MiB."""
    sizes = values.pop("memory", ())
    names = ("memory_before", "memory_after", "memory_peak")
    memory = {name: size * MIB for name, size in zip(names, sizes, strict=False)}
    row = {"dataset": dataset, "key": key, "run_id": run_id, "outcome": outcome, "call": "c1"}
    return row | {"start": T, "stop": T} | memory | values


FIRST = {"events": 100, "wall_seconds": 2.0, "cpu_seconds": 1.5, "coffea_bytes_read": 1000}
AGAIN = {"events": 100, "wall_seconds": 4.0, "cpu_seconds": 2.5, "coffea_bytes_read": 1000}
ERRED = {"wall_seconds": 1.0, "cpu_seconds": 0.5, "error": "boom"}
RETRIED = {"events": 300, "wall_seconds": 6.0, "cpu_seconds": 5.0, "coffea_bytes_read": 3000}
SKIPPED = {"wall_seconds": 0.5, "cpu_seconds": 0.25}
NO_TASK = {"events": 50, "wall_seconds": 8.0, "cpu_seconds": 6.0, "coffea_bytes_read": 500}
BRANCHES = ["Jet_pt-data", "Jet_pt-offsets", "run-data"]

CHUNKS = [
    # The result of k1 was lost with its worker and computed again: it counts once, its CPU twice.
    chunk("data", "k1", 1, "ok", attempt=1, memory=(100, 110, 120), file="a.root", worker="A", **FIRST),
    chunk("data", "k1", 5, "ok", attempt=2, memory=(100, 104, 130), file="a.root", worker="A", **AGAIN)
    | {"coffea_columns": BRANCHES},
    chunk("data", "k2", 2, "error", attempt=1, **ERRED),
    chunk("data", "k2", 6, "ok", attempt=2, memory=(200, 190, 210), **RETRIED),
    chunk("mc", "k3", 3, "skipped", attempt=1, **SKIPPED),
    chunk("mc", None, None, "ok", memory=(100, 100, 100), **NO_TASK),
]

TASKS = [
    {"key": "k1", "prefix": "Dijet", "kind": "processor", "outcome": "ok"},
    {"key": "k2", "prefix": "Dijet", "kind": "processor", "outcome": "error"},
    {"key": "r1", "prefix": "reduce", "kind": "merge", "outcome": "ok"},
]

SAMPLES = [
    {"worker": "A", "time": T + 40, "memory": 300, "executing": 1, "processing": 2, "cpu_percent": 50.0},
    {"worker": "A", "time": T + 10, "memory": 300, "executing": 1, "processing": 2, "cpu_percent": 98.0},
    {"worker": "B", "time": T + 30, "memory": 500, "executing": 0},
    {"worker": "A", "time": T + 0, "memory": 100, "executing": 0, "processing": 0},
]

LIFETIMES = [
    {"worker": "A", "threads": 2, "start": T, "stop": T + 100, "cpu_seconds": 50.0},
    {"worker": "B", "threads": 4, "start": T + 20, "stop": T + 60, "cpu_seconds": 30.0},
    # C takes the place of B at the same instant.
    {"worker": "C", "threads": 4, "start": T + 60, "stop": T + 80, "cpu_seconds": 10.0},
]

SPAN = {
    ("execute", "Dijet", "thread-cpu", "seconds"): 12.0,
    ("execute", "Dijet", "thread-noncpu", "seconds"): 4.0,
    ("execute", "Dijet", "memory-read", "bytes"): 1000,
    ("execute", "Dijet", "memory-read", "count"): 7,
    ("execute", "Dijet", "executor", "seconds"): 0.5,
    ("execute", "reduce", "thread-cpu", "seconds"): 0.75,
    ("execute", "reduce", "thread-noncpu", "seconds"): 0.25,
    ("execute", "reduce", "memory-read", "bytes"): 500,
    ("execute", "reduce", "disk-write", "bytes"): 64,
    ("execute", "reduce", "disk-write", "seconds"): 0.125,
    ("execute", "reduce", "serialize", "seconds"): 0.5,
    ("execute", "reduce", "compress", "seconds"): 0.25,
    ("execute", "N/A", "idle or other spans", "seconds"): 1000.0,
}


def call(name: str, start: float, stop: float, report: dict[str, Any] | None) -> RunnerCall:
    return RunnerCall(
        id=name,
        processor="Dijet",
        executor="DaskExecutor",
        start=start,
        stop=stop,
        outcome=FINISHED,
        report=report,
    )


CALLS = (
    call("c1", T + 10, T + 50, {"entries": 100, "bytesread": 1000}),
    call("c2", T + 40, T + 90, {"entries": 350, "bytesread": 3500}),
)


def handmade_run(**changes: Any) -> Run:
    """Return the run above, with some fields changed."""
    fields: dict[str, Any] = {
        "id": "0123abcd",
        "name": "by hand",
        "start": T,
        "stop": T + 100,
        "outcome": FINISHED,
        "error": None,
        "backend": "dask",
        "environment": Environment(versions={"coffea": "2026.9"}, client_host="here"),
        "calls": CALLS,
        "chunks": table_of_rows(CHUNK_COLUMNS, CHUNKS),
        "tasks": table_of_rows(TASK_COLUMNS, TASKS),
        "samples": table_of_rows(SAMPLE_COLUMNS, SAMPLES),
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, LIFETIMES),
        "span_metrics": SPAN,
    }
    return Run(**fields | changes)


def run_without_tables(**changes: Any) -> Run:
    """Return a run of which nothing was measured but its start and stop."""
    fields = ("chunks", "tasks", "samples", "lifetimes", "span_metrics")
    nothing: dict[str, Any] = dict.fromkeys(fields) | {
        "calls": (),
        "outcome": FAILED,
        "error": "ValueError: boom",
    }
    return handmade_run(**nothing | changes)


def empty_run(**changes: Any) -> Run:
    """Return a run in which all was measured and nothing happened."""
    nothing: dict[str, Any] = {
        "calls": (),
        "chunks": table_of_rows(CHUNK_COLUMNS, []),
        "tasks": table_of_rows(TASK_COLUMNS, []),
        "samples": table_of_rows(SAMPLE_COLUMNS, []),
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, []),
        "span_metrics": {},
    }
    return handmade_run(**nothing | changes)


EXPECTED = {
    "total_bytes_read": 4500,
    "data_rate_gbps": 3.6e-7,  # 8 x 4500 bits in 100 s
    "num_chunks": 3,
    "total_events": 450,
    "event_rate_elapsed_khz": 0.0045,
    "event_rate_cpu_total_khz": 0.45 / 15.75,
    "event_rate_core_khz": 0.45 / 440,
    "avg_workers": 1.6,  # (100 + 40 + 20) s in 100 s
    "peak_workers": 2,
    "total_cores": 4.4,  # (2 x 100 + 4 x 40 + 4 x 20) s in 100 s
    "cores_per_worker": 2.75,
    "core_efficiency": 15.75 / 440,
    "speedup_factor": 0.1575,
    "peak_memory_bytes": 210 * MIB,
    "avg_memory_per_worker_bytes": 387.5,  # A: (10 s x 200 + 30 s x 300) / 40 s = 275; B: 500
    "elapsed_time_seconds": 100.0,
    "runner_time_seconds": 80.0,  # 10 to 50 and 40 to 90
    "total_cpu_time": 15.75,  # 1.5 + 2.5 + 0.5 + 5 + 0.25 + 6
    "avg_cpu_time_per_chunk": 5.25,
    "worker_cpu_time_seconds": 90.0,
    "processor_cpu_time_seconds": 12.0,
    "processor_noncpu_time_seconds": 4.0,
    "overhead_cpu_time_seconds": 0.75,
    "overhead_noncpu_time_seconds": 0.25,
    "disk_read_bytes": 0,
    "disk_write_bytes": 64,
    "total_bytes_memory_read": 1500,
    "compression_time_seconds": 0.25,
    "decompression_time_seconds": 0.0,
    "serialization_time_seconds": 0.5,
    "deserialization_time_seconds": 0.0,
    "processor_cpu_percentage": 75.0,
    "processor_noncpu_percentage": 25.0,
    "total_compression_overhead_seconds": 0.25,
    "total_serialization_overhead_seconds": 0.5,
    "num_successful_chunks": 3,
    "num_failed_chunks": 2,
    "total_events_from_chunks": 450,
    "chunk_duration_mean": 5.0,  # of 2, 4, 6, 8
    "chunk_duration_min": 2.0,
    "chunk_duration_max": 8.0,
    "chunk_duration_std": sqrt(20 / 3),
    "chunk_mem_delta_mean_mb": 1.0,  # of 10, 4, -10, 0
    "chunk_mem_delta_min_mb": -10.0,
    "chunk_mem_delta_max_mb": 10.0,
    "chunk_mem_delta_std_mb": sqrt(212 / 3),
    "chunk_events_mean": 150.0,  # of 100, 300, 50
    "chunk_events_min": 50.0,
    "chunk_events_max": 300.0,
}
