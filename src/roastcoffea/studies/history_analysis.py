"""Analyses in a history: each run's metrics, and change points found by rank tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import rankdata

from roastcoffea.diagnosis.completeness import is_interrupt, shortened
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.sheets.sheet import Cell, Column
from roastcoffea.studies.observations import facts_of_run, judged, signed
from roastcoffea.studies.side_by_side import COSTS, EVENTS, SMALL
from roastcoffea.units import BYTE, COUNT, FRACTION, KILOHERTZ, SECOND, alike, counted, few, moment

FALSE_ALARMS: Final = 0.05
"""Maximum probability, over all tested metrics, of any false mark in a history without changes."""


FEWEST_RUNS: Final = 12
"""Minimum number of runs needed to find a change. With fewer runs, even the rarest order is not significant."""


def change_points(values: Sequence[float], risk: float = FALSE_ALARMS) -> list[int]:
    """Find change points. A change point of 3 means that the fourth value is the first value after the change.

    The segments between change points are tested again, and the false-positive rate is divided among them. Each segment
    has at least two values.

    Parameters
    ----------
    values
        One value per run, oldest first.
    risk
        Maximum probability of finding a change point if there is none.
    """
    series = np.asarray(values, np.float64)
    places = [0, *sorted(_found(series, 0, risk)), len(series)]
    for place in range(1, len(places) - 1):  # relocate each change point between its neighbours
        places[place] = places[place - 1] + _best_place(series[places[place - 1] : places[place + 1]])
    return places[1:-1]


def _found(values: Numbers, first: int, risk: float) -> Iterator[int]:
    if len(values) < FEWEST_RUNS or p_value(values) > risk:
        return
    places = _places(values, risk)
    yield from (first + place for place in places)
    for low, high in pairwise([0, *places, len(values)]):
        yield from _found(values[low:high], first + low, risk / (len(places) + 1))


def p_value(values: Numbers) -> float:
    """Compute the fraction of random orders in which segments differ at least as much as in the given order."""
    ranks = rankdata(values)
    if len(values) < 4 or np.ptp(ranks) == 0:
        return 1.0
    shuffled = _shuffled(tuple(np.sort(ranks)))
    largest = max(float(each.max()) for each in _differences(ranks[None, :]))
    as_large = len(shuffled) - np.searchsorted(shuffled, largest * (1 - 1e-9))
    return float((1 + as_large) / (1 + len(shuffled)))


def _differences(ranks: Numbers) -> Iterator[Numbers]:
    """Compute differences in mean rank between a segment and the rest, up to a common factor.

    For each segment length (2 runs or more), yield an array with a row for each order of the ranks and a column for
    each start of the segment.
    """
    count = ranks.shape[1]
    sums = np.pad(np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1), ((0, 0), (1, 0)))
    for length in range(2, count - 1):
        differences = np.abs(sums[:, length:] - sums[:, :-length]) / (length * (count - length)) ** 0.5
        differences[:, [1, -2]] = 0  # here, only one run is left before or after the segment
        yield differences


@lru_cache(maxsize=64)
def _shuffled(ranks: tuple[float, ...]) -> Numbers:
    """Compute the largest difference in each of many random orders of the ranks, in ascending order."""
    count = len(ranks)
    # shuffle long histories less often; to limit memory, shuffle a million ranks at a time
    shuffles, rows = min(max(400_000_000 // count**2, 999), 9999), max(1_000_000 // count, 1)
    random, largest = np.random.default_rng(20260101), []
    for first in range(0, shuffles, rows):
        orders = random.permuted(np.tile(ranks, (min(rows, shuffles - first), 1)), axis=1)
        largest.append(np.max([each.max(axis=1) for each in _differences(orders)], axis=0))
    return np.sort(np.concatenate(largest))


def _places(values: Numbers, risk: float) -> list[int]:
    """Find the significant endpoints of the segment that differs most or, if there are none, the best change point."""
    rows = [each[0] for each in _differences(rankdata(values)[None, :])]
    # in a tie, prefer segments at the start or end of the history, which have only one change point
    _, inside, length, begin = max(
        (round(float(row[at]), 9), -(0 < at < len(row) - 1), length, at)
        for length, row in enumerate(rows, 2)
        for at in (0, int(np.argmax(row)))
    )
    stretch = (0, begin, begin + length, len(values))
    clear = [
        place
        for low, place, high in zip(stretch, stretch[1:], stretch[2:], strict=False)
        if inside
        and judged(values[low:place].tolist(), values[place:high].tolist(), confidence=1 - risk).side is not None
    ]
    return clear or [_best_place(values)]


def _best_place(values: Numbers) -> int:
    """Find the change point with the smallest deviations from the medians on either side.

    Positive values are compared on a logarithmic scale. Ranks are unsuitable here, because they favour change points
    within the longer part.
    """
    values = np.log(values) if np.all(values > 0) else values
    deviations = [
        sum(float(np.abs(part - np.median(part)).sum()) for part in np.split(values, [place]))
        for place in range(2, len(values) - 1)
    ]
    return int(np.argmin(deviations)) + 2


RATE, CPU, BYTES, FAILED = "rate per core", "CPU per event", "bytes per event", "failed attempts"
SERIES: Final = {RATE: KILOHERTZ, CPU: SECOND, BYTES: BYTE}
"""Metrics tracked over time, with their units. All metrics except bytes per event vary randomly from run to run."""

RISK: Final = FALSE_ALARMS / 2


class Change(NamedTuple):
    """Change in a version, machine, setting or input from the previous run ("-" if not recorded)."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run in a history.

    `name` is the name of the run's folder. `fileset` identifies the input files (empty if unknown). `reason` explains
    why the run is not used (None if it is used). `values` holds the known metrics in `SERIES`. `facts` describes
    versions, machines, settings and data as text.
    """

    id: str
    name: str
    path: Path
    start: float
    processors: tuple[str, ...]
    datasets: tuple[str, ...]
    fileset: str
    state: str
    reason: str | None
    values: Mapping[str, float]
    failures: float | None
    facts: Mapping[str, str]

    @property
    def used(self) -> bool:
        return self.reason is None

    @property
    def when(self) -> str:
        return moment(self.start)[: len("2026-01-01 00:00")]


def entry_of(measurement: Measurement, path: Path) -> Entry:
    """Extract a history entry from a measurement, without keeping its records."""
    run, metrics = measurement.run, measurement.metrics
    values, events, rate = {}, metrics.get(EVENTS), "event_rate_core_khz"
    if events:
        values = {RATE: metrics[rate]} if rate in metrics else {}
        values |= {label: metrics[name] / events for label, name in COSTS.items() if name in metrics}
    state, reason = _state(measurement)
    if reason is None and not values:
        reason = f"it has no event rate: {metrics.missing.get(rate, 'it has no events')}"
    table = run.asked if run.asked else run.chunks
    datasets = filter(None, table["dataset"].unique().to_pylist()) if table else metrics.get("per_dataset") or ()
    return Entry(
        id=run.id,
        name=path.name,
        path=path,
        start=run.start,
        processors=tuple(dict.fromkeys(call.processor for call in run.calls)),
        datasets=tuple(sorted(datasets)),
        fileset=" ".join(dict.fromkeys(call.fileset or "" for call in run.calls)).strip(),
        state=state,
        reason=reason,
        values=values,
        failures=metrics.get("num_failed_attempts", metrics.get("num_failed_chunks")),
        facts=facts_of_run(run),
    )


def _state(measurement: Measurement) -> tuple[str, str | None]:
    run = measurement.run
    if run.ended_early:
        error = shortened(run.error or "no error was recorded")
        return run.outcome, "it was interrupted" if is_interrupt(error) else f"it {run.ending}: {error}"
    try:
        missing = measurement.metrics.evaluator.value("incompleteness")
    except NotMeasuredError:
        return "complete", None
    if not missing.complete:
        return "incomplete", f"it is incomplete: {missing.what}"
    if run.reported is None and not run.calls and not run.tasks:
        return "nothing was run", "it contains no Runner call"
    return "complete", None


# What changed


def changes(before: Entry, after: Entry) -> list[Change]:
    names = dict.fromkeys([*before.facts, *after.facts])
    both = ((name, before.facts.get(name, "-"), after.facts.get(name, "-")) for name in names)
    return [Change(*each) for each in both if each[1] != each[2]]


def noisy_facts(steps: Sequence[Sequence[Change]]) -> set[str]:
    """Names of facts that change too often to explain a change in a metric, such as the hosts of batch jobs."""
    times = Counter(change.name for step in steps for change in step)
    return {name for name, often in times.items() if often > max(len(steps) / 3, 1)}


class Step(NamedTuple):
    """Relative change in a metric, computed from medians. `before` and `after` are the numbers of runs used."""

    label: str
    relative: float
    before: int
    after: int

    @property
    def text(self) -> str:
        return signed(FRACTION, self.relative)

    def __str__(self) -> str:
        return f"{self.label} {self.text}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The first run after a change in one or more metrics.

    `place` is the run's index in `Analysis.used`. `facts` lists the versions, machines, settings and inputs that
    changed in this run, except for those that change often. `why` describes what changed in this run or, if nothing
    did, in the runs before and after it.
    """

    place: int
    entry: Entry
    steps: tuple[Step, ...]
    facts: tuple[Change, ...]
    why: str

    @property
    def text(self) -> str:
        return ", ".join(map(str, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Runs of a processor over the same datasets, oldest first.

    `changed` maps run names to the differences from the previous run: versions, machines, settings and inputs. Facts
    that change often are included only for marked runs.
    """

    processors: tuple[str, ...]
    datasets: tuple[str, ...]
    entries: tuple[Entry, ...]
    marks: tuple[Mark, ...]
    changed: Mapping[str, list[Change]]

    @property
    def title(self) -> str:
        """The processor and the datasets."""
        where = f" on {few(self.datasets)}" if self.datasets else ""
        return f"{', '.join(self.processors) or 'unknown processor'}{where}"

    @property
    def used(self) -> list[Entry]:
        """Runs used to find changes."""
        return [entry for entry in self.entries if entry.used]

    @property
    def counts(self) -> tuple[str, str]:
        """The number of runs and the number of unused runs, as text."""
        unused = len(self.entries) - len(self.used)
        return counted(len(self.entries), "run"), f", {unused} of them not used" if unused else ""

    def known(self, label: str) -> list[tuple[int, float]]:
        """Index and value of each run in `used` with a known value."""
        return _known(self.used, label)

    def steps(self, label: str) -> dict[int, Step]:
        """Changes in a metric, keyed by index in `used`."""
        return {mark.place: step for mark in self.marks for step in mark.steps if step.label == label}

    def levels(self, label: str) -> list[tuple[int, int, float]]:
        """First index, last index and median of each segment between changes."""
        edges = [0, *self.steps(label), len(self.used)]
        parts = [[one for one in self.known(label) if low <= one[0] < high] for low, high in pairwise(edges)]
        return [(part[0][0], part[-1][0], median(value for _, value in part)) for part in parts if part]

    def table(self, heads: Mapping[str, str]) -> tuple[list[Column], dict[str, list[Cell]]]:
        shown = [
            Column(heads.get(label, label), alike(unit, [value for _, value in self.known(label)]))
            for label, unit in SERIES.items()
        ]
        failed = [Column(heads.get(FAILED, FAILED), COUNT, dispensable=1)]
        failed *= any(entry.failures for entry in self.entries)
        cells: dict[str, list[Cell]] = {
            one.name: [*map(one.values.get, SERIES), *([one.failures] if failed else [])] for one in self.entries
        }
        return shown + failed, cells

    @property
    def remark(self) -> str:
        """A note on the significance of the marks."""
        few, tested = len(self.used), f"{RATE} or {CPU}"
        remark = f"If nothing changed, the probability of marking {tested} is at most {FRACTION.text(FALSE_ALARMS)}."
        if self.known(BYTES):
            remark += " Bytes per event are compared only between runs over the same files."
        if few < FEWEST_RUNS:
            return f"Detecting a change in {tested} takes at least {FEWEST_RUNS} runs; this history has {few}. {remark}"
        return remark if self.marks else f"No change was found. {remark}"

    def as_dict(self) -> dict[str, Any]:
        """Return the analysis as a JSON-serialisable dictionary."""
        names = ("id", "name", "start", "state", "values", "failures", "facts")
        return {
            "processors": list(self.processors),
            "datasets": list(self.datasets),
            "runs": [{name: getattr(one, name) for name in names} | {"not_used": one.reason} for one in self.entries],
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
    used = [entry for entry in entries if entry.used]
    steps = defaultdict(list)
    for place, step in (*_steps(used, RATE), *_steps(used, CPU), *_certain(used)):
        steps[place].append(step)
    changed = [[], *(changes(*pair) for pair in pairwise(used))]
    noisy = noisy_facts(changed[1:])
    quiet = [[each for each in found if each.name not in noisy] for found in changed]
    marks = []
    for place, found in sorted(steps.items()):
        # random variation may shift a change point by one run
        beside = {"before": place - 1, "after": place + 1}
        why = [
            f"Changed in the run {word} ({used[other].name}): {'; '.join(map(str, quiet[other]))}."
            for word, other in beside.items()
            if other < len(used) and quiet[other]
        ]
        if quiet[place]:
            why = [f"Changed in this run: {'; '.join(map(str, quiet[place]))}."]
        elif not why and changed[place]:
            names = " and ".join(change.name for change in changed[place])
            why = [f"Only {names} changed in this run. This happens often, so it may not be the cause."]
        nothing = "Nothing recorded changed in this run: check the analysis code and the machines."
        marks.append(Mark(place, used[place], tuple(found), tuple(quiet[place]), " ".join(why) or nothing))
    return Analysis(
        processors=entries[0].processors,
        datasets=entries[0].datasets,
        entries=tuple(entries),
        marks=tuple(marks),
        changed={used[place].name: changed[place] if place in steps else quiet[place] for place in range(1, len(used))},
    )


def _known(used: Sequence[Entry], label: str) -> list[tuple[int, float]]:
    return [(place, entry.values[label]) for place, entry in enumerate(used) if label in entry.values]


def _steps(used: Sequence[Entry], label: str) -> Iterator[tuple[int, Step]]:
    known = _known(used, label)
    values = [value for _, value in known]
    places = change_points(values, RISK)
    for low, here, high in zip([0, *places], places, [*places[1:], len(values)], strict=False):
        old, new = median(values[low:here]), median(values[here:high])
        if old and abs(new / old - 1) >= SMALL:
            yield known[here][0], Step(label, new / old - 1, here - low, high - here)


def _certain(used: Sequence[Entry]) -> Iterator[tuple[int, Step]]:
    """Find changes in bytes per event. Runs over the same files should read the same number of bytes."""
    for (before, old), (after, new) in pairwise(_known(used, BYTES)):
        fileset = used[before].fileset
        if fileset and fileset == used[after].fileset and old and abs(new / old - 1) >= SMALL:
            yield after, Step(BYTES, new / old - 1, 1, 1)
