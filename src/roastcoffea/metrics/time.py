"""The time ledger: what the workers' threads did, and why they did nothing, in classes that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.markup import heading, page
from roastcoffea.metrics.catalogue import CATALOGUE, TIME, Metric, NotMeasuredError, Sourced, metric
from roastcoffea.metrics.facts import GAVE_A_RESULT, measured_values, reason_of_absence
from roastcoffea.metrics.ledger import RESIDUAL, TOTAL, Attempts, Certificate, Ledger
from roastcoffea.metrics.slots import CAUSES, Counts, Moments, Presence, Slots, idle_slots
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import tasks as task_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import FINISHED, Run
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
REPEATED: Final = "repeated"
LEDGER: Final = "time ledger"

Breakdown = Literal["dataset", "worker"]
Flags = npt.NDArray[np.bool_]


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
        absent: str | None = None,
    ) -> None:
        self.rows = rows
        """Seconds by `address` of the worker and `dataset` (none where the time belongs to none), a column a class."""
        self.capacity = capacity
        """Thread seconds by worker."""
        self.failed = dict(failed or {})
        """Seconds of the class "failed" by reason."""
        self.tail_of: dict[str, float] = {}
        self.client_of: dict[str, float] = {}
        self.beyond = beyond
        """Busy seconds beyond a worker's threads, or while it was not there: they are in the residual."""
        sums = {name: float(pc.sum(rows[name], min_count=0).as_py()) for name in CLASSES if name != RESIDUAL}
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
        names = [name for name in CLASSES if name != RESIDUAL]
        key = "address" if what == "worker" else what
        sums = self.rows.group_by(key).aggregate([(name, "sum") for name in names])
        frame: pd.DataFrame = sums.rename_columns([key, *names]).to_pandas().set_index(key).sort_index()
        frame.index.name = what
        if what == "worker":
            frame = frame.reindex(list(self.capacity), fill_value=0.0)
            frame[RESIDUAL] = [self.capacity[worker] for worker in frame.index] - frame.sum(axis=1)
        frame[TOTAL] = frame.sum(axis=1)
        return frame


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
    names = lifetimes["worker"].unique().to_pylist()
    starts, stops = (np.clip(measured_values(lifetimes[name]), run.start, run.stop) for name in ("start", "stop"))
    threads = np.asarray(lifetimes["threads"].to_numpy(), dtype=np.int64)
    presence = Presence(_numbers(lifetimes["worker"], names), starts, np.maximum(starts, stops), threads)
    if run.tasks is None:
        busy = _busy_chunks(run, chunks, counted_chunks, names)
    else:
        busy = _busy_tasks(run, run.tasks, chunks, counted_chunks, presence, names)
    slots = idle_slots(busy.moments, presence, run.start, run.stop)
    offered = np.bincount(presence.worker, (presence.stop - presence.start) * threads, len(names))
    return TimeLedger(
        _all_rows(busy, slots, names),
        dict(zip(names, offered.tolist(), strict=True)),
        Certificate(attempts=busy.attempts, reasons=busy.reasons),
        failed=busy.failed,
        beyond=slots.beyond,
    )


def _all_rows(busy: _Busy, slots: Slots, names: list[str]) -> pa.Table:
    """Busy seconds by worker and dataset, and idle ones by worker."""
    table = pa.table({"address": pa.array(names, pa.string()).take(pa.array(busy.moments.worker)), **busy.seconds})
    keys = ["address", "dataset"]
    sums = table.append_column("dataset", busy.dataset).group_by(keys).aggregate([(name, "sum") for name in BUSY])
    seconds = {name: sums[f"{name}_sum"].to_numpy() for name in BUSY}
    idle = _rows([*names], [None] * len(names), slots.seconds)
    return pa.concat_tables([_rows(sums["address"].to_pylist(), sums["dataset"].to_pylist(), seconds), idle])


def _numbers(column: pa.ChunkedArray, names: list[str]) -> Counts:
    """Number of each worker; -1 for one that is not among them."""
    found = pc.fill_null(pc.index_in(column, value_set=pa.array(names, pa.string())), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


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
    worker = _numbers(table["worker"], names)
    known = worker >= 0
    if not known.all():
        reasons.append(f"{np.count_nonzero(~known)} attempts ran on workers that were not seen")
    table, worker = table.filter(pa.array(known)), worker[known]
    start, stop = (np.asarray(table[name].to_numpy(), dtype=np.float64) for name in ("start", "stop"))
    # what one call asked for was there from its first attempt on
    first = table.group_by("step").aggregate([("start", "min")])
    runnable = first["start_min"].take(pc.index_in(table["step"], value_set=first["step"].combine_chunks()))
    begun = np.minimum(np.asarray(runnable.to_numpy(), dtype=np.float64), start)
    finished = [call for call in run.calls if call.outcome == FINISHED and call.chunks is not None]
    assigned = sum(call.chunks or 0 for call in finished) if len(finished) == len(run.calls) else None
    if assigned is not None and len(counted) < assigned:
        reasons.append(f"{assigned - len(counted)} of {assigned} chunks left no record, or gave no result")
    return _Busy(
        Moments(worker, begun, start, start, start, start, stop, stop),
        {name: np.asarray(table[name].to_numpy()) for name in BUSY},
        table["dataset"].combine_chunks(),
        {task_records.ERROR: float(np.sum(table[WASTED].to_numpy()))} if np.any(table[WASTED].to_numpy()) else {},
        reasons,
        Attempts(len(counted), assigned),
    )


def _classes_of_chunks(chunks: pa.Table, counted: pa.Table) -> pa.Table:
    """Attempts of chunks with their seconds by class; what is in no phase is overhead."""
    used = pc.is_in(chunks["id"], value_set=counted["id"].combine_chunks())
    wall = pc.fill_null(chunks["wall_seconds"], 0.0)
    seconds = {name: pc.if_else(used, _phase(chunks, columns), 0.0) for name, columns in PHASES.items()}
    wasted = pc.if_else(used, 0.0, wall)
    rest = pc.subtract(wall, wasted)
    for amount in seconds.values():
        rest = pc.subtract(rest, amount)
    seconds |= {WASTED: wasted, OVERHEAD: rest}
    return _attempts(chunks, pc.fill_null(chunks["call"], ""), seconds)


def _classes_of_openings(openings: pa.Table) -> pa.Table:
    good = pc.fill_null(pc.equal(openings["outcome"], task_records.OK), False)
    wall = pc.fill_null(openings["wall_seconds"], 0.0)
    seconds = {BEFORE: pc.if_else(good, wall, 0.0), WASTED: pc.if_else(good, 0.0, wall)}
    return _attempts(openings, pc.binary_join_element_wise(BEFORE, pc.fill_null(openings["call"], ""), " "), seconds)


def _attempts(table: pa.Table, step: Any, seconds: Mapping[str, Any]) -> pa.Table:
    nothing = pa.nulls(len(table), pa.float64()).fill_null(0.0)
    known = table.select(["worker", "dataset", "start", "stop"]).append_column("step", step)
    for name in BUSY:
        known = known.append_column(name, seconds.get(name, nothing))
    return known.filter(pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def _untold_phases(counted: pa.Table) -> list[str]:
    """How many chunks lack a phase: its time is in none of the classes of phases."""
    computed = counted.filter(pc.equal(counted["outcome"], task_records.OK))
    names = [column for columns in PHASES.values() for column in columns]
    lacking = np.zeros(len(computed), np.bool_)
    for name in names:
        lacking |= np.asarray(computed[name].is_null().to_numpy(), dtype=np.bool_)
    number = int(np.count_nonzero(lacking))
    return [f"{number} chunks do not tell all their phases: that time is called {OVERHEAD}"] if number else []


def _phase(chunks: pa.Table, columns: tuple[str, ...]) -> Any:
    total = pc.fill_null(chunks[columns[0]], 0.0)
    for column in columns[1:]:
        total = pc.add(total, pc.fill_null(chunks[column], 0.0))
    return total


# Where a scheduler tells of tasks


def _busy_tasks(  # noqa: PLR0917
    run: Run, tasks: pa.Table, chunks: pa.Table, counted: pa.Table, presence: Presence, names: list[str]
) -> _Busy:
    """Attempts of tasks as what kept the threads, with what the records of their chunks tell of them."""
    reasons = [f"{run.dropped[name]} rows of {name} were lost" for name in ("tasks", "chunks") if run.dropped.get(name)]
    worker = _numbers(tasks["worker"], names)
    start, stop = _intervals(tasks, worker, presence, run.stop)
    known = (worker >= 0) & ~np.isnan(start)
    untimed = np.count_nonzero(~known & _never_ran(tasks))
    if untimed:
        reasons.append(f"{untimed} attempts of tasks do not tell when they ran")
    tasks, worker, start, stop = tasks.filter(pa.array(known)), worker[known], start[known], stop[known]
    seconds, dataset, failed, unseen = _classes_of_tasks(tasks, stop - start, chunks, counted, run)
    reasons += _untold_phases(counted)
    if unseen:
        reasons.append(f"{unseen} attempts of chunks left no record: their time is in no class")
    without_task = _without_task(chunks, run.tasks)
    if without_task:
        reasons.append(f"of {without_task} attempts of chunks the task was not seen: their time is taken for idle")
    return _Busy(
        _moments(tasks, worker, start, stop),
        seconds,
        dataset,
        failed,
        reasons,
        Attempts(len(tasks) - unseen, len(known)),
    )


def _never_ran(tasks: pa.Table) -> Flags:
    """Attempts that should tell when they ran: one that was cancelled may never have begun."""
    quiet = pa.array((task_records.CANCELLED, task_records.LOST), pa.string())
    return ~np.asarray(pc.is_in(tasks["outcome"], value_set=quiet).to_numpy(), dtype=np.bool_)


def _intervals(tasks: pa.Table, worker: Counts, presence: Presence, end: float) -> tuple[Numbers, Numbers]:
    """When attempts kept their thread; of those that were lost with their worker it is estimated."""
    start, stop, seceded = (_times(tasks, name) for name in ("start", "stop", "seceded"))
    outcome = np.asarray(tasks["outcome"].to_numpy(zero_copy_only=False))
    stop = np.where(outcome == task_records.UNFINISHED, end, stop)
    left = np.zeros(int(presence.worker.max(initial=-1)) + 2)
    np.maximum.at(left, presence.worker, presence.stop)
    lost = np.flatnonzero((outcome == task_records.LOST) & np.isnan(start) & (worker >= 0))
    assigned = _times(tasks, "assigned")
    for number in np.unique(worker[lost]):
        _estimate_lost(lost[worker[lost] == number], worker == number, start, stop, assigned, presence, number, left)
    stop = np.where(seceded < stop, seceded, stop)
    others = np.asarray(pc.equal(tasks["kind"], task_records.OTHER).to_numpy(), dtype=np.bool_)
    open_ended = others | (outcome == task_records.UNFINISHED)
    return start, np.where(open_ended, np.clip(stop, None, left[worker]), stop)


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
    seen = np.fmax(_times(tasks, "seen"), stop)
    lasting = np.asarray(pc.equal(tasks["outcome"], task_records.UNFINISHED).to_numpy(), dtype=np.bool_)
    late = [start]
    for name in ("ready", "arrived", "assigned", "runnable"):
        late.append(np.fmin(_times(tasks, name), late[-1]))
    ready, arrived, assigned, runnable = late[1:]
    return Moments(worker, runnable, assigned, arrived, ready, start, stop, np.where(lasting, stop, seen))


def _classes_of_tasks(
    tasks: pa.Table, duration: Numbers, chunks: pa.Table, counted: pa.Table, run: Run
) -> tuple[dict[str, Numbers], pa.Array, dict[str, float], int]:
    """Seconds by class of each attempt, its dataset, failed seconds by reason, and how many chunks left no record."""
    kind, outcome = (np.asarray(tasks[name].to_numpy(zero_copy_only=False)) for name in ("kind", "outcome"))
    inside = _inside(tasks, chunks, counted)
    processed = (kind == task_records.PROCESSOR) & (outcome == task_records.OK)
    repeated = processed & inside["recorded"] & ~inside["used"] & (inside[WASTED] == 0)
    lost = (outcome != task_records.OK) | repeated
    counts = processed & ~repeated
    seconds = {name: np.where(counts, inside[name], 0.0) for name in PHASES}
    seconds |= {name: np.where((kind == of) & ~lost, duration, 0.0) for of, name in OF_KIND.items()}
    # another user's task is his own affair, however it ended
    seconds[OTHERS] = np.where(kind == task_records.OTHER, duration, 0.0)
    wasted = np.where(lost & (kind != task_records.OTHER), duration, 0.0)
    reasons = np.where(repeated, REPEATED, outcome)
    failed = {reason: float(wasted[reasons == reason].sum()) for reason in np.unique(reasons[wasted > 0]).tolist()}
    erred = np.where(counts, inside[WASTED], 0.0)
    if erred.any():
        failed[task_records.ERROR] = failed.get(task_records.ERROR, 0.0) + float(erred.sum())
    seconds[WASTED] = wasted + erred
    known = counts & inside["recorded"]
    rest = duration - sum(seconds[name] for name in PHASES) - erred
    seconds[OVERHEAD] = np.where(known, rest, 0.0)
    dataset = pc.if_else(pa.array(kind == task_records.PROCESSOR), inside["dataset"], _dataset_of_openings(tasks, run))
    return seconds, dataset, failed, int(np.count_nonzero(counts & ~inside["recorded"]))


def _inside(tasks: pa.Table, chunks: pa.Table, counted: pa.Table) -> dict[str, Any]:
    """For each task: seconds of phases of its chunk's attempts, those of failed ones, and its dataset."""
    used = pc.is_in(chunks["id"], value_set=counted["id"].combine_chunks())
    gave = pc.is_in(chunks["outcome"], value_set=pa.array(GAVE_A_RESULT, pa.string()))
    wall = pc.fill_null(chunks["wall_seconds"], 0.0)
    table = chunks.select(["key", "run_id", "dataset"])
    for name, columns in PHASES.items():
        table = table.append_column(name, pc.if_else(used, _phase(chunks, columns), 0.0))
    table = table.append_column(WASTED, pc.if_else(gave, 0.0, wall)).append_column("used", pc.cast(used, pa.int64()))
    steps = [*((name, "sum") for name in (*PHASES, WASTED, "used")), ("dataset", "max")]
    sums = table.group_by(["key", "run_id"]).aggregate(steps)
    wanted = tasks.select(["key", "run_id"]).append_column("row", pa.array(np.arange(len(tasks))))
    joined = wanted.join(sums, ["key", "run_id"]).sort_by("row")
    amounts = {
        name: np.array(pc.fill_null(joined[f"{name}_sum"], 0).to_numpy(), dtype=np.float64)
        for name in (*PHASES, WASTED)
    }
    number = joined["used_sum"]
    return amounts | {
        "used": np.asarray(pc.fill_null(number, 0).to_numpy()) > 0,
        "recorded": np.asarray(number.is_valid().to_numpy(), dtype=np.bool_),
        "dataset": joined["dataset_max"].combine_chunks(),
    }


def _without_task(chunks: pa.Table, tasks: pa.Table | None) -> int:
    """Attempts of chunks that ran in a task of which nothing is known."""
    names = ["key", "run_id"]
    in_tasks = chunks.select(names).drop_null()
    return 0 if tasks is None else len(in_tasks.join(tasks.select(names), names, join_type="left anti"))


def _dataset_of_openings(tasks: pa.Table, run: Run) -> pa.Array:
    """Dataset of the file that a preprocessing task opened."""
    if run.preprocessing is None:
        return pa.nulls(len(tasks), pa.string())
    openings = run.preprocessing.group_by("key").aggregate([("dataset", "max")])
    found = pc.index_in(tasks["key"], value_set=openings["key"].combine_chunks())
    return openings["dataset_max"].combine_chunks().take(found).combine_chunks()


# Metrics of the ledger


def _class(name: str, time_ledger: TimeLedger) -> Sourced:
    reasons = time_ledger.certificate.reasons
    source = f"{LEDGER}, incomplete: {'; '.join(reasons)}" if reasons else LEDGER
    return Sourced(time_ledger.total if name == TOTAL else time_ledger[name], source)


MEANINGS: Final = {
    TOTAL: "Worker threads x the time that their workers were there.",
    COMPUTE: "CPU time of the threads in process(), less decompression and interpretation.",
    DECOMPRESS: "CPU time of the chunks' threads in decompression.",
    INTERPRET: "CPU time of the chunks' threads in interpretation of baskets.",
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
    return 100 * sum(time_ledger[name] for name in BUSY) / time_ledger.total
