"""Addresses in the published documentation: of the glossary's terms that tables and pages show."""

from __future__ import annotations

import re
from typing import Final

DOCUMENTATION: Final = "https://roastcoffea.readthedocs.io/en/latest/"

TERMS: Final = frozenset(
    {
        *("compute", "decompress", "interpret", "read", "contention", "interpreter lock", "blocked", "wait"),
        *("start-up", "open", "checkpoint", "task overhead", "merge", "preprocessing", "other tasks", "failed"),
        *("transfer", "worker overhead", "in flight", "paused"),
        *("idle: queued", "idle: misplaced", "idle: tail", "idle: client", "residual"),
        *("payload", "re-read", "metadata", "transferred"),
        *("event rate", "data rate", "core efficiency", "thread time"),
    }
)
"""Terms that have an entry in the glossary."""


def address_of(text: str) -> str | None:
    """Address of the entry of a term; None of any other text."""
    return f"{DOCUMENTATION}glossary.html#term-{re.sub('[^A-Za-z0-9]+', '-', text)}" if text in TERMS else None
