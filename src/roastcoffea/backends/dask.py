"""The client's half of a collector on a Dask cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

import pyarrow as pa
from distributed import Client
from distributed.protocol.pickle import dumps

import roastcoffea
from roastcoffea.backends.base import AbstractMetricsBackend
from roastcoffea.backends.byvalue import ByValue, packed_by_value
from roastcoffea.backends.hosts import hosts_of, with_more, with_throttling
from roastcoffea.backends.scheduler import CollectorPlugin, call_plugin, metrics_of_span, register, survey
from roastcoffea.backends.spans import RunSpan
from roastcoffea.backends.worker import WorkerHalf, flush
from roastcoffea.compat.tracking import tracking_data
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.reader import ClusterLog
from roastcoffea.log.received import ReceivedRecords

DRAIN_INTERVAL: Final = 1.0
DRAIN_BYTES: Final = 1_000_000
"""Bytes taken at a time: so much costs the scheduler about a millisecond."""

WORKERS_TIMEOUT: Final = 2.0
"""Seconds that workers have to answer when a collector begins or ends; a task that holds the GIL keeps one silent."""

SCHEDULER_TIMEOUT: Final = 10.0
"""Seconds that the scheduler has to answer."""

GONE: Final = (AttributeError, OSError, RuntimeError)
"""What calling the scheduler raises where the client was closed, or its loop."""

LEAVE_WAIT: Final = 0.25
"""Seconds to wait for the workers to drop our plugin; it goes on without us."""

THREAD_TIMEOUT: Final = 2.0
"""Seconds to wait for the thread that drains, which may itself wait for a scheduler that does not answer."""


class NoAnswerError(RoastcoffeaError, ConnectionError):
    """The plugin on the scheduler cannot be asked; the text says why."""


class SchedulerSideError(RoastcoffeaError):
    """Code of ours failed on the scheduler; the text is that of its error."""


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
        self.client = client
        self._carried = carried
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self.token = secrets.token_hex(16)
        self.log: ClusterLog = self._new_log()
        self._round_trip = math.inf
        self._received = 0
        self._heard = time.time()
        self._failures = 0
        self._packages: set[str | None] = set()
        self._workers_known = False
        self._throttled: dict[str, tuple[float, int] | None] = {}
        """What each worker that was there at the end says of its throttling."""
        self._scheduler_package: str | None = None
        self._registering: Future[Any] | None = None
        self._draining = threading.RLock()
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
        self._begin()
        answer = self._on_scheduler(survey, flush=_pickled(flush), timeout=WORKERS_TIMEOUT)
        self._scheduler_package = answer["package"]
        self._learn_environment(answer)
        self._register(self._scheduler_half(interval, span), self._worker_plugin(answer))
        self._began = time.time()
        self.drain()
        with interrupts_held():
            self._thread = threading.Thread(
                target=self._keep_draining, args=(self._ended,), name=self.name, daemon=True
            )
            self._thread.start()

    def drain(self) -> None:
        """Take home what the scheduler's plugin has seen so far."""
        with self._draining:
            while self._open and self._drain_some():
                pass

    def close(self) -> None:
        """Take the plugins away and keep what they saw; what could not be had is noted.

        It does not take longer than `SCHEDULER_TIMEOUT` and a few seconds, but for records that still come home.
        """
        self._ended.set()
        if self._open:
            self._finish()
        elif self._registering is not None:
            self._leave_in_background()
        self._open = False
        if self._thread is not None:
            self._thread.join(THREAD_TIMEOUT)

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

    def _new_log(self) -> ClusterLog:
        return ClusterLog()

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
        return self._answer(function, arguments, SCHEDULER_TIMEOUT)

    def _answer(self, function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float) -> Any:
        """What a function of ours gives on the scheduler.

        Raises
        ------
        NoAnswerError
            There is no connection, or no answer in time.
        SchedulerSideError
            The function failed.
        """
        call = self._call(function, arguments)
        try:
            return self._result(call, timeout)
        finally:
            call.cancel()

    def _call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Future[Any]:
        """Begin to call a function of ours on the scheduler."""
        if self.client.status != "running":
            raise _lost(f"the client is {self.client.status}")
        # client.sync would cancel what is interrupted, also where the scheduler has got it already
        asked = self.client._run_on_scheduler(_portable(outcome), called=_portable(function), arguments=arguments)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self.client.loop.asyncio_loop)
        except RuntimeError as problem:  # the loop was closed with the client
            asked.close()
            raise _lost(error_text(problem)) from problem

    def _result(self, call: Future[Any], timeout: float) -> Any:
        try:
            answer = call.result(timeout)
        except (OSError, CancelledError) as problem:
            raise _lost(error_text(problem) if call.done() else f"no answer within {timeout:g} s") from problem
        except (AttributeError, RuntimeError) as problem:
            # a client that was closed meanwhile has no scheduler to call any more, or its loop takes nothing
            if self.client.status == "running":
                raise
            raise _lost(f"the client is {self.client.status}") from problem
        if "error" in answer:
            raise SchedulerSideError(answer["error"])
        return answer["result"]

    def _ask(self, method: str, patience: float = SCHEDULER_TIMEOUT, /, **arguments: Any) -> dict[str, Any]:
        """What a method of the plugin on the scheduler gives."""
        answer = self._answer(call_plugin, {"name": self.name, "method": method, "arguments": arguments}, patience)
        if answer is None:
            text = "the scheduler no longer has the collector's plugin"
            raise NoAnswerError(text)
        return dict(answer)

    def _register(self, plugin: CollectorPlugin, worker_plugin: bytes) -> None:
        """Put the plugins in place; where that fails or is interrupted, they go as soon as they are there."""
        arguments = {
            "plugin": plugin if self._scheduler_package == roastcoffea.__version__ else ByValue(plugin),
            "worker_plugin": worker_plugin,
            "timeout": WORKERS_TIMEOUT,
        }
        try:
            with interrupts_held():
                self._registering = self._call(register, arguments)
            self._result(self._registering, SCHEDULER_TIMEOUT)
            with interrupts_held():
                self._registering, self._open, self.was_open = None, True, True
        except BaseException:
            self._leave_in_background()
            raise

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
        if not self._open:  # nobody waits for it any more
            return False
        if answered - asked < self._round_trip:
            self._round_trip = answered - asked
            self.clock_offset = answer["time"] - (asked + answered) / 2
        return self._take(answer)

    def _take(self, answer: Mapping[str, Any]) -> bool:
        """Take entries of the log; give whether there are more."""
        with interrupts_held():
            return self._take_whole(answer)

    def _take_whole(self, answer: Mapping[str, Any]) -> bool:
        if answer["at"] != self._received:
            text = f"the scheduler gave its log from byte {answer['at']} on, where {self._received} were received"
            raise RoastcoffeaError(text)
        self._received += len(answer["data"])
        self.log.feed(answer["data"])
        self._heard = time.time()
        self.dropped = dict(answer["dropped"])
        self._failures = answer["failures"]
        self.refused = answer["refused"]
        return bool(answer["more"])

    def _keep_draining(self, ended: threading.Event) -> None:
        while not ended.wait(DRAIN_INTERVAL):
            # what is not had now is had a second later; what is lost at the end is noted then
            with reported(self._note, "records of the cluster could not be read", Exception), suppress(NoAnswerError):
                self.drain()

    def _finish(self) -> None:
        try:
            self._fetch_last()
        except NoAnswerError as problem:
            self._lose(str(problem))
        else:
            self._leave()

    def _fetch_last(self) -> None:
        """Get what the plugins still have; what fails for a reason of ours is noted, and takes nothing else with it."""
        end = time.monotonic() + SCHEDULER_TIMEOUT
        answer = None
        if not self._draining.acquire(timeout=SCHEDULER_TIMEOUT):
            raise _lost(f"no answer within {SCHEDULER_TIMEOUT:g} s")
        try:
            with _faults_reported(
                self._no_fine_metrics, "roastcoffea failed as the workers were asked for the last time"
            ):
                answer = self._ask(
                    "finish",
                    max(end - time.monotonic(), SCHEDULER_TIMEOUT / 2),
                    flush=_pickled(flush),
                    timeout=WORKERS_TIMEOUT,
                    limit=DRAIN_BYTES,
                    received=self._received,
                )
                self._learn_fine_metrics(answer)
            with _faults_reported(self._note, "roastcoffea failed as the last records were fetched"):
                more = answer is None or self._take(answer)
                while more:
                    more = self._drain_some()
                self._learn_counts(answer)
        finally:
            self._draining.release()

    def _learn_counts(self, answer: Mapping[str, Any] | None) -> None:
        """Learn what Dask counted on each worker, when the log has come whole: it has the workers that left."""
        if answer is not None and self.span_metrics is not None:
            self.span_metrics_per_worker = self.log.counted_per_worker(answer["counted"], answer["spans"])

    def _no_fine_metrics(self, reason: str) -> None:
        self._note(reason)
        if self.span_metrics is None:
            self.absent["span_metrics"] = reason

    def _leave(self) -> None:
        arguments = {"name": self.name, "method": "stop", "arguments": {"wait": LEAVE_WAIT}}
        with _faults_reported(self._note, "roastcoffea failed as its plugins were removed"):
            try:
                self._answer(call_plugin, arguments, SCHEDULER_TIMEOUT / 2)
            except NoAnswerError as problem:
                self._note(f"{problem}: the plugins are removed as soon as the scheduler answers")
                self._leave_in_background()

    def _leave_in_background(self) -> None:
        """Have the plugins taken away when the scheduler answers again."""
        self.client.loop.add_callback(self._leave_late, self.name, self._registering)

    async def _leave_late(self, name: str, registering: Future[Any] | None) -> None:
        if registering is not None:
            await asyncio.wait([asyncio.wrap_future(registering)])
        arguments = {"name": name, "method": "stop", "arguments": {}}
        log = logging.getLogger(__name__).info
        with reported(log, "the collector's plugin could not be removed", GONE):
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
        if answer["silent"]:
            self.problems.append(
                f"{len(answer['silent'])} worker(s) did not answer within {WORKERS_TIMEOUT:g} s at the end "
                f"({', '.join(answer['silent'][:5])}): the fine metrics and the CPU time of the workers "
                "may lack what they did since their last heartbeat"
            )
        elif not answer["complete"]:
            self.problems.append("the fine metrics lack a part of what the workers counted")

    def _lose(self, reason: str) -> None:
        self.absent["lifetimes"] = reason
        if self.span_metrics is None:
            self.absent["span_metrics"] = reason
        self._note(f"{reason}: what happened after the last drain is not known")
        self._leave_in_background()

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


def _lost(reason: str) -> NoAnswerError:
    return NoAnswerError(f"the connection to the cluster was lost ({reason})")


@contextmanager
def _faults_reported(note: Callable[[str], None], what: str) -> Iterator[None]:
    """Go on where the block fails, and note what could not be done; a scheduler that does not answer ends more."""
    try:
        yield
    except NoAnswerError:
        raise
    except Exception as problem:  # noqa: BLE001  (an error of ours must not hide one of the analysis)
        note(f"{what}: {error_text(problem)}")


async def outcome(
    called: Callable[..., Any], arguments: Mapping[str, Any], dask_scheduler: Any = None
) -> dict[str, Any]:
    """What a function gives on the scheduler, or the text of its error, which is no error of the connection then."""
    try:
        result = called(**arguments, dask_scheduler=dask_scheduler)
        return {"result": await result if asyncio.iscoroutine(result) else result}
    except Exception as problem:  # noqa: BLE001  (it is raised again on the client)
        return {"error": error_text(problem)}


@cache
def _portable(function: Callable[..., Any]) -> ByValue:
    """A function of ours for any process; it is pickled once."""
    return ByValue(function)


def _pickled(thing: Any) -> bytes:
    return bytes(dumps(_portable(thing) if callable(thing) else ByValue(thing)))
