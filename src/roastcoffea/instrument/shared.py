"""Process-wide state shared by all copies of our code.

Copies of a function that is pickled by value do not share module globals, so the state is kept in `sys.modules`, and
only while it has members. Its name includes the process ID, so a forked child starts with fresh state: the parent's
threads, which may hold locks or be measuring, do not exist in the child.
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
"""A record's values by column name."""
Function = TypeVar("Function", bound=Action)


class Remembered(dict[Any, Any]):
    """Dictionary for per-process state; its pickle is empty."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


_classes: Final[dict[str, type]] = Remembered()


def made_once(make: Callable[[], type]) -> type:
    """Create a class only once per process, because every class slows down garbage collection."""
    name = make.__name__
    return _classes.get(name) or _classes.setdefault(name, make())


def joined(name: str, member: Any, **beginning: Any) -> ModuleType:
    """Add a member to the named state, and return the state with its lock held.

    The lock is reentrant, because garbage collection can close a user's generator at any point, and closing the
    generator may end a measurement.

    The member must be hashable. `beginning` contains initial attributes, in case this member creates the state.
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
    """Return the state's lock.

    In a forked child, return a null context, because the lock might never be released there.
    """
    lock: AbstractContextManager[Any] = state.lock if state.process == os.getpid() else nullcontext()
    return lock


_names: Final[dict[tuple[str, int], str]] = {}
"""Names by process ID. A pickle may contain them, because they are the same everywhere."""


def name_here(name: str) -> str:
    process = os.getpid()
    return _names.get((name, process)) or _names.setdefault((name, process), f"{name}_{process}")


def leave(state: ModuleType, member: Any) -> None:
    """Remove a member from the state. The caller must hold the state's lock."""
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
        from roastcoffea.log.byvalue import packed_by_value  # workers unpickle a plain function

        self._packed = self._packed or packed_by_value(self._function)
        return pickle.loads, (self._packed,)


def portable(function: Function) -> Function:
    """Make one of our functions picklable as part of user code.

    The pickle can be loaded by any version of this package, or without the package.
    """
    return _Portable(function)  # type: ignore[return-value]
