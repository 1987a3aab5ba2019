"""The index of a facility as sheets, which terminal and page show."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from roastcoffea.errors import MeasurementError
from roastcoffea.recording.facility.index import LOST, Index
from roastcoffea.recording.facility.sentences import short
from roastcoffea.report.page.frame import page
from roastcoffea.report.sheets import Column, Heading, Sheet
from roastcoffea.storage.folders import whole_file
from roastcoffea.units import COUNT, FRACTION, GIGABIT_PER_SECOND, SECOND, Unit, counted, number, scaled, three_digits

HOUR: Final = Unit("h", lambda value: number(three_digits(round(value, 4))))
ENERGY: Final = Unit("kWh", scaled("Wh", 1e3))

RUNS: Final = (
    ("client", Column("client")),
    ("processor", Column("processor")),
    ("state", Column("state", dispensable=2)),
    ("elapsed", Column("elapsed", SECOND, dispensable=3)),
    ("events", Column("events", COUNT, dispensable=4)),
    ("core_hours", Column("core-hours", HOUR)),
    ("wasted_share", Column("wasted", FRACTION)),
    ("wasted_by", Column("most by")),
    ("failed_share", Column("failed", FRACTION)),
    ("gigabits_per_second", Column("data", GIGABIT_PER_SECOND, dispensable=5)),
    ("heaviest_dataset", Column("heaviest dataset", dispensable=1)),
)
DAYS: Final = (
    ("day", Column("day")),
    ("core_hours", Column("core-hours", HOUR)),
    ("cpu_hours", Column("CPU", HOUR)),
    ("idle_hours", Column("idle", HOUR)),
    ("failed_hours", Column("failed", HOUR)),
    ("energy", Column("energy", ENERGY)),
    ("idle_energy", Column("of idle", ENERGY)),
)
MEASURED: Final = "Measured by the processors of {:.0%} of the hosts, for all that ran there: {} on {}."
HOURS: Final = "core-hours: threads of all workers times the time that they were there; of these CPU, idle, and failed"
NO_WATTS: Final = "For an estimate of energy give --watts-per-core."
FORMULA: Final = "Energy is an estimate, not measured: core-hours x {} W per core / 1000."


def sheets(found: Index) -> list[Sheet]:
    """Days with their cost, and runs."""
    days = [pair for pair in DAYS if found.watts is not None or "energy" not in pair[0]]
    energy = NO_WATTS if found.watts is None else FORMULA.format(number(found.watts))
    runs = found.runs.to_pylist()
    for row in runs:
        row["client"] = short(row["client"] or "")
    notes = (
        [] if not runs else ["wasted: waiting, overhead and failed attempts, of the thread time of the run's own tasks"]
    )
    if any(row["wasted_share"] is None for row in runs):
        notes.append("- is not known: chunks are metered by dask worker --preload roastcoffea.facility")
    cut_off = sum(row["state"] == LOST for row in runs)
    if cut_off:
        notes.append(f"{counted(cut_off, 'run')} cut off: the scheduler ended, or was killed, before the run did")
    rows = found.days.to_pylist()
    measured = [
        MEASURED.format(row["measured_hosts"], ENERGY.text(row["measured_energy"]), row["day"])
        for row in rows
        if row["measured_energy"] is not None
    ]
    heads, lines = [head for _, head in days], [HOURS, energy, *measured]
    return [
        Sheet(title="Days", things="days", columns=heads, rows=_rows(rows, days), notes=lines),
        Sheet(title="Runs", things="runs", columns=[head for _, head in RUNS], rows=_rows(runs, RUNS), notes=notes),
        *([Sheet(title="Not read", items=found.problems)] if found.problems else []),
    ]


def _rows(rows: list[dict[str, Any]], columns: Any) -> list[list[Any]]:
    return [[row[name] for name, _ in columns] for row in rows]


def write_page(found: Index, path: Path, *, overwrite: bool) -> Path:
    """Write the index as a page, whole or not at all.

    Raises
    ------
    MeasurementError
        Something is there already, or it cannot be written.
    """
    lead = [f"{counted(len(found.runs), 'run')} recorded in {found.folder}"]
    text = page(Heading(title=f"Runs of {found.folder.resolve().name}", label="facility", lead=lead), sheets(found))
    try:
        with whole_file(path, overwrite=overwrite) as file:
            file.write(str(text).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path
