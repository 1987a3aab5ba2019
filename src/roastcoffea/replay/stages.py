"""Stages of a recorded Runner call (preprocessing, and processing of chunks), with the parts of chunks.

Parts of a chunk are what it would take with a core to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.busy import sum_of
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import identities
from roastcoffea.metrics.phases import CONTENTION, PHASES, READ, Part
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes, moments, places
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.replay.cluster import CROWDED, Load, Merging
from roastcoffea.replay.dask_costs import FirstTasks, first_tasks, late_start, merging_of, task_durations
from roastcoffea.replay.inputs import Costs


class Parts(NamedTuple):
    """Seconds of each chunk.

    `open_cpu` and `open_wait` are opening the file and building its events, `read` is waiting for storage in process(),
    `wait` other time without CPU, `cpu` all other CPU, `overhead` the rest of the task.
    """

    open_cpu: Numbers
    open_wait: Numbers
    read: Numbers
    wait: Numbers
    cpu: Numbers
    overhead: Numbers

    @property
    def total(self) -> Numbers:
        """What each chunk takes without want of cores."""
        return np.asarray(np.sum(self, axis=0))

    def each(self, change: Callable[[Numbers], Numbers]) -> Parts:
        """All of them changed alike."""
        return Parts(*map(change, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in the order in which they began, with the seconds of their parts; what processes take to begin is gone.

    `dataset` is a place in `datasets`, `file` a number of its own for each file. `factor` is what an expected chunk
    takes of what a straggler took, and 1 for others.
    """

    datasets: tuple[str, ...]
    dataset: Integers
    file: Integers
    start: Integers
    stop: Integers
    parts: Parts
    factor: Numbers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def events(self) -> Numbers:
        """Events of each chunk."""
        return (self.stop - self.start).astype(np.float64)

    def load(self) -> Load:
        """What there is to do."""
        open_cpu, open_wait, read, wait, cpu, overhead = self.parts
        return Load(before=open_cpu, wait=open_wait + read + wait, after=cpu + overhead)


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
    cpu = sums["cpu_seconds_max"].take(pc.index_in(tasks["key"], value_set=sums["key"].combine_chunks()))
    return np.fmin(np.asarray(pc.fill_null(cpu, np.inf).to_numpy(), np.float64), wall)


def _processing(call: RunnerCall, records: Records, tasks: pa.Table, merges: pa.Table) -> Stage:
    seconds = _lasted(tasks, merges)
    rows = _rows_of_tasks(tasks, records.chunks)
    if not (rows >= 0).any():
        raise NotMeasuredError("its chunks left no records")
    # tasks that left a record, in the order of their starts, each with its chunk
    tasks, chunks = tasks.filter(pa.array(rows >= 0)), records.chunks.take(pa.array(rows[rows >= 0]))
    order = pc.sort_indices(tasks["start"])
    tasks, chunks = tasks.take(order), chunks.take(order)
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


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Integers:
    """Row of the chunk that each task computed; -1 where there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    place = np.minimum(np.searchsorted(of_chunks, of_tasks, sorter=order), len(order) - 1)
    return np.where((of_tasks >= 0) & (of_chunks[order[place]] == of_tasks), order[place], -1)


# Chunks in parts


def chunks_in_parts(chunks: pa.Table, task_seconds: Numbers, stragglers: pa.Table | str) -> Chunks:
    """Parts of chunks as if each had a core to itself: waiting for one is in none of them.

    Parameters
    ----------
    chunks
        Attempts of chunks that counted.
    task_seconds
        What the task of each took.
    stragglers
        Those of them that took longer than expected; or why they are not known.
    """
    wall, core_wait = amounts(chunks, "wall_seconds"), amounts(chunks, "core_wait_seconds")
    cpu = np.minimum(amounts(chunks, "cpu_seconds") + amounts(chunks, "helper_cpu_seconds"), wall)
    opening, inside = (_seconds_in(chunks, part) for part in ("opening", "CPU"))
    open_cpu = np.clip(np.minimum(cpu - inside, opening), 0.0, None)
    waited = np.clip(wall - cpu - core_wait, 0.0, None)
    # where waiting for a core is in other phases, all of these are less, and keep their shares of what is left
    opened = np.clip(opening - open_cpu, 0.0, None)
    blocked = _seconds_in(chunks, "waiting") - _seconds_in(chunks, "waiting", CONTENTION)
    share = np.minimum(_ratio(waited, opened + blocked), 1.0)
    open_wait, read = opened * share, _seconds_in(chunks, "waiting", READ) * share
    wait, overhead = waited - open_wait - read, np.clip(task_seconds - wall, 0.0, None)
    # a job that shared a core also took more CPU time, and the replay puts in its own
    alone = 1 / (1 + CROWDED * np.log2(_ratio(core_wait, cpu) + 1))
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=codes(chunks["dataset"]),
        file=codes(chunks["file"]),
        start=np.asarray(chunks["entry_start"].to_numpy(), np.int64),
        stop=np.asarray(chunks["entry_stop"].to_numpy(), np.int64),
        parts=Parts(open_cpu * alone, open_wait, read, wait, (cpu - open_cpu) * alone, overhead),
        factor=_factors(chunks, stragglers),
    )


def _seconds_in(chunks: pa.Table, part: Part, time_class: str | None = None) -> Numbers:
    """Seconds of each chunk in the phases of a part, or in those of them that belong to a class."""
    phases = (phase for phase in PHASES if phase.part == part and time_class in {None, phase.time_class})
    return sum_of(chunks, tuple(phase.column for phase in phases))


def _ratio(amount: Numbers, beside: Numbers) -> Numbers:
    """Ratio of two amounts; 0 where the second is."""
    return np.divide(amount, beside, out=np.zeros(len(amount)), where=beside > 0)


def _factors(chunks: pa.Table, stragglers: pa.Table | str) -> Numbers:
    """What an expected chunk takes of what each straggler took; 1 for the others."""
    if isinstance(stragglers, str) or not len(stragglers):
        return np.ones(len(chunks))
    place = places(chunks["id"], stragglers["id"].combine_chunks())
    expected = amounts(stragglers, "expected_seconds") / amounts(stragglers, "wall_seconds")
    return np.where(place >= 0, expected[place], 1.0)
