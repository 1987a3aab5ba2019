"""The client's half of a collector on a Dask cluster."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import pyarrow as pa
from distributed import Client
from distributed.protocol.pickle import dumps

import roastcoffea
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.byvalue import ByValue, packed_by_value
from roastcoffea.backends.hosts import hosts_of, with_more, with_throttling
from roastcoffea.backends.log import ClusterLog
from roastcoffea.backends.received import ReceivedRecords
from roastcoffea.backends.scheduler import CollectorPlugin, call_plugin, metrics_of_span, register, survey
from roastcoffea.backends.spans import RunSpan
from roastcoffea.backends.worker import WorkerHalf, flush
from roastcoffea.errors import noting
from roastcoffea.records.tracking import tracking_data

DRAIN_INTERVAL: Final = 1.0
DRAIN_BYTES: Final = 1_000_000
"""Bytes taken at a time: so much costs the scheduler about a millisecond."""

WORKERS_TIMEOUT: Final = 2.0
"""Seconds that workers have to answer when a collector begins or ends; a task that holds the GIL keeps one silent."""

SCHEDULER_TIMEOUT: Final = 10.0
"""Seconds that the scheduler has to answer."""

LEAVE_WAIT: Final = 0.25
"""Seconds to wait for the workers to drop our plugin; it goes on without us."""

LOST: Final = (OSError, RuntimeError)
"""What a call of a scheduler that is gone may raise; a timeout is an OSError."""


class DaskMetricsBackend(AbstractMetricsBackend):
    """Sees the cluster that a client is connected to.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    carried : optional
        What tasks need of ours, for workers that cannot import it.

    Raises
    ------
    TypeError
        The client is asynchronous, or no client.
    ValueError
        The client is not connected.
    """

    kind = "dask"

    def __init__(self, client: Any, carried: Any = None) -> None:
        if not isinstance(client, Client):
            text = f"roastcoffea needs a distributed.Client, not {type(client).__name__}"
            raise TypeError(text)
        if client.asynchronous:
            text = "roastcoffea needs a synchronous distributed.Client; this one is asynchronous"
            raise TypeError(text)
        if client.status != "running":
            text = f"roastcoffea needs a connected distributed.Client; this one is {client.status}"
            raise ValueError(text)
        super().__init__()
        self.client = client
        self._carried = carried
        self.token = secrets.token_hex(16)
        self.log = ClusterLog()
        self._round_trip = math.inf
        self._received = 0
        self._heard = time.time()
        self._failures = 0
        self._packages: set[str | None] = set()
        self._workers_known = False
        self._throttled: dict[str, tuple[float, int] | None] = {}
        """What each worker that was there at the end says of its throttling."""
        self._scheduler_package: str | None = None
        self._open = False
        self._draining = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # the life of a collector

    def open(self, interval: float | None, span: str | None = None) -> None:
        """Put the plugins on scheduler and workers, and begin to drain what they see.

        Parameters
        ----------
        interval
            Seconds between samples of the workers; None for no samples.
        span
            Identity of the Dask span of the run.
        """
        answer = self._on_scheduler(survey, flush=_pickled(flush), timeout=WORKERS_TIMEOUT)
        self._scheduler_package = answer["package"]
        self._learn_environment(answer)
        plugin = self._scheduler_half(interval, span)
        try:
            self._on_scheduler(
                register,
                plugin=plugin if self._scheduler_package == roastcoffea.__version__ else ByValue(plugin),
                worker_plugin=self._worker_plugin(answer),
                timeout=WORKERS_TIMEOUT,
            )
        except BaseException:
            with suppress(*LOST):
                self._leave()
            raise
        self._open = self.was_open = True
        self._began = time.time()
        self.drain()
        self._thread = threading.Thread(target=self._keep_draining, name=self.name, daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Take home what the scheduler's plugin has seen so far."""
        with self._draining:
            while self._open and self._drain_some():
                pass

    def close(self) -> None:
        """Take the plugins away and keep what they saw; what could not be had is noted."""
        self._ended.set()
        if self._open:
            try:
                self._finish()
            except Exception as problem:  # noqa: BLE001  (an error of ours must not hide one of the analysis)
                self._lose(problem)
            self._open = False
        if self._thread is not None:
            self._thread.join(SCHEDULER_TIMEOUT)

    def reaches(self, executor: Any) -> bool:
        """Whether this is a Dask executor whose tasks run on this cluster."""
        scheduler = getattr(getattr(executor, "client", None), "scheduler", None)
        address = getattr(scheduler, "address", None)
        return address is not None and bool(address == self.client.scheduler.address)

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of what tasks need of ours; None where scheduler and workers have the package."""
        if not self._workers_known:
            self._learn_environment(self._ask("ask", flush=_pickled(flush), timeout=WORKERS_TIMEOUT))
        if not self._lacking():
            return None
        self._note_missing_package()
        return packed_by_value(thing)

    def workers_now(self) -> int:
        """Workers that are there now."""
        return self.log.workers

    # what was seen, as tables on the client's clock

    @property
    def received(self) -> ReceivedRecords:
        """Records of attempts that came home."""
        return self.log.received

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers that were there between start and stop, or until the cluster was last heard of."""
        table = self.log.lifetimes(self.clock_offset, start, self._last_heard(start, stop))
        return with_throttling(table, self._throttled)

    def pauses(self, start: float, stop: float) -> pa.Table:
        """When Dask had paused workers between start and stop, or until the cluster was last heard of."""
        return self.log.pauses(self.clock_offset, start, self._last_heard(start, stop))

    def _last_heard(self, start: float, stop: float) -> float:
        return min(stop, max(start, self._heard)) if "lifetimes" in self.absent else stop

    def samples(self) -> pa.Table:
        """Samples of the workers."""
        return self.log.samples(self.clock_offset)

    def tasks(self) -> pa.Table:
        """Finished attempts of tasks."""
        return self.log.tasks(self.clock_offset)

    # the older names

    def start_tracking(self, interval: float) -> None:
        self.open(interval)

    def stop_tracking(self) -> dict[str, Any]:
        self.close()
        return tracking_data(self.samples(), self.lifetimes(self._began, time.time()))

    def create_span(self, name: str) -> dict[str, Any]:
        return {"context": RunSpan(name), "name": name}

    def get_span_metrics(self, span: Mapping[str, Any]) -> dict[tuple[Any, ...], float]:
        if span.get("id") is None:
            return {}
        answer = self._on_scheduler(metrics_of_span, flush=_pickled(flush), span=span["id"], timeout=WORKERS_TIMEOUT)
        return dict(answer["span"] or ())

    def supports_fine_metrics(self) -> bool:
        return True

    # how it does that

    def _on_scheduler(self, function: Callable[..., Any], **arguments: Any) -> Any:
        if self.client.status != "running":
            text = f"the client is {self.client.status}"
            raise ConnectionError(text)
        run = self.client._run_on_scheduler  # the public one has no timeout
        return self.client.sync(run, _portable(function), callback_timeout=SCHEDULER_TIMEOUT, **arguments)

    def _ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer = self._on_scheduler(call_plugin, name=self.name, method=method, arguments=arguments)
        if answer is None:
            text = "the scheduler no longer has the collector's plugin"
            raise ConnectionError(text)
        return dict(answer)

    def _scheduler_half(self, interval: float | None, span: str | None) -> CollectorPlugin:
        return CollectorPlugin(self.name, self.client.id, interval, span, self.token)

    def _worker_half(self, carried: bytes | None) -> WorkerHalf:
        return WorkerHalf(self.name, self.token, carried)

    def _worker_plugin(self, answer: Mapping[str, Any]) -> bytes:
        """The workers' plugin: by value, as workers without the package may come later.

        In this process it goes as it is: unpickling a class by value changes the class of which it was made.
        """
        carried = packed_by_value(self._carried) if self._carried is not None and self._lacking() else None
        plugin = self._worker_half(carried)
        here = (socket.gethostname(), os.getpid())
        if any((worker["host"], worker["process"]) == here for worker in answer["workers"].values()):
            return bytes(dumps(plugin))
        return _pickled(plugin)

    def _lacking(self) -> bool:
        """Whether the scheduler or a worker may not have this version of the package."""
        return not (self._workers_known and self._packages == {roastcoffea.__version__})

    def _learn_environment(self, answer: Mapping[str, Any]) -> None:
        workers = list(answer["workers"].values())
        self.hosts = with_more(self.hosts, hosts_of(workers))
        self._throttled = {address: worker.get("throttled") for address, worker in answer["workers"].items()}
        self._workers_known = bool(workers) and not answer["silent"]
        self._packages = {self._scheduler_package, *(worker["package"] for worker in workers)}

    def _drain_some(self) -> bool:
        """Take the oldest entries; give whether there are more."""
        asked = time.time()
        answer = self._ask("drain", limit=DRAIN_BYTES, received=self._received)
        answered = time.time()
        if answered - asked < self._round_trip:
            self._round_trip = answered - asked
            self.clock_offset = answer["time"] - (asked + answered) / 2
        return self._take(answer)

    def _take(self, answer: Mapping[str, Any]) -> bool:
        if answer["at"] == self._received:
            self._received += len(answer["data"])
            self.log.feed(answer["data"])
        self._heard = time.time()
        self.dropped = dict(answer["dropped"])
        self._failures = answer["failures"]
        self.refused = answer["refused"]
        return bool(answer["more"])

    def _keep_draining(self) -> None:
        while not self._ended.wait(DRAIN_INTERVAL):
            # what is not had now is had a second later; what is lost at the end is noted then
            with noting(self._note, "records of the cluster could not be read"), suppress(*LOST):
                self.drain()

    def _finish(self) -> None:
        with self._draining:
            answer = self._ask(
                "finish",
                flush=_pickled(flush),
                timeout=WORKERS_TIMEOUT,
                limit=DRAIN_BYTES,
                received=self._received,
            )
            more = self._take(answer)
            while more:
                more = self._drain_some()
        self._learn_fine_metrics(answer)
        self._leave()

    def _leave(self) -> None:
        self._on_scheduler(call_plugin, name=self.name, method="stop", arguments={"wait": LEAVE_WAIT})

    async def _leave_late(self) -> None:
        """Take the plugins away when the scheduler answers again."""
        arguments = {"name": self.name, "method": "stop", "arguments": {}}
        with noting(logging.getLogger(__name__).info, "the collector's plugin could not be removed"):
            await self.client._run_on_scheduler(_portable(call_plugin), **arguments)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _learn_fine_metrics(self, answer: Mapping[str, Any]) -> None:
        self._learn_environment(answer)
        self.attempts = dict(answer["attempts"])
        if answer["strangers"]:
            self.absent["span_metrics"] = (
                f"Dask counted {answer['strangers']} task(s) of others together with those of this run, because tasks "
                "of the same name were alive at the same time"
            )
            self._note(f"no fine metrics: {self.absent['span_metrics']}")
        elif answer["span"] is None:
            self.absent["span_metrics"] = "no Dask task ran in the span of the run"
        else:
            self.span_metrics = dict(answer["span"])
            self.span_metrics_per_worker = self.log.counted_per_worker(answer["counted"], answer["spans"])
        if answer["silent"]:
            self.problems.append(
                f"{len(answer['silent'])} worker(s) did not answer within {WORKERS_TIMEOUT:g} s at the end "
                f"({', '.join(answer['silent'][:5])}): the fine metrics and the CPU time of the workers "
                "may lack what they did since their last heartbeat"
            )
        elif not answer["complete"]:
            self.problems.append("the fine metrics lack a part of what the workers counted")

    def _lose(self, problem: BaseException) -> None:
        reason = f"the connection to the cluster was lost ({type(problem).__name__}: {problem})"
        self.absent["lifetimes"] = reason
        if self.span_metrics is None:
            self.absent["span_metrics"] = reason
        self._note(f"{reason}: what happened after the last drain is not known")
        self.client.loop.add_callback(self._leave_late)

    def _note_missing_package(self) -> None:
        reason = (
            f"scheduler or workers do not have roastcoffea {roastcoffea.__version__}"
            if self._workers_known
            else "no worker told whether it has roastcoffea"
        )
        self._note(f"{reason}: the probe's code was sent to them")

    def notes(self) -> list[str]:
        """Problems that were met, here and on the cluster."""
        notes = [*self.problems, *self.log.problems, *self.received.problems]
        if self._failures:
            notes.append(f"the scheduler plugin failed {self._failures} time(s): records are missing")
        if self.refused:
            notes.append(f"{self.refused} message(s) that others sent to the collector's topic were refused")
        notes += [f"{rows} row(s) of {table} were dropped on the scheduler" for table, rows in self.dropped.items()]
        return notes


@cache
def _portable(function: Callable[..., Any]) -> ByValue:
    """A function of ours for any process; it is pickled once."""
    return ByValue(function)


def _pickled(thing: Any) -> bytes:
    return bytes(dumps(_portable(thing) if callable(thing) else ByValue(thing)))
