"""Stages of a recorded Runner call (preprocessing, and processing of chunks), with the parts of chunks.

Parts of a chunk are what it would take with a core to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.busy import sum_of
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import identities, rows_where
from roastcoffea.metrics.phases import DECOMPRESS, PHASES, READ, Part
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes, moments, places
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.replay.cluster import CROWDED, Load, Merging
from roastcoffea.replay.dask_costs import FirstTasks, first_tasks, late_start, merging_of, task_durations
from roastcoffea.replay.inputs import Costs


class Parts(NamedTuple):
    """Seconds of each chunk.

    `open_cpu` and `open_wait` are opening the file and building its events, `read` is waiting for storage in process(),
    `decompress` CPU in decompression, `cpu` all other CPU, `lock` blocked while others hold the interpreter, `wait`
    other time without CPU. `contention` is waiting for a core, `first` what a first task of a process takes beyond
    what is typical: 0 where the replay adds its own. `failed` is the time of a failed attempt, which has no other part.
    `overhead` is the rest of the task.
    """

    open_cpu: Numbers
    open_wait: Numbers
    read: Numbers
    decompress: Numbers
    cpu: Numbers
    lock: Numbers
    wait: Numbers
    contention: Numbers
    first: Numbers
    failed: Numbers
    overhead: Numbers

    @property
    def total(self) -> Numbers:
        """What each chunk takes, as far as it is in its parts."""
        return np.asarray(sum(self))

    @property
    def computing(self) -> Numbers:
        """CPU of each chunk from opening its file to the end of process()."""
        return self.open_cpu + self.decompress + self.cpu

    def each(self, change: Callable[[Numbers], Numbers]) -> Parts:
        """All of them changed alike."""
        return Parts(*map(change, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in the order in which they began, with the seconds of their parts; what processes take to begin is gone.

    `dataset` is a place in `datasets`, `file` a number of its own for each file. `factor` is what an expected chunk
    takes of what a straggler took, and 1 for others. `row` is the place of each in the table of chunks that counted.
    A failed attempt has -1 as dataset, file and row.
    """

    datasets: tuple[str, ...]
    dataset: Integers
    file: Integers
    start: Integers
    stop: Integers
    parts: Parts
    factor: Numbers
    row: Integers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def events(self) -> Numbers:
        """Events of each chunk."""
        return (self.stop - self.start).astype(np.float64)

    def load(self) -> Load:
        """What there is to do."""
        parts = self.parts
        waiting = parts.open_wait + parts.read + parts.lock + parts.wait + parts.contention + parts.first + parts.failed
        return Load(before=parts.open_cpu, wait=waiting, after=parts.decompress + parts.cpu + parts.overhead)

    def take(self, rows: Integers) -> Chunks:
        """Some of them."""
        picked: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("dataset", "file", "start", "stop", "factor", "row")
        }
        return replace(self, parts=self.parts.each(itemgetter(rows)), **picked)

    def recut(self, made_of: Integers, start: Integers, stop: Integers, parts: Parts) -> Chunks:
        """Other chunks of the same files, each made of a recorded one."""
        places = self.take(made_of)
        return replace(places, start=start, stop=stop, parts=parts, factor=np.ones(len(made_of)))

    def with_parts(self, **parts: Numbers) -> Chunks:
        """The same chunks with some of their parts changed."""
        return replace(self, parts=self.parts._replace(**parts))

    def with_cores(self, own: float) -> Chunks:
        """Chunks without this share of what they waited for cores, and as if they had a core to themselves for it.

        A job that shares a core also takes more CPU time; a replay puts in its own.
        """
        parts = self.parts
        alone = 1 / (1 + CROWDED * np.log2(own * _ratio(parts.contention, parts.computing) + 1))
        cpu = {name: getattr(parts, name) * alone for name in ("open_cpu", "decompress", "cpu")}
        return self.with_parts(contention=parts.contention * (1 - own), **cpu)


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
    stragglers: pa.Table | str = "not needed"
    failed: pa.Table | None = None
    """Attempts of processor tasks that failed, where chunks are to be as they were recorded: each with what it waited
    for cores and what the start of its process took, and failed ones among them."""


def stages_of(call: RunnerCall, records: Records) -> Iterator[Stage]:
    """Preprocessing and processing of a Runner call, as far as there were tasks."""
    runnable = _runnable(records.tasks)
    here = rows_where(records.tasks, (runnable >= call.start) & (runnable <= call.stop))
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
    places = np.flatnonzero(rows >= 0)
    places = places[np.argsort(moments(tasks, "start")[places], kind="stable")]
    tasks, rows = tasks.select(OF_TASKS).take(pa.array(places)), rows[places]
    recorded = chunks_in_parts(
        _needed(records.chunks).take(pa.array(rows)), task_durations(tasks), records.stragglers, rows
    )
    merging = merging_of(records.run, call, len(tasks), merges)
    if records.failed is None:
        chunks, costs = _warm(recorded.with_cores(1.0), tasks, records.costs)
    else:
        failed = _during(call, records.failed)
        chunks = _with_failed(_as_recorded(recorded, tasks), moments(tasks, "start"), failed)
        every = pa.concat_tables([tasks, failed.select(OF_TASKS)]).sort_by("start") if len(failed) else tasks
        costs = records.costs._replace(cold_wait=late_start(every, records.costs.latency))
    return Stage(
        kind=task_records.PROCESSOR, seconds=seconds, load=chunks.load(), merging=merging, costs=costs, chunks=chunks
    )


OF_TASKS: Final = ("worker", "assigned", "start", "stop")
"""Columns of tasks that tell of the chunks of theirs."""


def _needed(chunks: pa.Table) -> pa.Table:
    """Columns of chunks that parts are made of: a copy of these is not one of all."""
    seconds = (*OF_CHUNKS, *(phase.column for phase in PHASES), LOCK, BLOCKED)
    names = dict.fromkeys(("id", "dataset", "file", "entry_start", "entry_stop", *seconds))
    return chunks.select([name for name in names if name in chunks.column_names])


def _warm(chunks: Chunks, tasks: pa.Table, costs: Costs) -> tuple[Chunks, Costs]:
    """Chunks without what the first tasks of processes took more, and costs with that."""
    parts = chunks.parts
    first = first_tasks(tasks, chunks.dataset, chunks.events, parts.total)
    warm = replace(chunks, parts=parts.each(first.warm))
    warm.factor[list(first.alike)] = 1.0
    cpu = parts.computing + parts.overhead
    return warm, _with_start(costs, first, tasks, cpu, parts.total - cpu)


def _as_recorded(chunks: Chunks, tasks: pa.Table) -> Chunks:
    """Chunks that took what they took, of which what first tasks took more is a part of its own."""
    total = chunks.parts.total
    first = first_tasks(tasks, chunks.dataset, chunks.events, total)
    beyond = np.clip(total - first.warm(total), 0.0, None)
    if len(first.leaders):
        # what most processes take: one whose first task took longer than that is slow for another reason
        usual = np.sort(beyond[first.leaders])[(len(first.leaders) - 1) // 2]
        beyond = np.minimum(beyond, usual)
    rest = 1 - _ratio(beyond, total)
    parts = chunks.parts.each(lambda seconds: seconds * rest)._replace(first=beyond)
    return replace(chunks, parts=parts)


def _during(call: RunnerCall, tasks: pa.Table) -> pa.Table:
    start = moments(tasks, "start")
    return tasks.filter(pa.array((start >= call.start) & (start <= call.stop)))


def _with_failed(chunks: Chunks, starts: Numbers, failed: pa.Table) -> Chunks:
    """Chunks with failed attempts among them, in the order of their starts."""
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
    """Row of the chunk that each task computed; -1 where there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    place = np.minimum(np.searchsorted(of_chunks, of_tasks, sorter=order), len(order) - 1)
    return np.where((of_tasks >= 0) & (of_chunks[order[place]] == of_tasks), order[place], -1)


# Chunks in parts


def chunks_in_parts(
    chunks: pa.Table, task_seconds: Numbers, stragglers: pa.Table | str = "not needed", rows: Integers | None = None
) -> Chunks:
    """Parts of chunks as they were recorded.

    Parameters
    ----------
    chunks
        Attempts of chunks that counted.
    task_seconds
        What the task of each took.
    stragglers
        Those of them that took longer than expected; or why they are not known.
    rows
        Place of each in the table of all that counted; by default these are all.
    """
    wall, core_wait, *cpus = (amounts(chunks, name) for name in OF_CHUNKS)
    cpu = np.minimum(sum(cpus), wall)
    opening, inside = (_seconds_in(chunks, part) for part in ("opening", "CPU"))
    open_cpu = np.clip(np.minimum(cpu - inside, opening), 0.0, None)
    decompress = np.minimum(_seconds_in(chunks, "CPU", DECOMPRESS), cpu - open_cpu)
    contention = np.minimum(core_wait, wall - cpu)
    waited = np.clip(wall - cpu - contention, 0.0, None)
    # where waiting for a core was much, all waiting is less: opening and reading keep their shares of what is left
    opened, blocked = np.clip(opening - open_cpu, 0.0, None), _waiting(chunks)
    share = np.minimum(_ratio(waited, opened + blocked), 1.0)
    open_wait, read, lock = opened * share, _seconds_in(chunks, "waiting", READ) * share, _known(chunks, LOCK) * share
    none = np.zeros(len(chunks))
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=codes(chunks["dataset"]),
        file=codes(chunks["file"]),
        start=np.asarray(chunks["entry_start"].to_numpy(), np.int64),
        stop=np.asarray(chunks["entry_stop"].to_numpy(), np.int64),
        parts=Parts(
            open_cpu=open_cpu,
            open_wait=open_wait,
            read=read,
            decompress=decompress,
            cpu=cpu - open_cpu - decompress,
            lock=lock,
            wait=np.clip(waited - open_wait - read - lock, 0.0, None),
            contention=contention,
            first=none,
            failed=none.copy(),
            overhead=np.clip(task_seconds - wall, 0.0, None),
        ),
        factor=_factors(chunks, stragglers),
        row=np.arange(len(chunks)) if rows is None else rows,
    )


OF_CHUNKS: Final = ("wall_seconds", "core_wait_seconds", "cpu_seconds", "helper_cpu_seconds")
UNSPLIT: Final = "wait_seconds"
CONTENTION: Final = "contention_seconds"
LOCK: Final = "lock_seconds"
BLOCKED: Final = "blocked_seconds"
"""Columns of waiting in process(): as one, and told apart, which older runs lack."""


def _waiting(chunks: pa.Table) -> Numbers:
    """Seconds of each chunk in process() without CPU and not for want of a core, as far as that is told apart."""
    whole = _known(chunks, UNSPLIT)
    if BLOCKED in chunks.column_names:
        whole[np.asarray(chunks[BLOCKED].is_valid().to_numpy(), np.bool_)] = 0.0
    others = {phase.column for phase in PHASES if phase.part == "waiting"} - {UNSPLIT, CONTENTION, LOCK, BLOCKED}
    return sum((_known(chunks, name) for name in (*sorted(others), LOCK, BLOCKED)), whole)


def _known(chunks: pa.Table, column: str) -> Numbers:
    """Seconds of each chunk; 0 where the column is lacking."""
    return amounts(chunks, column) if column in chunks.column_names else np.zeros(len(chunks))


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
