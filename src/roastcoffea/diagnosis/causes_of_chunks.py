"""Causes within chunks: storage, CPU work, waiting in process(), start-up."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.completeness import named
from roastcoffea.diagnosis.culprits import answering, slower_than_others
from roastcoffea.diagnosis.evidence import (
    CERTAIN,
    DOMINATES,
    MOST_THREADS,
    NAMED_FOR,
    OF_LOCK,
    PYTHON,
    READ_AGAIN,
    SHORTEST,
    SUPPORTS,
    Evidence,
    pieces,
)
from roastcoffea.diagnosis.finding import Culprit, Rows
from roastcoffea.diagnosis.savings import Saving, Taken
from roastcoffea.generations import READS_ON
from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger
from roastcoffea.metrics.profile import COLUMNAR
from roastcoffea.metrics.requests import Repeated
from roastcoffea.metrics.stacks import Place
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.records.run import OF_TASKS
from roastcoffea.units import BYTE, BYTE_PER_SECOND, FRACTION, SECOND, counted, number

WITH_COFFEA: Final = frozenset(
    {"awkward", "coffea", "fsspec", "hist", "numba", "numpy", "pyarrow", "scipy", "uproot", "vector"}
)
"""Packages that `import coffea.processor` imports."""

BEFORE_TASKS: Final = 0.2
"""Share of start-up that workers spend before their first task begins, from which importing coffea is advised."""

OURS: Final = ("roastcoffea", "_")
"""Prefixes of modules that a physicist need not know about."""


def share_of(evidence: Evidence, word: str) -> str:
    """Share of thread time of the classes with this word."""
    return evidence.share(sum(evidence.rows_of(word).values()))


def names_of(found: list[Culprit]) -> str:
    """Names of culprits, for a sentence."""
    return ", ".join(one.name for one in found)


@cause("storage")
def storage(evidence: Evidence) -> Draft | None:
    """Waiting for storage."""
    rows = evidence.rows_of("storage")
    if not rows:
        return None
    found, rate = culprits.endpoints(evidence, rows), culprits.rate_of_stream(evidence)
    if found and _is_due_to_a_slow_server(evidence, found):
        return None
    where, why = names_of(found) or "local files", answering(evidence, found[0].name) if found else None
    # what limits round trips is no rate
    speed = f" ({BYTE_PER_SECOND.text(rate)} per stream)" if rate and not (why and why.far) else ""
    verb = "dominates" if sum(rows.values()) >= DOMINATES * evidence.total else "is slow"
    what = f"Reading {verb}: {share_of(evidence, 'storage')} of thread time waits for {where}{speed}."
    if why is not None:
        subject = "It" if len(found) == 1 else found[0].name
        return Draft(f"{what} {subject} {why.what}", why.advice, tuple(found), why.remedy, names_culprit=why.far)
    of_others = evidence.sum_of("other_read_seconds") or 0.0
    others = "the files that process() opens" if of_others >= DOMINATES * sum(rows.values()) else None
    move = f"Cache {others or 'the dataset'} nearby" if found else f"Move {others or 'the files'} to a faster disk"
    threads = evidence.total / evidence.elapsed
    if (
        evidence.threads_are_scarce
        or culprits.threads_per_core(evidence) >= MOST_THREADS
        # more threads need more chunks, and an executor that has any
        or evidence.chunks <= threads
        or any(call.executor == "IterativeExecutor" for call in evidence.run.calls)
    ):
        return Draft(what, f"{move}.", tuple(found))
    also = "or run 2 threads per core, so that one computes while the other waits"
    each = 2 * (_threads_of_workers(evidence) or 1)
    remedy = culprits.started_with(evidence, each) if found and not evidence.local else None
    return Draft(what, f"{move}, {also}.", tuple(found), remedy=remedy)


def _is_due_to_a_slow_server(evidence: Evidence, found: list[Culprit]) -> bool:
    """Whether most of the waiting is for a server that is slower than others, which is a finding of its own."""
    most = found[0].seconds or 0.0
    return most >= DOMINATES * sum(one.seconds or 0.0 for one in found) and found[0].name in slower_than_others(
        evidence
    )


@cause("re-read")
def read_again(evidence: Evidence) -> Iterator[Draft]:
    """Bytes that were read before."""
    ledger = evidence.bytes
    if ledger is None or ledger.repeated is None or not ledger.total:
        return
    if (ledger.get(phases.REREAD) or 0) >= READ_AGAIN * ledger.total:
        yield _chunks_again(evidence, ledger, ledger.repeated, ledger.total)
    if sum(ledger.repeated.others.values()) >= READ_AGAIN * ledger.total:
        yield _others_again(evidence, ledger, ledger.repeated.others, ledger.total)
    if sum(ledger.repeated.objects.values()) >= READ_AGAIN * ledger.total:
        yield _objects_again(evidence, ledger, ledger.repeated.objects, ledger.total)


def _others_again(evidence: Evidence, ledger: ByteLedger, others: Mapping[str, int], of: int) -> Draft:
    """Files that process() opens itself, whose baskets several chunks read."""
    baskets = sum(ledger.get(name) or 0 for name in (phases.PAYLOAD, phases.REREAD, phases.OTHER_FILES))
    rows = _of_baskets(evidence, sum(others.values()) / baskets)
    advice = f"{KEEP}, or read only their own entries: {ENTRIES}."
    return _read_by_chunks(evidence, others, of, rows)._replace(advice=advice, remedy=ENTRIES)


def _objects_again(evidence: Evidence, ledger: ByteLedger, others: Mapping[str, int], of: int) -> Draft:
    """Histograms and other objects of files that process() opens itself, which several chunks read."""
    opened = sum(ledger.get(name) or 0 for name in (phases.METADATA, phases.OTHER_FILES))
    rows = {"re-read": sum(others.values()) / opened * sum(evidence.rows_of("metadata").values())}
    return _read_by_chunks(evidence, others, of, rows)


def _read_by_chunks(evidence: Evidence, others: Mapping[str, int], of: int, rows: Rows) -> Draft:
    again, seconds = sum(others.values()), sum(rows.values())
    names = sorted(others, key=lambda name: -others[name])
    found = tuple(Culprit("file", name, seconds * others[name] / again) for name in names)
    how_much = f"At least {BYTE.text(again)} of {BYTE.text(of)} ({FRACTION.text(again / of)})"
    what = f"{how_much} were read before: chunks read the same of {named(names)}, which process() opens."
    taken = Taken("re-read", seconds=seconds)
    return Draft(what, f"{KEEP}.", found, None, rows, taken, _most(evidence, rows), always=True)


KEEP: Final = "Keep what they need from chunk to chunk (functools.cache)"
ENTRIES: Final = 'entry_start=events.metadata["entrystart"], entry_stop=events.metadata["entrystop"]'


def _of_baskets(evidence: Evidence, share: float) -> Rows:
    """Seconds of reading and decompressing this share of the baskets."""
    return {"re-read": share * sum(sum(evidence.rows_of(word).values()) for word in ("storage", "decompression"))}


def _most(evidence: Evidence, rows: Rows) -> Saving:
    most = evidence.wall(sum(rows.values()))
    return Saving(most, 0.0, most, at_most=True) if most >= SHORTEST else Saving(None, 0.0, 0.0)


def _chunks_again(evidence: Evidence, ledger: ByteLedger, repeated: Repeated, of: int) -> Draft:
    """Baskets of their own files that chunks read again."""
    again, larger = ledger.get(phases.REREAD) or 0, evidence.larger
    why = repeated.readers(max(repeated.baskets, key=lambda one: repeated.baskets[one]))
    how_much = f"{BYTE.text(again)} of {BYTE.text(of)} ({FRACTION.text(again / of)})"
    what = f"{how_much} were read before{BEFORE[why].format(pieces(repeated))}."
    advice, line = AGAIN[why], None
    if why == SAME_LOOP:
        advice, line = f"Use larger chunks, at best one per file, or files with smaller {pieces(repeated)}.", larger
        if larger:
            advice = f"Use {larger}, so that fewer of them are cut."
        elif not repeated.parquet and not repeated.aligned:
            line = "align_clusters=True"
            advice = f"End chunks where clusters of baskets end: {line} in the Runner."
        if repeated.reads_on and not repeated.parquet:
            advice += f" {READS_ON[0].upper()}{READS_ON[1:]}."
    rows = _of_baskets(evidence, evidence.reread)
    taken = Taken("re-read", seconds=sum(rows.values()))
    return Draft(what, advice, (), line, rows, taken, _most(evidence, rows), always=True)


BEFORE: Final = {
    SAME_LOOP: ", as {} span chunk boundaries",
    SAME_DATASET: " by another Runner call",
    OTHER_DATASET: ", as files are listed in two datasets",
    SAME_ATTEMPT: " by the same chunk",
    OF_TASKS: " by another function",
}
AGAIN: Final = {
    SAME_LOOP: "",
    SAME_DATASET: "Process shared files in a single Runner call.",
    OTHER_DATASET: "List each file in one dataset only.",
    SAME_ATTEMPT: "Keep arrays that are used more than once.",
    OF_TASKS: "Read each file in one function only.",
}
"""What is said of bytes that were read before, and what to do, by what the readers have in common."""


@cause("decompression")
def decompression(evidence: Evidence) -> Draft | None:
    """CPU time of decompression."""
    if not evidence.rows_of("decompression"):
        return None
    files = culprits.by_part(evidence.counted, "dataset", phases.COLUMNS_OF[phases.DECOMPRESS])
    found = tuple(Culprit("dataset", str(name), seconds) for name, seconds in list(files.items())[: culprits.NAMED])
    most = f", most of it in dataset {found[0].name}" if len(files) > 1 else ""
    what = f"Decompression takes {share_of(evidence, 'decompression')} of thread time{most}."
    return Draft(what, "Write the files with zstd or lz4 instead of LZMA or zlib, or read fewer branches.", found)


@cause("metadata")
def metadata(evidence: Evidence) -> Draft | None:
    """Opening files and building events, apart from start-up."""
    rows = evidence.rows_of("metadata")
    # the servers of files that process() opens itself are not told apart here
    found = [] if evidence.sum_of("bytes_other") else culprits.endpoints(evidence, rows)
    total = sum(rows.values()) - culprits.delay_outside_process(evidence)
    if total <= 0:
        return None
    rows = {phases.OPEN: total}
    each = (
        f", {SECOND.text(total / evidence.chunks)} for each of {number(evidence.chunks)} chunks"
        if evidence.chunks
        else ""
    )
    at = f" at {names_of(found)}" if found else ""
    what = f"Opening files and building events takes {evidence.share(total)} of thread time{each}{at}."
    larger = evidence.larger
    if larger:
        advice = f"Use {larger}, so that fewer chunks open files."
        size = evidence.chunk_size
        taken = Taken("chunk size", removal=size.removal)
        return Draft(what, advice, tuple(found), larger, rows, taken, size.saving.up_to(evidence.wall(total)))
    advice = "Use a schema with fewer collections."
    if all(call.options.get("schema") == "BaseSchema" for call in evidence.run.calls):
        advice = "Keep the files nearer, or merge small ones: each is opened once."
        if culprits.chunks_of_a_file(evidence) > 1:
            advice = "Keep the files nearer: each chunk opens its file."
    if evidence.local and culprits.chunks_of_a_file(evidence) > 1:
        advice = "Use larger chunks, so that fewer of them open files."
    return Draft(what, advice, tuple(found), rows=rows, taken=Taken("metadata", all_of_it=True))


@cause("start-up", names_culprit=True)
def start_up(evidence: Evidence) -> Draft | None:
    """Imports, first tasks, and first chunks on threads."""
    rows = evidence.rows_of("start-up")
    if not rows:
        return None
    found = sorted(evidence.started, key=lambda one: -one.seconds)
    workers = tuple(Culprit("worker", one.worker, one.seconds) for one in found[: culprits.NAMED])
    # a worker imports coffea while it unpickles its first task, and what process() imports in its first chunk
    before = sum(one.idle_seconds for one in found) >= BEFORE_TASKS * sum(one.seconds for one in found)
    once = None if before else _once(evidence)
    loaded = dict.fromkeys(name for one in found for name in one.modules if not name.startswith(OURS))
    modules = [name for name in loaded if name not in sys.stdlib_module_names][:4]  # Python's own load fast
    imports = f"; they imported {', '.join(modules)}" if modules else ""
    if once is not None:
        imports = f": {once} takes most of the time of a first chunk"
    how_many = counted(len(found), "new worker")
    what = f"Start-up takes {share_of(evidence, 'start-up')} of thread time on {how_many}{imports}."
    preloaded = modules
    if before or not modules or "coffea" in modules:
        preloaded = ["coffea.processor", *(name for name in modules if name not in WITH_COFFEA)]
    advice = f"Import {', '.join(preloaded)} in a preload of the workers."
    if evidence.local:
        line = _pool_that_stays(evidence)
        advice = "Only the first chunks of a process take it: let the same one process more of them."
        if line:
            advice = f"Keep the processes from step to step, and from run to run: {line}."
        return Draft(what, advice, workers, line)
    if once is not None:
        advice = f"Keep the workers from run to run, or store what {once} makes in a file that loads faster."
        return Draft(what, advice, (*workers, Culprit("function", str(once))))
    return Draft(what, advice, workers, remedy=f"dask worker ... {' '.join(f'--preload {one}' for one in preloaded)}")


def _once(evidence: Evidence) -> Place | None:
    """Line that takes the time of a worker's first chunk; None where imports do, or where the profile lacks it.

    The profile has the stacks of the longest attempt apart, which is a first one where these take long.
    """
    chunks, profile = evidence.counted, evidence.profile
    if chunks is None or profile is None:
        return None
    seconds = {one.worker: one.seconds for one in evidence.started}
    usual = float(np.median(amounts(chunks, "process_seconds")))
    first: dict[str, tuple[int, float]] = {}
    ordered = chunks.select(["id", "worker", "process_seconds"]).take(pc.sort_indices(chunks["start"]))
    for identity, worker, took in zip(*(column.to_pylist() for column in ordered.columns), strict=True):
        first.setdefault(worker, (identity, (took or 0.0) - usual))
    in_process = {one for worker, (one, excess) in first.items() if 2 * excess > seconds.get(worker, math.inf)}
    stacks = [stack for stack in profile.stacks if stack.chunk in in_process]
    imports = [stack.seconds for stack in stacks if any(place.file.startswith(IMPORTS) for place in stack.places)]
    if not stacks or sum(imports) > OF_IMPORTS * sum(stack.seconds for stack in stacks):
        return None
    (call, (share, _)) = next(iter(profile.calls(stacks[0].chunk).items()), (None, (0.0, 0)))
    # a line that takes as much of any chunk is not what the first one does once
    if call is None or share < max(0.5, 1.5 * profile.calls().get(call, (0.0, 0))[0]):
        return None
    return call.place


IMPORTS: Final = "<frozen importlib"
"""Begin of the files of Python's own code that imports."""
OF_IMPORTS: Final = 0.25
"""Share of a first chunk's time in process() from which imports are a reason that it takes long."""


def _pool_that_stays(evidence: Evidence) -> str | None:
    """Line that makes a pool before the Runner call; None unless executors are known to make one for each step."""
    calls = [call for call in evidence.run.calls if call.options.get("executor.pool") == "ProcessPoolExecutor"]
    workers = [size for call in calls if isinstance(size := call.options.get("executor.workers"), int)]
    return f"FuturesExecutor(pool=loky.get_reusable_executor(max_workers={max(workers)}))" if workers else None


@cause("contention")
def contention(evidence: Evidence) -> Draft | None:
    """Runnable threads without a free core."""
    rows = evidence.rows_of("contention")
    if delay_of_wait := culprits.core_wait_in_wait(evidence):
        rows["contention in wait"] = delay_of_wait
    delay = culprits.delay_outside_process(evidence)
    if delay:
        rows["contention while opening"] = delay
    waited = sum(rows.values())
    if not waited:
        return None
    hosts = culprits.contended(evidence)
    where = names_of(hosts) or "the host"
    share = f"{evidence.share(waited)} of thread time{', counting start-up and the opening of files' if delay else ''}"
    what = f"CPU contention: threads that were ready to run had no free core on {where} for {share}."
    crowded = {one.host: one for one in culprits.crowded_hosts(evidence)}
    one = crowded.get(hosts[0].name) if hosts else None
    if one is not None and one.explains(waited, evidence.sum_of("cpu_seconds") or 0.0):
        what = f"{what[:-1]}; the host has {number(one.threads)} threads for tasks on {counted(one.cores, 'core')}."
        if evidence.local:
            line = _fewer_workers(evidence, one.cores)
            advice = f"Use {counted(one.cores, 'worker')}: {line}."
            return Draft(what, advice, tuple(hosts), line, rows, Taken("contention", all_of_it=True))
        line = one.remedy(evidence)
        advice = f"Request a core for each of the {number(one.threads)} threads, or use {line}."
        # using fewer threads saves less than adding cores
        return Draft(what, advice, tuple(hosts), line, rows, Taken("contention", all_of_it=True))
    enough = SUPPORTS * waited
    for column, who, advice in WITHHELD:
        seconds = culprits.withheld(evidence, column)
        if seconds >= enough:
            return Draft(f"{what[:-1]}; {who} {SECOND.text(seconds)}.", advice, tuple(hosts), rows=rows)
    others = culprits.cores_of_others(evidence.run)
    what = f"{what[:-1]}; {others}." if others else what
    advice = "Stop other processes on these cores, or request dedicated cores."
    if not others and any(host.others is not None for host in evidence.run.environment.hosts):
        advice = "Leave a core to the client, the scheduler and their threads: other processes took next to none."
    return Draft(what, advice, tuple(hosts), rows=rows)


def _fewer_workers(evidence: Evidence, cores: int) -> str:
    """Line for this many workers without a cluster; a pool that the executor was given has a number of its own."""
    makes_pool = all("executor.pool" in call.options for call in evidence.run.calls)
    return f"FuturesExecutor(workers={cores})" if makes_pool else f"max_workers={cores}, where the pool is made"


WITHHELD: Final = (
    (
        "throttled_seconds",
        "its container was throttled for",
        "Raise the CPU limit of the container, or use fewer threads.",
    ),
    ("steal_seconds", "the hypervisor took", "Move to a less crowded host, or request dedicated cores."),
)
"""Columns of lifetimes that explain contention, with what happened and what to do."""


@cause("interpreter lock")
def interpreter_lock(evidence: Evidence) -> Draft | None:
    """Threads of a process that wait for Python's interpreter lock."""
    if not evidence.rows_of("interpreter lock"):
        return None
    threads = _threads_of_workers(evidence)
    of = f" (estimated; {number(threads)} threads share one interpreter)" if threads else " (estimated)"
    functions = culprits.functions(evidence, "core", own=True)
    share = share_of(evidence, "interpreter lock")
    by = f"; {functions[0].name} holds it most" if functions else ""
    what = f"For {share} of thread time, threads wait for Python's interpreter lock{of}{by}."
    loops = "eplace plain Python loops with array operations."
    apart = (threads or 1) > 1 or evidence.local
    advice = f"Run processes with one thread each instead of threads, or r{loops}" if apart else f"R{loops}"
    line = culprits.processes(evidence) if threads and not evidence.local else None
    return Draft(what, advice, tuple(functions), remedy=line)


def _threads_of_workers(evidence: Evidence) -> int | None:
    lifetimes = evidence.run.lifetimes
    most = None if lifetimes is None or not len(lifetimes) else max(lifetimes["threads"].to_pylist())
    return most if most and most > 1 else None


def _waiting_functions(evidence: Evidence, blocked: float) -> list[Culprit]:
    """Functions by their share of the samples that wait, in seconds of the ledger: also for storage."""
    found = culprits.functions(evidence, "blocked")
    hot = evidence.hot
    every = 0.0 if hot is None else sum(seconds or 0.0 for seconds in hot["blocked_seconds"].to_pylist())
    scale = (blocked + sum(evidence.rows_of("storage").values())) / every if every else 0.0
    return [one._replace(seconds=scale * (one.seconds or 0.0)) for one in found]


def _is_not_reading(evidence: Evidence, waited: float, blocked: float) -> bool:
    """Whether it was blocked even if all reading was its own: neither sections nor samples tell what they wait for."""
    read = sum(evidence.rows_of("storage").values())
    return waited - read >= CERTAIN * min(waited, blocked)


@cause("blocked")
def blocked(evidence: Evidence) -> Draft | None:
    """Sleep, locks, network services."""
    rows = evidence.rows_of("blocked")
    if phases.WAIT in rows:
        rows[phases.WAIT] -= culprits.core_wait_in_wait(evidence)
    seconds = sum(rows.values())
    if seconds <= 0:
        return None
    sections, functions = (
        [
            one._replace(seconds=min(waited, seconds))
            for one in found
            if (waited := one.seconds or 0.0) >= NAMED_FOR * seconds and _is_not_reading(evidence, waited, seconds)
        ]
        for found in (culprits.blocked_sections(evidence), _waiting_functions(evidence, seconds))
    )
    found = (*sections[:1], *functions[:1], *sections[1:])
    where = f" in section {sections[0].name}" if sections else f" in {functions[0].name}" if functions else ""
    share = evidence.share(seconds)
    what = f"Chunks are blocked in process() for {share} of thread time{where}: sleep, a lock or a network service."
    line = f"{functions[0].name}" if functions else None
    advice = f"Look at {line}." if line else "Wrap parts of process() in roastcoffea.track_time to see where."
    advice = advice if line or not sections else f"Check what section {sections[0].name} calls."
    return Draft(what, advice, found, rows=rows)


@cause("repeated work", names_culprit=True)
def repeated_work(evidence: Evidence) -> Iterator[Draft]:
    """Files, corrections and models that are loaded again and again."""
    cpu = evidence.process_cpu
    for one in culprits.repeated_loads(evidence):
        name, each = str(one.call.place), one.seconds / evidence.chunks
        what = (
            f"{one.call.function}, called in {name}, takes {FRACTION.text(one.share)} of the CPU time in process(): "
            f"{SECOND.text(each)} a chunk, {SECOND.text(one.seconds)} in all. It ran in at least {number(one.chunks)} "
            f"of {counted(evidence.chunks, 'chunk')}, on {counted(one.workers, 'worker')}."
        )
        advice = "If it loads the same each time, load it once per worker, in a function with @functools.cache."
        taken = Taken("repeated work", seconds=None if cpu is None else np.minimum(each, cpu))
        rows = culprits.with_waits(evidence, name, one.seconds)
        yield Draft(what, advice, (Culprit("function", name, one.seconds),), rows=rows, taken=taken)


class _Dominant(NamedTuple):
    """What takes much of the CPU time in process()."""

    place: Place
    share: float
    where: str
    advice: str


def _dominant(evidence: Evidence) -> _Dominant | None:
    """Function, by its own lines, or line with the library function it calls, that takes the most CPU time.

    In process() it is a line: that process() takes its own time is no news. Columnar libraries and decompression are
    where an analysis is meant to spend its time. What is loaded again and again is a finding of its own, and what each
    worker loads once is start-up.
    """
    sums: dict[tuple[str, str, int | None, str | None], tuple[float, int]] = {}
    lines: dict[tuple[str, str, int | None, str | None], Place] = {}
    for call, (share, samples) in evidence.calls.items():
        if call.loads or call.decodes or call.package in COLUMNAR:
            continue
        by_line = call.is_process or call.function is not None
        key = call.place.function, call.place.file, call.place.line if by_line else None, call.function
        before, earlier = sums.get(key, (0.0, 0))
        sums[key] = before + share, earlier + samples
        lines.setdefault(key, call.place)
    most = max(sums, key=lambda one: sums[one], default=None)
    # a single sample may stand for seconds, where code in C holds the interpreter
    if most is None or sums[most][1] < FEWEST_SAMPLES:
        return None
    *_, line, library = most
    where = "its own lines" if line is None else "this line" if library is None else library
    advice = OF_PYTHON if library is None else f"Call {library} less often: once per worker, or once per chunk."
    return _Dominant(lines[most], sums[most][0], where, advice)


FEWEST_SAMPLES: Final = 10
"""Fewest samples from which a line is said to take most of the CPU time: the share of ten is known to a third."""

OF_PYTHON: Final = (
    "Where these lines loop in Python, use array operations (awkward, numpy), or compile them with numba."
)


@cause("compute")
def compute(evidence: Evidence) -> Draft | None:
    """A user function that computes in plain Python, or a call of a library that does not."""
    found, cpu = _dominant(evidence), evidence.process_cpu
    if found is None or cpu is None or found.share < PYTHON:
        return None
    seconds = found.share * float(cpu.sum())
    # threads that wait for each other's Python: the finding on the lock names the function
    if sum(evidence.rows_of("interpreter lock").values()) >= OF_LOCK * seconds:
        return None
    name = str(found.place)
    what = f"{name} takes {FRACTION.text(found.share)} of the CPU time in process(), in {found.where}."
    rows = culprits.with_waits(evidence, name, seconds)
    taken = Taken("compute", seconds=found.share * cpu)
    return Draft(what, found.advice, (Culprit("function", name, seconds),), rows=rows, taken=taken)


def _in_chunks(evidence: Evidence, time_class: str) -> Numbers | None:
    """Seconds of each chunk in a class that has one column."""
    if evidence.counted is None:
        return None
    (column,) = phases.COLUMNS_OF[time_class]
    return amounts(evidence.counted, column)


@cause("interpretation")
def interpretation(evidence: Evidence) -> Draft | None:
    """Building arrays from baskets."""
    if not evidence.rows_of("interpretation"):
        return None
    reads = evidence.run.branch_reads
    branches = culprits.by_part(reads, "branch", ["interpret_seconds"])
    found = tuple(Culprit("branch", str(name), seconds) for name, seconds in list(branches.items())[: culprits.NAMED])
    most = f", most of it for {names_of(list(found))}" if found else ""
    repeated = None if evidence.bytes is None else evidence.bytes.repeated
    read = "baskets" if repeated is None else pieces(repeated)
    what = f"Building arrays from {read} takes {share_of(evidence, 'interpretation')} of thread time{most}."
    taken = Taken("interpretation", seconds=_in_chunks(evidence, phases.INTERPRET))
    advice = "Read fewer branches, especially jagged ones."
    if len(branches) == 1:
        advice = "Read it for fewer events, or a flat branch instead."
    return Draft(what, advice, found, taken=taken)


@cause("checkpoint")
def checkpoint(evidence: Evidence) -> Draft | None:
    """Loading and saving checkpoints."""
    if not evidence.rows_of("checkpoint"):
        return None
    what = f"Checkpoints take {share_of(evidence, 'checkpoint')} of thread time."
    return Draft(what, "Store them on a faster disk, or make the output smaller.")
