"""Slow chunks and slow workers: against what their events, bytes and worker would predict."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.optimize import nnls

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.facts import rows_where, with_outcome
from roastcoffea.metrics.statistics import Flags, Integers, Numbers, amounts, codes
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.columns import Column, picked
from roastcoffea.units import COUNT, SECOND

FEWEST_TO_FIT: Final = 8
"""Chunks of a dataset from which a law of its own is drawn; fewer share one with all datasets."""

FEWEST_OF_A_WORKER: Final = 5
"""Chunks of a worker from which its speed is known; fewer say nothing."""

SLOW_CHUNK: Final = 2.0
"""A straggler took so many times what was expected: half of that is within what caches, disks and the GIL do."""

SPREADS: Final = 6.0
"""And it lies so many typical deviations of its dataset above it: where chunks vary by nature none stands out."""

SHORTEST: Final = 0.1
"""And it took so many seconds too long: less is what a busy machine does to any chunk."""

SLOW_WORKER: Final = 1.25
"""A slow worker takes so many times what the typical one takes for the same chunks."""

REFITS: Final = 3
ROUNDS: Final = 30
MOST_TO_FIT: Final = 20_000
"""So many chunks tell a law of three numbers well enough."""

SMALLEST: Final = 1e-9

STRAGGLER_COLUMNS: Final = (
    Column("id", "integer", None, "identity of the record of the attempt, as in the chunks"),
    *picked(chunk_records.CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    Column("worker", "text", None, "address of the worker"),
    Column("wall_seconds", "number", "s", "duration of the attempt"),
    Column("expected_seconds", "number", "s", "what its events, bytes and worker predict"),
    Column("excess_seconds", "number", "s", "what it took beyond that"),
    Column("phase", "text", None, "the phase that took the most beyond the median of its dataset; none if none did"),
)
"""Chunks that took much longer than expected, the worst first."""

PHASES: Final = tuple(phase.column for phase in phases.PHASES if phase.part != "saving")
"""Columns of what a chunk's events and file are worked on in."""

OF_CHUNKS: Final = (
    *("id", "dataset", "file", "entry_start", "entry_stop", "worker", "wall_seconds"),
    *("events", "bytes_payload", *PHASES),
)


@fact
def expected_seconds(counted_chunks: pa.Table, lifetimes: pa.Table | None = None) -> pa.Table:
    """Attempts that were computed and counted, with what was expected of them, and the speed of their worker.

    OF_CHUNKS, `typical_seconds` (what events and bytes predict, by dataset), `slowness` (of the worker: 1
    is typical; also where it has too few chunks to tell) and `expected_seconds`, their product.
    """
    computed = with_outcome(counted_chunks.select(["outcome", *OF_CHUNKS]), (chunk_records.OK,)).select(OF_CHUNKS)
    chunks = rows_where(computed, computed["wall_seconds"].is_valid())
    refuse_if(len(chunks) < FEWEST_TO_FIT, f"{len(chunks)} chunks: it takes {FEWEST_TO_FIT} to tell a slow one")
    wall, workers, hosts = amounts(chunks, "wall_seconds"), codes(chunks["worker"]), _hosts(chunks, lifetimes)
    slowness, typical, usual = np.ones(len(chunks)), wall, np.full(len(chunks), fill_value=True)
    for _ in range(REFITS):
        # a law that is drawn through slow workers and fast ones fits neither; a straggler of rare traits draws its own
        typical = _typical(chunks, wall / slowness, usual)
        slowness = _slowness(wall / typical, workers, hosts)
        usual = wall <= SLOW_CHUNK * typical * slowness
    columns = {"typical_seconds": typical, "slowness": slowness, "expected_seconds": typical * slowness}
    for name, values in columns.items():
        chunks = chunks.append_column(name, pa.array(values))
    return chunks


def _hosts(chunks: pa.Table, lifetimes: pa.Table | None) -> Integers:
    """Number of the host of each chunk's worker; one for all where hosts are not known."""
    if lifetimes is None:
        return np.zeros(len(chunks), np.int64)
    places = pc.index_in(chunks["worker"], value_set=lifetimes["worker"].combine_chunks())
    return codes(lifetimes["host"].take(places))


def _typical(chunks: pa.Table, wall: Numbers, usual: Flags) -> Numbers:
    """Seconds that a chunk takes on the typical worker, by the usual ones of its dataset and its events and bytes."""
    dataset = codes(chunks["dataset"])
    traits = np.column_stack([np.ones(len(wall)), amounts(chunks, "events"), amounts(chunks, "bytes_payload")])
    numbers = np.bincount(dataset)
    few = numbers[dataset] < FEWEST_TO_FIT
    typical = _predicted(traits, wall, usual) if few.any() else np.empty(len(wall))
    for code in np.flatnonzero(numbers >= FEWEST_TO_FIT):
        here = dataset == code
        typical[here] = _predicted(traits[here], wall[here], usual[here])
    return typical


def _predicted(traits: Numbers, wall: Numbers, usual: Flags) -> Numbers:
    """What a linear law of the traits predicts, drawn with least absolute deviations: a straggler hardly moves it.

    No trait makes a chunk shorter: else a straggler of a few bytes more than its like would be as long as expected.
    """
    scale = np.abs(traits).max(axis=0)
    scaled = traits[:, scale > 0] / scale[scale > 0]
    every, usual = max(len(wall) // MOST_TO_FIT, 1), usual if usual.any() else ~usual
    fitted, seconds = scaled[usual][::every], wall[usual][::every]
    weights, finest = np.ones(len(seconds)), SMALLEST + 1e-3 * np.median(seconds)
    for _ in range(ROUNDS):
        basis, triangle = np.linalg.qr(fitted * weights[:, None])
        law = nnls(triangle, basis.T @ (seconds * weights))[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(seconds - fitted @ law), finest))
    # a law may fall below any chunk that there was, where few have such traits
    return np.asarray(np.maximum(scaled @ law, max(float(wall.min()), SMALLEST)))


def _medians(values: Numbers, codes: Integers, fewest: int = 1) -> Numbers:
    """Median of the values of each code; NaN where there are too few."""
    parts = np.split(values[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    return np.array([np.median(part) if len(part) >= fewest else np.nan for part in parts])


def _slowness(ratio: Numbers, workers: Integers, hosts: Integers) -> Numbers:
    """Factor of each chunk's worker beside the typical worker; of one with few chunks that of its host.

    The typical worker is the median one, of two halves the faster: it took what a worker needs.
    """
    own = _medians(ratio, workers, FEWEST_OF_A_WORKER)[workers]
    of_host = _medians(ratio, hosts, FEWEST_OF_A_WORKER)[hosts]
    factors = np.where(np.isnan(own), of_host, own)
    known = factors[np.unique(workers, return_index=True)[1]]
    known = np.sort(known[~np.isnan(known)])
    if not len(known):
        return np.ones(len(ratio))
    return np.asarray(np.where(np.isnan(factors), 1.0, factors / known[(len(known) - 1) // 2]))


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    """Chunks that took much longer than expected, with STRAGGLER_COLUMNS."""
    wall, expected = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "expected_seconds")
    excess, dataset = wall - expected, codes(expected_seconds["dataset"])
    spread = _medians(np.abs(excess), dataset)[dataset]
    slow = np.flatnonzero((wall > SLOW_CHUNK * expected) & (excess > np.maximum(SPREADS * spread, SHORTEST)))
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    rows = rows.append_column("phase", pa.array(_slow_phases(expected_seconds, slow), pa.string()))
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


def _slow_phases(chunks: pa.Table, slow: Integers) -> list[str | None]:
    """For each of these chunks the phase that took the most beyond the median of its dataset, where one took more."""
    dataset = codes(chunks["dataset"])
    times = [amounts(chunks, name) for name in PHASES]
    beyond = np.column_stack([seconds[slow] - _medians(seconds, dataset)[dataset[slow]] for seconds in times])
    names, most = [name.removesuffix("_seconds") for name in PHASES], np.argmax(beyond, axis=1)
    return [names[place] if row[place] > 0 else None for row, place in zip(beyond, most, strict=True)]


class SlowWorker(NamedTuple):
    """A worker that is slower than the typical one."""

    factor: float
    beyond: float
    """Seconds that its chunks took beyond what is typical."""


@fact
def slow_workers(expected_seconds: pa.Table) -> dict[str, SlowWorker]:
    """Workers that are slower than the typical one."""
    wall, typical = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "typical_seconds")
    slowness = amounts(expected_seconds, "slowness")
    workers = np.asarray(expected_seconds["worker"].to_numpy(zero_copy_only=False))
    slow = slowness > SLOW_WORKER
    return {
        worker: SlowWorker(float(slowness[workers == worker][0]), float((wall - typical)[workers == worker].sum()))
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
