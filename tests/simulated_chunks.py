"""Chunks of a made-up cluster on which something is slow: workers take the next chunk when they are free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from roastcoffea.diagnosis.slowness import Slow, slowness
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS


class Slower(NamedTuple):
    """What takes so many times as long."""

    kind: str
    number: int
    factor: float


def chunk_table(**columns: Any) -> pa.Table:
    """Table of chunks with these columns; all others are not measured."""
    schema = table_of_rows(CHUNK_COLUMNS, []).schema
    number = len(next(iter(columns.values())))
    return pa.table(
        {
            field.name: pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(number, field.type)
            for field in schema
        }
    )


def simulated(
    draw: np.random.Generator,
    chunks: int,
    workers: int,
    files: int,
    *,
    slow: Sequence[Slower] = (),
    noise: float = 0.25,
    tails: float = 0.03,
    weights: Sequence[float] = (1.0,),
    workers_of_host: int = 1,
    first: float = 1.0,
    grouped: bool = False,
) -> tuple[pa.Table, pa.Table]:
    """Chunks and lifetimes of workers.

    Parameters
    ----------
    noise
        Standard deviation of the logarithm of what a chunk takes.
    tails
        Share of chunks that take two to six times as long.
    weights
        Seconds of an event by dataset, of which each has every so many-th file.
    first
        Factor of a worker's first chunk.
    grouped
        Whether chunks are handed out file by file; else in any order.
    """
    file = np.sort(draw.integers(0, files, chunks))
    file = file if grouped else file[draw.permutation(chunks)]
    plain = 0.1 * np.exp(noise * draw.standard_normal(chunks))
    plain *= np.where(draw.random(chunks) < tails, draw.uniform(2, 6, chunks), 1.0)
    free, begun = np.zeros(workers), np.zeros(workers, np.bool_)
    worker, seconds, start = np.zeros(chunks, int), np.zeros(chunks), np.zeros(chunks)
    for place in range(chunks):
        who = int(np.argmin(free))
        number = {"worker": who, "host": who // workers_of_host, "file": file[place]}
        number["dataset"] = file[place] % len(weights)
        factor = weights[number["dataset"]] * (1.0 if begun[who] else first)
        for one in slow:
            factor *= one.factor if number[one.kind] == one.number else 1.0
        worker[place], seconds[place], start[place] = who, plain[place] * factor, free[who]
        free[who] += seconds[place]
        begun[who] = True
    table = chunk_table(
        id=np.arange(chunks),
        dataset=[f"dataset {number % len(weights)}" for number in file],
        file=[f"file {number}" for number in file],
        worker=[f"worker {number}" for number in worker],
        thread=np.ones(chunks, int),
        outcome=["ok"] * chunks,
        events=np.full(chunks, 1000),
        start=start,
        wall_seconds=seconds,
        cpu_seconds=0.5 * seconds,
        core_wait_seconds=np.zeros(chunks),
    )
    hosts = [f"host {number // workers_of_host}" for number in range(workers)]
    return table, pa.table({"worker": [f"worker {number}" for number in range(workers)], "host": hosts})


def blamed(draw: np.random.Generator, **described: Any) -> list[Slow]:
    """Who is slow in a simulation."""
    return slowness(*simulated(draw, **described)).slow
