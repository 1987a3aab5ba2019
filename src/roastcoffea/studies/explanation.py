"""Why two runs differ: their difference in thread time and in wall time as a sum of parts with causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.observations import (
    OF_BRANCHES,
    OF_LOAD,
    SPLIT,
    Fixed,
    Observation,
    bytes_of_branches,
    fixed_costs,
)
from roastcoffea.units import BYTE, FRACTION, SECOND, number, three_digits

EVENTS, BYTES, CHUNKS, THREADS = "events", "bytes", "chunks", "threads"
"""What there was to do, and the threads to do it."""

NEW_BRANCHES, GONE_BRANCHES = "newly read branches", "branches no longer read"
SAME_BRANCHES: Final = "bytes per event"
CHUNK_SIZE: Final = "chunk size"
NODES: Final = "nodes"
CLIENT: Final = {
    "before": "client before the first task",
    "between": "client between tasks",
    "after": "client after the last task",
}

DRIVERS: Final[Mapping[str, str]] = {
    one.name: one.grows_with for one in phases.TIME_CLASSES if one.grows_with is not None
}
"""What each class of the time ledger grows with; the others (preprocessing, failed, other tasks) are themselves."""

CPU: Final = (phases.COMPUTE, phases.DECOMPRESS, phases.INTERPRET)
"""Classes that are CPU time in process()."""

Both = Numbers
"""An amount before and after."""


def divided(one: Both, other: Both) -> Both:
    """What each of two factors has of the difference of their product: its change times the mean of the other."""
    return np.array([np.diff(one).sum() * other.mean(), np.diff(other).sum() * one.mean()])


class Leaf(NamedTuple):
    """Thread seconds of one class, or of a part of it, before and after.

    `own` is the cause that a change of its cost is, `apart` the cause that a change of its bytes is, of branches that
    only one side read. `bytes` are those of the branches that are meant, where they are not those of all.
    """

    row: str
    seconds: Both
    driver: str | None
    own: str
    apart: str | None = None
    bytes: Both | None = None


class Pair(NamedTuple):
    """The runs that are explained, before and after."""

    before: Observation
    after: Observation

    def of(self, amount: Callable[[Observation], float | None]) -> Both:
        """An amount before and after; 0 where it is not known."""
        return np.array([amount(run) or 0.0 for run in self])

    def volume(self, name: str) -> Both:
        """What there was to do."""
        if name == BYTES:
            return self.of(bytes_of_branches)
        if name == THREADS:
            return self.of(lambda run: run.thread_seconds / run.wall_seconds)
        return self.of(lambda run: run.metrics.get("total_events" if name == EVENTS else "num_chunks"))

    @property
    def other_sizes(self) -> bool:
        """Whether chunks differ in size."""
        sizes = _each(self.volume(EVENTS), self.volume(CHUNKS))
        return bool(sizes.all() and sizes.max() > 1.25 * sizes.min())

    @property
    def branches(self) -> tuple[set[str], set[str]]:
        """Branches that only the run after read, and those that only the run before did; none where not known."""
        before, after = set(self.before.branches), set(self.after.branches)
        return (after - before, before - after) if before and after else (set(), set())

    def fixed(self) -> dict[str, Fixed]:
        """What chunks cost whatever their size, by class in process(), where they differ in size."""
        found = {}
        # where other branches are read, those that both read would have to be told apart in each chunk
        for name in (one for one in SPLIT if self.other_sizes and not (one in OF_BRANCHES and any(self.branches))):
            trait = BYTES if DRIVERS[name] == BYTES and self.volume(BYTES).all() else EVENTS
            fixed = fixed_costs(name, trait, self.before.sizes, self.after.sizes)
            if fixed is not None:
                found[name] = fixed
        return found

    def shared_rates(self) -> dict[str, float]:
        """By how many times the cost of a unit of each class changed on hosts of both, where there are others too."""
        both = self.before.hosts.keys() & self.after.hosts.keys()
        if not both or self.before.hosts.keys() == self.after.hosts.keys():
            return {}
        rates = {
            name: self.of(partial(_rate, hosts=both, name=name))
            for name in phases.COLUMNS_OF
            if DRIVERS.get(name, THREADS) != THREADS
        }
        return {name: float(after / before) for name, (before, after) in rates.items() if before and after}


def _each(amounts: Both, numbers: Both) -> Both:
    """Amounts divided by numbers; 0 where there are none."""
    return np.asarray(np.where(numbers == 0, 0.0, amounts / np.where(numbers == 0, 1.0, numbers)))


def _rate(run: Observation, hosts: Collection[str], name: str) -> float | None:
    """Seconds of a class per unit of its volume on some hosts; None where they did less than a tenth of it."""
    # events, bytes and chunks are fields of what was done
    done = {host: (getattr(work, DRIVERS[name]), work.seconds[name]) for host, work in run.hosts.items()}
    volume, seconds = np.sum([both for host, both in done.items() if host in hosts], axis=0).tolist()
    total = sum(each for each, _ in done.values())
    return seconds / volume if total and volume >= 0.1 * total else None


# Leaves


def leaves_of(pair: Pair, fixed: Mapping[str, Fixed]) -> Iterator[Leaf]:
    """All classes of the ledger, some of them in parts."""
    for name in dict.fromkeys([*pair.before.time, *pair.after.time]):
        seconds = np.array([run.time.get(name, 0.0) for run in pair])
        driver, own, parts = DRIVERS.get(name), name, []
        if name == phases.CLIENT:  # idle time that the client makes, by when it made it
            idle = {when: np.array([run.client_of.get(when, 0.0) for run in pair]) for when in ("before", "after")}
            parts = [Leaf(name, some, driver, CLIENT[when]) for when, some in idle.items()]
            own = CLIENT["between"]
        elif name in OF_BRANCHES and any(pair.branches):
            for cause, branches in zip((NEW_BRANCHES, GONE_BRANCHES), pair.branches, strict=True):
                rows = [[one for of, one in run.branches.items() if of in branches] for run in pair]
                taken = np.array([sum(one.seconds[name] for one in row) for row in rows])
                read = np.array([float(sum(one.bytes for one in row)) for row in rows])
                parts.append(Leaf(name, taken, BYTES, name, cause, read))
        elif name in fixed:
            parts = [Leaf(name, np.minimum([fixed[name].before, fixed[name].after], seconds), CHUNKS, name)]
        yield from parts
        apart = [part.bytes for part in parts if part.bytes is not None]
        others = pair.volume(BYTES) - sum(apart) if apart else None
        yield Leaf(name, seconds - sum(part.seconds for part in parts), driver, own, bytes=others)


# Shares


def shares_of(leaf: Leaf, pair: Pair, shared: float, texts: dict[str, str]) -> Iterator[tuple[str, float]]:
    """What each cause has of a leaf's difference in thread seconds; `texts` takes what a unit of its work cost.

    On hosts of both runs a unit cost `shared` times as much, where there are other hosts too.
    """
    driver, events, volume = leaf.driver, pair.volume(EVENTS), np.zeros(2)
    if driver is not None:
        volume = pair.volume(driver) if leaf.bytes is None else leaf.bytes
        # baskets that came with the tree have no bytes of their own: then it grows with events
        if driver == BYTES and not leaf.apart and not volume.any():
            driver, volume = EVENTS, events
    costs = _costs(leaf.seconds, volume)
    if driver is None or costs is None:  # seconds that came of no volume are themselves
        cause = leaf.apart or leaf.own
        texts[cause] = _instead_of(leaf.seconds, "of threads")
        yield cause, np.diff(leaf.seconds).sum()
        return
    code, nodes = costs, np.ones(2)
    if shared != 1.0 and not leaf.apart and costs.all() and volume.all():
        code = costs[0] * np.array([1.0, shared])
        nodes = costs / code
    texts[leaf.own] = _instead_of(code, f"per {driver[:-1]}")
    if driver in (EVENTS, THREADS):
        yield driver, np.diff(volume).sum() * costs.mean()
    else:
        causes = (EVENTS, CHUNK_SIZE if driver == CHUNKS else leaf.apart or SAME_BRANCHES)
        yield from zip(causes, divided(events, _each(volume, events)) * costs.mean(), strict=True)
    yield from zip((leaf.own, NODES), divided(code, nodes) * volume.mean(), strict=True)


def _costs(seconds: Both, volume: Both) -> Both | None:
    """Seconds of a unit of the volume; None where seconds came of no volume.

    Of a side that had nothing to do the cost of a unit is not known: it is taken to be that of the other side.
    """
    known = volume != 0
    return None if not known.any() or seconds[~known].any() else (seconds[known] / volume[known])[[0, -1]]


def _instead_of(both: Both, unit: str) -> str:
    return f"{SECOND.text(both[1])} {unit} instead of {SECOND.text(both[0])}"


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
class Difference:
    """Parts of the difference of two runs, the largest in wall time first; without any, `absent` says why.

    Thread and wall time are the sums of those of the parts. With repeats it is the difference of the runs in the middle
    by wall time, which `remarks` name: medians of classes do not sum to those of totals, and may be of different runs.
    Of an even number it is the faster of the two.
    """

    parts: Sequence[Part] = ()
    thread_seconds: float = 0.0
    wall_seconds: float = 0.0
    remarks: Sequence[str] = ()
    absent: str | None = None

    @property
    def rest(self) -> float:
        """Difference in wall time less that of all parts."""
        return self.wall_seconds - sum(part.wall_seconds for part in self.parts)


def middle_of(side: Sequence[Observation]) -> Observation:
    """The run in the middle by wall time; of an even number the faster of the two."""
    return sorted(side, key=attrgetter("wall_seconds"))[(len(side) - 1) // 2]


def explained(before: Sequence[Observation], after: Sequence[Observation]) -> Difference:
    """Why the runs after differ from those before."""
    runs = (*before, *after)
    lacking = dict.fromkeys(f"{run.name}: {run.time_absent}" for run in runs if run.time_absent is not None)
    if lacking:
        return Difference(absent="; ".join(lacking))
    pair = Pair(middle_of(before), middle_of(after))
    if not pair.volume(THREADS).all():
        return Difference(absent="no worker thread was there")
    middle = f"of the repeats those in the middle by wall time are explained: {pair.before.name}, and {pair.after.name}"
    fixed, shared = pair.fixed(), pair.shared_rates()
    return Difference(
        parts=sorted(_parts(pair, fixed, shared), key=lambda one: (-abs(one.wall_seconds), -abs(one.thread_seconds))),
        thread_seconds=pair.after.thread_seconds - pair.before.thread_seconds,
        wall_seconds=pair.after.wall_seconds - pair.before.wall_seconds,
        remarks=[*([middle] if len(runs) > 2 else []), *_remarks(pair, bool(fixed), bool(shared))],
    )


def _parts(pair: Pair, fixed: Mapping[str, Fixed], shared: Mapping[str, float]) -> Iterator[Part]:
    """The shares of each cause together."""
    texts: dict[str, str] = {}
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    load: dict[str, float] = defaultdict(float)
    leaves = [*leaves_of(pair, fixed)]
    for leaf in (one for one in leaves if one.row not in OF_LOAD):
        for cause, seconds in shares_of(leaf, pair, shared.get(leaf.row, 1.0), texts):
            rows[cause][leaf.row] += seconds
    cpu = pair.of(lambda run: sum(run.time.get(name, 0.0) for name in CPU))
    of_cpu = {cause: sum(found.get(name, 0.0) for name in CPU) for cause, found in rows.items()}
    for leaf in (one for one in leaves if one.row in OF_LOAD):
        rates = _costs(leaf.seconds, cpu)
        if rates is None:
            shares = dict(shares_of(leaf, pair, 1.0, texts))
        else:
            texts[leaf.row] = _instead_of(rates, "of waiting for each second of computing")
            shares = {leaf.row: divided(rates, cpu)[0]}
            shares |= {cause: seconds * rates.mean() for cause, seconds in of_cpu.items()}
        # the change of a class that load brings is that of the ledger, whatever brought it
        rows[leaf.row][leaf.row] = np.diff(leaf.seconds).sum()
        load[leaf.row] -= sum(seconds for cause, seconds in shares.items() if cause != leaf.row)
        for cause in shares.keys() - {leaf.row}:
            load[cause] += shares[cause]
    each_thread = pair.of(lambda run: run.wall_seconds / run.thread_seconds)
    of_threads, _ = divided(each_thread, pair.of(lambda run: run.thread_seconds))
    for cause in dict.fromkeys([*rows, *load, THREADS]):
        known = {row: float(seconds) for row, seconds in rows[cause].items() if seconds}
        wall = (sum(known.values()) + load[cause]) * each_thread.mean() + (of_threads if cause == THREADS else 0.0)
        if known or wall:
            yield Part(
                cause=cause,
                text=_text(cause, pair, fixed) or texts.get(cause, ""),
                thread_seconds=sum(known.values()),
                wall_seconds=float(wall),
                rows=known,
                load_seconds=0.0 if cause in OF_LOAD else float(load[cause]),
            )


# Words


def _text(cause: str, pair: Pair, fixed: Mapping[str, Fixed]) -> str | None:
    """What changed; None for the cost of a class."""
    if cause in (EVENTS, THREADS):
        return _instead(cause, pair.volume(cause))
    if cause == CHUNK_SIZE:
        each = ", ".join(f"{SECOND.text(one.each)} ({name})" for name, one in fixed.items())
        chunks = pair.volume(CHUNKS)
        sizes = f"{_instead(EVENTS, _each(pair.volume(EVENTS), chunks))} in a chunk ({_instead(CHUNKS, chunks)})"
        return f"{sizes}; process() has a fixed cost per chunk of {each}" if each else sizes
    if cause in (NEW_BRANCHES, GONE_BRANCHES):
        run, some = (pair.after, pair.branches[0]) if cause == NEW_BRANCHES else (pair.before, pair.branches[1])
        size, names = sum(run.branches[name].bytes for name in some), sorted(some)
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"{', '.join(names[:4])}{more}, {BYTE.text(size) if size else 'whose baskets came with the tree'}"
    return {
        SAME_BRANCHES: "of branches that both read: other data, baskets read again",
        NODES: "other hosts did the same slower or faster than those of both runs",
        CLIENT["before"]: "idle before the first task",
        CLIENT["between"]: "idle while nothing was to be done",
        CLIENT["after"]: "idle after the last task",
        phases.RESIDUAL: "in no class of the time ledger",
    }.get(cause)


def _instead(what: str, both: Both) -> str:
    old, new = (number(three_digits(each) if each < 1e3 else each) if each else "an unknown number of" for each in both)
    return f"{new} {what[:-1] if both[1] == 1 else what} instead of {old}"


def _remarks(pair: Pair, told_apart: bool, shared_hosts: bool) -> list[str]:
    """What has to be known to read an explanation."""
    remarks = [f"{run.name}: the {reason}" for run in pair for reason in run.incomplete]
    if len(remarks) > 4:
        remarks = [*remarks[:4], f"{len(remarks) - 4} more such remarks on single runs"]
    first, second = pair.before.hosts.keys(), pair.after.hosts.keys()
    if first and second and first != second and not shared_hosts:
        remarks.append(
            "they ran on different hosts, with too little work on the same ones: what a unit of work cost more or less "
            "may come from code or from hosts"
        )
    remarks += [
        f"chunks of {run.name} waited for a core for {FRACTION.text(run.core_wait_share)} of their time "
        "(CPU contention): other processes used the hosts, or there are more threads than cores"
        for run in pair
        if run.core_wait_share is not None and run.core_wait_share > 0.1
    ]
    if pair.other_sizes and told_apart:
        remarks.append(
            "chunks differ in size: a fit to the chunks of both sides separates the fixed cost of a chunk in process() "
            "from the cost of an event, and assumes that neither changed"
        )
    elif pair.other_sizes:
        remarks.append(
            "chunks differ in size, but a fixed cost of a chunk in process() cannot be told apart from noise: it "
            "counts as cost of an event"
        )
    return list(dict.fromkeys(remarks))
