"""The scheduler plugin: it records distributed's events in a log for the client.

Entries of tasks and workers are in modules of their own (`attempts`, `workers`), as is the plugin's removal (`stay`).
This module may be pickled by value. It uses the standard library, `records`, `log` and distributed, and imports no
module of ours by name.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.attempts import Attempts, TasksOfRun
from roastcoffea.backends.stay import Stay, ask_workers, clear_tasks, described, forget_span, metrics_of_span
from roastcoffea.backends.workers import ENDED_BY_NANNY, Workers
from roastcoffea.log.kinds import CHUNK, RESUMED, LogWriter, Problems

LAST_REPORT = 2.0
"""Seconds to wait at the end for the last reports of retired workers."""


class Addition:
    """Something that a plugin records in addition to attempts and workers, through these callbacks."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Start on the scheduler of this plugin; it may take over the plugin's transitions."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """Handle a message of our plugin on a worker."""

    def departed(self, address: str) -> None:
        """Handle the departure of a worker."""

    def moved(self, keys: Iterable[Any]) -> None:
        """Handle an order to a worker to drop its copies of these results."""

    def before_drain(self) -> int:
        """Put pending records into the log; return the number still to be written."""
        return 0

    async def before_end(self, timeout: float) -> None:
        """Fetch the remaining reports of workers."""

    def end(self) -> None:
        """Do nothing more."""


class ClusterPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Records tasks and workers for one client, until the client stops it or is gone.

    Parameters
    ----------
    name : str
        Name of this plugin, of the worker plugin that belongs to it, and of the topic of worker events.
    client : str
        Identity of the client; once it is gone, the plugin removes itself.
    token : str
        Mark of our own messages: others may write to its topic, by accident or not.
    run : TasksOfRun or None
        The run whose tasks are recorded; None for every task.
    interval : float or None
        Seconds between samples of the workers and of the scheduler's state; None for no samples.
    loss : str or None
        What is missing for a lost worker.
    additions : tuple of Addition
        Additional recorders.

    Attributes
    ----------
    first_text : int
        Texts that the client has from an earlier plugin of this name, which gave up on it.
    silent_since : float or None
        Since when it has nothing from that (this clock); None for the first plugin.
    leave_spans : bytes or None
        Pickle of the function that removes the counts of spans from workers; without it they stay.
    """

    idempotent = True

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        client: str,
        token: str,
        run: TasksOfRun | None,
        interval: float | None = None,
        loss: str | None = None,
        additions: tuple[Addition, ...] = (),
    ) -> None:
        self.first_text = 0
        self.silent_since: float | None = None
        self.leave_spans: bytes | None = None
        self.name = name
        self.client = client
        self.token = token
        self.run = run
        self.interval = interval
        self.loss = loss
        self.additions = additions

    async def start(self, scheduler: Any) -> None:
        self.begin(scheduler, LogWriter(first_text=self.first_text))
        for addition in self.additions:
            addition.start(self)
        if self.silent_since is not None:
            self.attempts.take_waiting_records()
        self.stay = Stay(self)

    def begin(self, scheduler: Any, log: LogWriter, attempts: Callable[..., Attempts] = Attempts) -> None:
        """Record in a log from now on, with attempts of this class."""
        self.scheduler, self.log = scheduler, log
        if self.silent_since is not None:
            log.write_fields(RESUMED, self.silent_since, time.time())
        self.problems = Problems(log)
        self.refused = 0
        self.attempts = attempts(self.name, scheduler, log, self.problems, self.run)
        self.workers = Workers(self.name, scheduler, log, self.problems, self._note_lost)
        self.transition = self.attempts.transition  # without another call: a task has five transitions
        for address in list(scheduler.workers):
            self._arrived(address)

    # events from distributed

    def add_worker(self, scheduler: Any, worker: str) -> None:
        try:
            self._arrived(worker)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self.problems.failed(problem)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        try:
            self.workers.departed(worker)
            for addition in self.additions:
                addition.departed(worker)
        except Exception as problem:  # noqa: BLE001  (as above)
            self.problems.failed(problem)

    def restart(self, scheduler: Any) -> None:
        self.attempts.restarted()

    def log_event(self, topic: str, msg: Any) -> None:
        try:
            if topic == self.name:
                self._take_message(msg)
            elif topic == "stealing":
                self.attempts.stolen(msg)
            elif topic == ENDED_BY_NANNY:
                self.workers.killed(msg)
            elif topic in self.workers.here:
                self.workers.changed(topic, msg)
                self._take_moved(msg)
            elif topic == "all":
                self.workers.removed(msg)
        except Exception as problem:  # noqa: BLE001  (as above)
            self.problems.failed(problem)

    def remove_client(self, scheduler: Any, client: str) -> None:
        self.stay.client_left(client)

    async def close(self) -> None:
        self.stay.end()

    @property
    def span(self) -> tuple[str, bytes] | None:
        """What is to be removed with the run; None if nothing is."""
        if self.run is None or self.run.span is None or self.leave_spans is None:
            return None
        return self.run.span, self.leave_spans

    # requests of the client

    def drain(self, limit: int, received: int, question: bytes | None = None) -> dict[str, Any]:
        """Return the oldest entries of the log.

        Parameters
        ----------
        question : bytes, optional
            Pickle of a function to call with `dask_scheduler` at the same moment.

        Returns
        -------
        dict
            Result of `LogWriter.drain`, `failures` (errors inside this plugin so far), `refused` (messages of others so
            far), `pending` (entries still to be written), `reply` (to the question), and `time` (this clock).
        """
        self.stay.client_asked()
        pending = sum(addition.before_drain() for addition in self.additions)
        counts = {"failures": self.problems.failures, "refused": self.refused, "pending": pending}
        reply = None if question is None else pickle.loads(question)(dask_scheduler=self.scheduler)
        return self.log.drain(limit, received) | counts | {"reply": reply, "time": time.time()}

    async def finish(self, flush: bytes, timeout: float, limit: int, received: int) -> dict[str, Any]:
        """Have every worker report now, and return the metrics of the span and the oldest entries of the log.

        Returns
        -------
        dict
            Results of `metrics_of_span` and `drain`; `of_others`: attempts of other users' tasks that Dask counted in
            the same spans; `attempts`: their number by kind; `spans`: identities of the spans with tasks of the run;
            and `counted`: key and amount of all counts of each present worker (those of the others are in the log).
        """
        for addition in self.additions:
            await addition.before_end(timeout)
        attempts, workers = self.attempts, self.workers
        span = self.run and self.run.span
        answer = await metrics_of_span(flush, span, timeout, self.scheduler, attempts.elsewhere, self.name)
        attempts.write_unfinished(answer.pop("running"))
        for address, counts in answer.pop("counted").items():
            if address in workers.here:  # counts of workers that left meanwhile are in the log
                workers.counted[address] = counts
        await workers.last_messages(min(timeout, LAST_REPORT))
        self.problems.note_rest()
        answer["counted"] = [(address, list(counts.items())) for address, counts in workers.counted.items()]
        self.sample()
        if self.interval:
            self.workers.states.take(workers.here, 0.0, 0)
        last = {"of_others": attempts.of_others, "attempts": attempts.by_kind()}
        return answer | self.drain(limit, received) | last

    async def ask(self, flush: bytes, timeout: float) -> dict[str, Any]:
        """Facts about the workers, in the form of `described`."""
        return described(*await ask_workers(self.scheduler, flush, {}, timeout))

    async def stop(self, wait: float = 0.0) -> None:
        """Restore the scheduler and the workers; wait at most this many seconds for the workers."""
        await self.stay.leave(wait)

    # implementation

    def sample(self) -> None:
        """Write a sample of each worker that has reported since its last one."""
        self.workers.samples.take(self.workers.here)

    def tick(self, number: int, late: float, missed: int) -> None:
        """Sample the workers, and give up on those that will send nothing more.

        Workers' reports are not sampled at the first tick: they are older.
        """
        try:
            if self.interval:
                self.workers.states.take(self.workers.here, late, missed)
                if number:
                    self.sample()
            self.workers.forget_overdue()
        except Exception as problem:  # noqa: BLE001  (the ticker must go on)
            self.problems.failed(problem)

    def ended(self) -> None:
        """Stop recording."""
        for addition in self.additions:
            addition.end()

    def open_keys(self) -> Iterable[Any]:
        """Keys of active tasks."""
        return self.attempts.open_keys

    def _arrived(self, address: str) -> None:
        self.attempts.had_tasks(address, self.workers.arrived(address).processing)

    def _note_lost(self, address: str) -> None:
        if self.loss is not None:
            self.problems.note(f"{address} was lost: {self.loss}")

    def _take_moved(self, message: Any) -> None:
        """Handle Dask's event that a worker drops results, as when they are moved to another one."""
        match message:
            case {"action": "remove-worker-data", "keys": keys}:
                for addition in self.additions:
                    addition.moved(keys)

    def _take_message(self, message: Any) -> None:
        """Handle a message of our own worker plugins; other messages to this topic are refused."""
        token = message.get("token") if isinstance(message, dict) else None
        if type(token) is not str or token != self.token:
            self.refused += 1
            return
        if "chunk" in message:
            self.log.write(CHUNK, message["chunk"])
            self.attempts.recorded(*message["of"])
        self.workers.reported(message)
        if "failed" in message:
            self.attempts.failing(message)
        if "problem" in message:
            self.problems.note(message["problem"])
        for addition in self.additions:
            addition.reported(message)


async def register(plugin: ClusterPlugin, worker_plugin: bytes, timeout: float, dask_scheduler: Any = None) -> None:
    """Install the plugins; a worker that does not answer in time gets its plugin later."""
    named = {"name": plugin.name, "idempotent": True}
    await dask_scheduler.register_scheduler_plugin(plugin=plugin, **named)
    registering = asyncio.ensure_future(dask_scheduler.register_worker_plugin(None, plugin=worker_plugin, **named))
    registering.add_done_callback(note_failure)
    await asyncio.wait([registering], timeout=timeout)


def note_failure(task: asyncio.Future[Any]) -> None:
    """Log on the scheduler that a worker could not be reached."""
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger(__name__).info("a worker plugin was not set up everywhere: %s", task.exception())


async def remove_plugin(name: str, patience: float, span: tuple[str, bytes] | None, dask_scheduler: Any = None) -> None:
    """Have a plugin restore scheduler and workers; if it gave up on the client, restore what it left to it."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        await clear_tasks(dask_scheduler, name)
        if span is not None:
            dask_scheduler.loop.add_callback(forget_span, dask_scheduler, *span)
    else:
        await plugin.stop(patience)


async def call_plugin(name: str, method: str, arguments: Mapping[str, Any], dask_scheduler: Any = None) -> Any:
    """Call a method of one of our plugins; None if the plugin is gone."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        return None
    result = getattr(plugin, method)(**arguments)
    return await result if asyncio.iscoroutine(result) else result
