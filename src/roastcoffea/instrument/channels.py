"""How records reach the client: a Dask task's metadata and worker events, otherwise the output and a folder.

It also brings the probe to clusters without the package: its code is sent once to each worker, and tasks carry a
stand-in.
"""

from __future__ import annotations

import errno
import logging
import operator
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
"""Key of records in an output, until the client takes them out again."""

LENGTH_SIZE: Final = 4

_warned: Final[dict[tuple[int, str], None]] = Remembered()
"""Processes that have reported a folder they cannot write to, with these folders."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Where a probe sends its records.

    `topics` are the names of collectors' plugins on a Dask cluster. Without any, records travel in the output if it is
    a dictionary (`in_output`), and are also appended to files in `spool` if this host has that folder: a run that
    raises returns no output. `environment` is what tasks of other systems report of theirs; None where they do not.
    """

    topics: tuple[str, ...] = ()
    spool: str | None = None
    in_output: bool = False
    environment: FromEnvironment | None = None

    def deliver(self, task: DaskTask, records: bytes, output: Any, *, failed: bool) -> Any:
        """Send packed records to the client; return the output, with the records inside if they travel that way.

        On a Dask cluster they arrive with the end of the task; those of a failed task arrive as an event.
        """
        if self.topics:
            if failed:
                self.send({"chunk": records, "of": (task.key, task.run_id)})
            elif task.state is not None and not (task.had_plugins and task.plugins.keys().isdisjoint(self.topics)):
                # if the plugins were removed while the task ran, nobody would take the record out again
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
            problem = f"records would be lost if the run raised, as their folder cannot be written: {error.strerror}"
            here = os.getpid(), str(self.spool)
            if here not in _warned:
                # if the run raises, this is the only notice of it
                _warned[here] = None
                logging.getLogger(__name__).warning(problem)
            return {**(output or {}), OUTPUT_KEY: [records, packed_records([{PROBLEMS: [problem]}])]}
        return {**(output or {}), OUTPUT_KEY: [records]} if travels else output

    def send(self, message: Row) -> None:
        """Send a message to the scheduler's plugins of these names, while they exist."""
        plugins = getattr(dask_worker(), "plugins", {})
        for topic in self.topics:
            # the scheduler would keep the event forever once its plugin is gone
            if topic in plugins:
                plugins[topic].report(message)

    def complain(self, added: Added | None, problem: str) -> None:
        """Report a problem to the client and in the worker's log, without secrets."""
        problem = redacted(problem, added)
        logging.getLogger(__name__).warning(problem)
        self.send({"problem": problem})


def append_to_spool(folder: str, records: bytes) -> None:
    """Append packed records to this thread's own file in a folder, completely or not at all."""
    file = os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}")  # noqa: PTH118
    entry = len(records).to_bytes(LENGTH_SIZE, "little") + records
    with open(file, "ab", buffering=0) as spool:  # noqa: PTH123
        end = spool.tell()
        if spool.write(entry) < len(entry):
            # a full disk writes a part without raising, which would corrupt everything appended later
            spool.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def spooled(folder: str, read: dict[str, int] | None = None) -> Iterator[bytes]:
    """Packed records from the files in a folder; one cut off by a process's death is left out.

    `read` holds the number of bytes already read from each file, which are skipped.
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
    """An executor's output without records, and the packed records."""
    if type(output) is not dict or OUTPUT_KEY not in output:
        return output, ()
    records = output.pop(OUTPUT_KEY)
    return output or None, records


class DaskTask:
    """The Dask task that runs on this thread, if there is one and collectors' plugins (`topics`) want it.

    A Runner with an executor without Dask may itself run in a Dask task, which is not one of its own. `known` are the
    task's fields in records.
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
    """The worker whose task runs on this thread."""
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
    """Callable in place of a function of the user's; the code that it needs is in the collector's worker plugin.

    Parameters
    ----------
    packed : bytes
        This class pickled by value.
    name : str
        Name for the Dask task.
    topic : str
        Name of the plugin.
    function : callable
        The user's function, or that which coffea passed to the executor.
    state : tuple
        Further arguments of the code.
    """

    code = "probe"
    """Which part of the code makes the callable."""

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
        return operator.call, (Packed(self._state[0]), *self._state)


class CarriedFunction(CarriedProbe):
    """A measured function where workers lack the package; `state` is what counts as events."""

    code = "call"
    __dask_tokenize__ = None  # type: ignore[assignment]


setattr(CarriedFunction, IS_MEASURED, True)


class Packed:
    """Placeholder for an object that is already pickled; it unpickles to that object."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.packed,)


_facts: Final[dict[int, Row]] = Remembered()
"""What this process knows of its batch job, which stays."""


def task_of(environment: FromEnvironment) -> DaskTask:
    """The task of another system that runs on this thread, with what its process knows of itself."""
    process = os.getpid()
    if process not in _facts:
        _facts.clear()  # those of a process that this one was forked from
        _facts[process] = job_since_start()
    told = {name: re.search(pattern, os.environ.get(variable, "")) for name, variable, pattern in environment}
    facts = _facts[process] | {name: found[1] for name, found in told.items() if found is not None}
    task = DaskTask()
    task.known = {"worker": process_name()} | ({"key": facts.pop("key")} if "key" in facts else {})
    if facts:
        task.known[OF_PROCESS] = facts
    return task
