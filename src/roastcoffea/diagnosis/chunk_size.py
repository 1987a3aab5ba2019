"""Recommend a chunk size within memory limits, based on replays."""

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
    """A recommended chunk size. If `size` is None, `reason` explains why there is none."""

    size: int | None
    now: float
    """Mean number of events per chunk in the recorded run."""
    saving: Saving
    fixed: float
    """Fixed cost per chunk in seconds: opening the file, plus Dask's overhead per task."""
    in_process: float | None
    """Fixed cost per chunk in process(), in seconds; None if chunks are too similar for an estimate."""
    memory: float | None = None
    """Memory that a worker needs at the recommended size, in bytes."""
    reason: str | None = None
    removal: Removal | None = None
    """The removal that resizes the chunks. A replay applies it after all other changes."""
    asked: int | None = None
    """The Runner's chunk size, if consistent with the largest chunk."""
    largest: float = np.nan
    """Number of events in the largest chunk."""

    @property
    def is_larger(self) -> bool:
        """Whether the recommended size exceeds the Runner's chunk size or, if that is unknown, the largest chunk."""
        return self.size is not None and self.size > self._present

    @property
    def is_smaller(self) -> bool:
        return self.size is not None and self.size < self._present

    @property
    def _present(self) -> float:
        return self.asked or (self.now if np.isnan(self.largest) else self.largest)

    @property
    def usual(self) -> int:
        """The Runner's chunk size, if consistent with the chunks; otherwise, the mean number of events per chunk."""
        given = self.asked or 0
        return given if self.now / 2 < given < 2 * self.now else round(self.now)

    @property
    def line(self) -> str | None:
        return None if self.size is None else f"chunksize={self.size}"


NOTHING: Final = Saving(0.0, 0.0, 0.0)


def recommended(savings: Savings, memory: Fit | None = None, reread: float = 0.0) -> ChunkSize:
    """Compare chunk sizes and recommend one.

    Parameters
    ----------
    memory
        Workers' memory needs and limit, if known.
    reread
        Fraction of basket bytes that are re-read because baskets span two chunks.
    """
    replay = savings.replay
    reason = replay if isinstance(replay, str) else "no chunk has events"
    if isinstance(replay, str) or not any(chunks.events.sum() for chunks in replay.chunks):
        return ChunkSize(None, np.nan, NOTHING, np.nan, None, reason=reason)
    return _Weighed(savings, replay, memory, reread).best()


@dataclass(frozen=True)
class _Weighed:
    savings: Savings
    replay: Calibrated
    memory: Fit | None
    reread: float

    @cached_property
    def chunks(self) -> list[Chunks]:
        """Chunks with a result, by stage. Stages without events are excluded, because they cannot be resized."""
        return [_counted(chunks) for chunks in self.replay.chunks if chunks.events.any()]

    @cached_property
    def events(self) -> Integers:
        return np.concatenate([chunks.events for chunks in self.chunks])

    @cached_property
    def now(self) -> float:
        return float(self.events.mean())

    @cached_property
    def law(self) -> ChunkLaw | str:
        return law_of(self.chunks)

    def best(self) -> ChunkSize:
        """Find the size with the largest saving. Of equally good sizes, prefer the one closest to the current size."""
        files = (cut(chunks, int(chunks.stop.max())) for chunks in self.chunks)
        whole = sum(float((file.stop - file.start).sum()) for file in files)
        if abs(whole / self.events.sum() - 1) > 0.1:
            return self._none("chunks overlap within files, or many chunks were left out")
        too_large = not self._fits(self.now)
        removals = {size: self._cut_to(size) for size in self._sizes()}
        # replays with many small chunks take the longest, and small chunks rarely save time
        found = {
            size: 0.0 if not too_large and self.replay.saves_nothing(one) else max(self.replay.expected(one), 0.0)
            for size, one in removals.items()
        }
        if not found:
            return self._none("each file is already one chunk, or chunks of other sizes would need too much memory")
        least = max(found.values()) - 0.01 * self.replay.measured
        size = min((size for size in found if found[size] >= least), key=lambda one: abs(np.log(one / self.now)))
        saving = self.savings.changed(removals[size])
        if saving.low <= 0 and not too_large:
            return self._none("no other size saves more than the prediction error")
        if isinstance(self.law, str):
            # without a fitted law, all time in process() may be a fixed cost
            removal = self._removal(lambda chunks: _scaled(chunks, size, self.reread, IN_PROCESS))
            other = self.savings.changed(removal)
            saving = saving._replace(low=min(saving.low, other.low), high=max(saving.high, other.seconds))
        return self._none(
            "workers are already short of memory with the current chunks" if too_large else None
        )._replace(
            size=size,
            saving=saving,
            memory=None if self.memory is None else self.memory.peak(size),
            removal=removals[size],
        )

    def _none(self, reason: str | None) -> ChunkSize:
        """Describe the current size, without a recommendation."""
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
        # coffea splits a file into equal chunks, each between half and twice the requested size
        given = {call.options.get("chunksize") for call in self.savings.run.calls}
        asked = given.pop() if len(given) == 1 else None
        asked = asked if isinstance(asked, int) and asked / 2 <= largest <= 2 * asked else None
        return ChunkSize(
            None, self.now, NOTHING, fixed / len(self.events), in_process, reason=reason, asked=asked, largest=largest
        )

    def _sizes(self) -> list[int]:
        """Sizes to try, limited by the largest file and the available memory."""
        longest, known = largest_file(self.savings.run), max(int(chunks.stop.max()) for chunks in self.chunks)
        # with many chunks, try only sizes near the current one: each replay takes half a second
        powers = range(-2, 4) if len(self.events) > 100_000 else range(-4, 6)
        sizes = {max(int(float(f"{self.now * 2.0**power:.2g}")), 1) for power in powers if power}
        # if chunks were left out, files may contain more events than their recorded chunks
        sizes = {one for one in sizes if one < known} if longest is None else {min(one, longest) for one in sizes}
        # the scheduler could not handle more chunks
        most = self.events.sum() / 2_000_000
        return [rounded_down(size) for size in sorted(sizes) if size >= most and self._fits(size)]

    def _fits(self, size: float) -> bool:
        return self.memory is None or self.memory.limit_for(size) <= self.memory.limit

    def _cut_to(self, size: int) -> Removal:
        law = self.law
        if isinstance(law, str):
            return self._removal(lambda chunks: _scaled(chunks, size, self.reread))
        return self._removal(lambda chunks: self._by_law(chunks, law, size))

    def _by_law(self, chunks: Chunks, law: ChunkLaw, size: int) -> Chunks:
        """Chunks predicted by the law, with each part scaled by the same factor as in earlier changes."""
        before = next((old for old in self.chunks if np.array_equal(old.row, chunks.row)), chunks)
        made = by_law(chunks, law, size)
        every = zip(Parts._fields, made.parts, before.parts, chunks.parts, strict=True)
        return made.with_parts(
            **{name: part * (now.sum() / old.sum()) for name, part, old, now in every if name != "first" and old.any()}
        )

    def _removal(self, made: Callable[[Chunks], Chunks]) -> Removal:
        """Removal that changes the chunk size but not start-up or failed attempts."""
        first = [0.0]

        def change(chunks: Chunks) -> Chunks:
            if not chunks.events.any():
                return chunks
            counted = _counted(chunks)
            first.append(float(counted.parts.first.sum()) / self.replay.workers)
            found = made(counted.with_parts(first=np.zeros(len(counted))))
            return found.with_parts(failed=np.full(len(found), float(chunks.parts.failed.sum()) / len(found)))

        return Removal(
            Scenario(chunks=change, costs=lambda old: old._replace(cold_wait=old.cold_wait + first[-1])),
        )


def largest_file(run: Run) -> int | None:
    """Number of entries in the largest file; None if unknown, e.g. because of `maxchunks`."""
    if any(call.options.get("maxchunks") is not None for call in run.calls):
        return None
    finished = all(call.outcome == FINISHED for call in run.calls)
    table = run.asked if run.asked is not None and len(run.asked) else run.chunks if finished else None
    found: int | None = None if table is None else pc.max(table["entry_stop"]).as_py()
    return found


def _counted(chunks: Chunks) -> Chunks:
    return chunks if (chunks.row >= 0).all() else chunks.take(np.flatnonzero(chunks.row >= 0))


def _scaled(chunks: Chunks, size: int, reread: float, fixed: tuple[str, ...] = ()) -> Chunks:
    """Resized chunks with the same time per event and the same fixed cost per chunk."""
    pieces = cut(chunks, size)
    share = (pieces.stop - pieces.start) / chunks.events[pieces.row]
    more, parts = len(share) / len(chunks), {}
    # both chunks read a basket that spans their boundary
    always = dict.fromkeys(("read", "decompress"), reread) | dict.fromkeys((*FIXED, *fixed), 1.0)
    for name, seconds in chunks.parts._asdict().items():
        part = always.get(name, 0.0)
        made = seconds[pieces.row] * (part + (1 - part) * share)
        # pieces may come from only some of the chunks, so scale them to the total for all chunks
        total, expected = float(made.sum()), float(seconds.sum()) * (part * more + 1 - part)
        parts[name] = made * (expected / total) if total else made
    return chunks.recut(*pieces, Parts(**parts))
