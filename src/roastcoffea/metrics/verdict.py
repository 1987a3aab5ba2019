"""The verdict: what binds a run, and what could be won by changing what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import root_cause
from roastcoffea.metrics import slots
from roastcoffea.metrics import time as rows
from roastcoffea.metrics.bytes import endpoint
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, fact, metric
from roastcoffea.metrics.time import TimeLedger
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, FRACTION, SECOND, STRUCTURE, WORD, number

STORAGE: Final = "storage"
DECOMPRESSION: Final = "decompression"
METADATA: Final = "metadata"
WAIT: Final = "wait"
SCHEDULER: Final = "scheduler"
TRANSFER: Final = "transfer"
MERGE: Final = "merge"
PREPROCESSING: Final = "preprocessing"
TAIL: Final = "tail"
MEMORY: Final = "memory"
CLIENT: Final = "client"
WORKERS: Final = "workers"
FAILURES: Final = "failures"

LEAST: Final = 0.05
"""Share of the wall time that a finding must be able to win: less than that, repeats of one run differ."""

LEAST_OF: Final[Mapping[str, float]] = {
    # Dask's event loop, the garbage collector and the kernel take so much from the threads of any run
    WAIT: 0.10,
    # compressed files save more waiting than that, wherever storage is not on the same machine
    DECOMPRESSION: 0.30,
    # a client needs its time to prepare and to merge, and short runs have no more of it than long ones
    CLIENT: 0.10,
    # the last round of chunks ends together only by luck
    TAIL: 0.10,
    # each file has to be opened once
    METADATA: 0.10,
    # the way to a worker and back takes milliseconds
    SCHEDULER: 0.10,
}
"""Where a share that is larger is still what a healthy run has, and why."""

LONGEST_LINE: Final = 120

TARGET: Final = 0.05
"""Share of a chunk's time that opening and scheduling should take, in the chunk sizes that are proposed."""

ROUNDS_OF_CHUNKS: Final = 3
"""Chunks for each thread that a proposed chunk size leaves at least, so that all threads end together."""

WORDS: Final[Mapping[str, str]] = {
    rows.COMPUTE: "compute",
    rows.DECOMPRESS: DECOMPRESSION,
    rows.INTERPRET: "interpretation",
    rows.READ: STORAGE,
    rows.WAIT: WAIT,
    rows.OPEN: METADATA,
    rows.CHECKPOINT: "checkpoint",
    rows.OVERHEAD: SCHEDULER,
    rows.MERGE: MERGE,
    rows.BEFORE: PREPROCESSING,
    rows.OTHERS: "other tasks",
    rows.WASTED: FAILURES,
    slots.TRANSFER: TRANSFER,
    slots.WORKER: SCHEDULER,
    slots.ON_THE_WAY: SCHEDULER,
    slots.PAUSED: MEMORY,
    slots.QUEUED: SCHEDULER,
    slots.PLACEMENT: SCHEDULER,
    slots.TAIL: TAIL,
    slots.CLIENT: CLIENT,
}
"""Word for each class of the time ledger."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that could be won: `seconds` of wall time at most, if what is in `rows` (thread seconds) vanished."""

    cause: str
    seconds: float
    text: str
    rows: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


class Verdict(list[Finding]):
    """Findings, the worst first; empty where the run is healthy.

    Where there is no time ledger to judge by it is empty as well, and `absent` has the reason.
    """

    def __init__(self, findings: Iterable[Finding] = (), absent: str | None = None) -> None:
        super().__init__(findings)
        self.absent = absent

    @property
    def healthy(self) -> bool:
        """Whether there was something to judge by, and nothing was found."""
        return self.absent is None and not self


class Seen(NamedTuple):
    """What a run is judged by. Tables that were not recorded are None."""

    run: Run
    ledger: TimeLedger
    total: float
    counted: pa.Table | None
    stragglers: pa.Table | None
    slow_workers: Mapping[str, tuple[float, float]]
    spilled: float
    fine: Mapping[str, Mapping[str, float]] | None

    @property
    def elapsed(self) -> float:
        """Wall time of the run."""
        return self.run.stop - self.run.start

    def wall(self, thread_seconds: float) -> float:
        """Wall time that so much thread time takes when all threads share it."""
        return thread_seconds * self.elapsed / self.total

    def share(self, thread_seconds: float) -> str:
        """The thread time beside all of it, for people."""
        return FRACTION.text(thread_seconds / self.total)


@fact
def spill_seconds(fine_metrics_per_worker: Mapping[str, Mapping[str, float]]) -> float:
    """Seconds in which workers moved results to disk or back."""
    return sum(worker["spill_seconds"] for worker in fine_metrics_per_worker.values())


@metric(
    WORD,
    group=TIME,
    source=rows.LEDGER,
    label="bound by",
    formula="word for the classes of the time ledger that have the most thread time",
)
def bound(time_ledger: TimeLedger) -> str:
    """What the run spent most of its thread time on, in one word."""
    if not time_ledger.total:
        raise NotMeasuredError("no worker was there")
    amounts: dict[str, float] = {}
    for name, word in WORDS.items():
        amounts[word] = amounts.get(word, 0.0) + time_ledger.get(name, 0.0)
    return max(amounts, key=lambda word: amounts[word])


@metric(STRUCTURE, group=TIME, source=rows.LEDGER, formula="rows of the time ledger against thresholds")
def verdict(  # noqa: PLR0917
    run: Run,
    time_ledger: TimeLedger,
    counted_chunks: pa.Table | None = None,
    stragglers: pa.Table | None = None,
    slow_workers: Mapping[str, tuple[float, float]] | None = None,
    spill_seconds: float | None = None,
    fine_metrics_per_worker: Mapping[str, Mapping[str, float]] | None = None,
) -> Verdict:
    """What could be won, the most first: see `Verdict`."""
    if not time_ledger.total:
        raise NotMeasuredError("no worker was there")
    seen = Seen(
        run,
        time_ledger,
        time_ledger.total,
        counted_chunks,
        stragglers,
        slow_workers or {},
        spill_seconds or 0.0,
        fine_metrics_per_worker,
    )
    found = [_finding(seen, cause, judged(seen)) for cause, judged in CAUSES.items()]
    worth = [finding for finding in found if finding.seconds >= LEAST_OF.get(finding.cause, LEAST) * seen.elapsed]
    return Verdict(sorted(worth, key=lambda finding: finding.seconds, reverse=True))


class Judged(NamedTuple):
    """Thread seconds by row that a cause may claim, and what is to be said of it."""

    rows: Mapping[str, float]
    text: Callable[[], str]


def _finding(seen: Seen, cause: str, judged: Judged) -> Finding:
    seconds = seen.wall(sum(judged.rows.values()))
    worth = seconds >= LEAST_OF.get(cause, LEAST) * seen.elapsed
    return Finding(cause, seconds, judged.text() if worth else "", judged.rows)


def _taken(seen: Seen, *names: str) -> dict[str, float]:
    """Thread seconds of those classes that have any."""
    return {name: seen.ledger[name] for name in names if seen.ledger.get(name, 0.0) > 0}


# Causes: each has rows of its own, so that nothing is won twice


def _storage(seen: Seen) -> Judged:
    taken = _taken(seen, rows.READ)

    def text() -> str:
        waited = sum(taken.values())
        rate, places = "", _slowest_endpoint(seen)
        payload = _sum(seen.counted, "bytes_payload")
        if payload:
            rate = f", {BYTE.text(payload / waited)}/s while it waits"
        return (
            f"{seen.share(waited)} of the threads' time waits for storage{places}{rate}. "
            "Read from a nearer or faster place; or run more threads than there are cores: who waits needs none"
        )

    return Judged(taken, text)


def _decompression(seen: Seen) -> Judged:
    taken = _taken(seen, rows.DECOMPRESS)
    return Judged(
        taken,
        lambda: (
            f"{seen.share(sum(taken.values()))} of the threads' time decompresses. "
            "Store the files with zstd or lz4 instead of lzma or zlib, or read fewer branches"
        ),
    )


def _metadata(seen: Seen) -> Judged:
    taken = _taken(seen, rows.OPEN)

    def text() -> str:
        opened, chunks = sum(taken.values()), _length(seen.counted)
        each = f", {SECOND.text(opened / chunks)} for each of {number(chunks)} chunks" if chunks else ""
        return (
            f"{seen.share(opened)} of the threads' time opens files and builds events{each}. "
            f"{_larger_chunks(seen, opened)}, or a schema with fewer collections"
        )

    return Judged(taken, text)


def _wait(seen: Seen) -> Judged:
    taken = _taken(seen, rows.WAIT)

    def text() -> str:
        threads = pc.max(seen.run.lifetimes["threads"]).as_py() if seen.run.lifetimes is not None else 1
        several = threads is not None and threads > 1
        remedy = (
            f"Workers have {threads} threads, which share one interpreter: try processes of one thread"
            if several
            else "Look for sleeps, locks, calls of services or too many threads; sections (track_time) find them"
        )
        share = seen.share(sum(taken.values()))
        return f"{share} of the threads' time is in process() without CPU, and not in reading. {remedy}"

    return Judged(taken, text)


def _scheduler(seen: Seen) -> Judged:
    names = (rows.OVERHEAD, slots.WORKER, slots.ON_THE_WAY, slots.QUEUED, slots.PLACEMENT)
    taken = _taken(seen, *names)

    def text() -> str:
        lost = sum(taken.values())
        largest = max(taken, key=lambda name: taken[name])
        return (
            f'{seen.share(lost)} of the threads\' time goes into handing out tasks (most of it: "{largest}")'
            f"{_task_length(seen)}. {_larger_chunks(seen, lost)}"
        )

    return Judged(taken, text)


def _transfer(seen: Seen) -> Judged:
    taken = _taken(seen, slots.TRANSFER)
    return Judged(
        taken,
        lambda: (
            f"{seen.share(sum(taken.values()))} of the threads' time waits for results from other workers"
            f"{_transferred(seen)}. Make the output smaller, or merge in larger steps (treereduction in DaskExecutor)"
        ),
    )


def _merge(seen: Seen) -> Judged:
    taken = _with_tail(seen, rows.MERGE, task_records.MERGE)
    return Judged(
        taken,
        lambda: (
            f"{seen.share(sum(taken.values()))} of the threads' time merges results, or waits for that. "
            "Make the output smaller (fewer bins, no columns), or merge in larger steps (treereduction in DaskExecutor)"
        ),
    )


def _preprocessing(seen: Seen) -> Judged:
    taken = _with_tail(seen, rows.BEFORE, task_records.PREPROCESSING)
    return Judged(
        taken,
        lambda: (
            f"{seen.share(sum(taken.values()))} of the threads' time fetches the metadata of files, or waits for that. "
            "Keep it: give the Runner a metadata_cache, or the chunks of an earlier Runner.preprocess"
        ),
    )


def _with_tail(seen: Seen, name: str, kind: str) -> dict[str, float]:
    """A class of tasks, and the idle time of the threads that had nothing else to do."""
    taken = _taken(seen, name)
    waited = seen.ledger.tail_of.get(kind, 0.0)
    return taken | ({f"{slots.TAIL} ({kind})": waited} if waited > 0 else {})


def _tail(seen: Seen) -> Judged:
    others = sum(seen.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = seen.ledger.get(slots.TAIL, 0.0) - others
    taken = {slots.TAIL: idle} if idle > 0 else {}
    return Judged(
        taken,
        lambda: (
            f"{seen.share(idle)} of the threads' time is idle at an end, while others still work"
            f"{_worst_straggler(seen)}. {_smaller_chunks(seen)}"
        ),
    )


def _memory(seen: Seen) -> Judged:
    taken = _taken(seen, slots.PAUSED)
    if seen.spilled > 0:
        taken["spilling"] = seen.spilled
    return Judged(
        taken,
        lambda: (
            f"workers ran out of memory: {SECOND.text(taken.get(slots.PAUSED, 0.0))} of thread time paused, and moving "
            f"results to disk and back for {SECOND.text(seen.spilled)}. Give them more memory, or make chunks or "
            "outputs smaller"
        ),
    )


def _client(seen: Seen) -> Judged:
    taken = _taken(seen, slots.CLIENT)
    return Judged(
        taken,
        lambda: (
            f"{seen.share(sum(taken.values()))} of the threads' time there was nothing to do: {_client_parts(seen)}. "
            "Do in the client before and after what needs no cluster, and start workers when they are needed"
        ),
    )


def _client_parts(seen: Seen) -> str:
    parts = {
        "before": "before the first task",
        "between": "between tasks",
        "after": "after the last one",
    }
    told = [
        f"{SECOND.text(seen.wall(seconds))} {parts[when]}"
        for when, seconds in seen.ledger.client_of.items()
        if seconds > 0.01 * seen.total
    ]
    return ", ".join(told) or "the client prepared or merged"


def _workers(seen: Seen) -> Judged:
    beyond = {f"slow: {worker}": max(excess, 0.0) for worker, (_, excess) in seen.slow_workers.items()}

    def text() -> str:
        worker, (factor, _) = max(seen.slow_workers.items(), key=lambda item: item[1][1])
        return (
            f"{number(len(beyond))} worker(s) are slower than the typical one for the same chunks, "
            f"{worker} by {factor:.2g} x. Look what else runs on its host"
        )

    return Judged({name: seconds for name, seconds in beyond.items() if seconds > 0}, text)


def _failures(seen: Seen) -> Judged:
    taken = _taken(seen, rows.WASTED)

    def text() -> str:
        reasons = ", ".join(f"{SECOND.text(seconds)} {reason}" for reason, seconds in seen.ledger.failed.items())
        return (
            f"{seen.share(sum(taken.values()))} of the threads' time went into attempts that gave nothing ({reasons})"
            f"{_commonest_error(seen)}. `measurement.failed` has them all"
        )

    return Judged(taken, text)


CAUSES: Final[Mapping[str, Callable[[Seen], Judged]]] = {
    STORAGE: _storage,
    DECOMPRESSION: _decompression,
    METADATA: _metadata,
    WAIT: _wait,
    SCHEDULER: _scheduler,
    TRANSFER: _transfer,
    MERGE: _merge,
    PREPROCESSING: _preprocessing,
    TAIL: _tail,
    MEMORY: _memory,
    CLIENT: _client,
    WORKERS: _workers,
    FAILURES: _failures,
}


# Evidence in words


def _sum(table: pa.Table | None, column: str) -> float | None:
    found: float | None = None if table is None else pc.sum(table[column]).as_py()
    return found


def _length(table: pa.Table | None) -> int:
    return 0 if table is None else len(table)


def _slowest_endpoint(seen: Seen) -> str:
    """The host for which most was waited, where files have one."""
    if seen.counted is None:
        return ""
    waited: dict[str, float] = {}
    for row in seen.counted.group_by("file").aggregate([("read_seconds", "sum")]).to_pylist():
        host = endpoint(row["file"])
        if host is not None:
            waited[host] = waited.get(host, 0.0) + (row["read_seconds_sum"] or 0.0)
    return f", most at {max(waited, key=lambda host: waited[host])}" if waited else ""


def _task_length(seen: Seen) -> str:
    tasks = seen.run.tasks
    if tasks is None or not len(tasks):
        return ""
    mean = pc.mean(pc.subtract(tasks["stop"], tasks["start"])).as_py()
    return "" if mean is None else f"; {number(len(tasks))} tasks of {SECOND.text(mean)} in the mean"


def _transferred(seen: Seen) -> str:
    if seen.fine is None:
        return ""
    came = sum(worker["transfer_bytes"] for worker in seen.fine.values())
    return f" ({BYTE.text(came)} were fetched)" if came else ""


def _worst_straggler(seen: Seen) -> str:
    if not _length(seen.stragglers):
        return ""
    assert seen.stragglers is not None
    (worst,) = seen.stragglers.slice(0, 1).to_pylist()
    return (
        f"; the slowest chunk took {SECOND.text(worst['wall_seconds'])} instead of "
        f"{SECOND.text(worst['expected_seconds'])} ({worst['file']}, entries {worst['entry_start']} to "
        f"{worst['entry_stop']}, {worst['phase']})"
    )


def _commonest_error(seen: Seen) -> str:
    chunks = seen.run.chunks
    errors = [] if chunks is None else chunks["error"].drop_null().to_pylist()
    if not errors:
        return ""
    ((commonest, times),) = Counter(errors).most_common(1)
    return f"; {number(times)} x {root_cause(commonest)[:LONGEST_LINE]}"


def _larger_chunks(seen: Seen, fixed: float) -> str:
    """The chunk size at which a fixed cost of each chunk would be a small share."""
    counted, generic = seen.counted, "Make chunks larger"
    events, chunks = _sum(counted, "events"), _length(counted)
    if not events or counted is None:
        return "Make tasks longer: fewer of them, each with more to do"
    work = (_sum(counted, "wall_seconds") or 0.0) - seen.ledger.get(rows.OPEN, 0.0)
    factor = fixed * (1 - TARGET) / (TARGET * work) if work > 0 else float("inf")
    most = min(events / (ROUNDS_OF_CHUNKS * _threads(seen)), pc.max(counted["entry_stop"]).as_py() or events)
    size = min(factor * events / chunks, most)
    if size < 1.2 * events / chunks:
        return f"{generic}, if there are enough of them for all threads"
    return f"{generic}: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)}"


def _smaller_chunks(seen: Seen) -> str:
    """The chunk size at which the last round is short."""
    counted = seen.counted
    events, wall, chunks = _sum(counted, "events"), _sum(counted, "wall_seconds"), _length(counted)
    if not events or not wall:
        return "Cut the longest tasks"
    size = events / chunks * TARGET * 2 * seen.elapsed / (wall / chunks)
    if _length(seen.stragglers) or size >= events / chunks:
        return "Look at the slowest chunks: `measurement.stragglers`"
    return f"Make chunks smaller: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)}"


def _threads(seen: Seen) -> float:
    return max(seen.total / seen.elapsed, 1.0) if seen.elapsed else 1.0


def _rounded(size: float) -> int:
    """Number of events with two digits that count."""
    return max(int(float(f"{size:.2g}")), 1)
