"""A scheduler and its states that only hold data, to feed the collector's plugin with more than a cluster could."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from roastcoffea.backends.attempts import TasksOfRun
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.log.kinds import LOG_CAP
from roastcoffea.records.tasks import CANCELLED, ERROR, LOST, OK

NAME = "roastcoffea-stand-in"
"""Name of the plugin."""

TOKEN = "token-1"
"""What messages of the plugin's own carry."""

CLIENT = "client-1"
"""Identity of the client whose run it is."""

SPAN = "span-1"
"""Identity of the span of the run."""

ENDS = {
    OK: ("memory", "task-finished-1"),
    ERROR: ("erred", "task-erred-1"),
    LOST: ("released", "handle-worker-cleanup-1"),
    CANCELLED: ("released", "client-releases-keys-1"),
}
"""The state that follows "processing", and how distributed names the reason, by outcome."""


@dataclass(slots=True)
class Worker:
    """What the plugin reads of a `WorkerState`."""

    address: str
    name: str
    host: str = "10.0.0.1"
    nthreads: int = 4
    memory_limit: int = 8_000_000_000
    pid: int = 1000
    last_seen: float = 0.0
    nbytes: int = 0
    occupancy: float = 0.0
    status: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="running"))
    metrics: dict[str, Any] = field(default_factory=dict)
    processing: dict[Any, Any] = field(default_factory=dict)
    executing: dict[Any, Any] = field(default_factory=dict)

    def beat(self, time: float, number: int) -> None:
        """Report figures that differ from those of other numbers; each is a fraction that 32 bits hold exactly."""
        self.last_seen = time + 0.25
        self.nbytes = 1000 * number
        self.occupancy = number / 4
        self.metrics = {
            "time": time,
            "cpu": 50 + number / 8,
            "memory": 1_000_000_000 + number,
            "spilled_bytes": {"memory": number, "disk": number // 2},
            "event_loop_interval": 0.0625,
            "num_fds": 30 + number % 7,
            "host_net_io": {"read_bps": 4.0 * number, "write_bps": 2.0 * number},
            "host_disk_io": {"read_bps": 8.0 * number, "write_bps": 0.0},
            NAME: number / 16,
        }


@dataclass(slots=True)
class Task:
    """One attempt of a task: what the plugin reads of a `TaskState`, and how the attempt goes."""

    key: str
    worker: Worker
    prefix_name: str = "DijetProcessor"
    run_id: int = 1
    annotations: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    outcome: str = OK
    start: float = 0.0
    stop: float = 0.0
    nbytes: int = 0
    thread: int = 140_000_000_000_000
    error: str | None = None
    typename: str = "dict"
    span: str = SPAN
    client: str | None = None
    dependencies: tuple[Task, ...] = ()

    @property
    def who_wants(self) -> list[SimpleNamespace] | None:
        return None if self.client is None else [SimpleNamespace(client_key=self.client)]

    @property
    def prefix(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.prefix_name)

    @property
    def group(self) -> SimpleNamespace:
        return SimpleNamespace(span_id=self.span)

    @property
    def processing_on(self) -> Worker:
        return self.worker

    def told(self) -> dict[str, Any]:
        """What distributed tells plugins with the end of this attempt."""
        begin = {"action": "transfer", "start": self.start - 1, "stop": self.start}
        compute = {"action": "compute", "start": self.start, "stop": self.stop}
        seen = {"worker": self.worker.address, "startstops": [begin, compute], "thread": self.thread}
        if self.outcome == OK:
            return seen | {
                "metadata": dict(self.metadata),
                "nbytes": self.nbytes,
                "typename": self.typename,
                "type": b"",
            }
        return seen | {"exception_text": self.error, "cause": self.key} if self.outcome == ERROR else {}


class Scheduler:
    """What the plugin reads of a `Scheduler`."""

    def __init__(self, workers: int) -> None:
        addresses = [f"tcp://10.0.{number // 256}.{number % 256}:{40_000 + number}" for number in range(workers)]
        self.workers = {address: Worker(address, f"worker-{address}") for address in addresses}
        self.tasks: dict[str, Task] = {}
        self.transition_counter = 39

    def beat(self, time: float, number: int = 0) -> None:
        """Have every worker report."""
        for offset, worker in enumerate(self.workers.values()):
            worker.beat(time, number + offset)

    def run(self, plugin: ClusterPlugin, task: Task) -> None:
        """Bring a task to its end, and tell the plugin of the five transitions that distributed makes for it."""
        state, reason = ENDS[task.outcome]
        self.tasks[task.key] = task
        plugin.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
        plugin.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
        plugin.transition(task.key, "processing", state, stimulus_id=reason, **task.told())
        if state != "released":
            plugin.transition(task.key, state, "released", stimulus_id="client-releases-keys-2")
        plugin.transition(task.key, "released", "forgotten", stimulus_id="client-releases-keys-2")
        del self.tasks[task.key]


def started_plugin(scheduler: Scheduler, cap: int = LOG_CAP) -> ClusterPlugin:
    """A plugin on this scheduler that samples when it is told to, and whose log may hold so many bytes."""
    plugin = ClusterPlugin(NAME, CLIENT, TOKEN, TasksOfRun(NAME, CLIENT, SPAN))

    async def start() -> None:
        await plugin.start(scheduler)
        plugin.log.cap = cap
        await plugin.close()

    asyncio.run(start())
    return plugin
