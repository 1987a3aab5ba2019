"""Scaling studies: speed-up with more workers, scaling laws, and causes of lost time."""

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

from roastcoffea.compat import older_keywords
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
    """Parse a rate. Return its value per second, and "bits" or "events".

    Raises
    ------
    ValueError
        If `text` is not a rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([kMGT]?)(bit/s|bps|B/s|Hz|events/s)", text.strip())
    if found is None or not float(found[1]):
        examples = '"200 Gbit/s", "25 GB/s" or "50 kHz" (events)'
        raise ValueError(f"{text!r} is not a rate; pass a rate such as {examples}")
    value = float(found[1]) * {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]
    return value * (8 if found[3] == "B/s" else 1), "events" if found[3] in {"Hz", "events/s"} else "bits"


def needs_of(text: str, found: Limits, groups: Groups, unit: str) -> list[str]:
    """Write sentences about what is needed to reach a rate, largest gap first."""
    text, (events, counts) = text.strip(), target_of(text)
    runs, largest = [run for group in groups for run in group], groups[-1][0]
    if counts == "bits":
        if not (size := sum(run.amount(BYTES) for run in runs)):
            return [f"Cannot tell how far off {text} is: the bytes read by chunks were not recorded."]
        events *= sum(run.events for run in runs) / (1e9 * size)
    rates = [one.rate for one in found.causes if one.rate and one.share.value >= MATTERS]
    lines = []
    for factor, rate in sorted(((events * one.each / one.value.value, one) for one in rates), key=itemgetter(0))[::-1]:
        amount = rate.unit.text(three_digits(events * rate.each))
        times = f"{number(three_digits(factor))} times " if factor > 1 else ""
        lines.append(f"{text} needs {times}{rate.thing}: {amount}, with a limit of {rate.text()}.")
    needed = events * found.ideal * (1.0 if unit == "thread" else largest.workers / largest.threads)
    reached = FRACTION.text(min(max(run.rate for run in runs) / events, 9.99))
    words = f"Without any limit, {text} would take {counted(three_digits(needed), f'such {unit}')}"
    return [*lines, f"{words}; the fastest run reached {reached} of this rate."]


class Loss(NamedTuple):
    """Increase in a class's thread time per event (in seconds) from the smallest to the largest number of workers.

    `share` is the fraction of the total loss. It is negative for classes that shrink.
    """

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Presented):
    """Result of a scaling study: speed-ups, scaling laws and losses.

    `points` has an entry for each number of workers. `laws` holds the fitted laws by name, and `missing` holds the
    reasons for missing laws. `losses` lists all losses, largest first. `unit` is "workers", or "threads" if runs have
    different numbers of threads per worker. `basis` describes how the intervals were obtained.
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
            Sheet(title="laws", notes=[*laws, *(f"{name}: not fitted; {why}." for name, why in self.missing.items())]),
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
            yield f"more than {number(round(law.peak))} slow the run down"

    def _losses(self) -> Sheet:
        """Build the sheet of losses. Its row "others" includes classes that shrink, so that the shares add up."""
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

    @older_keywords(output_path="path")
    def plot(self, path: str | PathLike[str] | None = None, *, overwrite: bool = False) -> Figure:
        """Draw the speed-up, the losses and the fitted laws.

        Parameters
        ----------
        path
            File in which to save the figure. The suffix (png, pdf or svg) sets the format.
        overwrite
            Overwrite an existing file.

        Raises
        ------
        MeasurementError
            If the file already exists or cannot be written.
        """
        from roastcoffea.studies.scaling_figure import scaling_figure
        from roastcoffea.visualization.registry import save

        figure = scaling_figure(self.points, self.explanation, self.laws, self.unit)
        if path is not None:
            save(figure, path, overwrite=overwrite)
        return figure

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the study to a self-contained HTML page, and return its path.

        Raises
        ------
        MeasurementError
            If the file already exists or cannot be written.
        """
        from roastcoffea.studies.scaling_figure import page_of

        sizes = ", ".join(number(point.workers) for point in self.points)
        title, label = f"Scaling of {self.name}", f"{self.kind} scaling, {sizes} {self.unit}"
        return write_page(Path(path), partial(page_of, title, label, self.sheets(), self.plot()), overwrite=overwrite)

    def as_dict(self) -> dict[str, Any]:
        """Return the study as a dictionary of plain types, with units as symbols."""
        found: dict[str, Any] = asdict(self, dict_factory=_plain)
        return {"format": "roastcoffea scaling 1"} | found | {"losses": [loss._asdict() for loss in self.losses]}


def _plain(fields: list[tuple[str, Any]]) -> Any:
    known = dict(fields)
    return known["symbol"] if known.keys() == {"symbol", "text"} else known


def _text(found: Between) -> str:
    return found.text(lambda value: number(three_digits(value)))


def scaling(runs: Sequence[Source], *, rate: str | None = None) -> Scaling:
    """Study how the event rate grows with the number of workers.

    Parameters
    ----------
    runs
        Runs with at least two different numbers of workers. Either all runs process the same files (strong scaling), or
        the number of files grows with the number of workers (weak scaling). Repeats are used to compute intervals.
    rate
        Target rate, such as "200 Gbit/s" or "50 kHz" (events). The result lists what is needed to reach this rate.

    Raises
    ------
    ValueError
        If `rate` cannot be parsed.
    NotMeasuredError
        If runs lack required data or ran different processors, or if all runs have the same number of workers.
    """
    if rate is not None:
        target_of(rate)
    measurements = [(name_of(run), measurement_of(run)) for run in runs]
    _refuse_unusable(measurements)
    # these are means over time, so they may not be exact integers
    by_threads = len({round(measurement.metrics["cores_per_worker"], 6) for _, measurement in measurements}) > 1
    unit = "thread" if by_threads else "worker"
    taken = sorted((ScaledRun(*each, by_threads=by_threads) for each in measurements), key=attrgetter("workers"))
    groups = [list(group) for _, group in groupby(taken, key=attrgetter("workers"))]
    if len(groups) < 2:
        alike = f"all these runs have {counted(taken[0].workers, unit)}"
        raise NotMeasuredError(f"{alike}; pass runs with different numbers of {unit}s")
    split_cold(taken)
    rates, costs = drawn_from(groups)
    kind = _kind(taken)
    points = [_point(*pair, groups[0][0].workers, rates[0]) for pair in zip(groups, rates, strict=True)]
    laws, missing = laws_of(np.array([point.workers for point in points], np.float64), rates, strong=kind == "strong")
    explanation = explained(groups, costs, unit)
    # growth of each class from the smallest to the largest number of workers
    lost = pd.Series(points[-1].classes).sub(pd.Series(points[0].classes), fill_value=0.0).sort_values(ascending=False)
    alone = {len(group) == 1 for group in groups}
    basis = "the spread of chunks (no repeats)" if False not in alone else "repeats or, if none, the spread of chunks"
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
    """Fit the laws. Return the laws and the reasons for missing laws, both by name.

    `strong` means that all runs did the same work.
    """
    laws: dict[str, Law] = {}
    missing: dict[str, str] = {}
    # with fewer points, any law would fit
    for name, fewest in (("Amdahl", 3), ("USL", 4)):
        if len(workers) < fewest:
            missing[name] = f"it needs runs with {fewest} different numbers of workers, not {len(workers)}"
        elif name == "Amdahl" and not strong:
            missing[name] = "it applies only to runs that do the same work"
        elif (law := law_of(workers, rates, coherency=name == "USL")).contention.value > 1.001:
            missing[name] = "more workers made the run slower, which a serial fraction cannot explain"
        else:
            laws[name] = law
    return laws, missing


def _processors(measurement: Measurement) -> str:
    return ", ".join(dict.fromkeys(call.processor for call in measurement.run.calls))


def _refuse_unusable(measurements: Sequence[tuple[str, Measurement]]) -> None:
    """Reject runs that have no rate, and runs of different processors.

    Runs over different files are accepted, because weak scaling uses more files with more workers.
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
            raise NotMeasuredError(f"{both}: pass runs of the same analysis")


def _point(group: Sequence[ScaledRun], rates: Numbers, fewest: float, least: Numbers) -> Point:
    """Summarise runs with the same number of workers, relative to `least` (the rates with `fewest` workers)."""
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
        yield "the runs have different chunk sizes, so differences include the fixed cost of chunks"
    for each in taken:
        if each.missing > ABSENT_THREADS:
            share = FRACTION.text(each.missing)
            yield f"workers of {each.name} joined late or left early, and were absent for {share} of the time"
    # with 5 repeats, intervals from resampling cover nearly 95 %
    if any(1 < runs < 5 for runs in Counter(each.workers for each in taken).values()):
        yield "intervals from fewer than 5 repeats are too narrow, because they span only the repeats"
    crowded = next((each for each in taken if each.cores is not None and each.threads > each.cores), None)
    if crowded is not None:
        cores = counted(crowded.cores or 0, "core")
        yield f"from {counted(crowded.workers, unit)} on, threads share {cores}, so the laws include CPU contention"
