"""Protection of the start and end of a measurement from Ctrl-C.

Python raises KeyboardInterrupt on the main thread between any two instructions, also in `finally` and in `__exit__`.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

Entered = TypeVar("Entered")


class interrupts_held:  # noqa: N801  (a context, as those of contextlib)
    """Delay Ctrl-C until the end of the block, where the previous handler runs.

    Only the main thread is affected, and only if Python code handles the signal: one that is ignored, ends the process,
    or has a handler in C raises nothing here.
    """

    def __enter__(self) -> None:
        self._held: int | None = None
        on_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if on_main_thread else None
        self._handler = handler if callable(handler) else None
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, _frame: object) -> None:
        self._held = number

    def __exit__(self, *exception: object) -> None:
        if self._handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._hold:
            signal.signal(signal.SIGINT, self._handler)
        if self._held is not None:
            self._handler(self._held, sys._getframe())


def uninterrupted(action: Callable[[], object]) -> None:
    """Do something exactly once and completely; Ctrl-C takes effect afterwards."""
    begun = False

    def act() -> None:
        nonlocal begun
        with interrupts_held():
            if not begun:
                begun = True
                action()

    try:
        act()
    except BaseException:
        act()  # the interrupt came before it could be delayed
        raise


class exit_in_any_case:  # noqa: N801  (a decorator)
    """An `__exit__` that is called even if an interrupt arrives just before its first instruction.

    A `with` takes the bound method before it calls `__enter__`, and releases it at the very end. If the method was not
    called by then, or `__enter__` was interrupted just before its end, this calls it.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, instance: Enterable | None, owner: type | None = None) -> Callable[..., None]:
        if instance is None:
            return self._function
        # a bound method would be taken apart before the call
        bound = partial(self._function, instance)
        if not instance._is_open:
            instance._awaited_end = weakref.ref(bound, partial(self._call, instance))
        return bound

    def _call(self, instance: Enterable, _end: weakref.ref[Any]) -> None:
        instance._awaited_end = None
        if instance._is_open:
            with suppress(KeyboardInterrupt):  # the error that led here is raised
                self._function(instance, KeyboardInterrupt, KeyboardInterrupt(), None)


class Enterable:
    """A context that is left exactly once and completely, despite interrupts."""

    _is_open = False
    """Whether `__enter__` has started and `_leave` has not; set by the code that enters."""

    _awaited_end: weakref.ref[Any] | None = None

    @exit_in_any_case
    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        uninterrupted(partial(self._end, error))

    def _end(self, error: BaseException | None) -> None:
        self._awaited_end = None
        if self._is_open:
            self._is_open = False
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """End what was started."""
        raise NotImplementedError


class whole(Enterable, Generic[Entered]):  # noqa: N801  (a context)
    """A context that is entered and left completely, despite interrupts."""

    def __init__(self, context: AbstractContextManager[Entered]) -> None:
        self._context = context

    def __enter__(self) -> Entered:
        try:
            with interrupts_held():
                entered = self._context.__enter__()
                self._is_open = True
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return entered

    def _leave(self, error: BaseException | None) -> None:
        self._context.__exit__(*((type(error), error, error.__traceback__) if error is not None else (None,) * 3))
