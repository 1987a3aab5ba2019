"""Exceptions that handlers of signals raise, such as KeyboardInterrupt, or a watchdog's on SIGALRM.

Python calls a handler on the main thread between any two instructions, also in `finally`, in `__exit__`, and inside
`except Exception` of code that has nothing to do with it. There are two ways to let its exception come out, and to end
completely what was begun:

- where a measurement begins, goes on to the next step or ends, `interrupts_held` delays signals;
- between the steps of the analysis, where that would cost two system calls each time, `raise_if_interrupted` tells
  such an exception from our own, and raises it again.
"""

from __future__ import annotations

import _thread
import inspect
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Generic, TypeVar

Entered = TypeVar("Entered")


class _Holding(list["interrupts_held"]):
    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()  # other processes hold nothing


_holding: Final = _Holding()
"""The outermost block that holds signals now."""


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class interrupts_held:  # noqa: N801  (a context, as those of contextlib)
    """Delay signals until the end of the block, where their handlers run.

    Only the main thread is affected, and only signals that Python code handles: one that is ignored, ends the process,
    or has a handler in C raises nothing here. A block inside another one does nothing.
    """

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[int] = []
        if _holding or not _on_main_thread():
            return
        try:
            for number in range(1, signal.NSIG):  # `valid_signals` takes as long as all else
                handler: Any = signal.getsignal(number)
                if callable(handler):
                    earlier = getattr(handler, "__self__", None)  # of a block that was interrupted as it ended
                    self._handlers[number] = earlier._handlers[number] if isinstance(earlier, type(self)) else handler
                    signal.signal(number, self._hold)
            _holding.append(self)
        except BaseException:  # of a signal that is not held yet
            self._restore()
            raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self not in _holding:
            self._handlers[number](number, frame)
        elif number not in self._arrived:
            self._arrived.append(number)

    def __exit__(self, *exception: object) -> None:
        if self not in _holding:
            return
        try:
            _holding.clear()  # from here on signals come through
            self._restore()
        except BaseException:
            self._restore()
            raise
        finally:
            self._deliver()

    def given_up(self) -> list[int]:
        """End the block without calling handlers: the signals that came, for `_send_after`."""
        if self not in _holding:
            return []
        _holding.clear()
        self._restore()
        return self._arrived

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._hold:
                signal.signal(number, handler)

    def _deliver(self) -> None:
        if self._arrived:
            number = self._arrived.pop(0)
            try:
                handler: Any = self._handlers[number]
                if callable(handler):
                    handler(number, sys._getframe())
                else:  # it was exchanged meanwhile
                    signal.raise_signal(number)
            finally:
                self._deliver()


def signal_waits() -> bool:
    """Whether a signal came while signals are held: what waits for something else is to stop waiting."""
    return any(block._arrived for block in _holding)


def _send_after(frame: FrameType, numbers: list[int]) -> None:
    """Send signals to the main thread, whatever it waits for, once it has left a function."""
    main: Any = threading.main_thread().ident
    while _is_in(sys._current_frames().get(main), frame):
        time.sleep(1e-3)
    for number in numbers:
        signal.pthread_kill(main, number)


def _is_in(inner: FrameType | None, frame: FrameType) -> bool:
    while inner is not None and inner is not frame:
        inner = inner.f_back
    return inner is not None


def exchange_handler(number: int, found: Any, new: Any) -> None:
    """Replace the handler of a signal if it is the one that was found, also while signals are held."""
    with suppress(ValueError):  # not the main thread
        held = next((block for block in _holding if block._handlers.get(number) is found), None)
        if held is not None and _on_main_thread():
            held._handlers[number] = new
        elif signal.getsignal(number) is found:
            signal.signal(number, new)


def raise_if_interrupted(error: BaseException) -> None:
    """Raise again what a signal's handler raised, if that is this error, or what led to it.

    To be called by what goes on after errors of our own code.
    """
    raised: BaseException | None = error
    if _holding or not _on_main_thread():
        return
    for _ in range(100):  # causes may go round
        if raised is None or _is_caught(raised, error):
            return
        if _is_of_handler(raised.__traceback__):
            raise raised
        raised = raised.__cause__ or raised.__context__


def _is_caught(raised: BaseException, error: BaseException) -> bool:
    """Whether an exception was caught by a caller, in whose `except` block the code with this error runs."""
    trace, ours = raised.__traceback__, error.__traceback__
    return trace is not None and ours is not None and _is_in(ours.tb_frame.f_back, trace.tb_frame)


def _codes_of_handlers() -> Iterator[CodeType]:
    """Code of the functions that handle signals now."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (getattr(handler, "__func__", handler), getattr(type(handler), "__call__", None)):  # noqa: B004
            if isinstance(code := getattr(function, "__code__", None), CodeType):
                yield code


def _is_of_handler(trace: TracebackType | None) -> bool:
    """Whether an exception passed the handler of a signal, or a function called with its caller's frame, as these are.

    A handler that was replaced since is known by its arguments, and one that has changed these by its code.
    """
    codes = [*_codes_of_handlers()]
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        code = trace.tb_frame.f_code
        if code in codes:
            return True
        if code.co_argcount > 1 or code.co_flags & inspect.CO_VARARGS:
            given = inspect.getargvalues(trace.tb_frame)
            values = [given.locals.get(name) for name in given.args]
            values += given.locals.get(given.varargs, ()) if given.varargs is not None else ()
            if any(value is interrupted for value in values):
                return True
    return False


def uninterrupted(action: Callable[[], object]) -> None:
    """Do something exactly once and completely; signals take effect afterwards."""
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
            held = interrupts_held()
            held.__enter__()
            try:
                error = InterruptedError("a signal came as the with began or ended")
                self._function(instance, InterruptedError, error, None)
            finally:
                arrived = held.given_up()
                if arrived:  # Python drops what is raised here
                    _thread.start_new_thread(_send_after, (sys._getframe(), arrived))


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
