"""Transport of records to the client, and of probe code to the workers.

On Dask, records are sent in task metadata and worker events. Other executors return records in the output, and also
write them to a folder. If workers lack this package, the probe code is sent to each worker once, and tasks contain a
stand-in.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roastcoffea.instrument.gauges import process_name
from roastcoffea.instrument.shared import Action, Remembered, Row
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.jobs import job_since_start
from roastcoffea.log.marks import IS_MEASURED, METADATA_KEY, FromEnvironment
from roastcoffea.log.packing import OF_PROCESS, PROBLEMS, packed_records
from roastcoffea.redaction import Added, redacted

OUTPUT_KEY: Final = "__roastcoffea_records__"
"""Key under which an output contains records until the client removes them."""

LENGTH_SIZE: Final = 4

_warned: Final[dict[tuple[int, str], None]] = Remembered()
"""Unwritable folders that have been reported, each with the ID of the reporting process."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Destinations for a probe's records.

    `topics` are the names of collectors' plugins on a Dask cluster. If there are none and `in_output` is set, records
    are returned in the output, provided the output is a dictionary. Records are also appended to files in the folder
    `spool` if the folder exists on this host, because a run that raises does not return any output. `environment` lists
    the values that non-Dask tasks report from their environment variables.
    """

    topics: tuple[str, ...] = ()
    spool: str | None = None
    in_output: bool = False
    environment: FromEnvironment | None = None

    def deliver(self, task: DaskTask, records: bytes, output: Any, *, failed: bool) -> Any:
        """Send packed records to the client, and return the output, which may contain the records.

        On a Dask cluster, records are sent when the task ends or, if the task failed, as an event.
        """
        if self.topics:
            if failed:
                self.send({"chunk": records, "of": (task.key, task.run_id)})
            elif task.state is not None and not (task.had_plugins and task.plugins.keys().isdisjoint(self.topics)):
                # if the plugins had been removed by now, the record would stay in the metadata
                task.state.metadata[METADATA_KEY] = records
            return output
        travels = self.in_output and not failed and (output is None or type(output) is dict)
        try:
            if self.spool is not None and os.path.isdir(self.spool):  # noqa: PTH112  (pathlib is slow)
                append_to_spool(self.spool, records)
        except OSError as error:
            raise_if_interrupted(error)
            if not travels:
                raise
            problem = (
                f"records will be lost if the run raises, because their folder cannot be written to: {error.strerror}"
            )
            here = os.getpid(), str(self.spool)
            if here not in _warned:
                # if the run raises, this log entry is the only report of the problem
                _warned[here] = None
                logging.getLogger(__name__).warning(problem)
            return {**(output or {}), OUTPUT_KEY: [records, packed_records([{PROBLEMS: [problem]}])]}
        return {**(output or {}), OUTPUT_KEY: [records]} if travels else output

    def send(self, message: Row) -> None:
        """Send a message to the scheduler through each plugin in `topics` that still exists."""
        plugins = getattr(dask_worker(), "plugins", {})
        for topic in self.topics:
            # without the plugin, the scheduler would keep the event forever
            if topic in plugins:
                plugins[topic].report(message)

    def complain(self, added: Added | None, problem: str) -> None:
        problem = redacted(problem, added)
        logging.getLogger(__name__).warning(problem)
        self.send({"problem": problem})


def append_to_spool(folder: str, records: bytes) -> None:
    """Append packed records to this thread's file, either completely or not at all."""
    file = os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}")  # noqa: PTH118
    entry = len(records).to_bytes(LENGTH_SIZE, "little") + records
    with open(file, "ab", buffering=0) as spool:  # noqa: PTH123
        end = spool.tell()
        if spool.write(entry) < len(entry):
            # on a full disk, a partial write does not raise, but would corrupt everything appended later
            spool.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def spooled(folder: str, read: dict[str, int] | None = None) -> Iterator[bytes]:
    """Yield the packed records in a folder's files, except records truncated when a process died.

    `read` contains the number of bytes already read from each file. These bytes are skipped.
    """
    read = {} if read is None else read
    for path in sorted(Path(folder).iterdir()):
        with path.open("rb") as file:
            file.seek(read.setdefault(path.name, 0))
            data = file.read()
        begin = LENGTH_SIZE
        while (end := begin + int.from_bytes(data[begin - LENGTH_SIZE : begin], "little")) <= len(data):
            read[path.name] += LENGTH_SIZE + end - begin
            yield data[begin:end]
            begin = end + LENGTH_SIZE


def taken_from(output: Any) -> tuple[Any, Sequence[bytes]]:
    """Split an executor's result into the output and the packed records."""
    if type(output) is not dict or OUTPUT_KEY not in output:
        return output, ()
    records = output.pop(OUTPUT_KEY)
    return output or None, records


class DaskTask:
    """The Dask task running on this thread, if there is one and `topics` is not empty.

    A Runner with a non-Dask executor may itself run in a Dask task. This task is not one of the Runner's tasks, so
    `topics` is empty. `known` contains the task's fields for records.
    """

    def __init__(self, topics: tuple[str, ...] = ()) -> None:
        self.state = None
        self.key: Any = None
        self.run_id: int | None = None
        self.known: Row = {}
        worker = dask_worker() if topics else None
        if worker is not None:
            key = worker.get_current_task()
            self.state = worker.state.tasks[key]
            self.plugins = worker.plugins
            self.had_plugins = not self.plugins.keys().isdisjoint(topics)
            self.key, self.run_id = key, self.state.run_id
            self.known = {"worker": worker.address, "key": str(key), "run_id": self.run_id}


def dask_worker() -> Any | None:
    """Return the worker whose task is running on this thread, or None."""
    distributed = sys.modules.get("distributed.worker")
    if distributed is None:
        return None
    try:
        worker = distributed.get_worker()
        worker.get_current_task()
    except (KeyError, ValueError):
        return None
    return worker


class CarriedProbe:
    """Stand-in for a user's function. It gets its probe code from the worker plugin.

    Parameters
    ----------
    packed : bytes
        This class, pickled by value.
    name : str
        Name for the Dask task.
    topic : str
        Name of the worker plugin.
    function : callable
        The user's function, or the function that coffea passed to the executor.
    state : tuple
        Further arguments for the probe code.
    """

    code = "probe"

    def __init__(self, packed: bytes, name: str, topic: str, function: Action, state: tuple[Any, ...]) -> None:
        self._state = (packed, name, topic, function, state)
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from distributed import get_worker

        _, name, topic, function, state = self._state
        plugin = get_worker().plugins.get(topic)
        if plugin is not None:
            function = plugin.unpacked()[self.code](function, name, *state)
        return function(*args, **kwargs)

    def __str__(self) -> str:
        return self.__name__

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("roastcoffea-probe", self._state[4])

    def __reduce__(self) -> tuple[Any, ...]:
        return type.__call__, (Packed(self._state[0]), *self._state)


class CarriedFunction(CarriedProbe):
    """Stand-in for a measured function on workers without the package; `state` contains `events`."""

    code = "call"
    __dask_tokenize__ = None  # type: ignore[assignment]


setattr(CarriedFunction, IS_MEASURED, True)


class Packed:
    """Placeholder for a pickled object; it unpickles to the object itself."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.packed,)


_facts: Final[dict[int, Row]] = Remembered()
"""Constant information about this process's batch job, by process ID."""


def task_of(environment: FromEnvironment) -> DaskTask:
    process = os.getpid()
    if process not in _facts:
        _facts.clear()  # inherited from the parent process when this process was forked
        _facts[process] = job_since_start()
    told = {name: re.search(pattern, os.environ.get(variable, "")) for name, variable, pattern in environment}
    facts = _facts[process] | {name: found[1] for name, found in told.items() if found is not None}
    task = DaskTask()
    task.known = {"worker": process_name()} | ({"key": facts.pop("key")} if "key" in facts else {})
    if facts:
        task.known[OF_PROCESS] = facts
    return task
