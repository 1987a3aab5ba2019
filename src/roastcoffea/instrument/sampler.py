"""Sampler that records, ten times a second, which functions and lines chunks execute.

A single thread in each process samples all open chunks. The thread starts with the first chunk and ends when no chunks
are open. This module needs only the standard library and may be pickled by value.

Only one Python thread runs at a time, so the sampler stops all threads that execute Python code. A thread's state is
therefore derived from its clocks just before the sample, not from its state during the sample.
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
"""Seconds after which a thread must release the GIL while the switch interval is shortened."""

ROUNDING: Final = 5e-7
"""Half a microsecond, added because Python truncates the switch interval to whole microseconds."""

STATE: Final = "__roastcoffea_switching_3__"
"""Name of the shared state, which stays in `sys.modules` because after-fork callbacks cannot be unregistered.

The name must change whenever the state's fields change, because another version may have created the state.
"""

COLLECTS_FOR_FRAMES: Final = sys.version_info < (3, 12)
"""Whether creating a frame object may start a garbage collection."""


@contextmanager
def prompt() -> Iterator[None]:
    """Context manager that gives this thread the GIL soon after the thread requests it.

    By default, a thread gets the GIL only when the thread that holds the GIL has run for five milliseconds, or releases
    it to read, sleep or compute in C. Samples would then show these calls instead of the Python code before them.
    """
    state = _shared()
    if state.is_prompt:  # another copy of this module has shortened the interval and will restore it
        yield
        return
    state.usual, state.is_prompt = sys.getswitchinterval(), True
    sys.setswitchinterval(min(state.usual, PROMPT) + ROUNDING)
    try:
        yield
    finally:
        _end(state)


def usual_interval() -> float:
    """Switch interval of the GIL in seconds, ignoring any shortening by the sampler.

    The interval may be shortened or restored between any two statements of this function. While the interval is
    shortened, the last normal value is returned.
    """
    interval = sys.getswitchinterval()
    state: Any = sys.modules.get(STATE)
    return interval if state is None or interval > PROMPT else max(interval, state.usual)


@contextmanager
def uncollected() -> Iterator[None]:
    """Context manager for reading other threads' frames safely.

    Before Python 3.12, creating a frame object may start a garbage collection, which runs callbacks and finalizers.
    During the collection, the other thread may leave its frame. The new object would then refer to a deleted frame, and
    reading the object would crash the process. Python also holds a lock while it lists the frames of all threads, and
    the other thread may wait for this lock forever: https://github.com/python/cpython/issues/106883.

    Collections are prevented by setting the threshold to 0 rather than by disabling them, because other code often
    saves and restores whether collections are enabled, but rarely saves the threshold.
    """
    if not COLLECTS_FOR_FRAMES:
        yield
        return
    state = _shared()
    with state.lock:
        if not state.visitors:
            state.threshold = gc.get_threshold()[0]
        state.visitors += 1
        gc.set_threshold(0)
    try:
        yield
    finally:
        with state.lock:
            state.visitors -= 1
            if not state.visitors:
                _collect_again(state)


def _collect_again(state: Any) -> None:
    if not gc.get_threshold()[0]:  # unless the user has changed the threshold
        gc.set_threshold(state.threshold)


def _protect_frames(sampler: Sampler) -> None:
    """Prevent collections in `sys._current_frames`, whoever calls it, until all samplers have been released.

    Dask's profiler calls it a hundred times a second. If one of these calls collected garbage, it could release the
    GIL while it holds Python's lock, and the sampler would then wait for this lock forever, without releasing the GIL.
    """
    if COLLECTS_FOR_FRAMES:
        state = _shared()
        with state.lock:
            if not state.samplers:
                state.frames = sys._current_frames
                sys._current_frames = state.uncollected_frames = _current_frames
            state.samplers.add(sampler)


def _release_frames(sampler: Sampler) -> None:
    if COLLECTS_FOR_FRAMES:
        state = _shared()
        with state.lock:
            state.samplers.discard(sampler)
            if not state.samplers:
                _restore_frames(state)


def _restore_frames(state: Any) -> None:
    if sys._current_frames is state.uncollected_frames:  # unless the user has replaced it
        sys._current_frames = state.frames


def _current_frames() -> dict[int, FrameType]:
    with uncollected():
        found: dict[int, FrameType] = _shared().frames()
    found[threading.get_ident()] = sys._getframe(1)
    return found


def _end(state: Any) -> None:
    if sys.getswitchinterval() <= PROMPT:  # unless the user has changed the interval
        sys.setswitchinterval(state.usual + ROUNDING)
    state.is_prompt = False


def _shared() -> Any:
    state: Any = sys.modules.get(STATE)
    if state is None:
        fresh: Any = ModuleType(STATE)
        fresh.usual, fresh.is_prompt, fresh.visitors, fresh.threshold = 0.0, False, 0, 0
        fresh.samplers, fresh.uncollected_frames = set(), None
        fresh.lock = threading.RLock()  # a signal handler may list frames too
        state = sys.modules.setdefault(STATE, fresh)
        if state is fresh and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _end_in_child(fresh))
    return state


def _end_in_child(state: Any) -> None:
    """Restore everything in a forked child, which has no sampler."""
    state.lock = threading.RLock()
    state.samplers.clear()
    _restore_frames(state)
    if state.visitors:
        state.visitors = 0
        _collect_again(state)
    if state.is_prompt:
        _end(state)


PERIOD: Final = 0.1
"""Mean sampling interval in seconds. The interval varies, because the sampled code may be periodic."""

MOMENT: Final = 0.001
"""A thread's state is determined from its clocks during this many seconds before each sample."""

MOST_STACKS: Final = 500

OUTERMOST: Final = 24
INNERMOST: Final = 40
"""Number of frames kept at each end of a deep stack."""

_samplers: Final[dict[int, Sampler]] = Remembered()
"""Samplers by process ID. A forked child inherits its parent's sampler, which does nothing in the child."""


class Stacks:
    """Stacks of the thread that runs an attempt, from the user's function inwards.

    `note` is called with the problem if the thread cannot be sampled.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self.note = note
        self._counts: dict[Stack, list[float]] = {}
        self._codes: dict[int, CodeType | None] = {}
        """Code objects by ID, kept so that IDs are not reused. The value is None for our own code."""

    def run(self, function: Action, *args: Any) -> Any:
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
        """Read the thread's clocks shortly before a sample."""
        self._looked = time.perf_counter()
        if self._clock is not None:
            self._cpu = time.clock_gettime(self._clock)
            self._delay = self._core_wait.seconds()

    def sample(self, frame: FrameType | None, now: float, seconds: float) -> None:
        shares = self._shares(now)
        with uncollected():
            stack = self._stack(frame)
        self.count(stack, seconds, shares)

    def close(self) -> None:
        self._core_wait.close()
        self._stat.close()

    def count(self, stack: Stack, seconds: float, shares: tuple[float, ...] = (), samples: int = 1) -> None:
        """Add sampled seconds to a stack. `UNSAMPLED` represents time during which the sampler could not run."""
        if stack not in self._counts and len(self._counts) >= MOST_STACKS:
            stack = IN_OTHERS
        sums = self._counts.setdefault(stack, [0, 0.0, 0.0, 0.0, 0.0])
        sums[0] += samples
        sums[1] += seconds
        for place, share in enumerate(shares, 2):
            sums[place] += seconds * share

    def _shares(self, now: float) -> tuple[float, ...]:
        """Shares of the time since `look` that the thread spent on a core, waiting for a core, and blocked.

        The result is empty if the system does not report these times. The kernel counts a wait for a core only when the
        wait ends, so the thread's state shows whether the thread is waiting now.
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
        return packed_stacks(self._counts, self._codes, added)


class Sampler:
    def __init__(self, process: int) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._open: set[Stacks] = set()
        self._runs = False
        self._last = self._due = 0.0

    def join(self, stacks: Stacks) -> None:
        with self._lock:
            self._open.add(stacks)
            if self._runs:
                return
            try:
                # a threading.Thread would be visible to users, and to modules that wait for all threads at exit
                self._due = time.perf_counter() + PERIOD * _random()
                self._last = self._due - PERIOD
                _protect_frames(self)
                _thread.start_new_thread(self._run, ())
                self._runs = True
            except BaseException:
                self._open.discard(stacks)
                _release_frames(self)
                raise

    def leave(self, stacks: Stacks) -> None:
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
                # Request the GIL early, because another thread may hold it for 5 ms. From then on, threads must release
                # the GIL promptly, so that samples are on time.
                _sleep_until(self._due - 0.006)
                with prompt():
                    _sleep_until(self._due - MOMENT)
                    if not self._look():
                        return
                    _sleep_until(max(self._due, time.perf_counter() + MOMENT / 2))
                self._sample(planned)
                planned = PERIOD * (0.8 + 0.4 * _random())
                self._due = self._last + planned
        except BaseException as error:  # noqa: BLE001  (otherwise the error would go unnoticed)
            with self._lock:
                self._runs = False
                for stacks in self._open:
                    stacks.note(f"the profile ended early: {error_text(error)}")
        finally:
            with self._lock:
                if not self._runs:  # unless another thread has started meanwhile
                    _release_frames(self)

    def _look(self) -> bool:
        """Read all threads' clocks, and return whether any chunk is open."""
        with self._lock:
            self._runs = bool(self._open)
            for stacks in self._open:
                with suppress(OSError):
                    stacks.look()
            return self._runs

    def _sample(self, planned: float) -> None:
        """Sample all open chunks' stacks.

        Each sample represents the whole interval since the previous sample, even in a chunk that started during the
        interval. If several short chunks run during the interval, the sample catches one of them by chance and
        represents the others as well. If the sampler was late, a chunk that started during the interval is credited
        with at most 1.5 times the planned interval, or with its own duration if that is longer.
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
                # the frames include this function's own, so they would live until the next garbage collection
                frames.clear()


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _random() -> float:
    """Random number between 0 and 1 that does not affect the user's `random` state."""
    return int.from_bytes(os.urandom(2), "little") / 65536
