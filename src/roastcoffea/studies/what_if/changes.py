"""Changes of a recorded run: what each makes of its chunks, of preprocessing, and of what Dask takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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


def scenarios(storage: float = STORAGE_FACTOR) -> dict[str, Scenario]:
    """Changes by name; the first is none."""
    return {
        AS_RECORDED: UNCHANGED,
        "no metadata re-reads": Scenario(chunks=_without_rereads),
        "no stragglers": Scenario(chunks=_without_stragglers),
        f"storage {storage:g} x faster": Scenario(
            lambda old: _with(old, open_wait=old.parts.open_wait / storage, read=old.parts.read / storage),
            # what preprocessing waits for is taken for storage
            preprocessing=lambda load: replace(load, wait=load.wait / storage),
        ),
        "Dask's overhead gone": Scenario(
            chunks=lambda chunks: _with(chunks, overhead=np.zeros(len(chunks))),
            # processes have to begin all the same
            costs=lambda costs: costs._replace(gap=0.0, latency=0.0, scheduler=0.0, own=0.0, steal=0.0),
            merging=lambda merging: replace(merging, fetch=0.0),
        ),
    }
