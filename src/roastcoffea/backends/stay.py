"""How long a plugin stays on a scheduler, and how it restores scheduler and workers when it leaves.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

from roastcoffea.backends.past_spans import forget_span
from roastcoffea.generations.distributed import event_topics
from roastcoffea.log.marks import clear_metadata, forget_record, unmark

TICK = 1.0
"""Seconds between checks if no worker is sampled."""

CLIENT_GRACE = 2.0
"""Seconds for a client that lost its connection to return."""

LONGEST_SILENCE = 120.0
"""Seconds without a drain after which the plugin gives up on its client."""

LATEST_EVENT = 2.0
"""Latest seconds for an event of a worker after its plugin is gone."""

SWEEP = 1000
"""Tasks cleared of our marks at a time, which blocks the scheduler for less than a millisecond."""


class Resident(Protocol):
    """A plugin on a scheduler."""

    name: str
    client: str
    interval: float | None
    scheduler: Any

    @property
    def span(self) -> tuple[str, bytes] | None:
        """Identity of the span of its run, and what removes its counts from workers; None if there is none."""

    def tick(self, number: int, late: float, missed: int) -> None:
        """Do the work of this interval; it is late by these seconds, and some intervals may have been missed."""

    def ended(self) -> None:
        """Do nothing more."""

    def open_keys(self) -> Iterable[Any]:
        """Keys of active tasks."""


class Stay:
    """Decides how long a plugin stays: until it is asked to leave, its client is gone, or nobody drains it."""

    def __init__(self, plugin: Resident) -> None:
        self.alive = True
        self._plugin = plugin
        self._name = plugin.name
        self._scheduler = plugin.scheduler
        self._drained = time.time()
        self._grace: Any = None
        self._closing: set[Any] = set()
        self._ticker = asyncio.ensure_future(self._tick(plugin.interval or TICK))

    def client_asked(self) -> None:
        """Note that the client is still draining."""
        self._drained = time.time()

    def client_left(self, client: str) -> None:
        """Note that a client lost its connection: ours may return."""
        if client == self._plugin.client and self.alive:
            self._grace = asyncio.get_running_loop().call_later(CLIENT_GRACE, self._leave_without_client)

    def end(self) -> None:
        """Do nothing more on this scheduler."""
        self.alive = False
        self._ticker.cancel()
        if self._grace is not None:
            self._grace.cancel()
        self._plugin.ended()

    async def leave(self, wait: float = 0.0, *, may_return: bool = False) -> None:
        """Restore the scheduler and the workers.

        Parameters
        ----------
        wait
            Most seconds to wait for the workers.
        may_return
            Whether the client may come back: its tasks keep their marks, by which another plugin knows them.
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
            missed = int(late / interval)  # the loop was blocked for this many intervals
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
        """Run this in the background, protected from garbage collection until it ends."""
        future = asyncio.ensure_future(work)
        self._closing.add(future)
        future.add_done_callback(self._closing.discard)
        return future

    async def _leave_workers(self) -> None:
        try:
            await self._scheduler.unregister_worker_plugin(None, self._name)
        except (OSError, ValueError) as problem:
            logging.getLogger(__name__).info("a worker left while %s was removed: %s", self._name, problem)
        finally:
            # a chunk that ended as the plugin left may have sent its record: it arrives late, by another path
            asyncio.get_running_loop().call_later(LATEST_EVENT, self._forget_late)

    def _forget_late(self) -> None:
        """Forget entries that arrived after the plugin left."""
        self._forget_topic()
        for key in self._plugin.open_keys():
            task = self._scheduler.tasks.get(key)
            if task is not None:
                clear_metadata(task, self._name)

    def _forget_topic(self) -> None:
        """Forget the events of this name, which the scheduler would keep forever."""
        event_topics(self._scheduler).pop(self._name, None)


async def clear_tasks(scheduler: Any, name: str) -> None:
    """Remove a collector's mark from the tasks that the user keeps, in batches."""
    tasks = iter(list(scheduler.tasks.values()))
    while some := list(itertools.islice(tasks, SWEEP)):
        for task in some:
            forget_record(task, name)
            unmark(task, name)
        await asyncio.sleep(0)
