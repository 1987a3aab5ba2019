"""Workers on the scheduler: arrivals, departures, pauses, reports and counts.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from roastcoffea.backends.limits import usage
from roastcoffea.log.kinds import (
    ARRIVAL,
    CLOSING,
    COUNTED,
    DEPARTURE,
    JOB,
    KILLED,
    LEFT,
    NO_SIZE,
    PAUSE,
    PROCESS_CPU,
    SAMPLE,
    SAMPLING,
    USAGE,
    WORKER_STATE_FIELDS,
    LogWriter,
    Problems,
    packing,
)

LOST_AFTER = 30.0
"""Seconds after its departure in which a retired worker may still send its last message."""

MOST_EXECUTING = 65_535

PAUSED = "paused"
"""Status of a worker with too little memory to start tasks, or to fetch their inputs."""

CLOSES = ("closing", "closing_gracefully")
"""Statuses of a worker that begins to close."""

ENDED_BY_NANNY = "worker-restart-memory"
"""Topic under which Dask's nannies report that they kill a worker for its memory."""


class Workers:
    """Writes arrivals, departures, pauses and last messages of workers.

    Parameters
    ----------
    lost : callable
        Called with the address of a worker that left without a last message.

    Attributes
    ----------
    here : dict
        Dask's state of the present workers, by address.
    counted : dict
        Reported counts of each of them so far.
    """

    def __init__(
        self, name: str, scheduler: Any, log: LogWriter, problems: Problems, lost: Callable[[str], None]
    ) -> None:
        self.here: dict[str, Any] = {}
        self.counted: dict[str, dict[Any, float]] = {}
        self.samples = Samples(name, log, problems)
        self.states = States(scheduler, log)
        self._scheduler = scheduler
        self._log = log
        self._lost = lost
        self._departed: dict[str, float] = {}
        self._retired: set[str] = set()
        self._finished: set[str] = set()
        self._paused: set[str] = set()
        self._closing: set[str] = set()

    # events from the scheduler

    def arrived(self, address: str) -> Any:
        """Handle the arrival of a worker; return Dask's state of it."""
        state = self.here[address] = self._scheduler.workers[address]
        texts = map(self._log.number, (address, str(state.name), state.host))
        self._log.write_fields(ARRIVAL, *texts, time.time(), state.nthreads, state.memory_limit or 0, state.pid)
        self._note_pause(address, state.status.name)
        return state

    def departed(self, address: str) -> None:
        """Handle the departure of a worker."""
        now = time.time()
        self.samples.last(address, self.here.pop(address), now)
        self._paused.discard(address)
        self._closing.discard(address)
        self._log.write_fields(DEPARTURE, self._log.number(address), now)
        counts = self.counted.pop(address, None)
        if counts:
            self._write_counted(address, counts)
        if address in self._finished:
            self._settle(address)
        else:
            self._departed[address] = now

    def removed(self, message: Any) -> None:
        """Handle Dask's event that a worker was retired rather than lost."""
        if isinstance(message, dict) and message.get("action") == "remove-worker" and message.get("expected"):
            address = message.get("worker")
            if address in self.here or address in self._departed:
                self._retired.add(address)

    def changed(self, address: str, message: Any) -> None:
        """Handle Dask's event that a worker has another status."""
        if isinstance(message, dict) and message.get("action") == "worker-status-change":
            status = message.get("status")
            self._note_pause(address, status)
            if status in CLOSES:
                self._note_closing(address)

    def killed(self, message: Any) -> None:
        """Handle a nanny's report that it kills a worker for its memory, which may arrive after the departure."""
        if isinstance(message, dict):
            worker, memory = message.get("worker"), message.get("rss")
            if isinstance(worker, str) and isinstance(memory, int):
                self._log.write_fields(KILLED, self._log.number(worker), time.time(), memory)

    def reported(self, message: Mapping[str, Any]) -> None:
        """Take our worker plugin's report on its process."""
        address = message.get("worker", "")
        if "cpu_seconds" in message:
            loads = json.dumps(message.get("loads", [])).encode()
            self._log.write_fields(PROCESS_CPU, self._log.number(address), message["cpu_seconds"], then=loads)
        if "digests" in message:
            counts = {tuple(key): value for key, value in message["digests"]}
            if address in self.here:
                self.counted[address] = counts
            else:
                self._write_counted(address, counts)
        if "job" in message:
            known = json.dumps(message["job"]).encode()
            self._log.write_fields(JOB, self._log.number(address), time.time(), then=known)
        if "last" in message and address in self.here:
            self._note_closing(address)
            self._finished.add(address)
        elif "last" in message:
            self._settle(address)

    # workers that have left

    async def last_messages(self, timeout: float) -> None:
        """Wait for retired workers: the scheduler removes them before they send their counts."""
        deadline = time.monotonic() + timeout
        while self._departed.keys() & self._retired and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for address in sorted(self._departed):
            self._lost(address)

    def forget_overdue(self) -> None:
        """Forget workers whose last message is overdue."""
        latest = time.time() - LOST_AFTER
        for address in [address for address, left in self._departed.items() if left < latest]:
            self._settle(address)
            self._lost(address)

    # implementation

    def _settle(self, address: str) -> None:
        """Forget a worker that left and will send nothing more."""
        self._departed.pop(address, None)
        self._finished.discard(address)
        self._retired.discard(address)

    def _note_pause(self, address: str, status: str | None) -> None:
        paused = status == PAUSED
        if paused != (address in self._paused):
            (self._paused.add if paused else self._paused.discard)(address)
            self._log.write_fields(PAUSE, self._log.number(address), time.time(), paused)

    def _note_closing(self, address: str) -> None:
        if address in self.here and address not in self._closing:
            self._closing.add(address)
            self._log.write_fields(CLOSING, self._log.number(address), time.time())

    def _write_counted(self, address: str, counts: Mapping[Any, float]) -> None:
        """Write Dask's counts of a worker that left; a later entry of the same worker replaces it."""
        amounts = zlib.compress(json.dumps(list(counts.items()), default=str).encode(), 1)
        self._log.write_fields(COUNTED, self._log.number(address), then=amounts)


class Samples:
    """Writes the reports in workers' heartbeats."""

    def __init__(self, name: str, log: LogWriter, problems: Problems) -> None:
        self._name = name
        self._log = log
        self._problems = problems
        self._pack = struct.Struct(SAMPLE.packing).pack
        self._sampled: dict[str, float] = {}

    def take(self, workers: Mapping[str, Any]) -> None:
        """Write a sample of each worker that has reported since its last one."""
        now = time.time()
        for address, state in workers.items():
            try:
                self._take(address, state, now)
            except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
                self._problems.failed(problem)

    def last(self, address: str, state: Any, now: float) -> None:
        """Write the last sample of a worker that leaves."""
        self._take(address, state, now)
        self._sampled.pop(address, None)

    def _take(self, address: str, state: Any, now: float) -> None:
        get, nan = state.metrics.get, math.nan
        measured = get("time")
        if measured is None or measured == self._sampled.get(address):
            return
        self._sampled[address] = measured
        network, disk = get("host_net_io") or {}, get("host_disk_io") or {}
        spilled = get("spilled_bytes") or {}
        # unpacking tuples in the call would take a fifth longer
        fixed = self._pack(
            self._log.number(address),
            measured,
            state.last_seen,
            now - state.last_seen,
            get("cpu", nan),
            get("memory", NO_SIZE),
            len(state.processing),
            min(len(state.executing), MOST_EXECUTING),
            state.nbytes,
            state.occupancy,
            spilled.get("memory", NO_SIZE),
            get(self._name, nan),
            get("event_loop_interval", nan),
            get("num_fds", NO_SIZE),
            network.get("read_bps", nan),
            network.get("write_bps", nan),
            disk.get("read_bps", nan),
            disk.get("write_bps", nan),
        )
        self._log.write(SAMPLE, fixed)


class States:
    """Writes the scheduler's state of the workers at requested moments.

    Only changes since the previous moment are written, because most workers do not change.
    """

    def __init__(self, scheduler: Any, log: LogWriter) -> None:
        self._scheduler = scheduler
        self._log = log
        self._pack = struct.Struct(packing(WORKER_STATE_FIELDS)).pack
        self._written: dict[str, bytes] = {}
        self._whole = True

    def take(self, workers: Mapping[str, Any], late: float, missed: int) -> None:
        """Write a sample that is late by these seconds, after this many missed ones."""
        log, pack, written, now = self._log, self._pack, self._written, time.time()
        if not log.has_room(SAMPLING):
            written.clear()
            self._whole = True
            return
        rows = []
        for address, state in workers.items():
            row = pack(log.number(address), len(state.processing), state.nbytes, state.occupancy)
            if row != written.get(address):
                written[address] = row
                rows.append(row)
        if len(written) > len(workers):
            for address in [address for address in written if address not in workers]:
                del written[address]
                rows.append(pack(log.number(address), LEFT, 0, 0.0))
        fixed = struct.pack(SAMPLING.packing, now, late, missed, len(workers), self._whole)
        log.append(SAMPLING, b"".join((fixed, *rows)))
        log.write_fields(USAGE, *usage(), getattr(self._scheduler, "transition_counter", NO_SIZE))
        self._whole = False
