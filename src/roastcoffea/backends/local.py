"""Recorder for an analysis that runs in processes on this host, without a cluster."""

from __future__ import annotations

import itertools
import json
import math
import os
import pkgutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.backends.base import EXECUTORS, ExecutorLog
from roastcoffea.backends.hosts import hosts_of, with_others
from roastcoffea.backends.limits import Withheld, limits, load, withheld, withheld_since
from roastcoffea.backends.processes import PROCESSES, ProcessJournal, ProcessTree, Step, WatchedProcess, remember
from roastcoffea.backends.recorder import Recorder, RecordingBackend
from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.jobs import job
from roastcoffea.log.marks import FromEnvironment
from roastcoffea.log.workers import job_columns
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import KINDS, LIFETIME_COLUMNS, SAMPLE_COLUMNS, WITHHELD
from roastcoffea.units import counted

SCAN_INTERVAL: Final = 0.1
"""Seconds between scans for processes that have started or ended. A pool may exist for less than a second."""

UNREADABLE: Final = (OSError, psutil.Error)

SHARE: Final = 0.02
"""Maximum share of a core to spend on scanning. If scans are slow, they run less often."""

MOST_SAMPLES: Final = 100_000
"""Maximum number of samples to keep. Beyond this number, neighbouring samples are merged and the interval is
doubled."""

UNSEEN: Final = (
    "not seen (ended too soon, or in a container): assumed present from first chunk to last, with unknown resource use"
)


class ProcessRecorder(Recorder):
    """Recorder for the processes on this host that run an analysis's chunks.

    A worker is a process that ran a chunk, or an idle process in the same pool. Other processes (this process if it
    uses a pool, processes that only merge, resource trackers, Parsl's interchange) are not workers and have no samples.
    While a step runs in this process, this process counts as a worker with the pool's number of threads. If this
    process ran chunks, it counts as a worker for the whole run. Until `learn_chunks` is called, this process and all
    its descendants count as workers.
    """

    kind = "local"
    elsewhere = (
        "it runs on a Dask cluster, so both need its client: MetricsCollector(client), DaskExecutor(client=client)"
    )

    def _reset(self) -> None:
        super()._reset()
        self.processes = ProcessTree()
        self._host, self._process = socket.gethostname(), os.getpid()
        self._journal = ProcessJournal()
        self._interval: float | None = None
        self._next_sample = 0.0
        self._merged = 0
        self._steps: list[Step] = []
        self._steps_here: list[tuple[Step | None, int]] = []
        self._cpu_at_open = 0.0
        self._learned: list[pa.Table] = []
        self._others: dict[str, ExecutorLog] = {}
        self._threads: dict[WatchedProcess, int] = {}
        self._unseen: dict[str, int] = {}
        self._brief: set[str] = set()
        """Workers that only opened files and ended before a scan could find them."""
        self.withheld_before: Withheld = (None, None, None)
        self._withheld: Withheld = (None, None, None)
        """Throttling and steal time of this process; the analysis shares its host and control groups."""
        self._job: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # life cycle of a collector

    def open(self, interval: float | None, span: str | None = None) -> None:  # noqa: ARG002  (for Dask)
        self._begin()
        self.withheld_before, self.load_before = withheld(), load()
        self.hosts = tuple(hosts_of([{"host": socket.gethostname(), **limits()}]))
        self._job = job_columns(job(), time.time())
        self._interval = interval
        self._cpu_at_open = time.process_time()
        self._scan(sample=interval is not None)
        self._began = time.time()
        with interrupts_held():
            self._period.is_open = self._period.was_open = True
            self._thread = threading.Thread(target=self._keep_scanning, name=self.name, daemon=True)
            self._thread.start()

    def drain(self) -> None:
        """Scan immediately, because a pool may be shut down after the Runner call that uses it."""
        if self.is_open:
            self._scan(sample=self._interval is not None)

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with reported(self.note, "the analysis's processes could not be scanned at the end", UNREADABLE):
            self.drain()
        self._withheld = withheld_since(self.withheld_before)
        if self.hosts:
            # pool processes do not report their CPU time
            (own, *_), now = self.load_before["processes"] or [{}], load()
            cpu = sum(process.cpu_seconds for process in {*self.processes.family(), *self._workers()})
            now["processes"] = [own | {"own": own["own"] + cpu}] if own else []
            self.hosts = with_others(self.hosts, [self.load_before], [now])
        self._period.is_open = False

    # information from the collector

    @contextmanager
    def step(self, executor: Any, call: str | None, *, preprocessing: bool) -> Iterator[FromEnvironment | None]:
        size, other = None, None
        with reported(self.note, f"the {type(executor).__name__} does not report its size", Exception):
            name = next((kind.__name__ for kind in type(executor).__mro__ if kind.__name__ in EXECUTORS), None)
            if name is not None and name not in self._others:
                self._others[name] = pkgutil.resolve_name(EXECUTORS[name])(self.note)
            other = None if name is None else self._others[name]
            size = pool_size(executor) if other is None else other.size(executor)
        step = Step(call=call, preprocessing=preprocessing, size=size, start=time.time(), cpu_start=time.process_time())
        if other is None or not other.is_apart:
            self._steps.append(step)
        with nullcontext() if other is None else other.step(executor, call, preprocessing=preprocessing):
            try:
                yield None if other is None else other.environment
            finally:
                step.stop, step.cpu_stop = time.time(), time.process_time()

    def learn_chunks(self, chunks: pa.Table, *, preprocessing: bool = False) -> None:
        """Identify the workers and their thread counts from records.

        Parameters
        ----------
        chunks
            Chunk attempts or file opens with `worker`, `thread`, `start`, `stop` and `call`. Pass each table only
            once, after `close`.
        preprocessing
            Whether the records are file opens, which may have used a separate pool.
        """
        names = ["worker", "thread", "start", "stop"]
        known = chunks.select(names).append_column("call", pc.fill_null(chunks["call"], "")).drop_null()
        calls = [call for other in self._others.values() for call in other.calls(preprocessing)]
        elsewhere = pa.array(calls, pa.string())
        known = known.filter(pc.invert(pc.is_in(known["call"], elsewhere)))
        self._learned.append(known)
        for call in known["call"].unique().to_pylist():
            steps = [step for step in self._steps if ((step.call or ""), step.preprocessing) == (call, preprocessing)]
            rows = known.filter(pc.equal(known["call"], call))
            later = [step.start for step in steps[1:]]
            place = np.searchsorted(later, rows["start"].to_numpy(), side="right")
            for number in np.unique(place).tolist():
                self._learn_pool(rows.filter(pa.array(place == number)), steps[number] if steps else None)
        self._note_unseen()

    def _learn_pool(self, rows: pa.Table, step: Step | None) -> None:
        """Assign workers to a step; `step` is None if the executor call was not observed."""
        spans = [("thread", "count_distinct"), ("start", "min"), ("stop", "max")]
        shifts = {shift["worker"]: shift for shift in rows.group_by("worker").aggregate(spans).to_pylist()}
        start, stop = pc.min(rows["start"]).as_py(), pc.max(rows["stop"]).as_py()
        size = None if step is None else step.size
        processes, own = [], self._name(self._process)
        for worker, shift in shifts.items():
            here = (process for process in self.processes.seen if self._name(process.pid) == worker)
            there = (process for process in here if process.may_have_lived(shift["start_min"], shift["stop_max"]))
            process = next(there, None)
            threads = size if size and worker == own else shift["thread_count_distinct"]
            if process is None:
                is_brief = shift["stop_max"] - shift["start_min"] < SCAN_INTERVAL
                if step is not None and step.preprocessing and is_brief and worker not in self._unseen:
                    self._brief.add(worker)
                else:
                    self._brief.discard(worker)
                self._unseen[worker] = max(threads, self._unseen.get(worker, 0))
            else:
                processes.append(process)
                self._threads[process] = max(threads, self._threads.get(process, 0))
        if own in shifts:
            self._steps_here.append((step, size or shifts[own]["thread_count_distinct"]))
        else:
            for process in self._idle(processes, (size or 0) - len(shifts), start, stop):
                self._threads.setdefault(process, 1)
            if size is None and not any(other.known for other in self._others.values()):
                unknown = "the executor does not report its number of processes"
                self.note(f"{unknown}: processes that ran no chunks are not counted")

    def _idle(self, workers: list[WatchedProcess], number: int, start: float, stop: float) -> list[WatchedProcess]:
        """Return idle processes from the workers' pool, i.e. siblings that started at nearly the same time."""
        siblings = [
            process
            for process in self.processes.seen
            if process not in workers
            and not process.is_tracker
            and process.may_have_lived(start, stop)
            and any(process.parent == worker.parent for worker in workers)
        ]
        apart = {process: min(abs(process.born - worker.born) for worker in workers) for process in siblings}
        # maximum time in seconds between the starts of two processes in a pool
        born_with_them = [process for process in siblings if apart[process] < 5.0]
        return sorted(born_with_them, key=apart.__getitem__)[: max(number, 0)]

    def _note_unseen(self) -> None:
        facts = self.received.processes
        texts = Counter[str]()
        for worker in self._unseen:
            host, known = host_and_process(worker)[0], facts.get(worker, {})
            other = next((other.label for other in self._others.values() if other.has(known)), None)
            if other is not None:
                texts[f"of {other}, not seen on this host, so their resource use is unknown"] += 1
            elif host == self._host:
                texts[UNSEEN] += worker not in self._brief
            else:
                texts[
                    f"on hosts other than {self._host}, or on unknown ones, so lifetimes and resource use are unknown"
                ] += 1
        for text in +texts:
            self.note(f"{counted(texts[text], 'worker')} {text}")
        if self._unseen and not self._threads:
            self.absent["samples"] = "no process that ran chunks was seen on this host"
        else:
            self.absent.pop("samples", None)

    # records as tables

    def chunks(self, calls: Collection[str]) -> pa.Table:
        chunks = super().chunks(calls)
        for other in self._others.values():
            chunks = other.placed(chunks, self.received.processes, preprocessing=False)
            absent = other.absent(sum(not step.preprocessing for step in self._steps))
            self.absent |= absent
            if "tasks" not in absent and (tasks := other.tasks()) is not None:
                self.absent.pop("tasks")
                self.attempts = dict.fromkeys(KINDS, 0) | Counter(tasks["kind"].to_pylist())
        return chunks

    def table(self, name: str, chunks: pa.Table | None, start: float, stop: float) -> pa.Table | None:
        if self._others and name in self.absent:
            return None
        table = super().table(name, chunks, start, stop)
        if name == "preprocessing":
            for other in self._others.values():
                table = other.placed(table, self.received.processes, preprocessing=True)
        return table

    def tasks(self) -> pa.Table | None:
        return next((tasks for other in self._others.values() if (tasks := other.tasks()) is not None), None)

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for process, threads in self._workers().items():
            worker = self._identity(self._name(process.pid)) | self._job | {"memory_limit": self.hosts[0].memory}
            worker |= dict(zip(WITHHELD, self._withheld, strict=True))
            for life in self._lives(process, threads, start, stop):
                rows.append(worker | dict(zip(("start", "stop", "threads", "cpu_seconds"), life, strict=True)))
        for name, threads in self._unseen.items():
            row = self._identity(name) | {"threads": threads}
            if row["host"] == self._host:
                starts, stops = self._busy(name)
                row |= {"start": float(starts[0]), "stop": float(stops[-1])}
            rows.append(row)
        facts = self.received.processes
        for row in rows:
            if "batch_system" in (known := facts.get(row["worker"], {})):
                row.update(job_columns(known, stop))
        for other in self._others.values():
            other.complete(rows, facts, self._busy, start, stop)
        return table_of_rows(LIFETIME_COLUMNS, rows)

    def _workers(self) -> Mapping[WatchedProcess, int | None]:
        return self._threads if self._learned else dict.fromkeys(self.processes.family(self._process))

    def _busy(self, worker: str) -> list[npt.NDArray[np.float64]]:
        rows = [table.filter(pc.equal(table["worker"], worker)) for table in self._learned]
        times = (np.concatenate([[], *(table[name].to_numpy() for table in rows)]) for name in ("start", "stop"))
        return list(map(np.sort, times))

    def _lives(
        self, process: WatchedProcess, threads: int | None, start: float, stop: float
    ) -> Iterator[tuple[float, float, int | None, float]]:
        """Start time, stop time, thread count and CPU time of each period in which a process was a worker.

        For this process, there is one period per step, with the thread count of the step.
        """
        if not (self._learned and process.pid == self._process):
            starts, stops = self._busy(self._name(process.pid))
            born = min([process.born, *starts[:1]])
            died = max([process.seen, *stops[-1:]]) if process.ended else stop
            begin, end = (float(min(max(moment, start), stop)) for moment in (born, died))
            yield begin, max(begin, end), threads, process.cpu_seconds
            return
        cpu = {start: 0.0, stop: process.cpu_seconds}
        for step, _ in self._steps_here:
            if step is not None:
                cpu[step.start] = step.cpu_start - self._cpu_at_open
                if step.stop is not None and step.cpu_stop is not None:
                    cpu[step.stop] = step.cpu_stop - self._cpu_at_open
        for begin, end, own in self._own_threads(start, stop):
            yield begin, end, own, max(cpu[end] - cpu[begin], 0.0)

    def _own_threads(self, start: float, stop: float) -> list[tuple[float, float, int]]:
        steps = [(step, threads) for step, threads in self._steps_here if step is not None]
        spans = [(step.start, stop if step.stop is None else step.stop, threads) for step, threads in steps]
        always = [threads for step, threads in self._steps_here if step is None or not step.preprocessing]
        edges = {start, stop, *(edge for span in spans for edge in span[:2] if start < edge < stop)}
        found: list[tuple[float, float, int]] = []
        for begin, end in itertools.pairwise(sorted(edges)):
            inside = [threads for first, last, threads in spans if first <= begin and end <= last]
            threads = max(inside or always, default=0)
            if found and found[-1][1:] == (begin, threads):
                found[-1] = (found[-1][0], end, threads)
            elif threads:
                found.append((begin, end, threads))
        return found

    @staticmethod
    def _identity(worker: str) -> dict[str, Any]:
        host, process = host_and_process(worker)
        return {"worker": worker, "host": host, "process": process}

    def samples(self) -> pa.Table:
        rows = []
        for process in self._workers():
            name = self._name(process.pid)
            worker = {"worker": name, "memory_limit": self.hosts[0].memory}
            starts, stops = self._busy(name)
            spans = [(-math.inf, math.inf, 1)]
            if self._learned and process.pid == self._process:
                spans = self._own_threads(-math.inf, math.inf)
            inside = (each for each in process.samples if any(begin <= each.time <= end for begin, end, _ in spans))
            for sample in inside:
                begun, ended = (np.searchsorted(times, sample.time, side="right") for times in (starts, stops))
                rows.append(worker | sample._asdict() | {"executing": begun - ended if self._learned else None})
        return table_of_rows(SAMPLE_COLUMNS, rows)

    def notes(self) -> list[str]:
        notes = super().notes()
        if self._merged:
            notes.append(
                f"{self._merged} process samples were merged with their neighbours, to keep at most "
                f"{MOST_SAMPLES}; merged samples have the highest memory and the mean CPU use"
            )
        return notes

    # in a journal

    def facts(self) -> dict[str, Any]:
        known = {"cpu_at_open": self._cpu_at_open, "job": self._job, "withheld": self._withheld}
        return super().facts() | known | {"host": self._host, "process": self._process}

    def take(self, kind: str, data: bytes) -> None:
        if kind == PROCESSES:
            remember(json.loads(data), self.processes.seen, self._steps)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        super().learn(facts)
        if "process" in facts:  # absent if a custom backend provided the facts
            self._host, self._process = facts["host"], facts["process"]
            self._cpu_at_open, self._job = facts["cpu_at_open"], facts["job"]
            self._withheld = tuple(facts["withheld"])

    def news(self) -> Iterator[tuple[str, bytes]]:
        yield from super().news()
        yield from self._journal.news(self.processes.seen, self._steps)

    # implementation

    def _name(self, pid: int) -> str:
        return f"{self._host}/{pid}"

    def _keep_scanning(self) -> None:
        """Scan until the recorder is closed, without logging or importing anything, because the analysis may fork."""
        cost = 0.0
        while not self._ended.wait(max(min(SCAN_INTERVAL, self._interval or SCAN_INTERVAL), cost / SHARE)):
            began = time.thread_time()
            with reported(self.note, "the analysis's processes could not be scanned for a while", Exception):
                self._scan(sample=self._interval is not None and time.monotonic() >= self._next_sample)
            cost = time.thread_time() - began

    def _scan(self, *, sample: bool) -> None:
        self.processes.scan(sample=sample)
        if sample and self._interval is not None:
            if sum(len(process.samples) for process in self.processes.seen) > MOST_SAMPLES:
                self._merged += sum(process.merge_neighbours() for process in self.processes.seen)
                self._interval *= 2
            self._next_sample = time.monotonic() + self._interval


def host_and_process(worker: str) -> tuple[str | None, int | None]:
    """Host and process ID from a worker name, or None for both if the name has a different form."""
    host, _, process = worker.rpartition("/")
    return (host, int(process)) if host and process.isdecimal() else (None, None)


def pool_size(executor: Any) -> int | None:
    if not hasattr(executor, "pool"):
        return None
    return getattr(executor.pool, "_max_workers", None) or int(executor.workers)


class LocalMetricsBackend(RecordingBackend):
    """Backend that samples an analysis's processes on this host.

    With a collector, the workers are the processes that ran chunks and the idle processes in the same pools. Without a
    collector, the workers are this process and all its descendants.
    """

    def __init__(self) -> None:
        super().__init__(ProcessRecorder())
