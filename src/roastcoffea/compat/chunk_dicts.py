"""Chunks in the shape of version 0.1.2, a dictionary each: made of records, and records made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHECKPOINT, CHUNK_COLUMNS, ERROR, OK

MIB: Final = 2.0**20

RENAMED: Final = {
    "t_start": "start",
    "t_end": "stop",
    "duration": "wall_seconds",
    "num_events": "events",
    "task": "key",
    "peak_memory_bytes": "memory_peak",
}
UNCHANGED: Final = ("dataset", "file", "uuid", "entry_start", "entry_stop", "worker", "attempt", "outcome")
NO_PHASES: Final = frozenset(
    {"wall_seconds", "helper_cpu_seconds", "process_cpu_seconds", "core_wait_seconds", "coffea_process_seconds"}
)
"""Durations of a chunk that are not in its dictionary under their own names."""

DURATIONS: Final = tuple(
    column.name for column in CHUNK_COLUMNS if column.name.endswith("_seconds") and column.name not in NO_PHASES
)
CHUNK_KEYS: Final = RENAMED | {name: name for name in (*UNCHANGED, *DURATIONS)}
"""Keys of a chunk's dictionary, and the columns that they come from."""

TRACKED: Final = (("timing", "wall_seconds", 1.0), ("memory", "memory_delta", MIB), ("bytes", "bytes", 1))
"""Keys of a chunk's dictionary that hold {section: amount}; the column that it comes from, and its unit there."""

ChunkDict = dict[str, Any]
Row = Mapping[str, Any]


def chunk_dicts(chunks: pa.Table, branch_reads: pa.Table | None, sections: pa.Table | None) -> list[ChunkDict]:
    """Chunks, a dictionary each; None in it means not measured.

    `accessed_branches` and `num_branches_accessed` are there only where branches were metered, or coffea's savemetrics
    was on. A chunk that was loaded from a checkpoint read no bytes: its `bytes_read` is 0. In `timing` [s], `memory`
    (growth [MiB]) and `bytes` [B] are the sections for which it was measured.
    """
    metered = None if branch_reads is None else _of_each_chunk(branch_reads, ["branch"])
    passes = {} if sections is None else _of_each_chunk(sections, ["name", *(column for _, column, _ in TRACKED)])
    return [_chunk_dict(row, metered, passes.get(row["id"], [])) for row in chunks.to_pylist()]


def chunks_of(chunk_metrics: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Attempts of chunks, of a dictionary each."""
    return table_of_rows(CHUNK_COLUMNS, [_row(chunk, number) for number, chunk in enumerate(chunk_metrics)])


def branches_of_columns(columns: Iterable[str]) -> set[str]:
    """Branches behind coffea's names of buffers, which are "<branch>-<form key>": "Jet_pt-data", "nJet-offsets"."""
    return {name.rpartition("-")[0] or name for name in columns}


def _chunk_dict(row: Row, metered: Mapping[int, Sequence[Row]] | None, passes: Sequence[Row]) -> ChunkDict:
    chunk = {name: row[column] for name, column in CHUNK_KEYS.items()}
    before, after = (None if row[name] is None else row[name] / MIB for name in ("memory_before", "memory_after"))
    growth = None if before is None or after is None else after - before
    chunk |= {"mem_before_mb": before, "mem_after_mb": after, "mem_delta_mb": growth}
    chunk["bytes_read"] = row["coffea_bytes_read"] if row["bytes_requested"] is None else row["bytes_requested"]
    if row["outcome"] == CHECKPOINT:
        chunk["bytes_read"] = 0
    branches = None if metered is None else [read["branch"] for read in metered.get(row["id"], ())]
    if branches is None and row["coffea_columns"] is not None:
        branches = list(branches_of_columns(row["coffea_columns"]))
    if branches is not None:
        chunk |= {"accessed_branches": sorted(branches), "num_branches_accessed": len(branches)}
    for key, column, unit in TRACKED:
        chunk[key] = {each["name"]: each[column] / unit for each in passes if each[column] is not None}
    return chunk


def _of_each_chunk(table: pa.Table, columns: list[str]) -> dict[int, list[dict[str, Any]]]:
    """Rows of a table that is joined to the chunks, by the chunk's identity."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in table.select(["chunk", *columns]).to_pylist():
        rows.setdefault(row["chunk"], []).append(row)
    return rows


def _row(chunk: Mapping[str, Any], number: int) -> dict[str, Any]:
    row = {column: chunk.get(key) for key, column in CHUNK_KEYS.items()}
    outcome = row["outcome"] or (OK if chunk.get("error") is None else ERROR)
    return row | {
        "id": number,
        "outcome": outcome,
        "memory_before": in_bytes(chunk.get("mem_before_mb")),
        "memory_after": in_bytes(chunk.get("mem_after_mb")),
        "bytes_requested": chunk.get("bytes_read"),
        "branches": chunk.get("num_branches_accessed"),
    }


def in_bytes(mebibytes: float | None) -> int | None:
    """Amount in bytes."""
    return None if mebibytes is None else round(mebibytes * MIB)
