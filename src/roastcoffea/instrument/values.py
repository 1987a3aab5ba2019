"""Values of the user's own, recorded for the chunk that is being processed."""

from __future__ import annotations

import json
from numbers import Integral, Real
from typing import Any, Final

from roastcoffea.instrument.track import OpenChunk, current_chunk
from roastcoffea.redaction import Added, redacted_beginning

Value = float | str | bool | None

PLAIN: Final = (bool, int, float, str, type(None))

MOST_VALUES: Final = 100
"""Different names in a chunk; they may be made in a loop over events."""

MOST_BITS: Final = 1000
"""Of a whole number: a larger one is no float."""

LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 1000
"""Characters that are kept."""


def record(name: str, value: Any) -> None:
    """Record a value of your own for the chunk: `record("selected", len(jets))`.

    It is in `measurement.chunks["custom"]`, a dictionary for each attempt, and summed up by name and dataset in
    `measurement.custom`. A name that is recorded again has the later value; text is kept up to 1000 characters,
    without secrets. Without a collector it does nothing.

    Parameters
    ----------
    name : str
        Name of the value.
    value : number, str, bool or None
        Also a scalar of NumPy or awkward; None for what is not known. The sum of a bool is how often it was True.
        NaN is kept with the chunk, and like None left out of sums, means, limits and the number of chunks.

    Raises
    ------
    TypeError
        The name is no text or empty, or the value is an array or anything else.
    ValueError
        The value is a whole number of more than 1000 bits.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"record takes the name of a value as text, first; it was given {name!r}")
    kept = value if type(value) in PLAIN else scalar(name, value)
    if type(kept) is int and kept.bit_length() > MOST_BITS:
        raise ValueError(f"record keeps whole numbers of up to {MOST_BITS} bits; {name!r} has {kept.bit_length()}")
    chunk = current_chunk()
    if chunk is not None:
        keep(chunk, name, kept)


def scalar(name: str, value: Any) -> Value:
    """A scalar as one of Python's; TypeError for anything else."""
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
    """Keep a value with its chunk, which several threads may do."""
    recorded = chunk.__dict__.setdefault("recorded", {})
    if name in recorded or len(recorded) < MOST_VALUES:
        recorded[name] = value
    else:
        chunk.sections.note(f"a chunk recorded more than {MOST_VALUES} different values: the rest is not kept")


def packed_values(recorded: dict[str, Value], added: Added | None = None) -> str:
    """Values as JSON, without secrets; `added` are patterns of these, as for `redacted`."""
    values = {
        redacted_beginning(name, LONGEST_NAME, added): redacted_beginning(value, LONGEST_TEXT, added)
        if isinstance(value, str)
        else value
        for name, value in dict(recorded).items()
    }
    return json.dumps(values)
