"""Workers requested by a client's cluster object, and what the batch system reports about jobs without a worker."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from roastcoffea.errors import RoastcoffeaError, reported
from roastcoffea.records.columns import Row
from roastcoffea.records.workers import ENDED, HELD, PENDING, RELEASED, REQUESTED, STARTED, SUBMITTED

PATIENCE: Final = 10.0
"""Time limit for a batch system's command, in seconds."""

PAUSE: Final = 30.0
"""Seconds from an answer to the next question."""

NO_REQUESTS: Final = "the client has no cluster object that lists its requested workers"


class Answer(NamedTuple):
    """State of a job, and the batch system's reason for it."""

    state: str
    reason: str | None = None


def output_of(*command: str) -> str:
    """Output of a batch system's command; raises if the command is missing, fails or takes too long."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        start_new_session=True,  # Ctrl-C does not reach it
        check=False,
    )
    # squeue also fails if it no longer knows the only job in question
    if done.returncode and "Invalid job id" not in done.stderr:
        raise RoastcoffeaError(f"{command[0]} failed: {done.stderr.strip()[-200:]}")
    return done.stdout


OF_SLURM: Final = {
    **dict.fromkeys(("PENDING", "REQUEUED"), PENDING),
    **dict.fromkeys(("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"), HELD),
    **dict.fromkeys(("RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED"), STARTED),
}
"""State by the name that `squeue` prints; jobs with other names have ended."""


def of_slurm(jobs: Mapping[str, Any]) -> dict[str, Answer]:
    """What `squeue` reports about these jobs."""
    text = output_of("squeue", "--noheader", "--states=all", "--format=%i|%T|%r", f"--jobs={','.join(jobs)}")
    found = {}
    for job, name, reason in re.findall(r"^(\S+)\|(\w+)\|(.*)$", text, re.MULTILINE):
        state, why = OF_SLURM.get(name, ENDED), reason.removeprefix("None").strip()
        if state == ENDED:
            why = f"{name} {why}".strip()
        elif "held" in why.lower():
            state = HELD
        found[job] = Answer(state, why or None)
    return found


OF_CONDOR: Final = {1: PENDING, 2: STARTED, 5: HELD, 6: STARTED, 7: STARTED}
"""State by JobStatus; jobs with another status have ended."""

OF_EVENT: Final = {
    **dict.fromkeys(("000", "004", "007", "013", "024"), PENDING),
    **dict.fromkeys(("001", "011", "023"), STARTED),
    **dict.fromkeys(("005", "009"), ENDED),
    "012": HELD,
}
"""State by the number of an event in the job's log; other events do not change it."""

EVENT: Final = re.compile(r"^(\d{3}) \(0*(\d+)\.0*(\d+)\.\d+\) .*(?:\n[ \t]+(.*))?", re.MULTILINE)
"""An event in a job's log: its number, the job's cluster and process, and the first line of details."""


def of_condor(jobs: Mapping[str, Any]) -> dict[str, Answer]:
    """What HTCondor reports about these jobs, from event logs that can be read here or else from `condor_q`."""
    found: dict[str, Answer] = {}
    for job, submitted in jobs.items():
        with suppress(OSError, TypeError):
            log = Path(submitted.log_directory, f"worker-{job.partition('.')[0]}.log")
            found |= logged(log.read_text(errors="replace"))
    if rest := jobs.keys() - found.keys():
        wanted = "ClusterId,ProcId,JobStatus,HoldReason"
        # it prints nothing if it knows none of the jobs
        for ad in json.loads(output_of("condor_q", *rest, "-json", "-attributes", wanted) or "[]"):
            answer = Answer(OF_CONDOR.get(ad["JobStatus"], ENDED), ad.get("HoldReason"))
            found[f"{ad['ClusterId']}.{ad['ProcId']}"] = answer
    # some deployments name a job by its cluster alone
    return found | {job: found[f"{job}.0"] for job in jobs if f"{job}.0" in found}


def logged(text: str) -> dict[str, Answer]:
    """Latest state of each job in an event log."""
    found = {}
    for event, cluster, process, details in EVENT.findall(text):
        if state := OF_EVENT.get(event):
            found[f"{cluster}.{process}"] = Answer(state, (state in {HELD, ENDED} and details.strip()) or None)
    return found


SYSTEMS: Final = {"sbatch": of_slurm, "condor_submit": of_condor}
"""Functions that ask a batch system, by the command that submits its jobs."""


def requested_jobs(cluster: Any) -> dict[str, Any]:
    """Workers that a cluster object of Dask requests, by name, with their jobs; empty if it does not list them."""
    return {
        f"{name}{suffix}": cluster.workers.get(name)
        for name, spec in dict(getattr(cluster, "worker_spec", ())).items()
        for suffix in spec.get("group", [""])
    }


class Requests:
    """Records changes of a cluster object's requested workers and of their jobs.

    A separate thread asks the batch system, and only about jobs without a worker.

    Parameters
    ----------
    take : callable
        Receives rows of `REQUEST_COLUMNS`.

    Attributes
    ----------
    silent : str or None
        Why the batch system gave no answer.
    """

    def __init__(self, take: Callable[[list[Row]], None]) -> None:
        self.silent: str | None = None
        self._take = take
        self._looking = threading.Lock()
        self._latest: dict[str, Row] = {}
        self._began: float | None = None
        self._next = 0.0
        self._answers: dict[str, Answer] = {}

    def look(self, cluster: Any, arrived: set[str], number: int | None = None) -> None:
        """Record what has changed.

        Parameters
        ----------
        cluster
            The client's cluster object, if any.
        arrived
            Names of the workers that have arrived.
        number
            Number of requested workers, if they have no names.
        """
        with self._looking:
            jobs = requested_jobs(cluster) if number is None else dict.fromkeys(map(str, range(number)))
            rows = [self._row(name, job) for name, job in jobs.items()]
            waiting = {row["job"]: jobs[row["name"]] for row in rows if row["job"] and row["name"] not in arrived}
            if waiting and time.time() >= self._next:
                self._next = math.inf
                threading.Thread(target=self._ask, args=[waiting], name="roastcoffea-queue", daemon=True).start()
            rows += [row | {"state": RELEASED} for name, row in self._latest.items() if name not in jobs]
            new = [row for row in rows if self._latest.get(row["name"]) != row]
            self._latest |= {row["name"]: row for row in new}
            if new:  # what the first look finds is older, but how old is unknown
                self._take([row | {"time": self._began and time.time()} for row in new])
            self._began = self._began or time.time()

    def _row(self, name: str, job: Any) -> Row:
        """Present state of a worker."""
        number = str(getattr(job, "job_id", None) or "")
        answer = self._answers.get(number, Answer(SUBMITTED if number else REQUESTED))
        return {"name": name, "job": number or None, **answer._asdict()}

    def _ask(self, jobs: Mapping[str, Any]) -> None:
        """Ask the batch system about these jobs, on the thread."""
        with reported(partial(setattr, self, "silent"), "the batch system did not answer", Exception):
            job = next(iter(jobs.values()))
            ask = SYSTEMS.get(job.submit_command.partition(" ")[0])
            if ask is None:
                raise RoastcoffeaError(f"only SLURM and HTCondor are asked, not {type(job).__name__}")
            # another scheduler of HTCondor may know the jobs that this one never listed
            known = jobs if ask is of_slurm else self._answers.keys() & jobs.keys()
            self._answers |= dict.fromkeys(known, Answer(ENDED, "no longer listed")) | ask(jobs)
            self.silent = None
        self._next = time.time() + PAUSE
