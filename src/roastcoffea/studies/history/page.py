"""The page of a history: analyses with their changes, a drawing for each number, comparisons before and after."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from roastcoffea.errors import ComparisonError, MeasurementError
from roastcoffea.metrics.phases import COMPUTING, READING, TROUBLE
from roastcoffea.report.page.frame import asset, fold_anchor, page
from roastcoffea.sheets.markup import rendered
from roastcoffea.sheets.sheet import Cell, Column, Heading, Link, Picture, Sheet
from roastcoffea.storage.folders import whole_file
from roastcoffea.storage.store import PAGE_FILE
from roastcoffea.studies.compare.comparison import compare
from roastcoffea.studies.history.analysis import BYTES, CPU, RATE, SERIES, Analysis, Entry, Mark
from roastcoffea.units import COUNT, alike, counted, number

COLOURS: Final[Mapping[str, str]] = {
    RATE: "var(--ink)",
    CPU: f"var(--rc-{COMPUTING.name})",
    BYTES: f"var(--rc-{READING.name})",
}
FAILED: Final = "failed attempts"
HIGH: Final = 8.0
LOW: Final = 92.0
"""Heights between which values are drawn, from the top in percent."""

NARROWEST: Final = 0.2
"""Range of values at least, relative to the largest: less would make the scatter look large."""

MANY: Final = 100
"""Runs above which their points are small."""

FOOT: Final = 99.5
"""Height of runs without a value."""


class Card(NamedTuple):
    """A change."""

    title: str
    when: str
    what: str
    target: str


class Dot(NamedTuple):
    """A run: a point, or a bar that has its foot elsewhere."""

    x: str
    y: str
    foot: str
    text: str
    target: str
    used: bool


class Panel(NamedTuple):
    """A number of all runs."""

    label: str
    now: str
    top: str
    bottom: str
    spoken: str
    colour: str
    width: int
    dots: Sequence[Dot]
    line: str = ""
    levels: Sequence[tuple[str, str, str]] = ()
    changes: Sequence[str] = ()
    flags: Sequence[tuple[str, str]] = ()
    """Where changes are, in percent of the width, and by how much."""


def drawing(one: Analysis, targets: Mapping[str, str], of_marks: Mapping[str, str]) -> Markup:
    """Changes as cards, and the runs in panels.

    Parameters
    ----------
    targets
        Where a click on a run leads, by its name.
    of_marks
        Where the comparison of the runs before and after a change is, by the name of its run.
    """
    panels = [_panel(one, label, targets) for label in SERIES if one.known(label)]
    if any(entry.failures for entry in one.entries):
        panels.append(_failures(one, targets))
    return rendered(
        "history.html",
        cards=[_card(mark, of_marks.get(mark.entry.name, "")) for mark in reversed(one.marks)],
        remark=one.remark,
        panels=panels,
        many=len(one.entries) > MANY,
        first=one.entries[0].when,
        last=one.entries[-1].when if len(one.entries) > 1 else "",
        unused=any(not entry.used for entry in one.entries),
    )


def _card(mark: Mark, target: str) -> Card:
    return Card(
        f"{mark.text[:1].upper()}{mark.text[1:]}", f"from {mark.entry.name} on ({mark.entry.when})", mark.why, target
    )


def _panel(one: Analysis, label: str, targets: Mapping[str, str]) -> Panel:
    """A number: its runs, what they are between changes, and the changes."""
    known = one.known(label)
    places = [place for place, entry in enumerate(one.entries) if entry.used]
    low, high = _range([value for _, value in known])

    def height(value: float) -> str:
        return f"{LOW + (HIGH - LOW) * (value - low) / (high - low):.1f}"

    unit = alike(SERIES[label], [low, high])
    values = {places[place]: value for place, value in known}
    dots = [
        _dot(entry, at, targets, height(values[at]) if at in values else f"{FOOT}", used=at in values)
        for at, entry in enumerate(one.entries)
    ]
    levels = one.levels(label)
    steps = [(places[mark.place], step) for mark in one.marks for step in mark.steps if step.label == label]
    now = unit.text(levels[-1][2])
    changes = ", ".join(f"{step} from {one.entries[at].name} on" for at, step in steps) or "no change"
    return Panel(
        label=label,
        now=f"{now} in the latest runs",
        top=unit.text(high),
        bottom=unit.text(low),
        spoken=f"{label} of {number(len(known))} runs, now {now}: {changes}",
        colour=COLOURS[label],
        width=len(one.entries),
        dots=dots,
        line=" ".join(f"{at + 0.5},{height(value)}" for at, value in values.items()),
        levels=[(f"{places[left]}", f"{places[right] + 1}", height(value)) for left, right, value in levels],
        changes=[f"{at}" for at, _ in steps],
        flags=[(f"{100 * at / len(one.entries):.2f}", str(step).removeprefix(f"{label} ")) for at, step in steps],
    )


def _failures(one: Analysis, targets: Mapping[str, str]) -> Panel:
    """Failed attempts of each run, as bars."""
    most = max(entry.failures or 0 for entry in one.entries)
    dots = [
        _dot(entry, at, targets, f"{100 - (100 - HIGH) * entry.failures / most:.1f}", f"{FOOT}")
        for at, entry in enumerate(one.entries)
        if entry.failures
    ]
    spoken = f"{FAILED}: {number(len(dots))} of {number(len(one.entries))} runs have some, {number(most)} at most"
    latest = next((entry.failures for entry in reversed(one.entries) if entry.failures is not None), 0)
    return Panel(
        label=FAILED,
        now=f"{number(latest)} in the latest run",
        top=COUNT.text(most),
        bottom="0",
        spoken=spoken,
        colour=f"var(--rc-{TROUBLE.name})",
        width=len(one.entries),
        dots=dots,
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value that a panel shows: a fifth of the largest apart at least."""
    low, high = min(values), max(values)
    lacking = max(NARROWEST * abs(high) - (high - low), 0.0) / 2
    return (max(low - lacking, 0.0), high + lacking) if high else (0.0, 1.0)


def _dot(entry: Entry, at: int, targets: Mapping[str, str], y: str, foot: str = "", *, used: bool = True) -> Dot:
    text = "\n".join(_words(entry))
    return Dot(f"{at + 0.5}", y, foot or y, text, targets.get(entry.name, ""), used)


def _words(entry: Entry) -> Iterator[str]:
    """What the pointer tells of a run."""
    yield f"{entry.name}, {entry.when}"
    if entry.reason:
        yield f"not used: {entry.reason}"
    yield from (f"{label} {unit.text(entry.values[label])}" for label, unit in SERIES.items() if label in entry.values)
    if entry.failures:
        yield f"{number(entry.failures)} {FAILED}"


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
    for place_of, one in enumerate(analyses):
        of_marks = {mark.entry.name: _around(one, mark, comparisons) for mark in one.marks}
        targets = _own_pages(one, place)
        targets |= _to_the_run_before(one, of_marks | targets, comparisons)
        if len(one.entries) > 1:
            drawn[f"history-{place_of}"] = drawing(one, targets, of_marks)
        title = one.title if titles[one.title] == 1 else f"{one.title} ({place_of + 1})"
        sections.append(_section(one, title, f"history-{place_of}", targets))
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
