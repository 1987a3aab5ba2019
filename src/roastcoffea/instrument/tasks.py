"""A function that a task runs, metered as a chunk is: what it reads of files that it opens itself."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from roastcoffea.errors import error_text, reported
from roastcoffea.instrument.attempt import Attempt, new_identity
from roastcoffea.instrument.channels import DaskTask, Transport, dask_worker
from roastcoffea.instrument.meter.files import FilesMeter
from roastcoffea.instrument.meter.openings import openings_noticed
from roastcoffea.instrument.meter.tally import READ, StandIn
from roastcoffea.instrument.track import is_in_chunk
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.log.packing import PROBLEMS, packed_records
from roastcoffea.records.chunks import ERROR
from roastcoffea.records.run import OF_TASKS
from roastcoffea.redaction import Added, redacted

LOST: Final = "a record was lost on a worker"
SPLIT: Final = "tasks read more than one file each: their time and memory are in the record of one of these files"

Events = str | Callable[[Any], Any] | None
"""What counts as events: an item or attribute of the function's result, or what a function makes of the result."""


class Settings(NamedTuple):
    """What a collector wants of functions that tasks run."""

    added: Added = ()
    profile: bool = False
    peak_memory: bool = True
    stand_in: Callable[[Any], Any] | None = None
    """Makes what a worker runs in place of a task, where each task is measured."""


class TaskAttempt(Attempt):
    """One run of a function in a task."""

    meter: FilesMeter

    def __init__(self, task: DaskTask, settings: Settings) -> None:
        added, profile, peak_memory, _ = settings
        super().__init__(task, added, profile=profile, peak_memory=peak_memory, meter=FilesMeter())
        self.meter.added = added
        self._open.meter = self.meter

    @property
    def is_empty(self) -> bool:
        """Whether the function opened no file, and named nothing."""
        return not (self.meter.files or self.meter.failed or self._open.entered or self._open.recorded)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the function gives."""
        with self.current, openings_noticed(self.meter, everything=True):
            return self.timed(self.sampled(partial(function, *args, **kwargs)))

    def records(self, name: str, events: Events, result: Any, error: BaseException | None) -> list[dict[str, Any]]:
        """Records of the run, which has ended: one of its time, and one of each further file that it read."""
        meter = self.meter
        record = self.end(error) | {"call": OF_TASKS + name, "dataset": meter.dataset or name}
        failed = meter.columns_of_failed()
        metadata = record.get("bytes_metadata")
        if metadata is not None:
            metadata -= sum(other["bytes_requested"] or 0 for other in failed)
        first, *others = meter.columns_of_files(metadata) or [{"events": 0, **dict.fromkeys(READ, 0)}]
        if error is not None:
            # what a failed attempt requested counts as a whole
            place = next(iter(failed), first) if first.get("file") is None else first
            first, others, failed = {column: place.get(column) for column in PLACE}, [], []
        problems = record.setdefault(PROBLEMS, [])
        if error is None and events is not None and meter.files:
            with reported(problems.append, "the events of a task are not known", Exception):
                first["events"] = None
                first["events"] = events_of(result, events)
            others = [other | {"events": 0} for other in others]
        if others:
            problems.append(SPLIT)
        with reported(problems.append, "exceptions in the result of a task are not known", Exception):
            failed += columns_of_returned(result, failed, self._added)
        records = [record | first, *(further(record) | other for other in (*others, *failed))]
        for each in records:
            named = {column: each.get(column) for column in ("dataset", "file", "tree")}
            clean = {column: None if text is None else redacted(text, self._added) for column, text in named.items()}
            each.update(clean, **dict.fromkeys(meter.unknown & each.keys()))
        return records


PLACE: Final = ("file", "tree", "uuid", "entry_start", "entry_stop")


def events_of(result: Any, events: Any) -> int:
    """Events by the result of a function; see `Events`."""
    if callable(events):
        number = events(result)
    else:
        number = result[events] if isinstance(result, Mapping) else getattr(result, events)
    return operator.index(number)


MOST_VALUES: Final = 1000
"""Most values of a container that are looked at for exceptions."""


def exceptions_in(result: Any, depth: int = 3) -> Iterator[BaseException]:
    """Exceptions that a function returned: its result, or values in small containers of the standard library."""
    if isinstance(result, BaseException):
        yield result
    elif depth and isinstance(result, (dict, list, tuple, set, frozenset)) and len(result) <= MOST_VALUES:
        for value in result.values() if isinstance(result, dict) else result:
            yield from exceptions_in(value, depth - 1)


def columns_of_returned(result: Any, failed: list[dict[str, Any]], added: Added | None) -> list[dict[str, Any]]:
    """Columns of the records of exceptions that a function returned, except those of files that it could not open."""
    known = {other["error"] for other in failed}
    texts = (error_text(each, added) for each in exceptions_in(result))
    return [{"outcome": ERROR, "error": text, "bytes_requested": 0} for text in texts if text not in known]


def further(record: Mapping[str, Any]) -> dict[str, Any]:
    """Record of a further file of a task, of which the time is known already."""
    none = {name: 0.0 for name, value in record.items() if name.endswith("_seconds") and value is not None}
    del none["wall_seconds"]
    return none | {"id": new_identity()} | {name: record[name] for name in ("call", "dataset", "worker", "outcome")}


class Home:
    """Where records of the functions of Dask's tasks go, as long as somebody waits for them."""

    def __init__(self, topics: tuple[str, ...], settings: Settings) -> None:
        self.settings = settings
        self.task = DaskTask(topics)
        self._transport = Transport(topics)

    @property
    def name(self) -> str:
        """What such tasks are called."""
        from dask.utils import key_split

        return str(key_split(self.task.key))

    def take(self, records: list[dict[str, Any]], *, failed: bool) -> None:
        """Send records home."""
        self._transport.deliver(self.task, packed_records(records), None, failed=failed)

    def complain(self, problem: str) -> None:
        """Tell the client, and the worker's log, of a problem."""
        problem = redacted(problem, self.settings.added)
        logging.getLogger(__name__).warning(problem)
        self._transport.send({"problem": problem})


def home_of_task(function: Any = None) -> Home | None:  # noqa: ARG001  (where there is no task, its name tells)
    """Where records of the Dask task on this thread go; None where no collector waits, or a Runner made the task."""
    worker = dask_worker()
    if worker is None:
        return None
    mark = (worker.state.tasks[worker.get_current_task()].annotations or {}).get(ANNOTATION)
    if not isinstance(mark, Mapping) or mark.get("step") is not None:
        return None
    topics = tuple(topic for topic in mark.get("collectors", ()) if topic in worker.plugins)
    settings = worker.plugins[topics[-1]].functions if topics else None
    return None if settings is None else Home(topics, settings)


def call_measured(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    events: Events = None,
    find_home: Callable[[Any], Any] = home_of_task,
    *,
    always: bool = True,
) -> Any:
    """What the function gives; what it reads is recorded where somebody waits for that.

    Parameters
    ----------
    function, args, kwargs
        What is called.
    events
        What counts as events where entries do not.
    find_home : callable
        Gives the `Home` of records.
    always : bool
        Record it also where it reads nothing.
    """
    home = None if is_in_chunk() else find_home(function)
    attempt = None
    try:
        if home is not None:
            with interrupts_held(), reported(home.complain, LOST, Exception):
                attempt = TaskAttempt(home.task, home.settings)
        if home is None or attempt is None:
            return function(*args, **kwargs)
        result = attempt.run(function, args, kwargs)
    except BaseException as error:
        if home is not None and attempt is not None:
            _end(attempt, home, events, None, error, always=always)
        raise
    _end(attempt, home, events, result, None, always=always)
    return result


def _end(
    attempt: TaskAttempt, home: Any, events: Events, result: Any, error: BaseException | None, *, always: bool
) -> None:
    """End an attempt, and send its records home where it did something that is recorded."""
    with reported(home.complain, LOST, Exception):
        wanted = always or not attempt.is_empty
        records = attempt.records(home.name, events, result, error)
        if wanted or len(records) > 1:
            home.take(records, failed=error is not None)


class MeasuredTask(StandIn):
    """A task of Dask's as a worker runs it, measured where it reads."""

    __slots__ = ("_events",)

    def __init__(self, task: Any, events: Events = None) -> None:
        self._inner = task
        self._events = events

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_measured(self._inner, args, kwargs, self._events, always=False)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def stands_for(self) -> Any:
        """The task itself."""
        return self._inner
