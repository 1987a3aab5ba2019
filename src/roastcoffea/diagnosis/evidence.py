"""Evidence shared by several findings."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.chunk_size import ChunkSize, recommended
from roastcoffea.diagnosis.completeness import TARGET, FailureEvidence, Incompleteness, MemoryEvidence
from roastcoffea.diagnosis.finding import CAUSES, Culprit
from roastcoffea.diagnosis.preloading import Preloading, preloading
from roastcoffea.diagnosis.savings import Saving, Savings
from roastcoffea.diagnosis.slowdown import Slowdown
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import NO_NAMES, Names, elapsed_seconds, is_loopback
from roastcoffea.metrics.profile import Call, Profile, process_cpu
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.arrow import plain, rows_in
from roastcoffea.records.columns import grouped
from roastcoffea.records.run import Run
from roastcoffea.units import FRACTION, rough

SHORTEST: Final = 0.1
"""Minimum saving for a finding, in seconds of wall time. Smaller savings do not justify changing an analysis."""

NAMED: Final = 3
"""Maximum number of culprits named per kind."""

OF_CHUNKS: Final = (
    *(phases.OPEN, phases.OVERHEAD, phases.MEASURING, phases.MERGE, phases.WORKER_OVERHEAD, phases.IN_FLIGHT),
    *(phases.QUEUED, phases.MISPLACED),
)
"""Time classes that would shrink with fewer chunks."""

LITTLE: Final = "too little thread time depends on it"

CORE_WAIT_IN_WAIT, CORE_WAIT_OUTSIDE = "contention in wait", "contention while opening"
"""Names of rows for core waits outside the time ledger's contention class."""

WORDS: Final = {one.name: one.word for one in phases.TIME_CLASSES if one.word is not None}
"""Maps each time class to the cause to which findings attribute it."""


EVIDENCE: Final = (
    *("run", "time_ledger", "savings", "place_names"),
    *("counted_chunks", "stragglers", "slow_places", "fine_metrics_per_worker", "memory_evidence", "incompleteness"),
    *("failure_evidence", "hot_functions", "profile", "endpoints", "outputs", "byte_ledger", "memory_growth"),
    *("slowdown", "arrivals"),
)


class Layout(NamedTuple):
    """Recommended numbers of threads and processes; see `Evidence.layout`."""

    crowded: str | None
    """Host on which task threads compete for cores; None if there is none."""
    more: bool
    """Whether running 2 threads per core would hide waits."""
    apart: bool
    """Whether to replace threads with single-threaded processes."""


@dataclass(frozen=True)
class Evidence:
    """Evidence from a run: values of EVIDENCE in this order, or None if their data were not recorded."""

    run: Run
    ledger: TimeLedger
    savings: Savings
    names: Names = NO_NAMES
    counted: pa.Table | None = None
    stragglers: pa.Table | None = None
    slow: Sequence[Slow] | None = None
    fine: Mapping[str, Mapping[str, float]] | None = None
    memory: MemoryEvidence | None = None
    incompleteness: Incompleteness | None = None
    failures: FailureEvidence | None = None
    hot: pa.Table | None = None
    profile: Profile | None = None
    endpoints: pa.Table | None = None
    outputs: pa.Table | None = None
    bytes: ByteLedger | None = None
    growth: pa.Table | None = None
    slowdown: Slowdown | None = None
    arrivals: pa.Table | None = None

    @property
    def elapsed(self) -> float:
        return elapsed_seconds(self.run)

    @property
    def total(self) -> float:
        return self.ledger.total or 0.0

    @property
    def local(self) -> bool:
        """Whether the run had no scheduler."""
        return self.run.tasks is None

    @cached_property
    def lives(self) -> list[dict[str, Any]]:
        return rows_in(self.run.lifetimes)

    @cached_property
    def present(self) -> list[dict[str, Any]]:
        middle = (self.run.start + self.run.stop) / 2
        return [life for life in self.lives if life["start"] <= middle <= life["stop"]]

    @cached_property
    def hosts(self) -> dict[str, str]:
        return {life["worker"]: life["host"] for life in self.lives}

    # Thread time

    def least(self, cause: str) -> float:
        """Minimum saving for a finding about the cause, in seconds of wall time."""
        return max(CAUSES[cause].least * self.elapsed, SHORTEST)

    def wall(self, thread_seconds: float) -> float:
        """Convert thread time to wall time, assuming that it is spread over all threads."""
        return thread_seconds * self.elapsed / self.total if self.total else 0.0

    def share(self, thread_seconds: float) -> str:
        return rough(thread_seconds / self.total, FRACTION)

    def share_of(self, word: str) -> str:
        return self.share(self.time_of(word))

    def rows_of(self, word: str) -> dict[str, float]:
        """Seconds of thread time in each of the cause's time classes, excluding empty classes."""
        names = [name for name, own in WORDS.items() if own == word and name in self.ledger]
        return {name: self.ledger[name] for name in names if self.ledger[name] > 0}

    def time_of(self, *words: str) -> float:
        return sum(seconds for word in words for seconds in self.rows_of(word).values())

    def is_due_to(self, cause: str) -> bool:
        """Whether the time in the cause's classes reaches the minimum saving for a finding."""
        return self.wall(self.time_of(cause)) >= self.least(cause)

    # Threads and processes

    @cached_property
    def threads(self) -> dict[str, list[int]]:
        return {host: [life["threads"] for life in lives] for host, lives in grouped(self.present, "host").items()}

    @cached_property
    def cores(self) -> int | None:
        found = {host.cores for host in self.run.environment.hosts}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def core_wait(self) -> dict[str, float]:
        """Seconds of thread time spent waiting for a core, by time class, including waits hidden in other classes."""
        more = {
            # older measurements recorded only the total wait in process()
            CORE_WAIT_IN_WAIT: min(self.rows_of("blocked").get(phases.WAIT, 0.0), self.seconds_in("core_wait_seconds")),
            CORE_WAIT_OUTSIDE: self._outside_process(),
        }
        return self.rows_of("contention") | {name: seconds for name, seconds in more.items() if seconds}

    def _outside_process(self) -> float:
        of_attempts, inside = self.sum_of("core_wait_seconds"), self.sum_of("contention_seconds")
        return 0.0 if of_attempts is None or inside is None else max(of_attempts - inside, 0.0)

    @cached_property
    def contended(self) -> list[Culprit]:
        """Hosts with the longest waits for a core. If a host is unknown, its worker is listed instead."""
        of_host = Counter[str]()
        for worker, seconds in by_part(self.counted, "worker", phases.COLUMNS_OF[phases.CONTENTION]).items():
            of_host[self.hosts.get(worker) or str(worker)] += seconds  # type: ignore[assignment]
        return most_of("host", of_host)

    @cached_property
    def layout(self) -> Layout:
        """Recommended numbers of threads and processes, used consistently by all findings.

        Use as many threads as cores if threads wait for each other. Use 2 threads per core only if no thread waits for
        a core or the GIL, if twice as many chunks fit in memory at once, and if all threads have chunks until
        the end. Use single-threaded processes if threads wait for the GIL and there is enough memory.
        """
        lock = self._may_limit("interpreter lock", self.time_of("interpreter lock"))
        waits = lock or self._may_limit("contention", sum(self.core_wait.values()))
        tail = self._may_limit("tail", self.time_of("tail"))
        per_core = max(map(sum, self.threads.values()), default=0) / self.cores if self.cores else 0.0
        alone = any(call.executor == "IterativeExecutor" for call in self.run.calls)
        few = alone or tail or self.chunks <= self.total / self.elapsed
        several = self.local or any(life["threads"] > 1 for life in self.lives)
        return Layout(
            crowded=self._crowded(),
            more=not (waits or few or per_core >= 2) and self._memory_allows(threads=2),
            apart=lock and several and self._memory_allows(apart=True),
        )

    def _may_limit(self, cause: str, seconds: float) -> bool:
        """Whether this thread time, plus the idle time that it causes, could justify a finding."""
        return self.wall(seconds) >= self.least(cause) / 2

    def _memory_allows(self, threads: int = 1, *, apart: bool = False) -> bool:
        """Whether workers have enough memory for `threads` times as many threads, or for one process per thread."""
        found = self.memory
        if self.lacks_memory or found is None or found.fit is None or found.chunk_events is None:
            return not self.lacks_memory
        more = (found.fit.threads - 1) * found.fit.baseline if apart else 0.0
        return found.fit.peak(threads * found.chunk_events) + more <= TARGET * found.fit.limit

    def _crowded(self) -> str | None:
        """Host with the longest core waits, if its own threads caused at least half of them."""
        host = self.contended[0].name if self.contended else None
        if host is None or not self.cores or sum(self.threads.get(host, ())) <= self.cores or self.run.chunks is None:
            return None
        chunks = plain(self.run.chunks.select(["worker", "start", "stop"])).to_pandas().dropna()
        starts, stops = chunks.loc[chunks["worker"].map(self.hosts) == host, ["start", "stop"]].to_numpy().T
        if not (stops > starts).any():
            return None
        middle, waited = (starts + stops) / 2, sum(self.core_wait.values())
        running = np.searchsorted(np.sort(starts), middle) - np.searchsorted(np.sort(stops), middle)
        # among threads that run at the same time, one per core is not waiting
        share = 1 - self.cores / np.average(running, weights=stops - starts)
        return host if share * (waited + self.seconds_in("cpu_seconds")) >= waited / 2 else None

    @property
    def workers_line(self) -> str:
        """Code or command that starts a host's workers with the recommended numbers of threads and processes."""
        layout = self.layout
        now = self.threads[layout.crowded] if layout.crowded else max(self.threads.values(), key=sum, default=[1])
        if layout.more:
            return self.started_with(2 * max(now))
        total = (layout.crowded and self.cores) or sum(now)
        workers = total if layout.apart else min(len(now), total)
        return self.started_with(total // workers, workers)

    def started_with(self, threads: int, workers: int | None = None) -> str:
        """Code or command that starts workers. If `workers` is None, the number of workers stays the same."""
        if self._on_this_machine:
            return f"LocalCluster(n_workers={workers or len(self.present)}, threads_per_worker={threads})"
        return f"dask worker ... {f'--nworkers {workers} ' if workers else ''}--nthreads {threads}"

    def started_importing(self, modules: Sequence[str]) -> str:
        if self._on_this_machine:
            return f"LocalCluster(..., preload={json.dumps(modules)})"
        return f"dask worker ... {' '.join(f'--preload {one}' for one in modules)}"

    @property
    def _on_this_machine(self) -> bool:
        return bool(self.hosts) and all(one.startswith("inproc:") or is_loopback(one) for one in self.hosts)

    # Chunks

    @property
    def chunks(self) -> int:
        return 0 if self.counted is None else len(self.counted)

    def sum_of(self, column: str) -> float | None:
        found: float | None = None if self.counted is None else pc.sum(self.counted[column]).as_py()
        return found

    def seconds_in(self, *columns: str) -> float:
        return sum(self.sum_of(column) or 0.0 for column in columns)

    @cached_property
    def calls(self) -> Mapping[Call, tuple[float, int]]:
        """Calls in user code, each with its share of CPU time in process() and its sample count, largest first."""
        return {} if self.profile is None else self.profile.calls()

    @cached_property
    def process_cpu(self) -> Numbers | None:
        return process_cpu(self.counted)

    @cached_property
    def branches_ahead(self) -> Preloading | None:
        """Branches worth preloading; None if unknown or if there are none."""
        with suppress(NotMeasuredError):
            return None if self.counted is None else preloading(self.run, self.counted)
        return None

    @property
    def reread(self) -> float:
        """Fraction of the payload bytes read that had already been read."""
        if self.bytes is None:
            return 0.0
        again, once = self.bytes.get(phases.REREAD) or 0, self.bytes.get(phases.PAYLOAD) or 0
        return again / (again + once) if again else 0.0

    # The chunk size

    @cached_property
    def chunk_size(self) -> ChunkSize:
        """Recommended chunk size, or the reason why there is none. Memory limits take precedence."""
        found = self._weighed()
        if self.fitting is not None:
            return found._replace(size=self.fitting, reason="workers lacked memory")
        if self.lacks_memory and found.is_larger:
            return found._replace(size=None, reason="workers lacked memory")
        return found

    @property
    def larger(self) -> str | None:
        return self.chunk_size.line if self.chunk_size.is_larger else None

    @property
    def smaller(self) -> str | None:
        return self.chunk_size.line if self.chunk_size.is_smaller else None

    @property
    def lacks_memory(self) -> bool:
        return self.memory is not None and bool(self.memory.lacking)

    @property
    def fitting(self) -> int | None:
        """Chunk size that fits in memory; None unless workers ran short of memory with larger chunks."""
        found = self.memory
        if found is None or found.fit is None or not self.lacks_memory or found.results_fill_it:
            return None
        return found.fit.events if found.chunk_events is not None and found.fit.events < found.chunk_events else None

    def _weighed(self) -> ChunkSize:
        depends = self.wall(self._sum_of(*OF_CHUNKS, phases.TAIL, phases.PAUSED, phases.FAILED))
        # with this many chunks, comparing sizes takes several seconds
        if self.chunks > 100_000 and depends < self.least("chunk size"):
            return ChunkSize(None, math.nan, Saving(0.0, 0.0, 0.0), math.nan, None, reason=LITTLE)
        found = recommended(self.savings, None if self.memory is None else self.memory.fit, self.reread)
        if not found.is_larger:
            return found
        # replays of other chunk sizes have no stragglers, but the resulting saving is no reason to use larger chunks
        again = self.reread * self.time_of("storage")
        most = self.wall(self._sum_of(*OF_CHUNKS) + again + (found.in_process or 0.0) * self.chunks)
        if most < self.least("chunk size") / 2:
            return found._replace(size=None, reason=LITTLE)
        return found._replace(saving=found.saving.up_to(most))

    def _sum_of(self, *classes: str) -> float:
        return sum(self.ledger[name] for name in classes if name in self.ledger)

    # Culprits

    def functions(self, state: str, *, own: bool = False) -> list[Culprit]:
        """User functions that spend the most time in a state ("core" or "blocked"), with file and line.

        If `own` is true, time in the functions that they call is excluded.
        """
        sums: dict[tuple[str, str], float] = {}
        lines: dict[tuple[str, str], tuple[float, int]] = {}
        for row in rows_in(self.hot):
            if not (own and row["leaf"] is not None):
                key, seconds = (row["function"], row["file"]), row[f"{state}_seconds"] or 0.0
                sums[key] = sums.get(key, 0.0) + seconds
                lines[key] = max(lines.get(key, (0.0, row["line"])), (seconds, row["line"]))
        found = {f"{key[0]} ({key[1]}:{lines[key][1]})": seconds for key, seconds in sums.items()}
        return most_of("function", found)


def by_part(table: pa.Table | None, key: str, columns: Iterable[str]) -> dict[Any, float]:
    names = list(columns)
    if table is None or not names:
        return {}
    sums = table.group_by(key).aggregate([(name, "sum") for name in names]).to_pylist()
    return largest_first({row[key]: sum(row[f"{name}_sum"] or 0.0 for name in names) for row in sums})


def largest_first(sums: Mapping[Any, float]) -> dict[Any, float]:
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def most_of(kind: str, seconds: Mapping[str, float]) -> list[Culprit]:
    found = [Culprit(kind, str(name), amount) for name, amount in largest_first(seconds).items() if amount > 0]
    return found[:NAMED]


def names_of(found: Iterable[Culprit]) -> str:
    return ", ".join(one.name for one in found)
