"""What occupied the workers' threads: attempts of tasks if a scheduler recorded them, otherwise of chunks, and what of
it was start-up, the extra time of workers' first tasks and threads' first chunks."""

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
from roastcoffea.metrics.facts import aggregated, among, rows_where, rows_with
from roastcoffea.metrics.ledger import Attempts, attempts_of_calls
from roastcoffea.metrics.slots import Moments, Presence
from roastcoffea.metrics.statistics import (
    Flags,
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
    """Records that a time ledger is built from; a worker is an index into `workers`."""

    run: Run
    chunks: Table
    counted: Table
    workers: list[str]
    presence: Presence
    pauses: Presence
    gaps: Presence
    """Times of which nothing was recorded, for each worker."""
    together: Integers
    """Number of each worker's recorded run: workers with the same number could take over each other's tasks."""
    born: Numbers
    """When each worker's process was born in the run; NaN where that was before, or is not known."""
    by: str = "dataset"
    """What busy seconds are split by: a column of chunks and of preprocessing."""

    @classmethod
    def of(cls, run: Run, lifetimes: Table, chunks: Table, counted: Table) -> Records:
        """Records of a run."""
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
        """Thread seconds of each span of a worker's presence."""
        return np.asarray((self.presence.stop - self.presence.start) * self.presence.threads)


def _presence(run: Run, spans: Table, worker: Integers, threads: Integers) -> Presence:
    start, stop = (np.clip(measured_values(spans[name]), run.start, run.stop) for name in ("start", "stop"))
    return Presence(worker, start, np.maximum(start, stop), threads)


class Busy(NamedTuple):
    """Attempts that occupied a thread: when, and for how many seconds by class and dataset."""

    moments: Moments
    seconds: Mapping[str, Numbers]
    of: pa.Array
    """Dataset, or the breakdown requested instead."""
    failed: dict[str, float]
    """Seconds of failed attempts by reason."""
    reasons: list[str]
    """What is missing."""
    attempts: Attempts


def busy_chunks(records: Records) -> Busy:
    """Attempts of chunks and file openings, as the work that occupied threads."""
    run, chunks = records.run, records.chunks
    used, wall = among(chunks, records.counted), amounts(chunks, "wall_seconds")
    seconds = _phase_seconds(records, used)
    seconds[phases.FAILED] = np.where(used, 0.0, wall)
    # time in no phase
    seconds[phases.OVERHEAD] = wall - sum(seconds.values())
    parts = [_attempts(chunks, PROCESSOR, seconds, records.by)]
    reasons = [*facts.why_calls_lack(run), *_incomplete_phases(records.counted)]
    if (openings := run.preprocessing) is None:
        reasons.append("preprocessing was not recorded")
    else:
        wall, erred = amounts(openings, "wall_seconds"), having(openings["outcome"], ERROR)
        classes = {phases.PREPROCESSING: np.where(erred, 0.0, wall), phases.FAILED: np.where(erred, wall, 0.0)}
        parts.append(_attempts(openings, PREPROCESSING, classes, records.by))
    table = pa.concat_tables(parts, promote_options="default")
    worker = places(table["worker"], records.workers)
    known, able = worker >= 0, _could_begin(table, worker, records)
    # what has no worker is the client's tracing of columns
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


def _attempts(table: Table, kind: str, seconds: Mapping[str, Numbers], of: str) -> Table:
    columns = {name: table[name] for name in ("worker", of, "start", "stop", "call")}
    known = pa.table({**columns, "kind": np.full(len(table), KINDS.index(kind)), **seconds})
    return rows_where(known, pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def _phase_seconds(records: Records, used: Flags) -> dict[str, Numbers]:
    """Seconds by class from the chunks' phases, with start-up moved to its own; 0 for attempts that did not count."""
    chunks = records.chunks
    seconds = {name: np.where(used, sum_of(chunks, columns), 0.0) for name, columns in phases.COLUMNS_OF.items()}
    seconds[phases.STARTUP] = np.zeros(len(chunks))
    of_run = np.append(records.together, 0)[places(chunks["worker"], records.workers)]
    for name, excess in _excess_of_first_chunks(chunks, used, of_run).items():
        late = np.minimum(excess, seconds[name])
        seconds[name] -= late
        seconds[phases.STARTUP] += late
    return seconds


def _incomplete_phases(counted: Table) -> list[str]:
    """Number of chunks without a phase, whose time is in no phase's class."""
    names = ["outcome", *phases.SPLIT, *(column for columns in phases.COLUMNS_OF.values() for column in columns)]
    computed = phases.with_sum_of_waits(facts.with_outcome(counted.select(dict.fromkeys(names)), (OK,)))
    null = {name: computed[name].is_null().to_numpy() for name in names if name not in phases.SPLIT}
    null[phases.BUILD] &= null[phases.OPENED]
    number = np.count_nonzero(np.logical_or.reduce([*null.values()]))
    return [f"{number} chunks have incomplete phases: the missing time is in {phases.OVERHEAD}"] if number else []


def sum_of(chunks: Table, columns: tuple[str, ...]) -> Numbers:
    """Sum of these columns over measured values."""
    return sum((amounts(chunks, column) for column in columns), np.zeros(len(chunks)))


MOMENTS: Final = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seceded", "seen")
COLUMNS: Final = ("key", "run_id", "kind", "outcome", "worker", "startup_seconds", *MOMENTS)
"""Columns of tasks used here: copying some rows of them costs less than copying whole rows."""

REPEATED: Final = "repeated"


def busy_tasks(records: Records, tasks: Table) -> Busy:
    """Attempts of tasks that occupied threads, split by class with the records of their chunks."""
    run, tasks = records.run, tasks.select(COLUMNS)
    worker = places(tasks["worker"], records.workers)
    start, stop = estimated_intervals(records, tasks)
    known = (worker >= 0) & ~np.isnan(start) & ~np.isnan(stop)
    chunk, task = facts.identities(tasks, records.chunks)
    cancelled = having(tasks["outcome"], CANCELLED)
    rows = np.bincount(places(tasks["kind"], KINDS), minlength=len(KINDS))
    counts: Row = {
        "attempts of tasks have no recorded times": np.sum(~known & ~cancelled & ~having(tasks["outcome"], LOST)),
        # one that was cancelled may never have started
        "attempts of tasks were cancelled on a worker: if they continued, that time counts as idle": np.sum(
            ~known & (worker >= 0) & cancelled
        ),
        **{
            f"attempts of {kind} tasks left no row": number - int(rows[KINDS.index(kind)])
            for kind, number in (run.attempts or {}).items()
        },
        "attempts of chunks have no recorded task: their time counts as idle": np.sum(
            (chunk >= 0) & ~np.isin(chunk, task)
        ),
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
        *([f"{unrecorded} attempts of chunks left no record: their time is in no class"] if unrecorded else []),
    ]
    seen = np.where(having(tasks["outcome"], LASTING), stop, np.fmax(moments(tasks, "seen"), stop))
    # unknown moments are as late as possible
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
    """Start and stop of each attempt of the run's tasks; NaN for one that never started, or if unknown.

    Both are estimated for an attempt lost with its worker; an unfinished one lasts until the end of the run.
    """
    run, presence, worker = records.run, records.presence, places(tasks["worker"], records.workers)
    start, stop = (moments(tasks, name) for name in ("start", "stop"))
    lasting = having(tasks["outcome"], LASTING)
    stop[lasting] = run.stop
    # the last element is for unknown workers
    arrived, left = np.full((2, len(records.workers) + 1), [[run.stop], [0.0]])
    np.minimum.at(arrived, presence.worker, presence.start)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero(having(tasks["outcome"], LOST) & np.isnan(start) & (worker >= 0))
    assigned = moments(tasks, "assigned") if len(lost) else start
    for number in np.unique(worker[lost]):
        # from the moment a thread was free for them until the worker left
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
    # work that others started before the run counts from its start, and none that they started after it
    earliest = np.where(others, arrived[worker], -np.inf)
    latest = np.where(others, left[worker], np.inf)
    return np.maximum(np.minimum(start, latest), earliest), np.maximum(stop, earliest)


def _split(
    tasks: Table, duration: Numbers, chunk: Integers, task: Integers, records: Records
) -> tuple[dict[str, Numbers], pa.Array, dict[str, float], int]:
    """Seconds by class of each attempt, its breakdown key, failed seconds by reason, attempts without a record.

    `chunk` numbers the tasks of the chunks' records, and `task` has these numbers for tasks; -1 for none.
    """
    chunks = records.chunks
    used, some = among(chunks, records.counted), np.flatnonzero(chunk >= 0)
    number = int(chunk.max(initial=-1)) + 1

    def sums(values: Numbers | Flags) -> Numbers:
        return np.asarray(np.bincount(chunk[some], values[some], number + 1)[task])

    seconds = {name: sums(values) for name, values in _phase_seconds(records, used).items()}
    succeeded = one_of(chunks["outcome"], pa.array(facts.WITH_RESULT))
    seconds[phases.FAILED] = sums(np.where(succeeded, 0.0, amounts(chunks, "wall_seconds")))
    ok, processor, other = (
        having(tasks[column], value) for column, value in (("outcome", OK), ("kind", PROCESSOR), ("kind", OTHER))
    )
    recorded = task >= 0
    repeated = processor & ok & recorded & (sums(used) == 0) & (seconds[phases.FAILED] == 0)
    lost = ~ok | repeated
    counts = processor & ~lost
    seconds = {name: np.where(counts, values, 0.0) for name, values in seconds.items()}
    began = np.where(lost, 0.0, np.fmin(amounts(tasks, "startup_seconds"), duration))
    seconds[phases.STARTUP] += np.where(counts, began, 0.0)
    rest = duration - sum(seconds.values())
    for kind, name in phases.CLASS_OF_KIND.items():
        seconds[name] = np.where(having(tasks["kind"], kind) & ~lost, duration - began, 0.0)
    seconds[phases.STARTUP] = np.where(processor, seconds[phases.STARTUP], began)
    # how another user's task ended does not concern this run
    seconds[phases.OTHER_TASKS] = np.where(other, duration, 0.0)
    wasted = np.where(lost & ~other, duration, 0.0)
    reason = np.where(repeated, len(OUTCOMES), places(tasks["outcome"], OUTCOMES))
    failed = np.bincount(reason, wasted, len(OUTCOMES) + 1)
    failed[OUTCOMES.index(ERROR)] += seconds[phases.FAILED].sum()
    seconds[phases.FAILED] += wasted
    seconds[phases.OVERHEAD] = np.where(counts & recorded, rest, 0.0)
    row = np.full(number + 1, -1)
    row[chunk[some]] = some
    of = chunks[records.by].combine_chunks().take(pa.array(row[task], mask=row[task] < 0))
    return (
        seconds,
        pc.if_else(pa.array(processor), of, _of_openings(tasks, records)),
        {name: amount for name, amount in zip((*OUTCOMES, REPEATED), failed.tolist(), strict=True) if amount},
        int(np.count_nonzero(counts & ~recorded)),
    )


def _of_openings(tasks: Table, records: Records) -> pa.Array:
    """Dataset of the file opened by a preprocessing task, or another breakdown key."""
    openings, by = records.run.preprocessing, records.by
    if openings is None or not len(openings):
        return pa.nulls(len(tasks), pa.string())
    openings = aggregated(openings, ["key"], {by: (by, "max")}, None)
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings[by].combine_chunks().take(found).combine_chunks()


# Start-up

FEWEST: Final = 3
"""Fewest later chunks of a dataset, or later tasks, that establish what is usual."""

SHORTEST: Final = 0.02
"""Seconds below which nothing is start-up: clocks, caches and other processes cause that much. A first one is slow if
it exceeds later ones by this, and by five median deviations."""


def _usual(values: Numbers, code: Integers, of: Integers, fewest: int = 1) -> Numbers:
    """Median of the values with each of these codes; NaN where they are too few."""
    import pandas as pd

    groups = pd.Series(values).groupby(code)
    return np.asarray(groups.median().where(groups.size() >= fewest).reindex(of), np.float64)


def _excess_of_first_chunks(chunks: Table, used: Flags, of_run: Integers) -> dict[str, Numbers]:
    """Extra seconds by class of each chunk that is the first of its thread.

    The usual time is the median of later chunks of the dataset, scaled by how the worker's own later chunks compare to
    that median; or the median of later chunks of the file, if that is more. If the worker or file has no later chunk,
    and the chunk loaded no modules, the chunk itself may be slow: then only what first chunks have in common is
    start-up. Datasets without later chunks are left out. Chunks are compared within their recorded run, which `of_run`
    numbers. It is in classes in which libraries are loaded and functions compiled.
    """
    names = (phases.OPEN, phases.INTERPRET, phases.COMPUTE, phases.LOCK, phases.BLOCKED, phases.WAIT)
    found = {name: np.zeros(len(chunks)) for name in phases.COLUMNS_OF if name in names}
    first, later = _first_of_threads(chunks, used)
    if not len(first) or not len(later):
        return found
    dataset, file = (row_codes(pa.table({"run": of_run, "of": chunks[name]})) for name in ("dataset", "file"))
    worker = codes(chunks["worker"])
    later_ones = np.bincount(worker[later], minlength=worker.max() + 1)[worker]

    def beyond(seconds: Numbers, size: Numbers) -> Numbers:
        """Extra time of first chunks compared with the usual one."""
        rate = (seconds / size)[later]
        usual, every = (_usual(rate, dataset[later], dataset[rows], FEWEST) for rows in (first, later))
        ratio = np.divide(rate, every, out=np.ones(len(rate)), where=every > 0)
        slowness = np.nan_to_num(_usual(ratio, worker[later], worker), nan=1.0)
        # from only a few, slowness is taken and speed is not
        slowness[later_ones < FEWEST] = np.maximum(slowness, 1.0)[later_ones < FEWEST]
        own = np.where(usual > 0, usual * slowness[first], _usual(rate, worker[later], worker[first]))
        # the same file takes longer on a slow worker
        expected = np.fmax(own, _usual(rate / np.maximum(slowness[later], 1.0), file[later], file[first]))
        expected = np.fmax(expected, np.where(np.isnan(own), usual, 0.0)) * size[first]
        spread = _usual(np.abs(rate - every), dataset[later], dataset[first], FEWEST) * size[first]
        late = seconds[first] - expected
        return np.where(~np.isnan(usual) & (late > np.maximum(5.0 * spread, SHORTEST)), late, 0.0)

    have_later = (later_ones[first] > 0) & np.isin(file[first], file[later])
    certain = chunks["imports"].is_valid().to_numpy()[first] | have_later
    for name, late in found.items():
        for column in phases.COLUMNS_OF[name]:
            seconds = amounts(chunks, column)
            if seconds[first].max() <= SHORTEST:
                continue
            excess = beyond(seconds, np.ones(len(chunks)))
            if name != phases.OPEN:
                # what may scale with events is higher both per event and per chunk
                excess = np.minimum(excess, beyond(seconds, np.maximum(amounts(chunks, "events"), 1.0)))
            late[first] += np.where(certain, excess, np.minimum(excess, _in_common(excess, of_run[first])))
    return found


def _first_of_threads(chunks: Table, used: Flags) -> tuple[Integers, Integers]:
    """Completed chunks that are the first of their thread, and later ones."""
    known = used & having(chunks["outcome"], OK)
    for name in ("start", "thread", "worker"):
        known &= chunks[name].is_valid().to_numpy()
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(amounts(chunks, "start")[rows], kind="stable")]
    first = np.unique(row_codes(chunks.select(["worker", "thread"]))[rows], return_index=True)[1]
    known[rows[first]] = False
    return np.sort(rows[first]), np.flatnonzero(known)


def _in_common(beyond: Numbers, of_run: Integers) -> Numbers:
    """Largest extra time of each first chunk that the other first chunks of its run support."""
    found = np.zeros(len(beyond))
    for run in np.unique(of_run):
        own = beyond[of_run == run]
        if len(own) > 1:
            order, middle = np.sort(own), (len(own) - 2) // 2
            # first chunks vary by a factor of two in what they have in common: the lower median of the others
            found[of_run == run] = 2.0 * order[middle + (np.searchsorted(order, own) <= middle)]
    return found


def first_tasks(attempts: Moments, records: Records) -> Presence:
    """Delays between each worker's first assignment and its first task's start, if longer than for later tasks.

    For later tasks the delay runs from assignment to arrival and covers all workers of the recorded run, because a
    worker may have no later task. Workers that started their first task as quickly as later ones are left out.
    """
    begun, assigned = np.full((2, len(records.workers)), np.inf)
    np.minimum.at(begun, attempts.worker, attempts.start)
    np.minimum.at(assigned, attempts.worker, attempts.assigned)
    delay = attempts.arrived - attempts.assigned
    later = (attempts.assigned > begun[attempts.worker]) & np.isfinite(delay)
    of_run, delay = records.together[attempts.worker[later]], delay[later]
    usual = _usual(delay, of_run, records.together, FEWEST)
    spread = _usual(np.abs(delay - _usual(delay, of_run, of_run)), of_run, records.together, FEWEST)
    with np.errstate(invalid="ignore"):
        late = begun - assigned - usual
        fresh = np.flatnonzero(np.isfinite(late) & (late > np.maximum(5.0 * spread, SHORTEST)))
    return Presence(fresh, (assigned + usual)[fresh], begun[fresh], np.ones(len(fresh), np.int64))


def _could_begin(attempts: Table, worker: Integers, records: Records) -> Numbers:
    """When each attempt could have begun in a pool without a scheduler: as it did, but for the first of a new process.

    A pool begins a process when a chunk waits for one: once the Runner call began, or the run where there was no call,
    and chunks come after the preprocessing of their call. So what lies between the birth of a process from then on and
    its first attempt is start-up.
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
    # the operating system may tell it to have been born too early by two ticks
    early = np.where(opening, asked[call], opened[call])[first] - 0.02
    new = (birth >= early) & (start[first] - birth > SHORTEST)
    found[first[new]] = birth[new]
    return found


def until_first_attempts(attempts: Moments) -> Presence:
    """Times in which attempts could have begun and had not, where no scheduler hands them out."""
    late = np.flatnonzero(attempts.assigned < attempts.start)
    return Presence(attempts.worker[late], attempts.assigned[late], attempts.start[late], np.ones(len(late), np.int64))


class StartUp(NamedTuple):
    """Start-up of one worker."""

    worker: str
    seconds: float
    """Thread seconds, as in the ledger."""
    idle_seconds: float
    """Of these, seconds in which its threads waited for its first task."""
    modules: tuple[str, ...]
    """Top-level modules loaded while its chunks ran, in order."""


def startup_of(rows: Table, idle: Mapping[str, float], chunks: Table) -> list[StartUp]:
    """Start-up of each worker with any, longest first; `rows` are those of the time ledger."""
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
