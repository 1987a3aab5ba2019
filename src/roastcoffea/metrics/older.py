"""Metrics of version 0.1.2 in its own shapes, derived from ours.

They are not part of `compat`, because the catalogue has to be complete wherever metrics are requested.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa

from roastcoffea.compat import shapes
from roastcoffea.metrics.byte_ledger import FileRead
from roastcoffea.metrics.catalogue import RAW, RUN, metric
from roastcoffea.metrics.chunks import CHUNK_RECORDS
from roastcoffea.metrics.evaluation import Metrics, evaluate
from roastcoffea.metrics.facts import aggregated
from roastcoffea.records.run import Run
from roastcoffea.units import STRUCTURE

of_chunks: Final = partial(metric, STRUCTURE, group=RAW, source=CHUNK_RECORDS)


@of_chunks(formula="t_start, t_end and bytes_read of raw_chunk_metrics")
def chunk_info(run: Run, raw_chunk_metrics: list[shapes.ChunkDict]) -> shapes.ChunkInfo:
    """Chunks with a result: {(file, entry_start, entry_stop): (start, stop, bytes requested)}."""
    # bytes in a 0.1.2 folder cover process() alone and are not one of our records
    return shapes.chunk_info((run.reported or {}).get("raw_chunk_metrics") or raw_chunk_metrics)


@of_chunks(formula="for each file sum of bytes_payload / sum of bytes_uncompressed")
def file_metadata(counted_chunks: pa.Table) -> dict[str, dict[str, Any]]:
    """Files: {file: {name: value}}, with `filename`, `total_branches` and `compression_ratio`.

    The last is compressed over uncompressed size of what was read from the file; None if unknown. Version 0.1.2 had
    the ratio of the whole tree.
    """
    steps = {"tree_branches": ("tree_branches", "max")}
    steps |= {name: (name, "sum") for name in ("bytes_payload", "bytes_uncompressed")}
    files = aggregated(counted_chunks, ["file"], steps)
    return {
        row["file"]: {
            "filename": row["file"],
            "total_branches": row["tree_branches"],
            # baskets embedded in the tree have no size of their own
            "compression_ratio": (
                row["bytes_payload"] / row["bytes_uncompressed"]
                if row["bytes_payload"] and row["bytes_uncompressed"]
                else None
            ),
        }
        for row in files.sort_by("file").to_pylist()
        if row["file"] is not None
    }


@of_chunks(formula="compression_ratio of file_metadata, if known")
def compression_ratios(file_metadata: dict[str, dict[str, Any]]) -> list[float]:
    """Compressed over uncompressed size of what was read from each file, if both are known."""
    return [ratio for file in file_metadata.values() if (ratio := file["compression_ratio"]) is not None]


@of_chunks(formula="bytes_read_percent of file_read_metrics, if known")
def bytes_read_percent_per_file(file_read_metrics: dict[str, FileRead]) -> list[float]:
    """Share of each file's bytes that were read, if the file's size is known."""
    return [share for file in file_read_metrics.values() if (share := file["bytes_read_percent"]) is not None]


class OlderMetrics(Metrics):
    """Metrics of a run, with `sections` as in 0.1.2: by name alone, over chunks with a result."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return shapes.sections_of(self["raw_chunk_metrics"]) if name == "sections" else found

    def __reduce__(self) -> tuple[Callable[[Run], OlderMetrics], tuple[Run]]:
        return _older_metrics, (self.evaluator.value(RUN),)


def _older_metrics(run: Run) -> OlderMetrics:
    return OlderMetrics(evaluate(run).evaluator)
