"""Chunks: how long they took, for how many events, in which phases; and sections of the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import measured_values
from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import CPU, GREY, OF_PHASES, PALE
from roastcoffea.visualization.registry import TALL, plot
from roastcoffea.visualization.series import known_rows


@plot("Duration of chunks")
def plot_runtime_distribution(ax: Axes, computed_chunks: pa.Table) -> None:
    """Draw how the durations of chunks are distributed, by dataset where there are few."""
    known = known_rows(computed_chunks, "wall_seconds")
    seconds = measured_values(known["wall_seconds"])
    scale = draw.seconds_scale(float(seconds.max()))
    draw.distribution(ax, seconds * scale.factor, known["dataset"].to_pylist(), "chunks")
    ax.set_xlabel(f"duration of a chunk ({scale.unit})")


@plot("Duration and events of chunks")
def plot_runtime_vs_events(ax: Axes, computed_chunks: pa.Table) -> None:
    """Draw the duration of chunks over their events, with lines of constant rate."""
    known = known_rows(computed_chunks, "wall_seconds", "events")
    events, seconds = measured_values(known["events"]), measured_values(known["wall_seconds"])
    scale = draw.seconds_scale(float(seconds.max()))
    draw.cloud(ax, events, seconds * scale.factor, known["dataset"].to_pylist(), "chunks")
    ax.set_xlabel("events of a chunk")
    ax.set_ylabel(f"duration of a chunk ({scale.unit})")
    _fit_limits(ax)
    _draw_rates(ax, events, seconds, scale.factor)
    draw.legend(ax)


def _fit_limits(ax: Axes) -> None:
    """Start linear axes at zero."""
    if ax.get_xscale() == "linear":
        ax.set_xlim(0, 1.08 * ax.get_xlim()[1])
        draw.whole_numbers(ax.xaxis)
    if ax.get_yscale() == "linear":
        ax.set_ylim(bottom=0)


def _draw_rates(ax: Axes, events: Numbers, seconds: Numbers, factor: float) -> None:
    """Lines of the rates 1, 2, 5, 10, ... kHz among which the chunks lie."""
    across, up = ax.get_xlim(), ax.get_ylim()
    rates = events[(events > 0) & (seconds > 0)] / seconds[(events > 0) & (seconds > 0)]
    if len(rates) == 0:
        return
    low, high = np.quantile(rates, [0.02, 0.98])
    steps = [digit * 10.0**power for power in range(-3, 10) for digit in (1, 2, 5)]
    shown = [rate for rate in steps if low / 2.5 <= rate <= high * 2.5]
    shown = shown[:: -(-len(shown) // 6)]
    for rate in shown:
        reach = np.geomspace(max(across[0], across[1] * 1e-6), min(across[1], up[1] * rate / factor), 50)
        ax.plot(reach, reach / rate * factor, color=GREY, linewidth=0.8, linestyle=":", zorder=0.5)
        _write_rate(ax, rate, factor, across, up)
    ax.set_xlim(across)
    ax.set_ylim(up)


def _write_rate(ax: Axes, rate: float, factor: float, across: tuple[float, float], up: tuple[float, float]) -> None:
    """Name a line of constant rate where it leaves the axes."""
    leaves_above = across[1] / rate * factor > up[1]
    place = (up[1] * rate / factor, up[1]) if leaves_above else (across[1], across[1] / rate * factor)
    if not (across[0] <= place[0] <= across[1] and up[0] <= place[1] <= up[1]):
        return
    look: dict[str, Any] = {
        "fontsize": 0.75 * draw.letters(ax),
        "zorder": 1.5,
        "color": "#555555",
        "ha": "right",
        "va": "top",
    }
    paper: dict[str, Any] = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    ax.annotate(f"{rate / 1e3:g} kHz", place, (-2, -2), textcoords="offset points", bbox=paper, **look)


@plot("Phases of chunks", size=TALL)
def plot_chunk_phases(ax: Axes, phased_chunks: pa.Table) -> None:
    """Draw how long a chunk of each dataset was in each phase, on average."""
    columns = [phase.column for phase in PHASES]
    means = phased_chunks.group_by("dataset").aggregate([(column, "mean") for column in columns])
    parts = {
        phase.name: np.array(pc.fill_null(means[f"{phase.column}_mean"], 0.0).to_numpy(), dtype=np.float64)
        for phase in PHASES
    }
    own, others = draw.largest_first(np.sum(list(parts.values()), axis=0))
    names = means["dataset"].to_pylist()
    scale = draw.seconds_scale(float(np.sum(list(parts.values()), axis=0).max()))
    scaled = {part: seconds[own] * scale.factor for part, seconds in parts.items()}
    draw.bars(ax, [names[place] for place in own], scaled, OF_PHASES)
    ax.set_xlabel(f"mean time of a chunk ({scale.unit})")
    untold = [phase.name for phase in PHASES if means[f"{phase.column}_mean"].null_count]
    if untold:
        draw.note(ax, f"not known everywhere: {', '.join(untold)}")
    if others:
        draw.note(ax, f"{len(others)} datasets with quicker chunks are not shown")
    draw.legend(ax)


@plot("Sections of the processor", size=TALL)
def plot_sections(ax: Axes, section_totals: pa.Table) -> None:
    """Draw the wall time in each section, summed over chunks, and the CPU time within it."""
    if len(section_totals) == 0:
        raise NotMeasuredError("the processor names no section")
    sums = section_totals.group_by("name").aggregate([("wall_seconds", "sum"), ("cpu_seconds", "sum")])
    timed = sums.filter(sums["wall_seconds_sum"].is_valid())
    if len(timed) == 0:
        raise NotMeasuredError("no section was timed (track_time)")
    wall = measured_values(timed["wall_seconds_sum"])
    cpu = np.array(pc.fill_null(timed["cpu_seconds_sum"], np.nan).to_numpy(), dtype=np.float64)
    own, others = draw.largest_first(wall)
    names = timed["name"].to_pylist()
    scale = draw.seconds_scale(float(wall.max()))
    draw.bars(ax, [names[place] for place in own], {"wall time": wall[own] * scale.factor}, {"wall time": PALE})
    ax.barh(np.arange(len(own)), cpu[own] * scale.factor, height=0.4, color=CPU, label="CPU time")
    ax.set_xlabel(f"time in the section ({scale.unit}), nested ones included")
    if others:
        draw.note(ax, f"{len(others)} shorter sections are not shown")
    draw.legend(ax)
