"""Over time: what each thread did, the data rate, and the memory, CPU and tasks of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.facts import some
from roastcoffea.metrics.phases import COMPUTE, READING, RESIDUAL
from roastcoffea.metrics.statistics import Numbers, axes, measured_values, spread
from roastcoffea.visualization import draw
from roastcoffea.visualization.distributions import SHOWN, Stream, main_in_pixels, stream_of
from roastcoffea.visualization.draw import Scheme, family_labels, legend, letters, scheme_of
from roastcoffea.visualization.inputs import Counted, Series, Span, Workers, series_of
from roastcoffea.visualization.registry import WIDE, plot

MOST_RECTANGLES: Final = 20_000
MOST_ROWS: Final = 400
COLUMNS: Final = 800
MOST_NAMED: Final = 24
MOST_SEPARATE: Final = 40
"""Lanes up to which there is a gap between them: of more it would be thinner than a dot."""


@plot("Task stream", size=WIDE)
def plot_task_stream(
    ax: Axes, start: float, attempts: tuple[pa.Table | None, pa.Table | None], worker_names: Mapping[str, str]
) -> None:
    """Draw what each worker thread did from moment to moment, coloured by family of classes of the time ledger.

    A task of the processor has the colour of the class that took most of it. Of very many tasks a pixel
    shows the class that took most of its time; failed work wins.
    """
    stream = stream_of(*attempts, worker_names)
    names = {name: name for name in SHOWN} | {RESIDUAL: "not recorded"}
    if attempts[1] is None:  # nothing tells what went on inside of chunks
        inside = stream.kind == SHOWN.index(RESIDUAL)
        stream = stream._replace(kind=np.where(inside, SHOWN.index(COMPUTE), stream.kind))
        names[COMPUTE] = "chunks (inside not recorded)"
    end, scheme = float(stream.stop.max()), scheme_of(ax)
    axis = draw.time_axis(ax, start, end)
    if len(stream.start) > MOST_RECTANGLES:
        _draw_raster(ax, stream, start, end, float(axis(np.array([end]))[0]))
    else:
        _draw_rectangles(ax, stream, axis(stream.start), axis(stream.stop))
    _name_lanes(ax, stream, worker_names)
    for name, label in family_labels(
        {SHOWN[number]: names[SHOWN[number]] for number in np.unique(stream.kind)}
    ).items():
        if label is not None:
            ax.plot([], [], "s", color=scheme.of_time[name], label=label)
    legend(ax)


def _colours_of(scheme: Scheme) -> Numbers:
    """Colour of each class in SHOWN."""
    return np.array([to_rgba(scheme.of_time[name]) for name in SHOWN])


def _draw_rectangles(ax: Axes, stream: Stream, left: Numbers, right: Numbers) -> None:
    half = 0.42 if len(stream.lanes) <= MOST_SEPARATE else 0.5
    low, high = stream.lane - half, stream.lane + half
    corners = np.stack([[left, low], [left, high], [right, high], [right, low]]).transpose(2, 0, 1)
    scheme = scheme_of(ax)
    colours = _colours_of(scheme)[stream.kind]
    many = len(left) > MOST_RECTANGLES // 20
    look: dict[str, Any] = {"edgecolors": "none" if many else scheme.ground, "linewidths": 0.3, "rasterized": many}
    ax.add_collection(PolyCollection(list(corners), facecolors=colours, **look))


def _draw_raster(ax: Axes, stream: Stream, start: float, end: float, right: float) -> None:
    """Pixels of lanes x time, each in the colour of what took most of it; the background where that is nothing."""
    picture = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, end, COLUMNS + 1)).kind
    scheme = scheme_of(ax)
    colours = np.array([*_colours_of(scheme), to_rgba(scheme.ground)])
    extent = (0.0, right, len(stream.lanes) - 0.5, -0.5)
    ax.imshow(colours[picture], extent=extent, aspect="auto", interpolation="nearest", rasterized=True)


def _name_lanes(ax: Axes, stream: Stream, names: Mapping[str, str]) -> None:
    """Name the worker at the first of its lanes, where there is room for the names."""
    first = [place for place, worker in enumerate(stream.lanes) if place == 0 or stream.lanes[place - 1] != worker]
    ax.set_ylim(len(stream.lanes) - 0.5, -0.5)
    if len(first) > MOST_NAMED or len(stream.lanes) > 4 * MOST_NAMED:
        ax.set_ylabel(f"threads of {stream.workers} workers")
        ax.set_yticks([])
        return
    ax.set_ylabel("threads of workers")
    ax.set_yticks(first, [draw.short(names.get(stream.lanes[place], stream.lanes[place])) for place in first])


MOST_BINS = 150


@plot("Data rate")
def plot_throughput_timeline(ax: Axes, requests: pa.Table, start: float, worker_counts: Counted | None = None) -> None:
    """Draw the rate of requested bytes over time, and the number of workers.

    The bytes of an attempt are spread evenly over its duration. The area below the rate is all that was requested,
    by failed attempts and by preprocessing as well.
    """
    edges, rates = data_rates(requests, start)
    scale = draw.bytes_scale(float(rates.max()), "bit/s")
    axis = draw.time_axis(ax, start, float(edges[-1]))
    colour = scheme_of(ax).of(READING)
    ax.stairs(rates * scale.factor, axis(edges), fill=True, color=colour, alpha=0.35)
    ax.stairs(rates * scale.factor, axis(edges), color=colour, linewidth=1.2)
    ax.set_ylabel(f"data rate ({scale.unit})")
    ax.set_ylim(bottom=0)
    if left_out := note_of_unknown(requests):
        draw.note(ax, left_out)
    if worker_counts is not None:
        _draw_workers(ax, axis(worker_counts[0]), worker_counts[1])


def data_rates(requests: pa.Table, start: float, most: int = MOST_BINS) -> tuple[Numbers, Numbers]:
    """Edges of bins of time, and the bits per second that were requested in each; at most so many bins."""
    known = requests.drop_null()
    starts, stops, amounts = (measured_values(known[name]) for name in ("start", "stop", "bytes"))
    begin, end = min(start, float(starts.min())), float(stops.max())
    refuse_if(end <= begin, "the attempts of chunks took no time")
    bins, rows = int(np.clip(2 * len(starts) ** 0.5, 10, most)), np.arange(len(starts))
    edges = np.linspace(begin, end, bins + 1)
    return edges, 8 * spread(0 * rows, starts, stops, amounts, axes(begin, end, rows[:1], 1, bins))[0] / np.diff(edges)


def note_of_unknown(requests: pa.Table) -> str:
    """How many attempts are in no rate; nothing where all are."""
    unknown = len(requests) - len(requests.drop_null())
    return f"the bytes or times of {unknown} of {len(requests)} attempts are not known" if unknown else ""


def _draw_workers(ax: Axes, times: Numbers, counts: Numbers) -> None:
    beside = ax.twinx()
    beside.step(times, counts, where="post", color=scheme_of(ax).ink, linewidth=1.2, linestyle="--")
    beside.set_ylabel("workers (dashed)")
    beside.set_ylim(0, 1.15 * max(counts.max(), 1))
    draw.whole_numbers(beside.yaxis)


PERCENT_OF_LIMIT = "memory in use (% of the limit)"
PERCENT_OF_CORE = "CPU of the process (% of one core)"


@plot("Workers")
def plot_worker_count_timeline(ax: Axes, worker_counts: Counted, start: float) -> None:
    """Draw how many workers there were from moment to moment."""
    times, counts = worker_counts
    draw.level(ax, draw.time_axis(ax, start, times[-1])(times), counts)
    ax.set_ylabel("workers")
    draw.whole_numbers(ax.yaxis)


def _shares_of_limit(samples: pa.Table, names: Mapping[str, str]) -> Series:
    """Memory in percent of what Dask may use, by worker."""
    limited = samples.filter(pc.fill_null(pc.greater(samples["memory_limit"], 0), False))
    limited = some(limited, "no sample tells a memory limit, so that there is no share of it")
    share = pc.divide(pc.multiply(pc.cast(limited["memory"], pa.float64()), 100.0), limited["memory_limit"])
    return series_of(limited.append_column("share", share), "share", names)


def _draw_limit(ax: Axes) -> None:
    """Show memory up to its limit, also where little was used."""
    quiet = scheme_of(ax).quiet
    ax.axhline(100, color=quiet, linewidth=1, linestyle="--")
    look: dict[str, Any] = {"color": quiet, "fontsize": 0.85 * letters(ax), "ha": "right", "va": "bottom"}
    ax.text(0.995, 100, "limit", transform=ax.get_yaxis_transform(), **look)
    ax.set_ylim(0, max(112, ax.get_ylim()[1]))


@plot("Memory of the workers (mean)")
def plot_memory_utilization_mean_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Draw the workers' memory in percent of what Dask may use: the mean, and from the least to the most."""
    draw.worker_mean(ax, _shares_of_limit(worker_samples, worker_names), whole_run, PERCENT_OF_LIMIT)
    _draw_limit(ax)
    legend(ax)


@plot("Memory of each worker")
def plot_memory_utilization_per_worker_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    worker_names: Mapping[str, str],
    max_legend_entries: int | None = None,
) -> None:
    """Draw each worker's memory in percent of what Dask may use; many workers as bands."""
    draw.worker_lines(ax, _shares_of_limit(worker_samples, worker_names), whole_run, PERCENT_OF_LIMIT)
    _draw_limit(ax)
    legend(ax, max_legend_entries)


@plot("CPU of the workers (mean)")
def plot_cpu_utilization_mean_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Draw the CPU use of worker processes, 100 % is one core: the mean, and from the least to the most."""
    draw.worker_mean(ax, series_of(worker_samples, "cpu_percent", worker_names), whole_run, PERCENT_OF_CORE)
    legend(ax)


@plot("CPU of each worker")
def plot_cpu_utilization_per_worker_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    worker_names: Mapping[str, str],
    max_legend_entries: int | None = None,
) -> None:
    """Draw the CPU use of each worker process, 100 % is one core; many workers as bands."""
    draw.worker_lines(ax, series_of(worker_samples, "cpu_percent", worker_names), whole_run, PERCENT_OF_CORE)
    legend(ax, max_legend_entries)


@plot("Occupancy of each worker")
def plot_occupancy_timeline(
    ax: Axes,
    states_of_workers: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Draw how much work the scheduler expected each worker to have, at each sample of it; many workers as bands."""
    series = series_of(states_of_workers, "occupancy", workers.names)
    scale = draw.seconds_scale(max(values.max() for values in series.values))
    label = f"work expected by the scheduler ({scale.unit})"
    draw.worker_steps(ax, series, whole_run, label, workers.presence, scale.factor)
    legend(ax, max_legend_entries)


@plot("Tasks executing on each worker")
def plot_executing_tasks_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Draw how many tasks each worker was executing, from sample to sample; many workers as bands."""
    series = series_of(worker_samples, "executing", workers.names)
    draw.worker_steps(ax, series, whole_run, "tasks executing", workers.presence)
    legend(ax, max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to each worker")
def plot_worker_activity_timeline(
    ax: Axes,
    states_of_workers: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Draw how many tasks each worker was assigned, at each sample of the scheduler; many workers as bands."""
    series = series_of(states_of_workers, "processing", workers.names)
    draw.worker_steps(ax, series, whole_run, "tasks assigned", workers.presence)
    legend(ax, max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to all workers")
def plot_total_active_tasks_timeline(ax: Axes, states_of_workers: pa.Table, whole_run: Span, workers: Workers) -> None:
    """Draw how many tasks all workers together were assigned, executing or waiting.

    A worker has what its first sample tells from its arrival on, and what its last one tells until it left.
    """
    series = series_of(states_of_workers, "processing", workers.names)
    draw.worker_sum(ax, series, whole_run, "tasks assigned", workers.presence)
    draw.whole_numbers(ax.yaxis)
