"""The scheduler plugin, which logs distributed's events for the client.

Task attempts are logged in `attempts`, and the plugin is removed in `plugin_lifetime`. This module may be pickled by
value, so its functions must not import any of our modules by name, except for the display.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from roastcoffea.backends.attempts import Attempts, Problems, TasksOfRun
from roastcoffea.backends.limits import usage
from roastcoffea.backends.plugin_lifetime import Stay, clear_tasks, forget_span, metrics_of_span
from roastcoffea.log.kinds import (
    ARRIVAL,
    CHUNK,
    CLOSING,
    COUNTED,
    DEPARTURE,
    JOB,
    KILLED,
    LEFT,
    NO_SIZE,
    PAUSE,
    PROCESS_CPU,
    RESUMED,
    SAMPLING,
    USAGE,
    WORKER_STATE_FIELDS,
    LogWriter,
    Samples,
    packing,
)


class Addition:
    """Base class for additional recorders in a plugin."""

    def start(self, plugin: ClusterPlugin) -> None:
        """Start recording on this plugin's scheduler, possibly taking over transition handling."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """Handle a message from our plugin on a worker."""

    def departed(self, address: str) -> None:
        """Handle a worker's departure."""

    def moved(self, keys: Iterable[Any]) -> None:
        """Handle Dask's request that a worker drop its copies of these results."""

    def before_drain(self) -> int:
        """Write pending records to the log; return how many are left."""
        return 0

    async def before_end(self, timeout: float) -> None:
        """Fetch the workers' remaining reports."""

    def end(self) -> None:
        """Stop recording."""


class ClusterPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Scheduler plugin that records tasks and workers until its client stops it or is gone.

    Parameters
    ----------
    name : str
        Name of this plugin, of its worker plugin, and of the topic for worker events.
    client : str
        ID of the client. When the client is gone, the plugin removes itself.
    token : str
        Token that identifies our own messages, because anyone may write to the topic.
    run : TasksOfRun or None
        The run whose tasks are recorded, or None to record every task.
    interval : float or None
        Seconds between samples of the workers and the scheduler's state, or None to take no samples.
    loss : str or None
        Data missing from the measurement if a worker is lost.
    additions : tuple of Addition
        Additional recorders.

    Attributes
    ----------
    first_text : int
        Number of strings that the client received from an earlier plugin with this name that gave up on the client.
    silent_since : float or None
        Time when the client last received anything from the earlier plugin (scheduler clock); None if there was no
        earlier plugin.
    leave_spans : bytes or None
        Pickled function that removes the spans' counts from workers, or None to leave the counts there.
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
        self.scheduler, self.log = scheduler, log
        if self.silent_since is not None:
            log.write_fields(RESUMED, self.silent_since, time.time())
        self.problems = Problems(log)
        self.refused = 0
        self.attempts = attempts(self.name, scheduler, log, self.problems, self.run)
        self.workers = Workers(self.name, scheduler, log, self._note_lost)
        self.transition = self.attempts.transition  # bound directly to save a call: each task has five transitions
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
            # topic on which Dask's nannies report that they are killing a worker because of its memory use
            elif topic == "worker-restart-memory":
                self.workers.killed(msg)
            elif topic in self.workers.here:
                self.workers.changed(topic, msg)
                # e.g. when results are moved to another worker
                if isinstance(msg, dict) and msg.get("action") == "remove-worker-data":
                    for addition in self.additions:
                        addition.moved(msg["keys"])
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
        """ID of the span to remove with the plugin, and `leave_spans`; None if there is no span."""
        if self.run is None or self.run.span is None or self.leave_spans is None:
            return None
        return self.run.span, self.leave_spans

    # requests from the client

    def drain(self, limit: int, received: int, question: bytes | None = None) -> dict[str, Any]:
        """Return the oldest entries of the log.

        Parameters
        ----------
        question : bytes, optional
            Pickled function to call with `dask_scheduler` in the same request.

        Returns
        -------
        dict
            Result of `LogWriter.drain`, `failures` (number of errors inside this plugin so far), `refused` (number of
            messages from other senders so far), `pending` (number of entries still to be written), `reply` (to the
            question), `requested` (number of workers requested from a Dask Gateway), and `time` (scheduler clock).
        """
        self.stay.client_asked()
        pending = sum(addition.before_drain() for addition in self.additions)
        counts = {"failures": self.problems.failures, "refused": self.refused, "pending": pending}
        reply = None if question is None else pickle.loads(question)(dask_scheduler=self.scheduler)
        requested = requested_of_gateway(self.scheduler)
        return self.log.drain(limit, received) | counts | {"reply": reply, "requested": requested, "time": time.time()}

    async def finish(self, flush: bytes, timeout: float, limit: int, received: int) -> dict[str, Any]:
        """Make every worker report immediately; return span metrics and the oldest entries.

        Returns
        -------
        dict
            Results of `metrics_of_span` and `drain`; `of_others`: number of attempts at other users' tasks that Dask
            counted in the same spans; `attempts`: number of attempts by kind; `spans`: IDs of the spans with the run's
            tasks; and `counted`: each current worker's counts, as keys and amounts. Counts of departed workers are in
            the log.
        """
        for addition in self.additions:
            await addition.before_end(timeout)
        attempts, workers = self.attempts, self.workers
        span = self.run and self.run.span
        answer = await metrics_of_span(flush, span, timeout, self.scheduler, attempts.elsewhere, self.name)
        attempts.write_unfinished(answer.pop("running"))
        for address, counts in answer.pop("counted").items():
            if address in workers.here:  # counts of workers that have since left are in the log
                workers.counted[address] = counts
        # wait at most 2 s for the last messages from retired workers
        await workers.last_messages(min(timeout, 2.0))
        self.problems.note_rest()
        answer["counted"] = [(address, list(counts.items())) for address, counts in workers.counted.items()]
        self.sample()
        if self.interval:
            self.workers.states.take(workers.here, 0.0, 0)
        last = {"of_others": attempts.of_others, "attempts": attempts.by_kind()}
        return answer | self.drain(limit, received) | last

    async def stop(self, wait: float = 0.0) -> None:
        """Restore the scheduler and the workers, waiting up to `wait` seconds for the workers."""
        await self.stay.leave(wait)

    # implementation

    def sample(self) -> None:
        now = time.time()
        for address, state in self.workers.here.items():
            try:
                self.workers.samples.take(address, state, now)
            except Exception as problem:  # noqa: BLE001  (continue with the other workers)
                self.problems.failed(problem)

    def tick(self, number: int, late: float, missed: int) -> None:
        """Sample the workers, and forget departed workers whose last message is overdue.

        The first tick skips the workers' reports, because they predate the recording.
        """
        try:
            if self.interval:
                self.workers.states.take(self.workers.here, late, missed)
                if number:
                    self.sample()
            self.workers.forget_overdue()
        except Exception as problem:  # noqa: BLE001  (the ticker must continue)
            self.problems.failed(problem)

    def ended(self) -> None:
        for addition in self.additions:
            addition.end()

    def open_keys(self) -> Iterable[Any]:
        return self.attempts.open_keys

    def _arrived(self, address: str) -> None:
        self.attempts.had_tasks(address, self.workers.arrived(address).processing)

    def _note_lost(self, address: str) -> None:
        if self.loss is not None:
            self.problems.note(f"{address} was lost: {self.loss}")

    def take_chunk(self, message: Mapping[str, Any]) -> None:
        self.log.write(CHUNK, message["chunk"])
        self.attempts.recorded(*message["of"])

    def _take_message(self, message: Any) -> None:
        token = message.get("token") if isinstance(message, dict) else None
        if type(token) is not str or token != self.token:
            self.refused += 1
            return
        if "chunk" in message:
            self.take_chunk(message)
        self.workers.reported(message)
        if "failed" in message:
            self.attempts.failing(message)
        if "problem" in message:
            self.problems.note(message["problem"])
        for addition in self.additions:
            addition.reported(message)


def requested_of_gateway(scheduler: Any) -> int | None:
    """Number of workers requested from a Dask Gateway, by hand or adaptively; None on other clusters."""
    services = (getattr(plugin, "service", None) for plugin in scheduler.plugins.values())
    return next((getattr(one, "count", None) for one in services if hasattr(one, "active_workers")), None)


async def register(plugin: ClusterPlugin, worker_plugin: bytes, timeout: float, dask_scheduler: Any = None) -> None:
    """Install the plugins; slow workers receive the worker plugin later."""
    named = {"name": plugin.name, "idempotent": True}
    await dask_scheduler.register_scheduler_plugin(plugin=plugin, **named)
    registering = asyncio.ensure_future(dask_scheduler.register_worker_plugin(None, plugin=worker_plugin, **named))
    registering.add_done_callback(note_failure)
    await asyncio.wait([registering], timeout=timeout)


def note_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger(__name__).info("the worker plugin was not set up everywhere: %s", task.exception())


async def remove_plugin(name: str, patience: float, span: tuple[str, bytes] | None, dask_scheduler: Any = None) -> None:
    """Remove a plugin, or restore the scheduler if the plugin is already gone."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        await clear_tasks(dask_scheduler, name)
        if span is not None:
            dask_scheduler.loop.add_callback(forget_span, dask_scheduler, *span)
    else:
        await plugin.stop(patience)


async def call_plugin(name: str, method: str, arguments: Mapping[str, Any], dask_scheduler: Any = None) -> Any:
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:
        return None
    result = getattr(plugin, method)(**arguments)
    return await result if asyncio.iscoroutine(result) else result


PAUSED = "paused"
"""Status of a worker that is too short on memory to start tasks or fetch their inputs."""


class Workers:
    """Logs the arrivals, departures, pauses and last messages of workers.

    Parameters
    ----------
    lost : callable
        Called with the address of each worker that left without sending a last message.

    Attributes
    ----------
    here : dict
        Dask's state object for each current worker, by address.
    counted : dict
        Counts that each current worker has reported so far, by address.
    """

    def __init__(self, name: str, scheduler: Any, log: LogWriter, lost: Callable[[str], None]) -> None:
        self.here: dict[str, Any] = {}
        self.counted: dict[str, dict[Any, float]] = {}
        self.samples = Samples(name, log)
        self.states = States(scheduler, log)
        self._scheduler = scheduler
        self._log = log
        self._lost = lost
        self._departed: dict[str, float] = {}
        self._retired: set[str] = set()
        self._finished: set[str] = set()
        self._paused: set[str] = set()
        self._closing: set[str] = set()

    # events from the scheduler

    def arrived(self, address: str) -> Any:
        state = self.here[address] = self._scheduler.workers[address]
        texts = map(self._log.number, (address, str(state.name), state.host))
        self._log.write_fields(ARRIVAL, *texts, time.time(), state.nthreads, state.memory_limit or 0, state.pid)
        self._note_pause(address, state.status.name)
        return state

    def departed(self, address: str) -> None:
        now = time.time()
        self.samples.take(address, self.here.pop(address), now)
        self.samples.sampled.pop(address, None)
        self._paused.discard(address)
        self._closing.discard(address)
        self._log.write_fields(DEPARTURE, self._log.number(address), now)
        counts = self.counted.pop(address, None)
        if counts:
            self._write_counted(address, counts)
        if address in self._finished:
            self._settle(address)
        else:
            self._departed[address] = now

    def removed(self, message: Any) -> None:
        """Handle Dask's report that a worker was retired rather than lost."""
        if isinstance(message, dict) and message.get("action") == "remove-worker" and message.get("expected"):
            address = message.get("worker")
            if address in self.here or address in self._departed:
                self._retired.add(address)

    def changed(self, address: str, message: Any) -> None:
        if isinstance(message, dict) and message.get("action") == "worker-status-change":
            status = message.get("status")
            self._note_pause(address, status)
            # statuses of a worker that has begun to close
            if status in ("closing", "closing_gracefully"):
                self._note_closing(address)

    def killed(self, message: Any) -> None:
        """Handle a nanny's report that it is killing a worker because of its memory use.

        The report may arrive after the worker's departure.
        """
        if isinstance(message, dict):
            worker, memory = message.get("worker"), message.get("rss")
            if isinstance(worker, str) and isinstance(memory, int):
                self._log.write_fields(KILLED, self._log.number(worker), time.time(), memory)

    def reported(self, message: Mapping[str, Any]) -> None:
        address = message.get("worker", "")
        if "cpu_seconds" in message:
            loads = json.dumps(message.get("loads", [])).encode()
            self._log.write_fields(PROCESS_CPU, self._log.number(address), message["cpu_seconds"], then=loads)
        if "digests" in message:
            counts = {tuple(key): value for key, value in message["digests"]}
            if address in self.here:
                self.counted[address] = counts
            else:
                self._write_counted(address, counts)
        if "job" in message:
            known = json.dumps(message["job"]).encode()
            self._log.write_fields(JOB, self._log.number(address), time.time(), then=known)
        if "last" in message and address in self.here:
            self._note_closing(address)
            self._finished.add(address)
        elif "last" in message:
            self._settle(address)

    # workers that have left

    async def last_messages(self, timeout: float) -> None:
        """Wait for the last messages from retired workers.

        The scheduler removes these workers before they have sent their counts.
        """
        deadline = time.monotonic() + timeout
        while self._departed.keys() & self._retired and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for address in sorted(self._departed):
            self._lost(address)

    def forget_overdue(self) -> None:
        # a retired worker may still send its last message up to 30 s after its departure
        latest = time.time() - 30.0
        for address in [address for address, left in self._departed.items() if left < latest]:
            self._settle(address)
            self._lost(address)

    # implementation

    def _settle(self, address: str) -> None:
        """Forget a worker that has left and will send no more messages."""
        self._departed.pop(address, None)
        self._finished.discard(address)
        self._retired.discard(address)

    def _note_pause(self, address: str, status: str | None) -> None:
        paused = status == PAUSED
        if paused != (address in self._paused):
            (self._paused.add if paused else self._paused.discard)(address)
            self._log.write_fields(PAUSE, self._log.number(address), time.time(), paused)

    def _note_closing(self, address: str) -> None:
        if address in self.here and address not in self._closing:
            self._closing.add(address)
            self._log.write_fields(CLOSING, self._log.number(address), time.time())

    def _write_counted(self, address: str, counts: Mapping[Any, float]) -> None:
        """Log Dask's counts for a worker that has left; later entries take precedence."""
        amounts = zlib.compress(json.dumps(list(counts.items()), default=str).encode(), 1)
        self._log.write_fields(COUNTED, self._log.number(address), then=amounts)


class States:
    """Logs the scheduler's view of its workers.

    Only the changes since the previous sample are logged, because most workers do not change.
    """

    def __init__(self, scheduler: Any, log: LogWriter) -> None:
        self._scheduler = scheduler
        self._log = log
        self._pack = struct.Struct(packing(WORKER_STATE_FIELDS)).pack
        self._written: dict[str, bytes] = {}
        self._whole = True

    def take(self, workers: Mapping[str, Any], late: float, missed: int) -> None:
        """Log a sample that is `late` seconds late and follows `missed` missed samples."""
        log, pack, written, now = self._log, self._pack, self._written, time.time()
        if not log.has_room(SAMPLING):
            written.clear()
            self._whole = True
            return
        rows = []
        for address, state in workers.items():
            row = pack(log.number(address), len(state.processing), state.nbytes, state.occupancy)
            if row != written.get(address):
                written[address] = row
                rows.append(row)
        if len(written) > len(workers):
            for address in [address for address in written if address not in workers]:
                del written[address]
                rows.append(pack(log.number(address), LEFT, 0, 0.0))
        fixed = struct.pack(SAMPLING.packing, now, late, missed, len(workers), self._whole)
        log.append(SAMPLING, b"".join((fixed, *rows)))
        log.write_fields(USAGE, *usage(), getattr(self._scheduler, "transition_counter", NO_SIZE))
        self._whole = False


SHOWN_BY = "roastcoffea.recording.facility.display"
"""Module that displays runs, imported from the scheduler's own installation if it is available there."""


class Display(Addition):
    """Displays the run on the scheduler while the collector's plugin is installed."""

    def start(self, plugin: ClusterPlugin) -> None:
        self._plugin = plugin
        self._shown_by: Any = None
        self._joining = asyncio.ensure_future(self._join())

    def end(self) -> None:
        self._joining.cancel()
        if self._shown_by is not None:
            self._shown_by.leave(self._plugin.scheduler, self._plugin.name)

    async def _join(self) -> None:
        """Join the display, whose module is loaded in a thread to keep the event loop free.

        If the scheduler does not have the module, nothing is displayed.
        """
        try:
            # do not use sys.modules, where the module is only half loaded while another collector's thread imports it
            module: Any = await asyncio.to_thread(import_module, SHOWN_BY)
            await asyncio.to_thread(module.load, self._plugin.scheduler)
            module.join(self._plugin.scheduler, self._plugin.name, self._plugin.token)
            self._shown_by = module
        except Exception as problem:  # noqa: BLE001  (a run is measured even if it cannot be shown)
            logging.getLogger(__name__).debug("the scheduler does not show the run: %s", problem)
