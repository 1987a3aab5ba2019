"""Distributions over many chunks: histograms, points and their density, stacked areas."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import WITH_RESULT, identities, natural, rows_where, some
from roastcoffea.metrics.phases import (
    BUSY,
    CLASS_OF_KIND,
    COLUMNS_OF,
    CONTENTION,
    FAILED,
    LOCK,
    OVERHEAD,
    RESIDUAL,
    WAIT,
)
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, having, named_codes, one_of, places, rows_of
from roastcoffea.metrics.thread_activity import sum_of
from roastcoffea.records import workers as task_records
from roastcoffea.units import number, three_digits
from roastcoffea.visualization.draw import NAMELESS, entry, legend, scheme_of, whole_numbers
from roastcoffea.visualization.inputs import busy_in_pixels, plot_input

MOST_GROUPS: Final = 4
"""Maximum number of groups. With more datasets, the smallest ones share a group."""

MOST_POINTS: Final = 3000
"""Maximum number of points to draw individually. With more points, their density is drawn instead."""


Names: TypeAlias = pa.ChunkedArray | Sequence[str | None]

Bins = int | Sequence[float] | None
"""Number of bins, or the bin edges. If None, the edges are chosen to suit the values."""


class Group(NamedTuple):
    name: str
    here: npt.NDArray[np.bool_]
    colour: str
    marker: str


def groups_of(ax: Axes, names: Names) -> list[Group]:
    looks = zip(masks_of(names).items(), scheme_of(ax).series, "os^D", strict=False)
    return [Group(name, here, colour, marker) for (name, here), colour, marker in looks]


def masks_of(names: Names) -> dict[str, npt.NDArray[np.bool_]]:
    """Return a mask for each name, most frequent name first. If there are many names, the rarest share a mask."""
    code, known = named_codes(names if isinstance(names, pa.ChunkedArray) else pa.array(names, pa.string()))
    kinds, sizes = known.fill_null(NAMELESS).to_pylist(), np.bincount(code, minlength=len(known))
    ordered = sorted(range(len(kinds)), key=lambda place: (-sizes[place], kinds[place]))
    own = ordered if len(ordered) <= MOST_GROUPS else ordered[: MOST_GROUPS - 1]
    masks = {entry(kinds[place]): code == place for place in own}
    if len(own) < len(ordered):
        masks[f"{len(ordered) - len(own)} others"] = ~np.isin(code, own)
    return masks


def running_chunks(chunks: pa.Table, start: float, bins: int) -> tuple[Numbers, dict[str, Numbers]]:
    """Return the edges of the time bins, and each dataset's mean number of running chunks in each bin."""
    timed = rows_where(
        chunks.select(["dataset", "start", "stop"]), pc.and_(chunks["start"].is_valid(), chunks["stop"].is_valid())
    )
    begun, ended = (amounts(some(timed, "no chunk attempt has times"), name) for name in ("start", "stop"))
    edges = np.linspace(min(start, begun.min()), max(start, ended.max()), bins + 1)
    refuse_if(edges[-1] <= edges[0], "the chunk attempts took no time")
    masks = masks_of(timed["dataset"])
    row = np.argmax(list(masks.values()), axis=0)
    seconds = busy_in_pixels(row, begun, ended, (len(masks), bins), edges)
    return edges, dict(zip(masks, seconds / np.diff(edges), strict=True))


def distribution(
    ax: Axes,
    values: Numbers,
    names: Names,
    things: str,
    label: str,
    *,
    bins: Bins = None,
    whole: bool = False,
    colour: str | None = None,
) -> None:
    """Draw a histogram stacked by group, or a sentence if all values are equal.

    Parameters
    ----------
    whole
        Whether the values are integers. Bin edges then lie between integers.
    colour
        Colour of the histogram if there is only one group.
    """
    ax.set(xlabel=label, ylabel=things)
    if bins is None and np.ptp(values) <= (0 if whole else 0.01 * np.abs(values).max()):
        value = f"{number(three_digits(float(np.median(values))))}{' (within 1 %)' if np.ptp(values) else ''}"
        chunks = f"the only {things.removesuffix('s')}" if len(values) == 1 else f"all {number(len(values))} {things}"
        sentence(ax, f"{label}: {value} for {chunks}")
        return
    edges = _edges(values, whole) if bins is None else np.histogram_bin_edges(values, bins)
    counts = [(group.name, np.histogram(values[group.here], edges)[0], group.colour) for group in groups_of(ax, names)]
    stacked(ax, edges, counts if len(counts) > 1 else [(None, counts[0][1], colour or counts[0][2])])
    if whole:
        ax.set_xlim(edges[0] - 1, edges[-1] + 1)
        whole_numbers(ax.xaxis)
    whole_numbers(ax.yaxis)
    ax.set_ylim(bottom=0)
    legend(ax)


def sentence(ax: Axes, text: str) -> None:
    ax.set_axis_off()
    words = fill(text, 46).replace("$", r"\$")
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, linespacing=1.6)


def stacked(ax: Axes, edges: Numbers, layers: Iterable[tuple[str | None, Numbers, str]]) -> None:
    """Draw stacked steps, given the label, heights and colour of each layer.

    Layers of the same colour are separated by a thin line in the background colour.
    """
    below: Any = np.zeros(len(edges) - 1)  # matplotlib's type hints lack arrays
    last = ""
    for label, heights, colour in layers:
        ax.stairs(below + heights, edges, baseline=below, fill=True, facecolor=colour, linewidth=0, label=label)
        if colour == last:
            between = np.where((below > 0) & (heights > 0), below, np.nan)
            ax.stairs(between, edges, baseline=None, edgecolor=scheme_of(ax).ground, linewidth=0.6)
        below, last = below + heights, colour


def _edges(values: Numbers, whole: bool) -> Numbers:
    low, high = float(values.min()), float(values.max())
    if whole and high - low < 2 * MOST_POINTS**0.5:
        step = max(1, round((high - low) / 50))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 8, 60)) + 1)


# Clouds


def cloud(ax: Axes, x: Numbers, y: Numbers, names: Names, things: str) -> None:
    """Draw points by group, or the density of the points if there are many."""
    for values, set_scale in ((x, ax.set_xscale), (y, ax.set_yscale)):
        if 0 < 100 * values.min() < values.max():
            set_scale("log")
    if len(x) > MOST_POINTS:
        colours = LinearSegmentedColormap.from_list("density", scheme_of(ax).series[1:3])
        scales: Any = {"xscale": ax.get_xscale(), "yscale": ax.get_yscale(), "bins": "log"}
        mesh = ax.hexbin(x, y, gridsize=80, mincnt=1, cmap=colours, rasterized=True, **scales)
        if isinstance(ax.figure, Figure):
            ax.figure.colorbar(mesh, ax=ax, label=things, pad=0.02)
        return
    groups = groups_of(ax, names)
    for group in groups:
        look: dict[str, Any] = {"color": group.colour, "markersize": 4, "alpha": 0.75, "markeredgewidth": 0}
        label = group.name if len(groups) > 1 else None
        ax.plot(x[group.here], y[group.here], group.marker, linestyle="none", label=label, **look)


SHOWN: Final = (*BUSY, RESIDUAL)
"""Task classes. The residual stands for tasks without recorded phases."""

IDLE: Final = len(SHOWN)

FOR_CPU: Final = (CONTENTION, LOCK, WAIT)
"""Classes shown in paler colours.

A chunk keeps the colour of its work while it waits for a core or the GIL. Runs from older versions have a
single class for all waiting.
"""


Rows = npt.NDArray[np.int32]
Small = npt.NDArray[np.int16]


class Stream(NamedTuple):
    """Attempts with their times.

    `lane` is the index of an attempt's worker thread, and `kind` is the index of its class in SHOWN. `task` and `chunk`
    are the attempt's rows in the task and chunk tables, or -1 if there is none. `pale` (0 to 3) is the fraction of the
    chunk's time spent in FOR_CPU, in quarters rounded down.
    """

    lane: Rows
    kind: Small
    start: Numbers
    stop: Numbers
    task: Rows
    chunk: Rows
    pale: Small
    lanes: list[str]
    """Worker of each lane. All lanes of a worker are adjacent."""

    workers: int


class Pixels(NamedTuple):
    """Pixels in a grid of lanes and time bins.

    `kind` is the class with the most time, unless a failure takes precedence. `most` is the time in this class and
    `busy` is the time in all classes, both in seconds. `pale` is the mean paleness.
    """

    kind: Integers
    most: Numbers
    busy: Numbers
    pale: Integers


@plot_input
def stream(attempts: tuple[pa.Table | None, pa.Table | None], worker_names: Mapping[str, str]) -> Stream:
    return stream_of(*attempts, worker_names)


def stream_of(tasks: pa.Table | None, chunks: pa.Table | None, names: Mapping[str, str] | None = None) -> Stream:
    """Arrange task attempts in lanes, or chunk attempts if there was no scheduler. Workers are sorted by `names`."""
    if tasks is not None:
        table, (kind, chunk) = tasks, _classes_of_tasks(tasks, chunks)
    elif chunks is not None:
        table, kind, chunk = chunks, _main_classes(chunks), np.arange(len(chunks))
    else:
        raise NotMeasuredError("no tasks or chunks were recorded")
    refuse_if(table["worker"].null_count == len(table), "no task or chunk has a worker")
    timed = np.flatnonzero(pc.and_(table["start"].is_valid(), table["stop"].is_valid()).to_numpy())
    refuse_if(len(timed) == 0, "no task has times")
    known = table.select(["worker", "thread", "start", "stop"]).take(pa.array(timed))
    start, stop = (amounts(known, name) for name in ("start", "stop"))
    lane, lanes = _lanes(known, start, stop, names or {})
    task, workers = timed if tasks is not None else np.full(len(timed), -1), len(known["worker"].unique())
    pale = np.where(chunk >= 0, _paleness(chunks)[chunk], 0) if chunks else 0 * chunk
    # a run may have a million tasks
    rows, small = (partial(np.asarray, dtype=kind) for kind in (np.int32, np.int16))
    return Stream(
        lane=rows(lane),
        kind=small(kind[timed]),
        start=start,
        stop=np.maximum(start, stop),
        task=rows(task),
        chunk=rows(chunk[timed]),
        pale=small(pale[timed]),
        lanes=lanes,
        workers=workers,
    )


def main_in_pixels(stream: Stream, rows: int, edges: Numbers) -> Pixels:
    lanes, shape = len(stream.lanes), (rows, len(edges) - 1)
    row = stream.lane * rows // lanes
    of_row = np.bincount(np.arange(lanes) * rows // lanes)
    busy, most, pale = np.zeros((3, *shape))
    picture = np.full(shape, IDLE)
    for level in range(1, 4):
        here = stream.pale == level
        pale += level * busy_in_pixels(row[here], stream.start[here], stream.stop[here], shape, edges)
    for kind in sorted(np.unique(stream.kind), key=lambda one: SHOWN[one] == FAILED):
        here = stream.kind == kind
        seconds = busy_in_pixels(row[here], stream.start[here], stream.stop[here], shape, edges)
        busy += seconds
        wins = seconds > (1e-9 if SHOWN[kind] == FAILED else np.maximum(most, 1e-9))
        picture[wins] = kind
        most[wins] = seconds[wins]
    mostly_idle = busy < of_row[:, None] * (edges[1] - edges[0]) / 2
    picture[mostly_idle & (picture != SHOWN.index(FAILED))] = IDLE
    return Pixels(picture, most, busy, np.rint(pale / np.maximum(busy, 1e-9)).astype(np.int64))


def _classes_of_tasks(tasks: pa.Table, chunks: pa.Table | None) -> tuple[Integers, Integers]:
    numbers = np.array([SHOWN.index(name) for name in (*CLASS_OF_KIND.values(), RESIDUAL)])
    kinds, chunk = numbers[places(tasks["kind"], list(CLASS_OF_KIND))], np.full(len(tasks), -1)
    if chunks is not None and len(chunks):
        chunk = _chunks_of(tasks, chunks)
        processed = having(tasks["kind"], task_records.PROCESSOR)
        kinds = np.where(processed & (chunk >= 0), _main_classes(chunks)[chunk], kinds)
    failed = ~having(tasks["outcome"], task_records.OK) & ~having(tasks["kind"], task_records.OTHER)
    return np.where(failed, SHOWN.index(FAILED), kinds), chunk


def _chunks_of(tasks: pa.Table, chunks: pa.Table) -> Integers:
    of_chunks, of_tasks = identities(tasks, chunks)
    before_end = rows_of(of_tasks, of_chunks[::-1])
    return np.where((of_tasks >= 0) & (before_end >= 0), len(of_chunks) - 1 - before_end, -1)


def _main_classes(chunks: pa.Table) -> Integers:
    """Return the class outside FOR_CPU in which each chunk attempt spent the most time, or failure."""
    rest, most, kinds = (
        amounts(chunks, "wall_seconds"),
        np.zeros(len(chunks)),
        np.full(len(chunks), SHOWN.index(RESIDUAL)),
    )
    for name, columns in COLUMNS_OF.items():
        seconds = sum_of(chunks, columns)
        rest = rest - seconds
        # a chunk with no time in any other class was waiting
        seconds = seconds * (1e-9 if name in FOR_CPU else 1.0)
        kinds[seconds > most] = SHOWN.index(name)
        most = np.maximum(most, seconds)
    kinds[(rest > most) & (most > 0)] = SHOWN.index(OVERHEAD)
    return np.where(one_of(chunks["outcome"], pa.array(WITH_RESULT)), kinds, SHOWN.index(FAILED))


def _paleness(chunks: pa.Table) -> Integers:
    """Return the fraction of each chunk attempt's time spent in FOR_CPU, in quarters rounded down (at most 3)."""
    waited = np.sum([sum_of(chunks, COLUMNS_OF[name]) for name in FOR_CPU], axis=0)
    share = waited / np.maximum(np.nan_to_num(amounts(chunks, "wall_seconds")), 1e-9)
    faded: Integers = np.clip(4 * share, 0, 3).astype(np.int64)
    return faded


def _lanes(table: pa.Table, start: Numbers, stop: Numbers, shown: Mapping[str, str]) -> tuple[Integers, list[str]]:
    """Return the lane of each attempt, and the worker of each lane. All lanes of a worker are adjacent."""
    worker = pc.fill_null(table["worker"], "?")
    names = sorted(worker.unique().to_pylist(), key=lambda name: natural(shown.get(name, name)))
    code = places(worker, names)
    thread = np.array(pc.fill_null(table["thread"], -1).to_numpy(), dtype=np.int64)
    _fill_in(thread, code, start, stop)
    threads, number = np.unique(thread, return_inverse=True)
    pairs, lane = np.unique(code * len(threads) + number, return_inverse=True)
    return np.asarray(lane, dtype=np.int64), [names[pair // len(threads)] for pair in pairs]


def _fill_in(thread: Integers, worker: Integers, start: Numbers, stop: Numbers) -> None:
    """Assign attempts on unknown threads (-1) to their worker's first free thread, or to a new thread below -1."""
    rows = np.flatnonzero(np.isin(worker, worker[thread < 0]))
    taken: dict[int, dict[int, list[tuple[float, float]]]] = {}
    # known threads first, each in chronological order
    for row in rows[np.lexsort((start[rows], thread[rows] < 0))].tolist():
        of_worker, span = taken.setdefault(int(worker[row]), {}), (float(start[row]), float(stop[row]))
        if thread[row] < 0:
            free = (name for name, spans in of_worker.items() if _is_free(spans, span))
            thread[row] = next(free, min([*of_worker, 0]) - 1)
        insort(of_worker.setdefault(int(thread[row]), []), span)


def _is_free(spans: Sequence[tuple[float, float]], wanted: tuple[float, float]) -> bool:
    place = bisect_left(spans, wanted)
    before, after = spans[place - 1 : place], spans[place : place + 1]
    return all(stop <= wanted[0] for _, stop in before) and all(start >= wanted[1] for start, _ in after)
