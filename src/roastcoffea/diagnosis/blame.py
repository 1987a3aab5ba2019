"""Find the slow levels of each factor: the fewest that explain the most, from levels side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import scipy

from roastcoffea.metrics.statistics import Flags, Integers, Numbers

ERROR_RATE: Final = 0.05
"""Probability that any interval bound is violated in a run without a slow level, over all levels."""

OF_A_MEDIAN: Final = 1.2533
"""Standard error of a median divided by that of a mean, for normal noise."""

EFFICIENCY: Final = 0.4
"""Fraction of the values that determine the median absolute deviation, for normal noise."""

TAIL: Final = 0.1
"""Fraction of the noise in its upper tail, whose decay predicts how often still longer chunks occur."""

ENOUGH_LEVELS: Final = 6
"""Number of levels from which their own scatter is estimated; a level within it is not slow."""

BELOW: Final = 0.16
"""Fraction of normally scattered levels more than one standard deviation below the typical one."""

CERTAIN: Final = 1.5
"""Standard deviations allowed for the tail being more frequent than in the sample."""

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

        Few values lie in the tail, so its frequency is uncertain: the upper bound of it is used.
        """
        unsure = CERTAIN * np.sqrt(chance * (1 - chance) / len(self.values))
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
    chance = ERROR_RATE / max(tests, 1)
    # of few values take the lower median: one of two is half of them and may be an odd chunk
    needed = np.where(sizes < BETWEEN, sizes - (sizes - 1) // 2, (sizes + 1) / 2)
    sure = np.where(sizes < BETWEEN, lower, middle)
    within = noise.above(scipy.special.betaincinv(needed, sizes - needed + 1, chance)) - noise.middle
    far = float(scipy.special.stdtrit(max(EFFICIENCY * noise.freedom, 1.0), 1 - chance))
    error = OF_A_MEDIAN * noise.scale
    own = np.maximum(within, far * error / np.sqrt(sizes))
    natural = _scatter(middle, reference, levels, error) if scatter else 0.0
    margin = np.sqrt(own**2 + (far * error) ** 2 / others + (far * natural) ** 2)
    effect = middle - reference
    return Estimates(effect, sure - reference - margin, effect + margin, reference)


def _scatter(medians: Numbers, reference: Numbers, levels: Levels, error: float) -> float:
    """Scatter of levels in excess of their medians' error, from the faster side: slow levels are not natural."""
    there = levels.sizes > 0
    number = int(np.count_nonzero(there))
    if number < ENOUGH_LEVELS:
        return 0.0
    spread = float(np.median(reference[there]) - np.quantile(medians[there], BELOW))
    by_chance = (1 + 1.9 / np.sqrt(number)) * error / np.sqrt(np.median(levels.sizes[there]))
    return float(np.sqrt(max(spread**2 - by_chance**2, 0.0))) if spread > 0 else 0.0


HOST: Final = "host"
WORKER: Final = "worker"
ENDPOINT: Final = "endpoint"
FILE: Final = "file"
KINDS: Final = (HOST, WORKER, ENDPOINT, FILE)
"""Factors that can make chunks of a dataset slow."""

PREFERRED: Final = {kind: 1 - 1e-6 * place for place, kind in enumerate(KINDS)}
"""If two levels explain the same, the first kind is blamed."""

LEAST: Final = float(np.log(1.3))
"""Smallest effect of a slow level: equal machines differ by less, in caches and clocks."""

MANY: Final = 4
"""Chunks that the typical other worker must have before a single chunk can show that its worker is slow.

The chunk may be slow, not the worker. But a worker that finished one chunk while the others finished many lost that
time, whatever the reason. Where all have one or two chunks, a long one is just a straggler.
"""

AS_GOOD: Final = 0.9
"""Share of a level's explained time from which another level is an alternative."""

STEPS: Final = 8

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
    known: Blame | None = None,
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
    known
        Result for slightly different values, as a starting point.
    """
    noise = Noise.around(values, [dataset, groups[WORKER], groups[FILE]])
    tests = sum(int(_eligible(kind, group).sum()) for kind, group in groups.items())
    effects = dict(known.effects) if known else {kind: np.zeros(len(group.sizes)) for kind, group in groups.items()}
    confounded = dict(known.confounded) if known else {}
    for _ in range(STEPS):
        rest = _centred(values - total(effects, groups), dataset)
        candidates = _candidates(rest, groups, noise, tests, parts)
        scores = {kind: PREFERRED[kind] * _explained(rest, groups[kind], found) for kind, found in candidates.items()}
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
    single = kind == WORKER and len(there) > 1 and np.median(there) >= MANY
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
