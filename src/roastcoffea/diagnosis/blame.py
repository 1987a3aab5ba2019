"""Find the slow levels of each factor: those that explain most with the fewest levels, and their alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.diagnosis.levels import Judged, Levels, Noise, judged
from roastcoffea.metrics.statistics import Flags, Integers, Numbers

HOST: Final = "host"
WORKER: Final = "worker"
FILE: Final = "file"
KINDS: Final = (HOST, WORKER, FILE)
"""Factors by which chunks of a dataset may be slow."""

PREFERRED: Final = {kind: 1 - 1e-6 * place for place, kind in enumerate(KINDS)}
"""Where two explain the same, the first kind is blamed."""

LEAST: Final = float(np.log(1.3))
"""Smallest effect of a slow level: equal machines differ by less, in caches and clocks."""

MANY: Final = 4
"""Chunks that the typical other worker must have before a single chunk can show that its worker is slow.

The chunk may be slow, not the worker. But a worker that finished one chunk while the others finished many lost that
time, whatever the reason. Where all have one or two chunks, a long one is just a straggler.
"""

AS_GOOD: Final = 0.9
"""Share of what a level explains that makes another one an alternative."""

STEPS: Final = 8

Named = tuple[str, int]


class Blame(NamedTuple):
    """Logarithms of factors by kind and level: of those that are blamed (else 0), and of all with their intervals."""

    effects: dict[str, Numbers]
    judged: dict[str, Judged]
    confounded: dict[Named, list[Named]]


def blamed(
    values: Numbers, groups: Mapping[str, Levels], dataset: Levels, host_of: Integers, known: Blame | None = None
) -> Blame:
    """Find the slow levels, the one that explains most first, until no level is beyond the others.

    Parameters
    ----------
    values
        Logarithm of what each chunk took divided by what is typical of its dataset.
    groups
        Levels of KINDS, as far as there are any.
    host_of
        Host of each worker, by number.
    known
        Who was blamed before, by values that were a little different.
    """
    noise = Noise.around(values, [dataset, groups[WORKER], groups[FILE]])
    tests = sum(int(_eligible(kind, group).sum()) for kind, group in groups.items())
    effects = dict(known.effects) if known else {kind: np.zeros(len(group.sizes)) for kind, group in groups.items()}
    confounded = dict(known.confounded) if known else {}
    for _ in range(STEPS):
        rest = _centred(values - total(effects, groups), dataset)
        candidates = _candidates(rest, groups, noise, tests, host_of)
        scores = {kind: PREFERRED[kind] * _explained(rest, groups[kind], found) for kind, found in candidates.items()}
        rivals = {kind: _rivals(kind, scores, groups) for kind in groups}
        accepted = {kind: scores[kind] > rivals[kind] for kind in groups}
        if not any(found.any() for found in accepted.values()):
            break
        for kind, found in accepted.items():
            effects[kind] = np.where(found, effects[kind] + candidates[kind].effect, effects[kind])
            for level in np.flatnonzero(found & (rivals[kind] >= AS_GOOD * scores[kind])):
                confounded[kind, int(level)] = _as_good(kind, int(level), scores, groups)
    beside = _judged_beside_each_other(values, groups, dataset, partial(judged, noise=noise, tests=tests), effects)
    still = {named: rest for named, rest in confounded.items() if effects[named[0]][named[1]] > 0}
    return Blame(effects, beside, still)


def total(effects: Mapping[str, Numbers], groups: Mapping[str, Levels]) -> Numbers:
    """Sum of the effects of each chunk's levels."""
    return np.asarray(sum((effects[kind][group.codes] for kind, group in groups.items()), start=np.zeros(1)))


def _centred(values: Numbers, dataset: Levels) -> Numbers:
    return np.asarray(values - dataset.medians(values)[0][dataset.codes])


def _eligible(kind: str, group: Levels) -> Flags:
    """Levels that have enough chunks to be told from one odd chunk."""
    there = group.sizes[group.sizes > 0]
    single = kind == WORKER and len(there) > 1 and np.median(there) >= MANY
    return group.sizes >= (1 if single else 2)


def _candidates(
    rest: Numbers, groups: Mapping[str, Levels], noise: Noise, tests: int, host_of: Integers
) -> dict[str, Judged]:
    """Levels that are beyond the others by themselves; the effect of the rest is 0."""
    found = {}
    for kind, group in groups.items():
        seen = judged(rest, group, noise, tests)
        slow = (seen.low > LEAST) & _eligible(kind, group) & (np.count_nonzero(group.sizes) > 1)
        if kind == HOST:
            slow &= _slow_as_a_whole(rest, groups[WORKER], host_of, seen)
        found[kind] = seen._replace(effect=np.where(slow, seen.effect, 0.0))
    return found


def _slow_as_a_whole(rest: Numbers, workers: Levels, host_of: Integers, seen: Judged) -> Flags:
    """Whether each worker of a host is slow, and there is more than one: else it is a worker that is slow."""
    there = workers.sizes > 0
    middle = workers.medians(rest)[1]
    fastest = np.full(len(seen.effect), np.inf)
    np.minimum.at(fastest, host_of[there], middle[there])
    numbers = np.bincount(host_of[there], minlength=len(seen.effect))
    return (numbers > 1) & (fastest > seen.reference + seen.effect / 2)


def _explained(rest: Numbers, group: Levels, found: Judged) -> Numbers:
    """How much nearer each level's chunks are to what the others take, with its effect."""
    rows = np.flatnonzero(found.effect[group.codes]) if found.effect.any() else np.array([], np.int64)
    levels = group.codes[rows]
    beyond = rest[rows] - found.reference[levels]
    gain = np.abs(beyond) - np.abs(beyond - found.effect[levels])
    return np.maximum(np.bincount(levels, gain, minlength=len(found.effect)), 0.0)


def _rivals(kind: str, scores: Mapping[str, Numbers], groups: Mapping[str, Levels]) -> Numbers:
    """For each level how much the best level of another kind explains that has chunks of it."""
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


def _judged_beside_each_other(
    values: Numbers,
    groups: Mapping[str, Levels],
    dataset: Levels,
    judge: Callable[..., Judged],
    effects: dict[str, Numbers],
) -> dict[str, Judged]:
    """Judge each kind with the effects of the others removed; levels that are no longer slow lose their effect."""
    found = {}
    for kind, group in groups.items():
        centred = _centred(values - total(effects, groups), dataset)
        found[kind] = judge(centred + effects[kind][group.codes], group, slow=effects[kind] > 0)
        stays = (effects[kind] > 0) & (found[kind].low > LEAST)
        effects[kind] = np.where(stays, found[kind].effect, 0.0)
    return found
