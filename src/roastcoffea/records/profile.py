"""The statistical profile: stacks of the threads that ran chunks, sampled in process()."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

OTHER: Final = "(other stacks)"
"""Placeholder function for stacks beyond the size limit of a record."""

NOT_SAMPLED: Final = "(not sampled)"
"""Placeholder function for time in which the sampler itself could not run."""

DEEPER: Final = "(more frames)"
"""Placeholder for the middle frames of a very deep stack."""

STATES: Final = ("core", "contention", "blocked")
"""State of a sampled thread: on a core, waiting for a core, or waiting for something else."""

PROFILE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("functions", "texts", None, "functions of the stack, from process() down; empty before process() starts"),
    Column("files", "texts", None, "their files; for installed packages relative to the directory of packages"),
    Column("lines", "integers", None, "their lines"),
    Column("samples", "integer", None, "samples of the stack"),
    Column("seconds", "number", "s", "thread time covered by these samples"),
    Column("core_seconds", "number", "s", "of these, on a core"),
    Column("contention_seconds", "number", "s", "of these, runnable without a free core"),
    Column("blocked_seconds", "number", "s", "of these, blocked: storage, the interpreter lock, sleep, a service"),
    Column(
        "chunk", "integer", None, "identity of the attempt, for the longest one of each dataset; none for all others"
    ),
)
"""One row per stack, dataset and Runner call, over all attempts but the longest, which has rows of its own; seconds in
no state are of unknown state."""
