"""Find the slow levels of each factor: the fewest that explain the most, and their alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.diagnosis.levels import Estimates, Levels, Noise, estimated
from roastcoffea.metrics.statistics import Flags, Integers, Numbers

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
