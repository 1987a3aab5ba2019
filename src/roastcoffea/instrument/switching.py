"""What holds the interpreter: waits in process(), garbage collection, and switches for the sampler."""

from __future__ import annotations

import gc
import math
import operator
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from threading import get_ident
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any, Final

from roastcoffea.instrument.gauges import CoreWait
from roastcoffea.instrument.meter.tally import Tally
from roastcoffea.interrupts import raise_if_interrupted

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
    state.usual = usual = sys.getswitchinterval()
    state.is_prompt = True
    sys.setswitchinterval(min(usual, PROMPT) + ROUNDING)
    try:
        yield
    finally:
        if sys.getswitchinterval() <= PROMPT:  # else the user has changed it
            sys.setswitchinterval(usual + ROUNDING)
        state.is_prompt = False


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
        if state.visitors == 1:
            _collect_again(state)
        state.visitors -= 1


def _collect_again(state: Any) -> None:
    if not gc.get_threshold()[0]:  # else the user has changed it
        gc.set_threshold(state.threshold)


def _shared() -> Any:
    state: Any = sys.modules.get(STATE)
    if state is None:
        fresh = ModuleType(STATE)
        fresh.__dict__.update(usual=0.0, is_prompt=False, visitors=0, threshold=0)
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
        state.is_prompt = False
        if sys.getswitchinterval() <= PROMPT:
            sys.setswitchinterval(state.usual + ROUNDING)


SLACK: Final = 1.1
"""Seconds beyond the switch interval after which a thread waiting for the interpreter lock may wake, as timers are
late."""


LOCK: Final = "lock_seconds"


class Waits:
    """Time off the CPU of this thread in process(), from construction to `parts`.

    A thread that waits for the interpreter lock wakes up at each switch interval (5 ms) to demand it, which the kernel
    counts as voluntary switches: that distinguishes it from one that sleeps while others compute.
    """

    def __init__(self, meter: Tally, core_wait: CoreWait) -> None:
        self._meter = meter
        self._core_wait = core_wait
        self._delay = core_wait.seconds()
        self._switches, self._others, self._helper_cpu = switches(), time.process_time(), meter.helper_cpu
        self.wall, self.cpu = time.perf_counter(), time.thread_time()
        """Clocks of the thread at the beginning."""
        if self._delay is not None:
            meter.core_wait, meter.delay = core_wait, self._delay
            meter.off_core = self.wall - self.cpu

    def parts(self, wall: float, cpu: float, read: float) -> dict[str, float]:
        """Columns of the waits, in seconds.

        Parameters
        ----------
        wall, cpu, read : float
            Wall time of process(), CPU time of its thread, and its waiting for storage while it had a core.
        """
        meter = self._meter
        meter.core_wait = None
        waited = max(wall - cpu - read, 0.0)
        delay = self._core_wait.seconds()
        if delay is None or self._delay is None:
            return {"wait_seconds": waited}
        contention = min(delay - self._delay, waited)
        others = time.process_time() - self._others - cpu - meter.helper_cpu + self._helper_cpu
        rest = waited - contention
        lock = min(rest, self._longest_lock(others * (1 - read / wall) if wall else 0.0))
        return {"contention_seconds": contention, LOCK: lock, "blocked_seconds": rest - lock}

    def _longest_lock(self, others: float) -> float:
        """The longest that other threads can have held the lock while this one waited for it."""
        return max(min(others, longest_wait(self._switches)), 0.0) if _has_lock() else 0.0


def longest_wait(before: int | None) -> float:
    """The longest that this thread can have waited for the interpreter since it had given up its core so often.

    Infinite where nothing tells.
    """
    now = switches()
    return math.inf if now is None or before is None or not _has_lock() else (now - before) * SLACK * usual_interval()


def _has_lock() -> bool:
    """Whether this interpreter has one lock for all threads."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def switches() -> int | None:
    """How often this thread gave up its core of its own accord; None where nothing tells."""
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    except (ImportError, AttributeError) as error:
        raise_if_interrupted(error)
        return None


MOST_MODULES: Final = 20
"""Most module names kept per attempt."""


_ignored: Any = operator.is_
"""In C, and without an effect."""


class _Starts(map):  # type: ignore[type-arg]
    """An iterator that is advanced where a collection starts: by `setattr(iterator, phase, ...)`."""

    start, stop = property(None, next), property(None, _ignored)


class _Stops(map):  # type: ignore[type-arg]
    """The same where it stops."""

    start, stop = property(None, _ignored), property(None, next)


class Garbage:
    """Time that the process collects garbage, from construction to `close`; nothing of it stays in the interpreter.

    Any thread may collect, such as one that receives what a chunk waits for: collecting holds the interpreter.

    The callbacks have no code in Python. It would be where signals that came during a collection are handled, and
    Python drops what their handlers raise there.
    """

    def __init__(self) -> None:
        self._thread, self._began = get_ident(), perf_counter()
        self._starts, at_start = self._sums(_Starts)
        self._stops, at_stop = self._sums(_Stops)
        self._callbacks = [partial(setattr, at_start), partial(setattr, at_stop)]
        gc.callbacks.extend(self._callbacks)

    def _sums(self, kind: type[map[None]]) -> tuple[deque[tuple[float, float, int]], map[None]]:
        """The clocks of this thread and of the others at all starts, or stops, and the number of the others'.

        Clocks are floats, since Python looks for signals as it multiplies long integers.
        """
        sums = deque([(0.0, 0.0, 0)], 1)
        is_own, is_other = self._thread.__eq__, self._thread.__ne__
        wall = map(operator.sub, iter(perf_counter, None), repeat(self._began))
        own = map(operator.mul, map(is_own, iter(get_ident, None)), iter(thread_time, None))
        others = map(operator.mul, map(is_other, iter(get_ident, None)), wall)
        number = map(is_other, iter(get_ident, None))
        return sums, kind(sums.append, zip(*map(accumulate, (own, others, number)), strict=True))

    def seconds(self) -> tuple[float, float]:
        """CPU time of collections by the thread that has constructed this, and wall time of those by others."""
        own, others, open_ones = map(operator.sub, self._stops[0], self._starts[0])
        if open_ones < 0:  # another thread collects now
            others += perf_counter() - self._began
        return own, max(others, 0.0)

    def cost(self, waited: float, lock: float) -> float:
        """Seconds that collections cost the thread: its own, and those by others for which it had to wait.

        It computes on in a library that has let go of the interpreter while another thread collects.

        Parameters
        ----------
        waited, lock : float
            Upper limit on the thread's wait for the interpreter in seconds, and the part recorded as such: others'
            collections are in this part first.
        """
        own, others = self.seconds()
        return own + min(max(others - lock, 0.0), max(waited - lock, 0.0))

    def close(self) -> None:
        """Stop recording collections."""
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)


def bytes_of_modules(number: int) -> int:
    """The most that was read to load the modules since there were this many."""
    size = 0
    for name in [*sys.modules][number:] if len(sys.modules) > number else ():
        try:
            # an attribute of a module that is loaded when it is used would load it
            spec = object.__getattribute__(sys.modules.get(name), "__dict__").get("__spec__")
            if spec.cached:
                cached = Path(spec.cached)
                size += (cached if cached.exists() else Path(spec.origin)).stat().st_size
        except (AttributeError, OSError) as error:
            raise_if_interrupted(error)
    return size


def modules_since(number: int) -> list[str] | None:
    """Packages of the modules loaded since there were this many; None if there are no new ones."""
    if len(sys.modules) <= number:
        return None
    names = (name.partition(".")[0] for name in [*sys.modules][number:])
    # shared state of our code is in sys.modules as well
    found = dict.fromkeys(name for name in names if not name.startswith(("_roastcoffea", STATE)))
    return [*found][:MOST_MODULES] or None
