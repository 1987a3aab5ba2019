"""Why two runs differ: their difference in thread time and in wall time as a sum of parts with causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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

if TYPE_CHECKING:
    import pandas as pd

EVENTS, BYTES, CHUNKS, THREADS = "events", "bytes", "chunks", "threads"
"""What there was to do, and the threads to do it."""

NEW_BRANCHES, GONE_BRANCHES = "newly read branches", "branches no longer read"
SAME_BRANCHES: Final = "bytes per event"
CHUNK_SIZE: Final = "chunk size"
NODES: Final = "nodes"
CLIENT: Final = {"before": "before the first task", "after": "after the last task", "between": "between tasks"}

TEXTS: Final = {
    SAME_BRANCHES: "of branches that both read: other data, baskets read again",
    NODES: "other hosts did the same slower or faster than those of both runs",
    phases.RESIDUAL: "in no class of the time ledger",
    **{f"client {when}": f"idle {when}" for when in CLIENT.values()},
}
"""What changed, for causes that are no cost of a class."""

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

    def of_branches(self, names: set[str], column: str) -> Both:
        """Bytes, or seconds of a class, of branches."""
        return self.of(lambda run: run.branches.loc[run.branches.index.isin(names), column].sum())

    @property
    def other_sizes(self) -> bool:
        """Whether chunks differ in size."""
        sizes = _each(self.volume(EVENTS), self.volume(CHUNKS))
        return bool(sizes.all() and sizes.max() > 1.25 * sizes.min())

    @property
    def branches(self) -> dict[str, set[str]]:
        """Branches that only one of the runs read, by the cause that they are; none where they are not known."""
        before, after = (set(run.branches.index) for run in self)
        apart = {NEW_BRANCHES: after - before, GONE_BRANCHES: before - after} if before and after else {}
        return {cause: names for cause, names in apart.items() if names}

    def fixed(self) -> dict[str, Fixed]:
        """What chunks cost whatever their size, by class in process(), where they differ in size."""
        found = {}
        # where other branches are read, those that both read would have to be told apart in each chunk
        for name in (one for one in SPLIT if self.other_sizes and not (one in OF_BRANCHES and self.branches)):
            trait = BYTES if DRIVERS[name] == BYTES and self.volume(BYTES).all() else EVENTS
            found[name] = fixed_costs(name, trait, self.before.sizes, self.after.sizes)
        return {name: fixed for name, fixed in found.items() if fixed is not None}

    def shared_rates(self) -> dict[str, float]:
        """By how many times the cost of a unit of each class changed on hosts of both, where there are others too."""
        one, other = self.before.hosts, self.after.hosts
        if one is None or other is None or set(one.index) == set(other.index):
            return {}
        both = one.index.intersection(other.index)
        changes = _rates(other, both) / _rates(one, both)
        return dict(changes[(changes > 0) & (changes < np.inf)])


def _rates(hosts: pd.DataFrame, some: pd.Index[str]) -> pd.Series[float]:
    """Seconds of each class per unit of its volume on some hosts; NaN where they did less than a tenth of it."""
    names = [name for name in phases.COLUMNS_OF if DRIVERS.get(name, THREADS) != THREADS]
    drivers = [DRIVERS[name] for name in names]
    done, every = hosts.loc[some].sum(), hosts.sum()
    volume = done[drivers].set_axis(names)
    return (done[names] / volume).where(volume >= 0.1 * every[drivers].set_axis(names))


def _each(amounts: Both, numbers: Both) -> Both:
    """Amounts divided by numbers; 0 where there are none."""
    return np.divide(amounts, numbers, out=np.zeros(2), where=numbers != 0)


def _costs(seconds: Both, volume: Both) -> Both | None:
    """Seconds of a unit of the volume; None where seconds came of no volume.

    Of a side that had nothing to do the cost of a unit is not known: it is taken to be that of the other side.
    """
    known = volume != 0
    return None if not known.any() or seconds[~known].any() else (seconds[known] / volume[known])[[0, -1]]


Share = tuple[str, float]
"""A cause, and its thread seconds."""


def shares_of(
    name: str, pair: Pair, fixed: Mapping[str, Fixed], shared: float, texts: dict[str, str]
) -> Iterator[Share]:
    """What each cause has of the difference of a class in thread seconds; `texts` takes what a unit of its work cost.

    On hosts of both runs a unit cost `shared` times as much, where there are other hosts too.
    """
    seconds, driver, own = pair.of(lambda run: run.time.get(name)), DRIVERS.get(name), name
    volume = np.zeros(2) if driver is None else pair.volume(driver)
    if name == phases.CLIENT:  # idle time that the client makes, by when it made it
        for when in ("before", "after"):
            idle = pair.of(lambda run, when=when: run.client_of.get(when))  # type: ignore[misc]
            yield from _split(idle, volume, driver, f"client {CLIENT[when]}", pair, 1.0, texts)
            seconds = seconds - idle
        own = f"client {CLIENT['between']}"
    elif name in OF_BRANCHES and pair.branches:
        for cause, names in pair.branches.items():
            taken = pair.of_branches(names, name)
            yield cause, np.diff(taken).sum()
            seconds, volume = seconds - taken, volume - pair.of_branches(names, "bytes")
    elif name in fixed:
        of_chunks = np.minimum(fixed[name][:2], seconds)
        yield from _split(of_chunks, pair.volume(CHUNKS), CHUNKS, name, pair, shared, texts)
        seconds = seconds - of_chunks
    yield from _split(seconds, volume, driver, own, pair, shared, texts)


def _split(  # noqa: PLR0917
    seconds: Both, volume: Both, driver: str | None, own: str, pair: Pair, shared: float, texts: dict[str, str]
) -> Iterator[Share]:
    """Seconds as what there was to do times the cost of a unit, whose change is the own cause."""
    events = pair.volume(EVENTS)
    if driver == BYTES and not volume.any():  # baskets that came with the tree: then it grows with events
        driver, volume = EVENTS, events
    costs = _costs(seconds, volume)
    if driver is None or costs is None:  # seconds that came of no volume are themselves
        texts[own] = _instead_of(seconds, "of threads")
        yield own, np.diff(seconds).sum()
        return
    code = costs[0] * np.array([1.0, shared]) if shared != 1.0 and costs.all() and volume.all() else costs
    texts[own] = _instead_of(code, f"per {driver[:-1]}")
    if driver in (EVENTS, THREADS):
        yield driver, np.diff(volume).sum() * costs.mean()
    else:
        causes = EVENTS, CHUNK_SIZE if driver == CHUNKS else SAME_BRANCHES
        yield from zip(causes, divided(events, _each(volume, events)) * costs.mean(), strict=True)
    nodes = np.ones(2) if code is costs else costs / code
    yield from zip((own, NODES), divided(code, nodes) * volume.mean(), strict=True)


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
        remarks=[*([middle] if len(runs) > 2 else []), *dict.fromkeys(_remarks(pair, bool(fixed), bool(shared)))],
    )


def _parts(pair: Pair, fixed: Mapping[str, Fixed], shared: Mapping[str, float]) -> Iterator[Part]:
    """The shares of each cause together."""
    texts: dict[str, str] = {}
    rows: dict[str, Any] = defaultdict(Counter)
    load: Any = Counter()
    names = dict.fromkeys([*pair.before.time, *pair.after.time])
    for name in (one for one in names if one not in OF_LOAD):
        for cause, seconds in shares_of(name, pair, fixed, shared.get(name, 1.0), texts):
            rows[cause][name] += seconds
    of_cpu = {cause: sum(found[name] for name in CPU) for cause, found in rows.items()}
    for name in (one for one in OF_LOAD if one in names):
        # the change of a class that load brings is that of the ledger, whatever brought it
        waited = pair.of(lambda run, name=name: run.time.get(name))  # type: ignore[misc]
        rows[name][name] += np.diff(waited).sum()
        rates = _costs(waited, pair.of(lambda run: sum(run.time.get(one, 0.0) for one in CPU)))
        if rates is not None:
            texts[name] = _instead_of(rates, "of waiting for each second of computing")
            for cause, seconds in of_cpu.items():
                load[cause] += seconds * rates.mean()
                load[name] -= seconds * rates.mean()
    texts |= TEXTS | dict(_texts(pair, fixed))
    each_thread = pair.of(lambda run: run.wall_seconds / run.thread_seconds)
    rows[THREADS][phases.COMPUTE] += 0.0  # fewer threads take longer, whatever they did
    for cause, found in rows.items():
        known = {row: float(seconds) for row, seconds in found.items() if seconds}
        threads = sum(known.values())
        wall = float((threads + load[cause]) * each_thread.mean())
        if cause == THREADS:
            wall += divided(each_thread, pair.of(attrgetter("thread_seconds")))[0]
        if known or wall:
            yield Part(
                cause=cause,
                text=texts.get(cause, ""),
                thread_seconds=threads,
                wall_seconds=wall,
                rows=known,
                load_seconds=0.0 if cause in OF_LOAD else float(load[cause]),
            )


# Words


def _texts(pair: Pair, fixed: Mapping[str, Fixed]) -> Iterator[tuple[str, str]]:
    """What changed, by cause."""
    yield from ((name, _instead(name, pair.volume(name))) for name in (EVENTS, THREADS))
    each = ", ".join(f"{SECOND.text(one.each)} ({name})" for name, one in fixed.items())
    chunks = pair.volume(CHUNKS)
    sizes = f"{_instead(EVENTS, _each(pair.volume(EVENTS), chunks))} in a chunk ({_instead(CHUNKS, chunks)})"
    yield CHUNK_SIZE, f"{sizes}; process() has a fixed cost per chunk of {each}" if each else sizes
    for cause, names in pair.branches.items():
        size, more = pair.of_branches(names, "bytes").sum(), f" and {len(names) - 4} more" if len(names) > 4 else ""
        read = BYTE.text(size) if size else "whose baskets came with the tree"
        yield cause, f"{', '.join(sorted(names)[:4])}{more}, {read}"


def _instead(what: str, both: Both) -> str:
    old, new = (number(three_digits(each) if each < 1e3 else each) if each else "an unknown number of" for each in both)
    return f"{new} {what[:-1] if both[1] == 1 else what} instead of {old}"


def _remarks(pair: Pair, told_apart: bool, shared_hosts: bool) -> Iterator[str]:
    """What has to be known to read an explanation."""
    yield from (f"{run.name}: the {reason}" for run in pair for reason in run.incomplete)
    one, other = pair.before.hosts, pair.after.hosts
    if one is not None and other is not None and set(one.index) != set(other.index) and not shared_hosts:
        yield (
            "they ran on different hosts, with too little work on the same ones: what a unit of work cost more or less "
            "may come from code or from hosts"
        )
    for run in pair:
        if run.core_wait_share is not None and run.core_wait_share > 0.1:
            yield (
                f"chunks of {run.name} waited for a core for {FRACTION.text(run.core_wait_share)} of their time "
                "(CPU contention): other processes used the hosts, or there are more threads than cores"
            )
    if pair.other_sizes and told_apart:
        yield (
            "chunks differ in size: a fit to the chunks of both sides separates the fixed cost of a chunk in process() "
            "from the cost of an event, and assumes that neither changed"
        )
    elif pair.other_sizes:
        yield (
            "chunks differ in size, but a fixed cost of a chunk in process() cannot be told apart from noise: it "
            "counts as cost of an event"
        )
