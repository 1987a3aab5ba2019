"""Runs in which a signal's handler raises at a random moment."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import roastcoffea

OURS = str(Path(roastcoffea.__file__).parent)
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
]
TYPES = (Exception, BaseException, TimeoutError, OSError, ValueError, KeyError, AttributeError, TypeError)
"""Of which some are expected, and handled, in many places of ours and of others."""


class Watchdog:
    """Raises what it is told from the handlers of all signals, and knows where it did."""

    def __init__(self) -> None:
        self.raises: BaseException = Exception()
        self.places: list[str] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.places.append("nowhere" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}")
        raise self.raises

    @contextmanager
    def at_work(self) -> Iterator[None]:
        before = {number: signal.signal(number, self) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def lost(work: Callable[[], object], seconds: float, trials: int, seed: int, *, dask: bool) -> list[str]:
    """Trials in which what the handler raised did not come out of the work, and where it was raised.

    Others handle errors of some types, and Dask all of them where it hashes a graph: those are none of ours.
    """
    draw, found = random.Random(seed), []
    dog = Watchdog()
    handled: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda dropped: handled.append(repr(dropped.object))
    try:
        with dog.at_work():
            for _ in range(trials):
                number, kind, delay = draw.choice(SIGNALS), draw.choice(TYPES), draw.uniform(0, seconds)
                dog.raises, dog.places = type("TooLong", (kind,), {})("from the handler"), []
                handled.clear()
                if not any(one is dog.raises for one in causes(_outcome(work, number, delay))):
                    ours = dog.places[0].startswith(OURS) or "roastcoffea" in str(handled)
                    if ours or (kind in {Exception, BaseException} and not handled and not dask):
                        found.append(f"{number!r} {kind.__name__} at {dog.places[0]}, dropped by {handled}")
                assert all(signal.getsignal(each) is dog for each in SIGNALS)
    finally:
        sys.unraisablehook = hook
    return found


def _outcome(work: Callable[[], object], number: int, delay: float) -> BaseException | None:
    """What comes out of the work, or of the moment after it."""

    def send() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), number)

    sending = threading.Thread(target=send)
    raised: Any = None
    try:
        sending.start()
        work()
    except BaseException as error:
        raised = error
    for _ in range(2):  # the signal may come at the end of the first
        try:
            sending.join()
            time.sleep(0.01)
        except BaseException as error:
            raised = error
    return raised
