"""Workers and tasks of TaskVine: against the operating system on a real run, and from the logs of one."""

from __future__ import annotations

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
            self.born.append(time.time())
            self.waiting.append(threading.Thread(target=self._wait, args=(self.processes[-1],)))
            self.waiting[-1].start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.ended.append(time.time())
        times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        self.cpu += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
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


@pytest.mark.slow
def test_cores_lifetimes_and_efficiency_are_those_of_the_operating_system(
    workers: Watched, sample: dict[str, Any], tmp_path: Path
) -> None:
    executor = TaskVineExecutor(port=free_port(), status=False, custom_init=workers.start, filepath=str(tmp_path))
    runner = Runner(executor, schema=NanoAODSchema, chunksize=2000, savemetrics=True)
    with MetricsCollector() as collector:
        output, report = runner(sample, processor_instance=KernelCounted(1.0))
    for thread in workers.waiting:
        thread.join(20)
    measurement = collector.measurement
    lifetimes = measurement.run.lifetimes.to_pandas()
    print(lifetimes.to_string(), measurement.run.tasks.to_pandas().to_string(), measurement.time_ledger)
    print(measurement.problems, measurement.time_ledger.certificate.reasons)
    capacity = sum(workers.ended) - sum(workers.born)
    print("truth", capacity, lifetimes["stop"].sum() - lifetimes["start"].sum(), "cpu of tasks", workers.cpu, output)
    print(measurement.metrics["total_cpu_time"], measurement.metrics["core_efficiency"], output["kernel"] / capacity)
    measurement.save(tmp_path.parent / "vine")
    measurement.print_summary()
    assert len(lifetimes) == WORKERS
    assert set(lifetimes["threads"]) == {workers.cores}
