"""What a recorded run tells of its chunks, its cluster, and what lay around them: all that a replay starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.attempts import identities
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks, recorded, with_outcome
from roastcoffea.metrics.statistics import Numbers, clipped, integral
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import FAILED, Run, RunnerCall
from roastcoffea.replay.engine import MOST_OWN, Counts
from roastcoffea.replay.replay import CROWDED, Cluster, Costs, Load, Merging, tree
from roastcoffea.studies.sources import Source, measurement_of, name_of
from roastcoffea.units import FRACTION, number

Flags = npt.NDArray[np.bool_]

SCHEDULER_SECONDS: Final = 1.1e-3
"""CPU time of Dask's scheduler for a task: assumed, as no run tells it."""

TYPICAL_GAP: Final = 1.5e-3
"""Seconds between two tasks of a thread where a run has too few to tell."""

FEWEST: Final = 3
"""Chunks from which a median is taken."""

ABOUT: Final = 0.25
"""Relative difference of events up to which chunks are alike."""

ENOUGH: Final = 1000
"""Tasks that tell a median well."""

COMPARED: Final = 20_000
"""Tasks among which they are looked for."""

STANDS_OUT: Final = 2.0
"""Standard deviations from which on the first tasks of processes take longer than others."""

ABSENT_THREADS: Final = 0.02
"""Share of the thread time that may be missing because workers came late or left."""

FOREIGN: Final = 0.05
"""Share of the thread time from which on tasks of others are told."""

MOMENTS: Final = frozenset({"runnable", "assigned", "arrived", "ready", "start", "stop", "seen"})

CPU_OF_CHUNKS: Final = ("cpu_seconds", "helper_cpu_seconds")

PARTS: Final = ("open_cpu", "open_wait", "read", "wait", "cpu", "overhead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in the order in which they began, with the seconds of their parts; what processes take to begin is gone.

    `dataset` is a place in `datasets`, `file` a number of its own for each file. `open_cpu` and `open_wait` are opening
    the file and building its events, `read` is waiting for storage in process(), `wait` other time without CPU, `cpu`
    all other CPU, `overhead` the rest of the task. `factor` is what an expected chunk takes of what a straggler took,
    and 1 for others.
    """

    datasets: tuple[str, ...]
    dataset: Counts
    file: Counts
    start: Counts
    stop: Counts
    open_cpu: Numbers
    open_wait: Numbers
    read: Numbers
    wait: Numbers
    cpu: Numbers
    overhead: Numbers
    factor: Numbers

    def __len__(self) -> int:
        return len(self.cpu)

    @property
    def events(self) -> Numbers:
        """Events of each chunk."""
        return (self.stop - self.start).astype(np.float64)

    @property
    def seconds(self) -> Numbers:
        """What each chunk takes without want of cores."""
        return np.asarray(np.sum([getattr(self, part) for part in PARTS], axis=0))

    def with_parts(self, parts: Mapping[str, Numbers]) -> Chunks:
        """The same chunks with other seconds."""
        fields: dict[str, Any] = dict(parts)
        return replace(self, **fields)

    def load(self) -> Load:
        """What there is to do."""
        return Load(before=self.open_cpu, wait=self.open_wait + self.read + self.wait, after=self.cpu + self.overhead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a Runner call in which tasks of one kind ran: from the first that could to the last that was heard of.

    `seconds` is what it took. Without `chunks` its load is fixed, as that of preprocessing is.
    """

    kind: str
    seconds: float
    load: Load
    merging: Merging
    costs: Costs
    chunks: Chunks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run as a replay needs it.

    `calls` are its Runner calls, one after the other: the processor of each, and the fingerprint of its files (None
    where it is not known). `client` is the part of `seconds` that lies outside of all stages. `cores` is that of one
    host; None where it is not known. `core_wait` is how much longer chunks computed, for want of cores, than their CPU
    time; None where nothing tells. `branches` are those that it read. `doubts` tells what makes predictions from it
    doubtful.
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
    branches: frozenset[str]
    failed: bool
    doubts: tuple[str, ...]

    @property
    def configuration(self) -> tuple[int, int, int | None]:
        """What repeats have in common: workers, threads of each, chunk size."""
        return self.workers, self.threads, self.chunksize

    @property
    def workers_of_host(self) -> int:
        """Workers that shared a host."""
        return max(round(self.workers / self.hosts), 1)

    @property
    def own_cluster(self) -> Cluster:
        """The cluster on which it was made."""
        return self.cluster(self.workers, self.threads, same_host=self.hosts == 1)

    def cluster(self, workers: int, threads: int, *, same_host: bool) -> Cluster:
        """Cluster of so many workers: each brings cores as the recorded ones had, or all share those of one host."""
        cores = float("inf") if self.cores is None else float(self.cores)
        if same_host:
            return Cluster(threads=threads, hosts=[(workers, cores)], scheduler_here=self.scheduler_here)
        each = self.workers_of_host
        full, rest = divmod(workers, each)
        hosts = [(each, cores)] * full + ([(rest, cores * rest / each)] if rest else [])
        return Cluster(threads=threads, hosts=hosts, scheduler_here=self.scheduler_here)


def recorded_run(source: Source) -> Recorded:
    """What a run tells.

    Raises
    ------
    NotMeasuredError
        If it lacks what a replay needs; the text says what.
    """
    try:
        return _recorded(measurement_of(source), name_of(source))
    except NotMeasuredError as reason:
        raise NotMeasuredError(f"{name_of(source)} cannot be replayed: {reason}") from None


def _recorded(measurement: Measurement, name: str) -> Recorded:
    run = measurement.run
    tasks, lifetimes = recorded(run, "tasks"), recorded(run, "lifetimes")
    chunks = counted_chunks(recorded(run, "chunks"))
    if not len(chunks) or not len(lifetimes):
        raise NotMeasuredError("no chunk of it gave a result, or no worker was seen")
    calls = _in_sequence(run.calls)
    ended = with_outcome(tasks, (task_records.OK,))
    costs = _costs(run, ended)
    stages = [stage for call in calls for stage in _stages(measurement, call, chunks, ended, costs)]
    if not any(stage.chunks for stage in stages):
        raise NotMeasuredError("no task of its chunks was seen")
    threads = int(median(lifetimes["threads"].to_pylist()))
    return Recorded(
        name=name,
        calls=tuple((call.processor, call.fileset) for call in calls),
        seconds=run.stop - run.start,
        client=run.stop - run.start - sum(stage.seconds for stage in stages),
        stages=tuple(stages),
        workers=max(round(measurement.metrics["avg_workers"]), 1),
        threads=threads,
        hosts=max(len(lifetimes["host"].unique()), 1),
        cores=_cores(run),
        scheduler_here=run.environment.client_host in {host.name for host in run.environment.hosts},
        chunksize=_chunksize(calls),
        events=int(pc.sum(chunks["events"], min_count=0).as_py()),
        core_wait=_core_wait(chunks),
        branches=frozenset(() if run.branch_reads is None else run.branch_reads["branch"].unique().to_pylist()),
        failed=run.outcome == FAILED,
        doubts=tuple(_doubts(measurement, lifetimes, tasks, chunks)),
    )


def _in_sequence(calls: Sequence[RunnerCall]) -> list[RunnerCall]:
    ordered = sorted(calls, key=lambda call: call.start)
    if any(later.start < earlier.stop for earlier, later in pairwise(ordered)):
        raise NotMeasuredError("its Runner calls overlapped: their tasks cannot be told apart")
    return ordered


def _chunksize(calls: Sequence[RunnerCall]) -> int | None:
    """Chunk size that all calls asked for."""
    sizes = {call.options.get("chunksize") for call in calls}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _cores(run: Run) -> int | None:
    """Cores of a host; None where they are not known or differ."""
    cores = {host.cores for host in run.environment.hosts}
    return cores.pop() if len(cores) == 1 else None


def _core_wait(chunks: pa.Table) -> float | None:
    if chunks["core_wait_seconds"].null_count:
        return None
    waited, cpu = (float(_numbers(chunks, name).sum()) for name in ("core_wait_seconds", "cpu_seconds"))
    return 1 + waited / cpu if cpu else 1.0


# Doubts


def _doubts(measurement: Measurement, lifetimes: pa.Table, tasks: pa.Table, chunks: pa.Table) -> list[str]:
    """What makes predictions doubtful."""
    run = measurement.run
    found = ["the recorded run failed: what it had not begun is no part of it"] if run.outcome == FAILED else []
    if chunks["core_wait_seconds"].null_count:
        found.append("it is not known how long chunks waited for a core while recording: other load is in their times")
    if _cores(run) is None:
        found.append("the cores of its hosts are not known, or differ: nothing is said of sharing them")
    if len(lifetimes["threads"].unique()) > 1:
        found.append("its workers have different numbers of threads: the median stands for all")
    found += [*_came_and_went(run, lifetimes), *_lost(tasks), *_others(measurement)]
    return found


def _came_and_went(run: Run, lifetimes: pa.Table) -> list[str]:
    starts, stops = clipped(_numbers(lifetimes, "start"), _numbers(lifetimes, "stop"), run.start, run.stop)
    threads = _numbers(lifetimes, "threads")
    missing = 1 - integral(starts, stops, threads) / (threads.sum() * (run.stop - run.start))
    if missing <= ABSENT_THREADS:
        return []
    return [f"workers came late or left while recording: {FRACTION.text(missing)} of the threads' time was missing"]


def _lost(tasks: pa.Table) -> list[str]:
    lost = len(tasks) - len(with_outcome(tasks, (task_records.OK,)))
    return [f"{number(lost)} attempts of tasks failed while recording; they are left out"] if lost else []


def _others(measurement: Measurement) -> list[str]:
    ledger = measurement.time_ledger
    share = ledger.get("other tasks", 0.0) / ledger.total if ledger.total else 0.0
    return [f"tasks of others took {FRACTION.text(share)} of the threads' time while recording"] * (share > FOREIGN)


# Stages


def _stages(measurement: Measurement, call: RunnerCall, chunks: pa.Table, tasks: pa.Table, costs: Costs) -> list[Stage]:
    """Preprocessing and processing of a Runner call, as far as there were tasks."""
    runnable = _runnable(tasks)
    here = tasks.filter(pa.array((runnable >= call.start) & (runnable <= call.stop)))
    opening = _of_kind(here, task_records.PREPROCESSING)
    processing = _of_kind(here, task_records.PROCESSOR)
    stages = []
    if len(opening):
        stages.append(_preprocessing(measurement.run, call, opening, costs))
    if len(processing):
        merges = _of_kind(here, task_records.MERGE)
        stages.append(_processing(measurement, call, chunks, processing, merges, costs))
    return stages


def _of_kind(tasks: pa.Table, kind: str) -> pa.Table:
    return tasks.filter(pc.equal(tasks["kind"], kind))


def _runnable(tasks: pa.Table) -> Numbers:
    """When tasks could run; where that was not recorded, when they began."""
    runnable = _numbers(tasks, "runnable")
    return np.where(np.isnan(runnable), _numbers(tasks, "start"), runnable)


def _lasted(*tasks: pa.Table) -> float:
    """From the first that could run to the last that was heard of."""
    every = pa.concat_tables(tasks)
    ends = np.fmax(_numbers(every, "seen"), _numbers(every, "stop"))
    return float(ends.max() - np.nanmin(_runnable(every)))


def _preprocessing(run: Run, call: RunnerCall, tasks: pa.Table, costs: Costs) -> Stage:
    is_merge = pc.equal(tasks["prefix"], task_records.MERGE_PREFIX)
    merges, opening = tasks.filter(is_merge), tasks.filter(pc.invert(is_merge)).sort_by("start")
    wall = _durations(opening)
    cpu = np.minimum(_preprocessing_cpu(run, opening), wall)
    first = _first_of_each(opening, np.zeros(len(wall), np.int64), np.ones(len(wall)), wall)
    return Stage(
        kind=task_records.PREPROCESSING,
        seconds=_lasted(tasks),
        load=Load(before=np.zeros(len(cpu)), wait=first.warm(wall - cpu), after=first.warm(cpu)),
        merging=_merging(run, call, len(opening), merges),
        costs=replace(
            costs, cold_cpu=first.excess(cpu) + _late_start(opening, costs), cold_wait=first.excess(wall - cpu)
        ),
    )


def _preprocessing_cpu(run: Run, tasks: pa.Table) -> Numbers:
    """CPU time of openings; all of their time where it is not known."""
    wall = _durations(tasks)
    if run.preprocessing is None:
        return wall
    sums = run.preprocessing.group_by("key").aggregate([("cpu_seconds", "max")])
    place = pc.index_in(tasks["key"], value_set=sums["key"].combine_chunks()).combine_chunks()
    cpu = sums["cpu_seconds_max"].combine_chunks().take(place)
    return np.fmin(np.asarray(pc.fill_null(cpu, np.inf).to_numpy(False), np.float64), wall)


def _processing(  # noqa: PLR0917
    measurement: Measurement, call: RunnerCall, chunks: pa.Table, tasks: pa.Table, merges: pa.Table, costs: Costs
) -> Stage:
    rows = _rows_of_tasks(tasks, chunks)
    if not (rows >= 0).any():
        raise NotMeasuredError("its chunks left no records")
    seconds = _lasted(tasks, merges)
    tasks, chunks = tasks.filter(pa.array(rows >= 0)), chunks.take(pa.array(rows[rows >= 0]))
    order = pc.sort_indices(tasks["start"])
    tasks, chunks = tasks.take(order), chunks.take(order)
    raw = _chunks(measurement, tasks, chunks)
    first = _first_of_each(tasks, raw.dataset, raw.events, raw.seconds)
    warm = raw.with_parts({name: first.warm(getattr(raw, name)) for name in PARTS})
    warm.factor[list(first.alike)] = 1.0
    return Stage(
        kind=task_records.PROCESSOR,
        seconds=seconds,
        load=warm.load(),
        merging=_merging(measurement.run, call, len(tasks), merges),
        costs=replace(
            costs,
            cold_cpu=first.excess(raw.open_cpu + raw.cpu + raw.overhead) + _late_start(tasks, costs),
            cold_wait=first.excess(raw.open_wait + raw.read + raw.wait),
        ),
        chunks=warm,
    )


def _rows_of_tasks(tasks: pa.Table, chunks: pa.Table) -> Counts:
    """Row of the chunk that each task computed; -1 where there is none."""
    of_chunks, of_tasks = identities(tasks, chunks)
    order = np.argsort(of_chunks, kind="stable")
    place = np.minimum(np.searchsorted(of_chunks, of_tasks, sorter=order), len(order) - 1)
    return np.where((of_tasks >= 0) & (of_chunks[order[place]] == of_tasks), order[place], -1)


def _chunks(measurement: Measurement, tasks: pa.Table, chunks: pa.Table) -> Chunks:
    """Parts of chunks as if each had a core to itself: waiting for one is in none of them."""
    wall, cpu = (
        _numbers(chunks, "wall_seconds"),
        _numbers(chunks, "cpu_seconds") + _numbers(chunks, "helper_cpu_seconds"),
    )
    cpu = np.minimum(cpu, wall)
    waited = np.clip(wall - cpu - _numbers(chunks, "core_wait_seconds"), 0.0, None)
    inside = sum(_numbers(chunks, name) for name in ("decompress_seconds", "interpret_seconds", "compute_seconds"))
    opening = _numbers(chunks, "open_seconds") + _numbers(chunks, "build_seconds")
    open_cpu = np.clip(np.minimum(cpu - inside, opening), 0.0, None)
    # where waiting for a core was much, all waiting is less: opening and reading keep their shares of what is left
    told = [np.clip(opening - open_cpu, 0.0, None), _numbers(chunks, "read_seconds"), _numbers(chunks, "wait_seconds")]
    share = np.divide(waited, np.sum(told, axis=0), out=np.zeros(len(wall)), where=np.sum(told, axis=0) > 0)
    share = np.minimum(share, 1.0)
    open_wait, read = told[0] * share, told[1] * share
    # a job that shared a core also took more CPU time, and the replay puts in its own
    load = np.divide(_numbers(chunks, "core_wait_seconds"), cpu, out=np.zeros(len(wall)), where=cpu > 0) + 1
    alone = 1 / (1 + CROWDED * np.log2(load))
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=_codes(chunks["dataset"]),
        file=_codes(chunks["file"]),
        start=np.asarray(chunks["entry_start"].to_numpy(), np.int64),
        stop=np.asarray(chunks["entry_stop"].to_numpy(), np.int64),
        open_cpu=open_cpu * alone,
        open_wait=open_wait,
        read=read,
        wait=waited - open_wait - read,
        cpu=(cpu - open_cpu) * alone,
        overhead=np.clip(_durations(tasks) - wall, 0.0, None),
        factor=_factors(measurement, chunks),
    )


def _factors(measurement: Measurement, chunks: pa.Table) -> Numbers:
    """What an expected chunk takes of what each straggler took; 1 for the others."""
    factor = np.ones(len(chunks))
    stragglers = measurement.metrics.tables["stragglers"]
    if isinstance(stragglers, str) or not len(stragglers):
        return factor
    place = pc.index_in(chunks["id"], value_set=stragglers["id"].combine_chunks(), skip_nulls=True)
    place = np.asarray(pc.fill_null(place, -1).to_numpy(), np.int64)
    expected = _numbers(stragglers, "expected_seconds") / _numbers(stragglers, "wall_seconds")
    return np.where(place >= 0, expected[place], factor)


# The first task of a process


@dataclass(frozen=True, slots=True)
class First:
    """Tasks that began before the first one of their process ended, which loads and compiles what all need.

    `alike` has for each of them later tasks to compare it with, `leaders` are the first of each process. Both are empty
    where first tasks took no longer than others, or there is nothing to compare.
    """

    alike: Mapping[int, Counts]
    leaders: Counts
    events: Numbers

    def warm(self, values: Numbers) -> Numbers:
        """Values with those of the first tasks replaced by what is typical."""
        warm = values.copy()
        for row in self.alike:
            warm[row] = self.typical(values, row)
        return warm

    def excess(self, values: Numbers) -> float:
        """What the first task of a process took beyond what is typical, in the mean."""
        beyond = [values[row] - self.typical(values, row) for row in self.leaders.tolist()]
        return max(float(np.mean(beyond)), 0.0) if beyond else 0.0

    def typical(self, values: Numbers, row: int) -> float:
        """What is typical for a task of so many events."""
        alike = self.alike[row]
        return float(np.median(values[alike] / self.events[alike]) * self.events[row])

    def stands_out(self, values: Numbers) -> bool:
        """Whether first tasks took longer than chance makes of so few."""
        spread = float(np.mean([np.std(values[self.alike[row]]) for row in self.leaders.tolist()]))
        return bool(self.excess(values) > STANDS_OUT * spread / len(self.leaders) ** 0.5)


def _first_of_each(tasks: pa.Table, group: Counts, events: Numbers, seconds: Numbers) -> First:
    """First tasks of processes, of tasks in the order of their starts; those of a group are alike."""
    worker, start, stop = _codes(tasks["worker"]), _numbers(tasks, "start"), _numbers(tasks, "stop")
    _, leaders = np.unique(worker, return_index=True)
    ended = np.zeros(worker.max() + 1)
    ended[worker[leaders]] = stop[leaders]
    early = start < ended[worker]
    others = ~early[:COMPARED]
    alike = {row: _alike(row, others, group, events) for row in np.flatnonzero(early).tolist()}
    first = First(alike, leaders, np.maximum(events, 1.0))
    if all(len(others) >= FEWEST for others in alike.values()) and first.stands_out(seconds):
        return first
    return First({}, leaders[:0], events)


def _alike(row: int, others: Flags, group: Counts, events: Numbers) -> Counts:
    """Tasks of the same group with about as many events, as far as there are enough; not more than tell a median."""
    of_group = others & (group[: len(others)] == group[row])
    of_size = np.abs(events[: len(others)] - events[row]) <= ABOUT * events[row]
    for some in (of_group & of_size, of_group, others):
        if np.count_nonzero(some) >= FEWEST:
            break
    found = np.flatnonzero(some)
    return found[:: max(len(found) // ENOUGH, 1)]


def _late_start(tasks: pa.Table, costs: Costs) -> float:
    """Seconds between assignment and start of the first task of a process, beyond the way: unpickling, imports."""
    _, leaders = np.unique(_codes(tasks["worker"]), return_index=True)
    late = (_numbers(tasks, "start") - _numbers(tasks, "assigned"))[leaders]
    return max(float(np.nanmean(late)) - costs.latency, 0.0) if np.isfinite(late).any() else 0.0


# What Dask takes


def _costs(run: Run, tasks: pa.Table) -> Costs:
    """Dask's part in the time of tasks."""
    gap = _gap(tasks)
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    costs = Costs(gap=gap, latency=latency, scheduler=SCHEDULER_SECONDS, crowded=CROWDED)
    return replace(costs, own=_own(run, tasks, costs))


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    """Median time between two moments of tasks."""
    took = _numbers(tasks, later) - _numbers(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


def _gap(tasks: pa.Table) -> float:
    """Median time between two tasks of a thread, the second of which was ready before the first ended."""
    thread, worker = _codes(tasks["thread"]), _codes(tasks["worker"])
    start, stop, ready = (_numbers(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    return max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else TYPICAL_GAP


def _own(run: Run, tasks: pa.Table, costs: Costs) -> float:
    """CPU time of a worker's process, for each task, but for the tasks' and for its beginning: its event loop."""
    if run.lifetimes is None or run.lifetimes["cpu_seconds"].null_count or not len(tasks):
        return 0.0
    busy = float(pc.sum(run.lifetimes["cpu_seconds"]).as_py())
    began = _late_start(tasks.sort_by("start"), costs) * len(tasks["worker"].unique())
    return max(busy - began - _tasks_cpu(run, tasks), 0.0) / len(tasks) / _longer(run)


def _longer(run: Run) -> float:
    """How many times as long as they needed chunks took, for want of cores, as far as event loops compute more then."""
    if run.chunks is None:
        return 1.0
    wall, waited = (float(_numbers(run.chunks, name).sum()) for name in ("wall_seconds", "core_wait_seconds"))
    return min(wall / (wall - waited), MOST_OWN) if wall > waited else 1.0


def _tasks_cpu(run: Run, tasks: pa.Table) -> float:
    """CPU time of tasks: of chunks as it was measured, of all else their time."""
    total = float(_durations(tasks).sum())
    if run.chunks is not None:
        wall, *cpu = (float(_numbers(run.chunks, name).sum()) for name in ("wall_seconds", *CPU_OF_CHUNKS))
        total += sum(cpu) - wall
    return total


def _merging(run: Run, call: RunnerCall, results: int, merges: pa.Table) -> Merging:
    """How results were merged, and what it took for each."""
    fan_in = call.options.get("executor.treereduction")
    if not len(merges) or not isinstance(fan_in, int) or fan_in < 2:
        return Merging()
    each = float(_durations(merges).sum()) / max(int(tree(results, fan_in)[1].sum()), 1)
    cpu = _cpu_share(run)
    return Merging(fan_in=fan_in, cpu=each * cpu, wait=each * (1 - cpu), fetch=_middle(merges, "ready", "arrived"))


def _cpu_share(run: Run) -> float:
    """Share of CPU in the time of merges, as Dask metered it; 1 where it did not."""
    seconds = [
        (run.span_metrics or {}).get(("execute", task_records.MERGE_PREFIX, activity, "seconds"), 0.0)
        for activity in ("thread-cpu", "thread-noncpu")
    ]
    return seconds[0] / sum(seconds) if sum(seconds) else 1.0


# Columns


def _numbers(table: pa.Table, name: str) -> Numbers:
    """Column of numbers; NaN for moments that are not known, 0 for amounts."""
    unknown = np.nan if name in MOMENTS else 0.0
    return np.asarray(pc.fill_null(pc.cast(table[name], pa.float64()), unknown).to_numpy(), np.float64)


def _durations(tasks: pa.Table) -> Numbers:
    return np.nan_to_num(_numbers(tasks, "stop") - _numbers(tasks, "start"))


def _codes(column: pa.ChunkedArray) -> Counts:
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), np.int64)
