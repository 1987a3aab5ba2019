"""Predictions, checks and doubts as sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from roastcoffea.replay.recorded import Recorded
from roastcoffea.report.sheets import NOT_KNOWN, Amount, Column, Heading, Sheet
from roastcoffea.studies.what_if.prediction import Check, Prediction
from roastcoffea.units import COUNT, FRACTION, SECOND, number

MOST_COLUMNS: Final = 5

RANGE: Final = Column(name="range", unit=SECOND)
CLUSTERS: Final = (
    Column(name="workers"),
    Column(name="as recorded", unit=SECOND),
    RANGE,
    Column(name="scheduler busy", unit=FRACTION),
)
SIZES: Final = (Column(name="events"), Column(name="wall", unit=SECOND), RANGE)
CHECKS: Final = (
    Column(name="run"),
    Column(name="workers", unit=COUNT),
    Column(name="events a chunk", unit=COUNT),
    Column(name="measured", unit=SECOND),
    Column(name="predicted", unit=SECOND),
    Column(name="error", unit=FRACTION),
    Column(name="from", unit=COUNT),
)


def heading_of(recorded: Recorded) -> Heading:
    """What was recorded, and on what."""
    workers = _cluster(recorded.workers, recorded.threads)
    cores = "an unknown number of cores" if recorded.cores is None else _counted(recorded.cores, "core")
    chunks = "unknown size" if recorded.chunksize is None else f"{number(recorded.chunksize)} events"
    made = (
        f"recorded: {SECOND.text(recorded.seconds)} on {workers} worker{'s' * (workers != '1')}, "
        f"{_counted(recorded.hosts, 'host')} of {cores}, chunks of {chunks}"
    )
    return Heading(label="what if", title=recorded.name, lead=[made])


def cluster_sheets(
    recorded: Recorded, same_host: bool, error: float, predictions: Sequence[Prediction]
) -> Iterator[Sheet]:
    """A row for each cluster as recorded, and a column for each change."""
    names = list(dict.fromkeys(one.scenario for one in predictions))
    clusters = list(dict.fromkeys((one.workers, one.threads) for one in predictions))
    found = {(one.workers, one.threads, one.scenario): one for one in predictions}
    as_recorded = [found[*cluster, names[0]] for cluster in clusters]
    yield Sheet(
        title=f"Wall time, {_sharing(recorded, same_host)}; give or take {FRACTION.text(error)}",
        columns=CLUSTERS,
        rows=[(_cluster(one.workers, one.threads), one.seconds, _range(one), one.scheduler_use) for one in as_recorded],
        notes=["Scheduler busy: the share of that time; tasks wait for it long before 100 %."],
    )
    for begin in range(0, len(clusters), MOST_COLUMNS):
        some = clusters[begin : begin + MOST_COLUMNS]
        yield Sheet(
            title="" if begin else "Wall time with one thing changed, by workers",
            columns=[Column(name=""), *(Column(name=_cluster(*cluster), unit=SECOND) for cluster in some)],
            rows=[(name, *(found[*cluster, name].seconds for cluster in some)) for name in names],
        )


def _sharing(recorded: Recorded, same_host: bool) -> str:
    """Which cores the workers of the predicted clusters have."""
    if recorded.cores is None:
        return "with as many cores as it takes"
    cores, each = _counted(recorded.cores, "core"), recorded.workers_of_host
    if same_host:
        return f"workers sharing {cores}"
    return (
        f"each worker with {cores} of its own"
        if each == 1
        else f"each {number(each)} workers with {cores} of their own"
    )


def size_sheet(predictions: Sequence[Prediction]) -> Sheet:
    """A row for each size of chunks."""
    reasons = dict.fromkeys(one.reason for one in predictions if one.reason is not None)
    return Sheet(
        title="Wall time in chunks of other sizes, on the recorded cluster",
        columns=SIZES,
        rows=[
            (NOT_KNOWN if one.chunksize is None else number(one.chunksize), one.seconds, _range(one))
            for one in predictions
        ],
        notes=[f"No number, but what it is between: {reason}." for reason in reasons],
    )


def check_sheet(checks: Sequence[Check], spread: float | None) -> Sheet:
    """Runs that were really made beside what was predicted for them."""
    known = "not known: give more than one run of it" if spread is None else FRACTION.text(spread)
    return Sheet(
        title="Runs that were made, and what was predicted for them",
        columns=CHECKS,
        rows=[
            (
                check.name,
                Amount(check.workers, text=_cluster(check.workers, check.threads)),
                check.chunksize,
                check.measured,
                check.predicted,
                check.error,
                "itself" if check.from_itself else "others",
            )
            for check in checks
        ],
        notes=[f"Range of repeats of the recorded run: {known}."],
    )


def doubt_sheets(doubts: Sequence[str], predictions: Sequence[Prediction]) -> Iterator[Sheet]:
    """Doubts of all predictions, and those of some with their clusters; nothing where there are none."""
    clusters: dict[str, dict[str, None]] = {doubt: {} for doubt in doubts}
    for one in predictions:
        for doubt in one.doubts:
            clusters.setdefault(doubt, {})[_cluster(one.workers, one.threads)] = None
    if clusters:
        where = {doubt: f" ({', '.join(some)} workers)" if some else "" for doubt, some in clusters.items()}
        yield Sheet(title="Not to be trusted fully", items=[f"{doubt}{some}." for doubt, some in where.items()])


def _counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'s' * (count != 1)}"


def _cluster(workers: int, threads: int) -> str:
    return number(workers) if threads == 1 else f"{number(workers)} x {number(threads)}"


def _range(one: Prediction) -> Amount:
    return Amount(one.low, text=f"{SECOND.text(one.low)} to {SECOND.text(one.high)}")
