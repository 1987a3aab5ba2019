"""A facility's records at a glance: runs of its journals, and costs of each day, as tables and sheets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.recorder import FROM_CHUNKS, TABLES, LoggedCluster
from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.log.journal import LOG, Journal, journal_in, journals_in
from roastcoffea.log.workers import UNREADABLE
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.failures import checked
from roastcoffea.metrics.phases import FAILED, IDLE, TIME_CLASSES
from roastcoffea.recording.facility.observer import short
from roastcoffea.recording.facility.recorder import CALL, CLUSTER, RUN, TICK
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column
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
WHY_CUT_OFF: Final = "the scheduler ended, or was killed, before the run did: what came later is missing"


@dataclass(eq=False)
class Recorded:
    """What a journal has of a run, or of the whole scheduler."""

    cluster: LoggedCluster = field(default_factory=LoggedCluster)
    run: dict[str, Any] = field(default_factory=dict)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    last: float = 0.0
    problems: list[str] = field(default_factory=list)


def is_facility(journal: Journal) -> bool:
    """Whether a scheduler wrote a journal."""
    return journal.header.get("facility") is True


def is_cluster(journal: Journal) -> bool:
    """Whether a journal has the totals of a scheduler."""
    return journal.header.get("cluster") is True


def recorded_in(journal: Journal) -> Recorded:
    """All that can be read in a journal."""
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
    """The run that a journal has, on the scheduler's clock, with what it lacks."""
    found, start = found or recorded_in(journal), float(journal.header["start"])
    known, cluster = found.run, found.cluster
    stop = max(float(known.get("stop") or known.get("last") or found.last), start)
    identities = cluster.received.calls()
    chunks = cluster.received.chunks(identities)
    chunks = chunks if len(chunks) else None
    absent = dict.fromkeys(("asked", "client_steps"), "only the client knows it, and it did not measure this run")
    absent["span_metrics"] = "runs recorded by the scheduler have no span of their own"
    if not chunks:
        remedy = "start workers with dask worker --preload roastcoffea.facility, or use a collector"
        absent |= dict.fromkeys(("chunks", *FROM_CHUNKS), f"its chunks were not metered: {remedy}")
    # what stands for the Runner call, of which the scheduler knows chunks and files
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
        **{name: cluster.table(name, chunks, start, stop) for name in TABLES if name not in {"chunks", "client_steps"}},
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
    Column("day", "text", None, "day on which it began (UTC)"),
    Column("start", "number", "s", "when it began (Unix time)"),
    Column("elapsed", "number", "s", "from its first task to its last one"),
    Column("client", "text", None, "Dask's identity of its client"),
    Column("user", "text", None, "account that the scheduler runs under"),
    Column("processor", "text", None, "name of the processor"),
    Column("state", "text", None, f'"{ENDED}", "{RUNNING}", or "{LOST}" where the scheduler ended before'),
    Column("chunks", "integer", "chunks", "with a result"),
    Column("events", "integer", "events", "of these chunks"),
    Column("core_hours", "number", "h", "thread time of its own tasks"),
    Column("cpu_hours", "number", "h", "CPU time of its chunks; none without metered chunks"),
    Column("failed_hours", "number", "h", "thread time of its attempts that failed"),
    Column("failed_share", "number", "fraction", "failed_hours of core_hours"),
    Column(
        "wasted_share",
        "number",
        "fraction",
        "of core_hours: waiting, overhead, and failed; none without metered chunks",
    ),
    Column("wasted_by", "text", None, "the class of thread time that has most of it"),
    Column("gigabits_per_second", "number", "Gbit/s", "requested from storage; none without metered chunks"),
    Column("heaviest_dataset", "text", None, "dataset whose chunks took the most time; none without metered chunks"),
    Column("heaviest_share", "number", "fraction", "of the time of all chunks"),
    Column("problems", "integer", "problems", "what its record lacks"),
    Column("journal", "text", None, "folder with its record"),
)
"""One row for each run."""

DAY_COLUMNS: Final = (
    Column("day", "text", None, "day (UTC)"),
    Column("core_hours", "number", "h", "threads of all workers times the time that they were there"),
    Column("cpu_hours", "number", "h", "CPU time of the worker processes"),
    Column("idle_hours", "number", "h", "threads without a task, sampled once a second"),
    Column("failed_hours", "number", "h", "attempts that failed"),
    *(
        Column(f"{name.replace(': ', '_')}_hours", "number", "h", f"of idle_hours: {name}")
        for name in IDLE
        if "idle" in name
    ),
    Column("events", "integer", "events", "of chunks with a result"),
    Column("bytes", "integer", "B", "requested from storage by metered attempts"),
    Column(
        "measured_energy",
        "number",
        "kWh",
        "of whole processors (RAPL), on hosts whose workers may read it",
    ),
    Column("measured_hosts", "number", "fraction", "hosts of these, of all hosts"),
    Column("energy", "number", "kWh", "estimate: core_hours x watts per core / 1000; none unless the watts are given"),
    Column("idle_energy", "number", "kWh", "the same of idle_hours"),
    Column("failed_energy", "number", "kWh", "the same of failed_hours"),
)
"""One row for each day: what the scheduler's workers were there for."""

GROWING: Final = ("capacity_seconds", "cpu_seconds", "events", "bytes", "joules")
"""Totals that only grow."""

USEFUL: Final = frozenset(one.name for one in TIME_CLASSES if one.work == "useful")
OWN: Final = tuple(one.name for one in TIME_CLASSES if one.work in {"useful", "waiting", "overhead", "lost"})
"""Classes of thread time of a run's own tasks."""


@dataclass(eq=False)
class Index:
    """Runs and days of the journals in a folder.

    Attributes
    ----------
    runs, days : pyarrow.Table
        Tables with RUN_COLUMNS and DAY_COLUMNS.
    watts : float or None
        Watts per core of the estimate.
    problems : list of str
        Journals that could not be read.
    """

    folder: Path
    runs: pa.Table
    days: pa.Table
    watts: float | None
    problems: list[str]


def index_of(folder: Path, day: str | None = None, watts: float | None = None) -> Index:
    """Index of the journals in a folder.

    Parameters
    ----------
    day
        Only runs that began on this day, and its cost, as YYYY-MM-DD.
    watts
        Power of a core, for the estimate of energy.

    Raises
    ------
    RoastcoffeaError
        There is no such folder, or no journal of a scheduler in it.
    """
    if not folder.is_dir():
        raise RoastcoffeaError(f"{folder} is no folder; give the one of --roastcoffea-journal")
    journals, problems = journals_in(folder)
    ours = [journal for journal in journals if is_facility(journal)]
    if not ours and not problems:
        raise RoastcoffeaError(f"{folder} has no journal of a scheduler; give the folder of --roastcoffea-journal")
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
    """Day of Unix seconds, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def row_of(journal: Journal) -> dict[str, Any]:
    """Row of a run."""
    found, header = recorded_in(journal), journal.header
    run, known = run_of(journal, found), found.run
    tasks: pa.Table = run.tasks
    own = tasks.filter(pc.is_valid(tasks["key"]))  # those of others have no key
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
    """What only metered chunks tell."""
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
    """Rows of days, from the totals that schedulers wrote; what accrued until an entry is of its day."""
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
        if amounts["hosts_with_energy"]:  # nothing where no host could measure
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
    """Days with their cost, and runs."""
    columns = {name: head for name, head in DAYS.items() if found.watts is not None or "energy" not in name}
    lines = [
        "core-hours: threads of all workers times the time that they were there; of these CPU, idle, and failed",
        "For an estimate of energy give --watts-per-core."
        if found.watts is None
        else f"Energy is an estimate, not measured: core-hours x {number(found.watts)} W per core / 1000.",
    ]
    days, runs, notes = found.days.to_pylist(), found.runs.to_pylist(), []
    for row in days:
        if (energy := row["measured_energy"]) is not None:
            where = f"Measured by the processors of {row['measured_hosts']:.0%} of the hosts, for all that ran there"
            lines.append(f"{where}: {ENERGY.text(energy)} on {row['day']}.")
    for row in runs:
        row["client"] = short(row["client"] or "")
    if runs:
        notes.append("wasted: waiting, overhead and failed attempts, of the thread time of the run's own tasks")
    if any(row["wasted_share"] is None for row in runs):
        notes.append("- is not known: chunks are metered by dask worker --preload roastcoffea.facility")
    if cut_off := sum(row["state"] == LOST for row in runs):
        notes.append(f"{counted(cut_off, 'run')} cut off: the scheduler ended, or was killed, before the run did")
    return [
        _sheet("Days", columns, days, lines),
        _sheet("Runs", RUNS, runs, notes),
        *([Sheet(title="Not read", items=found.problems)] if found.problems else []),
    ]


def _sheet(title: str, columns: Mapping[str, SheetColumn], rows: list[dict[str, Any]], notes: list[str]) -> Sheet:
    cells = [[row[name] for name in columns] for row in rows]
    return Sheet(title=title, things=title.lower(), columns=list(columns.values()), rows=cells, notes=notes)


def write_page(found: Index, path: Path, *, overwrite: bool) -> Path:
    """Write the index as a page, whole or not at all.

    Raises
    ------
    MeasurementError
        Something is there already, or it cannot be written.
    """
    lead = [f"{counted(len(found.runs), 'run')} recorded in {found.folder}"]
    heading = Heading(title=f"Runs of {found.folder.resolve().name}", label="facility", lead=lead)
    return folders.write_page(path, lambda: page(heading, sheets(found)), overwrite=overwrite)


def save_ended(found: Index, output: Path) -> Iterator[Path]:
    """Save the runs of an index that go on no longer; existing ones stay as they are."""
    for row in found.runs.to_pylist():
        if row["state"] != RUNNING and not (output / row["journal"]).exists():
            yield Measurement(run_of(journal_in(found.folder / row["journal"]))).save(output, row["journal"])
