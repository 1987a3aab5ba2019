"""A user's function called for each transition of a task."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Final

from roastcoffea.backends.connection import NoAnswerError
from roastcoffea.errors import error_text, reported
from roastcoffea.interrupts import interrupts_held
from roastcoffea.monitor.watch import Watch
from roastcoffea.units import counted

PACE: Final = 0.25
"""Seconds between reads of the scheduler's records, each of which takes it about a millisecond."""

PATIENCE: Final = 10.0
"""Seconds to wait at the end for remaining calls."""


DETAILS: Final = ("time", "worker", "nbytes", "type")
"""Details of a transition passed in addition to key and states."""

Call = Callable[..., object]


def caller_of(function: Call) -> Call:
    """Function that calls another one with key, start, finish, and with the details if it accepts them.

    Raises
    ------
    TypeError
        If it can be called in neither way.
    """
    form = "on_transition must be callable as on_transition(key, start, finish, **details)"
    if not callable(function):
        raise TypeError(f"{form}, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return function
    example = ("key", "waiting", "processing")
    try:
        signature.bind(*example, **dict.fromkeys(DETAILS))
    except TypeError:
        try:
            signature.bind(*example)
        except TypeError:
            raise TypeError(f"{form}; it takes {signature}") from None
        return lambda key, start, finish, **_: function(key, start, finish)
    return function


class Transitions:
    """Calls a function for each recorded transition, in order, on a separate thread.

    Its errors are counted and never reach the run.
    """

    def __init__(self, call: Call, watch: Watch) -> None:
        self._call = call
        self._watch = watch
        self._row = 0
        self._errors = 0
        self._first = ""
        self._late = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_calling, name="roastcoffea-transitions", daemon=True)

    def start(self) -> None:
        """Start calling."""
        with interrupts_held():
            self._thread.start()

    def stop(self) -> None:
        """Make the remaining calls; nothing more is recorded."""
        self._ended.set()
        if self._thread is not threading.current_thread():  # the function itself may stop the monitor
            self._thread.join(PATIENCE)
            self._late = self._thread.is_alive()

    @property
    def problems(self) -> list[str]:
        """Errors of the function, and whether it was too slow."""
        problems = []
        if self._errors:
            problems.append(f"on_transition failed {counted(self._errors, 'time')}; the first: {self._first}")
        if self._late:
            problems.append(f"on_transition was still busy {PATIENCE:g} s after the end: it is called late")
        return problems

    def _keep_calling(self) -> None:
        while not self._ended.wait(PACE):
            # missing data is fetched the next time; losses at the end are noted then
            with reported(self._watch.note, "transitions could not be read", Exception):
                self._look()
        with reported(self._watch.note, "the last transitions could not be read", Exception):
            self._deliver()

    def _look(self) -> None:
        try:
            self._watch.drain()
        except NoAnswerError:
            return
        self._deliver()

    def _deliver(self) -> None:
        history, self._row = self._watch.since(self._row)
        for task in history.described(history.rows):
            if task["before"] is None:  # it existed when the monitor started
                continue
            try:
                self._call(task["key"], task["before"], task["state"], **{name: task[name] for name in DETAILS})
            except Exception as error:  # noqa: BLE001  (the function is the user's)
                self._first = self._first or error_text(error)
                self._errors += 1
