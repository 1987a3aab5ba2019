"""What happened over time: tasks of threads, rates, and workers with their memory, CPU and tasks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.facts import some
from roastcoffea.metrics.phases import COMPUTE, RESIDUAL
from roastcoffea.metrics.statistics import Numbers, measured_values
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE, GREY, OF_TIME
from roastcoffea.visualization.inputs import Counted
from roastcoffea.visualization.registry import TALL, plot
from roastcoffea.visualization.series import Presence, Series, Span, amounts_in_bins, series_of
from roastcoffea.visualization.stream import SHOWN, Stream, main_in_pixels, stream_of

MOST_RECTANGLES: Final = 20_000
MOST_ROWS: Final = 400
COLUMNS: Final = 800
MOST_NAMED: Final = 24
WHITE: Final = "white"

UNTOLD: Final = "not recorded"
UNTOLD_CHUNKS: Final = "chunks (inside not recorded)"
COLOURS: Final = np.array([to_rgba(OF_TIME[name]) for name in SHOWN])


@plot("Task stream", size=TALL)
def plot_task_stream(ax: Axes, start: float, attempts: tuple[pa.Table | None, pa.Table | None]) -> None:
    """Draw what each worker thread did from moment to moment, coloured by class of the time ledger.

    A task of the processor has the colour of the class that took the most of it. Of very many tasks a pixel
    shows the class that took the most of its time; failed work wins.
    """
    stream, names = stream_of(*attempts), dict(zip(SHOWN, SHOWN, strict=True)) | {RESIDUAL: UNTOLD}
    if attempts[1] is None:  # nothing tells what went on inside of chunks
        inside = stream.kind == SHOWN.index(RESIDUAL)
        stream = stream._replace(kind=np.where(inside, SHOWN.index(COMPUTE), stream.kind))
        names[COMPUTE] = UNTOLD_CHUNKS
    end = float(stream.stop.max())
    axis = draw.time_axis(ax, start, end)
    if len(stream.start) > MOST_RECTANGLES:
        _draw_raster(ax, stream, start, end, float(axis(np.array([end]))[0]))
    else:
        _draw_rectangles(ax, stream, axis(stream.start), axis(stream.stop))
    _name_lanes(ax, stream)
    for number in np.unique(stream.kind):
        name = SHOWN[number]
        ax.plot([], [], "s", color=OF_TIME[name], label=names[name])
    draw.legend(ax)


def _draw_rectangles(ax: Axes, stream: Stream, left: Numbers, right: Numbers) -> None:
    low, high = stream.lane - 0.42, stream.lane + 0.42
    corners = np.stack([[left, low], [left, high], [right, high], [right, low]]).transpose(2, 0, 1)
    colours = COLOURS[stream.kind]
    many = len(left) > MOST_RECTANGLES // 20
    look: dict[str, Any] = {"edgecolors": "none" if many else WHITE, "linewidths": 0.3, "rasterized": many}
    ax.add_collection(PolyCollection(list(corners), facecolors=colours, **look))


def _draw_raster(ax: Axes, stream: Stream, start: float, end: float, right: float) -> None:
    """Pixels of lanes x time, each in the colour of what took the most of it; white where that is nothing."""
    picture = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, end, COLUMNS + 1)).kind
    colours = np.array([*COLOURS, to_rgba(WHITE)])
    extent = (0.0, right, len(stream.lanes) - 0.5, -0.5)
    ax.imshow(colours[picture], extent=extent, aspect="auto", interpolation="nearest", rasterized=True)


def _name_lanes(ax: Axes, stream: Stream) -> None:
    """Name the worker at the first of its lanes, where there is room for the names."""
    first = [place for place, worker in enumerate(stream.lanes) if place == 0 or stream.lanes[place - 1] != worker]
    ax.set_ylim(len(stream.lanes) - 0.5, -0.5)
    if len(first) > MOST_NAMED or len(stream.lanes) > 4 * MOST_NAMED:
        ax.set_ylabel(f"threads of {stream.workers} workers")
        ax.set_yticks([])
        return
    ax.set_ylabel("threads of workers")
    ax.set_yticks(first, draw.worker_names([stream.lanes[place] for place in first]))


MOST_BINS = 150
BITS = 8


@plot("Data rate")
def plot_throughput_timeline(ax: Axes, requests: pa.Table, start: float, worker_counts: Counted | None = None) -> None:
    """Draw the rate at which bytes were requested, each attempt's spread over its own time, and the number of workers.

    The area below the rate is what all attempts of chunks requested, failed ones too, and what preprocessing did.
    """
    edges, rates = data_rates(requests, start)
    scale = draw.bytes_scale(float(rates.max()), "bit/s")
    axis = draw.time_axis(ax, start, float(edges[-1]))
    ax.stairs(rates * scale.factor, axis(edges), fill=True, color=BLUE, alpha=0.35)
    ax.stairs(rates * scale.factor, axis(edges), color=BLUE, linewidth=1.2)
    ax.set_ylabel(f"data rate ({scale.unit})", color=BLUE)
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
    edges = np.linspace(begin, end, int(np.clip(2 * len(starts) ** 0.5, 10, most)) + 1)
    return edges, BITS * amounts_in_bins(starts, stops, amounts, edges) / np.diff(edges)


def note_of_unknown(requests: pa.Table) -> str:
    """How many attempts are in no rate; nothing where all are."""
    unknown = len(requests) - len(requests.drop_null())
    return f"the bytes or times of {unknown} of {len(requests)} attempts are not known" if unknown else ""


def _draw_workers(ax: Axes, times: Numbers, counts: Numbers) -> None:
    beside = ax.twinx()
    beside.step(times, counts, where="post", color=GREY, linewidth=1.2, linestyle="--")
    beside.set_ylabel("workers (dashed)", color=GREY)
    beside.set_ylim(0, 1.15 * max(counts.max(), 1))
    draw.whole_numbers(beside.yaxis)


PERCENT_OF_LIMIT = "memory in use (% of the limit)"
PERCENT_OF_CORE = "CPU of the process (% of one core)"


@plot("Workers")
def plot_worker_count_timeline(ax: Axes, worker_counts: Counted, start: float) -> None:
    """Draw how many workers there were from moment to moment."""
    times, counts = worker_counts
    axis = draw.time_axis(ax, start, times[-1])
    ax.step(axis(times), counts, where="post", color=BLUE, linewidth=1.6)
    ax.fill_between(axis(times), counts, step="post", color=BLUE, alpha=0.25, linewidth=0)
    ax.set_ylabel("workers")
    ax.set_ylim(bottom=0)
    draw.whole_numbers(ax.yaxis)


def _shares_of_limit(samples: pa.Table) -> Series:
    """Memory in percent of what Dask may use, by worker."""
    limited = samples.filter(pc.fill_null(pc.greater(samples["memory_limit"], 0), False))
    limited = some(limited, "no sample tells a memory limit, so that there is no share of it")
    share = pc.divide(pc.multiply(pc.cast(limited["memory"], pa.float64()), 100.0), limited["memory_limit"])
    return series_of(limited.append_column("share", share), "share")


@plot("Memory of the workers (mean)")
def plot_memory_utilization_mean_timeline(ax: Axes, worker_samples: pa.Table, whole_run: Span) -> None:
    """Draw the workers' memory in percent of what Dask may use: the mean, and from the least to the most."""
    draw.worker_mean(ax, _shares_of_limit(worker_samples), whole_run, PERCENT_OF_LIMIT)


@plot("Memory of each worker")
def plot_memory_utilization_per_worker_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, max_legend_entries: int | None = None
) -> None:
    """Draw each worker's memory in percent of what Dask may use; many workers as bands."""
    draw.worker_lines(ax, _shares_of_limit(worker_samples), whole_run, PERCENT_OF_LIMIT, most=max_legend_entries)


@plot("CPU of the workers (mean)")
def plot_cpu_utilization_mean_timeline(ax: Axes, worker_samples: pa.Table, whole_run: Span) -> None:
    """Draw the CPU use of worker processes, 100 % is one core: the mean, and from the least to the most."""
    draw.worker_mean(ax, series_of(worker_samples, "cpu_percent"), whole_run, PERCENT_OF_CORE)


@plot("CPU of each worker")
def plot_cpu_utilization_per_worker_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, max_legend_entries: int | None = None
) -> None:
    """Draw the CPU use of each worker process, 100 % is one core; many workers as bands."""
    draw.worker_lines(ax, series_of(worker_samples, "cpu_percent"), whole_run, PERCENT_OF_CORE, most=max_legend_entries)


@plot("Occupancy of each worker")
def plot_occupancy_timeline(
    ax: Axes, states_of_workers: pa.Table, whole_run: Span, presence: Presence, max_legend_entries: int | None = None
) -> None:
    """Draw how much work the scheduler expected each worker to have, at each sample of it; many workers as bands."""
    series = series_of(states_of_workers, "occupancy")
    scale = draw.seconds_scale(max(values.max() for values in series.values))
    label = f"work expected by the scheduler ({scale.unit})"
    draw.worker_steps(ax, series, whole_run, label, presence, scale.factor, most=max_legend_entries)


@plot("Tasks executing on each worker")
def plot_executing_tasks_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, presence: Presence, max_legend_entries: int | None = None
) -> None:
    """Draw how many tasks each worker was executing, from sample to sample; many workers as bands."""
    series = series_of(worker_samples, "executing")
    draw.worker_steps(ax, series, whole_run, "tasks executing", presence, most=max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to each worker")
def plot_worker_activity_timeline(
    ax: Axes, states_of_workers: pa.Table, whole_run: Span, presence: Presence, max_legend_entries: int | None = None
) -> None:
    """Draw how many tasks each worker was assigned, at each sample of the scheduler; many workers as bands."""
    series = series_of(states_of_workers, "processing")
    draw.worker_steps(ax, series, whole_run, "tasks assigned", presence, most=max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to all workers")
def plot_total_active_tasks_timeline(
    ax: Axes, states_of_workers: pa.Table, whole_run: Span, presence: Presence
) -> None:
    """Draw how many tasks all workers together were assigned, executing or waiting.

    A worker has what its first sample tells from its arrival on, and what its last one tells until it left.
    """
    series = series_of(states_of_workers, "processing")
    draw.worker_sum(ax, series, whole_run, "tasks assigned", presence)
    draw.whole_numbers(ax.yaxis)
