"""Stages of a recorded Runner call: preprocessing, and processing of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import identities, rows_where
from roastcoffea.metrics.statistics import Integers, Numbers, moments
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.replay.changes import files_of
from roastcoffea.replay.cluster import Load, Merging
from roastcoffea.replay.crowding import crowding_of, doublings_of
from roastcoffea.replay.dask_costs import FirstTasks, early_tasks, first_tasks, late_start, merging_of, task_durations
from roastcoffea.replay.fitted_storage import Activity, activity_of, reading_seconds
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.parts import Chunks, Parts, chunks_in_parts, needed, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a Runner call with tasks of one kind: from the first runnable to the last reported.

    `seconds` is its duration. Without `chunks` its load is fixed, as for preprocessing. `activity` tells how many
    chunks were active at a time.
    """

    kind: str
    seconds: float
    load: Load
    merging: Merging
    costs: Costs
    chunks: Chunks | None = None
    activity: Activity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records for stages: a run with its chunks that counted and its successful tasks."""

    run: Run
    chunks: pa.Table
    tasks: pa.Table
    costs: Costs
    stragglers: pa.Table | str = "not needed"
    failed: pa.Table | None = None
    """Failed attempts of processor tasks, if chunks keep their recorded times: with waiting for cores, starting
    processes, and failed attempts."""


def stages_of(call: RunnerCall, records: Records) -> Iterator[Stage]:
    """Preprocessing and processing of a Runner call, if they had tasks."""
    runnable = _runnable(records.tasks)
    here = rows_where(records.tasks, (runnable >= call.start) & (runnable <= call.stop))
    kinds = (task_records.PREPROCESSING, task_records.PROCESSOR, task_records.MERGE)
    opening, processing, merges = (here.filter(pc.equal(here["kind"], kind)) for kind in kinds)
    if len(opening):
        yield _preprocessing(call, records, opening)
    if len(processing):
        yield _processing(call, records, processing, merges)


def _runnable(tasks: pa.Table) -> Numbers:
    """When tasks became runnable; if not recorded, when they started."""
    runnable = moments(tasks, "runnable")
    return np.where(np.isnan(runnable), moments(tasks, "start"), runnable)


def _lasted(*tasks: pa.Table) -> float:
    """Time from the first runnable to the last reported task."""
    every = pa.concat_tables(tasks)
    ends = np.fmax(moments(every, "seen"), moments(every, "stop"))
    return float(ends.max() - np.nanmin(_runnable(every)))


def _preprocessing(call: RunnerCall, records: Records, tasks: pa.Table) -> Stage:
    is_merge = pc.equal(tasks["prefix"], task_records.MERGE_PREFIX)
    merges, opening = tasks.filter(is_merge), tasks.filter(pc.invert(is_merge)).sort_by("start")
    wall = task_durations(opening)
    cpu = np.minimum(_preprocessing_cpu(records.run, opening, wall), wall)
    first = first_tasks(opening, np.zeros(len(wall), np.int64), np.ones(len(wall)), wall)
    return Stage(
        kind=task_records.PREPROCESSING,
        seconds=_lasted(tasks),
        load=Load(before=np.zeros(len(cpu)), wait=first.warm(wall - cpu), after=first.warm(cpu)),
        merging=merging_of(records.run, call, len(opening), merges),
        costs=_with_start(records.costs, first, opening, cpu, wall - cpu, 0 * cpu),
    )


def _with_start(  # noqa: PLR0917
    costs: Costs, first: FirstTasks, tasks: pa.Table, before: Numbers, wait: Numbers, after: Numbers
) -> Costs:
    """Costs with the extra time of a process's first task."""
    cold_before = first.excess(before) + late_start(tasks, costs.latency)
    return costs._replace(cold_before=cold_before, cold_wait=first.excess(wait), cold_after=first.excess(after))


def _preprocessing_cpu(run: Run, tasks: pa.Table, wall: Numbers) -> Numbers:
    """CPU time of openings; their entire time if unknown."""
    if run.preprocessing is None:
        return wall
    sums = run.preprocessing.group_by("key").aggregate([("cpu_seconds", "max")])
    cpu = sums["cpu_seconds_max"].take(pc.index_in(tasks["key"], value_set=sums["key"].combine_chunks()))
    return np.fmin(np.asarray(pc.fill_null(cpu, np.inf).to_numpy(), np.float64), wall)


def _processing(call: RunnerCall, records: Records, tasks: pa.Table, merges: pa.Table) -> Stage:
    seconds = _lasted(tasks, merges)
    rows = _rows_of_tasks(tasks, records.chunks)
    if not (rows >= 0).any():
        raise NotMeasuredError("its chunks left no records")
    # tasks with a record, in order of start, each with its chunk
    places = np.flatnonzero(rows >= 0)
    places = places[np.argsort(moments(tasks, "start")[places], kind="stable")]
    tasks, rows = tasks.select(OF_TASKS).take(pa.array(places)), rows[places]
    # for a million chunks, hold one form at a time
    own = needed(records.chunks).take(pa.array(rows))
    chunks, activity = chunks_in_parts(own, task_durations(tasks), records.stragglers, rows), None
    doublings, costs = doublings_of(chunks.parts, early_tasks(tasks)), records.costs
    merging = merging_of(records.run, call, len(tasks), merges)
    if records.failed is None:
        activity = activity_of(own, tasks, doublings, reading_seconds(chunks) > 0)
        chunks, costs = _warm(chunks.with_cores(1.0), tasks, costs)
    else:
        costs = costs._replace(crowded=crowding_of([[(chunks, doublings)]]))
        failed = _during(call, records.failed)
        chunks = _as_recorded(chunks, tasks)
        chunks = _with_failed(chunks, moments(tasks, "start"), failed)
        every = pa.concat_tables([tasks, failed.select(OF_TASKS)]).sort_by("start") if len(failed) else tasks
        costs = costs._replace(cold_wait=late_start(every, costs.latency))
    return Stage(
        kind=task_records.PROCESSOR,
        seconds=seconds,
        load=chunks.load(),
        merging=merging,
        costs=costs,
        chunks=chunks,
        activity=activity,
    )


OF_TASKS: Final = ("worker", "assigned", "start", "stop")
"""Columns of tasks that describe their chunks."""


def _warm(chunks: Chunks, tasks: pa.Table, costs: Costs) -> tuple[Chunks, Costs]:
    """Chunks without the extra time of processes' first tasks, and costs with it."""
    parts = chunks.parts
    first = first_tasks(tasks, chunks.dataset, chunks.events, parts.total)
    warm = replace(chunks, parts=parts.each(first.warm))
    warm.factor[list(first.alike)] = 1.0
    load = chunks.load()
    return warm, _with_start(costs, first, tasks, load.before, load.wait, load.after)


def _as_recorded(chunks: Chunks, tasks: pa.Table) -> Chunks:
    """Chunks with their recorded times, with the extra time of first tasks as a part of its own."""
    total = chunks.parts.total
    first = first_tasks(tasks, chunks.dataset, chunks.events, total)
    beyond = np.clip(total - np.fmax(first.warm(total), _as_in_their_files(chunks, first, total)), 0.0, None)
    if len(first.leaders):
        # limit for most processes: a first task above it is slow for another reason
        usual = np.sort(beyond[first.leaders])[(len(first.leaders) - 1) // 2]
        beyond = np.minimum(beyond, usual)
    rest = 1 - ratio(beyond, total)
    parts = chunks.parts.each(lambda seconds: seconds * rest)._replace(first=beyond)
    return replace(chunks, parts=parts)


def _as_in_their_files(chunks: Chunks, first: FirstTasks, seconds: Numbers) -> Numbers:
    """Seconds of first tasks if they were like later ones of their file; NaN for others, and without later ones."""
    found, early = np.full(len(chunks), np.nan), np.fromiter(first.alike, np.int64)
    file = files_of(chunks)
    later = np.isin(file, file[early])
    later[early] = False
    rows = np.flatnonzero(later)
    rows = rows[np.argsort(file[rows], kind="stable")]
    rate, events = seconds / np.maximum(chunks.events, 1.0), np.maximum(chunks.events, 1.0)
    begins, ends = (np.searchsorted(file[rows], file[early], side=side) for side in ("left", "right"))
    for row, begin, end in zip(early.tolist(), begins.tolist(), ends.tolist(), strict=True):
        if end > begin:
            found[row] = events[row] * np.median(rate[rows[begin:end]])
    return found


def _during(call: RunnerCall, tasks: pa.Table) -> pa.Table:
    start = moments(tasks, "start")
    return tasks.filter(pa.array((start >= call.start) & (start <= call.stop)))


def _with_failed(chunks: Chunks, starts: Numbers, failed: pa.Table) -> Chunks:
    """Chunks including failed attempts, in order of start."""
    if not len(failed):
        return chunks
    began = moments(failed, "start")
    ended = np.fmin(moments(failed, "stop"), np.inf)
    lasted = np.clip(np.nan_to_num(np.where(np.isfinite(ended), ended, moments(failed, "seen")) - began), 0.0, None)
    order = np.argsort(np.concatenate([starts, began]), kind="stable")
    none, nothing = np.zeros(len(failed)), np.full(len(failed), -1)
    parts = Parts(*(np.concatenate([part, none]) for part in chunks.parts))
    parts.failed[len(chunks) :] = lasted
    of_none = {"dataset": nothing, "file": nothing, "row": nothing, "factor": none + 1}
    of_none |= {"start": 0 * nothing, "stop": 0 * nothing}
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(chunks, name), values]) for name, values in of_none.items()
    }
    return replace(chunks, parts=parts, **columns).take(order)


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Integers:
    """Row of the chunk of each task; -1 if there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    in_order = of_chunks[order]
    place = np.minimum(np.searchsorted(in_order, of_tasks), len(order) - 1)
    return np.where((of_tasks >= 0) & (in_order[place] == of_tasks), order[place], -1)
