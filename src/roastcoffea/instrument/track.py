"""What a user may write into a processor: named sections, and a decorator of old."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from roastcoffea.instrument.current import current_chunk
from roastcoffea.instrument.sections import BYTES, MEMORY, TIME, Entry

Function = TypeVar("Function", bound=Callable[..., Any])


def track_time(*processor_and_name: object) -> Tracked:
    """Time a section of a processor: `with track_time("jets"):`.

    Wall time, CPU time of the thread, number of passes and errors are summed for each chunk. Sections may be repeated
    and nested: a section "pt" inside of "jets" is "jets/pt". Without a collector it does nothing.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is not looked at.
    """
    return Tracked(TIME, processor_and_name, 2)


def track_memory(*processor_and_name: object) -> Tracked:
    """Time a section as `track_time` does, and see the peak and the growth of the process's resident memory in it.

    Other chunks that run in the process meanwhile are in it.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is not looked at.
    """
    return Tracked(MEMORY, processor_and_name, 2)


def track_bytes(*processor_events_and_name: object) -> Tracked:
    """Time a section as `track_time` does, and count the bytes that the chunk requested from storage in it.

    Columns are read when they are first used; what was in memory already is not requested again.

    Parameters
    ----------
    *processor_events_and_name : object
        The name, after the processor and the events where they are given. Only the name is looked at.
    """
    return Tracked(BYTES, processor_events_and_name, 3)


def track_metrics(process: Function) -> Function:
    """Return `process` as it is: chunks are measured without a decorator, which older analyses have."""
    return process


NO_ERROR: Final = (None, GeneratorExit)
"""How a `with` ends without an error; a generator that nobody reads on is closed by GeneratorExit."""


class Tracked:
    """A section to be entered with `with`; for each `with` make a new one."""

    __slots__ = ("_entry", "_kind", "_name")

    def __init__(self, kind: str, arguments: tuple[object, ...], most: int) -> None:
        name = arguments[-1] if arguments else None
        if not isinstance(name, str) or len(arguments) > most:
            call = f"track_{kind}"
            ways = [f'{call}("name")', f'{call}(self, "name")', *([f'{call}(self, events, "name")'] * (kind == BYTES))]
            found = ", ".join(type(argument).__name__ for argument in arguments) or "nothing"
            takes = f"{call} takes the name of a section, as text, last: {' or '.join(ways)}"
            raise TypeError(f"{takes}; it was given: {found}")
        self._kind = kind
        self._name = name
        self._entry: Entry | None = None

    def __enter__(self) -> None:
        chunk = current_chunk()
        if chunk is not None:
            self._entry = (chunk.entered or chunk.sections).enter(self._name, self._kind, chunk.requested_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._entry.leave(failed=kind not in NO_ERROR)
            self._entry = None
