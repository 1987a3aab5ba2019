"""Changes of a recorded run: what each makes of its chunks, of preprocessing, and of what Dask takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.cluster import Load, Merging
from roastcoffea.replay.inputs import Costs
from roastcoffea.replay.stages import Chunks

AS_RECORDED: Final = "as recorded"
STORAGE_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change: what it makes of chunks, of preprocessing, of what Dask takes, and of merging."""

    chunks: Callable[[Chunks], Chunks] = lambda chunks: chunks
    preprocessing: Callable[[Load], Load] = lambda load: load
    costs: Callable[[Costs], Costs] = lambda costs: costs
    merging: Callable[[Merging], Merging] = lambda merging: merging


UNCHANGED: Final = Scenario()


def _without_rereads(chunks: Chunks) -> Chunks:
    """Only the first chunk of a file opens it and builds its tree."""
    _, first = np.unique(np.column_stack([chunks.dataset, chunks.file]), axis=0, return_index=True)
    keeps = np.isin(np.arange(len(chunks)), first)
    parts = chunks.parts
    return _with(chunks, open_cpu=parts.open_cpu * keeps, open_wait=parts.open_wait * keeps)


def _with(chunks: Chunks, **parts: Numbers) -> Chunks:
    return replace(chunks, parts=chunks.parts._replace(**parts))


def _without_stragglers(chunks: Chunks) -> Chunks:
    """Stragglers take what is expected of their events and bytes."""
    expected = chunks.parts.each(lambda seconds: seconds * chunks.factor)
    return replace(chunks, parts=expected._replace(overhead=chunks.parts.overhead))


def _faster_storage(factor: float, chunks: Chunks) -> Chunks:
    return _with(chunks, open_wait=chunks.parts.open_wait / factor, read=chunks.parts.read / factor)


def _faster_opening(factor: float, load: Load) -> Load:
    """What preprocessing waits for is taken for storage."""
    return replace(load, wait=load.wait / factor)


def _without_overhead(chunks: Chunks) -> Chunks:
    return _with(chunks, overhead=np.zeros(len(chunks)))


def _free(costs: Costs) -> Costs:
    """Costs of a Dask that takes no time; processes have to begin all the same."""
    return Costs(cold_cpu=costs.cold_cpu, cold_wait=costs.cold_wait, steal=0.0, crowded=costs.crowded)


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Changes by name; the first is none."""
    return {
        AS_RECORDED: UNCHANGED,
        "no metadata re-reads": Scenario(chunks=_without_rereads),
        "no stragglers": Scenario(chunks=_without_stragglers),
        f"storage {storage:g} x faster": Scenario(
            chunks=partial(_faster_storage, storage), preprocessing=partial(_faster_opening, storage)
        ),
        "Dask's overhead gone": Scenario(
            chunks=_without_overhead, costs=_free, merging=lambda merging: replace(merging, fetch=0.0)
        ),
    }
