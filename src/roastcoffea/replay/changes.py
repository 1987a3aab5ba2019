"""Changes of a recorded run: what each makes of its chunks, of preprocessing, and of Dask; and chunks of another size.

Size: where the recorded chunks tell what a chunk costs beside its events, a law is drawn from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from roastcoffea.metrics.statistics import Integers, Numbers
from roastcoffea.replay.cluster import Cluster, Load, Merging
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.parts import Chunks, Parts
from roastcoffea.units import number

AS_RECORDED: Final = "as recorded"
STORAGE_FACTOR: Final = 2.0

FEWEST: Final = 4
"""Chunks of a dataset from which a law is drawn."""

VARIED: Final = 1.5
"""Events of the largest chunks beside those of the smallest from which the fixed cost of a chunk shows."""

SPREAD: Final = 0.15
"""And the standard deviation of events beside their mean: one odd chunk at the end of each file is not enough."""

TOLD: Final = 0.5
"""Least share of chunks in datasets with a law of their own: the others share what these have in common."""

LEAST_FACTOR: Final = 0.1

SCATTERED: Final = 20_000
"""Chunks that tell how others scatter."""

ChunkLaw = Mapping[str, Numbers]
"""For each dataset the fixed seconds and those of an event, a row each part of a chunk."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change: what it makes of chunks, of preprocessing, of what Dask takes, of merging, and of cores."""

    chunks: Callable[[Chunks], Chunks] = lambda chunks: chunks
    preprocessing: Callable[[Load], Load] = lambda load: load
    costs: Callable[[Costs], Costs] = lambda costs: costs
    merging: Callable[[Merging], Merging] = lambda merging: merging
    cores: Callable[[Cluster], Cluster] = lambda cluster: cluster

    def then(self, other: Scenario) -> Scenario:
        """This change, and then another one."""
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
    """Chunks with some parts changed; they wait for cores, and for the interpreter, in proportion to their CPU time."""
    before, changed = chunks.parts.computing, chunks.with_parts(**parts)
    ratio = np.divide(changed.parts.computing, before, out=np.ones(len(before)), where=before > 0)
    return changed.with_parts(contention=changed.parts.contention * ratio, lock=changed.parts.lock * ratio)


def faster_storage(times: float) -> Scenario:
    """Storage that is so many times faster; what preprocessing waits for is taken for storage."""
    return Scenario(
        lambda old: old.with_parts(open_wait=old.parts.open_wait / times, read=old.parts.read / times),
        preprocessing=lambda load: replace(load, wait=load.wait / times),
    )


def _without_stragglers(chunks: Chunks) -> Chunks:
    """Stragglers take what is expected of their events and bytes."""
    expected = chunks.parts.each(lambda seconds: seconds * chunks.factor)
    return replace(chunks, parts=expected._replace(overhead=chunks.parts.overhead))


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Changes by name; the first is none."""
    return {
        AS_RECORDED: UNCHANGED,
        "no metadata re-reads": Scenario(chunks=opened_once),
        "no stragglers": Scenario(chunks=_without_stragglers),
        f"storage {storage:g} x faster": faster_storage(storage),
        "Dask's overhead gone": without_dask(),
    }


def without_dask(*, outputs: bool = False) -> Scenario:
    """Tasks that cost nothing but what they compute; processes have to begin all the same.

    With `outputs` those of chunks are large, so that it takes time to compress and to fetch them.
    """
    scenario = Scenario(costs=lambda costs: costs._replace(gap=0.0, latency=0.0, scheduler=0.0, own=0.0, steal=0.0))
    if outputs:
        return scenario
    return replace(
        scenario,
        chunks=lambda chunks: chunks.with_parts(overhead=np.zeros(len(chunks))),
        merging=lambda merging: replace(merging, fetch=0.0),
    )


# Chunks of another size


class Pieces(NamedTuple):
    """Files cut into chunks: the place of each chunk's file among the recorded chunks, and its entries."""

    row: Integers
    start: Integers
    stop: Integers


class Bracket(NamedTuple):
    """Chunks of another size if all that a chunk takes were fixed, and if only opening it were."""

    fixed: Chunks
    opening: Chunks


def law_of(runs: Sequence[Chunks]) -> ChunkLaw | str:
    """What a chunk of so many events takes, by dataset, from all chunks of runs of the same analysis.

    A text says why what a chunk costs beside its events cannot be told.
    """
    names = list(dict.fromkeys(name for chunks in runs for name in chunks.datasets))
    found = {name: _law_of_dataset(runs, name) for name in names}
    laws = {name: law for name, law in found.items() if not isinstance(law, str)}
    reasons = [law for law in found.values() if isinstance(law, str)]
    numbers = {name: sum(np.count_nonzero(rows) for _, rows in _of_dataset(runs, name)) for name in names}
    if reasons and sum(numbers[name] for name in laws) < max(TOLD * sum(numbers.values()), 1):
        return reasons[0]
    if reasons:
        pooled = _fitted(*map(np.concatenate, zip(*(_events_and_parts(runs, name) for name in laws), strict=True)))
        laws |= {name: _through(pooled, *_events_and_parts(runs, name)) for name in names if name not in laws}
    return {name: laws[name] for name in names}


def _law_of_dataset(runs: Sequence[Chunks], name: str) -> Numbers | str:
    """Law of a dataset's own chunks; or why they tell none."""
    events, parts = _events_and_parts(runs, name)
    if len(events) < FEWEST:
        return f"{name} has {len(events)} chunks, which are too few to tell what a chunk costs beside its events"
    low, high = np.quantile(events, [0.05, 0.95])
    if high >= VARIED * low and np.std(events) >= SPREAD * np.mean(events):
        return _fitted(events, parts)
    return (
        f"chunks of {name} have about {number(round(float(np.median(events))))} events each: what a chunk "
        "costs beside its events cannot be told; give a run with another chunk size as well"
    )


def _events_and_parts(runs: Sequence[Chunks], name: str) -> tuple[Numbers, Numbers]:
    """Events of a dataset's chunks, and the seconds of their parts, a column each."""
    own = list(_of_dataset(runs, name))
    events = np.concatenate([chunks.events[rows] for chunks, rows in own])
    parts = zip(*(chunks.parts.each(itemgetter(rows)) for chunks, rows in own), strict=True)
    return events, np.column_stack([np.concatenate(seconds) for seconds in parts])


def _fitted(events: Numbers, parts: Numbers) -> Numbers:
    """Fixed seconds and those of an event, of each part."""
    traits = np.column_stack([np.ones(len(events)), events])
    return np.array([nnls(traits, seconds)[0] for seconds in parts.T])


def _through(pooled: Numbers, events: Numbers, parts: Numbers) -> Numbers:
    """The law of others through the mean of these chunks: with their fixed seconds, as far as these took so long."""
    mean = parts.mean(axis=0)
    fixed = np.minimum(pooled[:, 0], mean)
    return np.column_stack([fixed, (mean - fixed) / max(float(events.mean()), 1.0)])


def _of_dataset(runs: Sequence[Chunks], name: str) -> Iterator[tuple[Chunks, npt.NDArray[np.bool_]]]:
    """Runs that have chunks of a dataset, and which those are."""
    for chunks in runs:
        if name in chunks.datasets:
            yield chunks, chunks.dataset == chunks.datasets.index(name)


def by_law(chunks: Chunks, law: ChunkLaw, size: int) -> Chunks:
    """Chunks of another size as the law has them, scattered about it as the recorded ones are."""
    laws = np.array([law[name] for name in chunks.datasets])
    pieces = cut(chunks, size)
    events, dataset = (pieces.stop - pieces.start).astype(np.float64), chunks.dataset[pieces.row]
    seconds = laws[dataset, :, 0] + laws[dataset, :, 1] * events[:, None]
    seconds *= _scatter(chunks, laws, events)[:, None]
    return chunks.recut(*pieces, Parts(*seconds.T))


def _scatter(chunks: Chunks, laws: Numbers, events: Numbers) -> Numbers:
    """Factors about 1: larger chunks scatter less, as what differs within them averages out."""
    expected = (laws[chunks.dataset, :, 0] + laws[chunks.dataset, :, 1] * chunks.events[:, None]).sum(axis=1)
    found = chunks.parts.total
    ratio = np.divide(found, expected, out=np.ones(len(found)), where=expected > 0)
    some = ratio[:: -(-len(ratio) // SCATTERED)]
    ratio = np.random.default_rng(0).permutation(some / some.mean())[np.arange(len(events)) % len(some)]
    factor = np.maximum(1 + (ratio - 1) * np.sqrt(chunks.events.mean() / events.mean()), LEAST_FACTOR)
    return np.asarray(factor / factor.mean())


def bracket(chunks: Chunks, size: int) -> Bracket:
    """Chunks of another size where it is not known what of a chunk is fixed."""
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    fixed = chunks.parts.each(itemgetter(pieces.row))
    opening = fixed.each(lambda seconds: seconds * share)._replace(open_cpu=fixed.open_cpu, open_wait=fixed.open_wait)
    return Bracket(chunks.recut(*pieces, fixed), chunks.recut(*pieces, opening))


def cut(chunks: Chunks, size: int) -> Pieces:
    """Cut files as coffea does: each into equal chunks of about that size.

    A file ends where the last of its recorded chunks does.
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
    # a piece is made of the recorded chunk of its file in which it begins
    width = int(entries.max(initial=0)) + 1
    begun = np.searchsorted((file * width + chunks.start)[order], of_file * width + starts, side="right") - 1
    first = np.searchsorted(file[order], of_file)
    pieces = Pieces(order[np.maximum(begun, first)], starts, stops)
    return Pieces(*(column[stops > starts] for column in pieces))
