"""Chunks: bytes and time by branch, phase, section and worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from roastcoffea.compat.shapes import branches_of_columns
from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import NULL_IF_ANY, some
from roastcoffea.metrics.phases import COMPUTING, DECODING, PAYLOAD, PHASES, READING, REREAD, phases_of
from roastcoffea.metrics.statistics import Numbers, amounts, measured_values, moments
from roastcoffea.visualization import draw
from roastcoffea.visualization.distributions import MOST_POINTS, Bins, cloud, distribution, sentence, stacked
from roastcoffea.visualization.draw import FAMILY_OF_PHASE, by_family, family_labels, legend, letters, scheme_of
from roastcoffea.visualization.inputs import known_rows
from roastcoffea.visualization.registry import TALL, WIDE, plot

SHARES: Final = {"bytes_read_percent": "of its bytes", "branches_read_percent": "of its branches"}
READ: Final = {PAYLOAD: "bytes_payload", REREAD: "bytes_reread"}
MOST_FILES: Final = 10


@plot("Compression of the bytes read")
def plot_compression_ratio_distribution(ax: Axes, compression_factors: tuple[str, Numbers], bins: Bins = None) -> None:
    """Plot the distribution of compression factors (uncompressed / compressed size).

    For measurements from version 0.1.2, there is one factor per file.
    """
    things, factors = compression_factors
    label, colour = "compression factor (uncompressed / compressed size)", scheme_of(ax).of(DECODING)
    distribution(ax, factors, [None] * len(factors), things, label, bins=bins, colour=colour)


@plot("Share of files read", size=TALL)
def plot_data_access_percentage(ax: Axes, file_read_metrics: dict[str, dict[str, Any]]) -> None:
    """Plot the share of bytes and branches read from each file.

    If there are many files, the distributions of these shares are drawn instead.
    """
    refuse_if(not file_read_metrics, "no file was read")
    amounts = {name: [file.get(name) for file in file_read_metrics.values()] for name in SHARES}
    shares = {name: np.array(percentages, np.float64) for name, percentages in amounts.items()}  # NaN: unknown
    if not any(np.isfinite(values).any() for values in shares.values()):
        raise NotMeasuredError(f"the sizes of all {len(file_read_metrics)} files are unknown")
    nothing = not any(np.nansum(values) for values in shares.values())
    refuse_if(nothing, f"only metadata was read from {len(file_read_metrics)} files: process() read no branch")
    if len(file_read_metrics) > MOST_FILES:
        _draw_distributions(ax, shares)
    else:
        _draw_files(ax, list(file_read_metrics), shares)


def _draw_distributions(ax: Axes, shares: Mapping[str, Numbers]) -> None:
    known = {SHARES[name]: values[np.isfinite(values)] for name, values in shares.items()}
    edges = np.arange(0, 102, 2)
    if all(np.ptp(values) < edges[1] for values in known.values() if len(values)):
        each = [f"{np.median(values):.3g} % {of}" for of, values in known.items() if len(values)]
        sentence(ax, f"read from each of {len(shares['bytes_read_percent'])} files: {', '.join(each)}")
        return
    ax.set(xlabel="share of a file read (%)", ylabel="files")
    for (of, own), values, colour in zip(known.items(), shares.values(), _colours_of_shares(ax), strict=True):
        if len(own):
            ax.stairs(np.histogram(own, edges)[0], edges, color=colour, fill=True, alpha=0.7, label=f"share {of}")
        if len(own) < len(values):
            unknown = f"{len(values) - len(own)} of " if len(own) else ""
            draw.note(ax, f"the share {of} is unknown for {unknown}{len(values)} files")
    ax.set_ylim(bottom=0)
    legend(ax)


def _colours_of_shares(ax: Axes) -> tuple[str, str]:
    scheme = scheme_of(ax)
    return scheme.of(READING), scheme.series[0]


def _draw_files(ax: Axes, files: list[str], shares: Mapping[str, Numbers]) -> None:
    draw.bars(ax, [file.rpartition("/")[2] for file in files], {}, {})
    for offset, (name, values), colour in zip((-0.19, 0.19), shares.items(), _colours_of_shares(ax), strict=True):
        look: dict[str, Any] = {"height": 0.36, "color": colour, "label": f"share {SHARES[name]}"}
        drawn = ax.barh(np.arange(len(files)) + offset, np.nan_to_num(values), **look)
        texts = ["unknown" if np.isnan(value) else f"{value:.3g} %" for value in values]
        ax.bar_label(drawn, texts, padding=3, fontsize=0.8 * letters(ax))
    ax.set(xlim=(0, 118), xticks=range(0, 101, 20), xlabel="share read (%)")
    legend(ax)


@plot("Branches read per chunk")
def plot_branch_access_per_chunk(ax: Axes, computed_chunks: pa.Table, bins: Bins = None) -> None:
    """Plot the distribution of the number of branches read per chunk.

    Datasets are drawn separately if there are only a few datasets.
    """
    known = _known(computed_chunks, "branches", _numbers_of_columns(computed_chunks))
    values, datasets = measured_values(known["branches"]), known["dataset"].to_pylist()
    distribution(ax, values, datasets, "chunks", "branches read per chunk", bins=bins, whole=True)


@plot("Bytes requested per chunk")
def plot_bytes_accessed_per_chunk(ax: Axes, computed_chunks: pa.Table, bins: Bins = None) -> None:
    """Plot the distribution of bytes requested from storage per chunk.

    Datasets are drawn separately if there are only a few datasets.
    """
    known = _known(computed_chunks, "bytes_requested", computed_chunks["coffea_bytes_read"])
    _draw_distribution(ax, known, "bytes_requested", (draw.bytes_scale, "requested per chunk"), bins)


def _draw_distribution(ax: Axes, known: pa.Table, column: str, across: tuple[draw.ScaleOf, str], bins: Bins) -> None:
    (scale_of, label), values = across, measured_values(known[column])
    scale = scale_of(float(values.max()))
    datasets = known["dataset"].to_pylist()
    distribution(ax, values * scale.factor, datasets, "chunks", f"{label} ({scale.unit})", bins=bins)


def _numbers_of_columns(chunks: pa.Table) -> pa.Array:
    """Count the branches in coffea's list of columns for each chunk. The list has one entry per branch buffer."""
    names = chunks["coffea_columns"].to_pylist()
    return pa.array([None if own is None else len(branches_of_columns(own)) for own in names], pa.int64())


def _known(chunks: pa.Table, column: str, otherwise: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = chunks.schema.get_field_index(column)
    return known_rows(chunks.set_column(place, column, pc.coalesce(chunks[column], otherwise)), column)


@plot("Bytes by branch", size=TALL)
def plot_branch_bytes(ax: Axes, branches: pa.Table) -> None:
    """Plot the bytes read from each branch, split into first reads and re-reads.

    The largest branch is on top.
    """
    groups = some(branches, "no branch was read").group_by("branch")
    sums = groups.aggregate([(column, "sum", NULL_IF_ANY) for column in READ.values()])
    sized = some(sums.drop_null(), "the sizes of all branches are unknown")
    colours = scheme_of(ax).of_bytes
    parts = {name: (measured_values(sized[f"{column}_sum"]), colours[name]) for name, column in READ.items()}
    label = "read from storage, compressed"
    draw.pooled_bars(ax, sized["branch"].to_pylist(), parts, scale_of=draw.bytes_scale, label=label)
    if len(sized) < len(sums):
        draw.note(ax, f"the sizes of {len(sums) - len(sized)} branches are unknown")
    legend(ax)


@plot("Chunk time by worker", size=TALL)
def plot_worker_balance(ax: Axes, worker_balance: pa.Table, worker_names: Mapping[str, str]) -> None:
    """Plot each worker's chunk time per thread (CPU and other), busiest first."""
    refuse_if(worker_balance["chunk_seconds"].null_count, "chunk durations are unknown")
    threads, wall, cpu = (moments(worker_balance, name) for name in ("threads", "chunk_seconds", "cpu_seconds"))
    refuse_if(not wall.any(), "no worker computed a chunk")
    order = np.argsort(-wall / threads, kind="stable")
    scale, scheme = draw.seconds_scale(float((wall / threads).max())), scheme_of(ax)
    seconds = {"CPU": cpu, "not CPU": np.maximum(wall - cpu, 0.0), "CPU unknown": np.where(np.isnan(cpu), wall, 0.0)}
    parts = {name: (np.nan_to_num(each) / threads)[order] * scale.factor for name, each in seconds.items()}
    colours = dict(zip(parts, (scheme.of(COMPUTING), scheme.series[1], scheme.series[3]), strict=True))
    label = f"chunk time per thread ({scale.unit})"
    if len(order) > 25:
        edges = np.linspace(0.5, len(order) + 0.5, len(order) + 1)
        stacked(ax, edges, [(part, amounts, colours[part]) for part, amounts in parts.items() if amounts.any()])
        ax.set(xlim=(edges[0], edges[-1]), xlabel="workers, busiest first", ylabel=label)
        ax.set_ylim(bottom=0)
        draw.whole_numbers(ax.xaxis)
    else:
        names = worker_balance["worker"].to_pylist()
        draw.bars(ax, [worker_names.get(names[place], names[place]) for place in order], parts, colours)
        ax.set(xlabel=label, ylabel="worker")
    legend(ax)


@plot("Slow chunks")
def plot_stragglers(ax: Axes, expected_seconds: pa.Table, stragglers: pa.Table) -> None:
    """Plot measured against predicted chunk durations, highlighting stragglers.

    Predictions depend on the number of events, the bytes read and the worker. A straggler's colour shows its slow
    phase.
    """
    expected, wall = (measured_values(expected_seconds[name]) for name in ("expected_seconds", "wall_seconds"))
    scale = draw.seconds_scale(float(wall.max()))
    cloud(ax, expected * scale.factor, wall * scale.factor, [None] * len(wall), "chunks")
    worst = stragglers.slice(0, 500)
    _mark(ax, worst, scale.factor)
    ends = scale.factor * expected.min(), scale.factor * expected.max()
    ax.plot(ends, ends, color=scheme_of(ax).quiet, linewidth=1, linestyle="--", zorder=0.5)
    ax.set_xlabel(f"expected duration ({scale.unit}); dashed: measured = expected")
    ax.set_ylabel(f"chunk duration ({scale.unit})")
    more = f" (the worst {len(worst)} are marked)" if len(stragglers) > len(worst) else ""
    draw.note(ax, f"{len(stragglers)} of {len(wall)} chunks took much longer than expected{more}")
    legend(ax)


def _mark(ax: Axes, stragglers: pa.Table, factor: float) -> None:
    size, edge = (5.0, 0.8) if len(stragglers) <= 40 else (3.0, 0.1)
    scheme = scheme_of(ax)
    phases = pc.fill_null(stragglers["phase"], "unknown phase")
    for phase in phases.unique().to_pylist():
        here = stragglers.filter(pc.equal(phases, phase))
        times = (measured_values(here[name]) * factor for name in ("expected_seconds", "wall_seconds"))
        colour = scheme.of_phases.get(phase, scheme.ink)
        look: dict[str, Any] = {"color": colour, "markersize": size, "markeredgewidth": edge}
        ax.plot(*times, "D", label=f"slow: {phase}", markeredgecolor=scheme.ink, **look)


@plot("Chunk durations")
def plot_runtime_distribution(ax: Axes, computed_chunks: pa.Table, bins: Bins = None) -> None:
    """Plot the distribution of chunk durations.

    Datasets are drawn separately if there are only a few datasets.
    """
    known = known_rows(computed_chunks, "wall_seconds")
    _draw_distribution(ax, known, "wall_seconds", (draw.seconds_scale, "chunk duration"), bins)


@plot("Chunk duration and events")
def plot_runtime_vs_events(ax: Axes, computed_chunks: pa.Table) -> None:
    """Plot chunk duration against the number of events, with lines of constant rate."""
    known = known_rows(computed_chunks, "wall_seconds", "events")
    events, seconds = measured_values(known["events"]), measured_values(known["wall_seconds"])
    scale = draw.seconds_scale(float(seconds.max()))
    cloud(ax, events, seconds * scale.factor, known["dataset"].to_pylist(), "chunks")
    ax.set_xlabel("events in a chunk")
    ax.set_ylabel(f"chunk duration ({scale.unit})")
    if ax.get_xscale() == "linear":
        ax.set_xlim(0, 1.08 * ax.get_xlim()[1])
        draw.whole_numbers(ax.xaxis)
    if ax.get_yscale() == "linear":
        ax.set_ylim(bottom=0)
    _draw_rates(ax, events, seconds, scale.factor)
    legend(ax)


def _draw_rates(ax: Axes, events: Numbers, seconds: Numbers, factor: float) -> None:
    """Draw lines for rates of 1, 2, 5, 10, ... kHz, with labels that do not overlap chunks or other labels."""
    across, up, lasting, scheme = ax.get_xlim(), ax.get_ylim(), (events > 0) & (seconds > 0), scheme_of(ax)
    if not lasting.any():
        return
    low, high = np.quantile(events[lasting] / seconds[lasting], [0.02, 0.98])
    rates = LogLocator(subs=(1, 2, 5)).tick_values(low / 2.5, high * 2.5)
    rates = rates[(rates >= low / 2.5) & (rates <= high * 2.5)]
    ax.set(xlim=across, ylim=up)
    size, corner = 0.75 * letters(ax), ax.transAxes.transform((0, 0))
    letter = size * (ax.transAxes.transform((1, 0)) - corner)[0] / draw.size_in_points(ax)[0]  # in pixels
    shown = np.linspace(0, len(events) - 1, min(len(events), MOST_POINTS)).astype(int)
    points = ax.transData.transform(np.column_stack([events, seconds * factor])[shown])
    names = np.empty((0, 2))
    for rate in rates[:: -(-len(rates) // 6)]:
        text, end = f"{rate / 1e3:g} kHz", min(across[1], up[1] * rate / factor)
        reach = np.linspace(max(across[0], across[1] * 1e-6), end, 50)
        ends = np.column_stack([reach, reach / rate * factor])
        half = letter * np.array([draw.LETTER * len(text) / 2 + 0.2, 0.8])
        middles = ax.transData.transform(ends) - half
        free = (middles > corner + half).all(axis=1)
        for others, room in ((points, 1.2 * half), (names, 2.2 * half)):
            free &= ~(np.abs(middles[:, None] - others) < room).all(axis=2).any(axis=1)
        if not free.any():
            continue  # a line without a label would be useless
        place = np.flatnonzero(free)[-1]
        names = np.vstack([names, middles[place]])
        ax.plot(*ends.T, color=scheme.quiet, linewidth=0.8, linestyle=":", zorder=0.5)
        look: dict[str, Any] = {"color": scheme.quiet, "ha": "right", "va": "top", "fontsize": size, "zorder": 1.5}
        look["bbox"] = {"facecolor": scheme.ground, "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
        ax.annotate(text, ends[place], (-2, -2), textcoords="offset points", annotation_clip=True, **look)
    ax.set(xlim=across, ylim=up)


@plot("Chunk phases", size=WIDE)
def plot_chunk_phases(ax: Axes, phased_chunks: pa.Table) -> None:
    """Plot the mean time per chunk spent in each phase, by dataset."""
    means = phased_chunks.group_by("dataset").aggregate([(phase.column, "mean") for phase in PHASES])
    shown = {phase.name: phase for phase in phases_of(phased_chunks)}
    parts = {name: amounts(means, f"{shown[name].column}_mean") for name in by_family(shown, FAMILY_OF_PHASE)}
    total = np.sum(list(parts.values()), axis=0)
    own, others = draw.largest_first(total)
    names = means["dataset"].to_pylist()
    scale = draw.seconds_scale(float(total.max()))
    scaled = {part: seconds[own] * scale.factor for part, seconds in parts.items()}
    labels = family_labels({name: name for name, seconds in scaled.items() if seconds.any()}, FAMILY_OF_PHASE)
    draw.bars(ax, [names[place] for place in own], scaled, scheme_of(ax).of_phases, labels)
    ax.set_xlabel(f"mean time per chunk ({scale.unit})")
    if unknown := [name for name, phase in shown.items() if means[f"{phase.column}_mean"].null_count]:
        draw.note(ax, f"unknown for some datasets: {', '.join(unknown)}")
    if others:
        draw.note(ax, f"{len(others)} datasets with faster chunks are not shown")
    legend(ax)


@plot("Processor sections", size=TALL)
def plot_sections(ax: Axes, section_totals: pa.Table) -> None:
    """Plot the wall time and CPU time of each section, summed over chunks."""
    sections = some(section_totals, "the processor defines no sections").group_by("name")
    sums = sections.aggregate([("wall_seconds", "sum"), ("cpu_seconds", "sum")])
    timed = some(sums.filter(sums["wall_seconds_sum"].is_valid()), "no section was timed (track_time)")
    wall, cpu = (moments(timed, name) for name in ("wall_seconds_sum", "cpu_seconds_sum"))
    own, others = draw.largest_first(wall)
    names, scheme = timed["name"].to_pylist(), scheme_of(ax)
    scale = draw.seconds_scale(float(wall.max()))
    shown, colour = {"wall time": wall[own] * scale.factor}, scheme.of(COMPUTING)
    draw.bars(ax, [names[place] for place in own], shown, {"wall time": scheme.series[1]})
    ax.barh(np.arange(len(own)), cpu[own] * scale.factor, height=0.4, color=colour, label="CPU time")
    ax.set_xlabel(f"time in the section ({scale.unit}), including nested sections")
    if others:
        draw.note(ax, f"{len(others)} shorter sections are not shown")
    legend(ax)
