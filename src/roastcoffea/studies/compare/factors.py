"""Factors of thread time: what there was to do and what a unit of it cost, and the share of each in a difference.

A product's difference is shared out among its factors in all orders in which they could have changed (Shapley), so that
shares have no rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Final, NamedTuple

from roastcoffea.metrics import phases

EVENTS: Final = "events"
NEW_BRANCHES: Final = "newly read branches"
GONE_BRANCHES: Final = "branches no longer read"
SAME_BRANCHES: Final = "bytes per event"
CHUNK_SIZE: Final = "chunk size"
THREADS: Final = "threads"
NODES: Final = "nodes"
START_UP: Final = "start-up"
BETWEEN: Final = "client between tasks"
AFTER: Final = "client after the last task"

BYTES: Final = "bytes"
CHUNKS: Final = "chunks"

DRIVERS: Final = {one.name: one.grows_with for one in phases.TIME_CLASSES if one.grows_with is not None}
"""What each class of the time ledger grows with; the others (preprocessing, failed, other tasks) are themselves."""

UNITS: Final[Mapping[str, str]] = {
    EVENTS: "an event",
    CHUNK_SIZE: "a chunk",
    THREADS: "a thread",
    **dict.fromkeys((NEW_BRANCHES, GONE_BRANCHES, SAME_BRANCHES), "a byte"),
}
"""What a cost is for, by the last of the volumes that it is multiplied with."""


class Factor(NamedTuple):
    """One factor of an amount, before and after, and the cause that its change is."""

    cause: str
    before: float
    after: float
    of: str = ""
    """What the seconds of a cost are for: "an event"; none where they are those of the class itself."""


def shapley(factors: Sequence[Factor]) -> list[float]:
    """Share of each factor in the difference of their products: the mean over all orders in which they can change."""
    shares = [0.0] * len(factors)
    orders = list(permutations(range(len(factors))))
    for order in orders:
        values = [factor.before for factor in factors]
        for place in order:
            unchanged = prod(values)
            values[place] = factors[place].after
            shares[place] += (prod(values) - unchanged) / len(orders)
    return shares


class Volumes(NamedTuple):
    """What there was to do, and the threads to do it; None for what is not known."""

    events: float | None
    bytes: float | None
    chunks: float | None
    threads: float

    @property
    def chunk_size(self) -> float | None:
        """Events of a chunk."""
        return self.events / self.chunks if self.events and self.chunks else None


class Leaf(NamedTuple):
    """Thread seconds of one class, or of a part of it, before and after."""

    row: str
    driver: str | None
    before: float
    after: float
    volume: tuple[float | None, float | None] = (None, None)
    """Bytes of the branches that are meant, where they are not those of all."""
    cause: str | None = None
    """Of the volume beside events; and (without a driver) of the seconds themselves."""


class Share(NamedTuple):
    """What a factor has of the difference of a class, in thread seconds and in wall seconds."""

    row: str
    factor: Factor
    thread_seconds: float
    wall_seconds: float


def shares_of(leaf: Leaf, volumes: tuple[Volumes, Volumes], shared: Mapping[str, float]) -> list[Share]:
    """What each factor has of a leaf's difference; `shared` has rates that changed on hosts of both sides."""
    factors = _factors(leaf, *volumes, shared)
    threads = shapley(factors)
    if leaf.driver == THREADS and len(factors) > 1:
        wall = [0.0, *shapley(factors[1:])]
    else:
        before, after = volumes
        factors = [*factors, Factor(THREADS, 1 / before.threads, 1 / after.threads)]
        threads, wall = [*threads, 0.0], shapley(factors)
    return [Share(leaf.row, *share) for share in zip(factors, threads, wall, strict=True)]


def _factors(leaf: Leaf, before: Volumes, after: Volumes, shared: Mapping[str, float]) -> list[Factor]:
    """Factors of a leaf's thread seconds, before and after; the seconds themselves where they came of no volume."""
    own = leaf.cause if leaf.cause and leaf.row == phases.CLIENT else leaf.row
    shared_rate = 1.0 if leaf.cause else shared.get(leaf.row, 1.0)
    found = _with_cost(_volume_factors(leaf, before, after), leaf, own, shared_rate) if leaf.driver else None
    return found or [Factor(leaf.cause or own, leaf.before, leaf.after)]


def _volume_factors(leaf: Leaf, before: Volumes, after: Volumes) -> list[Factor]:
    """What there was to do for a leaf, as a product."""
    if leaf.driver == THREADS:
        return [Factor(THREADS, before.threads, after.threads)]
    events = Factor(EVENTS, before.events or 0.0, after.events or 0.0)
    if leaf.driver == CHUNKS:
        return [events, _per_event(CHUNK_SIZE, (before.chunks, after.chunks), events)]
    if leaf.driver == BYTES:
        amounts = leaf.volume if None not in leaf.volume else (before.bytes, after.bytes)
        # baskets that came with the tree have no bytes of their own: then it grows with events
        if any(amounts) or leaf.cause:
            return [events, _per_event(leaf.cause or SAME_BRANCHES, amounts, events)]
    return [events]


def _per_event(cause: str, amounts: tuple[float | None, float | None], events: Factor) -> Factor:
    """Amounts per event; 0 where they are not known."""
    first, second = amounts
    return Factor(cause, _ratio(first, events.before), _ratio(second, events.after))


def _ratio(amount: float | None, events: float) -> float:
    return (amount or 0.0) / events if events else 0.0


def _with_cost(volumes: list[Factor], leaf: Leaf, own: str, shared_rate: float) -> list[Factor] | None:
    """Volumes with what a unit of them cost; None where seconds came of no volume.

    Of a side that had nothing to do the cost of a unit is not known: it is taken to be that of the other side.
    `shared_rate` is by how many times it changed on hosts of both sides, where there are others as well.
    """
    first, second = prod(factor.before for factor in volumes), prod(factor.after for factor in volumes)
    if (leaf.before and not first) or (leaf.after and not second) or not (first or second):
        return None
    cost = [seconds / volume if volume else None for seconds, volume in ((leaf.before, first), (leaf.after, second))]
    old = cost[0] if cost[0] is not None else cost[1] or 0.0
    new = cost[1] if cost[1] is not None else old
    of = UNITS[volumes[-1].cause]
    if not (shared_rate != 1.0 and old and new and first and second):
        return [*volumes, Factor(own, old, new, of)]
    return [*volumes, Factor(own, old, old * shared_rate, of), Factor(NODES, 1.0, new / (old * shared_rate))]
