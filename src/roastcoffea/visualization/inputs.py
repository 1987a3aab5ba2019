"""Plot inputs: records of a run, facts and metrics, and series on a common grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from os import PathLike
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import roastcoffea.diagnosis  # noqa: F401  (it adds to the catalogue)
from roastcoffea.compat.shapes import ARGUMENTS, argument_of, with_older
from roastcoffea.metrics import Metrics, evaluate
from roastcoffea.metrics.catalogue import CATALOGUE, RUN, AnyFunction, Catalogue, Fact, refuse_if
from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.facts import (
    WITH_RESULT,
    among,
    joined,
    natural,
    on_clients_clock,
    recorded,
    some,
    with_outcome,
)
from roastcoffea.metrics.phases import phases_of
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, axes, measured_values, one_of, places, spread
from roastcoffea.metrics.thread_activity import REPEATED, Records, estimated_intervals
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.run import Run
from roastcoffea.records.workers import OF_SCHEDULER
from roastcoffea.storage.store import load_run

Span = tuple[float, float]
"""Start and stop of a run (Unix seconds)."""

Presence = Mapping[str, tuple[float, float]]
"""Arrival and departure times of each worker, if they are known."""


class Workers(NamedTuple):
    presence: Presence
    names: Mapping[str, str]


class Series(NamedTuple):
    """A quantity over time, with sorted times and the corresponding values for each worker."""

    workers: list[str]
    names: list[str]
    times: list[Numbers]
    values: list[Numbers]

    @property
    def begin(self) -> float:
        return float(min(times[0] for times in self.times))

    @property
    def end(self) -> float:
        return float(max(times[-1] for times in self.times))


def series_of(samples: pa.Table, column: str, names: Mapping[str, str]) -> Series:
    """Return a sample column as a series; raise NotMeasuredError if it was never measured."""
    noted = column in OF_SCHEDULER and "noted" in samples.column_names
    times = pc.coalesce(samples["noted"], samples["time"]) if noted else samples["time"]
    timed = samples.select(["worker", column]).append_column("time", times)
    known = some(timed.drop_null(), f"no sample has {column}")
    workers = sorted(known["worker"].unique().to_pylist(), key=lambda worker: natural(names.get(worker, worker)))
    code, (time, value) = places(known["worker"], workers), (amounts(known, name) for name in ("time", column))
    order, borders = np.lexsort((time, code)), np.cumsum(np.bincount(code))[:-1]
    shown = [names.get(worker, worker) for worker in workers]
    return Series(workers, shown, np.split(time[order], borders), np.split(value[order], borders))


def known_rows(chunks: pa.Table, *columns: str) -> pa.Table:
    table = chunks.select(["dataset", *columns])
    known = table.filter(reduce(pc.and_, [table[column].is_valid() for column in columns]))
    return some(known, f"{' and '.join(columns).replace('_', ' ')} are unknown for every chunk")


def on_grid(series: Series, grid: Numbers, *, steps: bool = False) -> Numbers:
    """Return each worker's values on a grid of times, with NaN before the first and after the last sample.

    Values are interpolated linearly. If all of a worker's samples lie between two grid points, the nearest grid point
    has their mean value. With `steps`, the value of the most recent sample is used.
    """
    rows = np.full((len(series.workers), len(grid)), np.nan)
    for row, times, values in zip(rows, series.times, series.values, strict=True):
        if steps:
            inside = (times[0] <= grid) & ((grid < times[-1]) | (times[-1] >= series.end))
            row[inside] = values[np.searchsorted(times, grid[inside], side="right") - 1]
            continue
        row[:] = np.interp(grid, times, values, left=np.nan, right=np.nan)
        if np.isnan(row).all():
            row[np.abs(grid - times.mean()).argmin()] = values.mean()
    return rows


def lasting(series: Series, there: Presence) -> Series:
    """Extend each worker's series back to the worker's arrival and forward to its departure.

    The first and last values are repeated. If a worker is not in `there`, its series is extended by one sampling
    interval at each end. No series is extended beyond the range of all samples.
    """
    longer: list[Numbers] = []
    for worker, times in zip(series.workers, series.times, strict=True):
        interval = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        arrived, left = there.get(worker, (times[0] - interval, times[-1] + interval))
        begin, end = np.clip([min(arrived, times[0]), max(left, times[-1])], series.begin, series.end)
        longer.append(np.concatenate([[begin], times, [end]]))
    return series._replace(times=longer, values=[np.pad(values, 1, mode="edge") for values in series.values])


def busy_in_pixels(rows: Integers, starts: Numbers, stops: Numbers, shape: tuple[int, int], edges: Numbers) -> Numbers:
    """Return the time that intervals cover in each pixel (row and time bin). All bins have the same width."""
    begun, ended = np.clip([starts, stops], edges[0], edges[-1])
    return spread(rows, begun, ended, ended - begun, axes(edges[0], edges[-1], np.arange(shape[0]), *shape))


Counted = tuple[Numbers, Numbers]
Ask = Callable[[str], Any]

METRIC: Final = "metric"
"""Input for plots that look up metrics by name, some of which may be missing."""

OPTIONS: Final[Mapping[str, str]] = {
    "bins": "Number of bins in a distribution, or the bin edges in the axis unit.",
    "max_legend_entries": "Maximum number of legend entries. Any further lines are left out of the legend.",
}
"""Options for some plots, with descriptions. A plot accepts an option if it has a parameter with that name."""

PLOT_INPUTS: Final = Catalogue(given=(RUN, METRIC, *OPTIONS), below=CATALOGUE)
"""Plot inputs, in addition to metrics and their facts."""


def plot_input(function: AnyFunction) -> AnyFunction:
    """Register a function as a plot input. The function's parameters are the names of its inputs."""
    PLOT_INPUTS.add(Fact.of(function, kept=True))
    return function


def inputs_of(source: Any, options: Mapping[str, Any] | None = None, **older: Any) -> Evaluator:
    """Collect plot inputs from a run, measurement, collector, measurement folder or data from version 0.1.2.

    `options` contains the values passed for OPTIONS.

    Raises
    ------
    ValueError
        If no source was given, or the source has an unsupported type.
    MeasurementError
        If the folder does not contain a measurement.
    """
    given = {name: data for name, data in older.items() if data is not None}
    if (argument := argument_of(source)) is not None:
        source, given = None, {argument: source} | given
    if isinstance(source, str | PathLike):
        source = load_run(source)
    measured = getattr(source, "measurement", source)
    run = getattr(measured, "run", measured)
    if not isinstance(run, Run) and not (source is None and given):
        found = "nothing" if source is None else type(source).__name__
        raise ValueError(f"pass a collector, a measurement, a Run, or one of {', '.join(ARGUMENTS)}; {found} was given")
    metrics = given.pop("metrics") if isinstance(given.get("metrics"), Metrics) else None
    if metrics is not None and not isinstance(run, Run):
        run = metrics.evaluator.value(RUN)
    made = with_older(run if isinstance(run, Run) else None, given)
    if metrics is None and not given:
        metrics = getattr(measured, "metrics", None)
    below = (evaluate(made.run if given else run) if metrics is None else metrics).evaluator
    values = dict.fromkeys(OPTIONS) | dict(options or {}) | {RUN: made.run, METRIC: below.value}
    return Evaluator(PLOT_INPUTS, values | made.inputs, below)


# Records (NotMeasuredError if there are none), with times on the client's clock


@plot_input
def start(run: Run) -> float:
    """Start of the time axis (Unix seconds)."""
    if run.stop > run.start:
        return run.start
    tables = ((run.samples, "time"), (run.chunks, "start"))
    earliest = [pc.min(table[column]).as_py() for table, column in tables if table is not None]
    return min((moment for moment in earliest if moment is not None), default=run.start)


@plot_input
def whole_run(run: Run, start: float) -> Span:
    """Start and stop of the time axis for samples (Unix seconds)."""
    if run.stop > start or run.samples is None:
        return start, max(run.stop, start)
    return start, max(pc.max(run.samples["time"]).as_py() or start, start)


@plot_input
def workers(run: Run, worker_names: Mapping[str, str]) -> Workers:
    """Worker names, and the arrival and departure times of each worker, if they are known."""
    if run.lifetimes is None:
        return Workers({}, worker_names)
    known = run.lifetimes.select(["worker", "start", "stop"]).drop_null()
    lives = known.group_by("worker").aggregate([("start", "min"), ("stop", "max")]).to_pylist()
    return Workers({life["worker"]: (life["start_min"], life["stop_max"]) for life in lives}, worker_names)


@plot_input
def chunk_attempts(run: Run) -> pa.Table:
    return on_clients_clock(run, some(recorded(run, "chunks"), "no chunk attempt was recorded"), "start", "stop")


@plot_input
def computed_chunks(chunk_attempts: pa.Table) -> pa.Table:
    return some(with_outcome(chunk_attempts, (OK,)), "no chunk was fully computed")


@plot_input
def phased_chunks(run: Run, computed_chunks: pa.Table) -> pa.Table:
    columns = [phase.column for phase in phases_of(computed_chunks)]
    lacking = all(computed_chunks[column].null_count == len(computed_chunks) for column in columns)
    refuse_if(lacking, run.absent.get(f"chunks.{columns[0]}", "no chunk has recorded phases"))
    return computed_chunks


@plot_input
def requests(run: Run, chunk_attempts: pa.Table) -> pa.Table:
    """Times of chunk and preprocessing attempts, and the bytes requested by each attempt (null if unknown)."""
    asked = pc.coalesce(chunk_attempts["bytes_requested"], chunk_attempts["coffea_bytes_read"])
    loaded = pc.fill_null(pc.equal(chunk_attempts["outcome"], CHECKPOINT), False)
    found = [_timed(chunk_attempts, pc.if_else(loaded, pc.fill_null(asked, 0), asked))]
    some(found[0].drop_null(), "no chunk attempt has both times and requested bytes")
    if run.preprocessing is not None:
        openings = on_clients_clock(run, run.preprocessing, "start", "stop")
        found.append(_timed(openings, openings["bytes_requested"]))
    return joined(found)


@plot_input
def attempts(
    run: Run, counted_chunks: pa.Table | None = None, lifetimes: pa.Table | None = None
) -> tuple[pa.Table | None, pa.Table | None]:
    """Task attempts and chunk attempts. One of the two may be None.

    As in the time ledger, the outcome of chunks with an unused result is "repeated". Times are estimated for attempts
    that did not finish or whose worker was lost.
    """
    chunks = None if run.chunks is None or "chunks" in run.absent else chunk_attempts(run)
    if chunks is not None and counted_chunks is not None:
        chunks = _with_repeated(chunks, counted_chunks)
    if chunks is not None and run.tasks is None:
        return None, chunks
    tasks = some(recorded(run, "tasks"), "no task was recorded")
    if lifetimes is not None:
        none = table_of_rows(CHUNK_COLUMNS, [])
        moments = estimated_intervals(Records.of(run, lifetimes, none, none), tasks)
        for name, values in zip(("start", "stop"), moments, strict=True):
            estimated = pa.chunked_array([pa.array(values, from_pandas=True)])
            tasks = _with_column(tasks, name, pc.coalesce(tasks[name], estimated))
    return tasks, chunks


def _with_repeated(chunks: pa.Table, counted: pa.Table) -> pa.Table:
    unused = pa.array(one_of(chunks["outcome"], pa.array(WITH_RESULT)) & ~among(chunks, counted))
    if not pc.any(unused, min_count=0).as_py():
        return chunks
    return _with_column(chunks, "outcome", pc.if_else(unused, REPEATED, chunks["outcome"]))


def _with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(number), values)


@plot_input
def worker_samples(run: Run) -> pa.Table:
    return on_clients_clock(run, some(recorded(run, "samples"), "no worker was sampled"), "time")


@plot_input
def states_of_workers(run: Run) -> pa.Table:
    """The scheduler's view of workers (`OF_SCHEDULER`), from the scheduler's samples or, failing that, the workers'
    samples."""
    states = run.worker_states
    return states if states is not None and len(states) else worker_samples(run)


@plot_input
def worker_lifetimes(run: Run) -> pa.Table:
    return some(recorded(run, "lifetimes"), "no worker was recorded")


# Computed from records


@plot_input
def worker_counts(run: Run, present: tuple[Numbers, Numbers]) -> Counted:
    """Times, and the number of workers from each time to the next.

    The last number is the number of workers that stayed until the end of the run.
    """
    moments = np.unique(np.concatenate(present))
    refuse_if(len(moments) == 0, "no worker was recorded")
    came, left = (np.searchsorted(np.sort(each), moments, side="right") for each in present)
    counts = (came - left).astype(np.float64)
    if moments[-1] < run.stop:
        return np.append(moments, run.stop), np.append(counts, 0.0)
    return moments, np.append(counts[:-1], counts[-2:-1] if len(counts) > 1 else counts)


@plot_input
def compression_factors(computed_chunks: pa.Table) -> tuple[str, Numbers]:
    """The plural name of the items, such as "chunks", and each item's ratio of uncompressed to compressed size."""
    known = computed_chunks.select(["bytes_payload", "bytes_uncompressed"]).drop_null()
    read = known.filter(pc.greater(known["bytes_payload"], 0))
    known = some(read, "no chunk has both a payload and an uncompressed size")
    return "chunks", measured_values(known["bytes_uncompressed"]) / measured_values(known["bytes_payload"])


def _timed(attempts: pa.Table, requested: pa.ChunkedArray) -> pa.Table:
    return attempts.select(["start", "stop"]).append_column("bytes", requested)
