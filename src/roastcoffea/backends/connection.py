"""Calling functions of ours on the scheduler of a client, however either of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from functools import cache
from typing import Any, Final

from distributed import Client
from distributed.comm import parse_address, parse_host_port
from distributed.comm.registry import get_backend
from distributed.protocol.pickle import dumps
from distributed.security import Security

from roastcoffea.backends.byvalue import ByValue
from roastcoffea.errors import RoastcoffeaError, error_text
from roastcoffea.redaction import redacted

SCHEDULER_TIMEOUT: Final = 10.0
"""Seconds that the scheduler has to accept a connection, or to answer."""

ENCRYPTED: Final = ("tls", "wss")
"""Schemes of addresses that need certificates."""

MOST_PORT: Final = 65535


class NoAnswerError(RoastcoffeaError, ConnectionError):
    """The plugin on the scheduler cannot be asked; the text says why."""


class SchedulerSideError(RoastcoffeaError):
    """Code of ours failed on the scheduler; the text is that of its error."""


class Connection:
    """The way to the scheduler that a client is connected to.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.

    Raises
    ------
    TypeError
        The client is asynchronous, or no client.
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
        """Seconds that the scheduler has to accept a connection, or to answer."""
        return SCHEDULER_TIMEOUT

    def answer(self, function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float | None = None) -> Any:
        """What a function of ours gives on the scheduler.

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
        """Begin to call a function of ours on the scheduler."""
        if self.client.status != "running":
            raise lost(f"the client is {self.client.status}")
        # client.sync would cancel what is interrupted, also where the scheduler has got it already
        asked = self.client._run_on_scheduler(_portable(outcome), called=_portable(function), arguments=arguments)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self.client.loop.asyncio_loop)
        except RuntimeError as problem:  # the loop was closed with the client
            asked.close()
            raise lost(error_text(problem)) from problem

    def result(self, call: Future[Any], timeout: float) -> Any:
        """What a call gives, which has so many seconds to end."""
        try:
            answer = call.result(timeout)
        except (OSError, CancelledError) as problem:
            raise lost(error_text(problem) if call.done() else f"no answer within {timeout:g} s") from problem
        except (AttributeError, RuntimeError) as problem:
            # a client that was closed meanwhile has no scheduler to call any more, or its loop takes nothing
            if self.client.status == "running":
                raise
            raise lost(f"the client is {self.client.status}") from problem
        if "error" in answer:
            raise SchedulerSideError(answer["error"])
        return answer["result"]

    async def call_late(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Call a function of ours on the scheduler from the client's loop, whenever it answers."""
        await self.client._run_on_scheduler(_portable(function), **arguments)


def check_address(address: str) -> None:
    """Refuse what is no address of a scheduler: a `Client` would try it for long, and fail as it is thrown away.

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
        if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
            raise ValueError("it needs a host and the number of a port")
        parse_host_port(place)
        if scheme in ENCRYPTED and Security().get_connection_args("client")["ssl_context"] is None:
            raise ValueError(f"{scheme} needs the certificates of Dask's configuration, distributed.comm.tls")
    except (ValueError, TypeError, ImportError, OSError) as error:
        reason = f"{address!r} is no address to watch ({redacted(str(error))}); give tcp://HOST:PORT"
        raise RoastcoffeaError(reason) from None


def lost(reason: str) -> NoAnswerError:
    """The error of a connection that was lost for this reason."""
    return NoAnswerError(f"the connection to the cluster was lost ({reason})")


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


def pickled(thing: Any) -> bytes:
    """Pickle of a function or an object of ours for any process."""
    return bytes(dumps(_portable(thing) if callable(thing) else ByValue(thing)))
