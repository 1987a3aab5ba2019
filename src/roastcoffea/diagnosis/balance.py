"""Balance of the workers: which compute or wait, which are slow, which spill or transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import MOSTLY
from roastcoffea.metrics.catalogue import RESOURCES, metric, refuse_if, table
from roastcoffea.metrics.facts import Steps, aggregated
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import RATIO

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
    return CPU_BOUND if cpu_share >= MOSTLY else WAITING if cpu_share <= 1 - MOSTLY else MIXED


@metric(RATIO, group=RESOURCES, source="chunk records", formula="largest busy_share / mean busy_share")
def imbalance(worker_balance: pa.Table) -> float:
    """Busy share of the busiest worker divided by the mean of all workers; 1 is balanced."""
    refuse_if(worker_balance["chunk_seconds"].null_count, "the duration of chunks is not known")
    loads = pc.drop_null(worker_balance["busy_share"])
    mean = pc.mean(loads).as_py()
    refuse_if(not mean, "no worker computed a chunk")
    return float(pc.max(loads).as_py() / mean)
