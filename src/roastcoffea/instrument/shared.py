"""State that all of our code in a process shares: code that was pickled by value has no module globals in common.

It stands in `sys.modules` while somebody is a member of it, and only then, under a name of this process: a forked child
begins its own, as the threads that hold locks and measure in its parent are not there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

_classes: dict[str, type] = {}
"""Classes that were made in this process; those of code that was pickled by value are its own."""


def made_once(make: Callable[[], type]) -> type:
    """A class of another library, or one derived from it: each that is made is work for the garbage collector."""
    name = make.__name__
    return _classes.get(name) or _classes.setdefault(name, make())


def joined(name: str, member: Any, **beginning: Any) -> ModuleType:
    """State of this name with the member among its `open` ones; the caller releases its `lock`.

    The lock may be taken again by the thread that has it: collection of garbage can end a generator of the user's, and
    with it what was measured in the generator, at any place.

    Parameters
    ----------
    name : str
        Name of the state.
    member : object
        Who joins; hashable.
    **beginning : object
        Other attributes of the state, where this member is the first.
    """
    name = name_here(name)
    while True:
        state = sys.modules.get(name)
        if state is None:
            fresh = ModuleType(name)
            fresh.__dict__.update(beginning, lock=threading.RLock(), open=set(), process=os.getpid())
            state = sys.modules.setdefault(name, fresh)
        state.lock.acquire()
        if sys.modules.get(name) is state:
            state.open.add(member)
            return state
        state.lock.release()


def lock_of(state: ModuleType) -> AbstractContextManager[Any]:
    """Lock of the state; none where a forked child ends what its parent began: nobody here would release it."""
    lock: AbstractContextManager[Any] = state.lock if state.process == os.getpid() else nullcontext()
    return lock


def name_here(name: str) -> str:
    """Name in `sys.modules` of the state of this name, if there is somebody in it."""
    return f"{name}_{os.getpid()}"


def leave(state: ModuleType, member: Any) -> None:
    """Take the member out of the state; the caller holds its lock."""
    state.open.discard(member)
    if not state.open and sys.modules.get(state.__name__) is state:
        del sys.modules[state.__name__]
