"""Workers and tasks of TaskVine: against the operating system on a real run, and from the logs of one."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analyses import Jets, KernelCounted
from coffea.nanoevents import NanoAODSchema
from coffea.processor import IterativeExecutor, Runner, TaskVineExecutor
from processes import free_port

from roastcoffea import MetricsCollector
from roastcoffea.backends.taskvine import TaskVineLogs, TransactionLog
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS

WORKERS = 2
LOGS = Path(__file__).parent.parent / "data" / "taskvine"
TOLERANCE = 0.05


@dataclass
class Watched:
    """Workers that are started when a manager is made, and what the operating system says of them."""

    folder: Path
    cores: int = 1
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    born: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    waiting: list[threading.Thread] = field(default_factory=list)

    def start(self, manager: Any) -> None:
        if self.processes:
            return
        options = ["--cores", str(self.cores), "--single-shot", "--timeout", "60"]
        for number in range(WORKERS):
            work = self.folder / f"work-{number}"  # a worker removes it at its end
            work.mkdir()
            command = ["vine_worker", *options, "--workdir", str(work), "127.0.0.1", str(manager.port)]
            with (self.folder / f"worker-{number}").open("wb") as out:
                # the manager has put its own port into the environment, which workers take for theirs
                here = {name: value for name, value in os.environ.items() if not name.startswith("TCP_")}
                self.processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=here))
            self.born.append(born(self.processes[-1].pid))
            self.waiting.append(threading.Thread(target=self._wait, args=(self.processes[-1],)))
            self.waiting[-1].start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.ended.append(time.time())

    def stop(self) -> None:
        """They end by themselves with their manager, which Python may keep for a while."""
        gc.collect()
        for thread, process in zip(self.waiting, self.processes, strict=True):
            if thread.is_alive():
                os.kill(process.pid, signal.SIGTERM)  # Popen.terminate() would reap it
            thread.join()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("ndcctools.taskvine", reason="ndcctools (TaskVine) is not installed")
    if shutil.which("vine_worker") is None:
        pytest.skip("vine_worker of ndcctools is not on PATH")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    tests = Path(__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")]))
    found = Watched(tmp_path)
    yield found
    found.stop()


def test_records_and_tables_of_a_real_log() -> None:
    """Its manager: two workers of one core, 16 chunks of four files."""
    problems: list[str] = []
    logs = TaskVineLogs(problems.append)
    executor = SimpleNamespace(custom_init=None)
    with logs.step(executor, "call", preprocessing=False):
        executor.custom_init(SimpleNamespace(logging_directory=str(LOGS)))
    assert executor.custom_init is None
    log = TransactionLog((LOGS / "transactions").read_text().splitlines())
    (attempt,) = [one for one in log.attempts if one["task"] == 5]
    rows = [
        {"call": "call", "key": "5", "worker": "node-1/17", "start": attempt["start"] + 0.5},
        {"call": "call", "key": "99", "worker": "node-1/18", "start": attempt["start"]},
        {"call": "elsewhere", "key": None, "worker": "node-1/19", "start": attempt["start"]},
    ]
    facts = {"node-1/17": {"batch_system": "slurm", "job": "5", "job_start": attempt["start"] - 9.0}}
    placed = logs.placed(table_of_rows(CHUNK_COLUMNS, rows), facts, preprocessing=False).to_pylist()
    assert [row["worker"] for row in placed] == [attempt["worker"], "node-1/18", "node-1/19"]
    assert problems == ["1 record from TaskVine tasks could not be matched to its logs"]
    tasks = {task["key"]: task for task in logs.tasks().to_pylist()}
    task = tasks[placed[0]["key"]]
    assert task["run_id"] == placed[0]["run_id"]
    assert task["startup_seconds"] == pytest.approx(0.5)
    assert Counter(task["kind"] for task in tasks.values()) == {"processor": 16, "preprocessing": 4, "merge": 5}
    start, stop = attempt["start"], attempt["stop"]
    lifetimes: list[dict[str, Any]] = []
    logs.complete(lifetimes, {}, lambda worker: [], start, stop)
    assert [(row["start"], row["stop"], row["threads"], row["host"]) for row in lifetimes] == [
        (start, stop, 1, "node-1")
    ] * 2
    jobs = {row["worker"]: tuple(row.get(name) for name in ("batch_system", "job", "job_start")) for row in lifetimes}
    assert jobs.pop(attempt["worker"]) == ("slurm", "5", attempt["start"] - 9.0)
    assert set(jobs.values()) == {(None, None, None)}
    assert logs.absent(0).keys() == {"samples"}
    assert "others did not" in logs.absent(1)["tasks"]


def test_without_a_log_workers_and_efficiency_are_missing(
    sample: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IterativeExecutor, "custom_init", None, raising=False)

    class TaskVineExecutor(IterativeExecutor):
        """Makes a manager, whose log is gone."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.custom_init(SimpleNamespace(logging_directory=str(tmp_path / "gone")))
            return super().__call__(*args, **kwargs)

    runner = Runner(TaskVineExecutor(status=False), schema=NanoAODSchema, chunksize=4000, savemetrics=True)
    with MetricsCollector() as collector:
        _, report = runner(sample, processor_instance=Jets())
    measurement = collector.measurement
    assert len(measurement.chunks) == report["chunks"]
    assert measurement.metrics["total_events"] == report["entries"]
    for name in ("total_cores", "core_efficiency", "avg_workers"):
        assert name not in measurement.metrics
        assert "No such file" in measurement.metrics.missing[name]
    assert measurement.time_ledger.total is None


def born(process: int) -> float:
    """When the kernel made a process."""
    ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_cores_lifetimes_and_efficiency_are_those_of_the_operating_system(
    workers: Watched, sample: dict[str, Any], tmp_path: Path
) -> None:
    executor = TaskVineExecutor(
        port=free_port(), status=False, custom_init=workers.start, filepath=str(tmp_path), treereduction=2
    )
    runner = Runner(executor, schema=NanoAODSchema, chunksize=4000, savemetrics=True)
    with MetricsCollector() as collector:
        output, report = runner(sample, processor_instance=KernelCounted(2.0))
    workers.stop()
    measurement, run = collector.measurement, collector.measurement.run
    lifetimes, tasks, ledger = run.lifetimes.to_pandas(), run.tasks.to_pandas(), measurement.time_ledger

    assert len(lifetimes) == WORKERS
    assert set(lifetimes["threads"]) == {workers.cores}
    ended = [min(moment, run.stop) for moment in workers.ended]
    capacity = sum(ended) - sum(max(moment, run.start) for moment in workers.born)
    assert (lifetimes["stop"] - lifetimes["start"]).sum() == pytest.approx(capacity, rel=TOLERANCE)
    assert ledger.total == pytest.approx(capacity, rel=TOLERANCE)
    assert measurement.metrics["total_cores"] == pytest.approx(capacity / (run.stop - run.start), rel=TOLERANCE)
    of_process = ledger["compute"] + ledger["decompress"] + ledger["interpret"]
    efficiency = measurement.metrics["core_efficiency"]
    assert efficiency == pytest.approx(output["kernel"] / capacity, rel=TOLERANCE)
    assert of_process == pytest.approx(output["kernel"], rel=TOLERANCE)

    chunks = measurement.chunks
    assert len(chunks) == report["chunks"]
    assert set(chunks["worker"]) <= set(lifetimes["worker"])
    assert list(tasks.groupby("kind").size()[["preprocessing", "processor"]]) == [4, len(chunks)]
    assert (tasks["kind"] == "merge").any()
    # a new process for each, which imports coffea
    started = tasks[tasks["kind"] != "merge"]["startup_seconds"]
    assert (started > 0.1).all()
    assert ledger["start-up"] >= started.sum() * (1 - TOLERANCE)
    print("capacity", ledger.total, capacity, "efficiency", efficiency, output["kernel"] / capacity)
    assert abs(ledger.residual) < 0.01 * ledger.total
    assert ledger.certificate.complete, ledger.certificate.reasons
    assert measurement.byte_ledger.certificate.complete, measurement.byte_ledger.certificate.reasons
    assert measurement.problems == []
