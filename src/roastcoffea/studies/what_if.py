"""Predictions of a run's wall time on other clusters, with other chunk sizes, and with costs removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product, starmap
from math import inf
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.replay.changes import STORAGE_FACTOR, scenarios
from roastcoffea.replay.stages import Recorded, recorded_run
from roastcoffea.report.page.frame import page
from roastcoffea.sheets.presented import Presented
from roastcoffea.sheets.sheet import Amount, Cell, Heading, Sheet, columns
from roastcoffea.storage.folders import write_page
from roastcoffea.studies.merging import Source, measurement_of, name_of
from roastcoffea.studies.prediction import Check, Prediction, Predictor
from roastcoffea.units import COUNT, FRACTION, SECOND, counted, number


class Paged(Presented):
    """A result that can also be written as a page; its first sheet is its heading."""

    __slots__ = ()

    def _heading(self) -> Heading:
        raise NotImplementedError

    def page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a self-contained HTML page, and return its path.

        Raises
        ------
        MeasurementError
            If the file exists or cannot be written.
        """
        return write_page(Path(path), partial(page, self._heading(), self.sheets()[1:]), overwrite=overwrite)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Paged):
    """Wall times predicted from recorded runs, with an estimate of the error.

    `checks` compares measured wall times with predictions. `error` is the relative error used for the predicted ranges.
    `spread` is the difference between the slowest and the fastest repeat, relative to their median (None if there are
    no repeats). `doubts` lists caveats that apply to all predictions. If `same_host` is true, all workers share the
    cores of one host. Otherwise, the number of cores per worker is the same as in the recorded run.
    """

    runs: list[Recorded]
    same_host: bool
    predictions: list[Prediction]
    checks: list[Check]
    error: float
    spread: float | None
    doubts: list[str]

    def sheets(self) -> list[Sheet]:
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
        first, workers = self.runs[0], _cluster(self.runs[0])
        cores = "an unknown number of cores" if first.cores is None else counted(first.cores, "core")
        chunks = "unknown size" if first.chunksize is None else f"{number(first.chunksize)} events"
        made = f"recorded: {SECOND.text(first.seconds)} on {workers} worker{'s' * (workers != '1')}"
        lead = f"{made}, {counted(first.hosts, 'host')} of {cores}, chunks of {chunks}"
        return Heading(label="what if", title=first.name, lead=[lead])

    def _cluster_sheets(self, predictions: Sequence[Prediction]) -> Iterator[Sheet]:
        names = list(dict.fromkeys(one.scenario for one in predictions))
        recorded = {(one.workers, one.threads): one for one in predictions if one.scenario == names[0]}
        every, first, error = [*recorded.values()], self.runs[0], self.error
        # 50 % longer is a factor of 1.5, but 50 % shorter is a factor of 2
        accuracy = f"within {FRACTION.text(error)}" if error < 0.2 else f"within a factor of {1 + error:.2g}"
        notes = ['"Scheduler busy" is a fraction of the wall time. Tasks queue up long before it reaches 100 %.']
        sharing, each = "with enough cores", first.workers_of_host
        if first.cores is not None:
            cores = counted(first.cores, "core")
            alone = f"with {cores} per worker" if each == 1 else f"with {cores} for every {number(each)} workers"
            sharing = f"with workers sharing {cores}" if self.same_host else alone
            if any(one.workers > first.workers for one in every) and first.hosts == 1 and not self.same_host:
                notes.append(f"Each worker adds cores. To keep {cores} in total, pass --same-host (same_host=True).")
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
                title="" if begin else "Wall time with one change, by number of workers",
                columns=columns(None, "") + columns(SECOND, *map(_cluster, some)),
                rows=[(name, *(found[one.workers, one.threads, name] for one in some)) for name in names],
            )

    def _check_sheet(self) -> Sheet:
        known = "unknown; pass repeats" if self.spread is None else FRACTION.text(self.spread)
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
            notes=[f"Spread between repeats of the recorded run: {known}."],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the predictions, checks and caveats as a dictionary of plain types."""
        return {
            "format": "roastcoffea what-if 1",
            "same_host": self.same_host,
            "predictions": [asdict(prediction) for prediction in self.predictions],
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "error": self.error,
            "spread": self.spread,
            "doubts": self.doubts,
        }


def _reasons(predictions: Sequence[Prediction]) -> list[str]:
    return [f"Range only: {reason}." for reason in dict.fromkeys(one.reason for one in predictions) if reason]


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
    """Predict a run's wall time under other conditions by replaying its records.

    The conditions are other clusters, other chunk sizes, and scenarios in which one cost is removed.

    Parameters
    ----------
    run
        The run to replay. Its repeats (runs in `others` with the same numbers of workers and threads and the same chunk
        size) are replayed too.
    others
        More runs of the same analysis over the same files. Repeats show the spread, runs with a different number of
        workers are used to check the predictions, and runs with a different chunk size reveal the fixed cost of a
        chunk.
    workers, threads
        Numbers of worker processes, and numbers of threads per worker. The defaults are those of the run.
    same_host
        Whether all workers share the cores of one host. Otherwise, the number of cores per worker is the same as in the
        recorded run.
    chunksize
        Chunk sizes for which to predict the wall time on the run's cluster.
    storage
        Speed-up of storage in the faster-storage scenario.

    Raises
    ------
    NotMeasuredError
        If the runs lack data needed for a replay, or if they are not runs of the same analysis.
    ValueError
        If `workers`, `threads` or `chunksize` is not a sequence of integers above 0, if there are more than 10,000
        workers or 256 threads per worker, or if `storage` is not above 0.
    """
    # limited because a replay keeps all threads in memory
    for name, values, most in (("workers", workers, 10_000), ("threads", threads, 256), ("chunksize", chunksize, inf)):
        check_counts(name, values or (), most)
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


def check_counts(name: str, values: object, most: float) -> None:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {values!r}; pass a list of integers above 0, e.g. {name}=[2, 4]")
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
    raise NotMeasuredError(f"{difference}: pass runs of the same analysis over the same files")
