"""Metrics of the whole run: its duration, events, bytes and CPU time, and their rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import EVENTS, THROUGHPUT, TIMING, NotMeasuredError, Sourced, metric
from roastcoffea.metrics.facts import complete_sum, known_sum, reason_of_absence, with_outcome
from roastcoffea.metrics.statistics import union_length
from roastcoffea.records.chunks import CHECKPOINT, OK
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import LOST, PROCESSOR
from roastcoffea.units import BYTE, COUNT, GIGABIT_PER_SECOND, KILOHERTZ, SECOND

CHUNK_RECORDS = "chunk records"
CUSTOM_METRICS = "custom_metrics of set_coffea_report"
REPORT_OR_CHUNKS = "coffea report, or chunk records"


@metric(
    SECOND,
    group=TIMING,
    source="wall clock",
    label="elapsed",
    alias="wall_time",
    formula="stop of the run - start of the run",
)
def elapsed_time_seconds(run: Run) -> float:
    """Wall time from entering to leaving the collector."""
    return run.stop - run.start


@metric(
    SECOND,
    group=TIMING,
    source="wall clock",
    label="in Runner calls",
    formula="union of the calls' intervals",
)
def runner_time_seconds(run: Run) -> float:
    """Wall time in which at least one Runner call was active."""
    if not run.calls:
        raise NotMeasuredError("no Runner call was seen")
    return union_length(np.array([call.start for call in run.calls]), np.array([call.stop for call in run.calls]))


@metric(COUNT, group=EVENTS, source=CHUNK_RECORDS, label="chunks", formula="attempts that counted")
def num_chunks(counted_chunks: pa.Table) -> int:
    """Number of chunks that gave a result, computed or loaded from a checkpoint."""
    return len(counted_chunks)


@metric(
    COUNT,
    group=EVENTS,
    source=REPORT_OR_CHUNKS,
    label="events",
    formula="coffea's entries, summed over Runner calls",
)
def total_events(run: Run, counted_chunks: pa.Table | None = None) -> Sourced:
    """Events in the output, those of chunks that were loaded from a checkpoint included.

    Taken from `custom_metrics`, else from the report that was set, else from the report of every Runner
    call, else from the chunks that counted: from the first of them that has it.
    """
    total = _custom_total(run, "entries") or _report_total(run, "entries")
    return total or _chunk_total(run, counted_chunks, "events")


@metric(
    BYTE,
    group=THROUGHPUT,
    source=REPORT_OR_CHUNKS,
    label="bytes read",
    formula="coffea's bytesread, summed over Runner calls",
)
def total_bytes_read(run: Run, counted_chunks: pa.Table | None = None) -> Sourced:
    """Bytes requested from storage by attempts that counted, preprocessing apart.

    Each chunk requests the file's metadata again, and baskets that lie in two chunks are requested twice: the
    byte ledger tells them apart.

    Taken from the first that has it, as for `total_events`. A chunk that was loaded from a checkpoint read
    nothing, but coffea's report repeats what it read once: with such chunks the number comes from the
    others' records.
    """
    custom = _custom_total(run, "performance_counters", "num_requested_bytes")
    if custom:
        return custom
    hits = len(with_outcome(counted_chunks, (CHECKPOINT,))) if counted_chunks is not None else 0
    if counted_chunks is None or hits == 0:
        return _report_total(run, "bytesread") or _chunk_bytes(run, counted_chunks)
    total = _chunk_bytes(run, with_outcome(counted_chunks, (OK,)))
    return Sourced(total.value, f"{CHUNK_RECORDS}, without {hits} chunks loaded from checkpoints")


@metric(
    SECOND,
    group=TIMING,
    source=CHUNK_RECORDS,
    label="CPU time of chunks",
    formula="sum of cpu_seconds + helper_cpu_seconds over all attempts",
)
def total_cpu_time(chunks: pa.Table, tasks: pa.Table | None = None) -> Sourced:
    """CPU time of the threads that ran chunks and of those that read for them, opening and building included.

    All attempts are in it, also those that failed. Where helper threads were not metered, their CPU time is
    part of `worker_cpu_time_seconds` alone.
    """
    total = complete_sum(chunks, "cpu_seconds", "attempts of chunks") + known_sum(chunks["helper_cpu_seconds"])
    lacking = {
        "attempts lost with their worker": 0 if tasks is None else _attempts_lost(tasks),
        "attempts' helper threads": chunks["helper_cpu_seconds"].null_count,
    }
    without = [f"{number} {what}" for what, number in lacking.items() if number]
    return Sourced(float(total), f"{CHUNK_RECORDS}, without {' and '.join(without)}" if without else CHUNK_RECORDS)


@metric(SECOND, group=TIMING, source=CHUNK_RECORDS, label="CPU time per chunk")
def avg_cpu_time_per_chunk(total_cpu_time: float, num_chunks: int) -> float:
    """CPU time that a chunk with a result cost on average, failed attempts included."""
    return total_cpu_time / num_chunks


@metric(GIGABIT_PER_SECOND, group=THROUGHPUT, source="total_bytes_read, wall clock", label="data rate")
def data_rate_gbps(total_bytes_read: float, elapsed_time_seconds: float) -> float:
    """Rate at which stored bytes were read, over the whole run."""
    return 8e-9 * total_bytes_read / elapsed_time_seconds


@metric(KILOHERTZ, group=EVENTS, source="total_events, wall clock", label="rate over wall time")
def event_rate_elapsed_khz(total_events: int, elapsed_time_seconds: float) -> float:
    """Events per second of wall time."""
    return 1e-3 * total_events / elapsed_time_seconds


@metric(KILOHERTZ, group=EVENTS, source="total_events, chunk records", label="rate over CPU time")
def event_rate_cpu_total_khz(total_events: int, total_cpu_time: float) -> float:
    """Events per second of the chunks' CPU time."""
    return 1e-3 * total_events / total_cpu_time


def _attempts_lost(tasks: pa.Table) -> int:
    """Attempts of chunks that left no record because their worker was lost."""
    chunks = tasks.select(["outcome"]).filter(pc.equal(tasks["kind"], PROCESSOR))
    return len(chunks.filter(pc.equal(chunks["outcome"], LOST)))


def _custom_total(run: Run, *path: str) -> Sourced | None:
    """Sum over the datasets of the user's own breakdown, where each of them has the number."""
    if not isinstance(run.custom_metrics, Mapping) or not run.custom_metrics:
        return None
    amounts = [_amount(dataset, *path) for dataset in run.custom_metrics.values()]
    return _total(amounts, CUSTOM_METRICS)


def _report_total(run: Run, name: str) -> Sourced | None:
    """Number in the report that was set; else its sum over the reports of all Runner calls."""
    total = _total([_amount(run.coffea_report, name)], "coffea report (set_coffea_report)")
    if total or not run.calls:
        return total
    return _total([_amount(call.report, name) for call in run.calls], "coffea report (seen in the Runner call)")


def _total(amounts: list[float | None], source: str) -> Sourced | None:
    known = [amount for amount in amounts if amount is not None]
    return Sourced(sum(known), source) if len(known) == len(amounts) else None


def _chunk_bytes(run: Run, chunks: pa.Table | None) -> Sourced:
    """Bytes requested by these attempts, by our count where it is there for all of them, else by coffea's."""
    metered = chunks is not None and not chunks["bytes_requested"].null_count
    return _chunk_total(run, chunks, "bytes_requested" if metered else "coffea_bytes_read")


def _chunk_total(run: Run, chunks: pa.Table | None, column: str) -> Sourced:
    if chunks is None:
        raise NotMeasuredError(f"no report of coffea, and no chunks: {reason_of_absence(run, 'chunks')}")
    if chunks[column].null_count:
        raise NotMeasuredError(
            "neither coffea's report nor the record of every chunk has it: turn on savemetrics in the Runner"
        )
    return Sourced(complete_sum(chunks, column, "chunks"), CHUNK_RECORDS)


def _amount(report: Any, *path: str) -> float | None:
    """Number at a path of keys in what the user or coffea gave; None where there is no usable one."""
    for name in path:
        report = report.get(name) if isinstance(report, Mapping) else None
    if not isinstance(report, Real) or isinstance(report, bool):
        return None
    amount = int(report) if isinstance(report, Integral) else float(report)
    return amount if 0 <= amount < math.inf else None
