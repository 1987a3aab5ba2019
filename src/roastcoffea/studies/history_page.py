"""HTML page of a history: changes, charts and comparisons for each analysis."""

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
from roastcoffea.studies.history_analysis import BYTES, CPU, FAILED, RATE, SERIES, Analysis, Entry
from roastcoffea.units import COUNT, alike, counted, number

COLOURS: Final = {
    RATE: "var(--ink)",
    CPU: f"var(--rc-{COMPUTING.name})",
    BYTES: f"var(--rc-{READING.name})",
    FAILED: f"var(--rc-{TROUBLE.name})",
}
FOOT: Final = 99.5
"""Vertical position of runs without a value, in percent from the top. Values are drawn between 8 and 92."""

MOST_PAIRS: Final = 12
"""Maximum number of runs per analysis to compare with the preceding run. Only the latest are compared."""

Targets = Mapping[str, str]


def drawing(one: Analysis, targets: Targets, of_marks: Targets) -> Markup:
    """Render an analysis: cards with its changes, and a chart of the runs for each metric.

    `of_marks` maps run names to anchors. Each anchor links to a comparison of the runs before and after a change.
    """
    cards = [
        {
            "title": f"{mark.text[:1].upper()}{mark.text[1:]}",
            "when": f"since {mark.entry.name} ({mark.entry.when})",
            "what": mark.why,
            "target": of_marks.get(mark.entry.name, ""),
        }
        for mark in reversed(one.marks)
    ]
    places = [place for place, entry in enumerate(one.entries) if entry.used]
    panels = [
        _panel(one, label, {places[place]: value for place, value in one.known(label)}, places, targets)
        for label in SERIES
        if one.known(label)
    ]
    failures = {at: entry.failures for at, entry in enumerate(one.entries) if entry.failures}
    return rendered(
        "history.html",
        cards=cards,
        remark=one.remark,
        panels=[*panels, *([_panel(one, FAILED, failures, places, targets)] if failures else [])],
        many=len(one.entries) > 100,
        first=one.entries[0].when,
        last=one.entries[-1].when if len(one.entries) > 1 else "",
        unused=len(places) < len(one.entries),
    )


def _panel(
    one: Analysis, label: str, values: Mapping[int, float], places: Sequence[int], targets: Targets
) -> dict[str, Any]:
    """Prepare the chart of a metric: runs as dots (failures as bars), changes, and medians between changes."""
    failed, many, high = label == FAILED, len(one.entries), max(values.values())
    low = 0.0 if failed else min(values.values())
    # span at least a fifth of the largest value, because a smaller span would exaggerate the scatter
    lacking = max(0.2 * abs(high) - (high - low), 0.0) / 2
    low, high = (max(low - lacking, 0.0), high + lacking) if high else (0.0, 1.0)

    def height(value: float) -> str:
        return f"{92 - 84 * (value - low) / (high - low):.1f}"

    unit = COUNT if failed else alike(SERIES[label], [low, high])
    levels = [(places[left], places[right] + 1, value) for left, right, value in one.levels(label)]
    now = f"{unit.text(levels[-1][2] if levels else list(values.values())[-1])} in the latest runs"
    if failed:
        now = f"in {number(len(values))} of {number(many)} runs, at most {number(high)}"
    steps = {places[place]: step for place, step in one.steps(label).items()}
    changes = ", ".join(f"{step} since {one.entries[at].name}" for at, step in steps.items())
    dots = []
    for at in values if failed else range(many):
        entry, y = one.entries[at], height(values[at]) if at in values else str(FOOT)
        words = [f"{entry.name}, {entry.when}", *([f"not used: {entry.reason}"] if entry.reason else [])]
        words += [f"{name} {SERIES[name].text(value)}" for name, value in entry.values.items()]
        words += [f"{number(entry.failures)} {FAILED}"] if entry.failures else []
        dots.append(
            {"x": at + 0.5, "y": y, "foot": FOOT if failed else y, "used": at in values}
            | {"text": "\n".join(words), "target": targets.get(entry.name, "")}
        )
    return {
        "label": label,
        "now": now,
        "top": unit.text(high),
        "bottom": unit.text(low),
        "spoken": f"{label}: {now}; {changes or 'no change'}",
        "colour": COLOURS[label],
        "width": many,
        "dots": dots,
        "line": "" if failed else " ".join(f"{at + 0.5},{height(value)}" for at, value in values.items()),
        "levels": [(left, right, height(value)) for left, right, value in levels],
        "changes": [*steps],
        "flags": [(f"{100 * at / many:.2f}", step.text) for at, step in steps.items()],
    }


def page_of(folder: Path, analyses: Sequence[Analysis], skipped: Sequence[str], place: Path) -> str:
    """Render the history page. Links to run pages are relative to the folder `place`."""
    drawn: dict[str, Markup] = {}
    sections: list[Sheet] = []
    details: list[Sheet] = []
    failed: list[str] = []

    def anchor(before: Sequence[Entry], after: Sequence[Entry]) -> str:
        """Add a comparison between two groups of runs, and return its anchor (empty if the comparison failed)."""
        names = [
            group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}" for group in (before, after)
        ]
        title = f"comparison {len(details) + 1}"
        try:
            sheets = compare(*([entry.path for entry in group] for group in (before, after)), labels=names).sheets()
        except (ComparisonError, MeasurementError) as error:
            failed.append(f"{names[1]} against {names[0]}: {error}")
            return ""
        # with `things`, screen readers can distinguish tables with the same title
        parts = [replace(sheet, things=f"rows of {title}") for sheet in sheets]
        details.append(Sheet(title=f"{title}: {names[1]} against {names[0]}", parts=parts))
        return f"#{fold_anchor(details[-1].title)}"

    titles = Counter(one.title for one in analyses)
    for at, one in enumerate(analyses):
        # compare up to ten runs on either side of a change, but stop at the adjacent changes
        places = [0, *(mark.place for mark in one.marks), len(one.used)]
        of_marks = {
            one.used[here].name: anchor(one.used[low:here][-10:], one.used[here:high][:10])
            for low, here, high in zip(places, places[1:], places[2:], strict=False)
        }
        targets = {name: target for name, target in (of_marks | _own_pages(one, place)).items() if target}
        for before, after in list(pairwise(one.used))[-MOST_PAIRS:]:
            if after.name not in targets:
                targets[after.name] = anchor([before], [after])
        if len(one.entries) > 1:
            drawn[f"history-{at}"] = drawing(one, targets, of_marks)
        title = one.title if titles[one.title] == 1 else f"{one.title} ({at + 1})"
        pictures, parts = [Picture(f"history-{at}")], [_runs(one, title, targets)]
        sections.append(Sheet(title=title, lead=["".join(one.counts)], pictures=pictures, parts=parts))
    if skipped:
        lead = ["Folders without a readable measurement."]
        sections.append(Sheet(title="skipped", lead=lead, items=skipped))
    if failed:
        details.append(Sheet(title="not compared", items=failed))
    runs = counted(sum(len(one.entries) for one in analyses), "run")
    several = "1 analysis" if len(analyses) == 1 else f"{len(analyses)} analyses"
    title = f"History of {folder.resolve().name}"
    heading = Heading(title=title, label="history", lead=[f"{runs} of {several}, in {folder}"])
    return page(heading, sections, details=details, drawn=drawn, style=asset("history.css"))


def _own_pages(one: Analysis, place: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in one.entries:
        for path in (entry.path / PAGE_FILE, entry.path.parent / f"{entry.name}.html", place / f"{entry.name}.html"):
            if path.is_file():
                relative = Path(os.path.relpath(path.resolve(), place.resolve())).as_posix()
                found.setdefault(entry.name, quote(relative))
    return found


def _runs(one: Analysis, title: str, targets: Targets) -> Sheet:
    shown, cells = one.table({})
    words = {mark.entry.name: mark.text for mark in one.marks}
    rows: list[Sequence[Cell]] = []
    for entry in reversed(one.entries):
        name, facts = entry.name, "; ".join(map(str, one.changed.get(entry.name, ())))
        word = words.get(name, "") if entry.used else f"not used: {entry.reason}"
        rows.append((Link(name, targets.get(name, "")), entry.when, *cells[name], word, facts))
    heads = columns(None, "run", "started") + shown + columns(None, "remark", "changed since the previous run")
    return Sheet(title="runs", columns=heads, rows=rows, things=f"runs of {title}")
