"""Changes of a recorded run: effects on its chunks, preprocessing, and Dask; and chunks of another size.

If the recorded chunks show the fixed cost of a chunk, a law is fitted for other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.replay.cluster import Cluster, Load, Merging
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.parts import Chunks, Parts
from roastcoffea.units import number

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
