"""Runs whose workers ran in batch jobs, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from handmade import MIB, T, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import LIFETIME_COLUMNS

OF_JOBS = {
    *("num_jobs", "core_seconds_charged", "charged_cpu_efficiency", "job_memory_used"),
    *("job_queue_seconds", "job_startup_seconds", "job_shutdown_seconds"),
}
"""Metrics that a run without batch jobs lacks."""

START, STOP = T, T + 100.0


def life(worker: str, start: float, stop: float, job: str | None = "1", **known: Any) -> dict[str, Any]:
    of_job = {"batch_system": "slurm", "job": job, "job_cores": 4.0, "job_memory": 1000 * MIB, "job_start": T - 30.0}
    row = {"worker": worker, "host": "10.0.0.1", "threads": 2, "start": T + start, "stop": T + stop}
    return row | (of_job if job else {}) | known


def measured(*lives: dict[str, Any], **changes: Any) -> Measurement:
    empty = {"samples": None, "chunks": None, "tasks": None, "branch_reads": None, "sections": None, "calls": ()}
    run = dataclasses.replace(handmade_run(), **empty, start=START, stop=STOP, merged=())
    return Measurement(dataclasses.replace(run, lifetimes=table_of_rows(LIFETIME_COLUMNS, lives), **changes))
