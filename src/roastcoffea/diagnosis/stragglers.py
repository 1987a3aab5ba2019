"""Stragglers and slow workers: durations compared with what events, bytes and worker predict."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.blame import WORKER
from roastcoffea.diagnosis.chunk_law import FEWEST_TO_FIT
from roastcoffea.diagnosis.evidence import SHORTEST_EXCESS, SLOW_CHUNK, STRAGGLER_SPREADS
from roastcoffea.diagnosis.slowness import PHASES, Slowness
from roastcoffea.metrics.catalogue import TIMING, fact, metric, refuse_if, table
from roastcoffea.metrics.statistics import Integers, Numbers, amounts, codes
from roastcoffea.records import chunks as chunk_records
from roastcoffea.records.columns import Column, picked
from roastcoffea.units import COUNT, SECOND

FEWEST: Final = FEWEST_TO_FIT
"""Fewest chunks among which one can be called slow."""

STRAGGLER_COLUMNS: Final = (
    Column("id", "integer", None, "identity of the attempt's record, as in the chunks"),
    *picked(chunk_records.CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop"),
    Column("worker", "text", None, "address of the worker"),
    Column("wall_seconds", "number", "s", "duration of the attempt"),
    Column(
        "expected_seconds",
        "number",
        "s",
        "duration predicted from its events, bytes, slow worker or file, and waiting for a core",
    ),
    Column("excess_seconds", "number", "s", "duration beyond the expected one"),
    Column(
        "phase",
        "text",
        None,
        "phase with the largest excess over the median of its dataset; none if no phase exceeds it",
    ),
)
"""Chunks that took much longer than expected, worst first."""


@fact
def expected_seconds(slowness: Slowness) -> pa.Table:
    """Attempts that were computed and counted, with their expected durations: `Slowness.chunks`."""
    number = len(slowness.chunks)
    refuse_if(number < FEWEST, f"only {number} chunks: finding a slow one takes at least {FEWEST}")
    return slowness.chunks


@table
def stragglers(expected_seconds: pa.Table) -> pa.Table:
    """Chunks that took much longer than expected, with STRAGGLER_COLUMNS."""
    wall, expected = amounts(expected_seconds, "wall_seconds"), amounts(expected_seconds, "expected_seconds")
    excess, dataset = wall - expected, codes(expected_seconds["dataset"])
    spread = _medians(np.abs(excess), dataset)[dataset]
    slow = np.flatnonzero(
        (wall > SLOW_CHUNK * expected) & (excess > np.maximum(STRAGGLER_SPREADS * spread, SHORTEST_EXCESS))
    )
    slow = slow[np.argsort(-excess[slow], kind="stable")]
    rows = expected_seconds.take(pa.array(slow))
    rows = rows.append_column("excess_seconds", pa.array(excess[slow]))
    rows = rows.append_column("phase", pa.array(_slow_phases(expected_seconds, slow), pa.string()))
    return rows.select([column.name for column in STRAGGLER_COLUMNS])


def _medians(values: Numbers, codes: Integers) -> Numbers:
    """Median of the values of each code."""
    parts = np.split(values[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    return np.array([np.median(part) for part in parts])


def _slow_phases(chunks: pa.Table, slow: Integers) -> list[str | None]:
    """For each of these chunks, the phase with the largest excess over the median of its dataset, if any."""
    dataset = codes(chunks["dataset"])
    times = [amounts(chunks, name) for name in PHASES]
    beyond = np.column_stack([seconds[slow] - _medians(seconds, dataset)[dataset[slow]] for seconds in times])
    names, most = [name.removesuffix("_seconds") for name in PHASES], np.argmax(beyond, axis=1)
    return [names[place] if row[place] > 0 else None for row, place in zip(beyond, most, strict=True)]


class SlowWorker(NamedTuple):
    """A worker that is slower than the others."""

    factor: float
    beyond: float
    """Excess seconds of its chunks over the typical duration."""


@fact
def slow_workers(slowness: Slowness) -> dict[str, SlowWorker]:
    """Workers that are slower than the others."""
    return {one.name: SlowWorker(one.factor, one.seconds) for one in slowness.slow if one.kind == WORKER}


@metric(COUNT, group=TIMING, source="chunk records", label="stragglers", formula="chunks far above what is expected")
def num_stragglers(stragglers: pa.Table) -> int:
    """Chunks that took more than twice the time predicted from events, bytes and worker, and stand out."""
    return len(stragglers)


@metric(SECOND, group=TIMING, source="chunk records", label="stragglers: excess", formula="sum of excess_seconds")
def straggler_seconds(stragglers: pa.Table) -> float:
    """Time of the stragglers beyond their expected duration."""
    return float(pc.sum(stragglers["excess_seconds"], min_count=0).as_py())
