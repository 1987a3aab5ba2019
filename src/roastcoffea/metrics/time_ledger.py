"""The time ledger: what the workers' threads did, and why they were idle, in classes that do not overlap."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import numpy as np
import pyarrow as pa
from pyarrow import Table

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, Sourced, metric, refuse_if
from roastcoffea.metrics.endpoints import with_endpoints, with_sites
from roastcoffea.metrics.facts import aggregated, known_sum, reason_of_absence
from roastcoffea.metrics.ledger import LABELS_OF, Attempts, Certificate, Ledger, amount_of
from roastcoffea.metrics.slots import Slots, idle_slots
from roastcoffea.metrics.statistics import MICROSECONDS, Axes, axes, spread
from roastcoffea.metrics.thread_activity import (
    Busy,
    Records,
    StartUp,
    busy_chunks,
    busy_tasks,
    first_tasks,
    startup_of,
    until_first_attempts,
)
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import OUTSIDE, Run
from roastcoffea.sheets.sheet import TIME_LEDGER
from roastcoffea.units import PERCENT, SECOND, STRUCTURE, Unit

if TYPE_CHECKING:
    import pandas as pd

COUNTED: Final = tuple(name for name in phases.TIME_NAMES if name != phases.RESIDUAL)
"""Classes counted independently."""

Breakdown = Literal["dataset", "worker", "file", "host", "endpoint", "site"]
BREAKDOWNS: Final = get_args(Breakdown)


@dataclass(eq=False, repr=False)
class TimeLedger(Ledger[float]):
    """Seconds of worker threads by class; `total` is threads x lifetime of their workers.

    Without a ledger it is empty, and `absent` has the reason.
    """

    name: ClassVar[str] = "time ledger"
    title: ClassVar[str] = TIME_LEDGER
    unit: ClassVar[Unit] = SECOND

    rows: Table
    """Seconds by `address` of the worker and `dataset` (null for time of no dataset), one column per class."""
    capacity: Mapping[str, float]
    """Thread seconds by worker."""
    certificate: Certificate
    _: KW_ONLY
    failed: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the class "failed" by reason."""
    beyond: float = 0.0
    """Busy seconds in excess of a worker's threads or lifetime; they are part of the residual."""
    tail_of: Mapping[str, float] = field(default_factory=dict)
    """Seconds of "idle: tail" by the tasks still on workers or in flight: "processor" if any, else "merge", else
    "preprocessing", else "other"."""
    client_of: Mapping[str, float] = field(default_factory=dict)
    """Seconds of "idle: client": "before" the first task, "between" tasks, and "after" the last one."""
    records: Records | None = None
    """Records that timelines, and rows by file, endpoint or site, are counted from."""
    startup: list[StartUp] = field(default_factory=list)
    """Start-up of each worker with any, longest first."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host of each worker, if known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Classes that were not measured, with the reason; the ledger does not contain them."""
    absent: str | None = None

    def __post_init__(self) -> None:
        sums = {name: float(known_sum(self.rows[name])) for name in COUNTED if name not in self.unknown}
        # classes of older versions, and of the run's gaps, where there is time in them
        for name in (*([phases.WAIT] if phases.LOCK in sums else []), phases.UNRECORDED):
            if not sums[name]:
                del sums[name]
        self._names = [*sums]
        self.total = None if self.absent is not None else sum(self.capacity.values())
        self._classes = {} if self.total is None else sums | {phases.RESIDUAL: self.total - sum(sums.values())}

    @classmethod
    def not_measured(cls, reason: str) -> TimeLedger:
        """Ledger of a run without thread time."""
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_rows_of([], [], {}), {}, certificate, absent=reason)

    def measured(self, name: str) -> float:
        """Seconds of a class; see `Ledger.measured`."""
        refuse_if(name in self.unknown, self.unknown.get(name, ""))
        if name == phases.WAIT and name not in self:
            return sum(self.measured(part) for part in phases.PARTS_OF_WAIT)
        return self.get(name, 0.0) if name == phases.UNRECORDED and self.total is not None else self[name]

    def __getitem__(self, name: str) -> float:
        names = phases.OLDER_NAMES.get(name, ())
        if name in self._classes or not names or not self._classes.keys() >= {*names}:
            return super().__getitem__(name)
        now = " + ".join(f'"{one}"' for one in names)
        warnings.warn(f'"{name}" of the time ledger is now {now}', DeprecationWarning, stacklevel=2)
        return sum(self._classes[one] for one in names)

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def _notes(self) -> list[str]:
        failed = [f"{SECOND.text(seconds)} {reason}" for reason, seconds in self.failed.items() if seconds]
        lines = [f"Failed: {', '.join(failed)}."] if failed else []
        for why in dict.fromkeys(self.unknown.values()):
            names = ", ".join(f'"{name}"' for name, reason in self.unknown.items() if reason == why)
            lines.append(f"Not measured: {names}: {why}.")
        if self.get(phases.LOCK):
            lines.append(f'"{phases.LOCK}" is estimated from the CPU time of other threads of the process.')
        return [*super()._notes(), *lines]

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Seconds of each class by dataset, worker, file, host, endpoint or site, with their total; by worker and host
        also the residual.

        Idle time and merging belong to no dataset or file and have a row without one. The endpoint is the server that
        XRootD read from, else the host of a file's URL; sites are known if the fileset names them.
        """
        if what not in BREAKDOWNS:
            names = ", ".join(f'"{name}"' for name in BREAKDOWNS)
            raise ValueError(f"the time ledger has no breakdown by {what!r}; choose one of {names}")
        if what == "host":
            import pandas as pd

            hosts = pd.Index([self.hosts.get(worker) for worker in self.capacity], name=what, dtype=object)
            sums_of_hosts: pd.DataFrame = self.by("worker").groupby(hosts, dropna=False).sum()
            return sums_of_hosts
        key, rows = "address" if what == "worker" else "dataset", self.rows
        if what not in {"worker", "dataset"} and self.records is not None:
            split = _by(self.records, what)
            rows = _rows(split, *_counted(split, _each_worker(split)))
        sums = aggregated(rows, [key], {name: (name, "sum") for name in self._names})
        frame: pd.DataFrame = sums.to_pandas().set_index(key).sort_index()
        frame.index.name = what
        if what == "worker":
            frame = frame.reindex(list(self.capacity), fill_value=0.0)
            frame[phases.RESIDUAL] = [self.capacity[worker] for worker in frame.index] - frame.sum(axis=1)
        frame[phases.TOTAL] = frame.sum(axis=1)
        return frame

    def timeline(self, bins: int = 500, worker: str | None = None) -> pd.DataFrame:
        """Threads by class over time, for all workers or for the one with this address.

        Each row is a bin of `seconds` starting at `start` (Unix seconds, the index). Classes are means over the bin, so
        that their sums x `seconds` add up to the ledger; `total` is the number of threads. A task's classes are spread
        evenly over its duration; idle ones are exact.
        """
        import pandas as pd

        if self.records is None:
            raise NotMeasuredError(f"no timeline is available: {self.absent or 'the ledger was made without one'}")
        if worker is not None and worker not in self.capacity:
            raise KeyError(f"unknown worker {worker!r}; the workers are {', '.join(self.capacity)}")
        # counted from scratch, so that a ledger need not keep the inputs
        records, presence = self.records, self.records.presence
        start = records.run.start
        row = np.array([worker not in (None, name) for name in records.workers], np.int64)
        where = axes(start, records.run.stop, row, 2, bins)
        (moments, busy, *_), idle = _counted(records, where)
        seconds = {name: spread(moments.worker, moments.start, moments.stop, busy[name], where) for name in busy}
        seconds |= idle.seconds | {phases.STARTUP: idle.seconds[phases.STARTUP] + seconds.get(phases.STARTUP, 0.0)}
        offered = spread(presence.worker, presence.start, presence.stop, records.offered, where)
        widths, edges = np.maximum(np.diff(where.edges), 1) / MICROSECONDS, start + where.edges / MICROSECONDS
        threads = {
            name: seconds[name][0] / widths if name in seconds else 0 * widths for name in COUNTED if name in self
        }
        columns = {"seconds": np.diff(edges), **threads, phases.TOTAL: offered[0] / widths}
        return pd.DataFrame(columns, index=pd.Index(edges[:-1], name="start"))


def _rows_of(workers: list[str], datasets: list[str | None], seconds: Mapping[str, Any]) -> Table:
    empty = np.zeros(len(workers))
    classes = {name: np.asarray(seconds.get(name, empty), dtype=np.float64) for name in COUNTED}
    return pa.table({"address": pa.array(workers, pa.string()), "dataset": pa.array(datasets, pa.string()), **classes})


@metric(
    STRUCTURE,
    group=TIME,
    source="task and chunk records, arrivals and departures of workers",
    formula="busy seconds of tasks, split by the phases of their chunks; idle seconds counted by cause",
)
def time_ledger(
    run: Run, lifetimes: Table, chunks: Table | None = None, counted_chunks: Table | None = None
) -> TimeLedger:
    """What the workers' threads did, and why they were idle; see `TimeLedger`."""
    if chunks is None or counted_chunks is None:
        refuse_if(run.tasks is None, reason_of_absence(run, "chunks"))
        chunks = counted_chunks = table_of_rows(CHUNK_COLUMNS, [])
    records = Records.of(run, lifetimes, chunks, counted_chunks)
    workers = records.workers
    busy, slots = _counted(records, _each_worker(records))
    without_times = run.tasks is not None and len(run.tasks) and not len(busy.moments.worker)
    refuse_if(without_times, "no attempt of a task has recorded times")
    offered = np.bincount(records.presence.worker, records.offered, len(workers))
    rows = _rows(records, busy, slots)
    waited = dict(zip(workers, slots.seconds[phases.STARTUP][:, 0].tolist(), strict=True))
    ledger = TimeLedger(
        rows,
        dict(zip(workers, offered.tolist(), strict=True)),
        Certificate(attempts=busy.attempts, reasons=busy.reasons, outside=run.absent.get(OUTSIDE)),
        failed=busy.failed,
        beyond=slots.beyond,
        tail_of=slots.tail_of,
        client_of=slots.client_of,
        records=records,
        startup=startup_of(rows, waited, chunks),
        hosts=dict(zip(lifetimes["worker"].to_pylist(), lifetimes["host"].to_pylist(), strict=True)),
        unknown=_unknown(run, counted_chunks),
    )
    total, residual = ledger.total or 0.0, ledger.residual or 0.0
    amounts = {"of tasks exceed their workers' threads": ledger.beyond, "of thread time are unaccounted for": residual}
    # clocks of a thread and its task may differ by 2 ms on a busy host, which runs shorter than 0.2 s show
    busy.reasons.extend(
        f"{SECOND.text(amount)} {what}" for what, amount in amounts.items() if abs(amount) > max(0.01 * total, 0.002)
    )
    return ledger


def _each_worker(records: Records) -> Axes:
    number = len(records.workers)
    return axes(records.run.start, records.run.stop, np.arange(number), number)


def _counted(records: Records, where: Axes) -> tuple[Busy, Slots]:
    """What occupied threads, and why the others were free."""
    tasks = records.run.tasks
    if tasks is None:
        busy = busy_chunks(records)
        first = until_first_attempts(busy.moments)
    else:
        busy = busy_tasks(records, tasks)
        first = first_tasks(busy.moments, records)
    slots = idle_slots(
        busy.moments,
        records.presence,
        records.pauses,
        where,
        first=first,
        gaps=records.gaps,
        together=records.together,
    )
    return busy, slots


def _unknown(run: Run, counted: Table) -> dict[str, str]:
    """Classes that were not measured, with the reason."""
    known = {phase.time_class for phase in phases.phases_of(counted)}
    older = "recorded by an older version, or on a system without run-queue times of threads"
    unknown = {name: f'{older}: "{phases.WAIT}" has their sum' for name in phases.PARTS_OF_WAIT if name not in known}
    if run.tasks is None:
        of_scheduler = [one.name for one in phases.TIME_CLASSES if one.from_scheduler]
        return unknown | dict.fromkeys(of_scheduler, "not recorded without a scheduler")
    return unknown if run.pauses is not None else unknown | {phases.PAUSED: reason_of_absence(run, "pauses")}


def _by(records: Records, what: str) -> Records:
    """Records whose busy seconds are split by file, endpoint or site: there may be as many as chunks."""
    if what == "file":
        return records._replace(by=what)
    run = records.run
    told = with_endpoints if what == "endpoint" else partial(with_sites, asked=run.asked)
    if run.preprocessing is not None:
        run = replace(run, preprocessing=told(run.preprocessing))
    return records._replace(run=run, chunks=told(records.chunks), counted=told(records.counted), by=what)


def _rows(records: Records, busy: Busy, slots: Slots) -> Table:
    """Busy seconds by worker and dataset, and idle ones by worker."""
    workers = records.workers
    table = pa.table({"worker": busy.moments.worker, "dataset": busy.of, **busy.seconds})
    steps = {name: (name, "sum") for name in busy.seconds}
    sums = aggregated(table, ["worker", "dataset"], steps, use_threads=False).sort_by("worker")
    addresses = [workers[place] for place in sums["worker"].to_pylist()]
    of_busy = _rows_of(addresses, sums["dataset"].to_pylist(), {name: sums[name].to_numpy() for name in busy.seconds})
    idle = {cause: amounts[:, 0] for cause, amounts in slots.seconds.items()}
    return pa.concat_tables([of_busy, _rows_of(workers, [None] * len(workers), idle)])


# Metrics of the ledger


of_ledger = partial(metric, group=TIME, source=TimeLedger.name)


@of_ledger(SECOND, phases.TOTAL, "time_ledger.total")
def time_total_seconds(time_ledger: TimeLedger) -> Sourced:
    """Worker threads x lifetime of their workers."""
    return time_ledger.sourced(time_ledger.total)


for one in phases.TIME_CLASSES:
    label = LABELS_OF.get(one.name, one.name)
    of_class = partial(of_ledger, name=one.metric_name, alias=one.alias, label=label, meaning=one.meaning)
    formula = f'time_ledger["{one.name}"]'
    of_class(SECOND, formula=formula, inputs=("time_ledger",))(partial(amount_of, one.name))

MEANINGS: Final = {phases.TOTAL: str(time_total_seconds.__doc__)}
MEANINGS.update({one.name: one.meaning for one in phases.TIME_CLASSES})


@of_ledger(PERCENT, "busy", "100 x busy classes / total")
def busy_percent(time_ledger: TimeLedger) -> float:
    """Share of thread time in which a task ran."""
    total = time_ledger.total or 0.0
    refuse_if(not total, "no worker was present")
    return 100 * sum(time_ledger[name] for name in phases.BUSY if name in time_ledger) / total
