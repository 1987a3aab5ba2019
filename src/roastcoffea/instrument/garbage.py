"""Garbage collection during a chunk, and modules loaded by it."""

from __future__ import annotations

import gc
import operator
import sys
from collections import deque
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.switching import STATE
from roastcoffea.interrupts import raise_if_interrupted

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
            Seconds for which the thread can have waited for the interpreter, and those of them that are told as such:
            others' collections are among these first.
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
