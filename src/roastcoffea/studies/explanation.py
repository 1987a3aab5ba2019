"""Explanation of how two runs differ: thread time and wall time by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.observations import (
    CPU,
    OF_BRANCHES,
    OF_LOAD,
    SPLIT,
    Fixed,
    Observation,
    Promise,
    bytes_of_branches,
    fixed_costs,
)
from roastcoffea.units import BYTE, FRACTION, SECOND, few, number, three_digits

if TYPE_CHECKING:
    import pandas as pd

EVENTS, BYTES, CHUNKS, THREADS = "events", "bytes", "chunks", "threads"
"""Quantities with which time-ledger classes scale."""

NEW_BRANCHES, GONE_BRANCHES = "newly read branches", "branches no longer read"
SAME_BRANCHES: Final = "bytes per event"
CHUNK_SIZE: Final = "chunk size"
NODES: Final = "nodes"
CLIENT: Final = {"before": "before the first task", "after": "after the last task", "between": "between tasks"}

TEXTS: Final = {
    SAME_BRANCHES: "in branches that both runs read: different data, or baskets read again",
    NODES: "hosts used by only one of the runs were slower or faster",
    phases.RESIDUAL: "not in any class of the time ledger",
    **{f"client {when}": f"idle {when}" for when in CLIENT.values()},
}

DRIVERS: Final[Mapping[str, str]] = {
    one.name: one.grows_with for one in phases.TIME_CLASSES if one.grows_with is not None
}
"""Maps each class to the quantity with which it scales. Some classes, such as preprocessing, have none."""

Both = Numbers
"""One value for each of the two runs."""


def divided(one: Both, other: Both) -> Both:
    """Split the change in a product between its two factors.

    Each factor contributes its change times the mean of the other factor.
    """
    return np.array([np.diff(one).sum() * other.mean(), np.diff(other).sum() * one.mean()])


class Pair(NamedTuple):
    before: Observation
    after: Observation

    def of(self, amount: Callable[[Observation], float | None]) -> Both:
        """Evaluate a function for both runs. Unknown values become 0."""
        return np.array([amount(run) or 0.0 for run in self])

    def volume(self, name: str) -> Both:
        if name == BYTES:
            return self.of(bytes_of_branches)
        if name == THREADS:
            return self.of(lambda run: run.thread_seconds / run.wall_seconds)
        return self.of(lambda run: run.metrics.get("total_events" if name == EVENTS else "num_chunks"))

    def of_branches(self, names: set[str], column: str) -> Both:
        return self.of(lambda run: run.branches.loc[run.branches.index.isin(names), column].sum())

    @property
    def other_sizes(self) -> bool:
        """Whether the mean chunk sizes differ by more than 25 %."""
        sizes = _each(self.volume(EVENTS), self.volume(CHUNKS))
        return bool(sizes.all() and sizes.max() > 1.25 * sizes.min())

    @property
    def branches(self) -> dict[str, set[str]]:
        """Branches read by only one of the runs, keyed by cause. Empty if a run's branches are unknown."""
        before, after = (set(run.branches.index) for run in self)
        apart = {NEW_BRANCHES: after - before, GONE_BRANCHES: before - after} if before and after else {}
        return {cause: names for cause, names in apart.items() if names}

    def fixed(self) -> dict[str, Fixed]:
        found = {}
        # if branches differ, the fit would need the shared branches of each chunk
        for name in (one for one in SPLIT if self.other_sizes and not (one in OF_BRANCHES and self.branches)):
            trait = BYTES if DRIVERS[name] == BYTES and self.volume(BYTES).all() else EVENTS
            found[name] = fixed_costs(name, trait, self.before.sizes, self.after.sizes)
        return {name: fixed for name, fixed in found.items() if fixed is not None}

    def shared_rates(self) -> dict[str, float]:
        """Compute the ratio of each class's unit costs (after to before) on hosts used by both runs.

        The result is empty if both runs used the same hosts, or if the hosts are unknown.
        """
        one, other = self.before.hosts, self.after.hosts
        if one is None or other is None or set(one.index) == set(other.index):
            return {}
        both = one.index.intersection(other.index)
        changes = _rates(other, both) / _rates(one, both)
        return dict(changes[(changes > 0) & (changes < np.inf)])


def _rates(hosts: pd.DataFrame, some: pd.Index[str]) -> pd.Series[float]:
    """Compute the unit cost of each class on the given hosts (NaN if they did less than a tenth of the work)."""
    names = [name for name in phases.COLUMNS_OF if DRIVERS.get(name, THREADS) != THREADS]
    drivers = [DRIVERS[name] for name in names]
    done, every = hosts.loc[some].sum(), hosts.sum()
    volume = done[drivers].set_axis(names)
    return (done[names] / volume).where(volume >= 0.1 * every[drivers].set_axis(names))


def _each(amounts: Both, numbers: Both) -> Both:
    return np.divide(amounts, numbers, out=np.zeros(2), where=numbers != 0)


def _costs(seconds: Both, volume: Both) -> Both | None:
    """Compute the unit cost in each run, or return None if it is undefined.

    If one run did no work, it is assigned the other run's unit cost.
    """
    known = volume != 0
    return None if not known.any() or seconds[~known].any() else (seconds[known] / volume[known])[[0, -1]]


Share = tuple[str, float]
"""A cause and its contribution in thread seconds."""


def shares_of(
    name: str, pair: Pair, fixed: Mapping[str, Fixed], shared: float, texts: dict[str, str]
) -> Iterator[Share]:
    """Break down the change in a class's thread time by cause.

    `shared` is the ratio of the unit costs on hosts used by both runs. Descriptions of the unit costs are added to
    `texts`.
    """
    seconds, driver, own = pair.of(lambda run: run.time.get(name)), DRIVERS.get(name), name
    volume = np.zeros(2) if driver is None else pair.volume(driver)
    if name == phases.CLIENT:  # split into idle time before, between and after the tasks
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
    events = pair.volume(EVENTS)
    if driver == BYTES and not volume.any():  # baskets are embedded in the tree, so time grows with events
        driver, volume = EVENTS, events
    costs = _costs(seconds, volume)
    if driver is None or costs is None:  # a class that has no volume is its own cause
        texts[own] = _instead_of(seconds, "of thread time")
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
    """A cause and its contribution to the difference between two runs.

    `rows` holds thread seconds by time-ledger class, and `thread_seconds` is their sum. More CPU time also causes more
    waiting for cores and for the GIL. `thread_seconds` does not include this waiting, because it has its
    own classes. `load_seconds` is the waiting due to this cause, and `wall_seconds` includes it.
    """

    cause: str
    text: str
    thread_seconds: float
    wall_seconds: float
    rows: Mapping[str, float]
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The saving promised by a finding in the first run, and the saving achieved, per chunk or event.

    `low` and `high` bound the 95 % interval of `got`. Both are None if no interval can be computed from chunks.
    """

    what: str
    quantity: str
    per: str
    promised: float
    at_most: bool
    got: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        promise = f"{'at most ' if self.at_most else ''}{SECOND.text(self.promised)} of {self.quantity} per {self.per}"
        between = ""
        if self.low is not None and self.high is not None and SECOND.text(self.low) != SECOND.text(self.high):
            between = f" ({SECOND.text(self.low)} to {SECOND.text(self.high)})"
        return f"{self.what}: promised {promise}, got {SECOND.text(self.got)}{between}"


SHRUNK: Final = 0.8
"""A finding counts as fixed if at most this fraction of its time per event is left. Repeats vary by less."""


def kept(pair: Pair) -> Iterator[Kept]:
    """Compare promised with achieved savings for findings that were fixed.

    A finding counts as fixed if its classes or its function take less time per event than before. The achieved saving
    is the decrease in these classes. For a function, it is the decrease in all CPU time in process(), because other
    code may now do the function's work.
    """
    events = pair.volume(EVENTS)
    for promise in pair.before.promises if events.all() else ():
        own = pair.of(lambda run, promise=promise: sum(run.time.get(name, 0.0) for name in promise.classes))  # type: ignore[misc]
        of_all, threads = own / events, pair.volume(THREADS)
        if promise.function is not None:
            if pair.before.functions is None or pair.after.functions is None:
                continue
            own = pair.of(lambda run, promise=promise: (run.functions or {}).get(promise.function))  # type: ignore[misc]
        # idle time is not comparable if the numbers of threads differ
        comparable = not set(promise.classes) & set(phases.IDLE) or np.ptp(threads) <= 0.05 * threads[0]
        got, error = of_all[0] - of_all[1], _error_over_chunks(pair, promise)
        noise = promise.function is None and error is not None and got <= error
        # without an interval, a small decrease may be chance
        noise |= promise.function is None and error is None and got < 0.5 * promise.seconds / events[0]
        if comparable and not noise and own[1] / events[1] <= SHRUNK * own[0] / events[0]:
            each = 1.0 if pair.other_sizes or not pair.volume(CHUNKS).all() else events[0] / pair.volume(CHUNKS)[0]
            yield Kept(
                what=promise.what,
                quantity="CPU time" if promise.classes == CPU else "thread time",
                per="event" if each == 1.0 else "chunk",
                promised=float(promise.seconds / events[0] * each),
                at_most=promise.at_most,
                got=float(got * each),
                low=None if error is None else float((got - error) * each),
                high=None if error is None else float((got + error) * each),
            )


def _error_over_chunks(pair: Pair, promise: Promise) -> float | None:
    """Compute the half-width of the 95 % interval of the change per event from the spread of the chunks."""
    variance = 0.0
    for sizes in (run.sizes for run in pair):
        if sizes is None or not {*promise.classes} <= {*SPLIT} or len(sizes) < 3:
            return None
        seconds, events = sizes[list(promise.classes)].sum(axis=1, skipna=False), sizes["events"]
        left = seconds - seconds.sum() / events.sum() * events
        variance += float((left**2).sum() / events.sum() ** 2)
    return 1.96 * sqrt(variance) if isfinite(variance) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference between two runs, split into parts. The part with the largest wall time comes first.

    If there are repeats, the runs with the median wall time are compared, because the medians of the classes do not add
    up to the median total. (If the number of repeats is even, the faster of the two middle runs is used.) `remarks`
    names these runs. `kept` lists the findings that were fixed. If the difference cannot be explained, `absent` holds
    the reason.
    """

    parts: Sequence[Part] = ()
    thread_seconds: float = 0.0
    wall_seconds: float = 0.0
    remarks: Sequence[str] = ()
    absent: str | None = None
    kept: Sequence[Kept] = ()

    @property
    def rest(self) -> float:
        """Wall-time difference not explained by the parts."""
        return self.wall_seconds - sum(part.wall_seconds for part in self.parts)


def middle_of(side: Sequence[Observation]) -> Observation:
    """Return the run with the median wall time. If the number of runs is even, use the faster middle run."""
    return sorted(side, key=attrgetter("wall_seconds"))[(len(side) - 1) // 2]


def explained(before: Sequence[Observation], after: Sequence[Observation]) -> Difference:
    runs = (*before, *after)
    lacking = dict.fromkeys(f"{run.name}: {run.time_absent}" for run in runs if run.time_absent is not None)
    if lacking:
        return Difference(absent="; ".join(lacking))
    pair = Pair(middle_of(before), middle_of(after))
    if not pair.volume(THREADS).all():
        return Difference(absent="there were no worker threads")
    middle = f"the repeats with the median wall time are compared: {pair.before.name} and {pair.after.name}"
    fixed, shared = pair.fixed(), pair.shared_rates()
    return Difference(
        parts=sorted(_parts(pair, fixed, shared), key=lambda one: (-abs(one.wall_seconds), -abs(one.thread_seconds))),
        thread_seconds=pair.after.thread_seconds - pair.before.thread_seconds,
        wall_seconds=pair.after.wall_seconds - pair.before.wall_seconds,
        remarks=[*([middle] if len(runs) > 2 else []), *dict.fromkeys(_remarks(pair, bool(fixed), bool(shared)))],
        kept=list(kept(pair)),
    )


def _parts(pair: Pair, fixed: Mapping[str, Fixed], shared: Mapping[str, float]) -> Iterator[Part]:
    texts: dict[str, str] = {}
    rows: dict[str, Any] = defaultdict(Counter)
    load: Any = Counter()
    names = dict.fromkeys([*pair.before.time, *pair.after.time])
    for name in (one for one in names if one not in OF_LOAD):
        for cause, seconds in shares_of(name, pair, fixed, shared.get(name, 1.0), texts):
            rows[cause][name] += seconds
    of_cpu = {cause: sum(found[name] for name in CPU) for cause, found in rows.items()}
    for name in (one for one in OF_LOAD if one in names):
        # the ledger states how these classes changed; `load` attributes the changes to causes
        waited = pair.of(lambda run, name=name: run.time.get(name))  # type: ignore[misc]
        rows[name][name] += np.diff(waited).sum()
        rates = _costs(waited, pair.of(lambda run: sum(run.time.get(one, 0.0) for one in CPU)))
        if rates is not None:
            texts[name] = _instead_of(rates, "of waiting per second of CPU time")
            # at the first run's rate, so that no cause saves waits that the first run did not have
            for cause, seconds in of_cpu.items():
                load[cause] += seconds * rates[0]
                load[name] -= seconds * rates[0]
    texts |= TEXTS | dict(_texts(pair, fixed))
    each_thread = pair.of(lambda run: run.wall_seconds / run.thread_seconds)
    rows[THREADS][phases.COMPUTE] += 0.0  # the number of threads always affects the wall time
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
    yield from ((name, _instead(name, pair.volume(name))) for name in (EVENTS, THREADS))
    each = ", ".join(f"{SECOND.text(one.each)} ({name})" for name, one in fixed.items())
    chunks = pair.volume(CHUNKS)
    sizes = f"{_instead(EVENTS, _each(pair.volume(EVENTS), chunks))} per chunk ({_instead(CHUNKS, chunks)})"
    yield CHUNK_SIZE, f"{sizes}; process() has a fixed cost per chunk of {each}" if each else sizes
    for cause, names in pair.branches.items():
        size = pair.of_branches(names, "bytes").sum()
        read = BYTE.text(size) if size else "read along with the tree"
        yield cause, f"{few(sorted(names), 4)}, {read}"


def _instead(what: str, both: Both) -> str:
    old, new = (number(three_digits(each) if each < 1e3 else each) if each else "an unknown number of" for each in both)
    return f"{new} {what[:-1] if both[1] == 1 else what} instead of {old}"


def _remarks(pair: Pair, told_apart: bool, shared_hosts: bool) -> Iterator[str]:
    yield from (f"{run.name}: the {reason}" for run in pair for reason in run.incomplete)
    one, other = pair.before.hosts, pair.after.hosts
    if one is not None and other is not None and set(one.index) != set(other.index) and not shared_hosts:
        yield ("the runs used different hosts and had too few in common to separate the effects of code and hosts")
    waited = [
        f"{FRACTION.text(run.core_wait_share)} of their time in {run.name}"
        for run in pair
        if run.core_wait_share is not None
    ]
    if any((run.core_wait_share or 0.0) > 0.1 for run in pair):
        yield f"CPU contention: chunks waited for a core for {' and '.join(waited)}"
    for name, where in phases.MEASURED_LATER.items():
        if len({name in run.time for run in pair}) == 2:
            yield f'one run was recorded by an older version without the class "{name}": {where}'
    if pair.other_sizes and told_apart:
        yield (
            "chunk sizes differ: a fit to the chunks of both runs separates the fixed cost per chunk in process() "
            "from the cost per event, assuming that neither cost changed between the runs"
        )
    elif pair.other_sizes:
        yield (
            "chunk sizes differ, but the fixed cost per chunk in process() is too small to measure, so it counts "
            "as cost per event"
        )
