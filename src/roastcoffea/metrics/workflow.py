"""Metrics for the whole run and its workers: duration, CPU time, memory, and totals of events and bytes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics import facts, statistics
from roastcoffea.metrics.catalogue import (
    EVENTS,
    RESOURCES,
    THROUGHPUT,
    TIMING,
    NotMeasuredError,
    Sourced,
    metric,
    refuse_if,
)
from roastcoffea.metrics.facts import complete_sum, elapsed_seconds, joined, known_sum, some
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.chunks import CHECKPOINT, OK, SKIPPED
from roastcoffea.records.run import FINISHED, Run, RunnerCall
from roastcoffea.records.workers import LOST, PROCESSOR
from roastcoffea.units import BYTE, COUNT, FRACTION, GIGABIT_PER_SECOND, KILOHERTZ, RATIO, SECOND

CHUNK_RECORDS: Final = "chunk records"
REPORT_SET: Final = "coffea report (set_coffea_report)"


class Quantity(NamedTuple):
    """A quantity contained in both coffea's report and the chunk records.

    `columns` names chunk columns. The first column that is known for all chunks is used.
    """

    metric: str
    noun: str
    in_report: str
    in_custom: tuple[str, ...]
    columns: tuple[str, ...]

    def custom(self, run: Run) -> Sourced | None:
        """Sum over the datasets in `custom_metrics`, or None if a dataset lacks the quantity."""
        if not isinstance(run.custom_metrics, Mapping):
            return None
        found = (_amount(dataset, *self.in_custom) for dataset in run.custom_metrics.values())
        return _sum(found, "custom_metrics (set_coffea_report)")

    def given(self, run: Run) -> Sourced | None:
        return _sum([_amount(run.coffea_report, self.in_report)], REPORT_SET)

    def reported(self, calls: Iterable[RunnerCall]) -> Sourced | None:
        """Sum over the reports of these Runner calls, or None if a report lacks the quantity."""
        return _sum((_amount(call.report, self.in_report) for call in calls), "coffea report (from the Runner call)")

    def of_chunks(self, run: Run, chunks: Table | None) -> Sourced:
        """Sum over these chunks; raise NotMeasuredError if a chunk lacks the quantity."""
        if chunks is None:
            raise NotMeasuredError(f"no coffea report and no chunks: {facts.reason_of_absence(run, 'chunks')}")
        column = next((name for name in self.columns if not chunks[name].null_count), "")
        refuse_if(
            not column, "coffea's report and some chunk records do not have it: set savemetrics=True in the Runner"
        )
        lacking = "; ".join(facts.why_calls_lack(run))
        source = f"{CHUNK_RECORDS}, incomplete: {lacking}" if lacking else CHUNK_RECORDS
        return Sourced(facts.complete_sum(chunks, column, "chunks"), source)

    def expected(self, run: Run, chunks: Table | None) -> Sourced | None:
        """Total over the Runner calls that returned an output, or None if it is unknown."""
        calls = _finished(run)
        found = self.reported(calls)
        if found is None and chunks is not None and calls:
            with suppress(NotMeasuredError):
                found = self.of_chunks(run, facts.of_finished_calls(run, chunks))
        return found

    def lacks_calls(self, given: Sourced, run: Run, chunks: Table | None) -> bool:
        """Whether a report covers only some of the run's Runner calls."""
        expected = self.expected(run, chunks)
        return expected is not None and len(_finished(run)) > 1 and given.value < expected.value

    def total(self, run: Run, chunks: Table | None) -> Sourced:
        """The run's total, from the first source that has it.

        The sources, in order of precedence, are `custom_metrics`, the report passed to set_coffea_report (unless it
        omits Runner calls), the reports of all Runner calls, and the chunks whose result was used. If checkpoints were
        loaded, the number of bytes read is known only from the chunk records.
        """
        custom, hits = self.custom(run), _hits(chunks)
        if custom is None and self is BYTES and hits:
            value = self.of_chunks(run, facts.with_outcome(chunks, (OK,))).value
            return Sourced(value, f"{CHUNK_RECORDS}, without {hits} chunks loaded from checkpoints")
        given = custom or self.given(run)
        if given is not None and (custom is not None or not self.lacks_calls(given, run, chunks)):
            return given
        return self.reported(run.calls) or self.of_chunks(run, chunks)


EVENTS_OF: Final = Quantity("total_events", "events", "entries", ("entries",), ("events",))
BYTES: Final = Quantity(
    "total_bytes_read",
    "bytes",
    "bytesread",
    ("performance_counters", "num_requested_bytes"),
    ("bytes_requested", "coffea_bytes_read"),
)


def _finished(run: Run) -> list[RunnerCall]:
    return [call for call in run.calls if call.outcome == FINISHED]


def _hits(chunks: Table | None) -> int:
    """Number of chunks loaded from a checkpoint. For these, coffea's report repeats the bytes originally read."""
    return 0 if chunks is None else len(facts.with_outcome(chunks, (CHECKPOINT,)))


def _sum(amounts: Iterable[float | None], source: str) -> Sourced | None:
    known = list(amounts)
    return Sourced(sum(filter(None, known)), source) if known and None not in known else None


def _amount(report: Any, *path: str) -> float | None:
    """Number at a nested key of an object from the user or coffea, or None if it is missing or unusable."""
    for name in path:
        report = report.get(name) if isinstance(report, Mapping) else None
    if not isinstance(report, Real) or isinstance(report, bool):
        return None
    amount = int(report) if isinstance(report, Integral) else float(report)
    return amount if 0 <= amount < math.inf else None


def disagreements(run: Run) -> Iterator[str]:
    chunks, calls = None, _finished(run)
    with suppress(NotMeasuredError):
        chunks = facts.counted_chunks(facts.recorded(run, "chunks"))
    for quantity in (EVENTS_OF, BYTES):
        name, expected, given = quantity.metric, quantity.expected(run, chunks), quantity.custom(run)
        if given is None and not (quantity is BYTES and _hits(chunks)):
            given = quantity.given(run)
        if given is None or expected is None or given.value == expected.value:
            continue
        if given.source == REPORT_SET and quantity.lacks_calls(given, run, chunks):
            yield (
                f"the report passed to set_coffea_report has {given.value:,} of {expected.value:,} {quantity.noun}: "
                f"{name} and its rates cover all {len(calls)} Runner calls"
            )
        else:
            first, second = (f"{one.value:,} according to the {one.source}" for one in (given, expected))
            yield f"{name} is {first}, but {second}: the first value is used"
    if run.coffea_report is not None and all(quantity.given(run) is None for quantity in (EVENTS_OF, BYTES)):
        names = " or ".join(quantity.in_report for quantity in (EVENTS_OF, BYTES))
        yield f"the report passed to set_coffea_report has no number for {names}: totals come from other sources"
    reported = EVENTS_OF.reported(calls)
    if reported is None or chunks is None:
        return
    # comparable only if every chunk has a record
    ends = joined([chunks.select(["call"]), facts.with_outcome(run.chunks, (SKIPPED,)).select(["call"])])
    ended = Counter(ends["call"].to_pylist())
    with suppress(NotMeasuredError):
        own = EVENTS_OF.of_chunks(run, facts.of_finished_calls(run, chunks)).value
        if reported.value != own and all(ended[call.id] == call.chunks for call in calls):
            yield f"coffea's reports have {reported.value:,} events, but the chunk records have {own:,}"


of_clock = partial(metric, SECOND, group=TIMING, source="wall clock")


@of_clock(
    "elapsed", "stop of the run - start of the run; for merged runs, the union of their intervals", alias="wall_time"
)
def elapsed_time_seconds(run: Run) -> float:
    """Wall time from entering to leaving the collector, excluding gaps between merged runs."""
    return elapsed_seconds(run)


@of_clock("in Runner calls", "union of the calls' intervals")
def runner_time_seconds(run: Run) -> float:
    """Wall time during which at least one Runner call was active."""
    refuse_if(not run.calls, "no Runner call was recorded")
    starts, stops = np.array([(call.start, call.stop) for call in run.calls]).T
    return statistics.union_length(starts, stops)


@metric(COUNT, "chunks", "attempts that counted", group=EVENTS, source=CHUNK_RECORDS)
def num_chunks(counted_chunks: Table) -> int:
    """Number of chunks whose result was computed or loaded from a checkpoint."""
    return len(counted_chunks)


of_report = partial(metric, source="coffea report, or chunk records")


@of_report(COUNT, "events", "entries in coffea's reports, summed over Runner calls", group=EVENTS)
def total_events(run: Run, counted_chunks: Table | None = None) -> Sourced:
    """Number of events in the output, including events in chunks loaded from a checkpoint.

    The value comes from the first available source: `custom_metrics`, the report passed to set_coffea_report, the
    reports of all Runner calls, or the chunks whose result was used. If the report passed to set_coffea_report omits a
    Runner call, the report is ignored and a problem is recorded.
    """
    return EVENTS_OF.total(run, counted_chunks)


@of_report(BYTE, "bytes read", "bytesread in coffea's reports, summed over Runner calls", group=THROUGHPUT)
def total_bytes_read(run: Run, counted_chunks: Table | None = None) -> Sourced:
    """Bytes requested from storage by attempts whose result was used, excluding preprocessing.

    Each chunk re-requests its file's metadata, and a basket that spans two chunks is requested twice.

    The value comes from the first available source, as for `total_events`. If chunks were loaded from a checkpoint, the
    records of the other chunks are used, because coffea's report repeats the bytes originally read.
    """
    return BYTES.total(run, counted_chunks)


@metric(
    SECOND,
    "chunk CPU time",
    "sum of cpu_seconds + helper_cpu_seconds over all attempts",
    group=TIMING,
    source=CHUNK_RECORDS,
)
def total_cpu_time(chunks: Table, tasks: Table | None = None) -> Sourced:
    """CPU time of the threads that ran chunks and of their helper threads.

    It covers opening files, building events, and failed attempts. If helper threads were not measured, their CPU time
    is included only in `worker_cpu_time_seconds`.
    """
    total = complete_sum(chunks, "cpu_seconds", "chunk attempts") + known_sum(chunks["helper_cpu_seconds"])
    lost = 0
    if tasks is not None:
        lost = int(np.sum(statistics.having(tasks["kind"], PROCESSOR) & statistics.having(tasks["outcome"], LOST)))
    unmetered = chunks["helper_cpu_seconds"].null_count
    lacking = {"attempts lost with their worker": lost, "attempts' helper threads": unmetered}
    without = [f"{number} {what}" for what, number in lacking.items() if number]
    return Sourced(float(total), f"{CHUNK_RECORDS}, without {' and '.join(without)}" if without else CHUNK_RECORDS)


@metric(SECOND, "CPU time per chunk", group=TIMING, source=CHUNK_RECORDS)
def avg_cpu_time_per_chunk(total_cpu_time: float, num_chunks: int) -> float:
    """CPU time of all attempts (including failed attempts), divided by the number of chunks with a result."""
    return total_cpu_time / num_chunks


@metric(GIGABIT_PER_SECOND, "data rate", group=THROUGHPUT, source="total_bytes_read, wall clock")
def data_rate_gbps(total_bytes_read: float, elapsed_time_seconds: float) -> float:
    """Rate at which bytes were read from storage, averaged over the whole run."""
    return 8e-9 * total_bytes_read / elapsed_time_seconds


@metric(KILOHERTZ, "event rate", group=EVENTS, source="total_events, wall clock")
def event_rate_elapsed_khz(total_events: int, elapsed_time_seconds: float) -> float:
    """Number of events per second of wall time."""
    return 1e-3 * total_events / elapsed_time_seconds


@metric(KILOHERTZ, "rate over CPU time", group=EVENTS, source="total_events, chunk records")
def event_rate_cpu_total_khz(total_events: int, total_cpu_time: float) -> float:
    """Number of events per second of the chunks' CPU time."""
    return 1e-3 * total_events / total_cpu_time


ARRIVALS = "arrivals and departures at the scheduler"
of_arrivals = partial(metric, COUNT, group=RESOURCES, source=ARRIVALS)


@of_arrivals("workers (mean)", "sum of lifetimes within the run / elapsed_time_seconds")
def avg_workers(present: tuple[Numbers, Numbers], elapsed_time_seconds: float) -> float:
    """Time-weighted average number of workers."""
    return statistics.integral(*present, np.ones(len(present[0]))) / elapsed_time_seconds


@of_arrivals("workers (peak)", "largest number of overlapping lifetimes")
def peak_workers(present: tuple[Numbers, Numbers]) -> int:
    """Peak number of workers. A worker and its replacement count as one worker."""
    return statistics.highest_concurrency(*present)


@of_arrivals("cores (mean)", "sum of threads x lifetime within the run / elapsed_time_seconds")
def total_cores(present: tuple[Numbers, Numbers], lifetimes: Table, elapsed_time_seconds: float) -> float:
    """Time-weighted average number of worker threads, which Dask calls cores."""
    return statistics.integral(*present, statistics.measured_values(lifetimes["threads"])) / elapsed_time_seconds


@metric(
    COUNT,
    "cores that other processes used",
    "(CPU time of the host - CPU time of the run's processes on it) / time; maximum over hosts",
    group=RESOURCES,
    source="the hosts' operating systems",
)
def cores_of_others(run: Run) -> float:
    """Average number of cores used by processes outside the run, on the host where this number is highest."""
    hosts = run.environment.hosts
    refuse_if(not hosts, "no host of the run is known")
    for host in hosts:
        refuse_if(host.others is None, host.others_absent or "the hosts' CPU time was not recorded")
    return max(host.others or 0.0 for host in hosts)


@of_arrivals("cores per worker")
def cores_per_worker(total_cores: float, avg_workers: float) -> float:
    """Time-weighted average number of threads per worker."""
    return total_cores / avg_workers


@metric(FRACTION, "core efficiency", group=RESOURCES, source=f"chunk records; {ARRIVALS}")
def core_efficiency(total_cpu_time: float, elapsed_time_seconds: float, total_cores: float) -> float:
    """Share of worker thread time during which a chunk used the CPU. It is close to 0 if threads mostly wait."""
    return total_cpu_time / (elapsed_time_seconds * total_cores)


@metric(RATIO, "CPU time / wall time", group=RESOURCES, source="chunk records, wall clock")
def speedup_factor(total_cpu_time: float, elapsed_time_seconds: float) -> float:
    """Average number of cores that chunks kept busy: CPU time divided by wall time."""
    return total_cpu_time / elapsed_time_seconds


@metric(KILOHERTZ, "rate per core", group=EVENTS, source=f"total_events, wall clock, {ARRIVALS}")
def event_rate_core_khz(total_events: int, elapsed_time_seconds: float, total_cores: float) -> float:
    """Number of events per second of wall time and per core, including idle cores."""
    return 1e-3 * total_events / (elapsed_time_seconds * total_cores)


of_memory = partial(metric, BYTE, group=RESOURCES)


@of_memory(
    "worker memory (peak)",
    "maximum over samples, chunk peaks and the memory of killed workers",
    source="worker samples, chunk records",
)
def peak_memory_bytes(
    run: Run, samples: Table | None = None, chunks: Table | None = None, lifetimes: Table | None = None
) -> int:
    """Highest resident memory of any worker process, from samples, chunk peaks and the memory of killed workers."""
    columns = ((samples, "memory"), (chunks, "memory_peak"), (lifetimes, "killed_memory"))
    largest = (pc.max(table[column]).as_py() for table, column in columns if table is not None)
    seen = [size for size in largest if size is not None]
    refuse_if(not seen, run.absent.get("memory_peak", "no worker memory was sampled, and no chunk peak was measured"))
    return int(max(seen))


@of_memory("worker memory (mean)", "mean over workers of each worker's time-weighted mean", source="worker samples")
def avg_memory_per_worker_bytes(samples: Table) -> float:
    """Mean resident memory of a worker process, averaged first over time and then over workers."""
    known = some(samples.select(["worker", "time", "memory"]).drop_null(), "no worker memory was sampled")
    worker, time = statistics.codes(known["worker"]), statistics.moments(known, "time")
    order = np.lexsort((time, worker))
    size = statistics.amounts(known, "memory")[order]
    parts = np.split(np.arange(len(order)), np.flatnonzero(np.diff(worker[order])) + 1)
    return float(np.mean([statistics.time_weighted_mean(time[order[part]], size[part]) for part in parts]))


@metric(
    SECOND,
    "worker CPU time",
    "sum over worker processes of cpu_seconds",
    group=TIMING,
    source="operating system, per worker process",
)
def worker_cpu_time_seconds(lifetimes: Table) -> float:
    """CPU time of the worker processes during the run, including chunks, other tasks and Dask itself.

    Workers that share the client's process (processes=False) are counted once.
    """
    complete_sum(lifetimes, "cpu_seconds", "workers")
    processes: dict[object, float] = defaultdict(float)
    for number, life in enumerate(lifetimes.select(["worker", "process", "cpu_seconds"]).to_pylist()):
        process = ("process", life["process"]) if str(life["worker"]).startswith("inproc://") else number
        processes[process] = max(life["cpu_seconds"], processes[process])
    return sum(processes.values())
