"""Client-side code that installs our plugins on a cluster, drains their log and removes them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, TypeVar

from distributed import Client
from distributed.protocol.pickle import dumps

import roastcoffea
from roastcoffea.backends.plugin_lifetime import survey
from roastcoffea.backends.recorder import LoggedPeriod
from roastcoffea.backends.scheduler import ClusterPlugin, call_plugin, register, remove_plugin
from roastcoffea.backends.worker import WorkerHalf, flush
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import interrupts_held, raise_if_interrupted, signal_waits
from roastcoffea.log.attempts import ClockBounds
from roastcoffea.log.byvalue import ByValue
from roastcoffea.log.workers import ClusterLog
from roastcoffea.units import counted, moment

SCHEDULER_TIMEOUT: Final = 10.0
"""Seconds allowed for the scheduler to accept a connection or to answer."""


class NoAnswerError(RoastcoffeaError, ConnectionError):
    """Raised when the scheduler plugin cannot be reached; the message says why."""


class PluginGoneError(NoAnswerError):
    """Raised when the scheduler answers but no longer has our plugin."""


class SchedulerSideError(RoastcoffeaError):
    """Raised with the original error's message when our code fails on the scheduler."""


class Connection:
    """Connection to a client's scheduler.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.

    Raises
    ------
    TypeError
        If the client is asynchronous, or is not a `distributed.Client`.
    ValueError
        If the client is not connected.
    """

    def __init__(self, client: Any) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"roastcoffea needs a distributed.Client, not {type(client).__name__}")
        if client.asynchronous:
            raise TypeError("roastcoffea needs a synchronous distributed.Client; this one is asynchronous")
        if client.status != "running":
            raise ValueError(f"roastcoffea needs a connected distributed.Client; this one is {client.status}")
        self.client = client

    @property
    def patience(self) -> float:
        return SCHEDULER_TIMEOUT

    def answer(self, function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float | None = None) -> Any:
        """Run one of our functions on the scheduler and return its result.

        Raises
        ------
        NoAnswerError
            If there is no connection, or if no answer arrives in time.
        SchedulerSideError
            If the function fails.
        """
        call = self.call(function, arguments)
        try:
            return self.result(call, self.patience if timeout is None else timeout)
        finally:
            call.cancel()

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Future[Any]:
        if self.client.status != "running":
            raise lost(f"the client is {self.client.status}")
        # client.sync would cancel an interrupted call, even if the scheduler has already received it
        asked = self.client._run_on_scheduler(_portable(outcome), called=_portable(function), arguments=arguments)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self.client.loop.asyncio_loop)
        except RuntimeError as problem:  # the loop was closed along with the client
            asked.close()
            raise lost(error_text(problem)) from problem

    def result(self, call: Future[Any], timeout: float) -> Any:
        """Wait for the result of a pending call; the timeout is in seconds."""
        try:
            answer = call.result(timeout)
        except (OSError, CancelledError) as problem:
            raise (lost(error_text(problem)) if call.done() else silent(timeout)) from problem
        except (AttributeError, RuntimeError) as problem:
            # once the client is closed, it has no scheduler, or its loop accepts no calls
            if self.client.status == "running":
                raise
            raise lost(f"the client is {self.client.status}") from problem
        if "error" in answer:
            raise SchedulerSideError(answer["error"])
        return answer["result"]

    def late_result(self, call: Future[Any], ended: threading.Event) -> Any:
        """Wait indefinitely for the result of a pending call, unless `ended` is set first."""
        # check every 0.5 s whether the answer is still needed
        while not wait([call], 0.5).done:
            if ended.is_set() or self.client.status == "closed":
                raise lost("the answer is no longer needed")
        return self.result(call, 0)

    async def call_late(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Run one of our functions on the scheduler, without a timeout."""
        return await self.client._run_on_scheduler(_portable(function), **arguments)


def lost(reason: str) -> NoAnswerError:
    return NoAnswerError(f"the connection to the cluster was lost ({reason})")


def silent(seconds: float) -> NoAnswerError:
    return NoAnswerError(f"the scheduler did not answer within {seconds:.3g} s")


def nothing(dask_scheduler: Any = None) -> None:
    """Do nothing; called to check whether the scheduler answers."""


async def outcome(
    called: Callable[..., Any], arguments: Mapping[str, Any], dask_scheduler: Any = None
) -> dict[str, Any]:
    """Run a function on the scheduler, and return its result or error message.

    If the exception were raised, it could be mistaken for a connection error.
    """
    try:
        result = called(**arguments, dask_scheduler=dask_scheduler)
        return {"result": await result if asyncio.iscoroutine(result) else result}
    except Exception as problem:  # noqa: BLE001  (it is raised again on the client)
        return {"error": error_text(problem)}


@cache
def _portable(function: Callable[..., Any]) -> ByValue:
    return ByValue(function)


def pickled(thing: Any) -> bytes:
    """Pickle one of our functions or objects by value, so that any process can load it."""
    return bytes(dumps(_portable(thing) if callable(thing) else ByValue(thing)))


DRAIN_INTERVAL: Final = 1.0
DRAIN_BYTES: Final = 1_000_000
"""Number of bytes to fetch at a time; each fetch takes the scheduler about a millisecond."""

WORKERS_TIMEOUT: Final = 2.0
"""Seconds allowed for workers to answer when a collector starts or ends. While a task holds the GIL, its worker cannot
answer."""


GONE: Final = (AttributeError, OSError, RuntimeError)
"""Errors raised by calls to the scheduler after the client or its loop was closed."""

SILENCE: Final = 2.0
"""Seconds to wait for an answer while closing; after that, no more records are fetched."""


GONE_PLUGIN: Final = "the scheduler no longer has the collector's plugin"
GAP: Final = "nothing was recorded for {:.3g} s, starting at {}: {}"

Answer = Mapping[str, Any]
Asked = TypeVar("Asked")
Plugins = tuple[ClusterPlugin, WorkerHalf]


class Deployment(LoggedPeriod):
    """A client's plugins on the scheduler and the workers, and their log.

    Parameters
    ----------
    connection : Connection
        Connection to the scheduler.
    name : str
        Name of the plugins.
    note : callable
        Called with each problem.
    look : callable, optional
        Called about once a second.
    keep : callable, optional
        Called with each part of the log as it arrives.
    log : ClusterLog, optional
        Log to fill; by default, a new log.

    Attributes
    ----------
    last_heard : float
        Unix time when the latest entries arrived.
    lost, unanswered : str or None
        Why the connection was lost when recording ended, and why the workers' last reports could not be requested.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        note: Callable[[str], None],
        *,
        look: Callable[[], None] | None = None,
        keep: Callable[[bytes], None] | None = None,
        log: ClusterLog | None = None,
    ) -> None:
        super().__init__(log=ClusterLog() if log is None else log)
        self.name = name
        self.token = secrets.token_hex(16)
        self.last_heard = time.time()
        self.lost: str | None = None
        self.unanswered: str | None = None
        self.requested: int | None = None
        """Number of workers requested from a Dask Gateway."""
        self.reading = threading.RLock()
        """Lock held while entries are being fetched or tables are being built."""
        self._began = self.last_heard
        self._connection = connection
        self._note = note
        self._look = look
        self._keep = keep
        # entries in a custom log may be numbered, and reinstalled plugins would restart the numbering
        self._resumes = log is None
        self._clock = ClockBounds()
        self._received = 0
        self._is_silent = False
        self._scheduler_package: str | None = None
        self._some_workers_here = False
        self._registering: Future[Any] | None = None
        self._installed: Plugins
        self._tried = threading.Event()
        """Set when an attempt to install the plugins has finished."""
        self._unreached: NoAnswerError | None = None
        self._failure: Exception | None = None
        self._is_late = self._answered_late = self._is_frozen = False
        self._taking = threading.Lock()
        self._ended = threading.Event()
        self._left = False
        self._thread: threading.Thread | None = None

    # life cycle of the plugins

    def open(self, make: Callable[[Answer], Plugins]) -> None:
        """Install the plugins, and start draining the log.

        If the scheduler does not answer in time, the installation continues in the background.

        Parameters
        ----------
        make
            Function that creates the plugins from the result of `survey`; called in another thread.
        """
        self._began = time.time()
        try:
            with interrupts_held():
                self.is_open = True
                self._thread = threading.Thread(target=self._record, args=[make], name=self.name, daemon=True)
                self._thread.start()
            self._wait_for_attempt(self._connection.patience)
        except BaseException:
            self._give_up()
            raise
        self._is_late = not self.was_open
        if self._failure is not None:
            raise self._failure
        if self._is_late:
            self._tried.clear()
            problem = self._unreached or silent(time.time() - self._began)
            self._note(f"{problem}: recording starts when it answers")

    def wait_for_start(self, patience: float | None = None) -> bool:
        """Wait for a slow scheduler, but only once; return whether the plugins are installed."""
        if self.is_open and not self.was_open and not self._is_silent:
            self._wait_for_attempt(self._connection.patience if patience is None else patience)
            self._is_silent = not self.was_open
        return self.was_open

    def freeze(self) -> None:
        with self._taking:
            self._is_frozen = True

    def drain(self, question: bytes | None = None, patience: float | None = None) -> Answer | None:
        """Fetch all log entries that the scheduler plugin has collected so far.

        Return the plugin's last answer, including the reply to the question (see `ClusterPlugin.drain`), or None if
        nothing is being recorded. `patience` is the timeout for each answer in seconds; the default is the connection's
        timeout.
        """
        with self._reading_within(patience):
            answer = self._drain_some(question, patience) if self.is_open and self.was_open else None
            while answer is not None and answer["more"]:
                answer = self._drain_some(question, patience)
            return answer

    def ask(self, method: str, patience: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        try:
            answer = self._connection.answer(call_plugin, self._call(method, arguments), patience)
        except NoAnswerError:
            self._is_silent = True
            raise
        self._is_silent = False
        if answer is None:
            raise PluginGoneError(GONE_PLUGIN)
        return dict(answer)

    @contextmanager
    def _reading_within(self, patience: float | None) -> Iterator[None]:
        """Acquire the `reading` lock, which another thread may hold while waiting for an answer."""
        if not self.reading.acquire(timeout=-1 if patience is None else patience):
            self._is_silent = True
            raise silent(0.0 if patience is None else patience)
        try:
            yield
        finally:
            self.reading.release()

    def _call(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": self.name, "method": method, "arguments": arguments}

    def close(self, learn: Callable[[Answer], None], complete: Callable[[Answer], None]) -> None:
        """Remove the plugins, keep their records, and note any missing records.

        Not counting the time spent receiving records, closing takes at most the scheduler's timeout plus a few seconds,
        or `SILENCE` if the scheduler does not answer at all.

        Parameters
        ----------
        learn
            Called with the plugin's last answer when the answer arrives.
        complete
            Called with the same answer once the log is complete.
        """
        # wait for less time if the scheduler did not answer the last request
        silence = 0.5 if self._is_silent else SILENCE
        self.wait_for_start(silence)
        self._ended.set()
        if self.is_open:
            try:
                self._fetch_last(silence, learn, complete)
            except NoAnswerError as problem:
                self.lost = str(problem)
            self.is_open, self._left = False, True  # from here on, draining never reinstalls the plugins
            self._leave()
        if self._thread is not None and self.lost is None:
            # wait at most 2 s; if the scheduler is not answering this thread, waiting is pointless
            self._thread.join(2.0)

    def last_contact(self, start: float, stop: float) -> float:
        return min(stop, max(start, self.last_heard)) if self.lost else stop

    def notes(self) -> list[str]:
        return [*super().notes(), *([] if self.lost is None else [self._known()])]

    def _known(self) -> str:
        if not self.was_open:
            return f"{self.lost}: the cluster was not recorded"
        attempts, chunks = (
            counted(len(self.log.attempts), "task attempt"),
            counted(self.received.tally.chunks, "chunk record"),
        )
        known = f"{attempts} and {chunks} were received"
        if self._answered_late:
            return f"{self.lost} when recording ended, but later {known}; the workers' final reports are missing"
        return f"{self.lost} when recording ended: {known}; anything after {moment(self.last_heard)} is unknown"

    # implementation

    def _wait_for_attempt(self, patience: float) -> None:
        """Wait until an attempt to install the plugins ends or a signal is pending."""
        end = time.monotonic() + patience
        # wait in short steps to notice signals
        while not self._tried.wait(0.05) and time.monotonic() < end and not signal_waits():
            pass

    def _begin(self, make: Callable[[Answer], Plugins]) -> None:
        """Install the plugins, no matter how late the scheduler answers."""
        asking = self._connection.call(survey, {"flush": pickled(flush), "timeout": WORKERS_TIMEOUT})
        try:
            answer = self._connection.late_result(asking, self._ended)
        finally:
            asking.cancel()
        since = answer["time"] - (time.time() - self._began)
        self._scheduler_package = answer["package"]
        workers = {(worker["host"], worker["process"]) for worker in answer["workers"].values()}
        self._some_workers_here = (socket.gethostname(), os.getpid()) in workers
        plugin, _ = self._installed = make(answer)
        if self._is_late:
            plugin.silent_since = since
        self._register()
        if plugin.silent_since is not None:
            self._note(GAP.format(time.time() - self._began, moment(self._began), "the scheduler had not answered yet"))
        self.drain()

    def _register(self, timeout: float | None = None) -> None:
        """Install the plugins, or wait for an installation in progress.

        Without a timeout, wait indefinitely. The worker plugin is pickled by value, because workers without the package
        may join later. If workers run in this process, the plugin is pickled normally, because unpickling a class by
        value would change the original class.
        """
        if self._registering is None:
            plugin, half = self._installed
            arguments = {
                "plugin": plugin if self._scheduler_package == roastcoffea.__version__ else ByValue(plugin),
                "worker_plugin": bytes(dumps(half)) if self._some_workers_here else pickled(half),
                "timeout": WORKERS_TIMEOUT,
            }
            with interrupts_held():
                self._registering = self._connection.call(register, arguments)
        registering = self._registering
        try:
            if timeout is None:
                self._connection.late_result(registering, self._ended)
            else:
                self._connection.result(registering, timeout)
            self.was_open = self.was_open or not self._left
        finally:
            if registering.done():
                self._registering = None
            if self._left:  # closed by another thread while the plugins were being installed
                self._leave_in_background()

    def _drain_some(self, question: bytes | None, patience: float | None) -> Answer | None:
        asking = {"limit": DRAIN_BYTES, "received": self._received, "question": question}
        asked, answer = self._again_if_gone(lambda: (time.time(), self.ask("drain", patience, **asking)))
        answered = time.time()
        if not self.is_open:  # the result is no longer needed
            return None
        if self._clock.narrow(answer["time"] - answered, answer["time"] - asked):
            self._note("the client's or the scheduler's clock was reset, so some times are wrong by that much")
        self.clock_offset = self._clock.offset
        self._take(answer)
        return answer

    def _again_if_gone(self, ask: Callable[[], Asked]) -> Asked:
        """Query the plugin, first completing or repeating its installation if necessary."""
        if self._registering is None:
            with suppress(PluginGoneError):
                return ask()
        self._resume()
        return ask()

    def _resume(self) -> None:
        """Reinstall the plugins after the scheduler plugin gave up on this client."""
        if not self._resumes or not self.is_open:
            raise PluginGoneError(GONE_PLUGIN)
        plugin, _ = self._installed
        since = self.last_heard
        plugin.first_text, plugin.silent_since = len(self.log.texts.places), since + self.clock_offset
        self._register(self._connection.patience)
        if self._left:
            raise PluginGoneError(GONE_PLUGIN)
        self._received = 0
        self._note(
            GAP.format(
                time.time() - since,
                moment(since),
                "the client was suspended or unreachable for so long that the scheduler removed the plugins",
            )
        )

    def _take(self, answer: Answer) -> None:
        with interrupts_held():
            if answer["at"] != self._received:
                raise RoastcoffeaError(f"the scheduler's log continues at byte {answer['at']}, not {self._received}")
            self._received += len(answer["data"])
            if self._keep is not None and answer["data"]:
                self._keep(answer["data"])
            self.log.feed(answer["data"])
            self.last_heard = time.time()
            self.requested = answer.get("requested")
            self.dropped = dict(answer["dropped"])
            self.failures = answer["failures"]
            self.refused = answer["refused"]

    def _record(self, make: Callable[[Answer], Plugins]) -> None:
        while not self.was_open and not self._ended.is_set():
            try:
                self._begin(make)
            except NoAnswerError as problem:
                self._unreached = problem
                if self._ended.wait(0 if self.was_open else DRAIN_INTERVAL):
                    return
            except Exception as problem:  # noqa: BLE001  (the waiting thread raises it)
                raise_if_interrupted(problem)
                self._failure = problem
                if self._is_late:
                    self._note(f"the cluster is not recorded: {error_text(problem)}")
                self._give_up()
                return
            finally:
                self._tried.set()
        while not self._ended.wait(DRAIN_INTERVAL):
            # draining is retried a second later, and `close` reports a failure at the end of the recording
            with reported(self._note, "the cluster's records could not be read", Exception), suppress(NoAnswerError):
                self.drain()
            if self._look is not None:
                with reported(self._note, "the cluster's jobs could not be listed", Exception):
                    self._look()

    def _fetch_last(self, silence: float, learn: Callable[[Answer], None], complete: Callable[[Answer], None]) -> None:
        """Fetch the plugins' remaining records; internal errors are recorded, not raised."""
        if not self.was_open:
            raise self._unreached or silent(time.time() - self._began)
        answer = None
        with self._reading_within(silence):
            with _internal_errors(self._note_unanswered, "asking the workers for their last reports"):
                answer = self._finish(silence)
                learn(answer)
            with _internal_errors(self._note, "fetching the last records"):
                if answer is not None:
                    self._take(answer)
                if answer is None or answer["more"]:
                    self.drain()
                if answer is not None:
                    complete(answer)

    def _finish(self, silence: float) -> dict[str, Any]:
        arguments = {"flush": pickled(flush), "timeout": WORKERS_TIMEOUT, "limit": DRAIN_BYTES}

        def ask() -> dict[str, Any]:
            self._connection.answer(nothing, {}, silence)  # does the scheduler answer at all?
            return self.ask("finish", **arguments, received=self._received)

        return self._again_if_gone(ask)

    def _note_unanswered(self, reason: str) -> None:
        self._note(reason)
        self.unanswered = reason

    def _leave(self) -> None:
        if self.lost is not None:
            self._leave_in_background()
            return
        with _internal_errors(self._note, "removing its plugins"):
            try:
                # seconds to wait for the workers to remove our plugin; slower workers will do so later
                self._connection.answer(remove_plugin, self._removal(0.25), SILENCE)
            except NoAnswerError as problem:
                self._note(f"{problem}: the plugins will be removed as soon as the scheduler answers")
                self._leave_in_background()

    def _give_up(self) -> None:
        self.is_open, self._left = False, True
        self._ended.set()
        self._leave_in_background()

    def _leave_in_background(self) -> None:
        """Remove the plugins once the scheduler answers again."""
        if hasattr(self, "_installed"):
            self._connection.client.loop.add_callback(self._leave_late, self._registering)

    async def _leave_late(self, registering: Future[Any] | None) -> None:
        if registering is not None:
            await asyncio.wait([asyncio.wrap_future(registering)])
        log = logging.getLogger(__name__).info
        with reported(log, "the collector's plugin could not be removed", GONE):
            with reported(self._note, "late records could not be read", Exception, passed=GONE):
                await self._fetch_late()
            await self._connection.call_late(remove_plugin, self._removal(0.0))

    async def _fetch_late(self) -> None:
        """Fetch the remaining records once the scheduler answers, unless tables have been built by then."""
        more = self.lost is not None and self.was_open
        while more and not self._is_frozen:
            call = self._call("drain", {"limit": DRAIN_BYTES, "received": self._received})
            answer = await self._connection.call_late(call_plugin, call)
            more = answer is not None and await asyncio.to_thread(self._take_late, answer)

    def _take_late(self, answer: Answer) -> bool:
        with self._taking:
            if self._is_frozen:
                return False
            self._take(answer)
            self._answered_late = not answer["more"]
            return bool(answer["more"])

    def _removal(self, patience: float) -> dict[str, Any]:
        plugin, _ = self._installed
        return {"name": self.name, "patience": patience, "span": plugin.span}


def _internal_errors(note: Callable[[str], None], occasion: str) -> reported:
    """Context manager that records internal errors, which could otherwise hide an error in the analysis.

    A `NoAnswerError` still propagates.
    """
    return reported(note, f"roastcoffea failed while {occasion}", Exception, passed=(NoAnswerError,))
