"""Garbage collection during a chunk, and modules loaded by it."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from roastcoffea.instrument.switching import STATE

MOST_MODULES: Final = 20
"""Most module names kept per attempt."""


class Garbage:
    """Time that the process collects garbage, from construction to `close`; nothing of it stays in the interpreter.

    Any thread may collect, such as one that receives what a chunk waits for: collecting holds the interpreter.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None
        gc.callbacks.append(self._noticed)

    def _noticed(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._began = perf_counter()
        elif self._began is not None:
            self.seconds += perf_counter() - self._began
            self._began = None

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
