"""Scaling: the gain from more workers, the laws it follows, when more are wasted, and where the loss goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.recorded import ABSENT_THREADS
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Sheet, columns
from roastcoffea.storage.folders import write_page
from roastcoffea.studies.merging import Source, measurement_of, name_of
from roastcoffea.studies.scaling.laws import (
    BYTES,
    SAME,
    THREADS,
    WORKERS,
    Between,
    Law,
    Point,
    Scaled,
    laws_of,
    point_of,
    resampled_rates,
    scaled,
)
from roastcoffea.studies.scaling.scaling_limits import (
    MATTERS,
    Groups,
    Judged,
    Limits,
    costs_of,
    explained,
    reading_of,
    reasons,
    useful_workers,
)
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


class Target(NamedTuple):
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


def needs_of(target: Target, found: Limits, groups: Groups, unit: str) -> list[str]:
    """Sentences on what has to change, the farthest from enough first."""
    runs = [run.scaled for group in groups for run in group]
    total, size = sum(run.events for run in runs), sum(run.amounts.get(BYTES, 0.0) for run in runs)
    if target.events is None and not size:
        return [f"How far {target.text} is cannot be told: the bytes of chunks were not recorded."]
    events = (target.bits or 0.0) / (8 * size) * total if target.events is None else target.events
    rates = [one.rate for one in found.causes if one.rate and one.share.value >= MATTERS]
    lines = []
    for factor, rate in sorted(
        ((events * rate.each / rate.value.value, rate) for rate in rates), key=lambda pair: -pair[0]
    ):
        amount, times = rate.unit.text(three_digits(events * rate.each)), number(three_digits(factor))
        if factor > 1:
            lines.append(f"{target.text} needs {times} times {rate.thing}: {amount} instead of {rate.text()}.")
        else:
            lines.append(f"For {target.text} {rate.thing} is enough: {amount} of {rate.text()}.")
    largest = groups[-1][0].scaled
    each = largest.threads / largest.workers if unit == WORKERS else 1.0
    needed = number(three_digits(events * found.ideal / each))
    reached = FRACTION.text(min(max(run.rate for run in runs) / events, 9.99))
    words = f"Without any limit {target.text} would take {needed} such {unit}"
    return [*lines, f"{words}; the fastest of these runs reached {reached} of it."]


ENOUGH: Final = 5
"""Repeats for which resampling gives an interval of nearly 95 %."""

STRONG: Final = "strong"


class Loss(NamedTuple):
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
    points: list[Point]
    laws: dict[str, Law]
    missing: dict[str, str]
    losses: list[Loss]
    explanation: Limits
    needs: list[str]
    doubts: list[str]

    def sheets(self) -> list[Sheet]:
        """Why more workers give less, the gain from them, the laws, and where the loss goes."""
        heads = columns(None, self.unit) + columns(COUNT, "runs") + columns(SECOND, "wall")
        laws = [f"{name}: {self._of_law(law)}" for name, law in self.laws.items()]
        return [
            reasons(self.explanation, self.points, self.unit, self.needs),
            useful_workers(self.explanation, self.points, self.unit),
            Sheet(
                title=f"{self.kind} scaling; 95 % intervals from {self.basis}",
                columns=heads + columns(COUNT, "events/s", "speed-up", "efficiency"),
                rows=[_row(point) for point in self.points],
            ),
            Sheet(title="laws", notes=[*laws, *(f"{name}: none, {why}." for name, why in self.missing.items())]),
            self._losses(),
        ]

    def _of_law(self, law: Law) -> str:
        """A law in one sentence."""
        worth, low, high = (
            "no limit" if each is None else number(each) for each in (law.worth, law.worth_low, law.worth_high)
        )
        largest = self.points[-1].workers
        parts = [
            f"serial fraction {_between(law.contention)}",
            *([f"coherency {_between(law.coherency)}"] if law.coherency.value > 0 else []),
            f"fits the points within {FRACTION.text(law.deviation)}",
            f"more {self.unit} pay off up to {worth}",
        ]
        if (low, high) != (worth, worth):
            parts[-1] += f" [{low}, {high}]"
        if law.worth is None or law.worth > largest:
            parts[-1] += f"  (beyond the measured {number(largest)})"
        if law.peak is not None:
            parts.append(f"more than {number(round(law.peak))} slow it down")
        return f"{'; '.join(parts)}."

    def _losses(self) -> Sheet:
        """Classes of thread time that grew; the others include those that shrink, so that shares add up to 100 %."""
        fewest, most = (number(point.workers) for point in (self.points[0], self.points[-1]))
        shown = [loss for loss in self.losses[:6] if loss.share >= 0.01]
        seconds, share = (
            sum(getattr(loss, name) for loss in self.losses if loss not in shown) for name in Loss._fields[1:]
        )
        lost = sum(loss.seconds for loss in self.losses) > 0
        rows = [*shown, *([Loss("others", seconds, share)] if abs(share) >= 0.0005 else [])] if lost else []
        heads = columns(None, "thread time") + columns(SECOND, "per event") + columns(FRACTION, "share of the loss")
        return Sheet(
            title=f"extra thread time per event on {most} {self.unit} compared with {fewest}",
            columns=heads if lost else [],
            rows=rows,
            notes=[*([] if lost else ["No loss."]), *(f"Note: {doubt}." for doubt in self.doubts)],
        )

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
        from roastcoffea.studies.scaling.scaling_figure import page_of

        sizes = ", ".join(number(point.workers) for point in self.points)
        title, label = f"Scaling of {self.name}", f"{self.kind} scaling, {sizes} {self.unit}"
        text = partial(page_of, title, label, self.sheets(), self.plot())
        return write_page(Path(path), text, overwrite=overwrite)

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain types; units are their symbols."""
        found: dict[str, Any] = asdict(self, dict_factory=_plain)
        return found | {"losses": [loss._asdict() for loss in self.losses]}


def _plain(fields: list[tuple[str, Any]]) -> Any:
    known = dict(fields)
    return known["symbol"] if known.keys() == {"symbol", "text"} else known


def _row(point: Point) -> list[Cell]:
    between = (Amount(each.value, text=_between(each)) for each in (point.rate, point.speedup, point.efficiency))
    return [number(point.workers), point.runs, point.seconds, *between]


def _between(found: Between) -> str:
    low, high = (None if each is None else number(three_digits(each)) for each in (found.low, found.high))
    return f"{number(three_digits(found.value))}{'' if low is None else f' [{low}, {high}]'}"


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
    # means over time are not exact integers
    threads = {round(measurement.metrics["cores_per_worker"], 6) for _, measurement in measurements}
    unit = WORKERS if len(threads) == 1 else THREADS
    judged = [Judged(scaled(name, one, unit), costs_of(one), reading_of(one)) for name, one in measurements]
    judged.sort(key=attrgetter("scaled.workers"))
    by_size = [list(group) for _, group in groupby(judged, key=attrgetter("scaled.workers"))]
    groups, taken = [[one.scaled for one in group] for group in by_size], [one.scaled for one in judged]
    workers = [group[0].workers for group in groups]
    if len(groups) < 2:
        alike = f"all these runs have {number(workers[0])} {unit}"
        raise NotMeasuredError(f"{alike}; pass runs with different numbers")
    rates = [resampled_rates(group, place) for place, group in enumerate(groups)]
    kind = _kind(taken)
    laws, missing = laws_of(np.array(workers, np.float64), np.array(rates), strong=kind == STRONG)
    points = [point_of(*pair, workers[0], rates[0]) for pair in zip(groups, rates, strict=True)]
    explanation = explained(by_size, unit)
    return Scaling(
        name=_processors(measurements[0][1]) or "scaling",
        kind=kind,
        unit=unit,
        basis=_basis({len(group) == 1 for group in groups}),
        points=points,
        laws=laws,
        missing=missing,
        losses=_losses(points[0].classes, points[-1].classes),
        explanation=explanation,
        needs=[] if target is None else needs_of(target, explanation, by_size, unit),
        doubts=list(_doubts(taken, unit)),
    )


def _processors(measurement: Measurement) -> str:
    return ", ".join(dict.fromkeys(call.processor for call in measurement.run.calls))


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
        first, processors = _processors(measurements[0][1]), _processors(measurement)
        if processors != first:
            both = f"{name} ran {processors} and {measurements[0][0]} {first}"
            raise NotMeasuredError(f"{both}: pass runs of one analysis")


def _kind(taken: Sequence[Scaled]) -> str:
    events, of_each = [each.events for each in taken], [each.events / each.workers for each in taken]
    if max(events) <= (1 + SAME) * min(events):
        return STRONG
    return "weak" if max(of_each) <= 1.05 * min(of_each) else "mixed"


def _basis(alone: set[bool]) -> str:
    if len(alone) > 1:
        return "repeats, otherwise the spread of chunks"
    return "the spread of chunks (no repeats)" if True in alone else "repeats"


def _losses(fewest: Mapping[str, float], most: Mapping[str, float]) -> list[Loss]:
    """Growth of each class from the fewest workers to the most."""
    grown = {name: most.get(name, 0.0) - fewest.get(name, 0.0) for name in [*fewest, *most]}
    total = sum(grown.values())
    losses = [Loss(name, seconds, seconds / total if total else 0.0) for name, seconds in grown.items() if seconds]
    return sorted(losses, key=attrgetter("seconds"), reverse=True)


def _doubts(taken: Sequence[Scaled], unit: str) -> Iterator[str]:
    yield from (f"{each.name} failed and is incomplete" for each in taken if each.failed)
    if len({each.chunksizes for each in taken}) > 1:
        yield "the runs have different chunk sizes, so that differences include the cost of chunks"
    for each in taken:
        if each.missing > ABSENT_THREADS:
            share = FRACTION.text(each.missing)
            yield f"workers of {each.name} joined late or left: they were absent for {share} of their time"
    if any(1 < runs < ENOUGH for runs in Counter(each.workers for each in taken).values()):
        yield f"intervals of fewer than {ENOUGH} repeats are too narrow: they only span the repeats"
    crowded = next((each for each in taken if each.cores is not None and each.threads > each.cores), None)
    if crowded is not None:
        cores = number(crowded.cores or 0)
        yield f"from {number(crowded.workers)} {unit} up, they share {cores} cores: the laws mix both"
