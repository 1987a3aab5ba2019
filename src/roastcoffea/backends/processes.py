"""The processes of an analysis on this host, as the operating system reports them, and in a journal."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple

import psutil


class Sample(NamedTuple):
    """Resource use of a process at one time; None if the operating system does not report it."""

    time: float
    cpu_percent: float | None
    memory: int
    cpu_seconds: float
    file_descriptors: int | None


class WatchedProcess:
    """A process of the analysis.

    `born`, `seen` and `gone` are Unix times: its start, when it was last seen alive, and when it was first found to
    have ended (None before). `cpu_seconds` is its CPU time since it was first seen, or since its start if it started
    during the watch.
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
        """A process that is known from a journal, and not watched."""
        known = cls.__new__(cls)
        vars(known).update(state, samples=samples, _cpu_before=0.0)
        return known

    @property
    def state(self) -> dict[str, Any]:
        """What a journal has of it in addition to its samples."""
        names = ("pid", "parent", "born", "is_tracker", "seen", "gone")
        return {name: getattr(self, name) for name in names} | {"_cpu": self.cpu_seconds}

    @property
    def cpu_seconds(self) -> float:
        """CPU time, user and system, of all threads."""
        return self._cpu - self._cpu_before

    @property
    def ended(self) -> bool:
        """Whether it was found to have ended."""
        return self.gone is not None

    def may_have_lived(self, start: float, stop: float) -> bool:
        """Whether it can have been alive between start and stop: it ended after it was last seen alive."""
        return self.born <= stop and (self.gone is None or self.gone >= start)

    def set_ended(self) -> None:
        """Record that it has ended by now."""
        self.gone = self.gone or time.time()

    def read(self, *, sample: bool) -> None:
        """Read the process; one that has just ended, or may not be read, is unchanged."""
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
        """CPU time of the process, and of its children that have been waited for."""
        times = os.times() if self._own else self._handle.cpu_times()
        cpu = time.process_time() if self._own else times.user + times.system
        return cpu, times.children_user + times.children_system

    def _learn_command(self) -> None:
        """Read its command; between fork and exec that is still its parent's."""
        # words in the commands of processes that serve a pool without working in it
        self.is_tracker = any(
            word in part
            for part in self._handle.cmdline()
            for word in ("resource_tracker", "semaphore_tracker", "forkserver")
        )

    def _take_sample(self) -> None:
        self._learn_command()
        memory, percent = int(self._handle.memory_info().rss), None
        # shortest seconds for a CPU percentage: the operating system counts CPU time in hundredths of a second
        if self.samples and self.seen - self.samples[-1].time >= 0.05:
            last = self.samples[-1]
            percent = 100 * (self.cpu_seconds - last.cpu_seconds) / (self.seen - last.time)
        descriptors = self._handle.as_dict(["num_fds"])["num_fds"]  # None if access is denied
        self.samples.append(Sample(self.seen, percent, memory, self.cpu_seconds, descriptors))

    def settle(self, gone: Sequence[WatchedProcess]) -> None:
        """Credit ended children with the CPU time that this process reports for them beyond what was seen.

        A child may end during a scan, so that its time is reported one scan before its end is noticed.
        """
        found = self._reaped - self._settled
        self._settled = self._reaped
        unseen = self._pending + found - sum(child._cpu + child._reaped for child in gone)
        self._pending = 0.0 if gone else found
        # least seconds of CPU assumed for a process when time is split in proportion
        weights = [child.cpu_seconds + 0.01 for child in gone]
        for child, weight in zip(gone, weights, strict=True):
            child._cpu += max(unseen, 0.0) * weight / sum(weights)

    def merge_neighbours(self) -> int:
        """Merge each pair of samples, with their highest memory; return the number removed."""
        before = self.samples
        self.samples = []
        for pair in (before[at : at + 2] for at in range(0, len(before), 2)):
            percents = [sample.cpu_percent for sample in pair if sample.cpu_percent is not None]
            memory = max(sample.memory for sample in pair)
            self.samples.append(pair[-1]._replace(memory=memory, cpu_percent=fmean(percents) if percents else None))
        return len(before) - len(self.samples)


class ProcessTree:
    """This process, its descendants, and its session: some pools detach from their workers.

    What an ancestor started in another session is another program: in a container, process 1 may share our session, and
    adopts all daemons.

    The use of a process between the last scan and its end comes from its parent, which waited for it. If several ended
    between two scans, the sum is exact, and split in proportion to their earlier use. It is missing for a process whose
    parent is not watched or does not wait.
    """

    def __init__(self) -> None:
        self.seen: list[WatchedProcess] = []
        self._living: dict[int, WatchedProcess] = {}
        self._others: set[int] = set()
        self._ancestors = {process.pid for process in psutil.Process().parents()}
        self._scanned: float | None = None
        self._lock = threading.Lock()

    def scan(self, *, sample: bool) -> None:
        """Find processes that started and ended, and read their use; take a sample of each if requested."""
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
        """Remove and return the processes that have ended, whose parents' times are read after the end of each."""
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
            now = time.time()  # right before the clock that it is compared with
            if hasattr(time, "CLOCK_BOOTTIME"):  # psutil knows the boot time of Linux, and so this, only to the second
                born += now - boot - time.clock_gettime(time.CLOCK_BOOTTIME)
            born = min(max(born, self._scanned or 0.0), now)
            return WatchedProcess(handle, parent, born, is_new=self._scanned is not None)
        except (psutil.Error, OSError):
            return None

    def family(self, process: int | None = None) -> list[WatchedProcess]:
        """A process (by default this one) and all its descendants."""
        members = {process or os.getpid()}
        for one in self.seen:
            if one.parent in members:
                members.add(one.pid)
        return [one for one in self.seen if one.pid in members]


@dataclass(eq=False)
class Step:
    """One call of an executor: for the files of preprocessing, or for the chunks of a Runner call."""

    call: str | None
    preprocessing: bool
    size: int | None
    """Processes or threads of its pool; None where it does not tell."""
    start: float
    cpu_start: float
    """CPU time of this process at its start; likewise at its stop."""
    stop: float | None = None
    cpu_stop: float | None = None


PROCESSES: Final = "processes"
"""Kind of entries of a journal with new states of processes and steps."""


class ProcessJournal:
    """What a journal has of processes and steps so far."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        """State, and number of samples, of each process by its number."""
        self._steps: list[tuple[Any, ...]] = []

    def news(self, processes: Sequence[WatchedProcess], steps: Sequence[Step]) -> Iterator[tuple[str, bytes]]:
        """An entry with what has changed; none if nothing has."""
        changed = []
        for number, one in enumerate(list(processes)):
            state, samples = one.state, list(one.samples)
            known, first = self._known.get(number, (None, 0))
            if (state, len(samples)) != (known, first):
                self._known[number] = state, len(samples)
                first = first if first <= len(samples) else 0  # they were merged meanwhile
                changed.append([number, state, first, samples[first:]])
        steps_now = [*map(astuple, list(steps))]
        new_steps = None if steps_now == self._steps else steps_now
        self._steps = steps_now
        if changed or new_steps is not None:
            yield PROCESSES, json.dumps({"changed": changed, "steps": new_steps}).encode()


def remember(entry: Mapping[str, Any], processes: list[WatchedProcess], steps: list[Step]) -> None:
    """Take an entry into the lists of what is known so far."""
    for number, state, first, samples in entry["changed"]:
        before = [sample for process in processes[number : number + 1] for sample in process.samples[:first]]
        known = WatchedProcess.remembered(state, [*before, *(Sample(*sample) for sample in samples)])
        processes[number : number + 1] = [known]
    if entry["steps"] is not None:
        steps[:] = [Step(*step) for step in entry["steps"]]
