"""Why two runs differ: their difference in thread time and in wall time as a sum of parts with causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, permutations
from math import prod
from statistics import fmean
from typing import Final, NamedTuple

from roastcoffea.metrics import phases
from roastcoffea.metrics.phases import RESIDUAL
from roastcoffea.studies.compare.observations import (
    OF_BRANCHES,
    OF_LOAD,
    SPLIT,
    Fixed,
    Observation,
    bytes_of_branches,
    fixed_costs,
)
from roastcoffea.units import BYTE, FRACTION, SECOND, number, three_digits

EVENTS: Final = "events"
NEW_BRANCHES: Final = "newly read branches"
GONE_BRANCHES: Final = "branches no longer read"
SAME_BRANCHES: Final = "bytes per event"
CHUNK_SIZE: Final = "chunk size"
THREADS: Final = "threads"
NODES: Final = "nodes"
BEFORE: Final = "client before the first task"
BETWEEN: Final = "client between tasks"
AFTER: Final = "client after the last task"

BYTES: Final = "bytes"
CHUNKS: Final = "chunks"

DRIVERS: Final = {one.name: one.grows_with for one in phases.TIME_CLASSES if one.grows_with is not None}
"""What each class of the time ledger grows with; the others (preprocessing, failed, other tasks) are themselves."""

A_BYTE: Final = dict.fromkeys((NEW_BRANCHES, GONE_BRANCHES, SAME_BRANCHES), "per byte")
UNITS: Final = {EVENTS: "per event", CHUNK_SIZE: "per chunk", THREADS: "per thread", **A_BYTE}
"""What a cost is for, by the last of the volumes that it is multiplied with."""


class Factor(NamedTuple):
    """One factor of an amount, before and after, and the cause that its change is."""

    cause: str
    before: float
    after: float
    of: str = ""
    """What the seconds of a cost are for: "per event"; none where they are those of the class itself."""


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
    factors, (before, after) = _factors(leaf, *volumes, shared), volumes
    threads = shapley(factors)
    if leaf.driver == THREADS and len(factors) > 1:
        wall = [0.0, *shapley(factors[1:])]
    else:
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
    pairs = zip(amounts, (events.before, events.after), strict=True)
    before, after = ((amount or 0.0) / number if number else 0.0 for amount, number in pairs)
    return Factor(cause, before, after)


def _with_cost(volumes: list[Factor], leaf: Leaf, own: str, shared_rate: float) -> list[Factor] | None:
    """Volumes with what a unit of them cost; None where seconds came of no volume.

    Of a side that had nothing to do the cost of a unit is not known: it is taken to be that of the other side.
    `shared_rate` is by how many times it changed on hosts of both sides, where there are others as well.
    """
    first, second = prod(factor.before for factor in volumes), prod(factor.after for factor in volumes)
    if (leaf.before and not first) or (leaf.after and not second) or not (first or second):
        return None
    old = leaf.before / first if first else leaf.after / second
    new = leaf.after / second if second else old
    of = UNITS[volumes[-1].cause]
    if not (shared_rate != 1.0 and old and new and first and second):
        return [*volumes, Factor(own, old, new, of)]
    return [*volumes, Factor(own, old, old * shared_rate, of), Factor(NODES, 1.0, new / (old * shared_rate))]


# Leaves


OTHER_SIZE: Final = 1.25
"""Factor above which chunks differ in size."""

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
    def other_sizes(self) -> bool:
        """Whether chunks differ in size."""
        sizes = [volume.chunk_size for volume in self.volumes if volume.chunk_size]
        return len(sizes) == len(self.volumes) and max(sizes) > OTHER_SIZE * min(sizes)

    @cached_property
    def fixed(self) -> dict[str, Fixed]:
        """What chunks cost whatever their size, by class in process(), where they differ in size."""
        if not self.other_sizes:
            return {}
        sides = [[run.products for run in side] for side in (self.before, self.after)]
        # where other branches are read, those that both read would have to be told apart in each chunk
        names = [name for name in SPLIT if not (name in OF_BRANCHES and any(self.branches))]
        every_bytes = all(volume.bytes for volume in self.volumes)
        traits = {name: BYTES if DRIVERS[name] == BYTES and every_bytes else EVENTS for name in names}
        found = {name: fixed_costs(name, trait, *sides) for name, trait in traits.items()}
        return {name: fixed for name, fixed in found.items() if fixed is not None}

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


def _volumes(side: Sequence[Observation]) -> Volumes:
    return Volumes(
        _known_mean([run.metrics.get("total_events") for run in side]),
        _known_mean([bytes_of_branches(run) for run in side]),
        _known_mean([run.metrics.get("num_chunks") for run in side]),
        fmean(run.thread_seconds for run in side) / fmean(map(wall_seconds, side)),
    )


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


DRIVEN: Final = tuple(name for name in phases.COLUMNS_OF if DRIVERS.get(name) in (EVENTS, BYTES, CHUNKS))
"""Classes of which it is known for each host how much there was to do."""


def _rate(side: Sequence[Observation], hosts: set[str], name: str) -> float | None:
    """Seconds of a class per unit of its volume on some hosts; None where they did too little of it."""
    here = [work for run in side for host, work in run.hosts.items() if host in hosts]
    # events, bytes and chunks are fields of what was done
    total = sum(getattr(work, DRIVERS[name]) for run in side for work in run.hosts.values())
    volume: float = sum(getattr(work, DRIVERS[name]) for work in here)
    if not total or volume < LEAST_SHARED * total:
        return None
    return sum(work.seconds[name] for work in here) / volume


def leaves_of(pair: Pair) -> Iterator[Leaf]:
    """All classes of the ledger, some of them in parts."""
    for name in dict.fromkeys(name for run in pair.runs for name in run.time):
        if name == phases.CLIENT:
            # idle time that the client makes, by when it made it; what has no such time is between tasks
            for when, cause in (("before", BEFORE), ("between", BETWEEN), ("after", AFTER)):
                yield Leaf(name, THREADS, *pair.means(partial(_idle_for_client, when=when)), cause=cause)
        elif name in OF_BRANCHES and any(pair.branches):
            yield from _leaves_of_branches(pair, name)
        else:
            yield from _leaves_of_chunks(pair, name)


def _leaves_of_chunks(pair: Pair, name: str) -> Iterator[Leaf]:
    """A class by what chunks cost whatever their size, where that is known, and all the rest of it."""
    before, after = pair.means(partial(_of_class, name=name))
    fixed = pair.fixed.get(name)
    if fixed is not None:
        of_chunks = min(fixed.before, before), min(fixed.after, after)
        yield Leaf(name, CHUNKS, *of_chunks)
        before, after = before - of_chunks[0], after - of_chunks[1]
    yield Leaf(name, DRIVERS.get(name), before, after)


def _of_class(run: Observation, name: str) -> float:
    return run.time.get(name, 0.0)


def _idle_for_client(run: Observation, when: str) -> float:
    if when == "between":
        return _of_class(run, phases.CLIENT) - sum(run.client_of.get(known, 0.0) for known in ("before", "after"))
    return run.client_of.get(when, 0.0)


def _leaves_of_branches(pair: Pair, name: str) -> Iterator[Leaf]:
    """A class by branches that only one side reads, and all the rest of it."""
    new, gone = pair.branches
    for cause, some in ((NEW_BRANCHES, new), (GONE_BRANCHES, gone)):
        seconds = pair.means(partial(_seconds_of, branches=some, name=name))
        yield Leaf(name, BYTES, *seconds, volume=pair.means(partial(bytes_of, branches=some)), cause=cause)
    apart = new | gone
    rest = pair.means(lambda run: _of_class(run, name) - _seconds_of(run, apart, name))
    volume = pair.means(lambda run: (bytes_of_branches(run) or 0.0) - bytes_of(run, apart))
    yield Leaf(name, BYTES, *rest, volume=volume)


def _seconds_of(run: Observation, branches: frozenset[str], name: str) -> float:
    return sum(branch.seconds[name] for known, branch in run.branches.items() if known in branches)


def bytes_of(run: Observation, branches: frozenset[str]) -> float:
    """Bytes that were requested of some branches."""
    return sum(branch.bytes for known, branch in run.branches.items() if known in branches)


CPU: Final = (phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET)
"""Classes that are CPU time in process()."""

OF_CPU: Final = "of waiting for each second of computing"


def shares_of_load(
    leaf: Leaf, shares: Sequence[Share], cpu: tuple[float, float], volumes: tuple[Volumes, Volumes]
) -> list[Share]:
    """What each cause has of the difference of a class that load brings.

    `shares` are those of all other classes, and `cpu` is the CPU time in process() before and after.
    """
    (first, second), (before, after) = cpu, volumes
    if (leaf.before and not first) or (leaf.after and not second) or not (first or second):
        return shares_of(leaf, volumes, {})
    old = leaf.before / first if first else leaf.after / second
    rate = Factor(leaf.row, old, leaf.after / second if second else old, OF_CPU)
    per_thread = Factor(THREADS, 1 / before.threads, 1 / after.threads)
    seconds, second_more = Factor("CPU time", first, second), Factor("CPU time", 0.0, 1.0)
    threads, wall = shapley([second_more, rate])[0], shapley([second_more, rate, per_thread])[0]
    brought = [
        Share(leaf.row, share.factor, share.thread_seconds * threads, share.thread_seconds * wall)
        for share in shares
        if share.row in CPU and share.thread_seconds
    ]
    _, own, other_threads = shapley([seconds, rate, per_thread])
    alone = Share(leaf.row, rate, shapley([seconds, rate])[1], own)
    return [*brought, alone, Share(leaf.row, per_thread, 0.0, other_threads)]


CROWDED: Final = 0.1
"""Share of the chunks' time above which waiting for a core is mentioned."""

MOST_BRANCHES: Final = 4
MOST_REMARKS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A cause with its share of the difference.

    `rows` has the thread seconds by class of the time ledger, and `thread_seconds` is their sum. The waiting for a core
    or the interpreter that more CPU time brings is in these classes' own parts; `load_seconds` says how much of it came
    with this cause, whose wall time has it.
    """

    cause: str
    text: str
    thread_seconds: float
    wall_seconds: float
    rows: Mapping[str, float]
    load_seconds: float = 0.0


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


def explained(before: Sequence[Observation], after: Sequence[Observation]) -> Explanation:
    """Why the runs after differ from those before."""
    runs = (*before, *after)
    lacking = dict.fromkeys(f"{run.name}: {run.time_absent}" for run in runs if run.time_absent is not None)
    if lacking:
        return Explanation(absent="; ".join(lacking))
    pair = Pair(_middle(before), _middle(after))
    if not all(volume.threads for volume in pair.volumes):
        return Explanation(absent="no worker thread was there")
    shares = _shares(pair)
    causes = dict.fromkeys(share.factor.cause for share in shares)
    every = (_part(each, shares, pair) for each in causes)
    parts = [part for part in every if part.thread_seconds or part.wall_seconds]
    threads, wall = pair.means(lambda run: run.thread_seconds), pair.means(wall_seconds)
    names = (" and ".join(run.name for run in side) for side in (pair.before, pair.after))
    middle = f"of the repeats those in the middle by wall time are explained: {', and '.join(names)}"
    return Explanation(
        parts=sorted(parts, key=lambda part: (-abs(part.wall_seconds), -abs(part.thread_seconds))),
        thread_seconds=threads[1] - threads[0],
        wall_seconds=wall[1] - wall[0],
        remarks=[*([middle] if len(pair.runs) < len(runs) else []), *_remarks(pair)],
    )


def _shares(pair: Pair) -> list[Share]:
    """What each factor has of each class; last of those that load brings, as they follow CPU time."""
    leaves = [*leaves_of(pair)]
    shares = [
        share
        for leaf in leaves
        if leaf.row not in OF_LOAD
        for share in shares_of(leaf, pair.volumes, pair.shared_rates)
    ]
    cpu = pair.means(lambda run: sum(run.time.get(name, 0.0) for name in CPU))
    brought = [shares_of_load(leaf, shares, cpu, pair.volumes) for leaf in leaves if leaf.row in OF_LOAD]
    return [*shares, *chain.from_iterable(brought)]


def _middle(side: Sequence[Observation]) -> list[Observation]:
    """The run in the middle by wall time; of an even number the two."""
    ordered = sorted(side, key=wall_seconds)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def _part(cause: str, shares: Sequence[Share], pair: Pair) -> Part:
    """All shares of a cause together."""
    mine = [share for share in shares if share.factor.cause == cause]
    of_rows: dict[str, float] = {}
    # the change of a class that load brings is that of the ledger, whatever brought it
    for share in shares if cause in OF_LOAD else mine:
        if (share.row == cause) if cause in OF_LOAD else (share.row not in OF_LOAD):
            of_rows[share.row] = of_rows.get(share.row, 0.0) + share.thread_seconds
    # the cost of a unit of a class, else its thread seconds
    own, text = mine[-1].factor, _text(cause, pair)
    cost = f"{SECOND.text(own.after)} {own.of or 'of threads'} instead of {SECOND.text(own.before)}"
    return Part(
        cause=cause,
        text=text or cost,
        thread_seconds=sum(of_rows.values()),
        wall_seconds=sum(share.wall_seconds for share in mine),
        rows={row: threads for row, threads in of_rows.items() if threads},
        load_seconds=sum(share.thread_seconds for share in mine if share.row in OF_LOAD and share.row != cause),
    )


# Words


def _text(cause: str, pair: Pair) -> str | None:
    """What changed; None for the cost of a class."""
    before, after = pair.volumes
    if cause == EVENTS:
        return _instead("events", before.events, after.events)
    if cause == THREADS:
        return _instead("threads", before.threads, after.threads)
    if cause == CHUNK_SIZE:
        sizes = _instead("events", before.chunk_size, after.chunk_size)
        return f"{sizes} in a chunk ({_instead('chunks', before.chunks, after.chunks)}){_fixed(pair)}"
    if cause in (NEW_BRANCHES, GONE_BRANCHES):
        new, gone = pair.branches
        side, some = (pair.after, new) if cause == NEW_BRANCHES else (pair.before, gone)
        size, names = fmean(bytes_of(run, some) for run in side), sorted(some)
        more = f" and {len(names) - MOST_BRANCHES} more" if len(names) > MOST_BRANCHES else ""
        bytes_read = BYTE.text(size) if size else "whose baskets came with the tree"
        return f"{', '.join(names[:MOST_BRANCHES])}{more}, {bytes_read}"
    return OWN_TEXTS.get(cause)


OWN_TEXTS: Final[Mapping[str, str]] = {
    SAME_BRANCHES: "of branches that both read: other data, baskets read again",
    NODES: "other hosts did the same slower or faster than those of both runs",
    BEFORE: "idle before the first task",
    BETWEEN: "idle while nothing was to be done",
    AFTER: "idle after the last task",
    RESIDUAL: "in no class of the time ledger",
}


def _instead(what: str, before: float | None, after: float | None) -> str:
    new, old = (
        "an unknown number of" if amount is None else number(three_digits(amount) if amount < 1e3 else amount)
        for amount in (after, before)
    )
    return f"{new} {what[:-1] if after == 1 else what} instead of {old}"


def _fixed(pair: Pair) -> str:
    """Fixed cost of a chunk in process(), where it is known."""
    each = ", ".join(f"{SECOND.text(fixed.each)} ({name})" for name, fixed in pair.fixed.items())
    return f"; process() has a fixed cost per chunk of {each}" if each else ""


# Remarks


TOLD_APART: Final = (
    "chunks differ in size: a fit to the chunks of both sides separates the fixed cost of a chunk in process() from "
    "the cost of an event, and assumes that neither changed"
)
NOT_TOLD_APART: Final = (
    "chunks differ in size, but a fixed cost of a chunk in process() cannot be told apart from noise: it counts as "
    "cost of an event"
)


def _remarks(pair: Pair) -> list[str]:
    """What has to be known to read an explanation."""
    remarks = [f"{run.name}: the {reason}" for run in pair.runs for reason in run.incomplete]
    if len(remarks) > MOST_REMARKS:
        remarks = [*remarks[:MOST_REMARKS], f"{len(remarks) - MOST_REMARKS} more such remarks on single runs"]
    first, second = pair.hosts
    if first and second and first != second and not pair.shared_rates:
        remarks.append(
            "they ran on different hosts, with too little work on the same ones: what a unit of work cost more or less "
            "may come from code or from hosts"
        )
    remarks += [
        f"chunks of {run.name} waited for a core for {FRACTION.text(run.core_wait_share)} of their time "
        "(CPU contention): other processes used the hosts, or there are more threads than cores"
        for run in pair.runs
        if run.core_wait_share is not None and run.core_wait_share > CROWDED
    ]
    if pair.other_sizes:
        remarks.append(TOLD_APART if pair.fixed else NOT_TOLD_APART)
    return list(dict.fromkeys(remarks))
