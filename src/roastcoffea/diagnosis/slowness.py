"""Slow workers, hosts, servers and files, and heavy datasets, from one model of chunk durations."""

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
from roastcoffea.metrics.statistics import (
    Flags,
    Groups,
    Integers,
    Numbers,
    amounts,
    codes,
    named_codes,
    nonnegative_fit,
)
from roastcoffea.metrics.thread_activity import first_of_threads
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.columns import Column, integer_column, picked, seconds_column, text_column
from roastcoffea.records.workers import LIFETIME_COLUMNS
from roastcoffea.units import COUNT, RATIO, SECOND

TAIL: Final = 0.1
"""Fraction of noise values in the upper tail. The tail's decay predicts how often even longer chunks occur."""

BETWEEN: Final = 6
"""Minimum number of values for using the median instead of the lower median."""

MOST_VALUES: Final = 200_000
"""Maximum number of values for estimating the noise; larger sets are sampled at random."""

LEFT: Final = 0.4
"""Minimum fraction of independent values after a median polish. Groupings that would leave fewer are skipped."""


def middles(levels: Groups, values: Numbers) -> tuple[Numbers, Numbers]:
    """Lower median and median of each level (e.g. of each worker); 0 for levels without values."""
    lower, upper = np.nan_to_num(levels.middles(values))
    return lower, (lower + upper) / 2


CHANCE: Final = 0.05
"""Probability that a bound is violated by chance."""


class Estimates(NamedTuple):
    """Logarithm of each level's duration relative to the other levels, with intervals.

    All intervals from `low` to `high` hold together with 90 % probability, and each single one from `likely_low` to
    `likely_high` does.
    """

    effect: Numbers
    low: Numbers
    high: Numbers
    reference: Numbers
    """Typical value of the other levels, subtracted to obtain the effect."""
    likely_low: Numbers
    likely_high: Numbers

    @property
    def shrunk(self) -> Numbers:
        """Effects, shrunk towards zero to the extent that chance alone could explain them."""
        error = (self.high - self.low) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where(self.effect == 0, 0.0, 1 - (error / self.effect) ** 2)
        return np.asarray(self.effect * np.clip(weight, 0.0, 1.0))


@dataclass(frozen=True)
class Noise:
    """Scatter of chunk durations when no level is slow."""

    values: Numbers
    """Sorted logarithms."""
    freedom: int
    """Effective number of independent values."""
    middle: float
    scale: float
    """Robust standard deviation."""
    decay: float
    """Mean distance of upper-tail values from the start of the tail."""

    @classmethod
    def around(cls, values: Numbers, groups: list[Groups], rounds: int = 3) -> Noise:
        """Estimate the noise from the residuals of a median polish. Each level costs a degree of freedom."""
        if len(values) > MOST_VALUES:
            rows = np.sort(np.random.default_rng(1).choice(len(values), MOST_VALUES, replace=False))
            values = values[rows]
            groups = [Groups(group.codes[rows], len(group.sizes)) for group in groups]
        rest = values - np.median(values)
        freedom, polished = len(values) - 1, []
        for group in groups:
            lost = int(np.count_nonzero(group.sizes)) - 1
            if freedom - lost >= LEFT * len(values):
                freedom -= lost
                polished.append(group)
        for _ in range(rounds):
            for group in polished:
                rest = rest - middles(group, rest)[1][group.codes]
        freedom = max(freedom, 1)
        # medians leave too little of the noise, e.g. nothing of one in three values; without as many of the smallest
        # residuals, the scale is right within 3 % (if levels have only two values, it is 20 % too large)
        scale = 1.4826 * np.median(np.sort(np.abs(rest - np.median(rest)))[-freedom:])
        rest *= np.sqrt(len(values) / freedom)
        rest.sort()
        middle, tail = rest[len(rest) // 2], rest[int((1 - TAIL) * len(rest)) :]
        return cls(rest, freedom, float(middle), float(scale), float(np.mean(tail - tail[0])))

    def above(self, chance: Numbers) -> Numbers:
        """Values exceeded by the noise with at most the given probabilities, using an exponential tail.

        Because few values lie in the tail, a margin of 1.5 standard deviations allows for its uncertain decay.
        """
        unsure = 1.5 * np.sqrt(chance * (1 - chance) / len(self.values))
        chance = np.where(chance < TAIL, np.maximum(chance - unsure, chance / 10), chance)
        places = np.linspace(0.0, 1.0, len(self.values))
        within_sample = np.interp(1 - chance, places, self.values)
        far = np.interp(1 - TAIL, places, self.values) + self.decay * np.log(TAIL / np.minimum(chance, TAIL))
        return np.asarray(np.where(chance < TAIL, np.maximum(within_sample, far), within_sample))


def of_the_others(medians: Numbers, sizes: Integers) -> Numbers:
    """For each level, the chunk-weighted lower median of the other levels' medians."""
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
    values: Numbers, levels: Groups, noise: Noise, tests: int, *, slow: Flags | None = None, scatter: bool = True
) -> Estimates:
    """Estimate each level's effect relative to the other levels, with an interval.

    The median of n values exceeds x if half of them do, and the probability of that is binomial. For a level with few
    values, the bound is therefore an extreme quantile of the noise. For many values, it is close to the noise median.

    Parameters
    ----------
    tests
        Total number of levels tested. The more levels there are, the larger the largest effect expected by chance.
    slow
        Levels known to be slow, which are excluded from the reference.
    scatter
        Whether a slow level has to stand out from the scatter among levels.
    """
    lower, middle = middles(levels, values)
    sizes, of_levels = np.unique(np.maximum(levels.sizes, 1), return_inverse=True)
    measure = levels.sizes if slow is None else np.where(slow, 0, levels.sizes)
    others = np.maximum(measure.sum() - measure, 1)
    reference = of_the_others(middle, measure)
    # for few values, use the lower median: the larger of two values may come from a single odd chunk
    needed = np.where(sizes < BETWEEN, sizes - (sizes - 1) // 2, (sizes + 1) / 2)
    sure = np.where(levels.sizes < BETWEEN, lower, middle)
    # for normal noise, the median absolute deviation is as precise as a standard deviation of 0.4 times as many values,
    # and a median's error is 1.25 times a mean's error
    freedom, error = max(0.4 * noise.freedom, 1.0), 1.2533 * noise.scale
    natural = _scatter(middle, reference, levels, error) if scatter else 0.0

    def margin(chance: float) -> Numbers:
        within = noise.above(scipy.special.betaincinv(needed, sizes - needed + 1, chance)) - noise.middle
        far = float(scipy.special.stdtrit(freedom, 1 - chance))
        own = np.maximum(within, far * error / np.sqrt(sizes))[of_levels]
        return np.asarray(np.sqrt(own**2 + (far * error) ** 2 / others + (far * natural) ** 2))

    # in a run without slow levels, the probability that any bound is violated is 5 %
    effect, surely, likely = middle - reference, margin(CHANCE / max(tests, 1)), margin(CHANCE)
    bounds = sure - reference - surely, effect + surely
    return Estimates(effect, *bounds, reference, effect - likely, effect + likely)


def _scatter(medians: Numbers, reference: Numbers, levels: Groups, error: float) -> float:
    """Natural scatter among levels beyond the errors of their medians, measured on the fast side only."""
    there = levels.sizes > 0
    number = int(np.count_nonzero(there))
    if number < 6:
        return 0.0
    # 16 % of normally distributed levels are more than one standard deviation below the mean
    spread = float(np.median(reference[there]) - np.quantile(medians[there], 0.16))
    by_chance = (1 + 1.9 / np.sqrt(number)) * error / np.sqrt(np.median(levels.sizes[there]))
    return float(np.sqrt(max(spread**2 - by_chance**2, 0.0))) if spread > 0 else 0.0


HOST: Final = "host"
WORKER: Final = "worker"
ENDPOINT: Final = "endpoint"
FILE: Final = "file"
KINDS: Final = (HOST, WORKER, ENDPOINT, FILE)
"""Kinds of levels that can make a dataset's chunks slow."""

LEAST: Final = float(np.log(1.3))
"""Minimum effect of a slow level. Identical machines differ by less, e.g. because of caches and clock rates."""

AS_GOOD: Final = 0.9
"""A level is an alternative if it explains at least this fraction of the time explained by the blamed level."""

Named = tuple[str, int]


class Parts(NamedTuple):
    """The parts of each level of one kind, e.g. the workers on each host or the files on each endpoint."""

    levels: Groups
    whole: Integers
    """Index of each part's level."""


class Blame(NamedTuple):
    """Logarithms of the factors by kind and level. `effects` is 0 unless a level is blamed; `estimates` covers all."""

    effects: dict[str, Numbers]
    estimates: dict[str, Estimates]
    confounded: dict[Named, list[Named]]


def blamed(
    values: Numbers,
    groups: Mapping[str, Groups],
    dataset: Groups,
    parts: Mapping[str, Parts],
) -> Blame:
    """Find slow levels, starting with the best explanation, until no level stands out.

    Parameters
    ----------
    values
        Logarithm of each chunk's duration relative to the typical duration in its dataset.
    groups
        Levels of each kind that occurs in the run.
    parts
        The levels' parts, for kinds that have parts.
    """
    noise = Noise.around(values, [dataset, groups[WORKER], groups[FILE]])
    tests = sum(int(_eligible(kind, group).sum()) for kind, group in groups.items())
    effects = {kind: np.zeros(len(group.sizes)) for kind, group in groups.items()}
    confounded: dict[Named, list[Named]] = {}
    for _ in range(8):
        rest = _centred(values - total(effects, groups), dataset)
        beside = {kind: estimated(rest, group, noise, tests) for kind, group in groups.items()}
        candidates = {kind: _candidates(rest, kind, groups[kind], beside[kind], parts) for kind in groups}
        # if two levels explain the same amount, blame the kind that comes first in KINDS
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
    if any(found.any() for found in effects.values()):
        beside = _joint_estimates(values, groups, dataset, partial(estimated, noise=noise, tests=tests), effects)
    still = {named: rest for named, rest in confounded.items() if effects[named[0]][named[1]] > 0}
    return Blame(effects, beside, still)


def total(effects: Mapping[str, Numbers], groups: Mapping[str, Groups]) -> Numbers:
    return np.asarray(sum((effects[kind][group.codes] for kind, group in groups.items()), start=np.zeros(1)))


def _centred(values: Numbers, dataset: Groups) -> Numbers:
    return np.asarray(values - middles(dataset, values)[0][dataset.codes])


def _eligible(kind: str, group: Groups) -> Flags:
    """Levels with enough chunks to rule out a single odd chunk."""
    there = group.sizes[group.sizes > 0]
    # a worker that finished only one chunk while the others finished many has lost time for some reason, but if all
    # workers have one or two chunks, a long chunk is just a straggler
    single = kind == WORKER and len(there) > 1 and np.median(there) >= 4
    return group.sizes >= (1 if single else 2)


def _candidates(rest: Numbers, kind: str, group: Groups, estimates: Estimates, parts: Mapping[str, Parts]) -> Estimates:
    """Estimates in which the effects of inconspicuous levels are set to zero."""
    slow = (estimates.low > LEAST) & _eligible(kind, group) & (np.count_nonzero(group.sizes) > 1)
    if kind in parts:
        slow &= _slow_as_a_whole(rest, parts[kind], estimates)
    return estimates._replace(effect=np.where(slow, estimates.effect, 0.0))


def _slow_as_a_whole(rest: Numbers, parts: Parts, estimates: Estimates) -> Flags:
    """Whether a level has several parts, all of them slow. If only one part is slow, that part is to blame."""
    there = parts.levels.sizes > 0
    middle = middles(parts.levels, rest)[1]
    fastest = np.full(len(estimates.effect), np.inf)
    np.minimum.at(fastest, parts.whole[there], middle[there])
    numbers = np.bincount(parts.whole[there], minlength=len(estimates.effect))
    return (numbers > 1) & (fastest > estimates.reference + estimates.effect / 2)


def _explained(rest: Numbers, group: Groups, found: Estimates) -> Numbers:
    """How much closer to normal each level's chunks become when the level's effect is removed."""
    rows = np.flatnonzero(found.effect[group.codes]) if found.effect.any() else np.array([], np.int64)
    levels = group.codes[rows]
    beyond = rest[rows] - found.reference[levels]
    gain = np.abs(beyond) - np.abs(beyond - found.effect[levels])
    return np.maximum(np.bincount(levels, gain, minlength=len(found.effect)), 0.0)


def _rivals(kind: str, scores: Mapping[str, Numbers], groups: Mapping[str, Groups]) -> Numbers:
    """For each level, the best score among overlapping levels of other kinds."""
    best = np.zeros(len(groups[kind].sizes))
    for other, group in groups.items():
        if other != kind and scores[other].any():
            np.maximum.at(best, groups[kind].codes, scores[other][group.codes])
    return best


def _as_good(kind: str, level: int, scores: Mapping[str, Numbers], groups: Mapping[str, Groups]) -> list[Named]:
    """Levels of other kinds that explain the same chunks nearly as well."""
    rows = groups[kind].codes == level
    found = []
    for other, group in groups.items():
        if other != kind:
            here = np.flatnonzero(np.bincount(group.codes[rows], minlength=len(group.sizes)))
            found += [(other, int(one)) for one in here if scores[other][one] >= AS_GOOD * scores[kind][level]]
    return found


def _joint_estimates(
    values: Numbers,
    groups: Mapping[str, Groups],
    dataset: Groups,
    judge: Callable[..., Estimates],
    effects: dict[str, Numbers],
) -> dict[str, Estimates]:
    """Estimate each kind without the other kinds' effects, and reset the effects of levels that are no longer slow."""
    found = {}
    for kind, group in groups.items():
        centred = _centred(values - total(effects, groups), dataset)
        found[kind] = judge(centred + effects[kind][group.codes], group, slow=effects[kind] > 0)
        stays = (effects[kind] > 0) & (found[kind].low > LEAST)
        effects[kind] = np.where(stays, found[kind].effect, 0.0)
    return found


FEWEST_TO_FIT: Final = 8
"""Minimum number of chunks for fitting a dataset separately. Smaller datasets share a law."""

SMALLEST: Final = 1e-9


def typical_seconds(groups: Groups, traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Predict durations from chunk traits (rows), using the dataset's law or, for small datasets, a shared law."""
    few = (groups.sizes > 0) & (groups.sizes < FEWEST_TO_FIT)
    typical = predicted(traits, seconds, usual) if few.any() else np.empty(len(seconds))
    for rows in np.split(groups.order, np.cumsum(groups.sizes)[:-1]):
        if len(rows) >= FEWEST_TO_FIT:
            typical[rows] = predicted(traits[:, rows], seconds[rows], usual[rows])
    return typical


def predicted(traits: Numbers, seconds: Numbers, usual: Flags) -> Numbers:
    """Predict durations with a linear model, fitted to typical chunks by least absolute deviations.

    Coefficients cannot be negative. A few extra bytes therefore cannot explain a straggler, and a small difference
    between two files cannot explain why one of them is many times slower.
    """
    rows = np.flatnonzero(usual) if usual.any() else np.arange(len(seconds))
    if len(rows) > 2000:  # enough for three parameters
        rows = np.random.default_rng(1).choice(rows, 2000, replace=False)
    fitted, aims = traits[:, rows], seconds[rows]
    scale = np.abs(fitted).max(axis=1)
    varies = scale > 0
    fitted = (fitted[varies] / scale[varies, None]).T
    weights, finest = np.ones(len(aims)), SMALLEST + 1e-3 * np.median(aims)
    for _ in range(20):
        basis, triangle = np.linalg.qr(fitted * weights[:, None])
        law = nonnegative_fit(triangle, basis.T @ (aims * weights))
        weights = 1 / np.sqrt(np.maximum(np.abs(aims - fitted @ law), finest))
    found = np.zeros(len(traits))
    found[varies] = law / scale[varies]
    # for rare traits, the law may predict less than the shortest recorded duration
    return np.maximum(found @ traits, max(float(seconds.min()), SMALLEST))


DATASET: Final = "dataset"

USUAL: Final = 2.0
"""Ratio of actual to expected duration above which a chunk is excluded from the fit."""

CORE_WAIT: Final = ("contention_seconds", "core_wait_seconds")
"""Columns for time spent waiting for a core, the more accurate column first."""

LOCK: Final = "lock_seconds"

BY_CHANCE: Final = (*CORE_WAIT, LOCK)
"""Columns for time lost to other activity, which is not attributed to the chunk."""

PHASES: Final = tuple(
    phase.column for phase in phases.PHASES if phase.part != "saving" and phase.column not in BY_CHANCE
)
"""Columns for phases that depend on a chunk's events or file."""

OF_CHUNKS: Final = (
    *("id", "dataset", "file", "entry_start", "entry_stop", "worker", "wall_seconds"),
    *("events", "bytes_payload", *PHASES),
)


class Slow(NamedTuple):
    """A slow worker, host, endpoint or file, or a dataset with more work per event than others."""

    kind: str
    name: str
    factor: float
    """Chunk duration relative to the duration expected elsewhere."""
    interval: tuple[float, float]
    """90 % interval of `factor`."""
    seconds: float
    """Thread time beyond the model's prediction, excluding waits for a core or the GIL."""
    chunks: int
    phase: str | None = None
    """Phase with most of the excess, such as `read` (waiting for storage) or `compute`; None if not measured."""
    host: str | None = None
    confounded_with: tuple[tuple[str, str], ...] = ()
    """Kinds and names of levels that explain the same chunks nearly as well. The run cannot distinguish them."""


@dataclass(frozen=True)
class Slowness:
    """Slow levels, and chunk durations compared with the model."""

    slow: list[Slow]
    """Levels that are significantly slower than the others, sorted by lost time, largest first."""
    chunks: pa.Table
    """Computed chunk attempts whose results were used. In addition to OF_CHUNKS, the columns are `slowness` (of worker
    and host) and `expected_seconds` (predicted per dataset from event and byte counts, including all effects and
    contention)."""
    coded: _Coded
    """The same attempts as arrays."""
    typical: Numbers
    """Their durations predicted without effects."""


@dataclass(frozen=True)
class _Coded:
    table: pa.Table
    seconds: Numbers
    lost: Numbers
    """Time spent waiting for a core or the GIL, or on garbage collection; excluded from `seconds`."""
    levels: Mapping[str, Groups]
    names: Mapping[str, Sequence[str | None]]
    parts: Mapping[str, tuple[Groups, Integers]]
    """Workers on each host and files on each endpoint, with the index of each part's level."""
    host_of: Integers
    """Index of each worker's host."""
    first: Flags
    counts: Flags
    """Whether the model uses the chunk: it has events, and is not the first of several chunks on its thread."""
    traits: Numbers
    """Variables (rows) on which a chunk's duration depends linearly."""

    def counted(self, levels: Groups) -> Groups:
        return Groups(levels.codes[self.counts], len(levels.sizes))


@dataclass(frozen=True)
class _Fitted:
    blame: Blame
    typical: Numbers
    effect: Numbers
    usual: Flags


@fact
def slowness(counted_chunks: pa.Table, lifetimes: pa.Table | None = None) -> Slowness:
    computed = with_endpoints(with_outcome(counted_chunks, (chunk_records.OK,)))
    chunks = _coded(rows_where(computed, computed["wall_seconds"].is_valid()), lifetimes)
    refuse_if(not len(chunks.seconds), "no chunk with a duration was computed")
    fitted = _fitted(chunks)
    # each dataset's duration per event relative to the others, with slow levels' effects removed
    common = predicted(chunks.traits[:2], chunks.seconds / np.exp(fitted.effect), fitted.usual)
    values = (np.log(chunks.seconds / common) - fitted.effect)[chunks.counts]
    datasets = chunks.counted(chunks.levels[DATASET])
    number = int(np.count_nonzero(datasets.sizes))
    heavy = estimated(values, datasets, Noise.around(values, [datasets]), number, scatter=False)
    # datasets differ naturally: a factor below 2 is not surprising
    large = (heavy.low > np.log(2.0)) & (datasets.sizes > 1) & (number > 1)
    slow = [*_slow(chunks, fitted, heavy, np.flatnonzero(large))]
    return Slowness(sorted(slow, key=lambda one: -one.seconds), _expected(chunks, fitted), chunks, fitted.typical)


def _coded(table: pa.Table, lifetimes: pa.Table | None) -> _Coded:
    """Encode the chunks as arrays. Durations exclude time lost to other activity."""
    wall, events = amounts(table, "wall_seconds"), amounts(table, "events")
    # a full garbage collection takes as long as a short chunk and can happen in any chunk
    collected = _known(table, "gc_seconds")
    lost = _known(table, *CORE_WAIT) + _known(table, LOCK) + collected
    seconds = np.maximum(wall - lost, np.maximum(np.minimum(amounts(table, "cpu_seconds"), wall) - collected, SMALLEST))
    encoded = {kind: named_codes(table[kind]) for kind in (WORKER, ENDPOINT, FILE, DATASET)}
    names: dict[str, Sequence[str | None]] = {kind: values.to_pylist() for kind, (_, values) in encoded.items()}
    levels = {kind: Groups(own, len(names[kind])) for kind, (own, _) in encoded.items()}
    parts = {}
    # a worker with an unknown host counts as a separate host
    known = (
        {} if lifetimes is None else dict(zip(*lifetimes.select(["worker", "host"]).to_pydict().values(), strict=True))
    )
    host_of, hosts = pd.factorize(pd.Index([known.get(one) or f"\0{one}" for one in names[WORKER]], dtype=object))
    names[HOST] = [None if host.startswith("\0") else host for host in hosts]
    if 1 < len(hosts) < len(host_of):
        levels = {HOST: Groups(host_of[levels[WORKER].codes], len(hosts))} | levels
        parts[HOST] = levels[WORKER], host_of
    number = len(names[ENDPOINT])
    pairs = levels[FILE].codes * number + levels[ENDPOINT].codes if number > 1 else levels[ENDPOINT].codes
    rows, of_pairs = named_codes(pa.array(pairs))
    if 1 < number < len(of_pairs):
        parts[ENDPOINT] = Groups(rows, len(of_pairs)), of_pairs.to_numpy() % number
    else:
        del levels[ENDPOINT]
    timed = not table["thread"].null_count and not table["start"].null_count
    first, worker = first_of_threads(table, np.full(len(table), timed)), levels[WORKER].codes
    later = np.bincount(worker, ~first, minlength=len(names[WORKER]))[worker]
    # for workers with fewer than three later chunks, also use the first chunk on each thread
    counts = (~first | (later < 3)) & ((events > 0) | (not events.any()))
    traits = np.stack([np.ones(len(wall)), events, amounts(table, "bytes_payload")])
    return _Coded(table, seconds, wall - seconds, levels, names, parts, host_of, first, counts, traits)


def _known(table: pa.Table, *names: str) -> Numbers:
    """Time per chunk in seconds, from the first of these columns with a value; 0 if all are empty."""
    known = [table[name] for name in names if name in table.column_names]
    return np.array(pc.cast(pc.coalesce(*known, pa.scalar(0.0)), pa.float64())) if known else np.zeros(len(table))


def _fitted(chunks: _Coded) -> _Fitted:
    """Fit the law, then the culprits' effects. Repeat once with durations corrected for these effects."""
    every = {kind: chunks.levels[kind] for kind in KINDS if kind in chunks.levels}
    groups = {kind: chunks.counted(levels) for kind, levels in every.items()}
    parts = {kind: Parts(chunks.counted(levels), whole) for kind, (levels, whole) in chunks.parts.items()}
    effect = slow = np.zeros(len(chunks.seconds))
    usual, datasets = ~chunks.first, chunks.levels[DATASET]
    for _ in range(2):
        plain = chunks.seconds / np.exp(effect)
        typical = typical_seconds(datasets, chunks.traits, plain, usual)
        # exclude stragglers: a straggler with rare traits would dominate the law that predicts its duration
        typical = typical_seconds(datasets, chunks.traits, plain, usual & (plain <= USUAL * typical))
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
    """Effect of being a thread's first chunk; 0 if most chunks are first chunks."""
    number = int(is_first.sum())
    if not number or 2 * number > len(values):
        return 0.0
    return max(float(np.sort(values[is_first])[(number - 1) // 2] - np.median(values[~is_first])), 0.0)


def _slow(chunks: _Coded, fitted: _Fitted, heavy: Estimates, datasets: Integers) -> Iterator[Slow]:
    """Describe all blamed levels and heavy datasets that have a name."""
    if not len(datasets) and not any(effects.any() for effects in fitted.blame.effects.values()):
        return
    usual = _Usual(chunks, fitted)
    for kind, effects in fitted.blame.effects.items():
        for level in np.flatnonzero(effects):
            others = fitted.blame.confounded.get((kind, int(level)), [])
            yield from usual.described((kind, int(level)), fitted.blame.estimates[kind], others)
    codes = chunks.levels[DATASET].codes
    for level in datasets:
        # hosts, workers, endpoints and files with exactly the same chunks
        rows = codes == level
        own = [(kind, int(chunks.levels[kind].codes[rows][0])) for kind in KINDS if kind in chunks.levels]
        same = [(kind, one) for kind, one in own if np.array_equal(chunks.levels[kind].codes == one, rows)]
        yield from usual.described((DATASET, int(level)), heavy, same)


class _Usual:
    """Describes slow levels by comparing their time in each phase with that of normal chunks in the same dataset."""

    def __init__(self, chunks: _Coded, fitted: _Fitted) -> None:
        self.chunks, self.fitted = chunks, fitted
        self.dataset = chunks.levels[DATASET].codes
        self.phases = np.column_stack([chunks.seconds, *(amounts(chunks.table, name) for name in PHASES)])
        free = np.flatnonzero((fitted.effect == 0) & fitted.usual & chunks.counts)
        number = len(chunks.names[DATASET])
        sums = [np.bincount(self.dataset[free], weights, number) for weights in self.phases[free].T]
        self.of_datasets = np.column_stack(sums)

    def described(self, who: tuple[str, int], estimates: Estimates, same: Iterable[tuple[str, int]]) -> Iterator[Slow]:
        """Describe a slow level, identified by its kind and index. Levels without a name are skipped."""
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
            interval=(float(np.exp(estimates.likely_low[level])), float(np.exp(estimates.likely_high[level]))),
            seconds=float(np.sum(chunks.seconds[rows] - expected)),
            chunks=len(rows),
            phase=self.excess(kind, rows, expected),
            host=chunks.names[HOST][chunks.host_of[level]] if kind == WORKER else None,
            confounded_with=tuple((other, text) for other, text in others if text is not None),
        )

    def excess(self, kind: str, rows: Integers, expected: Numbers) -> str | None:
        """Phase with the largest excess over the usual time."""
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
    integer_column("id", "ID of the attempt's record in the `chunks` table"),
    *picked(chunk_records.CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    text_column("worker", "address of the worker"),
    seconds_column("wall_seconds", "duration of the attempt"),
    seconds_column(
        "expected_seconds",
        "duration predicted from event and byte counts, waits for a core, and the slowness of the worker and file",
    ),
    seconds_column("excess_seconds", "time beyond the expected duration"),
    text_column(
        "phase", "phase with the largest excess over the dataset's median; none if no phase exceeds its median"
    ),
)


@fact
def expected_seconds(slowness: Slowness) -> pa.Table:
    """`Slowness.chunks`, if there are enough chunks to identify slow chunks."""
    number = len(slowness.chunks)
    refuse_if(number < FEWEST_TO_FIT, f"only {number} chunks: finding a slow one takes at least {FEWEST_TO_FIT}")
    return slowness.chunks


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    wall, expected = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "expected_seconds")
    excess, dataset = wall - expected, codes(expected_seconds["dataset"])
    of_datasets = Groups(dataset, int(dataset.max(initial=-1)) + 1)
    spread = of_datasets.medians(np.abs(excess))[dataset]
    # caches, disks and the lock cause smaller excesses, a busy machine may delay any chunk by 0.1 s, and some durations
    # vary naturally
    slow = np.flatnonzero((wall > 2 * expected) & (excess > np.maximum(6 * spread, 0.1)))
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    times = (amounts(expected_seconds, name) for name in PHASES)
    beyond = np.stack([each[slow] - of_datasets.medians(each)[dataset[slow]] for each in times])
    names = pa.array([name.removesuffix("_seconds") for name in PHASES])
    phase = names.take(pa.array(np.argmax(beyond, axis=0), mask=beyond.max(axis=0) <= 0))
    rows = rows.append_column("phase", phase)
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


@fact
def slow_places(slowness: Slowness) -> Sequence[Slow]:
    return slowness.slow


@fact
def slow_workers(slowness: Slowness) -> list[str]:
    return [one.name for one in slowness.slow if one.kind == WORKER]


@metric(
    COUNT, group=TIMING, source="chunk records", label="stragglers", formula="chunks that took far longer than expected"
)
def num_stragglers(stragglers: pa.Table) -> int:
    """Number of outlier chunks that took over twice as long as predicted for their size and worker."""
    return len(stragglers)


@metric(SECOND, group=TIMING, source="chunk records", label="stragglers: excess", formula="sum of excess_seconds")
def straggler_seconds(stragglers: pa.Table) -> float:
    """Total time by which stragglers exceeded their expected durations."""
    return float(pc.sum(stragglers["excess_seconds"], min_count=0).as_py())


CPU_BOUND: Final = "CPU"
WAITING: Final = "wait"
MIXED: Final = "both"

BALANCE_COLUMNS: Final = (
    *picked(LIFETIME_COLUMNS, "worker", "host"),
    Column("threads", "integer", "threads", "number of task threads"),
    seconds_column("present_seconds", "total time during which the worker was present"),
    integer_column("chunks", "number of computed chunks whose results were used"),
    Column("events", "integer", "events", "number of events in these chunks"),
    seconds_column("chunk_seconds", "total duration of these chunks"),
    seconds_column("cpu_seconds", "total CPU time of these chunks"),
    Column("busy_share", "number", None, "total chunk duration / (threads x time present)"),
    Column("cpu_share", "number", None, "total CPU time / total chunk duration"),
    text_column("bound", f'"{CPU_BOUND}" or "{WAITING}" if it takes at least 80 % of chunk time, otherwise "{MIXED}"'),
    Column(
        "slowness",
        "number",
        None,
        "slowdown factor relative to other workers for the same work; 1 if the difference may be due to chance",
    ),
    seconds_column("spill_seconds", "time Dask spent writing results to disk and reading them back"),
    seconds_column("transfer_seconds", "time Dask spent fetching results from other workers"),
    seconds_column("clock_offset", "worker clock minus client clock, estimated from the bounds set by task timestamps"),
)


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
    """Aggregate rows by worker. A worker that reconnected gets a single row."""
    if table is None:
        return {}
    # "first" and "last" depend on the order of the rows
    made = aggregated(table, ["worker"], steps, None, use_threads=False)
    return {row.pop("worker"): row for row in made.to_pylist()}


def _shares(offered: float, work: Mapping[str, Any]) -> dict[str, Any]:
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
    """Busy share of the busiest worker, divided by the mean over all workers; 1 means balanced."""
    refuse_if(worker_balance["chunk_seconds"].null_count, "chunk durations are unknown")
    loads = pc.drop_null(worker_balance["busy_share"])
    mean = pc.mean(loads).as_py()
    refuse_if(not mean, "no worker computed a chunk")
    return float(pc.max(loads).as_py() / mean)
