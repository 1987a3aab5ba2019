"""An analysis without a cluster: the processes on this host that run its chunks."""

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
from roastcoffea.backends.recorder import Recorder
from roastcoffea.errors import reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.log.jobs import job
from roastcoffea.log.marks import FromEnvironment
from roastcoffea.log.workers import job_columns
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.workers import KINDS, LIFETIME_COLUMNS, SAMPLE_COLUMNS, WITHHELD
from roastcoffea.units import counted

SCAN_INTERVAL: Final = 0.1
"""Seconds between scans for processes that started or ended; a pool may live less than a second."""

UNREADABLE: Final = (OSError, psutil.Error)
"""Errors of scanning processes, which start and end, and may belong to someone else."""

SHARE: Final = 0.02
"""Most of one core that scanning may use: if a scan is slow, there are fewer."""

MOST_SAMPLES: Final = 100_000
"""Most samples kept; beyond that, neighbours are merged and the interval is doubled."""


UNSEEN: Final = (
    "not seen (ended too soon, or in a container): assumed present from first chunk to last, with unknown resource use"
)


class LocalMetricsBackend(Recorder):
    """Records the processes on this host that run the chunks of an analysis, using the operating system.

    A worker is a process that ran a chunk, or an idle one of the same pool. All others (this process beside a pool of
    processes, one that only merges, trackers of resources, Parsl's interchange) are no workers and have no samples.
    This process is one while a step runs in it, with the threads of that step's pool; where chunks ran in it, it is one
    all the time. Before chunks are known (`learn_chunks`), this process and all that descend from it count.
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
        """Steps that ran in this process, and on how many threads."""
        self._cpu_at_open = 0.0
        self._learned: list[pa.Table] = []
        self._others: dict[str, ExecutorLog] = {}
        """What executors know of their workers, by class."""
        self._threads: dict[WatchedProcess, int] = {}
        self._unseen: dict[str, int] = {}
        self._brief: set[str] = set()
        """Of these the ones that only opened files, and ended before a scan could find them."""
        self.withheld_before: Withheld = (None, None, None)
        self._withheld: Withheld = (None, None, None)
        """Throttling and steal of this process, whose control groups those of the analysis share, and its host."""
        self._job: dict[str, Any] = {}
        """Columns of lifetimes on the batch job that this process runs in."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # life cycle of a collector

    def open(self, interval: float | None, span: str | None = None) -> None:  # noqa: ARG002  (Dask's)
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
        """Scan now: a pool may end with the Runner call that made it."""
        if self.is_open:
            self._scan(sample=self._interval is not None)

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with reported(self.note, "the processes of the analysis were not seen at the end", UNREADABLE):
            self.drain()
        self._withheld = withheld_since(self.withheld_before)
        if self.hosts:
            # processes of pools are not asked for their CPU time
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
        """Learn from records which processes are workers, and how many threads they have.

        Parameters
        ----------
        chunks
            `worker`, `thread`, `start`, `stop` and `call` of attempts of chunks, or of openings of files. Each table
            once, after `close`.
        preprocessing
            Whether they are openings, which may have had a pool of their own.
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
        """Learn who worked in one step; None where the executor's call was not seen."""
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
                unknown = "the executor does not report how many processes work for it"
                self.note(f"{unknown}: those that ran no chunk are not counted")

    def _idle(self, workers: list[WatchedProcess], number: int, start: float, stop: float) -> list[WatchedProcess]:
        """Processes of the workers' pool without a chunk: siblings of theirs born with them."""
        siblings = [
            process
            for process in self.processes.seen
            if process not in workers
            and not process.is_tracker
            and process.may_have_lived(start, stop)
            and any(process.parent == worker.parent for worker in workers)
        ]
        apart = {process: min(abs(process.born - worker.born) for worker in workers) for process in siblings}
        # most seconds between the births of two processes of one pool
        born_with_them = [process for process in siblings if apart[process] < 5.0]
        return sorted(born_with_them, key=apart.__getitem__)[: max(number, 0)]

    def _note_unseen(self) -> None:
        facts = self.received.processes
        texts = Counter[str]()
        for worker in self._unseen:
            host, known = host_and_process(worker)[0], facts.get(worker, {})
            other = next((other.label for other in self._others.values() if other.has(known)), None)
            if other is not None:
                texts[f"of {other}, not seen on this host: their resource use is unknown"] += 1
            elif host == self._host:
                texts[UNSEEN] += worker not in self._brief
            else:
                texts[
                    f"on other hosts than {self._host}, or on unknown ones: lifetimes and resource use are unknown"
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
        """Attempts of tasks of an executor that has them; None without."""
        return next((tasks for other in self._others.values() if (tasks := other.tasks()) is not None), None)

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers present between start and stop."""
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
        """Threads of the workers that were seen."""
        return self._threads if self._learned else dict.fromkeys(self.processes.family(self._process))

    def _busy(self, worker: str) -> list[npt.NDArray[np.float64]]:
        """Starts and ends of the chunks of a worker, in order."""
        rows = [table.filter(pc.equal(table["worker"], worker)) for table in self._learned]
        times = (np.concatenate([[], *(table[name].to_numpy() for table in rows)]) for name in ("start", "stop"))
        return list(map(np.sort, times))

    def _lives(
        self, process: WatchedProcess, threads: int | None, start: float, stop: float
    ) -> Iterator[tuple[float, float, int | None, float]]:
        """Start, stop, threads and CPU time of a process as a worker.

        This process has one for each step, in sequence, with the number of threads during that step.
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
        """From when until when this process was a worker, and with how many threads."""
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
        """Samples of the workers, worker by worker."""
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
                f"{self._merged} samples of processes were merged with their neighbours to keep {MOST_SAMPLES}: "
                "with their highest memory and mean CPU use"
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
        if "process" in facts:  # else they are of a backend of the user's
            self._host, self._process = facts["host"], facts["process"]
            self._cpu_at_open, self._job = facts["cpu_at_open"], facts["job"]
            self._withheld = tuple(facts["withheld"])

    def news(self) -> Iterator[tuple[str, bytes]]:
        yield from super().news()
        yield from self._journal.news(self.processes.seen, self._steps)

    # implementation

    def _name(self, pid: int) -> str:
        """Name of a process among the workers, as used by the probe."""
        return f"{self._host}/{pid}"

    def _keep_scanning(self) -> None:
        """Scan until the end. It logs and imports nothing, because the analysis may fork in the meantime."""
        cost = 0.0
        while not self._ended.wait(max(min(SCAN_INTERVAL, self._interval or SCAN_INTERVAL), cost / SHARE)):
            began = time.thread_time()
            with reported(self.note, "the processes of the analysis could not be seen for a while", Exception):
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
    """Host and number of a process by its name; none for a name of another form."""
    host, _, process = worker.rpartition("/")
    return (host, int(process)) if host and process.isdecimal() else (None, None)


def pool_size(executor: Any) -> int | None:
    """Processes or threads that work for an executor of coffea; None if not reported."""
    if not hasattr(executor, "pool"):
        return None
    return getattr(executor.pool, "_max_workers", None) or int(executor.workers)
