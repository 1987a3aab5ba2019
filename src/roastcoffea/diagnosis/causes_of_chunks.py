"""Causes within chunks: storage, CPU work, waiting in process(), start-up."""

from __future__ import annotations

from typing import Final

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.diagnosis.savings import Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.units import BYTE, FRACTION, SECOND, counted, number

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
    what = f"Reading dominates: {share_of(seen, 'storage')} of thread time waits for {where}{speed}."
    if not found:
        what = f"Reading is slow: {share_of(seen, 'storage')} of thread time waits for local files{speed}."
    advice = (
        "Cache the dataset nearby, or run 2 threads per core so that others compute meanwhile."
        if found
        else "Move the files to a faster disk, or run 2 threads per core so that others compute meanwhile."
    )
    return Draft(what, advice, tuple(found), remedy="nthreads=2" if found else None)


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
    if not rows:
        return None
    found, total = culprits.endpoints(seen, rows), sum(rows.values())
    each = f", {SECOND.text(total / seen.chunks)} for each of {number(seen.chunks)} chunks" if seen.chunks else ""
    at = f" at {names_of(found)}" if found else ""
    what = f"Opening files and building events takes {share_of(seen, 'metadata')} of thread time{each}{at}."
    size = seen.chunk_size
    larger = size.size is not None and size.size > size.now
    advice = f"Use {size.line}, so that fewer chunks open files." if larger else "Use a schema with fewer collections."
    return Draft(what, advice, tuple(found), remedy=size.line if larger else None)


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
    advice = "Import coffea in a preload of the workers, or keep workers between runs; longer runs pay it once as well."
    return Draft(what, advice, workers, remedy='dask worker ... --preload "coffea.processor"')


@cause("contention")
def contention(seen: Evidence) -> Draft | None:
    """Runnable threads without a core."""
    if not seen.rows_of("contention"):
        return None
    crowded, hosts = culprits.crowded_hosts(seen), culprits.contended(seen)
    where = names_of(hosts) or "the host"
    what = f"CPU contention: {share_of(seen, 'contention')} of thread time could run and had no free core on {where}."
    if crowded:
        host, threads, cores = crowded[0]
        what = f"{what[:-1]}, which has {number(threads)} threads for tasks on {number(cores)} cores."
        advice = f"Use {number(cores)} threads on {host}, or more cores."
        return Draft(what, advice, tuple(hosts), remedy=f"nthreads={cores}")
    return Draft(what, "Stop what else runs on these cores, or ask for cores of your own.", tuple(hosts))


@cause("interpreter lock")
def interpreter_lock(seen: Evidence) -> Draft | None:
    """Threads of a process that wait for the interpreter."""
    if not seen.rows_of("interpreter lock"):
        return None
    threads = _threads_of_workers(seen)
    of = f" ({number(threads)} threads share one interpreter)" if threads else ""
    functions = culprits.functions(seen, "core", own=True)
    share = share_of(seen, "interpreter lock")
    by = f"; {functions[0].name} holds it most" if functions else ""
    what = f"The interpreter lock blocks {share} of thread time{of}{by}."
    advice = "Run processes with one thread each instead of threads, or replace plain Python loops by array operations."
    return Draft(what, advice, tuple(functions), remedy="nthreads=1" if threads else None)


def _threads_of_workers(seen: Evidence) -> int | None:
    lifetimes = seen.run.lifetimes
    most = None if lifetimes is None or not len(lifetimes) else max(lifetimes["threads"].to_pylist())
    return most if most and most > 1 else None


@cause("blocked")
def blocked(seen: Evidence) -> Draft | None:
    """Sleep, locks, network services."""
    if not seen.rows_of("blocked"):
        return None
    sections, functions = culprits.blocked_sections(seen), culprits.functions(seen, "blocked")
    found = (*sections[:1], *functions[:1], *sections[1:])
    where = f" in section {sections[0].name}" if sections else f" in {functions[0].name}" if functions else ""
    share = share_of(seen, "blocked")
    what = f"process() is blocked for {share} of thread time{where}: sleep, a lock or a network service."
    line = f"{functions[0].name}" if functions else None
    advice = f"Look at {line}." if line else "Name parts of process() with roastcoffea.track_time to see where."
    advice = advice if line or not sections else f"Look at what section {sections[0].name} calls."
    return Draft(what, advice, found)


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
    culprit = found[0]._replace(seconds=seconds)
    what = f"{culprit.name} takes {FRACTION.text(share)} of the CPU time in process(), in plain Python."
    advice = "Write it with array operations (awkward, numpy), or compile it with numba."
    taken = Taken("compute", seconds=_of_each(seen, share))
    return Draft(what, advice, (culprit,), rows={culprit.name: seconds}, taken=taken)


def _of_each(seen: Evidence, share: float) -> Numbers | None:
    """This share of each chunk's computing."""
    if seen.counted is None:
        return None
    (column,) = phases.COLUMNS_OF[phases.COMPUTE]
    return share * amounts(seen.counted, column)


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
    return Draft(what, "Read fewer branches, above all jagged ones.", found)


@cause("checkpoint")
def checkpoint(seen: Evidence) -> Draft | None:
    """Loading and saving checkpoints."""
    if not seen.rows_of("checkpoint"):
        return None
    what = f"Checkpoints take {share_of(seen, 'checkpoint')} of thread time."
    return Draft(what, "Keep them on a faster disk, make the output smaller, or chunks larger.")
