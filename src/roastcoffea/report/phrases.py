"""Titles and phrases used in several rooms."""

from __future__ import annotations

from typing import Final

BYTE_LEDGER: Final = "byte ledger"
TIME_LEDGER: Final = "time ledger: worker threads x time"
THREAD_TIME: Final = "thread time"
TRANSFERRED: Final = "transferred"
UNACCOUNTED: Final = "unaccounted"
NOT_MEASURED: Final = "not measured"
NO_PROBLEMS: Final = "measurement problems: none"
SHARED: Final = "names of hosts, users and paths are made up"


def absence(reason: str) -> str:
    """Text in place of something that was not measured."""
    return f"Not measured: {reason}."
