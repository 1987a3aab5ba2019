"""The time ledger, which divides worker thread time into activities and causes of idle time."""

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
from roastcoffea.metrics.ledger import Attempts, Certificate, Ledger, metrics_of_classes
from roastcoffea.metrics.slots import Moments, Slots, idle_slots
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
from roastcoffea.records.arrow import pairs, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import OUTSIDE, Run
from roastcoffea.sheets.sheet import TIME_LEDGER
from roastcoffea.units import PERCENT, SECOND, STRUCTURE, Unit

if TYPE_CHECKING:
    import pandas as pd

COUNTED: Final = tuple(name for name in phases.TIME_NAMES if name != phases.RESIDUAL)

Breakdown = Literal["dataset", "worker", "file", "host", "endpoint", "site"]
BREAKDOWNS: Final = get_args(Breakdown)


@dataclass(eq=False, repr=False)
class TimeLedger(Ledger[float]):
    """Worker thread time by class, in seconds.

    The total is the number of threads times the worker's lifetime, summed over workers. If thread time was not
    measured, the ledger is empty and `absent` holds the reason.
    """

    name: ClassVar[str] = "time ledger"
    title: ClassVar[str] = TIME_LEDGER
    unit: ClassVar[Unit] = SECOND

    rows: Table
    """Time by worker `address` and `dataset`, with one column per class. `dataset` is null for time outside any
    dataset.
    """
    capacity: Mapping[str, float]
    """Available thread time of each worker, in seconds."""
    certificate: Certificate
    _: KW_ONLY
    failed: Mapping[str, float] = field(default_factory=dict)
    """Time in the class "failed", by reason."""
    beyond: float = 0.0
    """Busy time beyond what a worker's thread count or lifetime allows. It is part of the residual."""
    tail_of: Mapping[str, float] = field(default_factory=dict)
    """Time in "idle: tail", by the kind of task that is still on a worker or in flight. If there are several kinds,
    the first of "processor", "merge", "preprocessing" and "other" takes precedence.
    """
    client_of: Mapping[str, float] = field(default_factory=dict)
    """Time in "idle: client", divided into "before" the first task, "between" tasks, and "after" the last task."""
    records: Records | None = None
    """Records from which timelines and breakdowns by file, endpoint or site are computed."""
    startup: list[StartUp] = field(default_factory=list)
    """Start-up of the workers that spent any time on it, longest first."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host of each worker, if known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Classes that were not measured, with the reason for each class."""
    absent: str | None = None

    def __post_init__(self) -> None:
        sums = {name: float(known_sum(self.rows[name])) for name in COUNTED if name not in self.unknown}
        # classes from older versions and for gaps in the run are kept only if they contain any time
        for name in (*([phases.WAIT] if phases.LOCK in sums else []), phases.UNRECORDED):
            if not sums[name]:
                del sums[name]
        self._names = [*sums]
        self.total = None if self.absent is not None else sum(self.capacity.values())
        self._classes = {} if self.total is None else sums | {phases.RESIDUAL: self.total - sum(sums.values())}

    @classmethod
    def not_measured(cls, reason: str) -> TimeLedger:
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_rows_of([], [], {}), {}, certificate, absent=reason)

    def measured(self, name: str) -> float:
        """Time in a class, in seconds.

        Raises
        ------
        NotMeasuredError
            If the class was not measured.
        """
        refuse_if(name in self.unknown, self.unknown.get(name, ""))
        if name == phases.WAIT and name not in self:
            return sum(self.measured(part) for part in phases.PARTS_OF_WAIT)
        return self.get(name, 0.0) if name == phases.UNRECORDED and self.total is not None else self[name]

    def __getitem__(self, name: str) -> float:
        names = phases.OLDER_NAMES.get(name, ())
        if name in self._classes or not names or not self._classes.keys() >= {*names}:
            return super().__getitem__(name)
        now = " + ".join(f'"{one}"' for one in names)
        warnings.warn(f'class "{name}" of the time ledger is now {now}', DeprecationWarning, stacklevel=2)
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
            lines.append(f'"{phases.LOCK}" is estimated from the CPU time of other threads in the process.')
        return [*super()._notes(), *lines]

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Break down the thread time by dataset, file, worker, host, endpoint or site.

        Only the breakdowns by worker and host include the residual. Idle time and merges belong to no dataset or file,
        so they appear in a row whose name is null. An endpoint is the server that XRootD read from or, for other
        protocols, the host in the file's URL. Sites are known only if the fileset names them.
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
            rows, *_ = _counted(_by(self.records, what))
        sums = aggregated(rows, [key], {name: (name, "sum") for name in self._names})
        frame: pd.DataFrame = sums.to_pandas().set_index(key).sort_index()
        frame.index.name = what
        if what == "worker":
            frame = frame.reindex(list(self.capacity), fill_value=0.0)
            frame[phases.RESIDUAL] = [self.capacity[worker] for worker in frame.index] - frame.sum(axis=1)
        frame[phases.TOTAL] = frame.sum(axis=1)
        return frame

    def timeline(self, bins: int = 500, worker: str | None = None) -> pd.DataFrame:
        """Number of threads in each class over time, for one or all workers.

        Each row is a time bin. Its index `start` is in Unix seconds, and the column `seconds` contains its length. Each
        class has a column with its mean number of threads in the bin, and `total` is the number of available threads.
        The product of a class's column and `seconds`, summed over bins, equals the amount in the ledger. The time in a
        task's classes is spread evenly over its duration, whereas the times of idle classes are exact.

        Parameters
        ----------
        bins
            Number of bins.
        worker
            Address of a worker. By default, all workers are included.
        """
        import pandas as pd

        if self.records is None:
            raise NotMeasuredError(f"no timeline is available: {self.absent or 'the ledger was built without records'}")
        if worker is not None and worker not in self.capacity:
            raise KeyError(f"unknown worker {worker!r}; the workers are {', '.join(self.capacity)}")
        # recomputed, so that the ledger does not have to keep the inputs
        records, presence = self.records, self.records.presence
        start = records.run.start
        row = np.array([worker not in (None, name) for name in records.workers], np.int64)
        where = axes(start, records.run.stop, row, 2, bins)
        moments, busy, *_ = _busy(records)
        seconds = {name: spread(moments.worker, moments.start, moments.stop, busy[name], where) for name in busy}
        busy.clear()  # it takes much memory
        idle = _idle(records, moments, where)
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
    formula="busy time of tasks by chunk phase, and idle time by cause",
)
def time_ledger(
    run: Run, lifetimes: Table, chunks: Table | None = None, counted_chunks: Table | None = None
) -> TimeLedger:
    """Worker thread time by class: what threads did, and why they were idle (see `TimeLedger`)."""
    if chunks is None or counted_chunks is None:
        refuse_if(run.tasks is None, reason_of_absence(run, "chunks"))
        chunks = counted_chunks = table_of_rows(CHUNK_COLUMNS, [])
    records = Records.of(run, lifetimes, chunks, counted_chunks)
    workers = records.workers
    rows, busy, slots = _counted(records)
    without_times = run.tasks is not None and len(run.tasks) and not len(busy.moments.worker)
    refuse_if(without_times, "no task attempt has recorded times")
    offered = np.bincount(records.presence.worker, records.offered, len(workers))
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
        hosts=pairs(lifetimes, "worker", "host"),
        unknown=_unknown(run, counted_chunks),
    )
    total, residual = ledger.total or 0.0, ledger.residual or 0.0
    amounts = {
        "of task time exceeds the workers' threads": ledger.beyond,
        "of thread time are unaccounted for": residual,
    }
    # on a busy host, the clocks of a thread and its task may differ by 2 ms, which matters for runs shorter than 0.2 s
    busy.reasons.extend(
        f"{SECOND.text(amount)} {what}" for what, amount in amounts.items() if abs(amount) > max(0.01 * total, 0.002)
    )
    return ledger


def _busy(records: Records) -> Busy:
    return busy_chunks(records) if records.run.tasks is None else busy_tasks(records, records.run.tasks)


def _idle(records: Records, moments: Moments, where: Axes) -> Slots:
    return idle_slots(
        moments,
        records.presence,
        records.pauses,
        where,
        first=until_first_attempts(moments) if records.run.tasks is None else first_tasks(moments, records),
        gaps=records.gaps,
        together=records.together,
    )


def _unknown(run: Run, counted: Table) -> dict[str, str]:
    known = {phase.time_class for phase in phases.phases_of(counted)}
    older = "recorded by an older version, or on a system without run-queue times for threads"
    unknown = {
        name: f'{older}: "{phases.WAIT}" contains their sum' for name in phases.PARTS_OF_WAIT if name not in known
    }
    later = phases.MEASURED_LATER.items()
    unknown |= {name: f"recorded by an older version: {where}" for name, where in later if name not in known}
    if run.tasks is None:
        of_scheduler = [one.name for one in phases.TIME_CLASSES if one.from_scheduler]
        return unknown | dict.fromkeys(of_scheduler, "not recorded without a scheduler")
    return unknown if run.pauses is not None else unknown | {phases.PAUSED: reason_of_absence(run, "pauses")}


def _by(records: Records, what: str) -> Records:
    if what == "file":
        return records._replace(by=what)
    run = records.run
    told = with_endpoints if what == "endpoint" else partial(with_sites, asked=run.asked)
    if run.preprocessing is not None:
        run = replace(run, preprocessing=told(run.preprocessing))
    return records._replace(run=run, chunks=told(records.chunks), counted=told(records.counted), by=what)


def _counted(records: Records) -> tuple[Table, Busy, Slots]:
    """Rows of a ledger, and what they are made of. The seconds of attempts are not kept, as they take much memory."""
    workers, busy = records.workers, _busy(records)
    table = pa.table({"worker": busy.moments.worker, "dataset": busy.of, **busy.seconds})
    steps = {name: (name, "sum") for name in busy.seconds}
    sums = aggregated(table, ["worker", "dataset"], steps, use_threads=False).sort_by("worker")
    del table
    busy = busy._replace(seconds={})
    addresses = [workers[place] for place in sums["worker"].to_pylist()]
    of_busy = _rows_of(addresses, sums["dataset"].to_pylist(), {name: sums[name].to_numpy() for name in steps})
    every = np.arange(len(workers))
    slots = _idle(records, busy.moments, axes(records.run.start, records.run.stop, every, len(workers)))
    idle = {cause: amounts[:, 0] for cause, amounts in slots.seconds.items()}
    return pa.concat_tables([of_busy, _rows_of(workers, [None] * len(workers), idle)]), busy, slots


# Ledger metrics


of_ledger = partial(metric, group=TIME, source=TimeLedger.name)


@of_ledger(SECOND, phases.TOTAL, "time_ledger.total")
def time_total_seconds(time_ledger: TimeLedger) -> Sourced:
    """Number of threads times lifetime, summed over workers."""
    return time_ledger.sourced(time_ledger.total)


metrics_of_classes("time_ledger", SECOND, phases.TIME_CLASSES, of_ledger)

MEANINGS: Final = {phases.TOTAL: str(time_total_seconds.__doc__)}
MEANINGS.update({one.name: one.meaning for one in phases.TIME_CLASSES})


@of_ledger(PERCENT, "busy", "100 x busy classes / total")
def busy_percent(time_ledger: TimeLedger) -> float:
    """Share of thread time during which a task ran."""
    total = time_ledger.total or 0.0
    refuse_if(not total, "no worker was present")
    return 100 * sum(time_ledger[name] for name in phases.BUSY if name in time_ledger) / total
