"""Chunks of a size that follow a law: so many seconds a chunk, so many an event, and some noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement

EVENT = 7.5e-6
"""Seconds of CPU time of an event."""


def plans(
    number: int, size: int, each: float = 0.0, event: float = EVENT, seed: int = 1, dataset: str = "data"
) -> Iterator[Any]:
    """Plans of so many chunks that take about `each` + `event` x size seconds of CPU time."""
    scatter = np.random.default_rng(seed % 2**32).normal(1, 0.02, number)
    for factor in scatter:
        yield plan((each + event * size) * factor, events=size, dataset=dataset, file=f"{dataset}.root")


def chunks_of(number: int, size: int, **law: Any) -> pa.Table:
    """Chunks of a run on two workers."""
    chunks = run_of(number, size, **law).chunks
    assert chunks is not None
    return chunks


def measurement_of(number: int, size: int, **law: Any) -> Measurement:
    """The measurement of that run."""
    return Measurement(run_of(number, size, **law))


def run_of(number: int, size: int, **law: Any) -> Any:
    """A run on two workers; no bytes are read."""
    run = made_run([*plans(number, size, **law)], workers=2)
    assert run.chunks is not None
    place = run.chunks.schema.get_field_index("bytes_payload")
    nothing = pa.chunked_array([pa.array(np.zeros(number, np.int64))])
    return replace(run, chunks=run.chunks.set_column(place, "bytes_payload", nothing))
