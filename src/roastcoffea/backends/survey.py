"""Asking the workers from the scheduler for their facts, tasks and counts.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from roastcoffea.backends.limits import load
from roastcoffea.backends.worker import importable_package
from roastcoffea.generations.distributed import unwrapped
from roastcoffea.log.counts import added_up, difference, has_all


async def ask_workers(
    scheduler: Any, function: bytes, arguments: Mapping[str, Any], timeout: float
) -> tuple[dict[str, Any], list[str]]:
    """Run a pickled function on each worker; return the answers, and the workers without one in time."""
    from distributed.protocol.pickle import dumps

    message = {"op": "run", "function": function, "args": dumps(()), "kwargs": dumps(dict(arguments))}
    asked = {
        asyncio.ensure_future(scheduler.broadcast(msg=message, workers=[address], on_error="return")): address
        for address in list(scheduler.workers)
    }
    if not asked:
        return {}, []
    done, pending = await asyncio.wait(asked, timeout=timeout)
    for question in pending:
        question.cancel()
    replies = {}
    for question in done:
        address = asked[question]
        reply = question.result()[address]
        if isinstance(reply, dict) and reply.get("status") == "OK":
            replies[address] = unwrapped(reply["result"])
    return replies, sorted(set(asked.values()) - set(replies))


def described(replies: Mapping[str, Mapping[str, Any]], silent: list[str]) -> dict[str, Any]:
    """Facts about workers by address under `workers`; those that did not answer under `silent`; the `load` here."""
    workers = {address: reply["description"] for address, reply in replies.items()}
    return {"workers": workers, "silent": silent, "load": load()}


async def survey(flush: bytes, timeout: float, dask_scheduler: Any = None) -> dict[str, Any]:
    """Have the workers report their counts so far and their facts.

    Returns
    -------
    dict
        `package` (our version that the scheduler can import, or None), `time` (this clock), and the result of
        `described`.
    """
    package = importable_package()
    if package is not None:  # else the event loop would wait for it as it unpickles the plugin
        with suppress(ImportError):  # of another version, which is not used
            await asyncio.to_thread(import_module, "roastcoffea.backends.display")
    described_workers = described(*await ask_workers(dask_scheduler, flush, {}, timeout))
    return described_workers | {"package": package, "time": time.time()}


async def metrics_of_span(  # noqa: PLR0917
    flush: bytes,
    span: str | None,
    timeout: float,
    dask_scheduler: Any = None,
    elsewhere: Mapping[str, Mapping[Any, float]] | None = None,
    plugin: str | None = None,
) -> dict[str, Any]:
    """Have every worker report now, and return the cumulative metrics of a span.

    Parameters
    ----------
    flush : bytes
        Pickled function that makes a worker report.
    span : str or None
        Identity of the span.
    timeout : float
        Seconds to wait for all workers.
    elsewhere : mapping, optional
        Other spans with tasks of this one, and their counts from before; the difference is added.
    plugin : str, optional
        Name of the worker plugin that knows running tasks and counts.

    Returns
    -------
    dict
        `span`: [(key, value)], or None if no task ran in the span; `complete`: whether the spans have all counts of the
        workers that answered; `spans`: identities of the span, those inside it, and the others; `running`: running
        tasks with their times, by worker, and `counted`: its counts; and the result of `described`.
    """
    deadline = time.monotonic() + timeout
    known = dask_scheduler.extensions["spans"].spans
    found = known.get(span)
    before = elsewhere or {}
    inside = [] if found is None else [child.id for child in found.traverse_spans()]
    while True:
        spans = [*inside, *before]
        left = max(deadline - time.monotonic(), 0.05)
        replies, silent = await ask_workers(dask_scheduler, flush, {"spans": spans, "plugin": plugin}, left)
        counted = added_up(known[identity]._cumulative_worker_metrics for identity in spans)
        complete = has_all(counted, added_up(dict(reply["digests"]) for reply in replies.values()))
        if complete or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    own = [] if found is None else [found.cumulative_worker_metrics]
    since = [difference(known[identity]._cumulative_worker_metrics, counts) for identity, counts in before.items()]
    return described(replies, silent) | {
        "span": list(added_up([*own, *since]).items()) if own or since else None,
        "spans": [*inside, *before],
        "complete": complete,
        "running": {address: reply["running"] for address, reply in replies.items()},
        "counted": {
            address: dict(reply["counted"]) for address, reply in replies.items() if reply["counted"] is not None
        },
    }
