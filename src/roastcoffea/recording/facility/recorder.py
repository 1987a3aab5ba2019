"""Recording of all clients' runs in journals on the scheduler's disk."""

from __future__ import annotations

import functools
import getpass
import json
import logging
import math
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import click
import dask

from roastcoffea.backends.attempts import Attempts, TasksOfRun
from roastcoffea.backends.scheduler import ClusterPlugin
from roastcoffea.errors import reported
from roastcoffea.generations import event_topics
from roastcoffea.instrument.channels import dask_worker
from roastcoffea.instrument.probe import Probe
from roastcoffea.log.journal import LOG, MOST_BYTES, JournalWriter
from roastcoffea.log.kinds import LogWriter
from roastcoffea.log.marks import ANNOTATION
from roastcoffea.recording.assembly import remove_old
from roastcoffea.recording.facility import display
from roastcoffea.recording.facility.observer import ObservedRun, Observer, Runs
from roastcoffea.records.workers import PREPROCESSING, PROCESSOR
from roastcoffea.redaction import redacted
from roastcoffea.units import SECONDS_PER_HOUR

POWERCAP: Final = Path("/sys/class/powercap")
METRIC: Final = "roastcoffea-energy"
"""Name of the worker metric for the host's energy: joules used by its processors since the preload started."""


class PackageEnergy:
    """Counter of the energy used by a host's processor packages since construction, in joules.

    Raises
    ------
    OSError
        There are no energy counters, or this process may not read them.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        # a name with a second colon denotes part of a package
        self._domains = [path for path in sorted(root.glob("intel-rapl:[0-9]*")) if path.name.count(":") == 1]
        if not self._domains:
            raise FileNotFoundError(f"{root} has no processor package counters")
        self._ranges = [_number(path / "max_energy_range_uj") for path in self._domains]
        self._last = self._read()
        self._joules = 0.0

    def joules(self, _worker: Any = None) -> float:
        """Energy used so far, in joules. Call this method every few minutes, before a counter can wrap around twice."""
        now = self._read()
        for before, after, most in zip(self._last, now, self._ranges, strict=True):
            grown = after - before
            self._joules += 1e-6 * (grown if grown >= 0 else grown + most)
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        return [_number(path / "energy_uj") for path in self._domains]


class HostEnergy:
    """Counter of the energy used on all reporting hosts, in joules. Each host is counted once."""

    def __init__(self) -> None:
        self.joules: float | None = None
        self.hosts = 0
        self._last: dict[str, float] = {}

    def take(self, workers: Mapping[str, Any]) -> None:
        grown: dict[str, float] = {}
        last = {}
        for address, worker in workers.items():
            joules = worker.metrics.get(METRIC)
            if joules is not None:
                last[address] = joules
                more = joules - self._last.get(address, 0.0)
                grown[worker.host] = max(grown.get(worker.host, 0.0), more)
        self._last, self.hosts = last, len(grown)
        if grown:
            self.joules = (self.joules or 0.0) + sum(grown.values())


def _number(file: Path) -> int:
    return int(file.read_text())


NAME: Final = "roastcoffea-facility"
"""Name shared by the scheduler plugin, the worker plugin and the topic of worker events."""

RUN: Final = "run"
CLUSTER: Final = "cluster"
"""Kinds of journal entries (JSON): a run's progress, and the scheduler's totals."""

LOG_CAP: Final = 16_000_000
TICK: Final = 1.0


def _journal(
    folder: Path, start: float, known: Mapping[str, Any], note: Any, most_bytes: int = MOST_BYTES
) -> JournalWriter:
    """Start a journal for a run or the scheduler. The header contains the scheduler's user account."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = None
    identity, began = uuid.uuid4().hex, datetime.fromtimestamp(start, timezone.utc)
    place = f"{began:%Y%m%dT%H%M%S}-{'cluster-' if 'cluster' in known else ''}{identity[:12]}"
    header = {"facility": True, "id": identity, "start": start, "user": user, **known}
    return JournalWriter(folder / place, header, note, most_bytes=most_bytes)


class CleanLog(LogWriter):
    """A log that redacts secrets in recurring strings, because no client will redact them."""

    def number(self, text: str | None) -> int:
        return super().number(None if text is None else _clean(text))


@lru_cache(1000)
def _clean(text: str) -> str:
    return redacted(text)


class RunRecorder(ClusterPlugin):
    """Collector plugin that records a single run, using the observer's task roles and a journal."""

    def __init__(self, run: ObservedRun, observer: Observer, scheduler: Any, folder: Path, note: Any) -> None:
        super().__init__(NAME, run.client, observer.tokens[NAME], TasksOfRun(NAME, run.client, None), TICK)
        self.observed = run
        self._parts = observer.runs
        self.begin(scheduler, CleanLog(LOG_CAP), partial(AttemptsOfRun, run, observer.runs))
        known = {"client": redacted(run.client), "collectors": list(run.collectors)}
        # beyond this size, nothing more is recorded, and the journal reports a problem
        self.journal = _journal(folder, run.start, known, note, most_bytes=2_000_000_000)
        self._last: tuple[float, frozenset[Any]] | None = None
        """Deadline and tasks to wait for, set once the run has ended."""
        self.flush()

    def moved(self, key: Any, start: str, finish: str, reasons: Mapping[str, Any]) -> None:
        """Handle a task's transition. After the run, transitions of new tasks are ignored."""
        if self._last is None or key in self._last[1]:
            self.attempts.transition(key, start, finish, **reasons)

    def take(self, topic: str, message: Mapping[str, Any]) -> None:
        """Handle a message from our worker plugin, or a chunk record from a collector's worker plugin."""
        if topic == NAME:
            self._take_message(message)
        elif "chunk" in message:
            self.take_chunk(message)

    def take_chunk(self, message: Mapping[str, Any]) -> None:
        if self._parts.known(message["of"][0]).run is self.observed:
            super().take_chunk(message)

    def is_over(self, now: float) -> bool:
        """Whether the run and all tasks that were running at its end have finished, or the wait for them is over."""
        if self._last is None and self.observed.ended:
            # wait at most a minute for other runs' tasks that were running when this run ended
            self._last = now + 60.0, frozenset(self.attempts.open_keys)
        return self._last is not None and (now >= self._last[0] or self._last[1].isdisjoint(self.attempts.open_keys))

    def flush(self, *, last: bool = False) -> None:
        more = True
        while more:
            answer = self.log.drain(4_000_000, self.log.given)
            more = answer["more"]
            if answer["data"]:
                self.journal.write(LOG, answer["data"])
        run = self.observed
        known: dict[str, Any] = {
            name: getattr(run, name) for name in ("name", "metered", "asked", "files", "stop", "last")
        }
        known |= {name: getattr(run.tally, name) for name in ("chunks", "events", "failed", "bytes")}
        known |= {"processor": run.processor and redacted(run.processor), "ended": last}
        known |= {"attempts": self.attempts.by_kind(), "dropped": answer["dropped"], "failures": self.problems.failures}
        self.journal.write(RUN, json.dumps(known).encode())

    def end(self, *, wait: bool) -> None:
        """Write the remaining data and close the journal, in a separate thread unless `wait` is set."""
        self.problems.note_rest()
        self.flush(last=True)
        if wait:
            self.journal.close()
        else:
            threading.Thread(target=self.journal.close, name=NAME, daemon=True).start()


class AttemptsOfRun(Attempts):
    """Attempts at a run's tasks. The observer, not a client's annotation, assigns tasks to the run."""

    def __init__(self, observed: ObservedRun, parts: Runs, *args: Any) -> None:
        self._observed, self._parts = observed, parts
        super().__init__(*args)

    def _mark(self, task: Any) -> Mapping[str, Any] | None:
        part = self._parts.known(task.key)
        if part.run is not self._observed:
            return None
        step = PREPROCESSING if part.kind == PREPROCESSING else "processing"
        return {"step": step, "prefix": task.prefix.name if part.kind == PROCESSOR else None}

    def _is_of_user(self, task: Any, mark: Mapping[str, Any] | None) -> bool:
        return mark is not None  # the client's other runs have their own journals

    def _is_in_span(self, task: Any) -> bool:
        return True  # fine metrics of overlapping runs cannot be separated


class FacilityPlugin(Observer):
    """Observer for the preload that records every active run and writes totals.

    Parameters
    ----------
    folder : Path
        Folder for the journals.
    limits : tuple
        Maximum age in days and maximum total size in gigabytes, or None for no limit. Journals beyond the limits are
        removed every hour.
    """

    def __init__(
        self,
        scheduler: Any,
        when_closed: Callable[[], None],
        folder: Path,
        limits: tuple[float | None, float | None] = (None, None),
    ) -> None:
        super().__init__(scheduler, when_closed)
        self.recorders: dict[ObservedRun, RunRecorder] = {}
        self.folder, self.limits = folder, limits
        self._cpu: dict[str, float] = {}
        self._cpu_of_left = 0.0
        self._energy = HostEnergy()
        self._written = self._cleaned = 0.0
        self._begun = 0
        self._journal = _journal(folder, time.time(), {"cluster": True}, self._note)

    # events from the scheduler

    def moved(self, key: Any, start: str, finish: str, reasons: Mapping[str, Any], now: float) -> None:
        try:
            task = self._scheduler.tasks.get(key)
            if task is not None and start in {"released", "processing"} and finish != "forgotten":
                self.runs.part(task, now)
            self._begin_new()
            for recorder in self.recorders.values():
                recorder.moved(key, start, finish, reasons)
            if task is not None and start == "processing":
                task.metadata.pop(NAME, None)
        except Exception as problem:  # noqa: BLE001  (finished tasks are still counted)
            self._failed(problem)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        for recorder in self.recorders.values():
            recorder.add_worker(scheduler, worker)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self._cpu_of_left += self._cpu.pop(worker, 0.0)
        for recorder in self.recorders.values():
            recorder.remove_worker(scheduler, worker)

    def log_event(self, topic: str, message: Any) -> None:
        """Pass Dask's events and messages from all worker plugins to the recorders."""
        super().log_event(topic, message)
        try:
            token = self.tokens.get(topic)
            ours = token is not None and isinstance(message, dict) and message.get("token") == token
            for recorder in self.recorders.values() if ours or token is None else ():
                (recorder.take if ours else recorder.log_event)(topic, message)
        except Exception as problem:  # noqa: BLE001  (distributed would swallow it: count it)
            self._failed(problem)
        topics = event_topics(self._scheduler)
        if topic == NAME and NAME in topics:
            topics[NAME].events.clear()  # Dask would keep the last thousand messages, including chunk records

    async def close(self) -> None:
        self.end()
        await super().close()

    def end(self) -> None:
        while self.recorders:
            _, recorder = self.recorders.popitem()
            recorder.end(wait=True)
        self._write_totals(time.time())
        self._journal.close()

    # implementation

    def _sample(self, now: float) -> None:
        """Sample the workers, write new records, and close the journals of ended runs."""
        super()._sample(now)
        self._begin_new()
        for run, recorder in list(self.recorders.items()):
            if run.ended:
                recorder.workers.forget_overdue()
            else:
                recorder.tick(1, math.nan, 0)  # the sample's delay was not measured
            if recorder.is_over(now):
                self.recorders.pop(run).end(wait=False)
            else:
                recorder.flush()
        # the scheduler's totals are written every ten seconds
        if now - self._written >= 10.0:
            self._written = now
            self._write_totals(now)
        if now - self._cleaned > SECONDS_PER_HOUR and self.limits != (None, None):
            self._cleaned = now
            threading.Thread(target=remove_old, args=(self.folder, *self.limits), name=NAME, daemon=True).start()

    def _begin_new(self) -> None:
        runs = self.runs
        if runs.begun != self._begun:
            self._begun = runs.begun
            for run in runs.going:
                if run not in self.recorders:
                    recorder = RunRecorder(run, self, self._scheduler, self.folder, self._note)
                    self.recorders[run] = recorder

    def _write_totals(self, now: float) -> None:
        for address, worker in self._scheduler.workers.items():
            self._cpu[address] = worker.metrics.get(NAME) or self._cpu.get(address, 0.0)
        self._energy.take(self._scheduler.workers)
        counters = self.counters
        totals = {
            "time": now,
            "capacity_seconds": counters.capacity,
            "cpu_seconds": self._cpu_of_left + sum(self._cpu.values()),
            "seconds": dict(counters.seconds),
            "events": counters.events,
            "bytes": sum(counters.bytes.values()),
            "failed_attempts": sum(counters.attempts.values()),
            "runs": self.runs.begun,
            "workers": len(self._scheduler.workers),
            "joules": self._energy.joules,
            "hosts_with_energy": self._energy.hosts,
            "hosts": len({worker.host for worker in self._scheduler.workers.values()}),
        }
        self._journal.write(CLUSTER, json.dumps(totals).encode())

    def _note(self, problem: str) -> None:
        logging.getLogger(__name__).warning(redacted(problem))

    def _failed(self, problem: Exception) -> None:
        if not self.failures:
            logging.getLogger(__name__).warning("runs are not recorded completely", exc_info=problem)
        super()._failed(problem)


CALL: Final = "facility"
"""Placeholder for the Runner call in records, because only the client knows the actual call."""

FUNCTIONS: Final = {"_work_function": False, "metadata_fetcher_root": True, "metadata_fetcher": True}
"""Maps Runner functions called by tasks to whether they open a file for preprocessing. coffea 0.7 has the last one."""

_originals: Final[dict[str, Any]] = {}


def start() -> None:
    from coffea.processor import Runner

    for name, of_files in FUNCTIONS.items():
        original = Runner.__dict__.get(name)
        if name not in _originals and isinstance(original, staticmethod):
            _originals[name] = original
            setattr(Runner, name, staticmethod(_metered(original.__func__, of_files)))


def stop() -> None:
    from coffea.processor import Runner

    while _originals:
        name, original = _originals.popitem()
        setattr(Runner, name, original)


def _metered(function: Callable[..., Any], of_files: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_ours():
            return function(*args, **kwargs)
        *options, item = args
        closure = partial(function, *options, **kwargs)
        # the form in which coffea passes a closure to executors
        return Probe(partial(_called, 0, False, closure), CALL, CALL, ((NAME,), None, False), of_files)(item)

    return call


def _called(_retries: int, _skipped: bool, closure: Callable[[Any], Any], item: Any) -> Any:
    return closure(item)


def _is_ours() -> bool:
    """Whether to measure this task, i.e. whether our plugin is registered and the task has no collector's mark."""
    worker = dask_worker()
    if worker is None or NAME not in worker.plugins:
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    annotations = None if task is None else task.annotations
    return task is not None and ANNOTATION not in (annotations or {})


CONFIG: Final = "roastcoffea.facility"

_ends: Final[dict[Any, list[Any]]] = {}
"""Cleanup functions for each server in this process."""


@click.command()
@click.option("--roastcoffea-journal", type=click.Path(path_type=Path), help="Folder in which every run is recorded.")
@click.option("--roastcoffea-keep-days", type=float, help="Days after which records are removed.")
@click.option("--roastcoffea-keep-gigabytes", type=float, help="Total size above which the oldest records are removed.")
async def dask_setup(
    server: Any,
    roastcoffea_journal: Path | None,
    roastcoffea_keep_days: float | None,
    roastcoffea_keep_gigabytes: float | None,
) -> None:
    """Start on a scheduler or worker. Further calls for the same server have no effect."""
    if server in _ends:
        return
    if hasattr(server, "worker_plugins"):
        given = {"journal": roastcoffea_journal, "keep-days": roastcoffea_keep_days}
        await _begin(server, given | {"keep-gigabytes": roastcoffea_keep_gigabytes})
    else:
        start()
        _ends[server] = [stop]
        with reported(logging.getLogger(__name__).debug, "energy is not measured", (OSError, ValueError)):
            server.metrics[METRIC] = PackageEnergy().joules
            _ends[server].append(lambda: server.metrics.pop(METRIC, None))


async def dask_teardown(server: Any) -> None:
    """Stop recording on a scheduler or worker."""
    for end in _ends.pop(server, ()):
        end()


async def _begin(scheduler: Any, given: dict[str, Any]) -> None:
    """Show a scheduler's runs, and record the runs if a journal folder is configured."""
    options = {
        name: dask.config.get(f"{CONFIG}.{name}", None) if value is None else value for name, value in given.items()
    }
    token, folder = secrets.token_hex(16), options["journal"]
    make: Callable[[Any, Callable[[], None]], Observer] = Observer
    if folder is not None:
        limits = options["keep-days"], options["keep-gigabytes"]
        make = partial(FacilityPlugin, folder=Path(folder).expanduser().resolve(), limits=limits)
    observer = display.join(scheduler, NAME, token, make)
    _ends[scheduler] = [lambda: display.leave(scheduler, NAME)]
    if not isinstance(observer, FacilityPlugin):
        logging.getLogger(__name__).info("runs are shown but not recorded, because --roastcoffea-journal was not given")
        return
    from roastcoffea.backends.deployment import pickled
    from roastcoffea.backends.worker import WorkerHalf

    _ends[scheduler].insert(0, observer.end)
    # the scheduler also sends the plugin to workers that join later
    half = pickled(WorkerHalf(NAME, token, counts=False))
    await scheduler.register_worker_plugin(None, plugin=half, name=NAME, idempotent=True)
