"""Causes within chunks: storage, CPU work, waiting in process(), start-up."""

from __future__ import annotations

from typing import Final

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.diagnosis.removals import Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, number

OF_LOCK: Final = 0.5
"""Least ratio of lock time to a function's CPU time for which the lock, not the function, is the cause."""

DOMINATES: Final = 0.5
"""Least share of thread time at which reading dominates."""

NAMED_FOR: Final = 0.1
"""Least share of the blocked time of a section that is named."""

PYTHON: Final = 0.5
"""Share of CPU time in process() that a function's own lines must have: columnar code spends it below its lines."""


OURS: Final = ("roastcoffea", "_")
"""Beginnings of names of modules that a physicist need not know of."""


def share_of(seen: Evidence, word: str) -> str:
    """Share of thread time of the classes with this word."""
    return seen.share(sum(seen.rows_of(word).values()))


def names_of(found: list[Culprit]) -> str:
    """Names of culprits, for a sentence."""
    return ", ".join(one.name for one in found)


@cause("storage")
def storage(seen: Evidence) -> Draft | None:
    """Waiting for storage."""
    rows = seen.rows_of("storage")
    if not rows:
        return None
    found, rate = culprits.endpoints(seen, rows), culprits.rate_of_stream(seen)
    where = names_of(found) or "local files"
    speed = f" ({BYTE.text(rate)}/s a stream)" if rate else ""
    verb = "dominates" if sum(rows.values()) >= DOMINATES * seen.total else "is slow"
    what = f"Reading {verb}: {share_of(seen, 'storage')} of thread time waits for {where}{speed}."
    move = "Cache the dataset nearby" if found else "Move the files to a faster disk"
    if seen.threads_are_scarce or culprits.threads_per_core(seen) >= MOST_THREADS:
        return Draft(what, f"{move}.", tuple(found))
    threads = "or run 2 threads per core so that others compute meanwhile"
    return Draft(what, f"{move}, {threads}.", tuple(found), remedy="nthreads=2" if found and not seen.local else None)


MOST_THREADS: Final = 2.0
"""Threads for each core from which on more of them hide no waiting."""


@cause("decompression")
def decompression(seen: Evidence) -> Draft | None:
    """CPU time of decompression."""
    if not seen.rows_of("decompression"):
        return None
    files = culprits.by_part(seen.counted, "dataset", phases.COLUMNS_OF[phases.DECOMPRESS])
    found = tuple(Culprit("dataset", str(name), seconds) for name, seconds in list(files.items())[: culprits.NAMED])
    most = f", most of it in dataset {found[0].name}" if len(files) > 1 else ""
    what = f"Decompression takes {share_of(seen, 'decompression')} of thread time{most}."
    return Draft(what, "Write the files with zstd or lz4 instead of LZMA or zlib, or read fewer branches.", found)


@cause("metadata")
def metadata(seen: Evidence) -> Draft | None:
    """Opening files and building events, beyond the first time of each thread."""
    rows = seen.rows_of("metadata")
    found, delay = culprits.endpoints(seen, rows), culprits.delay_outside_process(seen)
    total = sum(rows.values()) - delay
    if total <= 0:
        return None
    rows = {phases.OPEN: total}
    each = f", {SECOND.text(total / seen.chunks)} for each of {number(seen.chunks)} chunks" if seen.chunks else ""
    at = f" at {names_of(found)}" if found else ""
    what = f"Opening files and building events takes {seen.share(total)} of thread time{each}{at}."
    larger = seen.larger
    if larger:
        advice = f"Use {larger}, so that fewer chunks open files."
        size = seen.chunk_size
        taken = Taken("chunk size", removal=size.removal)
        return Draft(what, advice, tuple(found), larger, rows, taken, size.saving.up_to(seen.wall(total)))
    advice = "Use a schema with fewer collections."
    if seen.local and culprits.chunks_of_a_file(seen) > 1:
        advice = "Use larger chunks, so that fewer of them open files."
    return Draft(what, advice, tuple(found), rows=rows, taken=Taken("metadata", all_of_it=True))


@cause("start-up", names_culprit=True)
def start_up(seen: Evidence) -> Draft | None:
    """Imports, first tasks, and first chunks of threads."""
    rows = seen.rows_of("start-up")
    if not rows:
        return None
    found = sorted(seen.started, key=lambda one: -one.seconds)
    workers = tuple(Culprit("worker", one.worker, one.seconds) for one in found[: culprits.NAMED])
    modules = list(dict.fromkeys(name for one in found for name in one.modules if not name.startswith(OURS)))
    imports = f"; they imported {', '.join(modules[:4])}" if modules else ""
    what = (
        f"Start-up takes {share_of(seen, 'start-up')} of thread time on {counted(len(found), 'new worker')}{imports}."
    )
    advice = "Import coffea in a preload of the workers."
    if seen.local:
        return Draft(what, "Keep the processes: make the executor once, and use it for several runs.", workers)
    return Draft(what, advice, workers, remedy='dask worker ... --preload "coffea.processor"')


@cause("contention")
def contention(seen: Evidence) -> Draft | None:
    """Runnable threads without a core."""
    rows = seen.rows_of("contention")
    if delay_of_wait := culprits.core_wait_in_wait(seen):
        rows["contention in wait"] = delay_of_wait
    if delay := culprits.delay_outside_process(seen):
        rows["contention while opening"] = delay
    waited = sum(rows.values())
    if not waited:
        return None
    hosts = culprits.contended(seen)
    where = names_of(hosts) or "the host"
    what = f"CPU contention: {seen.share(waited)} of thread time could run and had no free core on {where}."
    crowded = {one.host: one for one in culprits.crowded_hosts(seen)}
    one = crowded.get(hosts[0].name) if hosts else None
    if one is not None and one.explains(waited, seen.sum_of("cpu_seconds") or 0.0):
        what = f"{what[:-1]}, which has {number(one.threads)} threads for tasks on {counted(one.cores, 'core')}."
        if seen.local:
            advice = f"Use {counted(one.cores, 'worker')}: FuturesExecutor(workers={one.cores})."
            return Draft(what, advice, tuple(hosts), f"workers={one.cores}", rows, Taken("contention", all_of_it=True))
        advice = f"Get a core for each of the {number(one.threads)} threads, or use {one.remedy}."
        # fewer threads save less than more cores
        return Draft(what, advice, tuple(hosts), one.remedy, rows, Taken("contention", all_of_it=True))
    enough = SUPPORTS * waited
    for column, who, advice in WITHHELD:
        seconds = culprits.withheld(seen, column)
        if seconds >= enough:
            return Draft(f"{what[:-1]}; {who} {SECOND.text(seconds)}.", advice, tuple(hosts), rows=rows)
    return Draft(what, "Stop what else runs on these cores, or ask for cores of your own.", tuple(hosts), rows=rows)


SUPPORTS: Final = 0.3
"""Least ratio of throttling or steal to contention at which it is named as the reason."""

WITHHELD: Final = (
    (
        "throttled_seconds",
        "its container was throttled for",
        "Raise the CPU limit of the container, or use fewer threads.",
    ),
    ("steal_seconds", "the hypervisor took", "Move to a host that is less crowded, or ask for dedicated cores."),
)
"""Columns of lifetimes that explain contention, with what happened and what to do."""


@cause("interpreter lock")
def interpreter_lock(seen: Evidence) -> Draft | None:
    """Threads of a process that wait for the interpreter."""
    if not seen.rows_of("interpreter lock"):
        return None
    threads = _threads_of_workers(seen)
    of = f" (estimated; {number(threads)} threads share one interpreter)" if threads else " (estimated)"
    functions = culprits.functions(seen, "core", own=True)
    share = share_of(seen, "interpreter lock")
    by = f"; {functions[0].name} holds it most" if functions else ""
    what = f"The interpreter lock blocks {share} of thread time{of}{by}."
    advice = "Run processes with one thread each instead of threads, or replace plain Python loops by array operations."
    return Draft(what, advice, tuple(functions), remedy="nthreads=1" if threads and not seen.local else None)


def _threads_of_workers(seen: Evidence) -> int | None:
    lifetimes = seen.run.lifetimes
    most = None if lifetimes is None or not len(lifetimes) else max(lifetimes["threads"].to_pylist())
    return most if most and most > 1 else None


CERTAIN: Final = 0.5
"""Least share of what somebody waited for that cannot have been reading, for its name to stand for blocked time."""


def _waiting_functions(seen: Evidence, blocked: float) -> list[Culprit]:
    """Functions by their share of the samples that wait, in seconds of the ledger: also for storage."""
    found = culprits.functions(seen, "blocked")
    every = 0.0 if seen.hot is None else sum(seconds or 0.0 for seconds in seen.hot["blocked_seconds"].to_pylist())
    scale = (blocked + sum(seen.rows_of("storage").values())) / every if every else 0.0
    return [one._replace(seconds=scale * (one.seconds or 0.0)) for one in found]


def _is_not_reading(seen: Evidence, waited: float, blocked: float) -> bool:
    """Whether it was blocked even if all reading was its own: neither sections nor samples tell what they wait for."""
    read = sum(seen.rows_of("storage").values())
    return waited - read >= CERTAIN * min(waited, blocked)


@cause("blocked")
def blocked(seen: Evidence) -> Draft | None:
    """Sleep, locks, network services."""
    rows = seen.rows_of("blocked")
    if phases.WAIT in rows:
        rows[phases.WAIT] -= culprits.core_wait_in_wait(seen)
    seconds = sum(rows.values())
    if seconds <= 0:
        return None
    sections, functions = (
        [
            one._replace(seconds=min(waited, seconds))
            for one in found
            if (waited := one.seconds or 0.0) >= NAMED_FOR * seconds and _is_not_reading(seen, waited, seconds)
        ]
        for found in (culprits.blocked_sections(seen), _waiting_functions(seen, seconds))
    )
    found = (*sections[:1], *functions[:1], *sections[1:])
    where = f" in section {sections[0].name}" if sections else f" in {functions[0].name}" if functions else ""
    share = seen.share(seconds)
    what = f"Chunks are blocked in process() for {share} of thread time{where}: sleep, a lock or a network service."
    line = f"{functions[0].name}" if functions else None
    advice = f"Look at {line}." if line else "Name parts of process() with roastcoffea.track_time to see where."
    advice = advice if line or not sections else f"Look at what section {sections[0].name} calls."
    return Draft(what, advice, found, rows=rows)


@cause("compute")
def compute(seen: Evidence) -> Draft | None:
    """A function of the user's that computes in plain Python."""
    cpu = sum(seen.rows_of("compute").values())
    found = culprits.functions(seen, "core", own=True)
    if not found or not cpu:
        return None
    whole = sum(seconds or 0.0 for seconds in seen.hot["core_seconds"].to_pylist()) if seen.hot is not None else 0.0
    share = (found[0].seconds or 0.0) / whole if whole else 0.0
    if share < PYTHON:
        return None
    # a profile has a hundredth of the time; the ledger has all of it
    seconds = share * cpu
    # threads that wait for each other's Python: the lock's finding names the function
    if sum(seen.rows_of("interpreter lock").values()) >= OF_LOCK * seconds:
        return None
    culprit = found[0]._replace(seconds=seconds)
    what = f"{culprit.name} takes {FRACTION.text(share)} of the CPU time in process(), in its own lines."
    advice = "Where these lines loop in Python, use array operations (awkward, numpy), or compile them with numba."
    seconds_of_each = _in_chunks(seen, phases.COMPUTE)
    taken = Taken("compute", seconds=None if seconds_of_each is None else share * seconds_of_each)
    return Draft(what, advice, (culprit,), rows={culprit.name: seconds}, taken=taken)


def _in_chunks(seen: Evidence, time_class: str) -> Numbers | None:
    """Seconds of each chunk in a class that has one column."""
    if seen.counted is None:
        return None
    (column,) = phases.COLUMNS_OF[time_class]
    return amounts(seen.counted, column)


@cause("interpretation")
def interpretation(seen: Evidence) -> Draft | None:
    """Making arrays of baskets."""
    if not seen.rows_of("interpretation"):
        return None
    reads = seen.run.branch_reads
    branches = culprits.by_part(reads, "branch", ["interpret_seconds"])
    found = tuple(Culprit("branch", str(name), seconds) for name, seconds in list(branches.items())[: culprits.NAMED])
    most = f", most of it for {names_of(list(found))}" if found else ""
    what = f"Making arrays of baskets takes {share_of(seen, 'interpretation')} of thread time{most}."
    taken = Taken("interpretation", seconds=_in_chunks(seen, phases.INTERPRET))
    return Draft(what, "Read fewer branches, above all jagged ones.", found, taken=taken)


@cause("checkpoint")
def checkpoint(seen: Evidence) -> Draft | None:
    """Loading and saving checkpoints."""
    if not seen.rows_of("checkpoint"):
        return None
    what = f"Checkpoints take {share_of(seen, 'checkpoint')} of thread time."
    return Draft(what, "Keep them on a faster disk, or make the output smaller.")
