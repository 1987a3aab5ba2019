"""What a cluster object was asked for, and what batch systems say of jobs, in the forms that they document."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.backends import queues
from roastcoffea.backends.queues import Answer, Requests, logged, of_condor, of_slurm, requested_jobs

# squeue(1), "JOB STATE CODES" and "JOB REASON CODES"
SQUEUE = """\
12|PENDING|Priority
13|PENDING|JobHeldUser
14|PENDING|launch failed requeued held
15|RUNNING|None
16|CANCELLED|None
17|FAILED|NonZeroExitCode
18|SPECIAL_EXIT|None
19_7|PENDING|ReqNodeNotAvail, UnavailableNodes:node-[1-3]
"""

# condor_q(1) with -json, and "Job ClassAd Attributes"
CONDOR_Q = """[
{"ClusterId": 7, "JobStatus": 1, "ProcId": 0},
{"ClusterId": 8, "HoldReason": "memory usage exceeded request_memory", "JobStatus": 5, "ProcId": 0},
{"ClusterId": 9, "JobStatus": 2, "ProcId": 3}
]
"""

# HTCondor's manual, "Managing a Job", "In the Job Event Log File"
EVENT_LOG = """\
000 (8145.000.000) 2026-11-29 10:15:02 Job submitted from host: <10.0.0.5:9618?addrs=10.0.0.5-9618>
...
001 (8145.000.000) 2026-11-29 10:19:02 Job executing on host: <10.0.0.7:9618?addrs=10.0.0.7-9618>
\tSlotName: slot1_1@node-7
...
006 (8145.000.000) 2026-11-29 10:20:00 Image size of job updated: 1000
\t1  -  MemoryUsage of job (MB)
...
012 (8145.000.000) 2026-11-29 10:25:00 Job was held.
\tmemory usage exceeded request_memory
\tCode 34 Subcode 102
...
000 (8146.002.000) 11/29 10:16:00 Job submitted from host: <10.0.0.5:9618>
...
001 (8146.002.000) 11/29 10:17:00 Job executing on host: <10.0.0.8:9618>
...
000 (8147.000.000) 11/29 10:16:00 Job submitted from host: <10.0.0.5:9618>
...
009 (8147.000.000) 11/29 10:31:00 Job was aborted.
\tvia condor_rm (by user jane)
...
"""


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what the batch system's next commands print."""

    def prints(text: str) -> None:
        done = subprocess.CompletedProcess([], 0, text, "")
        monkeypatch.setattr(queues.subprocess, "run", lambda *_, **__: done)

    return prints


def test_squeue(printed: Any) -> None:
    printed(SQUEUE)
    assert of_slurm({"12": None}) == {
        "12": Answer("pending", "Priority"),
        "13": Answer("held", "JobHeldUser"),
        "14": Answer("held", "launch failed requeued held"),
        "15": Answer("started"),
        "16": Answer("ended", "CANCELLED"),
        "17": Answer("ended", "FAILED NonZeroExitCode"),
        "18": Answer("held"),
        "19_7": Answer("pending", "ReqNodeNotAvail, UnavailableNodes:node-[1-3]"),
    }
    printed("slurm_load_jobs error: Unable to contact slurm controller\n")
    assert of_slurm({"12": None}) == {}


def test_condor_q(printed: Any) -> None:
    printed(CONDOR_Q)
    assert of_condor({"7.0": Job("7.0", "condor_submit")}) == {
        "7.0": Answer("pending"),
        "8.0": Answer("held", "memory usage exceeded request_memory"),
        "9.3": Answer("started"),
    }
    printed("")  # it knows none of the jobs
    assert of_condor({"7.0": Job("7.0", "condor_submit")}) == {}


def test_an_event_log() -> None:
    assert logged(EVENT_LOG) == {
        "8145.0": Answer("held", "memory usage exceeded request_memory"),
        "8146.2": Answer("started"),
        "8147.0": Answer("ended", "via condor_rm (by user jane)"),
    }
    assert logged("no log\n" + EVENT_LOG[:15]) == {}


class Job:
    """A job of dask-jobqueue."""

    def __init__(self, job_id: str | None, command: str = "sbatch", folder: Path | None = None) -> None:
        self.job_id, self.submit_command, self.log_directory = job_id, command, folder


def cluster_of(**jobs: Any) -> Any:
    return SimpleNamespace(workers=jobs, worker_spec={name: {} for name in jobs})


class Looks:
    """Looks at clusters; what batch systems answer is given, and time passes as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any = "") -> None:
        self.commands: list[tuple[str, ...]] = []
        self.rows: list[dict[str, Any]] = []
        self.requests = Requests(self.rows.extend)
        self.now, self.answer = 1000.0, answer

        def run(command: tuple[str, ...], **how: Any) -> Any:
            self.commands.append(command)
            assert how["timeout"] <= 10
            if isinstance(self.answer, Exception):
                raise self.answer
            code, text, error = self.answer if isinstance(self.answer, tuple) else (0, self.answer, "")
            return subprocess.CompletedProcess(command, code, text, error)

        monkeypatch.setattr(queues.subprocess, "run", run)
        monkeypatch.setattr(queues, "time", SimpleNamespace(time=lambda: self.now))

    def __call__(self, cluster: Any, *came: str, after: float = 0.0, **more: Any) -> list[tuple[Any, ...]]:
        """What a look adds: name, state, job, reason, and seconds since the first look."""
        self.now += after
        self.rows.clear()
        self.requests.look(cluster, {*came}, **more)
        for thread in threading.enumerate():
            if thread.name == "roastcoffea-queue":
                thread.join(10)
        return sorted(
            (row["name"], row["state"], row.get("job"), row.get("reason"), row["time"] and row["time"] - 1000)
            for row in self.rows
        )


def test_what_the_first_look_finds_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch)
    cluster = cluster_of(a=Job(None), b=Job("2"))
    assert look(cluster, "b") == [("a", "requested", None, None, None), ("b", "submitted", "2", None, None)]
    assert look(cluster, "b", after=1) == []
    assert look.commands == []
    cluster.workers["a"].job_id = "1"
    assert look(cluster, "a", "b", after=1) == [("a", "submitted", "1", None, 2.0)]
    assert look(cluster_of(b=Job("2")), "a", "b", after=1) == [("a", "released", "1", None, 3.0)]
    assert look(cluster_of(b=Job("2")), "a", "b", after=100) == []
    assert look.commands == []


def test_only_jobs_without_a_worker_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch, "1|PENDING|Priority\n")
    cluster = cluster_of(a=Job("1"), b=Job("2"), c=Job("3"))
    look(cluster, "b")
    assert [command[0] for command in look.commands] == ["squeue"]
    assert look.commands[0][-1] == "--jobs=1,3"
    look.answer = "1|PENDING|JobHeldUser\n"
    unlisted = "no longer listed"
    assert look(cluster, "b", after=1) == [("a", "pending", "1", "Priority", 1.0), ("c", "ended", "3", unlisted, 1.0)]
    for _ in range(600):
        look(cluster, "b", after=1)
    assert len(look.commands) == 1 + 600 // 30
    gone = look(cluster_of(a=Job("1")), "a", after=1000)
    assert gone == [("b", "released", "2", None, 1601.0), ("c", "released", "3", unlisted, 1601.0)]
    before = len(look.commands)
    look(cluster_of(a=Job("1")), "a", after=1000)
    assert len(look.commands) == before


@pytest.mark.parametrize(
    ("answer", "command", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "squeue"), "sbatch", "No such file or directory: 'squeue'"),
        (subprocess.TimeoutExpired("squeue", 10), "sbatch", "timed out after 10 seconds"),
        ((1, "", "Unable to contact slurm controller"), "sbatch", "squeue failed: Unable to contact"),
        ("<html>", "condor_submit", "did not answer: JSONDecodeError"),
        ("", "bsub", "only SLURM and HTCondor are asked, not Job"),
    ],
)
def test_what_cannot_be_asked_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, answer: Any, command: str, reason: str
) -> None:
    look = Looks(monkeypatch, answer)
    cluster = cluster_of(a=Job("1.0", command))
    look(cluster)
    assert look(cluster, after=1) == []
    assert reason in (look.requests.silent or "")
    look.answer = (1, "", "slurm_load_jobs error: Invalid job id specified") if command == "sbatch" else ""
    look(cluster, after=100)
    ended = [] if command != "sbatch" else [("a", "ended", "1.0", "no longer listed", 102.0)]
    assert look(cluster, after=1) == ended
    assert (look.requests.silent is None) == (command != "bsub")


def test_event_logs_come_before_condor_q(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "worker-8145.log").write_text(EVENT_LOG)
    look = Looks(monkeypatch, CONDOR_Q)
    cluster = cluster_of(a=Job("8145.0", "condor_submit -spool", tmp_path), b=Job("8.0", "condor_submit"))
    look(cluster)
    assert [command[:2] for command in look.commands] == [("condor_q", "8.0")]
    reason = "memory usage exceeded request_memory"
    assert look(cluster, after=1) == [("a", "held", "8145.0", reason, 1.0), ("b", "held", "8.0", reason, 1.0)]


def test_a_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch)
    assert [row[:2] for row in look(None, number=2)] == [("0", "requested"), ("1", "requested")]
    assert look(None, number=2, after=1) == []
    assert look(None, number=3, after=1) == [("2", "requested", None, None, 2.0)]
    assert look(None, number=2, after=1) == [("2", "released", None, None, 3.0)]


@pytest.mark.parametrize(
    "cluster", [None, object(), SimpleNamespace(workers=["tcp://a:1"]), SimpleNamespace(plan={"a"})]
)
def test_clusters_of_other_kinds(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    assert Looks(monkeypatch)(cluster) == []


def test_workers_of_one_job() -> None:
    job = Job("5")
    spec = {"c-0": {"group": ["-0", "-1"]}, "c-1": {"group": ["-0"]}}
    cluster = SimpleNamespace(workers={"c-0": job}, worker_spec=spec)
    assert requested_jobs(cluster) == {"c-0-0": job, "c-0-1": job, "c-1-0": None}


def test_a_slow_batch_system_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, asked = threading.Event(), threading.Event()

    def run(*_: Any, **__: Any) -> None:
        asked.set()
        waiting.wait()

    monkeypatch.setattr(queues, "PAUSE", 0.0)
    monkeypatch.setattr(queues.subprocess, "run", run)
    requests, cluster = Requests(print), cluster_of(a=Job("1"))
    for _ in range(50):
        requests.look(cluster, set())  # would never return if it waited for the answer
    assert asked.wait(60)
    threads = [thread for thread in threading.enumerate() if thread.name == "roastcoffea-queue"]
    assert len(threads) == 1
    assert threads[0].daemon
    waiting.set()
    threads[0].join(60)
