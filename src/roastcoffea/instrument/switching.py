"""Moments of the sampler in which the interpreter is handed over sooner, or collects no garbage.

All copies of this code in a process share state: copies pickled by value have no globals in common.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

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
