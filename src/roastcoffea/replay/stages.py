"""Stages of a recorded Runner call: preprocessing and processing, with Dask's overheads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from roastcoffea.metrics.facts import counted_chunks, identities, joined, recorded, rows_where, with_outcome
from roastcoffea.metrics.phases import OTHER_TASKS
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, clipped, codes, integral, moments, rows_of
from roastcoffea.metrics.thread_activity import MOMENTS
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.records.workers import MERGE, MERGE_PREFIX, OK, PREPROCESSING, PROCESSOR
from roastcoffea.replay.changes import LOCK, Chunks, chunks_in_parts, files_of, needed, ratio
from roastcoffea.replay.cluster import Cluster, Costs, Load, Merging, tree
from roastcoffea.replay.fitted_storage import OF_AMOUNT, Activity, activity_of, doublings_of
from roastcoffea.units import FRACTION, number

FEWEST: Final = 3
"""Minimum number of tasks needed for a median."""


def task_durations(tasks: pa.Table) -> Numbers:
    return np.nan_to_num(moments(tasks, "stop") - moments(tasks, "start"))


def costs_of(tasks: pa.Table) -> Costs:
    """Estimate Dask's overheads from all tasks that started, including failed tasks."""
    thread, worker = codes(tasks["thread"]), codes(tasks["worker"])
    start, stop, ready = (moments(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    # gaps between consecutive tasks on a thread, if the second task was ready before the first one ended
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    gap = max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else 1.5e-3  # a typical gap
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    # the scheduler's CPU time is not recorded, so a typical value is assumed
    return Costs(gap=gap, latency=latency, scheduler=1.1e-3)


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    took = moments(tasks, later) - moments(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


def merging_of(run: Run, call: RunnerCall, results: int, merges: pa.Table) -> Merging:
    fan_in = call.options.get("executor.treereduction")
    if not len(merges) or not isinstance(fan_in, int) or fan_in < 2:
        return Merging()
    each = float(task_durations(merges).sum()) / max(int(tree(results, fan_in)[1].sum()), 1)
    # fraction of the merge time spent on the CPU, as measured by Dask; 1 if unknown
    kinds = (("execute", MERGE_PREFIX, activity, "seconds") for activity in ("thread-cpu", "thread-noncpu"))
    cpu, other = ((run.span_metrics or {}).get(kind, 0.0) for kind in kinds)
    share = cpu / (cpu + other) if cpu + other else 1.0
    return Merging(fan_in=fan_in, cpu=each * share, wait=each * (1 - share), fetch=_middle(merges, "ready", "arrived"))


# First tasks


@dataclass(frozen=True, slots=True)
class FirstTasks:
    """Tasks that started before their process had finished any task ("early tasks").

    `alike` pairs groups of early tasks with similar later tasks. `leaders` are the first tasks of each process. Both
    fields are empty if first tasks took no longer than other tasks, or if there are too few tasks to compare.
    """

    events: Numbers
    alike: Sequence[tuple[Integers, Integers]] = ()
    leaders: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def warm(self, values: Numbers) -> Numbers:
        """Replace the values of early tasks with typical values for the same number of events."""
        warm = values.copy()
        for own, others in self.alike:
            warm[own] = np.median(values[others] / self.events[others]) * self.events[own]
        return warm

    def excess(self, values: Numbers) -> float:
        """Compute the average excess of first tasks over typical values."""
        return max(float((values - self.warm(values))[self.leaders].mean()), 0.0) if len(self.leaders) else 0.0


def first_tasks(tasks: pa.Table, group: Integers, events: Numbers, seconds: Numbers) -> FirstTasks:
    """Compare early tasks with later tasks of similar size in the same group. Tasks must be in start order."""
    leaders, _ = _leaders(tasks)
    early, events, alike = early_tasks(tasks), np.maximum(events, 1.0), []
    rows, later = np.flatnonzero(early), np.flatnonzero(~early)[:20_000]
    kinds, kind = np.unique(np.column_stack([group, events])[rows], axis=0, return_inverse=True)
    for one, (own_group, size) in enumerate(kinds):
        of_group = later[group[later] == own_group]
        of_size = of_group[np.abs(events[of_group] - size) <= 0.25 * size]
        some = next((some for some in (of_size, of_group) if len(some) >= FEWEST), later)
        # a thousand tasks are enough for a median
        alike.append((rows[kind.ravel() == one], some[:: max(len(some) // 1000, 1)]))
    first = FirstTasks(events, alike, leaders)
    if alike and len(later) >= FEWEST:
        # keep the comparison only if first tasks took longer by more than two standard errors
        spread = np.average([np.std(seconds[some]) for _, some in alike], weights=[len(own) for own, _ in alike])
        if first.excess(seconds) > 2 * spread / len(leaders) ** 0.5:
            return first
    return FirstTasks(events)


def early_tasks(tasks: pa.Table) -> Flags:
    """Flag tasks that started before their process had finished any task. Tasks must be in start order."""
    leaders, worker = _leaders(tasks)
    return np.asarray(moments(tasks, "start") < moments(tasks, "stop")[leaders][worker], np.bool_)


def _leaders(tasks: pa.Table) -> tuple[Integers, Integers]:
    """First task of each worker, and index of each task's worker."""
    worker = codes(tasks["worker"])
    return rows_of(np.arange(worker.max(initial=-1) + 1), worker), worker


def late_start(tasks: pa.Table, latency: float) -> float:
    """Compute the delay that unpickling and imports add to first tasks, beyond `latency`."""
    leaders, _ = _leaders(tasks)
    late = (moments(tasks, "start") - moments(tasks, "assigned"))[leaders]
    return max(float(np.nanmean(late)) - latency, 0.0) if np.isfinite(late).any() else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Preprocessing or processing in a Runner call, from when its first task is runnable until its last is reported.

    `seconds` is the stage's duration. If `chunks` is None (as in preprocessing), scenarios cannot change the chunks.
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
    run: Run
    chunks: pa.Table
    tasks: pa.Table
    costs: Costs
    stragglers: pa.Table | str = "not needed"
    failed: pa.Table | None = None
    """Failed attempts at processor tasks; None unless the chunks keep their recorded times."""


def stages_of(call: RunnerCall, records: Records) -> Iterator[Stage]:
    runnable = _runnable(records.tasks)
    here = rows_where(records.tasks, (runnable >= call.start) & (runnable <= call.stop))
    kinds = (PREPROCESSING, PROCESSOR, MERGE)
    opening, processing, merges = (here.filter(pc.equal(here["kind"], kind)) for kind in kinds)
    if len(opening):
        yield _preprocessing(call, records, opening)
    if len(processing):
        yield _processing(call, records, processing, merges)


def _runnable(tasks: pa.Table) -> Numbers:
    runnable = moments(tasks, "runnable")
    return np.where(np.isnan(runnable), moments(tasks, "start"), runnable)


def _lasted(*tasks: pa.Table) -> float:
    every = joined(tasks)
    ends = np.fmax(moments(every, "seen"), moments(every, "stop"))
    return float(ends.max() - np.nanmin(_runnable(every)))


def _preprocessing(call: RunnerCall, records: Records, tasks: pa.Table) -> Stage:
    is_merge = pc.equal(tasks["prefix"], MERGE_PREFIX)
    merges, opening = tasks.filter(is_merge), tasks.filter(pc.invert(is_merge)).sort_by("start")
    cpu = wall = task_durations(opening)
    if records.run.preprocessing is not None:  # if the CPU time is unknown, count the entire duration as CPU time
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
    return costs._replace(cold_before=first.excess(seconds) + late_start(tasks, costs.latency))


def _processing(call: RunnerCall, records: Records, tasks: pa.Table, merges: pa.Table) -> Stage:
    seconds = _lasted(tasks, merges)
    rows = _rows_of_tasks(tasks, records.chunks)
    if not (rows >= 0).any():
        raise NotMeasuredError("its chunks were not recorded")
    # tasks with recorded chunks, in start order
    places = np.flatnonzero(rows >= 0)
    places = places[np.argsort(moments(tasks, "start")[places], kind="stable")]
    tasks, rows = tasks.select(OF_TASKS).take(pa.array(places)), rows[places]
    own, (some, place) = needed(records.chunks), np.unique(rows, return_inverse=True)
    if len(some) < len(own):  # a copy of a million chunks takes a lot of memory
        own = own.take(pa.array(some))
    durations = np.zeros(len(own))
    durations[place] = task_durations(tasks)
    chunks, activity = chunks_in_parts(own, durations, records.stragglers, some).take(place), None
    costs, total = records.costs, chunks.parts.total
    if records.failed is None:
        doublings = doublings_of(chunks.parts, early_tasks(tasks))
        activity = activity_of(own.select(OF_AMOUNT).take(pa.array(place)), tasks, doublings, chunks.parts.reading > 0)
        chunks = chunks.with_parts(contention=0 * total)
        first = first_tasks(tasks, chunks.dataset, chunks.events, chunks.parts.total)
        costs = _with_start(costs, first, tasks, chunks.parts.total)
        for early, _ in first.alike:
            chunks.factor[early] = 1.0
        chunks = replace(chunks, parts=chunks.parts.each(first.warm))
    else:
        # keep the recorded times, but move the extra time of first tasks to a separate part
        first = first_tasks(tasks, chunks.dataset, chunks.events, total)
        # in a slow file, later chunks are slow too
        file, events, later = files_of(chunks), np.maximum(chunks.events, 1.0), ~early_tasks(tasks)
        of_file = pd.Series(total / events)[later].groupby(file[later]).median().reindex(file).to_numpy() * events
        beyond = np.clip(total - np.fmax(first.warm(total), of_file), 0.0, None)
        if len(first.leaders):
            # an excess above the median has causes other than start-up
            beyond = np.minimum(beyond, np.sort(beyond[first.leaders])[(len(first.leaders) - 1) // 2])
        rest = 1 - ratio(beyond, total)
        chunks = replace(chunks, parts=chunks.parts.each(lambda part: part * rest)._replace(first=beyond))
        began = moments(records.failed, "start")
        failed = rows_where(records.failed, (began >= call.start) & (began <= call.stop))
        chunks = _with_failed(chunks, moments(tasks, "start"), failed)
        every = joined([tasks, failed.select(OF_TASKS)]).sort_by("start")
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


def _with_failed(chunks: Chunks, starts: Numbers, failed: pa.Table) -> Chunks:
    if not len(failed):
        return chunks
    began = moments(failed, "start")
    ended = np.fmin(moments(failed, "stop"), np.inf)
    lasted = np.clip(np.nan_to_num(np.where(np.isfinite(ended), ended, moments(failed, "seen")) - began), 0.0, None)
    order = np.argsort(np.concatenate([starts, began]), kind="stable")
    # rows of failed attempts are copies of the first chunk; clear all their values
    is_chunk = np.arange(len(order)) < len(chunks)
    every = chunks.take(np.arange(len(order)) * is_chunk)
    parts = every.parts.each(lambda seconds: seconds * is_chunk)
    parts.failed[len(chunks) :] = lasted
    nobody: dict[str, Any] = {name: np.where(is_chunk, getattr(every, name), -1) for name in ("dataset", "file", "row")}
    every = replace(every, parts=parts, factor=np.where(is_chunk, every.factor, 1.0), **nobody)
    return replace(every, start=every.start * is_chunk, stop=every.stop * is_chunk).take(order)


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Integers:
    """Find the row of each task's chunk (-1 if the task has no chunk)."""
    of_chunks, of_tasks = identities(tasks, chunks)
    return np.where(of_tasks >= 0, rows_of(of_tasks, of_chunks), -1)


Value = TypeVar("Value")

OF_PROCESS: Final = 0.04
"""Typical fraction of a core that a worker process uses for heartbeats and profiles, from runs with one to eight
workers on two cores. The rest of the CPU time outside tasks is proportional to the duration of tasks."""

ABSENT_THREADS: Final = 0.02
"""Fraction of thread time missing above which to warn. Thread time is missing if workers join late or leave early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run prepared for a replay.

    `calls` lists the processor of each Runner call, with a fingerprint of the files (None if unknown). `client` is the
    part of `seconds` outside all stages. `cores` is the number of cores per host (None if unknown). `core_wait` is the
    ratio of computing time to CPU time, which exceeds 1 under CPU contention (None if unknown). `knows_lock` is true if
    waits for the GIL were recorded. `branches` lists the branches read. `doubts` lists caveats for predictions.
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
        """Number of workers, number of threads per worker, and chunk size. These are the same for repeats of a run."""
        return self.workers, self.threads, self.chunksize

    @property
    def workers_of_host(self) -> int:
        return max(round(self.workers / self.hosts), 1)

    @property
    def own_cluster(self) -> Cluster:
        return self.cluster(self.workers, self.threads, same_host=self.hosts == 1)

    def cluster(self, workers: int, threads: int, *, same_host: bool) -> Cluster:
        """Build a cluster on a single host or, if `same_host` is false, with as many cores per worker as in the run."""
        cores = float("inf") if self.cores is None else float(self.cores)
        if same_host:
            return Cluster(threads=threads, hosts=[(workers, cores)], scheduler_here=self.scheduler_here)
        each = self.workers_of_host
        full, rest = divmod(workers, each)
        hosts = [(each, cores)] * full + ([(rest, cores * rest / each)] if rest else [])
        return Cluster(threads=threads, hosts=hosts, scheduler_here=self.scheduler_here)


class Known(NamedTuple):
    workers: float
    """Average number of workers."""
    counted: pa.Table | None = None
    """Chunk attempts whose results were used (None if not yet determined)."""
    stragglers: pa.Table | str = "not determined"
    ledger: TimeLedger | None = None
    outside_tasks: float | None = None
    """CPU time that worker processes and a scheduler on the same host used outside tasks, in seconds."""


def recorded_run(run: Run, metrics: Metrics, name: str) -> Recorded:
    """Prepare a run for replays on other clusters.

    Raises
    ------
    NotMeasuredError
        If data needed for the replay are missing. The message says which.
    """
    known = Known(
        metrics.get("avg_workers") or 0.0,
        None,
        metrics.tables["stragglers"],
        metrics.get("time_ledger"),
        cpu_outside_tasks(run, metrics),
    )
    return recorded_with(run, known, name)


def cpu_outside_tasks(run: Run, metrics: Mapping[str, Any]) -> float | None:
    """CPU time that workers, and a scheduler on the same host, used outside tasks; None if it was not measured."""
    addresses = [] if run.lifetimes is None else run.lifetimes["worker"].to_pylist()
    if any(address.startswith("inproc:") for address in addresses):
        return None  # client, scheduler and workers are the same process
    whole, *tasks = map(metrics.get, ("worker_cpu_time_seconds", "total_cpu_time", "processor_cpu_time_seconds"))
    known = [each for each in tasks if each is not None]
    if whole is None or not known:
        return None
    workers: float = max(whole - max(known) - (metrics.get("overhead_cpu_time_seconds") or 0.0), 0.0)
    return workers + (metrics.get("scheduler_process_cpu_seconds") or 0.0) * _is_scheduler_here(run)


def _is_scheduler_here(run: Run) -> bool:
    return run.environment.client_host in {host.name for host in run.environment.hosts}


def recorded_with(run: Run, known: Known, name: str, *, as_it_was: bool = False) -> Recorded:
    """Prepare a run for a replay.

    Parameters
    ----------
    as_it_was
        Keep failed attempts and the chunks' recorded times, which include waits for cores and process start-up. If
        false, the replay adds its own waits and start-up times, so that it can simulate other clusters.

    Raises
    ------
    NotMeasuredError
        If data needed for the replay are missing. The message says which.
    """
    try:
        return _recorded(run, known, name, as_it_was)
    except NotMeasuredError as reason:
        raise NotMeasuredError(f"{name} cannot be replayed: {reason}") from None


def _recorded(run: Run, known: Known, name: str, as_it_was: bool) -> Recorded:
    if run.merged:
        raise NotMeasuredError("it was merged from independent runs: replay each one separately")
    tasks, lifetimes = recorded(run, "tasks"), recorded(run, "lifetimes")
    chunks = counted_chunks(recorded(run, "chunks")) if known.counted is None else known.counted
    if not len(chunks) or not len(lifetimes):
        raise NotMeasuredError("no chunk has a result, or no worker was recorded")
    calls = sorted(run.calls, key=lambda call: call.start)
    if any(later.start < earlier.stop for earlier, later in pairwise(calls)):
        raise NotMeasuredError("its Runner calls overlapped: their tasks cannot be separated")
    # copy only the columns that are needed
    tasks = tasks.select(["key", "run_id", "prefix", "kind", "worker", "thread", "outcome", *MOMENTS])
    ended, failed = with_outcome(tasks, (OK,)), None
    if as_it_was:
        failed = tasks.filter(pc.and_(pc.equal(tasks["kind"], PROCESSOR), pc.not_equal(tasks["outcome"], OK)))
    started = rows_where(tasks, tasks["start"].is_valid())
    costs = costs_of(started)
    stages_from = Records(run=run, chunks=chunks, tasks=ended, costs=costs, stragglers=known.stragglers, failed=failed)
    stages = tuple(stage for call in calls for stage in stages_of(call, stages_from))
    if not any(stage.chunks for stage in stages):
        raise NotMeasuredError("none of its chunks' tasks were recorded")
    outside = max((known.outside_tasks or 0.0) - costs.scheduler * len(started) * _is_scheduler_here(run), 0.0)
    present, alone = known.workers * (run.stop - run.start), sum(float(stage.load.alone.sum()) for stage in stages)
    process = min(OF_PROCESS, outside / present) if present else 0.0
    share = (outside - process * present) / alone if alone else 0.0
    stages = tuple(replace(stage, costs=stage.costs._replace(outside=share, process=process)) for stage in stages)
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
        scheduler_here=_is_scheduler_here(run),
        chunksize=size if isinstance(size, int) else None,
        events=int(pc.sum(chunks["events"], min_count=0).as_py()),
        core_wait=_core_wait(chunks),
        knows_lock=not chunks[LOCK].null_count,
        branches=frozenset(() if run.branch_reads is None else run.branch_reads["branch"].unique().to_pylist()),
        failed=run.ended_early,
        doubts=tuple(_doubts(run, known, lifetimes, tasks, chunks)),
    )


def only(values: Iterable[Value]) -> Value | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _core_wait(chunks: pa.Table) -> float | None:
    if chunks["core_wait_seconds"].null_count:
        return None
    waited, cpu = (float(amounts(chunks, name).sum()) for name in ("core_wait_seconds", "cpu_seconds"))
    return 1 + waited / cpu if cpu else 1.0


# Doubts


def _doubts(run: Run, known: Known, lifetimes: pa.Table, tasks: pa.Table, chunks: pa.Table) -> list[str]:
    starts, stops = clipped(moments(lifetimes, "start"), moments(lifetimes, "stop"), run.start, run.stop)
    threads = amounts(lifetimes, "threads")
    missing = float(1 - integral(starts, stops, threads) / (threads.sum() * (run.stop - run.start)))
    lost = len(tasks) - len(with_outcome(tasks, (OK,)))
    ledger = known.ledger
    foreign = ledger.get(OTHER_TASKS, 0.0) / ledger.total if ledger and ledger.total else 0.0
    every = {
        f"the recorded run {run.ending} and is incomplete": run.ended_early,
        "CPU time outside tasks (workers, and a scheduler on their host) is unknown: it is left out": (
            known.outside_tasks is None
        ),
        "waiting for cores was not recorded: chunk times may include other load": (
            chunks["core_wait_seconds"].null_count
        ),
        "its hosts' core counts are unknown or differ: sharing cores is not modelled": (
            only(host.cores for host in run.environment.hosts) is None
        ),
        "its workers have different numbers of threads: the median is used": len(lifetimes["threads"].unique()) > 1,
        f"workers joined late or left during recording: {FRACTION.text(missing)} of the thread time was missing": (
            missing > ABSENT_THREADS
        ),
        f"{number(lost)} task attempts failed during recording; they are left out": lost,
        # a small share is negligible
        f"other users' tasks took {FRACTION.text(foreign)} of the thread time during recording": foreign > 0.05,
    }
    return [doubt for doubt, holds in every.items() if holds]
