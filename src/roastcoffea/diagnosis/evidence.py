"""Evidence for the causes, the thresholds of findings, and how to request fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.chunk_size import ChunkSize, Memory, recommended
from roastcoffea.diagnosis.completeness import Incompleteness
from roastcoffea.diagnosis.failures import FailureEvidence
from roastcoffea.diagnosis.memory import MemoryEvidence
from roastcoffea.diagnosis.savings import Saving, Savings
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.generations import READS_ON
from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.byte_ledger import Saving as ByteSaving
from roastcoffea.metrics.facts import NO_NAMES, Names, elapsed_seconds
from roastcoffea.metrics.phases import METADATA
from roastcoffea.metrics.profile import Call, Profile, process_cpu
from roastcoffea.metrics.requests import Repeated
from roastcoffea.metrics.startup import StartUp
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import OF_TASKS, Run
from roastcoffea.units import BYTE, FRACTION, counted, number

LEAST: Final = 0.05
"""Share of the wall time that a finding must save: repeated runs differ by about as much."""

SHORTEST: Final = 0.1
"""Seconds of wall time that a finding must save: less is not worth changing an analysis."""

LEAST_OF: Final[Mapping[str, float]] = {
    # Dask's event loop, the garbage collector and the kernel take this much in any run
    "contention": 0.10,
    "interpreter lock": 0.10,
    "blocked": 0.10,
    # on a local disk, compressed files cost this much CPU and save waiting elsewhere
    "decompression": 0.20,
    # arrays have to be built from what is read
    "interpretation": 0.25,
    # a client needs time to prepare and merge, even in a short run
    "client": 0.10,
    # the last chunks finish together only by luck
    "tail": 0.12,
    # each file has to be opened once
    "metadata": 0.10,
    # messages to a worker and back take milliseconds
    "scheduler": 0.10,
    # a processor is meant to compute: only a single user function in plain Python is a finding
    "compute": 0.25,
}
"""Causes that take a larger share even in healthy runs, and why."""

# What a finding says, whom it names, and where it stands

HIGH: Final = 0.2
"""Smallest share of the wall time whose saving makes a finding severe."""

ENOUGH: Final = 0.5
"""Fraction of the largest saving from which a named culprit ranks above a class of time."""

LEFT: Final = 0.5
"""Fraction of a saving that must remain once earlier findings are fixed; below it the finding is their consequence."""

DOMINATES: Final = 0.5
"""Smallest share of thread time at which reading dominates."""

MOST_THREADS: Final = 2.0
"""Threads for each core above which more threads no longer hide waiting."""

NAMED_FOR: Final = 0.1
"""Smallest share of a section's blocked time that gets it named."""

MOST_INSIDE: Final = 0.9
"""Share of a section's waiting from which a section inside it is named instead."""

CERTAIN: Final = 0.5
"""Least share of what somebody waited for that cannot have been reading, for its name to stand for blocked time."""

PYTHON: Final = 0.5
"""Share of CPU time in process() that a function's own lines must use: columnar code spends it in library calls."""

OF_LOCK: Final = 0.5
"""Smallest ratio of lock time to a function's CPU time at which the lock, not the function, is to blame."""

SUPPORTS: Final = 0.3
"""Least ratio of throttling or steal to contention at which it is named as the reason."""

LEAST_OF_CLIENT: Final = 0.01
"""Smallest share of thread time at which a part of the client's time is named."""

LARGE_OUTPUT: Final = 1_000_000
"""Output size per chunk above which compressing, moving and merging it outweighs every other cost of a chunk."""

MORE_AT_ONCE: Final = 50
"""Results that a merge may take at once: runs that merge fewer are told so."""

# Beside the verdict

SLOW_CHUNK: Final = 2.0
"""Ratio to the expected duration above which a chunk is a straggler: caches, disks and the GIL cause smaller ones."""

STRAGGLER_SPREADS: Final = 6.0
"""Excess of a straggler in typical deviations of the dataset: chunks that vary by nature have none."""

SHORTEST_EXCESS: Final = 0.1
"""Excess of a straggler in seconds: a busy machine delays any chunk by less."""

MOSTLY: Final = 0.8
"""Share of its chunks' time from which a worker counts as limited by CPU, or by waiting."""

READ_AGAIN: Final = 0.25
"""Share of the requested bytes that were read before from which that is a finding, whatever time it takes."""

WORTH_SAYING: Final = 0.01
"""Smallest share of requested bytes at which repeated metadata is mentioned; re-read bytes always are."""

# Classes that the chunk size changes

OF_CHUNKS: Final = (
    *(phases.OPEN, phases.OVERHEAD, phases.MERGE, phases.WORKER_OVERHEAD, phases.IN_FLIGHT),
    *(phases.QUEUED, phases.MISPLACED),
)
"""Classes of time that fewer chunks would reduce."""

OF_CHUNK_SIZE: Final = (*OF_CHUNKS, phases.TAIL, phases.PAUSED, phases.FAILED)
"""Classes of time that depend on the chunk size."""

MANY: Final = 100_000
"""Number of chunks above which sizes are weighed only if these classes matter: it takes seconds."""

LITTLE: Final = "too little of the threads' time depends on it"

WORDS: Final = {one.name: one.word for one in phases.TIME_CLASSES if one.word is not None}
"""Cause of each class of the time ledger, as findings name it."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence about a run. What was not recorded is None."""

    run: Run
    ledger: TimeLedger
    savings: Savings
    counted: pa.Table | None = None
    stragglers: pa.Table | None = None
    slow: Sequence[Slow] = ()
    fine: Mapping[str, Mapping[str, float]] | None = None
    memory: MemoryEvidence | None = None
    incompleteness: Incompleteness | None = None
    failures: FailureEvidence | None = None
    started: Sequence[StartUp] = ()
    hot: pa.Table | None = None
    profile: Profile | None = None
    endpoints: pa.Table | None = None
    names: Names = NO_NAMES
    reread: float = 0.0
    """Share of the payload that chunks read again."""
    bytes: ByteLedger | None = None

    @property
    def elapsed(self) -> float:
        """Wall time of the run."""
        return elapsed_seconds(self.run)

    @property
    def total(self) -> float:
        """Thread time of the run."""
        return self.ledger.total or 0.0

    @property
    def local(self) -> bool:
        """Whether the run had no scheduler."""
        return self.run.tasks is None

    def least(self, cause: str) -> float:
        """Seconds of wall time that a finding of this cause must save."""
        return max(LEAST_OF.get(cause, LEAST) * self.elapsed, SHORTEST)

    def wall(self, thread_seconds: float) -> float:
        """Wall time of this much thread time when all threads share it."""
        return thread_seconds * self.elapsed / self.total if self.total else 0.0

    def share(self, thread_seconds: float) -> str:
        """Share of all thread time, for people."""
        return FRACTION.text(thread_seconds / self.total)

    def rows_of(self, word: str) -> dict[str, float]:
        """Thread seconds of the classes with this word that occurred."""
        names = [name for name, own in WORDS.items() if own == word]
        return {name: self.ledger[name] for name in names if name in self.ledger and self.ledger[name] > 0}

    def sum_of(self, column: str) -> float | None:
        """Sum of a column over counted chunks; None if unknown."""
        found: float | None = None if self.counted is None else pc.sum(self.counted[column]).as_py()
        return found

    @cached_property
    def calls(self) -> Mapping[Call, tuple[float, int]]:
        """Share of the CPU time in process(), and samples, of calls from user code, largest first."""
        return {} if self.profile is None else self.profile.calls()

    @cached_property
    def process_cpu(self) -> Numbers | None:
        """CPU seconds of each counted chunk in process(); None if unknown."""
        return process_cpu(self.counted)

    @property
    def chunks(self) -> int:
        """Number of chunks that counted."""
        return 0 if self.counted is None else len(self.counted)

    @cached_property
    def chunk_size(self) -> ChunkSize:
        """The recommended chunk size, or why there is none; workers that lacked memory have priority."""
        found = self._weighed()
        if self.fitting is not None:
            return found._replace(size=self.fitting, reason="workers lacked memory")
        if self.lacks_memory and found.is_larger:
            return found._replace(size=None, reason="workers lacked memory")
        return found

    @property
    def larger(self) -> str | None:
        """Argument for the Runner, if larger chunks are recommended."""
        found = self.chunk_size
        return found.line if found.is_larger else None

    @property
    def smaller(self) -> str | None:
        """Argument for the Runner, if smaller chunks are recommended."""
        found = self.chunk_size
        return found.line if found.is_smaller else None

    @property
    def lacks_memory(self) -> bool:
        """Whether workers were killed, paused, or spilled results to disk."""
        found = self.memory
        return found is not None and bool(found.killed or found.paused or found.spilled)

    @property
    def fitting(self) -> int | None:
        """Events per chunk that fit into memory, if workers lacked memory for the present chunks."""
        found = self.memory
        if found is None or found.fit is None or not self.lacks_memory or found.results_fill_it:
            return None
        return found.fit.events if found.chunk_events is not None and found.fit.events < found.chunk_events else None

    @property
    def threads_are_scarce(self) -> bool:
        """Whether more threads would only wait for cores, the interpreter or memory."""
        return self.lacks_memory or any(map(self.is_due_to, ("contention", "interpreter lock")))

    def is_due_to(self, cause: str) -> bool:
        """Whether the classes of a cause take as much wall time as a finding about it must save."""
        return self.wall(sum(self.rows_of(cause).values())) >= self.least(cause)

    def _weighed(self) -> ChunkSize:
        if self.chunks > MANY and self.wall(self._sum_of(OF_CHUNK_SIZE)) < self.least("chunk size"):
            return ChunkSize(None, math.nan, Saving(0.0, 0.0, 0.0), math.nan, None, reason=LITTLE)
        found = recommended(self.savings, self._memory(), self.reread)
        if not found.is_larger:
            return found
        # other chunk sizes are replayed without stragglers, which is no reason for larger chunks
        again = self.reread * sum(self.rows_of("storage").values())
        most = self.wall(self._sum_of(OF_CHUNKS) + again + (found.in_process or 0.0) * self.chunks)
        if most < self.least("chunk size") / 2:
            return found._replace(size=None, reason=LITTLE)
        return found._replace(saving=found.saving.up_to(most))

    def _sum_of(self, classes: Sequence[str]) -> float:
        return sum(self.ledger[name] for name in classes if name in self.ledger)

    def _memory(self) -> Memory | None:
        fit = None if self.memory is None else self.memory.fit
        if fit is None:
            return None
        return Memory(base=fit.baseline, per_event=fit.bytes_per_event, limit=fit.limit, threads=fit.threads)


WHOLE_FILES: Final = "one chunk per file"
MEMORY: Final = ", at the cost of more memory"
"""The price of one chunk per file. Which chunk size pays is weighed by the verdict alone."""


def pieces(repeated: Repeated) -> str:
    """What a format reads at once."""
    return "row groups" if repeated.parquet else "baskets"


def _chunks_of_a_file(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} were read again because {pieces(repeated)} span chunk boundaries: {WHOLE_FILES} reads each once"
        f"{MEMORY}{_alignment(repeated)}"
    )


def _metadata(repeated: Repeated, amount: str) -> str:
    return (
        f"{amount} of metadata were read again, as each chunk of a file reads them: {WHOLE_FILES} reads "
        f"them once per file, in {counted(repeated.files, 'chunk')} instead of {number(repeated.chunks)}{MEMORY}"
    )


TEXTS: Final[Mapping[str, Callable[[Repeated, str], str]]] = {
    SAME_LOOP: _chunks_of_a_file,
    SAME_DATASET: lambda _, amount: (
        f"{amount} were read again by another Runner call: process shared files in a single call"
    ),
    OTHER_DATASET: lambda _, amount: (
        f"{amount} were read again because a file is listed in two datasets: list it in one only"
    ),
    SAME_ATTEMPT: lambda _, amount: (
        f"{amount} were requested again within a chunk, by the processor or the reader: "
        "keep arrays that are used more than once"
    ),
    OF_TASKS: lambda _, amount: f"{amount} were read again by another function: read each file in one function only",
    METADATA: _metadata,
}


@ByteLedger.advised_by
def savings(repeated: Repeated, total: int) -> list[ByteSaving]:
    """Changes that would save bytes, largest saving first."""
    found = {**repeated.baskets, METADATA: repeated.metadata}
    worth = {cause: size for cause, size in found.items() if size > (total * WORTH_SAYING if cause == METADATA else 0)}
    order = sorted(worth, key=lambda cause: worth[cause], reverse=True)
    return [
        ByteSaving(cause, worth[cause], TEXTS[repeated.readers(cause)](repeated, BYTE.text(worth[cause])))
        for cause in order
    ]


def _alignment(repeated: Repeated) -> str:
    """Alternative for TTrees: chunks that end where clusters do; Parquet has none, and once on it helps no more."""
    if repeated.parquet or repeated.aligned:
        return ""
    if repeated.reads_on:
        return f"; {READS_ON}"
    return "; align_clusters=True in the Runner also reads each once, if the files hold TTrees"
