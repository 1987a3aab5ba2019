"""The runs of one analysis, and the runs at which its numbers changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from roastcoffea.studies.compare.gate import signed
from roastcoffea.studies.compare.side_by_side import SMALL
from roastcoffea.studies.history.change_points import FALSE_ALARMS, change_points, fewest_runs
from roastcoffea.studies.history.entries import BYTES, CPU, RATE, SERIES, Change, Entry, changes, noisy_facts
from roastcoffea.units import FRACTION, number

TESTED: Final = (RATE, CPU)
"""Numbers that scatter from run to run."""

RISK: Final = FALSE_ALARMS / len(TESTED)
NOTHING: Final = "No recorded fact changed there: look at the code of the analysis, and at the machines."


class Step(NamedTuple):
    """Relative change of a number at a run, by the medians of the runs before and after it."""

    label: str
    relative: float
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.label} {signed(FRACTION, self.relative)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A run at which numbers changed."""

    place: int
    """Of the run, among those that are used."""
    entry: Entry
    steps: tuple[Step, ...]
    facts: tuple[Change, ...]
    """Facts that changed at that run, without those that change all the time."""
    why: str
    """These facts in a sentence, or those of the runs beside it."""

    @property
    def text(self) -> str:
        """Numbers that changed, by how much."""
        return ", ".join(map(str, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Runs of one processor on the same datasets, oldest first."""

    processors: tuple[str, ...]
    datasets: tuple[str, ...]
    entries: tuple[Entry, ...]
    marks: tuple[Mark, ...]

    @property
    def title(self) -> str:
        """Processor and datasets."""
        more = f" and {number(len(self.datasets) - 3)} more" if len(self.datasets) > 3 else ""
        where = f" on {', '.join(self.datasets[:3])}{more}" if self.datasets else ""
        return f"{', '.join(self.processors) or 'unknown processor'}{where}"

    @property
    def used(self) -> list[Entry]:
        """Runs that can be compared."""
        return [entry for entry in self.entries if entry.used]

    def known(self, label: str) -> list[tuple[int, float]]:
        """Values of a number, with the places of their runs among those that are used."""
        return [(place, entry.values[label]) for place, entry in enumerate(self.used) if label in entry.values]

    def levels(self, label: str) -> list[tuple[int, int, float]]:
        """Stretches without a change of a number: first and last place, and the median between them."""
        known = self.known(label)
        begins = [mark.place for mark in self.marks if any(step.label == label for step in mark.steps)]
        found = []
        for low, high in pairwise([0, *begins, len(self.used)]):
            inside = [(place, value) for place, value in known if low <= place < high]
            if inside:
                found.append((inside[0][0], inside[-1][0], median(value for _, value in inside)))
        return found

    @property
    def changed(self) -> dict[str, list[Change]]:
        """Facts that differ from the run before, by the name of the run; those that often change only at marks."""
        used, noisy = self.used, noisy_facts(self.used)
        steps = {new.name: changes(old, new) for old, new in pairwise(used)}
        marked = {mark.entry.name for mark in self.marks}
        return {
            name: [each for each in found if name in marked or each.name not in noisy] for name, found in steps.items()
        }

    @property
    def remark(self) -> str:
        """How far changes can be told."""
        few, fewest, tested = len(self.used), fewest_runs(RISK), " or ".join(TESTED)
        alarms = f"If nothing changed, a mark on {tested} has a probability of {FRACTION.text(FALSE_ALARMS)} at most."
        bytes_too = (
            f" {BYTES[0].upper()}{BYTES[1:]} have a mark only between runs of the same files."
            if self.known(BYTES)
            else ""
        )
        if few < fewest:
            which = f"this history has {few} that can be used" if few < len(self.entries) else f"this history has {few}"
            return f"A change of {tested} can be told from {fewest} runs on; {which}. {alarms}{bytes_too}"
        found = "" if self.marks else "No change was found. "
        return f"{found}{alarms}{bytes_too}"

    def as_dict(self) -> dict[str, Any]:
        """It in types of standard JSON."""
        return {
            "processors": list(self.processors),
            "datasets": list(self.datasets),
            "runs": [_run(entry) for entry in self.entries],
            "changes": [_mark(mark) for mark in self.marks],
        }


def analysis_of(entries: Sequence[Entry]) -> Analysis:
    """Runs of one analysis, with the changes that are found in them."""
    used = [entry for entry in entries if entry.used]
    steps = defaultdict(list)
    for label in SERIES:
        for place, step in _certain(used) if label == BYTES else _steps(used, label):
            steps[place].append(step)
    marks = [_marked(used, place, tuple(found)) for place, found in sorted(steps.items())]
    first = entries[0]
    return Analysis(processors=first.processors, datasets=first.datasets, entries=tuple(entries), marks=tuple(marks))


def _steps(used: Sequence[Entry], label: str) -> Iterator[tuple[int, Step]]:
    """Change points of a number that scatters, by the places of their runs."""
    known = [(place, entry.values[label]) for place, entry in enumerate(used) if label in entry.values]
    values = [value for _, value in known]
    places = change_points(values, RISK)
    for low, here, high in zip([0, *places], places, [*places[1:], len(values)], strict=False):
        old, new = median(values[low:here]), median(values[here:high])
        if old and abs(new / old - 1) >= SMALL:
            yield known[here][0], Step(label, new / old - 1, here - low, high - here)


def _certain(used: Sequence[Entry]) -> Iterator[tuple[int, Step]]:
    """Changes of bytes per event between runs of the same files: repeats do not differ in them."""
    known = [(place, entry) for place, entry in enumerate(used) if BYTES in entry.values]
    for (_, before), (place, after) in pairwise(known):
        old, new = before.values[BYTES], after.values[BYTES]
        if before.fileset and before.fileset == after.fileset and old and abs(new / old - 1) >= SMALL:
            yield place, Step(BYTES, new / old - 1, 1, 1)


def _marked(used: Sequence[Entry], place: int, steps: tuple[Step, ...]) -> Mark:
    noisy = noisy_facts(used)
    here = changes(used[place - 1], used[place])
    facts = tuple(change for change in here if change.name not in noisy)
    why = f"Changed there: {'; '.join(map(str, facts))}." if facts else _beside(used, place, noisy)
    if not why and here:
        names = " and ".join(change.name for change in here)
        why = f"Only {names} changed there. That happens often between these runs, so it may not be the reason."
    return Mark(place=place, entry=used[place], steps=steps, facts=facts, why=why or NOTHING)


def _beside(used: Sequence[Entry], place: int, noisy: set[str]) -> str:
    """What changed one run before or after: the scatter of runs may move a change point by one."""
    texts = []
    for word, other in (("before", place - 1), ("after", place + 1)):
        if 0 < other < len(used):
            found = [str(each) for each in changes(used[other - 1], used[other]) if each.name not in noisy]
            texts += [f"Changed one run {word} ({used[other].name}): {'; '.join(found)}."] if found else []
    return " ".join(texts)


def _run(entry: Entry) -> dict[str, Any]:
    said = {"id": entry.id, "name": entry.name, "start": entry.start, "state": entry.state, "not_used": entry.reason}
    return said | {"values": dict(entry.values), "failures": entry.failures, "facts": dict(entry.facts)}


def _mark(mark: Mark) -> dict[str, Any]:
    steps = [step._asdict() for step in mark.steps]
    return {"run": mark.entry.name, "steps": steps, "facts": [fact._asdict() for fact in mark.facts], "why": mark.why}
