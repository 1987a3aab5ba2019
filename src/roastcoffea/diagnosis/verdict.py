"""The verdict: what binds a run, and what could be won by changing what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.errors import root_cause
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import endpoint
from roastcoffea.metrics.catalogue import TIME, NotMeasuredError, fact, metric
from roastcoffea.metrics.time_ledger import TimeLedger
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
OTHER_TASKS: Final = "other tasks"
INTERPRETATION: Final = "interpretation"
CHECKPOINTS: Final = "checkpoint"

LEAST: Final = 0.05
"""Share of the wall time that a finding must be able to win: less than that, repeats of one run differ."""

SHORTEST: Final = 0.1
"""Seconds of wall time that a finding must be able to win: nobody changes an analysis for less."""

LEAST_OF: Final[Mapping[str, float]] = {
    # Dask's event loop, the garbage collector and the kernel take so much from the threads of any run
    WAIT: 0.10,
    # compressed files save more waiting than that, wherever storage is not on the same machine
    DECOMPRESSION: 0.25,
    # arrays have to be made of what is read
    INTERPRETATION: 0.25,
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

BUSY_INTERPRETER: Final = 0.7
"""CPU of a process beside the time of its chunks from which on its threads wait for each other's interpreter."""

TARGET: Final = 0.05
"""Share of a chunk's time that opening and scheduling should take, in the chunk sizes that are proposed."""

MOST: Final = 0.9
"""A section inside of another is told in its place where it waited for so much of the other's time."""

LARGER: Final = 1.5
"""Factor by which a proposed chunk size is larger at least: less changes little."""

FEW: Final = 0.1
"""First chunks of threads are told apart where they took more than that share of all opening."""

ROUNDS_OF_CHUNKS: Final = 3
"""Chunks for each thread that a proposed chunk size leaves at least, so that all threads end together."""

WORDS: Final[Mapping[str, str]] = {
    phases.COMPUTE: "compute",
    phases.DECOMPRESS: DECOMPRESSION,
    phases.INTERPRET: INTERPRETATION,
    phases.READ: STORAGE,
    phases.WAIT: WAIT,
    phases.OPEN: METADATA,
    phases.CHECKPOINT: CHECKPOINTS,
    phases.OVERHEAD: SCHEDULER,
    phases.MERGE: MERGE,
    phases.PREPROCESSING: PREPROCESSING,
    phases.OTHER_TASKS: OTHER_TASKS,
    phases.FAILED: FAILURES,
    phases.TRANSFER: TRANSFER,
    phases.WORKER: SCHEDULER,
    phases.ON_THE_WAY: SCHEDULER,
    phases.PAUSED: MEMORY,
    phases.QUEUED: SCHEDULER,
    phases.PLACEMENT: SCHEDULER,
    phases.TAIL: TAIL,
    phases.CLIENT: CLIENT,
}
"""Word for each class of the time ledger."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that could be won: `seconds` of wall time if what is in `rows` (thread seconds) vanished for all.

    The other rows are taken to stay. Some of the idle time may be there because of it: that would be won besides.
    """

    cause: str
    seconds: float
    text: str
    rows: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


class Verdict(list[Finding]):
    """Findings, the worst first; empty where the run is healthy.

    Where there is no time ledger to judge by it is empty as well, and `absent` has the reason. Where the ledger lacks
    something, `incomplete` says what: then nothing is said of idle time, as what is lacking looks like it.
    """

    def __init__(
        self, findings: Iterable[Finding] = (), absent: str | None = None, incomplete: Iterable[str] = ()
    ) -> None:
        super().__init__(findings)
        self.absent = absent
        self.incomplete = list(incomplete)

    @property
    def healthy(self) -> bool:
        """Whether there was all to judge by, and nothing was found."""
        return self.absent is None and not self.incomplete and not self


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

    def least(self, cause: str) -> float:
        """Seconds of wall time that a finding of this cause must be able to win."""
        return max(LEAST_OF.get(cause, LEAST) * self.elapsed, SHORTEST)

    def wall(self, thread_seconds: float) -> float:
        """Wall time that so much thread time takes when all threads share it."""
        return thread_seconds * self.elapsed / self.total

    @property
    def shares_interpreter(self) -> bool:
        """Whether chunks ran side by side in processes whose one interpreter was busy most of the time.

        Then what looks like waiting for storage is for the most part waiting for that interpreter, which every answer
        of the storage has to pass.
        """
        return shares_interpreter(self.counted)

    @property
    def local(self) -> bool:
        """Whether the run had no scheduler."""
        return self.run.tasks is None

    def share(self, thread_seconds: float) -> str:
        """The thread time beside all of it, for people."""
        return FRACTION.text(thread_seconds / self.total)


@fact
def spill_seconds(fine_metrics_per_worker: Mapping[str, Mapping[str, float]]) -> float:
    """Seconds in which workers moved results to disk or back."""
    return sum(worker["spill_seconds"] for worker in fine_metrics_per_worker.values())


def shares_interpreter(counted: pa.Table | None) -> bool:
    """See `Seen.shares_interpreter`."""
    if counted is None or not (pc.max(counted["overlaps"]).as_py() or 0):
        return False
    wall, cpu = _sum(counted, "wall_seconds"), _sum(counted, "process_cpu_seconds")
    return bool(wall and cpu and cpu >= BUSY_INTERPRETER * wall)


@metric(
    WORD,
    group=TIME,
    source=TimeLedger.name,
    label="bound by",
    formula="word for the classes of the time ledger that have the most thread time",
)
def bound(time_ledger: TimeLedger, counted_chunks: pa.Table | None = None) -> str:
    """What the run spent most of its thread time on, in one word."""
    if not time_ledger.total:
        raise NotMeasuredError("no worker was there")
    words = {**WORDS} | ({phases.READ: WAIT} if shares_interpreter(counted_chunks) else {})
    amounts: dict[str, float] = {}
    for name, word in words.items():
        amounts[word] = amounts.get(word, 0.0) + time_ledger.get(name, 0.0)
    most = max(amounts, key=lambda word: amounts[word])
    if time_ledger.certificate.reasons and most in OF_IDLE_TIME:
        raise NotMeasuredError(f"nothing is said of idle time: {'; '.join(time_ledger.certificate.reasons)}")
    return most


@metric(STRUCTURE, group=TIME, source=TimeLedger.name, formula="rows of the time ledger against thresholds")
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
    incomplete = time_ledger.certificate.reasons
    causes = {cause: judged for cause, judged in CAUSES.items() if not incomplete or cause not in OF_IDLE_TIME}
    found = [_finding(seen, cause, judged(seen)) for cause, judged in causes.items()]
    worth = [finding for finding in found if finding.seconds >= seen.least(finding.cause)]
    return Verdict(sorted(worth, key=lambda finding: finding.seconds, reverse=True), incomplete=incomplete)


class Judged(NamedTuple):
    """Thread seconds by row that a cause may claim, and what is to be said of it."""

    rows: Mapping[str, float]
    text: Callable[[], str]


def _of_threads(seen: Seen, taken: Mapping[str, float], what: Callable[[], str]) -> Judged:
    """What is to be said of rows: their share of the threads' time, and what that does."""
    return Judged(taken, lambda: f"{seen.share(sum(taken.values()))} of the threads' time {what()}")


def _finding(seen: Seen, cause: str, judged: Judged) -> Finding:
    seconds = seen.wall(sum(judged.rows.values()))
    return Finding(cause, seconds, judged.text() if seconds >= seen.least(cause) else "", judged.rows)


def _taken(seen: Seen, *names: str) -> dict[str, float]:
    """Thread seconds of those classes that have any."""
    return {name: seen.ledger[name] for name in names if seen.ledger.get(name, 0.0) > 0}


# Causes: a row of the ledger belongs to one of them. Spilling, and what a slow worker takes longer, are no rows of it,
# and may be won with others.


def _storage(seen: Seen) -> Judged:
    taken = {} if seen.shares_interpreter else _taken(seen, phases.READ)
    return _of_threads(
        seen,
        taken,
        lambda: (
            f"waits for storage{_slowest_endpoint(seen)}. "
            "Read from a nearer or faster place; or run more processes than there are cores: who waits needs none"
        ),
    )


def _of_row(row: str, text: str) -> Callable[[Seen], Judged]:
    """Judge of a cause that has one row, of which there is always the same to say."""
    return lambda seen: _of_threads(seen, _taken(seen, row), lambda: text)


def _metadata(seen: Seen) -> Judged:
    taken = _taken(seen, phases.OPEN)

    def text() -> str:
        opened, first, chunks = sum(taken.values()), _first_openings(seen.counted), _length(seen.counted)
        first = first if first > FEW * opened else 0.0
        each = f", {SECOND.text((opened - first) / chunks)} for each of {number(chunks)} chunks" if chunks else ""
        each += f" and {SECOND.text(first)} that the first chunks of threads took beyond that" if first else ""
        if seen.wall(opened - first) < seen.least(METADATA):
            return f"opens files and builds events{each}: libraries are loaded once, which weighs less in a longer run"
        return (
            f"opens files and builds events{each}. {_larger_chunks(seen, opened - first)}, "
            "or a schema with fewer collections"
        )

    return _of_threads(seen, taken, text)


def _wait(seen: Seen) -> Judged:
    shared = seen.shares_interpreter
    taken = _taken(seen, phases.WAIT, *((phases.READ,) if shared else ()))

    def text() -> str:
        what = "is in process() without CPU" if shared else "is in process() without CPU, and not in reading"
        return f"{what}. {_wait_remedy(seen)}"

    return _of_threads(seen, taken, text)


def _wait_remedy(seen: Seen) -> str:
    if seen.shares_interpreter:
        return "Threads of a process share one interpreter, and it is busy: try processes of one thread"
    crowded = _crowded_host(seen)
    if crowded is not None:
        return f"{crowded}: take fewer threads, or more cores"
    found = _waiting_section(seen)
    return f"Look for sleeps, locks, calls of services, or others on the same cores; {found}"


def _waiting_section(seen: Seen) -> str:
    """The section that waits the most, the innermost of those that hold each other; how to have one, where none is."""
    sections = seen.run.sections
    names = ["name", "wall_seconds", "cpu_seconds"]
    known = None if sections is None else sections.select(names).drop_null()
    if known is None or not len(known):
        return "sections (track_time) find them"
    waited = known.append_column("waited", pc.subtract(known["wall_seconds"], known["cpu_seconds"]))
    sums = waited.group_by("name").aggregate([("waited", "sum")]).to_pylist()
    most = max(row["waited_sum"] for row in sums)
    innermost = max((row for row in sums if row["waited_sum"] >= MOST * most), key=lambda row: row["name"].count("/"))
    text = f"section {innermost['name']!r} was without CPU for {SECOND.text(innermost['waited_sum'])}"
    return f"{text}, reading included"


def _crowded_host(seen: Seen) -> str | None:
    """A host on which there are more threads for tasks than cores."""
    if seen.run.lifetimes is None:
        return None
    threads: Counter[str] = Counter()
    for row in seen.run.lifetimes.select(["host", "threads", "start", "stop"]).to_pylist():
        if row["start"] <= seen.run.start + seen.elapsed / 2 <= row["stop"]:
            threads[row["host"]] += row["threads"]
    cores = {host.cores for host in seen.run.environment.hosts}
    if len(cores) != 1 or None in cores:
        return None
    (each,) = cores
    host, most = max(threads.items(), key=lambda item: item[1], default=("", 0))
    return f"{host} has {number(most)} threads for tasks on {number(each)} cores" if each and most > each else None


def _scheduler(seen: Seen) -> Judged:
    names = (phases.OVERHEAD, phases.WORKER, phases.ON_THE_WAY, phases.QUEUED, phases.PLACEMENT)
    taken = _taken(seen, *names)
    doing = "the rest of the tasks around process()" if seen.local else "handing out tasks"

    def text() -> str:
        lost = sum(taken.values())
        largest = max(taken, key=lambda name: taken[name])
        return f'goes into {doing} (most of it: "{largest}"){_task_length(seen)}. {_larger_chunks(seen, lost)}'

    return _of_threads(seen, taken, text)


def _transfer(seen: Seen) -> Judged:
    taken = _taken(seen, phases.TRANSFER)
    return _of_threads(
        seen,
        taken,
        lambda: (
            f"waits for results from other workers"
            f"{_transferred(seen)}. Make the output smaller, or merge in larger steps (treereduction in DaskExecutor)"
        ),
    )


def _merge(seen: Seen) -> Judged:
    taken = _with_tail(seen, phases.MERGE, task_records.MERGE)
    return _of_threads(
        seen,
        taken,
        lambda: (
            "merges results, or waits for that. "
            "Make the output smaller (fewer bins, no columns), or merge in larger steps (treereduction in DaskExecutor)"
        ),
    )


def _preprocessing(seen: Seen) -> Judged:
    taken = _with_tail(seen, phases.PREPROCESSING, task_records.PREPROCESSING)
    return _of_threads(
        seen,
        taken,
        lambda: (
            "fetches the metadata of files, or waits for that. "
            "Keep it: give the Runner a metadata_cache, or the chunks of an earlier Runner.preprocess"
        ),
    )


def _with_tail(seen: Seen, name: str, kind: str) -> dict[str, float]:
    """A class of tasks, and the idle time of the threads that had nothing else to do."""
    taken = _taken(seen, name)
    waited = seen.ledger.tail_of.get(kind, 0.0)
    return taken | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


def _tail(seen: Seen) -> Judged:
    others = sum(seen.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = seen.ledger.get(phases.TAIL, 0.0) - others
    taken = {phases.TAIL: idle} if idle > 0 else {}
    return _of_threads(
        seen,
        taken,
        lambda: f"is idle at an end, while others still work{_worst_straggler(seen)}. {_smaller_chunks(seen)}",
    )


def _memory(seen: Seen) -> Judged:
    taken = _taken(seen, phases.PAUSED)
    if seen.spilled > 0:
        taken["spilling"] = seen.spilled
    return Judged(
        taken,
        lambda: (
            f"workers ran out of memory: {SECOND.text(taken.get(phases.PAUSED, 0.0))} of thread time paused, and "
            f"moving results to disk and back for {SECOND.text(seen.spilled)}{_by_others(seen)}. Give them more "
            "memory, or make chunks or outputs smaller"
        ),
    )


def _by_others(seen: Seen) -> str:
    """Dask does not tell for whom a worker spills."""
    return " (with what others did on these workers)" if seen.ledger.get(phases.OTHER_TASKS, 0.0) > 0 else ""


def _others(seen: Seen) -> Judged:
    # where no Runner was called, these tasks are what was to be measured
    taken = _taken(seen, phases.OTHER_TASKS) if seen.run.calls else {}
    return _of_threads(
        seen,
        taken,
        lambda: (
            "went to tasks that belong to no Runner call here. "
            "Where they are another user's or another run's, take workers of your own"
        ),
    )


def _client(seen: Seen) -> Judged:
    taken = _taken(seen, phases.CLIENT)
    return _of_threads(
        seen,
        taken,
        lambda: f"nothing was to be done: {_client_parts(seen)}. {_client_remedy(seen)}",
    )


def _client_remedy(seen: Seen) -> str:
    if seen.local:
        return "Meanwhile this process prepares, sends chunks to its workers, and merges: make the output smaller"
    return "Do before and after the run what needs no cluster, make the output smaller, and start workers late"


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
    taken = _taken(seen, phases.FAILED)

    def text() -> str:
        reasons = ", ".join(f"{SECOND.text(seconds)} {reason}" for reason, seconds in seen.ledger.failed.items())
        return (
            f"went into attempts that gave nothing ({reasons})"
            f"{_commonest_error(seen)}. `measurement.failed` has them all"
        )

    return _of_threads(seen, taken, text)


CAUSES: Final[Mapping[str, Callable[[Seen], Judged]]] = {
    STORAGE: _storage,
    DECOMPRESSION: _of_row(
        phases.DECOMPRESS,
        "decompresses. Store the files with zstd or lz4 instead of lzma or zlib, or read fewer branches",
    ),
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
    INTERPRETATION: _of_row(
        phases.INTERPRET,
        "makes arrays of what was read. Read fewer branches, above all of those that are no plain numbers: "
        "`measurement.branches` has their times",
    ),
    CHECKPOINTS: _of_row(
        phases.CHECKPOINT,
        "loads and saves checkpoints. Make the output smaller, chunks larger, or keep checkpoints in a faster place",
    ),
    OTHER_TASKS: _others,
}

OF_IDLE_TIME: Final = (CLIENT, TAIL, SCHEDULER, MERGE, PREPROCESSING)
"""Causes that a missing row of a task would look like."""


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


def _first_openings(counted: pa.Table | None) -> float:
    """Seconds that the first chunk of each thread took to open its file and build events, beyond the median chunk."""
    if counted is None:
        return 0.0
    rows = counted.select(["worker", "thread", "start", "open_seconds", "build_seconds"]).drop_null()
    opened = pc.add(rows["open_seconds"], rows["build_seconds"])
    rows = rows.append_column("opened", opened).sort_by("start")
    first = rows.group_by(["worker", "thread"], use_threads=False).aggregate([("opened", "first")])["opened_first"]
    if len(first) == len(rows):
        return 0.0
    beyond = pc.subtract(first, pc.quantile(opened, 0.5)[0])
    return float(pc.sum(pc.max_element_wise(beyond, 0.0)).as_py())


def _larger_chunks(seen: Seen, fixed: float) -> str:
    """The chunk size at which a fixed cost of each chunk would be a small share."""
    counted, generic = seen.counted, "Make chunks larger"
    events, chunks = _sum(counted, "events"), _length(counted)
    if not events or counted is None:
        return "Make tasks longer: fewer of them, each with more to do"
    if _out_of_memory(seen):
        return "Larger chunks would help, but workers are out of memory: give them more first"
    set_size = _set_chunksize(seen)
    if set_size is not None and set_size > 2 * events / chunks:
        return f"Merge files: they have about {_rounded(events / chunks)} events, and chunksize={set_size} is larger"
    work = (_sum(counted, "wall_seconds") or 0.0) - seen.ledger.get(phases.OPEN, 0.0)
    factor = fixed * (1 - TARGET) / (TARGET * work) if work > 0 else float("inf")
    size, purpose = min(
        (factor * events / chunks, f"makes that {FRACTION.text(TARGET)} of a chunk's work"),
        (events / (ROUNDS_OF_CHUNKS * _threads(seen)), f"leaves {ROUNDS_OF_CHUNKS} chunks for each thread"),
        (pc.max(counted["entry_stop"]).as_py() or events, "has the largest file's events"),
    )
    if size < LARGER * events / chunks:
        return f"{generic}, if there are enough of them for all threads"
    return f"{generic}: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)} {purpose}"


def _set_chunksize(seen: Seen) -> int | None:
    """The smallest chunk size that a Runner was given."""
    sizes = [call.options.get("chunksize") for call in seen.run.calls]
    return min((size for size in sizes if isinstance(size, int)), default=None)


def _out_of_memory(seen: Seen) -> bool:
    lost = seen.ledger.get(phases.PAUSED, 0.0) + seen.spilled
    return seen.wall(lost) >= seen.least(MEMORY)


def _smaller_chunks(seen: Seen) -> str:
    """The chunk size at which the last round is short."""
    counted = seen.counted
    events, wall, chunks = _sum(counted, "events"), _sum(counted, "wall_seconds"), _length(counted)
    if not events or not wall:
        return "Cut the longest tasks"
    size = events / chunks * TARGET * 2 * seen.elapsed / (wall / chunks)
    size = min(size, events / (ROUNDS_OF_CHUNKS * _threads(seen)))
    if _length(seen.stragglers) or size >= events / chunks:
        return "Look at the slowest chunks: `measurement.stragglers`"
    return f"Make chunks smaller: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)}"


def _threads(seen: Seen) -> float:
    return max(seen.total / seen.elapsed, 1.0) if seen.elapsed else 1.0


def _rounded(size: float) -> int:
    """Number of events with two digits that count."""
    return max(int(float(f"{size:.2g}")), 1)
