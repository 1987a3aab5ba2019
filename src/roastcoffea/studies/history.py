"""History of the runs in a folder, grouped by analysis."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from roastcoffea.compat import older_keywords
from roastcoffea.errors import MeasurementError
from roastcoffea.measurement import load
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Cell, Column, Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.storage.folders import write_page
from roastcoffea.storage.store import is_measurement, is_monitor, list_runs, not_a_measurement
from roastcoffea.studies.history_analysis import (
    BYTES,
    CPU,
    FAILED,
    RATE,
    SERIES,
    Analysis,
    Entry,
    analysis_of,
    entry_of,
)
from roastcoffea.units import COUNT

if TYPE_CHECKING:
    import pandas as pd

BLOCKS: Final = "▁▂▃▄▅▆▇█"
LETTERS: Final = "_.:-=+*#"
"""Characters for bars of increasing height. LETTERS is used in terminals that lack block characters."""

LONGEST: Final = 32
"""Maximum number of bars in a line. Older runs are left out."""

HEADS: Final = {RATE: "rate/core", CPU: "CPU/event", BYTES: "bytes/event", FAILED: "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Presented):
    """Result of `history`: the runs in a folder, and the changes found."""

    folder: Path
    analyses: tuple[Analysis, ...]
    """One analysis per combination of processor and datasets, most recent first."""
    skipped: tuple[str, ...]
    """Folders without a readable measurement, with reasons."""

    def sheets(self, *, everything: bool = False) -> list[Sheet]:
        return list(_sheets(self, BLOCKS, everything))

    def print(self, file: IO[str] | None = None, *, everything: bool = False) -> None:
        """Print the changes and the latest (or all) runs to the terminal or a file."""
        encoding = getattr(file or sys.stdout, "encoding", None) or "utf-8"
        has_blocks = BLOCKS.encode(encoding, "ignore").decode(encoding) == BLOCKS
        print_sheets(_sheets(self, BLOCKS if has_blocks else LETTERS, everything), file)

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the history to a self-contained HTML page, and return its path.

        Each run links to its report page, if there is one in or next to the run's folder. Otherwise, it links to a
        comparison with the previous run.

        Raises
        ------
        MeasurementError
            If the file already exists or cannot be written.
        """
        from roastcoffea.studies.history_page import page_of

        path = Path(path)
        text = partial(page_of, self.folder, self.analyses, self.skipped, path.parent)
        return write_page(path, text, overwrite=overwrite)

    def to_dataframe(self) -> pd.DataFrame:
        """Return all runs as a DataFrame, with units in `attrs`.

        The columns contain each run's analysis, metrics, failures, outcome, versions, machines and settings.
        """
        import pandas as pd

        rows = [
            {
                "processor": ", ".join(one.processors),
                "datasets": ", ".join(one.datasets),
                "run": entry.name,
                "start": pd.Timestamp(entry.start, unit="s", tz="UTC"),
                **{label: entry.values.get(label) for label in SERIES},
                "failures": entry.failures,
                "outcome": entry.state,
                "not used": entry.reason,
                **{name: value for name, value in entry.facts.items() if name not in {"processor", "datasets"}},
            }
            for one in self.analyses
            for entry in one.entries
        ]
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {label: str(unit) for label, unit in SERIES.items()}
        return frame

    def as_dict(self) -> dict[str, Any]:
        """Return the history as a JSON-serialisable dictionary."""
        analyses = [one.as_dict() for one in self.analyses]
        units = {label: str(unit) for label, unit in SERIES.items()}
        return {"format": "roastcoffea history 1", "units": units, "analyses": analyses, "skipped": list(self.skipped)}


@older_keywords(folder="path")
def history(path: str | PathLike[str]) -> History:
    """Find changes over time among the runs in a folder.

    Changes are found in the event rate per core, the CPU time per event and the bytes per event. Each combination of
    processor and datasets is a separate analysis. Failed and incomplete runs are shown, but they are not used to find
    changes.

    Parameters
    ----------
    path
        Folder of measurements, such as "roastcoffea-runs".

    Raises
    ------
    MeasurementError
        If there are no readable measurements in the folder.
    """
    folder = Path(path)
    entries, skipped = _entries(folder)
    if not entries:
        why = f"there are no measurements in {folder}; pass a folder of measurements"
        if is_monitor(folder):
            why = not_a_measurement(folder)
        elif is_measurement(folder):
            why = f"{folder} is a single measurement; pass its parent folder"
        raise MeasurementError("; ".join([why, *skipped]))
    analyses = [analysis_of(group) for group in _groups(entries)]
    analyses.sort(key=lambda one: -one.entries[-1].start)
    return History(folder=folder, analyses=tuple(analyses), skipped=tuple(skipped))


def _entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """Load the runs in a folder, oldest first, and list skipped folders. Copies of a run are marked as not used."""
    entries: dict[str, Entry] = {}
    skipped: list[str] = []
    runs = list_runs(folder)
    for stored in runs:
        try:
            if stored.error is not None:
                raise MeasurementError(stored.error)
            entry = entry_of(load(stored.path), stored.path)
        except MeasurementError as error:
            skipped.append(f"{stored.name}: {error}")
            continue
        same = next((one.name for one in entries.values() if one.id == entry.id), None)
        entries[entry.name] = replace(entry, reason=f"it is the same run as {same}") if same else entry
    known = {run.path for run in runs}
    others = (path for path in sorted(folder.iterdir()) if path.is_dir() and path not in known)
    skipped += [f"{path.name}: not a measurement" for path in others if not path.name.startswith(".")]
    return list(entries.values()), skipped


def _groups(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    """Group runs by processor and datasets.

    A run with unknown datasets is added to its processor's group, provided there is only one such group.
    """
    groups: dict[Any, list[Entry]] = defaultdict(list)
    for entry in entries:
        found = {one.datasets for one in entries if one.datasets and one.processors == entry.processors}
        datasets = found.pop() if not entry.datasets and len(found) == 1 else entry.datasets
        groups[entry.processors, datasets].append(replace(entry, datasets=datasets))
    return groups.values()


# For people


def _sheets(found: History, bars: str, everything: bool) -> Iterator[Sheet]:
    for one in found.analyses:
        several, first, last = len(one.used) >= 3, one.entries[0].when, one.entries[-1].when
        lead = f"{one.counts[0]} {f'from {first} to {last}' if first != last else f'of {first}'}{one.counts[1]}"
        # latest changes first
        marks = [
            f"Since {mark.entry.name} ({mark.entry.when}): {mark.text}. {mark.why}" for mark in reversed(one.marks)
        ]
        yield Sheet(title=one.title, lead=[lead], items=marks, notes=[one.remark] * several)
        if several:
            yield _bars(one, bars)
        yield _runs(one, everything)
        facts = [(name, "; ".join(map(str, changes))) for name, changes in one.changed.items() if changes]
        if facts:
            yield Sheet(
                title="versions, settings and machines",
                columns=columns(None, "run", "changed since the previous run"),
                rows=facts if everything else facts[-8:],
                total=len(facts),
            )
        reasons = [f"{entry.name}: {entry.reason}" for entry in one.entries if not entry.used]
        if reasons:
            yield Sheet(title="not used", items=reasons)
    if found.skipped:
        yield Sheet(title="skipped", items=found.skipped)


def _bars(one: Analysis, bars: str) -> Sheet:
    rows: list[tuple[str, str, str, str]] = []
    for label, unit in SERIES.items():
        steps, known, line = one.steps(label), one.known(label)[-LONGEST:], ""
        highest = max((value for _, value in known), default=0.0)
        for place, value in known:
            height = round(value / highest * (len(bars) - 1)) if highest > 0 else 0
            line += ("|" if place in steps and line else "") + bars[height]
        latest = next((step.text for step in reversed(steps.values())), "no change")
        if known:
            rows.append((label, line, unit.text(one.levels(label)[-1][2]), latest))
    which = f"the latest {LONGEST} runs" if len(one.used) > LONGEST else "oldest to latest"
    width = max(len(which), *(len(row[1]) for row in rows)) if rows else None
    heads = [Column("", width=15), Column(which, width=width), *columns(COUNT, "now", "last change")]
    return Sheet(columns=heads, rows=rows)


def _runs(one: Analysis, everything: bool) -> Sheet:
    entries = one.entries if everything else one.entries[-15:]
    marked = {mark.entry.name for mark in one.marks}
    states = ["changed" if each.name in marked else "" if each.used else "not used" for each in entries]
    # show the date of each run, or the time if all runs are from the same day
    part = int(len(entries) > 1 and len({entry.when.split()[0] for entry in entries}) == 1)
    shown, cells = one.table(HEADS)
    name = min(max(len(entry.name) for entry in entries), 18 if any(states) else 22)
    state = [Column("", width=8)] if any(states) else []
    heads = [Column("run", width=name), Column("started", width=10), *shown, *state]
    rows: list[list[Cell]] = [
        [entry.name, entry.when.split()[part], *cells[entry.name], *([word] if state else [])]
        for entry, word in zip(entries, states, strict=True)
    ]
    lead = [f"the latest {len(entries)} of {len(one.entries)}"] if len(entries) < len(one.entries) else []
    return Sheet(title="runs", lead=lead, columns=heads, rows=rows)
