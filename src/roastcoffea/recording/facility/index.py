"""Index of a facility's journals: tables and sheets of runs and daily costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.recorder import FROM_CHUNKS, OF_CLIENT, TABLES, LoggedCluster
from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.log.journal import LOG
from roastcoffea.log.journals import Journal, journal_in, journals_in
from roastcoffea.log.workers import UNREADABLE
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked
from roastcoffea.metrics.phases import FAILED, IDLE, TIME_CLASSES
from roastcoffea.recording.facility.observer import short
from roastcoffea.recording.facility.recorder import CALL, CLUSTER, RUN, TICK
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, bytes_column, seconds_column, text_column
from roastcoffea.records.run import FINISHED, Run, RunnerCall, unwatched_run
from roastcoffea.records.workers import OK
from roastcoffea.report.page.frame import page
from roastcoffea.sheets.sheet import Column as SheetColumn
from roastcoffea.sheets.sheet import Heading, Sheet
from roastcoffea.storage import folders
from roastcoffea.units import (
    COUNT,
    FRACTION,
    GIGABIT_PER_SECOND,
    SECOND,
    SECONDS_PER_HOUR,
    Unit,
    counted,
    number,
    scaled,
    three_digits,
)

UNKNOWN: Final = "unknown"
WHY_CUT_OFF: Final = "the scheduler ended or was killed before the run ended: later data is missing"


@dataclass(eq=False)
class Recorded:
    """Contents of a run's or an entire scheduler's journal."""

    cluster: LoggedCluster = field(default_factory=LoggedCluster)
    run: dict[str, Any] = field(default_factory=dict)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    last: float = 0.0
    problems: list[str] = field(default_factory=list)


def is_facility(journal: Journal) -> bool:
    """Whether the journal was written by a scheduler."""
    return journal.header.get("facility") is True


def is_cluster(journal: Journal) -> bool:
    """Whether the journal contains a scheduler's totals."""
    return journal.header.get("cluster") is True


def recorded_in(journal: Journal) -> Recorded:
    found = Recorded()
    for entry in journal.entries():
        found.last = entry.time
        if entry.kind == LOG:
            found.cluster.take(LOG, entry.data)
        elif entry.kind in {RUN, CLUSTER}:
            try:
                known = json.loads(entry.data)
            except UNREADABLE as error:
                found.problems.append(f"an entry of the journal could not be read: {error_text(error)}")
                continue
            if entry.kind == RUN and isinstance(known, dict):
                found.run = known
            elif isinstance(known, dict):
                found.clusters.append(known)
    found.problems += journal.problems
    return found


def run_of(journal: Journal, found: Recorded | None = None) -> Run:
    """Build the run recorded in a journal, including recording gaps, on the scheduler's clock."""
    found, start = found or recorded_in(journal), float(journal.header["start"])
    known, cluster = found.run, found.cluster
    stop = max(float(known.get("stop") or known.get("last") or found.last), start)
    identities = cluster.received.calls()
    chunks = cluster.received.chunks(identities)
    chunks = chunks if len(chunks) else None
    absent = dict.fromkeys(("asked", *OF_CLIENT), "known only to the client, which did not measure this run")
    absent["span_metrics"] = "runs recorded by the scheduler do not have their own span"
    if not chunks:
        remedy = "start workers with dask worker --preload roastcoffea.facility, or use a collector"
        absent |= dict.fromkeys(("chunks", *FROM_CHUNKS), f"its chunks were not metered: {remedy}")
    # a stand-in for the Runner call: the scheduler knows only its chunks and files
    call = RunnerCall(
        id=next(iter(identities)) if len(identities) == 1 else CALL,
        processor=str(known.get("processor") or known.get("name") or UNKNOWN),
        executor=UNKNOWN,
        start=start,
        stop=stop,
        outcome=FINISHED,
        chunks=int(known.get("asked") or 0) or None,
        files=int(known.get("files") or 0) or None,
    )
    run = unwatched_run(
        id=str(journal.header.get("id")),
        start=start,
        stop=stop,
        backend="facility",
        sampling_interval=TICK,
        calls=(call,),
        chunks=chunks,
        **{name: cluster.table(name, chunks, start, stop) for name in TABLES if name not in {"chunks", *OF_CLIENT}},
        attempts=known.get("attempts"),
        scheduler_clock_offset=0.0,
        dropped=dict(known.get("dropped") or {}),
        absent=absent,
        problems=(
            *found.problems,
            *cluster.log.problems,
            *([] if known.get("ended") or journal.is_written else [WHY_CUT_OFF]),
        ),
    )
    return checked(run)


ENDED: Final = "ended"
RUNNING: Final = "running"
LOST: Final = "cut off"

RUN_COLUMNS: Final = (
    text_column("day", "start day (UTC)"),
    seconds_column("start", "start (Unix time)"),
    seconds_column("elapsed", "time from the first task to the last"),
    text_column("client", "Dask's client ID"),
    text_column("user", "user account of the scheduler"),
    text_column("processor", "name of the processor"),
    text_column("state", f'"{ENDED}", "{RUNNING}", or "{LOST}" if the scheduler ended first'),
    Column("chunks", "integer", "chunks", "number of chunks with a result"),
    Column("events", "integer", "events", "number of events in these chunks"),
    Column("core_hours", "number", "h", "thread time of the run's own tasks"),
    Column("cpu_hours", "number", "h", "CPU time of the chunks; missing if no chunks were metered"),
    Column("failed_hours", "number", "h", "thread time of failed attempts"),
    Column("failed_share", "number", "fraction", "failed_hours / core_hours"),
    Column(
        "wasted_share",
        "number",
        "fraction",
        "share of core_hours spent waiting, on overhead or on failed attempts; missing if no chunks were metered",
    ),
    text_column("wasted_by", "class with the most wasted thread time"),
    Column("gigabits_per_second", "number", "Gbit/s", "data rate from storage; missing if no chunks were metered"),
    text_column("heaviest_dataset", "dataset with the most chunk time; missing if no chunks were metered"),
    Column("heaviest_share", "number", "fraction", "the heaviest dataset's share of all chunk time"),
    Column("problems", "integer", "problems", "number of problems with the record"),
    text_column("journal", "journal folder of the run"),
)

DAY_COLUMNS: Final = (
    text_column("day", "day (UTC)"),
    Column("core_hours", "number", "h", "thread time of all workers, busy or idle"),
    Column("cpu_hours", "number", "h", "CPU time of the worker processes"),
    Column("idle_hours", "number", "h", "idle thread time, sampled once a second"),
    Column("failed_hours", "number", "h", "thread time of failed attempts"),
    *(
        Column(f"{name.replace(': ', '_')}_hours", "number", "h", f"part of idle_hours: {name}")
        for name in IDLE
        if "idle" in name
    ),
    Column("events", "integer", "events", "number of events in chunks with a result"),
    bytes_column("bytes", "bytes that metered attempts requested from storage"),
    Column(
        "measured_energy",
        "number",
        "kWh",
        "energy used by whole processors (RAPL), on hosts where workers may read the counters",
    ),
    Column("measured_hosts", "number", "fraction", "share of hosts whose energy was measured"),
    Column("energy", "number", "kWh", "estimate: core_hours x watts per core / 1000; missing unless watts are given"),
    Column("idle_energy", "number", "kWh", "energy estimate for idle_hours"),
    Column("failed_energy", "number", "kWh", "energy estimate for failed_hours"),
)

GROWING: Final = ("capacity_seconds", "cpu_seconds", "events", "bytes", "joules")
"""Totals that only increase."""

USEFUL: Final = frozenset(one.name for one in TIME_CLASSES if one.work == "useful")
OWN: Final = tuple(one.name for one in TIME_CLASSES if one.work in {"useful", "waiting", "overhead", "lost"})
"""Classes of thread time in a run's own tasks."""


@dataclass(eq=False)
class Index:
    """Runs and days from the journals in a folder.

    Attributes
    ----------
    runs, days : pyarrow.Table
        Tables with RUN_COLUMNS and DAY_COLUMNS.
    watts : float or None
        Power per core, in watts, assumed for the energy estimate.
    problems : list of str
        Messages about journals that could not be read.
    """

    folder: Path
    runs: pa.Table
    days: pa.Table
    watts: float | None
    problems: list[str]


def index_of(folder: Path, day: str | None = None, watts: float | None = None) -> Index:
    """Build an index of a folder's journals.

    Parameters
    ----------
    day
        Include only this day's cost and the runs that started on this day (YYYY-MM-DD).
    watts
        Power per core, in watts, for the energy estimate.

    Raises
    ------
    RoastcoffeaError
        The folder does not exist, or has no scheduler journal.
    """
    if not folder.is_dir():
        raise RoastcoffeaError(f"{folder} is not a folder; pass the folder given to --roastcoffea-journal")
    journals, problems = journals_in(folder)
    ours = [journal for journal in journals if is_facility(journal)]
    if not ours and not problems:
        raise RoastcoffeaError(f"{folder} has no scheduler journal; pass the folder given to --roastcoffea-journal")
    rows, totals = [], []
    for journal in ours:
        try:
            if is_cluster(journal):
                totals.append(recorded_in(journal).clusters)
            elif day in {None, day_of(float(journal.header["start"]))}:
                rows.append(row_of(journal))
        except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError) as error:
            problems.append(f"{journal.folder} could not be read: {error_text(error)}")
    days = [row for row in costs(totals, watts) if day in {None, row["day"]}]
    runs = sorted(rows, key=lambda row: row["start"])
    return Index(folder, table_of_rows(RUN_COLUMNS, runs), table_of_rows(DAY_COLUMNS, days), watts, problems)


def day_of(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d")


def row_of(journal: Journal) -> dict[str, Any]:
    found, header = recorded_in(journal), journal.header
    run, known = run_of(journal, found), found.run
    tasks: pa.Table = run.tasks
    own = tasks.filter(pc.is_valid(tasks["key"]))  # other runs' tasks have no key
    hours = pc.divide(pc.subtract(own["stop"], own["start"]), SECONDS_PER_HOUR)
    total = pc.sum(hours).as_py() or 0.0
    failed = pc.sum(pc.if_else(pc.equal(own["outcome"], OK), 0.0, hours)).as_py() or 0.0
    state = ENDED if known.get("ended") else RUNNING if journal.is_written else LOST
    row = {
        "day": day_of(run.start),
        "start": run.start,
        "elapsed": run.stop - run.start,
        "client": header.get("client"),
        "user": header.get("user"),
        "processor": run.calls[0].processor,
        "state": state,
        "chunks": known.get("chunks"),
        "events": known.get("events"),
        "problems": len(run.problems),
        "journal": journal.folder.name,
        "core_hours": total,
        "failed_hours": failed,
        "failed_share": failed / total if total else None,
    }
    return row if run.chunks is None else row | _of_chunks(Measurement(run), run.chunks)


def _of_chunks(measurement: Measurement, chunks: pa.Table) -> dict[str, Any]:
    metrics, ledger = measurement.metrics, measurement.time_ledger
    own = {name: seconds / SECONDS_PER_HOUR for name, seconds in ledger.items() if name in OWN and seconds}
    wasted = {name: hours for name, hours in own.items() if name not in USEFUL}
    total = sum(own.values())
    datasets = chunks.group_by("dataset").aggregate([("wall_seconds", "sum")])
    heaviest = max(datasets.to_pylist(), key=lambda row: row["wall_seconds_sum"] or 0.0)
    seconds = pc.sum(datasets["wall_seconds_sum"]).as_py()
    cpu = metrics.get("total_cpu_time")
    return {
        "cpu_hours": None if cpu is None else cpu / SECONDS_PER_HOUR,
        "wasted_share": sum(wasted.values()) / total if total else None,
        "wasted_by": max(wasted, key=lambda name: wasted[name]) if wasted else None,
        "gigabits_per_second": metrics.get("data_rate_gbps"),
        "heaviest_dataset": heaviest["dataset"],
        "heaviest_share": heaviest["wall_seconds_sum"] / seconds if seconds else None,
    }


def costs(totals: Sequence[Sequence[Mapping[str, Any]]], watts: float | None) -> list[dict[str, Any]]:
    """Daily rows from schedulers' totals. An increase counts towards the day of its journal entry."""
    days: dict[str, Counter[str]] = {}
    row: dict[str, Any]
    for entries in totals:
        before: dict[str, float] = {}
        for entry in entries:
            now = {name: float(entry.get(name) or 0) for name in GROWING} | (entry.get("seconds") or {})
            day = days.setdefault(day_of(float(entry["time"])), Counter())
            day.update({name: float(entry.get(name) or 0) for name in ("hosts_with_energy", "hosts")})
            day.update({name: amount - before.get(name, 0.0) for name, amount in now.items()})
            before = now
    rows = []
    for date, amounts in sorted(days.items()):
        idle = {f"{name.replace(': ', '_')}_": amounts[name] for name in IDLE if "idle" in name}
        seconds = {"": amounts["capacity_seconds"], "idle_": sum(idle.values()), "failed_": amounts[FAILED]}
        of_all = {"core_": seconds[""], "cpu_": amounts["cpu_seconds"], **seconds, **idle}
        row = {"day": date, "events": int(amounts["events"]), "bytes": int(amounts["bytes"])}
        row |= {f"{name}hours": each / SECONDS_PER_HOUR for name, each in of_all.items() if name}
        if amounts["hosts_with_energy"]:  # these columns are empty if no host could measure energy
            row["measured_energy"] = amounts["joules"] / 3.6e6
            row["measured_hosts"] = amounts["hosts_with_energy"] / amounts["hosts"]
        if watts is not None:
            row |= {f"{name}energy": each / SECONDS_PER_HOUR * watts / 1000 for name, each in seconds.items()}
        rows.append(row)
    return rows


HOUR: Final = Unit("h", lambda value: number(three_digits(round(value, 4))))
ENERGY: Final = Unit("kWh", scaled("Wh", 1e3))

RUNS: Final = {
    "client": SheetColumn("client"),
    "processor": SheetColumn("processor"),
    "state": SheetColumn("state", dispensable=2),
    "elapsed": SheetColumn("elapsed", SECOND, dispensable=3),
    "events": SheetColumn("events", COUNT, dispensable=4),
    "core_hours": SheetColumn("core-hours", HOUR),
    "wasted_share": SheetColumn("wasted", FRACTION),
    "wasted_by": SheetColumn("most by"),
    "failed_share": SheetColumn("failed", FRACTION),
    "gigabits_per_second": SheetColumn("data", GIGABIT_PER_SECOND, dispensable=5),
    "heaviest_dataset": SheetColumn("heaviest dataset", dispensable=1),
}
DAYS: Final = {
    "day": SheetColumn("day"),
    "core_hours": SheetColumn("core-hours", HOUR),
    "cpu_hours": SheetColumn("CPU", HOUR),
    "idle_hours": SheetColumn("idle", HOUR),
    "failed_hours": SheetColumn("failed", HOUR),
    "energy": SheetColumn("energy", ENERGY),
    "idle_energy": SheetColumn("of idle", ENERGY),
}


def sheets(found: Index) -> list[Sheet]:
    columns = {name: head for name, head in DAYS.items() if found.watts is not None or "energy" not in name}
    lines = [
        "core-hours: thread time of all workers, busy or idle; includes CPU, idle and failed",
        "For an energy estimate, pass --watts-per-core."
        if found.watts is None
        else f"Energy is an estimate, not measured: core-hours x {number(found.watts)} W per core / 1000.",
    ]
    days, runs, notes = found.days.to_pylist(), found.runs.to_pylist(), []
    for row in days:
        if (energy := row["measured_energy"]) is not None:
            where = f"Energy measured by processors on {row['measured_hosts']:.0%} of hosts, including other programs"
            lines.append(f"{where}: {ENERGY.text(energy)} on {row['day']}.")
    for row in runs:
        row["client"] = short(row["client"] or "")
    if runs:
        notes.append("wasted: share of the run's own thread time lost to waiting, overhead and failed attempts")
    if any(row["wasted_share"] is None for row in runs):
        notes.append("-: unknown; to meter chunks, use dask worker --preload roastcoffea.facility")
    if cut_off := sum(row["state"] == LOST for row in runs):
        notes.append(f"{counted(cut_off, 'run')} cut off: the scheduler ended or was killed before the run ended")
    return [
        _sheet("Days", columns, days, lines),
        _sheet("Runs", RUNS, runs, notes),
        *([Sheet(title="Not read", items=found.problems)] if found.problems else []),
    ]


def _sheet(title: str, columns: Mapping[str, SheetColumn], rows: list[dict[str, Any]], notes: list[str]) -> Sheet:
    cells = [[row[name] for name in columns] for row in rows]
    return Sheet(title=title, things=title.lower(), columns=list(columns.values()), rows=cells, notes=notes)


def write_page(found: Index, path: Path, *, overwrite: bool) -> Path:
    """Write the index as a page, atomically.

    Raises
    ------
    MeasurementError
        The file exists or cannot be written.
    """
    lead = [f"{counted(len(found.runs), 'run')} recorded in {found.folder}"]
    heading = Heading(title=f"Runs of {found.folder.resolve().name}", label="facility", lead=lead)
    return folders.write_page(path, lambda: page(heading, sheets(found)), overwrite=overwrite)


def save_ended(found: Index, output: Path) -> Iterator[Path]:
    """Save an index's ended runs without changing existing measurements."""
    for row in found.runs.to_pylist():
        if row["state"] != RUNNING and not (output / row["journal"]).exists():
            yield Measurement(run_of(journal_in(found.folder / row["journal"]))).save(output, row["journal"])
