"""What plots draw from: records of a run, what is computed from them, and series on a common grid."""

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
from roastcoffea.metrics.facts import WITH_RESULT, among, clock_offsets, natural, recorded, some, with_outcome
from roastcoffea.metrics.phases import phases_of
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, axes, measured_values, one_of, places, spread
from roastcoffea.metrics.thread_activity import REPEATED, Records, estimated_intervals
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, OK
from roastcoffea.records.run import Run
from roastcoffea.records.workers import OF_SCHEDULER
from roastcoffea.storage.store import load_run

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


def on_grid(series: Series, grid: Numbers, *, steps: bool = False) -> Numbers:
    """Values of each worker at the moments of a grid; NaN before the first sample and after the last.

    Values are linear between samples, and a worker whose samples all lie between two moments of the grid has its mean
    at the nearer one; in `steps` they are those of the last sample.
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


def busy_in_pixels(rows: Integers, starts: Numbers, stops: Numbers, shape: tuple[int, int], edges: Numbers) -> Numbers:
    """Seconds of intervals in each pixel of rows x bins of time; all bins are equally long."""
    begun, ended = np.clip([starts, stops], edges[0], edges[-1])
    return spread(rows, begun, ended, ended - begun, axes(edges[0], edges[-1], np.arange(shape[0]), *shape))


Counted = tuple[Numbers, Numbers]
Ask = Callable[[str], Any]

METRIC: Final = "metric"
"""The input by which a plot asks for metrics by their names, of which some may be missing."""

OPTIONS: Final[Mapping[str, str]] = {
    "bins": "Number of bins of a distribution, or their edges in the unit of the axis.",
    "max_legend_entries": "Most entries of the legend; the others are drawn without a name.",
}
"""What users may set of some plots, and what it means; a plot that has a parameter of this name takes it."""

PLOT_INPUTS: Final = Catalogue(given=(RUN, METRIC, *OPTIONS), below=CATALOGUE)
"""Inputs of plots; metrics and the facts that these are computed from are inputs as well."""


def plot_input(function: AnyFunction) -> AnyFunction:
    """Decorate a function as an input of plots, whose parameters name what it is computed from."""
    PLOT_INPUTS.add(Fact.of(function, kept=True))
    return function


def inputs_of(source: Any, options: Mapping[str, Any] | None = None, **older: Any) -> Evaluator:
    """Inputs of plots of a run, a measurement, a collector or the folder of one, or of data in the shapes of 0.1.2.

    `options` has those of OPTIONS that were set.

    Raises
    ------
    ValueError
        If nothing was given, or something of another kind.
    MeasurementError
        If there is no measurement in the folder.
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
        raise ValueError(f"give a collector, a measurement, a Run, or one of {', '.join(ARGUMENTS)}; {found} was given")
    metrics = given.pop("metrics") if isinstance(given.get("metrics"), Metrics) else None
    if metrics is not None and not isinstance(run, Run):
        run = metrics.evaluator.value(RUN)
    made = with_older(run if isinstance(run, Run) else None, given)
    if metrics is None and not given:
        metrics = getattr(measured, "metrics", None)
    below = (evaluate(made.run if given else run) if metrics is None else metrics).evaluator
    values = dict.fromkeys(OPTIONS) | dict(options or {}) | {RUN: made.run, METRIC: below.value}
    return Evaluator(PLOT_INPUTS, values | made.inputs, below)


# Records, at least one; moments are on the client's clock


@plot_input
def start(run: Run) -> float:
    """Where the time axis begins (Unix seconds)."""
    if run.stop > run.start:
        return run.start
    tables = ((run.samples, "time"), (run.chunks, "start"))
    earliest = [pc.min(table[column]).as_py() for table, column in tables if table is not None]
    return min((moment for moment in earliest if moment is not None), default=run.start)


@plot_input
def whole_run(run: Run, start: float) -> Span:
    """Where the time axis begins and ends, for what is sampled (Unix seconds)."""
    if run.stop > start or run.samples is None:
        return start, max(run.stop, start)
    return start, max(pc.max(run.samples["time"]).as_py() or start, start)


@plot_input
def workers(run: Run, worker_names: Mapping[str, str]) -> Workers:
    """When each worker arrived and left, as far as that is known, and their names."""
    if run.lifetimes is None:
        return Workers({}, worker_names)
    known = run.lifetimes.select(["worker", "start", "stop"]).drop_null()
    lives = known.group_by("worker").aggregate([("start", "min"), ("stop", "max")]).to_pylist()
    return Workers({life["worker"]: (life["start_min"], life["stop_max"]) for life in lives}, worker_names)


@plot_input
def chunk_attempts(run: Run) -> pa.Table:
    """Attempts of chunks."""
    return on_clients_clock(run, some(recorded(run, "chunks"), "no attempt of a chunk was seen"), "start", "stop")


@plot_input
def computed_chunks(chunk_attempts: pa.Table) -> pa.Table:
    """Attempts of chunks that were computed to the end."""
    return some(with_outcome(chunk_attempts, (OK,)), "no chunk was computed to the end")


@plot_input
def phased_chunks(run: Run, computed_chunks: pa.Table) -> pa.Table:
    """Attempts of chunks that were computed to the end, at least one of them with recorded phases."""
    columns = [phase.column for phase in phases_of(computed_chunks)]
    lacking = all(computed_chunks[column].null_count == len(computed_chunks) for column in columns)
    refuse_if(lacking, run.absent.get(f"chunks.{columns[0]}", "no chunk has recorded phases"))
    return computed_chunks


@plot_input
def requests(run: Run, chunk_attempts: pa.Table) -> pa.Table:
    """When attempts of chunks and of preprocessing ran, and the bytes that each requested; null is not known."""
    asked = pc.coalesce(chunk_attempts["bytes_requested"], chunk_attempts["coffea_bytes_read"])
    loaded = pc.fill_null(pc.equal(chunk_attempts["outcome"], CHECKPOINT), False)
    found = [_timed(chunk_attempts, pc.if_else(loaded, pc.fill_null(asked, 0), asked))]
    some(found[0].drop_null(), "of no attempt of a chunk it is known when it ran and what it requested")
    if run.preprocessing is not None:
        openings = on_clients_clock(run, run.preprocessing, "start", "stop")
        found.append(_timed(openings, openings["bytes_requested"]))
    return pa.concat_tables(found)


@plot_input
def attempts(
    run: Run, counted_chunks: pa.Table | None = None, lifetimes: pa.Table | None = None
) -> tuple[pa.Table | None, pa.Table | None]:
    """Attempts of tasks, None where they are not known, and those of chunks; of both one at least is known.

    As in the time ledger, the outcome of a chunk whose result was not used is "repeated", and attempts that were lost
    with their worker or did not finish have estimated times.
    """
    chunks = None if run.chunks is None or "chunks" in run.absent else chunk_attempts(run)
    if chunks is not None and counted_chunks is not None:
        chunks = _with_repeated(chunks, counted_chunks)
    if chunks is not None and run.tasks is None:
        return None, chunks
    tasks = some(recorded(run, "tasks"), "no task was seen")
    if lifetimes is not None:
        none = table_of_rows(CHUNK_COLUMNS, [])
        moments = estimated_intervals(Records.of(run, lifetimes, none, none), tasks)
        for name, values in zip(("start", "stop"), moments, strict=True):
            estimated = pa.chunked_array([pa.array(values, from_pandas=True)])
            tasks = _with_column(tasks, name, pc.coalesce(tasks[name], estimated))
    return tasks, chunks


def _with_repeated(chunks: pa.Table, counted: pa.Table) -> pa.Table:
    """Chunks in which the outcome of those with a result that was not used is that they were repeated."""
    unused = pa.array(one_of(chunks["outcome"], pa.array(WITH_RESULT)) & ~among(chunks, counted))
    if not pc.any(unused, min_count=0).as_py():
        return chunks
    return _with_column(chunks, "outcome", pc.if_else(unused, REPEATED, chunks["outcome"]))


def _with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    number = table.schema.get_field_index(name)
    return table.set_column(number, table.schema.field(number), values)


@plot_input
def worker_samples(run: Run) -> pa.Table:
    """Samples of workers."""
    return on_clients_clock(run, some(recorded(run, "samples"), "no sample of a worker was taken"), "time")


@plot_input
def states_of_workers(run: Run) -> pa.Table:
    """What the scheduler knew of workers (`OF_SCHEDULER`), as it sampled itself, or with the samples of workers."""
    states = run.worker_states
    return states if states is not None and len(states) else worker_samples(run)


@plot_input
def worker_lifetimes(run: Run) -> pa.Table:
    """Workers."""
    return some(recorded(run, "lifetimes"), "no worker was seen")


# What is computed from them


@plot_input
def worker_counts(run: Run, present: tuple[Numbers, Numbers]) -> Counted:
    """Moments, and the number of workers from each to the next.

    The last number is that of the workers who stayed to the end of the run: they leave as it ends.
    """
    moments = np.unique(np.concatenate(present))
    refuse_if(len(moments) == 0, "no worker was seen")
    came, left = (np.searchsorted(np.sort(each), moments, side="right") for each in present)
    counts = (came - left).astype(np.float64)
    if moments[-1] < run.stop:
        return np.append(moments, run.stop), np.append(counts, 0.0)
    return moments, np.append(counts[:-1], counts[-2:-1] if len(counts) > 1 else counts)


@plot_input
def compression_factors(computed_chunks: pa.Table) -> tuple[str, Numbers]:
    """Uncompressed over compressed size of "chunks", or of other things that are named."""
    known = computed_chunks.select(["bytes_payload", "bytes_uncompressed"]).drop_null()
    read = known.filter(pc.greater(known["bytes_payload"], 0))
    known = some(read, "of no chunk the payload is known with its size in memory")
    return "chunks", measured_values(known["bytes_uncompressed"]) / measured_values(known["bytes_payload"])


def _timed(attempts: pa.Table, requested: pa.ChunkedArray) -> pa.Table:
    return attempts.select(["start", "stop"]).append_column("bytes", requested)


def on_clients_clock(run: Run, table: pa.Table, *columns: str) -> pa.Table:
    """Table whose moments (these columns) were on the clocks of workers."""
    offsets = {worker: offset for worker, offset in clock_offsets(run).items() if offset}
    if offsets:
        place = pc.index_in(table["worker"], value_set=pa.array(list(offsets), pa.string()))
        ahead = pc.fill_null(pc.take(pa.array(list(offsets.values())), place), 0.0)
        for name in columns:
            table = _with_column(table, name, pc.subtract(table[name], ahead))
    return table
