"""Over time: thread activity, data rate, and the workers' memory, CPU and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.facts import some
from roastcoffea.metrics.phases import (
    COMPUTE,
    COMPUTING,
    DECODING,
    HANDLING,
    IDLING,
    OPENING,
    READING,
    RESIDUAL,
    SERIES,
    TROUBLE,
)
from roastcoffea.metrics.statistics import Numbers, axes, measured_values, spread
from roastcoffea.visualization import draw
from roastcoffea.visualization.distributions import (
    SHOWN,
    Stream,
    main_in_pixels,
    running_chunks,
    stacked,
    stream_of,
)
from roastcoffea.visualization.draw import Scheme, family_labels, legend, letters, scheme_of
from roastcoffea.visualization.inputs import Counted, Series, Span, Workers, series_of
from roastcoffea.visualization.registry import TALL, WIDE, plot

MOST_RECTANGLES: Final = 20_000
MOST_ROWS: Final = 400
COLUMNS: Final = 800
MOST_NAMED: Final = 24
MOST_SEPARATE: Final = 40
"""Maximum number of lanes to draw with gaps between them. With more lanes, the gaps would be narrower than a pixel."""


@plot("Task stream", size=WIDE)
def plot_task_stream(
    ax: Axes, start: float, attempts: tuple[pa.Table | None, pa.Table | None], worker_names: Mapping[str, str]
) -> None:
    """Plot the tasks of each worker thread over time.

    Colours represent families of time ledger classes.

    A chunk has the colour of the work that took most of its time. The longer a chunk waited for a core or the GIL, the
    paler it is. If there are very many tasks, each pixel shows the class with the most time in the pixel, or a failure.
    """
    stream = stream_of(*attempts, worker_names)
    names = {name: name for name in SHOWN} | {RESIDUAL: "not recorded"}
    if attempts[1] is None:  # without chunk records, the phases of chunks are unknown
        inside = stream.kind == SHOWN.index(RESIDUAL)
        stream = stream._replace(kind=np.where(inside, SHOWN.index(COMPUTE), stream.kind))
        names[COMPUTE] = "chunks (phases not recorded)"
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
    if stream.pale.any():
        draw.note(ax, "faded: waiting for a core or the GIL")
    legend(ax)


def _colours_of(scheme: Scheme) -> Numbers:
    """Return the colour of each class in SHOWN for each level of paleness, and the background colour for IDLE."""
    full, ground = np.array([[to_rgba(scheme.of_time[name])] for name in SHOWN]), np.array(to_rgba(scheme.ground))
    shares = 0.22 * np.arange(4)[:, None]
    return np.concatenate([full * (1 - shares) + shares * ground, np.broadcast_to(ground, (1, 4, 4))])


def _draw_rectangles(ax: Axes, stream: Stream, left: Numbers, right: Numbers) -> None:
    half = 0.42 if len(stream.lanes) <= MOST_SEPARATE else 0.5
    low, high = stream.lane - half, stream.lane + half
    corners = np.stack([[left, low], [left, high], [right, high], [right, low]]).transpose(2, 0, 1)
    scheme = scheme_of(ax)
    colours = _colours_of(scheme)[stream.kind, stream.pale]
    many = len(left) > MOST_RECTANGLES // 20
    look: dict[str, Any] = {"edgecolors": "none" if many else scheme.ground, "linewidths": 0.3, "rasterized": many}
    ax.add_collection(PolyCollection(list(corners), facecolors=colours, **look))


def _draw_raster(ax: Axes, stream: Stream, start: float, end: float, right: float) -> None:
    found = main_in_pixels(stream, min(len(stream.lanes), MOST_ROWS), np.linspace(start, end, COLUMNS + 1))
    extent = (0.0, right, len(stream.lanes) - 0.5, -0.5)
    ax.imshow(
        _colours_of(scheme_of(ax))[found.kind, found.pale],
        extent=extent,
        aspect="auto",
        interpolation="nearest",
        rasterized=True,
    )


def _name_lanes(ax: Axes, stream: Stream, names: Mapping[str, str]) -> None:
    first = [place for place, worker in enumerate(stream.lanes) if place == 0 or stream.lanes[place - 1] != worker]
    ax.set_ylim(len(stream.lanes) - 0.5, -0.5)
    if len(first) > MOST_NAMED or len(stream.lanes) > 4 * MOST_NAMED:
        ax.set_ylabel(f"threads on {stream.workers} workers")
        ax.set_yticks([])
        return
    ax.set_ylabel("worker threads")
    ax.set_yticks(first, [draw.short(names.get(stream.lanes[place], stream.lanes[place])) for place in first])


MOST_BINS = 150

OF_STATES: Final = {
    "working": COMPUTING,
    "idle": IDLING,
    "job started": OPENING,
    "job pending": HANDLING,
    "job held": TROUBLE,
    "job submitted": DECODING,
    "requested": READING,
    "job ended": SERIES[0],
    "left": SERIES[1],
}
"""Labels and colours of STATES; released workers are not drawn."""


@plot("Chunks by dataset and data rate", size=TALL)
def plot_dataset_timeline(ax: Axes, chunk_attempts: pa.Table, start: float, requests: pa.Table | None = None) -> None:
    """Plot each dataset's running chunks over time, with the data rate below.

    The data rate is the same as in `plot_throughput_timeline` and is omitted if no bytes were measured.
    """
    edges, counts = running_chunks(chunk_attempts, start, MOST_BINS)
    above = ax
    if requests is not None:
        colour = ax.xaxis.label.get_color()  # the colours depend on the colour of the label
        above, beneath = (ax.inset_axes(place) for place in ((0, 0.44, 1, 0.56), (0, 0, 1, 0.38)))
        for part in (above, beneath):
            part.xaxis.label.set_color(colour)
        ax.set_axis_off()
        _draw_rates(beneath, requests, start, draw.time_axis(beneath, start, float(edges[-1])))
        ax.set(xlabel=beneath.get_xlabel(), ylabel="chunks")  # invisible but available to callers
    axis = draw.time_axis(above, start, float(edges[-1]))
    colours = zip(counts.items(), scheme_of(ax).series, strict=False)
    stacked(above, axis(edges), [(name, each, colour) for (name, each), colour in colours])
    above.set_ylabel("chunks")
    draw.whole_numbers(above.yaxis)
    above.set_ylim(bottom=0)
    legend(above)
    if requests is not None:
        above.set_xlabel("")
        above.tick_params(labelbottom=False)


@plot("Data rate")
def plot_throughput_timeline(ax: Axes, requests: pa.Table, start: float, worker_counts: Counted | None = None) -> None:
    """Plot the requested data rate and the number of workers over time.

    An attempt's bytes are spread evenly over its duration. The area under the curve corresponds to all requested bytes,
    including those requested by failed attempts and preprocessing.
    """
    axis = draw.time_axis(ax, start, float(max(start, pc.max(requests.drop_null()["stop"]).as_py())))
    _draw_rates(ax, requests, start, axis)
    if worker_counts is not None:
        _draw_workers(ax, axis(worker_counts[0]), worker_counts[1])


def _draw_rates(ax: Axes, requests: pa.Table, start: float, axis: Callable[[Numbers], Numbers]) -> None:
    edges, rates = data_rates(requests, start)
    scale = draw.bytes_scale(float(rates.max()), "bit/s")
    colour = scheme_of(ax).of(READING)
    ax.stairs(rates * scale.factor, axis(edges), fill=True, color=colour, alpha=0.35)
    ax.stairs(rates * scale.factor, axis(edges), color=colour, linewidth=1.2)
    ax.set_ylabel(f"data rate ({scale.unit})")
    ax.set_ylim(bottom=0)
    if left_out := note_of_unknown(requests):
        draw.note(ax, left_out)


def data_rates(requests: pa.Table, start: float, most: int = MOST_BINS) -> tuple[Numbers, Numbers]:
    """Return the edges of at most `most` time bins, and the requested data rate in each bin (bits per second)."""
    known = requests.drop_null()
    starts, stops, amounts = (measured_values(known[name]) for name in ("start", "stop", "bytes"))
    begin, end = min(start, float(starts.min())), float(stops.max())
    refuse_if(end <= begin, "the chunk attempts took no time")
    bins, rows = int(np.clip(2 * len(starts) ** 0.5, 10, most)), np.arange(len(starts))
    edges = np.linspace(begin, end, bins + 1)
    return edges, 8 * spread(0 * rows, starts, stops, amounts, axes(begin, end, rows[:1], 1, bins))[0] / np.diff(edges)


def note_of_unknown(requests: pa.Table) -> str:
    unknown = len(requests) - len(requests.drop_null())
    return f"the bytes or times of {unknown} of {len(requests)} attempts are unknown" if unknown else ""


def _draw_workers(ax: Axes, times: Numbers, counts: Numbers) -> None:
    beside = ax.twinx()
    beside.step(times, counts, where="post", color=scheme_of(ax).ink, linewidth=1.2, linestyle="--")
    beside.set_ylabel("workers (dashed)")
    beside.set_ylim(0, 1.15 * max(counts.max(), 1))
    draw.whole_numbers(beside.yaxis)


PERCENT_OF_LIMIT = "memory in use (% of the limit)"
PERCENT_OF_CORE = "process CPU (% of one core)"


@plot("Workers")
def plot_worker_count_timeline(ax: Axes, worker_counts: Counted, start: float) -> None:
    """Plot the number of workers over time."""
    times, counts = worker_counts
    draw.level(ax, draw.time_axis(ax, start, times[-1])(times), counts)
    ax.set_ylabel("workers")
    draw.whole_numbers(ax.yaxis)


@plot("Requested workers")
def plot_workforce(ax: Axes, workforce: tuple[Numbers, Numbers], start: float) -> None:
    """Draw the requested workers by state over time.

    Workers that arrived execute tasks or are idle. The jobs of others are pending, held, ended, or running without a
    worker.
    """
    edges, workers = workforce
    layers = zip(OF_STATES, workers, map(scheme_of(ax).of, OF_STATES.values()), strict=False)
    stacked(ax, draw.time_axis(ax, start, edges[-1])(edges), [layer for layer in layers if layer[1].any()])
    ax.set_ylabel("workers")
    draw.whole_numbers(ax.yaxis)
    legend(ax)


def _shares_of_limit(samples: pa.Table, names: Mapping[str, str]) -> Series:
    limited = samples.filter(pc.fill_null(pc.greater(samples["memory_limit"], 0), False))
    limited = some(limited, "no sample has a memory limit")
    share = pc.divide(pc.multiply(pc.cast(limited["memory"], pa.float64()), 100.0), limited["memory_limit"])
    return series_of(limited.append_column("share", share), "share", names)


def _draw_limit(ax: Axes) -> None:
    quiet = scheme_of(ax).quiet
    ax.axhline(100, color=quiet, linewidth=1, linestyle="--")
    look: dict[str, Any] = {"color": quiet, "fontsize": 0.85 * letters(ax), "ha": "right", "va": "bottom"}
    ax.text(0.995, 100, "limit", transform=ax.get_yaxis_transform(), **look)
    ax.set_ylim(0, max(112, ax.get_ylim()[1]))


@plot("Worker memory (mean)")
def plot_memory_utilization_mean_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Plot the mean and range of worker memory as a percentage of Dask's limit."""
    draw.worker_mean(ax, _shares_of_limit(worker_samples, worker_names), whole_run, PERCENT_OF_LIMIT)
    _draw_limit(ax)
    legend(ax)


@plot("Memory by worker")
def plot_memory_utilization_per_worker_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    worker_names: Mapping[str, str],
    max_legend_entries: int | None = None,
) -> None:
    """Plot each worker's memory as a percentage of Dask's limit.

    With many workers, the median and bands replace the individual lines.
    """
    draw.worker_lines(ax, _shares_of_limit(worker_samples, worker_names), whole_run, PERCENT_OF_LIMIT)
    _draw_limit(ax)
    legend(ax, max_legend_entries)


@plot("Worker CPU (mean)")
def plot_cpu_utilization_mean_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Plot the mean and range of worker CPU usage (100 % is one core)."""
    draw.worker_mean(ax, series_of(worker_samples, "cpu_percent", worker_names), whole_run, PERCENT_OF_CORE)
    legend(ax)


@plot("CPU by worker")
def plot_cpu_utilization_per_worker_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    worker_names: Mapping[str, str],
    max_legend_entries: int | None = None,
) -> None:
    """Plot the CPU usage of each worker process (100 % is one core).

    With many workers, the median and bands replace the individual lines.
    """
    draw.worker_lines(ax, series_of(worker_samples, "cpu_percent", worker_names), whole_run, PERCENT_OF_CORE)
    legend(ax, max_legend_entries)


@plot("GPU utilisation by worker")
def plot_gpu_utilization_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Plot the utilisation of each worker's GPU."""
    draw.worker_lines(ax, series_of(worker_samples, "gpu_percent", worker_names), whole_run, "GPU utilisation (%)")
    legend(ax)


@plot("GPU memory by worker")
def plot_gpu_memory_timeline(
    ax: Axes, worker_samples: pa.Table, whole_run: Span, worker_names: Mapping[str, str]
) -> None:
    """Plot the memory in use on each worker's GPU."""
    draw.worker_lines(ax, series_of(worker_samples, "gpu_memory", worker_names), whole_run, "GPU memory (GB)", 1e-9)
    legend(ax)


@plot("Occupancy by worker")
def plot_occupancy_timeline(
    ax: Axes,
    states_of_workers: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Plot the scheduler's estimate of each worker's remaining work (occupancy).

    With many workers, the median and bands replace the individual lines.
    """
    series = series_of(states_of_workers, "occupancy", workers.names)
    scale = draw.seconds_scale(max(values.max() for values in series.values))
    label = f"work expected by the scheduler ({scale.unit})"
    draw.worker_steps(ax, series, whole_run, label, workers.presence, scale.factor)
    legend(ax, max_legend_entries)


@plot("Executing tasks by worker")
def plot_executing_tasks_timeline(
    ax: Axes,
    worker_samples: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Plot the number of tasks executing on each worker.

    With many workers, the median and bands replace the individual lines.
    """
    series = series_of(worker_samples, "executing", workers.names)
    draw.worker_steps(ax, series, whole_run, "tasks executing", workers.presence)
    legend(ax, max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Assigned tasks by worker")
def plot_worker_activity_timeline(
    ax: Axes,
    states_of_workers: pa.Table,
    whole_run: Span,
    workers: Workers,
    max_legend_entries: int | None = None,
) -> None:
    """Plot the number of executing and waiting tasks assigned to each worker.

    With many workers, the median and bands replace the individual lines.
    """
    series = series_of(states_of_workers, "processing", workers.names)
    draw.worker_steps(ax, series, whole_run, "tasks assigned", workers.presence)
    legend(ax, max_legend_entries)
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to all workers")
def plot_total_active_tasks_timeline(ax: Axes, states_of_workers: pa.Table, whole_run: Span, workers: Workers) -> None:
    """Plot the total number of executing and waiting tasks assigned to workers.

    Each worker's first value applies from its arrival, and its last value until its departure.
    """
    series = series_of(states_of_workers, "processing", workers.names)
    draw.worker_sum(ax, series, whole_run, "tasks assigned", workers.presence)
    draw.whole_numbers(ax.yaxis)
