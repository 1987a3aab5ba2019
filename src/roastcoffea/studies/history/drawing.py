"""A history as a drawing for its page: a panel for each number, a dot for each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from roastcoffea.metrics.phases import COMPUTING, READING, TROUBLE
from roastcoffea.report.markup import rendered
from roastcoffea.studies.history.analysis import Analysis, Mark
from roastcoffea.studies.history.entries import BYTES, CPU, RATE, SERIES, Entry
from roastcoffea.units import COUNT, alike, number

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
