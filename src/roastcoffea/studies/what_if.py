"""Wall time of a run elsewhere: with other workers, without some cost, with other chunk sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product, starmap
from math import inf
from numbers import Integral, Real
from typing import Any

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.changes import STORAGE_FACTOR, scenarios
from roastcoffea.replay.stages import Recorded, recorded_run
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Heading, Sheet, columns
from roastcoffea.studies.merging import Source, measurement_of, name_of
from roastcoffea.studies.prediction import Check, Prediction, Predictor
from roastcoffea.units import COUNT, FRACTION, SECOND, counted, number


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Presented):
    """Predictions from recorded runs, with their error.

    `checks` compare measured runs with their predictions, `error` is the relative error behind the predicted ranges.
    `spread` is the range of the repeats' wall times relative to their median (None without repeats), `doubts` are
    caveats of all predictions. With `same_host` all workers share the cores of one host; otherwise each adds as many
    cores as the recorded ones had.
    """

    runs: list[Recorded]
    same_host: bool
    predictions: list[Prediction]
    checks: list[Check]
    error: float
    spread: float | None
    doubts: list[str]

    def sheets(self) -> list[Sheet]:
        """Predictions, their accuracy, and caveats."""
        rechunked = [one for one in self.predictions if one.rechunked]
        sheets = [self._heading(), *self._cluster_sheets([one for one in self.predictions if not one.rechunked])]
        if rechunked:
            sheets.append(
                Sheet(
                    title="Wall time with other chunk sizes, on the recorded cluster",
                    columns=columns(None, "events") + columns(SECOND, "wall", "range"),
                    rows=[(number(one.chunksize or 0), one.seconds, _range(one)) for one in rechunked],
                    notes=_reasons(rechunked),
                )
            )
        clusters: dict[str, list[str]] = {doubt: [] for doubt in self.doubts}
        for one in self.predictions:
            for doubt in one.doubts:
                clusters.setdefault(doubt, []).append(_cluster(one))
        caveats = [
            f"{doubt} ({', '.join(dict.fromkeys(some))} workers)." if some else f"{doubt}."
            for doubt, some in clusters.items()
        ]
        return [*sheets, self._check_sheet(), *([Sheet(title="Caveats", items=caveats)] if caveats else [])]

    def _heading(self) -> Heading:
        """The recorded run and its resources."""
        first, workers = self.runs[0], _cluster(self.runs[0])
        cores = "an unknown number of cores" if first.cores is None else counted(first.cores, "core")
        chunks = "unknown size" if first.chunksize is None else f"{number(first.chunksize)} events"
        made = f"recorded: {SECOND.text(first.seconds)} on {workers} worker{'s' * (workers != '1')}"
        lead = f"{made}, {counted(first.hosts, 'host')} of {cores}, chunks of {chunks}"
        return Heading(label="what if", title=first.name, lead=[lead])

    def _cluster_sheets(self, predictions: Sequence[Prediction]) -> Iterator[Sheet]:
        """One row per cluster as recorded, and one column per change."""
        names = list(dict.fromkeys(one.scenario for one in predictions))
        recorded = {(one.workers, one.threads): one for one in predictions if one.scenario == names[0]}
        every, first, error = [*recorded.values()], self.runs[0], self.error
        # 50 % more is not as far away as 50 % less
        accuracy = f"within {FRACTION.text(error)}" if error < 0.2 else f"within a factor of {1 + error:.2g}"
        notes = ["Scheduler busy: share of the wall time; tasks wait for it long before 100 %."]
        sharing, each = "with enough cores", first.workers_of_host
        if first.cores is not None:
            cores = counted(first.cores, "core")
            alone = f"with {cores} per worker" if each == 1 else f"with {cores} for every {number(each)} workers"
            sharing = f"of workers that share {cores}" if self.same_host else alone
            if any(one.workers > first.workers for one in every) and first.hosts == 1 and not self.same_host:
                notes.append(f"Each worker adds cores. To keep {cores} in total, use --same-host (same_host=True).")
        predicted = columns(None, "workers") + columns(SECOND, "as recorded", "range")
        yield Sheet(
            title=f"Wall time {sharing}, {accuracy}",
            columns=predicted + columns(FRACTION, "scheduler busy"),
            rows=[(_cluster(one), one.seconds, _range(one), one.scheduler_use) for one in every],
            notes=[*notes, *_reasons(predictions)],
        )
        found = {(one.workers, one.threads, one.scenario): one.seconds for one in predictions}
        for begin in range(0, len(every), 5):
            some = every[begin : begin + 5]
            yield Sheet(
                title="" if begin else "Wall time with one change, by workers",
                columns=columns(None, "") + columns(SECOND, *map(_cluster, some)),
                rows=[(name, *(found[one.workers, one.threads, name] for one in some)) for name in names],
            )

    def _check_sheet(self) -> Sheet:
        """Measured runs and their predictions."""
        known = "unknown; pass repeats of it" if self.spread is None else FRACTION.text(self.spread)
        heads = columns(None, "run") + columns(COUNT, "workers", "events per chunk") + columns(SECOND, "measured")
        rows: list[Sequence[Cell]] = [
            (
                *(one.name, Amount(one.workers, text=_cluster(one)), one.chunksize),
                *(one.measured, one.predicted, one.error, "itself" if one.from_itself else "others"),
            )
            for one in self.checks
        ]
        return Sheet(
            title="Measured and predicted",
            columns=heads + columns(SECOND, "predicted") + columns(FRACTION, "error") + columns(COUNT, "from"),
            rows=rows,
            notes=[f"Spread of repeats of the recorded run: {known}."],
        )

    def as_dict(self) -> dict[str, Any]:
        """Predictions, checks and caveats in plain types."""
        return {
            "same_host": self.same_host,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "error": self.error,
            "spread": self.spread,
            "doubts": self.doubts,
        }


def _reasons(predictions: Sequence[Prediction]) -> list[str]:
    """Why some have no number."""
    return [f"Only ranges: {reason}." for reason in dict.fromkeys(one.reason for one in predictions) if reason]


def _cluster(one: Recorded | Prediction | Check) -> str:
    return number(one.workers) if one.threads == 1 else f"{number(one.workers)} x {number(one.threads)}"


def _range(one: Prediction) -> Amount:
    return Amount(one.low, text=f"{SECOND.text(one.low)} to {SECOND.text(one.high)}")


def what_if(
    run: Source,
    *others: Source,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    same_host: bool = False,
    chunksize: Sequence[int] = (),
    storage: float = STORAGE_FACTOR,
) -> WhatIf:
    """Predict the wall time of a recorded run on other clusters, without some costs, and with other chunk sizes.

    Parameters
    ----------
    run
        The run to replay, along with those of `others` that have its workers, threads and chunk size.
    others
        More runs of the same analysis on the same files: repeats show the spread, runs with other workers check the
        predictions, runs with another chunk size show the fixed cost of a chunk.
    workers, threads
        Worker processes, and threads per worker; by default those of the run.
    same_host
        Workers share the cores of one host; otherwise each adds as many cores as the recorded ones had.
    chunksize
        Other chunk sizes, for the workers of the run.
    storage
        Speed-up of storage in its scenario.

    Raises
    ------
    NotMeasuredError
        If the runs lack data for a replay, or are not of the same analysis.
    ValueError
        If numbers of workers or threads, or chunk sizes, are not whole numbers above 0 in a sequence, if there are more
        than 10,000 workers or 256 threads per worker, or if `storage` is not above 0.
    """
    # a replay holds all threads in memory
    for name, values, most in (("workers", workers, 10_000), ("threads", threads, 256), ("chunksize", chunksize, inf)):
        _check_counts(name, values or (), most)
    if not isinstance(storage, Real) or not storage > 0:
        raise ValueError(f"storage is {storage!r}; pass a number above 0")
    first, *rest = runs = [_recorded(source) for source in (run, *others)]
    for other in rest:
        _check_same_analysis(first, other)
    predictor = Predictor(runs, same_host, scenarios(storage))
    clusters = product(predictor.scenarios, workers or [first.workers], threads or [first.threads])
    return WhatIf(
        runs=runs,
        same_host=same_host,
        predictions=[*starmap(predictor.of_cluster, clusters), *map(predictor.of_chunksize, chunksize)],
        checks=predictor.checks,
        error=predictor.error,
        spread=predictor.spread,
        doubts=predictor.doubts,
    )


def _check_counts(name: str, values: object, most: float) -> None:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {values!r}; pass integers above 0 in a list, as in {name}=[2, 4]")
    for value in values:
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) <= 0:
            raise ValueError(f"{name} is {value!r}; pass integers above 0")
        if int(value) > most:
            raise ValueError(f"{name} is {number(int(value))}; pass at most {number(most)}")


def _recorded(source: Source) -> Recorded:
    measurement = measurement_of(source)
    return recorded_run(measurement.run, measurement.metrics, name_of(source))


def _check_same_analysis(first: Recorded, run: Recorded) -> None:
    if run.failed:
        raise NotMeasuredError(f"{run.name} failed: leave it out")
    before, after = (", ".join(processor for processor, _ in each.calls) for each in (first, run))
    if before != after:
        difference = f"{run.name} ran {after} and {first.name} {before}"
    elif any(len({one, other} - {None}) > 1 for (_, one), (_, other) in zip(first.calls, run.calls, strict=True)):
        difference = f"{run.name} and {first.name} read different files"
    elif first.events != run.events:
        difference = f"{run.name} processed {number(run.events)} events and {first.name} {number(first.events)}"
    else:
        return
    raise NotMeasuredError(f"{difference}: pass runs of one analysis on the same files")
