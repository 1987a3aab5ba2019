"""Recorded chunks in parts: what each would take with a core to itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.phases import PHASES
from roastcoffea.metrics.statistics import Numbers, amounts, codes, places
from roastcoffea.replay.cluster import CROWDED, Load
from roastcoffea.replay.inputs import Counts


class Parts(NamedTuple):
    """Seconds of each chunk.

    `open_cpu` and `open_wait` are opening the file and building its events, `read` is waiting for storage in process(),
    `wait` other time without CPU, `cpu` all other CPU, `overhead` the rest of the task.
    """

    open_cpu: Numbers
    open_wait: Numbers
    read: Numbers
    wait: Numbers
    cpu: Numbers
    overhead: Numbers

    @property
    def total(self) -> Numbers:
        """What each chunk takes without want of cores."""
        return np.asarray(np.sum(self, axis=0))

    def each(self, change: Callable[[Numbers], Numbers]) -> Parts:
        """All of them changed alike."""
        return Parts(*map(change, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in the order in which they began, with the seconds of their parts; what processes take to begin is gone.

    `dataset` is a place in `datasets`, `file` a number of its own for each file. `factor` is what an expected chunk
    takes of what a straggler took, and 1 for others.
    """

    datasets: tuple[str, ...]
    dataset: Counts
    file: Counts
    start: Counts
    stop: Counts
    parts: Parts
    factor: Numbers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def events(self) -> Numbers:
        """Events of each chunk."""
        return (self.stop - self.start).astype(np.float64)

    def load(self) -> Load:
        """What there is to do."""
        open_cpu, open_wait, read, wait, cpu, overhead = self.parts
        return Load(before=open_cpu, wait=open_wait + read + wait, after=cpu + overhead)


def chunks_in_parts(chunks: pa.Table, task_seconds: Numbers, stragglers: pa.Table | str) -> Chunks:
    """Parts of chunks as if each had a core to itself: waiting for one is in none of them.

    Parameters
    ----------
    chunks
        Attempts of chunks that counted.
    task_seconds
        What the task of each took.
    stragglers
        Those of them that took longer than expected; or why they are not known.
    """
    wall, core_wait = amounts(chunks, "wall_seconds"), amounts(chunks, "core_wait_seconds")
    cpu = np.minimum(amounts(chunks, "cpu_seconds") + amounts(chunks, "helper_cpu_seconds"), wall)
    opening, inside = (
        np.sum([amounts(chunks, phase.column) for phase in PHASES if phase.part == part], axis=0)
        for part in ("opening", "CPU")
    )
    open_cpu = np.clip(np.minimum(cpu - inside, opening), 0.0, None)
    waited = np.clip(wall - cpu - core_wait, 0.0, None)
    # where waiting for a core was much, all waiting is less: opening and reading keep their shares of what is left
    recorded = (
        np.clip(opening - open_cpu, 0.0, None),
        amounts(chunks, "read_seconds"),
        amounts(chunks, "wait_seconds"),
    )
    share = np.minimum(_ratio(waited, np.sum(recorded, axis=0)), 1.0)
    open_wait, read, _ = (seconds * share for seconds in recorded)
    # a job that shared a core also took more CPU time, and the replay puts in its own
    alone = 1 / (1 + CROWDED * np.log2(_ratio(core_wait, cpu) + 1))
    return Chunks(
        datasets=tuple(map(str, pc.unique(chunks["dataset"]).to_pylist())),
        dataset=codes(chunks["dataset"]),
        file=codes(chunks["file"]),
        start=np.asarray(chunks["entry_start"].to_numpy(), np.int64),
        stop=np.asarray(chunks["entry_stop"].to_numpy(), np.int64),
        parts=Parts(
            open_cpu=open_cpu * alone,
            open_wait=open_wait,
            read=read,
            wait=waited - open_wait - read,
            cpu=(cpu - open_cpu) * alone,
            overhead=np.clip(task_seconds - wall, 0.0, None),
        ),
        factor=_factors(chunks, stragglers),
    )


def _ratio(amount: Numbers, beside: Numbers) -> Numbers:
    """Ratio of two amounts; 0 where the second is."""
    return np.divide(amount, beside, out=np.zeros(len(amount)), where=beside > 0)


def _factors(chunks: pa.Table, stragglers: pa.Table | str) -> Numbers:
    """What an expected chunk takes of what each straggler took; 1 for the others."""
    if isinstance(stragglers, str) or not len(stragglers):
        return np.ones(len(chunks))
    place = places(chunks["id"], stragglers["id"].combine_chunks())
    expected = amounts(stragglers, "expected_seconds") / amounts(stragglers, "wall_seconds")
    return np.where(place >= 0, expected[place], 1.0)
