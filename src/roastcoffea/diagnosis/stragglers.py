"""Stragglers, slow workers, and the balance of workers: durations against what events, bytes and worker predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.slowness import FEWEST_TO_FIT, PHASES, WORKER, Slowness
from roastcoffea.metrics.catalogue import RESOURCES, TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import Steps, aggregated
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import COUNT, RATIO, SECOND

FEWEST: Final = FEWEST_TO_FIT
"""Fewest chunks among which one can be called slow."""

STRAGGLER_COLUMNS: Final = (
    Column("id", "integer", None, "identity of the attempt's record, as in the chunks"),
    *picked(chunk_records.CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    Column("worker", "text", None, "address of the worker"),
    Column("wall_seconds", "number", "s", "duration of the attempt"),
    Column(
        "expected_seconds",
        "number",
        "s",
        "duration predicted from its events, bytes, slow worker or file, and waiting for a core",
    ),
    Column("excess_seconds", "number", "s", "duration beyond the expected one"),
    Column(
        "phase",
        "text",
        None,
        "phase with the largest excess over the median of its dataset; none if no phase exceeds it",
    ),
)
"""Chunks that took much longer than expected, worst first."""


@fact
def expected_seconds(slowness: Slowness) -> pa.Table:
    """Attempts that were computed and counted, with their expected durations: `Slowness.chunks`."""
    number = len(slowness.chunks)
    refuse_if(number < FEWEST, f"only {number} chunks: finding a slow one takes at least {FEWEST}")
    return slowness.chunks


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    """Chunks that took much longer than expected, with STRAGGLER_COLUMNS."""
    wall, expected = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "expected_seconds")
    excess, dataset = wall - expected, codes(expected_seconds["dataset"])
    spread = _medians(np.abs(excess), dataset)
    # caches, disks and the lock cause smaller ones, a busy machine delays any chunk by 0.1 s, and some vary by nature
    slow = np.flatnonzero((wall > 2 * expected) & (excess > np.maximum(6 * spread, 0.1)))
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    rows = rows.append_column("phase", pa.array(_slow_phases(expected_seconds, slow), pa.string()))
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


def _medians(values: Numbers, dataset: Integers) -> Numbers:
    """For each value the median of its dataset."""
    return np.asarray(pd.Series(values).groupby(dataset).transform("median"))


def _slow_phases(chunks: pa.Table, slow: Integers) -> list[str | None]:
    """For each of these chunks, the phase with the largest excess over the median of its dataset, if any."""
    dataset = codes(chunks["dataset"])
    times = [amounts(chunks, name) for name in PHASES]
    beyond = np.column_stack([(seconds - _medians(seconds, dataset))[slow] for seconds in times])
    names, most = [name.removesuffix("_seconds") for name in PHASES], np.argmax(beyond, axis=1)
    return [names[place] if row[place] > 0 else None for row, place in zip(beyond, most, strict=True)]


class SlowWorker(NamedTuple):
    """A worker that is slower than the others."""

    factor: float
    beyond: float
    """Excess seconds of its chunks over the typical duration."""


@fact
def slow_workers(slowness: Slowness) -> dict[str, SlowWorker]:
    """Workers that are slower than the others."""
    return {one.name: SlowWorker(one.factor, one.seconds) for one in slowness.slow if one.kind == WORKER}


@metric(COUNT, group=TIMING, source="chunk records", label="stragglers", formula="chunks far above what is expected")
def num_stragglers(stragglers: pa.Table) -> int:
    """Chunks that took more than twice the time predicted from events, bytes and worker, and stand out."""
    return len(stragglers)


@metric(SECOND, group=TIMING, source="chunk records", label="stragglers: excess", formula="sum of excess_seconds")
def straggler_seconds(stragglers: pa.Table) -> float:
    """Time of the stragglers beyond their expected duration."""
    return float(pc.sum(stragglers["excess_seconds"], min_count=0).as_py())


CPU_BOUND: Final = "CPU"
WAITING: Final = "wait"
MIXED: Final = "both"

BALANCE_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host"),
    Column("threads", "integer", "threads", "threads for tasks"),
    Column("present_seconds", "number", "s", "time that the worker was present"),
    Column("chunks", "integer", None, "computed chunks that counted"),
    Column("events", "integer", "events", "events in those chunks"),
    Column("chunk_seconds", "number", "s", "duration of those chunks"),
    Column("cpu_seconds", "number", "s", "CPU time of their threads"),
    Column("busy_share", "number", None, "duration of the chunks / (threads x time present)"),
    Column("cpu_share", "number", None, "CPU time of the chunks / their duration"),
    Column(
        "bound", "text", None, f'"{CPU_BOUND}" or "{WAITING}" where that is 80 % of the chunks\' time, else "{MIXED}"'
    ),
    Column(
        "slowness",
        "number",
        None,
        "duration of its chunks divided by what other workers need for the same work; 1 within statistical error",
    ),
    Column("spill_seconds", "number", "s", "writing results to disk and reading them back (Dask)"),
    Column("transfer_seconds", "number", "s", "fetching results from other workers (Dask)"),
    Column(
        "clock_offset",
        "number",
        "s",
        "the worker's clock minus the client's, bounded by the order of its tasks' events",
    ),
)
"""One row per worker."""


OFFERED: Final = "offered"
OF_LIVES: Final[Steps] = {
    "host": ("host", "first"),
    "threads": ("threads", "max"),
    "present_seconds": ("present_seconds", "sum"),
    OFFERED: (OFFERED, "sum"),
    "clock_offset": ("clock_offset", "last"),
}
OF_EXPECTED: Final[Steps] = {"slowness": ("slowness", "mean")}
OF_CHUNKS: Final[Steps] = {
    "chunks": ("id", "count"),
    "events": ("events", "sum"),
    "chunk_seconds": ("wall_seconds", "sum"),
    "cpu_seconds": ("cpu_seconds", "sum"),
}
NOTHING: Final = {"chunks": 0, "events": 0, "chunk_seconds": 0.0, "cpu_seconds": None}
FROM_DASK: Final = ("spill_seconds", "transfer_seconds")


@table
def worker_balance(
    lifetimes: pa.Table,
    counted_chunks: pa.Table | None = None,
    expected_seconds: pa.Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> pa.Table:
    """Workers with BALANCE_COLUMNS."""
    done, slowness = _by_worker(counted_chunks, OF_CHUNKS), _by_worker(expected_seconds, OF_EXPECTED)
    fine = fine_metrics_per_worker or {}
    present = lifetimes.append_column("present_seconds", pc.subtract(lifetimes["stop"], lifetimes["start"]))
    present = present.append_column(OFFERED, pc.multiply(present["threads"], present["present_seconds"]))
    rows = []
    for worker, life in _by_worker(present, OF_LIVES).items():
        work = done.get(worker, {} if counted_chunks is None else NOTHING)
        from_dask = {name: amount for name, amount in fine.get(worker, {}).items() if name in FROM_DASK}
        shares = _shares(life.pop(OFFERED), work)
        rows.append({"worker": worker} | life | work | shares | slowness.get(worker, {}) | from_dask)
    return table_of_rows(BALANCE_COLUMNS, rows)


def _by_worker(table: pa.Table | None, steps: Steps) -> dict[str, dict[str, Any]]:
    """Sums over the rows of each worker; a worker that came back has a single row."""
    if table is None:
        return {}
    # "first" and "last" need the order of the rows
    made = aggregated(table, ["worker"], steps, None, use_threads=False)
    return {row.pop("worker"): row for row in made.to_pylist()}


def _shares(offered: float, work: Mapping[str, Any]) -> dict[str, Any]:
    """How busy a worker was in so many thread seconds, and with what; empty if no chunks were recorded."""
    if not work:
        return {}
    wall, cpu = work["chunk_seconds"], work["cpu_seconds"]
    busy = 0.0 if work is NOTHING else wall / offered if wall is not None and offered else None
    share = cpu / wall if wall and cpu is not None else None
    return {"busy_share": busy, "cpu_share": share, "bound": None if share is None else _bound(share)}


def _bound(cpu_share: float) -> str:
    return CPU_BOUND if cpu_share >= 0.8 else WAITING if cpu_share <= 0.2 else MIXED


@metric(RATIO, group=RESOURCES, source="chunk records", formula="largest busy_share / mean busy_share")
def imbalance(worker_balance: pa.Table) -> float:
    """Busy share of the busiest worker divided by the mean of all workers; 1 is balanced."""
    refuse_if(worker_balance["chunk_seconds"].null_count, "the duration of chunks is not known")
    loads = pc.drop_null(worker_balance["busy_share"])
    mean = pc.mean(loads).as_py()
    refuse_if(not mean, "no worker computed a chunk")
    return float(pc.max(loads).as_py() / mean)
