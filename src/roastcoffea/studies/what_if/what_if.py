"""What a run would take elsewhere: with other workers, without this or that cost, in chunks of another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.recorded import Recorded, recorded_run
from roastcoffea.report.presented import Presented
from roastcoffea.report.sheets import Sheet
from roastcoffea.studies.sources import Source, measurement_of, name_of
from roastcoffea.studies.what_if.changes import STORAGE_FACTOR, scenarios
from roastcoffea.studies.what_if.prediction import Check, Prediction, Predictor
from roastcoffea.studies.what_if.what_if_sheets import (
    check_sheet,
    cluster_sheets,
    doubt_sheets,
    heading_of,
    size_sheet,
)
from roastcoffea.units import number


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Presented):
    """Predictions from recorded runs, with their error.

    `checks` are runs that were really made against their predictions, `error` is the relative error that the ranges of
    predictions have. `spread` is the range of repeats' wall times beside their median (None without repeats), `doubts`
    is what makes all predictions doubtful. With `same_host` clusters are workers that share the cores of one host, else
    each brings as many as the recorded ones had.
    """

    runs: list[Recorded]
    same_host: bool
    predictions: list[Prediction]
    checks: list[Check]
    error: float
    spread: float | None
    doubts: list[str]

    def sheets(self) -> list[Sheet]:
        """What runs would take, how good such predictions were, and what makes them doubtful."""
        recorded = self.runs[0]
        rechunked = [one for one in self.predictions if one.rechunked]
        others = [one for one in self.predictions if not one.rechunked]
        return [
            heading_of(recorded),
            *cluster_sheets(recorded, self.same_host, self.error, others),
            *([size_sheet(rechunked)] if rechunked else []),
            check_sheet(self.checks, self.spread),
            *doubt_sheets(self.doubts, self.predictions),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Predictions, checks and doubts in plain types."""
        return {
            "same_host": self.same_host,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "error": self.error,
            "spread": self.spread,
            "doubts": self.doubts,
        }


def what_if(
    run: Source,
    *others: Source,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    same_host: bool = False,
    chunksize: Sequence[int] = (),
    storage: float = STORAGE_FACTOR,
) -> WhatIf:
    """Wall time that a recorded run would have on other clusters, without some costs, and in other chunks.

    Parameters
    ----------
    run
        The run that is replayed, with those of `others` that have its workers, threads and chunk size.
    others
        More runs of the same analysis on the same files: repeats tell the spread, runs with other workers are predicted
        as checks, runs with another chunk size tell what a chunk costs beside its events.
    workers, threads
        Worker processes, and threads of each; by default those of the run.
    same_host
        Workers share the cores of one host; else each brings as many cores as the recorded ones had.
    chunksize
        Other chunk sizes, for the workers of the run.
    storage
        How many times faster the storage is in that scenario.

    Raises
    ------
    NotMeasuredError
        If the runs lack what a replay needs, or are not of the same analysis.
    ValueError
        If a number of workers or threads, a chunk size or `storage` is not above 0.
    """
    _refuse_none(workers=workers or (), threads=threads or (), chunksize=chunksize, storage=[storage])
    first, *rest = runs = [_recorded(source) for source in (run, *others)]
    for other in rest:
        _refuse_other_analysis(first, other)
    predictor = Predictor(runs, same_host, scenarios(storage))
    clusters = predictor.of_clusters(workers or [first.workers], threads or [first.threads])
    return WhatIf(
        runs=runs,
        same_host=same_host,
        predictions=[*clusters, *map(predictor.of_chunksize, chunksize)],
        checks=predictor.checks,
        error=predictor.error,
        spread=predictor.spread,
        doubts=predictor.doubts,
    )


def _recorded(source: Source) -> Recorded:
    measurement = measurement_of(source)
    return recorded_run(measurement.run, measurement.metrics, name_of(source))


def _refuse_none(**settings: Sequence[float]) -> None:
    """Refuse settings with a number that is not above 0."""
    for name, values in settings.items():
        for value in values:
            if not value > 0:
                raise ValueError(f"{name} is {value:g}; give what is above 0")


def _refuse_other_analysis(first: Recorded, run: Recorded) -> None:
    if run.failed:
        raise NotMeasuredError(f"{run.name} failed: leave it out")
    difference = _difference(first, run)
    if difference is not None:
        raise NotMeasuredError(f"{difference}: give runs of one analysis on the same files")


def _difference(one: Recorded, other: Recorded) -> str | None:
    """How the analyses of two runs differ; None where nothing tells that they do."""
    first, second = (", ".join(processor for processor, _ in run.calls) for run in (one, other))
    if first != second:
        return f"{other.name} ran {second} and {one.name} {first}"
    files = [{before, after} - {None} for (_, before), (_, after) in zip(one.calls, other.calls, strict=True)]
    if any(len(fingerprints) > 1 for fingerprints in files):
        return f"{other.name} and {one.name} read different files"
    if one.events != other.events:
        return f"{other.name} processed {number(other.events)} events and {one.name} {number(one.events)}"
    return None
