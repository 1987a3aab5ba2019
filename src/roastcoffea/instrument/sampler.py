"""The sampler: the functions and lines of open chunks' threads, about ten times a second.

One thread per process samples all of its open chunks. It starts with the first one and ends when there are none. This
module needs only the standard library, and may be pickled by value.

Python runs one thread at a time: while the sampler runs, threads in Python code are stopped. A thread's state is
therefore derived from its clocks over the moment before the sample, not from its state at the sample.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from roastcoffea.errors import error_text
from roastcoffea.instrument.gauges import CoreWait, OfThread
from roastcoffea.instrument.shared import Action, Remembered
from roastcoffea.interrupts import raise_if_interrupted
from roastcoffea.log.stacks import IN_BETWEEN, IN_OTHERS, UNSAMPLED, Stack, packed_stacks
from roastcoffea.redaction import Added

PROMPT: Final = 5e-4
"""Seconds after which a thread has to hand the interpreter over while the interval is shortened."""

ROUNDING: Final = 5e-7
"""Python truncates to microseconds, so that an interval set to the value just read may become one less."""

STATE: Final = "__roastcoffea_switching_2__"
"""Name of the shared state in `sys.modules`; it stays there, because callbacks after a fork cannot be unregistered.

It changes with the fields: another version may have made one."""

COLLECTS_FOR_FRAMES: Final = sys.version_info < (3, 12)
"""Whether making the object of a frame may begin a garbage collection."""


@contextmanager
def prompt() -> Iterator[None]:
    """Context in which this thread gets the interpreter as soon as it requests it.

    Otherwise a thread gets it when another one has had it for five milliseconds, or releases it to read, sleep or
    compute in C: samples would hit these calls rather than the Python code before them.
    """
    state = _shared()
    if state.is_prompt:  # another copy of this code has shortened it, and restores it
        yield
        return
    state.usual, state.is_prompt = sys.getswitchinterval(), True
    sys.setswitchinterval(min(state.usual, PROMPT) + ROUNDING)
    try:
        yield
    finally:
        _end(state)


def usual_interval() -> float:
    """Usual seconds after which a thread has to hand the interpreter over.

    A shortened moment may start or end between two statements: for an interval that short, the last usual one counts.
    """
    interval = sys.getswitchinterval()
    state: Any = sys.modules.get(STATE)
    return interval if state is None or interval > PROMPT else max(interval, state.usual)


@contextmanager
def uncollected() -> Iterator[None]:
    """Context in which frames of other threads can be visited; Python 3.11 collects no garbage in it.

    There a collection may begin when the object of a frame is made, and runs callbacks and finalizers. While they run,
    the other thread may leave that frame: the new object would be of a frame that is gone, and visiting it ends the
    process. While it lists the frames of all threads, Python also holds a lock for which the other thread may wait, for
    ever: https://github.com/python/cpython/issues/106883.

    Others save and restore whether collections are enabled, but hardly their threshold.
    """
    if not COLLECTS_FOR_FRAMES:
        yield
        return
    state = _shared()
    if not state.visitors:
        state.threshold = gc.get_threshold()[0]
    state.visitors += 1
    gc.set_threshold(0)
    try:
        yield
    finally:
        state.visitors -= 1
        if not state.visitors:
            _collect_again(state)


def _collect_again(state: Any) -> None:
    if not gc.get_threshold()[0]:  # else the user has changed it
        gc.set_threshold(state.threshold)


def _end(state: Any) -> None:
    if sys.getswitchinterval() <= PROMPT:  # else the user has changed it
        sys.setswitchinterval(state.usual + ROUNDING)
    state.is_prompt = False


def _shared() -> Any:
    state: Any = sys.modules.get(STATE)
    if state is None:
        fresh: Any = ModuleType(STATE)
        fresh.usual, fresh.is_prompt, fresh.visitors, fresh.threshold = 0.0, False, 0, 0
        state = sys.modules.setdefault(STATE, fresh)
        if state is fresh and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _end_in_child(fresh))
    return state


def _end_in_child(state: Any) -> None:
    """Restore interval and threshold in a forked child: the parent's thread that would do so does not exist there."""
    if state.visitors:
        state.visitors = 0
        _collect_again(state)
    if state.is_prompt:
        _end(state)


PERIOD: Final = 0.1
"""Mean seconds between samples; they vary, because the code may have a rhythm of its own."""

MOMENT: Final = 0.001
"""Seconds over which a thread's clocks determine its state; they are first read this long before each sample."""

MOST_STACKS: Final = 500
"""Most distinct stacks of an attempt while it runs."""

OUTERMOST: Final = 24
INNERMOST: Final = 40
"""Frames kept at either end of a deep stack."""

_samplers: Final[dict[int, Sampler]] = Remembered()
"""Samplers by process: a forked child has its parent's, which does nothing there."""


class Stacks:
    """Stacks of the thread that runs one attempt, in the user's function.

    Parameters
    ----------
    note : callable
        Receives a problem if nothing can be sampled.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self.note = note
        self._counts: dict[Stack, list[float]] = {}
        self._codes: dict[int, CodeType | None] = {}
        """By identity, which could be reused later if the code were not kept; None for ours, which are left out."""

    def run(self, function: Action, *args: Any) -> Any:
        """Call the function and return its result; stacks are those of its calls."""
        sampler = None
        self._inside = sys._getframe().f_code
        try:
            sampler = self._begin()
        except (OSError, RuntimeError) as error:
            raise_if_interrupted(error)
            self.note(f"a chunk has no profile: {error_text(error)}")
        try:
            return function(*args)
        finally:
            if sampler is not None and sampler.process == os.getpid():
                sampler.leave(self)

    def _begin(self) -> Sampler:
        self.thread = threading.get_ident()
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self.thread)
        thread = f"self/task/{threading.get_native_id()}"
        self._core_wait, self._stat = CoreWait(thread), OfThread("stat", thread)
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
            self._delay = self._core_wait.seconds()

    def sample(self, frame: FrameType | None, now: float, seconds: float) -> None:
        """Count the thread's current stack for this many seconds."""
        shares = self._shares(now)
        with uncollected():
            stack = self._stack(frame)
        self.count(stack, seconds, shares)

    def close(self) -> None:
        """Close the kernel's files."""
        self._core_wait.close()
        self._stat.close()

    def count(self, stack: Stack, seconds: float, shares: tuple[float, ...] = (), samples: int = 1) -> None:
        """Count seconds for a stack; with `UNSAMPLED`, time in which the sampler could not run."""
        if stack not in self._counts and len(self._counts) >= MOST_STACKS:
            stack = IN_OTHERS
        sums = self._counts.setdefault(stack, [0, 0.0, 0.0, 0.0, 0.0])
        sums[0] += samples
        sums[1] += seconds
        for place, share in enumerate(shares, 2):
            sums[place] += seconds * share

    def _shares(self, now: float) -> tuple[float, ...]:
        """Shares of the last moment: on a core, runnable without one, blocked; none if the system does not report them.

        The kernel counts a wait for a core when it ends: a thread's state shows whether it is waiting now.
        """
        if self._clock is None:
            return ()
        try:
            window = max(now - self._looked, 1e-6)
            core = min(max((time.clock_gettime(self._clock) - self._cpu) / window, 0.0), 1.0)
            rest = 1.0 - core
            delay = self._core_wait.seconds()
            waited = 0.0 if delay is None or self._delay is None else (delay - self._delay) / window
            contention = min(waited, rest)
            if rest - contention > 0.1 and self._stat.text().rpartition(b")")[2].split()[:1] == [b"R"]:
                contention = rest
        except OSError as error:
            raise_if_interrupted(error)
            return ()
        return core, contention, rest - contention

    def _stack(self, frame: FrameType | None) -> Stack:
        """Functions and lines from the innermost frame to that of the user's function."""
        found: list[tuple[int, int]] = []
        while frame is not None and frame.f_code is not self._inside and len(found) < 5000:
            code = frame.f_code
            key = id(code)
            if key not in self._codes:
                ours = str(frame.f_globals.get("__name__")).startswith("roastcoffea.instrument.")
                self._codes[key] = None if ours else code
            if self._codes[key] is not None:
                found.append((key, frame.f_lineno or 0))
            frame = frame.f_back
        if len(found) > OUTERMOST + INNERMOST:
            found = [*found[:INNERMOST], IN_BETWEEN, *found[-OUTERMOST:]]
        return tuple(found)

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
                self._due = time.perf_counter() + PERIOD * _random()
                self._last = self._due - PERIOD
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
                stacks.count(UNSAMPLED, now - max(self._due, stacks.began), samples=0)
            stacks.close()

    def _run(self) -> None:
        planned = PERIOD
        try:
            while True:
                # it first requests the interpreter so long before a sample, as a thread may keep it for 5 ms; after
                # that it has to hand it over promptly, so that samples are on time
                _sleep_until(self._due - 0.006)
                with prompt():
                    _sleep_until(self._due - MOMENT)
                    if not self._look():
                        return
                    _sleep_until(max(self._due, time.perf_counter() + MOMENT / 2))
                self._sample(planned)
                planned = PERIOD * (0.8 + 0.4 * _random())
                self._due = self._last + planned
        except BaseException as error:  # noqa: BLE001  (nobody else would learn of it)
            with self._lock:
                self._runs = False
                for stacks in self._open:
                    stacks.note(f"the profile ended early: {error_text(error)}")

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
        hits one by chance, and represents the missed ones as well. If the sampler was late, by half of what was
        planned, the chunk gets no more than its own duration.
        """
        now = time.perf_counter()
        with self._lock:
            gap, last = now - self._last, self._last
            self._last = now
            with uncollected():
                frames = sys._current_frames()
            try:
                for stacks in self._open:
                    seconds = max(min(gap, 1.5 * planned), now - stacks.began) if stacks.began > last else gap
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
