"""What a user may write into a processor: named sections, recorded values, and a decorator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, Final

from roastcoffea.instrument.sections import BYTES, MEMORY, TIME, Entry, Sections
from roastcoffea.instrument.shared import Function, joined, leave, lock_of, name_here, portable
from roastcoffea.redaction import Added, redacted_beginning

CHUNKS: Final = "_roastcoffea_open_chunks"
"""Name of the state that has the chunks that are open in this process, and the `current` one of a context."""


class OpenChunk:
    """An attempt of a chunk, as seen by the code in it.

    `requested_bytes` returns the bytes that the attempt has requested from storage so far; None if unknown.
    `peak_memory` is that of `Sections`.
    """

    entered: Sections | None = None
    """Sections, created on first use: most analyses have none."""

    recorded: dict[str, Any] | None = None
    """Values by name, created on first use."""

    meter: Any = None
    """What meters the attempt: files that it opens itself, or a chunk, whose `others` does that."""

    ended = False

    def __init__(self, requested_bytes: Callable[[], int | None] = lambda: None, *, peak_memory: bool = True) -> None:
        self.requested_bytes, self._peak_memory = requested_bytes, peak_memory

    @property
    def sections(self) -> Sections:
        """Sections of the attempt, which several threads may enter first."""
        # a dictionary's own method, which is atomic
        sections: Sections = self.__dict__.setdefault("entered", Sections(peak_memory=self._peak_memory))
        if self.ended:
            sections.close()
        return sections


class open_chunk:  # noqa: N801  (a context, as those of contextlib)
    """Context in which this chunk is the current one; its end also ends open sections."""

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
    """The chunk that called this code, if known.

    A thread started by the processor knows it if it runs in a copy of the processor's context; otherwise it is the open
    chunk of this process, if there is only one.
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
            "and which one they belong to is unknown (run the thread's function in contextvars.copy_context())"
        )
    return None


def is_in_chunk() -> bool:
    """Whether a chunk is open in this very context."""
    state = sys.modules.get(name_here(CHUNKS))
    return state is not None and state.current.get() in state.open


@portable
def track_time(*processor_and_name: object) -> Tracked:
    """Time a section of a processor: `with track_time("jets"):`.

    Wall time, CPU time of the thread, number of passes and errors are summed for each chunk. Sections may be repeated
    and nested: a section "pt" inside "jets" is "jets/pt". Without a collector it does nothing. A section with an empty
    name is not counted, and is reported as a problem.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is ignored.
    """
    return Tracked(TIME, processor_and_name, 2)


@portable
def track_memory(*processor_and_name: object) -> Tracked:
    """Time a section like `track_time`, and measure the peak and growth of the process's resident memory in it.

    Other chunks that run in the process at the same time are included.

    Parameters
    ----------
    *processor_and_name : object
        The name, or the processor and the name. The processor is ignored.
    """
    return Tracked(MEMORY, processor_and_name, 2)


@portable
def track_bytes(*processor_events_and_name: object) -> Tracked:
    """Time a section like `track_time`, and count the bytes that the chunk requests from storage in it.

    Columns are read on first use; those already in memory are not requested again.

    Parameters
    ----------
    *processor_events_and_name : object
        The name, optionally after the processor and the events. Only the name is used.
    """
    return Tracked(BYTES, processor_events_and_name, 3)


@portable
def track_metrics(process: Function) -> Function:
    """Return `process` unchanged: chunks are measured without this decorator of older analyses."""
    return process


NO_ERROR: Final = (None, GeneratorExit)
"""How a `with` block ends without an error; an abandoned generator is closed by GeneratorExit."""


class Tracked:
    """A section for one `with` block."""

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


Value = float | str | bool | None

PLAIN: Final = (bool, int, float, str, type(None))

MOST_VALUES: Final = 100
"""Most distinct names in a chunk; they may be made in a loop over events."""

MOST_BITS: Final = 1000
"""Largest integer, in bits: a larger one has no float."""

LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 1000
"""Most characters kept."""


@portable
def record(name: str, value: Any) -> None:
    """Record a value of your own for the chunk: `record("selected", len(jets))`.

    It appears in `measurement.chunks["custom"]`, a dictionary per attempt, and is summed by name and dataset in
    `measurement.custom`. Recording a name again replaces its value; text is kept up to 1000 characters, without
    secrets. Without a collector it does nothing.

    Parameters
    ----------
    name : str
        Name of the value.
    value : number, str, bool or None
        Also a NumPy or awkward scalar; None if unknown. The sum of a bool is the number of times it was True. NaN is
        kept with the chunk, but like None it is left out of sums, means, limits and the number of chunks.

    Raises
    ------
    TypeError
        The name is empty or not text, or the value is not a scalar.
    ValueError
        The value is an integer of more than 1000 bits.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"record takes the name of a value as text, first; it was given {name!r}")
    kept = value if type(value) in PLAIN else scalar(name, value)
    if type(kept) is int and kept.bit_length() > MOST_BITS:
        raise ValueError(f"record keeps integers of up to {MOST_BITS} bits; {name!r} has {kept.bit_length()}")
    chunk = current_chunk()
    if chunk is not None:
        keep(chunk, name, kept)


def scalar(name: str, value: Any) -> Value:
    """A scalar as a Python object; TypeError for anything else."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    inner = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if type(inner) not in PLAIN:
        raise TypeError(f"record takes a number, text, bool or None; {name!r} was given {type(value).__name__}")
    kept: Value = inner
    return kept


def keep(chunk: OpenChunk, name: str, value: Value) -> None:
    """Keep a value with its chunk; safe for several threads."""
    recorded = chunk.__dict__.setdefault("recorded", {})
    if name in recorded or len(recorded) < MOST_VALUES:
        recorded[name] = value
    else:
        chunk.sections.note(f"a chunk recorded more than {MOST_VALUES} different values: the rest is not kept")


def packed_values(recorded: dict[str, Value], added: Added | None = None) -> str:
    """Values as JSON, without secrets; `added` are patterns of secrets, as for `redacted`."""
    values = {
        redacted_beginning(name, LONGEST_NAME, added): redacted_beginning(value, LONGEST_TEXT, added)
        if isinstance(value, str)
        else value
        for name, value in dict(recorded).items()
    }
    return json.dumps(values)
