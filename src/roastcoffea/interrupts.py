"""Safe handling of exceptions from signal handlers, e.g. KeyboardInterrupt or a SIGALRM timeout.

On the main thread, Python may call a handler between any two instructions, even in `finally`, in `__exit__`, or inside
an unrelated `except Exception`. Two mechanisms let the handler's exception propagate without leaving work half done:

- when a measurement starts, moves to the next step or ends, `interrupts_held` delays signals;
- between the analysis's steps, where delaying signals would cost two system calls each time, `raise_if_interrupted`
  recognises such an exception and re-raises it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
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
from itertools import compress
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Generic, TypeVar

Entered = TypeVar("Entered")


class _Holding(list["interrupts_held"]):
    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()  # signals are not held in other processes


_holding: Final = _Holding()
"""The outermost block that is currently holding signals, if any."""


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class interrupts_held:  # noqa: N801  (a context manager, like those in contextlib)
    """Context manager that delays signals, and calls their handlers at the end of the block.

    Signals are delayed only on the main thread, and only if they have a Python handler. Ignored signals, signals that
    end the process, and signals with a C handler cannot raise an exception here. Nested blocks have no effect.
    """

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[int] = []
        if _holding or not _on_main_thread():
            return
        try:
            # each chunk in the main thread does this: `signal.getsignal` and `valid_signals` create many enum members
            numbers = range(1, signal.NSIG)
            for number in compress(numbers, map(callable, map(_signal.getsignal, numbers))):
                handler: Any = _signal.getsignal(number)
                earlier = getattr(handler, "__self__", None)  # a block that was interrupted during its exit
                self._handlers[number] = earlier._handlers[number] if isinstance(earlier, type(self)) else handler
                _signal.signal(number, self._hold)
            _holding.append(self)
        except BaseException:  # raised by a signal that is not held yet
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
            _holding.clear()  # from here on, signals are delivered
            self._restore()
        except BaseException:
            self._restore()
            raise
        finally:
            self._deliver()

    def given_up(self) -> list[int]:
        """Exit the block without calling handlers, and return the pending signals."""
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
                else:  # the handler has since been replaced
                    signal.raise_signal(number)
            finally:
                self._deliver()


def signal_waits() -> bool:
    """Whether a held signal is pending, in which case the caller should stop waiting."""
    return any(block._arrived for block in _holding)


class Resent:
    """A signal that is resent to the main thread until its handler has been called.

    A single signal might arrive between Python's last check and a blocking system call, and fail to interrupt that
    call.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_handled = self._is_ending = False
        self._sending = threading.Lock()
        self._handler: Any = signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_ending:
            return
        if not self._is_handled:
            self._is_handled = self._is_ending = True
            try:
                with self._sending:  # nothing is sent from here on
                    pass
                time.sleep(0)  # a signal that has already been sent arrives here
            finally:
                exchange_handler(number, self, self._handler)
                self._is_ending = False
        self._handler(number, frame)  # also reached if the user saved this handler and restored it later

    def send(self, main: int) -> None:
        """Send the signal until it is handled, or just once if the user has set a new handler."""
        pause = 0.01
        while not self._is_handled:
            with self._sending:
                if not self._is_handled:
                    signal.pthread_kill(main, self._number)
            handler = signal.getsignal(self._number)
            if handler is not self and not isinstance(getattr(handler, "__self__", None), interrupts_held):
                return
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


def _send_after(frame: FrameType, signals: list[Resent]) -> None:
    """Send signals to the main thread once it has left a function, even if it then blocks."""
    main: Any = threading.main_thread().ident
    while _is_in(sys._current_frames().get(main), frame):
        time.sleep(1e-3)
    for each in signals:
        each.send(main)


def _is_in(inner: FrameType | None, frame: FrameType) -> bool:
    while inner is not None and inner is not frame:
        inner = inner.f_back
    return inner is not None


def exchange_handler(number: int, found: Any, new: Any) -> None:
    """Replace a signal's handler if the handler is still `found`, even while signals are held."""
    with suppress(ValueError):  # not the main thread
        held = next((block for block in _holding if block._handlers.get(number) is found), None)
        if held is not None and _on_main_thread():
            held._handlers[number] = new
        elif signal.getsignal(number) is found:
            signal.signal(number, new)


def raise_if_interrupted(error: BaseException) -> None:
    """Re-raise this error or one of its causes if a signal handler raised it.

    Call this function wherever execution continues after an error in our own code.
    """
    raised: BaseException | None = error
    if _holding or not _on_main_thread():
        return
    for _ in range(100):  # cause chains may be circular
        if raised is None or _is_caught(raised, error):
            return
        if _is_of_handler(raised.__traceback__):
            raise raised
        raised = raised.__cause__ or raised.__context__


def _is_caught(raised: BaseException, error: BaseException) -> bool:
    """Whether a caller caught this exception and raised the error while handling it."""
    trace, ours = raised.__traceback__, error.__traceback__
    return trace is not None and ours is not None and _is_in(ours.tb_frame.f_back, trace.tb_frame)


def _codes_of_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (getattr(handler, "__func__", handler), getattr(type(handler), "__call__", None)):  # noqa: B004
            if isinstance(code := getattr(function, "__code__", None), CodeType):
                yield code


def _is_of_handler(trace: TracebackType | None) -> bool:
    """Whether an exception was raised by a signal handler.

    A handler is recognised by its code or, if it has been replaced since, by an argument that is its caller's frame.
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
    """Run an action to completion, exactly once, and handle signals afterwards."""
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
        act()  # the interrupt arrived before it could be delayed
        raise


class exit_in_any_case:  # noqa: N801  (a decorator)
    """Decorator for an `__exit__` method that must run even after an early interrupt.

    A `with` statement looks up the bound method before calling `__enter__`, and drops its reference at the very end. If
    the method has not been called by then, e.g. because `__enter__` was interrupted just before returning, this
    decorator calls it.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, instance: Enterable | None, owner: type | None = None) -> Callable[..., None]:
        if instance is None:
            return self._function
        # a bound method would not work, because Python unpacks it before the call
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
                error = InterruptedError("a signal arrived as the with block began or ended")
                self._function(instance, InterruptedError, error, None)
            finally:
                signals = [*map(Resent, held.given_up())]
                if signals:  # Python discards exceptions raised in this callback
                    _thread.start_new_thread(_send_after, (sys._getframe(), signals))


class Enterable:
    """Base class of context managers that exit exactly once, to completion, despite interrupts."""

    _is_open = False
    """True from the start of `__enter__`, which sets it, until `_leave` is called."""

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
        """Undo everything done by `__enter__`."""
        raise NotImplementedError


class whole(Enterable, Generic[Entered]):  # noqa: N801  (a context manager)
    """Wrapper that enters and exits a context manager to completion, despite interrupts."""

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
