"""Rates over time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import measured_values
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE, GREY
from roastcoffea.visualization.material import Counted
from roastcoffea.visualization.registry import plot
from roastcoffea.visualization.series import amounts_in_bins

MOST_BINS = 150
BITS = 8


@plot("Data rate")
def plot_throughput_timeline(ax: Axes, chunks: pa.Table, start: float, worker_counts: Counted | None = None) -> None:
    """Draw the rate at which bytes were requested, each attempt's spread over its own time, and the number of workers.

    The area below the rate is what all attempts of chunks requested, failed ones too.
    """
    edges, rates = data_rates(chunks, start)
    scale = draw.bytes_scale(float(rates.max()), "bit/s")
    axis = draw.time_axis(ax, start, float(edges[-1]))
    ax.stairs(rates * scale.factor, axis(edges), fill=True, color=BLUE, alpha=0.35)
    ax.stairs(rates * scale.factor, axis(edges), color=BLUE, linewidth=1.2)
    ax.set_ylabel(f"data rate ({scale.unit})", color=BLUE)
    ax.set_ylim(bottom=0)
    if worker_counts is not None:
        _draw_workers(ax, axis(worker_counts[0]), worker_counts[1])


def data_rates(chunks: pa.Table, start: float, most: int = MOST_BINS) -> tuple[Numbers, Numbers]:
    """Edges of bins of time, and the bits per second that were requested in each; at most so many bins."""
    starts, stops, amounts = _reads(chunks)
    end = float(stops.max())
    if end <= min(start, float(starts.min())):
        raise NotMeasuredError("the attempts of chunks took no time")
    edges = np.linspace(min(start, float(starts.min())), end, int(np.clip(2 * len(starts) ** 0.5, 10, most)) + 1)
    return edges, BITS * amounts_in_bins(starts, stops, amounts, edges) / np.diff(edges)


def _reads(chunks: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Start, stop and bytes of the attempts of which these are known."""
    requested = pc.coalesce(chunks["bytes_requested"], chunks["coffea_bytes_read"])
    known = pa.table({"start": chunks["start"], "stop": chunks["stop"], "bytes": requested}).drop_null()
    if len(known) == 0:
        raise NotMeasuredError("of no attempt of a chunk it is known when it ran and what it requested")
    starts, stops, amounts = (measured_values(known[name]) for name in ("start", "stop", "bytes"))
    return starts, stops, amounts


def _draw_workers(ax: Axes, times: Numbers, counts: Numbers) -> None:
    beside = ax.twinx()
    beside.step(times, counts, where="post", color=GREY, linewidth=1.2, linestyle="--")
    beside.set_ylabel("workers (dashed)", color=GREY)
    beside.set_ylim(0, 1.15 * max(counts.max(), 1))
    draw.whole_numbers(beside.yaxis)
