"""Why two runs differ: their difference in thread time and in wall time as a sum of parts with a cause each.

Thread time is the sum of the time ledger's classes. Each class is a product of what there was to do (events, bytes,
chunks) and what a unit of it cost, and wall time is thread time over the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final

from roastcoffea.metrics.phases import RESIDUAL
from roastcoffea.studies.compare import factors
from roastcoffea.studies.compare.chunk_costs import OF_LOAD
from roastcoffea.studies.compare.factors import Pair, Share, bytes_of, leaves_of, shares_of, wall_seconds
from roastcoffea.studies.compare.load import CPU, shares_of_load
from roastcoffea.studies.compare.observations import Observation
from roastcoffea.units import BYTE, FRACTION, SECOND, number, three_digits

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
    if cause == factors.EVENTS:
        return _instead("events", before.events, after.events)
    if cause == factors.THREADS:
        return _instead("threads", before.threads, after.threads)
    if cause == factors.CHUNK_SIZE:
        sizes = _instead("events", before.chunk_size, after.chunk_size)
        return f"{sizes} in a chunk ({_instead('chunks', before.chunks, after.chunks)}){_fixed(pair)}"
    if cause in (factors.NEW_BRANCHES, factors.GONE_BRANCHES):
        new, gone = pair.branches
        side, some = (pair.after, new) if cause == factors.NEW_BRANCHES else (pair.before, gone)
        size, names = fmean(bytes_of(run, some) for run in side), sorted(some)
        more = f" and {len(names) - MOST_BRANCHES} more" if len(names) > MOST_BRANCHES else ""
        bytes_read = BYTE.text(size) if size else "whose baskets came with the tree"
        return f"{', '.join(names[:MOST_BRANCHES])}{more}, {bytes_read}"
    return OWN_TEXTS.get(cause)


OWN_TEXTS: Final[Mapping[str, str]] = {
    factors.SAME_BRANCHES: "of branches that both read: other data, baskets read again",
    factors.NODES: "other hosts did the same slower or faster than those of both runs",
    factors.BEFORE: "idle before the first task",
    factors.BETWEEN: "idle while nothing was to be done",
    factors.AFTER: "idle after the last task",
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
