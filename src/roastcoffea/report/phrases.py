"""Titles and turns of phrase that several rooms use."""

from __future__ import annotations

from typing import Final

BYTE_LEDGER: Final = "byte ledger"
TIME_LEDGER: Final = "time ledger: worker threads x time"
THREAD_TIME: Final = "thread time"
TRANSFERRED: Final = "transferred"
NOT_MEASURED: Final = "not measured"
NO_PROBLEMS: Final = "measurement problems: none"


def absence(reason: str) -> str:
    """What stands in place of something that was not measured."""
    return f"Not measured: {reason}."
