"""Titles and turns of phrase that several rooms use."""

from __future__ import annotations

from typing import Final

from roastcoffea.units import number

BYTE_LEDGER: Final = "byte ledger"
TIME_LEDGER: Final = "time ledger: worker threads x time"
THREAD_TIME: Final = "thread time"
TRANSFERRED: Final = "transferred"
NOT_MEASURED: Final = "not measured"
NO_PROBLEMS: Final = "no problems with the measuring"


def absence(reason: str) -> str:
    """What stands in place of something that was not measured."""
    return f"Not measured: {reason}."


def counted(amount: float, noun: str) -> str:
    """Number of things, in the plural but for one.

    Examples
    --------
    >>> counted(1, "core"), counted(2000, "chunk")
    ('1 core', '2,000 chunks')
    """
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"
