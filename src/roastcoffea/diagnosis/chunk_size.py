"""Recommend one chunk size: the replay weighs everything that depends on it, within the workers' memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.completeness import Fit, rounded_down
from roastcoffea.diagnosis.savings import Calibrated, Removal, Saving, Savings
from roastcoffea.metrics.statistics import Integers
from roastcoffea.records.run import FINISHED, Run
from roastcoffea.replay.changes import ChunkLaw, Chunks, Parts, Scenario, by_law, cut, law_of

FIXED: Final = ("open_cpu", "open_wait", "overhead")
"""Parts of a chunk's time that do not depend on its size."""

IN_PROCESS: Final = ("read", "decompress", "cpu", "lock", "wait")


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
        return self.asked or (self.now if np.isnan(self.largest) else self.largest)

    @property
    def usual(self) -> int:
        """The chunk size that the Runner was given, as far as its chunks have it; else their events on average."""
        given = self.asked or 0
        return given if self.now / 2 < given < 2 * self.now else round(self.now)

    @property
    def line(self) -> str | None:
        """Argument for the Runner."""
        return None if self.size is None else f"chunksize={self.size}"


NOTHING: Final = Saving(0.0, 0.0, 0.0)


def recommended(savings: Savings, memory: Fit | None = None, reread: float = 0.0) -> ChunkSize:
    """Weigh chunk sizes.

    Parameters
    ----------
    memory
        What workers need and have, if known.
    reread
        Share of basket bytes read again because baskets span two chunks.
    """
    replay = savings.replay
    reason = replay if isinstance(replay, str) else "no chunk has events"
    if isinstance(replay, str) or not any(chunks.events.sum() for chunks in replay.chunks):
        return ChunkSize(None, np.nan, NOTHING, np.nan, None, reason=reason)
    return _Weighed(savings, replay, memory, reread).best()


@dataclass(frozen=True)
class _Weighed:
    """Chunk sizes of a run."""

    savings: Savings
    replay: Calibrated
    memory: Fit | None
    reread: float

    @cached_property
    def chunks(self) -> list[Chunks]:
        """Chunks with a result, by stage."""
        return [_counted(chunks) for chunks in self.replay.chunks]

    @cached_property
    def events(self) -> Integers:
        """Events of each chunk."""
        return np.concatenate([chunks.events for chunks in self.chunks])

    @cached_property
    def now(self) -> float:
        """Events per chunk."""
        return float(self.events.mean())

    @cached_property
    def law(self) -> ChunkLaw | str:
        """Law of a chunk's duration by its number of events, or why it is unknown."""
        return law_of(self.chunks)

    def best(self) -> ChunkSize:
        """The size that saves most; among equally good ones, the nearest."""
        files = (cut(chunks, int(chunks.stop.max())) for chunks in self.chunks)
        whole = sum(float((file.stop - file.start).sum()) for file in files)
        if abs(whole / self.events.sum() - 1) > 0.1:
            return self._none("chunks of its files overlap, or many were left out")
        too_large = not self._fits(self.now)
        removals = {size: self._cut_to(size) for size in self._sizes()}
        # many small chunks take longest to replay, and seldom save anything
        found = {
            size: NOTHING if not too_large and self.replay.saves_nothing(one) else self.savings.changed(one)
            for size, one in removals.items()
        }
        if not found:
            return self._none("each file is already one chunk, or chunks of other sizes need too much memory")
        least = max(one.seconds for one in found.values()) - 0.01 * self.replay.measured
        good = [size for size, one in found.items() if one.seconds >= least]
        size = min(good, key=lambda one: abs(np.log(one / self.now)))
        saving = found[size]
        if saving.low <= 0 and not too_large:
            return self._none("no other size saves more than the error of the prediction")
        if isinstance(self.law, str):
            # nothing measured it: process() may be all fixed cost
            removal = self._removal(lambda chunks: _scaled(chunks, size, self.reread, IN_PROCESS))
            other = self.savings.changed(removal)
            saving = saving._replace(low=min(saving.low, other.low), high=max(saving.high, other.seconds))
        return self._none("workers already lack memory with the present chunks" if too_large else None)._replace(
            size=size,
            saving=saving,
            memory=None if self.memory is None else self.memory.peak(size),
            removal=removals[size],
        )

    def _none(self, reason: str | None) -> ChunkSize:
        """No size, with what is known of the present one."""
        fixed = sum(float(getattr(chunks.parts, name).sum()) for chunks in self.chunks for name in FIXED)
        in_process, largest = None, float(self.events.max())
        if not isinstance(self.law, str):
            places = [Parts._fields.index(name) for name in IN_PROCESS]
            sums = [
                float(self.law[name][places, 0].sum()) * np.count_nonzero(chunks.dataset == place)
                for chunks in self.chunks
                for place, name in enumerate(chunks.datasets)
            ]
            in_process = float(sum(sums) / len(self.events))
        # coffea cuts a file into chunks of equal size, which lie between half of what was asked for and twice as much
        given = {call.options.get("chunksize") for call in self.savings.run.calls}
        asked = given.pop() if len(given) == 1 else None
        asked = asked if isinstance(asked, int) and asked / 2 <= largest <= 2 * asked else None
        return ChunkSize(
            None, self.now, NOTHING, fixed / len(self.events), in_process, reason=reason, asked=asked, largest=largest
        )

    def _sizes(self) -> list[int]:
        """Sizes to try: not above the largest file, and within the available memory."""
        longest, known = largest_file(self.savings.run), max(int(chunks.stop.max()) for chunks in self.chunks)
        # of many chunks only sizes that are not far from the present one: each takes half a second
        powers = range(-2, 4) if len(self.events) > 100_000 else range(-4, 6)
        sizes = {max(int(float(f"{self.now * 2.0**power:.2g}")), 1) for power in powers if power}
        # if chunks were left out, files may be longer than recorded, so their size is unknown
        sizes = {one for one in sizes if one < known} if longest is None else {min(one, longest) for one in sizes}
        # a scheduler would not cope with more chunks
        most = self.events.sum() / 2_000_000
        return [rounded_down(size) for size in sorted(sizes) if size >= most and self._fits(size)]

    def _fits(self, size: float) -> bool:
        return self.memory is None or self.memory.limit_for(size) <= self.memory.limit

    def _cut_to(self, size: int) -> Removal:
        """Chunks of another size, by the law of their duration, if that is known."""
        law = self.law
        if isinstance(law, str):
            return self._removal(lambda chunks: _scaled(chunks, size, self.reread))
        return self._removal(lambda chunks: self._by_law(chunks, law, size))

    def _by_law(self, chunks: Chunks, law: ChunkLaw, size: int) -> Chunks:
        """Chunks by the law, with what remains of each part after earlier changes, which the law does not know."""
        before = next((old for old in self.chunks if np.array_equal(old.row, chunks.row)), chunks)
        made = by_law(chunks, law, size)
        every = zip(Parts._fields, made.parts, before.parts, chunks.parts, strict=True)
        return made.with_parts(
            **{name: part * (now.sum() / old.sum()) for name, part, old, now in every if name != "first" and old.any()}
        )

    def _removal(self, made: Callable[[Chunks], Chunks]) -> Removal:
        """Chunks of another size; start-up belongs to processes, and failures happen, however many chunks there are."""
        first = [0.0]

        def change(chunks: Chunks) -> Chunks:
            counted = _counted(chunks)
            first.append(float(counted.parts.first.sum()) / self.replay.workers)
            found = made(counted.with_parts(first=np.zeros(len(counted))))
            return found.with_parts(failed=np.full(len(found), float(chunks.parts.failed.sum()) / len(found)))

        return Removal(
            Scenario(chunks=change, costs=lambda old: old._replace(cold_wait=old.cold_wait + first[-1])),
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


def _scaled(chunks: Chunks, size: int, reread: float, fixed: tuple[str, ...] = ()) -> Chunks:
    """Chunks of another size: the same time per event, plus the fixed cost."""
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    more, parts = len(share) / len(chunks), {}
    # baskets that span two chunks are read by both
    always = dict.fromkeys(("read", "decompress"), reread) | dict.fromkeys((*FIXED, *fixed), 1.0)
    for name, seconds in chunks.parts._asdict().items():
        part = always.get(name, 0.0)
        made = seconds[pieces.row] * (part + (1 - part) * share)
        # pieces stand for some chunks: together they take as long as all chunks
        total, expected = float(made.sum()), float(seconds.sum()) * (part * more + 1 - part)
        parts[name] = made * (expected / total) if total else made
    return chunks.recut(*pieces, Parts(**parts))
