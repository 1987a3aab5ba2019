"""Evidence for findings: what is known of a run, in the terms that several of them use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.chunk_size import ChunkSize, recommended
from roastcoffea.diagnosis.completeness import FailureEvidence, Incompleteness, MemoryEvidence
from roastcoffea.diagnosis.finding import CAUSES, Culprit
from roastcoffea.diagnosis.savings import Saving, Savings
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.facts import NO_NAMES, Names, elapsed_seconds, is_loopback
from roastcoffea.metrics.profile import Call, Profile, process_cpu
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.thread_activity import StartUp
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.units import FRACTION

SHORTEST: Final = 0.1
"""Seconds of wall time that a finding must save: less is not worth changing an analysis."""

NAMED: Final = 3
"""Number of culprits of one kind that are named."""

OF_CHUNKS: Final = (
    *(phases.OPEN, phases.OVERHEAD, phases.MERGE, phases.WORKER_OVERHEAD, phases.IN_FLIGHT),
    *(phases.QUEUED, phases.MISPLACED),
)
"""Classes of time that fewer chunks would reduce."""

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

    @cached_property
    def lives(self) -> list[dict[str, Any]]:
        """Lifetimes of the workers, in order; none if they are unknown."""
        return [] if self.run.lifetimes is None else self.run.lifetimes.to_pylist()

    @cached_property
    def present(self) -> list[dict[str, Any]]:
        """Lifetimes of the workers in the middle of the run."""
        middle = (self.run.start + self.run.stop) / 2
        return [life for life in self.lives if life["start"] <= middle <= life["stop"]]

    @cached_property
    def hosts(self) -> dict[str, str]:
        """Host of each worker."""
        return {life["worker"]: life["host"] for life in self.lives}

    # Thread time

    def least(self, cause: str) -> float:
        """Seconds of wall time that a finding of this cause must save."""
        return max(CAUSES[cause].least * self.elapsed, SHORTEST)

    def wall(self, thread_seconds: float) -> float:
        """Wall time of this much thread time when all threads share it."""
        return thread_seconds * self.elapsed / self.total if self.total else 0.0

    def share(self, thread_seconds: float) -> str:
        """Share of all thread time, for people."""
        return FRACTION.text(thread_seconds / self.total)

    def share_of(self, word: str) -> str:
        """Share of thread time of the classes with this word, for people."""
        return self.share(self.time_of(word))

    def rows_of(self, word: str) -> dict[str, float]:
        """Thread seconds of the classes with this word that occurred."""
        names = [name for name, own in WORDS.items() if own == word and name in self.ledger]
        return {name: self.ledger[name] for name in names if self.ledger[name] > 0}

    def time_of(self, *words: str) -> float:
        """Thread seconds of the classes with these words."""
        return sum(seconds for word in words for seconds in self.rows_of(word).values())

    def is_due_to(self, cause: str) -> bool:
        """Whether the classes of a cause take as much wall time as a finding about it must save."""
        return self.wall(self.time_of(cause)) >= self.least(cause)

    # Chunks

    @property
    def chunks(self) -> int:
        """Number of chunks that counted."""
        return 0 if self.counted is None else len(self.counted)

    def sum_of(self, column: str) -> float | None:
        """Sum of a column over counted chunks; None if unknown."""
        found: float | None = None if self.counted is None else pc.sum(self.counted[column]).as_py()
        return found

    def seconds_in(self, *columns: str) -> float:
        """Sum of columns over counted chunks; 0 if unknown."""
        return sum(self.sum_of(column) or 0.0 for column in columns)

    @cached_property
    def calls(self) -> Mapping[Call, tuple[float, int]]:
        """Share of the CPU time in process(), and samples, of calls from user code, largest first."""
        return {} if self.profile is None else self.profile.calls()

    @cached_property
    def process_cpu(self) -> Numbers | None:
        """CPU seconds of each counted chunk in process(); None if unknown."""
        return process_cpu(self.counted)

    @property
    def reread(self) -> float:
        """Share of the payload that chunks read again."""
        if self.bytes is None:
            return 0.0
        again, once = self.bytes.get(phases.REREAD) or 0, self.bytes.get(phases.PAYLOAD) or 0
        return again / (again + once) if again else 0.0

    # The chunk size

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
        return self.chunk_size.line if self.chunk_size.is_larger else None

    @property
    def smaller(self) -> str | None:
        """Argument for the Runner, if smaller chunks are recommended."""
        return self.chunk_size.line if self.chunk_size.is_smaller else None

    @property
    def lacks_memory(self) -> bool:
        """Whether workers were killed, paused, or spilled results to disk."""
        return self.memory is not None and bool(self.memory.lacking)

    @property
    def fitting(self) -> int | None:
        """Events per chunk that fit into memory, if workers lacked memory for the present chunks."""
        found = self.memory
        if found is None or found.fit is None or not self.lacks_memory or found.results_fill_it:
            return None
        return found.fit.events if found.chunk_events is not None and found.fit.events < found.chunk_events else None

    def _weighed(self) -> ChunkSize:
        depends = self.wall(self._sum_of(*OF_CHUNKS, phases.TAIL, phases.PAUSED, phases.FAILED))
        # weighing the sizes of so many chunks takes seconds
        if self.chunks > 100_000 and depends < self.least("chunk size"):
            return ChunkSize(None, math.nan, Saving(0.0, 0.0, 0.0), math.nan, None, reason=LITTLE)
        found = recommended(self.savings, None if self.memory is None else self.memory.fit, self.reread)
        if not found.is_larger:
            return found
        # other chunk sizes are replayed without stragglers, which is no reason for larger chunks
        again = self.reread * self.time_of("storage")
        most = self.wall(self._sum_of(*OF_CHUNKS) + again + (found.in_process or 0.0) * self.chunks)
        if most < self.least("chunk size") / 2:
            return found._replace(size=None, reason=LITTLE)
        return found._replace(saving=found.saving.up_to(most))

    def _sum_of(self, *classes: str) -> float:
        return sum(self.ledger[name] for name in classes if name in self.ledger)

    # Culprits

    def functions(self, state: str, *, own: bool = False) -> list[Culprit]:
        """User functions with the most time in a state, as file:line.

        With `own`, only time in the lines themselves counts, not in what they call.
        """
        sums: dict[tuple[str, str], float] = {}
        lines: dict[tuple[str, str], tuple[float, int]] = {}
        for row in [] if self.hot is None else self.hot.to_pylist():
            if not (own and row["leaf"] is not None):
                key, seconds = (row["function"], row["file"]), row[f"{state}_seconds"] or 0.0
                sums[key] = sums.get(key, 0.0) + seconds
                lines[key] = max(lines.get(key, (0.0, row["line"])), (seconds, row["line"]))
        found = {f"{key[0]} ({key[1]}:{lines[key][1]})": seconds for key, seconds in sums.items()}
        return most_of("function", found)

    def started_with(self, threads: int, workers: int | None = None) -> str:
        """Line that starts workers with so many threads each: workers of each host, or None for as many as now."""
        if self.hosts and all(one.startswith("inproc:") or is_loopback(one) for one in self.hosts):
            return f"LocalCluster(n_workers={workers or len(self.present)}, threads_per_worker={threads})"
        return f"dask worker ... {f'--nworkers {workers} ' if workers else ''}--nthreads {threads}"


def by_part(table: pa.Table | None, key: str, columns: Iterable[str]) -> dict[Any, float]:
    """Sum of these columns of the chunks by a key, largest first."""
    names = list(columns)
    if table is None or not names:
        return {}
    sums = table.group_by(key).aggregate([(name, "sum") for name in names]).to_pylist()
    return largest_first({row[key]: sum(row[f"{name}_sum"] or 0.0 for name in names) for row in sums})


def largest_first(sums: Mapping[Any, float]) -> dict[Any, float]:
    """The same sums, largest first."""
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def most_of(kind: str, seconds: Mapping[str, float]) -> list[Culprit]:
    """The culprits of a kind that took the most time."""
    found = [Culprit(kind, str(name), amount) for name, amount in largest_first(seconds).items() if amount > 0]
    return found[:NAMED]


def names_of(found: Iterable[Culprit]) -> str:
    """Names of culprits, for a sentence."""
    return ", ".join(one.name for one in found)
