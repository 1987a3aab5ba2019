"""Workers side by side: who computes and who waits, who is slow, who spills and who transfers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import RESOURCES, NotMeasuredError, metric, table
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column
from roastcoffea.units import RATIO

CPU_BOUND: Final = "CPU"
WAITING: Final = "wait"
MIXED: Final = "both"
MOSTLY: Final = 0.8
"""A worker is bound by CPU, or by waiting, where that is so much of the time of its chunks."""

BALANCE_COLUMNS: Final = (
    Column("worker", "text", None, "address of the worker"),
    Column("host", "text", None, "address of the host it ran on"),
    Column("threads", "integer", "threads", "threads for tasks"),
    Column("present_seconds", "number", "s", "time that it was there"),
    Column("chunks", "integer", None, "chunks that it computed, and that counted"),
    Column("events", "integer", "events", "events in them"),
    Column("chunk_seconds", "number", "s", "duration of those chunks"),
    Column("cpu_seconds", "number", "s", "CPU time of their threads"),
    Column("busy_share", "number", None, "duration of the chunks beside threads x time that it was there"),
    Column("cpu_share", "number", None, "CPU time of the chunks beside their duration"),
    Column(
        "bound", "text", None, f'"{CPU_BOUND}" or "{WAITING}" where that is 80 % of the chunks\' time, else "{MIXED}"'
    ),
    Column("slowness", "number", None, "duration of its chunks beside what is typical for their events and bytes"),
    Column("spill_seconds", "number", "s", "writing results to disk and reading them back (Dask)"),
    Column("transfer_seconds", "number", "s", "fetching results from other workers (Dask)"),
    Column("clock_offset", "number", "s", "the worker's clock less the client's, as its tasks bound it"),
    Column("transfer_bytes", "number", "B", "results that it fetched from other workers (Dask)"),
)
"""One row for each worker."""


@table
def worker_balance(
    lifetimes: pa.Table,
    counted_chunks: pa.Table | None = None,
    expected_seconds: pa.Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> pa.Table:
    """Workers with BALANCE_COLUMNS."""
    done = _by_worker(counted_chunks, {"id": "count", "events": "sum", "wall_seconds": "sum", "cpu_seconds": "sum"})
    slowness = _by_worker(expected_seconds, {"slowness": "mean"})
    rows = []
    for life in _lives(lifetimes):
        worker = life["worker"]
        row = life | _work(done.get(worker), life, measured=counted_chunks is not None)
        row |= {"slowness": slowness.get(worker, {}).get("slowness")}
        rows.append(row | _fine(None if fine_metrics_per_worker is None else fine_metrics_per_worker.get(worker)))
    return table_of_rows(BALANCE_COLUMNS, rows)


def _lives(lifetimes: pa.Table) -> list[dict[str, Any]]:
    """Workers with the time that they were there; one that came back counts once."""
    lasting = lifetimes.append_column("present_seconds", pc.subtract(lifetimes["stop"], lifetimes["start"]))
    steps = [("host", "first"), ("threads", "max"), ("present_seconds", "sum"), ("clock_offset", "last")]
    lives = lasting.group_by("worker", use_threads=False).aggregate(steps)
    return list(lives.rename_columns(["worker", "host", "threads", "present_seconds", "clock_offset"]).to_pylist())


def _by_worker(chunks: pa.Table | None, steps: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    if chunks is None:
        return {}
    sums = chunks.group_by("worker").aggregate(list(steps.items())).rename_columns(["worker", *steps])
    return {row["worker"]: row for row in sums.to_pylist()}


def _work(done: Mapping[str, Any] | None, life: Mapping[str, Any], *, measured: bool) -> dict[str, Any]:
    if done is None:
        return {"chunks": 0, "events": 0, "chunk_seconds": 0.0, "busy_share": 0.0} if measured else {}
    wall, cpu = done["wall_seconds"], done["cpu_seconds"]
    offered = life["threads"] * life["present_seconds"]
    share = cpu / wall if wall and cpu is not None else None
    return {
        "chunks": done["id"],
        "events": done["events"],
        "chunk_seconds": wall,
        "cpu_seconds": cpu,
        "busy_share": wall / offered if wall is not None and offered else None,
        "cpu_share": share,
        "bound": None if share is None else CPU_BOUND if share >= MOSTLY else WAITING if share <= 1 - MOSTLY else MIXED,
    }


def _fine(metrics: Mapping[str, float] | None) -> dict[str, float]:
    names = ("spill_seconds", "transfer_seconds", "transfer_bytes")
    return {} if metrics is None else {name: metrics[name] for name in names}


@metric(RATIO, group=RESOURCES, source="chunk records", formula="largest busy_share / mean busy_share")
def imbalance(worker_balance: pa.Table) -> float:
    """Share of its threads' time that the busiest worker computed chunks, beside the mean of all; 1 is balanced."""
    if worker_balance["chunk_seconds"].null_count:
        raise NotMeasuredError("the duration of chunks is not known")
    loads = pc.drop_null(worker_balance["busy_share"])
    mean = pc.mean(loads).as_py()
    if not mean:
        raise NotMeasuredError("no worker computed a chunk")
    return float(pc.max(loads).as_py() / mean)
