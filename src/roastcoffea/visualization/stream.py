"""The task stream: which thread did what, when, and the classes that took most of each pixel of it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import NotMeasuredError, refuse_if
from roastcoffea.metrics.facts import WITH_RESULT, identities, natural
from roastcoffea.metrics.phases import BUSY, CLASS_OF_KIND, COLUMNS_OF, FAILED, OVERHEAD, RESIDUAL
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, having, one_of, places
from roastcoffea.metrics.thread_activity import sum_of
from roastcoffea.records import workers as task_records
from roastcoffea.visualization.inputs import busy_in_pixels

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
    for number in sorted(np.unique(stream.kind), key=lambda kind: SHOWN[kind] == FAILED):
        here = stream.kind == number
        seconds = busy_in_pixels(row[here], stream.start[here], stream.stop[here], shape, edges)
        busy += seconds
        wins = seconds > (1e-9 if SHOWN[number] == FAILED else np.maximum(most, 1e-9))
        picture[wins] = number
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
