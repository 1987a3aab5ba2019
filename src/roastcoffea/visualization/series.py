"""Numbers for pictures: series of workers on a common grid, rates and classes in bins of time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import some
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, places
from roastcoffea.metrics.worker_names import natural
from roastcoffea.records.workers import OF_SCHEDULER

Span = tuple[float, float]
"""Beginning and end of a run (Unix seconds)."""

Presence = Mapping[str, tuple[float, float]]
"""When each worker arrived and left, as far as that is known."""


class Workers(NamedTuple):
    """What is known of workers: when they were there, and their short names."""

    presence: Presence
    names: Mapping[str, str]


class Series(NamedTuple):
    """A quantity of workers: moments in order and values for each."""

    workers: list[str]
    names: list[str]
    times: list[Numbers]
    values: list[Numbers]

    @property
    def begin(self) -> float:
        """Moment of the first sample."""
        return float(min(times[0] for times in self.times))

    @property
    def end(self) -> float:
        """Moment of the last sample."""
        return float(max(times[-1] for times in self.times))


def series_of(samples: pa.Table, column: str, names: Mapping[str, str]) -> Series:
    """A column of the samples by worker, with their names; refused where it was never measured."""
    noted = column in OF_SCHEDULER and "noted" in samples.column_names
    times = pc.coalesce(samples["noted"], samples["time"]) if noted else samples["time"]
    timed = samples.select(["worker", column]).append_column("time", times)
    known = some(timed.drop_null(), f"no sample tells {column}")
    workers = sorted(known["worker"].unique().to_pylist(), key=lambda worker: natural(names.get(worker, worker)))
    code, (time, value) = places(known["worker"], workers), (amounts(known, name) for name in ("time", column))
    order, borders = np.lexsort((time, code)), np.cumsum(np.bincount(code))[:-1]
    shown = [names.get(worker, worker) for worker in workers]
    return Series(workers, shown, np.split(time[order], borders), np.split(value[order], borders))


def known_rows(chunks: pa.Table, *columns: str) -> pa.Table:
    """Datasets of chunks with columns, where these are all known."""
    table = chunks.select(["dataset", *columns])
    known = table.filter(reduce(pc.and_, [table[column].is_valid() for column in columns]))
    return some(known, f"{' and '.join(columns).replace('_', ' ')} are not known of any chunk")


def on_grid(series: Series, grid: Numbers) -> Numbers:
    """Values of each worker at the moments of a grid, linear between samples; NaN before the first and after the last.

    A worker whose samples all lie between two moments of the grid has its mean at the nearer one.
    """
    rows = np.full((len(series.workers), len(grid)), np.nan)
    for row, times, values in zip(rows, series.times, series.values, strict=True):
        row[:] = np.interp(grid, times, values, left=np.nan, right=np.nan)
        if np.isnan(row).all():
            row[np.abs(grid - times.mean()).argmin()] = values.mean()
    return rows


def steps_on_grid(series: Series, grid: Numbers) -> Numbers:
    """Values of each worker at the moments of a grid: the last sample's; NaN before the first, and where it left."""
    rows = np.full((len(series.workers), len(grid)), np.nan)
    for row, times, values in zip(rows, series.times, series.values, strict=True):
        stays = times[-1] >= series.end
        inside = (times[0] <= grid) & ((grid < times[-1]) | stays)
        row[inside] = values[np.searchsorted(times, grid[inside], side="right") - 1]
    return rows


def held(series: Series, there: Presence) -> Series:
    """Series in which each worker has its last value until it left, or until the last sample of all."""
    ends = [
        max(times[-1], min(there[worker][1], series.end) if worker in there else times[-1])
        for worker, times in zip(series.workers, series.times, strict=True)
    ]
    times = [np.append(times, end) for times, end in zip(series.times, ends, strict=True)]
    return series._replace(times=times, values=[np.append(values, values[-1]) for values in series.values])


def lasting(series: Series, there: Presence) -> Series:
    """Series in which each worker has its first value from its arrival on, and its last one until it left.

    Where these are not known (`there`) it is an interval between its samples; all is within the samples of all.
    """
    longer: list[Numbers] = []
    for worker, times in zip(series.workers, series.times, strict=True):
        interval = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        arrived, left = there.get(worker, (times[0] - interval, times[-1] + interval))
        begin, end = np.clip([min(arrived, times[0]), max(left, times[-1])], series.begin, series.end)
        longer.append(np.concatenate([[begin], times, [end]]))
    return series._replace(times=longer, values=[np.pad(values, 1, mode="edge") for values in series.values])


def amounts_in_bins(starts: Numbers, stops: Numbers, amounts: Numbers, edges: Numbers) -> Numbers:
    """What falls into each bin of time where each amount is spread evenly from its start to its stop."""
    stops = np.maximum(stops, starts + 1e-6)
    slopes = amounts / (stops - starts)
    moments, changes = np.concatenate([starts, stops]), np.concatenate([slopes, -slopes])
    order = np.argsort(moments)
    moments = moments[order]
    rates = np.cumsum(changes[order])
    reached = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(moments))])
    return np.diff(np.interp(edges, moments, reached))


def busy_in_pixels(rows: Integers, starts: Numbers, stops: Numbers, shape: tuple[int, int], edges: Numbers) -> Numbers:
    """Seconds of intervals in each pixel of rows x bins of time; all bins are equally long."""
    width = edges[1] - edges[0]
    partial, whole = np.zeros((2, shape[0] * shape[1]))
    for sign, moments in ((1.0, starts), (-1.0, stops)):
        bins = np.clip(((moments - edges[0]) / width).astype(np.int64), 0, shape[1] - 1)
        place = rows * shape[1] + bins
        left = np.clip(edges[bins + 1] - moments, 0.0, width)
        partial += sign * np.bincount(place, left, minlength=len(partial))
        whole += sign * np.bincount(place, minlength=len(whole))
    # an interval fills the bins after the one it begins in, until it ends
    covered = np.cumsum(whole.reshape(shape), axis=1) - whole.reshape(shape)
    return np.asarray(partial.reshape(shape) + width * covered)
