"""Chunks whose duration follows a law of their events and bytes."""

import numpy as np
from handmade import LIFETIMES, T, chunk, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS

WORKERS = ("A", "B", "C", "D")


def chunks_by_law(number=80, **changes):
    """Rows that take 0.1 s, 1 ms an event and 1 us a byte; in "mc" twice that; `changes` are factors by row."""
    draw = np.random.default_rng(1)
    for place in range(number):
        events, size = int(draw.integers(100, 2000)), int(draw.integers(0, 500_000))
        dataset = ("data", "mc")[place % 2]
        wall = (0.1 + 1e-3 * events + 1e-6 * size) * (1 + place % 2) * changes.get(f"row{place}", 1.0)
        wall *= changes.get(WORKERS[place // 2 % 4], 1.0)
        phases = {"compute_seconds": wall / 2, "read_seconds": wall / 2}
        if f"row{place}" in changes:
            phases = {"compute_seconds": 0.1, "read_seconds": wall - 0.1}
        yield (
            chunk(dataset, f"k{place}", place, "ok", attempt=1, id=place, worker=WORKERS[place // 2 % 4])
            | phases
            | {
                "events": events,
                "entry_start": 0,
                "entry_stop": events,
                "bytes_payload": size,
                "wall_seconds": wall,
                "cpu_seconds": wall / 2,
                "start": T,
                "stop": T + wall,
                "file": f"{place}.root",
            }
        )


def measurement_of(**changes):
    lifetimes = [LIFETIMES[0] | {"worker": worker} for worker in WORKERS]
    return Measurement(
        handmade_run(
            chunks=table_of_rows(CHUNK_COLUMNS, chunks_by_law(**changes)),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, lifetimes),
        )
    )
