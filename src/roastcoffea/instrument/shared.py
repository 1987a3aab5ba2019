"""State that all of our code in a process shares: code that was pickled by value has no module globals in common.

It stands in `sys.modules` while somebody is a member of it, and only then.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any


def joined(name: str, member: Any, **beginning: Any) -> ModuleType:
    """State of this name with the member among its `open` ones; the caller releases its `lock`.

    The lock may be taken again by the thread that has it: collection of garbage can end a generator of the user's, and
    with it what was measured in the generator, at any place.

    Parameters
    ----------
    name : str
        Name of the state in `sys.modules`.
    member : object
        Who joins; hashable.
    **beginning : object
        Other attributes of the state, where this member is the first.
    """
    while True:
        state = sys.modules.get(name)
        if state is None:
            fresh = ModuleType(name)
            fresh.__dict__.update(beginning, lock=threading.RLock(), open=set())
            state = sys.modules.setdefault(name, fresh)
        state.lock.acquire()
        if sys.modules.get(name) is state:
            state.open.add(member)
            return state
        state.lock.release()


def leave(state: ModuleType, member: Any) -> None:
    """Take the member out of the state; the caller holds its lock."""
    state.open.discard(member)
    if not state.open and sys.modules.get(state.__name__) is state:
        del sys.modules[state.__name__]
