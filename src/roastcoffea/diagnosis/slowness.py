"""Slow workers, hosts, servers and files, and heavy datasets: one model of all chunks, with a law of their duration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import RESOURCES, TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.endpoints import with_endpoints
from roastcoffea.metrics.facts import Steps, aggregated, rows_where, with_outcome
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes, moments
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import COUNT, RATIO, SECOND

TAIL: Final = 0.1
"""Fraction of the noise in its upper tail, whose decay predicts how often still longer chunks occur."""

BETWEEN: Final = 6
"""Number of values from which the mean of the middle two is as good as the lower median."""

MOST_VALUES: Final = 200_000
"""Number of values, drawn at random, from which the noise is estimated."""

LEFT: Final = 0.4
"""Smallest fraction of independent values after a median polish; below it the noise is not estimated this way."""

LARGEST: Final = 30.0
KEY_BITS: Final = 32
"""Bits of the integers that represent logarithms up to LARGEST for sorting."""


@dataclass(frozen=True)
class Levels:
    """Level of each value, by number."""

    codes: Integers
    sizes: Integers

    @classmethod
    def of(cls, codes: Integers, number: int) -> Levels:
        """Levels by these codes; some may have no values."""
        return cls(codes, np.bincount(codes, minlength=number))

    def medians(self, values: Numbers) -> tuple[Numbers, Numbers]:
        """Lower median and median of each level; 0 for one without values.

        Sorts one integer per value, its level in the upper bits: several times as fast as sorting by two keys.
        """
        fine = (2.0**KEY_BITS - 1) / (2 * LARGEST)
        scaled = (np.clip(values, -LARGEST, LARGEST) + LARGEST) * fine
        keys = np.sort(scaled.astype(np.int64) | self.codes << KEY_BITS)
        starts = np.cumsum(self.sizes) - self.sizes
        lower, upper = (
            (keys[np.minimum(starts + place, max(len(keys) - 1, 0))] & (2**KEY_BITS - 1)) / fine - LARGEST
            for place in (np.maximum(self.sizes - 1, 0) // 2, self.sizes // 2)
        )
        there = self.sizes > 0
        return np.where(there, lower, 0.0), np.where(there, (lower + upper) / 2, 0.0)


class Estimates(NamedTuple):
    """Effect of each level relative to the others, as logarithms, with intervals."""

    effect: Numbers
    low: Numbers
    high: Numbers
    reference: Numbers
    """Typical value of the other levels, which the effect is relative to."""

    @property
    def shrunk(self) -> Numbers:
        """Effects, shrunk towards zero as far as chance alone explains them."""
        error = (self.high - self.low) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where(self.effect == 0, 0.0, 1 - (error / self.effect) ** 2)
        return np.asarray(self.effect * np.clip(weight, 0.0, 1.0))


@dataclass(frozen=True)
class Noise:
    """Scatter of chunks when nothing is slow."""

    values: Numbers
    """Logarithms, sorted."""
    freedom: int
    """Effective number of independent values."""
    middle: float
    scale: float
    """Robust standard deviation."""
    decay: float
    """Mean excess of the upper tail's values over its beginning."""

    @classmethod
    def around(cls, values: Numbers, groups: list[Levels], rounds: int = 3) -> Noise:
        """Residuals of a median polish: the levels' own effects are no noise, and each costs a degree of freedom."""
        if len(values) > MOST_VALUES:
            rows = np.sort(np.random.default_rng(1).choice(len(values), MOST_VALUES, replace=False))
            values = values[rows]
            groups = [Levels.of(group.codes[rows], len(group.sizes)) for group in groups]
        rest = values - np.median(values)
        freedom, polished = len(values) - 1, []
        for group in groups:
            lost = int(np.count_nonzero(group.sizes)) - 1
            if freedom - lost >= LEFT * len(values):
                freedom -= lost
                polished.append(group)
        for _ in range(rounds):
            for group in polished:
                rest = rest - group.medians(rest)[1][group.codes]
        freedom = max(freedom, 1)
        rest *= np.sqrt(len(values) / freedom)
        rest.sort()
        middle, tail = rest[len(rest) // 2], rest[int((1 - TAIL) * len(rest)) :]
        scale = 1.4826 * np.median(np.abs(rest - middle))
        return cls(rest, freedom, float(middle), float(scale), float(np.mean(tail - tail[0])))

    def above(self, chance: Numbers) -> Numbers:
        """Noise that a value exceeds with at most this probability; the tail is extrapolated exponentially.

        Few values lie in the tail, so its frequency is uncertain: 1.5 standard deviations are allowed for that.
        """
        unsure = 1.5 * np.sqrt(chance * (1 - chance) / len(self.values))
        chance = np.where(chance < TAIL, np.maximum(chance - unsure, chance / 10), chance)
        places = np.linspace(0.0, 1.0, len(self.values))
        within_sample = np.interp(1 - chance, places, self.values)
        far = np.interp(1 - TAIL, places, self.values) + self.decay * np.log(TAIL / np.minimum(chance, TAIL))
        return np.asarray(np.where(chance < TAIL, np.maximum(within_sample, far), within_sample))


def of_the_others(medians: Numbers, sizes: Integers) -> Numbers:
    """For each level, the median of the other levels' medians, weighted by chunks (of two halves, the faster).

    Weighted by chunks, not levels: of two workers, the one that did more sets the standard.
    """
    order = np.argsort(medians, kind="stable")
    weights = sizes[order]  # levels without values have no median
    total, half = np.cumsum(weights), (weights.sum() - weights) / 2
    before = np.searchsorted(total, half)
    after = np.searchsorted(total, half + weights)
    place = np.where(before < np.arange(len(order)), before, after)
    found = np.empty(len(order))
    found[order] = medians[order][np.minimum(place, len(order) - 1)]
    return found


def estimated(
    values: Numbers, levels: Levels, noise: Noise, tests: int, *, slow: Flags | None = None, scatter: bool = True
) -> Estimates:
    """Effect of each level relative to the others, with an interval.

    The median of a level's n values exceeds x if half of them do, a binomial probability. So the bound of a level with
    few values is an extreme quantile of the noise, and that of one with many is close to its median.

    Parameters
    ----------
    tests
        Number of levels tested in all: the more levels, the farther the extreme one lies by chance.
    slow
        Levels known to be slow, which are not compared with.
    scatter
        Whether a level has to exceed the scatter among levels.
    """
    lower, middle = levels.medians(values)
    sizes = np.maximum(levels.sizes, 1)
    measure = levels.sizes if slow is None else np.where(slow, 0, levels.sizes)
    others = np.maximum(measure.sum() - measure, 1)
    reference = of_the_others(middle, measure)
    # the probability that any bound is violated in a run without a slow level is 5 %
    chance = 0.05 / max(tests, 1)
    # of few values take the lower median: one of two is half of them and may be an odd chunk
    needed = np.where(sizes < BETWEEN, sizes - (sizes - 1) // 2, (sizes + 1) / 2)
    sure = np.where(sizes < BETWEEN, lower, middle)
    within = noise.above(scipy.special.betaincinv(needed, sizes - needed + 1, chance)) - noise.middle
    # for normal noise, 0.4 of the values determine the median absolute deviation, and a median's error is 1.25 times
    # that of a mean
    far = float(scipy.special.stdtrit(max(0.4 * noise.freedom, 1.0), 1 - chance))
    error = 1.2533 * noise.scale
    own = np.maximum(within, far * error / np.sqrt(sizes))
    natural = _scatter(middle, reference, levels, error) if scatter else 0.0
    margin = np.sqrt(own**2 + (far * error) ** 2 / others + (far * natural) ** 2)
    effect = middle - reference
    return Estimates(effect, sure - reference - margin, effect + margin, reference)


def _scatter(medians: Numbers, reference: Numbers, levels: Levels, error: float) -> float:
    """Scatter of levels in excess of their medians' error, from the faster side: slow levels are not natural."""
    there = levels.sizes > 0
    number = int(np.count_nonzero(there))
    if number < 6:
        return 0.0
    # 0.16 of normally scattered levels are more than one standard deviation below the typical one
    spread = float(np.median(reference[there]) - np.quantile(medians[there], 0.16))
    by_chance = (1 + 1.9 / np.sqrt(number)) * error / np.sqrt(np.median(levels.sizes[there]))
    return float(np.sqrt(max(spread**2 - by_chance**2, 0.0))) if spread > 0 else 0.0


HOST: Final = "host"
WORKER: Final = "worker"
ENDPOINT: Final = "endpoint"
FILE: Final = "file"
KINDS: Final = (HOST, WORKER, ENDPOINT, FILE)
"""Factors that can make chunks of a dataset slow."""

LEAST: Final = float(np.log(1.3))
"""Smallest effect of a slow level: equal machines differ by less, in caches and clocks."""

AS_GOOD: Final = 0.9
"""Share of a level's explained time from which another level is an alternative."""

Named = tuple[str, int]


class Parts(NamedTuple):
    """What levels of a kind consist of: the workers of hosts, the files of endpoints."""

    levels: Levels
    whole: Integers
    """Number of the level that each part is of."""


class Blame(NamedTuple):
    """Logarithms of factors by kind and level: of the blamed levels (else 0), and estimates with intervals for all."""

    effects: dict[str, Numbers]
    estimates: dict[str, Estimates]
    confounded: dict[Named, list[Named]]


def blamed(
    values: Numbers,
    groups: Mapping[str, Levels],
    dataset: Levels,
    parts: Mapping[str, Parts],
) -> Blame:
    """Find the slow levels, best explanation first, until no level stands out any more.

    Parameters
    ----------
    values
        Logarithm of each chunk's duration divided by what is typical of its dataset.
    groups
        Levels of those KINDS that the run has.
    parts
        What levels of some kinds consist of.
    """
    noise = Noise.around(values, [dataset, groups[WORKER], groups[FILE]])
    tests = sum(int(_eligible(kind, group).sum()) for kind, group in groups.items())
    effects = {kind: np.zeros(len(group.sizes)) for kind, group in groups.items()}
    confounded: dict[Named, list[Named]] = {}
    for _ in range(8):
        rest = _centred(values - total(effects, groups), dataset)
        candidates = _candidates(rest, groups, noise, tests, parts)
        # if two levels explain the same, the first of KINDS is blamed
        scores = {
            kind: (1 - 1e-6 * KINDS.index(kind)) * _explained(rest, groups[kind], found)
            for kind, found in candidates.items()
        }
        rivals = {kind: _rivals(kind, scores, groups) for kind in groups}
        accepted = {kind: scores[kind] > rivals[kind] for kind in groups}
        if not any(found.any() for found in accepted.values()):
            break
        for kind, found in accepted.items():
            effects[kind] = np.where(found, effects[kind] + candidates[kind].effect, effects[kind])
            for level in np.flatnonzero(found & (rivals[kind] >= AS_GOOD * scores[kind])):
                confounded[kind, int(level)] = _as_good(kind, int(level), scores, groups)
    beside = _joint_estimates(values, groups, dataset, partial(estimated, noise=noise, tests=tests), effects)
    still = {named: rest for named, rest in confounded.items() if effects[named[0]][named[1]] > 0}
    return Blame(effects, beside, still)


def total(effects: Mapping[str, Numbers], groups: Mapping[str, Levels]) -> Numbers:
    """Sum of the effects of each chunk's levels."""
    return np.asarray(sum((effects[kind][group.codes] for kind, group in groups.items()), start=np.zeros(1)))


def _centred(values: Numbers, dataset: Levels) -> Numbers:
    return np.asarray(values - dataset.medians(values)[0][dataset.codes])


def _eligible(kind: str, group: Levels) -> Flags:
    """Levels with enough chunks to distinguish them from a single odd chunk."""
    there = group.sizes[group.sizes > 0]
    # a worker that finished one chunk while the others finished many lost that time, whatever the reason; where all
    # have one or two, a long one is just a straggler
    single = kind == WORKER and len(there) > 1 and np.median(there) >= 4
    return group.sizes >= (1 if single else 2)


def _candidates(
    rest: Numbers, groups: Mapping[str, Levels], noise: Noise, tests: int, parts: Mapping[str, Parts]
) -> dict[str, Estimates]:
    """Levels that stand out by themselves; the effect of all others is 0."""
    found = {}
    for kind, group in groups.items():
        estimates = estimated(rest, group, noise, tests)
        slow = (estimates.low > LEAST) & _eligible(kind, group) & (np.count_nonzero(group.sizes) > 1)
        if kind in parts:
            slow &= _slow_as_a_whole(rest, parts[kind], estimates)
        found[kind] = estimates._replace(effect=np.where(slow, estimates.effect, 0.0))
    return found


def _slow_as_a_whole(rest: Numbers, parts: Parts, estimates: Estimates) -> Flags:
    """Whether a level has several parts and all of them are slow; otherwise the part is to blame."""
    there = parts.levels.sizes > 0
    middle = parts.levels.medians(rest)[1]
    fastest = np.full(len(estimates.effect), np.inf)
    np.minimum.at(fastest, parts.whole[there], middle[there])
    numbers = np.bincount(parts.whole[there], minlength=len(estimates.effect))
    return (numbers > 1) & (fastest > estimates.reference + estimates.effect / 2)


def _explained(rest: Numbers, group: Levels, found: Estimates) -> Numbers:
    """How much closer a level's chunks are to the others once its effect is taken into account."""
    rows = np.flatnonzero(found.effect[group.codes]) if found.effect.any() else np.array([], np.int64)
    levels = group.codes[rows]
    beyond = rest[rows] - found.reference[levels]
    gain = np.abs(beyond) - np.abs(beyond - found.effect[levels])
    return np.maximum(np.bincount(levels, gain, minlength=len(found.effect)), 0.0)


def _rivals(kind: str, scores: Mapping[str, Numbers], groups: Mapping[str, Levels]) -> Numbers:
    """For each level, the best score of a level of another kind that shares chunks with it."""
    best = np.zeros(len(groups[kind].sizes))
    for other, group in groups.items():
        if other != kind and scores[other].any():
            np.maximum.at(best, groups[kind].codes, scores[other][group.codes])
    return best


def _as_good(kind: str, level: int, scores: Mapping[str, Numbers], groups: Mapping[str, Levels]) -> list[Named]:
    """Levels of other kinds that explain nearly as much of the same chunks."""
    rows = groups[kind].codes == level
    found = []
    for other, group in groups.items():
        if other != kind:
            here = np.flatnonzero(np.bincount(group.codes[rows], minlength=len(group.sizes)))
            found += [(other, int(one)) for one in here if scores[other][one] >= AS_GOOD * scores[kind][level]]
    return found


def _joint_estimates(
    values: Numbers,
    groups: Mapping[str, Levels],
    dataset: Levels,
    judge: Callable[..., Estimates],
    effects: dict[str, Numbers],
) -> dict[str, Estimates]:
    """Estimate each kind with the effects of the others removed; levels that are no longer slow lose their effect."""
    found = {}
    for kind, group in groups.items():
        centred = _centred(values - total(effects, groups), dataset)
        found[kind] = judge(centred + effects[kind][group.codes], group, slow=effects[kind] > 0)
        stays = (effects[kind] > 0) & (found[kind].low > LEAST)
        effects[kind] = np.where(stays, found[kind].effect, 0.0)
    return found


FEWEST_TO_FIT: Final = 8
"""Chunks that a dataset needs for a law of its own; smaller datasets share one."""

SMALLEST: Final = 1e-9


def typical_seconds(dataset: Integers, traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Duration predicted from a chunk's traits, by the law of its dataset, or of all datasets if it has few chunks."""
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = predicted(traits, seconds, usual) if few.any() else np.empty(len(seconds))
    order = np.argsort(dataset, kind="stable")
    for rows in np.split(order, np.cumsum(numbers)[:-1]):
        if len(rows) >= FEWEST_TO_FIT:
            typical[rows] = predicted(traits[rows], seconds[rows], usual[rows])
    return typical


def predicted(traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Durations by a linear law in the traits, fitted to the usual chunks with least absolute deviations.

    Coefficients are not negative, so a few extra bytes cannot explain a straggler, nor can a small difference between
    two files explain why one of them is many times slower.
    """
    scale = np.abs(traits).max(axis=0)
    scaled = traits[:, scale > 0] / scale[scale > 0]
    rows = np.flatnonzero(usual) if usual.any() else np.arange(len(seconds))
    if len(rows) > 2000:  # enough for three parameters
        rows = np.random.default_rng(1).choice(rows, 2000, replace=False)
    fitted, aims = scaled[rows], seconds[rows]
    weights, finest = np.ones(len(aims)), SMALLEST + 1e-3 * np.median(aims)
    for _ in range(20):
        basis, triangle = np.linalg.qr(fitted * weights[:, None])
        law = scipy.optimize.nnls(triangle, basis.T @ (aims * weights))[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(aims - fitted @ law), finest))
    # where few chunks have such traits, a law may fall below every recorded chunk
    return np.asarray(np.maximum(scaled @ law, max(float(seconds.min()), SMALLEST)))


DATASET: Final = "dataset"

USUAL: Final = 2.0
"""Chunks this many times slower than expected are left out of the fit."""

CORE_WAIT: Final = ("contention_seconds", "core_wait_seconds")
"""Columns for time without a free core, the better one first."""

LOCK: Final = "lock_seconds"

BY_CHANCE: Final = (*CORE_WAIT, LOCK)
"""Columns of time that a chunk loses to other activity, which is nobody's slowness."""

PHASES: Final = tuple(
    phase.column for phase in phases.PHASES if phase.part != "saving" and phase.column not in BY_CHANCE
)
"""Columns of the phases that work on a chunk's events and file."""

OF_CHUNKS: Final = (
    *("id", "dataset", "file", "entry_start", "entry_stop", "worker", "wall_seconds"),
    *("events", "bytes_payload", *PHASES),
)


class Slow(NamedTuple):
    """A worker, host, endpoint or file that is slower than the others, or a dataset that is heavier per event."""

    kind: str
    name: str
    factor: float
    """Duration of its chunks divided by what they would take elsewhere."""
    interval: tuple[float, float]
    seconds: float
    """Thread time in excess of the model, without waiting for a core or the interpreter."""
    chunks: int
    phase: str | None = None
    """Phase with most of the excess: `read` waits for storage, `compute` computes slowly; None if not measured."""
    host: str | None = None
    """Host of a worker, if known."""
    confounded_with: tuple[tuple[str, str], ...] = ()
    """Kinds and names that had the same chunks and explain them as well: the run cannot distinguish them."""


@dataclass(frozen=True)
class Slowness:
    """Durations of chunks compared with the model."""

    slow: list[Slow]
    """Levels that are certainly slower than the others, most seconds first."""
    chunks: pa.Table
    """Attempts that were computed and counted: OF_CHUNKS, `slowness` (of worker and host) and `expected_seconds`
    (predicted from events and bytes, by dataset, with all effects and its contention)."""


@dataclass(frozen=True)
class _Coded:
    """Chunks as arrays."""

    table: pa.Table
    seconds: Numbers
    lost: Numbers
    """Seconds without a core or the interpreter, or in garbage collection, which `seconds` excludes."""
    levels: Mapping[str, Levels]
    names: Mapping[str, Sequence[str | None]]
    parts: Mapping[str, tuple[Levels, Integers]]
    """What some kinds of levels consist of: the workers of hosts, and pairs of endpoints and files; whose each is."""
    host_of: Integers
    """Host of each worker."""
    first: Flags
    counts: Flags
    """Whether a chunk is used for the model: it has events, and is not the first of several on its thread."""
    traits: Numbers
    """Variables in which a chunk's duration is linear."""

    def counted(self, levels: Levels) -> Levels:
        """Levels of the chunks used for the model."""
        return Levels.of(levels.codes[self.counts], len(levels.sizes))


@dataclass(frozen=True)
class _Fitted:
    """The fitted model."""

    blame: Blame
    typical: Numbers
    effect: Numbers
    usual: Flags


@fact
def slowness(counted_chunks: pa.Table, lifetimes: pa.Table | None = None) -> Slowness:
    """Slow workers, hosts, endpoints and files and heavy datasets, from chunks that were computed and counted."""
    computed = with_endpoints(with_outcome(counted_chunks, (chunk_records.OK,)))
    chunks = _coded(rows_where(computed, computed["wall_seconds"].is_valid()), lifetimes)
    refuse_if(not len(chunks.seconds), "no chunk with a duration was computed")
    fitted = _fitted(chunks)
    # events of each dataset relative to the others, with slow levels removed
    common = predicted(chunks.traits[:, :2], chunks.seconds / np.exp(fitted.effect), fitted.usual)
    values = (np.log(chunks.seconds / common) - fitted.effect)[chunks.counts]
    datasets = chunks.counted(chunks.levels[DATASET])
    number = int(np.count_nonzero(datasets.sizes))
    heavy = estimated(values, datasets, Noise.around(values, [datasets]), number, scatter=False)
    # datasets differ by nature: less than a factor of 2 is no surprise
    large = (heavy.low > np.log(2.0)) & (datasets.sizes > 1) & (number > 1)
    slow = [*_slow(chunks, fitted, heavy, np.flatnonzero(large))]
    return Slowness(sorted(slow, key=lambda one: -one.seconds), _expected(chunks, fitted))


def _coded(table: pa.Table, lifetimes: pa.Table | None) -> _Coded:
    """Durations of the chunks without losses by chance, and their levels."""
    wall, events = amounts(table, "wall_seconds"), amounts(table, "events")
    # a full collection takes as long as a short chunk, and hits any of them
    collected = _known(table, "gc_seconds")
    lost = _known(table, *CORE_WAIT) + _known(table, LOCK) + collected
    seconds = np.maximum(wall - lost, np.maximum(np.minimum(amounts(table, "cpu_seconds"), wall) - collected, SMALLEST))
    encoded = {
        kind: pc.dictionary_encode(table[kind], null_encoding="encode") for kind in (WORKER, ENDPOINT, FILE, DATASET)
    }
    names: dict[str, Sequence[str | None]] = {
        kind: each.combine_chunks().dictionary.to_pylist() for kind, each in encoded.items()
    }
    levels = {kind: Levels.of(codes(table[kind]), len(names[kind])) for kind in encoded}
    parts = {}
    # a worker without a known host has one of its own
    known = (
        {} if lifetimes is None else dict(zip(*lifetimes.select(["worker", "host"]).to_pydict().values(), strict=True))
    )
    host_of, hosts = pd.factorize(pd.Index([known.get(one) or f"\0{one}" for one in names[WORKER]], dtype=object))
    names[HOST] = [None if host.startswith("\0") else host for host in hosts]
    if 1 < len(hosts) < len(host_of):
        levels = {HOST: Levels.of(host_of[levels[WORKER].codes], len(hosts))} | levels
        parts[HOST] = levels[WORKER], host_of
    number = max(len(names[ENDPOINT]), 1)
    pairs, rows = np.unique(levels[FILE].codes * number + levels[ENDPOINT].codes, return_inverse=True)
    if 1 < number < len(pairs):
        parts[ENDPOINT] = Levels.of(rows, len(pairs)), pairs % number
    else:
        del levels[ENDPOINT]
    first, worker = _first_of_threads(table), levels[WORKER].codes
    later = np.bincount(worker, ~first, minlength=len(names[WORKER]))[worker]
    # a worker with fewer than three later chunks needs those of its threads that were first
    counts = (~first | (later < 3)) & ((events > 0) | (not events.any()))
    traits = np.column_stack([np.ones(len(wall)), events, amounts(table, "bytes_payload")])
    return _Coded(table, seconds, wall - seconds, levels, names, parts, host_of, first, counts, traits)


def _known(table: pa.Table, *names: str) -> Numbers:
    """Seconds of each chunk from the first of these columns that has values; 0 if none has."""
    known = [table[name] for name in names if name in table.column_names]
    return np.array(pc.cast(pc.coalesce(*known, pa.scalar(0.0)), pa.float64())) if known else np.zeros(len(table))


def _first_of_threads(table: pa.Table) -> Flags:
    """Whether each chunk is the first of its thread; none is if threads or start times are unknown."""
    start = moments(table, "start")
    if table["thread"].null_count or np.isnan(start).any():
        return np.zeros(len(table), np.bool_)
    threads = pd.Series(start).groupby([codes(table["worker"]), codes(table["thread"])])
    return np.asarray(threads.transform("min") == start)


def _fitted(chunks: _Coded) -> _Fitted:
    """Law, factors and culprits; the law is refitted without the culprits."""
    every = {kind: chunks.levels[kind] for kind in KINDS if kind in chunks.levels}
    groups = {kind: chunks.counted(levels) for kind, levels in every.items()}
    parts = {kind: Parts(chunks.counted(levels), whole) for kind, (levels, whole) in chunks.parts.items()}
    effect = slow = np.zeros(len(chunks.seconds))
    usual, datasets = ~chunks.first, chunks.levels[DATASET]
    for _ in range(2):
        plain = chunks.seconds / np.exp(effect)
        typical = typical_seconds(datasets.codes, chunks.traits, plain, usual)
        # a straggler with rare traits would determine its own law
        typical = typical_seconds(datasets.codes, chunks.traits, plain, usual & (plain <= USUAL * typical))
        values = np.log(chunks.seconds / typical)
        first = _first_effect(values - slow, chunks.first) * chunks.first
        blame = blamed((values - first)[chunks.counts], groups, chunks.counted(datasets), parts)
        slow = total(blame.effects, every)
        effect = slow + first
        usual = chunks.seconds <= USUAL * typical * np.exp(effect)
        if not effect.any():
            break
    return _Fitted(blame, typical, effect, usual)


def _first_effect(values: Numbers, is_first: Flags) -> float:
    """Effect of being the first chunk of a thread; measurable if most chunks are later ones."""
    number = int(is_first.sum())
    if not number or 2 * number > len(values):
        return 0.0
    return max(float(np.sort(values[is_first])[(number - 1) // 2] - np.median(values[~is_first])), 0.0)


def _slow(chunks: _Coded, fitted: _Fitted, heavy: Estimates, datasets: Integers) -> Iterator[Slow]:
    """Levels that are blamed, and heavy datasets; none without a name."""
    usual = _Usual(chunks, fitted)
    for kind, effects in fitted.blame.effects.items():
        for level in np.flatnonzero(effects):
            others = fitted.blame.confounded.get((kind, int(level)), [])
            yield from usual.described((kind, int(level)), fitted.blame.estimates[kind], others)
    codes = chunks.levels[DATASET].codes
    for level in datasets:
        # hosts, workers, endpoints and files that had exactly its chunks
        rows = codes == level
        own = [(kind, int(chunks.levels[kind].codes[rows][0])) for kind in KINDS if kind in chunks.levels]
        same = [(kind, one) for kind, one in own if np.array_equal(chunks.levels[kind].codes == one, rows)]
        yield from usual.described((DATASET, int(level)), heavy, same)


class _Usual:
    """Describes slow levels relative to the usual: the share of each phase in chunks that are not slow, by dataset."""

    def __init__(self, chunks: _Coded, fitted: _Fitted) -> None:
        self.chunks, self.fitted = chunks, fitted
        self.dataset = chunks.levels[DATASET].codes
        self.phases = np.column_stack([chunks.seconds, *(amounts(chunks.table, name) for name in PHASES)])
        free = np.flatnonzero((fitted.effect == 0) & fitted.usual & chunks.counts)
        number = len(chunks.names[DATASET])
        sums = [np.bincount(self.dataset[free], weights, number) for weights in self.phases[free].T]
        self.of_datasets = np.column_stack(sums)

    def described(self, who: tuple[str, int], estimates: Estimates, same: Iterable[tuple[str, int]]) -> Iterator[Slow]:
        """Description of a slow level, by kind and number; nothing if it has no name."""
        (kind, level), chunks, fitted = who, self.chunks, self.fitted
        name, own = chunks.names[kind][level], estimates.effect[level]
        if name is None:
            return
        rows = np.flatnonzero(chunks.levels[kind].codes == level)
        expected = fitted.typical[rows] * np.exp(fitted.effect[rows] - own)
        others = [(other, chunks.names[other][one]) for other, one in same]
        yield Slow(
            kind=kind,
            name=name,
            factor=float(np.exp(own)),
            interval=(float(np.exp(estimates.low[level])), float(np.exp(estimates.high[level]))),
            seconds=float(np.sum(chunks.seconds[rows] - expected)),
            chunks=len(rows),
            phase=self.excess(kind, rows, expected),
            host=chunks.names[HOST][chunks.host_of[level]] if kind == WORKER else None,
            confounded_with=tuple((other, text) for other, text in others if text is not None),
        )

    def excess(self, kind: str, rows: Integers, expected: Numbers) -> str | None:
        """Phase in which chunks exceed the usual share most."""
        if (later := ~self.chunks.first[rows]).any():
            rows, expected = rows[later], expected[later]
        usual, every = self.of_datasets[self.dataset[rows]], self.of_datasets
        whole = (every if kind != DATASET else np.delete(every, self.dataset[rows[0]], axis=0)).sum(axis=0)
        if not whole[0]:
            return None
        usual[(usual[:, 0] == 0) | (kind == DATASET)] = whole
        beyond = self.phases[rows, 1:].sum(axis=0) - (expected / usual[:, 0]) @ usual[:, 1:]
        most = int(np.argmax(beyond))
        return PHASES[most].removesuffix("_seconds") if beyond[most] > 0 else None


def _expected(chunks: _Coded, fitted: _Fitted) -> pa.Table:
    """The chunks with their expected durations."""
    effects, estimates = fitted.blame.effects, fitted.blame.estimates
    own = np.where(effects[WORKER] > 0, effects[WORKER], estimates[WORKER].shrunk)
    if HOST in effects:
        own = own + effects[HOST][chunks.host_of]
    columns = {
        "slowness": np.exp(own)[chunks.levels[WORKER].codes],
        "expected_seconds": fitted.typical * np.exp(fitted.effect) + chunks.lost,
    }
    return pa.table({name: chunks.table[name] for name in OF_CHUNKS} | columns)


STRAGGLER_COLUMNS: Final = (
    Column("id", "integer", None, "identity of the attempt's record, as in the chunks"),
    *picked(chunk_records.CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    Column("worker", "text", None, "address of the worker"),
    Column("wall_seconds", "number", "s", "duration of the attempt"),
    Column(
        "expected_seconds",
        "number",
        "s",
        "duration predicted from its events, bytes, slow worker or file, and waiting for a core",
    ),
    Column("excess_seconds", "number", "s", "duration beyond the expected one"),
    Column(
        "phase",
        "text",
        None,
        "phase with the largest excess over the median of its dataset; none if no phase exceeds it",
    ),
)
"""Chunks that took much longer than expected, worst first."""


@fact
def expected_seconds(slowness: Slowness) -> pa.Table:
    """Attempts that were computed and counted, with their expected durations: `Slowness.chunks`."""
    number = len(slowness.chunks)
    refuse_if(number < FEWEST_TO_FIT, f"only {number} chunks: finding a slow one takes at least {FEWEST_TO_FIT}")
    return slowness.chunks


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    """Chunks that took much longer than expected, with STRAGGLER_COLUMNS."""
    wall, expected = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "expected_seconds")
    excess, dataset = wall - expected, codes(expected_seconds["dataset"])
    spread = pd.Series(np.abs(excess)).groupby(dataset).transform("median").to_numpy()
    # caches, disks and the lock cause smaller ones, a busy machine delays any chunk by 0.1 s, and some vary by nature
    slow = np.flatnonzero((wall > 2 * expected) & (excess > np.maximum(6 * spread, 0.1)))
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    times = pd.DataFrame({name.removesuffix("_seconds"): amounts(expected_seconds, name) for name in PHASES})
    beyond = (times - times.groupby(dataset).transform("median")).iloc[slow]
    phase = beyond.idxmax(axis=1).where(beyond.max(axis=1) > 0)
    rows = rows.append_column("phase", pa.array(phase, pa.string(), from_pandas=True))
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


@fact
def slow_workers(slowness: Slowness) -> list[str]:
    """Workers that are slower than the others."""
    return [one.name for one in slowness.slow if one.kind == WORKER]


@metric(COUNT, group=TIMING, source="chunk records", label="stragglers", formula="chunks far above what is expected")
def num_stragglers(stragglers: pa.Table) -> int:
    """Chunks that took more than twice the time predicted from events, bytes and worker, and stand out."""
    return len(stragglers)


@metric(SECOND, group=TIMING, source="chunk records", label="stragglers: excess", formula="sum of excess_seconds")
def straggler_seconds(stragglers: pa.Table) -> float:
    """Time of the stragglers beyond their expected duration."""
    return float(pc.sum(stragglers["excess_seconds"], min_count=0).as_py())


CPU_BOUND: Final = "CPU"
WAITING: Final = "wait"
MIXED: Final = "both"

BALANCE_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host"),
    Column("threads", "integer", "threads", "threads for tasks"),
    Column("present_seconds", "number", "s", "time that the worker was present"),
    Column("chunks", "integer", None, "computed chunks that counted"),
    Column("events", "integer", "events", "events in those chunks"),
    Column("chunk_seconds", "number", "s", "duration of those chunks"),
    Column("cpu_seconds", "number", "s", "CPU time of their threads"),
    Column("busy_share", "number", None, "duration of the chunks / (threads x time present)"),
    Column("cpu_share", "number", None, "CPU time of the chunks / their duration"),
    Column(
        "bound", "text", None, f'"{CPU_BOUND}" or "{WAITING}" where that is 80 % of the chunks\' time, else "{MIXED}"'
    ),
    Column(
        "slowness",
        "number",
        None,
        "duration of its chunks divided by what other workers need for the same work; 1 within statistical error",
    ),
    Column("spill_seconds", "number", "s", "writing results to disk and reading them back (Dask)"),
    Column("transfer_seconds", "number", "s", "fetching results from other workers (Dask)"),
    Column(
        "clock_offset",
        "number",
        "s",
        "the worker's clock minus the client's, bounded by the order of its tasks' events",
    ),
)
"""One row per worker."""


OF_LIVES: Final[Steps] = {
    "host": ("host", "first"),
    "threads": ("threads", "max"),
    "present_seconds": ("present_seconds", "sum"),
    "offered": ("offered", "sum"),
    "clock_offset": ("clock_offset", "last"),
}
OF_ATTEMPTS: Final[Steps] = {
    "chunks": ("id", "count"),
    "events": ("events", "sum"),
    "chunk_seconds": ("wall_seconds", "sum"),
    "cpu_seconds": ("cpu_seconds", "sum"),
}
NOTHING: Final = {"chunks": 0, "events": 0, "chunk_seconds": 0.0, "cpu_seconds": None}


@table
def worker_balance(
    lifetimes: pa.Table,
    counted_chunks: pa.Table | None = None,
    expected_seconds: pa.Table | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> pa.Table:
    """Workers with BALANCE_COLUMNS."""
    done = _by_worker(counted_chunks, OF_ATTEMPTS)
    slowness = _by_worker(expected_seconds, {"slowness": ("slowness", "mean")})
    fine = fine_metrics_per_worker or {}
    present = lifetimes.append_column("present_seconds", pc.subtract(lifetimes["stop"], lifetimes["start"]))
    present = present.append_column("offered", pc.multiply(present["threads"], present["present_seconds"]))
    rows = []
    for worker, life in _by_worker(present, OF_LIVES).items():
        work = done.get(worker, {} if counted_chunks is None else NOTHING)
        known = fine.get(worker, {})
        from_dask = {name: known[name] for name in ("spill_seconds", "transfer_seconds") if name in known}
        shares = _shares(life.pop("offered"), work)
        rows.append({"worker": worker} | life | work | shares | slowness.get(worker, {}) | from_dask)
    return table_of_rows(BALANCE_COLUMNS, rows)


def _by_worker(table: pa.Table | None, steps: Steps) -> dict[str, dict[str, Any]]:
    """Sums over the rows of each worker; a worker that came back has a single row."""
    if table is None:
        return {}
    # "first" and "last" need the order of the rows
    made = aggregated(table, ["worker"], steps, None, use_threads=False)
    return {row.pop("worker"): row for row in made.to_pylist()}


def _shares(offered: float, work: Mapping[str, Any]) -> dict[str, Any]:
    """How busy a worker was in so many thread seconds, and with what; empty if no chunks were recorded."""
    if not work:
        return {}
    wall, cpu = work["chunk_seconds"], work["cpu_seconds"]
    busy = 0.0 if work is NOTHING else wall / offered if wall is not None and offered else None
    if not wall or cpu is None:
        return {"busy_share": busy}
    share = cpu / wall
    bound = CPU_BOUND if share >= 0.8 else WAITING if share <= 0.2 else MIXED
    return {"busy_share": busy, "cpu_share": share, "bound": bound}


@metric(RATIO, group=RESOURCES, source="chunk records", formula="largest busy_share / mean busy_share")
def imbalance(worker_balance: pa.Table) -> float:
    """Busy share of the busiest worker divided by the mean of all workers; 1 is balanced."""
    refuse_if(worker_balance["chunk_seconds"].null_count, "the duration of chunks is not known")
    loads = pc.drop_null(worker_balance["busy_share"])
    mean = pc.mean(loads).as_py()
    refuse_if(not mean, "no worker computed a chunk")
    return float(pc.max(loads).as_py() / mean)
