"""Activity of worker threads, from task attempts or, if there was no scheduler, from chunk attempts.

Start-up is the extra time taken by each worker's first task and each thread's first chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics import facts, phases
from roastcoffea.metrics.facts import aggregated, among, joined, rows_where, rows_with
from roastcoffea.metrics.ledger import Attempts, attempts_of_calls
from roastcoffea.metrics.slots import Moments, Presence
from roastcoffea.metrics.statistics import (
    Flags,
    Groups,
    Integers,
    Numbers,
    amounts,
    codes,
    having,
    measured_values,
    moments,
    one_of,
    places,
)
from roastcoffea.records.arrow import row_codes, table_of_rows
from roastcoffea.records.columns import Row
from roastcoffea.records.run import MergedRun, Run
from roastcoffea.records.workers import (
    CANCELLED,
    ERROR,
    KINDS,
    LOST,
    OK,
    OTHER,
    OUTCOMES,
    PAUSE_COLUMNS,
    PREPROCESSING,
    PROCESSOR,
)
from roastcoffea.records.workers import UNFINISHED as LASTING


class Records(NamedTuple):
    """Records from which a time ledger is built. Workers are given as indices into `workers`."""

    run: Run
    chunks: Table
    counted: Table
    workers: list[str]
    presence: Presence
    pauses: Presence
    gaps: Presence
    together: Integers
    """Index of the run that recorded each worker. Workers in the same run could take over each other's tasks."""
    born: Numbers
    """Start time of each worker's process, or NaN if it is unknown or before the start of the run."""
    by: str = "dataset"
    """Column of chunk and preprocessing records by which busy time is broken down."""

    @classmethod
    def of(cls, run: Run, lifetimes: Table, chunks: Table, counted: Table) -> Records:
        workers: list[str] = lifetimes["worker"].unique().to_pylist()
        worker = places(lifetimes["worker"], workers)
        parts = {part.id: part for part in run.merged}
        runs: list[Run | MergedRun] = [run] * len(workers)
        for place, name in zip(worker.tolist(), lifetimes["run"].to_pylist(), strict=True):
            runs[place] = parts.get(name, run)
        pauses = table_of_rows(PAUSE_COLUMNS, []) if run.pauses is None else rows_with(run.pauses, "worker", workers)
        times = [(place, *gap) for place, own in enumerate(runs) for gap in own.gaps]
        place, start, stop = np.array(times, np.float64).reshape(-1, 3).T
        together = np.zeros(len(workers), np.int64)
        if run.merged:
            together[worker] = codes(lifetimes["run"])
        born = np.full(len(workers), np.inf)
        known = lifetimes["process"].is_valid().to_numpy()
        np.minimum.at(born, worker, np.where(known, moments(lifetimes, "start"), -np.inf))
        return cls(
            run,
            chunks,
            counted,
            workers,
            _presence(run, lifetimes, worker, np.asarray(lifetimes["threads"].to_numpy(), np.int64)),
            _presence(run, pauses, places(pauses["worker"], workers), np.ones(len(pauses), np.int64)),
            Presence(place.astype(np.int64), start, stop, np.ones(len(times), np.int64)),
            together,
            np.where(born > np.array([own.start for own in runs]), born, np.nan),
        )

    @property
    def offered(self) -> Numbers:
        return np.asarray((self.presence.stop - self.presence.start) * self.presence.threads)


def _presence(run: Run, spans: Table, worker: Integers, threads: Integers) -> Presence:
    start, stop = (np.clip(measured_values(spans[name]), run.start, run.stop) for name in ("start", "stop"))
    return Presence(worker, start, np.maximum(start, stop), threads)


class Busy(NamedTuple):
    """Attempts that occupied a thread, with their times and the time spent in each class."""

    moments: Moments
    seconds: dict[str, Numbers]
    of: pa.Array
    """Each attempt's dataset or, for another breakdown, its value in the column `Records.by`."""
    failed: dict[str, float]
    reasons: list[str]
    attempts: Attempts


def busy_chunks(records: Records) -> Busy:
    """Chunk attempts and file opens that occupied threads, for runs without a scheduler."""
    run, chunks = records.run, records.chunks
    used, wall = among(chunks, records.counted), amounts(chunks, "wall_seconds")
    seconds = _phase_seconds(records, used)
    seconds[phases.FAILED] = np.where(used, 0.0, wall)
    seconds[phases.OVERHEAD] = _rest(wall, seconds)
    parts = [_attempts(chunks, PROCESSOR, seconds, records.by)]
    reasons = [*facts.why_calls_lack(run), *_incomplete_phases(records.counted)]
    if (openings := run.preprocessing) is None:
        reasons.append("preprocessing was not recorded")
    else:
        wall, erred = amounts(openings, "wall_seconds"), having(openings["outcome"], ERROR)
        classes = {phases.PREPROCESSING: np.where(erred, 0.0, wall), phases.FAILED: np.where(erred, wall, 0.0)}
        parts.append(_attempts(openings, PREPROCESSING, classes, records.by))
    table = joined(parts)
    worker = places(table["worker"], records.workers)
    known, able = worker >= 0, _could_begin(table, worker, records)
    # attempts without a worker come from column tracing on the client
    if unknown := np.count_nonzero(~known & table["worker"].is_valid().to_numpy()):
        reasons.append(f"{unknown} attempts ran on unknown workers")
    table, worker = rows_where(table, known), worker[known]
    attempts, missing = attempts_of_calls(run, chunks, records.counted)
    start, stop, wasted = (amounts(table, name) for name in ("start", "stop", phases.FAILED))
    return Busy(
        Moments(
            worker, able[known], able[known], start, start, start, stop, stop, np.asarray(table["kind"].to_numpy())
        ),
        {name: amounts(table, name) for name in phases.BUSY if name in table.column_names},
        table[records.by].combine_chunks(),
        {ERROR: float(wasted.sum())} if wasted.any() else {},
        reasons + missing,
        attempts,
    )


def _rest(duration: Numbers, seconds: dict[str, Numbers]) -> Numbers:
    """Time that belongs to no phase. Measuring is partly estimated, and limited to what other phases leave."""
    left = duration - sum(values for name, values in seconds.items() if name != phases.MEASURING)
    seconds[phases.MEASURING] = np.minimum(seconds[phases.MEASURING], np.maximum(left, 0.0))
    return np.asarray(left - seconds[phases.MEASURING])


def _attempts(table: Table, kind: str, seconds: Mapping[str, Numbers], of: str) -> Table:
    columns = {name: table[name] for name in ("worker", of, "start", "stop", "call")}
    known = pa.table({**columns, "kind": np.full(len(table), KINDS.index(kind)), **seconds})
    return rows_where(known, pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def _phase_seconds(records: Records, used: Flags) -> dict[str, Numbers]:
    """Time that each chunk spent in each class, including start-up; 0 s for attempts whose result was not used."""
    chunks = records.chunks
    seconds = {name: sum_of(chunks, columns) for name, columns in phases.COLUMNS_OF.items()}
    if not used.all():
        seconds = {name: np.where(used, values, 0.0) for name, values in seconds.items()}
    seconds[phases.STARTUP] = np.zeros(len(chunks))
    of_run = np.zeros(len(chunks), np.int64)
    if records.together.any():
        of_run = np.append(records.together, 0)[places(chunks["worker"], records.workers)]
    for name, excess in _excess_of_first_chunks(chunks, used, of_run).items():
        if excess.any():
            late = np.minimum(excess, seconds[name])
            seconds[name] = seconds[name] - late
            seconds[phases.STARTUP] += late
    return seconds


def _incomplete_phases(counted: Table) -> list[str]:
    """Message about chunks with incomplete phases. The missing time is attributed to another class."""
    names = ["outcome", *phases.SPLIT, *(column for columns in phases.COLUMNS_OF.values() for column in columns)]
    computed = phases.with_sum_of_waits(facts.with_outcome(counted.select(dict.fromkeys(names)), (OK,)))
    optional = (*phases.SPLIT, *phases.LATER)
    null = {name: computed[name].is_null().to_numpy() for name in names if name not in optional}
    null[phases.BUILD] &= null[phases.OPENED]
    number = np.count_nonzero(np.logical_or.reduce([*null.values()]))
    return [f"{number} chunks have incomplete phases: the missing time counts as {phases.OVERHEAD}"] if number else []


def sum_of(chunks: Table, columns: tuple[str, ...]) -> Numbers:
    """Sum of columns, with 0 for unknown amounts. The array is read-only."""
    known = [amounts(chunks, column) for column in columns if chunks[column].null_count < len(chunks)]
    found: Numbers = sum(known[1:], known[0]) if known else np.zeros(len(chunks))
    found.flags.writeable = False
    return found


MOMENTS: Final = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seceded", "seen")
COLUMNS: Final = ("key", "run_id", "kind", "outcome", "worker", "startup_seconds", *MOMENTS)
"""Task columns used here. Copying only these columns is cheaper than copying whole rows."""

REPEATED: Final = "repeated"

CLOCK_ERROR: Final = 0.01
"""Difference in seconds between the durations of a task and its chunk that rounding and a busy host may cause."""


def busy_tasks(records: Records, tasks: Table) -> Busy:
    """Task attempts that occupied threads. Their time is divided into classes according to their chunk records."""
    run, tasks = records.run, tasks.select(COLUMNS)
    worker = places(tasks["worker"], records.workers)
    start, stop = estimated_intervals(records, tasks)
    known = (worker >= 0) & ~np.isnan(start) & ~np.isnan(stop)
    chunk, task = facts.identities(tasks, records.chunks)
    cancelled = having(tasks["outcome"], CANCELLED)
    rows = np.bincount(places(tasks["kind"], KINDS), minlength=len(KINDS))
    counts: Row = {
        "task attempts have no recorded times": np.sum(~known & ~cancelled & ~having(tasks["outcome"], LOST)),
        # a cancelled attempt may never have started
        "task attempts were cancelled on a worker: if they kept running, that time counts as idle": np.sum(
            ~known & (worker >= 0) & cancelled
        ),
        **{
            f"{kind} task attempts left no row": number - int(rows[KINDS.index(kind)])
            for kind, number in (run.attempts or {}).items()
        },
        "chunk attempts have no recorded task: their time counts as idle": np.sum((chunk >= 0) & ~np.isin(chunk, task)),
    }
    attempts = len(known)
    if not known.all():
        tasks = rows_where(tasks, known)
        worker, start, stop, task = worker[known], start[known], stop[known], task[known]
    seconds, of, failed, unrecorded = _split(tasks, stop - start, chunk, task, records)
    reasons = [
        *facts.why_calls_lack(run),
        *facts.lost_rows(run, "tasks", "chunks"),
        *(["the scheduler did not report the number of task attempts"] if run.attempts is None else []),
        *(f"{number} {what}" for what, number in counts.items() if number > 0),
        *_incomplete_phases(records.counted),
        *([f"{unrecorded} chunk attempts left no record: their time is not counted"] if unrecorded else []),
    ]
    seen = np.where(having(tasks["outcome"], LASTING), stop, np.fmax(moments(tasks, "seen"), stop))
    # unknown times are assumed to be as late as possible
    earlier = (moments(tasks, name) for name in ("ready", "arrived", "assigned", "runnable"))
    _, ready, arrived, assigned, runnable = accumulate(earlier, np.fmin, initial=start)
    kind = places(tasks["kind"], KINDS)
    return Busy(
        Moments(worker, runnable, assigned, arrived, ready, start, stop, seen, kind),
        seconds,
        of,
        failed,
        reasons,
        Attempts(len(tasks) - unrecorded, attempts),
    )


def estimated_intervals(records: Records, tasks: Table) -> tuple[Numbers, Numbers]:
    """Start and stop of each task attempt in the run, or NaN if it never started or the times are unknown.

    The times of attempts that were lost with their worker are estimated. Unfinished attempts are assumed to last until
    the end of the run.
    """
    run, presence, worker = records.run, records.presence, places(tasks["worker"], records.workers)
    start, stop = (moments(tasks, name).copy() for name in ("start", "stop"))
    lasting = having(tasks["outcome"], LASTING)
    stop[lasting] = run.stop
    # the last element stands for unknown workers
    arrived, left = np.full((2, len(records.workers) + 1), [[run.stop], [0.0]])
    np.minimum.at(arrived, presence.worker, presence.start)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero(having(tasks["outcome"], LOST) & np.isnan(start) & (worker >= 0))
    assigned = moments(tasks, "assigned") if len(lost) else start
    for number in np.unique(worker[lost]):
        # a lost attempt lasted from the time a thread became free until the worker left
        threads = int(presence.threads[presence.worker == number].max())
        here = lost[worker[lost] == number]
        first = here[np.argsort(assigned[here], kind="stable")][:threads]
        ended = np.nan_to_num(stop[worker == number], nan=-np.inf)
        free = np.sort(np.append(np.full(threads, -np.inf), ended))[-threads:]
        start[first] = np.maximum(assigned[first], free[: len(first)])
        stop[first] = np.maximum(left[number], start[first])
    stop = np.fmin(stop, moments(tasks, "seceded"))
    others = having(tasks["kind"], OTHER)
    stop = np.where(others | lasting, np.minimum(stop, left[worker]), stop)
    # other users' tasks count only while the worker is present in the run
    earliest = np.where(others, arrived[worker], -np.inf)
    latest = np.where(others, left[worker], np.inf)
    return np.maximum(np.minimum(start, latest), earliest), np.maximum(stop, earliest)


def _split(
    tasks: Table, duration: Numbers, chunk: Integers, task: Integers, records: Records
) -> tuple[dict[str, Numbers], pa.Array, dict[str, float], int]:
    """Divide the time of each task attempt into classes.

    Returns the time by class, the breakdown keys, the failed time by reason, and the number of attempts without a
    chunk record. `chunk` and `task` contain matching numbers for chunk records and tasks, and -1 for unknown tasks.
    """
    chunks = records.chunks
    used, some = among(chunks, records.counted), np.flatnonzero(chunk >= 0)
    number, own = int(chunk.max(initial=-1)) + 1, chunk[some]
    row = np.full(number + 1, -1)
    row[own] = some
    row = row[task]
    single = np.bincount(own).max(initial=0) == 1

    def sums(values: Numbers | Flags) -> Numbers:
        if not values.any():
            return np.zeros(len(task))
        if single:
            found = values.astype(np.float64).take(row, mode="clip")
            found[row < 0] = 0.0
            return found
        return np.asarray(np.bincount(own, values[some], number + 1)[task])

    # if a clock was set back during a task, its chunk took longer than the difference of its times
    wall = sums(amounts(chunks, "wall_seconds"))
    duration = np.where(np.isnan(moments(tasks, "seceded")) & (wall > duration + CLOCK_ERROR), wall, duration)
    of_chunks = _phase_seconds(records, used)
    seconds = {name: sums(of_chunks.pop(name)) for name in [*of_chunks]}
    succeeded = one_of(chunks["outcome"], pa.array(facts.WITH_RESULT))
    seconds[phases.FAILED] = sums(np.where(succeeded, 0.0, amounts(chunks, "wall_seconds")))
    ok, processor, other = (
        having(tasks[column], value) for column, value in (("outcome", OK), ("kind", PROCESSOR), ("kind", OTHER))
    )
    recorded = task >= 0
    repeated = processor & ok & recorded & (sums(used) == 0) & (seconds[phases.FAILED] == 0)
    lost = ~ok | repeated
    counts = processor & ~lost
    for values in seconds.values():
        values[~counts] = 0.0
    began = np.where(lost, 0.0, np.fmin(amounts(tasks, "startup_seconds"), duration))
    seconds[phases.STARTUP] += np.where(counts, began, 0.0)
    rest = _rest(duration, seconds)
    for kind, name in phases.CLASS_OF_KIND.items():
        seconds[name] = np.where(having(tasks["kind"], kind) & ~lost, duration - began, 0.0)
    seconds[phases.STARTUP] = np.where(processor, seconds[phases.STARTUP], began)
    # the outcome of another user's task is irrelevant to this run
    seconds[phases.OTHER_TASKS] = np.where(other, duration, 0.0)
    wasted = np.where(lost & ~other, duration, 0.0)
    reason = np.where(repeated, len(OUTCOMES), places(tasks["outcome"], OUTCOMES))
    failed = np.bincount(reason, wasted, len(OUTCOMES) + 1)
    failed[OUTCOMES.index(ERROR)] += seconds[phases.FAILED].sum()
    seconds[phases.FAILED] += wasted
    seconds[phases.OVERHEAD] = np.where(counts & recorded, rest, 0.0)
    of = chunks[records.by].combine_chunks().take(pa.array(row, mask=row < 0))
    return (
        seconds,
        pc.if_else(pa.array(processor), of, _of_openings(tasks, records)),
        {name: amount for name, amount in zip((*OUTCOMES, REPEATED), failed.tolist(), strict=True) if amount},
        int(np.count_nonzero(counts & ~recorded)),
    )


def _of_openings(tasks: Table, records: Records) -> pa.Array:
    openings, by = records.run.preprocessing, records.by
    if openings is None or not len(openings):
        return pa.nulls(len(tasks), records.chunks[by].type)
    openings = aggregated(openings, ["key"], {by: (by, "max")}, None)
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings[by].combine_chunks().take(found).combine_chunks()


# Start-up

FEWEST: Final = 3
"""Minimum number of later chunks in a dataset, or of later tasks, needed to determine the usual time."""

SHORTEST: Final = 0.02
"""Shortest delay that counts as start-up, in seconds. Shorter delays may be caused by clock errors, caches or other
processes.

A first chunk or task is slow if it exceeds the usual time both by this delay and by five median absolute deviations.
"""


def _excess_of_first_chunks(chunks: Table, used: Flags, of_run: Integers) -> dict[str, Numbers]:
    """Extra time by class for each chunk that is the first on its thread.

    The usual time is the median over the dataset's later chunks, scaled by how the worker's own later chunks compare
    with this median. If the median over later chunks of the same file is higher, it is used instead. If the worker or
    the file has no later chunk and the first chunk loaded no modules, the chunk itself may be slow. In that case, only
    the excess common to all first chunks counts as start-up. Datasets without later chunks are left out.

    Chunks are compared within their recorded run, whose number is in `of_run`. Only classes in which libraries are
    loaded or functions are compiled can have extra time.
    """
    names = (phases.OPEN, phases.INTERPRET, phases.COMPUTE, phases.LOCK, phases.BLOCKED, phases.WAIT)
    found = {name: np.zeros(len(chunks)) for name in phases.COLUMNS_OF if name in names}
    completed = used & having(chunks["outcome"], OK)
    for name in ("start", "thread", "worker"):
        completed &= chunks[name].is_valid().to_numpy()
    leads = first_of_threads(chunks, completed)
    first, later = np.flatnonzero(leads), np.flatnonzero(completed & ~leads)
    if not len(first) or not len(later):
        return found
    dataset, file = (
        codes(pa.array(row_codes(pa.table({"run": of_run, "of": chunks[name]}))) if of_run.any() else chunks[name])
        for name in ("dataset", "file")
    )
    worker = codes(chunks["worker"])
    datasets, files, workers = (int(each.max()) + 1 for each in (dataset, file, worker))
    # later chunks of the files that have first ones
    alike = np.flatnonzero((np.bincount(file[first], minlength=files) > 0)[file[later]])
    of_datasets, of_workers = Groups(dataset[later], datasets), Groups(worker[later], workers)
    of_files = Groups(file[later[alike]], files)
    few, of_later = of_workers.sizes < FEWEST, dataset[later]
    # using the same memory again is faster than clearing new memory
    rate, every, ratio = np.empty((3, len(later)))

    def beyond(seconds: Numbers, size: Numbers) -> Numbers:
        np.take(seconds, later, out=rate, mode="clip")  # other modes make a copy first
        np.divide(rate, np.take(size, later, out=ratio, mode="clip"), out=rate)
        medians = of_datasets.medians(rate, FEWEST)
        usual = medians[dataset[first]]
        np.take(medians, of_later, out=every, mode="clip")
        ratio.fill(1.0)
        np.divide(rate, every, out=ratio, where=every > 0)
        slowness = np.nan_to_num(of_workers.medians(ratio), nan=1.0)
        # a few chunks are enough to detect that a worker is slow, but not that it is fast
        slowness[few] = np.maximum(slowness[few], 1.0)
        own = usual * slowness[worker[first]]
        if not (usual > 0).all():
            own = np.where(usual > 0, own, of_workers.medians(rate)[worker[first]])
        # the same file takes longer on a slow worker
        same_file = of_files.medians(rate[alike] / np.maximum(slowness[worker[later[alike]]], 1.0))
        expected = np.fmax(own, same_file[file[first]])
        expected = np.fmax(expected, np.where(np.isnan(own), usual, 0.0)) * size[first]
        late = seconds[first] - expected
        if not (late > SHORTEST).any():
            return np.zeros(len(first))
        np.abs(np.subtract(rate, every, out=ratio), out=ratio)
        spread = of_datasets.medians(ratio, FEWEST)[dataset[first]] * size[first]
        return np.where(~np.isnan(usual) & (late > np.maximum(5.0 * spread, SHORTEST)), late, 0.0)

    per_chunk, events = np.ones(len(chunks)), np.maximum(amounts(chunks, "events"), 1.0)
    have_later = (of_workers.sizes[worker[first]] > 0) & (of_files.sizes[file[first]] > 0)
    certain = chunks["imports"].is_valid().to_numpy()[first] | have_later
    for name, late in found.items():
        for column in phases.COLUMNS_OF[name]:
            seconds = amounts(chunks, column)
            if seconds[first].max() <= SHORTEST:
                continue
            excess = beyond(seconds, per_chunk)
            if name != phases.OPEN and excess.any():
                # time that may scale with events must exceed the usual time both per event and per chunk
                excess = np.minimum(excess, beyond(seconds, events))
            late[first] += np.where(certain, excess, np.minimum(excess, _in_common(excess, of_run[first])))
    return found


def first_of_threads(chunks: Table, known: Flags) -> Flags:
    """Whether each known chunk was the first on its thread."""
    thread = codes(pa.array(row_codes(chunks.select(["worker", "thread"]))))
    start = np.where(known, moments(chunks, "start"), np.inf)
    earliest = np.full(thread.max(initial=-1) + 1, np.inf)
    np.minimum.at(earliest, thread, start)
    return np.asarray(known & (start == earliest[thread]))


def _in_common(beyond: Numbers, of_run: Integers) -> Numbers:
    """Upper limit on each first chunk's extra time, derived from the run's other first chunks."""
    found = np.zeros(len(beyond))
    for run in np.unique(of_run):
        own = beyond[of_run == run]
        if len(own) > 1:
            order, middle = np.sort(own), (len(own) - 2) // 2
            # twice the lower median of the others, because the common excess of first chunks varies by a factor of two
            found[of_run == run] = 2.0 * order[middle + (np.searchsorted(order, own) <= middle)]
    return found


def first_tasks(attempts: Moments, records: Records) -> Presence:
    """Periods in which each worker's first task was overdue.

    A first task is overdue from the time a later task would have arrived until the first task starts. The
    usual delay between assignment and arrival is the median over later tasks on all workers of the recorded run,
    because a worker may have no later task. Workers that started their first task as quickly as later tasks are left
    out.
    """
    begun, assigned = np.full((2, len(records.workers)), np.inf)
    np.minimum.at(begun, attempts.worker, attempts.start)
    np.minimum.at(assigned, attempts.worker, attempts.assigned)
    delay = attempts.arrived - attempts.assigned
    later = (attempts.assigned > begun[attempts.worker]) & np.isfinite(delay)
    of_run, delay = records.together[attempts.worker[later]], delay[later]
    of_runs = Groups(of_run, int(records.together.max(initial=0)) + 1)
    every = of_runs.medians(delay)[of_run]
    usual, spread = (of_runs.medians(each, FEWEST)[records.together] for each in (delay, np.abs(delay - every)))
    with np.errstate(invalid="ignore"):
        late = begun - assigned - usual
        fresh = np.flatnonzero(np.isfinite(late) & (late > np.maximum(5.0 * spread, SHORTEST)))
    return Presence(fresh, (assigned + usual)[fresh], begun[fresh], np.ones(len(fresh), np.int64))


def _could_begin(attempts: Table, worker: Integers, records: Records) -> Numbers:
    """Earliest possible start of each attempt, for a pool without a scheduler.

    This is the actual start, except for the first attempt in a new process. A pool starts a process when a chunk is
    waiting for one. The process can therefore start only after the start of the Runner call (or of the run, if there is
    no call) and, for chunks, only after the call's preprocessing. The time from the start of the process to its first
    attempt is start-up.
    """
    calls, start = records.run.calls, amounts(attempts, "start")
    asked = np.array([*(call.start for call in calls), records.run.start])
    call = places(attempts["call"], [call.id for call in calls])
    opening = attempts["kind"].to_numpy() == KINDS.index(PREPROCESSING)
    opened = asked.copy()
    np.maximum.at(opened, call[opening], amounts(attempts, "stop")[opening])
    order = np.argsort(start, kind="stable")
    order = order[worker[order] >= 0]
    numbers, place = np.unique(worker[order], return_index=True)
    first, birth, found = order[place], records.born[numbers], start.copy()
    # the operating system may report process start times that are up to two ticks too early
    early = np.where(opening, asked[call], opened[call])[first] - 0.02
    new = (birth >= early) & (start[first] - birth > SHORTEST)
    found[first[new]] = birth[new]
    return found


def until_first_attempts(attempts: Moments) -> Presence:
    """Periods in which attempts could already have begun but had not, for runs without a scheduler."""
    late = np.flatnonzero(attempts.assigned < attempts.start)
    return Presence(attempts.worker[late], attempts.assigned[late], attempts.start[late], np.ones(len(late), np.int64))


class StartUp(NamedTuple):
    worker: str
    seconds: float
    idle_seconds: float
    """Part of `seconds` that was spent waiting for the worker's first task."""
    modules: tuple[str, ...]
    """Top-level modules that were loaded while the worker's chunks ran, in order of loading."""


def startup_of(rows: Table, idle: Mapping[str, float], chunks: Table) -> list[StartUp]:
    known = chunks.select(["worker", "imports", "start"]).filter(chunks["imports"].is_valid()).sort_by("start")
    modules: dict[str, dict[str, None]] = defaultdict(dict)
    for row in known.to_pylist():
        modules[row["worker"]] |= dict.fromkeys(row["imports"])
    sums = aggregated(rows, ["address"], {"seconds": (phases.STARTUP, "sum")}, use_threads=False).to_pylist()
    found = [
        StartUp(worker, row["seconds"], idle.get(worker, 0.0), tuple(modules[worker]))
        for row in sums
        if row["seconds"] > 0 and (worker := row["address"])
    ]
    return sorted(found, key=lambda one: -one.seconds)
