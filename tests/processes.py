"""Clusters that commands start, ports for servers, and what the kernel counts of a busy host."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PATIENCE: Final = 280.0
"""Seconds after which a wait counts as hung, even on a slow host."""


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def collected_until(condition: Callable[[], bool]) -> bool:
    """Whether garbage collections make the condition true; one does nothing while another thread is in one."""

    def holds() -> bool:
        gc.collect()
        return condition()

    return wait_until(holds)


class CommandLineCluster:
    """`dask scheduler` and `dask worker` processes of their own."""

    running: Final[list[CommandLineCluster]] = []
    """Their logs are shown with each failed test."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        threads: int = 1,
        path: str | None = None,
        python: str = sys.executable,
        options: Sequence[str] = ("--no-nanny",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.threads = threads
        self.environment = {**os.environ, **(environment or {})}
        self.environment.pop("PYTHONPATH", None)
        if path is not None:
            self.environment["PYTHONPATH"] = path
        self.python = python
        self.options = options
        self.processes: list[subprocess.Popen[bytes]] = []
        self.running.append(self)
        self.file = folder / "scheduler.json"
        self._run_dask("scheduler", "--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(self.file))
        assert wait_until(self._is_up), self.text()
        self.workers = [self.add_worker() for _ in range(workers)]

    def _run_dask(self, *command: str, started_by: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        with (self.folder / f"log{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(
                [*(started_by or (self.python, "-m", "dask")), command[0], "--host", "127.0.0.1", *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _is_up(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("}")  # it is not written whole or not at all

    def add_worker(self, *options: str, started_by: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        place = ("--local-directory", str(self.folder), "--dashboard-address", ":0", *self.options)
        command = ("worker", "--scheduler-file", str(self.file), "--nthreads", str(self.threads), *place, *options)
        return self._run_dask(*command, started_by=started_by)

    def text(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("log*")))

    def close(self) -> None:
        with suppress(ValueError):  # closed before
            self.running.remove(self)
        for process in self.processes:
            # a nanny's worker is in its group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(PATIENCE)


FIRST, LAST = 15_000, 32_000


def free_port() -> int:
    """A port that nobody listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on."""
    found = _free()
    return [next(found) for _ in range(count)]


def _free() -> Iterator[int]:
    chance = random.SystemRandom()  # tests that run at the same time have the same seed
    for port in chance.sample(range(FIRST, LAST), LAST - FIRST):
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            yield port


def core_wait() -> float:
    """Seconds in which this thread could have computed and had no core; 0 where the kernel does not count them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def contention() -> float:
    """Seconds, since the host was started, in which something on it had to wait for a core."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("=")[2]) / 1e6


def stolen(core: int) -> float:
    """Seconds that a host took of a virtual core: they are neither CPU time nor waiting of any process."""
    try:
        rows = map(str.split, Path("/proc/stat").read_text().splitlines())
    except OSError:
        return 0.0
    return sum(int(row[8]) for row in rows if row[0] == f"cpu{core}") / os.sysconf("SC_CLK_TCK")


@dataclass
class Wait:
    """Seconds of waiting for cores, known at the end of the block."""

    seconds: float = 0.0


@contextmanager
def waiting_for_cores() -> Iterator[Wait]:
    """How long this thread waits for a core in the block."""
    wait, before = Wait(), core_wait()
    yield wait
    wait.seconds = core_wait() - before


@contextmanager
def contended() -> Iterator[Wait]:
    """How long something on this host waits for a core while the block runs."""
    wait, before = Wait(), contention()
    yield wait
    wait.seconds = contention() - before
