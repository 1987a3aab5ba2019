"""The sampler: the functions and lines of open chunks' threads, about ten times a second.

One thread per process samples all of its open chunks. It starts with the first one and ends when there are none. This
module needs only the standard library, and may be pickled by value.

Python runs one thread at a time: while the sampler runs, threads in Python code are stopped. A thread's state is
therefore derived from its clocks over the moment before the sample, not from its state at the sample.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.switching import prompt, uncollected
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.stacks import IN_BETWEEN, IN_OTHERS, UNSAMPLED, Stack, packed_stacks
from roastcoffea.redaction import Added

PERIOD: Final = 0.1
"""Mean seconds between samples; they vary, because the code may have a rhythm of its own."""

SHORTEST_GAP: Final = 0.8
LONGEST_GAP: Final = 1.2
"""Relative to the period."""

MOMENT: Final = 0.001
"""Seconds over which a thread's clocks determine its state; they are first read this long before each sample."""

NOTICE: Final = 0.006
"""Seconds before a sample at which the sampler first requests the interpreter: a thread may keep it for 5 ms. After
that it has to hand it over promptly, so that samples are on time."""

LATE: Final = 1.5
"""Ratio to the planned gap above which a gap between samples counts as a delay of the sampler."""

MOST_STACKS: Final = 500
"""Most distinct stacks of an attempt while it runs."""

OUTERMOST: Final = 24
INNERMOST: Final = 40
"""Frames kept at either end of a deep stack."""

DEEPEST: Final = 5000
"""Most frames traversed; of a deeper stack only the innermost are known."""

LONGEST_LINE: Final = 512
OURS: Final = "roastcoffea.instrument."
"""Prefix of modules whose frames are between those of a processor and what it calls."""


class _OfThisProcess(dict[int, "Sampler"]):
    """Samplers by process: a forked child has its parent's, which does nothing there; a pickle of it is empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _OfThisProcess, ()


_samplers: Final = _OfThisProcess()


class Stacks:
    """Stacks of the thread that runs one attempt, in the user's function.

    Parameters
    ----------
    note : callable
        Receives a problem if nothing can be sampled.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._counts: dict[Stack, list[float]] = {}
        self._codes: dict[int, CodeType | None] = {}
        self._files = [-1, -1]
        self.began = 0.0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function and return its result; stacks are those of its calls."""
        sampler = None
        self._inside = sys._getframe().f_code
        try:
            sampler = self._begin()
        except (OSError, RuntimeError) as error:
            raise_if_interrupted(error)
            self._note(f"a chunk has no profile: {error_text(error)}")
        try:
            return function(*args)
        finally:
            if sampler is not None and sampler.process == os.getpid():
                sampler.leave(self)

    def _begin(self) -> Sampler:
        self.thread, self._native = threading.get_ident(), threading.get_native_id()
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self.thread)
        self._delay: float | None = None
        self.began = self._looked = time.perf_counter()
        self._cpu = time.thread_time()
        process = os.getpid()
        sampler = _samplers.get(process) or _samplers.setdefault(process, Sampler(process))
        sampler.join(self)
        return sampler

    # called by the sampler, with its lock held

    def look(self) -> None:
        """Read the clocks of the thread, a moment before the sample."""
        self._looked = time.perf_counter()
        if self._clock is not None:
            self._cpu = time.clock_gettime(self._clock)
            self._delay = self._run_delay()

    def sample(self, frame: FrameType | None, now: float, seconds: float) -> None:
        """Count the thread's current stack for this many seconds."""
        shares = self._shares(now)
        with uncollected():
            frames = self._frames(frame)
        self._count(self._stack(frames), seconds, shares)

    def delayed(self, seconds: float) -> None:
        """Count time in which the sampler could not run."""
        self._count(UNSAMPLED, seconds, None, 0)

    def failed(self, problem: str) -> None:
        """Record that sampling has stopped."""
        self._note(problem)

    def close(self) -> None:
        """Close the kernel's files."""
        files, self._files = self._files, [-1, -1]
        for file in files:
            if file >= 0:
                os.close(file)

    def _count(self, stack: Stack, seconds: float, shares: tuple[float, float, float] | None, samples: int = 1) -> None:
        if stack not in self._counts and len(self._counts) >= MOST_STACKS:
            stack = IN_OTHERS
        sums = self._counts.setdefault(stack, [0, 0.0, 0.0, 0.0, 0.0])
        sums[0] += samples
        sums[1] += seconds
        for place, share in enumerate(shares or (), 2):
            sums[place] += seconds * share

    def _shares(self, now: float) -> tuple[float, float, float] | None:
        """Shares of the last moment: on a core, runnable without one, blocked; None if the system does not report them.

        The kernel counts a wait for a core when it ends: a thread's state shows whether it is waiting now.
        """
        if self._clock is None:
            return None
        try:
            window = max(now - self._looked, 1e-6)
            core = min(max((time.clock_gettime(self._clock) - self._cpu) / window, 0.0), 1.0)
            rest = 1.0 - core
            delay = self._run_delay()
            waited = 0.0 if delay is None or self._delay is None else (delay - self._delay) / window
            contention = min(waited, rest)
            if rest - contention > 0.1 and self._is_runnable():
                contention = rest
        except OSError as error:
            raise_if_interrupted(error)
            return None
        return core, contention, rest - contention

    def _run_delay(self) -> float | None:
        """Seconds that the thread has waited for a core since it started; None if not reported."""
        try:
            return int(self._read(0, "schedstat").split()[1]) * 1e-9
        except (OSError, IndexError, ValueError) as error:
            raise_if_interrupted(error)
            return None

    def _is_runnable(self) -> bool:
        """Whether the thread runs, or would run with a core."""
        try:
            return self._read(1, "stat").rpartition(b")")[2].split()[0] == b"R"
        except (OSError, IndexError) as error:
            raise_if_interrupted(error)
            return False

    def _read(self, place: int, name: str) -> bytes:
        """Content of a kernel file about the thread; it stays open because opening takes longer than reading."""
        if self._files[place] < 0:
            self._files[place] = os.open(f"/proc/self/task/{self._native}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._files[place], LONGEST_LINE, 0)

    def _frames(self, frame: FrameType | None) -> list[FrameType]:
        """Frames from the innermost to that of the user's function."""
        frames: list[FrameType] = []
        while frame is not None and frame.f_code is not self._inside and len(frames) < DEEPEST:
            frames.append(frame)
            frame = frame.f_back
        return frames

    def _stack(self, every: list[FrameType]) -> Stack:
        """Functions and lines of frames; ours are left out."""
        frames: list[FrameType] = []
        for frame in every:
            code = frame.f_code
            key = id(code)
            if key not in self._codes:
                # the code is kept, because its identity could be reused later
                self._codes[key] = None if str(frame.f_globals.get("__name__")).startswith(OURS) else code
            if self._codes[key] is not None:
                frames.append(frame)
        if len(frames) <= OUTERMOST + INNERMOST:
            return tuple([(id(each.f_code), each.f_lineno or 0) for each in frames])
        inner = [(id(each.f_code), each.f_lineno or 0) for each in frames[:INNERMOST]]
        outer = [(id(each.f_code), each.f_lineno or 0) for each in frames[-OUTERMOST:]]
        return (*inner, IN_BETWEEN, *outer)

    # results

    def packed(self, added: Added | None = None) -> list[Any]:
        """The profile for the record, see `packed_stacks`."""
        return packed_stacks(self._counts, self._codes, added)


class Sampler:
    """Samples the open chunks of a process."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._open: set[Stacks] = set()
        self._runs = False
        self._last = self._due = 0.0

    def join(self, stacks: Stacks) -> None:
        """Sample this attempt until it leaves."""
        with self._lock:
            self._open.add(stacks)
            if self._runs:
                return
            try:
                # users would see a threading.Thread, and modules that wait for threads at their end would wait for it
                first = PERIOD * _random()
                self._last = time.perf_counter() + first - PERIOD
                self._due = self._last + PERIOD
                _thread.start_new_thread(self._run, ())
                self._runs = True
            except BaseException:
                self._open.discard(stacks)
                raise

    def leave(self, stacks: Stacks) -> None:
        """Stop sampling it."""
        now = time.perf_counter()
        with self._lock:
            self._open.discard(stacks)
            if self._runs and now - self._due > PERIOD:
                stacks.delayed(now - max(self._due, stacks.began))
            stacks.close()

    def _run(self) -> None:
        planned = PERIOD
        try:
            while True:
                _sleep_until(self._due - NOTICE)
                with prompt():
                    _sleep_until(self._due - MOMENT)
                    if not self._look():
                        return
                    _sleep_until(max(self._due, time.perf_counter() + MOMENT / 2))
                self._sample(planned)
                planned = PERIOD * (SHORTEST_GAP + (LONGEST_GAP - SHORTEST_GAP) * _random())
                self._due = self._last + planned
        except BaseException as error:  # noqa: BLE001  (nobody else would learn of it)
            with self._lock:
                self._runs = False
                for stacks in self._open:
                    stacks.failed(f"the profile ended early: {error_text(error)}")

    def _look(self) -> bool:
        """Read the clocks of all threads; return whether any chunk is open."""
        with self._lock:
            self._runs = bool(self._open)
            for stacks in self._open:
                with suppress(OSError):
                    stacks.look()
            return self._runs

    def _sample(self, planned: float) -> None:
        """Count the stacks of all open chunks.

        A sample represents the time since the last one, even in a chunk that started later: of several short chunks it
        hits one by chance, and represents the missed ones as well. If the sampler was late, the chunk gets no more than
        its own duration.
        """
        now = time.perf_counter()
        with self._lock:
            gap, last = now - self._last, self._last
            self._last = now
            with uncollected():
                frames = sys._current_frames()
            try:
                for stacks in self._open:
                    began_since = stacks.began > last
                    seconds = max(min(gap, LATE * planned), now - stacks.began) if began_since else gap
                    stacks.sample(frames.get(stacks.thread), now, seconds)
            finally:
                # this function's own frame is among them: all would live until the next garbage collection
                frames.clear()


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _random() -> float:
    """A number from 0 to 1; the generators of `random` belong to the user."""
    return int.from_bytes(os.urandom(2), "little") / 65536
