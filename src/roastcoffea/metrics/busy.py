"""Attempts that kept the workers' threads busy; here those of chunks, where nothing is known of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import phases
from roastcoffea.metrics.bins import Axes, axes
from roastcoffea.metrics.facts import among, assigned_chunks, rows_where, with_outcome
from roastcoffea.metrics.ledger import Attempts
from roastcoffea.metrics.slots import Moments, Presence
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, clipped, having, measured_values, places
from roastcoffea.records import tasks as task_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import KINDS
from roastcoffea.records.workers import PAUSE_COLUMNS


class Records(NamedTuple):
    """Records that a time ledger is counted from; a worker is its place in `workers`."""

    run: Run
    chunks: pa.Table
    counted: pa.Table
    workers: list[str]
    presence: Presence
    pauses: Presence

    @classmethod
    def of(cls, run: Run, lifetimes: pa.Table, chunks: pa.Table, counted: pa.Table) -> Records:
        """Records of a run."""
        workers = lifetimes["worker"].unique().to_pylist()
        pauses = table_of_rows(PAUSE_COLUMNS, []) if run.pauses is None else run.pauses
        pauses = pauses.filter(pc.is_in(pauses["worker"], value_set=pa.array(workers, pa.string())))
        threads = np.asarray(lifetimes["threads"].to_numpy(), dtype=np.int64)
        presence = _presence(run, lifetimes, workers, threads)
        return cls(
            run, chunks, counted, workers, presence, _presence(run, pauses, workers, np.ones(len(pauses), np.int64))
        )

    def axes(self, bins: int = 1, worker: str | None = None, *, each: bool = True) -> Axes:
        """Bins over the run, with a row for each worker; else one for this worker, or for all, and one for the rest."""
        row, rows = np.arange(len(self.workers)), len(self.workers)
        if not each:
            row, rows = np.array([worker not in (None, name) for name in self.workers], np.int64), 2
        return axes(self.run.start, self.run.stop, row, rows, bins)

    def offered(self) -> Numbers:
        """Thread seconds of each span of a worker's presence."""
        return np.asarray((self.presence.stop - self.presence.start) * self.presence.threads)


def _presence(run: Run, spans: pa.Table, workers: list[str], threads: Integers) -> Presence:
    starts, stops = clipped(measured_values(spans["start"]), measured_values(spans["stop"]), run.start, run.stop)
    return Presence(places(spans["worker"], workers), starts, np.maximum(starts, stops), threads)


class Busy(NamedTuple):
    """Attempts that kept a thread: when, and how many seconds of which class and dataset."""

    moments: Moments
    seconds: Mapping[str, Numbers]
    dataset: pa.Array
    failed: dict[str, float]
    """Seconds of failed attempts by reason."""
    reasons: list[str]
    """What is missing."""
    attempts: Attempts


def busy_chunks(records: Records) -> Busy:
    """Attempts of chunks and openings of files as what kept the threads."""
    run, chunks, counted = records.run, records.chunks, records.counted
    parts, reasons = [_classes_of_chunks(chunks, counted)], incomplete_phases(counted)
    if run.preprocessing is None:
        reasons.append("preprocessing was not recorded")
    else:
        parts.append(_classes_of_openings(run.preprocessing))
    table = pa.concat_tables(parts, promote_options="default")
    worker = places(table["worker"], records.workers)
    known = worker >= 0
    if not known.all():
        reasons.append(f"{np.count_nonzero(~known)} attempts ran on workers that were not seen")
    table, worker = rows_where(table, known), worker[known]
    assigned = assigned_chunks(run)
    if assigned is not None and len(counted) < assigned:
        reasons.append(f"{assigned - len(counted)} of {assigned} chunks left no record, or gave no result")
    start, stop, wasted = (amounts(table, name) for name in ("start", "stop", phases.FAILED))
    return Busy(
        Moments(worker, start, start, start, start, start, stop, stop, np.asarray(table["kind"].to_numpy())),
        {name: amounts(table, name) for name in phases.BUSY if name in table.column_names},
        table["dataset"].combine_chunks(),
        {task_records.ERROR: float(np.sum(wasted))} if np.any(wasted) else {},
        reasons,
        Attempts(len(counted), assigned),
    )


def _classes_of_chunks(chunks: pa.Table, counted: pa.Table) -> pa.Table:
    """Attempts of chunks with their seconds by class; what is in no phase is overhead."""
    used, wall = among(chunks, counted), sum_of(chunks, ("wall_seconds",))
    seconds = {name: np.where(used, sum_of(chunks, columns), 0.0) for name, columns in phases.COLUMNS_OF.items()}
    seconds[phases.FAILED] = np.where(used, 0.0, wall)
    seconds[phases.OVERHEAD] = wall - sum(seconds.values())
    return _attempts(chunks, task_records.PROCESSOR, seconds)


def _classes_of_openings(openings: pa.Table) -> pa.Table:
    good, wall = having(openings["outcome"], task_records.OK), sum_of(openings, ("wall_seconds",))
    seconds = {phases.PREPROCESSING: np.where(good, wall, 0.0), phases.FAILED: np.where(good, 0.0, wall)}
    return _attempts(openings, task_records.PREPROCESSING, seconds)


def _attempts(table: pa.Table, kind: str, seconds: Mapping[str, Numbers]) -> pa.Table:
    known = table.select(["worker", "dataset", "start", "stop"])
    for name, values in {"kind": np.full(len(table), KINDS.index(kind)), **seconds}.items():
        known = known.append_column(name, pa.array(values))
    return rows_where(known, pc.and_(known["start"].is_valid(), known["stop"].is_valid()))


def incomplete_phases(counted: pa.Table) -> list[str]:
    """How many chunks lack a phase: its time is in none of the classes of phases."""
    names = [column for columns in phases.COLUMNS_OF.values() for column in columns]
    computed = with_outcome(counted.select(["outcome", *names]), (task_records.OK,))
    lacking = np.logical_or.reduce([computed[name].is_null().to_numpy() for name in names])
    number = np.count_nonzero(lacking)
    return [f"{number} chunks do not tell all their phases: that time is called {phases.OVERHEAD}"] if number else []


def sum_of(chunks: pa.Table, columns: tuple[str, ...]) -> Numbers:
    """Sum of these columns, as far as they were measured."""
    return sum((amounts(chunks, column) for column in columns), np.zeros(len(chunks)))
