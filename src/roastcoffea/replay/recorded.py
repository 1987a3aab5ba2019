"""A recorded run prepared for a replay: its chunks, its cluster, and the time around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import Metrics
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import counted_chunks, recorded, rows_where, with_outcome
from roastcoffea.metrics.phases import OTHER_TASKS
from roastcoffea.metrics.statistics import amounts, clipped, integral, moments
from roastcoffea.metrics.thread_activity import MOMENTS
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records.run import Run
from roastcoffea.records.workers import OK, PROCESSOR
from roastcoffea.replay.changes import LOCK
from roastcoffea.replay.cluster import Cluster
from roastcoffea.replay.stages import Records, Stage, costs_of, stages_of
from roastcoffea.units import FRACTION, number

Value = TypeVar("Value")

ABSENT_THREADS: Final = 0.02
"""Largest share of thread time that may be missing because workers joined late or left."""

FOREIGN: Final = 0.05
"""Share of the thread time above which tasks of others are mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run prepared for a replay.

    `calls` are its Runner calls in sequence: the processor of each, and the fingerprint of its files (None if unknown).
    `client` is the part of `seconds` outside all stages. `cores` are those of one host; None if unknown. `core_wait` is
    the ratio of computing to CPU time due to CPU contention; None if unknown. `knows_lock` is whether waiting for the
    interpreter was recorded. `branches` are those it read. `doubts`
    are caveats of predictions from it.
    """

    name: str
    calls: tuple[tuple[str, str | None], ...]
    seconds: float
    client: float
    stages: tuple[Stage, ...]
    workers: int
    threads: int
    hosts: int
    cores: int | None
    scheduler_here: bool
    chunksize: int | None
    events: int
    core_wait: float | None
    knows_lock: bool
    branches: frozenset[str]
    failed: bool
    doubts: tuple[str, ...]

    @property
    def configuration(self) -> tuple[int, int, int | None]:
        """Common to repeats: workers, threads per worker, chunk size."""
        return self.workers, self.threads, self.chunksize

    @property
    def workers_of_host(self) -> int:
        """Workers that shared a host."""
        return max(round(self.workers / self.hosts), 1)

    @property
    def own_cluster(self) -> Cluster:
        """The cluster on which it ran."""
        return self.cluster(self.workers, self.threads, same_host=self.hosts == 1)

    def cluster(self, workers: int, threads: int, *, same_host: bool) -> Cluster:
        """Cluster of this many workers: each adds cores like the recorded ones, or all share those of one host."""
        cores = float("inf") if self.cores is None else float(self.cores)
        if same_host:
            return Cluster(threads=threads, hosts=[(workers, cores)], scheduler_here=self.scheduler_here)
        each = self.workers_of_host
        full, rest = divmod(workers, each)
        hosts = [(each, cores)] * full + ([(rest, cores * rest / each)] if rest else [])
        return Cluster(threads=threads, hosts=hosts, scheduler_here=self.scheduler_here)


OF_TASKS: Final = ("key", "run_id", "prefix", "kind", "worker", "thread", "outcome", *MOMENTS)
"""Columns of tasks that a replay uses: copying these costs less than copying all."""


class Known(NamedTuple):
    """Facts about a run in addition to its records."""

    workers: float
    """Average number of workers."""
    counted: pa.Table | None = None
    """Attempts of chunks that counted, if already determined."""
    stragglers: pa.Table | str = "not determined"
    ledger: TimeLedger | None = None


def recorded_run(run: Run, metrics: Metrics, name: str) -> Recorded:
    """A run prepared for replays on other clusters.

    Raises
    ------
    NotMeasuredError
        If it lacks data for a replay; the text says which.
    """
    known = Known(metrics.get("avg_workers") or 0.0, None, metrics.tables["stragglers"], metrics.get("time_ledger"))
    return recorded_with(run, known, name)


def recorded_with(run: Run, known: Known, name: str, *, as_it_was: bool = False) -> Recorded:
    """A run prepared for a replay.

    Parameters
    ----------
    as_it_was
        Keep the chunks' recorded times, including waiting for cores and starting processes, and failed attempts.
        Otherwise a replay adds its own, as other clusters require.

    Raises
    ------
    NotMeasuredError
        If it lacks data for a replay; the text says which.
    """
    try:
        return _recorded(run, known, name, as_it_was)
    except NotMeasuredError as reason:
        raise NotMeasuredError(f"{name} cannot be replayed: {reason}") from None


def _recorded(run: Run, known: Known, name: str, as_it_was: bool) -> Recorded:
    if run.merged:
        raise NotMeasuredError("it was merged from independent runs: each can be replayed by itself")
    tasks, lifetimes = recorded(run, "tasks"), recorded(run, "lifetimes")
    chunks = counted_chunks(recorded(run, "chunks")) if known.counted is None else known.counted
    if not len(chunks) or not len(lifetimes):
        raise NotMeasuredError("no chunk has a result, or no worker was recorded")
    calls = sorted(run.calls, key=lambda call: call.start)
    if any(later.start < earlier.stop for earlier, later in pairwise(calls)):
        raise NotMeasuredError("its Runner calls overlapped: their tasks cannot be separated")
    tasks = tasks.select(OF_TASKS)
    ended, failed = with_outcome(tasks, (OK,)), None
    if as_it_was:
        failed = tasks.filter(pc.and_(pc.equal(tasks["kind"], PROCESSOR), pc.not_equal(tasks["outcome"], OK)))
    costs = costs_of(rows_where(tasks, tasks["start"].is_valid()))
    stages_from = Records(run=run, chunks=chunks, tasks=ended, costs=costs, stragglers=known.stragglers, failed=failed)
    stages = tuple(stage for call in calls for stage in stages_of(call, stages_from))
    if not any(stage.chunks for stage in stages):
        raise NotMeasuredError("no task of its chunks was recorded")
    size = only(call.options.get("chunksize") for call in calls)
    return Recorded(
        name=name,
        calls=tuple((call.processor, call.fileset) for call in calls),
        seconds=run.stop - run.start,
        client=run.stop - run.start - sum(stage.seconds for stage in stages),
        stages=stages,
        workers=max(round(known.workers), 1),
        threads=int(median(lifetimes["threads"].to_pylist())),
        hosts=max(len(lifetimes["host"].unique()), 1),
        cores=only(host.cores for host in run.environment.hosts),
        scheduler_here=run.environment.client_host in {host.name for host in run.environment.hosts},
        chunksize=size if isinstance(size, int) else None,
        events=int(pc.sum(chunks["events"], min_count=0).as_py()),
        core_wait=_core_wait(chunks),
        knows_lock=LOCK in chunks.column_names and not chunks[LOCK].null_count,
        branches=frozenset(() if run.branch_reads is None else run.branch_reads["branch"].unique().to_pylist()),
        failed=run.ended_early,
        doubts=tuple(_doubts(run, known.ledger, lifetimes, tasks, chunks)),
    )


def only(values: Iterable[Value]) -> Value | None:
    """The common value of all; None if they differ, or there is none."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _core_wait(chunks: pa.Table) -> float | None:
    if chunks["core_wait_seconds"].null_count:
        return None
    waited, cpu = (float(amounts(chunks, name).sum()) for name in ("core_wait_seconds", "cpu_seconds"))
    return 1 + waited / cpu if cpu else 1.0


# Doubts


def _doubts(run: Run, ledger: TimeLedger | None, lifetimes: pa.Table, tasks: pa.Table, chunks: pa.Table) -> list[str]:
    """Caveats of predictions."""
    found = [f"the recorded run {run.ending}, and is incomplete"] if run.ended_early else []
    if chunks["core_wait_seconds"].null_count:
        found.append("waiting for cores was not recorded: times of chunks may include other load")
    if only(host.cores for host in run.environment.hosts) is None:
        found.append("the cores of its hosts are unknown or differ: sharing them is not modelled")
    if len(lifetimes["threads"].unique()) > 1:
        found.append("its workers have different numbers of threads: the median is used")
    starts, stops = clipped(moments(lifetimes, "start"), moments(lifetimes, "stop"), run.start, run.stop)
    threads = amounts(lifetimes, "threads")
    missing = float(1 - integral(starts, stops, threads) / (threads.sum() * (run.stop - run.start)))
    if missing > ABSENT_THREADS:
        share = FRACTION.text(missing)
        found.append(f"workers joined late or left while recording: {share} of the thread time was missing")
    lost = len(tasks) - len(with_outcome(tasks, (OK,)))
    if lost:
        found.append(f"{number(lost)} attempts of tasks failed while recording; they are left out")
    foreign = ledger.get(OTHER_TASKS, 0.0) / ledger.total if ledger and ledger.total else 0.0
    if foreign > FOREIGN:
        found.append(f"tasks of others took {FRACTION.text(foreign)} of the thread time while recording")
    return found
