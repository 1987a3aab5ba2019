"""Tables of a run, of what its backend recorded and received."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

from roastcoffea.backends.base import AbstractMetricsBackend

TABLES: Final = ("chunks", "branch_reads", "sections", "preprocessing", "tasks", "samples", "lifetimes", "pauses")
"""Those of a run, in the order in which they are made: a backend learns from chunks which workers there were."""

FROM_CHUNKS: Final = ("branch_reads", "sections")
"""Tables that hold parts of the records of chunks."""


def chunks_of(backend: AbstractMetricsBackend, calls: Collection[str]) -> pa.Table:
    """Attempts of chunks of these Runner calls; the backend learns where they ran."""
    backend.learn_chunks(backend.received.preprocessing())
    chunks = backend.received.chunks(set(calls))
    backend.learn_chunks(chunks)
    return chunks


def table_of(
    backend: AbstractMetricsBackend, name: str, chunks: pa.Table | None, start: float, stop: float
) -> pa.Table | None:
    """One of `TABLES` but the first, between start and stop; None where there is nothing of its kind."""
    if name in FROM_CHUNKS:
        return None if chunks is None else getattr(backend.received, name)(chunks)
    if name == "preprocessing":
        return backend.received.preprocessing()
    if name in ("lifetimes", "pauses"):
        return getattr(backend, name)(start, stop)
    return getattr(backend, name)()
