"""Recorded chunks with the seconds of their parts, and changes of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.metrics.busy import sum_of
from roastcoffea.metrics.phases import DECOMPRESS, PHASES, READ, TIME_CLASSES, Part
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes, integers, places
from roastcoffea.replay.cluster import Cluster, Load, Merging
from roastcoffea.replay.engine import Costs
from roastcoffea.units import number


class Parts(NamedTuple):
    """Seconds of each chunk.

    `open_cpu` and `open_wait` are opening the file and building its events, `read` is waiting for storage in process(),
    `decompress` CPU in decompression, `cpu` all other CPU, `lock` blocked while others hold the interpreter, `wait`
    other time without CPU. `contention` is waiting for a core, `first` the extra time of a process's first task: 0 if
    the replay adds its own. `failed` is the time of a failed attempt, which has no other part. `overhead` is the rest
    of the task.
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
        """Time of each chunk in its parts."""
        return np.asarray(sum(self))

    @property
    def computing(self) -> Numbers:
        """CPU of each chunk from opening its file to the end of process()."""
        return self.open_cpu + self.decompress + self.cpu

    def each(self, change: Callable[[Numbers], Numbers]) -> Parts:
        """Apply a change to all parts."""
        return Parts(*map(change, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in order of their start, with the seconds of their parts, without starting processes.

    `dataset` is an index into `datasets`, `file` a number for each file. `factor` is the expected share of a
    straggler's time, and 1 for others. `row` is the index of each in the table of chunks that counted. A failed attempt
    has -1 as dataset, file and row.
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
        """Events of each chunk."""
        return (self.stop - self.start).astype(np.float64)

    def load(self, *, shared: bool = False) -> Load:
        """Work to do; if storage is shared, reading is separate from other waiting."""
        parts = self.parts
        reading = parts.open_wait + parts.read
        waiting = parts.lock + parts.wait + parts.contention + parts.first + parts.failed
        after = parts.decompress + parts.cpu + parts.overhead
        if shared:
            return Load(before=parts.open_cpu, wait=waiting, after=after, read=reading)
        return Load(before=parts.open_cpu, wait=reading + waiting, after=after)

    def take(self, rows: Integers) -> Chunks:
        """Some of them."""
        picked: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("dataset", "file", "start", "stop", "factor", "row")
        }
        return replace(self, parts=self.parts.each(itemgetter(rows)), **picked)

    def recut(self, made_of: Integers, start: Integers, stop: Integers, parts: Parts) -> Chunks:
        """Other chunks of the same files, each derived from a recorded one."""
        places = self.take(made_of)
        return replace(places, start=start, stop=stop, parts=parts, factor=np.ones(len(made_of)))

    def with_parts(self, **parts: Numbers) -> Chunks:
        """The same chunks with some of their parts changed."""
        return replace(self, parts=self.parts._replace(**parts))

    def with_cores(self, own: float, crowded: float = 0.0) -> Chunks:
        """Chunks without this share of their waiting for cores, as if they had their own core.

        If jobs that share a core also take more CPU time (`crowded`: for each doubling), it is taken off as well.
        """
        contention = self.parts.contention
        doublings = np.log2(own * ratio(contention, self.parts.computing) + 1)
        return self.uncrowded(doublings, crowded).with_parts(contention=contention * (1 - own))

    def uncrowded(self, doublings: Numbers, crowded: float) -> Chunks:
        """Chunks with the CPU time that they would take on a core of their own, with less for each doubling."""
        alone = 1 / (1 + crowded * doublings)
        return self.with_parts(
            **{name: getattr(self.parts, name) * alone for name in ("open_cpu", "decompress", "cpu")}
        )


def needed(chunks: pa.Table) -> pa.Table:
    """Columns of chunks needed for parts: copying these costs less than copying all."""
    seconds = (*OF_CHUNKS, *(phase.column for phase in PHASES), LOCK, BLOCKED)
    names = dict.fromkeys(("id", "dataset", "file", "entry_start", "entry_stop", "events", "bytes_requested", *seconds))
    return chunks.select([name for name in names if name in chunks.column_names])


def chunks_in_parts(
    chunks: pa.Table, task_seconds: Numbers, stragglers: pa.Table | str = "not needed", rows: Integers | None = None
) -> Chunks:
    """Parts of chunks as recorded.

    Parameters
    ----------
    chunks
        Attempts of chunks that counted.
    task_seconds
        Duration of each chunk's task.
    stragglers
        Those that took longer than expected; or why they are unknown.
    rows
        Index of each in the table of chunks that counted; by default all of them.
    """
    wall, core_wait, *cpus = (amounts(chunks, name) for name in OF_CHUNKS)
    cpu = np.minimum(sum(cpus), wall)
    opening, inside = (_seconds_in(chunks, part) for part in ("opening", "CPU"))
    open_cpu = np.clip(np.minimum(cpu - inside, opening), 0.0, None)
    decompress = np.minimum(_seconds_in(chunks, "CPU", DECOMPRESS), cpu - open_cpu)
    contention = np.minimum(core_wait, wall - cpu)
    waited = np.clip(wall - cpu - contention, 0.0, None)
    # if waiting for a core was long, all other waiting is reduced: opening and reading keep their proportions
    opened, blocked = np.clip(opening - open_cpu, 0.0, None), _waiting(chunks)
    share = np.minimum(ratio(waited, opened + blocked), 1.0)
    read = _seconds_in(chunks, "waiting", *OF_STORAGE) * share
    open_wait, lock = opened * share, _known(chunks, LOCK) * share
    none = np.zeros(len(chunks))
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=codes(chunks["dataset"]),
        file=codes(chunks["file"]),
        start=integers(chunks["entry_start"]),
        stop=integers(chunks["entry_stop"]),
        parts=Parts(
            open_cpu=open_cpu,
            open_wait=open_wait,
            read=read,
            decompress=decompress,
            cpu=cpu - open_cpu - decompress,
            lock=lock,
            wait=np.clip(waited - open_wait - read - lock, 0.0, None),
            contention=contention,
            first=none,
            failed=none.copy(),
            overhead=np.clip(task_seconds - wall, 0.0, None),
        ),
        factor=_factors(chunks, stragglers),
        row=np.arange(len(chunks)) if rows is None else rows,
    )


OF_CHUNKS: Final = ("wall_seconds", "core_wait_seconds", "cpu_seconds", "helper_cpu_seconds")
WORD_OF: Final = {one.name: one.word for one in TIME_CLASSES}
OF_STORAGE: Final = tuple(name for name, word in WORD_OF.items() if word == WORD_OF[READ])
"""Classes of waiting for storage."""

UNSPLIT: Final = "wait_seconds"
CONTENTION: Final = "contention_seconds"
LOCK: Final = "lock_seconds"
BLOCKED: Final = "blocked_seconds"
"""Columns of waiting in process(): combined, and separate, which older runs lack."""


def _waiting(chunks: pa.Table) -> Numbers:
    """Seconds of each chunk off the CPU in process() without CPU contention, if recorded separately."""
    whole = _known(chunks, UNSPLIT)
    if BLOCKED in chunks.column_names:
        whole[np.asarray(chunks[BLOCKED].is_valid().to_numpy(), np.bool_)] = 0.0
    others = {phase.column for phase in PHASES if phase.part == "waiting"} - {UNSPLIT, CONTENTION, LOCK, BLOCKED}
    return sum((_known(chunks, name) for name in (*sorted(others), LOCK, BLOCKED)), whole)


def _known(chunks: pa.Table, column: str) -> Numbers:
    """Seconds of each chunk; 0 if the column is missing."""
    return amounts(chunks, column) if column in chunks.column_names else np.zeros(len(chunks))


def _seconds_in(chunks: pa.Table, part: Part, *classes: str) -> Numbers:
    """Seconds of each chunk in the phases of a part, or in those of these classes."""
    phases = (phase for phase in PHASES if phase.part == part and (not classes or phase.time_class in classes))
    return sum_of(chunks, tuple(phase.column for phase in phases))


def ratio(amount: Numbers, divisor: Numbers) -> Numbers:
    """Ratio of two amounts; 0 if the second is 0."""
    return np.divide(amount, divisor, out=np.zeros(len(amount)), where=divisor > 0)


def _factors(chunks: pa.Table, stragglers: pa.Table | str) -> Numbers:
    """Expected share of each straggler's time; 1 for the others."""
    if isinstance(stragglers, str) or not len(stragglers):
        return np.ones(len(chunks))
    place = places(chunks["id"], stragglers["id"].combine_chunks())
    expected = amounts(stragglers, "expected_seconds") / amounts(stragglers, "wall_seconds")
    return np.where(place >= 0, expected[place], 1.0)


AS_RECORDED: Final = "as recorded"
STORAGE_FACTOR: Final = 2.0

FEWEST: Final = 4
"""Fewest chunks of a dataset for a law."""

VARIED: Final = 1.5
"""Ratio of events in the largest and smallest chunks from which the fixed cost of a chunk shows."""

SPREAD: Final = 0.15
"""Least ratio of the standard deviation of events to their mean: one odd chunk at the end of each file is not
enough."""

KNOWN: Final = 0.9
"""Least share of chunks in datasets with a law of their own, for the others to share that law."""

LEAST_FACTOR: Final = 0.1

SCATTERED: Final = 20_000
"""Fewest chunks that show the scatter of others."""

ChunkLaw = Mapping[str, Numbers]
"""For each dataset the fixed seconds and those per event, one row per part of a chunk."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change: functions of chunks, preprocessing, Dask's costs, merging, and cores."""

    chunks: Callable[[Chunks], Chunks] = lambda chunks: chunks
    preprocessing: Callable[[Load], Load] = lambda load: load
    costs: Callable[[Costs], Costs] = lambda costs: costs
    merging: Callable[[Merging], Merging] = lambda merging: merging
    cores: Callable[[Cluster], Cluster] = lambda cluster: cluster

    def then(self, other: Scenario) -> Scenario:
        """This change followed by another one."""
        names = [each.name for each in fields(self)]
        return Scenario(**{name: _both(getattr(self, name), getattr(other, name)) for name in names})


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: second(first(given))


UNCHANGED: Final = Scenario()


def opened_once(chunks: Chunks) -> Chunks:
    """Chunks of which only the first of a file opens it and builds its tree."""
    _, first = np.unique(files_of(chunks), return_index=True)
    keeps = np.isin(np.arange(len(chunks)), first)
    parts = chunks.parts
    return with_computing(chunks, open_cpu=parts.open_cpu * keeps, open_wait=parts.open_wait * keeps)


def files_of(chunks: Chunks) -> Integers:
    """Number for the file of each chunk, in a dataset."""
    return np.asarray(chunks.dataset * (int(chunks.file.max(initial=0)) + 1) + chunks.file)


def with_computing(chunks: Chunks, **parts: Numbers) -> Chunks:
    """Chunks with some parts changed; waits for cores and the interpreter scale with their CPU time."""
    before, changed = chunks.parts.computing, chunks.with_parts(**parts)
    ratio = np.divide(changed.parts.computing, before, out=np.ones(len(before)), where=before > 0)
    return changed.with_parts(contention=changed.parts.contention * ratio, lock=changed.parts.lock * ratio)


def faster_storage(times: float) -> Scenario:
    """Storage this many times faster; waiting in preprocessing counts as storage."""
    return Scenario(
        lambda old: old.with_parts(open_wait=old.parts.open_wait / times, read=old.parts.read / times),
        preprocessing=lambda load: replace(load, wait=load.wait / times),
    )


def _without_stragglers(chunks: Chunks) -> Chunks:
    """Chunks whose stragglers take the time expected from their events and bytes."""
    expected = chunks.parts.each(lambda seconds: seconds * chunks.factor)
    return replace(chunks, parts=expected._replace(overhead=chunks.parts.overhead))


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Changes by name; the first is none."""
    return {
        AS_RECORDED: UNCHANGED,
        "no metadata re-reads": Scenario(chunks=opened_once),
        "no stragglers": Scenario(chunks=_without_stragglers),
        f"storage {storage:g} x faster": faster_storage(storage),
        "no Dask overhead": without_dask(),
    }


def without_dask(*, outputs: bool = False) -> Scenario:
    """Tasks that cost only their computing; processes still have to start.

    With `outputs`, chunks have large results that take time to compress and fetch.
    """
    scenario = Scenario(
        costs=lambda costs: costs._replace(gap=0.0, latency=0.0, scheduler=0.0, own=0.0, idle=0.0, steal=0.0)
    )
    if outputs:
        return scenario
    return replace(
        scenario,
        chunks=lambda chunks: chunks.with_parts(overhead=np.zeros(len(chunks))),
        merging=lambda merging: replace(merging, fetch=0.0),
    )


# Chunks of another size


class Pieces(NamedTuple):
    """Files split into chunks: the index of each chunk's file among the recorded chunks, and its entries."""

    row: Integers
    start: Integers
    stop: Integers


class Bracket(NamedTuple):
    """Chunks of another size if a chunk's entire cost were fixed, and if only opening were."""

    fixed: Chunks
    opening: Chunks


def law_of(runs: Sequence[Chunks]) -> ChunkLaw | str:
    """Cost of a chunk by its events, for each dataset, from all chunks of runs of the same analysis.

    A text says why the fixed cost of a chunk is unknown.
    """
    names = list(dict.fromkeys(name for chunks in runs for name in chunks.datasets))
    found = {name: _law_of_dataset(runs, name) for name in names}
    laws = {name: law for name, law in found.items() if not isinstance(law, str)}
    reasons = [law for law in found.values() if isinstance(law, str)]
    numbers = {name: sum(np.count_nonzero(rows) for _, rows in _of_dataset(runs, name)) for name in names}
    if reasons and sum(numbers[name] for name in laws) < max(KNOWN * sum(numbers.values()), 1):
        return reasons[0]
    if reasons:
        pooled = _fitted(*map(np.concatenate, zip(*(_events_and_parts(runs, name) for name in laws), strict=True)))
        laws |= {name: _through(pooled, *_events_and_parts(runs, name)) for name in names if name not in laws}
    return {name: laws[name] for name in names}


def _law_of_dataset(runs: Sequence[Chunks], name: str) -> Numbers | str:
    """Law of a dataset's own chunks; or why there is none."""
    events, parts = _events_and_parts(runs, name)
    if len(events) < FEWEST:
        return f"{name} has {len(events)} chunks, too few to determine the fixed cost of a chunk"
    low, high = np.quantile(events, [0.05, 0.95])
    if high >= VARIED * low and np.std(events) >= SPREAD * np.mean(events):
        return _fitted(events, parts)
    return (
        f"chunks of {name} have about {number(round(float(np.median(events))))} events each, so that the fixed cost "
        "of a chunk is unknown; add a run with another chunk size"
    )


def _events_and_parts(runs: Sequence[Chunks], name: str) -> tuple[Numbers, Numbers]:
    """Events of a dataset's chunks, and the seconds of their parts, a column each."""
    own = list(_of_dataset(runs, name))
    events = np.concatenate([chunks.events[rows] for chunks, rows in own])
    parts = zip(*(chunks.parts.each(itemgetter(rows)) for chunks, rows in own), strict=True)
    return events, np.column_stack([np.concatenate(seconds) for seconds in parts])


def _fitted(events: Numbers, parts: Numbers) -> Numbers:
    """Fixed seconds and those per event, of each part."""
    traits = np.column_stack([np.ones(len(events)), events])
    return np.array([scipy.optimize.nnls(traits, seconds)[0] for seconds in parts.T])


def _through(pooled: Numbers, events: Numbers, parts: Numbers) -> Numbers:
    """The law of others through the mean of these chunks, with their fixed seconds if these took as long."""
    mean = parts.mean(axis=0)
    fixed = np.minimum(pooled[:, 0], mean)
    return np.column_stack([fixed, (mean - fixed) / max(float(events.mean()), 1.0)])


def _of_dataset(runs: Sequence[Chunks], name: str) -> Iterator[tuple[Chunks, npt.NDArray[np.bool_]]]:
    """Runs with chunks of a dataset, and the indices of these chunks."""
    for chunks in runs:
        if name in chunks.datasets:
            yield chunks, chunks.dataset == chunks.datasets.index(name)


def by_law(chunks: Chunks, law: ChunkLaw, size: int) -> Chunks:
    """Chunks of another size following the law, scattered like the recorded ones."""
    laws = np.array([law[name] for name in chunks.datasets])
    pieces = cut(chunks, size)
    events, dataset = (pieces.stop - pieces.start).astype(np.float64), chunks.dataset[pieces.row]
    seconds = laws[dataset, :, 0] + laws[dataset, :, 1] * events[:, None]
    seconds *= _scatter(chunks, laws, events)[:, None]
    return chunks.recut(*pieces, Parts(*seconds.T))


def _scatter(chunks: Chunks, laws: Numbers, events: Numbers) -> Numbers:
    """Factors about 1: larger chunks scatter less, because their variations average out."""
    expected = (laws[chunks.dataset, :, 0] + laws[chunks.dataset, :, 1] * chunks.events[:, None]).sum(axis=1)
    found = chunks.parts.total
    ratio = np.divide(found, expected, out=np.ones(len(found)), where=expected > 0)
    some = ratio[:: -(-len(ratio) // SCATTERED)]
    ratio = np.random.default_rng(0).permutation(some / some.mean())[np.arange(len(events)) % len(some)]
    factor = np.maximum(1 + (ratio - 1) * np.sqrt(chunks.events.mean() / events.mean()), LEAST_FACTOR)
    return np.asarray(factor / factor.mean())


def bracket(chunks: Chunks, size: int) -> Bracket:
    """Chunks of another size if the fixed cost of a chunk is unknown."""
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    fixed = chunks.parts.each(itemgetter(pieces.row))
    opening = fixed.each(lambda seconds: seconds * share)._replace(open_cpu=fixed.open_cpu, open_wait=fixed.open_wait)
    return Bracket(chunks.recut(*pieces, fixed), chunks.recut(*pieces, opening))


def cut(chunks: Chunks, size: int) -> Pieces:
    """Split files like coffea: each into equal chunks of about that size.

    A file ends with its last recorded chunk.
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
    # a piece is derived from the recorded chunk of its file in which it starts
    width = int(entries.max(initial=0)) + 1
    begun = np.searchsorted((file * width + chunks.start)[order], of_file * width + starts, side="right") - 1
    first = np.searchsorted(file[order], of_file)
    pieces = Pieces(order[np.maximum(begun, first)], starts, stops)
    return Pieces(*(column[stops > starts] for column in pieces))
