"""Tasks outside of Dask: what their processes report of themselves."""

from __future__ import annotations

import os
from typing import Any

import pytest

from roastcoffea.backends.parsl import ParslManagers
from roastcoffea.backends.taskvine import TaskVineLogs
from roastcoffea.instrument.channels import task_of
from roastcoffea.instrument.gauges import process_name
from roastcoffea.log.packing import packed_records
from roastcoffea.log.received import ReceivedRecords


@pytest.mark.parametrize(
    ("folder", "key"),
    [("/scratch/task.12/.taskvine.tmp", "12"), ("/data/t.3/.taskvine.tmp", "3"), ("/tmp", None)],
)
def test_a_task_of_taskvine_is_known_by_its_folder(
    folder: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", folder)
    task = task_of(TaskVineLogs.environment)
    assert task.known.get("key") == key
    assert task.known["worker"] == process_name()


PLACE_IN_PARSL = {"PARSL_WORKER_POOL_ID": "4f", "PARSL_WORKER_RANK": "3"}
JOB_OF_SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_START_TIME": "1700000000", "SLURMD_NODENAME": "node-7"}


@pytest.mark.parametrize("job", [{}, JOB_OF_SLURM])
@pytest.mark.parametrize("place", [{}, PLACE_IN_PARSL])
def test_tasks_outside_of_dask_report_their_batch_job_and_their_place_in_parsl(
    place: dict[str, str], job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", place | job)
    monkeypatch.setattr(os, "getpid", lambda: -len(place) - 10 * len(job))  # a process reads its environment once
    received = ReceivedRecords()
    received.take(packed_records([{"id": 1, "call": "ours"} | task_of(ParslManagers.environment).known]))
    assert len(received.chunks({"ours"})) == 1
    expected: dict[str, Any] = {"parsl_manager": "4f", "parsl_rank": "3"} if place else {}
    if job:
        expected |= {"batch_system": "slurm", "job": "17", "job_start": 1700000000.0, "node": "node-7"}
    assert list(received.processes.values()) == ([expected] if expected else [])
