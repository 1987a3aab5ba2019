"""Breakdown of recorded chunk times, and changes to a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.phases import DECOMPRESS, MEASURING, PHASES, TIME_CLASSES
from roastcoffea.metrics.statistics import (
    Flags,
    Integers,
    Numbers,
    amounts,
    codes,
    integers,
    moments,
    nonnegative_fit,
    places,
)
from roastcoffea.metrics.thread_activity import sum_of
from roastcoffea.replay.cluster import Costs, Load, Merging
from roastcoffea.units import number


class Parts(NamedTuple):
    """Breakdown of each chunk's time, in seconds.

    `open_cpu` and `open_wait` were spent opening the file and building events, `read` waiting for storage in
    process(), and `decompress` decompressing data. `cpu` is all other CPU time. `lock` was spent waiting for the GIL,
    and `contention` waiting for a core. `wait` is all other time off the CPU. `first` is the extra time that a
    process's first task took (0 if the replay adds the start-up time). `failed` is the time spent on a failed attempt,
    whose other parts are 0. `overhead` is the rest of the task's time.
    """

    open_cpu: Numbers
    open_wait: Numbers
    read: Numbers
    decompress: Numbers
    cpu: Numbers
    lock: Numbers
    wait: Numbers
    contention: Numbers
    first: Numbers
    failed: Numbers
    overhead: Numbers

    @property
    def total(self) -> Numbers:
        return np.asarray(sum(self))

    @property
    def computing(self) -> Numbers:
        """Each chunk's CPU time, from opening the file to the end of process()."""
        return self.open_cpu + self.decompress + self.cpu

    @property
    def reading(self) -> Numbers:
        """Each chunk's wait for storage, including waits while opening the file and building events."""
        return self.open_wait + self.read

    def each(self, change: Callable[[Numbers], Numbers]) -> Parts:
        return Parts(*map(change, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in start order, with a breakdown of their time.

    `dataset` is an index into `datasets`, and `file` is the file's numeric ID. For stragglers, `factor` is the ratio of
    the expected duration to the actual duration; for all other chunks, it is 1. `row` is the chunk's index in the table
    of counted chunks. For failed attempts, `dataset`, `file` and `row` are -1.
    """

    datasets: tuple[str, ...]
    dataset: Integers
    file: Integers
    start: Integers
    stop: Integers
    parts: Parts
    factor: Numbers
    row: Integers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def events(self) -> Numbers:
        return (self.stop - self.start).astype(np.float64)

    def load(self, *, shared: bool = False) -> Load:
        """Build the load for a replay. If storage is shared, reading is kept separate from all other waiting."""
        parts = self.parts
        waiting = parts.lock + parts.wait + parts.contention + parts.first + parts.failed
        after = parts.decompress + parts.cpu + parts.overhead
        if shared:
            return Load(before=parts.open_cpu, wait=waiting, after=after, read=parts.reading, lock=parts.lock)
        return Load(before=parts.open_cpu, wait=parts.reading + waiting, after=after, lock=parts.lock)

    def take(self, rows: Integers) -> Chunks:
        picked: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("dataset", "file", "start", "stop", "factor", "row")
        }
        return replace(self, parts=self.parts.each(itemgetter(rows)), **picked)

    def recut(self, made_of: Integers, start: Integers, stop: Integers, parts: Parts) -> Chunks:
        """Build new chunks of the same files.

        `made_of` holds the row from which each new chunk takes its dataset and file.
        """
        places = self.take(made_of)
        return replace(places, start=start, stop=stop, parts=parts, factor=np.ones(len(made_of)))

    def with_parts(self, **parts: Numbers) -> Chunks:
        return replace(self, parts=self.parts._replace(**parts))

    def with_cpu(self, times: Numbers | float) -> Chunks:
        """Scale the CPU time."""
        return self.with_parts(
            **{name: getattr(self.parts, name) * times for name in ("open_cpu", "decompress", "cpu")}
        )


def needed(chunks: pa.Table) -> pa.Table:
    """Select the columns that `chunks_in_parts` needs, to avoid copying all columns."""
    names = ("id", "dataset", "file", "entry_start", "entry_stop", "events", "bytes_requested", *OF_CHUNKS)
    return chunks.select([*names, *(phase.column for phase in PHASES)])


def chunks_in_parts(
    chunks: pa.Table, task_seconds: Numbers, stragglers: pa.Table | str = "not needed", rows: Integers | None = None
) -> Chunks:
    """Break down recorded chunk times.

    Parameters
    ----------
    chunks
        Chunk attempts whose results were used.
    task_seconds
        Duration of each chunk's task, in seconds.
    stragglers
        Table of chunks that took longer than expected, or the reason why there is no table.
    rows
        Index of each chunk in the table of counted chunks; defaults to its position.
    """
    parts, factor = _parts_of(chunks, task_seconds), np.ones(len(chunks))
    if not isinstance(stragglers, str) and len(stragglers):
        place = places(chunks["id"], stragglers["id"].combine_chunks())
        expected = amounts(stragglers, "expected_seconds") / amounts(stragglers, "wall_seconds")
        factor = np.where(place >= 0, expected[place], 1.0)
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=codes(chunks["dataset"]),
        file=codes(chunks["file"]),
        start=integers(chunks["entry_start"]),
        stop=integers(chunks["entry_stop"]),
        parts=parts,
        factor=factor,
        row=np.arange(len(chunks)) if rows is None else rows,
    )


def _parts_of(chunks: pa.Table, task_seconds: Numbers) -> Parts:
    wall, core_wait, *cpus = (amounts(chunks, name) for name in OF_CHUNKS)
    cpu = np.minimum(sum(cpus), wall)
    opening, inside, decompressed, reading, measuring = (
        sum_of(
            chunks, tuple(one.column for one in PHASES if one.part == part and one.time_class in (classes or CLASSES))
        )
        for part, classes in (
            ("opening", ()),
            ("CPU", ()),
            ("CPU", (DECOMPRESS,)),
            ("waiting", OF_STORAGE),
            ("saving", (MEASURING,)),
        )
    )
    # helper threads may read while a file is opened, but their CPU time grows with the chunk
    open_cpu = np.clip(np.minimum(np.minimum(cpus[0], wall) - inside - measuring, opening), 0.0, None)
    decompress = np.minimum(decompressed, cpu - open_cpu)
    measuring = np.minimum(measuring, cpu - open_cpu - decompress)
    contention = np.minimum(core_wait, wall - cpu)
    waited = np.maximum(wall - cpu - contention, 0.0)
    lock, blocked, whole = (amounts(chunks, name) for name in (LOCK, BLOCKED, "wait_seconds"))
    # older runs recorded only the sum of the two waits
    whole = np.where(chunks[BLOCKED].is_valid().to_numpy(), 0.0, whole)
    apart = {"wait_seconds", CONTENTION, LOCK, BLOCKED}
    other = (phase.column for phase in PHASES if phase.part == "waiting" and phase.column not in apart)
    blocked = blocked + lock + whole + sum_of(chunks, tuple(other))
    # time spent waiting for a core outside of process(): when opening, saving checkpoints or returning results
    outside = opening + sum_of(chunks, ("checkpoint_seconds", "result_seconds"))
    waits = np.nan_to_num(core_wait - moments(chunks, CONTENTION)) * ratio(opening, outside)
    opened = np.maximum(opening - open_cpu - waits, 0.0)
    # if the waits add up to more than the time left, scale all of them down by the same factor
    share = np.minimum(ratio(waited, opened + blocked), 1.0)
    read, open_wait, lock = reading * share, opened * share, lock * share
    return Parts(
        open_cpu=open_cpu,
        open_wait=open_wait,
        read=read,
        decompress=decompress,
        cpu=cpu - open_cpu - decompress - measuring,
        lock=lock,
        wait=np.maximum(waited - open_wait - read - lock, 0.0),
        contention=contention,
        first=0.0 * wall,
        failed=0.0 * wall,
        overhead=np.maximum(task_seconds - wall, 0.0) + measuring,
    )


OF_CHUNKS: Final = ("wall_seconds", "core_wait_seconds", "cpu_seconds", "helper_cpu_seconds")
CLASSES: Final = tuple(one.name for one in TIME_CLASSES)
OF_STORAGE: Final = tuple(one.name for one in TIME_CLASSES if one.word == "storage")

LOCK: Final = "lock_seconds"
BLOCKED: Final = "blocked_seconds"
CONTENTION: Final = "contention_seconds"
"""LOCK, BLOCKED and CONTENTION hold time spent waiting inside process(). Older runs have no values in them."""


def ratio(amount: Numbers | Integers, divisor: Numbers | Integers) -> Numbers:
    """Divide two arrays; the result is 0 where the divisor is 0."""
    return np.divide(amount, divisor, out=np.zeros(len(amount)), where=divisor > 0)


AS_RECORDED: Final = "as recorded"
STORAGE_FACTOR: Final = 2.0

ChunkLaw = Mapping[str, Numbers]
"""Maps each dataset to its fixed cost and cost per event in seconds, with one row per field of `Parts`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change to a run, as functions that modify its chunks, preprocessing, Dask overheads and merging."""

    chunks: Callable[[Chunks], Chunks] = lambda chunks: chunks
    preprocessing: Callable[[Load], Load] = lambda load: load
    costs: Callable[[Costs], Costs] = lambda costs: costs
    merging: Callable[[Merging], Merging] = lambda merging: merging

    def then(self, other: Scenario) -> Scenario:
        return Scenario(
            lambda given: other.chunks(self.chunks(given)),
            lambda given: other.preprocessing(self.preprocessing(given)),
            lambda given: other.costs(self.costs(given)),
            lambda given: other.merging(self.merging(given)),
        )


UNCHANGED: Final = Scenario()


def opened_once(chunks: Chunks) -> Chunks:
    """Have only the first chunk of each file open the file and build the tree."""
    keeps, parts = np.zeros(len(chunks)), chunks.parts
    keeps[np.unique(files_of(chunks), return_index=True)[1]] = 1.0
    return with_computing(chunks, open_cpu=parts.open_cpu * keeps, open_wait=parts.open_wait * keeps)


def files_of(chunks: Chunks) -> Integers:
    """Assign a numeric ID to each combination of dataset and file."""
    return np.asarray(chunks.dataset * (int(chunks.file.max(initial=0)) + 1) + chunks.file)


def with_computing(chunks: Chunks, **parts: Numbers) -> Chunks:
    """Change some of the parts, and scale waits for cores and the GIL in proportion to the CPU time."""
    before, changed = chunks.parts.computing, chunks.with_parts(**parts)
    ratio = np.divide(changed.parts.computing, before, out=np.ones_like(before), where=before > 0)
    return changed.with_parts(contention=changed.parts.contention * ratio, lock=changed.parts.lock * ratio)


def faster_storage(times: float) -> Scenario:
    """Make storage `times` times as fast. All waiting during preprocessing counts as waiting for storage."""
    return Scenario(
        lambda old: old.with_parts(open_wait=old.parts.open_wait / times, read=old.parts.read / times),
        preprocessing=lambda load: replace(load, wait=load.wait / times),
    )


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Scenarios by name. The first scenario is the unchanged run."""

    def without_stragglers(chunks: Chunks) -> Chunks:
        expected = chunks.parts.each(lambda seconds: seconds * chunks.factor)
        return replace(chunks, parts=expected._replace(overhead=chunks.parts.overhead))

    return {
        AS_RECORDED: UNCHANGED,
        "no metadata re-reads": Scenario(chunks=opened_once),
        "no stragglers": Scenario(chunks=without_stragglers),
        f"storage {storage:g} x faster": faster_storage(storage),
        "no Dask overhead": without_dask(),
    }


def without_dask(*, outputs: bool = False) -> Scenario:
    """Remove Dask's overheads, but keep the time that processes take to start.

    If `outputs` is true, also keep the time spent compressing and fetching large results.
    """
    scenario = Scenario(
        costs=lambda costs: costs._replace(gap=0.0, latency=0.0, scheduler=0.0, steal=0.0, outside=0.0, process=0.0)
    )
    if outputs:
        return scenario
    return replace(
        scenario,
        chunks=lambda chunks: chunks.with_parts(overhead=np.zeros(len(chunks))),
        merging=lambda merging: replace(merging, fetch=0.0),
    )


# Chunks of a different size


class Pieces(NamedTuple):
    """New chunks of the recorded files.

    `row` is the row of the recorded chunk that contains the start of each new chunk.
    """

    row: Integers
    start: Integers
    stop: Integers


class Bracket(NamedTuple):
    """Chunks of a different size, assuming that either all costs are fixed or only the cost of opening files is."""

    fixed: Chunks
    opening: Chunks


def law_of(runs: Sequence[Chunks]) -> ChunkLaw | str:
    """Fit the cost of a chunk as a function of its number of events, for each dataset.

    All runs must be of the same analysis. If the fixed cost per chunk cannot be determined, return the reason.
    """
    names, dataset = datasets_of(runs)
    events = np.concatenate([chunks.events for chunks in runs])
    rows = [np.flatnonzero(dataset == place) for place in range(len(names))]
    reasons = [_why_unknown(name, events[own]) for name, own in zip(names, rows, strict=True)]
    known = np.isin(dataset, [place for place, reason in enumerate(reasons) if reason is None])
    unknown = [reason for reason in reasons if reason is not None]
    if unknown and np.count_nonzero(known) < max(0.9 * len(known), 1):
        return unknown[0]
    # with a million chunks, copies take a lot of memory
    parts = [
        each[0] if len(each) == 1 else np.concatenate(each)
        for each in zip(*(chunks.parts for chunks in runs), strict=True)
    ]

    def taken(some: Integers | Flags) -> tuple[Numbers, Iterable[Numbers]]:
        return events[some], map(itemgetter(some), parts)

    pooled = _fitted(*taken(known)) if unknown else np.zeros((0, 2))
    return {
        name: _fitted(*taken(own)) if reason is None else _through(pooled, *taken(own))
        for name, own, reason in zip(names, rows, reasons, strict=True)
    }


def datasets_of(runs: Sequence[Chunks]) -> tuple[list[str], Integers]:
    names = list(dict.fromkeys(name for chunks in runs for name in chunks.datasets))
    own = ([names.index(name) for name in chunks.datasets] for chunks in runs)
    return names, np.concatenate([np.array(some)[chunks.dataset] for some, chunks in zip(own, runs, strict=True)])


def _why_unknown(name: str, events: Numbers) -> str | None:
    if len(events) < 4:
        return f"{name} has {len(events)} chunks, too few to determine the fixed cost of a chunk"
    low, high = np.quantile(events, [0.05, 0.95])
    # one shorter chunk at the end of each file is not enough
    if high >= 1.5 * low and np.std(events) >= 0.15 * np.mean(events):
        return None
    return (
        f"chunks of {name} have about {number(round(float(np.median(events))))} events each, so the fixed cost of a "
        "chunk is unknown; add a run with a different chunk size"
    )


def _fitted(events: Numbers, parts: Iterable[Numbers]) -> Numbers:
    traits = np.column_stack([np.ones(len(events)), events])
    return np.array([nonnegative_fit(traits, seconds) for seconds in parts])


def _through(pooled: Numbers, events: Numbers, parts: Iterable[Numbers]) -> Numbers:
    """Combine the pooled fixed cost (capped at the mean) with a cost per event that reproduces the mean duration."""
    mean = np.array([seconds.mean() for seconds in parts])
    fixed = np.minimum(pooled[:, 0], mean)
    return np.column_stack([fixed, (mean - fixed) / max(float(events.mean()), 1.0)])


def by_law(chunks: Chunks, law: ChunkLaw, size: int) -> Chunks:
    """Build chunks of a different size from the fitted costs, with the recorded scatter."""
    laws, pieces = np.array([law[name] for name in chunks.datasets]), cut(chunks, size)

    def expected(dataset: Integers, events: Numbers) -> Numbers:
        return np.asarray(laws[dataset, :, 0] + laws[dataset, :, 1] * events[:, None])

    events = (pieces.stop - pieces.start).astype(np.float64)
    usual, total = expected(chunks.dataset, chunks.events).sum(axis=1), chunks.parts.total
    scatter = np.divide(total, usual, out=np.ones_like(usual), where=usual > 0)
    scatter = np.resize(np.random.default_rng(0).permutation(scatter / scatter.mean()), len(events))
    # larger chunks scatter less, because fluctuations average out within a chunk
    factor = np.maximum(1 + (scatter - 1) * np.sqrt(chunks.events.mean() / events.mean()), 0.1)
    seconds = expected(chunks.dataset[pieces.row], events) * (factor / factor.mean())[:, None]
    return chunks.recut(*pieces, Parts(*seconds.T))


def bracket(chunks: Chunks, size: int) -> Bracket:
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    fixed = chunks.parts.each(itemgetter(pieces.row))
    opening = fixed.each(lambda seconds: seconds * share)._replace(open_cpu=fixed.open_cpu, open_wait=fixed.open_wait)
    return Bracket(chunks.recut(*pieces, fixed), chunks.recut(*pieces, opening))


def cut(chunks: Chunks, size: int) -> Pieces:
    """Split each file into equal chunks of about the given size, as coffea does.

    Each file is assumed to end where its last recorded chunk ends.
    """
    _, file = np.unique(files_of(chunks), return_inverse=True)
    order = np.lexsort((chunks.start, file))
    entries = np.zeros(int(file.max(initial=-1)) + 1, np.int64)
    np.maximum.at(entries, file, chunks.stop)
    number_of = np.maximum(np.round(entries / size).astype(np.int64), 1)
    of_file = np.repeat(np.arange(len(entries)), number_of)
    turn = np.arange(len(of_file)) - np.repeat(np.cumsum(number_of) - number_of, number_of)
    step, last = -(-entries // number_of), entries[of_file]
    starts, stops = (np.minimum((turn + more) * step[of_file], last) for more in (0, 1))
    # find the recorded chunk in which each piece starts
    width = int(entries.max(initial=0)) + 1
    begun = np.searchsorted((file * width + chunks.start)[order], of_file * width + starts, side="right") - 1
    first = np.searchsorted(file[order], of_file)
    pieces = Pieces(order[np.maximum(begun, first)], starts, stops)
    return Pieces(*(column[stops > starts] for column in pieces))
