"""Stages of a recorded Runner call: preprocessing, processing, and Dask's share of their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import identities, rows_where
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, moments
from roastcoffea.metrics.workflow import worker_cpu_time_seconds
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.records.tasks import MERGE_PREFIX
from roastcoffea.replay.changes import Chunks, Parts, chunks_in_parts, files_of, needed, ratio
from roastcoffea.replay.cluster import Load, Merging, tree
from roastcoffea.replay.engine import Costs
from roastcoffea.replay.fitted_storage import Activity, activity_of, crowding_of, doublings_of, reading_seconds

SCHEDULER_SECONDS: Final = 1.1e-3
"""CPU time of Dask's scheduler per task: assumed, because no run records it."""

IDLE_TASKS: Final = 8.0
"""Tasks that cost a worker process as much CPU, beside what they compute, as a second of its life: measured."""

MOST_IDLE: Final = 0.05
"""Largest share of a core that a process takes if it does nothing, as measured: more is due to tasks, such as threads
that receive what these read."""

TYPICAL_GAP: Final = 1.5e-3
"""Seconds between two tasks of a thread if a run has too few to measure it."""

OF_CHUNKS: Final = ("wall", "cpu", "helper_cpu")

FEWEST: Final = 3
"""Fewest tasks for a median."""

ABOUT: Final = 0.25
"""Relative difference of events below which chunks are alike."""

ENOUGH: Final = 1000
"""Tasks that are enough for a median."""

COMPARED: Final = 20_000
"""Tasks among which similar ones are searched."""

STANDS_OUT: Final = 2.0
"""Standard deviations above which the first tasks of processes take longer than others."""


def task_durations(tasks: pa.Table) -> Numbers:
    """Seconds of each task; 0 if unknown."""
    return np.nan_to_num(moments(tasks, "stop") - moments(tasks, "start"))


def costs_of(run: Run, tasks: pa.Table) -> Costs:
    """Dask's costs for started tasks, including failed ones, on which worker processes spend CPU time as well."""
    gap = _gap(tasks)
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    own, idle = _own_and_idle(run, tasks, latency)
    return Costs(gap=gap, latency=latency, scheduler=SCHEDULER_SECONDS, own=own, idle=idle)


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    """Median time between two moments of tasks."""
    took = moments(tasks, later) - moments(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


def _gap(tasks: pa.Table) -> float:
    """Median time between two tasks of a thread, if the second was ready before the first ended."""
    thread, worker = codes(tasks["thread"]), codes(tasks["worker"])
    start, stop, ready = (moments(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    return max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else TYPICAL_GAP


def _own_and_idle(run: Run, tasks: pa.Table, latency: float) -> tuple[float, float]:
    """CPU time of a worker process beside its tasks and start-up: for each task, and for each second of its life."""
    if run.lifetimes is None or run.lifetimes["cpu_seconds"].null_count or not len(tasks):
        return 0.0, 0.0
    busy = worker_cpu_time_seconds(run.lifetimes)
    began = late_start(tasks.select(["worker", "assigned", "start"]).sort_by("start"), latency) * len(
        tasks["worker"].unique()
    )
    of_tasks = float(task_durations(tasks).sum())
    if run.chunks is not None:
        wall, *cpu = (float(amounts(run.chunks, f"{name}_seconds").sum()) for name in OF_CHUNKS)
        # measured CPU time for chunks, and total time for everything else
        of_tasks += sum(cpu) - wall
    lived = float(np.nansum(moments(run.lifetimes, "stop") - moments(run.lifetimes, "start")))
    beside = max(busy - began - of_tasks, 0.0)
    idle = min(IDLE_TASKS * beside / (len(tasks) + IDLE_TASKS * lived), MOST_IDLE)
    return max(beside - idle * lived, 0.0) / len(tasks), idle


def merging_of(run: Run, call: RunnerCall, results: int, merges: pa.Table) -> Merging:
    """Form and costs of the merging of results."""
    fan_in = call.options.get("executor.treereduction")
    if not len(merges) or not isinstance(fan_in, int) or fan_in < 2:
        return Merging()
    each = float(task_durations(merges).sum()) / max(int(tree(results, fan_in)[1].sum()), 1)
    # share of CPU in the time of merges, as measured by Dask; otherwise 1
    kinds = (("execute", MERGE_PREFIX, activity, "seconds") for activity in ("thread-cpu", "thread-noncpu"))
    cpu, other = ((run.span_metrics or {}).get(kind, 0.0) for kind in kinds)
    share = cpu / (cpu + other) if cpu + other else 1.0
    return Merging(fan_in=fan_in, cpu=each * share, wait=each * (1 - share), fetch=_middle(merges, "ready", "arrived"))


# First tasks


@dataclass(frozen=True, slots=True)
class FirstTasks:
    """Tasks that started before the first one of their process ended.

    `alike` has similar later tasks for each of them, `leaders` are the first of each process. Both are empty if first
    tasks took no longer than others, or cannot be compared.
    """

    alike: Mapping[int, Integers]
    leaders: Integers
    events: Numbers

    def warm(self, values: Numbers) -> Numbers:
        """Values with those of the first tasks replaced by typical ones."""
        warm = values.copy()
        for row in self.alike:
            warm[row] = self.typical(values, row)
        return warm

    def excess(self, values: Numbers) -> float:
        """Mean excess of a process's first task over the typical value."""
        beyond = [values[row] - self.typical(values, row) for row in self.leaders.tolist()]
        return max(float(np.mean(beyond)), 0.0) if beyond else 0.0

    def typical(self, values: Numbers, row: int) -> float:
        """Typical value for a task with this many events."""
        alike = self.alike[row]
        return float(np.median(values[alike] / self.events[alike]) * self.events[row])


def first_tasks(tasks: pa.Table, group: Integers, events: Numbers, seconds: Numbers) -> FirstTasks:
    """First tasks of processes, among tasks in order of start; those of a group are alike."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    early = early_tasks(tasks)
    others = ~early[:COMPARED]
    alike = {row: _alike(row, others, group, events) for row in np.flatnonzero(early).tolist()}
    first = FirstTasks(alike, leaders, np.maximum(events, 1.0))
    if all(len(others) >= FEWEST for others in alike.values()):
        spread = np.mean([np.std(seconds[alike[row]]) for row in leaders.tolist()])
        # whether first tasks took longer than expected by chance
        if first.excess(seconds) > STANDS_OUT * spread / len(leaders) ** 0.5:
            return first
    return FirstTasks({}, leaders[:0], events)


def early_tasks(tasks: pa.Table) -> Flags:
    """Whether each task started before the first one of its process ended; tasks are in order of start."""
    worker, start, stop = codes(tasks["worker"]), moments(tasks, "start"), moments(tasks, "stop")
    _, leaders = np.unique(worker, return_index=True)
    ended = np.zeros(worker.max() + 1)
    ended[worker[leaders]] = stop[leaders]
    return np.asarray(start < ended[worker], np.bool_)


def _alike(row: int, others: Flags, group: Integers, events: Numbers) -> Integers:
    """Tasks of the same group with about as many events, if there are enough; at most as many as a median needs."""
    of_group = others & (group[: len(others)] == group[row])
    of_size = np.abs(events[: len(others)] - events[row]) <= ABOUT * events[row]
    for some in (of_group & of_size, of_group, others):
        if np.count_nonzero(some) >= FEWEST:
            break
    found = np.flatnonzero(some)
    return found[:: max(len(found) // ENOUGH, 1)]


def late_start(tasks: pa.Table, latency: float) -> float:
    """Seconds between assignment and start of a process's first task, without latency: unpickling, imports."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    late = (moments(tasks, "start") - moments(tasks, "assigned"))[leaders]
    return max(float(np.nanmean(late)) - latency, 0.0) if np.isfinite(late).any() else 0.0


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
