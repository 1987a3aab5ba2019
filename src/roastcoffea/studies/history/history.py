"""History: the runs in a folder over time, analysis by analysis."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import load
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Cell, Column, Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.storage.store import is_measurement, is_monitor, list_runs, not_a_measurement
from roastcoffea.studies.history.analysis import SERIES, Analysis, Entry, analysis_of, entry_of
from roastcoffea.units import COUNT, alike, counted

if TYPE_CHECKING:
    import pandas as pd

BLOCKS: Final = "▁▂▃▄▅▆▇█"
LETTERS: Final = "_.:-=+*#"
"""Heights of bars; letters where the output knows no block characters."""

CHANGED: Final = "|"
LONGEST: Final = 32
"""Bars in a line: those of the latest runs."""

HEADS: Final = {"rate per core": "rate/core", "CPU per event": "CPU/event", "bytes per event": "bytes/event"}
MOST_FACTS: Final = 8
MOST_RUNS: Final = 15
FEWEST_BARS: Final = 3
"""Runs from which bars are drawn."""

WIDEST_NAME: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Presented):
    """Runs over time: see `history`."""

    folder: Path
    analyses: tuple[Analysis, ...]
    """Runs of each processor and its datasets; the analysis with the latest run comes first."""
    skipped: tuple[str, ...]
    """Folders that hold no measurement, or none that can be read, with the reason."""

    def sheets(self, *, everything: bool = False) -> list[Sheet]:
        """Changes, bars of the runs, and the latest runs (or all), analysis by analysis."""
        return list(_sheets(self, BLOCKS, everything))

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print changes and the latest runs, or all runs, to the terminal or into a file."""
        encoding = getattr(file or sys.stdout, "encoding", None) or "utf-8"
        print_sheets(_sheets(self, BLOCKS if _has(encoding, BLOCKS) else LETTERS, everything), file)

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it as a page for a browser, which needs nothing else; give its path.

        A click on a run opens its own page if that lies in or beside its folder, else its comparison with the run
        before.

        Raises
        ------
        MeasurementError
            If the file is there already, or it cannot be written.
        """
        from roastcoffea.studies.history.page import write_page

        return write_page(self.folder, self.analyses, self.skipped, Path(path), overwrite=overwrite)

    def to_dataframe(self) -> pd.DataFrame:
        """All runs as a table: analysis, what each cost, failures, how it ended, and the facts; `attrs` has units."""
        import pandas as pd

        rows = [
            {"processor": ", ".join(one.processors), "datasets": ", ".join(one.datasets)} | _row_of_frame(entry)
            for one in self.analyses
            for entry in one.entries
        ]
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {label: str(unit) for label, unit in SERIES.items()}
        return frame

    def as_dict(self) -> dict[str, Any]:
        """All of it in types of standard JSON."""
        analyses = [one.as_dict() for one in self.analyses]
        units = {label: str(unit) for label, unit in SERIES.items()}
        return {"format": "roastcoffea history 1", "units": units, "analyses": analyses, "skipped": list(self.skipped)}


def history(folder: str | PathLike[str]) -> History:
    """Runs in a folder over time: rate per core, CPU and bytes per event, failures, and where they changed.

    Runs of other processors or datasets are kept apart. Failed and incomplete runs are shown, and not used.

    Parameters
    ----------
    folder
        Folder that holds measurements, such as "roastcoffea-runs".

    Raises
    ------
    MeasurementError
        If there are no measurements in it.
    """
    folder = Path(folder)
    entries, skipped = _entries(folder)
    if not entries:
        raise MeasurementError("; ".join([_why_none(folder), *skipped]))
    analyses = [analysis_of(group) for group in _groups(entries)]
    analyses.sort(key=lambda one: -one.entries[-1].start)
    return History(folder=folder, analyses=tuple(analyses), skipped=tuple(skipped))


def _why_none(folder: Path) -> str:
    if is_monitor(folder):
        return not_a_measurement(folder)
    if is_measurement(folder):
        return f"{folder} is one measurement; pass the folder that holds it and others"
    return f"there are no measurements in {folder}"


def _entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """Runs in a folder, oldest first, and what was skipped; a run that lies there twice is used once."""
    entries: list[Entry] = []
    skipped: list[str] = []
    names: set[Path] = set()
    known: dict[str, str] = {}
    for stored in list_runs(folder):
        names.add(stored.path)
        try:
            if stored.error is not None:
                raise MeasurementError(stored.error)
            entry = entry_of(load(stored.path), stored.path)
        except MeasurementError as error:
            skipped.append(f"{stored.name}: {error}")
            continue
        if entry.id in known:
            entry = replace(entry, reason=f"it is the same run as {known[entry.id]}")
        known.setdefault(entry.id, entry.name)
        entries.append(entry)
    others = (path for path in sorted(folder.iterdir()) if path.is_dir() and path not in names)
    skipped += [f"{path.name}: it is no measurement" for path in others if not path.name.startswith(".")]
    return entries, skipped


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Runs by processor and datasets; a run whose datasets are unknown joins the only ones of its processor."""
    datasets = defaultdict(set)
    for entry in entries:
        if entry.datasets:
            datasets[entry.processors].add(entry.datasets)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Entry]] = {}
    for entry in entries:
        of_processor = datasets[entry.processors]
        (only,) = of_processor if not entry.datasets and len(of_processor) == 1 else (entry.datasets,)
        groups.setdefault((entry.processors, only), []).append(replace(entry, datasets=only))
    yield from groups.values()


# For people


def _sheets(found: History, bars: str, everything: bool) -> Iterator[Sheet]:
    for one in found.analyses:
        several = len(one.used) >= FEWEST_BARS
        notes = [one.remark] if several else []
        yield Sheet(title=one.title, lead=[lead_of(one)], items=list(changes_of(one)), notes=notes)
        yield from [_bars(one, bars)] if several else []
        yield _runs(one, everything)
        yield from _facts(one, everything)
        yield from not_used(one)
    if found.skipped:
        yield Sheet(title="skipped", items=found.skipped)


def lead_of(one: Analysis) -> str:
    """How many runs there are, from when to when, and how many are not used."""
    count = len(one.entries)
    first, last = (entry.when for entry in (one.entries[0], one.entries[-1]))
    when = f"from {first} to {last}" if first != last else f"of {first}"
    unused = count - len(one.used)
    return f"{counted(count, 'run')} {when}" + (f", {unused} of them not used" if unused else "")


def changes_of(one: Analysis) -> Iterator[str]:
    """The changes, each in a sentence; what the latest runs show comes first."""
    for mark in reversed(one.marks):
        yield f"From {mark.entry.name} on ({mark.entry.when}): {mark.text}. {mark.why}"


def not_used(one: Analysis) -> Iterator[Sheet]:
    """Runs that are not used, with the reason."""
    reasons = [f"{entry.name}: {entry.reason}" for entry in one.entries if not entry.used]
    if reasons:
        yield Sheet(title="not used", items=reasons)


def _bars(one: Analysis, bars: str) -> Sheet:
    """The latest runs as bars from zero, oldest first; what the last stretch without a change has, and its change."""
    rows: list[tuple[str, str, str, str]] = []
    for label, unit in SERIES.items():
        levels = one.levels(label)
        if levels:
            last = levels[-1][2]
            steps = [step for mark in one.marks for step in mark.steps if step.label == label]
            change = str(steps[-1]).removeprefix(f"{label} ") if steps else "no change"
            rows.append((label, _line(one, label, bars), unit.text(last), change))
    shown = min(len(one.used), LONGEST)
    which = f"the latest {shown} runs" if shown < len(one.used) else "oldest to latest"
    width = max(len(which), *(len(row[1]) for row in rows)) if rows else None
    heads = [Column("", width=15), Column(which, width=width), *columns(COUNT, "now", "last change")]
    return Sheet(columns=heads, rows=rows)


def _line(one: Analysis, label: str, bars: str) -> str:
    known = one.known(label)[-LONGEST:]
    highest = max(value for _, value in known)
    begins = {mark.place for mark in one.marks if any(step.label == label for step in mark.steps)}
    line = ""
    for place, value in known:
        height = round(value / highest * (len(bars) - 1)) if highest > 0 else 0
        line += (CHANGED if place in begins and line else "") + bars[height]
    return line


def _runs(one: Analysis, everything: bool) -> Sheet:
    """The latest runs with their numbers, or all, the latest last."""
    entries = one.entries if everything else one.entries[-MOST_RUNS:]
    marked = {mark.entry.name for mark in one.marks}
    states = ["changed" if each.name in marked else "" if each.used else "not used" for each in entries]
    failures = any(entry.failures for entry in entries)
    dates = [entry.when.split()[0] for entry in entries]
    starts = dates if len(set(dates)) == len(dates) else _short([entry.when for entry in entries])
    width = min(max(len(entry.name) for entry in entries), WIDEST_NAME - (4 if any(states) else 0))
    heads = [
        Column("run", width=width),
        Column("started", width=max(len("started"), *map(len, starts))),
        *columns_of_series(one, HEADS),
    ]
    heads += [Column("failed", COUNT, dispensable=1)] if failures else []
    heads += [Column("", width=8)] if any(states) else []
    rows: list[list[Cell]] = []
    for entry, start, state in zip(entries, starts, states, strict=True):
        row: list[Cell] = [entry.name, start, *(entry.values.get(label) for label in SERIES)]
        rows.append([*row, *([entry.failures] if failures else []), *([state] if any(states) else [])])
    lead = [f"the latest {len(entries)} of {len(one.entries)}"] if len(entries) < len(one.entries) else []
    return Sheet(title="runs", lead=lead, columns=heads, rows=rows)


def _short(times: Sequence[str]) -> list[str]:
    """Times without the date or the year that all have."""
    for common in (len("2026-01-01 "), len("2026-")):
        if len({time[:common] for time in times}) == 1:
            return [time[common:] for time in times]
    return list(times)


def columns_of_series(one: Analysis, heads: Mapping[str, str]) -> list[Column]:
    """A column for each number, in one unit."""
    values = {label: [entry.values[label] for entry in one.entries if label in entry.values] for label in SERIES}
    return [Column(heads.get(label, label), alike(unit, values[label])) for label, unit in SERIES.items()]


def _facts(one: Analysis, everything: bool) -> Iterator[Sheet]:
    """What the latest runs were made on that the run before was not."""
    rows = [(name, "; ".join(map(str, found))) for name, found in one.changed.items() if found]
    if rows:
        heads = [Column("run"), Column("changed from the run before")]
        shown = rows if everything else rows[-MOST_FACTS:]
        total = len(rows) if len(shown) < len(rows) else None
        yield Sheet(title="versions, settings and machines", columns=heads, rows=shown, total=total)


def _has(encoding: str, letters: str) -> bool:
    """Whether an output can show these letters."""
    try:
        letters.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _row_of_frame(entry: Entry) -> dict[str, Any]:
    import pandas as pd

    said = {"run": entry.name, "start": pd.Timestamp(entry.start, unit="s", tz="UTC")}
    state = {"failures": entry.failures, "outcome": entry.state, "not used": entry.reason}
    facts = {name: value for name, value in entry.facts.items() if name not in {"processor", "datasets"}}
    return said | {label: entry.values.get(label) for label in SERIES} | state | facts
