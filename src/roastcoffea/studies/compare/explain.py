"""Why two runs differ: their difference in thread time and in wall time as a sum of parts with a cause each.

Thread time is the sum of the time ledger's classes. Each class is a product of what there was to do (events, bytes,
chunks) and what a unit of it cost, and wall time is thread time over the number of threads. A product's difference is
shared out among its factors in all orders in which they could have changed (Shapley), so that parts have no rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from math import prod
from statistics import fmean
from typing import Final, NamedTuple

from roastcoffea.metrics import phases
from roastcoffea.metrics.ledger import RESIDUAL
from roastcoffea.studies.compare.observations import OF_BRANCHES, Observation, Work, bytes_of_branches
from roastcoffea.units import BYTE, FRACTION, SECOND, number, three_digits

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

OF_CLIENT: Final[Mapping[str, str]] = {"before": START_UP, "between": BETWEEN, "after": AFTER}

LEAST_SHARED: Final = 0.1
"""Share of the work that has to have been on hosts of both runs to tell nodes from code."""

CROWDED: Final = 0.1
"""Share of the chunks' time from which on waiting for a core is told."""

OTHER_SIZE: Final = 1.25
"""Factor from which on chunks differ in size."""

MOST_BRANCHES: Final = 4
MOST_REMARKS: Final = 4


class Factor(NamedTuple):
    """One factor of an amount, before and after, and the cause that its change is."""

    cause: str
    before: float
    after: float
    of: str = ""
    """What the seconds of a cost are for: "an event"; none where they are those of the class itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A cause with its share of the difference: `rows` has the thread seconds by class of the time ledger."""

    cause: str
    text: str
    thread_seconds: float
    wall_seconds: float
    rows: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Parts of the difference of two runs, the largest in wall time first; where there are none, `absent` says why.

    With repeats it is the difference of the runs in the middle by wall time, which `remarks` name, or of the means of
    two: medians of classes do not sum to those of totals, and may be of different runs.
    """

    parts: Sequence[Part] = ()
    thread_seconds: float = 0.0
    """Difference in thread time, which is the sum of that of the parts."""
    wall_seconds: float = 0.0
    """Difference in wall time, which is the sum of that of the parts."""
    remarks: Sequence[str] = ()
    absent: str | None = None

    @property
    def rest(self) -> float:
        """Difference in wall time less that of all parts."""
        return self.wall_seconds - sum(part.wall_seconds for part in self.parts)


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


# What is compared: amounts of the run in the middle of the repeats, or the means of two


class Volumes(NamedTuple):
    """What there was to do, and the threads to do it; None for what is not known."""

    events: float | None
    bytes: float | None
    chunks: float | None
    threads: float


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


@dataclass(slots=True)
class Sides:
    """One run of each side, or two, and the branches that only one side reads."""

    before: Sequence[Observation]
    after: Sequence[Observation]
    new: frozenset[str] = field(init=False)
    gone: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        first, second = (frozenset().union(*(one.branches for one in side)) for side in (self.before, self.after))
        known = bool(first and second)
        self.new, self.gone = (second - first, first - second) if known else (frozenset(), frozenset())

    def means(self, amount: Callable[[Observation], float]) -> tuple[float, float]:
        """Means of an amount before and after."""
        return fmean(map(amount, self.before)), fmean(map(amount, self.after))

    def volumes(self) -> tuple[Volumes, Volumes]:
        """Means of what there was to do."""
        return _volumes(self.before), _volumes(self.after)


def _middle(side: Sequence[Observation]) -> list[Observation]:
    """The run in the middle by wall time; of an even number the two."""
    ordered = sorted(side, key=_wall_seconds)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def _volumes(side: Sequence[Observation]) -> Volumes:
    return Volumes(
        _known_mean(one.metrics.get("total_events") for one in side),
        _known_mean(bytes_of_branches(one) for one in side),
        _known_mean(one.metrics.get("num_chunks") for one in side),
        fmean(map(_thread_seconds, side)) / fmean(map(_wall_seconds, side)),
    )


def _wall_seconds(one: Observation) -> float:
    return one.metrics["elapsed_time_seconds"]


def _thread_seconds(one: Observation) -> float:
    return one.thread_seconds


def _known_mean(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return fmean(known) if len(known) == len(listed) else None


def explained(before: Sequence[Observation], after: Sequence[Observation]) -> Explanation:
    """Why the runs after differ from those before."""
    lacking = [f"{one.name}: {one.time_absent}" for one in (*before, *after) if one.time_absent is not None]
    if lacking:
        return Explanation(absent="; ".join(dict.fromkeys(lacking)))
    sides = Sides(_middle(before), _middle(after))
    volumes = sides.volumes()
    if not all(volume.threads for volume in volumes):
        return Explanation(absent="no worker thread was there")
    found = _explanation(sides, volumes, _shared_rates(sides))
    return replace(found, remarks=[*_of_the_middle(before, after, sides), *found.remarks])


def _of_the_middle(before: Sequence[Observation], after: Sequence[Observation], sides: Sides) -> list[str]:
    """Which of the repeats are explained, where these are not all."""
    if len(before) + len(after) == len(sides.before) + len(sides.after):
        return []
    names = (" and ".join(one.name for one in side) for side in (sides.before, sides.after))
    return [f"of the repeats those in the middle by wall time are explained: {', and '.join(names)}"]


class Share(NamedTuple):
    """What a factor has of the difference of a class, in thread seconds and in wall seconds."""

    row: str
    factor: Factor
    thread_seconds: float
    wall_seconds: float


def _explanation(sides: Sides, volumes: tuple[Volumes, Volumes], shared: Mapping[str, float]) -> Explanation:
    leaves = _leaves(sides)
    shares = [share for leaf in leaves for share in _shares(leaf, _factors(leaf, *volumes, shared), *volumes)]
    parts = [_part(cause, shares, sides, volumes) for cause in dict.fromkeys(share.factor.cause for share in shares)]
    threads, wall = sides.means(_thread_seconds), sides.means(_wall_seconds)
    return Explanation(
        parts=sorted((part for part in parts if part.thread_seconds or part.wall_seconds), key=_size, reverse=True),
        thread_seconds=threads[1] - threads[0],
        wall_seconds=wall[1] - wall[0],
        remarks=_remarks(sides, volumes, shared),
    )


def _size(part: Part) -> tuple[float, float]:
    return abs(part.wall_seconds), abs(part.thread_seconds)


def _leaves(sides: Sides) -> list[Leaf]:
    """All classes of the ledger, some of them in parts."""
    names = dict.fromkeys(name for one in (*sides.before, *sides.after) for name in one.time)
    leaves: list[Leaf] = []
    for name in names:
        if name == phases.CLIENT:
            leaves += _leaves_of_client(sides)
        elif name in OF_BRANCHES and (sides.new or sides.gone):
            leaves += _leaves_of_branches(sides, name)
        else:
            leaves.append(Leaf(name, DRIVERS.get(name), *sides.means(partial(_of_class, name=name))))
    return leaves


def _of_class(one: Observation, name: str) -> float:
    return one.time.get(name, 0.0)


def _leaves_of_client(sides: Sides) -> list[Leaf]:
    """Idle time that the client makes, by when it made it; what is not told apart is between tasks."""

    def rest(one: Observation) -> float:
        return one.time.get(phases.CLIENT, 0.0) - sum(one.client_of.get(when, 0.0) for when in ("before", "after"))

    def told(when: str) -> Callable[[Observation], float]:
        return rest if when == "between" else lambda one: one.client_of.get(when, 0.0)

    return [Leaf(phases.CLIENT, THREADS, *sides.means(told(when)), cause=cause) for when, cause in OF_CLIENT.items()]


def _leaves_of_branches(sides: Sides, name: str) -> list[Leaf]:
    """A class by branches that only one side reads, and all the rest of it."""
    leaves = []
    for cause, some in ((NEW_BRANCHES, sides.new), (GONE_BRANCHES, sides.gone)):
        seconds = sides.means(partial(_seconds_of, branches=some, name=name))
        volume = sides.means(partial(_bytes_of, branches=some))
        leaves.append(Leaf(name, BYTES, *seconds, volume=volume, cause=cause))
    apart = sides.new | sides.gone
    rest = sides.means(lambda one: one.time.get(name, 0.0) - _seconds_of(one, apart, name))
    volume = sides.means(lambda one: (bytes_of_branches(one) or 0.0) - _bytes_of(one, apart))
    return [*leaves, Leaf(name, BYTES, *rest, volume=volume)]


def _seconds_of(one: Observation, branches: frozenset[str], name: str) -> float:
    return sum(branch.seconds[name] for known, branch in one.branches.items() if known in branches)


def _bytes_of(one: Observation, branches: frozenset[str]) -> float:
    return sum(branch.bytes for known, branch in one.branches.items() if known in branches)


# Factors


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


def _shares(leaf: Leaf, factors: list[Factor], before: Volumes, after: Volumes) -> list[Share]:
    """What each factor has of a leaf's difference."""
    threads = shapley(factors)
    if leaf.driver == THREADS and len(factors) > 1:
        wall = [0.0, *shapley(factors[1:])]
    else:
        factors = [*factors, Factor(THREADS, 1 / before.threads, 1 / after.threads)]
        threads, wall = [*threads, 0.0], shapley(factors)
    return [Share(leaf.row, *share) for share in zip(factors, threads, wall, strict=True)]


# Nodes


DRIVEN: Final = tuple(name for name in phases.COLUMNS_OF if DRIVERS.get(name) in {EVENTS, BYTES, CHUNKS})
"""Classes of which it is known for each host how much there was to do."""


def _shared_rates(sides: Sides) -> dict[str, float]:
    """By how many times the cost of a unit of each class changed on hosts of both sides, where there are others too."""
    first, second = ({host for one in side for host in one.hosts} for side in (sides.before, sides.after))
    both = first & second
    if not both or first == second:
        return {}
    found = {}
    for name in DRIVEN:
        old, new = (_rate(side, both, name) for side in (sides.before, sides.after))
        if old and new:
            found[name] = new / old
    return found


def _rate(side: Sequence[Observation], hosts: set[str], name: str) -> float | None:
    """Seconds of a class per unit of its volume on some hosts; None where they did too little of it."""
    here = [work for one in side for host, work in one.hosts.items() if host in hosts]
    total = sum(_volume_of(work, name) for one in side for work in one.hosts.values())
    volume = sum(_volume_of(work, name) for work in here)
    if not total or volume < LEAST_SHARED * total:
        return None
    return sum(work.seconds[name] for work in here) / volume


def _volume_of(work: Work, name: str) -> float:
    return {EVENTS: work.events, BYTES: work.bytes, CHUNKS: work.chunks}[DRIVERS[name]]


# Words


def _part(cause: str, shares: Iterable[Share], sides: Sides, volumes: tuple[Volumes, Volumes]) -> Part:
    """All shares of a cause together."""
    mine = [share for share in shares if share.factor.cause == cause]
    of_rows: dict[str, float] = {}
    for share in mine:
        of_rows[share.row] = of_rows.get(share.row, 0.0) + share.thread_seconds
    return Part(
        cause=cause,
        text=_text(cause, sides, volumes) or _cost(mine[-1].factor),
        thread_seconds=sum(share.thread_seconds for share in mine),
        wall_seconds=sum(share.wall_seconds for share in mine),
        rows={row: threads for row, threads in of_rows.items() if threads},
    )


def _text(cause: str, sides: Sides, volumes: tuple[Volumes, Volumes]) -> str | None:
    """What changed; None for the cost of a class."""
    before, after = volumes
    if cause == EVENTS:
        return _instead("events", before.events, after.events)
    if cause == THREADS:
        return _instead("threads", before.threads, after.threads)
    if cause == CHUNK_SIZE:
        sizes = [v.events / v.chunks if v.events and v.chunks else None for v in volumes]
        return f"{_instead('events', *sizes)} in a chunk ({_instead('chunks', before.chunks, after.chunks)})"
    if cause in (NEW_BRANCHES, GONE_BRANCHES):
        side, some = (sides.after, sides.new) if cause == NEW_BRANCHES else (sides.before, sides.gone)
        size = fmean(_bytes_of(one, some) for one in side)
        return f"{_branches(some)}, {BYTE.text(size) if size else 'whose baskets came with the tree'}"
    if cause == SAME_BRANCHES:
        return "of branches that both read: other data, baskets read again"
    return OWN_TEXTS.get(cause)


OWN_TEXTS: Final[Mapping[str, str]] = {
    NODES: "other hosts did the same slower or faster than those of both runs",
    START_UP: "idle before the first task",
    BETWEEN: "idle while nothing was to be done",
    AFTER: "idle after the last task",
    RESIDUAL: "in no class of the time ledger",
}


def _cost(own: Factor) -> str:
    """Cost of a unit of a class, else its thread seconds, before and after."""
    new, old = SECOND.text(own.after), SECOND.text(own.before)
    return f"{new} {own.of} instead of {old}" if own.of else f"{new} of threads instead of {old}"


def _instead(what: str, before: float | None, after: float | None) -> str:
    return f"{_count(after)} {what[:-1] if after == 1 else what} instead of {_count(before)}"


def _count(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of"
    return number(three_digits(amount) if amount < 1e3 else amount)


def _branches(names: frozenset[str]) -> str:
    listed = sorted(names)
    told = ", ".join(listed[:MOST_BRANCHES])
    return told if len(listed) <= MOST_BRANCHES else f"{told} and {len(listed) - MOST_BRANCHES} more"


def _remarks(sides: Sides, volumes: tuple[Volumes, Volumes], shared: Mapping[str, float]) -> list[str]:
    """What has to be known to read an explanation."""
    first, second = ({host for one in side for host in one.hosts} for side in (sides.before, sides.after))
    remarks = [f"{one.name}: the {reason}" for one in (*sides.before, *sides.after) for reason in one.incomplete]
    if len(remarks) > MOST_REMARKS:
        remarks = [*remarks[:MOST_REMARKS], f"{len(remarks) - MOST_REMARKS} more such remarks on single runs"]
    if first and second and first != second and not shared:
        remarks.append(
            "they ran on different hosts, with too little work on the same ones: what a unit of work cost more or less "
            "may come from code or from hosts"
        )
    remarks += [
        f"in {one.name} chunks waited for a core for {FRACTION.text(one.core_wait_share)} of their time, "
        "which is in wait: others used the hosts, or there are more threads than cores"
        for one in (*sides.before, *sides.after)
        if one.core_wait_share is not None and one.core_wait_share > CROWDED
    ]
    sizes = [volume.events / volume.chunks for volume in volumes if volume.events and volume.chunks]
    if len(sizes) == len(volumes) and max(sizes) > OTHER_SIZE * min(sizes):
        remarks.append("chunks differ in size: what process() takes for a chunk of any size is in the cost of an event")
    return list(dict.fromkeys(remarks))
