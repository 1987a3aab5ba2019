"""The statistical profile: stacks of the threads that ran chunks, sampled while they were in process()."""

from __future__ import annotations

from typing import Final

from roastcoffea.records.columns import Column

OTHER: Final = "(other stacks)"
"""Stands for the function of stacks that a bounded record had no room for."""

NOT_SAMPLED: Final = "(not sampled)"
"""Stands for the function of time in which the sampler itself could not run."""

DEEPER: Final = "(more frames)"
"""Stands for the frames in the middle of a very deep stack."""

STATES: Final = ("core", "contention", "blocked")
"""What a sampled thread did: it was on a core, waited for one, or waited for something else."""

PROFILE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("functions", "texts", None, "functions of the stack, from process() on; none is process() about to begin"),
    Column("files", "texts", None, "their files; those of installed packages relative to where packages are"),
    Column("lines", "integers", None, "lines that they were at"),
    Column("samples", "integer", None, "how often the stack was seen"),
    Column("seconds", "number", "s", "thread time that these samples stand for"),
    Column("core_seconds", "number", "s", "of these, on a core"),
    Column("contention_seconds", "number", "s", "of these, runnable without a free core"),
    Column("blocked_seconds", "number", "s", "of these, blocked: storage, the interpreter lock, sleep, a service"),
)
"""One row for each stack, dataset and Runner call, over all attempts; seconds of no state are of one not known."""
