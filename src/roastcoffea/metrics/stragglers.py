"""Slow chunks and slow workers: against what their events, bytes and worker would predict."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.catalogue import TIMING, NotMeasuredError, fact, metric, table
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.columns import Column
from roastcoffea.units import COUNT, SECOND

FEWEST_TO_FIT: Final = 8
"""Chunks of a dataset from which a law of its own is drawn; fewer share one with all datasets."""

FEWEST_OF_A_WORKER: Final = 5
"""Chunks of a worker from which its speed is known; fewer say nothing."""

SLOW_CHUNK: Final = 2.0
"""A straggler took so many times what was expected: half of that is within what caches, disks and the GIL do."""

SPREADS: Final = 6.0
"""And it lies so many typical deviations above it: where chunks vary by nature none stands out."""

SLOW_WORKER: Final = 1.25
"""A slow worker takes so many times what the typical one takes for the same chunks."""

ROUNDS: Final = 30
MOST_TO_FIT: Final = 20_000
"""So many chunks tell a law of three numbers well enough."""

SMALLEST: Final = 1e-9

STRAGGLER_COLUMNS: Final = (
    Column("id", "integer", None, "identity of the record of the attempt, as in the chunks"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("file", "text", None, "path or URL of the file"),
    Column("entry_start", "integer", "events", "first entry of the chunk"),
    Column("entry_stop", "integer", "events", "entry after the last one of the chunk"),
    Column("worker", "text", None, "address of the worker"),
    Column("wall_seconds", "number", "s", "duration of the attempt"),
    Column("expected_seconds", "number", "s", "what its events, bytes and worker predict"),
    Column("excess_seconds", "number", "s", "what it took beyond that"),
    Column("phase", "text", None, "the phase that took the most beyond the typical share of its dataset"),
)
"""Chunks that took much longer than expected, the worst first."""

PHASES: Final = (
    "open_seconds",
    "build_seconds",
    "read_seconds",
    "decompress_seconds",
    "interpret_seconds",
    "compute_seconds",
    "wait_seconds",
)


@fact
def expected_seconds(counted_chunks: pa.Table) -> pa.Table:
    """Attempts that were computed and counted, with what was expected of them, and the speed of their worker.

    Columns of the chunks, `typical_seconds` (what events and bytes predict, by dataset), `slowness` (of the worker: 1
    is typical; also where it has too few chunks to tell) and `expected_seconds`, their product.
    """
    chunks = counted_chunks.filter(pc.equal(counted_chunks["outcome"], chunk_records.OK))
    chunks = chunks.filter(chunks["wall_seconds"].is_valid())
    if len(chunks) < FEWEST_TO_FIT:
        raise NotMeasuredError(f"{len(chunks)} chunks are too few to tell a slow one")
    typical = _typical(chunks)
    slowness = _slowness(chunks["worker"], _numbers(chunks, "wall_seconds") / typical)
    for name, values in (
        ("typical_seconds", typical),
        ("slowness", slowness),
        ("expected_seconds", typical * slowness),
    ):
        chunks = chunks.append_column(name, pa.array(values))
    return chunks


def _numbers(chunks: pa.Table, name: str) -> Numbers:
    return np.array(pc.fill_null(pc.cast(chunks[name], pa.float64()), 0.0).to_numpy(), dtype=np.float64)


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    return np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


def _typical(chunks: pa.Table) -> Numbers:
    """Seconds that a chunk of so many events and bytes of its dataset takes."""
    wall, dataset = _numbers(chunks, "wall_seconds"), _codes(chunks["dataset"])
    traits = np.column_stack([np.ones(len(wall)), _numbers(chunks, "events"), _numbers(chunks, "bytes_payload")])
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = _predicted(traits, wall) if few.any() else np.empty(len(wall))
    for code in np.flatnonzero(numbers >= FEWEST_TO_FIT):
        here = dataset == code
        typical[here] = _predicted(traits[here], wall[here])
    return typical


def _predicted(traits: Numbers, wall: Numbers) -> Numbers:
    """What a linear law of the traits predicts, drawn with least absolute deviations: a straggler hardly moves it."""
    scale = np.abs(traits).max(axis=0)
    scaled = traits[:, scale > 0] / scale[scale > 0]
    every = max(len(wall) // MOST_TO_FIT, 1)
    fitted, seconds = scaled[::every], wall[::every]
    weights, finest = np.ones(len(seconds)), SMALLEST + 1e-3 * np.median(seconds)
    for _ in range(ROUNDS):
        law = np.linalg.lstsq(fitted * weights[:, None], seconds * weights, rcond=1e-6)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(seconds - fitted @ law), finest))
    # a law may fall below any chunk that there was, where few have such traits
    return np.asarray(np.maximum(scaled @ law, max(float(wall.min()), SMALLEST)))


def _slowness(workers: pa.ChunkedArray, ratio: Numbers) -> Numbers:
    """Factor of each chunk's worker: the median of its chunks beside what is typical."""
    codes = _codes(workers)
    numbers = np.bincount(codes)
    ratios = np.split(ratio[np.argsort(codes, kind="stable")], np.cumsum(numbers)[:-1])
    factors = np.array([np.median(own) if len(own) >= FEWEST_OF_A_WORKER else 1.0 for own in ratios])
    return np.asarray(factors[codes], dtype=np.float64)


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    """Chunks that took much longer than expected, with STRAGGLER_COLUMNS."""
    wall, expected = _numbers(expected_seconds, "wall_seconds"), _numbers(expected_seconds, "expected_seconds")
    excess = wall - expected
    spread = float(np.median(np.abs(excess)))
    slow = np.flatnonzero((wall > SLOW_CHUNK * expected) & (excess > SPREADS * spread))
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    rows = rows.append_column("phase", pa.array(_slow_phases(expected_seconds, slow), pa.string()))
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


def _slow_phases(chunks: pa.Table, slow: npt.NDArray[np.int64]) -> list[str | None]:
    """For each of these chunks the phase that took the most beyond the median of all chunks."""
    seconds = np.column_stack([_numbers(chunks, name) for name in PHASES])
    beyond = seconds[slow] - np.median(seconds, axis=0)
    return [PHASES[place].removesuffix("_seconds") for place in np.argmax(beyond, axis=1)] if len(slow) else []


@fact
def slow_workers(expected_seconds: pa.Table) -> dict[str, tuple[float, float]]:
    """Workers that are slower than the typical one: {worker: (factor, seconds that it took beyond the typical)}."""
    wall, typical = _numbers(expected_seconds, "wall_seconds"), _numbers(expected_seconds, "typical_seconds")
    slowness = _numbers(expected_seconds, "slowness")
    workers = np.asarray(expected_seconds["worker"].to_numpy(zero_copy_only=False))
    slow = slowness > SLOW_WORKER
    return {
        worker: (float(slowness[workers == worker][0]), float((wall - typical)[workers == worker].sum()))
        for worker in dict.fromkeys(workers[slow].tolist())
    }


@metric(COUNT, group=TIMING, source="chunk records", label="stragglers", formula="chunks far above what is expected")
def num_stragglers(stragglers: pa.Table) -> int:
    """Chunks that took more than twice what their events, bytes and worker predict, and stand out."""
    return len(stragglers)


@metric(SECOND, group=TIMING, source="chunk records", label="stragglers: excess", formula="sum of excess_seconds")
def straggler_seconds(stragglers: pa.Table) -> float:
    """Time that the stragglers took beyond what was expected of them."""
    return float(pc.sum(stragglers["excess_seconds"], min_count=0).as_py())
