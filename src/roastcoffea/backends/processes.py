"""Processes of an analysis on this host, as reported by the operating system or a journal."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple

import psutil


class Sample(NamedTuple):
    """A process's resource usage at one moment; values are None if not reported."""

    time: float
    cpu_percent: float | None
    memory: int
    cpu_seconds: float
    file_descriptors: int | None


class WatchedProcess:
    """One of the analysis's processes.

    `born`, `seen` and `gone` are the Unix times when the process started, was last seen alive, and was found to have
    ended (None until then). `cpu_seconds` is the CPU time since the process was first seen or, if it started while
    processes were already being watched, since its start.
    """

    def __init__(self, handle: psutil.Process, parent: int, born: float, *, is_new: bool) -> None:
        self.pid: int = handle.pid
        self.parent = parent
        self.born = self.seen = born
        self.gone: float | None = None
        self.samples: list[Sample] = []
        self._handle = handle
        self._own = self.pid == os.getpid()
        self._learn_command()
        self._cpu, self._reaped = self._times()
        self._cpu_before = 0.0 if is_new else self._cpu
        self._settled = self._reaped
        self._pending = 0.0

    @classmethod
    def remembered(cls, state: Mapping[str, Any], samples: list[Sample]) -> WatchedProcess:
        known = cls.__new__(cls)
        vars(known).update(state, samples=samples, _cpu_before=0.0)
        return known

    @property
    def state(self) -> dict[str, Any]:
        names = ("pid", "parent", "born", "is_tracker", "seen", "gone")
        return {name: getattr(self, name) for name in names} | {"_cpu": self.cpu_seconds}

    @property
    def cpu_seconds(self) -> float:
        return self._cpu - self._cpu_before

    @property
    def ended(self) -> bool:
        return self.gone is not None

    def may_have_lived(self, start: float, stop: float) -> bool:
        return self.born <= stop and (self.gone is None or self.gone >= start)

    def set_ended(self) -> None:
        self.gone = self.gone or time.time()

    def read(self, *, sample: bool) -> None:
        """Read the process's state, unless it has just ended or access is denied."""
        try:
            with self._handle.oneshot():
                self._cpu, self._reaped = self._times()
                if self._handle.status() == psutil.STATUS_ZOMBIE:
                    self.set_ended()
                else:
                    self.seen = time.time()
                    if sample:
                        self._take_sample()
        except psutil.Error:
            return

    def _times(self) -> tuple[float, float]:
        times = os.times() if self._own else self._handle.cpu_times()
        cpu = time.process_time() if self._own else times.user + times.system
        return cpu, times.children_user + times.children_system

    def _learn_command(self) -> None:
        """Read the process's command line, which is still the parent's between fork and exec."""
        # these words occur in the command lines of a pool's helper processes, which run no tasks
        self.is_tracker = any(
            word in part
            for part in self._handle.cmdline()
            for word in ("resource_tracker", "semaphore_tracker", "forkserver")
        )

    def _take_sample(self) -> None:
        self._learn_command()
        memory, percent = int(self._handle.memory_info().rss), None
        # at intervals of at least 0.05 s, because the operating system counts CPU time in hundredths of a second
        if self.samples and self.seen - self.samples[-1].time >= 0.05:
            last = self.samples[-1]
            percent = 100 * (self.cpu_seconds - last.cpu_seconds) / (self.seen - last.time)
        descriptors = self._handle.as_dict(["num_fds"])["num_fds"]  # None if access is denied
        self.samples.append(Sample(self.seen, percent, memory, self.cpu_seconds, descriptors))

    def settle(self, gone: Sequence[WatchedProcess]) -> None:
        """Credit children that have ended with CPU time that only this process, their parent, reports.

        If a child ends during a scan, its CPU time may be reported one scan before its end is noticed.
        """
        found = self._reaped - self._settled
        self._settled = self._reaped
        unseen = self._pending + found - sum(child._cpu + child._reaped for child in gone)
        self._pending = 0.0 if gone else found
        # split in proportion to CPU time; adding 0.01 s keeps the weights positive
        weights = [child.cpu_seconds + 0.01 for child in gone]
        for child, weight in zip(gone, weights, strict=True):
            child._cpu += max(unseen, 0.0) * weight / sum(weights)

    def merge_neighbours(self) -> int:
        """Merge samples in pairs, keeping the higher memory value; return the number of samples removed."""
        before = self.samples
        self.samples = []
        for pair in (before[at : at + 2] for at in range(0, len(before), 2)):
            percents = [sample.cpu_percent for sample in pair if sample.cpu_percent is not None]
            memory = max(sample.memory for sample in pair)
            self.samples.append(pair[-1]._replace(memory=memory, cpu_percent=fmean(percents) if percents else None))
        return len(before) - len(self.samples)


class ProcessTree:
    """This process, its descendants, and the other processes in its session.

    The session is included because some pools detach from their workers. Children of our ancestors are excluded if they
    are in other sessions, because they belong to different programs. In a container, for example, PID 1 adopts all
    daemons, and may be in our session.

    The CPU time that a process used between its last scan and its end is taken from the parent that waited for it. If
    several processes ended between two scans, their total CPU time is exact, but it is split in proportion to their
    earlier CPU times. If the parent is not watched or does not wait, this CPU time is missing.
    """

    def __init__(self) -> None:
        self.seen: list[WatchedProcess] = []
        self._living: dict[int, WatchedProcess] = {}
        self._others: set[int] = set()
        self._ancestors = {process.pid for process in psutil.Process().parents()}
        self._scanned: float | None = None
        self._lock = threading.Lock()

    def scan(self, *, sample: bool) -> None:
        with self._lock:
            began = time.time()
            self._add_newcomers(set(psutil.pids()))
            for process in self._living.values():
                process.read(sample=sample)
            gone = self._remove_ended()
            for parent in self._living.values():
                parent.settle([process for process in gone if process.parent == parent.pid])
            self._scanned = began

    def _remove_ended(self) -> list[WatchedProcess]:
        """Remove and return processes that have ended, re-reading the other processes' times after each removal."""
        gone: list[WatchedProcess] = []
        while ended := self._living.keys() - set(psutil.pids()):
            gone += [self._living.pop(pid) for pid in ended]
            for process in self._living.values():
                process.read(sample=False)
        for process in gone:
            process.set_ended()
        return gone

    def _add_newcomers(self, present: set[int]) -> None:
        self._others &= present
        for pid in sorted(present - self._others - self._living.keys()):
            process = self._newcomer(pid)
            if process is None:
                self._others.add(pid)
            else:
                self._living[pid] = process
                self.seen.append(process)

    def _newcomer(self, pid: int) -> WatchedProcess | None:
        try:
            handle = psutil.Process(pid)
            parent = handle.ppid()
            is_child = parent in self._living and parent not in self._ancestors
            if not is_child and os.getsid(pid) != os.getsid(0):
                return None
            born, boot = float(handle.create_time()), float(psutil.boot_time())
            now = time.time()  # read right before the boot clock, to compare the two
            if hasattr(time, "CLOCK_BOOTTIME"):  # on Linux, psutil's boot and start times are accurate to a second
                born += now - boot - time.clock_gettime(time.CLOCK_BOOTTIME)
            born = min(max(born, self._scanned or 0.0), now)
            return WatchedProcess(handle, parent, born, is_new=self._scanned is not None)
        except (psutil.Error, OSError):
            return None

    def family(self, process: int | None = None) -> list[WatchedProcess]:
        """A process (by default this process) and all its descendants."""
        members = {process or os.getpid()}
        for one in self.seen:
            if one.parent in members:
                members.add(one.pid)
        return [one for one in self.seen if one.pid in members]


@dataclass(eq=False)
class Step:
    """An executor call, for the preprocessing or the chunks of a Runner call.

    `size` is the number of processes or threads in the executor's pool. `cpu_start` and `cpu_stop` are this process's
    CPU times.
    """

    call: str | None
    preprocessing: bool
    size: int | None
    start: float
    cpu_start: float
    stop: float | None = None
    cpu_stop: float | None = None


PROCESSES: Final = "processes"


class ProcessJournal:
    """Tracks the process and step states that have already been written to a journal."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._steps: list[tuple[Any, ...]] = []

    def news(self, processes: Sequence[WatchedProcess], steps: Sequence[Step]) -> Iterator[tuple[str, bytes]]:
        """Yield a journal entry with the changes since the last entry, if there are any."""
        changed = []
        for number, one in enumerate(list(processes)):
            state, samples = one.state, list(one.samples)
            known, first = self._known.get(number, (None, 0))
            if (state, len(samples)) != (known, first):
                self._known[number] = state, len(samples)
                first = first if first <= len(samples) else 0  # samples have been merged since then
                changed.append([number, state, first, samples[first:]])
        steps_now = [*map(astuple, list(steps))]
        new_steps = None if steps_now == self._steps else steps_now
        self._steps = steps_now
        if changed or new_steps is not None:
            yield PROCESSES, json.dumps({"changed": changed, "steps": new_steps}).encode()


def remember(entry: Mapping[str, Any], processes: list[WatchedProcess], steps: list[Step]) -> None:
    for number, state, first, samples in entry["changed"]:
        before = [sample for process in processes[number : number + 1] for sample in process.samples[:first]]
        known = WatchedProcess.remembered(state, [*before, *(Sample(*sample) for sample in samples)])
        processes[number : number + 1] = [known]
    if entry["steps"] is not None:
        steps[:] = [Step(*step) for step in entry["steps"]]


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block, and permanently in processes that the block starts.

    A terminal sends Ctrl-C to all of its processes, so each worker would print its own traceback. Blocking the signal
    instead would lose no interrupt, but multiprocessing unblocks the signal when it starts a process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
