"""The plugin on the scheduler: it passes on what distributed tells, and gives the client the log of it.

What is written of tasks and workers is in modules of their own (`attempts`, `workers`), as is how it leaves (`stay`).
This module may be pickled by value. It uses the standard library, `records`, `log` and distributed, and no module of
ours by its name.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Iterable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.attempts import Attempts, TasksOfRun
from roastcoffea.backends.stay import Stay
from roastcoffea.backends.survey import ask_workers, described, metrics_of_span
from roastcoffea.backends.workers import ENDED_BY_NANNY, Workers
from roastcoffea.log.kinds import CHUNK
from roastcoffea.log.writer import LogWriter, Problems

LAST_WORD = 2.0
"""Seconds that the end waits for what a worker that was retired has still to report."""


class Addition:
    """What a plugin records beside attempts and workers; each method is called at its occasion."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Begin on the scheduler of this plugin; it may take the plugin's transitions first."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """Take a message of our plugin on a worker."""

    def departed(self, address: str) -> None:
        """Learn that a worker left."""

    def moved(self, keys: Iterable[Any]) -> None:
        """Learn that a worker was told to drop its copies of these results."""

    def before_drain(self) -> int:
        """Put what waits into the log; give how many things are still to be written."""
        return 0

    async def before_end(self, timeout: float) -> None:
        """Fetch what workers have still to report."""

    def end(self) -> None:
        """Do nothing more."""


class ClusterPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Records tasks and workers for one client, until it has enough or is gone.

    Parameters
    ----------
    name : str
        Name of this plugin, of the worker plugin that belongs to it, and of the topic of worker events.
    client : str
        Identity of the client; when it is gone for good the plugin removes itself.
    token : str
        What our own messages carry: others may write to its topic, by accident or not.
    run : TasksOfRun or None
        The run whose tasks are recorded; None for every task.
    interval : float or None
        Seconds between samples of the workers and of what the scheduler knows of them; None for no samples.
    loss : str or None
        What is missing of a worker that is lost.
    additions : tuple of Addition
        What is recorded besides.
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
        self.name = name
        self.client = client
        self.token = token
        self.run = run
        self.interval = interval
        self.loss = loss
        self.additions = additions

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.log = LogWriter()
        self.problems = Problems(self.log)
        self.refused = 0
        self.attempts = Attempts(self.name, scheduler, self.log, self.problems, self.run)
        self.workers = Workers(self.name, scheduler, self.log, self.problems, self._note_lost)
        self.transition = self.attempts.transition  # without a call between: a task has five
        for address in list(scheduler.workers):
            self._arrived(address)
        for addition in self.additions:
            addition.start(self)
        self.stay = Stay(self)

    # what the scheduler tells

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

    # what the client asks

    def drain(self, limit: int, received: int, question: bytes | None = None) -> dict[str, Any]:
        """Give the oldest entries of the log.

        Parameters
        ----------
        question : bytes, optional
            Pickle of a function that is called with `dask_scheduler` at the same moment.

        Returns
        -------
        dict
            What `LogWriter.drain` gives, `failures` (errors inside this plugin so far), `refused` (messages of others
            so far), `pending` (what is still to be written), `reply` (to the question), and `time` (this clock).
        """
        self.stay.client_asked()
        pending = sum(addition.before_drain() for addition in self.additions)
        counts = {"failures": self.problems.failures, "refused": self.refused, "pending": pending}
        reply = None if question is None else pickle.loads(question)(dask_scheduler=self.scheduler)
        return self.log.drain(limit, received) | counts | {"reply": reply, "time": time.time()}

    async def finish(self, flush: bytes, timeout: float, limit: int, received: int) -> dict[str, Any]:
        """Have every worker report now, and give the metrics of the span and the oldest entries of the log.

        Returns
        -------
        dict
            What `metrics_of_span` and `drain` give, `of_others`: attempts of tasks of others that Dask counted in
            the same spans; `attempts`: how many there were of each kind; `spans`: identities of the spans that have
            tasks of the run; and `counted`: for each worker that is here, the key and amount of all that it counted
            (that of the others is in the log).
        """
        for addition in self.additions:
            await addition.before_end(timeout)
        attempts, workers = self.attempts, self.workers
        span = self.run and self.run.span
        answer = await metrics_of_span(flush, span, timeout, self.scheduler, attempts.elsewhere, self.name)
        attempts.write_unfinished(answer.pop("running"))
        for address, counts in answer.pop("counted").items():
            if address in workers.here:  # of one that left meanwhile they are in the log
                workers.counted[address] = counts
        await workers.last_words(min(timeout, LAST_WORD))
        self.problems.note_rest()
        answer["counted"] = [(address, list(counts.items())) for address, counts in workers.counted.items()]
        self.sample()
        if self.interval:
            self.workers.states.take(workers.here, 0.0, 0)
        last = {"of_others": attempts.of_others, "attempts": attempts.by_kind()}
        return answer | self.drain(limit, received) | last

    async def ask(self, flush: bytes, timeout: float) -> dict[str, Any]:
        """What the workers are, as `described` gives it."""
        return described(*await ask_workers(self.scheduler, flush, {}, timeout))

    async def stop(self, wait: float = 0.0) -> None:
        """Leave the scheduler and the workers as they were; wait at most so many seconds for the workers."""
        await self.stay.leave(wait)

    # how it does that

    def sample(self) -> None:
        """Write a sample of each worker that has reported since its last one."""
        self.workers.samples.take(self.workers.here)

    def tick(self, number: int, late: float, missed: int) -> None:
        """Sample the workers, and give up those of which nothing more will come.

        What workers have reported is not sampled at the first tick: it is of before.
        """
        try:
            if self.interval:
                self.workers.states.take(self.workers.here, late, missed)
                if number:
                    self.sample()
            self.workers.give_up_departed()
        except Exception as problem:  # noqa: BLE001  (the ticker must go on)
            self.problems.failed(problem)

    def ended(self) -> None:
        """Record no more."""
        for addition in self.additions:
            addition.end()

    def open_keys(self) -> Iterable[Any]:
        """Keys of the tasks that go on."""
        return self.attempts.open_keys

    def _arrived(self, address: str) -> None:
        self.attempts.arrived_with(address, self.workers.arrived(address).processing)

    def _note_lost(self, address: str) -> None:
        if self.loss is not None:
            self.problems.note(f"{address} was lost: {self.loss}")

    def _take_moved(self, message: Any) -> None:
        """Take Dask's event that a worker drops results, as it does when they are moved to another one."""
        match message:
            case {"action": "remove-worker-data", "keys": keys}:
                for addition in self.additions:
                    addition.moved(keys)

    def _take_message(self, message: Any) -> None:
        """Take a message of our own worker plugins; what others send to this topic is refused."""
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
    """Put the plugins in place; a worker that does not answer in time gets its plugin later."""
    named = {"name": plugin.name, "idempotent": True}
    await dask_scheduler.register_scheduler_plugin(plugin=plugin, **named)
    registering = asyncio.ensure_future(dask_scheduler.register_worker_plugin(None, plugin=worker_plugin, **named))
    registering.add_done_callback(note_failure)
    await asyncio.wait([registering], timeout=timeout)


def note_failure(task: asyncio.Future[Any]) -> None:
    """Leave a line in the log of the scheduler where a worker could not be reached."""
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger(__name__).info("a worker plugin was not set up everywhere: %s", task.exception())


async def call_plugin(name: str, method: str, arguments: Mapping[str, Any], dask_scheduler: Any = None) -> Any:
    """Call a method of a plugin of ours; None where the plugin is gone."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        return None
    result = getattr(plugin, method)(**arguments)
    return await result if asyncio.iscoroutine(result) else result
