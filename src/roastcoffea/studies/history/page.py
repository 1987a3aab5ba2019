"""The page of a history: analyses with their changes and runs, and comparisons of runs before and after."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import quote

from roastcoffea.errors import ComparisonError, MeasurementError
from roastcoffea.report.page.frame import asset, fold_anchor, page
from roastcoffea.report.sheets import Cell, Column, Heading, Link, Picture, Sheet
from roastcoffea.storage.folders import whole_file
from roastcoffea.storage.store import PAGE_FILE
from roastcoffea.studies.compare.compare import compare
from roastcoffea.studies.history.analysis import Analysis, Mark
from roastcoffea.studies.history.drawing import drawing
from roastcoffea.studies.history.entries import SERIES, Entry
from roastcoffea.units import COUNT, alike, counted

MOST_PAIRS: Final = 12
"""Runs of an analysis, the latest, that are compared with the run before."""

MOST_REPEATS: Final = 10
"""Runs before, and after a change that are compared."""

OWN_PAGES: Final = (f"{{name}}/{PAGE_FILE}", "{name}.html")
"""Pages of a run, from the folder in which its own lies."""


@dataclass
class _Comparisons:
    """Comparisons that the page holds, and what could not be compared."""

    sheets: list[Sheet] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def anchor(self, before: Sequence[Entry], after: Sequence[Entry]) -> str:
        """Where runs before and after are compared in the page; empty where they cannot be."""
        names = [_named(group) for group in (before, after)]
        try:
            found = compare(*([entry.path for entry in group] for group in (before, after)), labels=names)
        except (ComparisonError, MeasurementError) as error:
            self.failed.append(f"{names[1]} against {names[0]}: {error}")
            return ""
        number = f"comparison {len(self.sheets) + 1}"
        title = f"{number}: {names[1]} against {names[0]}"
        # screen readers tell tables of equal titles apart by what their rows are
        parts = [replace(sheet, things=f"rows of {number}") for sheet in found.sheets()]
        self.sheets.append(Sheet(title=title, parts=parts))
        return f"#{fold_anchor(title)}"


def write_page(
    folder: Path, analyses: Sequence[Analysis], skipped: Sequence[str], path: Path, *, overwrite: bool = False
) -> Path:
    """Write the page of a history to a file, whole or not at all; give its path.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(page_of(folder, analyses, skipped, path.parent).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def page_of(folder: Path, analyses: Sequence[Analysis], skipped: Sequence[str], place: Path) -> str:
    """The page of a history, as it stands in a folder, from which links to pages of runs begin."""
    comparisons, drawn, sections = _Comparisons(), {}, []
    titles = Counter(one.title for one in analyses)
    for number, one in enumerate(analyses):
        of_marks = {mark.entry.name: _around(one, mark, comparisons) for mark in one.marks}
        targets = _own_pages(one, place)
        targets |= _to_the_run_before(one, of_marks | targets, comparisons)
        if len(one.entries) > 1:
            drawn[f"history-{number}"] = drawing(one, targets, of_marks)
        title = one.title if titles[one.title] == 1 else f"{one.title} ({number + 1})"
        sections.append(_section(one, title, f"history-{number}", targets))
    if skipped:
        sections.append(Sheet(title="skipped", lead=["Folders without a measurement that can be read."], items=skipped))
    details = [*comparisons.sheets, *_failed(comparisons.failed)]
    runs = sum(len(one.entries) for one in analyses)
    name = folder.resolve().name
    several = "1 analysis" if len(analyses) == 1 else f"{len(analyses)} analyses"
    lead = [f"{counted(runs, 'run')} of {several}, in {folder}"]
    heading = Heading(title=f"History of {name}", label="history", lead=lead)
    return page(heading, sections, details=details, drawn=drawn, style=asset("history.css"))


def _failed(reasons: Sequence[str]) -> Iterator[Sheet]:
    if reasons:
        yield Sheet(title="not compared", items=reasons)


def _named(group: Sequence[Entry]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"


# Where a click leads


def _around(one: Analysis, mark: Mark, comparisons: _Comparisons) -> str:
    """Comparison of the runs before a change, back to the one before it, with those after it."""
    places = [0, *(each.place for each in one.marks), len(one.used)]
    number = places.index(mark.place, 1)
    before = one.used[places[number - 1] : mark.place][-MOST_REPEATS:]
    after = one.used[mark.place : places[number + 1]][:MOST_REPEATS]
    return comparisons.anchor(before, after)


def _own_pages(one: Analysis, place: Path) -> dict[str, str]:
    """Pages of the runs themselves, in or beside their folders, or beside this page, by the names of runs."""
    found = {}
    for entry in one.entries:
        beside = [entry.path.parent / form.format(name=entry.name) for form in OWN_PAGES]
        pages = [path for path in (*beside, place / f"{entry.name}.html") if path.is_file()]
        if pages:
            found[entry.name] = quote(Path(os.path.relpath(pages[0].resolve(), place.resolve())).as_posix())
    return found


def _to_the_run_before(one: Analysis, known: Mapping[str, str], comparisons: _Comparisons) -> dict[str, str]:
    """Comparisons with the run before, for the latest runs that have neither a page nor a change."""
    found = {name: target for name, target in known.items() if target}
    for before, after in list(pairwise(one.used))[-MOST_PAIRS:]:
        if after.name not in found:
            found[after.name] = comparisons.anchor([before], [after])
    return found


# What stands below the drawing


def _section(one: Analysis, title: str, picture: str, targets: Mapping[str, str]) -> Sheet:
    unused = len(one.entries) - len(one.used)
    lead = [
        f"{counted(len(one.entries), 'run')}, {unused} of them not used" if unused else counted(len(one.used), "run")
    ]
    return Sheet(title=title, lead=lead, pictures=[Picture(picture)], parts=[_runs(one, title, targets)])


def _runs(one: Analysis, title: str, targets: Mapping[str, str]) -> Sheet:
    """All runs, the latest first: numbers, what changed, and why one is not used."""
    values = {label: [entry.values[label] for entry in one.entries if label in entry.values] for label in SERIES}
    heads = [Column("run"), Column("started")]
    heads += [Column(label, alike(unit, values[label])) for label, unit in SERIES.items()]
    failures = any(entry.failures for entry in one.entries)
    heads += [
        *([Column("failed attempts", COUNT)] if failures else []),
        Column("remark"),
        Column("changed since the run before"),
    ]
    marked, changed = {mark.entry.name: mark.text for mark in one.marks}, one.changed
    rows: list[Sequence[Cell]] = []
    for entry in reversed(one.entries):
        facts = "; ".join(map(str, changed.get(entry.name, ())))
        word = marked.get(entry.name, "") if entry.used else f"not used: {entry.reason}"
        numbers = [entry.values.get(label) for label in SERIES]
        name = Link(entry.name, targets.get(entry.name, ""))
        rows.append((name, entry.when, *numbers, *([entry.failures] if failures else []), word, facts))
    return Sheet(title="runs", columns=heads, rows=rows, things=f"runs of {title}")
