"""Small runs that are written down by hand; what the metrics of the first must be is worked out beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import sqrt
from typing import Any

from roastcoffea.diagnosis.completeness import Fit, MemoryEvidence
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.savings import Savings
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import ByteLedger, Metrics
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    FAILED,
    FINISHED,
    PREPROCESSING_COLUMNS,
    SECTION_COLUMNS,
    Environment,
    Run,
    RunnerCall,
)
from roastcoffea.records.workers import (
    CLIENT_STEP_COLUMNS,
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    TASK_COLUMNS,
)
from roastcoffea.report.tables import known

T = 1_700_000_000.0
MIB = 2**20

WORKER_SERIES = (
    "worker_memory",
    "worker_memory_limit",
    "worker_active_tasks",
    "worker_cores",
    "worker_nbytes",
    "worker_occupancy",
    "worker_executing",
    "worker_last_seen",
    "worker_cpu",
)
"""What `tracking_data` has of each worker."""


def chunk(dataset: str, key: str | None, run_id: int | None, outcome: str, **values: Any) -> dict[str, Any]:
    """Row of the chunk table; `memory` is what there was before, after and at the peak, in MiB."""
    sizes = values.pop("memory", ())
    names = ("memory_before", "memory_after", "memory_peak")
    memory = {name: size * MIB for name, size in zip(names, sizes, strict=False)}
    row = {"dataset": dataset, "key": key, "run_id": run_id, "outcome": outcome, "call": "c1"}
    row |= {"bytes_other": 0, "bytes_unmetered": 0} | dict.fromkeys(WROTE, 0)
    return row | {"start": T, "stop": T} | memory | values


WROTE = ("files_written", "bytes_written", "bytes_written_unmetered")


def phases(*seconds: float) -> dict[str, float]:
    """Phases of an attempt that was computed to the end, in this order, and the sum of those in process()."""
    names = ("open", "build", "read", "decompress", "interpret", "compute", "wait", "checkpoint", "result")
    named = {f"{name}_seconds": value for name, value in zip(names, seconds, strict=True)}
    named |= {"write_cpu_seconds": 0.0, "write_wait_seconds": 0.0, "measuring_seconds": 0.0}
    return waits(named.pop("wait_seconds")) | named | {"process_seconds": sum(seconds[2:7])}


def waits(seconds: float) -> dict[str, float]:
    """Waiting in process(): half of it for a core, a quarter for the interpreter's lock, a quarter blocked."""
    return {"contention_seconds": seconds / 2, "lock_seconds": seconds / 4, "blocked_seconds": seconds / 4}


def reading(requested: int, payload: int, metadata: int, uncompressed: int, **values: Any) -> dict[str, Any]:
    """What an attempt read; of the source 64 B more came than it asked for."""
    amounts = {"bytes_requested": requested, "bytes_payload": payload, "bytes_metadata": metadata}
    file = {"tree": "Events", "uuid": "ab", "tree_branches": 4, "source": "FSSpecSource(HTTPFileSystem)"}
    transferred = {"bytes_uncompressed": uncompressed, "bytes_transferred": requested + 64}
    return file | amounts | transferred | {"coffea_bytes_read": requested} | values


def entries(start: int, stop: int, result: bool = True) -> dict[str, int]:
    return {"entry_start": start, "entry_stop": stop} | ({"events": stop - start} if result else {})


FIRST = {"wall_seconds": 2.0, "cpu_seconds": 1.25, "helper_cpu_seconds": 0.25} | entries(0, 100)
AGAIN = {"wall_seconds": 4.0, "cpu_seconds": 2.5, "helper_cpu_seconds": 0.0} | entries(0, 100)
ERRED = {"wall_seconds": 1.0, "cpu_seconds": 0.5, "helper_cpu_seconds": 0.0, "error": "boom"} | entries(100, 400, False)
RETRIED = {"wall_seconds": 6.0, "cpu_seconds": 5.0, "helper_cpu_seconds": 0.0} | entries(100, 400)
SKIPPED = {"wall_seconds": 0.5, "cpu_seconds": 0.25, "helper_cpu_seconds": 0.0} | entries(0, 10, False)
NO_TASK = {"wall_seconds": 8.0, "cpu_seconds": 6.0, "helper_cpu_seconds": 0.0} | entries(0, 50)
BRANCHES = ["Jet_pt-data", "Jet_pt-offsets", "run-data"]
A, B = "root://storage:1094//a.root", "/data/b.root"

CHUNKS = [
    # The result of k1 was lost with its worker and computed again: it counts once, its CPU twice.
    chunk("data", "k1", 1, "ok", attempt=1, memory=(100, 110, 120), file=A, worker="A", id=11, **FIRST)
    | reading(1000, 800, 200, 2000, file_bytes=4800)
    | phases(0.125, 0.25, 0.25, 0.125, 0.125, 0.5, 0.25, 0.0, 0.125),
    chunk("data", "k1", 5, "ok", attempt=2, memory=(100, 104, 130), file=A, worker="A", id=12, **AGAIN)
    | reading(1000, 800, 200, 2000, file_bytes=4800)
    | phases(0.125, 0.5, 0.5, 0.25, 0.25, 1.5, 0.5, 0.25, 0.125)
    | {"measuring_seconds": 0.5, "coffea_columns": BRANCHES, "start": T + 1},
    # Failed as it built its events, after 300 B.
    chunk("data", "k2", 2, "error", attempt=1, file=A, id=13, **ERRED)
    | reading(300, 0, 300, 0)
    | {"open_seconds": 0.5},
    chunk("data", "k2", 6, "ok", attempt=2, memory=(200, 190, 210), file=A, id=14, **RETRIED)
    | reading(3000, 2700, 250, 7000, file_bytes=4800)
    | phases(0.125, 0.125, 1.0, 0.5, 0.25, 3.0, 0.5, 0.0, 0.25)
    | {"start": T + 2},
    chunk("mc", "k3", 3, "skipped", attempt=1, file=A, id=15, **SKIPPED) | reading(0, 0, 0, 0),
    chunk("mc", None, None, "ok", memory=(100, 100, 100), file=B, id=16, **NO_TASK)
    | reading(500, 400, 100, 500, file_bytes=800)
    | phases(0.25, 0.25, 0.5, 0.5, 0.5, 5.0, 0.5, 0.0, 0.25),
]


def branch_read(chunk_id: int, branch: str, first: int, sizes: list[int], **values: Any) -> dict[str, Any]:
    """Row of the table of branches; it decompresses to twice its size where nothing else is said."""
    seconds = {"read_seconds": 0.25, "decompress_seconds": 0.125, "interpret_seconds": 0.0625}
    baskets = {"baskets": len(sizes), "basket_first": first, "basket_last": first + len(sizes) - 1}
    size = sum(sizes)
    amounts = {"bytes_payload": size, "bytes_again": 0, "bytes_uncompressed": 2 * size, "basket_bytes": sizes}
    return {"chunk": chunk_id, "branch": branch} | amounts | baskets | seconds | values


BRANCH_READS = [
    branch_read(11, "Jet_pt", 0, [300, 300]),
    branch_read(11, "run", 0, [200]),
    branch_read(12, "Jet_pt", 0, [300, 300], bytes_uncompressed=1500),
    branch_read(12, "run", 0, [200], bytes_uncompressed=500),
    # Shares a basket of 300 B with the chunk before, and reads one of 400 B twice.
    branch_read(14, "Jet_pt", 1, [300, 1000, 400], bytes_again=400, bytes_uncompressed=6000),
    branch_read(14, "run", 1, [600], bytes_uncompressed=1000),
    branch_read(16, "Jet_pt", 0, [400], bytes_uncompressed=400),
    # Came with the tree.
    branch_read(16, "run", 0, [0], bytes_uncompressed=100),
]

PREPROCESSINGS = [
    {"id": 1, "dataset": "data", "file": A, "key": "p1", "run_id": 1, "bytes_requested": 150, "outcome": "ok"},
    {"id": 2, "dataset": "mc", "file": B, "key": "p2", "run_id": 1, "bytes_requested": 50, "outcome": "error"},
    {"id": 3, "dataset": "mc", "file": B, "key": "p2", "run_id": 2, "bytes_requested": 50, "outcome": "ok"},
]
PREPROCESSINGS = [row | {"bytes_transferred": row["bytes_requested"]} for row in PREPROCESSINGS]

ASKED = [
    {"dataset": "mc", "file": "/data/never.root"},
    {"dataset": "data", "file": A, "uuid": "ab", "entry_start": 0, "entry_stop": 100},
    {"dataset": "data", "file": A, "uuid": "ab", "entry_start": 100, "entry_stop": 400},
    # Skipped: nothing came of it.
    {"dataset": "mc", "file": A, "uuid": "ab", "entry_start": 0, "entry_stop": 10},
    {"dataset": "mc", "file": B, "uuid": "ab", "entry_start": 0, "entry_stop": 50},
]
ASKED = [row | {"call": "c1", "tree": "Events"} for row in ASKED]

SECTIONS = [
    {"chunk": 12, "name": "jets", "count": 2, "wall_seconds": 1.0, "self_seconds": 0.5, "cpu_seconds": 0.75}
    | {"max_seconds": 0.75, "errors": 0},
    {"chunk": 12, "name": "jets/read", "count": 1, "wall_seconds": 0.5, "self_seconds": 0.5, "cpu_seconds": 0.25}
    | {"max_seconds": 0.5, "errors": 0, "bytes": 600},
    {"chunk": 13, "name": "jets", "count": 1, "wall_seconds": 0.25, "self_seconds": 0.25, "cpu_seconds": 0.25}
    | {"max_seconds": 0.25, "errors": 1},
    {"chunk": 16, "name": "jets", "count": 1, "wall_seconds": 2.0, "self_seconds": 2.0, "cpu_seconds": 2.0}
    | {"max_seconds": 2.0, "errors": 0, "memory_peak": 120 * MIB, "memory_delta": 3 * MIB},
]


def task(
    key: str, run_id: int | None, kind: str, outcome: str, worker: str, start: float, stop: float
) -> dict[str, Any]:
    """Row of the task table: it waited for nothing."""
    prefix = {"processor": "Dijet", "preprocessing": "get", "merge": "reduce"}[kind]
    times = {"runnable": T + start, "assigned": T + start, "start": T + start, "stop": T + stop}
    row = {"key": key, "run_id": run_id, "prefix": prefix, "kind": kind, "outcome": outcome, "worker": worker}
    return row | times


TASKS = [
    task("k1", 1, "processor", "ok", "A", 10, 12.5),
    task("k1", 5, "processor", "ok", "A", 11, 15.5),
    task("k2", 2, "processor", "error", "A", 20, 21),
    task("k2", 6, "processor", "ok", "B", 22, 28.5),
    task("k3", 3, "processor", "ok", "B", 30, 31),
    task("p1", 1, "preprocessing", "ok", "A", 2, 3),
    task("p2", 1, "preprocessing", "error", "A", 3, 3.5),
    task("p2", 2, "preprocessing", "ok", "A", 4, 4.5),
    task("p3", 1, "preprocessing", "ok", "A", 5, 5.25) | {"prefix": "reduce"},
    task("r1", None, "merge", "ok", "A", 40, 42),
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

# After B did its last task.
PAUSES = [{"worker": "B", "start": T + 50, "stop": T + 58}]

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
    ("execute", "reduce", "disk-read", "bytes"): 0,
    ("execute", "reduce", "decompress", "seconds"): 0.0,
    ("execute", "reduce", "deserialize", "seconds"): 0.0,
    ("execute", "N/A", "idle or other spans", "seconds"): 1000.0,
}


SPAN_PER_WORKER = {
    "A": {
        ("execute", "Dijet", "thread-cpu", "seconds"): 8.0,
        ("execute", "Dijet", "thread-noncpu", "seconds"): 1.0,
        ("execute", "reduce", "thread-cpu", "seconds"): 0.75,
        ("gather-dep", "network", "bytes"): 2000,
        ("gather-dep", "network", "seconds"): 0.5,
    },
    "B": {
        ("execute", "Dijet", "thread-cpu", "seconds"): 4.0,
        ("execute", "Dijet", "thread-noncpu", "seconds"): 3.0,
        ("execute", "reduce", "disk-write", "bytes"): 64,
        ("memory-monitor", "disk-write", "seconds"): 0.25,
        ("execute", "N/A", "idle or other spans", "seconds"): 1000.0,
    },
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
        "asked": table_of_rows(ASKED_COLUMNS, ASKED),
        "chunks": table_of_rows(CHUNK_COLUMNS, CHUNKS),
        "branch_reads": table_of_rows(BRANCH_READ_COLUMNS, BRANCH_READS),
        "sections": table_of_rows(SECTION_COLUMNS, SECTIONS),
        "preprocessing": table_of_rows(PREPROCESSING_COLUMNS, PREPROCESSINGS),
        "tasks": table_of_rows(TASK_COLUMNS, TASKS),
        "samples": table_of_rows(SAMPLE_COLUMNS, SAMPLES),
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, LIFETIMES),
        "pauses": table_of_rows(PAUSE_COLUMNS, PAUSES),
        "span_metrics": SPAN,
        "span_metrics_per_worker": SPAN_PER_WORKER,
        "attempts": {"processor": 5, "preprocessing": 4, "merge": 1, "other": 0},
    }
    return Run(**fields | changes)


def with_chunks(*rows: Mapping[str, Any], **changes: Any) -> Run:
    """Return the run above with these rows as its chunks."""
    return handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows), **changes)


def run_without_tables(**changes: Any) -> Run:
    """Return a run of which nothing was measured but its start and stop."""
    fields = ("asked", "chunks", "branch_reads", "sections", "preprocessing", "tasks", "samples", "lifetimes", "pauses")
    nothing: dict[str, Any] = dict.fromkeys((*fields, "span_metrics")) | {
        "calls": (),
        "outcome": FAILED,
        "error": "ValueError: boom",
    }
    return handmade_run(**nothing | changes)


def empty_run(**changes: Any) -> Run:
    """Return a run in which all was measured and nothing happened."""
    nothing: dict[str, Any] = {
        "calls": (),
        "asked": table_of_rows(ASKED_COLUMNS, []),
        "chunks": table_of_rows(CHUNK_COLUMNS, []),
        "branch_reads": table_of_rows(BRANCH_READ_COLUMNS, []),
        "sections": table_of_rows(SECTION_COLUMNS, []),
        "preprocessing": table_of_rows(PREPROCESSING_COLUMNS, []),
        "tasks": table_of_rows(TASK_COLUMNS, []),
        "samples": table_of_rows(SAMPLE_COLUMNS, []),
        "lifetimes": table_of_rows(LIFETIME_COLUMNS, []),
        "pauses": table_of_rows(PAUSE_COLUMNS, []),
        "span_metrics": {},
    }
    return handmade_run(**nothing | changes)


EXPECTED = {
    "total_bytes_read": 4500,
    "data_rate_gbps": 3.6e-7,  # 8 x 4500 bits in 100 s
    "bytes_requested": 6050,  # 1000 + 1000 + 300 + 3000 + 500, preprocessing 150 + 50 + 50
    "bytes_payload": 3200,  # of k1 600 + 200, of k2 1000 + 400 + 600, of the last 400
    "bytes_reread": 700,
    "bytes_metadata": 550,  # 200 + 250 + 100
    "bytes_other_files": 0,
    "bytes_preprocessing": 200,
    "bytes_failed": 1350,  # the first of k1, the first of k2, the one that erred of p2
    "bytes_residual": 50,  # k2 asked for 50 B more than its payload and metadata
    "bytes_transferred": 6050 + 6 * 64,
    "bytes_written": 0,
    "bytes_in_files": 0,
    "bytes_rewritten": 0,
    "bytes_other_writes": 0,
    "bytes_written_failed": 0,
    "bytes_written_residual": 0,
    "files_written": 0,
    "data_rate_requested_gbps": 4.84e-7,
    "data_rate_payload_gbps": 2.56e-7,
    "useful_fraction": 3200 / 6050,
    "read_amplification": 3900 / 3200,
    "total_bytes_uncompressed": 9500,
    "compression_ratio": 9400 / 3900,  # without the branch that came with the tree
    "avg_bytes_read_percent": (100 * 2800 / 4800 + 50) / 2,
    "avg_branches_read_percent": 50.0,
    "total_branches_read": 2,
    "time_total_seconds": 440.0,
    "time_compute_seconds": 4.5,  # of the attempts of k1 and k2 that counted
    "time_decompress_seconds": 0.75,
    "time_interpret_seconds": 0.5,
    "time_read_seconds": 1.5,
    "time_write_seconds": 0.0,
    "time_contention_seconds": 0.5,
    "time_interpreter_lock_seconds": 0.25,
    "time_blocked_seconds": 0.25,
    "time_wait_seconds": 1.0,
    "time_start_up_seconds": 0.0,
    "time_open_seconds": 0.875,
    "time_checkpoint_seconds": 0.25,
    "time_task_overhead_seconds": 1.625,  # 4.5 - 3.875 of k1, 6.5 - 5.5 of k2, 1 - 0.5 of k3, less measuring
    "time_measuring_seconds": 0.5,
    "time_merge_seconds": 2.0,
    "time_preprocessing_seconds": 1.75,
    "time_other_tasks_seconds": 0.0,
    "time_failed_seconds": 4.5,  # the first of k1 and of k2, what k3 skipped, the first of p2
    "time_transfer_seconds": 0.0,
    "time_worker_overhead_seconds": 0.0,
    "time_in_flight_seconds": 0.0,
    "time_paused_seconds": 32.0,
    "time_not_recorded_seconds": 0.0,
    "time_idle_queued_seconds": 0.0,
    "time_idle_misplaced_seconds": 0.0,
    "time_idle_tail_seconds": 58.75,  # free slots while a task ran
    "time_idle_client_seconds": 329.5,
    "time_residual_seconds": 0.0,
    "busy_percent": 100 * 19.75 / 440,
    "bound": "client",
    "imbalance": 3.0,  # 4 s of chunks on the two threads of A, none on those of B and C
    "num_missing_chunks": 1,
    "num_missing_files": 1,
    "chunk_open_seconds": 1.125,
    "chunk_build_seconds": 1.125,
    "chunk_read_seconds": 2.25,
    "chunk_decompress_seconds": 1.375,
    "chunk_interpret_seconds": 1.125,
    "chunk_compute_seconds": 10.0,
    "chunk_write_cpu_seconds": 0.0,
    "chunk_write_wait_seconds": 0.0,
    "chunk_contention_seconds": 0.875,
    "chunk_lock_seconds": 0.4375,
    "chunk_blocked_seconds": 0.4375,
    "chunk_wait_seconds": 1.75,
    "chunk_checkpoint_seconds": 0.25,
    "chunk_result_seconds": 0.75,
    "chunk_measuring_seconds": 0.5,
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
    "total_cpu_time": 15.75,  # 1.25 + 0.25 + 2.5 + 0.5 + 5 + 0.25 + 6
    "avg_cpu_time_per_chunk": 5.25,
    "worker_cpu_time_seconds": 90.0,
    "processor_cpu_time_seconds": 12.0,
    "processor_noncpu_time_seconds": 4.0,
    "overhead_cpu_time_seconds": 0.75,
    "overhead_noncpu_time_seconds": 0.25,
    "tasks_cpu_time_seconds": 12.75,
    "tasks_noncpu_time_seconds": 4.25,
    "disk_read_bytes": 0,
    "disk_write_bytes": 64,
    "total_bytes_memory_read": 1500,
    "compression_time_seconds": 0.25,
    "decompression_time_seconds": 0.0,
    "serialization_time_seconds": 0.5,
    "deserialization_time_seconds": 0.0,
    "total_compression_overhead_seconds": 0.25,
    "total_serialization_overhead_seconds": 0.5,
    "transfer_bytes_sent": 0,
    "transfer_serialization_seconds": 0,
    "transfer_compression_seconds": 0,
    "transfer_network_seconds": 0.5,
    "processor_cpu_percentage": 75.0,
    "processor_noncpu_percentage": 25.0,
    "num_successful_chunks": 3,
    "num_failed_chunks": 2,
    "num_failed_attempts": 3,
    "num_unfinished_attempts": 0,
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


def hostile_run(names: list[str]) -> Run:
    """The run with such names in place of all text that comes from data."""
    rows = [
        {**CHUNKS[-1], "id": 100 + number, "dataset": name, "error": name, "file": name, "call": name}
        for number, name in enumerate(names)
    ]
    workers = [{**row, "worker": names[0]} for row in LIFETIMES]
    return handmade_run(
        name=names[0],
        outcome="failed",
        error=names[3],
        problems=tuple(names),
        chunks=table_of_rows(CHUNK_COLUMNS, rows),
        lifetimes=table_of_rows(LIFETIME_COLUMNS, workers),
        reported={"core_efficiency": 0.5, names[0]: 1},
        reported_by=names[3],
    )


def run_of_datasets(names: list[str]) -> Run:
    """The run with a chunk of a dataset of each of these names, which failed with an error of that text."""
    rows = [{**CHUNKS[-1], "id": number, "dataset": name, "error": name} for number, name in enumerate(names)]
    return handmade_run(chunks=table_of_rows(CHUNK_COLUMNS, rows))


def run_with(*lost: str, samples: dict[str, int], limit: int | None = 1000 * MIB, **killed: int) -> Measurement:
    """A run by hand in which these workers were lost with a task, after samples with so much memory (MiB)."""
    tasks = [*TASKS, *(task(f"lost-{worker}", 50, "processor", "worker lost", worker, 50, 60) for worker in lost)]
    tasks = [row | ({"start": None, "stop": None} if row["outcome"] == "worker lost" else {}) for row in tasks]
    chunk = {"dataset": "mc", "file": "/data/b.root", "entry_start": 0, "entry_stop": 1000}
    tasks = [row | (chunk if row["outcome"] == "worker lost" else {}) for row in tasks]
    lives = [row | {"memory_limit": limit, "killed_memory": killed.get(row["worker"])} for row in LIFETIMES]
    sampled = [{"worker": worker, "time": T + 55, "memory": memory * MIB} for worker, memory in samples.items()]
    return Measurement(
        handmade_run(
            tasks=table_of_rows(TASK_COLUMNS, tasks),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, lives),
            samples=table_of_rows(SAMPLE_COLUMNS, sampled),
        )
    )


OF_JOBS = {
    *("num_jobs", "core_seconds_charged", "charged_cpu_efficiency", "job_memory_used"),
    *("job_queue_seconds", "job_startup_seconds", "job_shutdown_seconds"),
}
"""Metrics that a run without batch jobs lacks."""

START, STOP = T, T + 100.0


def life(worker: str, start: float, stop: float, job: str | None = "1", **known: Any) -> dict[str, Any]:
    of_job = {"batch_system": "slurm", "job": job, "job_cores": 4.0, "job_memory": 1000 * MIB, "job_start": T - 30.0}
    row = {"worker": worker, "host": "10.0.0.1", "threads": 2, "start": T + start, "stop": T + stop}
    return row | (of_job if job else {}) | known


def measured(*lives: dict[str, Any], **changes: Any) -> Measurement:
    empty = {"samples": None, "chunks": None, "tasks": None, "branch_reads": None, "sections": None, "calls": ()}
    run = dataclasses.replace(handmade_run(), **empty, start=START, stop=STOP, merged=())
    return Measurement(dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives), **changes))


Rows = list[dict[str, Any]]

BY_DESIGN = "1 attempt has unaccounted-for bytes (50 B in total)"
"""What the certificate of the run by hand says of it in any case."""


def ledger_of(
    chunks: Rows = CHUNKS,
    reads: Rows = BRANCH_READS,
    tasks: Rows | None = TASKS,
    preprocessing: Rows | None = PREPROCESSINGS,
    **changes: Any,
) -> ByteLedger:
    """Ledger of the run by hand with other records."""
    tables = {
        "chunks": (CHUNK_COLUMNS, chunks),
        "branch_reads": (BRANCH_READ_COLUMNS, reads),
        "tasks": (TASK_COLUMNS, tasks),
        "preprocessing": (PREPROCESSING_COLUMNS, preprocessing),
    }
    made = {name: None if rows is None else table_of_rows(columns, rows) for name, (columns, rows) in tables.items()}
    return Measurement(handmade_run(**made | changes)).byte_ledger


def with_ids(*changed: int, **values: Any) -> Rows:
    """Chunks with some values of these changed."""
    return [row | values if row["id"] in changed else row for row in CHUNKS]


def runner_call(name: str, chunks: int | None, **changes: Any) -> RunnerCall:
    """A call that handed out so many chunks."""
    fields: dict[str, Any] = {
        "processor": "P",
        "executor": "E",
        "start": 0.0,
        "stop": 1.0,
        "outcome": "finished",
        "report": None,
    }
    return RunnerCall(id=name, chunks=chunks, **fields | changes)


def metrics_of(chunks: Rows, reads: Rows) -> Metrics:
    """Metrics of the run by hand with other chunks and reads."""
    tables = {"chunks": table_of_rows(CHUNK_COLUMNS, chunks), "branch_reads": table_of_rows(BRANCH_READ_COLUMNS, reads)}
    return Measurement(handmade_run(**tables)).metrics


def sample(second: int, cpu: float, **changes: Any) -> dict[str, Any]:
    """Sample of a scheduler whose event loop used so much CPU; a fifth of that was contention."""
    used = {"loop_cpu_seconds": cpu, "loop_queue_seconds": cpu / 5, "process_cpu_seconds": 2 * cpu}
    return {"time": T + second, "workers": 2, "late_seconds": 0.25, "missed": 0} | used | changes


# Half of its core from 20 s to 60 s; at 50 s it missed a sample, and nothing was sampled after 90 s.
SAMPLING = [sample(second, 0.5 * min(max(second - 20, 0), 40)) for second in range(0, 100, 10)]
SAMPLING[5] |= {"missed": 1, "late_seconds": 0.5}


def central_task(key: str, kind: str, seen: float, **changes: Any) -> dict[str, Any]:
    times = {"assigned": T + 20, "start": T + seen - 2, "stop": T + seen - 1, "seen": T + seen}
    return {"key": key, "kind": kind, "worker": "A", "outcome": "ok"} | times | changes


def merge(key: str, seen: float, level: int, inputs: int, size: int, nbytes: int) -> dict[str, Any]:
    return central_task(key, "merge", seen, merge_level=level, inputs=inputs, input_bytes=size, nbytes=nbytes)


CENTRAL_TASKS = [
    *(central_task(f"k{seen}", "processor", seen) for seen in (25, 30, 35, 40, 45, 50)),
    *(merge(key, 55, 1, 3, 300, 150) for key in ("r1", "r2")),
    merge("r3", 60, 2, 2, 300, 200),
]


def step(name: str, start: float, stop: float, **known: Any) -> dict[str, Any]:
    return {"call": "c1", "work": "processing", "step": name, "start": T + start, "stop": T + stop} | known


def loop(start: float, stop: float, cpu: float, process: float, late: float, **known: Any) -> dict[str, Any]:
    used = {"cpu_seconds": cpu, "process_cpu_seconds": process, "late_seconds": late}
    return {"step": "event loop", "start": T + start, "stop": T + stop} | used | known


STEPS = [
    step("executor", 15, 80),
    step("submit", 15, 20, graph_bytes=900, tasks=6),
    step("submit", 20, 21, graph_bytes=300, tasks=3),
    step("results", 21, 70),
    step("merge", 70, 80),
]
LOOP = [loop(0, 10, 2.0, 3.0, 0.5), loop(10, 20, 4.0, 5.0, 1.5)]

OF_CENTRAL = {
    "scheduler_cpu_seconds": 20.0,
    "scheduler_queue_seconds": 4.0,
    "scheduler_idle_seconds": 66.0,
    "scheduler_unaccounted_seconds": 10.0,
    "scheduler_process_cpu_seconds": 40.0,
    "scheduler_core_share": 0.5,
    "scheduler_core_share_peak": 0.5,
    "scheduler_lag_seconds": (4 * 0.25 + 10.5) / 5,
    "scheduler_lag_peak_seconds": 10.5,
    "scheduler_task_rate": 9 / 40,
    "scheduler_task_rate_peak": 0.3,  # two at 55 s and one at 60 s
    "scheduler_cpu_per_task_seconds": 20 / 9,
    "scheduler_task_rate_limit": 9 / 20,
    "client_submit_seconds": 6.0,
    "client_waiting_seconds": 39.0,  # until the last merge ended
    "client_gather_seconds": 10.0,
    "client_merge_seconds": 10.0,
    "client_preparing_seconds": 15.0,
    "client_outside_seconds": 20.0,
    "client_unaccounted_seconds": 0.0,
    "client_busy_share": 0.61,
    "client_loop_cpu_seconds": 6.0,
    "client_loop_core_share": 0.3,
    "client_loop_lag_seconds": 1.0,
    "client_loop_lag_peak_seconds": 1.5,
    "client_process_cpu_seconds": 8.0,
    "graph_bytes": 1200,
    "graph_tasks": 9,
    "graph_bytes_per_task": 1200 / 9,
    "num_merges": 3,
    "merge_levels": 2,
    "merge_inputs_mean": 8 / 3,
    "merged_bytes": 900,
}
"""Metrics of this run, which a run without these records lacks."""


def central_run(**changes: Any) -> Run:
    """The run above, with some fields changed."""
    fields = {
        "calls": (call("c1", T + 10, T + 90, None),),
        "sampling": table_of_rows(SAMPLING_COLUMNS, SAMPLING),
        "sampling_interval": 10.0,
        "tasks": table_of_rows(TASK_COLUMNS, CENTRAL_TASKS),
        "client_steps": table_of_rows(CLIENT_STEP_COLUMNS, [*STEPS, *LOOP]),
    }
    return handmade_run(**fields | changes)


def one_kind_of_time(column, **changes):
    """A run of one worker whose ten chunks of 10 s are one phase and nothing else."""
    rows = [
        chunk("data", f"k{place}", place, "ok", attempt=1, id=place, worker="A", file="a.root", overlaps=3)
        | phases(*[0.0] * 9)
        | {"wall_seconds": 10.0, column: 10.0, "process_seconds": 10.0, "start": T + 10 * place}
        | {"stop": T + 10 * place + 10, "events": 100, "cpu_seconds": 1.0}
        | {"entry_start": 100 * place, "entry_stop": 100 * place + 100}
        | changes
        for place in range(10)
    ]
    tasks = [task(f"k{place}", place, "processor", "ok", "A", 10 * place, 10 * place + 10) for place in range(10)]
    life = {"worker": "A", "host": "h", "threads": 1, "start": T, "stop": T + 100}
    return Measurement(
        handmade_run(
            asked=table_of_rows(ASKED_COLUMNS, []),
            chunks=table_of_rows(CHUNK_COLUMNS, rows),
            tasks=table_of_rows(TASK_COLUMNS, tasks),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, [life]),
            attempts={"processor": 10},
            pauses=table_of_rows(PAUSE_COLUMNS, []),
            sections=table_of_rows(SECTION_COLUMNS, []),
            span_metrics={},
            span_metrics_per_worker={},
        )
    )


def evidence_of(run: Run | None = None, **changes: Any) -> Evidence:
    """What a run, else the one by hand, is judged by: its ledger and its replay, and what is given."""
    run = run or handmade_run()
    metrics = Measurement(run).metrics
    ledger = metrics["time_ledger"]
    fields: dict[str, Any] = {
        "run": run,
        "ledger": ledger,
        "savings": Savings(run, ledger, metrics.get("avg_workers")),
        "counted": None if run.chunks is None else counted_chunks(run.chunks),
        "fine": metrics.get("fine_metrics_per_worker"),
        "growth": known(metrics.evaluator, "memory_growth"),
        "slowdown": known(metrics.evaluator, "slowdown"),
    }
    return Evidence(**fields | changes)


def memory_of(fits: int | None, chunk_events: float, paused: float = 50.0, lost: float = 0.0) -> MemoryEvidence:
    """A worker of 1 GB that was paused, and lost an attempt of so long; `fits` events of a chunk would fit."""
    row: dict[str, Any] = {
        "worker": "w0",
        "threads": 1,
        "killed_by": None,
        "killed_memory": None,
        "lost_seconds": lost,
        "lost_attempts": int(lost > 0),
        "paused_seconds": paused,
        "spilled": 0,
        "spill_seconds": 0.0,
        "results": 0,
        "memory_peak": 900_000_000,
        "memory_limit": 1_000_000_000,
    }
    each = None if fits is None else 600e6 / fits
    fit = None if each is None or fits is None else Fit(fits, "data", 1_000_000_000, 1, 0.0, each, at_most=False)
    absent = None if fits is not None else "the memory per event could not be measured for any chunk"
    return MemoryEvidence(workers=[row], datasets=[], fit=fit, fit_absent=absent, chunk_events=chunk_events)
