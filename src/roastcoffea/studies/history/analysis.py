"""Runs of a history: what each cost, and the runs at which the numbers of an analysis changed, found by ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import rankdata

from roastcoffea.diagnosis.completeness import Incompleteness, is_interrupt, shortened
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.run import Run
from roastcoffea.sheets.sheet import Cell, Column
from roastcoffea.studies.compare.observations import facts_of_run
from roastcoffea.studies.compare.repeats import judged, signed
from roastcoffea.studies.compare.side_by_side import COSTS, EVENTS, SMALL
from roastcoffea.units import BYTE, COUNT, FRACTION, KILOHERTZ, SECOND, Unit, alike, moment, number

FALSE_ALARMS: Final = 0.05
"""Largest probability of a mark in a history without a change, over all numbers that are tested."""

SEED: Final = 20260101
MOST_SHUFFLES: Final = 9999
FEWEST_SHUFFLES: Final = 999
MOST_STRETCHES: Final = 200_000_000
"""Stretches that are compared in all shuffled orders; long histories are shuffled less often."""

BATCH: Final = 1_000_000
"""Ranks that are shuffled at a time."""

SHORTEST: Final = 2
"""Smallest number of runs in a stretch, and on either side of it."""


def change_points(values: Sequence[float], risk: float = FALSE_ALARMS) -> list[int]:
    """Places at which values change, in order: 3 if the fourth value is the first after a change.

    The parts between changes are tested again and share the risk.

    Parameters
    ----------
    values
        A number of each run, oldest first.
    risk
        Largest probability of a mark where nothing changed.
    """
    series = np.asarray(values, np.float64)
    places = [0, *sorted(_found(series, 0, risk)), len(series)]
    for place in range(1, len(places) - 1):  # when a place was found, those beside it were not known
        places[place] = places[place - 1] + _best_place(series[places[place - 1] : places[place + 1]])
    return places[1:-1]


def _found(values: Numbers, first: int, risk: float) -> Iterator[int]:
    if len(values) < fewest_runs(risk) or p_value(values) > risk:
        return
    places = _places(values, risk)
    yield from (first + place for place in places)
    for low, high in pairwise([0, *places, len(values)]):
        yield from _found(values[low:high], first + low, risk / (len(places) + 1))


def p_value(values: Numbers) -> float:
    """Share of shuffled orders that look as much like a change."""
    ranks = rankdata(values)
    if len(values) < 2 * SHORTEST or np.ptp(ranks) == 0:
        return 1.0
    shuffled = _shuffled(tuple(np.sort(ranks)))
    as_large = len(shuffled) - np.searchsorted(shuffled, _largest(_sums(ranks[None, :]))[0] * (1 - 1e-9))
    return float((1 + as_large) / (1 + len(shuffled)))


# The statistic


def _sums(ranks: Numbers) -> Numbers:
    """Sums of the first ranks less their mean, from none to all of them; a row for each order."""
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    return np.asarray(np.pad(np.cumsum(centred, axis=1), ((0, 0), (1, 0))), np.float64)


def _largest(sums: Numbers) -> Numbers:
    """Largest difference of the mean rank of a stretch from that of the others, but for a common factor."""
    found = _at_ends(sums).max(axis=1)
    count = sums.shape[1] - 1
    for length in range(SHORTEST, count - 2 * SHORTEST + 1):
        found = np.maximum(found, _between(sums, length).max(axis=1))
    return np.asarray(found)


def _at_ends(sums: Numbers) -> Numbers:
    """Differences for the first runs against the rest, by their number."""
    count = sums.shape[1] - 1
    lengths = np.arange(SHORTEST, count - SHORTEST + 1)
    return np.asarray(np.abs(sums[:, lengths]) / np.sqrt(lengths * (count - lengths)))


def _between(sums: Numbers, length: int) -> Numbers:
    """Differences for stretches of a length with runs on both sides, by their beginning."""
    count = sums.shape[1] - 1
    differences = sums[:, SHORTEST + length : count - SHORTEST + 1] - sums[:, SHORTEST : count - SHORTEST - length + 1]
    return np.asarray(np.abs(differences) / np.sqrt(length * (count - length)))


@lru_cache(maxsize=64)
def _shuffled(ranks: tuple[float, ...]) -> Numbers:
    """The statistic of shuffled orders of these ranks, sorted."""
    count = len(ranks)
    shuffles = min(max(2 * MOST_STRETCHES // count**2, FEWEST_SHUFFLES), MOST_SHUFFLES)
    rng, rows = np.random.default_rng(SEED), max(BATCH // count, 1)
    sizes = [min(rows, shuffles - first) for first in range(0, shuffles, rows)]
    orders = (rng.permuted(np.tile(ranks, (size, 1)), axis=1) for size in sizes)
    return np.sort(np.concatenate([_largest(_sums(order)) for order in orders]))


@lru_cache(maxsize=64)
def fewest_runs(risk: float) -> int:
    """Number of runs from which a change in their middle can be found, with any larger number as well."""
    count = 2 * SHORTEST
    while max(_smallest_p_value(count), _smallest_p_value(count + 1)) > risk:
        count += 1
    return count


def _smallest_p_value(count: int) -> float:
    """Share of the orders in which one half of the runs, all low or all high, is a stretch."""
    halves = {count // 2, count - count // 2}
    stretches = sum(1 + max(count - 2 * SHORTEST + 1 - length, 0) for length in halves)
    return 2 * stretches / comb(count, count // 2)


# Where it changed


def _places(values: Numbers, risk: float) -> list[int]:
    """Ends of the stretch that differs most from the others, as far as they are clear; else the best single place."""
    sums = _sums(rankdata(values)[None, :])
    best, found = float(_at_ends(sums).max()), [_best_place(values)]
    for length in range(SHORTEST, len(values) - 2 * SHORTEST + 1):
        between = _between(sums, length)[0]
        if between.max() > best * (1 + 1e-9):
            begin = int(np.argmax(between)) + SHORTEST
            best, stretch = float(between.max()), (0, begin, begin + length, len(values))
            clear = [
                place
                for low, place, high in zip(stretch, stretch[1:], stretch[2:], strict=False)
                if _differ(values, low, place, high, risk)
            ]
            found = clear or found
    return found


def _best_place(values: Numbers) -> int:
    """Place that leaves the least absolute deviations from the medians before and after it, on logarithms.

    Ranks are no good here: of two parts of different length they favour a place within the longer one.
    """
    values = np.log(values) if np.all(values > 0) else values
    deviations = [
        sum(float(np.abs(part - np.median(part)).sum()) for part in (values[:place], values[place:]))
        for place in range(SHORTEST, len(values) - SHORTEST + 1)
    ]
    return int(np.argmin(deviations)) + SHORTEST


def _differ(values: Numbers, low: int, place: int, high: int, risk: float) -> bool:
    """Whether values before and after a place are told apart as repeats are."""
    before, after = values[low:place].tolist(), values[place:high].tolist()
    return judged(before, after, confidence=1 - risk).side is not None


RATE: Final = "rate per core"
CPU: Final = "CPU per event"
BYTES: Final = "bytes per event"
SERIES: Final[Mapping[str, Unit]] = {RATE: KILOHERTZ, CPU: SECOND, BYTES: BYTE}
"""Numbers that are followed, with their units."""

OF_RATE: Final = "event_rate_core_khz"
FAILURES: Final = ("num_failed_attempts", "num_failed_chunks")
"""Metrics that count failures: the first that is known."""

COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
EMPTY: Final = "nothing was run"

NOISY: Final = 1 / 3
"""Share of steps from run to run above which a fact changes so often that it tells nothing."""


class Change(NamedTuple):
    """A fact that is another than in the run before; "-" where it was not recorded."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in a history."""

    id: str
    name: str
    """Name of its folder."""
    path: Path
    start: float
    processors: tuple[str, ...]
    datasets: tuple[str, ...]
    fileset: str
    """Equal for equal input; empty where it is not known."""
    state: str
    reason: str | None
    """Why it is not used; None where it is."""
    values: Mapping[str, float]
    """Numbers of `SERIES` that are known."""
    failures: float | None
    """Failed attempts; None where they are not known."""
    facts: Mapping[str, str]
    """Versions, machines, settings and data."""

    @property
    def used(self) -> bool:
        """Whether it can be compared with others."""
        return self.reason is None

    @property
    def when(self) -> str:
        """Local time of its start, to the minute."""
        return moment(self.start)[: len("2026-01-01 00:00")]


def entry_of(measurement: Measurement, path: Path) -> Entry:
    """What a history takes from a measurement; its records are not kept."""
    run, metrics = measurement.run, measurement.metrics
    values = dict(_values(metrics))
    state, reason = _state(measurement)
    if reason is None and not values:
        lacking = metrics.missing.get(OF_RATE, "it has no events")
        reason = f"it has no rate: {lacking}"
    return Entry(
        id=run.id,
        name=path.name,
        path=path,
        start=run.start,
        processors=tuple(dict.fromkeys(call.processor for call in run.calls)),
        datasets=tuple(_datasets(run, metrics)),
        fileset=" ".join(dict.fromkeys(call.fileset or "" for call in run.calls)).strip(),
        state=state,
        reason=reason,
        values=values,
        failures=next((metrics[name] for name in FAILURES if name in metrics), None),
        facts=facts_of_run(run),
    )


def _values(metrics: Metrics) -> Iterator[tuple[str, float]]:
    events = metrics.get(EVENTS)
    if events:
        costs = {label: metrics[name] / events for label, name in COSTS.items() if name in metrics}
        rate = {RATE: metrics[OF_RATE]} if OF_RATE in metrics else {}
        yield from (rate | costs).items()


def _datasets(run: Run, metrics: Metrics) -> list[str]:
    """Datasets that were asked for, else those that the numbers tell of."""
    table = run.asked if run.asked is not None and len(run.asked) else run.chunks
    if table is not None and len(table):
        return sorted(filter(None, table["dataset"].unique().to_pylist()))
    return sorted(metrics.get("per_dataset") or {})


def _state(measurement: Measurement) -> tuple[str, str | None]:
    """How a run ended, and why it is not used."""
    run = measurement.run
    if run.ended_early:
        error = shortened(run.error or "no error was recorded")
        return run.outcome, "it was interrupted" if is_interrupt(error) else f"it {run.ending}: {error}"
    try:
        missing: Incompleteness = measurement.metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return COMPLETE, None
    if not missing.complete:
        return INCOMPLETE, f"it is incomplete: {missing.what}"
    if run.reported is None and not run.calls and not (run.tasks is not None and len(run.tasks)):
        return EMPTY, "no Runner was called in it"
    return COMPLETE, None


# What changed


def changes(before: Entry, after: Entry) -> list[Change]:
    """Facts that differ between two runs."""
    names = dict.fromkeys([*before.facts, *after.facts])
    both = ((name, before.facts.get(name, "-"), after.facts.get(name, "-")) for name in names)
    return [Change(*each) for each in both if each[1] != each[2]]


def noisy_facts(entries: Sequence[Entry]) -> set[str]:
    """Facts that change so often from run to run that they tell nothing, such as the hosts of a batch system."""
    steps = [{change.name for change in changes(*pair)} for pair in pairwise(entries)]
    times = Counter(name for step in steps for name in step)
    return {name for name, often in times.items() if often > max(NOISY * len(steps), 1)}


FAILED: Final = "failed attempts"
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

    @property
    def text(self) -> str:
        """The change, with its sign."""
        return signed(FRACTION, self.relative)

    def __str__(self) -> str:
        return f"{self.label} {self.text}"


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

    def columns(self, heads: Mapping[str, str] | None = None) -> list[Column]:
        """A column for each number, in one unit, and for failures, if there are some."""
        heads, shown = heads or {}, []
        for label, unit in SERIES.items():
            values = [entry.values[label] for entry in self.entries if label in entry.values]
            shown.append(Column(heads.get(label, label), alike(unit, values)))
        failed = Column(heads.get(FAILED, FAILED), COUNT, dispensable=1)
        return [*shown, *([failed] if any(entry.failures for entry in self.entries) else [])]

    def cells(self, entry: Entry) -> list[Cell]:
        """What a run has in these columns."""
        failures = any(each.failures for each in self.entries)
        return [*(entry.values.get(label) for label in SERIES), *([entry.failures] if failures else [])]

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
        named = {
            "id": "id",
            "name": "name",
            "start": "start",
            "state": "state",
            "not_used": "reason",
            "values": "values",
        }
        named |= {"failures": "failures", "facts": "facts"}
        return {
            "processors": list(self.processors),
            "datasets": list(self.datasets),
            "runs": [{key: getattr(entry, name) for key, name in named.items()} for entry in self.entries],
            "changes": [
                {
                    "run": mark.entry.name,
                    "steps": [step._asdict() for step in mark.steps],
                    "facts": [fact._asdict() for fact in mark.facts],
                    "why": mark.why,
                }
                for mark in self.marks
            ],
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
