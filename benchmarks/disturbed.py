"""A cluster of processes that can be killed, paused, cut off and given a wrong clock, for `schedules.py`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from distributed import Client
from stepped import CLOCK

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from conftest import what_stays
from processes import CommandLineCluster, wait_until

TESTS: Final = Path(__file__).parents[1] / "tests"
CLIENT, SCHEDULER, WORKERS = "client", "scheduler", ("worker 0", "worker 1")


KINDS: Final = {
    "kill": (*WORKERS, CLIENT),
    "pause": (*WORKERS, SCHEDULER, CLIENT),
    "partition": (*WORKERS, CLIENT),
    "reset": WORKERS,
    "step": (*WORKERS, CLIENT),
}


class Event(NamedTuple):
    """What happens to a process, how many seconds after the client began, and by how much or how long."""

    at: float
    kind: str
    target: str
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:+.1f} s" if self.kind == "step" else f" for {self.amount:.1f} s"
        return f"{self.at:.2f} {self.kind} {self.target}{amount if self.amount else ''}"


def schedule(seed: int) -> list[Event]:
    """The events of a seed."""
    chance = random.Random(seed)
    events = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(list(KINDS))
        amounts = {"pause": (0.2, 3.0), "partition": (0.2, 3.0), "step": (-30.0, 30.0)}
        amount = chance.uniform(*amounts[kind]) if kind in amounts else 0.0
        events.append(Event(round(chance.uniform(0, 6), 2), kind, chance.choice(KINDS[kind]), round(amount, 1)))
    return sorted(events)


class Proxy:
    """A TCP connection to the scheduler that can stall and break."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listening = asyncio.start_server(self._connected, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass_on(reader, there[1]), self._pass_on(there[0], writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def stall(self) -> None:
        """Pass nothing on, as where packets are lost and sent again."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def heal(self) -> None:
        """Pass everything on, from what was held back."""
        self._loop.call_soon_threadsafe(self._passes.set)

    def reset(self) -> None:
        """Break all connections, on both sides."""

        def broken() -> None:
            for writer in self._writers:
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                writer.transport.abort()

        self._loop.call_soon_threadsafe(broken)


class DisturbedCluster:
    """A scheduler and two workers, the second of which has a nanny; dead ones are started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        path = os.pathsep.join([str(TESTS), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        self.cluster = CommandLineCluster(folder, workers=0, path=path)
        known = json.loads(self.cluster.file.read_text())
        host, port = known["address"].removeprefix("tcp://").split(":")
        self.proxies = {name: Proxy((host, int(port))) for name in (*WORKERS, CLIENT)}
        for name in WORKERS:
            self._file(name).write_text(json.dumps({**known, "address": self.proxies[name].address}))
        self.observer = Client(known["address"])
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.client: Any = None
        self.starts = 0
        self.settle()

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def clock(self, name: str) -> Path:
        """The file that moves a process's clock."""
        return self.folder / f"clock of {name}"

    def revive(self) -> None:
        """Start workers that have died."""
        for name, options in zip(WORKERS, ((), ("--nanny",)), strict=True):
            if name not in self.workers or self.workers[name].poll() is not None:
                self.starts += 1
                self.cluster.file = self._file(name)
                self.cluster.environment[CLOCK] = str(self.clock(name))
                started_by = (sys.executable, str(Path(__file__).parent / "stepped.py"))
                self.workers[name] = self.cluster.add_worker(
                    "--name", f"{name}, {self.starts}", *options, started_by=started_by
                )

    def pid(self, name: str) -> int:
        """Process that does the work."""
        if name == CLIENT:
            return int(self.client.pid)
        if name == SCHEDULER:
            return self.cluster.processes[0].pid
        own = self.workers[name].pid
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(own).children()
            return next((one.pid for one in children if "spawn_main" in "".join(one.cmdline())), own)
        return own

    def actions(self, event: Event) -> list[tuple[float, bool, Callable[[], None]]]:
        """When to do what for an event, and whether that ends it."""

        def send(number: signal.Signals) -> Callable[[], None]:
            def sent() -> None:
                with suppress(ProcessLookupError):
                    os.kill(pids[0] if pids else self.pid(event.target), number)

            return sent

        def pause() -> None:
            pids.append(self.pid(event.target))
            send(signal.SIGSTOP)()

        pids: list[int] = []  # whoever was stopped has to go on
        end, proxy = event.at + event.amount, self.proxies.get(event.target)
        if event.kind == "kill":
            return [(event.at, False, send(signal.SIGKILL))]
        if event.kind == "pause":
            return [(event.at, False, pause), (end, True, send(signal.SIGCONT))]
        if event.kind == "step":
            return [(event.at, False, lambda: self.set_clock(event.target, event.amount))]
        assert proxy is not None
        if event.kind == "reset":
            return [(event.at, False, proxy.reset)]
        return [(event.at, False, proxy.stall), (end, True, proxy.heal)]

    def set_clock(self, name: str, ahead: float) -> None:
        """Move a process's clock away from the host's."""
        self.clock(name).write_text(f"{ahead:.3f}")

    def settle(self) -> str:
        """Wait until both workers are back, and tell what is left on the cluster."""
        for name in (*WORKERS, CLIENT):
            self.set_clock(name, 0.0)

        def whole() -> bool:
            self.revive()
            return len(self.observer.scheduler_info(n_workers=-1)["workers"]) == len(WORKERS)

        if not wait_until(whole, 60):
            return "the workers do not come back"
        began = time.monotonic()
        clean = wait_until(lambda: what_stays(self.observer) == [], 5.0)
        return "" if clean else f"{what_stays(self.observer)} after {time.monotonic() - began:.1f} s on the cluster"

    def close(self) -> None:
        """End all processes."""
        with suppress(Exception):
            self.observer.close(timeout=1)
        self.cluster.close()
