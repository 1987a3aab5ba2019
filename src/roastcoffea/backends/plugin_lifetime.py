"""Lifetime of the scheduler plugin, including worker queries and cleanup."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from roastcoffea.backends.limits import load
from roastcoffea.backends.worker import importable_package
from roastcoffea.generations import event_topics, unwrapped
from roastcoffea.log.marks import added_up, clear_metadata, difference, forget_record, has_all, unmark


async def ask_workers(
    scheduler: Any, function: bytes, arguments: Mapping[str, Any], timeout: float
) -> tuple[dict[str, Any], list[str]]:
    """Run a pickled function on each worker; return the results, and the workers that did not respond."""
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
    """Descriptions of the workers, addresses of workers that did not answer (`silent`), and the scheduler's `load`."""
    workers = {address: reply["description"] for address, reply in replies.items()}
    return {"workers": workers, "silent": silent, "load": load()}


async def survey(flush: bytes, timeout: float, dask_scheduler: Any = None) -> dict[str, Any]:
    """Ask the workers for information about their processes.

    Returns
    -------
    dict
        `package` (version of roastcoffea that the scheduler can import, or None), `time` (scheduler clock), and the
        result of `described`.
    """
    package = importable_package()
    if package is not None:  # import in a thread, because unpickling would block the event loop
        with suppress(ImportError):  # the scheduler has a different version, which is not used
            await asyncio.to_thread(import_module, "roastcoffea.backends.scheduler")
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
    """Make every worker report immediately, and return a span's cumulative metrics.

    Parameters
    ----------
    flush : bytes
        Pickled function that makes a worker report.
    span : str or None
        ID of the span.
    timeout : float
        Maximum number of seconds to wait for all workers.
    elsewhere : mapping, optional
        Other spans in which Dask counts tasks from `span`, with their earlier counts; the increase since then is added.
    plugin : str, optional
        Name of the worker plugin that tracks running tasks and counts.

    Returns
    -------
    dict
        `span`: [(key, value)], or None if no tasks ran in the span; `complete`: whether the spans include all counts
        from the workers that answered; `spans`: IDs of the span, its nested spans and the other spans; `running`:
        running tasks with their times, by worker; `counted`: counts, by worker; and the result of `described`.
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


PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds to wait before each attempt to remove a worker's plugin, or a span whose tasks may be running or held."""

PATIENCE = 5.0

UNTIL_GONE = 600.0
"""Seconds to keep an empty span. The scheduler stops workers whose heartbeats contain counts for unknown spans, and
forgets workers that send no heartbeat for half this time."""


async def forget_span(scheduler: Any, identity: str, leave: bytes) -> None:
    """Remove a run's span once none of its tasks are left.

    The span is kept if the user has nested or enclosing spans, or keeps futures for the span's tasks for a long time.

    Parameters
    ----------
    leave
        Pickled `leave_spans`.
    """
    for pause in PAUSES:
        await asyncio.sleep(pause)
        tree = _tree(scheduler, identity)
        if tree is None:
            return
        if _in_use(scheduler, tree):
            continue
        answers, silent = await ask_workers(scheduler, leave, {"spans": list(tree)}, PATIENCE)
        if all(answers.values()) and not silent and not _in_use(scheduler, tree):
            _empty(scheduler, tree)
            asyncio.get_running_loop().call_later(UNTIL_GONE, _remove, scheduler, tree)
            return


def leave_spans(spans: Iterable[str], dask_worker: Any = None) -> bool:
    """Remove these spans' counts from a worker; return False if the worker still has tasks in the spans."""
    if any(task.span_id in spans for task in dask_worker.state.tasks.values()):
        return False
    for key in list(dask_worker.digests_total):
        if isinstance(key, tuple) and len(key) > 2 and key[1] in spans:
            del dask_worker.digests_total[key]
    return True


def _tree(scheduler: Any, identity: str) -> dict[str, Any] | None:
    """A span and all nested spans, by ID; None if the span is gone or must not be removed."""
    span = scheduler.extensions["spans"].spans.get(identity)
    if span is None or span.parent is not None:
        return None
    tree = {each.id: each for each in span.traverse_spans()}
    # only spans with this tag belong to runs
    return tree if all(set(each.name) == {"roastcoffea"} for each in tree.values()) else None


def _in_use(scheduler: Any, tree: dict[str, Any]) -> bool:
    for plugin in scheduler.plugins.values():
        counted = getattr(getattr(plugin, "attempts", None), "elsewhere", ())
        if getattr(getattr(plugin, "run", None), "span", None) in tree or not tree.keys().isdisjoint(counted):
            return True
    return any(group.span_id in tree for group in scheduler.task_groups.values())


def _empty(scheduler: Any, tree: dict[str, Any]) -> None:
    extension = scheduler.extensions["spans"]
    for span in tree.values():
        listed = [extension.root_spans, *(extension.spans_search_by_tag[tag] for tag in span.name)]
        for spans in [*listed, extension.spans_search_by_name[span.name]]:
            if span in spans:
                spans.remove(span)
        for content in (span.children, span.groups, span._code, span._cumulative_worker_metrics):
            content.clear()


def _remove(scheduler: Any, tree: dict[str, Any]) -> None:
    """Forget empty spans, except for spans that are in use again."""
    known = scheduler.extensions["spans"].spans
    for identity, span in tree.items():
        if known.get(identity) is span and not span.groups:
            del known[identity]


LONGEST_SILENCE = 120.0
"""Seconds without a request from the client after which the plugin gives up on the client."""


class Stay:
    """Controls how long a plugin stays on the scheduler.

    The plugin removes itself on request, when its client is gone, or when its entries are no longer fetched.
    """

    def __init__(self, plugin: Any) -> None:
        self.alive = True
        self._plugin = plugin
        self._name = plugin.name
        self._scheduler = plugin.scheduler
        self._drained = time.time()
        self._grace: Any = None
        self._closing: set[Any] = set()
        # if nothing is sampled, check once a second
        self._ticker = asyncio.ensure_future(self._tick(plugin.interval or 1.0))

    def client_asked(self) -> None:
        self._drained = time.time()

    def client_left(self, client: str) -> None:
        """Handle the disconnection of a client; our client may reconnect."""
        if client == self._plugin.client and self.alive:
            # grace period in seconds for the client to reconnect
            self._grace = asyncio.get_running_loop().call_later(2.0, self._leave_without_client)

    def end(self) -> None:
        self.alive = False
        self._ticker.cancel()
        if self._grace is not None:
            self._grace.cancel()
        self._plugin.ended()

    async def leave(self, wait: float = 0.0, *, may_return: bool = False) -> None:
        """Remove the plugin, and restore the scheduler and the workers.

        Parameters
        ----------
        wait
            Maximum time to wait for the workers, in seconds.
        may_return
            Whether the client may come back. If so, its tasks keep their marks, so that another plugin can recognise
            the tasks.
        """
        if not self.alive:
            return
        self.end()
        self._scheduler.plugins.pop(self._name, None)
        self._forget_topic()
        removals = [] if may_return else [self._in_background(clear_tasks(self._scheduler, self._name))]
        if self._plugin.span is not None and not may_return:
            self._in_background(forget_span(self._scheduler, *self._plugin.span))
        if self._name in self._scheduler.worker_plugins:
            removals.append(self._in_background(self._leave_workers()))
        if removals:
            await asyncio.wait(removals, timeout=wait)

    async def _tick(self, interval: float) -> None:
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        while self.alive:
            late = max(loop.time() - began - number * interval, 0.0)
            missed = int(late / interval)  # number of intervals during which the loop was blocked
            number += missed
            self._plugin.tick(number, late - missed * interval, missed)
            number += 1
            await asyncio.sleep(max(began + number * interval - loop.time(), 0.0))
            if time.time() - self._drained > LONGEST_SILENCE:
                self._in_background(self.leave(may_return=self._plugin.client in self._scheduler.clients))
                return

    def _leave_without_client(self) -> None:
        if self.alive and self._plugin.client not in self._scheduler.clients:
            self._in_background(self.leave())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Run a coroutine in the background, and keep a reference so that it is not garbage collected."""
        future = asyncio.ensure_future(work)
        self._closing.add(future)
        future.add_done_callback(self._closing.discard)
        return future

    async def _leave_workers(self) -> None:
        """Remove the worker plugin, asking workers that could not be reached again later."""
        self._scheduler.worker_plugins.pop(self._name, None)
        message, asked = {"op": "plugin-remove", "name": self._name}, set(self._scheduler.workers)
        for pause in PAUSES:
            await asyncio.sleep(pause)
            here = asked & self._scheduler.workers.keys()
            answers = await self._scheduler.broadcast(msg=message, workers=here, on_error="return")
            # a chunk that ended while the plugin was being removed may have sent a record that arrives late; wait this
            # many seconds for it
            asyncio.get_running_loop().call_later(2.0, self._forget_late)
            asked = {address for address, answer in answers.items() if isinstance(answer, Exception)}
            if not asked:
                return

    def _forget_late(self) -> None:
        self._forget_topic()
        for key in self._scheduler.tasks.keys() & self._plugin.open_keys():
            clear_metadata(self._scheduler.tasks[key], self._name)

    def _forget_topic(self) -> None:
        """Discard this topic's events; otherwise, the scheduler would keep them forever."""
        event_topics(self._scheduler).pop(self._name, None)


async def clear_tasks(scheduler: Any, name: str) -> None:
    """Remove a collector's mark, in batches, from tasks that the user still holds."""
    tasks = iter(list(scheduler.tasks.values()))
    # batch size; a batch blocks the scheduler for less than a millisecond
    while some := list(itertools.islice(tasks, 1000)):
        for task in some:
            forget_record(task, name)
            unmark(task, name)
        await asyncio.sleep(0)
