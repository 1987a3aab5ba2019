"""Attempts that kept the workers' threads busy: tasks if a scheduler recorded them, otherwise chunks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import facts, phases, startup, statistics
from roastcoffea.metrics.facts import among, rows_where, rows_with
from roastcoffea.metrics.ledger import Attempts, attempts_of_calls
from roastcoffea.metrics.slots import Moments, Presence
from roastcoffea.metrics.statistics import Axes, Integers, Numbers, amounts, axes, codes, having, moments, places
from roastcoffea.records import tasks as task_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import KINDS, OUTCOMES
from roastcoffea.records.workers import PAUSE_COLUMNS


class Records(NamedTuple):
    """Records that a time ledger is built from; a worker is an index into `workers`."""

    run: Run
    chunks: pa.Table
    counted: pa.Table
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
    def of(cls, run: Run, lifetimes: pa.Table, chunks: pa.Table, counted: pa.Table) -> Records:
        """Records of a run."""
        workers: list[str] = lifetimes["worker"].unique().to_pylist()
        parts = {part.id: part for part in run.merged}
        names = zip(lifetimes["worker"].to_pylist(), lifetimes["run"].to_pylist(), strict=True)
        run_of = {worker: parts.get(of, run) for worker, of in names}
        pauses = table_of_rows(PAUSE_COLUMNS, []) if run.pauses is None else run.pauses
        pauses = rows_with(pauses, "worker", workers)
        presence = _presence(run, lifetimes, workers, np.asarray(lifetimes["threads"].to_numpy(), dtype=np.int64))
        paused = _presence(run, pauses, workers, np.ones(len(pauses), np.int64))
        spans = [(place, *gap) for place, worker in enumerate(workers) for gap in run_of[worker].gaps]
        place, start, stop = np.array(spans, np.float64).reshape(-1, 3).T
        gaps = Presence(place.astype(np.int64), start, stop, np.ones(len(spans), np.int64))
        born = _born(lifetimes, workers, np.array([run_of[worker].start for worker in workers]))
        together = np.zeros(len(workers), np.int64)
        if run.merged:
            together[places(lifetimes["worker"], workers)] = codes(lifetimes["run"])
        return cls(run, chunks, counted, workers, presence, paused, gaps, together, born)

    def axes(self, bins: int = 1, worker: str | None = None, *, each: bool = True) -> Axes:
        """Bins over the run, one row per worker; or one row for this worker or for all, and one for the rest."""
        row, rows = np.arange(len(self.workers)), len(self.workers)
        if not each:
            row, rows = np.array([worker not in (None, name) for name in self.workers], np.int64), 2
        return axes(self.run.start, self.run.stop, row, rows, bins)

    def run_of(self, worker: pa.ChunkedArray) -> Integers:
        """Number of the recorded run of each row of a table, by its worker."""
        return np.append(self.together, 0)[places(worker, self.workers)]

    def offered(self) -> Numbers:
        """Thread seconds of each span of a worker's presence."""
        return np.asarray((self.presence.stop - self.presence.start) * self.presence.threads)


def _presence(run: Run, spans: pa.Table, workers: list[str], threads: Integers) -> Presence:
    begun, ended = (statistics.measured_values(spans[name]) for name in ("start", "stop"))
    starts, stops = statistics.clipped(begun, ended, run.start, run.stop)
    return Presence(places(spans["worker"], workers), starts, np.maximum(starts, stops), threads)


def _born(lifetimes: pa.Table, workers: list[str], begun: Numbers) -> Numbers:
    """When the process of each worker was born in its run; NaN where that was before, or is not known."""
    found, known = np.full(len(workers), np.inf), np.ones(len(workers), np.bool_)
    worker = places(lifetimes["worker"], workers)
    np.minimum.at(found, worker, moments(lifetimes, "start"))
    np.logical_and.at(known, worker, lifetimes["process"].is_valid().to_numpy())
    return np.where(known & (found > begun), found, np.nan)


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
    run, counted = records.run, records.counted
    parts, reasons = [_classes_of_chunks(records)], [*facts.why_calls_lack(run), *incomplete_phases(counted)]
    if (openings := run.preprocessing) is None:
        reasons.append("preprocessing was not recorded")
    else:
        wall, erred = amounts(openings, "wall_seconds"), having(openings["outcome"], task_records.ERROR)
        seconds = {phases.PREPROCESSING: np.where(erred, 0.0, wall), phases.FAILED: np.where(erred, wall, 0.0)}
        parts.append(_attempts(openings, task_records.PREPROCESSING, seconds, records.by))
    table = pa.concat_tables(parts, promote_options="default")
    worker = places(table["worker"], records.workers)
    known, asked = worker >= 0, _asked(run, table, amounts(table, "stop"))
    # what has no worker is the client's tracing of columns
    if unknown := np.count_nonzero(~known & table["worker"].is_valid().to_numpy()):
        reasons.append(f"{unknown} attempts ran on unknown workers")
    table, worker = rows_where(table, known), worker[known]
    attempts, missing = attempts_of_calls(run, records.chunks, counted)
    reasons += missing
    start, stop, wasted = (amounts(table, name) for name in ("start", "stop", phases.FAILED))
    able = startup.could_begin(worker, start, asked[known], records.born)
    return Busy(
        Moments(worker, able, able, start, start, start, stop, stop, np.asarray(table["kind"].to_numpy())),
        {name: amounts(table, name) for name in phases.BUSY if name in table.column_names},
        table[records.by].combine_chunks(),
        {task_records.ERROR: float(np.sum(wasted))} if np.any(wasted) else {},
        reasons,
        attempts,
    )


def _asked(run: Run, attempts: pa.Table, stop: Numbers) -> Numbers:
    """From when on attempts can have waited: their Runner call began, and chunks come after its preprocessing.

    Where there was no call, as in preprocessing on its own, the run began.
    """
    begins = np.array([*(call.start for call in run.calls), run.start])
    call = places(attempts["call"], [call.id for call in run.calls])
    opening = attempts["kind"].to_numpy() == KINDS.index(task_records.PREPROCESSING)
    opened = begins.copy()
    np.maximum.at(opened, call[opening], stop[opening])
    return np.where(opening, begins[call], opened[call])


def _classes_of_chunks(records: Records) -> pa.Table:
    """Attempts of chunks with their seconds by class; time in no phase is overhead."""
    chunks, counted = records.chunks, records.counted
    used, wall = among(chunks, counted), sum_of(chunks, ("wall_seconds",))
    seconds = _seconds_of(chunks, used, records)
    seconds[phases.FAILED] = np.where(used, 0.0, wall)
    seconds[phases.OVERHEAD] = wall - sum(seconds.values())
    return _attempts(chunks, task_records.PROCESSOR, seconds, records.by)


def _seconds_of(chunks: pa.Table, used: statistics.Flags, records: Records) -> dict[str, Numbers]:
    """Seconds by class from the chunks' phases; 0 for attempts that did not count."""
    seconds = {name: np.where(used, sum_of(chunks, columns), 0.0) for name, columns in phases.COLUMNS_OF.items()}
    excess = startup.excess_over_later_chunks(chunks, used, records.run_of(chunks["worker"]))
    return startup.moved(seconds, excess)


def _attempts(table: pa.Table, kind: str, seconds: Mapping[str, Numbers], of: str) -> pa.Table:
    known = table.select(["worker", of, "start", "stop", "call"])
    for name, values in {"kind": np.full(len(table), KINDS.index(kind)), **seconds}.items():
        known = known.append_column(name, pa.array(values))
    return rows_where(known, pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def incomplete_phases(counted: pa.Table) -> list[str]:
    """Number of chunks without a phase, whose time is in no phase's class."""
    names = [column for columns in phases.COLUMNS_OF.values() for column in columns]
    computed = facts.with_outcome(counted.select(["outcome", *names]), (task_records.OK,))
    null = {name: computed[name].is_null().to_numpy() for name in names}
    null[phases.BUILD] &= null[phases.OPENED]
    whole, parts = null.pop(phases.UNSPLIT), [null.pop(name) for name in phases.SPLIT]
    lacking = np.logical_or.reduce([*null.values(), whole & np.logical_or.reduce(parts)])
    number = np.count_nonzero(lacking)
    return [f"{number} chunks have incomplete phases: the missing time is in {phases.OVERHEAD}"] if number else []


def sum_of(chunks: pa.Table, columns: tuple[str, ...]) -> Numbers:
    """Sum of these columns over measured values."""
    return sum((amounts(chunks, column) for column in columns), np.zeros(len(chunks)))


MOMENTS: Final = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seceded", "seen")
COLUMNS: Final = ("key", "run_id", "kind", "outcome", "worker", "startup_seconds", *MOMENTS)
"""Columns of tasks used here: copying some rows of them costs less than copying whole rows."""

REPEATED: Final = "repeated"


def busy_tasks(records: Records, tasks: pa.Table) -> Busy:
    """Attempts of tasks that occupied threads, split by class with the records of their chunks."""
    run, tasks = records.run, tasks.select(COLUMNS)
    worker = places(tasks["worker"], records.workers)
    start, stop = _intervals(tasks, worker, records)
    known = (worker >= 0) & ~np.isnan(start) & ~np.isnan(stop)
    link = _linked(tasks, records.chunks)
    without_times, continued = _without_times(tasks, worker, known)
    counts = {
        "attempts of tasks have no recorded times": without_times,
        "attempts of tasks were cancelled on a worker: if they continued, that time counts as idle": continued,
        **_uncounted(run.attempts or {}, tasks),
        "attempts of chunks have no recorded task: their time counts as idle": link.without_task,
    }
    if not known.all():
        tasks, worker, start, stop = rows_where(tasks, known), worker[known], start[known], stop[known]
        link = link._replace(task=link.task[known])
    seconds, of, failed, unrecorded = _split(tasks, stop - start, link, records)
    reasons = [
        *facts.why_calls_lack(run),
        *facts.lost_rows(run, "tasks", "chunks"),
        *(["the scheduler did not report the number of task attempts"] if run.attempts is None else []),
        *(f"{number} {what}" for what, number in counts.items() if number > 0),
        *incomplete_phases(records.counted),
        *([f"{unrecorded} attempts of chunks left no record: their time is in no class"] if unrecorded else []),
    ]
    attempts = Attempts(len(tasks) - unrecorded, len(known))
    return Busy(_moments(tasks, worker, start, stop), seconds, of, failed, reasons, attempts)


def estimated_intervals(records: Records, tasks: pa.Table) -> tuple[Numbers, Numbers]:
    """Start and stop of each attempt of the run's tasks; NaN for one that never started, or if unknown.

    Both are estimated for an attempt lost with its worker; an unfinished one lasts until the end of the run.
    """
    tasks = tasks.select(COLUMNS)
    return _intervals(tasks, places(tasks["worker"], records.workers), records)


def _without_times(tasks: pa.Table, worker: Integers, known: statistics.Flags) -> tuple[int, int]:
    """Attempts without times that should have them, and those that were cancelled: these may never have started."""
    cancelled = having(tasks["outcome"], task_records.CANCELLED)
    untimed = ~known & ~cancelled & ~having(tasks["outcome"], task_records.LOST)
    return int(np.sum(untimed)), int(np.sum(~known & (worker >= 0) & cancelled))


def _uncounted(attempts: Mapping[str, int], tasks: pa.Table) -> dict[str, int]:
    """Attempts counted by the scheduler that have no row, by what to say of them."""
    rows = np.bincount(places(tasks["kind"], KINDS), minlength=len(KINDS))
    return {
        f"attempts of {kind} tasks left no row": number - int(rows[KINDS.index(kind)])
        for kind, number in attempts.items()
    }


def _intervals(tasks: pa.Table, worker: Integers, records: Records) -> tuple[Numbers, Numbers]:
    """When attempts occupied their thread; estimated if they were lost with their worker."""
    run, presence = records.run, records.presence
    start, stop = (moments(tasks, name) for name in ("start", "stop"))
    unfinished = having(tasks["outcome"], task_records.UNFINISHED)
    stop[unfinished] = run.stop
    left = np.zeros(int(presence.worker.max(initial=-1)) + 2)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero(having(tasks["outcome"], task_records.LOST) & np.isnan(start) & (worker >= 0))
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
    others = having(tasks["kind"], task_records.OTHER)
    stop = np.where(others | unfinished, np.minimum(stop, left[worker]), stop)
    # work that others started before the run counts from its start, and none that they started after it
    arrived = np.full(len(left), run.stop)
    np.minimum.at(arrived, presence.worker, presence.start)
    earliest, latest = (
        np.where(others, moment[worker], limit) for moment, limit in ((arrived, -np.inf), (left, np.inf))
    )
    return np.maximum(np.minimum(start, latest), earliest), np.maximum(stop, earliest)


def _moments(tasks: pa.Table, worker: Integers, start: Numbers, stop: Numbers) -> Moments:
    """Moments of attempts in order; unknown ones are as late as possible."""
    lasting = having(tasks["outcome"], task_records.UNFINISHED)
    seen = np.where(lasting, stop, np.fmax(moments(tasks, "seen"), stop))
    earlier = (moments(tasks, name) for name in ("ready", "arrived", "assigned", "runnable"))
    _, ready, arrived, assigned, runnable = accumulate(earlier, np.fmin, initial=start)
    return Moments(worker, runnable, assigned, arrived, ready, start, stop, seen, places(tasks["kind"], KINDS))


_Split = tuple[dict[str, Numbers], pa.Array, dict[str, float], int]


def _split(tasks: pa.Table, duration: Numbers, link: _Link, records: Records) -> _Split:
    """Seconds by class of each attempt, its breakdown key, failed seconds by reason, chunks without a record."""
    kind, outcome = places(tasks["kind"], KINDS), places(tasks["outcome"], OUTCOMES)
    processor, other = (kind == KINDS.index(name) for name in (task_records.PROCESSOR, task_records.OTHER))
    of_chunks, used, recorded, of = _chunk_details(link, records)
    processed = processor & (outcome == OUTCOMES.index(task_records.OK))
    repeated = processed & recorded & ~used & (of_chunks[phases.FAILED] == 0)
    lost = (outcome != OUTCOMES.index(task_records.OK)) | repeated
    counts = processed & ~repeated
    seconds = {name: np.where(counts, of_name, 0.0) for name, of_name in of_chunks.items()}
    erred = seconds[phases.FAILED]
    began = np.where(lost, 0.0, np.fmin(amounts(tasks, "startup_seconds"), duration))
    seconds[phases.STARTUP] = seconds[phases.STARTUP] + np.where(counts, began, 0.0)
    rest = duration - sum(seconds.values())
    seconds |= {
        name: np.where((kind == KINDS.index(of)) & ~lost, duration - began, 0.0)
        for of, name in phases.CLASS_OF_KIND.items()
    }
    seconds[phases.STARTUP] = np.where(processor, seconds[phases.STARTUP], began)
    # how another user's task ended does not concern this run
    seconds[phases.OTHER_TASKS] = np.where(other, duration, 0.0)
    wasted = np.where(lost & ~other, duration, 0.0)
    reason = np.where(repeated, len(OUTCOMES), outcome)
    sums = np.bincount(reason, wasted, len(OUTCOMES) + 1)
    failed = {(*OUTCOMES, REPEATED)[place]: float(sums[place]) for place in np.unique(reason[wasted > 0])}
    if erred.any():
        failed[task_records.ERROR] = failed.get(task_records.ERROR, 0.0) + float(erred.sum())
    seconds[phases.FAILED] = wasted + erred
    seconds[phases.OVERHEAD] = np.where(counts & recorded, rest, 0.0)
    of = pc.if_else(pa.array(processor), of, _of_openings(tasks, records))
    return seconds, of, failed, int(np.count_nonzero(counts & ~recorded))


class _Link(NamedTuple):
    """Number of the key and run id of each attempt of a task and of a chunk; -1 if chunks have none."""

    task: Integers
    chunk: Integers
    number: int
    without_task: int
    """Attempts of chunks whose task is unknown."""


def _linked(tasks: pa.Table, chunks: pa.Table) -> _Link:
    of_chunks, of_tasks = facts.identities(tasks, chunks)
    known, number = np.unique(of_chunks, return_inverse=True)
    known, number = (known[1:], number - 1) if len(known) and known[0] < 0 else (known, number)
    place = np.searchsorted(known, of_tasks)
    place = np.where((of_tasks >= 0) & (np.append(known, -1)[place] == of_tasks), place, -1)
    linked = np.bincount(place[place >= 0], minlength=len(known)) > 0
    return _Link(place, number, len(known), int(np.count_nonzero(~linked[number[number >= 0]])))


_ChunkDetails = tuple[dict[str, Numbers], statistics.Flags, statistics.Flags, pa.Array]


def _chunk_details(link: _Link, records: Records) -> _ChunkDetails:
    """What the records of its chunk add to each attempt of a task.

    Phase seconds of attempts that counted and of failed ones; whether any counted; whether any was recorded; and the
    dataset or other breakdown key.
    """
    chunks, counted = records.chunks, records.counted
    some = link.chunk >= 0
    number = link.chunk[some]
    used = among(chunks, counted)

    def sums(amounts: Numbers) -> Numbers:
        found = np.bincount(number, amounts[some], link.number + 1)
        return np.asarray(found[link.task])

    succeeded = statistics.one_of(chunks["outcome"], pa.array(facts.WITH_RESULT))
    seconds = {name: sums(amounts) for name, amounts in _seconds_of(chunks, used, records).items()}
    seconds[phases.FAILED] = sums(np.where(succeeded, 0.0, sum_of(chunks, ("wall_seconds",))))
    last = np.full(link.number + 1, -1)
    last[number] = np.flatnonzero(some)
    row = last[link.task]
    of = chunks[records.by].combine_chunks().take(pa.array(row, mask=row < 0))
    return seconds, sums(used.astype(np.float64)) > 0, link.task >= 0, of


def _of_openings(tasks: pa.Table, records: Records) -> pa.Array:
    """Dataset of the file opened by a preprocessing task, or another breakdown key."""
    run, by = records.run, records.by
    if run.preprocessing is None or not len(run.preprocessing):
        return pa.nulls(len(tasks), pa.string())
    openings = run.preprocessing.group_by("key").aggregate([(by, "max")])
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings[f"{by}_max"].combine_chunks().take(found).combine_chunks()
