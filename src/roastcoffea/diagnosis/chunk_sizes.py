"""Chunk sizes that would take less time."""

from __future__ import annotations

import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.thresholds import LARGER, ROUNDS_OF_CHUNKS, TARGET
from roastcoffea.metrics import phases
from roastcoffea.units import FRACTION


def larger_chunks(evidence: Evidence, fixed: float) -> str:
    """The chunk size at which a fixed cost of each chunk would be a small share."""
    generic = "Make chunks larger"
    events, chunks = evidence.sum_of("events"), evidence.chunks
    if not events or evidence.counted is None:
        return "Make tasks longer: fewer of them, each with more to do"
    if _out_of_memory(evidence):
        return "Larger chunks would help, but workers are out of memory: give them more first"
    now = events / chunks
    set_size = _set_chunksize(evidence)
    if set_size is not None and set_size > 2 * now:
        return f"Merge files: they have about {_rounded(now)} events, and chunksize={set_size} is larger"
    work = (evidence.sum_of("wall_seconds") or 0.0) - evidence.ledger.get(phases.OPEN, 0.0)
    factor = fixed * (1 - TARGET) / (TARGET * work) if work > 0 else float("inf")
    size, purpose = min(
        (factor * events / chunks, f"makes that {FRACTION.text(TARGET)} of a chunk's work"),
        (events / (ROUNDS_OF_CHUNKS * evidence.threads), f"leaves {ROUNDS_OF_CHUNKS} chunks for each thread"),
        (pc.max(evidence.counted["entry_stop"]).as_py() or events, "has the largest file's events"),
    )
    if size < LARGER * now:
        return f"{generic}, if there are enough of them for all threads"
    return f"{generic}: chunksize={_rounded(size)} instead of about {_rounded(now)} {purpose}"


def smaller_chunks(evidence: Evidence) -> str:
    """The chunk size at which the last round is short."""
    events, wall, chunks = evidence.sum_of("events"), evidence.sum_of("wall_seconds"), evidence.chunks
    if not events or not wall:
        return "Cut the longest tasks"
    size = events / chunks * TARGET * 2 * evidence.elapsed / (wall / chunks)
    size = min(size, events / (ROUNDS_OF_CHUNKS * evidence.threads))
    if evidence.stragglers or size >= events / chunks:
        return "Look at the slowest chunks: `measurement.stragglers`"
    return f"Make chunks smaller: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)}"


def _set_chunksize(evidence: Evidence) -> int | None:
    """The smallest chunk size that a Runner was given."""
    sizes = [call.options.get("chunksize") for call in evidence.run.calls]
    return min((size for size in sizes if isinstance(size, int)), default=None)


def _out_of_memory(evidence: Evidence) -> bool:
    lost = evidence.ledger.get(phases.PAUSED, 0.0) + evidence.spilled
    return evidence.wall(lost) >= evidence.least("memory")


def _rounded(size: float) -> int:
    """Number of events with two digits that count."""
    return max(int(float(f"{size:.2g}")), 1)
