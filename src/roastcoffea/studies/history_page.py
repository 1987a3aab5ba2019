"""The page of a history: analyses with their changes, a drawing for each number, comparisons before and after."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from roastcoffea.errors import ComparisonError, MeasurementError
from roastcoffea.metrics.phases import COMPUTING, READING, TROUBLE
from roastcoffea.report.page.frame import asset, fold_anchor, page
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Cell, Heading, Link, Picture, Sheet, columns
from roastcoffea.storage.store import PAGE_FILE
from roastcoffea.studies.compare import compare
from roastcoffea.studies.history_analysis import BYTES, CPU, FAILED, RATE, SERIES, Analysis, Entry, Mark
from roastcoffea.units import COUNT, alike, counted, number

COLOURS: Final = {
    RATE: "var(--ink)",
    CPU: f"var(--rc-{COMPUTING.name})",
    BYTES: f"var(--rc-{READING.name})",
    FAILED: f"var(--rc-{TROUBLE.name})",
}
FOOT: Final = 99.5
"""Height of runs without a value, from the top in percent; values are drawn between 8 and 92."""

MOST_PAIRS: Final = 12
"""Runs of an analysis, the latest, that are compared with the run before."""


def drawing(one: Analysis, targets: Mapping[str, str], of_marks: Mapping[str, str]) -> Markup:
    """Changes as cards, and the runs in panels.

    Parameters
    ----------
    targets
        Where a click on a run leads, by its name.
    of_marks
        Where the comparison of the runs before and after a change is, by the name of its run.
    """
    failures = {at: entry.failures for at, entry in enumerate(one.entries) if entry.failures}
    return rendered(
        "history.html",
        cards=[
            {
                "title": f"{mark.text[:1].upper()}{mark.text[1:]}",
                "when": f"from {mark.entry.name} on ({mark.entry.when})",
                "what": mark.why,
                "target": of_marks.get(mark.entry.name, ""),
            }
            for mark in reversed(one.marks)
        ],
        remark=one.remark,
        panels=[
            *(_of_series(one, label, targets) for label in SERIES if one.known(label)),
            *([_of_failures(one, failures, targets)] if failures else []),
        ],
        many=len(one.entries) > 100,
        first=one.entries[0].when,
        last=one.entries[-1].when if len(one.entries) > 1 else "",
        unused=any(not entry.used for entry in one.entries),
    )


def _of_series(one: Analysis, label: str, targets: Mapping[str, str]) -> dict[str, Any]:
    """A number: its runs, what they are between changes, and the changes."""
    places = [place for place, entry in enumerate(one.entries) if entry.used]
    values = {places[place]: value for place, value in one.known(label)}
    low, high = min(values.values()), max(values.values())
    # a fifth of the largest apart at least: less would make the scatter look large
    lacking = max(0.2 * abs(high) - (high - low), 0.0) / 2
    low, high = (max(low - lacking, 0.0), high + lacking) if high else (0.0, 1.0)

    def height(value: float) -> str:
        return f"{92 - 84 * (value - low) / (high - low):.1f}"

    many, heights = len(one.entries), {at: height(value) for at, value in values.items()}
    unit, levels = alike(SERIES[label], [low, high]), one.levels(label)
    steps = {places[place]: step for place, step in one.steps(label).items()}
    now = unit.text(levels[-1][2])
    changes = ", ".join(f"{step} from {one.entries[at].name} on" for at, step in steps.items()) or "no change"
    return {
        "label": label,
        "now": f"{now} in the latest runs",
        "top": unit.text(high),
        "bottom": unit.text(low),
        "spoken": f"{label} of {number(len(values))} runs, now {now}: {changes}",
        "colour": COLOURS[label],
        "width": many,
        "dots": [_dot(one, at, targets, heights.get(at, f"{FOOT}")) | {"used": at in values} for at in range(many)],
        "line": " ".join(f"{at + 0.5},{y}" for at, y in heights.items()),
        "levels": [(places[left], places[right] + 1, height(value)) for left, right, value in levels],
        "changes": [*steps],
        "flags": [(f"{100 * at / many:.2f}", step.text) for at, step in steps.items()],
    }


def _of_failures(one: Analysis, failures: Mapping[int, float], targets: Mapping[str, str]) -> dict[str, Any]:
    """Failed attempts of each run, as bars."""
    most, known = max(failures.values()), [entry.failures for entry in one.entries if entry.failures is not None]
    some = f"{number(len(failures))} of {number(len(one.entries))} runs have some"
    return {
        "label": FAILED,
        "now": f"{number(known[-1])} in the latest run",
        "top": COUNT.text(most),
        "bottom": "0",
        "spoken": f"{FAILED}: {some}, {number(most)} at most",
        "colour": COLOURS[FAILED],
        "width": len(one.entries),
        "dots": [
            _dot(one, at, targets, f"{100 - 92 * each / most:.1f}") | {"foot": FOOT} for at, each in failures.items()
        ],
        **dict.fromkeys(("line", "levels", "changes", "flags"), ()),
    }


def _dot(one: Analysis, at: int, targets: Mapping[str, str], y: str) -> dict[str, Any]:
    """A run: a point, and the text that the pointer shows there."""
    entry = one.entries[at]
    words = [f"{entry.name}, {entry.when}", *([f"not used: {entry.reason}"] if entry.reason else [])]
    words += [f"{label} {SERIES[label].text(value)}" for label, value in entry.values.items()]
    words += [f"{number(entry.failures)} {FAILED}"] if entry.failures else []
    target = targets.get(entry.name, "")
    return {"x": at + 0.5, "y": y, "foot": y, "text": "\n".join(words), "target": target, "used": True}


class _Comparisons:
    """Comparisons that the page holds, and what could not be compared."""

    def __init__(self) -> None:
        self.sheets: list[Sheet] = []
        self.failed: list[str] = []

    def anchor(self, before: Sequence[Entry], after: Sequence[Entry]) -> str:
        """Where runs before and after are compared in the page; empty where they cannot be."""
        names = [
            group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}" for group in (before, after)
        ]
        both = f"{names[1]} against {names[0]}"
        try:
            found = compare(*([entry.path for entry in group] for group in (before, after)), labels=names)
        except (ComparisonError, MeasurementError) as error:
            self.failed.append(f"{both}: {error}")
            return ""
        number = f"comparison {len(self.sheets) + 1}"
        # screen readers tell tables of equal titles apart by what their rows are
        parts = [replace(sheet, things=f"rows of {number}") for sheet in found.sheets()]
        self.sheets.append(Sheet(title=f"{number}: {both}", parts=parts))
        return f"#{fold_anchor(self.sheets[-1].title)}"

    def around(self, one: Analysis, mark: Mark) -> str:
        """Comparison of the runs before a change, back to the one before it, with those after it."""
        places = [0, *(each.place for each in one.marks), len(one.used)]
        number = places.index(mark.place, 1)
        before = one.used[places[number - 1] : mark.place][-10:]
        return self.anchor(before, one.used[mark.place : places[number + 1]][:10])


def page_of(folder: Path, analyses: Sequence[Analysis], skipped: Sequence[str], place: Path) -> str:
    """The page of a history, as it stands in a folder, from which links to pages of runs begin."""
    comparisons, drawn, sections = _Comparisons(), {}, []
    titles = Counter(one.title for one in analyses)
    for at, one in enumerate(analyses):
        of_marks = {mark.entry.name: comparisons.around(one, mark) for mark in one.marks}
        targets = {name: target for name, target in (of_marks | _own_pages(one, place)).items() if target}
        for before, after in list(pairwise(one.used))[-MOST_PAIRS:]:
            if after.name not in targets:
                targets[after.name] = comparisons.anchor([before], [after])
        if len(one.entries) > 1:
            drawn[f"history-{at}"] = drawing(one, targets, of_marks)
        title = one.title if titles[one.title] == 1 else f"{one.title} ({at + 1})"
        unused = len(one.entries) - len(one.used)
        lead = f"{counted(len(one.entries), 'run')}{f', {unused} of them not used' if unused else ''}"
        parts = [_runs(one, title, targets)]
        sections.append(Sheet(title=title, lead=[lead], pictures=[Picture(f"history-{at}")], parts=parts))
    if skipped:
        sections.append(Sheet(title="skipped", lead=["Folders without a measurement that can be read."], items=skipped))
    failed = comparisons.failed
    details = [*comparisons.sheets, *([Sheet(title="not compared", items=failed)] if failed else [])]
    runs = sum(len(one.entries) for one in analyses)
    several = "1 analysis" if len(analyses) == 1 else f"{len(analyses)} analyses"
    lead = f"{counted(runs, 'run')} of {several}, in {folder}"
    heading = Heading(title=f"History of {folder.resolve().name}", label="history", lead=[lead])
    return page(heading, sections, details=details, drawn=drawn, style=asset("history.css"))


def _own_pages(one: Analysis, place: Path) -> dict[str, str]:
    """Pages of the runs themselves, in or beside their folders, or beside this page, by the names of runs."""
    found = {}
    for entry in one.entries:
        own = (entry.path / PAGE_FILE, entry.path.parent / f"{entry.name}.html", place / f"{entry.name}.html")
        path = next((path for path in own if path.is_file()), None)
        if path is not None:
            found[entry.name] = quote(Path(os.path.relpath(path.resolve(), place.resolve())).as_posix())
    return found


def _runs(one: Analysis, title: str, targets: Mapping[str, str]) -> Sheet:
    """All runs, the latest first: numbers, what changed, and why one is not used."""
    shown, cells = one.table({})
    words = {mark.entry.name: mark.text for mark in one.marks}
    words |= {entry.name: f"not used: {entry.reason}" for entry in one.entries if not entry.used}
    rows: list[Sequence[Cell]] = []
    for entry in reversed(one.entries):
        name, facts = entry.name, "; ".join(map(str, one.changed.get(entry.name, ())))
        rows.append((Link(name, targets.get(name, "")), entry.when, *cells[name], words.get(name, ""), facts))
    heads = columns(None, "run", "started") + shown + columns(None, "remark", "changed since the run before")
    return Sheet(title="runs", columns=heads, rows=rows, things=f"runs of {title}")
