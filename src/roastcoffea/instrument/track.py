"""What a user may write into a processor: named sections, and a decorator of old.

The chunk that one is in: how code that a processor calls finds the attempt that called it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from roastcoffea.instrument.sections import BYTES, MEMORY, TIME, Entry, Sections
from roastcoffea.instrument.shared import joined, leave, lock_of, name_here

Function = TypeVar("Function", bound=Callable[..., Any])

CHUNKS: Final = "_roastcoffea_open_chunks"
"""Name of the state that has the chunks that are open in this process, and the `current` one of a context."""


class OpenChunk:
    """An attempt of a chunk, as the code in it finds it.

    `requested_bytes` tells how many bytes the attempt has requested from storage so far; None is not known.
    """

    entered: Sections | None = None
    """Sections, once code has asked for them: most analyses never do."""

    recorded: dict[str, Any] | None = None
    """Values by name, once code has recorded any."""

    meter: Any = None
    """What meters files that the attempt opens itself; None where coffea opens its file."""

    ended = False

    def __init__(self, requested_bytes: Callable[[], int | None] = lambda: None) -> None:
        self.requested_bytes = requested_bytes

    @property
    def sections(self) -> Sections:
        """Sections of the attempt, which several threads may enter first."""
        # a dictionary's own method, as it is not interrupted between looking and setting
        sections: Sections = self.__dict__.setdefault("entered", Sections())
        if self.ended:
            sections.close()
        return sections


class open_chunk:  # noqa: N801  (a context, as those of contextlib)
    """Context in which this chunk is the current one; with it end the sections that are still open."""

    __slots__ = ("_chunk", "_state", "_token")

    def __init__(self, chunk: OpenChunk) -> None:
        self._chunk = chunk

    def __enter__(self) -> OpenChunk:
        chunk = self._chunk
        self._state = state = joined(CHUNKS, chunk, current=ContextVar("roastcoffea_chunk", default=None))
        try:
            self._token = state.current.set(chunk)
        except BaseException:
            leave(state, chunk)
            raise
        finally:
            state.lock.release()
        return chunk

    def __exit__(self, *_: object) -> None:
        try:
            self._state.current.reset(self._token)
        finally:
            with lock_of(self._state):
                leave(self._state, self._chunk)
            self._chunk.ended = True
            if self._chunk.entered is not None:
                self._chunk.entered.close()


def current_chunk() -> OpenChunk | None:
    """The chunk that called this code, where it can be told.

    A thread that the processor started knows it if it runs in a copy of the processor's context; else the chunk is
    the one that is open in this process, if it is the only one.
    """
    state = sys.modules.get(name_here(CHUNKS))
    if state is None:
        return None
    chunk: OpenChunk | None = state.current.get()
    if chunk is not None:
        return chunk if chunk in state.open else None
    worker = sys.modules.get("distributed.worker")
    if worker is not None and hasattr(worker.thread_state, "key"):
        return None  # the thread runs another task
    with state.lock:
        chunks: list[OpenChunk] = list(state.open)
    if len(chunks) == 1:
        return chunks[0]
    for chunk in chunks:
        chunk.sections.note(
            "sections and values of threads that a processor started are not kept: several chunks ran in the process, "
            "and whose they were is not known (run the thread's function in contextvars.copy_context())"
        )
    return None


def is_in_chunk() -> bool:
    """Whether a chunk is open in this very context."""
    state = sys.modules.get(name_here(CHUNKS))
    return state is not None and state.current.get() in state.open


def track_time(*processor_and_name: object) -> Tracked:
    """Time a section of a processor: `with track_time("jets"):`.

    Wall time, CPU time of the thread, number of passes and errors are summed for each chunk. Sections may be repeated
    and nested: a section "pt" inside of "jets" is "jets/pt". Without a collector it does nothing. An empty name is
    no section: it is not counted, and a problem of the measurement.

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._entry is not None:
            self._entry.leave(failed=kind not in NO_ERROR)
            self._entry = None
