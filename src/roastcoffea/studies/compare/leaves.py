"""Classes of the time ledger before and after, some of them in parts: by branches, and by when the client made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Final

from roastcoffea.metrics import phases
from roastcoffea.studies.compare import factors
from roastcoffea.studies.compare.factors import Leaf, Volumes
from roastcoffea.studies.compare.observations import OF_BRANCHES, Observation, Work, bytes_of_branches

LEAST_SHARED: Final = 0.1
"""Share of the work that has to have been on hosts of both runs to tell nodes from code."""


@dataclass(frozen=True)
class Pair:
    """One run of each side, or two."""

    before: Sequence[Observation]
    after: Sequence[Observation]

    @property
    def runs(self) -> list[Observation]:
        """All of them."""
        return [*self.before, *self.after]

    @cached_property
    def branches(self) -> tuple[frozenset[str], frozenset[str]]:
        """Branches that only the runs after read, and those that only the runs before did; none where not known."""
        before, after = (frozenset().union(*(run.branches for run in side)) for side in (self.before, self.after))
        return (after - before, before - after) if before and after else (frozenset(), frozenset())

    @cached_property
    def hosts(self) -> tuple[set[str], set[str]]:
        """Hosts before and after."""
        before, after = ({host for run in side for host in run.hosts} for side in (self.before, self.after))
        return before, after

    @cached_property
    def volumes(self) -> tuple[Volumes, Volumes]:
        """Means of what there was to do."""
        return _volumes(self.before), _volumes(self.after)

    @cached_property
    def shared_rates(self) -> dict[str, float]:
        """By how many times the cost of a unit of each class changed on hosts of both, where there are others too."""
        first, second = self.hosts
        both = first & second
        if not both or first == second:
            return {}
        rates = {name: (_rate(self.before, both, name), _rate(self.after, both, name)) for name in DRIVEN}
        return {name: after / before for name, (before, after) in rates.items() if before and after}

    def means(self, amount: Callable[[Observation], float]) -> tuple[float, float]:
        """Means of an amount before and after."""
        return fmean(map(amount, self.before)), fmean(map(amount, self.after))


def wall_seconds(run: Observation) -> float:
    """Wall time of a run."""
    return run.metrics["elapsed_time_seconds"]


def thread_seconds(run: Observation) -> float:
    """Thread time of a run."""
    return run.thread_seconds


def _volumes(side: Sequence[Observation]) -> Volumes:
    return Volumes(
        _known_mean([run.metrics.get("total_events") for run in side]),
        _known_mean([bytes_of_branches(run) for run in side]),
        _known_mean([run.metrics.get("num_chunks") for run in side]),
        fmean(map(thread_seconds, side)) / fmean(map(wall_seconds, side)),
    )


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


PER_HOST: Final = {factors.EVENTS, factors.BYTES, factors.CHUNKS}
DRIVEN: Final = tuple(name for name in phases.COLUMNS_OF if factors.DRIVERS.get(name) in PER_HOST)
"""Classes of which it is known for each host how much there was to do."""


def _rate(side: Sequence[Observation], hosts: set[str], name: str) -> float | None:
    """Seconds of a class per unit of its volume on some hosts; None where they did too little of it."""
    here = [work for run in side for host, work in run.hosts.items() if host in hosts]
    total = sum(_volume_of(work, name) for run in side for work in run.hosts.values())
    volume = sum(_volume_of(work, name) for work in here)
    if not total or volume < LEAST_SHARED * total:
        return None
    return sum(work.seconds[name] for work in here) / volume


def _volume_of(work: Work, name: str) -> float:
    return {factors.EVENTS: work.events, factors.BYTES: work.bytes, factors.CHUNKS: work.chunks}[factors.DRIVERS[name]]


# Leaves


def leaves_of(pair: Pair) -> Iterator[Leaf]:
    """All classes of the ledger, some of them in parts."""
    for name in dict.fromkeys(name for run in pair.runs for name in run.time):
        if name == phases.CLIENT:
            yield from _leaves_of_client(pair)
        elif name in OF_BRANCHES and any(pair.branches):
            yield from _leaves_of_branches(pair, name)
        else:
            yield Leaf(name, factors.DRIVERS.get(name), *pair.means(partial(_of_class, name=name)))


def _of_class(run: Observation, name: str) -> float:
    return run.time.get(name, 0.0)


def _leaves_of_client(pair: Pair) -> Iterator[Leaf]:
    """Idle time that the client makes, by when it made it; what has no such time is between tasks."""
    for when, cause in (("before", factors.START_UP), ("between", factors.BETWEEN), ("after", factors.AFTER)):
        yield Leaf(phases.CLIENT, factors.THREADS, *pair.means(partial(_idle_for_client, when=when)), cause=cause)


def _idle_for_client(run: Observation, when: str) -> float:
    if when == "between":
        return _of_class(run, phases.CLIENT) - sum(run.client_of.get(known, 0.0) for known in ("before", "after"))
    return run.client_of.get(when, 0.0)


def _leaves_of_branches(pair: Pair, name: str) -> Iterator[Leaf]:
    """A class by branches that only one side reads, and all the rest of it."""
    new, gone = pair.branches
    for cause, some in ((factors.NEW_BRANCHES, new), (factors.GONE_BRANCHES, gone)):
        seconds = pair.means(partial(_seconds_of, branches=some, name=name))
        yield Leaf(name, factors.BYTES, *seconds, volume=pair.means(partial(bytes_of, branches=some)), cause=cause)
    apart = new | gone
    rest = pair.means(lambda run: _of_class(run, name) - _seconds_of(run, apart, name))
    volume = pair.means(lambda run: (bytes_of_branches(run) or 0.0) - bytes_of(run, apart))
    yield Leaf(name, factors.BYTES, *rest, volume=volume)


def _seconds_of(run: Observation, branches: frozenset[str], name: str) -> float:
    return sum(branch.seconds[name] for known, branch in run.branches.items() if known in branches)


def bytes_of(run: Observation, branches: frozenset[str]) -> float:
    """Bytes that were requested of some branches."""
    return sum(branch.bytes for known, branch in run.branches.items() if known in branches)
