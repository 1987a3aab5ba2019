"""Worker samples in the shape that notebooks for version 0.1.2 read: made of records, and records made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import OF_SCHEDULER, SAMPLE_COLUMNS

COUNTS: Final = "worker_counts"
SERIES: Final = (
    ("worker_memory", "memory"),
    ("worker_memory_limit", "memory_limit"),
    ("worker_active_tasks", "processing"),
    ("worker_cores", "threads"),
    ("worker_nbytes", "nbytes"),
    ("worker_occupancy", "occupancy"),
    ("worker_executing", "executing"),
    ("worker_last_seen", "last_seen"),
    ("worker_cpu", "cpu_percent"),
)
"""Names of 0.1.2, and the columns that they come from."""

SAMPLED: Final = tuple((name, column) for name, column in SERIES if column != "threads")
"""Those that are sampled: the number of threads stands in the lifetimes."""

Numbers = npt.NDArray[np.float64]
TrackingData = dict[str, dict[Any, Any]]


def tracking_data(samples: pa.Table, lifetimes: pa.Table) -> TrackingData:
    """Worker counts and nine series per worker.

    Times are naive `datetime` objects in local time, as `datetime.now()` gives them. `worker_counts` has
    the number of workers at each arrival, departure and sample; each of the nine is {worker: [(time,
    value), ...]} in order of time. A value that was not measured is left out.
    """
    threads = dict(zip(lifetimes["worker"].to_pylist(), lifetimes["threads"].to_pylist(), strict=True))
    rows = [row for row in samples.to_pylist() if row["time"] is not None]
    rows.sort(key=lambda row: row["time"])
    data: TrackingData = {COUNTS: _worker_counts(lifetimes, [row["time"] for row in rows])}
    data |= {name: {row["worker"]: [] for row in rows} for name, _ in SERIES}
    for row in rows:
        values = row | {"threads": threads.get(row["worker"])}
        for name, column in SERIES:
            if values[column] is not None:
                noted = row["noted"] if column in OF_SCHEDULER else None
                time = datetime.fromtimestamp(row["time"] if noted is None else noted)
                data[name][row["worker"]].append((time, values[column]))
    return data


def samples_of(tracking: Mapping[str, Mapping[Any, Any]]) -> pa.Table:
    """Samples of workers, of the series of each."""
    return table_of_rows(SAMPLE_COLUMNS, sample_rows(tracking, seconds))


def sample_rows(tracking: Mapping[str, Any], moment_of: Callable[[Any], float]) -> list[dict[str, Any]]:
    """Row for each worker and moment."""
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for name, column in SAMPLED:
        for worker, points in tracking.get(name, {}).items():
            for time, value in points:
                moment = moment_of(time)
                rows.setdefault((worker, moment), {"worker": worker, "time": moment})[column] = value
    return list(rows.values())


def counts_of(tracking: Mapping[str, Mapping[Any, Any]]) -> tuple[Numbers, Numbers]:
    """Moments in order, and the number of workers from each to the next."""
    counts = sorted((seconds(time), count) for time, count in tracking.get(COUNTS, {}).items())
    return np.array([time for time, _ in counts]), np.array([float(count) for _, count in counts])


def seconds(time: datetime | float) -> float:
    """Unix seconds of a moment; a naive one is local."""
    return time.timestamp() if isinstance(time, datetime) else float(time)


def _worker_counts(lifetimes: pa.Table, sampled: list[float]) -> dict[datetime, int]:
    """Workers at each moment that matters; at the last one those who stayed until then count."""
    starts, stops = (np.sort(lifetimes[name].drop_null().to_numpy()) for name in ("start", "stop"))
    if len(starts) == 0 or len(stops) == 0:
        return {}
    inside = [time for time in sampled if starts[0] <= time <= stops[-1]]
    times = np.unique(np.concatenate([starts, stops, inside]))
    left = np.searchsorted(stops, times, side="right")
    left[-1] = np.searchsorted(stops, times[-1], side="left")
    counts = np.searchsorted(starts, times, side="right") - left
    return {datetime.fromtimestamp(time): int(count) for time, count in zip(times.tolist(), counts, strict=True)}
