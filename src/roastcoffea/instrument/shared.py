"""State shared by all our code in a process: code pickled by value has no module globals in common.

It is in `sys.modules` only while it has members, under a name of this process: a forked child starts its own, because
the parent's threads that hold locks and measure do not exist there.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Final, TypeVar

Action = Callable[..., Any]
Row = dict[str, Any]
"""Columns of a record, by name."""
Function = TypeVar("Function", bound=Action)


class Remembered(dict[Any, Any]):
    """What a process remembers: none of it is in code that is pickled by value for others."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


_classes: Final[dict[str, type]] = Remembered()
"""Classes made in this process; code pickled by value has its own."""


def made_once(make: Callable[[], type]) -> type:
    """A class of another library, or one derived from it; each new class is work for the garbage collector."""
    name = make.__name__
    return _classes.get(name) or _classes.setdefault(name, make())


def joined(name: str, member: Any, **beginning: Any) -> ModuleType:
    """State of this name, with the member added to `open`; the caller releases its `lock`.

    The lock is reentrant: garbage collection can end a user's generator, and a measurement in it, at any point.

    Parameters
    ----------
    name : str
        Name of the state.
    member : object
        New member; hashable.
    **beginning : object
        Other attributes of the state, if this member is the first.
    """
    process = os.getpid()
    name = f"{name}_{process}"
    while True:
        state = sys.modules.get(name)
        if state is None:
            fresh = ModuleType(name)
            fresh.__dict__.update(beginning, lock=threading.RLock(), open=set(), process=process)
            state = sys.modules.setdefault(name, fresh)
        state.lock.acquire()
        if sys.modules.get(name) is state:
            state.open.add(member)
            return state
        state.lock.release()


def lock_of(state: ModuleType) -> AbstractContextManager[Any]:
    """Lock of the state; none if a forked child ends what its parent began: nobody here would release it."""
    lock: AbstractContextManager[Any] = state.lock if state.process == os.getpid() else nullcontext()
    return lock


def name_here(name: str) -> str:
    """Name in `sys.modules` of the state of this name, if it has members."""
    return f"{name}_{os.getpid()}"


def leave(state: ModuleType, member: Any) -> None:
    """Remove the member from the state; the caller holds its lock."""
    state.open.discard(member)
    if not state.open and sys.modules.get(state.__name__) is state:
        del sys.modules[state.__name__]


class _Portable:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._packed = function, b""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        from roastcoffea.log.byvalue import packed_by_value  # on workers it is a function already

        self._packed = self._packed or packed_by_value(self._function)
        return pickle.loads, (self._packed,)


def portable(function: Function) -> Function:
    """One of our functions for code of users, which unpickles beside any version of this package, and without it."""
    return _Portable(function)  # type: ignore[return-value]
