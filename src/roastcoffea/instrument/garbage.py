"""Garbage collection during a chunk, and modules loaded by it."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, Final

from roastcoffea.instrument.switching import STATE

MOST_MODULES: Final = 20
"""Most module names kept per attempt."""


class Garbage:
    """Time that the process collects garbage, from construction to `close`; nothing of it stays in the interpreter.

    Any thread may collect, such as one that receives what a chunk waits for: collecting holds the interpreter.
    """

    def __init__(self) -> None:
        self.own = 0.0
        """CPU time of collections by the thread that has constructed this."""
        self.others = 0.0
        """Wall time of those by other threads."""
        self._thread = get_ident()
        self._began: float | None = None
        gc.callbacks.append(self._noticed)

    def _noticed(self, phase: str, _: dict[str, Any]) -> None:
        is_own = get_ident() == self._thread
        now = thread_time() if is_own else perf_counter()
        if phase == "start":
            self._began = now
        elif self._began is not None:
            if is_own:
                self.own += now - self._began
            else:
                self.others += now - self._began
            self._began = None

    def cost(self, waited: float, lock: float) -> float:
        """Seconds that collections cost the thread: its own, and those by others for which it had to wait.

        It computes on in a library that has let go of the interpreter while another thread collects.

        Parameters
        ----------
        waited, lock : float
            Seconds for which the thread can have waited for the interpreter, and those of them that are told as such:
            others' collections are among these first.
        """
        return self.own + min(max(self.others - lock, 0.0), max(waited - lock, 0.0))

    def close(self) -> None:
        """Stop recording collections."""
        with suppress(ValueError):
            gc.callbacks.remove(self._noticed)


def modules_since(number: int) -> list[str] | None:
    """Packages of the modules loaded since there were this many; None if there are no new ones."""
    if len(sys.modules) <= number:
        return None
    names = (name.partition(".")[0] for name in [*sys.modules][number:])
    # shared state of our code is in sys.modules as well
    found = dict.fromkeys(name for name in names if not name.startswith(("_roastcoffea", STATE)))
    return [*found][:MOST_MODULES] or None
