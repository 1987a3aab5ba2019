"""Stages of a recorded Runner call: preprocessing, and processing of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import identities
from roastcoffea.metrics.statistics import Numbers, moments
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.replay.chunk_parts import Chunks, chunks_in_parts
from roastcoffea.replay.cluster import Load, Merging
from roastcoffea.replay.dask_costs import merging_of, task_durations
from roastcoffea.replay.first_tasks import FirstTasks, first_tasks, late_start
from roastcoffea.replay.inputs import Costs, Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a Runner call in which tasks of one kind ran: from the first that could to the last that was reported.

    `seconds` is what it took. Without `chunks` its load is fixed, as that of preprocessing is.
    """

    kind: str
    seconds: float
    load: Load
    merging: Merging
    costs: Costs
    chunks: Chunks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What stages are made of: a run with its chunks that counted and its tasks that ended well."""

    run: Run
    chunks: pa.Table
    tasks: pa.Table
    costs: Costs
    stragglers: pa.Table | str


def stages_of(call: RunnerCall, records: Records) -> Iterator[Stage]:
    """Preprocessing and processing of a Runner call, as far as there were tasks."""
    runnable = _runnable(records.tasks)
    here = records.tasks.filter(pa.array((runnable >= call.start) & (runnable <= call.stop)))
    kinds = (task_records.PREPROCESSING, task_records.PROCESSOR, task_records.MERGE)
    opening, processing, merges = (here.filter(pc.equal(here["kind"], kind)) for kind in kinds)
    if len(opening):
        yield _preprocessing(call, records, opening)
    if len(processing):
        yield _processing(call, records, processing, merges)


def _runnable(tasks: pa.Table) -> Numbers:
    """When tasks could run; where that was not recorded, when they began."""
    runnable = moments(tasks, "runnable")
    return np.where(np.isnan(runnable), moments(tasks, "start"), runnable)


def _lasted(*tasks: pa.Table) -> float:
    """From the first that could run to the last that was reported."""
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
        costs=_with_start(records.costs, first, opening, cpu, wall - cpu),
    )


def _with_start(costs: Costs, first: FirstTasks, tasks: pa.Table, cpu: Numbers, wait: Numbers) -> Costs:
    """Costs with what the first task of a process takes beyond the others."""
    cold_cpu = first.excess(cpu) + late_start(tasks, costs.latency)
    return costs._replace(cold_cpu=cold_cpu, cold_wait=first.excess(wait))


def _preprocessing_cpu(run: Run, tasks: pa.Table, wall: Numbers) -> Numbers:
    """CPU time of openings; all of their time where it is not known."""
    if run.preprocessing is None:
        return wall
    sums = run.preprocessing.group_by("key").aggregate([("cpu_seconds", "max")])
    place = pc.index_in(tasks["key"], value_set=sums["key"].combine_chunks()).combine_chunks()
    cpu = sums["cpu_seconds_max"].combine_chunks().take(place)
    return np.fmin(np.asarray(pc.fill_null(cpu, np.inf).to_numpy(False), np.float64), wall)


def _processing(call: RunnerCall, records: Records, tasks: pa.Table, merges: pa.Table) -> Stage:
    seconds = _lasted(tasks, merges)
    tasks, chunks = _with_their_chunks(tasks, records.chunks)
    raw = chunks_in_parts(chunks, task_durations(tasks), records.stragglers)
    parts = raw.parts
    first = first_tasks(tasks, raw.dataset, raw.events, parts.total)
    warm = replace(raw, parts=parts.each(first.warm))
    warm.factor[list(first.alike)] = 1.0
    cpu, wait = parts.open_cpu + parts.cpu + parts.overhead, parts.open_wait + parts.read + parts.wait
    return Stage(
        kind=task_records.PROCESSOR,
        seconds=seconds,
        load=warm.load(),
        merging=merging_of(records.run, call, len(tasks), merges),
        costs=_with_start(records.costs, first, tasks, cpu, wait),
        chunks=warm,
    )


def _with_their_chunks(tasks: pa.Table, chunks: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Tasks that left a record, in the order of their starts, each with its chunk."""
    rows = _rows_of_tasks(tasks, chunks)
    if not (rows >= 0).any():
        raise NotMeasuredError("its chunks left no records")
    tasks, chunks = tasks.filter(pa.array(rows >= 0)), chunks.take(pa.array(rows[rows >= 0]))
    order = pc.sort_indices(tasks["start"])
    return tasks.take(order), chunks.take(order)


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Counts:
    """Row of the chunk that each task computed; -1 where there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    place = np.minimum(np.searchsorted(of_chunks, of_tasks, sorter=order), len(order) - 1)
    return np.where((of_tasks >= 0) & (of_chunks[order[place]] == of_tasks), order[place], -1)
