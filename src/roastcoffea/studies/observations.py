"""Input for comparisons: runs and repeats, with their metrics, ledgers and environment."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, isfinite, log1p, sqrt
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from roastcoffea.errors import ComparisonError, unknown
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import CATALOGUE, phases
from roastcoffea.metrics.branches import BRANCH_COLUMNS
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.metrics.profile import Place, UserLine
from roastcoffea.metrics.statistics import Numbers, moments
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.chunks import PHASES
from roastcoffea.records.run import Run
from roastcoffea.report.summary import title_of
from roastcoffea.studies.merging import are_jobs, measurement_of, merged_run, paths_of
from roastcoffea.units import (
    BYTE,
    FRACTION,
    GIGABIT_PER_SECOND,
    KILOHERTZ,
    MEBIBYTE,
    PERCENT,
    SECOND,
    STRUCTURE,
    WORD,
    Unit,
    moment,
    number,
    suffixed,
)

if TYPE_CHECKING:
    import pandas as pd

IN_PROCESS: Final = tuple(dict.fromkeys(phase.time_class for phase in PHASES if phase.in_process))

CPU: Final = (phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET)
"""Classes that count as CPU time in process()."""

OF_LOAD: Final = ("contention", "interpreter lock")
"""Waiting caused by other work on the same cores or in the same process. It does not depend on the chunk size."""

SPLIT: Final = tuple(name for name in IN_PROCESS if name not in OF_LOAD)


class Fixed(NamedTuple):
    """Fixed cost of chunks in seconds: the totals of both runs, and the cost of a single chunk."""

    before: float
    after: float
    each: float


def sizes_of(chunks: pa.Table | None) -> pd.DataFrame | None:
    """Tabulate the events, bytes and seconds (by SPLIT class) of each counted chunk. Unknown values are NaN."""
    import pandas as pd

    if chunks is None or chunks["dataset"].null_count:
        return None
    seconds = {name: sum(moments(chunks, column) for column in phases.COLUMNS_OF[name]) for name in SPLIT}
    read = moments(chunks, "bytes_payload") + np.nan_to_num(moments(chunks, "bytes_other"))
    sizes = {"dataset": chunks["dataset"].to_pylist(), "events": moments(chunks, "events"), "bytes": read}
    return pd.DataFrame(sizes | seconds)


def fixed_costs(name: str, trait: str, before: pd.DataFrame | None, after: pd.DataFrame | None) -> Fixed | None:
    """Fit the fixed cost per chunk in a class to the chunks of two runs.

    For each dataset, fit a line to the chunks of both runs: the fixed cost is the intercept, and the cost per event (or
    byte) is the slope. Return None if no dataset has chunks of different sizes, or if no fixed cost is significant.
    """
    import pandas as pd
    from scipy.stats import linregress

    if before is None or after is None:
        return None
    fixed, chunks = np.zeros(2), 0
    for _, rows in pd.concat([before.assign(side=0), after.assign(side=1)]).groupby("dataset"):
        sizes, seconds = rows[trait].to_numpy(), rows[name].to_numpy()
        if len(rows) >= 4 and sizes.std() > 0.1 * sizes.mean():
            law = linregress(sizes, seconds)
            # an event cannot cost negative time
            each = min(float(law.intercept), float(seconds.mean()))
            if each > 2 * law.intercept_stderr:
                fixed += each * np.bincount(rows["side"], minlength=2)
                chunks += len(rows)
    return Fixed(float(fixed[0]), float(fixed[1]), float(fixed.sum() / chunks)) if chunks else None


OF_BRANCHES: Final = {
    phase.time_class: phase.column
    for phase in phases.PHASES
    if phase.column in {column.name for column in BRANCH_COLUMNS}
}
"""Maps each time-ledger class recorded per branch to its column."""


Function = tuple[str, str]
"""Names of a user function and its file. Line numbers are omitted because they would change with the code."""


class Promise(NamedTuple):
    """Thread seconds that a finding promises to save, in time-ledger classes or in a function."""

    what: str
    """The finding's headline, followed by the function, if any."""
    seconds: float
    at_most: bool
    classes: tuple[str, ...]
    function: Function | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The data needed to compare a run, without its records.

    `facts` describes versions, machines, settings and data as text. `time` holds thread seconds by class. It is empty
    if there is no time ledger. `incomplete` lists what is missing from the ledgers, and `lacks` describes what is
    missing from the result (None if nothing is known to be missing). `core_wait_share` is the fraction of chunk time
    spent waiting for a core. `branches` holds the bytes requested and the thread seconds by class for each branch.
    `hosts` holds the numbers of events, bytes and chunks, and the thread seconds by class, for each host. `functions`
    holds the CPU seconds of user functions (None if there is no profile).
    """

    id: str
    name: str
    start: float | None = None
    facts: Mapping[str, str]
    metrics: Mapping[str, float]
    missing: Mapping[str, str]
    time: Mapping[str, float]
    time_absent: str | None
    client_of: Mapping[str, float]
    bytes: Mapping[str, int | None]
    branches: pd.DataFrame
    hosts: pd.DataFrame | None
    chunk_seconds: Numbers
    chunk_cpu_seconds: Numbers
    incomplete: tuple[str, ...]
    lacks: str | None = None
    core_wait_share: float | None = None
    sizes: pd.DataFrame | None = None
    functions: Mapping[Function, float] | None = None
    promises: tuple[Promise, ...] = ()

    @property
    def thread_seconds(self) -> float:
        return sum(self.time.values())

    @property
    def wall_seconds(self) -> float:
        return self.metrics["elapsed_time_seconds"]


Runs = Sequence[Observation]


def observed(measurement: Measurement, name: str | None = None, *, promising: bool = False) -> Observation:
    """Extract an observation from a measurement.

    Promised savings are included only if `promising` is true, because they have to be computed in replays.
    """
    run, metrics = measurement.run, measurement.metrics
    # None if the chunks were not recorded
    chunks = None if run.chunks is None or "chunks" in run.absent else counted_chunks(run.chunks)
    wall, waited = _values(chunks, "wall_seconds"), _values(chunks, "core_wait_seconds")
    time, read = measurement.time_ledger, measurement.byte_ledger
    # do not evaluate other metrics, because the verdict would need replays
    plain = [name for name, unit in metrics.unit.items() if unit not in (STRUCTURE, WORD)]
    values = {name: metrics[name] for name in plain if name in metrics}
    lacks = None
    with suppress(NotMeasuredError):
        missing = metrics.evaluator.value("incompleteness")
        if not missing.complete:
            lacks = missing.how_much if missing.files or missing.chunks else missing.what
    return Observation(
        id=run.id,
        name=name or title_of(run),
        start=run.start,
        facts=facts_of_run(run) | ({"bottleneck": str(metrics["bound"])} if "bound" in metrics else {}),
        metrics={name: float(value) for name, value in values.items() if isinstance(value, Real) and isfinite(value)},
        missing={name: metrics.missing[name] for name in plain if name not in values},
        time=dict(time),
        time_absent=time.absent,
        client_of=time.client_of,
        bytes=dict(read),
        branches=_branches(read.branches),
        hosts=_hosts(chunks, time),
        chunk_seconds=wall,
        chunk_cpu_seconds=_values(chunks, "cpu_seconds"),
        core_wait_share=float(waited.sum() / wall.sum()) if len(waited) and wall.sum() else None,
        sizes=sizes_of(chunks),
        incomplete=tuple(
            f"{what}: {reason}"
            for what, one in (("time ledger", time), ("byte ledger", read))
            if one.absent is None
            for reason in one.certificate.reasons
        ),
        lacks=lacks,
        functions=_functions(_user_lines(measurement), 0 if chunks is None else len(chunks)),
        promises=tuple(_promises(measurement)) if promising else (),
    )


def _user_lines(measurement: Measurement) -> Sequence[UserLine]:
    with suppress(NotMeasuredError):
        found: Sequence[UserLine] = measurement.metrics.evaluator.value("user_lines")
        return found
    return ()


def _outer(place: Place) -> Place:
    """Return the place, with any comprehension or lambda replaced by the function that contains it."""
    return place._replace(function=place.function.partition(".<")[0])


def _function(place: Place) -> Function:
    return _outer(place).function, Path(place.file).name


def _functions(lines: Sequence[UserLine], chunks: int) -> dict[Function, float] | None:
    """Sum the CPU seconds of user functions, including their callees. Return None if they are unknown."""
    found = Counter[Function]()
    for line in lines:
        if line.seconds is None:
            return None
        found[_function(line.place)] += line.seconds * chunks  # type: ignore[assignment]
    return dict(found) or None


def _promises(measurement: Measurement) -> Iterator[Promise]:
    """Yield the savings promised by findings. Skip findings with causes outside the run."""
    ledger, places = measurement.time_ledger, [line.place for line in _user_lines(measurement)]
    lines = {str(name): place for place in places for name in (_outer(place), place)}
    for one in measurement.verdict:
        if one.seconds and one.taken is not None and not one.of_others:
            # cap the saving at the wall time saved times the number of threads
            threads = (ledger.total or 0.0) / one.elapsed
            place = next((lines[each.name] for each in one.culprits if each.name in lines), None)
            own = {name: seconds for name, seconds in one.taken.rows.items() if name in ledger}
            seconds = min(one.taken.freed, one.seconds * threads)
            if own:
                share = sum(own.values()) / sum(one.taken.rows.values())
                yield Promise(one.headline, seconds * share, one.at_most, tuple(own))
            elif place is not None and one.taken.seconds is not None:
                # waits that accompany CPU time also depend on other programs
                of_cpu = min(one.taken.seconds, seconds)
                yield Promise(f"{one.headline} ({_outer(place).function})", of_cpu, False, CPU, _function(place))


def _values(chunks: pa.Table | None, column: str) -> Numbers:
    """Return a column as an array, or an empty array if any value is missing."""
    if chunks is None or chunks[column].null_count:
        return np.empty(0)
    return np.asarray(chunks[column].to_numpy(), dtype=np.float64)


def _branches(branches: pa.Table) -> pd.DataFrame:
    seconds = {column: name for name, column in OF_BRANCHES.items()}
    columns = ["bytes_payload", "bytes_reread", *seconds]
    sums: pd.DataFrame = branches.select(["branch", *columns]).to_pandas().groupby("branch").sum()
    return sums.assign(bytes=sums["bytes_payload"] + sums["bytes_reread"]).rename(columns=seconds)


def _hosts(chunks: pa.Table | None, ledger: TimeLedger) -> pd.DataFrame | None:
    if chunks is None or not len(chunks) or ledger.absent is not None:
        return None
    hosts = [ledger.hosts.get(worker) for worker in chunks["worker"].to_pylist()]
    if None in hosts:
        return None
    done: pd.DataFrame = chunks.select(["events", "bytes_payload", "bytes_other"]).to_pandas().fillna(0)
    done["bytes"], done["chunks"] = done["bytes_payload"] + done["bytes_other"], 1
    # taken from the ledger rather than summed over chunks, because the ledger's classes exclude start-up
    seconds = ledger.by("host").reindex(columns=list(phases.COLUMNS_OF), fill_value=0.0)
    return done.groupby(hosts).sum().join(seconds)


def bytes_of_branches(observation: Observation) -> float | None:
    """Sum the bytes requested for baskets and from other files, or return None if unknown."""
    payload, reread = (observation.bytes.get(name) for name in (phases.PAYLOAD, phases.REREAD))
    others = observation.bytes.get(phases.OTHER_FILES) or 0
    return None if payload is None or reread is None else float(payload + reread + others)


# Facts


def facts_of_run(run: Run) -> dict[str, str]:
    environment, calls, table = run.environment, run.calls, run.asked or run.chunks
    threads = [] if run.lifetimes is None else run.lifetimes["threads"].drop_null().to_pylist()
    options = dict.fromkeys(name for call in calls for name in call.options)
    facts: dict[str, Any] = {
        **environment.versions,
        "backend": run.backend,
        "client host": environment.client_host,
        "hosts": _named(host.name for host in environment.hosts),
        "cores of hosts": _tallied(host.cores for host in environment.hosts),
        "threads of workers": _tallied(threads),
        "processor": _named(call.processor for call in calls),
        "executor": _named(call.executor for call in calls),
        "fileset": _named(call.fileset[:12] for call in calls if call.fileset),
        **{name: _named(call.options[name] for call in calls if name in call.options) for name in options},
    }
    if table is not None:
        files, datasets = (sorted(filter(None, table[name].unique().to_pylist())) for name in ("file", "dataset"))
        facts |= {"datasets": _named(datasets), "files": number(len(files))}
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _named(values: Iterable[Any]) -> str:
    """Join distinct values. A long list is truncated and ends with the number of values left out."""
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    return ", ".join(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])


def _tallied(values: Iterable[Any]) -> str:
    return _named(f"{times} x {value}" for value, times in sorted(Counter(values).items(), key=str))


LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: the repeats of a run."""

    letter: str
    label: str
    runs: tuple[Observation, ...]
    left_out: tuple[str, ...] = ()
    """Sources left out of the comparison, each with the reason."""


def side_of(letter: str, given: Any, label: str | None = None, folder: Path | None = None) -> Side:
    """Load sources as repeats of a run.

    Parameters
    ----------
    given
        A measurement, a collector, a path or pattern, or a sequence of these.
    folder
        Folder in which to look up measurements by name.

    Raises
    ------
    MeasurementError, ComparisonError
        If a source cannot be read, or if there is no comparable run.
    """
    runs: list[Observation] = []
    left_out: list[str] = []
    for name, measurement in _measurements(given, folder):
        if measurement.run.ended_early:
            left_out.append(f"{name or title_of(measurement.run)} {measurement.run.ending}: {measurement.error}")
            continue
        if not measurement.run.calls and not measurement.run.chunks and measurement.run.reported is None:
            raise ComparisonError(f"{name or title_of(measurement.run)} cannot be compared: it contains no Runner call")
        run = observed(measurement, name, promising=letter == LETTERS[0])
        if run.metrics.get("total_events") == 0 or "elapsed_time_seconds" not in run.metrics:
            reason = run.missing.get("elapsed_time_seconds", "it has no events")
            raise ComparisonError(f"{run.name} cannot be compared: {reason}; leave it out")
        runs.append(run)
    if not label:
        label = runs[0].name if len(runs) == 1 else letter
        if isinstance(given, str | os.PathLike):  # an absolute path is meaningless on another machine
            label = Path(given).name if Path(given).is_absolute() else str(given)
    if not runs:
        reason = "; ".join(left_out) or "nothing was passed"
        raise ComparisonError(f"{label} contains no comparable run: {reason}")
    return Side(letter=letter, label=label, runs=tuple(runs), left_out=tuple(left_out))


def distinct(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Add start times or IDs to labels and run names if these are not unique."""
    labels = _told_apart((side.label, side.runs[0].start, side.letter) for side in sides)
    names = _told_apart((run.name, run.start, run.id) for side in sides for run in side.runs)
    return tuple(
        replace(
            side,
            label=labels[side.letter],
            runs=tuple(replace(run, name=names[run.id]) for run in side.runs),
        )
        for side in sides
    )


def _told_apart(named: Iterable[tuple[str, float | None, str]]) -> dict[str, str]:
    """Map IDs to unique names. If a name is not unique, append the start time or, failing that, the ID."""
    known = dict.fromkeys(named)
    times = Counter(end for name, start, _ in known for end in (name, (name, start)))
    found = {}
    for name, start, one in known:
        when = one[:8] if start is None or times[name, start] > 1 else moment(start)
        found[one] = name if times[name] == 1 else f"{name} ({when})"
    return found


def _measurements(given: Any, folder: Path | None) -> Iterator[tuple[str | None, Measurement]]:
    if isinstance(given, str | os.PathLike):
        found = [(path.name, load(path)) for path in paths_of(given, folder)]
        runs = [measurement.run for _, measurement in found]
        yield from [(Path(given).name, Measurement(merged_run(runs)))] if are_jobs(runs) else found
    elif isinstance(given, Sequence):
        for one in given:
            yield from _measurements(one, folder)
    else:
        yield None, measurement_of(given)


CONFIDENCE: Final = 0.95
FEWEST: Final = 3
"""Minimum number of repeats per side for Welch's t-test."""

SMALLEST: Final = 0.05
"""Smallest relative change for which to compute the number of repeats needed."""

RUNS: Final = "runs"
CHUNKS: Final = "chunks"
ABOVE: Final = "above"
BELOW: Final = "below"

EXACT: Final = frozenset(
    {"total_events", "total_events_from_chunks", "num_chunks", "num_successful_chunks", "total_branches_read"}
    | {"chunk_events_mean", "chunk_events_min", "chunk_events_max"}
    | {"total_bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata", "total_bytes_uncompressed"}
    | {"compression_ratio", "read_amplification", "avg_bytes_read_percent", "avg_branches_read_percent"}
)
"""Metrics that do not vary between repeats. One run is enough to compare these metrics."""


class Spread(NamedTuple):
    """Median of repeats, with an interval based on "runs" or "chunks" (`over`), if there is an interval."""

    values: tuple[float, ...]
    median: float
    low: float | None = None
    high: float | None = None
    over: str | None = None


class Judgement(NamedTuple):
    """Result of testing whether a change lies "above" or "below" a limit. `side` is None if undecided.

    `low` and `high` bound the interval of the change. They are relative unless the absolute change was tested.
    """

    side: str | None = None
    low: float | None = None
    high: float | None = None
    over: str | None = None
    reason: str | None = None
    needed: int | None = None
    """Number of repeats needed per side. None if unknown, or if more repeats would not help."""

    @property
    def why(self) -> str:
        if not self.needed:
            return str(self.reason)
        if self.over != RUNS:
            return f"{self.reason}; pass at least {self.needed} runs per side"
        return f"{self.reason}; about {self.needed} runs per side are needed to detect this change"


# Intervals of a median


def spread(runs: Sequence[Observation], name: str, confidence: float = CONFIDENCE) -> Spread:
    """Compute the median of a metric, with an interval based on repeats.

    For a single run, the interval is based on the chunks, if the metric is computed from chunks.
    """
    values = tuple(run.metrics[name] for run in runs)
    middle = float(np.median(values))
    if len(values) > 1:
        medians = np.median(np.random.default_rng(20260101).choice(values, (2000, len(values))), axis=1)
        low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Spread(values, middle, float(low), float(high), RUNS)
    scatter = scatter_over_chunks(runs[0], name)
    if scatter is None:
        return Spread(values, middle)
    factor = factor_over_chunks(scatter, confidence)
    return Spread(values, middle, middle / factor, middle * factor, CHUNKS)


FROM_WALL: Final = frozenset(
    {"elapsed_time_seconds", "event_rate_elapsed_khz", "event_rate_core_khz"}
    | {"data_rate_gbps", "data_rate_requested_gbps", "data_rate_payload_gbps"}
)
FROM_CPU: Final = frozenset({"total_cpu_time", "avg_cpu_time_per_chunk", "event_rate_cpu_total_khz"})


def factor_over_chunks(scatter: float, confidence: float) -> float:
    """Compute the factor between a metric and either limit of its interval (capped at 100)."""
    return min(exp(min(float(ndtri((1 + confidence) / 2)) * scatter, 10.0)), 100.0)


def scatter_over_chunks(run: Observation, name: str) -> float | None:
    """Estimate the standard deviation of a metric's logarithm from the spread of the chunks.

    The result is None if the metric does not depend on chunk times. Additional chunk time is assumed to be spread over
    all threads. Variation between whole runs is not included.
    """
    if name in FROM_WALL:
        seconds, total, threads = run.chunk_seconds, run.metrics["elapsed_time_seconds"], run.metrics.get("total_cores")
    elif name in FROM_CPU:
        seconds, total, threads = run.chunk_cpu_seconds, run.metrics["total_cpu_time"], 1.0
    else:
        return None
    known = len(seconds) >= FEWEST and threads and total
    return float(seconds.std()) * sqrt(len(seconds)) / threads / total if known and threads else None


# Distinguishing two groups


def judged(
    before: Sequence[float],
    after: Sequence[float],
    limit: float = 0.0,
    *,
    relative: bool = True,
    exact: bool = False,
    confidence: float = CONFIDENCE,
) -> Judgement:
    """Test whether a change lies above or below a limit, at a two-sided confidence level.

    Parameters
    ----------
    limit
        Limit on the relative change (0.1 is 10 %) or, if `relative` is false, on the absolute change.
    exact
        Whether repeats are expected to be identical. If they are, one value per side is enough.
    """
    first, second = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
    if relative and np.median(first) == 0 and (np.any(first) or np.any(second)):
        why = "it was 0 before, so the relative change is undefined: write the limit in the metric's unit, not in %"
        return Judgement(reason=why)
    if not (np.ptp(first) == np.ptp(second) == 0 and (exact or min(len(first), len(second)) >= FEWEST)):
        return _tested(first, second, limit, relative, confidence)
    one, other = float(np.median(first)), float(np.median(second))
    change = (other - one) / abs(one) if relative and one else other - one
    side = ABOVE if change > limit else BELOW if change < limit else None
    return Judgement(side, change, change, reason=None if side else "it equals the limit")


def _tested(first: Numbers, second: Numbers, limit: float, relative: bool, confidence: float) -> Judgement:
    ratios = relative and bool(np.all(first > 0) and np.all(second > 0))
    scale = (abs(float(np.median(first))) if relative else 0.0) or 1.0
    old, new = (np.log(first), np.log(second)) if ratios else (first / scale, second / scale)
    # if logarithms are undefined, changes are relative to the first median
    moved = log1p(limit) if ratios else limit
    if min(len(old), len(new)) < 2:
        return Judgement(reason="the spread of repeats is unknown", needed=FEWEST)
    left_out = ranks_left_out(len(old), len(new), confidence)
    needed = _needed(old, new, moved, confidence, ratios)
    if left_out:  # leave out this many of the smallest and of the largest pairwise differences
        differences = np.sort(np.subtract.outer(new, old), axis=None)
        bounds = differences[left_out - 1], differences[-left_out]
    elif min(len(old), len(new)) < FEWEST:
        return Judgement(reason=f"{len(old)} and {len(new)} runs are too few", needed=needed)
    else:
        from scipy.stats import ttest_ind

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all values in a group may be identical
            bounds = ttest_ind(new, old, equal_var=False).confidence_interval(confidence)
    low, high = map(float, bounds)
    least, most = (exp(min(each, 700.0)) - 1 if ratios else each for each in (low, high))  # exp() overflows above 709
    if low <= moved <= high:
        return Judgement(None, least, most, RUNS, "repeats differ just as much", needed)
    return Judgement(ABOVE if low > moved else BELOW, least, most, RUNS)


@lru_cache(maxsize=256)
def ranks_left_out(first: int, second: int, confidence: float) -> int:
    """Find the rank, counted from either end, of the pairwise difference at the interval's limit (0 if none)."""
    pairs = first * second
    if pairs > 2500:  # rank sums are approximately normal
        reach = float(ndtri((1 + confidence) / 2)) * sqrt(pairs * (first + second + 1) / 12)
        return max(int(pairs / 2 - reach), 0)
    # count the ways to get each rank sum
    ways = np.zeros((first + 1, first * (first + second) + 1))
    ways[0, 0] = 1.0
    for rank in range(first + second):
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]
    below = np.cumsum(ways[first, first * (first - 1) // 2 :])
    return int(np.searchsorted(below, (1 - confidence) / 2 * below[-1] * (1 + 1e-9), side="right"))


def _needed(old: Numbers, new: Numbers, moved: float, confidence: float, ratios: bool) -> int | None:
    """Compute the number of repeats per side needed to detect this change with 80 % power (None if over 1000)."""
    variance = (float(np.var(old, ddof=1)) + float(np.var(new, ddof=1))) / 2
    smallest = log1p(SMALLEST) if ratios else SMALLEST * abs(float(np.median(old)))
    distance = max(abs(float(new.mean() - old.mean()) - moved), smallest)
    quantile = float(ndtri((1 + confidence) / 2))
    # for normal distributions, with a correction because the variance is estimated (Guenther 1981)
    needed = 2 * (quantile + float(ndtri(0.8))) ** 2 * variance / distance**2 + quantile**2 / 4 if distance else np.inf
    return max(ceil(needed), FEWEST) if needed <= 1000 else None


FAILED: Final = "failed"
PASSED: Final = "passed"
UNKNOWN: Final = "cannot be told"

_DECIMAL: Final = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNITS: Final[Mapping[Unit, dict[str, float]]] = {
    SECOND: {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    BYTE: {"B": 1.0, **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}},
    MEBIBYTE: {"MiB": 1.0, "GiB": 1024.0},
    KILOHERTZ: {"Hz": 1e-3, **{f"{prefix}Hz": factor / 1e3 for prefix, factor in _DECIMAL.items()}},
    GIGABIT_PER_SECOND: {f"{prefix}bit/s": factor / 1e9 for prefix, factor in _DECIMAL.items()},
    PERCENT: {"points": 1.0},
    FRACTION: {"points": 0.01},
}
"""Maps each metric unit to the units allowed in conditions, with their factors for conversion to the metric unit."""


POINTS: Final = {PERCENT: Unit("points", suffixed("points")), FRACTION: Unit("points", suffixed("points", 100))}
"""Units for differences between percentages; a "change of 5 %" would be ambiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An unwanted change in a metric. `limit` is a relative change (0.1 is 10 %) or an amount in the metric's unit."""

    text: str
    name: str
    sign: str
    limit: float
    relative: bool
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a condition: "failed" (the change is significant), "passed" or "cannot be told"."""

    condition: Condition
    label: str
    word: str
    text: str
    judgement: Judgement


def condition_of(text: str) -> Condition:
    """Parse a condition.

    Raises
    ------
    ComparisonError
        If `text` is malformed, or if the metric does not exist or cannot be expressed in the unit.
    """
    found = re.fullmatch(
        r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", text
    )
    if found is None:
        form = "'NAME < NUMBER' with <, <=, > or >= and a % or unit, such as 'event_rate_core_khz < -10%'"
        raise ComparisonError(f"{text!r} is not a condition: write {form}")
    given, sign, amount, unit = found.groups()
    name = CATALOGUE.aliases.get(given, given)
    known = {metric.name: metric.unit for metric in CATALOGUE.metrics()}
    if name not in known:
        raise ComparisonError(
            f"{unknown('metric', given, [*known, *CATALOGUE.aliases])}; `roastcoffea metrics` lists all"
        )
    relative, own = unit == "%", known[name]
    factors = {"": 1.0, own.symbol: 1.0, **UNITS.get(own, {}), "%": 0.01}
    if unit not in factors:
        possible = ", ".join(filter(None, dict.fromkeys((*UNITS.get(own, {}), own.symbol))))
        raise ComparisonError(f"{name} is in {own.symbol}, not in {unit!r}; write %, {possible} or nothing")
    limit = float(amount) * factors[unit]
    if relative and limit <= -1:
        raise ComparisonError(f"{text!r} asks for a change of {amount} %, but nothing can fall by 100 % or more")
    return Condition(text=" ".join(text.split()), name=name, sign=sign, limit=limit, relative=relative, unit=own)


def outcome_of(condition: Condition, before: Runs, after: Runs, label: str, confidence: float = CONFIDENCE) -> Outcome:
    """Evaluate a condition on the change between two sets of runs.

    Raises
    ------
    ComparisonError
        If a run lacks the metric.
    """
    name = condition.name
    for run in (*before, *after):
        if name not in run.metrics:
            raise ComparisonError(f"{run.name} has no {name}: {run.missing.get(name, 'it is not a number')}")
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    relative, exact, unit = condition.relative, name in EXACT, condition.unit
    judgement = judged(old, new, condition.limit, relative=relative, exact=exact, confidence=confidence)
    word = FAILED if (judgement.side == ABOVE) == condition.sign.startswith(">") else PASSED
    if judgement.side is None:
        on_limit = judgement.low is not None and judgement.over is None  # the change equals the limit exactly
        word = UNKNOWN if not on_limit else FAILED if condition.sign.endswith("=") else PASSED
    change = "the change is unknown"
    if judgement.low is not None and judgement.high is not None:
        bounds = (judgement.low, judgement.high)
        low, high = (signed(FRACTION, value) if relative else change_of(unit, value) for value in bounds)
        change = f"the change is {low}" + (f" to {high} ({confidence:.0%} interval)" if low != high else "")
    text = f"{condition.text}: {word}, {change}{f'; {judgement.why}' if word == UNKNOWN else ''}"
    return Outcome(condition=condition, label=label, word=word, text=text, judgement=judgement)


def signed(unit: Unit, value: float) -> str:
    return f"+{unit.text(value)}" if value > 0 else unit.text(value)


def change_of(unit: Unit, value: float) -> str:
    """Format a difference with an explicit sign. Differences between percentages are in percentage points."""
    return signed(POINTS.get(unit, unit), value)
