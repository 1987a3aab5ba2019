"""How far repeats of a run differ, whether groups of them can be told apart, and a gate for continuous integration."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate, takewhile
from math import comb, exp, log1p, sqrt
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from roastcoffea.errors import ComparisonError
from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.observations import Observation, Runs
from roastcoffea.units import BYTE, FRACTION, GIGABIT_PER_SECOND, KILOHERTZ, MEBIBYTE, PERCENT, SECOND, Unit, suffixed

CONFIDENCE: Final = 0.95
SEED: Final = 20260101
RESAMPLES: Final = 2000
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
    """Median of repeats, and an interval of it; `over` says of what it was resampled: "runs", "chunks" or nothing."""

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
        medians = np.median(np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values))), axis=1)
        return Spread(values, middle, *interval(medians, confidence), RUNS)
    resampled = resampled_chunks(runs[0], name)
    return (
        Spread(values, middle)
        if resampled is None
        else Spread(values, middle, *interval(resampled, confidence), CHUNKS)
    )


def interval(resampled: Numbers, confidence: float) -> tuple[float, float]:
    """Interval that holds so much of resampled values."""
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


FROM_WALL: Final = {
    "elapsed_time_seconds": 1,
    **dict.fromkeys(("event_rate_elapsed_khz", "event_rate_core_khz"), -1),
    **dict.fromkeys(("data_rate_gbps", "data_rate_requested_gbps", "data_rate_payload_gbps"), -1),
}
FROM_CPU: Final = {"total_cpu_time": 1, "avg_cpu_time_per_chunk": 1, "event_rate_cpu_total_khz": -1}
"""Metrics that follow from the wall or CPU time which chunks give a run: the power of that time in them."""


def resampled_chunks(run: Observation, name: str, seed: int = SEED) -> Numbers | None:
    """Values that a metric of one run takes where other chunks of its kind came; None where they do not make it.

    What chunks take beyond those that were seen is shared by the threads. How runs differ as a whole is not in it.
    """
    if name in FROM_WALL:
        seconds, total, threads = run.chunk_seconds, run.metrics["elapsed_time_seconds"], run.metrics.get("total_cores")
    elif name in FROM_CPU:
        seconds, total, threads = run.chunk_cpu_seconds, run.metrics["total_cpu_time"], 1.0
    else:
        return None
    if len(seconds) < FEWEST or not threads or not total:
        return None
    # of many chunks those that took nearly as long are drawn together
    groups = np.array_split(np.sort(seconds), min(len(seconds), 500))
    sizes, means = np.array([len(group) for group in groups]), np.array([group.mean() for group in groups])
    drawn = np.random.default_rng(seed).multinomial(len(seconds), sizes / len(seconds), RESAMPLES)
    totals = np.maximum(total + (drawn @ means - seconds.sum()) / threads, total / 100)
    return np.asarray(run.metrics[name] * (totals / total) ** (FROM_WALL | FROM_CPU)[name])


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
    count = min(len(old), len(new))
    if count < 2:
        return Judgement(reason="how far repeats of a single run differ is not known", needed=FEWEST)
    left_out = ranks_left_out(len(old), len(new), confidence)
    low, high = _welch_interval(old, new, confidence)
    if left_out:  # of the ordered differences of pairs at either end
        differences = np.sort(np.subtract.outer(new, old), axis=None)
        low, high = float(differences[left_out - 1]), float(differences[-left_out])
    needed = _needed(old, new, moved, confidence, ratios)
    if count < FEWEST and not left_out:
        return Judgement(reason=f"{len(old)} and {len(new)} runs are too few", needed=needed)
    least, most = (exp(min(each, 700.0)) - 1 if ratios else each for each in (low, high))  # exp() overflows above 709
    if low <= moved <= high:
        return Judgement(None, least, most, RUNS, "repeats differ as much", needed)
    return Judgement(ABOVE if low > moved else BELOW, least, most, RUNS)


def _welch_interval(old: Numbers, new: Numbers, confidence: float) -> tuple[float, float]:
    """Interval of the difference of means of two groups that may scatter differently."""
    if np.ptp(old) == np.ptp(new) == 0:
        difference = float(new[0] - old[0])
        return difference, difference
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one group may have no scatter
        low, high = ttest_ind(new, old, equal_var=False).confidence_interval(confidence)
    return float(low), float(high)


@lru_cache(maxsize=256)
def ranks_left_out(first: int, second: int, confidence: float) -> int:
    """Which of the ordered pairwise differences bounds the interval, counted from either end; 0 where none can."""
    pairs = first * second
    if pairs > 2500:  # the ways to order them are nearly normal
        reach = float(ndtri((1 + confidence) / 2)) * sqrt(pairs * (first + second + 1) / 12)
        return max(int(pairs / 2 - reach), 0)
    level = (1 - confidence) / 2 * comb(first + second, first) * (1 + 1e-9)
    below = accumulate(ways_of_ranks(first, second))
    return sum(1 for _ in takewhile(lambda ways: ways <= level, below))


def ways_of_ranks(first: int, second: int) -> list[int]:
    """In how many ways runs can be split so that 0, 1, 2, ... pairs stand in the other order than the rest."""
    ways = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        for place in range(len(ways) - 1, second + size - 1, -1):
            ways[place] -= ways[place - second - size]
        for place in range(size, len(ways)):
            ways[place] += ways[place - size]
    return ways


def _needed(old: Numbers, new: Numbers, moved: float, confidence: float, ratios: bool) -> int | None:
    """Repeats of each that tell a change of this size from the limit in 80 % of cases; None where it is over 1000."""
    scatter = sqrt((float(np.var(old, ddof=1)) + float(np.var(new, ddof=1))) / 2)
    smallest = log1p(SMALLEST) if ratios else SMALLEST * abs(float(np.median(old)))
    distance = max(abs(float(new.mean() - old.mean()) - moved), smallest)
    counts = np.arange(FEWEST, 1001)
    reach = stdtrit(2 * counts - 2, (1 + confidence) / 2) + stdtrit(2 * counts - 2, 0.8)
    enough = distance >= reach * scatter * np.sqrt(2 / counts)
    return int(counts[np.argmax(enough)]) if enough.any() else None


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
        near = get_close_matches(given, [*known, *CATALOGUE.aliases])
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `roastcoffea metrics` lists them"
        raise ComparisonError(f"there is no metric {given!r}{hint}")
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
