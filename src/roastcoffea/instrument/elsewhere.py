"""Tasks of systems other than Dask, whose workers nobody asks: what their processes know of themselves."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from roastcoffea.instrument.channels import DaskTask
from roastcoffea.instrument.gauges import process_name
from roastcoffea.instrument.shared import Remembered
from roastcoffea.log.jobs import job_since_start
from roastcoffea.log.marks import PARSL_MANAGER, PARSL_RANK, TASKVINE
from roastcoffea.log.packing import OF_PROCESS

_facts: Final[dict[int, dict[str, Any]]] = Remembered()
"""What this process knows of itself, which stays."""


def task_of(system: str) -> DaskTask:
    """The task of this system that runs on this thread."""
    return TaskVineTask() if system == TASKVINE else ProcessTask()


class ProcessTask(DaskTask):
    """A task that reports what its process knows of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.known = {"worker": process_name()}
        facts = facts_of_process()
        if facts:
            self.known[OF_PROCESS] = facts


def facts_of_process() -> dict[str, Any]:
    """Batch job of this process, and its place in Parsl's HighThroughputExecutor; empty without both."""
    process = os.getpid()
    if process not in _facts:
        _facts.clear()  # those of a process that this one was forked from
        manager, rank = (os.environ.get(f"PARSL_WORKER_{name}") for name in ("POOL_ID", "RANK"))
        place = {} if manager is None else {PARSL_MANAGER: manager, PARSL_RANK: rank}
        _facts[process] = job_since_start() | place
    return _facts[process]


class TaskVineTask(ProcessTask):
    """The task of TaskVine whose process this is: its worker gives each task a folder with its number."""

    def __init__(self) -> None:
        super().__init__()
        folder = re.search(r"/t(?:ask)?\.(\d+)/[^/]+$", os.environ.get("TMPDIR", ""))
        if folder is not None:
            self.known["key"] = f"{TASKVINE}-{folder[1]}"
