"""How soon a thread hands the interpreter over: made prompt for moments, and what it usually is.

All copies of this code in a process share what they know: those that were pickled by value have no globals in common.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

PROMPT: Final = 5e-4
"""Seconds after which a thread has to hand the interpreter over in a moment that is made prompt."""

ROUNDING: Final = 5e-7
"""Python keeps whole microseconds and cuts off the rest: an interval that was read may be set to one less."""

STATE: Final = "__roastcoffea_switching__"
"""Name of what is shared in `sys.modules`; it stays there, as what Python calls after a fork cannot be taken back."""


@contextmanager
def prompt() -> Iterator[None]:
    """Context in which this thread gets the interpreter as soon as it asks for it.

    A thread that waits for the interpreter gets it when another one has had it for five milliseconds, or lets go of it
    to read, sleep or compute in C: samples would fall on these calls, and not on the Python before them.
    """
    state = _shared()
    if state.is_prompt:  # another copy of this code has made it so, and ends it
        yield
        return
    state.usual = usual = sys.getswitchinterval()
    state.is_prompt = True
    sys.setswitchinterval(min(usual, PROMPT) + ROUNDING)
    try:
        yield
    finally:
        if sys.getswitchinterval() <= PROMPT:  # else the user has set another one meanwhile
            sys.setswitchinterval(usual + ROUNDING)
        state.is_prompt = False


def usual_interval() -> float:
    """Seconds after which a thread has to hand the interpreter over, but for moments that are made prompt.

    Such a moment may begin or end between two statements: an interval as short as theirs is compared with the usual
    one of the last of them, whether it has ended or not.
    """
    interval = sys.getswitchinterval()
    state: Any = sys.modules.get(STATE)
    return interval if state is None or interval > PROMPT else max(interval, state.usual)


def _shared() -> Any:
    state: Any = sys.modules.get(STATE)
    if state is None:
        fresh = ModuleType(STATE)
        fresh.__dict__.update(usual=0.0, is_prompt=False)
        state = sys.modules.setdefault(STATE, fresh)
        if state is fresh and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _end_in_child(fresh))
    return state


def _end_in_child(state: Any) -> None:
    """End in a forked child what its parent made prompt: the thread that would end it is not there."""
    if state.is_prompt:
        state.is_prompt = False
        if sys.getswitchinterval() <= PROMPT:
            sys.setswitchinterval(state.usual + ROUNDING)
