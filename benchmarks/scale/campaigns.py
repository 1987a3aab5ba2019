"""Campaigns of five sizes with one planted limit each, drawn at random; its turning point follows from the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from roastcoffea.records.run import Run

from .plan import Plan
from .simulated import simulated

GROWTH: Final = 2
SIZES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Runs of one analysis with five numbers of workers, what limits them, and from how many workers on."""

    name: str
    plan: Plan
    sizes: tuple[int, ...]
    cause: str
    turning: float
    seed: int
    same_seed: bool = False
    """Whether all runs have the same chunks, rather than chunks like them."""
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What differs with so many workers."""

    def plan_of(self, workers: int) -> Plan:
        """The plan of a run."""
        return replace(self.plan, **self.changes.get(workers, {}))

    def runs(self) -> Iterator[Run]:
        """Simulated runs, in the order in which they were made; files are cold in the first one."""
        for place, workers in enumerate(self.sizes):
            seed = self.seed if self.same_seed else self.seed + place
            yield simulated(self.plan_of(workers), workers, seed=seed, first=not place, place=place)

    def hurried(self, chunk_seconds: float) -> Campaign:
        """The same campaign with chunks of so many seconds: everything is faster, in proportion."""
        factor = self.plan.chunk_seconds() / chunk_seconds
        return replace(self, plan=_faster(self.plan, factor))

    def step(self, workers: float) -> int:
        """Place of the size that is nearest to a number of workers, by ratio."""
        return int(np.argmin(np.abs(np.log(np.array(self.sizes) / workers))))


class Draw:
    """What campaigns draw at random."""

    def __init__(self, seed: int, *, smallest: tuple[int, ...], waves: float) -> None:
        self.seed = seed
        self.random = np.random.default_rng(seed)
        fewest = int(self.random.choice(smallest))
        self.sizes = tuple(fewest * GROWTH**step for step in range(SIZES))
        self.chunks = round(waves * self.sizes[-1])

    def between(self, low: float, high: float) -> float:
        """A number between two, by ratio."""
        return float(np.exp(self.random.uniform(np.log(low), np.log(high))))

    def knee(self) -> float:
        """A number of workers within the sizes: not the smallest, and below half of the largest."""
        return self.between(self.sizes[1], 0.45 * self.sizes[-1])

    def plan(self, **changes: Any) -> Plan:
        """An analysis of no particular kind."""
        usual = {
            "chunks": self.chunks,
            "cpu": self.between(4, 15),
            "size": self.between(20e6, 80e6),
            "stream_rate": self.between(15e6, 60e6),
            "requests": round(self.between(10, 40)),
            "latency": self.between(0.002, 0.01),
            "spread": self.between(0.1, 0.3),
            "per_host": self.sizes[0],
            "xrootd": bool(self.random.integers(2)),
        }
        return Plan(**usual | changes)


def storage(draw: Draw) -> Campaign:
    """All streams together get no more than the storage has."""
    plan = draw.plan(cpu=draw.between(2, 6), size=draw.between(60e6, 120e6))
    knee = draw.knee()
    demand = (plan.size + plan.metadata) / plan.chunk_seconds()
    return _campaign(draw, "storage saturated", replace(plan, storage_rate=knee * demand), "storage bandwidth", knee)


def latency(draw: Draw) -> Campaign:
    """Requests take long, and the storage serves a limited number of connections."""
    plan = draw.plan(latency=draw.between(0.03, 0.15), requests=round(draw.between(20, 60)), stream_rate=60e6)
    knee = draw.knee()
    held = (plan.requests + plan.metadata_requests) * plan.latency + (plan.size + plan.metadata) / plan.stream_rate
    connections = max(round(knee * held / plan.chunk_seconds()), 1)
    knee = connections * plan.chunk_seconds() / held
    return _campaign(draw, "storage latency", replace(plan, connections=connections), "storage latency", knee)


def scheduler(draw: Draw) -> Campaign:
    """Tiny chunks, of which the scheduler handles so many per second."""
    plan = draw.plan(cpu=draw.between(0.1, 0.4), size=1e6, metadata=1e5, build=0.05, requests=3, metadata_requests=1)
    plan = replace(plan, chunks=4 * draw.chunks, result=1e4, prepare=1e-5)
    knee = draw.knee()
    taken = plan.chunk_seconds() / knee
    return _campaign(draw, "scheduler saturated", replace(plan, scheduler=taken), "scheduler", knee)


def results(draw: Draw) -> Campaign:
    """Large results, which are merged over a network of limited bandwidth."""
    plan = draw.plan(result=draw.between(5e7, 4e8), gather_rate=1e11, merge_rate=1e11)
    knee = draw.knee()
    rate = knee * plan.result * (1 + 1 / (plan.tree - 1)) / plan.chunk_seconds()
    return _campaign(draw, "large outputs", replace(plan, network_rate=rate), "merging and transfer", knee)


def client(draw: Draw) -> Campaign:
    """A client that takes its time for each chunk before it submits."""
    plan = draw.plan()
    knee = draw.knee()
    return _campaign(draw, "slow client", replace(plan, prepare=plan.chunk_seconds() / knee), "client", knee)


def late(draw: Draw) -> Campaign:
    """Workers beyond a number come when those before them have done most of the work."""
    plan = draw.plan()
    step = int(draw.random.integers(1, 3))
    there = draw.sizes[step]
    alone = plan.chunks * plan.chunk_seconds() / there
    plan = replace(plan, late_after=there, late_seconds=draw.between(0.6, 0.85) * alone)
    return _campaign(draw, "late workers", plan, "late workers", draw.sizes[step + 1])


def slow_host(draw: Draw) -> Campaign:
    """One host that is slower than the others, from one of the sizes on."""
    plan = draw.plan(cpu=draw.between(8, 20))
    step = int(draw.random.integers(1, 3))
    plan = replace(plan, slow_hosts={draw.sizes[step] // draw.sizes[0] - 1: draw.between(2.5, 4)})
    return _campaign(draw, "one slow host", plan, "slow hosts", draw.sizes[step])


def cold(draw: Draw) -> Campaign:
    """A cache that has none of the files when the first run reads them."""
    plan = draw.plan(size=draw.between(60e6, 120e6))
    demand = (plan.size + plan.metadata) / plan.chunk_seconds()
    plan = replace(plan, cold_rate=draw.between(0.25, 0.5) * demand * draw.sizes[0])
    return _campaign(draw, "XCache cold", plan, "cold cache", draw.sizes[0])


def _faster(plan: Plan, factor: float) -> Plan:
    """The same plan, in which everything takes less time by a factor."""
    shorter = ("cpu", "build", "latency", "prepare", "late_seconds", "scheduler")
    faster = ("merge_rate", "network_rate", "storage_rate", "stream_rate", "gather_rate", "cold_rate")
    changes = {name: getattr(plan, name) / factor for name in shorter}
    changes |= {name: getattr(plan, name) * factor for name in faster if getattr(plan, name) is not None}
    return replace(plan, **changes)


def _campaign(draw: Draw, name: str, plan: Plan, cause: str, turning: float) -> Campaign:
    return Campaign(name=name, plan=plan, sizes=draw.sizes, cause=cause, turning=turning, seed=draw.seed)


PLANTED: Final[tuple[Callable[[Draw], Campaign], ...]] = (
    storage, latency, scheduler, results, client, late, slow_host, cold,
)  # fmt: skip


def planted(seed: int, *, smallest: tuple[int, ...] = (6, 8, 10, 12), waves: float = 8) -> list[Campaign]:
    """A campaign of each kind.

    Parameters
    ----------
    smallest
        Numbers of workers of which one is drawn for the smallest size; each further one is twice as large.
    waves
        Chunks for each worker of the largest size.
    """
    return [make(Draw(100 * seed + place, smallest=smallest, waves=waves)) for place, make in enumerate(PLANTED)]
