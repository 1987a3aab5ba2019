"""Facts of a run that several metrics are computed from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import NotMeasuredError, fact
from roastcoffea.metrics.statistics import Numbers, clipped
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import FINISHED, Run, SpanMetrics

GAVE_A_RESULT = (chunk_records.OK, chunk_records.CHECKPOINT)
FAILED = (chunk_records.ERROR, chunk_records.SKIPPED)
NO_WORK = ("N/A", "idle or other spans")
"""What Dask calls the time of worker threads that nothing in the span accounts for."""


def recorded(run: Run, name: str) -> Any:
    """Field of the run, where it was measured, and wholly."""
    value = getattr(run, name)
    if value is None or name in run.absent:
        raise NotMeasuredError(reason_of_absence(run, name))
    if run.dropped.get(name):
        raise NotMeasuredError(f"{run.dropped[name]} rows of {name} were lost")
    return value


def reason_of_absence(run: Run, name: str) -> str:
    """Why a field of the run was not measured."""
    return run.absent.get(name, f"{name.replace('_', ' ')} were not recorded")


def complete_sum(table: pa.Table, column: str, things: str) -> Any:
    """Sum of a column, refused where a row lacks it: it would be too small without a sign of it."""
    unknown = table[column].null_count
    if unknown:
        raise NotMeasuredError(f"not known for {unknown} of {len(table)} {things}")
    return pc.sum(table[column], min_count=0).as_py()


def known_sum(column: pa.ChunkedArray) -> Any:
    """Sum of what was measured of a column; 0 where that is nothing."""
    return pc.sum(column, min_count=0).as_py() or 0


def with_outcome(table: pa.Table, outcomes: tuple[str, ...]) -> pa.Table:
    """Rows that ended in one of these ways."""
    return rows_where(table, pc.is_in(table["outcome"], value_set=pa.array(outcomes, pa.string())))


def rows_where(table: pa.Table, wanted: pa.Array | pa.ChunkedArray | npt.NDArray[np.bool_]) -> pa.Table:
    """These rows; the table itself where they are all, as a copy of a million rows is large."""
    wanted = pa.array(wanted) if isinstance(wanted, np.ndarray) else wanted
    every = pc.all(wanted, skip_nulls=False, min_count=0).as_py()
    return table if every else table.filter(wanted)


def of_finished_calls(run: Run, table: pa.Table) -> pa.Table:
    """Rows of Runner calls that gave their output: what others computed was lost with it."""
    finished = [call.id for call in run.calls if call.outcome == FINISHED]
    return rows_where(table, pc.is_in(table["call"], value_set=pa.array(finished, pa.string())))


def clock_offsets(run: Run) -> dict[str | None, float]:
    """By how much each worker's clock is ahead of the client's, by its address; 0 where that is not known."""
    if run.lifetimes is None:
        return {}
    rows = run.lifetimes.select(["worker", "clock_offset"]).to_pylist()
    return {row["worker"]: row["clock_offset"] or 0.0 for row in rows}


def measured_values(column: pa.ChunkedArray) -> Numbers:
    """Values of a column that were measured."""
    return np.asarray(column.drop_null().to_numpy(), dtype=np.float64)


@fact
def chunks(run: Run) -> pa.Table:
    """Attempts of chunks."""
    return recorded(run, "chunks")


@fact
def tasks(run: Run) -> pa.Table:
    """Attempts of tasks."""
    return recorded(run, "tasks")


@fact
def samples(run: Run) -> pa.Table:
    """Samples of workers."""
    return recorded(run, "samples")


@fact
def lifetimes(run: Run) -> pa.Table:
    """Workers with their arrival and departure."""
    table = recorded(run, "lifetimes")
    for column in ("threads", "start", "stop"):
        if table[column].null_count:
            raise NotMeasuredError(f"{column} not known for {table[column].null_count} of {len(table)} workers")
    return table


@fact
def cumulative_metrics(run: Run) -> SpanMetrics:
    """All that Dask's span holds."""
    metrics: SpanMetrics = recorded(run, "span_metrics")
    return metrics


@fact
def task_metrics(cumulative_metrics: SpanMetrics) -> SpanMetrics:
    """What Dask metered in the run's tasks: {(prefix, activity, unit): amount}."""
    executed = {key[1:]: value for key, value in cumulative_metrics.items() if key[0] == "execute"}
    found = {key: value for key, value in executed.items() if key[:2] != NO_WORK}
    if not found:
        raise NotMeasuredError("Dask's span holds no task of this run")
    return found


@fact
def processor_prefixes(tasks: pa.Table) -> frozenset[str]:
    """Prefixes of the tasks that ran the processor."""
    kinds = tasks.select(["prefix"]).filter(pc.equal(tasks["kind"], task_records.PROCESSOR))
    prefixes = frozenset(filter(None, kinds["prefix"].unique().to_pylist()))
    if not prefixes:
        raise NotMeasuredError("no task of a processor was seen")
    return prefixes


@fact
def present(run: Run, lifetimes: pa.Table) -> tuple[Numbers, Numbers]:
    """Arrivals and departures of workers, within the run."""
    starts, stops = measured_values(lifetimes["start"]), measured_values(lifetimes["stop"])
    return clipped(starts, stops, run.start, run.stop)


@fact
def counted_chunks(chunks: pa.Table) -> pa.Table:
    """Attempts whose result was used, each with one row: the last of each task that gave one.

    A result that was lost with its worker and computed again counts once. An attempt without a task counts by
    itself, and so does the same task in another Runner call.
    """
    gave = with_outcome(chunks, GAVE_A_RESULT)
    last = _last_attempts(gave)
    return gave if len(last) == len(gave) else gave.take(pa.array(last))


def _last_attempts(gave: pa.Table) -> npt.NDArray[np.int64]:
    """Rows of the last attempt of each task, and of attempts without one, in their order."""
    if pc.all(pc.equal(gave["attempt"], 1), skip_nulls=False, min_count=0).as_py():
        return np.arange(len(gave))
    key, call = (pc.dictionary_encode(gave[name].combine_chunks()) for name in ("key", "call"))
    calls = len(call.dictionary) + 1
    tasks = len(key.dictionary)
    of_key, of_call = (pc.fill_null(column.indices, -1).to_numpy().astype(np.int64) for column in (key, call))
    alone = of_key < 0
    task = np.where(alone, tasks + np.cumsum(alone), of_key) * calls + of_call + 1
    _, first, number = np.unique(task, return_index=True, return_inverse=True)
    if len(first) == len(task):
        return np.arange(len(task))
    attempt, run_id = (pc.fill_null(gave[column], -1).to_numpy() for column in ("attempt", "run_id"))
    order = np.lexsort((attempt, run_id))
    last = np.empty(len(first), np.int64)
    last[number[order]] = order
    return np.sort(last)


@fact
def successful_chunks(chunks: pa.Table) -> pa.Table:
    """Attempts that were computed to the end."""
    return with_outcome(chunks, (chunk_records.OK,))
