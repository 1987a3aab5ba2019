"""The chunk that one is in: how code that a processor calls finds the attempt that called it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType

from roastcoffea.instrument.sections import Sections
from roastcoffea.instrument.shared import joined, leave, lock_of, name_here

_STATE = "_roastcoffea_open_chunks"


class OpenChunk:
    """An attempt of a chunk, as the code in it finds it.

    `requested_bytes` tells how many bytes the attempt has requested from storage so far; None is not known.
    """

    entered: Sections | None = None
    """Sections, once code has asked for them: most analyses never do."""

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
        self._state = state = joined(_STATE, chunk, current=ContextVar("roastcoffea_chunk", default=None))
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
    state = sys.modules.get(name_here(_STATE))
    if state is None:
        return None
    chunk: OpenChunk | None = state.current.get()
    if chunk is None:
        return None if _runs_another_task() else _only_chunk(state)
    return chunk if chunk in state.open else None


def _only_chunk(state: ModuleType) -> OpenChunk | None:
    with state.lock:
        chunks: list[OpenChunk] = list(state.open)
    if len(chunks) == 1:
        return chunks[0]
    for chunk in chunks:
        chunk.sections.note(
            "sections in threads that a processor started are not counted: several chunks ran in the process, and "
            "whose they were is not known (run the thread's function in contextvars.copy_context())"
        )
    return None


def _runs_another_task() -> bool:
    """Whether the thread runs a Dask task, of which no chunk is measured."""
    worker = sys.modules.get("distributed.worker")
    return worker is not None and hasattr(worker.thread_state, "key")
