"""Recommend one chunk size: the replay weighs everything that depends on it, within the workers' memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.savings import Saving, Savings
from roastcoffea.records.run import FINISHED, Run
from roastcoffea.replay.calibrated import Calibrated, Removal
from roastcoffea.replay.changes import ChunkLaw, Chunks, Parts, Scenario, by_law, cut, law_of
from roastcoffea.replay.engine import Costs
from roastcoffea.units import number

GRID: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 8, 16, 32)
"""Chunk sizes to try, relative to the present one."""

MANY: Final = 100_000
NEAR: Final = 8
"""Above this many chunks only sizes that differ by this factor are tried: each takes half a second."""

OVERLAP: Final = 0.1
"""Relative difference between the events of all files and of all chunks up to which the chunks cover the files."""

AS_GOOD: Final = 0.01
"""Share of the wall time within which sizes are equally good: the one nearest to the present size is taken."""

FILLED: Final = 0.6
"""Share of a worker's memory up to which Dask does not spill."""

MOST_CHUNKS: Final = 2_000_000
"""Number of chunks above which no size is tried: a scheduler would not cope."""

FIXED: Final = ("open_cpu", "open_wait", "overhead")
"""Parts of a chunk's time that do not depend on its size."""

OF_BASKETS: Final = ("read", "decompress")
"""Parts that grow with baskets that span two chunks."""

IN_PROCESS: Final = ("read", "decompress", "cpu", "lock", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a worker in bytes: base, per event, and limit."""

    base: float = 0.0
    per_event: float
    limit: float
    threads: int = 1

    def peak(self, size: float) -> float:
        """Bytes needed with chunks of this many events on all threads."""
        return self.base + self.per_event * size * self.threads


class ChunkSize(NamedTuple):
    """A recommended chunk size; `size` is None if there is none, and `reason` says why."""

    size: int | None
    now: float
    """Mean events per chunk in the recorded run."""
    saving: Saving
    """Wall time that it would save."""
    fixed: float
    """Seconds per chunk that do not depend on its size: opening its file, and Dask's overhead for its task."""
    in_process: float | None
    """Fixed seconds in process(); None if chunks are too similar to estimate them."""
    memory: float | None = None
    """Memory that a worker would need, in bytes."""
    reason: str | None = None
    removal: Removal | None = None
    """Chunks of that size in place of the recorded ones, for a replay with other changes before it."""
    asked: int | None = None
    """The chunk size that the Runner was given, where its files were cut by it."""
    largest: float = np.nan
    """Events of the largest chunk."""

    @property
    def is_larger(self) -> bool:
        """Whether chunks of that size are larger than what the Runner was given, else than all that there were."""
        return self.size is not None and self.size > self._present

    @property
    def is_smaller(self) -> bool:
        """Whether chunks of that size are smaller than that."""
        return self.size is not None and self.size < self._present

    @property
    def _present(self) -> float:
        if self.asked is not None:
            return self.asked
        return self.now if np.isnan(self.largest) else self.largest

    @property
    def usual(self) -> int:
        """The chunk size that the Runner was given, as far as its chunks have it; else their events on average."""
        given = self.asked is not None and self.now / 2 < self.asked < 2 * self.now
        return self.asked if given and self.asked is not None else round(self.now)

    @property
    def line(self) -> str | None:
        """Argument for the Runner."""
        return None if self.size is None else f"chunksize={self.size}"


Change = Callable[[Chunks], Chunks]

NOTHING: Final = Saving(0.0, 0.0, 0.0)


def recommended(savings: Savings, memory: Memory | None = None, reread: float = 0.0) -> ChunkSize:
    """Weigh chunk sizes.

    Parameters
    ----------
    memory
        What workers need and have, if known.
    reread
        Share of basket bytes read again because baskets span two chunks.
    """
    replay = savings.replay
    if isinstance(replay, str):
        return ChunkSize(None, np.nan, NOTHING, np.nan, None, reason=replay)
    if not any(chunks.events.sum() for chunks in replay.chunks):
        return ChunkSize(None, np.nan, NOTHING, np.nan, None, reason="no chunk has events")
    return _Weighed(savings, replay, memory, reread).best()


class _Candidate(NamedTuple):
    size: int
    saving: Saving


@dataclass(frozen=True)
class _Weighed:
    """Chunk sizes of a run."""

    savings: Savings
    replay: Calibrated
    memory: Memory | None
    reread: float

    @cached_property
    def chunks(self) -> list[Chunks]:
        """Chunks with a result, by stage."""
        return [_counted(chunks) for chunks in self.replay.chunks]

    @cached_property
    def now(self) -> float:
        """Events per chunk."""
        return float(sum(chunks.events.sum() for chunks in self.chunks) / sum(map(len, self.chunks)))

    @cached_property
    def law(self) -> ChunkLaw | str:
        """Law of a chunk's duration by its number of events, or why it is unknown."""
        return law_of(self.chunks)

    @cached_property
    def fixed(self) -> float:
        """Known seconds of each chunk that do not depend on its events."""
        total = sum(float(getattr(chunks.parts, name).sum()) for chunks in self.chunks for name in FIXED)
        return total / sum(map(len, self.chunks))

    @cached_property
    def in_process(self) -> float | None:
        """Seconds of each chunk in process() that do not depend on its events."""
        if isinstance(self.law, str):
            return None
        places = [Parts._fields.index(name) for name in IN_PROCESS]
        sums = [
            float(self.law[name][places, 0].sum()) * np.count_nonzero(chunks.dataset == place)
            for chunks in self.chunks
            for place, name in enumerate(chunks.datasets)
        ]
        return float(sum(sums) / sum(map(len, self.chunks)))

    def best(self) -> ChunkSize:
        """The size that saves most; among equally good ones, the nearest."""
        if self._overlap() > OVERLAP:
            return self._none("chunks of its files overlap, or many were left out")
        found = [self._candidate(size) for size in self._sizes()]
        if not found:
            return self._none("each file is already one chunk, or chunks of other sizes need too much memory")
        most = max(one.saving.seconds or 0.0 for one in found)
        good = [one for one in found if (one.saving.seconds or 0.0) >= most - AS_GOOD * self.replay.measured]
        size, saving = min(good, key=lambda one: abs(np.log(one.size / self.now)))
        if not saving.certain and not self._is_too_large:
            return self._none("no other size saves more than the error of the prediction")
        peak = None if self.memory is None else self.memory.peak(size)
        reason = "workers already lack memory with the present chunks" if self._is_too_large else None
        saving = self._bracketed(size, saving)
        return self._none(reason)._replace(size=size, saving=saving, memory=peak, removal=self._removal(size))

    @cached_property
    def largest(self) -> float:
        """Events of the largest chunk."""
        return float(max(chunks.events.max() for chunks in self.chunks))

    @cached_property
    def asked(self) -> int | None:
        """The chunk size that was asked for, where the largest chunk shows it.

        coffea cuts a file into chunks of equal size, which lie between half of that and twice as much.
        """
        given = {call.options.get("chunksize") for call in self.savings.run.calls}
        only = given.pop() if len(given) == 1 else None
        return only if isinstance(only, int) and only / 2 <= self.largest <= 2 * only else None

    def _overlap(self) -> float:
        """Relative difference between the events of all chunks and of their files."""
        events = sum(float(chunks.events.sum()) for chunks in self.chunks)
        pieces = [cut(chunks, int(chunks.stop.max())) for chunks in self.chunks]
        return abs(sum(int((piece.stop - piece.start).sum()) for piece in pieces) / events - 1)

    def _none(self, reason: str | None) -> ChunkSize:
        return ChunkSize(
            None,
            self.now,
            NOTHING,
            self.fixed,
            self.in_process,
            reason=reason,
            asked=self.asked,
            largest=self.largest,
        )

    def _sizes(self) -> list[int]:
        """Sizes to try: not above the largest file, and within the available memory."""
        largest = largest_file(self.savings.run)
        events = sum(float(chunks.events.sum()) for chunks in self.chunks)
        known = max(int(chunks.stop.max()) for chunks in self.chunks)
        near = NEAR if sum(map(len, self.chunks)) > MANY else max(GRID)
        sizes = {_rounded(self.now * factor) for factor in GRID if 2 / near <= factor <= near}
        # if chunks were left out, files may be longer than recorded, so their size is unknown
        within = {size for size in sizes if size < known} if largest is None else {min(size, largest) for size in sizes}
        return [_floor(size) for size in sorted(within) if events / size <= MOST_CHUNKS and self._fits(size)]

    def _fits(self, size: float) -> bool:
        return self.memory is None or self.memory.peak(size) <= FILLED * self.memory.limit

    @property
    def _is_too_large(self) -> bool:
        """Whether workers lack memory with the present chunks."""
        return self.memory is not None and not self._fits(self.now)

    def _candidate(self, size: int) -> _Candidate:
        removal = self._removal(size)
        # many small chunks take longest to replay, and seldom save anything
        if not self._is_too_large and self.replay.saves_nothing(removal):
            return _Candidate(size, NOTHING)
        return _Candidate(size, self.savings.changed(removal))

    def _removal(self, size: int) -> Removal:
        law = self.law

        def made(chunks: Chunks) -> Chunks:
            if isinstance(law, str):
                return _scaled(chunks, size, self.reread)
            return _less(by_law(chunks, law, size), self._left(chunks))

        return _removal(made, self.replay.workers)

    def _left(self, chunks: Chunks) -> dict[str, float]:
        """What remains of each part of the chunks after earlier changes, which the law does not know."""
        every = (_counted(stage.chunks) for stage in self.replay.stages if stage.chunks is not None)
        before = next((old for old in every if np.array_equal(old.row, chunks.row)), chunks)
        pairs = zip(Parts._fields, before.parts, chunks.parts, strict=True)
        return {name: float(now.sum() / old.sum()) for name, old, now in pairs if name != "first" and old.any()}

    def _bracketed(self, size: int, saving: Saving) -> Saving:
        """A saving with an interval wide enough for process() being all fixed cost, if nothing measured it."""
        if not isinstance(self.law, str):
            return saving
        removal = _removal(lambda chunks: _scaled(chunks, size, self.reread, IN_PROCESS), self.replay.workers)
        other = self.savings.changed(removal)
        reason = f"between no fixed cost and only fixed cost in process(): {self.law}"
        return saving._replace(
            low=min(saving.low, other.low), high=max(saving.high, other.seconds or 0.0), reason=reason
        )


def largest_file(run: Run) -> int | None:
    """Entries of the largest file; None if chunks were left out."""
    if any(call.options.get("maxchunks") is not None for call in run.calls):
        return None
    finished = all(call.outcome == FINISHED for call in run.calls)
    table = run.asked if run.asked is not None and len(run.asked) else run.chunks if finished else None
    found: int | None = None if table is None else pc.max(table["entry_stop"]).as_py()
    return found


def _counted(chunks: Chunks) -> Chunks:
    return chunks if (chunks.row >= 0).all() else chunks.take(np.flatnonzero(chunks.row >= 0))


def _removal(made: Change, workers: int) -> Removal:
    """Chunks of another size; start-up belongs to processes, however many chunks there are."""
    first: list[float] = []

    def change(chunks: Chunks) -> Chunks:
        counted = _counted(chunks)
        first.append(float(counted.parts.first.sum()) / workers)
        found = made(counted.with_parts(first=np.zeros(len(counted))))
        # failures do not depend on the size
        return found.with_parts(failed=np.full(len(found), float(chunks.parts.failed.sum()) / len(found)))

    def costs(old: Costs) -> Costs:
        return old._replace(cold_wait=old.cold_wait + (first[-1] if first else 0.0))

    return Removal(Scenario(chunks=change, costs=costs))


def _less(chunks: Chunks, left: Mapping[str, float]) -> Chunks:
    """Chunks with this fraction of each part left."""
    return chunks.with_parts(**{name: share * getattr(chunks.parts, name) for name, share in left.items()})


def _scaled(chunks: Chunks, size: int, reread: float, fixed: tuple[str, ...] = ()) -> Chunks:
    """Chunks of another size: the same time per event, plus the fixed cost."""
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    more = len(share) / len(chunks)
    parts = {}
    for name, seconds in chunks.parts._asdict().items():
        always = 1.0 if name in FIXED or name in fixed else reread if name in OF_BASKETS else 0.0
        made = seconds[pieces.row] * (always + (1 - always) * share)
        # pieces stand for some chunks: together they take as long as all chunks
        total, expected = float(made.sum()), float(seconds.sum()) * (always * more + 1 - always)
        parts[name] = made * (expected / total) if total else made
    return chunks.recut(*pieces, Parts(**parts))


def _rounded(size: float) -> int:
    """Number of events, rounded to two digits."""
    return max(int(float(f"{size:.2g}")), 1)


def _floor(size: int) -> int:
    """Number rounded down to two digits, so that a slightly longer file is still one chunk."""
    unit = 10 ** max(len(str(size)) - 2, 0)
    return int(size // unit * unit)


def text_of(found: ChunkSize) -> str:
    """Advice, with the present size."""
    if found.size is None:
        return f"keep the chunk size: {found.reason}"
    return f"{found.line} instead of about {number(_rounded(found.now))}"
