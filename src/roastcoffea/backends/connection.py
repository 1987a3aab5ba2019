"""Calling our functions on a client's scheduler, even while either of them ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import cache
from typing import Any, Final

from distributed import Client
from distributed.comm import parse_address, parse_host_port
from distributed.comm.registry import get_backend
from distributed.protocol.pickle import dumps
from distributed.security import Security

from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.log.byvalue import ByValue
from roastcoffea.redaction import redacted

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

    def answer_while_alive(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float, silence: float
    ) -> Any:
        """Result of one of our functions on the scheduler, as long as the scheduler answers others meanwhile.

        Parameters
        ----------
        timeout
            Most seconds for the result.
        silence
            Most seconds without an answer to anything.
        """
        end = time.monotonic() + timeout
        call, alive = self.call(function, arguments), self.call(nothing, {})
        try:
            while (left := end - time.monotonic()) > 0:
                done, _ = wait([call, alive], min(silence, left), FIRST_COMPLETED)
                if call in done:
                    return self.result(call, 0)
                if alive not in done:
                    raise silent(min(silence, left))
                self.result(alive, 0)
                # seconds between questions whether the scheduler still answers
                done, _ = wait([call], min(0.5, silence))
                alive = self.call(nothing, {})
            raise silent(timeout)
        finally:
            call.cancel()
            alive.cancel()

    async def call_late(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Result of one of our functions on the scheduler, from the client's loop, whenever it answers."""
        return await self.client._run_on_scheduler(_portable(function), **arguments)


def check_address(address: str) -> None:
    """Reject an invalid scheduler address, which a `Client` would try for a long time.

    Raises
    ------
    RoastcoffeaError
        If it has no host or port, or Dask cannot connect by its scheme.
    """
    try:
        scheme, place = parse_address(address)
        get_backend(scheme).get_connector()
        if scheme == "inproc":
            raise ValueError("inproc does not leave its own process")
        host, _, port = place.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ValueError("it needs a host and a port number")
        parse_host_port(place)
        # schemes of addresses that need certificates
        if scheme in ("tls", "wss") and Security().get_connection_args("client")["ssl_context"] is None:
            raise ValueError(f"{scheme} needs the certificates of Dask's configuration, distributed.comm.tls")
    except (ValueError, TypeError, ImportError, OSError) as error:
        reason = f"{address!r} is not a scheduler address ({redacted(str(error))}); use tcp://HOST:PORT"
        raise RoastcoffeaError(reason) from None


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
