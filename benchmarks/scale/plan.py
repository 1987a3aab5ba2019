"""What is planned: an analysis, and the cluster it runs on. Results are held against this plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FILE_CHUNKS = 10
"""Chunks of a file."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An analysis and its cluster; seconds, bytes, and bytes per second.

    Storage serves all streams by processor sharing: `storage_rate` together, each at most `stream_rate`. A stream
    waits `latency` for each request. At most `connections` streams are served at a time. From `overload` streams on,
    the more there are the less all of them get together (by their number to the power of `overload_power`). In a cold
    run (`cold_rate`) all streams together get that rate.
    """

    chunks: int = 800
    events: int = 100_000
    cpu: float = 8.0
    size: float = 40e6
    requests: int = 20
    metadata: float = 1e6
    metadata_requests: int = 4
    build: float = 0.3
    spread: float = 0.2
    """Scatter (sigma of a log-normal law) of the chunks' sizes and of their CPU time, each."""

    noise: float = 0.0
    """By how much the CPU time of a repeat differs (sigma of a log-normal law), for all chunks alike and for each."""

    result: float = 1e6
    """Bytes of a result; merged results have as many, as histograms do."""

    tree: int = 20
    merge_rate: float = 2e9
    network_rate: float = 50e9
    storage_rate: float = 100e9
    stream_rate: float = 20e6
    latency: float = 0.005
    connections: int | None = None
    overload: float | None = None
    overload_power: float = 1.0
    cold_rate: float | None = None

    scheduler: float = 0.0005
    """Seconds of the scheduler per task."""
    scheduler_load: float = 0.0
    """By how much that grows with each worker."""

    prepare: float = 0.0002
    """Seconds of the client per chunk before it submits."""
    gather_rate: float = 1e9
    per_host: int = 16
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    """By how much hosts are slower, by their number."""
    late_after: int | None = None
    """Workers that are there at the start; those after them come `late_seconds` later."""
    late_seconds: float = 0.0
    stragglers: float = 0.0
    """Share of chunks that take `straggling` times the CPU."""
    straggling: float = 10.0
    deaths: Mapping[int, float] = field(default_factory=dict)
    """When workers die, by their number."""
    slow_servers: Mapping[int, float] = field(default_factory=dict)
    """By how much data servers are slower, by their number."""
    servers: int = 1
    """Data servers behind the redirector, which share the storage's rate; files alternate between them."""
    xrootd: bool = True
    """Whether requests are recorded, as they are through XRootD."""

    def chunk_seconds(self) -> float:
        """Time of a chunk while nothing is saturated."""
        requests, size = self.requests + self.metadata_requests, self.size + self.metadata
        return self.cpu + self.build + requests * self.latency + size / self.stream_rate

    def host(self, worker: int) -> int:
        """Number of a worker's host."""
        return worker // self.per_host

    def slowness(self, worker: int) -> float:
        """By how much a worker is slower."""
        return self.slow_hosts.get(self.host(worker), 1.0)

    def server(self, chunk: int) -> int:
        """Number of the data server that has a chunk's file."""
        return chunk // FILE_CHUNKS % self.servers

    def endpoint(self, server: int) -> str:
        """Address of a data server."""
        return "xrootd.example.org" if self.servers == 1 else f"xrootd-{server + 1}.example.org"

    def arrival(self, worker: int) -> float:
        """Seconds after which a worker comes."""
        return self.late_seconds if self.late_after is not None and worker >= self.late_after else 0.0


class Work(NamedTuple):
    """A chunk as planned."""

    number: int
    events: int
    size: float
    cpu: float


def work_of(plan: Plan, seed: int, again: int | None = None) -> list[Work]:
    """All chunks of an analysis; `again` seeds the CPU times of a repeat, whose files are the same."""
    random = np.random.default_rng(seed)
    sizes, costs = (np.exp(plan.spread * random.standard_normal(plan.chunks) - plan.spread**2 / 2) for _ in range(2))
    straggles = random.random(plan.chunks) < plan.stragglers
    if again is not None:
        noise = np.random.default_rng((seed, again))
        whole = np.exp(plan.noise * noise.standard_normal())
        costs = costs * whole * np.exp(plan.noise * noise.standard_normal(plan.chunks))
    return [
        Work(
            number,
            max(round(plan.events * sizes[number]), 1),
            plan.size * sizes[number],
            plan.cpu * sizes[number] * costs[number] * (plan.straggling if straggles[number] else 1.0),
        )
        for number in range(plan.chunks)
    ]
