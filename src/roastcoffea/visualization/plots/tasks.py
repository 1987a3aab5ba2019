"""The task stream: which thread did what, when."""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.ledger import RESIDUAL
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time import BUSY, OF_KIND, OVERHEAD, PHASES, WASTED
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records import tasks as task_records
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import OF_TIME
from roastcoffea.visualization.registry import TALL, plot
from roastcoffea.visualization.series import Integers, busy_in_pixels

MOST_RECTANGLES: Final = 20_000
MOST_ROWS: Final = 400
COLUMNS: Final = 800
MOST_NAMED: Final = 24
WHITE: Final = "white"

SHOWN: Final = (*BUSY, RESIDUAL)
"""Classes; what the ledger cannot place, as nothing tells what went on, is in its residual."""

UNTOLD: Final = "not recorded"


class Stream(NamedTuple):
    """Attempts: number of their lane (a thread of a worker) and of their class in SHOWN, from start to stop."""

    lane: Integers
    kind: Integers
    start: Numbers
    stop: Numbers
    lanes: list[str]
    threads: int


@plot("Task stream", size=TALL)
def plot_task_stream(ax: Axes, start: float, attempts: tuple[pa.Table | None, pa.Table | None]) -> None:
    """Draw what each worker thread did from moment to moment, coloured by class of the time ledger.

    A task of the processor has the colour of the class that took the most of it. Of very many tasks a pixel
    shows the class that took the most of its time; failed work wins.
    """
    stream = _stream(*attempts)
    end = float(stream.stop.max())
    axis = draw.time_axis(ax, start, end)
    if len(stream.start) > MOST_RECTANGLES:
        _draw_raster(ax, stream, start, end, float(axis(np.array([end]))[0]))
    else:
        _draw_rectangles(ax, stream, axis(stream.start), axis(stream.stop))
    _name_lanes(ax, stream)
    for number in np.unique(stream.kind):
        name = SHOWN[number]
        ax.plot([], [], "s", color=OF_TIME[name], label=UNTOLD if name == RESIDUAL else name)
    draw.legend(ax)


def _stream(tasks: pa.Table, chunks: pa.Table) -> Stream:
    """Attempts of tasks; those of chunks where no scheduler tells of tasks (None)."""
    table, kind = _tasks_with_class(tasks, chunks) if tasks is not None else (chunks, _main_classes(chunks))
    if table["worker"].null_count == len(table):
        raise NotMeasuredError("it is not known on which worker anything ran")
    timed = pc.and_(table["start"].is_valid(), table["stop"].is_valid())
    known, kind = table.filter(timed), kind[np.asarray(timed.to_numpy(), dtype=np.bool_)]
    if len(known) == 0:
        raise NotMeasuredError("it is not known of any task when it ran")
    start, stop = (np.asarray(known[name].to_numpy(), dtype=np.float64) for name in ("start", "stop"))
    lane, lanes = _lanes(known, start, stop)
    workers = len(known["worker"].unique())
    return Stream(lane, kind, start, np.maximum(start, stop), lanes, workers)


def _tasks_with_class(tasks: pa.Table, chunks: pa.Table | None) -> tuple[pa.Table, Integers]:
    """Tasks, with the number of the class of each."""
    numbers = {kind: SHOWN.index(name) for kind, name in OF_KIND.items()}
    kinds, failed = _codes(tasks, "kind", numbers, SHOWN.index(RESIDUAL)), _failed(tasks, (task_records.OK,))
    if chunks is not None:
        wanted = tasks.select(["key", "run_id"]).append_column("row", pa.array(np.arange(len(tasks))))
        inside = chunks.select(["key", "run_id"]).append_column("class", pa.array(_main_classes(chunks)))
        ended = inside.group_by(["key", "run_id"]).aggregate([("class", "max")])
        joined = wanted.join(ended, ["key", "run_id"]).sort_by("row")["class_max"]
        own = np.array(pc.fill_null(joined, -1).to_numpy(), dtype=np.int64)
        processed = np.asarray(pc.equal(tasks["kind"], task_records.PROCESSOR).to_numpy(), dtype=np.bool_)
        kinds = np.where(processed & (own >= 0), own, kinds)
    others = np.asarray(pc.equal(tasks["kind"], task_records.OTHER).to_numpy(), dtype=np.bool_)
    return tasks, np.where(failed & ~others, SHOWN.index(WASTED), kinds)


def _main_classes(chunks: pa.Table) -> Integers:
    """For each attempt of a chunk the class that took the most of it, or that it failed."""
    seconds = np.zeros((len(chunks), len(PHASES) + 1))
    for place, columns in enumerate(PHASES.values()):
        for column in columns:
            seconds[:, place] += pc.fill_null(chunks[column], 0.0).to_numpy()
    wall = np.asarray(pc.fill_null(chunks["wall_seconds"], 0.0).to_numpy())
    seconds[:, -1] = wall - seconds[:, :-1].sum(axis=1)
    names = np.array([SHOWN.index(name) for name in (*PHASES, OVERHEAD)])
    kinds = np.where(seconds[:, :-1].any(axis=1), names[seconds.argmax(axis=1)], SHOWN.index(RESIDUAL))
    failed = _failed(chunks, (chunk_records.OK, chunk_records.CHECKPOINT))
    return np.where(failed, SHOWN.index(WASTED), kinds)


def _failed(table: pa.Table, good: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return ~np.asarray(pc.is_in(table["outcome"], value_set=pa.array(good, pa.string())).to_numpy(), dtype=np.bool_)


def _codes(table: pa.Table, column: str, numbers: dict[str, int], otherwise: int) -> Integers:
    place = pc.index_in(table[column], value_set=pa.array(list(numbers), pa.string()))
    known = np.array([*numbers.values(), otherwise])
    return known[np.asarray(pc.fill_null(place, len(numbers)).to_numpy(), dtype=np.int64)]


def _lanes(table: pa.Table, start: Numbers, stop: Numbers) -> tuple[Integers, list[str]]:
    """Lane of each attempt, lanes of a worker beside each other, and the worker of each lane."""
    worker = np.asarray(pc.fill_null(table["worker"], "?").to_numpy(zero_copy_only=False)).astype(str)
    names, code = np.unique(worker, return_inverse=True)
    thread = np.array(pc.fill_null(table["thread"], -1).to_numpy(), dtype=np.int64)
    unknown = np.flatnonzero(thread < 0)
    thread[unknown] = _free_places(code[unknown], start[unknown], stop[unknown])
    pairs, lane = np.unique(np.column_stack([code, thread]), axis=0, return_inverse=True)
    return np.asarray(lane).ravel().astype(np.int64), [str(names[number]) for number, _ in pairs]


def _free_places(worker: Integers, start: Numbers, stop: Numbers) -> Integers:
    """Places of attempts whose thread is not known: the first one of their worker that is free; from -1 downwards."""
    places = np.zeros(len(worker), np.int64)
    free: dict[int, list[tuple[float, int]]] = {}
    for row in np.argsort(start, kind="stable").tolist():
        taken = free.setdefault(int(worker[row]), [])
        place = heapq.heappop(taken)[1] if taken and taken[0][0] <= start[row] else -1 - len(taken)
        heapq.heappush(taken, (float(stop[row]), place))
        places[row] = place
    return places


def _draw_rectangles(ax: Axes, stream: Stream, left: Numbers, right: Numbers) -> None:
    low, high = stream.lane - 0.42, stream.lane + 0.42
    corners = np.stack([[left, low], [left, high], [right, high], [right, low]]).transpose(2, 0, 1)
    colours = np.array([to_rgba(OF_TIME[name]) for name in SHOWN])[stream.kind]
    many = len(left) > MOST_RECTANGLES // 20
    edge = "none" if many else "white"
    ax.add_collection(
        PolyCollection(list(corners), facecolors=colours, edgecolors=edge, linewidths=0.3, rasterized=many)
    )


def _draw_raster(ax: Axes, stream: Stream, start: float, end: float, right: float) -> None:
    """Pixels of lanes x time, each in the colour of what took the most of it; white where that is nothing."""
    picture = _main_in_pixels(stream, np.linspace(start, end, COLUMNS + 1))
    colours = np.array([to_rgba(colour) for colour in (*(OF_TIME[name] for name in SHOWN), WHITE)])
    extent = (0.0, right, len(stream.lanes) - 0.5, -0.5)
    ax.imshow(colours[picture], extent=extent, aspect="auto", interpolation="nearest", rasterized=True)


def _main_in_pixels(stream: Stream, edges: Numbers) -> Integers:
    """Number of the class that took the most of each pixel of lanes x time; any failure wins."""
    rows = min(len(stream.lanes), MOST_ROWS)
    row = stream.lane * rows // len(stream.lanes)
    lanes = np.bincount(np.arange(len(stream.lanes)) * rows // len(stream.lanes))
    busy, most = np.zeros((2, rows, COLUMNS))
    picture = np.full((rows, COLUMNS), len(SHOWN))
    for number in sorted(np.unique(stream.kind), key=lambda kind: SHOWN[kind] == WASTED):
        here = stream.kind == number
        seconds = busy_in_pixels(row[here], stream.start[here], stream.stop[here], picture.shape, edges)
        busy += seconds
        wins = seconds > (1e-9 if SHOWN[number] == WASTED else np.maximum(most, 1e-9))
        picture[wins] = number
        most = np.maximum(most, seconds)
    mostly_idle = busy < lanes[:, None] * (edges[1] - edges[0]) / 2
    picture[mostly_idle & (picture != SHOWN.index(WASTED))] = len(SHOWN)
    return picture


def _name_lanes(ax: Axes, stream: Stream) -> None:
    """Name the worker at the first of its lanes, where there is room for the names."""
    first = [place for place, worker in enumerate(stream.lanes) if place == 0 or stream.lanes[place - 1] != worker]
    ax.set_ylim(len(stream.lanes) - 0.5, -0.5)
    if len(first) > MOST_NAMED or len(stream.lanes) > 4 * MOST_NAMED:
        ax.set_ylabel(f"threads of {stream.threads} workers")
        ax.set_yticks([])
        return
    ax.set_ylabel("threads of workers")
    ax.set_yticks(first, draw.worker_names([stream.lanes[place] for place in first]))
