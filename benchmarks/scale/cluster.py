"""The model cluster: storage and network that streams share, and what a chunk takes on them.

It runs on any event loop of asyncio: on one that waits for real, or on one whose clock jumps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from .plan import FILE_CHUNKS, Plan, Work

START = 1_700_000_000.0
THREAD = 1


def place_of(plan: Plan, work: Work) -> dict[str, Any]:
    """File and entries of a chunk."""
    file, number = divmod(work.number, FILE_CHUNKS)
    start = number * 10 * plan.events
    return {
        "dataset": "data",
        "file": f"root://xrootd.example.org//store/{file}.root",
        "tree": "Events",
        "uuid": f"{file:032x}",
        "entry_start": start,
        "entry_stop": start + work.events,
    }


class Shared:
    """A resource that its streams share: `rate(n)` for n of them together, in amounts per second.

    Ends are exact, also where the event loop is late.
    """

    def __init__(self, rate: Callable[[int], float]) -> None:
        self._rate = rate
        self._served, self._since = 0.0, 0.0  # what each stream would have got so far, and when that was
        self._waiting: list[tuple[float, int, asyncio.Future[float]]] = []
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, amount: float, since: float) -> float:
        """Wait until a stream that began then has got this amount; return when that was."""
        if amount <= 0:
            return since
        now = asyncio.get_running_loop().time()
        self._finish()
        self._since = now
        streams = len(self._waiting) + 1
        each = self._rate(streams) / streams
        left = amount - (now - since) * each
        if left <= 0:
            return since + amount / each
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._served + left, next(self._number), done))
        self._plan_next()
        return await done

    def _finish(self) -> None:
        """End the streams that have got all by now."""
        now = asyncio.get_running_loop().time()
        while self._waiting:
            streams = len(self._waiting)
            each = self._rate(streams) / streams
            target, _, done = self._waiting[0]
            end = self._since + max(target - self._served, 0.0) / each
            if end > now + 1e-9:
                self._served += (now - self._since) * each
                self._since = now
                break
            heapq.heappop(self._waiting)
            self._served, self._since = max(target, self._served), end
            if not done.done():
                done.set_result(end)
        self._plan_next()

    def _plan_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            streams, loop = len(self._waiting), asyncio.get_running_loop()
            left = max(self._waiting[0][0] - self._served, 0.0) * streams / self._rate(streams)
            self._timer = loop.call_at(self._since + left, self._finish)


class Cluster:
    """Storage and network of a plan, for one run."""

    def __init__(self, plan: Plan, workers: int, *, cold: bool) -> None:
        self.plan = plan
        self.workers = workers
        self._cold = cold
        self._storage = [
            Shared(partial(self._storage_rate, plan.slow_servers.get(one, 1.0))) for one in range(plan.servers)
        ]
        self._network = Shared(lambda _: plan.network_rate)
        self._connections = asyncio.Semaphore(plan.connections) if plan.connections else None

    def _storage_rate(self, slowness: float, streams: int) -> float:
        """Rate of a data server for so many streams of its own."""
        plan = self.plan
        if self._cold and plan.cold_rate is not None:
            return min(plan.cold_rate / plan.servers, streams * plan.stream_rate) / slowness
        total = min(plan.storage_rate / plan.servers, streams * plan.stream_rate) / slowness
        if plan.overload is None or streams <= plan.overload:
            return total
        return total * (plan.overload / streams) ** plan.overload_power

    async def requested(self, amount: float, requests: int, since: float, server: int = 0) -> float:
        """Wait for requests that begin then, one after the other, and for their bytes; return when all was there."""
        if self._connections is None:
            return await self._answered(amount, requests, since, server)
        waited = self._connections.locked()
        async with self._connections:
            begun = asyncio.get_running_loop().time() if waited else since
            return await self._answered(amount, requests, begun, server)

    async def _answered(self, amount: float, requests: int, since: float, server: int) -> float:
        sent = since + requests * self.plan.latency
        await until(sent)
        return await self._storage[server].serve(amount, sent)

    async def transferred(self, amount: float) -> None:
        """Wait for results that come over the network."""
        await self._network.serve(amount, asyncio.get_running_loop().time())

    async def chunk(self, work: Work, worker: int) -> dict[str, Any]:
        """Wait as long as a chunk takes on a worker; return its record, without who ran it."""
        plan, begun = self.plan, asyncio.get_running_loop().time()
        slow = plan.slowness(worker)
        server = plan.server(work.number)
        opened = await self.requested(plan.metadata, plan.metadata_requests, begun, server)
        read = await self.requested(work.size, plan.requests, opened, server)
        build, cpu = slow * plan.build, slow * work.cpu
        await until(read + build + cpu)
        return _record(plan, work, {"open": opened - begun, "read": read - opened, "build": build}, build + cpu)


async def until(moment: float) -> None:
    """Wait until a moment of the event loop's clock."""
    await asyncio.sleep(max(moment - asyncio.get_running_loop().time(), 0.0))


def _record(plan: Plan, work: Work, seconds: dict[str, float], cpu: float) -> dict[str, Any]:
    """Record of an attempt, as the probe makes it."""
    compute = cpu - seconds["build"]
    wall = seconds["open"] + seconds["read"] + cpu
    size = round(work.size)
    requests = {
        "endpoint": plan.endpoint(plan.server(work.number)),
        "requests": plan.requests + plan.metadata_requests,
        "request_seconds": seconds["open"] + seconds["read"],
        "metadata_requests": plan.metadata_requests,
        "metadata_request_seconds": seconds["open"],
    }
    return {
        "id": work.number,
        **place_of(plan, work),
        "events": work.events,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "helper_cpu_seconds": 0.0,
        "process_cpu_seconds": cpu,
        "core_wait_seconds": 0.0,
        "overlaps": 0,
        "thread": THREAD,
        "outcome": "ok",
        "open_seconds": seconds["open"],
        "build_seconds": seconds["build"],
        "process_seconds": seconds["read"] + compute,
        "read_seconds": seconds["read"],
        "decompress_seconds": 0.2 * compute,
        "interpret_seconds": 0.1 * compute,
        "compute_seconds": 0.7 * compute,
        "contention_seconds": 0.0,
        "lock_seconds": 0.0,
        "blocked_seconds": 0.0,
        "checkpoint_seconds": 0.0,
        "result_seconds": 0.0,
        "measuring_seconds": 0.0,
        "bytes_requested": size + round(plan.metadata),
        "bytes_payload": size,
        "bytes_metadata": round(plan.metadata),
        "bytes_uncompressed": 4 * size,
        "branches": 30,
        "tree_branches": 1000,
        "file_bytes": 400 * size,
        "source": "XRootDSource",
        **(requests if plan.xrootd else {}),
    }
