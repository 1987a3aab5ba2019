"""Our plugins on a cluster, from the client's side: installed, drained every second, and removed."""

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
"""Seconds for the scheduler to accept a connection or to answer."""


class NoAnswerError(RoastcoffeaError, ConnectionError):
    """The scheduler plugin cannot be reached; the text says why."""


class PluginGoneError(NoAnswerError):
    """The scheduler answers, and has our plugin no more."""


class SchedulerSideError(RoastcoffeaError):
    """Our code failed on the scheduler; the text is that of its error."""


class Connection:
    """Connection to the scheduler of a client.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.

    Raises
    ------
    TypeError
        The client is asynchronous, or not a client.
    ValueError
        The client is not connected.
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
        """Seconds for the scheduler to accept a connection or to answer."""
        return SCHEDULER_TIMEOUT

    def answer(self, function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float | None = None) -> Any:
        """Result of one of our functions on the scheduler.

        Raises
        ------
        NoAnswerError
            There is no connection, or no answer in time.
        SchedulerSideError
            The function failed.
        """
        call = self.call(function, arguments)
        try:
            return self.result(call, self.patience if timeout is None else timeout)
        finally:
            call.cancel()

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Future[Any]:
        """Start a call of one of our functions on the scheduler."""
        if self.client.status != "running":
            raise lost(f"the client is {self.client.status}")
        # client.sync would cancel an interrupted call, even if the scheduler has received it
        asked = self.client._run_on_scheduler(_portable(outcome), called=_portable(function), arguments=arguments)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self.client.loop.asyncio_loop)
        except RuntimeError as problem:  # the loop was closed with the client
            asked.close()
            raise lost(error_text(problem)) from problem

    def result(self, call: Future[Any], timeout: float) -> Any:
        """Result of a call, with a timeout in seconds."""
        try:
            answer = call.result(timeout)
        except (OSError, CancelledError) as problem:
            raise (lost(error_text(problem)) if call.done() else silent(timeout)) from problem
        except (AttributeError, RuntimeError) as problem:
            # a client closed in the meantime has no scheduler to call, or its loop accepts nothing
            if self.client.status == "running":
                raise
            raise lost(f"the client is {self.client.status}") from problem
        if "error" in answer:
            raise SchedulerSideError(answer["error"])
        return answer["result"]

    def late_result(self, call: Future[Any], ended: threading.Event) -> Any:
        """Result of a call, however late, until the event."""
        # seconds between checks whether a late answer is still needed
        while not wait([call], 0.5).done:
            if ended.is_set() or self.client.status == "closed":
                raise lost("the answer is no longer needed")
        return self.result(call, 0)

    async def call_late(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Result of one of our functions on the scheduler, from the client's loop, whenever it answers."""
        return await self.client._run_on_scheduler(_portable(function), **arguments)


def lost(reason: str) -> NoAnswerError:
    """Error for a connection lost for this reason."""
    return NoAnswerError(f"the connection to the cluster was lost ({reason})")


def silent(seconds: float) -> NoAnswerError:
    """Error for an answer that did not come in time."""
    return NoAnswerError(f"the scheduler did not answer within {seconds:.3g} s")


def nothing(dask_scheduler: Any = None) -> None:
    """Answer."""


async def outcome(
    called: Callable[..., Any], arguments: Mapping[str, Any], dask_scheduler: Any = None
) -> dict[str, Any]:
    """Result of a function on the scheduler, or the text of its error, which is then not a connection error."""
    try:
        result = called(**arguments, dask_scheduler=dask_scheduler)
        return {"result": await result if asyncio.iscoroutine(result) else result}
    except Exception as problem:  # noqa: BLE001  (it is raised again on the client)
        return {"error": error_text(problem)}


@cache
def _portable(function: Callable[..., Any]) -> ByValue:
    """One of our functions, pickled once for any process."""
    return ByValue(function)


def pickled(thing: Any) -> bytes:
    """Pickle of one of our functions or objects for any process."""
    return bytes(dumps(_portable(thing) if callable(thing) else ByValue(thing)))


DRAIN_INTERVAL: Final = 1.0
DRAIN_BYTES: Final = 1_000_000
"""Bytes taken at a time, which costs the scheduler about a millisecond."""

WORKERS_TIMEOUT: Final = 2.0
"""Seconds for workers to answer when a collector starts or ends; a task that holds the GIL silences its worker."""


GONE: Final = (AttributeError, OSError, RuntimeError)
"""Errors of calling the scheduler after the client or its loop was closed."""

SILENCE: Final = 2.0
"""Seconds without any answer of the scheduler after which nothing more is fetched at the end."""


GONE_PLUGIN: Final = "the scheduler no longer has the collector's plugin"
GAP: Final = "nothing was recorded for {:.3g} s from {} on: {}"

Answer = Mapping[str, Any]
Asked = TypeVar("Asked")
Plugins = tuple[ClusterPlugin, WorkerHalf]


class Deployment(LoggedPeriod):
    """The plugins of one client on scheduler and workers, and their log.

    Parameters
    ----------
    connection : Connection
        Connection to the scheduler.
    name : str
        Name of the plugins.
    note : callable
        Receives problems.
    look : callable, optional
        Called about once a second.
    keep : callable, optional
        Receives each piece of the log.
    log : ClusterLog, optional
        Receiver of the log, if it has parts of its own.

    Attributes
    ----------
    last_heard : float
        Time of the last entries.
    lost, unanswered : str or None
        Why there was no connection at the end, or why the last request failed.
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
        self.reading = threading.RLock()
        """Held while entries are read, and while tables are made."""
        self._began = self.last_heard
        self._connection = connection
        self._note = note
        self._look = look
        self._keep = keep
        self._resumes = log is None  # parts of a log may number what they write, and begin anew
        self._clock = ClockBounds()
        self._received = 0
        self._is_silent = False
        self._scheduler_package: str | None = None
        self._some_workers_here = False
        self._registering: Future[Any] | None = None
        self._installed: Plugins
        self._tried = threading.Event()
        """Whether an attempt to install the plugins has ended."""
        self._unreached: NoAnswerError | None = None
        self._failure: Exception | None = None
        self._is_late = self._answered_late = self._is_frozen = False
        self._taking = threading.Lock()
        self._ended = threading.Event()
        self._left = False
        self._thread: threading.Thread | None = None

    # life cycle of the plugins

    def open(self, make: Callable[[Answer], Plugins]) -> None:
        """Install the plugins, and start to drain the log.

        A scheduler that does not answer in time is waited for in the background.

        Parameters
        ----------
        make
            Makes the plugins from facts about scheduler and workers (see `survey`), in another thread.
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
            self._note(f"{problem}: the cluster is recorded from its answer on")

    def wait_for_start(self, patience: float | None = None) -> bool:
        """Whether the plugins are there; if the scheduler is late, wait for its next answer, but not twice."""
        if self.is_open and not self.was_open and not self._is_silent:
            self._wait_for_attempt(self._connection.patience if patience is None else patience)
            self._is_silent = not self.was_open
        return self.was_open

    def freeze(self) -> None:
        """Take nothing more, as tables are made."""
        with self._taking:
            self._is_frozen = True

    def drain(self, question: bytes | None = None, patience: float | None = None) -> Answer | None:
        """Take all entries that the scheduler's plugin has so far.

        Return its last answer, with the reply to the question (see `ClusterPlugin.drain`); None if not open. `patience`
        are seconds to wait for each answer, by default those of the connection.
        """
        with self._reading_within(patience):
            answer = self._drain_some(question, patience) if self.is_open and self.was_open else None
            while answer is not None and answer["more"]:
                answer = self._drain_some(question, patience)
            return answer

    def ask(self, method: str, patience: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        """Result of a method of the plugin on the scheduler."""
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
        """Hold `reading`; another thread that holds it may wait for an answer."""
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
        """Remove the plugins and keep their records; missing records are noted.

        Apart from records that still arrive, this takes no longer than the scheduler's timeout plus a few seconds, and
        no longer than `SILENCE` where the scheduler answers nothing.

        Parameters
        ----------
        learn
            Receives the last answer of the plugin as it arrives.
        complete
            Receives it again once the log is complete.
        """
        # the same, if the last question was not answered
        silence = 0.5 if self._is_silent else SILENCE
        self.wait_for_start(silence)
        self._ended.set()
        if self.is_open:
            try:
                self._fetch_last(silence, learn, complete)
            except NoAnswerError as problem:
                self.lost = str(problem)
            self.is_open, self._left = False, True  # from here on, no drain installs the plugins again
            self._leave()
        if self._thread is not None and self.lost is None:
            # seconds to wait for the draining thread, unless it waits for a scheduler that does not answer
            self._thread.join(2.0)

    def last_contact(self, start: float, stop: float) -> float:
        """The stop, or the last contact with the cluster if the connection was lost."""
        return min(stop, max(start, self.last_heard)) if self.lost else stop

    def notes(self) -> list[str]:
        return [*super().notes(), *([] if self.lost is None else [self._known()])]

    def _known(self) -> str:
        """What is known although the scheduler did not answer at the end."""
        if not self.was_open:
            return f"{self.lost}: the cluster was not recorded"
        attempts, chunks = counted(len(self.log.attempts), "attempt"), counted(self.received.tally.chunks, "chunk")
        known = f"{attempts} of tasks and records of {chunks} are here"
        if self._answered_late:
            return f"{self.lost} as recording ended, but later: {known}; what workers report at the end is missing"
        return f"{self.lost} as recording ended: {known}; anything after {moment(self.last_heard)} is unknown"

    # implementation

    def _wait_for_attempt(self, patience: float) -> None:
        """Wait for the end of an attempt to install the plugins, unless a signal wants the thread."""
        end = time.monotonic() + patience
        # seconds after which a wait sees that a signal came
        while not self._tried.wait(0.05) and time.monotonic() < end and not signal_waits():
            pass

    def _begin(self, make: Callable[[Answer], Plugins]) -> None:
        """Install the plugins, however late the scheduler answers."""
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
            self._note(
                GAP.format(time.time() - self._began, moment(self._began), "the scheduler did not answer until then")
            )
        self.drain()

    def _register(self, timeout: float | None = None) -> None:
        """Install the plugins, or await that they are; without a timeout however late.

        The worker plugin is sent by value, because workers without the package may join later. In this process it is
        sent as it is: unpickling a class by value changes the original class.
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
            if self._left:  # by another thread, while the plugins were installed
                self._leave_in_background()

    def _drain_some(self, question: bytes | None, patience: float | None) -> Answer | None:
        """Take the oldest entries; return the answer that contained them."""
        asking = {"limit": DRAIN_BYTES, "received": self._received, "question": question}
        asked, answer = self._again_if_gone(lambda: (time.time(), self.ask("drain", patience, **asking)))
        answered = time.time()
        if not self.is_open:  # nobody waits for it any more
            return None
        self._clock.narrow(answer["time"] - answered, answer["time"] - asked)
        self.clock_offset = self._clock.offset
        self._take(answer)
        return answer

    def _again_if_gone(self, ask: Callable[[], Asked]) -> Asked:
        """Answer of the plugin, which is installed again if it is gone, or is being installed."""
        if self._registering is None:
            with suppress(PluginGoneError):
                return ask()
        self._resume()
        return ask()

    def _resume(self) -> None:
        """Install the plugins again: the scheduler gave up on this client, which was stopped or out of touch."""
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
                "the client was stopped or out of touch for so long that the scheduler gave it up",
            )
        )

    def _take(self, answer: Answer) -> None:
        """Take complete entries of the log."""
        with interrupts_held():
            if answer["at"] != self._received:
                raise RoastcoffeaError(f"the scheduler's log continues at byte {answer['at']}, not {self._received}")
            self._received += len(answer["data"])
            if self._keep is not None and answer["data"]:
                self._keep(answer["data"])
            self.log.feed(answer["data"])
            self.last_heard = time.time()
            self.dropped = dict(answer["dropped"])
            self.failures = answer["failures"]
            self.refused = answer["refused"]

    def _record(self, make: Callable[[Answer], Plugins]) -> None:
        """Install the plugins, and drain the log about once a second."""
        while not self.was_open and not self._ended.is_set():
            try:
                self._begin(make)
            except NoAnswerError as problem:
                self._unreached = problem
                if self._ended.wait(0 if self.was_open else DRAIN_INTERVAL):
                    return
            except Exception as problem:  # noqa: BLE001  (what waits for it raises it)
                raise_if_interrupted(problem)
                self._failure = problem
                if self._is_late:
                    self._note(f"the cluster is not recorded: {error_text(problem)}")
                self._give_up()
                return
            finally:
                self._tried.set()
        while not self._ended.wait(DRAIN_INTERVAL):
            # failures here are retried a second later; those at the end are noted then
            with reported(self._note, "records of the cluster could not be read", Exception), suppress(NoAnswerError):
                self.drain()
            if self._look is not None:
                with reported(self._note, "the jobs of the cluster could not be seen", Exception):
                    self._look()

    def _fetch_last(self, silence: float, learn: Callable[[Answer], None], complete: Callable[[Answer], None]) -> None:
        """Fetch the plugins' remaining records; an internal error is noted, and affects nothing else."""
        if not self.was_open:
            raise self._unreached or silent(time.time() - self._began)
        answer = None
        with self._reading_within(silence):
            with _internal_errors(self._note_unanswered, "the workers were asked for the last time"):
                answer = self._finish(silence)
                learn(answer)
            with _internal_errors(self._note, "the last records were fetched"):
                if answer is not None:
                    self._take(answer)
                if answer is None or answer["more"]:
                    self.drain()
                if answer is not None:
                    complete(answer)

    def _finish(self, silence: float) -> dict[str, Any]:
        """Last answer of the plugin, after the workers have reported to it."""
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
        with _internal_errors(self._note, "its plugins were removed"):
            try:
                # seconds to wait for the workers to drop our plugin; after that they do so without us
                self._connection.answer(remove_plugin, self._removal(0.25), SILENCE)
            except NoAnswerError as problem:
                self._note(f"{problem}: the plugins are removed as soon as the scheduler answers")
                self._leave_in_background()

    def _give_up(self) -> None:
        """Record nothing, or nothing more."""
        self.is_open, self._left = False, True
        self._ended.set()
        self._leave_in_background()

    def _leave_in_background(self) -> None:
        """Remove the plugins when the scheduler answers again."""
        if hasattr(self, "_installed"):
            self._connection.client.loop.add_callback(self._leave_late, self._registering)

    async def _leave_late(self, registering: Future[Any] | None) -> None:
        if registering is not None:
            await asyncio.wait([asyncio.wrap_future(registering)])
        log = logging.getLogger(__name__).info
        with reported(log, "the collector's plugin could not be removed", GONE):
            with reported(self._note, "records that came late could not be read", Exception, passed=GONE):
                await self._fetch_late()
            await self._connection.call_late(remove_plugin, self._removal(0.0))

    async def _fetch_late(self) -> None:
        """Fetch what the scheduler has recorded until it answers, unless the tables are made."""
        more = self.lost is not None and self.was_open
        while more and not self._is_frozen:
            call = self._call("drain", {"limit": DRAIN_BYTES, "received": self._received})
            answer = await self._connection.call_late(call_plugin, call)
            more = answer is not None and await asyncio.to_thread(self._take_late, answer)

    def _take_late(self, answer: Answer) -> bool:
        """Take entries that came late; whether there are more."""
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
    """Continue after internal errors, which must not hide an error of the analysis; a silent scheduler ends more."""
    return reported(note, f"roastcoffea failed as {occasion}", Exception, passed=(NoAnswerError,))
