"""Values that users record for the chunk being processed."""

from __future__ import annotations

import json
from numbers import Integral, Real
from typing import Any, Final

from roastcoffea.instrument.shared import portable
from roastcoffea.instrument.track import OpenChunk, current_chunk
from roastcoffea.redaction import Added, redacted_beginning

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
