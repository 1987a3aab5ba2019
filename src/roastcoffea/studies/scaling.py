"""Scaling: the gain from more workers, the laws it follows, when more are wasted, and where the loss goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from math import inf
from operator import attrgetter, itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.stages import ABSENT_THREADS
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Sheet, columns
from roastcoffea.storage.folders import write_page
from roastcoffea.studies.merging import Source, measurement_of, name_of
from roastcoffea.studies.scaling_limits import (
    BYTES,
    MATTERS,
    Between,
    Groups,
    Law,
    Limits,
    Point,
    ScaledRun,
    drawn_from,
    explained,
    law_of,
    reasons,
    split_cold,
    useful_workers,
)
from roastcoffea.units import COUNT, FRACTION, SECOND, counted, number, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def target_of(text: str) -> tuple[float, str]:
    """A rate from its text: bits or events per second, and which of them.

    Raises
    ------
    ValueError
        If it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([kMGT]?)(bit/s|bps|B/s|Hz|events/s)", text.strip())
    if found is None or not float(found[1]):
        examples = '"200 Gbit/s", "25 GB/s" or "50 kHz" (events)'
        raise ValueError(f"{text!r} is not a rate; write one such as {examples}")
    value = float(found[1]) * {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]
    return value * (8 if found[3] == "B/s" else 1), "events" if found[3] in {"Hz", "events/s"} else "bits"


def needs_of(text: str, found: Limits, groups: Groups, unit: str) -> list[str]:
    """Sentences on what has to change for a rate, the farthest from enough first."""
    text, (events, counts) = text.strip(), target_of(text)
    runs, largest = [run for group in groups for run in group], groups[-1][0]
    if counts == "bits":
        if not (size := sum(run.amount(BYTES) for run in runs)):
            return [f"How far {text} is cannot be told: the bytes of chunks were not recorded."]
        events *= sum(run.events for run in runs) / (1e9 * size)
    rates = [one.rate for one in found.causes if one.rate and one.share.value >= MATTERS]
    lines = []
    for factor, rate in sorted(((events * one.each / one.value.value, one) for one in rates), key=itemgetter(0))[::-1]:
        amount = rate.unit.text(three_digits(events * rate.each))
        times = f"{number(three_digits(factor))} times " if factor > 1 else ""
        lines.append(f"{text} needs {times}{rate.thing}: {amount} of {rate.text()}.")
    needed = events * found.ideal * (1.0 if unit == "thread" else largest.workers / largest.threads)
    reached = FRACTION.text(min(max(run.rate for run in runs) / events, 9.99))
    words = f"Without any limit {text} would take {counted(three_digits(needed), f'such {unit}')}"
    return [*lines, f"{words}; the fastest of these runs reached {reached} of it."]


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
        unit = self.unit[:-1]
        heads = columns(None, self.unit) + columns(COUNT, "runs") + columns(SECOND, "wall")
        laws = [f"{name}: {'; '.join(self._of_law(law))}." for name, law in self.laws.items()]
        return [
            reasons(self.explanation, self.points, unit, self.needs),
            useful_workers(self.explanation, self.points, unit),
            Sheet(
                title=f"{self.kind} scaling; 95 % intervals from {self.basis}",
                columns=heads + columns(COUNT, "events/s", "speed-up", "efficiency"),
                rows=[
                    [
                        *(number(point.workers), point.runs, point.seconds),
                        *(Amount(one.value, text=_text(one)) for one in (point.rate, point.speedup, point.efficiency)),
                    ]
                    for point in self.points
                ],
            ),
            Sheet(title="laws", notes=[*laws, *(f"{name}: none, {why}." for name, why in self.missing.items())]),
            self._losses(),
        ]

    def _of_law(self, law: Law) -> Iterator[str]:
        yield f"serial fraction {_text(law.contention)}"
        if law.coherency.value > 0:
            yield f"coherency {_text(law.coherency)}"
        yield f"fits the points within {FRACTION.text(law.deviation)}"
        largest = self.points[-1].workers
        worth = "any number" if law.worth is None else number(law.worth)
        beyond = "" if (law.worth or inf) <= largest else f" (beyond the measured {number(largest)})"
        yield f"more {self.unit} pay off up to {worth}{beyond}"
        if law.peak is not None:
            yield f"more than {number(round(law.peak))} slow it down"

    def _losses(self) -> Sheet:
        """Classes of thread time that grew; the others include those that shrink, so that shares add up to 100 %."""
        shown = [loss for loss in self.losses[:6] if loss.share >= 0.01]
        seconds, share = np.sum([(0.0, 0.0), *(loss[1:] for loss in self.losses if loss not in shown)], axis=0).tolist()
        lost = sum(loss.seconds for loss in self.losses) > 0
        heads = columns(None, "thread time") + columns(SECOND, "per event") + columns(FRACTION, "share of the loss")
        fewest, most = self.points[0].workers, self.points[-1].workers
        return Sheet(
            title=f"extra thread time per event on {number(most)} {self.unit} compared with {number(fewest)}",
            columns=heads if lost else [],
            rows=[*shown, *([Loss("others", seconds, share)] * (abs(share) >= 0.0005))] if lost else [],
            notes=[*([] if lost else ["No loss."]), *(f"Note: {doubt}." for doubt in self.doubts)],
        )

    def plot(self, output_path: str | PathLike[str] | None = None) -> Figure:
        """Draw speed-up with what it loses, and its laws; write it to a file if one is given."""
        from roastcoffea.studies.scaling_figure import scaling_figure

        return scaling_figure(self.points, self.explanation, self.laws, self.unit, output_path)

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it as a page for a browser, which needs nothing else; give its path.

        Raises
        ------
        MeasurementError
            If the file is there already, or it cannot be written.
        """
        from roastcoffea.studies.scaling_figure import page_of

        sizes = ", ".join(number(point.workers) for point in self.points)
        title, label = f"Scaling of {self.name}", f"{self.kind} scaling, {sizes} {self.unit}"
        return write_page(Path(path), partial(page_of, title, label, self.sheets(), self.plot()), overwrite=overwrite)

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain types; units are their symbols."""
        found: dict[str, Any] = asdict(self, dict_factory=_plain)
        return found | {"losses": [loss._asdict() for loss in self.losses]}


def _plain(fields: list[tuple[str, Any]]) -> Any:
    known = dict(fields)
    return known["symbol"] if known.keys() == {"symbol", "text"} else known


def _text(found: Between) -> str:
    return found.text(lambda value: number(three_digits(value)))


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
    if rate is not None:
        target_of(rate)
    measurements = [(name_of(run), measurement_of(run)) for run in runs]
    _refuse_unusable(measurements)
    # means over time are not exact integers
    by_threads = len({round(measurement.metrics["cores_per_worker"], 6) for _, measurement in measurements}) > 1
    unit = "thread" if by_threads else "worker"
    taken = sorted((ScaledRun(*each, by_threads=by_threads) for each in measurements), key=attrgetter("workers"))
    groups = [list(group) for _, group in groupby(taken, key=attrgetter("workers"))]
    if len(groups) < 2:
        alike = f"all these runs have {counted(taken[0].workers, unit)}"
        raise NotMeasuredError(f"{alike}; pass runs with different numbers")
    split_cold(taken)
    rates, costs = drawn_from(groups)
    kind = _kind(taken)
    points = [_point(*pair, groups[0][0].workers, rates[0]) for pair in zip(groups, rates, strict=True)]
    laws, missing = laws_of(np.array([point.workers for point in points], np.float64), rates, strong=kind == "strong")
    explanation = explained(groups, costs, unit)
    # growth of each class from the fewest workers to the most
    lost = pd.Series(points[-1].classes).sub(pd.Series(points[0].classes), fill_value=0.0).sort_values(ascending=False)
    alone = {len(group) == 1 for group in groups}
    basis = "the spread of chunks (no repeats)" if False not in alone else "repeats, otherwise the spread of chunks"
    return Scaling(
        name=_processors(measurements[0][1]) or "scaling",
        kind=kind,
        unit=f"{unit}s",
        basis=basis if True in alone else "repeats",
        points=points,
        laws=laws,
        missing=missing,
        losses=[Loss(str(name), each, each / (lost.sum() or 1.0)) for name, each in lost.items() if each],
        explanation=explanation,
        needs=[] if rate is None else needs_of(rate, explanation, groups, unit),
        doubts=list(_doubts(taken, unit)),
    )


def laws_of(workers: Numbers, rates: Numbers, *, strong: bool) -> tuple[dict[str, Law], dict[str, str]]:
    """Laws by name, and why others are missing, for rates by number of workers; strong if all had the same work."""
    laws: dict[str, Law] = {}
    missing: dict[str, str] = {}
    # with one number of workers less, any law would fit
    for name, fewest in (("Amdahl", 3), ("USL", 4)):
        if len(workers) < fewest:
            missing[name] = f"it needs runs with {fewest} different numbers of workers, not {len(workers)}"
        elif name == "Amdahl" and not strong:
            missing[name] = "it applies to the same work on different numbers of workers"
        elif (law := law_of(workers, rates, coherency=name == "USL")).contention.value > 1.001:
            missing[name] = "more workers made it slower, which no serial fraction explains"
        else:
            laws[name] = law
    return laws, missing


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


def _point(group: Sequence[ScaledRun], rates: Numbers, fewest: float, least: Numbers) -> Point:
    """Point of runs with one number of workers, relative to the rates of the fewest."""
    workers = group[0].workers
    gain = rates / least if workers > fewest else np.ones(len(rates))
    seconds, events = np.median([(run.seconds, run.events) for run in group], axis=0).tolist()
    rate, speedup, efficiency = map(Between.of, (rates, gain * fewest, gain * fewest / workers))
    classes = {name: float(np.mean([run.classes.get(name, 0.0) for run in group])) for name in group[0].classes}
    return Point(workers, len(group), seconds, events, rate, speedup, efficiency, classes)


def _kind(taken: Sequence[ScaledRun]) -> str:
    events, of_each = [run.events for run in taken], [run.events / run.workers for run in taken]
    if max(events) <= 1.001 * min(events):
        return "strong"
    return "weak" if max(of_each) <= 1.05 * min(of_each) else "mixed"


def _doubts(taken: Sequence[ScaledRun], unit: str) -> Iterator[str]:
    yield from (f"{each.name} failed and is incomplete" for each in taken if each.run.ended_early)
    if len({frozenset(call.options.get("chunksize") for call in each.run.calls) for each in taken}) > 1:
        yield "the runs have different chunk sizes, so that differences include the cost of chunks"
    for each in taken:
        if each.missing > ABSENT_THREADS:
            share = FRACTION.text(each.missing)
            yield f"workers of {each.name} joined late or left: they were absent for {share} of their time"
    # resampling as many gives an interval of nearly 95 %
    if any(1 < runs < 5 for runs in Counter(each.workers for each in taken).values()):
        yield "intervals of fewer than 5 repeats are too narrow: they only span the repeats"
    crowded = next((each for each in taken if each.cores is not None and each.threads > each.cores), None)
    if crowded is not None:
        shared = f"they share {counted(crowded.cores or 0, 'core')}: the laws mix both"
        yield f"from {counted(crowded.workers, unit)} up, {shared}"
