"""The time ledger: what the workers' threads did, and why they did nothing, in classes that exclude each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.attempts import among, identities, places
from roastcoffea.metrics.baskets import Flags
from roastcoffea.metrics.catalogue import CATALOGUE, TIME, Metric, NotMeasuredError, Sourced, metric
from roastcoffea.metrics.facts import GAVE_A_RESULT, measured_values, reason_of_absence, rows_where, with_outcome
from roastcoffea.metrics.ledger import RESIDUAL, TOTAL, Attempts, Certificate, Ledger
from roastcoffea.metrics.slots import (
    CAUSES,
    MICROSECONDS,
    ON_THE_WAY,
    PAUSED,
    PLACEMENT,
    QUEUED,
    TRANSFER,
    WORKER,
    Axes,
    Counts,
    Moments,
    Presence,
    Slots,
    axes,
    idle_slots,
    spread,
)
from roastcoffea.metrics.statistics import Numbers, clipped
from roastcoffea.records import tasks as task_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import FINISHED, Run
from roastcoffea.records.tasks import KINDS, OUTCOMES
from roastcoffea.records.workers import PAUSE_COLUMNS
from roastcoffea.report.html import heading, page
from roastcoffea.units import PERCENT, SECOND, STRUCTURE

if TYPE_CHECKING:
    import pandas as pd

COMPUTE: Final = "compute"
DECOMPRESS: Final = "decompress"
INTERPRET: Final = "interpret"
READ: Final = "read"
WAIT: Final = "wait"
OPEN: Final = "open"
CHECKPOINT: Final = "checkpoint"
OVERHEAD: Final = "task overhead"
MERGE: Final = "merge"
BEFORE: Final = "preprocessing"
OTHERS: Final = "other tasks"
WASTED: Final = "failed"
BUSY: Final = (
    COMPUTE,
    DECOMPRESS,
    INTERPRET,
    READ,
    WAIT,
    OPEN,
    CHECKPOINT,
    OVERHEAD,
    MERGE,
    BEFORE,
    OTHERS,
    WASTED,
)
CLASSES: Final = (*BUSY, *CAUSES, RESIDUAL)

PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    COMPUTE: ("compute_seconds",),
    DECOMPRESS: ("decompress_seconds",),
    INTERPRET: ("interpret_seconds",),
    READ: ("read_seconds",),
    WAIT: ("wait_seconds",),
    OPEN: ("open_seconds", "build_seconds"),
    CHECKPOINT: ("checkpoint_seconds",),
}
"""Phases of an attempt of a chunk that make a class."""

OF_KIND: Final = {
    task_records.MERGE: MERGE,
    task_records.PREPROCESSING: BEFORE,
    task_records.OTHER: OTHERS,
}
MOMENTS: Final = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seceded", "seen")
OF_TASKS: Final = ("key", "run_id", "kind", "outcome", "worker", *MOMENTS)
"""Columns of tasks that are looked at: a copy of some rows of them is not one of all."""

REPEATED: Final = "repeated"
LEDGER: Final = "time ledger"

Breakdown = Literal["dataset", "worker"]


class Timelines(NamedTuple):
    """How many threads were in which class, as means over bins of time.

    `edges` are Unix seconds, one more than there are bins. `threads` has for each class, `offered` for the threads that
    there were, an array of one row a worker and one column a bin.
    """

    workers: list[str | None]
    edges: Numbers
    threads: dict[str, Numbers]
    offered: Numbers


LinesOf = Callable[[int, "str | None", bool], Timelines]
"""Makes timelines of so many bins: of one worker, of each, or (None) of all together."""


class TimeLedger(Ledger[float]):
    """Seconds of worker threads by class; `total` is threads x the time that their workers were there.

    Where there is no ledger it is empty, and `absent` has the reason.
    """

    def __init__(
        self,
        rows: pa.Table,
        capacity: Mapping[str, float],
        certificate: Certificate,
        *,
        failed: Mapping[str, float] | None = None,
        beyond: float = 0.0,
        tail_of: Mapping[str, float] | None = None,
        client_of: Mapping[str, float] | None = None,
        lines_of: LinesOf | None = None,
        unknown: Mapping[str, str] | None = None,
        absent: str | None = None,
    ) -> None:
        self.rows = rows
        """Seconds by `address` of the worker and `dataset` (none where the time belongs to none), a column a class."""
        self.capacity = capacity
        """Thread seconds by worker."""
        self.failed = dict(failed or {})
        """Seconds of the class "failed" by reason."""
        self.beyond = beyond
        """Busy seconds beyond a worker's threads, or while it was not there: they are in the residual."""
        self.tail_of = dict(tail_of or {})
        """Seconds of the class "idle: tail" by what was still on workers or on its way: "processor" while any such task
        was, else "merge", else "preprocessing", else "other"."""
        self.client_of = dict(client_of or {})
        """Seconds of the class "idle: client": "before" the first task, "between" tasks, and "after" the last one."""
        self.unknown = dict(unknown or {})
        """Classes that were not measured, with the reason: they are no part of the ledger."""
        self._lines_of = lines_of
        names = [name for name in CLASSES if name != RESIDUAL and name not in self.unknown]
        sums = {name: float(pc.sum(rows[name], min_count=0).as_py()) for name in names}
        self.total: float | None = None if absent is not None else sum(capacity.values())
        classes = {} if self.total is None else sums | {RESIDUAL: self.total - sum(sums.values())}
        super().__init__(classes, certificate, absent)

    @classmethod
    def not_measured(cls, reason: str) -> TimeLedger:
        """Ledger of a run for which there is none."""
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_rows([], [], {}), {}, certificate, absent=reason)

    def _repr_html_(self) -> str:
        return page(heading("Time ledger: worker threads x time"), self.html_table(self.total, SECOND))

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Seconds of each class by "worker" or "dataset", with their total; by worker also the residual.

        Idle time and merging belong to no dataset: they stand in a row without one.
        """
        if what not in ("worker", "dataset"):
            text = f'the time ledger is split by "worker" or "dataset", not by {what!r}'
            raise ValueError(text)
        names = [name for name in CLASSES if name != RESIDUAL and name not in self.unknown]
        key = "address" if what == "worker" else what
        sums = self.rows.group_by(key).aggregate([(name, "sum") for name in names])
        frame: pd.DataFrame = sums.rename_columns([key, *names]).to_pandas().set_index(key).sort_index()
        frame.index.name = what
        if what == "worker":
            frame = frame.reindex(list(self.capacity), fill_value=0.0)
            frame[RESIDUAL] = [self.capacity[worker] for worker in frame.index] - frame.sum(axis=1)
        frame[TOTAL] = frame.sum(axis=1)
        return frame

    def timeline(self, bins: int = 500, worker: str | None = None) -> pd.DataFrame:
        """Threads by class over time: of all workers together, or of the one with this address.

        Each row is a bin of `seconds` that begins at `start` (Unix seconds, the index). Its classes are means over the
        bin, so that their sums x `seconds` are the ledger's; `total` is the threads that there were. A task's classes
        are spread evenly over its time; idle ones are exact.
        """
        import pandas as pd

        lines = self._lines(bins, worker, False)
        columns = {"seconds": np.diff(lines.edges)} | {name: rows[0] for name, rows in lines.threads.items()}
        return pd.DataFrame(columns | {TOTAL: lines.offered[0]}, index=pd.Index(lines.edges[:-1], name="start"))

    def timelines(self, bins: int = 500) -> Timelines:
        """Threads by class over time, of each worker; see `timeline`."""
        return self._lines(bins, None, True)

    def _lines(self, bins: int, worker: str | None, each: bool) -> Timelines:
        if self._lines_of is None:
            text = f"there is no timeline: {self.absent or 'the ledger was made without one'}"
            raise NotMeasuredError(text)
        if worker is not None and worker not in self.capacity:
            text = f"there was no worker {worker!r}; the workers are {', '.join(self.capacity)}"
            raise KeyError(text)
        lines = self._lines_of(bins, worker, each)
        return lines._replace(threads={name: rows for name, rows in lines.threads.items() if name in self})


class _Busy(NamedTuple):
    """Attempts that kept a thread: when, and how many seconds of which class and dataset."""

    moments: Moments
    seconds: dict[str, Numbers]
    dataset: pa.Array
    failed: dict[str, float]
    reasons: list[str]
    attempts: Attempts


def _rows(workers: list[str | None], datasets: list[str | None], seconds: Mapping[str, Any]) -> pa.Table:
    empty = np.zeros(len(workers))
    classes = {name: np.asarray(seconds.get(name, empty), dtype=np.float64) for name in CLASSES if name != RESIDUAL}
    return pa.table({"address": pa.array(workers, pa.string()), "dataset": pa.array(datasets, pa.string()), **classes})


@metric(
    STRUCTURE,
    group=TIME,
    source="task and chunk records, arrivals and departures of workers",
    formula="busy seconds of tasks, split by the phases of their chunks; idle ones counted by cause",
)
def time_ledger(
    run: Run, lifetimes: pa.Table, chunks: pa.Table | None = None, counted_chunks: pa.Table | None = None
) -> TimeLedger:
    """What the threads of the workers did, and why they did nothing: see `TimeLedger`."""
    if chunks is None or counted_chunks is None:
        if run.tasks is None:
            raise NotMeasuredError(reason_of_absence(run, "chunks"))
        chunks = counted_chunks = table_of_rows(CHUNK_COLUMNS, [])
    seen = _seen(run, lifetimes, chunks, counted_chunks)
    busy, presence, names = seen.busy, seen.presence, seen.names
    if run.tasks is not None and len(run.tasks) and not len(busy.moments.worker):
        raise NotMeasuredError("no attempt of a task tells when it ran")
    slots = idle_slots(busy.moments, presence, seen.pauses, axes(run.start, run.stop, *_row_each(names)))
    offered = np.bincount(presence.worker, (presence.stop - presence.start) * presence.threads, len(names))
    ledger = TimeLedger(
        _all_rows(busy, slots, names),
        dict(zip(names, offered.tolist(), strict=True)),
        Certificate(attempts=busy.attempts, reasons=busy.reasons),
        failed=busy.failed,
        beyond=slots.beyond,
        tail_of=slots.tail_of,
        client_of=slots.client_of,
        lines_of=partial(_timelines, run, lifetimes, chunks, counted_chunks),
        unknown=_unknown(run),
    )
    ledger.certificate.reasons.extend(_not_closed(ledger))
    return ledger


LARGEST_RESIDUAL: Final = 0.01
"""Share of the total from which on a residual, or busy seconds beyond the threads, tell that something is missing."""

OF_A_SCHEDULER: Final = (MERGE, TRANSFER, WORKER, ON_THE_WAY, PAUSED, QUEUED, PLACEMENT)
"""Classes that nobody tells of where there is no scheduler."""


def _unknown(run: Run) -> dict[str, str]:
    """Classes that were not measured, with the reason."""
    if run.tasks is None:
        return dict.fromkeys(OF_A_SCHEDULER, "without a scheduler nothing tells of it")
    return {} if run.pauses is not None else {PAUSED: reason_of_absence(run, "pauses")}


def _not_closed(ledger: TimeLedger) -> list[str]:
    """What does not fit into the time that there was."""
    total, residual = ledger.total or 0.0, ledger.residual or 0.0
    found = []
    if ledger.beyond > LARGEST_RESIDUAL * total:
        found.append(f"{SECOND.text(ledger.beyond)} of tasks do not fit into their workers' threads")
    if abs(residual) > LARGEST_RESIDUAL * total:
        found.append(f"the residual is {SECOND.text(residual)}")
    return found


class _Seen(NamedTuple):
    """What a ledger is counted from; workers are numbers, which have these names."""

    names: list[str]
    presence: Presence
    pauses: Presence
    busy: _Busy


def _seen(run: Run, lifetimes: pa.Table, chunks: pa.Table, counted: pa.Table) -> _Seen:
    names = lifetimes["worker"].unique().to_pylist()
    threads = np.asarray(lifetimes["threads"].to_numpy(), dtype=np.int64)
    presence = Presence(places(lifetimes["worker"], names), *_times_within(run, lifetimes), threads)
    pauses = table_of_rows(PAUSE_COLUMNS, []) if run.pauses is None else run.pauses
    pauses = pauses.filter(pc.is_in(pauses["worker"], value_set=pa.array(names, pa.string())))
    one = np.ones(len(pauses), np.int64)
    paused = Presence(places(pauses["worker"], names), *_times_within(run, pauses), one)
    if run.tasks is None:
        busy = _busy_chunks(run, chunks, counted, names)
    else:
        busy = _busy_tasks(run, run.tasks, chunks, counted, presence, names)
    return _Seen(names, presence, paused, busy)


def _times_within(run: Run, table: pa.Table) -> tuple[Numbers, Numbers]:
    starts, stops = clipped(measured_values(table["start"]), measured_values(table["stop"]), run.start, run.stop)
    return starts, np.maximum(starts, stops)


def _row_each(names: list[str]) -> tuple[Counts, int]:
    """Row of each worker where each has one."""
    return np.arange(len(names)), len(names)


def _timelines(  # noqa: PLR0917
    run: Run, lifetimes: pa.Table, chunks: pa.Table, counted: pa.Table, bins: int, worker: str | None, each: bool
) -> Timelines:
    """Threads by class in each bin; all is counted anew, so that a ledger does not keep what that takes."""
    names, presence, pauses, busy = _seen(run, lifetimes, chunks, counted)
    row, rows = _row_each(names) if each else (np.array([worker not in (None, name) for name in names], np.int64), 2)
    where = axes(run.start, run.stop, row, rows, bins)
    seconds = {name: _spread(busy, amounts, where) for name, amounts in busy.seconds.items()}
    seconds |= idle_slots(busy.moments, presence, pauses, where).seconds
    there = (presence.stop - presence.start) * presence.threads
    offered = spread(presence.worker, presence.start, presence.stop, there, where)
    widths = np.maximum(np.diff(where.edges), 1) / MICROSECONDS
    found = names if each else [worker]
    threads = {name: seconds[name][: len(found)] / widths for name in CLASSES if name != RESIDUAL}
    return Timelines([*found], run.start + where.edges / MICROSECONDS, threads, offered[: len(found)] / widths)


def _spread(busy: _Busy, amounts: Numbers, where: Axes) -> Numbers:
    some = np.flatnonzero(amounts)
    moments = busy.moments
    return spread(moments.worker[some], moments.start[some], moments.stop[some], amounts[some], where)


def _all_rows(busy: _Busy, slots: Slots, names: list[str]) -> pa.Table:
    """Busy seconds by worker and dataset, and idle ones by worker."""
    datasets = pc.dictionary_encode(busy.dataset)
    number = np.asarray(pc.fill_null(datasets.indices, len(datasets.dictionary)).to_numpy(), dtype=np.int64)
    known = [*datasets.dictionary.to_pylist(), None]
    places = busy.moments.worker * len(known) + number
    some = np.unique(places)
    seconds = {name: np.bincount(places, busy.seconds[name], len(names) * len(known))[some] for name in BUSY}
    addresses, of = (
        [words[place] for place in found] for words, found in ((names, some // len(known)), (known, some % len(known)))
    )
    idle = _rows([*names], [None] * len(names), {cause: amounts[:, 0] for cause, amounts in slots.seconds.items()})
    return pa.concat_tables([_rows(addresses, of, seconds), idle])


# Where chunks are all that is known


def _busy_chunks(run: Run, chunks: pa.Table, counted: pa.Table, names: list[str]) -> _Busy:
    """Attempts of chunks and openings of files as what kept the threads."""
    parts, reasons = [_classes_of_chunks(chunks, counted)], []
    reasons += _untold_phases(counted)
    if run.preprocessing is None:
        reasons.append("preprocessing was not recorded")
    else:
        parts.append(_classes_of_openings(run.preprocessing))
    table = pa.concat_tables(parts)
    worker = places(table["worker"], names)
    known = worker >= 0
    if not known.all():
        reasons.append(f"{np.count_nonzero(~known)} attempts ran on workers that were not seen")
    table, worker = rows_where(table, known), worker[known]
    start, stop = (np.asarray(table[name].to_numpy(), dtype=np.float64) for name in ("start", "stop"))
    kind = np.asarray(table["kind"].to_numpy(), dtype=np.int64)
    finished = [call for call in run.calls if call.outcome == FINISHED and call.chunks is not None]
    assigned = sum(call.chunks or 0 for call in finished) if len(finished) == len(run.calls) else None
    if assigned is not None and len(counted) < assigned:
        reasons.append(f"{assigned - len(counted)} of {assigned} chunks left no record, or gave no result")
    return _Busy(
        Moments(worker, start, start, start, start, start, stop, stop, kind),
        {name: np.asarray(table[name].to_numpy()) for name in BUSY},
        table["dataset"].combine_chunks(),
        {task_records.ERROR: float(np.sum(table[WASTED].to_numpy()))} if np.any(table[WASTED].to_numpy()) else {},
        reasons,
        Attempts(len(counted), assigned),
    )


def _classes_of_chunks(chunks: pa.Table, counted: pa.Table) -> pa.Table:
    """Attempts of chunks with their seconds by class; what is in no phase is overhead."""
    used, wall = among(chunks, counted), _phase(chunks, ("wall_seconds",))
    seconds = {name: np.where(used, _phase(chunks, columns), 0.0) for name, columns in PHASES.items()}
    seconds[WASTED] = np.where(used, 0.0, wall)
    seconds[OVERHEAD] = wall - sum(seconds.values())
    return _attempts(chunks, task_records.PROCESSOR, seconds)


def _classes_of_openings(openings: pa.Table) -> pa.Table:
    good = pc.fill_null(pc.equal(openings["outcome"], task_records.OK), False)
    good, wall = np.asarray(good.to_numpy(), dtype=np.bool_), _phase(openings, ("wall_seconds",))
    seconds = {BEFORE: np.where(good, wall, 0.0), WASTED: np.where(good, 0.0, wall)}
    return _attempts(openings, task_records.PREPROCESSING, seconds)


def _attempts(table: pa.Table, kind: str, seconds: Mapping[str, Numbers]) -> pa.Table:
    nothing = np.zeros(len(table))
    known = table.select(["worker", "dataset", "start", "stop"])
    known = known.append_column("kind", pa.array(np.full(len(table), KINDS.index(kind))))
    for name in BUSY:
        known = known.append_column(name, pa.array(seconds.get(name, nothing)))
    return rows_where(known, pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def _untold_phases(counted: pa.Table) -> list[str]:
    """How many chunks lack a phase: its time is in none of the classes of phases."""
    names = [column for columns in PHASES.values() for column in columns]
    computed = with_outcome(counted.select(["outcome", *names]), (task_records.OK,))
    lacking = np.zeros(len(computed), np.bool_)
    for name in names:
        lacking |= np.asarray(computed[name].is_null().to_numpy(), dtype=np.bool_)
    number = int(np.count_nonzero(lacking))
    return [f"{number} chunks do not tell all their phases: that time is called {OVERHEAD}"] if number else []


def _phase(chunks: pa.Table, columns: tuple[str, ...]) -> Numbers:
    """Sum of these columns, as far as they were measured."""
    total = np.zeros(len(chunks))
    for column in columns:
        total += np.asarray(pc.fill_null(chunks[column], 0.0).to_numpy())
    return total


# Where a scheduler tells of tasks


def _busy_tasks(  # noqa: PLR0917
    run: Run, tasks: pa.Table, chunks: pa.Table, counted: pa.Table, presence: Presence, names: list[str]
) -> _Busy:
    """Attempts of tasks as what kept the threads, with what the records of their chunks tell of them."""
    reasons = [f"{run.dropped[name]} rows of {name} were lost" for name in ("tasks", "chunks") if run.dropped.get(name)]
    tasks = tasks.select(OF_TASKS)
    worker = places(tasks["worker"], names)
    start, stop = _intervals(tasks, worker, presence, run)
    known = (worker >= 0) & ~np.isnan(start) & ~np.isnan(stop)
    untimed = np.count_nonzero(~known & _never_ran(tasks))
    if untimed:
        reasons.append(f"{untimed} attempts of tasks do not tell when they ran")
    went_on = np.count_nonzero(~known & (worker >= 0) & (_outcomes(tasks) == OUTCOMES.index(task_records.CANCELLED)))
    if went_on:
        reasons.append(
            f"{went_on} attempts of tasks were cancelled when a worker had them: what went on is taken for idle"
        )
    reasons += _uncounted(run.attempts, tasks)
    link = _linked(tasks, chunks)
    if link.without_task:
        reasons.append(f"of {link.without_task} attempts of chunks the task was not seen: their time is taken for idle")
    if not known.all():
        tasks, worker, start, stop = tasks.filter(pa.array(known)), worker[known], start[known], stop[known]
        link = link._replace(task=link.task[known])
    seconds, dataset, failed, unseen = _classes_of_tasks(tasks, stop - start, link, chunks, counted, run)
    reasons += _untold_phases(counted)
    if unseen:
        reasons.append(f"{unseen} attempts of chunks left no record: their time is in no class")
    moments = _moments(tasks, worker, start, stop)
    return _Busy(moments, seconds, dataset, failed, reasons, Attempts(len(tasks) - unseen, len(known)))


def _uncounted(attempts: Mapping[str, int] | None, tasks: pa.Table) -> list[str]:
    """Attempts that the scheduler counted, and of which there is no row."""
    if attempts is None:
        return ["the scheduler did not tell how many attempts of tasks there were"]
    rows = np.bincount(_kinds(tasks), minlength=len(KINDS))
    lacking = {kind: number - int(rows[KINDS.index(kind)]) for kind, number in attempts.items()}
    return [f"{number} attempts of {kind} tasks left no row" for kind, number in lacking.items() if number > 0]


def _never_ran(tasks: pa.Table) -> Flags:
    """Attempts that should tell when they ran: one that was cancelled may never have begun."""
    return ~np.isin(_outcomes(tasks), [OUTCOMES.index(quiet) for quiet in (task_records.CANCELLED, task_records.LOST)])


def _outcomes(tasks: pa.Table) -> Counts:
    """Outcome of each attempt: its place in OUTCOMES."""
    return places(tasks["outcome"], OUTCOMES)


def _kinds(tasks: pa.Table) -> Counts:
    """Kind of each attempt: its place in KINDS."""
    return places(tasks["kind"], KINDS)


def _intervals(tasks: pa.Table, worker: Counts, presence: Presence, run: Run) -> tuple[Numbers, Numbers]:
    """When attempts kept their thread; of those that were lost with their worker it is estimated."""
    start, stop = (_times(tasks, name) for name in ("start", "stop"))
    outcome = _outcomes(tasks)
    unfinished = outcome == OUTCOMES.index(task_records.UNFINISHED)
    stop[unfinished] = run.stop
    left = np.zeros(int(presence.worker.max(initial=-1)) + 2)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero((outcome == OUTCOMES.index(task_records.LOST)) & np.isnan(start) & (worker >= 0))
    assigned = _times(tasks, "assigned") if len(lost) else start
    for number in np.unique(worker[lost]):
        _estimate_lost(lost[worker[lost] == number], worker == number, start, stop, assigned, presence, number, left)
    stop = np.fmin(stop, _times(tasks, "seceded"))
    others = _kinds(tasks) == KINDS.index(task_records.OTHER)
    stop = np.where(others | unfinished, np.minimum(stop, left[worker]), stop)
    # what others began before the run belongs to it from then on
    earliest = np.where(others, run.start, -np.inf)
    return np.maximum(start, earliest), np.maximum(stop, earliest)


def _estimate_lost(  # noqa: PLR0917
    lost: Counts,
    here: Flags,
    start: Numbers,
    stop: Numbers,
    assigned: Numbers,
    presence: Presence,
    number: int,
    left: Numbers,
) -> None:
    """Give attempts that ended with their worker the time from when a thread was free for them until it left."""
    threads = int(presence.threads[presence.worker == number].max())
    free = np.sort(stop[here & ~np.isnan(stop)])[::-1][:threads]
    free = np.sort(np.concatenate([free, np.full(threads - len(free), -np.inf)]))
    first = lost[np.argsort(assigned[lost], kind="stable")][:threads]
    start[first] = np.maximum(assigned[first], free[: len(first)])
    stop[first] = np.maximum(left[number], start[first])


def _times(tasks: pa.Table, name: str) -> Numbers:
    return np.array(pc.fill_null(tasks[name], np.nan).to_numpy(), dtype=np.float64)


def _moments(tasks: pa.Table, worker: Counts, start: Numbers, stop: Numbers) -> Moments:
    """Moments of attempts in their order: what is not known came as late as it could."""
    lasting = _outcomes(tasks) == OUTCOMES.index(task_records.UNFINISHED)
    seen = np.where(lasting, stop, np.fmax(_times(tasks, "seen"), stop))
    late = [start]
    for name in ("ready", "arrived", "assigned", "runnable"):
        late.append(np.fmin(_times(tasks, name), late[-1]))
    ready, arrived, assigned, runnable = late[1:]
    return Moments(worker, runnable, assigned, arrived, ready, start, stop, seen, _kinds(tasks))


def _classes_of_tasks(  # noqa: PLR0917
    tasks: pa.Table, duration: Numbers, link: _Link, chunks: pa.Table, counted: pa.Table, run: Run
) -> tuple[dict[str, Numbers], pa.Array, dict[str, float], int]:
    """Seconds by class of each attempt, its dataset, failed seconds by reason, and how many chunks left no record."""
    kind, outcome = _kinds(tasks), _outcomes(tasks)
    processor, other = (kind == KINDS.index(name) for name in (task_records.PROCESSOR, task_records.OTHER))
    inside = _inside(link, chunks, counted)
    processed = processor & (outcome == OUTCOMES.index(task_records.OK))
    repeated = processed & inside.recorded & ~inside.used & (inside.seconds[WASTED] == 0)
    lost = (outcome != OUTCOMES.index(task_records.OK)) | repeated
    counts = processed & ~repeated
    seconds = {name: np.where(counts, amounts, 0.0) for name, amounts in inside.seconds.items()}
    erred = seconds[WASTED]
    rest = duration - sum(seconds.values())
    seconds |= {name: np.where((kind == KINDS.index(of)) & ~lost, duration, 0.0) for of, name in OF_KIND.items()}
    # another user's task is his own affair, however it ended
    seconds[OTHERS] = np.where(other, duration, 0.0)
    wasted = np.where(lost & ~other, duration, 0.0)
    failed = _by_reason(np.where(repeated, len(OUTCOMES), outcome), wasted)
    if erred.any():
        failed[task_records.ERROR] = failed.get(task_records.ERROR, 0.0) + float(erred.sum())
    seconds[WASTED] = wasted + erred
    seconds[OVERHEAD] = np.where(counts & inside.recorded, rest, 0.0)
    dataset = pc.if_else(pa.array(processor), inside.dataset, _dataset_of_openings(tasks, run))
    return seconds, dataset, failed, int(np.count_nonzero(counts & ~inside.recorded))


def _by_reason(reason: Counts, wasted: Numbers) -> dict[str, float]:
    sums = np.bincount(reason, wasted, len(OUTCOMES) + 1)
    there = np.unique(reason[wasted > 0])
    return {(*OUTCOMES, REPEATED)[place]: float(sums[place]) for place in there}


class _Link(NamedTuple):
    """Number of the key and run id of each attempt of a task, and of a chunk; -1 where chunks have none."""

    task: Counts
    chunk: Counts
    number: int
    without_task: int
    """Attempts of chunks that ran in a task of which nothing is known."""


def _linked(tasks: pa.Table, chunks: pa.Table) -> _Link:
    of_chunks, of_tasks = identities(tasks, chunks)
    known, number = np.unique(of_chunks, return_inverse=True)
    known, number = (known[1:], number - 1) if len(known) and known[0] < 0 else (known, number)
    place = np.searchsorted(known, of_tasks)
    place = np.where((of_tasks >= 0) & (np.append(known, -1)[place] == of_tasks), place, -1)
    seen = np.bincount(place[place >= 0], minlength=len(known)) > 0
    return _Link(place, number, len(known), int(np.count_nonzero(~seen[number[number >= 0]])))


class _Inside(NamedTuple):
    """For each attempt of a task what the records of its chunk tell.

    `seconds` are those of phases of attempts that counted, and of failed ones; `used` whether any counted.
    """

    seconds: dict[str, Numbers]
    used: Flags
    recorded: Flags
    dataset: pa.Array


def _inside(link: _Link, chunks: pa.Table, counted: pa.Table) -> _Inside:
    some = link.chunk >= 0
    number = link.chunk[some]
    used = among(chunks, counted)

    def sums(amounts: Numbers) -> Numbers:
        found = np.bincount(number, amounts[some], link.number + 1)
        return np.asarray(found[link.task])

    gave = np.asarray(pc.is_in(chunks["outcome"], value_set=pa.array(GAVE_A_RESULT, pa.string())).to_numpy())
    seconds = {name: sums(np.where(used, _phase(chunks, columns), 0.0)) for name, columns in PHASES.items()}
    seconds[WASTED] = sums(np.where(gave, 0.0, _phase(chunks, ("wall_seconds",))))
    last = np.full(link.number + 1, -1)
    last[number] = np.flatnonzero(some)
    row = last[link.task]
    dataset = chunks["dataset"].combine_chunks().take(pa.array(row, mask=row < 0))
    return _Inside(seconds, sums(used.astype(np.float64)) > 0, link.task >= 0, dataset)


def _dataset_of_openings(tasks: pa.Table, run: Run) -> pa.Array:
    """Dataset of the file that a preprocessing task opened."""
    if run.preprocessing is None or not len(run.preprocessing):
        return pa.nulls(len(tasks), pa.string())
    openings = run.preprocessing.group_by("key").aggregate([("dataset", "max")])
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings["dataset_max"].combine_chunks().take(found).combine_chunks()


# Metrics of the ledger


def _class(name: str, time_ledger: TimeLedger) -> Sourced:
    if name in time_ledger.unknown:
        raise NotMeasuredError(time_ledger.unknown[name])
    reasons = time_ledger.certificate.reasons
    source = f"{LEDGER}, incomplete: {'; '.join(reasons)}" if reasons else LEDGER
    return Sourced(time_ledger.total if name == TOTAL else time_ledger[name], source)


MEANINGS: Final = {
    TOTAL: "Worker threads x the time that their workers were there.",
    COMPUTE: "CPU time of the threads in process(), less decompression and interpretation.",
    DECOMPRESS: "CPU time of the chunks' threads in decompression.",
    INTERPRET: "CPU time of the chunks' threads in interpretation of baskets, from hand-over to final array.",
    READ: "Waiting for storage inside of process().",
    WAIT: "Other time in process() without CPU: the GIL, locks, sleep, too few cores.",
    OPEN: "Opening files, and building tree, schema and events.",
    CHECKPOINT: "Loading and saving checkpoints.",
    OVERHEAD: "The rest of the processor's tasks: closing the file, compressing the result, the executor itself.",
    MERGE: "Tasks that merge results.",
    BEFORE: "Tasks that fetch the metadata of files.",
    OTHERS: "Tasks on these workers that belong to nobody's Runner call here.",
    WASTED: "Whole attempts that gave nothing: they erred, lost their worker, were cancelled, repeated or unfinished.",
    "transfer": "Free slots whose task waited for its inputs.",
    "worker": "Free slots whose task had arrived, was ready, and had not begun.",
    "on the way": "Free slots while an assignment or a report travelled.",
    PAUSED: "Free slots of workers that Dask had paused for memory: they begin nothing and fetch nothing.",
    "idle: queued": "Free slots while tasks that could run waited at the scheduler.",
    "idle: placement": "Free slots while ready tasks waited on other workers.",
    "idle: tail": "Free slots with nothing left to run while others still worked.",
    "idle: client": "Free slots while nothing was anywhere: the client prepared, merged, or had not begun.",
    RESIDUAL: "Total less all classes: small where all is understood.",
}
for name, meaning in MEANINGS.items():
    CATALOGUE.add(
        Metric(
            name=f"time_{name.replace(': ', '_').replace(' ', '_')}_seconds",
            function=partial(_class, name),
            inputs=("time_ledger",),
            unit=SECOND,
            group=TIME,
            source=LEDGER,
            meaning=meaning,
            label=name,
            written_formula=f'time_ledger["{name}"]' if name != TOTAL else "time_ledger.total",
        )
    )


@metric(PERCENT, group=TIME, source=LEDGER, label="busy", formula="100 x busy classes / total")
def busy_percent(time_ledger: TimeLedger) -> float:
    """Share of the threads' time in which a task ran."""
    if not time_ledger.total:
        raise NotMeasuredError("no worker was there")
    return 100 * sum(time_ledger.get(name, 0.0) for name in BUSY) / time_ledger.total
