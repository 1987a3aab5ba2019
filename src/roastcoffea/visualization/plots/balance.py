"""Workers and chunks against each other: who does how much, and what took longer than it should."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import measured_values
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import CPU, GREY, NOT_CPU, OF_PHASES
from roastcoffea.visualization.registry import TALL, plot

PARTS: Final = {"CPU": CPU, "not CPU": NOT_CPU, "not told apart": GREY}
MOST_WORKERS: Final = 25
MOST_SHOWN: Final = 500
MOST_FRAMED: Final = 40


@plot("Chunks of each worker", size=TALL)
def plot_worker_balance(ax: Axes, worker_balance: pa.Table) -> None:
    """Draw how long each worker was busy with chunks per thread, CPU and other time apart; the busiest first."""
    parts = _seconds_per_thread(worker_balance)
    wall = np.sum(list(parts.values()), axis=0)
    order = np.argsort(-wall, kind="stable")
    scale = draw.seconds_scale(float(wall.max()))
    scaled = {part: seconds[order] * scale.factor for part, seconds in parts.items()}
    label = f"time of its chunks per thread ({scale.unit})"
    if len(order) > MOST_WORKERS:
        _draw_ranked(ax, scaled, label)
    else:
        names = draw.worker_names(worker_balance["worker"].to_pylist())
        draw.bars(ax, [names[place] for place in order], scaled, PARTS)
        ax.set_xlabel(label)
        ax.set_ylabel("worker")
    draw.legend(ax)


def _seconds_per_thread(workers: pa.Table) -> dict[str, Numbers]:
    """Time of the chunks of each worker in PARTS."""
    if workers["chunk_seconds"].null_count:
        raise NotMeasuredError("the duration of chunks is not known")
    threads, wall, cpu = (
        np.array(pc.fill_null(pc.cast(workers[name], pa.float64()), np.nan).to_numpy(), dtype=np.float64)
        for name in ("threads", "chunk_seconds", "cpu_seconds")
    )
    if not wall.any():
        raise NotMeasuredError("no worker computed a chunk")
    untold = np.isnan(cpu)
    told = {"CPU": np.where(untold, 0.0, cpu), "not CPU": np.where(untold, 0.0, np.maximum(wall - cpu, 0.0))}
    return {
        part: seconds / threads for part, seconds in (told | {"not told apart": np.where(untold, wall, 0.0)}).items()
    }


def _draw_ranked(ax: Axes, parts: dict[str, Numbers], label: str) -> None:
    edges = np.arange(len(parts["CPU"]) + 1) + 0.5
    below = np.zeros(len(parts["CPU"]))
    for part, seconds in parts.items():
        if seconds.any():
            ax.stairs(below + seconds, edges, baseline=below, fill=True, color=PARTS[part], label=part)
            below = below + seconds
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("workers, the busiest first")
    draw.whole_numbers(ax.xaxis)
    ax.set_ylabel(label)


@plot("Slow chunks")
def plot_stragglers(ax: Axes, expected_seconds: pa.Table, stragglers: pa.Table) -> None:
    """Draw how long chunks took over what their events, bytes and worker predict; stragglers by their slow phase."""
    expected, wall = (measured_values(expected_seconds[name]) for name in ("expected_seconds", "wall_seconds"))
    scale = draw.seconds_scale(float(wall.max()))
    draw.cloud(ax, expected * scale.factor, wall * scale.factor, [None] * len(wall), "chunks")
    worst = stragglers.slice(0, MOST_SHOWN)
    _mark(ax, worst, scale.factor)
    draw.diagonal(ax, *(scale.factor * float(end(expected)) for end in (np.min, np.max)))
    ax.set_xlabel(f"expected duration ({scale.unit}); dashed: as expected")
    ax.set_ylabel(f"duration of a chunk ({scale.unit})")
    more = f", the worst {len(worst)} are marked" if len(stragglers) > len(worst) else ""
    draw.note(ax, f"{len(stragglers)} of {len(wall)} chunks took much longer than expected{more}")
    draw.legend(ax)


def _mark(ax: Axes, stragglers: pa.Table, factor: float) -> None:
    """Mark stragglers by the phase that was slow; of many the marks are small."""
    size, edge = (5.0, 0.8) if len(stragglers) <= MOST_FRAMED else (3.0, 0.1)
    phases = pc.fill_null(stragglers["phase"], "phase not known")
    for phase in phases.unique().to_pylist():
        here = stragglers.filter(pc.equal(phases, phase))
        times = (measured_values(here[name]) * factor for name in ("expected_seconds", "wall_seconds"))
        colour = OF_PHASES.get(phase, "black")
        marks = ax.plot(*times, "D", color=colour, markersize=size, label=f"slow: {phase}", markeredgecolor="black")
        marks[0].set_markeredgewidth(edge)
