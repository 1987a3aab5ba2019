"""Metrics of the whole run: its duration, events, bytes and CPU time, and their rates."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import totals
from roastcoffea.metrics.catalogue import EVENTS, THROUGHPUT, TIMING, Sourced, metric, refuse_if
from roastcoffea.metrics.facts import complete_sum, known_sum
from roastcoffea.metrics.statistics import union_length
from roastcoffea.metrics.totals import CHUNK_RECORDS
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import LOST, PROCESSOR
from roastcoffea.units import BYTE, COUNT, GIGABIT_PER_SECOND, KILOHERTZ, SECOND

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


@metric(SECOND, group=TIMING, source="wall clock", label="in Runner calls", formula="union of the calls' intervals")
def runner_time_seconds(run: Run) -> float:
    """Wall time in which at least one Runner call was active."""
    refuse_if(not run.calls, "no Runner call was seen")
    return union_length(np.array([call.start for call in run.calls]), np.array([call.stop for call in run.calls]))


@metric(COUNT, group=EVENTS, source=CHUNK_RECORDS, label="chunks", formula="attempts that counted")
def num_chunks(counted_chunks: pa.Table) -> int:
    """Number of chunks that gave a result, computed or loaded from a checkpoint."""
    return len(counted_chunks)


@metric(
    COUNT, group=EVENTS, source=REPORT_OR_CHUNKS, label="events", formula="coffea's entries, summed over Runner calls"
)
def total_events(run: Run, counted_chunks: pa.Table | None = None) -> Sourced:
    """Events in the output, those of chunks that were loaded from a checkpoint included.

    Taken from `custom_metrics`, else from the report that was set, else from the report of every Runner
    call, else from the chunks that counted: from the first of them that has it. A report that was set and leaves out
    some of several Runner calls is passed over, and `problems` say so.
    """
    return totals.total(totals.EVENTS, run, counted_chunks)


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
    return totals.total(totals.BYTES, run, counted_chunks)


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
