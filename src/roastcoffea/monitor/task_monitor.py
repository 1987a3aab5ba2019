"""Record every task on a Dask cluster while it runs."""

from __future__ import annotations

import asyncio
import inspect
import operator
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from distributed import Client, Scheduler
from distributed.protocol.pickle import dumps

from roastcoffea.backends.base import checked_interval
from roastcoffea.backends.deployment import SCHEDULER_TIMEOUT, WORKERS_TIMEOUT, Connection, Deployment, NoAnswerError
from roastcoffea.backends.scheduler import Addition, ClusterPlugin
from roastcoffea.backends.worker import WorkerHalf
from roastcoffea.errors import RoastcoffeaError, error_text, reported
from roastcoffea.interrupts import Enterable, interrupts_held
from roastcoffea.log.byvalue import ByValue
from roastcoffea.monitor.history import ALL, FINISHED, FORGOTTEN, Snapshot, TaskLog, Watched
from roastcoffea.monitor.recorded import RecordedTasks
from roastcoffea.monitor.shown import live_rows, ticks
from roastcoffea.monitor.states import TaskStates
from roastcoffea.monitor.views import SEND_SECONDS, TaskViews, WorkerViews, send_views
from roastcoffea.redaction import redacted
from roastcoffea.report.live import NAME, LiveText
from roastcoffea.units import SECOND, counted, number

if TYPE_CHECKING:
    from typing_extensions import Self

PACE: Final = 0.25
"""Seconds between reads of the scheduler's records. Each read takes the scheduler about a millisecond."""

PATIENCE: Final = 10.0
"""Seconds to wait at the end for the remaining calls."""


LOSS: Final = f"its view of tasks may lack the last {SEND_SECONDS:g} s"

CENSUS_TIMEOUT: Final = 30.0
"""Maximum time that a snapshot waits for existing tasks to be recorded, in seconds.

The scheduler takes several seconds to record a million tasks.
"""


class Watch(Deployment):
    """Records one period between start and stop, and displays the records.

    `client` must be synchronous. `run_spec` is the maximum number of characters to send from a task's call.
    """

    def __init__(self, client: Any, worker_view: bool, run_spec: int) -> None:
        self.problems: list[str] = []
        self.tasks = TaskLog()
        super().__init__(Connection(client), f"roastcoffea-{uuid.uuid4().hex[:12]}", self.note, log=self.tasks.cluster)
        additions: tuple[Addition, ...] = (TaskStates(),)
        if worker_view:
            additions += (TaskViews(bytes(dumps(ByValue(send_views)))),)
        loss = LOSS if worker_view else None
        plugin = ClusterPlugin(self.name, client.id, self.token, None, loss=loss, additions=additions)
        self._plugins = (
            plugin,
            WorkerHalf(self.name, self.token, companion=WorkerViews(run_spec) if worker_view else None),
        )
        self.start = time.time()
        self._stop: float | None = None
        self._final: Watched | None = None

    def begin(self) -> None:
        self.open(lambda _: self._plugins)
        self.start = time.time()

    def end(self) -> None:
        self._stop = time.time()
        self.close(self._learn_silent, lambda _: None)

    # records, on the client's clock

    def watched(self) -> Watched:
        """Return the records so far. They are cached once the period has ended."""
        if self._final is not None:
            return self._final
        stop, offset = time.time() if self._stop is None else self._stop, self.clock_offset
        with self.reading:
            found = Watched(
                start=self.start,
                stop=stop,
                history=self.tasks.history(offset),
                attempts=self.log.attempts.table(offset),
                lifetimes=self.log.workers.lifetimes(offset, self.start, self.last_contact(self.start, stop)),
                views=self.tasks.views(offset),
                problems=self.notes(),
            )
        self._final = None if self._stop is None else found
        return found

    def notes(self) -> list[str]:
        return [*self.problems, *super().notes()]

    def note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def now(self, question: Callable[..., Any] | None = None) -> Snapshot:
        """Return the scheduler's current tasks, and its reply to a question at the same moment.

        Raises
        ------
        NoAnswerError
            If the scheduler does not respond, or no longer has the plugin.
        """
        asked = None if question is None else bytes(dumps(ByValue(question)))
        deadline = time.monotonic() + CENSUS_TIMEOUT
        while True:
            with self.reading:
                answer, offset = self.drain(asked), self.clock_offset
                if answer is None:
                    raise NoAnswerError("the monitor is no longer on the scheduler")
                if not answer["pending"] or time.monotonic() > deadline:
                    tasks, workers = self.tasks.last(offset).known(), self.log.workers.here
                    break
            time.sleep(0.01)
        return Snapshot(answer["time"] - offset, len(tasks.states), workers, lambda: tasks, answer["reply"])

    def text(self, *, whole: bool = False) -> str:
        """Format task counts by prefix and state. `whole` is True for the final text."""
        with suppress(NoAnswerError):  # missing records are fetched next time
            self.drain()
        with self.reading:
            counts, workers = self.tasks.count(), self.log.workers.here
        total = sum(each[ALL] for each in counts.values())
        seconds = SECOND.text(float(round(time.time() - self.start)))
        first = f"{NAME}  {seconds}, {counted(workers, 'worker')}, {counted(total, 'task')} so far"
        if not whole:
            gone = sum(each[FORGOTTEN] for each in counts.values())
            first += f", {number(total - gone)} on the scheduler"
        return "\n".join([first, *live_rows(counts, (FINISHED, ALL))])

    def _learn_silent(self, answer: Mapping[str, Any]) -> None:
        if silent := answer["silent"]:
            who = f"{counted(len(silent), 'worker')} did not answer within {WORKERS_TIMEOUT:g} s at the end"
            self.note(f"{who} ({', '.join(silent[:5])}): their last actions are unknown")


DETAILS: Final = ("time", "worker", "nbytes", "type")
"""Details passed to `on_transition` in addition to the key and the states."""

Call = Callable[..., object]


def caller_of(function: Call) -> Call:
    """Wrap a function that accepts only the key and the states, so that it also accepts the details."""
    form = "on_transition must be callable as on_transition(key, start, finish, **details)"
    if not callable(function):
        raise TypeError(f"{form}, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return function
    example = ("key", "waiting", "processing")
    try:
        signature.bind(*example, **dict.fromkeys(DETAILS))
    except TypeError:
        try:
            signature.bind(*example)
        except TypeError:
            raise TypeError(f"{form}; it takes {signature}") from None
        return lambda key, start, finish, **_: function(key, start, finish)
    return function


class Transitions:
    """Calls a function for each recorded transition, in order, on a separate thread.

    The function's errors are counted and never affect the run.
    """

    def __init__(self, call: Call, watch: Watch) -> None:
        self._call = call
        self._watch = watch
        self._row = 0
        self._errors = 0
        self._first = ""
        self._late = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_calling, name="roastcoffea-transitions", daemon=True)

    def start(self) -> None:
        with interrupts_held():
            self._thread.start()

    def stop(self) -> None:
        """Make the remaining calls after recording has ended."""
        self._ended.set()
        if self._thread is not threading.current_thread():  # the function itself may stop the monitor
            self._thread.join(PATIENCE)
            self._late = self._thread.is_alive()

    @property
    def problems(self) -> list[str]:
        problems = []
        if self._errors:
            problems.append(f"on_transition failed {counted(self._errors, 'time')}; the first: {self._first}")
        if self._late:
            problems.append(f"on_transition was still busy {PATIENCE:g} s after the end: remaining calls will be late")
        return problems

    def _keep_calling(self) -> None:
        while not self._ended.wait(PACE):
            # missing records are fetched on the next pass; records still missing at the end are noted then
            with reported(self._watch.note, "transitions could not be read", Exception), suppress(NoAnswerError):
                self._watch.drain()
                self._deliver()
        with reported(self._watch.note, "the last transitions could not be read", Exception):
            self._deliver()

    def _deliver(self) -> None:
        with self._watch.reading:
            history = self._watch.tasks.since(self._row, self._watch.clock_offset)
            self._row = len(self._watch.tasks)
        for task in history.described():
            if task["before"] is None:  # the task existed when the monitor started
                continue
            try:
                self._call(task["key"], task["before"], task["state"], **{name: task[name] for name in DETAILS})
            except Exception as error:  # noqa: BLE001  (the function is the user's)
                self._first = self._first or error_text(error)
                self._errors += 1


CALL_TEXT: Final = 200
"""Number of characters to record from a call if `run_spec` is True."""


class TaskMonitor(RecordedTasks, Enterable):
    """Record every task on a Dask cluster, based on the scheduler's events.

    Tasks from all clients are recorded. The scheduler is not polled, so the record includes even short tasks and tasks
    whose results are released immediately. Records are sent to the client every second, so their memory use on the
    scheduler is bounded. A monitor is printed and displayed as a table of its tasks.

    Parameters
    ----------
    client_or_scheduler : distributed.Client or distributed.Scheduler
        A connected, synchronous client, or a scheduler in this process, such as `LocalCluster.scheduler`.
    interval : float
        Seconds between consecutive `snapshots`. Snapshots are computed from the records, so a short interval does not
        slow down the run.
    worker_view : bool
        Whether the workers report their view of each task (see `worker_tasks`). Reporting takes about 0.2 ms of CPU
        time per task on the workers, and the same amount on the scheduler and in the client.
    scheduler : distributed.Scheduler
        Name of `client_or_scheduler` in version 0.1.2.
    live : bool
        Whether to show task counts by prefix and state while the monitor is running. They appear in the notebook, or in
        the bottom rows of the terminal (on stderr).
    on_transition : callable, optional
        Called as `on_transition(key, start, finish, **details)` for each task transition on the scheduler. Calls are
        made in order and within half a second, on a separate thread of this process. The details are `time` (Unix
        seconds on the client's clock), `worker`, `nbytes` (B) and `type`. A function with three parameters is called
        without the details. Errors raised by the function are listed in `problems`, and do not affect the run or the
        monitor.
    run_spec : bool or int
        Whether `worker_tasks` includes the text of each task's call. Pass True for 200 characters, or a number of
        characters. This option requires `worker_view=True`.

    Attributes
    ----------
    problems : list of str
        Problems encountered during recording, such as dropped rows.
    running : bool
        Whether the monitor is running.
    scheduler : distributed.Scheduler or None
        The scheduler, if it is in this process.
    thread : None
        Always None. In version 0.1.2, this was the polling thread.

    Raises
    ------
    TypeError
        If the client is asynchronous, if both or neither of client and scheduler are passed, if `on_transition` cannot
        be called with a key and two states, or if `run_spec` is neither a bool nor an integer.
    ValueError
        If the client is not connected, the interval is not positive, or `run_spec` is negative or is passed
        without `worker_view=True`.

    Examples
    --------
    >>> with TaskMonitor(client) as monitor:  # doctest: +SKIP
    ...     output = runner(fileset, processor_instance=processor)
    >>> monitor.to_dataframe()  # doctest: +SKIP
    """

    thread: None = None

    def __init__(
        self,
        client_or_scheduler: Any = None,
        interval: float = 0.1,
        worker_view: bool = False,
        *,
        scheduler: Any = None,
        live: bool = False,
        on_transition: Callable[..., object] | None = None,
        run_spec: bool | int = False,
    ) -> None:
        super().__init__((), checked_interval(interval), ())
        if (client_or_scheduler is None) == (scheduler is None):
            raise TypeError("a TaskMonitor takes a client or a scheduler: TaskMonitor(client), or scheduler=scheduler")
        source = scheduler if client_or_scheduler is None else client_or_scheduler
        if not isinstance(source, Scheduler):
            Connection(source)  # raises if the source is unusable
        self.worker_view = worker_view
        self._run_spec = characters_of(run_spec)
        if self._run_spec and not worker_view:
            raise ValueError("run_spec is part of the workers' view of a task: it requires worker_view=True")
        self._source = source
        self._call = None if on_transition is None else caller_of(on_transition)
        self._live = live
        self._live_text: LiveText | None = None
        self._own_client: Client | None = None
        self._watch: Watch | None = None
        self._transitions: Transitions | None = None

    # life cycle of a monitor

    def __enter__(self) -> Self:
        self.start()
        return self

    def __repr__(self) -> str:
        return f"<TaskMonitor: {'running' if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        """Whether the monitor is running."""
        return self._is_open

    @property
    def scheduler(self) -> Scheduler | None:
        """The scheduler, if it is in this process."""
        found = self._source
        if isinstance(found, Client):
            found = getattr(found.cluster, "scheduler", None)
        return found if isinstance(found, Scheduler) else None

    def start(self) -> None:
        """Start recording, or resume after `stop`, keeping earlier records.

        This has no effect if the monitor is already running. If the cluster cannot be recorded, the reason is added to
        `problems`, and the analysis still runs.

        Raises
        ------
        RoastcoffeaError
            If called on the scheduler's event loop thread, which must not be blocked.
        """
        if self._is_open:
            return
        self._refuse_the_thread_of_the_loop()
        self._is_open = True
        try:
            with reported(self._note, "the cluster is not recorded", Exception):
                watch = self._watch = Watch(self._client(), self.worker_view, self._run_spec)
                watch.begin()
                if self._call is not None:
                    self._transitions = Transitions(self._call, watch)
                    self._transitions.start()
                if self._live:
                    self._live_text = LiveText(watch.text, self._note)
                    self._live_text.start()
                return
        except BaseException:
            self.stop()
            raise
        self.stop()

    def stop(self) -> None:
        """Stop recording, fetch the last records, and restore the cluster.

        This has no effect if the monitor is not running.
        """
        self.__exit__()

    def _leave(self, error: BaseException | None) -> None:  # noqa: ARG002
        watch, self._watch = self._watch, None
        client, self._own_client = self._own_client, None
        transitions, self._transitions = self._transitions, None
        live, self._live_text = self._live_text, None
        try:
            if watch is not None:
                watch.end()
        finally:
            if live is not None:
                live.stop()
            if transitions is not None:
                transitions.stop()
                for problem in transitions.problems:
                    self._note(problem)
            if watch is not None and watch.was_open:
                self._past.append(watch.watched())
            elif watch is not None:
                self._problems += watch.notes()
            if client is not None:
                client.close()

    def reset(self) -> None:
        """Discard all records. A running monitor keeps recording."""
        running = self._is_open
        self.stop()
        self._past, self._problems = [], []
        if running:
            self.start()

    # now

    def snapshot(self, question: Callable[..., Any] | None = None) -> Snapshot:
        """Return the scheduler's current tasks.

        Parameters
        ----------
        question : callable, optional
            Function to call on the scheduler at the time of the snapshot, with the argument `dask_scheduler`. Its
            result is stored in `snapshot.reply`.

        Raises
        ------
        RoastcoffeaError
            If the monitor is not running, or the scheduler does not respond.
        """
        watch = self._watch
        if watch is None or not self._is_open:
            raise RoastcoffeaError("this TaskMonitor is not running: start it first, or use its snapshots")
        return watch.now(question)

    def watch(self, interval: float = 0.5, question: Callable[..., Any] | None = None) -> Iterator[Snapshot]:
        """Yield a snapshot every interval until the monitor stops.

        Iteration also ends if the monitor loses its scheduler.

        Parameters
        ----------
        interval : float
            Seconds between snapshots. Late snapshots are skipped.
        question : callable, optional
            See `snapshot`.

        Raises
        ------
        RoastcoffeaError
            If the monitor is not running.
        ValueError
            If the interval is not positive.
        """
        checked_interval(interval)
        first = self.snapshot(question)
        return self._watch_on(first, interval, question)

    def _watch_on(self, snapshot: Snapshot, interval: float, question: Callable[..., Any] | None) -> Iterator[Snapshot]:
        watch, times = self._watch, ticks(interval)
        next(times)
        yield snapshot
        for _ in times:
            if watch is None or self._watch is not watch:
                return
            try:
                snapshot = watch.now(question)
            except NoAnswerError as problem:
                if self._watch is watch:
                    self._note(f"watching ended: {problem}")
                return
            yield snapshot

    @property
    def problems(self) -> list[str]:
        """Problems encountered during recording, such as dropped rows."""
        now = [] if self._watch is None else self._watch.notes()
        now += [] if self._transitions is None else self._transitions.problems
        return list(dict.fromkeys((*super().problems, *map(redacted, now))))

    def _periods(self) -> list[Watched]:
        watch = self._watch
        if watch is None:
            return list(self._past)
        try:
            watch.drain()
        except (OSError, RuntimeError) as problem:
            self._note(f"the last records could not be read: {error_text(problem)}")
        return [*self._past, watch.watched()]

    # implementation

    def _client(self) -> Any:
        if not isinstance(self._source, Scheduler):
            return self._source
        address, security = self._source.address, self._source.security
        self._own_client = Client(address, security=security, set_as_default=False, timeout=SCHEDULER_TIMEOUT)
        return self._own_client

    def _refuse_the_thread_of_the_loop(self) -> None:
        loop = getattr(getattr(self._source, "loop", None), "asyncio_loop", None)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is loop:
            reason = "cannot start or stop on the cluster's event loop thread: use another thread"
            raise RoastcoffeaError(f"a TaskMonitor {reason}")

    def _note(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)


def characters_of(run_spec: bool | int) -> int:
    form = "run_spec is True, False, or a number of characters"
    try:
        characters = CALL_TEXT if run_spec is True else operator.index(run_spec)
    except TypeError:
        raise TypeError(f"{form}, not {run_spec!r}") from None
    if characters < 0:
        raise ValueError(f"{form}, not {run_spec}")
    return characters
