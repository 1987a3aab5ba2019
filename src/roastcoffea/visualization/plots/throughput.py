"""Rates over time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import measured_values
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import BLUE, GREY
from roastcoffea.visualization.inputs import Counted
from roastcoffea.visualization.registry import plot
from roastcoffea.visualization.series import amounts_in_bins

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
    starts, stops, amounts = _reads(requests)
    end = float(stops.max())
    if end <= min(start, float(starts.min())):
        raise NotMeasuredError("the attempts of chunks took no time")
    edges = np.linspace(min(start, float(starts.min())), end, int(np.clip(2 * len(starts) ** 0.5, 10, most)) + 1)
    return edges, BITS * amounts_in_bins(starts, stops, amounts, edges) / np.diff(edges)


def note_of_unknown(requests: pa.Table) -> str:
    """How many attempts are in no rate; nothing where all are."""
    unknown = len(requests) - len(requests.drop_null())
    return f"the bytes or times of {unknown} of {len(requests)} attempts are not known" if unknown else ""


def _reads(requests: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Start, stop and bytes of the attempts of which these are known."""
    known = requests.drop_null()
    starts, stops, amounts = (measured_values(known[name]) for name in ("start", "stop", "bytes"))
    return starts, stops, amounts


def _draw_workers(ax: Axes, times: Numbers, counts: Numbers) -> None:
    beside = ax.twinx()
    beside.step(times, counts, where="post", color=GREY, linewidth=1.2, linestyle="--")
    beside.set_ylabel("workers (dashed)", color=GREY)
    beside.set_ylim(0, 1.15 * max(counts.max(), 1))
    draw.whole_numbers(beside.yaxis)
