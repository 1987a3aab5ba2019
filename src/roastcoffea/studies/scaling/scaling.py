"""Scaling: the gain from more workers, the laws it follows, when more are wasted, and where the loss goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.recorded import ABSENT_THREADS
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Sheet, columns
from roastcoffea.studies.merging import Source, measurement_of, name_of
from roastcoffea.studies.scaling import explanation as why
from roastcoffea.studies.scaling import laws as pace
from roastcoffea.studies.scaling import laws as scaling_laws
from roastcoffea.studies.scaling.explanation import MATTERS, Explanation, explained
from roastcoffea.studies.scaling.laws import WORKERS, loop_of, pace_of
from roastcoffea.studies.scaling.shares import Judged, costs_of, reading_of
from roastcoffea.units import COUNT, FRACTION, SECOND, number, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RATE: Final = re.compile(
    r"\s*(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)\s*(?P<prefix>[kMGT]?)"
    r"(?P<unit>bit/s|bps|B/s|Hz|events/s)\s*",
)
PREFIXES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BITS: Final = {"bit/s": 1.0, "bps": 1.0, "B/s": 8.0}
EXAMPLES: Final = '"200 Gbit/s", "25 GB/s" or "50 kHz" (events)'

REACHED: Final = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """A rate to reach: its text, and bits or events per second."""

    text: str
    bits: float | None
    events: float | None


def target_of(text: str) -> Target:
    """A rate from its text.

    Raises
    ------
    ValueError
        If it is none.
    """
    found = RATE.fullmatch(text)
    if found is None or not float(found["number"]):
        raise ValueError(f"{text!r} is not a rate; write one such as {EXAMPLES}")
    value = float(found["number"]) * PREFIXES[found["prefix"]]
    bits = BITS.get(found["unit"])
    return Target(text.strip(), None if bits is None else bits * value, value if bits is None else None)


def needs_of(target: Target, found: Explanation, groups: Sequence[Sequence[Judged]], unit: str) -> list[str]:
    """Sentences on what has to change, the farthest from enough first."""
    events = _events(target, groups)
    if events is None:
        return [f"How far {target.text} is cannot be told: the bytes of chunks were not recorded."]
    return [*_limits(target, events, found), _workers_for(target, events, found, groups, unit)]


def _events(target: Target, groups: Sequence[Sequence[Judged]]) -> float | None:
    """The rate in events per second."""
    if target.events is not None:
        return target.events
    runs = [run for group in groups for run in group]
    size = sum(run.pace.amounts.get(pace.BYTES, 0.0) for run in runs)
    return (target.bits or 0.0) / (8 * size) * sum(run.scaled.events for run in runs) if size else None


def _limits(target: Target, events: float, found: Explanation) -> list[str]:
    """Limits that are too low."""
    rates = [cause.rate for cause in found.causes if cause.rate and cause.share.value >= MATTERS]
    needed = [(events * rate.each / rate.value.value, rate) for rate in rates]
    lines = []
    for factor, rate in sorted(needed, key=lambda pair: -pair[0]):
        amount = rate.unit.text(three_digits(events * rate.each))
        if factor > REACHED:
            times = number(three_digits(factor))
            lines.append(f"{target.text} needs {times} times {rate.thing}: {amount} instead of {rate.text()}.")
        else:
            lines.append(f"For {target.text} {rate.thing} is enough: {amount} of {rate.text()}.")
    return lines


def _workers_for(
    target: Target, events: float, found: Explanation, groups: Sequence[Sequence[Judged]], unit: str
) -> str:
    """How many workers do that if nothing limits them."""
    largest = groups[-1][0].scaled
    each = largest.threads / largest.workers if unit == WORKERS else 1.0
    needed = events * found.ideal / each
    rate = max((run.scaled.rate for group in groups for run in group), default=0.0)
    reached = FRACTION.text(min(rate / events, 9.99)) if events else ""
    words = f"Without any limit {target.text} would take {number(three_digits(needed))} such {unit}"
    return f"{words}; the fastest of these runs reached {reached} of it."


SAME_EACH: Final = 0.05
"""Relative difference per worker below which amounts are considered equal."""

ENOUGH: Final = 5
"""Repeats for which resampling gives an interval of nearly 95 %."""

STRONG: Final = "strong"
WEAK: Final = "weak"
MIXED: Final = "mixed"

DIGITS: Final = 6
"""Digits to which threads per worker are compared: means over time are not exact integers."""

MOST_LOSSES: Final = 6
SMALL_LOSS: Final = 0.01
SMALLEST_REST: Final = 0.0005
OTHERS: Final = "others"
"""The remaining classes, including those that shrink, so that shares add up to 100 %."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A class of the time ledger: extra thread seconds per event with most workers compared with fewest.

    `share` is its part of the total loss; classes that shrink have a negative one.
    """

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Presented):
    """Points by number of workers, laws by name (or why there is none), and losses, largest first.

    `unit` is what is counted: "workers", or "threads" if workers have different numbers of them. `basis` is the source
    of the intervals.
    """

    name: str
    kind: str
    unit: str
    basis: str
    points: list[scaling_laws.Point]
    laws: dict[str, scaling_laws.Law]
    missing: dict[str, str]
    losses: list[Loss]
    explanation: Explanation
    needs: list[str]
    doubts: list[str]

    def sheets(self) -> list[Sheet]:
        """Why more workers give less, the gain from them, the laws, and where the loss goes."""
        fewest, most = (number(point.workers) for point in (self.points[0], self.points[-1]))
        heads = columns(None, self.unit) + columns(COUNT, "runs") + columns(SECOND, "wall")
        laws = [f"{name}: {self._of_law(law)}" for name, law in self.laws.items()]
        reasons = [f"{name}: none, {reason}." for name, reason in self.missing.items()]
        return [
            why.reasons(self.explanation, self.points, self.unit, self.needs),
            why.useful_workers(self.explanation, self.points, self.unit),
            Sheet(
                title=f"{self.kind} scaling; 95 % intervals from {self.basis}",
                columns=heads + columns(COUNT, "events/s", "speed-up", "efficiency"),
                rows=[_row(point) for point in self.points],
            ),
            Sheet(title="laws", notes=[*laws, *reasons]),
            self._losses(f"extra thread time per event on {most} {self.unit} compared with {fewest}"),
        ]

    def _of_law(self, law: scaling_laws.Law) -> str:
        """A law in one sentence."""
        largest = self.points[-1].workers
        parts = [f"serial fraction {_between(law.contention)}"]
        if law.coherency.value > 0:
            parts.append(f"coherency {_between(law.coherency)}")
        parts.append(f"fits the points within {FRACTION.text(law.deviation)}")
        parts.append(f"more {self.unit} pay off up to {_workers(law.worth)}")
        if (law.worth_low, law.worth_high) != (law.worth, law.worth):
            parts[-1] += f" [{_workers(law.worth_low)}, {_workers(law.worth_high)}]"
        if law.worth is None or law.worth > largest:
            parts[-1] += f"  (beyond the measured {number(largest)})"
        if law.peak is not None:
            parts.append(f"more than {number(round(law.peak))} slow it down")
        return f"{'; '.join(parts)}."

    def _losses(self, title: str) -> Sheet:
        """Classes of thread time that grew."""
        doubts = [f"Note: {doubt}." for doubt in self.doubts]
        if sum(loss.seconds for loss in self.losses) <= 0:
            return Sheet(title=title, notes=["No loss.", *doubts])
        shown = [loss for loss in self.losses[:MOST_LOSSES] if loss.share >= SMALL_LOSS]
        rows = [(loss.name, loss.seconds, loss.share) for loss in shown]
        others = [loss for loss in self.losses if loss not in shown]
        share = sum(loss.share for loss in others)
        if abs(share) >= SMALLEST_REST:
            rows.append((OTHERS, sum(loss.seconds for loss in others), share))
        heads = columns(None, "thread time") + columns(SECOND, "per event")
        return Sheet(title=title, columns=heads + columns(FRACTION, "share of the loss"), rows=rows, notes=doubts)

    def plot(self, output_path: str | PathLike[str] | None = None) -> Figure:
        """Draw speed-up with what it loses, and thread time by class; write it to a file if one is given."""
        from roastcoffea.studies.scaling.scaling_figure import scaling_figure

        return scaling_figure(self.points, self.explanation, self.laws, self.unit, output_path)

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it as a page for a browser, which needs nothing else; give its path.

        Raises
        ------
        MeasurementError
            If the file is there already, or it cannot be written.
        """
        from roastcoffea.studies.scaling.scaling_figure import page_of, write_page

        sizes = ", ".join(number(point.workers) for point in self.points)
        facts = f"{self.kind} scaling, {sizes} {self.unit}"
        text = page_of(f"Scaling of {self.name}", facts, self.sheets(), self.plot())
        return write_page(Path(path), text, overwrite=overwrite)

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain types; units are their symbols."""
        return asdict(self, dict_factory=_plain)


def _plain(fields: list[tuple[str, Any]]) -> Any:
    known = dict(fields)
    return known["symbol"] if known.keys() == {"symbol", "text"} else known


def _row(point: scaling_laws.Point) -> list[Cell]:
    between = (Amount(each.value, text=_between(each)) for each in (point.rate, point.speedup, point.efficiency))
    return [number(point.workers), point.runs, point.seconds, *between]


def _between(found: scaling_laws.Between) -> str:
    text = number(three_digits(found.value))
    if found.low is None or found.high is None:
        return text
    return f"{text} [{number(three_digits(found.low))}, {number(three_digits(found.high))}]"


def _workers(worth: int | None) -> str:
    return "no limit" if worth is None else number(worth)


def scaling(runs: Sequence[Source], *, rate: str | None = None) -> Scaling:
    """How the rate of an analysis grows with workers.

    Parameters
    ----------
    runs
        Runs with at least two different numbers of workers, on the same files (strong scaling) or on files that grow
        with the workers (weak scaling); repeats provide the intervals.
    rate
        A rate to reach, such as "200 Gbit/s" or "50 kHz" (events): the result has what would have to change.

    Raises
    ------
    ValueError
        If the rate is none.
    NotMeasuredError
        If runs lack required data, ran different processors, or all have the same number of workers.
    """
    target = None if rate is None else target_of(rate)
    measurements = [(name_of(run), measurement_of(run)) for run in runs]
    _refuse_unusable(measurements)
    threads = {round(measurement.metrics["cores_per_worker"], DIGITS) for _, measurement in measurements}
    unit = scaling_laws.WORKERS if len(threads) == 1 else scaling_laws.THREADS
    judged = sorted((_judged(*named, unit) for named in measurements), key=attrgetter("scaled.workers"))
    by_size = [list(group) for _, group in groupby(judged, key=attrgetter("scaled.workers"))]
    groups = [[one.scaled for one in group] for group in by_size]
    taken = [one.scaled for one in judged]
    workers = [group[0].workers for group in groups]
    if len(groups) < 2:
        alike = f"all these runs have {number(workers[0])} {unit}"
        raise NotMeasuredError(f"{alike}; pass runs with different numbers")
    rates = [scaling_laws.resampled_rates(group, place) for place, group in enumerate(groups)]
    kind = _kind(taken)
    laws, missing = scaling_laws.laws_of(np.array(workers, np.float64), np.array(rates), strong=kind == STRONG)
    points = [scaling_laws.point_of(*pair, workers[0], rates[0]) for pair in zip(groups, rates, strict=True)]
    explanation = explained(by_size, unit)
    return Scaling(
        name=", ".join(dict.fromkeys(call.processor for call in measurements[0][1].run.calls)) or "scaling",
        kind=kind,
        unit=unit,
        basis=_basis(groups),
        points=points,
        laws=laws,
        missing=missing,
        losses=_losses(points[0].classes, points[-1].classes),
        explanation=explanation,
        needs=[] if target is None else needs_of(target, explanation, by_size, unit),
        doubts=list(_doubts(taken, unit)),
    )


def _judged(name: str, measurement: Measurement, unit: str) -> Judged:
    """All that is needed of a run."""
    return Judged(
        scaled=scaling_laws.scaled(name, measurement, unit),
        start=measurement.run.start,
        costs=costs_of(measurement),
        reading=reading_of(measurement),
        pace=pace_of(measurement),
        scheduler=loop_of(measurement),
    )


def _refuse_unusable(measurements: Sequence[tuple[str, Measurement]]) -> None:
    """Refuse runs without a rate, and runs of different processors.

    Their files may differ, because weak scaling adds files with workers.
    """
    for name, measurement in measurements:
        if measurement.time_ledger.absent is not None:
            raise NotMeasuredError(f"{name} has no time ledger: {measurement.time_ledger.absent}")
        if not measurement.metrics["peak_workers"]:
            raise NotMeasuredError(f"{name} had no workers")
        if not measurement.metrics["total_events"]:
            raise NotMeasuredError(f"{name} processed 0 events and so has no rate; leave it out")
    ran = [", ".join(dict.fromkeys(call.processor for call in one.run.calls)) for _, one in measurements]
    for (name, _), processors in zip(measurements, ran, strict=True):
        if processors != ran[0]:
            first = measurements[0][0]
            raise NotMeasuredError(f"{name} ran {processors} and {first} {ran[0]}: pass runs of one analysis")


def _kind(taken: Sequence[scaling_laws.Scaled]) -> str:
    events = [each.events for each in taken]
    if max(events) <= (1 + scaling_laws.SAME) * min(events):
        return STRONG
    of_each = [each.events / each.workers for each in taken]
    return WEAK if max(of_each) <= (1 + SAME_EACH) * min(of_each) else MIXED


def _basis(groups: Sequence[Sequence[scaling_laws.Scaled]]) -> str:
    alone = {len(group) == 1 for group in groups}
    if alone == {False}:
        return "repeats"
    return "the spread of chunks (no repeats)" if alone == {True} else "repeats, otherwise the spread of chunks"


def _losses(fewest: Mapping[str, float], most: Mapping[str, float]) -> list[Loss]:
    """Growth of each class from the fewest workers to the most."""
    grown = {name: most.get(name, 0.0) - fewest.get(name, 0.0) for name in dict.fromkeys([*fewest, *most])}
    total = sum(grown.values())
    losses = [Loss(name, seconds, seconds / total if total else 0.0) for name, seconds in grown.items() if seconds]
    return sorted(losses, key=attrgetter("seconds"), reverse=True)


def _doubts(taken: Sequence[scaling_laws.Scaled], unit: str) -> Iterator[str]:
    yield from (f"{each.name} failed and is incomplete" for each in taken if each.failed)
    if len({each.chunksizes for each in taken}) > 1:
        yield "the runs have different chunk sizes, so that differences include the cost of chunks"
    for each in taken:
        if each.missing > ABSENT_THREADS:
            share = FRACTION.text(each.missing)
            yield f"workers of {each.name} joined late or left: they were absent for {share} of their time"
    if any(1 < runs < ENOUGH for runs in Counter(each.workers for each in taken).values()):
        yield f"intervals of fewer than {ENOUGH} repeats are too narrow: they only span the repeats"
    for each in taken:
        if each.cores is not None and each.threads > each.cores:
            yield f"from {number(each.workers)} {unit} up, they share {number(each.cores)} cores: the laws mix both"
            return
