"""How values of many chunks are distributed: histograms, clouds of points and their density, layers of areas."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import WITH_RESULT, identities, natural
from roastcoffea.metrics.phases import BUSY, CLASS_OF_KIND, COLUMNS_OF, FAILED, OVERHEAD, RESIDUAL
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, having, one_of, places
from roastcoffea.metrics.thread_activity import sum_of
from roastcoffea.records import workers as task_records
from roastcoffea.units import number, three_digits
from roastcoffea.visualization.draw import NAMELESS, entry, legend, scheme_of, whole_numbers
from roastcoffea.visualization.inputs import busy_in_pixels

MOST_GROUPS: Final = 4
"""Datasets that are told apart; of more the smallest are drawn together."""

MOST_POINTS: Final = 3000
"""Points that are drawn one by one; more are drawn as a density."""


NARROW: Final = 0.01
"""Spread of values, divided by the largest, below which they count as one."""


Bins = int | Sequence[float] | None
"""Number of bins, or their edges; None for as many as the values ask for."""


class Group(NamedTuple):
    """Values that belong together."""

    name: str
    here: npt.NDArray[np.bool_]
    colour: str
    marker: str


def groups_of(ax: Axes, names: Sequence[str | None]) -> list[Group]:
    """Groups by name, largest first; the smallest of many are one."""
    named = np.array([NAMELESS if name is None else str(name) for name in names], dtype=object)
    kinds, sizes = np.unique(named, return_counts=True)
    ordered = kinds[np.argsort(-sizes, kind="stable")].tolist()
    own = ordered if len(ordered) <= MOST_GROUPS else ordered[: MOST_GROUPS - 1]
    masks = {entry(kind): named == kind for kind in own}
    if len(own) < len(ordered):
        masks[f"{len(ordered) - len(own)} others"] = ~np.isin(named, own)
    looks = zip(masks.items(), scheme_of(ax).series, "os^D", strict=False)
    return [Group(name, here, colour, marker) for (name, here), colour, marker in looks]


def distribution(
    ax: Axes,
    values: Numbers,
    names: Sequence[str | None],
    things: str,
    label: str,
    *,
    bins: Bins = None,
    whole: bool = False,
    colour: str | None = None,
) -> None:
    """Draw how values are distributed, stacked of groups; values that are one and the same are a sentence.

    Parameters
    ----------
    whole
        Whether values are whole numbers, which get bins of their own.
    colour
        That of a single group.
    """
    ax.set(xlabel=label, ylabel=things)
    if bins is None and np.ptp(values) <= (0 if whole else NARROW * np.abs(values).max()):
        sentence(ax, f"{label}: {_one_value(values)} for {_all_of(len(values), things)}")
        return
    edges = _edges(values, whole) if bins is None else np.histogram_bin_edges(values, bins)
    groups = groups_of(ax, names)
    if len(groups) == 1:
        groups = [groups[0]._replace(colour=colour or groups[0].colour)]
    counts = [(group.name if len(groups) > 1 else None, np.histogram(values[group.here], edges)[0]) for group in groups]
    stacked(ax, edges, [(name, count, group.colour) for (name, count), group in zip(counts, groups, strict=True)])
    if whole:
        ax.set_xlim(edges[0] - 1, edges[-1] + 1)
        whole_numbers(ax.xaxis)
    whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    legend(ax)


def sentence(ax: Axes, text: str) -> None:
    """Say in words, in place of a picture, what has but one value."""
    ax.set_axis_off()
    words = fill(text, 46).replace("$", r"\$")
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, linespacing=1.6)


def _one_value(values: Numbers) -> str:
    spread = "" if np.ptp(values) == 0 else f" (within {NARROW:.0%})".replace("%", " %")
    return f"{number(three_digits(float(np.median(values))))}{spread}"


def _all_of(amount: int, things: str) -> str:
    return f"the only {things.removesuffix('s')}" if amount == 1 else f"all {number(amount)} {things}"


def stacked(
    ax: Axes, edges: Numbers, layers: Iterable[tuple[str | None, Numbers, str]], **look: Any
) -> list[tuple[Numbers, Numbers]]:
    """Draw steps on top of each other: label, heights and colour of each layer; give both its lines.

    Layers of one colour are told apart by a thin line in that of the background.
    """
    below, last, lines = np.zeros(len(edges) - 1), None, []
    for label, heights, colour in layers:
        above = below + heights
        steps(ax, above, edges, below, facecolor=colour, linewidth=0, label=label, **look)
        if colour == last:
            between = np.where((below > 0) & (heights > 0), below, np.nan)
            steps(ax, between, edges, edgecolor=scheme_of(ax).ground, linewidth=0.6)
        lines.append((below, above))
        below, last = above, colour
    return lines


def steps(ax: Axes, values: Numbers, edges: Numbers, baseline: Numbers | None = None, **look: Any) -> None:
    """Draw a line in steps, or the area down to a baseline.

    `Axes.stairs` looks for the extremes of each segment as of a curve, which takes a tenth of a second for 1000 bins.
    """
    flat: Any = baseline  # matplotlib's types know no arrays
    patch = StepPatch(values, edges, baseline=flat, fill=baseline is not None, **look)
    heights = values if baseline is None else np.append(values, baseline)
    ax.add_artist(patch)
    if np.isfinite(heights).any():
        ax.update_datalim([(edges[0], np.nanmin(heights)), (edges[-1], np.nanmax(heights))])
    if baseline is not None:
        patch.sticky_edges.y.append(float(np.min(baseline)))
    ax.autoscale_view()


def _edges(values: Numbers, whole: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if whole and high - low < 2 * MOST_POINTS**0.5:
        step = max(1, round((high - low) / 50))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 8, 60)) + 1)


# Clouds


def cloud(ax: Axes, x: Numbers, y: Numbers, names: Sequence[str | None], things: str) -> None:
    """Draw points in groups; of many points their density."""
    for values, set_scale in ((x, ax.set_xscale), (y, ax.set_yscale)):
        if 0 < 100 * values.min() < values.max():
            set_scale("log")
    if len(x) > MOST_POINTS:
        _density(ax, x, y, things)
        return
    groups = groups_of(ax, names)
    for group in groups:
        look: dict[str, Any] = {"color": group.colour, "markersize": 4, "alpha": 0.75, "markeredgewidth": 0}
        label = group.name if len(groups) > 1 else None
        ax.plot(x[group.here], y[group.here], group.marker, linestyle="none", label=label, **look)


def _density(ax: Axes, x: Numbers, y: Numbers, things: str) -> None:
    across, up = _axis_bins(x, ax.get_xscale() == "log"), _axis_bins(y, ax.get_yscale() == "log")
    counts = np.histogram2d(x, y, (across, up))[0].T
    filled, norm = np.ma.masked_equal(counts, 0), LogNorm(1, max(counts.max(), 2))
    least, most = scheme_of(ax).series[1], scheme_of(ax).series[2]
    colours = LinearSegmentedColormap.from_list("density", [least, most])
    mesh = ax.pcolormesh(across, up, filled, norm=norm, cmap=colours, rasterized=True)
    if isinstance(ax.figure, Figure):
        ax.figure.colorbar(mesh, ax=ax, label=things, pad=0.02)


def _axis_bins(values: Numbers, log: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low, high * 1.001, 101)
    margin = 0.01 * (high - low) or 0.01 * abs(high) or 0.5
    return np.linspace(low - margin, high + margin, 101)


SHOWN: Final = (*BUSY, RESIDUAL)
"""Classes; what the ledger cannot place, as nothing tells what went on, is in its residual."""

IDLE: Final = len(SHOWN)
"""Stands for no class, in pixels."""


class Stream(NamedTuple):
    """Attempts: number of their lane (a thread of a worker) and of their class in SHOWN, from start to stop.

    `task` and `chunk` are the rows of each in the tables of tasks and of chunks, -1 where there is none.
    """

    lane: Integers
    kind: Integers
    start: Numbers
    stop: Numbers
    task: Integers
    chunk: Integers
    lanes: list[str]
    """The worker of each lane; those of one worker are beside each other."""

    workers: int


class Pixels(NamedTuple):
    """Pixels of lanes x time: number of the class that took the most (any failure wins), its seconds, and all."""

    kind: Integers
    most: Numbers
    busy: Numbers


def stream_of(tasks: pa.Table | None, chunks: pa.Table | None, names: Mapping[str, str] | None = None) -> Stream:
    """Attempts of tasks; those of chunks where no scheduler tells of tasks (None). Workers are in order of `names`."""
    if tasks is not None:
        table, (kind, chunk) = tasks, _classes_of_tasks(tasks, chunks)
    elif chunks is not None:
        table, kind, chunk = chunks, _main_classes(chunks), np.arange(len(chunks))
    else:
        raise NotMeasuredError("neither tasks nor chunks were seen")
    refuse_if(table["worker"].null_count == len(table), "it is not known on which worker anything ran")
    timed = np.flatnonzero(pc.and_(table["start"].is_valid(), table["stop"].is_valid()).to_numpy())
    refuse_if(len(timed) == 0, "it is not known of any task when it ran")
    known = table.select(["worker", "thread", "start", "stop"]).take(pa.array(timed))
    start, stop = (amounts(known, name) for name in ("start", "stop"))
    lane, lanes = _lanes(known, start, stop, names or {})
    task, workers = timed if tasks is not None else np.full(len(timed), -1), len(known["worker"].unique())
    return Stream(lane, kind[timed], start, np.maximum(start, stop), task, chunk[timed], lanes, workers)


def main_in_pixels(stream: Stream, rows: int, edges: Numbers) -> Pixels:
    """Number of the class that took most of each pixel of lanes x time; any failure wins."""
    lanes, shape = len(stream.lanes), (rows, len(edges) - 1)
    row = stream.lane * rows // lanes
    of_row = np.bincount(np.arange(lanes) * rows // lanes)
    busy, most = np.zeros((2, *shape))
    picture = np.full(shape, IDLE)
    for kind in sorted(np.unique(stream.kind), key=lambda one: SHOWN[one] == FAILED):
        here = stream.kind == kind
        seconds = busy_in_pixels(row[here], stream.start[here], stream.stop[here], shape, edges)
        busy += seconds
        wins = seconds > (1e-9 if SHOWN[kind] == FAILED else np.maximum(most, 1e-9))
        picture[wins] = kind
        most[wins] = seconds[wins]
    mostly_idle = busy < of_row[:, None] * (edges[1] - edges[0]) / 2
    picture[mostly_idle & (picture != SHOWN.index(FAILED))] = IDLE
    return Pixels(picture, most, busy)


def _classes_of_tasks(tasks: pa.Table, chunks: pa.Table | None) -> tuple[Integers, Integers]:
    """Number of the class of each task, and the row of its chunk."""
    numbers = np.array([SHOWN.index(name) for name in (*CLASS_OF_KIND.values(), RESIDUAL)])
    kinds, chunk = numbers[places(tasks["kind"], list(CLASS_OF_KIND))], np.full(len(tasks), -1)
    if chunks is not None and len(chunks):
        chunk = _chunks_of(tasks, chunks)
        processed = having(tasks["kind"], task_records.PROCESSOR)
        kinds = np.where(processed & (chunk >= 0), _main_classes(chunks)[chunk], kinds)
    failed = ~having(tasks["outcome"], task_records.OK) & ~having(tasks["kind"], task_records.OTHER)
    return np.where(failed, SHOWN.index(FAILED), kinds), chunk


def _chunks_of(tasks: pa.Table, chunks: pa.Table) -> Integers:
    """For each attempt of a task the row of its chunk; -1 where it is none's."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    last = order[np.maximum(np.searchsorted(of_chunks[order], of_tasks, side="right") - 1, 0)]
    return np.where((of_tasks >= 0) & (of_chunks[last] == of_tasks), last, -1)


def _main_classes(chunks: pa.Table) -> Integers:
    """For each attempt of a chunk the class that took most of it, or that it failed."""
    seconds = np.column_stack([sum_of(chunks, columns) for columns in COLUMNS_OF.values()])
    rest = amounts(chunks, "wall_seconds") - seconds.sum(axis=1)
    names = np.array([SHOWN.index(name) for name in (*COLUMNS_OF, OVERHEAD)])
    most = names[np.column_stack([seconds, rest]).argmax(axis=1)]
    kinds = np.where(seconds.any(axis=1), most, SHOWN.index(RESIDUAL))
    return np.where(one_of(chunks["outcome"], pa.array(WITH_RESULT)), kinds, SHOWN.index(FAILED))


def _lanes(table: pa.Table, start: Numbers, stop: Numbers, shown: Mapping[str, str]) -> tuple[Integers, list[str]]:
    """Lane of each attempt, lanes of a worker beside each other, and the worker of each lane."""
    worker = pc.fill_null(table["worker"], "?")
    names = sorted(worker.unique().to_pylist(), key=lambda name: natural(shown.get(name, name)))
    code = places(worker, names)
    thread = np.array(pc.fill_null(table["thread"], -1).to_numpy(), dtype=np.int64)
    _fill_in(thread, code, start, stop)
    threads, number = np.unique(thread, return_inverse=True)
    pairs, lane = np.unique(code * len(threads) + number, return_inverse=True)
    return np.asarray(lane, dtype=np.int64), [names[pair // len(threads)] for pair in pairs]


def _fill_in(thread: Integers, worker: Integers, start: Numbers, stop: Numbers) -> None:
    """Give attempts whose thread is not known (-1) the first one of their worker that is free, else one below -1."""
    unknown = np.flatnonzero(thread < 0)
    taken: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for row in np.flatnonzero(np.isin(worker, worker[unknown]) & (thread >= 0)).tolist():
        of_thread = taken.setdefault(int(worker[row]), {}).setdefault(int(thread[row]), [])
        of_thread.append((float(start[row]), float(stop[row])))
    for of_worker in taken.values():
        for spans in of_worker.values():
            spans.sort()
    for row in unknown[np.argsort(start[unknown], kind="stable")].tolist():
        known, span = taken.setdefault(int(worker[row]), {}), (float(start[row]), float(stop[row]))
        free = (name for name, spans in known.items() if _is_free(spans, span))
        thread[row] = name = next(free, min([*known, 0]) - 1)
        insort(known.setdefault(name, []), span)


def _is_free(spans: Sequence[tuple[float, float]], wanted: tuple[float, float]) -> bool:
    """Whether no span, of those in order, has a part in common with another one."""
    place = bisect_left(spans, wanted)
    before, after = spans[place - 1 : place], spans[place : place + 1]
    return all(stop <= wanted[0] for _, stop in before) and all(start >= wanted[1] for start, _ in after)
