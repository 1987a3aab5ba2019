"""Workers over time: how many there are, their memory, CPU and tasks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE
from roastcoffea.visualization.inputs import Counted
from roastcoffea.visualization.registry import plot
from roastcoffea.visualization.series import Series, series_of

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
    if len(limited) == 0:
        raise NotMeasuredError("no sample tells a memory limit, so that there is no share of it")
    share = pc.divide(pc.multiply(pc.cast(limited["memory"], pa.float64()), 100.0), limited["memory_limit"])
    return series_of(limited.append_column("share", share), "share")


def _presence(lifetimes: pa.Table | None) -> dict[str, tuple[float, float]]:
    """When each worker arrived and left, as far as that is known."""
    if lifetimes is None:
        return {}
    known = lifetimes.select(["worker", "start", "stop"]).drop_null()
    lives = known.group_by("worker").aggregate([("start", "min"), ("stop", "max")]).to_pylist()
    return {life["worker"]: (life["start_min"], life["stop_max"]) for life in lives}


@plot("Memory of the workers (mean)")
def plot_memory_utilization_mean_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw the workers' memory in percent of what Dask may use: the mean, and from the least to the most."""
    draw.worker_mean(ax, _shares_of_limit(worker_samples), start, PERCENT_OF_LIMIT)


@plot("Memory of each worker")
def plot_memory_utilization_per_worker_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw each worker's memory in percent of what Dask may use; many workers as bands."""
    draw.worker_lines(ax, _shares_of_limit(worker_samples), start, PERCENT_OF_LIMIT)


@plot("CPU of the workers (mean)")
def plot_cpu_utilization_mean_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw the CPU use of worker processes, 100 % is one core: the mean, and from the least to the most."""
    draw.worker_mean(ax, series_of(worker_samples, "cpu_percent"), start, PERCENT_OF_CORE)


@plot("CPU of each worker")
def plot_cpu_utilization_per_worker_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw the CPU use of each worker process, 100 % is one core; many workers as bands."""
    draw.worker_lines(ax, series_of(worker_samples, "cpu_percent"), start, PERCENT_OF_CORE)


@plot("Occupancy of each worker")
def plot_occupancy_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw how much work the scheduler expected each worker to have; many workers as bands."""
    series = series_of(worker_samples, "occupancy")
    scale = draw.seconds_scale(max(values.max() for values in series.values))
    draw.worker_lines(ax, series, start, f"work expected by the scheduler ({scale.unit})", scale.factor)


@plot("Tasks executing on each worker")
def plot_executing_tasks_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw how many tasks each worker was executing; many workers as bands."""
    draw.worker_lines(ax, series_of(worker_samples, "executing"), start, "tasks executing")
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to each worker")
def plot_worker_activity_timeline(ax: Axes, worker_samples: pa.Table, start: float) -> None:
    """Draw how many tasks each worker was assigned, executing or waiting; many workers as bands."""
    draw.worker_lines(ax, series_of(worker_samples, "processing"), start, "tasks assigned")
    draw.whole_numbers(ax.yaxis)


@plot("Tasks assigned to all workers")
def plot_total_active_tasks_timeline(
    ax: Axes, worker_samples: pa.Table, start: float, worker_lifetimes: pa.Table | None = None
) -> None:
    """Draw how many tasks all workers together were assigned, executing or waiting.

    A worker has what its first sample tells from its arrival on, and what its last one tells until it left.
    """
    series = series_of(worker_samples, "processing")
    draw.worker_sum(ax, series, start, "tasks assigned", _presence(worker_lifetimes))
    draw.whole_numbers(ax.yaxis)
