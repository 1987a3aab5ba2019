"""Shares of thread time that limits take, by number of workers, as measured and as resampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.scaling import costs as limits
from roastcoffea.studies.scaling.costs import Costs
from roastcoffea.studies.scaling.laws import INTERVAL, SEED, Scaled
from roastcoffea.studies.scaling.pace import Loop, Pace
from roastcoffea.studies.scaling.reading import Reading

RESAMPLES: Final = 200

GROWING: Final = (*(limit.name for limit in limits.LIMITS if limit.grows), limits.WORK)
"""Of these the excess over the least is lost, of the others everything."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All that is known of a run."""

    scaled: Scaled
    start: float
    costs: Costs
    reading: Reading | None
    pace: Pace
    scheduler: Loop | None = None

    def per_event(self) -> dict[str, Numbers]:
        """Thread seconds per event of each limit: the measured ones, and those of resampled workers,
        each as much faster or slower as runs of such chunks can be."""
        random = np.random.default_rng([SEED, self.scaled.workers])
        many = max(len(amounts) for amounts in self.costs.seconds.values())
        weights = random.multinomial(many, np.full(many, 1 / many), RESAMPLES) if many else np.zeros((RESAMPLES, 0))
        all_of_it = np.vstack([np.ones(many), weights])
        all_of_it[1:] *= np.exp(self.scaled.scatter * random.standard_normal(RESAMPLES))[:, None]
        events = self.scaled.events
        return {
            name: np.asarray(all_of_it @ amounts / events, np.float64) for name, amounts in self.costs.seconds.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What limits take: arrays of sizes x (measured, resampled ...).

    `lost` are thread seconds per event; `ideal` are those without any limit. `cold` is the place of a size whose files
    were not in the cache, if there is one.
    """

    workers: Numbers
    lost: Mapping[str, Numbers]
    ideal: Numbers
    work: Numbers
    least: int
    """Place of the size with the least waiting for storage per event."""
    cold: int | None

    @property
    def total(self) -> Numbers:
        """All thread seconds per event."""
        return self.ideal + sum(self.lost.values(), np.zeros_like(self.ideal))

    def share(self, name: str) -> Numbers:
        """Share of all thread time that a limit takes."""
        return np.asarray(self.lost[name] / self.total)

    def useful_but_for(self, name: str) -> Numbers:
        """How many workers would be useful if this were the only limit."""
        return np.asarray(self.workers[:, None] * self.ideal / (self.ideal + self.lost[name]))

    def useful(self) -> Numbers:
        """How many workers are useful."""
        return np.asarray(self.workers[:, None] * self.ideal / self.total)


def shares_of(groups: Sequence[Sequence[Judged]]) -> Shares:
    """Shares of all sizes; `groups` have the runs of one size each, ascending."""
    costs = [[one.per_event() for one in group] for group in groups]
    cold = _cold(groups, costs)
    names = [*(limit.name for limit in limits.LIMITS), limits.WORK, limits.COLD]
    mean = {name: np.array([_mean(group, name, place) for place, group in enumerate(costs)]) for name in names}
    # the least is found among the measured ones: else chance would make it less
    least = {name: int(np.argmin(mean[name][:, 0])) for name in GROWING}
    ideal = sum((mean[name][place] for name, place in least.items()), np.zeros(RESAMPLES + 1))
    lost = {
        name: np.clip(amounts - amounts[least[name]], 0.0, None) if name in GROWING else np.clip(amounts, 0.0, None)
        for name, amounts in mean.items()
    }
    # threads that take more CPU time for the same events get in each other's way
    lost[limits.CONTENTION] = lost[limits.CONTENTION] + lost.pop(limits.WORK)
    workers = np.array([group[0].scaled.workers for group in groups], np.float64)
    return Shares(workers, lost, ideal, mean[limits.WORK], least[limits.STORAGE], cold)


def _mean(group: Sequence[Mapping[str, Numbers]], name: str, place: int) -> Numbers:
    """Mean over the runs of a size, and over resampled runs."""
    amounts = np.array([one.get(name, np.zeros(RESAMPLES + 1)) for one in group])
    picked = np.random.default_rng([SEED, place]).integers(len(group), size=(len(group), RESAMPLES + 1))
    picked[:, 0] = np.arange(len(group))
    return np.asarray(np.take_along_axis(amounts, picked, axis=0).mean(axis=0))


def _cold(groups: Sequence[Sequence[Judged]], costs: list[list[dict[str, Numbers]]]) -> int | None:
    """Find a first run that waited longer for the same bytes than one with as many workers or more.

    More streams cannot make each of them faster, a cache that has been filled can. Its excess moves out of storage.
    """
    every = [(run.start, size, place) for size, group in enumerate(groups) for place, run in enumerate(group)]
    first, size, place = min(every)
    if [start for start, _, _ in every].count(first) > 1:
        return None
    own = costs[size][place][limits.STORAGE]
    others = [
        cost[limits.STORAGE]
        for at, group in enumerate(costs[size:], start=size)
        for number, cost in enumerate(group)
        if (at, number) != (size, place)
    ]
    least = min(others, key=lambda other: float(other[0]), default=None)
    if least is None or np.quantile(own[1:], INTERVAL[0]) <= np.quantile(least[1:], INTERVAL[1]):
        return None
    costs[size][place] |= {limits.COLD: np.clip(own - least, 0.0, None), limits.STORAGE: np.minimum(own, least)}
    return size


def named_storage(shares: Shares, groups: Sequence[Sequence[Judged]]) -> tuple[Shares, Numbers | None]:
    """Shares with storage under the name of what it lacks; and the share of requests in what the waiting grew by."""
    lost = dict(shares.lost)
    grown = lost.pop(limits.STORAGE)
    of_requests = _of_requests(groups, int(np.argmax(grown[:, 0] / shares.total[:, 0])), shares.least)
    name = limits.LATENCY if of_requests is not None and of_requests[0] > 0.5 else limits.BANDWIDTH
    return replace(shares, lost={name: grown} | lost), of_requests


def _of_requests(groups: Sequence[Sequence[Judged]], most: int, least: int) -> Numbers | None:
    """How much of what waiting per chunk grew by goes with requests; the rest goes with bytes."""
    now, before = (next((run.reading for run in groups[place] if run.reading), None) for place in (most, least))
    if now is None or before is None or most == least:
        return None
    requests = np.clip(now.of_requests - before.of_requests, 0.0, None)
    size = np.clip(now.of_bytes - before.of_bytes, 0.0, None)
    both = requests + size
    return np.asarray(np.where(both > 0, requests / np.where(both > 0, both, 1.0), 0.0))
