"""Workers and tasks of TaskVine: against the operating system on a real run, and from the logs of one."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from analyses import KernelCounted
from coffea.nanoevents import NanoAODSchema
from coffea.processor import Runner, TaskVineExecutor

from roastcoffea import MetricsCollector

WORKERS = 2
TOLERANCE = 0.05


@dataclass
class Watched:
    """Workers that are started when a manager is made, and what the operating system says of them."""

    folder: Path
    cores: int = 1
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    born: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    cpu: float = 0.0
    """CPU time of their tasks, which are their children."""
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
        times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        self.cpu += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """They end by themselves with their manager, which Python may keep for a while."""
        gc.collect()
        for process in self.processes:
            process.terminate()
        for thread, process in zip(self.waiting, self.processes, strict=True):
            thread.join()
            process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
    efficiency = measurement.metrics["core_efficiency"]
    of_process = ledger["compute"] + ledger["decompress"] + ledger["interpret"]
    figures = {
        "capacity": (ledger.total, capacity),
        "CPU of process()": (of_process, output["kernel"]),
        "efficiency": (efficiency, output["kernel"] / capacity),
        "CPU of all tasks": workers.cpu,
    }
    print(figures, ledger, measurement.problems, tasks[["kind", "startup_seconds", "start", "stop"]].to_string())
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
    assert abs(ledger.residual) < 0.01 * ledger.total
    assert ledger.certificate.complete, ledger.certificate.reasons
    assert measurement.byte_ledger.certificate.complete, measurement.byte_ledger.certificate.reasons
    assert measurement.problems == []
    measurement.print_summary()
