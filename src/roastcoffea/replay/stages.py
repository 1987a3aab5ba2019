"""Stages of a recorded Runner call: preprocessing, processing, and Dask's share of their time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks, identities, recorded, rows_where, with_outcome
from roastcoffea.metrics.phases import OTHER_TASKS
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, clipped, codes, integral, moments
from roastcoffea.metrics.thread_activity import MOMENTS
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.records.workers import MERGE, MERGE_PREFIX, OK, PREPROCESSING, PROCESSOR
from roastcoffea.replay.changes import LOCK, Chunks, chunks_in_parts, files_of, needed, ratio
from roastcoffea.replay.cluster import Cluster, Costs, Load, Merging, tree
from roastcoffea.replay.fitted_storage import Activity, activity_of, doublings_of, reading_seconds
from roastcoffea.units import FRACTION, number

FEWEST: Final = 3
"""Fewest tasks for a median."""


def task_durations(tasks: pa.Table) -> Numbers:
    """Seconds of each task; 0 if unknown."""
    return np.nan_to_num(moments(tasks, "stop") - moments(tasks, "start"))


def costs_of(tasks: pa.Table) -> Costs:
    """Dask's costs for started tasks, including failed ones."""
    thread, worker = codes(tasks["thread"]), codes(tasks["worker"])
    start, stop, ready = (moments(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    # between two tasks of a thread, if the second was ready before the first ended
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    gap = max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else 1.5e-3  # a typical one
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    # of the scheduler: assumed, because no run records it
    return Costs(gap=gap, latency=latency, scheduler=1.1e-3)


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    """Median time between two moments of tasks."""
    took = moments(tasks, later) - moments(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


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
    """Tasks that started before the first one of their process ended, with some later ones that are `alike`.

    `leaders` are the first of each process. There are none of both if first tasks took no longer than others, or
    cannot be compared.
    """

    events: Numbers
    alike: Sequence[tuple[Integers, Integers]] = ()
    leaders: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def warm(self, values: Numbers) -> Numbers:
        """Values with those of the first tasks replaced by typical ones for as many events."""
        warm = values.copy()
        for own, others in self.alike:
            warm[own] = np.median(values[others] / self.events[others]) * self.events[own]
        return warm

    def excess(self, values: Numbers) -> float:
        """Mean excess of a process's first task over the typical value."""
        return max(float((values - self.warm(values))[self.leaders].mean()), 0.0) if len(self.leaders) else 0.0


def first_tasks(tasks: pa.Table, group: Integers, events: Numbers, seconds: Numbers) -> FirstTasks:
    """First tasks of processes, among tasks in order of start; those of a group with as many events are alike."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    early, events, alike = early_tasks(tasks), np.maximum(events, 1.0), []
    rows, later = np.flatnonzero(early), np.flatnonzero(~early)[:20_000]
    kinds, kind = np.unique(np.column_stack([group, events])[rows], axis=0, return_inverse=True)
    for one, (own_group, size) in enumerate(kinds):
        of_group = later[group[later] == own_group]
        of_size = of_group[np.abs(events[of_group] - size) <= 0.25 * size]
        some = next((some for some in (of_size, of_group) if len(some) >= FEWEST), later)
        # a thousand are enough for a median
        alike.append((rows[kind.ravel() == one], some[:: max(len(some) // 1000, 1)]))
    first = FirstTasks(events, alike, leaders)
    if alike and len(later) >= FEWEST:
        # whether first tasks took longer than expected by chance: two standard deviations
        spread = np.average([np.std(seconds[some]) for _, some in alike], weights=[len(own) for own, _ in alike])
        if first.excess(seconds) > 2 * spread / len(leaders) ** 0.5:
            return first
    return FirstTasks(events)


def early_tasks(tasks: pa.Table) -> Flags:
    """Whether each task started before the first one of its process ended; tasks are in order of start."""
    _, leaders, worker = np.unique(codes(tasks["worker"]), return_index=True, return_inverse=True)
    return np.asarray(moments(tasks, "start") < moments(tasks, "stop")[leaders][worker], np.bool_)


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
    kinds = (PREPROCESSING, PROCESSOR, MERGE)
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
    is_merge = pc.equal(tasks["prefix"], MERGE_PREFIX)
    merges, opening = tasks.filter(is_merge), tasks.filter(pc.invert(is_merge)).sort_by("start")
    cpu = wall = task_durations(opening)
    if records.run.preprocessing is not None:  # else its entire time
        sums = records.run.preprocessing.group_by("key").aggregate([("cpu_seconds", "max")])
        known = sums["cpu_seconds_max"].take(pc.index_in(opening["key"], value_set=sums["key"].combine_chunks()))
        cpu = np.fmin(np.asarray(pc.fill_null(known, np.inf).to_numpy(), np.float64), wall)
    first = first_tasks(opening, np.zeros(len(wall), np.int64), np.ones(len(wall)), wall)
    return Stage(
        kind=PREPROCESSING,
        seconds=_lasted(tasks),
        load=Load(before=np.zeros(len(cpu)), wait=first.warm(wall - cpu), after=first.warm(cpu)),
        merging=merging_of(records.run, call, len(opening), merges),
        costs=_with_start(records.costs, first, opening, wall),
    )


def _with_start(costs: Costs, first: FirstTasks, tasks: pa.Table, seconds: Numbers) -> Costs:
    """Costs with the extra time of a process's first task."""
    return costs._replace(cold_before=first.excess(seconds) + late_start(tasks, costs.latency))


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
    costs, total = records.costs, chunks.parts.total
    if records.failed is None:
        doublings = doublings_of(chunks.parts, early_tasks(tasks))
        activity = activity_of(own, tasks, doublings, reading_seconds(chunks) > 0)
        chunks = chunks.with_parts(contention=0 * total)
        first = first_tasks(tasks, chunks.dataset, chunks.events, chunks.parts.total)
        costs = _with_start(costs, first, tasks, chunks.parts.total)
        for early, _ in first.alike:
            chunks.factor[early] = 1.0
        chunks = replace(chunks, parts=chunks.parts.each(first.warm))
    else:
        # chunks keep their recorded times, with the extra time of first tasks as a part of its own
        first = first_tasks(tasks, chunks.dataset, chunks.events, total)
        # a file that is slow is so for later chunks as well
        file, events, later = files_of(chunks), np.maximum(chunks.events, 1.0), ~early_tasks(tasks)
        of_file = pd.Series(total / events)[later].groupby(file[later]).median().reindex(file).to_numpy() * events
        beyond = np.clip(total - np.fmax(first.warm(total), of_file), 0.0, None)
        if len(first.leaders):
            # limit for most processes: a first task above it is slow for another reason
            beyond = np.minimum(beyond, np.sort(beyond[first.leaders])[(len(first.leaders) - 1) // 2])
        rest = 1 - ratio(beyond, total)
        chunks = replace(chunks, parts=chunks.parts.each(lambda part: part * rest)._replace(first=beyond))
        began = moments(records.failed, "start")
        failed = rows_where(records.failed, (began >= call.start) & (began <= call.stop))
        chunks = _with_failed(chunks, moments(tasks, "start"), failed)
        every = pa.concat_tables([tasks, failed.select(OF_TASKS)]).sort_by("start")
        costs = costs._replace(cold_wait=late_start(every, costs.latency))
    return Stage(
        kind=PROCESSOR,
        seconds=seconds,
        load=chunks.load(),
        merging=merging_of(records.run, call, len(tasks), merges),
        costs=costs,
        chunks=chunks,
        activity=activity,
    )


OF_TASKS: Final = ("worker", "assigned", "start", "stop")
"""Columns of tasks that describe their chunks."""


def _with_failed(chunks: Chunks, starts: Numbers, failed: pa.Table) -> Chunks:
    """Chunks including failed attempts, in order of start."""
    if not len(failed):
        return chunks
    began = moments(failed, "start")
    ended = np.fmin(moments(failed, "stop"), np.inf)
    lasted = np.clip(np.nan_to_num(np.where(np.isfinite(ended), ended, moments(failed, "seen")) - began), 0.0, None)
    order = np.argsort(np.concatenate([starts, began]), kind="stable")
    # none of the chunks: a copy of the first, without anything of it
    is_chunk = np.arange(len(order)) < len(chunks)
    every = chunks.take(np.arange(len(order)) * is_chunk)
    parts = every.parts.each(lambda seconds: seconds * is_chunk)
    parts.failed[len(chunks) :] = lasted
    nobody: dict[str, Any] = {name: np.where(is_chunk, getattr(every, name), -1) for name in ("dataset", "file", "row")}
    every = replace(every, parts=parts, factor=np.where(is_chunk, every.factor, 1.0), **nobody)
    return replace(every, start=every.start * is_chunk, stop=every.stop * is_chunk).take(order)


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Integers:
    """Row of the chunk of each task; -1 if there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    in_order = of_chunks[order]
    place = np.minimum(np.searchsorted(in_order, of_tasks), len(order) - 1)
    return np.where((of_tasks >= 0) & (in_order[place] == of_tasks), order[place], -1)


Value = TypeVar("Value")

ABSENT_THREADS: Final = 0.02
"""Largest share of thread time that may be missing because workers joined late or left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run prepared for a replay.

    `calls` are its Runner calls in sequence: the processor of each, and the fingerprint of its files (None if unknown).
    `client` is the part of `seconds` outside all stages. `cores` are those of one host; None if unknown. `core_wait` is
    the ratio of computing to CPU time due to CPU contention; None if unknown. `knows_lock` is whether waiting for the
    interpreter was recorded. `branches` are those it read. `doubts`
    are caveats of predictions from it.
    """

    name: str
    calls: tuple[tuple[str, str | None], ...]
    seconds: float
    client: float
    stages: tuple[Stage, ...]
    workers: int
    threads: int
    hosts: int
    cores: int | None
    scheduler_here: bool
    chunksize: int | None
    events: int
    core_wait: float | None
    knows_lock: bool
    branches: frozenset[str]
    failed: bool
    doubts: tuple[str, ...]

    @property
    def configuration(self) -> tuple[int, int, int | None]:
        """Common to repeats: workers, threads per worker, chunk size."""
        return self.workers, self.threads, self.chunksize

    @property
    def workers_of_host(self) -> int:
        """Workers that shared a host."""
        return max(round(self.workers / self.hosts), 1)

    @property
    def own_cluster(self) -> Cluster:
        """The cluster on which it ran."""
        return self.cluster(self.workers, self.threads, same_host=self.hosts == 1)

    def cluster(self, workers: int, threads: int, *, same_host: bool) -> Cluster:
        """Cluster of this many workers: each adds cores like the recorded ones, or all share those of one host."""
        cores = float("inf") if self.cores is None else float(self.cores)
        if same_host:
            return Cluster(threads=threads, hosts=[(workers, cores)], scheduler_here=self.scheduler_here)
        each = self.workers_of_host
        full, rest = divmod(workers, each)
        hosts = [(each, cores)] * full + ([(rest, cores * rest / each)] if rest else [])
        return Cluster(threads=threads, hosts=hosts, scheduler_here=self.scheduler_here)


class Known(NamedTuple):
    """Facts about a run in addition to its records."""

    workers: float
    """Average number of workers."""
    counted: pa.Table | None = None
    """Attempts of chunks that counted, if already determined."""
    stragglers: pa.Table | str = "not determined"
    ledger: TimeLedger | None = None


def recorded_run(run: Run, metrics: Metrics, name: str) -> Recorded:
    """A run prepared for replays on other clusters.

    Raises
    ------
    NotMeasuredError
        If it lacks data for a replay; the text says which.
    """
    known = Known(metrics.get("avg_workers") or 0.0, None, metrics.tables["stragglers"], metrics.get("time_ledger"))
    return recorded_with(run, known, name)


def recorded_with(run: Run, known: Known, name: str, *, as_it_was: bool = False) -> Recorded:
    """A run prepared for a replay.

    Parameters
    ----------
    as_it_was
        Keep the chunks' recorded times, including waiting for cores and starting processes, and failed attempts.
        Otherwise a replay adds its own, as other clusters require.

    Raises
    ------
    NotMeasuredError
        If it lacks data for a replay; the text says which.
    """
    try:
        return _recorded(run, known, name, as_it_was)
    except NotMeasuredError as reason:
        raise NotMeasuredError(f"{name} cannot be replayed: {reason}") from None


def _recorded(run: Run, known: Known, name: str, as_it_was: bool) -> Recorded:
    if run.merged:
        raise NotMeasuredError("it was merged from independent runs: each can be replayed by itself")
    tasks, lifetimes = recorded(run, "tasks"), recorded(run, "lifetimes")
    chunks = counted_chunks(recorded(run, "chunks")) if known.counted is None else known.counted
    if not len(chunks) or not len(lifetimes):
        raise NotMeasuredError("no chunk has a result, or no worker was recorded")
    calls = sorted(run.calls, key=lambda call: call.start)
    if any(later.start < earlier.stop for earlier, later in pairwise(calls)):
        raise NotMeasuredError("its Runner calls overlapped: their tasks cannot be separated")
    # copying these costs less than copying all
    tasks = tasks.select(["key", "run_id", "prefix", "kind", "worker", "thread", "outcome", *MOMENTS])
    ended, failed = with_outcome(tasks, (OK,)), None
    if as_it_was:
        failed = tasks.filter(pc.and_(pc.equal(tasks["kind"], PROCESSOR), pc.not_equal(tasks["outcome"], OK)))
    costs = costs_of(rows_where(tasks, tasks["start"].is_valid()))
    stages_from = Records(run=run, chunks=chunks, tasks=ended, costs=costs, stragglers=known.stragglers, failed=failed)
    stages = tuple(stage for call in calls for stage in stages_of(call, stages_from))
    if not any(stage.chunks for stage in stages):
        raise NotMeasuredError("no task of its chunks was recorded")
    size = only(call.options.get("chunksize") for call in calls)
    return Recorded(
        name=name,
        calls=tuple((call.processor, call.fileset) for call in calls),
        seconds=run.stop - run.start,
        client=run.stop - run.start - sum(stage.seconds for stage in stages),
        stages=stages,
        workers=max(round(known.workers), 1),
        threads=int(median(lifetimes["threads"].to_pylist())),
        hosts=max(len(lifetimes["host"].unique()), 1),
        cores=only(host.cores for host in run.environment.hosts),
        scheduler_here=run.environment.client_host in {host.name for host in run.environment.hosts},
        chunksize=size if isinstance(size, int) else None,
        events=int(pc.sum(chunks["events"], min_count=0).as_py()),
        core_wait=_core_wait(chunks),
        knows_lock=LOCK in chunks.column_names and not chunks[LOCK].null_count,
        branches=frozenset(() if run.branch_reads is None else run.branch_reads["branch"].unique().to_pylist()),
        failed=run.ended_early,
        doubts=tuple(_doubts(run, known.ledger, lifetimes, tasks, chunks)),
    )


def only(values: Iterable[Value]) -> Value | None:
    """The common value of all; None if they differ, or there is none."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _core_wait(chunks: pa.Table) -> float | None:
    if chunks["core_wait_seconds"].null_count:
        return None
    waited, cpu = (float(amounts(chunks, name).sum()) for name in ("core_wait_seconds", "cpu_seconds"))
    return 1 + waited / cpu if cpu else 1.0


# Doubts


def _doubts(run: Run, ledger: TimeLedger | None, lifetimes: pa.Table, tasks: pa.Table, chunks: pa.Table) -> list[str]:
    """Caveats of predictions."""
    starts, stops = clipped(moments(lifetimes, "start"), moments(lifetimes, "stop"), run.start, run.stop)
    threads = amounts(lifetimes, "threads")
    missing = float(1 - integral(starts, stops, threads) / (threads.sum() * (run.stop - run.start)))
    lost = len(tasks) - len(with_outcome(tasks, (OK,)))
    foreign = ledger.get(OTHER_TASKS, 0.0) / ledger.total if ledger and ledger.total else 0.0
    every = {
        f"the recorded run {run.ending}, and is incomplete": run.ended_early,
        "waiting for cores was not recorded: times of chunks may include other load": (
            chunks["core_wait_seconds"].null_count
        ),
        "the cores of its hosts are unknown or differ: sharing them is not modelled": (
            only(host.cores for host in run.environment.hosts) is None
        ),
        "its workers have different numbers of threads: the median is used": len(lifetimes["threads"].unique()) > 1,
        f"workers joined late or left while recording: {FRACTION.text(missing)} of the thread time was missing": (
            missing > ABSENT_THREADS
        ),
        f"{number(lost)} attempts of tasks failed while recording; they are left out": lost,
        # a few tasks of others do not matter
        f"tasks of others took {FRACTION.text(foreign)} of the thread time while recording": foreign > 0.05,
    }
    return [doubt for doubt, holds in every.items() if holds]
