"""Headlines of findings: what is wrong, in a few words of the field."""

from __future__ import annotations

from typing import Final

HEADLINES: Final = {
    "storage": "Reading waits for storage",
    "decompression": "Decompression takes long",
    "metadata": "Opening files takes long",
    "start-up": "New workers take long to start",
    "contention": "Threads wait for a free core",
    "interpreter lock": "Threads wait for the interpreter lock",
    "blocked": "process() waits instead of computing",
    "compute": "One function computes in plain Python",
    "interpretation": "Making arrays of baskets takes long",
    "checkpoint": "Checkpoints take long",
    "chunk size": "Small chunks repeat fixed work",
    "scheduler": "Handing out tasks takes long",
    "transfer": "Tasks wait for results of other workers",
    "merge": "Merging results takes long",
    "preprocessing": "Preprocessing opens every file first",
    "tail": "Threads idle while the last chunks run",
    "client": "Workers idle while the client is busy",
    "memory": "Workers run out of memory",
    "failures": "Attempts fail and are repeated",
    "missing data": "The result is incomplete",
    "serialization": "Serialization takes long",
    "compression": "Dask's own compression takes long",
    "other tasks": "Other tasks use the workers",
    "slow worker": "Slow worker",
    "slow host": "Slow host",
    "slow file": "Slow file",
    "slow dataset": "Slow dataset",
}
"""Headlines by cause."""


def headline_of(cause: str) -> str:
    """Headline of a cause; one without gets its own name."""
    return HEADLINES.get(cause) or f"{cause[:1].upper()}{cause[1:]}"
