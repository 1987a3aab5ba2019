"""What is compared: a measurement or its repeats, their numbers, both ledgers, and what they were made on."""

from __future__ import annotations

import glob
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
from roastcoffea.metrics.statistics import Numbers, moments
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.chunks import PHASES
from roastcoffea.records.run import Run
from roastcoffea.report.summary import title_of
from roastcoffea.storage.store import is_measurement, list_runs
from roastcoffea.studies.merging import are_jobs, measurement_of, merged_run
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
"""Classes of the time ledger that are spent in process()."""

OF_LOAD: Final = ("contention", "interpreter lock")
"""Classes that come from others on the same cores or in the same process: no chunk size brings them."""

SPLIT: Final = tuple(name for name in IN_PROCESS if name not in OF_LOAD)


class Fixed(NamedTuple):
    """Seconds that the chunks of two runs took whatever their size, before and after, and those of one chunk."""

    before: float
    after: float
    each: float


def sizes_of(chunks: pa.Table | None) -> pd.DataFrame | None:
    """Events and bytes of the chunks that counted, with seconds of SPLIT; NaN where unknown."""
    import pandas as pd

    if chunks is None or chunks["dataset"].null_count:
        return None
    seconds = {name: sum(moments(chunks, column) for column in phases.COLUMNS_OF[name]) for name in SPLIT}
    read = moments(chunks, "bytes_payload") + np.nan_to_num(moments(chunks, "bytes_other"))
    sizes = {"dataset": chunks["dataset"].to_pylist(), "events": moments(chunks, "events"), "bytes": read}
    return pd.DataFrame(sizes | seconds)


def fixed_costs(name: str, trait: str, before: pd.DataFrame | None, after: pd.DataFrame | None) -> Fixed | None:
    """What the chunks of two runs cost in a class whatever their size.

    One law is drawn through the chunks of both runs of a dataset: fixed seconds per chunk, and seconds per event (or
    a byte). None where no dataset has chunks of other sizes, or the fixed cost cannot be told apart from noise.
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
            # an event takes no time back
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
"""Classes of the time ledger whose seconds are known by branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a comparison takes from one run; the records themselves are not kept.

    `facts` are what the run was made on and with, in words. `time` are thread seconds by class, empty without a time
    ledger. `incomplete` is what the ledgers lack, `lacks` what its result lacks, None where nothing is missing or that
    is not known. `core_wait_share` is the time in which chunks waited for a core beside their duration. `branches` has
    requested bytes and thread seconds by class of each branch, `hosts` events, bytes, chunks and thread seconds by
    class of each host.
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

    @property
    def thread_seconds(self) -> float:
        """Worker threads x time."""
        return sum(self.time.values())

    @property
    def wall_seconds(self) -> float:
        """Wall time."""
        return self.metrics["elapsed_time_seconds"]


Runs = Sequence[Observation]


def observed(measurement: Measurement, name: str | None = None) -> Observation:
    """What a comparison takes from a measurement."""
    run, metrics = measurement.run, measurement.metrics
    # attempts of chunks that counted; None where they were not recorded
    chunks = None if run.chunks is None or "chunks" in run.absent else counted_chunks(run.chunks)
    wall, waited = _values(chunks, "wall_seconds"), _values(chunks, "core_wait_seconds")
    time, read = measurement.time_ledger, measurement.byte_ledger
    # the others are not asked for: the verdict among them takes replays of the run
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
    )


def _values(chunks: pa.Table | None, column: str) -> Numbers:
    """Values of all chunks; none where one lacks it."""
    if chunks is None or chunks[column].null_count:
        return np.empty(0)
    return np.asarray(chunks[column].to_numpy(), dtype=np.float64)


def _branches(branches: pa.Table) -> pd.DataFrame:
    """Bytes and seconds by name of the branch, over files and datasets; those of unknown size are left out."""
    seconds = {column: name for name, column in OF_BRANCHES.items()}
    columns = ["bytes_payload", "bytes_reread", *seconds]
    sums: pd.DataFrame = branches.select(["branch", *columns]).to_pandas().groupby("branch").sum()
    return sums.assign(bytes=sums["bytes_payload"] + sums["bytes_reread"]).rename(columns=seconds)


def _hosts(chunks: pa.Table | None, ledger: TimeLedger) -> pd.DataFrame | None:
    """What was done on each host; None where the hosts are unknown."""
    if chunks is None or not len(chunks) or ledger.absent is not None:
        return None
    hosts = [ledger.hosts.get(worker) for worker in chunks["worker"].to_pylist()]
    if None in hosts:
        return None
    done: pd.DataFrame = chunks.select(["events", "bytes_payload", "bytes_other"]).to_pandas().fillna(0)
    done["bytes"], done["chunks"] = done["bytes_payload"] + done["bytes_other"], 1
    # not the sums over chunks: start-up is taken out of the classes
    seconds = ledger.by("host").reindex(columns=list(phases.COLUMNS_OF), fill_value=0.0)
    return done.groupby(hosts).sum().join(seconds)


def bytes_of_branches(observation: Observation) -> float | None:
    """Bytes of baskets that were requested, of other files as well; None where that is not known."""
    payload, reread = (observation.bytes.get(name) for name in (phases.PAYLOAD, phases.REREAD))
    others = observation.bytes.get(phases.OTHER_FILES) or 0
    return None if payload is None or reread is None else float(payload + reread + others)


# What a run was made on


def facts_of_run(run: Run) -> dict[str, str]:
    """Versions, machines, processor, settings and data of a run, in words."""
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
    """Different values, each once; a long list is cut, and its rest counted."""
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    return ", ".join(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])


def _tallied(values: Iterable[Any]) -> str:
    """Different values with how often each occurs."""
    return _named(f"{times} x {value}" for value, times in sorted(Counter(values).items(), key=str))


LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Repeats of one run, under the letter that tables call them by."""

    letter: str
    label: str
    runs: tuple[Observation, ...]
    left_out: tuple[str, ...] = ()
    """What was given and is not compared, with the reason."""


def side_of(letter: str, given: Any, label: str | None = None, folder: Path | None = None) -> Side:
    """What was given, as repeats of one run.

    Parameters
    ----------
    given
        A measurement, a collector, a path or pattern, or a sequence of such.
    folder
        Where a name is looked for that is no path.

    Raises
    ------
    MeasurementError, ComparisonError
        If there is nothing to be read, or nothing in it that can be compared.
    """
    runs: list[Observation] = []
    left_out: list[str] = []
    for name, measurement in _measurements(given, folder):
        if measurement.run.ended_early:
            left_out.append(f"{name or title_of(measurement.run)} {measurement.run.ending}: {measurement.error}")
            continue
        if not measurement.run.calls and not measurement.run.chunks and measurement.run.reported is None:
            raise ComparisonError(f"{name or title_of(measurement.run)} cannot be compared: no Runner was called in it")
        run = observed(measurement, name)
        if run.metrics.get("total_events") == 0 or "elapsed_time_seconds" not in run.metrics:
            reason = run.missing.get("elapsed_time_seconds", "it has no events")
            raise ComparisonError(f"{run.name} cannot be compared: {reason}; give a run that did something")
        runs.append(run)
    if not label:
        label = runs[0].name if len(runs) == 1 else letter
        if isinstance(given, str | os.PathLike):  # who reads it may not have the folders of an absolute path
            label = Path(given).name if Path(given).is_absolute() else str(given)
    if not runs:
        reason = "; ".join(left_out) or "nothing was given"
        raise ComparisonError(f"{label} has no run that can be compared: {reason}")
    return Side(letter=letter, label=label, runs=tuple(runs), left_out=tuple(left_out))


def distinct(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Sides whose labels, and whose runs' names, are told apart: equal ones get when the run began, or its identity."""
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
    """Names by identity, which is added to a name that others have at the same time of start."""
    known = dict.fromkeys(named)
    times = Counter(end for name, start, _ in known for end in (name, (name, start)))
    found = {}
    for name, start, one in known:
        when = one[:8] if start is None or times[name, start] > 1 else moment(start)
        found[one] = name if times[name] == 1 else f"{name} ({when})"
    return found


def _measurements(given: Any, folder: Path | None) -> Iterator[tuple[str | None, Measurement]]:
    """Measurements one by one, with the name of their folder where they were loaded."""
    if isinstance(given, str | os.PathLike):
        found = [(path.name, load(path)) for path in paths_of(given, folder)]
        runs = [measurement.run for _, measurement in found]
        yield from [(Path(given).name, Measurement(merged_run(runs)))] if are_jobs(runs) else found
    elif isinstance(given, Sequence):
        for one in given:
            yield from _measurements(one, folder)
    else:
        yield None, measurement_of(given)


def paths_of(given: str | os.PathLike[str], folder: Path | None = None) -> list[Path]:
    """Folders of measurements that a path, a pattern or a name stands for.

    A folder of measurements stands for all in it, which are repeats or the jobs of one campaign; a name for the
    measurements of that name with a number behind it, in its folder, else in `folder`.
    """
    path = Path(given)
    if path.is_file() or is_measurement(path):
        return [path]
    if path.is_dir():
        found = [stored.path for stored in list_runs(path)]
        if not found:
            raise ComparisonError(f"{given} holds no measurement")
        return found
    for place in map(str, [path] if folder is None else [path, folder / path]):
        # Path.glob takes no pattern that begins with a root
        names = glob.glob(place) or [  # noqa: PTH207
            one
            for one in glob.glob(f"{glob.escape(place)}*")  # noqa: PTH207
            if re.fullmatch(r"[-_. ]\d+", one.removeprefix(place))
        ]
        if found := [one for one in map(Path, sorted(names)) if is_measurement(one)]:
            return found
    raise ComparisonError(f"{given} is no measurement, no pattern of some, and no name with repeats")


CONFIDENCE: Final = 0.95
FEWEST: Final = 3
"""Fewest repeats of each for which Welch's t is trusted."""

SMALLEST: Final = 0.05
"""Relative change that is worth to be told: the number of repeats that are needed is never for less."""

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
"""Metrics that are the same in each repeat of a run: one run will do to know them."""


class Spread(NamedTuple):
    """Median of repeats, and an interval of it; "runs" or "chunks" that it is over, or nothing."""

    values: tuple[float, ...]
    median: float
    low: float | None = None
    high: float | None = None
    over: str | None = None


class Judgement(NamedTuple):
    """Whether the values after lie "above" or "below" a limit; `side` is None where that cannot be told.

    `low` and `high` bound the relative change (absolute where `relative` was not asked for).
    """

    side: str | None = None
    low: float | None = None
    high: float | None = None
    over: str | None = None
    reason: str | None = None
    needed: int | None = None
    """Repeats of each that would be needed; None where that is not known, or more would not help."""

    @property
    def why(self) -> str:
        """Why it cannot be told, and how many repeats would tell."""
        if not self.needed:
            return str(self.reason)
        if self.over != RUNS:
            return f"{self.reason}; at least {self.needed} runs of each are needed"
        return f"{self.reason}; about {self.needed} runs of each would tell, as they scatter"


# Intervals of a median


def spread(runs: Sequence[Observation], name: str, confidence: float = CONFIDENCE) -> Spread:
    """Median of a metric with its interval, over runs; of one run over its chunks, where they make the metric."""
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
"""Metrics that follow from the wall or CPU time which chunks give a run."""


def factor_over_chunks(scatter: float, confidence: float) -> float:
    """Factor from a metric to either end of its interval: 100 at most, as chunks that scatter more cannot be true."""
    return min(exp(min(float(ndtri((1 + confidence) / 2)) * scatter, 10.0)), 100.0)


def scatter_over_chunks(run: Observation, name: str) -> float | None:
    """Standard deviation of a metric's logarithm, of one run, had it got other chunks of its kind.

    It is None where chunks do not make the metric. What chunks take beyond those that were seen is shared by the
    threads. How runs differ as a whole is not in it.
    """
    if name in FROM_WALL:
        seconds, total, threads = run.chunk_seconds, run.metrics["elapsed_time_seconds"], run.metrics.get("total_cores")
    elif name in FROM_CPU:
        seconds, total, threads = run.chunk_cpu_seconds, run.metrics["total_cpu_time"], 1.0
    else:
        return None
    known = len(seconds) >= FEWEST and threads and total
    return float(seconds.std()) * sqrt(len(seconds)) / threads / total if known and threads else None


# Telling two groups apart


def judged(
    before: Sequence[float],
    after: Sequence[float],
    limit: float = 0.0,
    *,
    relative: bool = True,
    exact: bool = False,
    confidence: float = CONFIDENCE,
) -> Judgement:
    """Whether the change from before to after lies above or below a limit, at this confidence (two-sided).

    Parameters
    ----------
    limit
        Of the relative change (0.1 is 10 %), or of the change itself.
    exact
        Whether repeats cannot differ, so that one value each is enough where indeed they do not.
    """
    first, second = np.array(before, dtype=np.float64), np.array(after, dtype=np.float64)
    if relative and np.median(first) == 0 and (np.any(first) or np.any(second)):
        why = "it was 0 before, so that there is no relative change: give the limit in its unit, without %"
        return Judgement(reason=why)
    if not (np.ptp(first) == np.ptp(second) == 0 and (exact or min(len(first), len(second)) >= FEWEST)):
        return _tested(first, second, limit, relative, confidence)
    one, other = float(np.median(first)), float(np.median(second))
    change = (other - one) / abs(one) if relative and one else other - one
    side = ABOVE if change > limit else BELOW if change < limit else None
    return Judgement(side, change, change, reason=None if side else "it lies on the limit")


def _tested(first: Numbers, second: Numbers, limit: float, relative: bool, confidence: float) -> Judgement:
    ratios = relative and bool(np.all(first > 0) and np.all(second > 0))
    scale = (abs(float(np.median(first))) if relative else 0.0) or 1.0
    old, new = (np.log(first), np.log(second)) if ratios else (first / scale, second / scale)
    # a relative change is one of the median before, where logarithms cannot be taken
    moved = log1p(limit) if ratios else limit
    if min(len(old), len(new)) < 2:
        return Judgement(reason="how far repeats of a single run differ is not known", needed=FEWEST)
    left_out = ranks_left_out(len(old), len(new), confidence)
    needed = _needed(old, new, moved, confidence, ratios)
    if left_out:  # of the ordered differences of pairs at either end
        differences = np.sort(np.subtract.outer(new, old), axis=None)
        bounds = differences[left_out - 1], differences[-left_out]
    elif min(len(old), len(new)) < FEWEST:
        return Judgement(reason=f"{len(old)} and {len(new)} runs are too few", needed=needed)
    else:
        from scipy.stats import ttest_ind

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # one group may have no scatter
            bounds = ttest_ind(new, old, equal_var=False).confidence_interval(confidence)
    low, high = map(float, bounds)
    least, most = (exp(min(each, 700.0)) - 1 if ratios else each for each in (low, high))  # exp() overflows above 709
    if low <= moved <= high:
        return Judgement(None, least, most, RUNS, "repeats differ as much", needed)
    return Judgement(ABOVE if low > moved else BELOW, least, most, RUNS)


@lru_cache(maxsize=256)
def ranks_left_out(first: int, second: int, confidence: float) -> int:
    """Which of the ordered pairwise differences bounds the interval, counted from either end; 0 where none can."""
    pairs = first * second
    if pairs > 2500:  # the ways to order them are nearly normal
        reach = float(ndtri((1 + confidence) / 2)) * sqrt(pairs * (first + second + 1) / 12)
        return max(int(pairs / 2 - reach), 0)
    # in how many ways so many runs have these sums of ranks
    ways = np.zeros((first + 1, first * (first + second) + 1))
    ways[0, 0] = 1.0
    for rank in range(first + second):
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]
    below = np.cumsum(ways[first, first * (first - 1) // 2 :])
    return int(np.searchsorted(below, (1 - confidence) / 2 * below[-1] * (1 + 1e-9), side="right"))


def _needed(old: Numbers, new: Numbers, moved: float, confidence: float, ratios: bool) -> int | None:
    """Repeats of each that tell a change of this size from the limit in 80 % of cases; None where it is over 1000."""
    variance = (float(np.var(old, ddof=1)) + float(np.var(new, ddof=1))) / 2
    smallest = log1p(SMALLEST) if ratios else SMALLEST * abs(float(np.median(old)))
    distance = max(abs(float(new.mean() - old.mean()) - moved), smallest)
    quantile = float(ndtri((1 + confidence) / 2))
    # of normally distributed values, with a correction for the variance that is estimated (Guenther 1981)
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
"""What may stand behind a number, by the unit of the metric; as a factor to what is stored."""


POINTS: Final = {PERCENT: Unit("points", suffixed("points")), FRACTION: Unit("points", suffixed("points", 100))}
"""Of differences of shares: a change of 5 % would be another thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A change of a metric that is not wanted; `limit` is relative (0.1 is 10 %), or in the metric's unit."""

    text: str
    name: str
    sign: str
    limit: float
    relative: bool
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a condition: "failed" (with evidence), "passed", or "cannot be told"."""

    condition: Condition
    label: str
    word: str
    text: str
    judgement: Judgement


def condition_of(text: str) -> Condition:
    """Condition that an expression says.

    Raises
    ------
    ComparisonError
        If it is malformed, names no metric, or has a unit that is none of the metric's.
    """
    found = re.fullmatch(
        r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", text
    )
    if found is None:
        form = "'NAME < NUMBER', with <, <=, > or >=, and % or a unit behind, such as 'event_rate_core_khz < -10%'"
        raise ComparisonError(f"{text!r} is no condition: write {form}")
    given, sign, amount, unit = found.groups()
    name = CATALOGUE.aliases.get(given, given)
    known = {metric.name: metric.unit for metric in CATALOGUE.metrics()}
    if name not in known:
        raise ComparisonError(
            f"{unknown('metric', given, [*known, *CATALOGUE.aliases])}; `roastcoffea metrics` has all"
        )
    relative, own = unit == "%", known[name]
    factors = {"": 1.0, own.symbol: 1.0, **UNITS.get(own, {}), "%": 0.01}
    if unit not in factors:
        possible = ", ".join(filter(None, dict.fromkeys((*UNITS.get(own, {}), own.symbol))))
        raise ComparisonError(f"{name} is in {own.symbol}, not in {unit!r}; write %, {possible} or nothing")
    limit = float(amount) * factors[unit]
    if relative and limit <= -1:
        raise ComparisonError(f"{text!r} asks for a change of {amount} %: nothing can fall that far")
    return Condition(text=" ".join(text.split()), name=name, sign=sign, limit=limit, relative=relative, unit=own)


def outcome_of(condition: Condition, before: Runs, after: Runs, label: str, confidence: float = CONFIDENCE) -> Outcome:
    """What becomes of a condition on the change from runs before to runs after.

    Raises
    ------
    ComparisonError
        If a run lacks the metric.
    """
    name = condition.name
    for run in (*before, *after):
        if name not in run.metrics:
            raise ComparisonError(f"{run.name} has no {name}: {run.missing.get(name, 'it is no plain number')}")
    old, new = ([run.metrics[name] for run in side] for side in (before, after))
    relative, exact, unit = condition.relative, name in EXACT, condition.unit
    judgement = judged(old, new, condition.limit, relative=relative, exact=exact, confidence=confidence)
    word = FAILED if (judgement.side == ABOVE) == condition.sign.startswith(">") else PASSED
    if judgement.side is None:
        on_limit = judgement.low is not None and judgement.over is None  # known, and not from repeats that scatter
        word = UNKNOWN if not on_limit else FAILED if condition.sign.endswith("=") else PASSED
    change = "the change is not known"
    if judgement.low is not None and judgement.high is not None:
        bounds = (judgement.low, judgement.high)
        low, high = (signed(FRACTION, value) if relative else change_of(unit, value) for value in bounds)
        change = f"the change is {low}" + (f" to {high} ({confidence:.0%} interval)" if low != high else "")
    text = f"{condition.text}: {word}, {change}{f'; {judgement.why}' if word == UNKNOWN else ''}"
    return Outcome(condition=condition, label=label, word=word, text=text, judgement=judgement)


def signed(unit: Unit, value: float) -> str:
    """Amount with its sign."""
    return f"+{unit.text(value)}" if value > 0 else unit.text(value)


def change_of(unit: Unit, value: float) -> str:
    """Difference of two amounts with its sign; of two shares it is in points."""
    return signed(POINTS.get(unit, unit), value)
