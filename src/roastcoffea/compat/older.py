"""Records made of the data that version 0.1.2 took: dictionaries of samples, and of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.compat.tracking import SERIES
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, ERROR, OK
from roastcoffea.records.workers import SAMPLE_COLUMNS
from roastcoffea.units import BYTES_PER_MEBIBYTE

Numbers = npt.NDArray[np.float64]

COUNTS: Final = "worker_counts"
MEMORY: Final = (("memory_before", "mem_before_mb"), ("memory_after", "mem_after_mb"))
SAMPLED: Final = tuple((name, column) for name, column in SERIES if column != "threads")


def kind_of(data: object) -> str | None:
    """Name of the argument that data of this shape was given as; None for what is none of them."""
    if isinstance(data, Mapping):
        if any(isinstance(key, tuple) for key in data):
            return "span_metrics"
        return "tracking_data" if {COUNTS, *(name for name, _ in SERIES)} & set(data) else "metrics"
    return "chunk_metrics" if isinstance(data, Sequence) and not isinstance(data, str) else None


def samples_of(tracking_data: Mapping[str, Mapping[Any, Any]]) -> pa.Table:
    """Samples of workers, of the series of each."""
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for name, column in SAMPLED:
        for worker, points in tracking_data.get(name, {}).items():
            for time, value in points:
                moment = seconds(time)
                rows.setdefault((worker, moment), {"worker": worker, "time": moment})[column] = value
    return table_of_rows(SAMPLE_COLUMNS, rows.values())


def counts_of(tracking_data: Mapping[str, Mapping[Any, Any]]) -> tuple[Numbers, Numbers]:
    """Moments in order, and the number of workers from each to the next."""
    counts = sorted((seconds(time), count) for time, count in tracking_data.get(COUNTS, {}).items())
    return np.array([time for time, _ in counts]), np.array([float(count) for _, count in counts])


def chunks_of(chunk_metrics: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> pa.Table:
    """Attempts of chunks, of a dictionary each; `keys` are those of the dictionaries, with the columns they are of."""
    return table_of_rows(CHUNK_COLUMNS, [_chunk(chunk, number, keys) for number, chunk in enumerate(chunk_metrics)])


def seconds(time: datetime | float) -> float:
    """Unix seconds of a moment; a naive one is local."""
    return time.timestamp() if isinstance(time, datetime) else float(time)


def _chunk(chunk: Mapping[str, Any], number: int, keys: Mapping[str, str]) -> dict[str, Any]:
    row = {column: chunk.get(key) for key, column in keys.items()}
    row |= {column: _bytes(chunk.get(key)) for column, key in MEMORY}
    failed = chunk.get("error") is not None
    outcome = chunk.get("outcome") or (ERROR if failed else OK)
    amounts = {"bytes_requested": chunk.get("bytes_read"), "branches": chunk.get("num_branches_accessed")}
    return row | amounts | {"id": number, "outcome": outcome}


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else round(mebibytes * BYTES_PER_MEBIBYTE)
