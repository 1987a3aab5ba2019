"""Runs by hand in which workers were lost, with the memory that they had."""

from __future__ import annotations

from handmade import LIFETIMES, MIB, TASKS, T, handmade_run, task

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, SAMPLE_COLUMNS


def run_with(*lost: str, samples: dict[str, int], limit: int | None = 1000 * MIB, **killed: int) -> Measurement:
    """A run by hand in which these workers were lost with a task, after samples with so much memory (MiB)."""
    tasks = [*TASKS, *(task(f"lost-{worker}", 50, "processor", "worker lost", worker, 50, 60) for worker in lost)]
    tasks = [row | ({"start": None, "stop": None} if row["outcome"] == "worker lost" else {}) for row in tasks]
    chunk = {"dataset": "mc", "file": "/data/b.root", "entry_start": 0, "entry_stop": 1000}
    tasks = [row | (chunk if row["outcome"] == "worker lost" else {}) for row in tasks]
    lives = [row | {"memory_limit": limit, "killed_memory": killed.get(row["worker"])} for row in LIFETIMES]
    sampled = [{"worker": worker, "time": T + 55, "memory": memory * MIB} for worker, memory in samples.items()]
    return Measurement(
        handmade_run(
            tasks=table_of_rows(TASK_COLUMNS, tasks),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, lives),
            samples=table_of_rows(SAMPLE_COLUMNS, sampled),
        )
    )
