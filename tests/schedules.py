"""Chunks and clusters by a few numbers, and how long a simulation takes with them."""

from __future__ import annotations

import numpy as np

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.replay.changes import Chunks, Parts
from roastcoffea.replay.cluster import Cluster, Load, replayed
from roastcoffea.replay.engine import Costs

FREE = Costs(steal=0.0)
"""A cluster that adds nothing."""

MANY = float("inf")


def work(*rows: tuple[float, float, float]) -> Load:
    """Chunks by their seconds of CPU, waiting, and CPU again."""
    before, wait, after = np.array(rows, dtype=np.float64).T
    return Load(before=before, wait=wait, after=after)


def reading(*rows: tuple[float, float, float, float]) -> Load:
    """Chunks by their seconds of CPU, reading with storage of their own, waiting, and CPU again."""
    before, read, wait, after = np.array(rows, dtype=np.float64).T
    return Load(before=before, read=read, wait=wait, after=after)


def on(workers: int, cores: float = MANY, threads: int = 1, **shared: float) -> Cluster:
    return Cluster(threads=threads, hosts=[(workers, cores)], **shared)


def seconds(load: Load, cluster: Cluster, costs: Costs = FREE, **more: object) -> float:
    """Seconds of a simulation in which each chunk has one turn."""
    return replayed(load, cluster, costs, **({"turns": 1} | more)).seconds  # type: ignore[arg-type]


def parts(**given: np.ndarray) -> Parts:
    """Parts of chunks; those that are not given take no time."""
    none = 0.0 * next(iter(given.values()))
    return Parts(**dict.fromkeys(Parts._fields, none) | given)


def chunks_of(read: Numbers, cpu: Numbers, dataset: str = "data") -> Chunks:
    """Chunks of 100 events that take these seconds."""
    number = np.arange(len(read))
    return Chunks(
        datasets=(dataset,),
        dataset=0 * number,
        file=number,
        start=0 * number,
        stop=0 * number + 100,
        parts=parts(read=read, cpu=cpu),
        factor=np.ones(len(read)),
        row=number,
    )
