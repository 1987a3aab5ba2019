"""Recorded chunks with the seconds of their parts.

Waiting for a core is a part of its own; `Chunks.with_cores` removes it, as if a chunk had its own core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.busy import sum_of
from roastcoffea.metrics.phases import DECOMPRESS, PHASES, READ, TIME_CLASSES, Part
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes, integers, places
from roastcoffea.replay.cluster import Load


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
