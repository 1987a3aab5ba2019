"""Scaling: what more workers gave, the laws that it follows, from where on more are wasted, and what eats the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import nnls

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.statistics import Numbers, sample_deviation
from roastcoffea.records.run import FAILED
from roastcoffea.replay.recorded import ABSENT_THREADS
from roastcoffea.studies.printed import Printed
from roastcoffea.studies.sources import Source, measurement_of, name_of
from roastcoffea.units import FRACTION, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLES: Final = 400
INTERVAL: Final = (0.025, 0.975)
SEED: Final = 1

SAME: Final = 0.001
"""Relative difference of amounts up to which they are the same."""

SAME_EACH: Final = 0.05
"""And of those for each worker."""

ENOUGH: Final = 5
"""Repeats whose resampling gives an interval of nearly 95 %."""

STRONG: Final = "strong"
WEAK: Final = "weak"
MIXED: Final = "mixed"

FEWEST_FOR_AMDAHL: Final = 3
FEWEST_FOR_USL: Final = 4
"""Different numbers of workers from which a law is drawn: with one fewer it would fit anything."""

LEAST_GAIN: Final = 0.1
"""Another worker is wasted where it adds less than this share of what the first one does."""

MOST_WORKERS: Final = 100_000

SLOWER: Final = "more workers made it slower: no share of the work explains that"
"""Why there is no law where more than all of the work would have to go one after the other."""

DIGITS: Final = 6
"""To which threads of a worker are compared: as a mean over time they are no whole number to the last bit."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number and its 95 % interval; the interval is None where nothing tells it."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Runs with one number of workers: the most at one moment.

    `rate` is in events a second. `speedup` is beside that of one worker, if the smallest number scales perfectly;
    `efficiency` is the rate for each worker, beside that of the smallest number. `classes` are thread seconds for each
    event, by class of the time ledger.
    """

    workers: int
    runs: int
    seconds: float
    events: float
    rate: Between
    speedup: Between
    efficiency: Between
    classes: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Rate of N workers: `rate` x N / (1 + `contention` (N - 1) + `coherency` N (N - 1)).

    Without coherency it is Amdahl's law, with it the universal scalability law (Gunther). `peak` is the number of
    workers that has the highest rate, `worth` the largest to which another one adds a tenth of what the first gives.
    None stands for numbers without end. `deviation` is the largest relative distance of a point.
    """

    rate: float
    contention: Between
    coherency: Between
    peak: float | None
    worth: int | None
    worth_low: int | None
    worth_high: int | None
    deviation: float

    def speedup(self, workers: Numbers) -> Numbers:
        """Speed-up of so many workers."""
        return _speedup(workers, self.contention.value, self.coherency.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A class of the time ledger: thread seconds that an event takes more with most workers than with fewest.

    `share` is its part of all that is lost; classes that take less have a negative one.
    """

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Printed):
    """Points by number of workers, laws by name (or why there is none), and losses, the largest first.

    `unit` is what is counted: "workers", or "threads" where workers differ in theirs. `basis` says what the intervals
    come from.
    """

    kind: str
    unit: str
    basis: str
    points: list[Point]
    laws: dict[str, Law]
    missing: dict[str, str]
    losses: list[Loss]
    doubts: list[str]

    def print(self, file: IO[str] | None = None) -> None:
        """Print points, laws and losses as tables."""
        from roastcoffea.studies.scaling.tables import print_scaling

        print_scaling(self, file)

    def plot(self, output_path: str | PathLike[str] | None = None) -> Figure:
        """Draw speed-up with its laws, and thread time by class; write it to a file where one is named."""
        from roastcoffea.studies.scaling.plot import scaling_figure

        return scaling_figure(self, output_path)

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain types."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is taken of one run."""

    name: str
    workers: int
    threads: int
    missing: float
    """Share of the workers' time for which they were not there."""
    seconds: float
    events: float
    failed: bool
    chunksizes: frozenset[Any]
    cores: int | None
    hosts: int
    scatter: float | None
    """Relative error of the rate as chunks alone tell it."""
    classes: Mapping[str, float]

    @property
    def rate(self) -> float:
        return self.events / self.seconds


def scaling(runs: Sequence[Source]) -> Scaling:
    """How the rate of an analysis grows with workers.

    Parameters
    ----------
    runs
        Runs with at least two different numbers of workers, on the same files (strong scaling) or on files that grow
        with the workers (weak scaling); repeats make the intervals.

    Raises
    ------
    NotMeasuredError
        If runs lack what is needed, are not of the same processors, or all have the same number of workers.
    """
    measurements = [(name_of(run), measurement_of(run)) for run in runs]
    for name, measurement in measurements:
        _refuse_unusable(name, measurement)
    _refuse_other_analyses(measurements)
    unit = _unit([measurement for _, measurement in measurements])
    seen = sorted((_seen(*named, unit) for named in measurements), key=lambda each: each.workers)
    groups = [list(group) for _, group in groupby(seen, key=lambda each: each.workers)]
    if len(groups) < 2:
        raise NotMeasuredError(
            f"all these runs have {number(seen[0].workers)} {unit}; give runs with different numbers of them"
        )
    rates = np.array([_resampled(group, place) for place, group in enumerate(groups)])
    kind = _kind(seen)
    laws, missing = _laws(kind, np.array([group[0].workers for group in groups], np.float64), rates)
    points = [_point(group, groups[0], rates[place], rates[0]) for place, group in enumerate(groups)]
    return Scaling(
        kind=kind,
        unit=unit,
        basis=_basis(groups),
        points=points,
        laws=laws,
        missing=missing,
        losses=_losses(points),
        doubts=_doubts(seen, unit),
    )


def _refuse_unusable(name: str, measurement: Measurement) -> None:
    if measurement.time_ledger.absent is not None:
        raise NotMeasuredError(f"{name} has no time ledger: {measurement.time_ledger.absent}")
    if not measurement.metrics["peak_workers"]:
        raise NotMeasuredError(f"{name} had no workers")
    if not measurement.metrics["total_events"]:
        raise NotMeasuredError(f"{name} processed 0 events: there is no rate; leave it out")


def _refuse_other_analyses(measurements: Sequence[tuple[str, Measurement]]) -> None:
    """Refuse runs of different processors; their files may differ, as weak scaling has more with more workers."""
    (first, of_first), *others = [(name, _processors(measurement)) for name, measurement in measurements]
    for name, processors in others:
        if processors != of_first:
            raise NotMeasuredError(f"{name} ran {processors} and {first} {of_first}: give runs of one analysis")


def _processors(measurement: Measurement) -> str:
    return ", ".join(dict.fromkeys(call.processor for call in measurement.run.calls))


def _unit(measurements: Sequence[Measurement]) -> str:
    each = {round(measurement.metrics["cores_per_worker"], DIGITS) for measurement in measurements}
    return "workers" if len(each) == 1 else "threads"


def _seen(name: str, measurement: Measurement, unit: str) -> _Seen:
    metrics = measurement.metrics
    environment, events, workers = measurement.run.environment, metrics["total_events"], metrics["peak_workers"]
    threads = max(round(workers * metrics["cores_per_worker"]), 1)
    cores = {host.cores for host in environment.hosts}
    return _Seen(
        name=name,
        workers=workers if unit == "workers" else threads,
        threads=threads,
        missing=1 - metrics["avg_workers"] / workers,
        seconds=metrics["elapsed_time_seconds"],
        events=events,
        failed=measurement.outcome == FAILED,
        chunksizes=frozenset(call.options.get("chunksize") for call in measurement.run.calls),
        cores=cores.pop() if len(cores) == 1 else None,
        hosts=len(environment.hosts),
        scatter=_scatter(measurement),
        classes={each: seconds / events for each, seconds in measurement.time_ledger.items()},
    )


def _scatter(measurement: Measurement) -> float | None:
    wall = measurement.chunks["wall_seconds"].dropna().to_numpy()
    return float(sample_deviation(wall) / wall.mean() / len(wall) ** 0.5) if len(wall) > 1 else None


def _kind(seen: Sequence[_Seen]) -> str:
    events = [each.events for each in seen]
    if max(events) <= (1 + SAME) * min(events):
        return STRONG
    of_each = [each.events / each.workers for each in seen]
    return WEAK if max(of_each) <= (1 + SAME_EACH) * min(of_each) else MIXED


def _basis(groups: Sequence[Sequence[_Seen]]) -> str:
    alone = sum(len(group) == 1 for group in groups)
    if not alone:
        return "repeats"
    return (
        "the spread of chunks, as there are no repeats"
        if alone == len(groups)
        else "repeats, else the spread of chunks"
    )


def _doubts(seen: Sequence[_Seen], unit: str) -> list[str]:
    found = [f"{each.name} failed: it holds only what it had done by then" for each in seen if each.failed]
    if len({each.chunksizes for each in seen}) > 1:
        found.append("the runs have different chunk sizes: what chunks cost is in the difference")
    found += [
        f"workers came late or left in {each.name}: for {FRACTION.text(each.missing)} of their time they were not there"
        for each in seen
        if each.missing > ABSENT_THREADS
    ]
    of_each = Counter(each.workers for each in seen)
    if any(1 < runs < ENOUGH for runs in of_each.values()):
        found.append(f"intervals of fewer than {ENOUGH} repeats are too narrow: they reach to the repeats")
    crowded = [each for each in seen if each.cores is not None and each.threads > each.cores * each.hosts]
    if crowded:
        cores = number((crowded[0].cores or 0) * crowded[0].hosts)
        found.append(f"from {number(crowded[0].workers)} {unit} on they share {cores} cores: the laws mix both")
    return found


# Points


def _resampled(group: Sequence[_Seen], place: int) -> Numbers:
    """Rates that the group might have had: the first as it was, the others from resampled runs, or chunks."""
    random = np.random.default_rng([SEED, place])
    rates = np.log([each.rate for each in group])
    if len(group) > 1:
        others = rates[random.integers(len(rates), size=(RESAMPLES, len(rates)))].mean(axis=1)
    else:
        others = rates[0] + (group[0].scatter or 0.0) * random.standard_normal(RESAMPLES)
    return np.asarray(np.exp(np.concatenate([[rates.mean()], others])))


def _between(values: Numbers) -> Between:
    """The first value, with the interval of the others; none where they do not differ."""
    low, high = np.quantile(values[1:], INTERVAL)
    known = np.ptp(values[1:]) > 0
    return Between(float(values[0]), float(low) if known else None, float(high) if known else None)


def _point(group: Sequence[_Seen], smallest: Sequence[_Seen], rates: Numbers, least: Numbers) -> Point:
    workers, fewest = group[0].workers, smallest[0].workers
    gain = rates / least if group is not smallest else np.ones(len(rates))
    return Point(
        workers=workers,
        runs=len(group),
        seconds=float(np.median([each.seconds for each in group])),
        events=float(np.median([each.events for each in group])),
        rate=_between(rates),
        speedup=_between(gain * fewest),
        efficiency=_between(gain * fewest / workers),
        classes={name: float(np.mean([each.classes.get(name, 0.0) for each in group])) for name in group[0].classes},
    )


def _losses(points: Sequence[Point]) -> list[Loss]:
    """By how much each class grew, from the fewest workers to the most."""
    fewest, most = points[0].classes, points[-1].classes
    grown = {name: most.get(name, 0.0) - fewest.get(name, 0.0) for name in dict.fromkeys([*fewest, *most])}
    total = sum(grown.values())
    losses = [
        Loss(name=name, seconds=seconds, share=seconds / total if total else 0.0) for name, seconds in grown.items()
    ]
    return sorted((loss for loss in losses if loss.seconds), key=lambda loss: -loss.seconds)


# Laws


def _laws(kind: str, workers: Numbers, rates: Numbers) -> tuple[dict[str, Law], dict[str, str]]:
    laws: dict[str, Law] = {}
    missing: dict[str, str] = {}
    for name, fewest, degree in (("Amdahl", FEWEST_FOR_AMDAHL, 1), ("USL", FEWEST_FOR_USL, 2)):
        if len(workers) < fewest:
            missing[name] = f"it takes runs with {fewest} different numbers of workers; there are {len(workers)}"
        elif degree == 1 and kind != STRONG:
            missing[name] = "it is for the same work on different numbers of workers"
        else:
            law = _law(workers, rates, degree)
            if law.contention.value > 1 + SAME:
                missing[name] = SLOWER
            else:
                laws[name] = law
    return laws, missing


def _law(workers: Numbers, rates: Numbers, degree: int) -> Law:
    """Law that fits the points best, and what fits the resampled ones."""
    fits = np.array([_fit(workers, column, degree) for column in rates.T])
    rate, contention, coherency = fits[0]
    worth = [_worth(*fit[1:]) for fit in fits]
    fitted = rate * _speedup(workers, contention, coherency)
    low, high = (_at(worth[1:], share) for share in INTERVAL)
    return Law(
        rate=float(rate),
        contention=_between(fits[:, 1]),
        coherency=_between(fits[:, 2]),
        peak=float(max((1 - contention) / coherency, 1.0) ** 0.5) if coherency > 0 else None,
        worth=worth[0],
        worth_low=low,
        worth_high=high,
        deviation=float(np.abs(rates[:, 0] / fitted - 1).max()),
    )


def _fit(workers: Numbers, rates: Numbers, degree: int) -> tuple[float, float, float]:
    """Rate of one worker, contention and coherency: workers / rate is linear in what they make."""
    traits = np.column_stack([np.ones(len(workers)), workers - 1, workers * (workers - 1)])[:, : degree + 1]
    found, _ = nnls(traits * (rates / workers)[:, None], np.ones(len(workers)))
    one, *others = np.maximum(found, [1e-300, *[0.0] * degree])
    contention, coherency = (*(other / one for other in others), 0.0)[:2]
    return 1 / float(one), float(contention), float(coherency)


def _speedup(workers: Numbers, contention: float, coherency: float) -> Numbers:
    return np.asarray(workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1)))


def _worth(contention: float, coherency: float) -> int | None:
    """Most workers of which the last adds its share; None where all do."""
    workers = np.arange(1, MOST_WORKERS + 1, dtype=np.float64)
    wasted = np.diff(_speedup(workers, contention, coherency)) < LEAST_GAIN
    return int(np.argmax(wasted)) + 1 if wasted.any() else None


def _at(worth: Sequence[int | None], share: float) -> int | None:
    """Quantile of numbers of workers; None is beyond all."""
    ordered = sorted(worth, key=lambda workers: float("inf") if workers is None else workers)
    return ordered[round(share * (len(ordered) - 1))]
