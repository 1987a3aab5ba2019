"""Findings about computing: cores, the GIL, waiting, functions and start-up."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import (
    CORE_WAIT_IN_WAIT,
    CORE_WAIT_OUTSIDE,
    NAMED,
    Evidence,
    by_part,
    most_of,
    names_of,
)
from roastcoffea.diagnosis.finding import Culprit, Finding, Page, finding
from roastcoffea.diagnosis.savings import (
    WAITS,
    Removal,
    Taken,
    in_order,
    of_chunks,
    without_cpu,
    without_parts,
)
from roastcoffea.metrics import phases
from roastcoffea.metrics.profile import COLUMNAR, Call, Place
from roastcoffea.metrics.statistics import Numbers, amounts
from roastcoffea.records.arrow import plain
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import Scenario
from roastcoffea.units import FRACTION, SECOND, counted, number, rough

PYTHON: Final = 0.5
"""Minimum share of CPU time in process() before a function is named. Columnar code spends its time in libraries."""

WITH_COFFEA: Final = frozenset(
    {"awkward", "coffea", "fsspec", "hist", "numba", "numpy", "pyarrow", "scipy", "uproot", "vector"}
)
"""Packages imported by `import coffea.processor`."""


# Cores


def cores_of_others(run: Run) -> str:
    """Note on cores used by other processes; empty if few or unknown.

    Only hosts on which the run may use all cores are considered.
    """
    hosts = run.environment.hosts
    whole = [host for host in hosts if host.cores == host.node_cores]
    most = max(whole, key=lambda host: host.others or 0.0, default=None)
    if most is None or (most.others or 0.0) < 0.1:
        return ""
    where = f" on {most.name}" if len(hosts) > 1 else ""
    return (
        f"other processes used {number(round(most.others or 0.0, 1))} of {counted(most.node_cores or 0, 'core')}{where}"
    )


WAITING: Final = Page(
    "contention",
    "Threads wait for each other",
    """\
All findings follow one rule, memory permitting. Use one thread per core if threads wait for each other, and two only
if no thread waits for a core or the GIL. If threads wait for the GIL, use single-threaded processes.""",
)


@finding(
    "contention",
    "Threads wait for a free core",
    part="in chunks",
    shows="`contention`",
    least=0.10,
    page=WAITING,
)
def contention(evidence: Evidence) -> Finding | None:
    """Limited by CPU contention.

    Threads are ready to run, but no core is free.

    **Check.** The kernel records this wait (Linux only). If most of it is on one host, other programs are running
    there. `throttled_seconds` is due to the container's CPU limit, `steal_seconds` to the hypervisor.

    ```python
    print(measurement.time_ledger.by("host")[["total", "contention"]])
    print(measurement.metrics.get("cores_of_others"))
    print(measurement.lifetimes[["worker", "host", "threads", "throttled_seconds", "steal_seconds"]])
    ```

    **Fix.** Request whole cores from the batch system, or use other hosts. Using fewer threads saves less.
    `OMP_NUM_THREADS=1` on workers stops libraries from starting their own threads.

    **Fine if** extra threads hide slow storage: some contention is the price.
    """
    rows, hosts = evidence.core_wait, evidence.contended
    if not rows:
        return None
    waited, why, remedy = sum(rows.values()), cores_of_others(evidence.run), None
    crowded, _, apart = evidence.layout
    advice, others = "Stop other processes on these cores, or request dedicated cores.", not crowded
    if not why and any(host.others is not None for host in evidence.run.environment.hosts):
        advice = (
            "Leave a core for the client, the scheduler and their threads: other processes used hardly any CPU time."
        )
        others = False
    if crowded:
        threads, cores = number(sum(evidence.threads[crowded])), evidence.cores or 0
        why = f"the host runs {threads} task threads on {counted(cores, 'core')}"
        advice = f"Request a core for each of the {threads} threads, or use fewer threads."
        remedy = evidence.workers_line
        if evidence.local:
            # a pool passed to the executor has its own size
            makes_pool = all("executor.pool" in call.options for call in evidence.run.calls)
            remedy = (
                f"FuturesExecutor(workers={cores})" if makes_pool else f"max_workers={cores}, where the pool is created"
            )
            advice = f"Use {counted(cores, 'worker')}."
    else:
        fewer = "" if apart else ", or use fewer threads"
        for column, who, instead in (
            ("throttled_seconds", "its container was throttled for", f"Raise its CPU limit{fewer}."),
            ("steal_seconds", "the hypervisor took", "Move to a less crowded host, or request dedicated cores."),
        ):
            # all workers on a host report the same totals
            lives = sorted((life[column] or 0.0, life["host"] or "") for life in evidence.lives)
            seconds = sum({host: withheld for withheld, host in lives}.values())
            if seconds >= 0.3 * waited:
                why, advice, others = f"{who} {SECOND.text(seconds)}", instead, column == "steal_seconds"
                break
    opening = ", including start-up and opening files" if CORE_WAIT_OUTSIDE in rows else ""
    no_core = f"had no free core on {names_of(hosts) or 'the host'} for {evidence.share(waited)} of thread time"
    # assumes a core for every thread: using fewer threads would save less
    change = Scenario(lambda chunks: chunks.with_parts(contention=np.zeros(len(chunks))))
    return Finding(
        what=f"CPU contention: threads that were ready to run {no_core}{opening}{f'; {why}' if why else ''}.",
        advice=advice,
        culprits=tuple(hosts),
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(change), at_most=remedy is not None),
        of_others=others,
    )


# The interpreter, and waiting in process()


@finding(
    "interpreter lock",
    "Threads wait for the interpreter lock (GIL)",
    part="in chunks",
    shows="`interpreter lock`",
    least=0.10,
    page=WAITING,
)
def interpreter_lock(evidence: Evidence) -> Finding | None:
    """Limited by the interpreter lock.

    Threads in one process wait for Python's interpreter lock (GIL).

    **Check.** The wait is an estimate. If `process_cpu_seconds` is close to a chunk's wall time, the process uses only
    one core.

    ```python
    print(measurement.chunks[["wall_seconds", "process_cpu_seconds", "lock_seconds", "overlaps"]].describe())
    print(measurement.hot_functions[["function", "line", "core_seconds", "leaf"]])
    ```

    **Fix.** If there is no memory for more processes, replace Python loops with array operations: numpy and awkward
    release the lock in most kernels, as does numba with `nogil=True`.

    **Fine if** threads save memory by sharing corrections and caches.
    """
    rows = evidence.rows_of("interpreter lock")
    if not rows:
        return None
    most, functions = max((life["threads"] for life in evidence.lives), default=0), evidence.functions("core", own=True)
    of = f"; {number(most)} threads share one interpreter" if most > 1 else ""
    by = f"; {functions[0].name} holds it longest" if functions else ""
    advice, remedy = "Replace plain Python loops with array operations.", None
    if evidence.layout.apart:
        advice = f"{advice[:-1]}, or run processes with one thread each instead of threads."
        remedy = None if evidence.local else evidence.workers_line
    share = evidence.share_of("interpreter lock")
    return Finding(
        what=f"For {share} of thread time, threads wait for Python's interpreter lock (estimated{of}){by}.",
        advice=advice,
        culprits=tuple(functions),
        remedy=remedy,
        rows=rows,
        taken=Taken(without_parts("lock"), at_most=True),
    )


@finding(
    "blocked",
    "process() waits instead of computing",
    part="in chunks",
    shows="`blocked`",
    least=0.10,
    page=WAITING,
)
def blocked(evidence: Evidence) -> Finding | None:
    """Limited by blocking.

    `process()` sleeps, or waits for a lock, a file that it opens itself, or a service (conditions database, inference
    server).

    **Check.** The profile and [sections](../howto/profile.md#sections) show where the code waits.

    ```python
    hot = measurement.hot_functions.sort_values("blocked_seconds", ascending=False)
    print(hot[["function", "file", "line", "leaf", "blocked_seconds"]].head())
    print(measurement.sections.groupby("name")[["wall_seconds", "cpu_seconds"]].sum())
    ```

    **Fix.** Fetch shared data once, in the processor's `__init__`: attributes are sent with the task. Send one request
    per chunk, not per event. Copy corrections and models to a local disk. If cores are free, two threads per core hide
    the remaining wait.

    **Fine if** the service is needed.
    """
    rows = evidence.rows_of("blocked")
    if phases.WAIT in rows:
        rows[phases.WAIT] -= evidence.core_wait.get(CORE_WAIT_IN_WAIT, 0.0)
    seconds = sum(rows.values())
    # samples and sections do not distinguish these from other waits
    read = evidence.time_of("storage") + evidence.seconds_in("write_wait_seconds")
    if seconds <= 0:
        return None
    # wait samples include reading, so scale them to the ledger's seconds
    hot = 0.0 if evidence.hot is None else pc.sum(evidence.hot["blocked_seconds"]).as_py() or 0.0
    named = []
    for found, scale in (
        (blocked_sections(evidence), 1.0),
        (evidence.functions("blocked"), (seconds + read) / (hot or 1)),
    ):
        waits = ((one, scale * (one.seconds or 0.0)) for one in found)
        # sections and samples do not distinguish reading from other waits, so assume that all reading happened here
        named.append(
            [
                one._replace(seconds=min(waited, seconds))
                for one, waited in waits
                if waited >= 0.1 * seconds and waited - read >= 0.5 * min(waited, seconds)
            ]
        )
    sections, functions = named
    where = f" in section {sections[0].name}" if sections else f" in {functions[0].name}" if functions else ""
    advice = "Wrap parts of process() in roastcoffea.track_time to see where."
    if functions or sections:
        advice = (
            f"Check what {functions[0].name} waits for."
            if functions
            else f"Check what section {sections[0].name} calls."
        )
    return Finding(
        what=f"process() is blocked for {evidence.share(seconds)} of thread time{where}: by a sleep, lock or "
        "network service.",
        advice=advice,
        culprits=(*sections[:1], *functions[:1], *sections[1:]),
        rows=rows,
        taken=Taken(without_waits(evidence), at_most=True),
    )


def without_waits(evidence: Evidence) -> Removal:
    """Remove the waits in process(), except those for writing."""
    counted = evidence.counted
    if counted is None:
        return without_parts("wait")
    kept = amounts(counted, "write_wait_seconds")
    return of_chunks(lambda chunks: chunks.with_parts(wait=np.minimum(chunks.parts.wait, in_order(kept, chunks, 0.0))))


def blocked_sections(evidence: Evidence) -> list[Culprit]:
    """Sections with the longest waits; for nested sections, the innermost one."""
    sections = evidence.run.sections
    if sections is None:
        return []
    # under load, code that computes also waits for cores and the GIL
    cpu = evidence.seconds_in("cpu_seconds")
    rate = evidence.seconds_in("contention_seconds", "lock_seconds") / cpu if cpu else 0.0
    known = sections.select(["name", "wall_seconds", "cpu_seconds"]).drop_null()
    taken = pc.multiply(known["cpu_seconds"], 1.0 + rate)
    waited = known.append_column("waited", pc.subtract(known["wall_seconds"], taken))
    sums = by_part(waited, "name", ["waited"])
    inner = {
        name
        for name, seconds in sums.items()
        for other in sums
        if other.startswith(f"{name}/") and sums[other] >= 0.9 * seconds
    }
    return most_of("section", {name: seconds for name, seconds in sums.items() if name not in inner})


# Functions


def with_waits(evidence: Evidence, name: str, seconds: float) -> dict[str, float]:
    """CPU time, plus a proportional share of the waits for cores and the GIL."""
    cpu = evidence.seconds_in("cpu_seconds")
    # core_wait_seconds includes waits while opening files
    waited = max(map(evidence.seconds_in, ("contention_seconds", "core_wait_seconds")))
    waits = (waited + evidence.seconds_in("lock_seconds")) * min(seconds / cpu, 1.0) if cpu else 0.0
    return {name: seconds} | ({WAITS: waits} if waits else {})


CODE: Final = Page(
    "compute",
    "Limited by your own code",
    """\
Rows without a `leaf` show time spent in your line itself; other rows, in a function that it calls.

```python
hot = measurement.hot_functions.sort_values("core_seconds", ascending=False)
print(hot[["function", "file", "line", "leaf", "core_seconds", "share"]].head())
print(measurement.profile)
```""",
)


@finding(
    "repeated work",
    "Loading is repeated from chunk to chunk",
    part="in chunks",
    shows="`compute`",
    outranks=True,
    page=CODE,
)
def repeated_work(evidence: Evidence) -> Iterator[Finding]:
    """Limited by repeated loading.

    Each chunk loads a file, a correction or a model.

    **Check.** A line in your code calls a loader (`json.load`, `CorrectionSet.from_file`, `uproot.open` and others).
    The line's CPU time shows that it ran in more chunks than there are workers. Only the code shows whether it always
    loads the same data. C functions such as `pickle.load` have no frame: their time is attributed to your line.

    **Fix.** Load data once per process, in a function decorated with `@functools.cache`. Do not store large data in the
    processor: it is sent with every task. `.pkl`, `.npz` and Parquet load faster than large JSON files. Keep
    corrections as `.json.gz` on a local disk.

    **Fine if** each chunk needs its own file, such as a friend tree.
    """
    cpu = evidence.process_cpu
    if cpu is None or evidence.counted is None:
        return
    longest, workers = np.cumsum(np.sort(cpu)[::-1]), len(evidence.counted["worker"].unique())
    for call, (share, samples) in evidence.calls.items():
        # the profile does not separate chunks, but a load that takes more CPU time than the few longest chunks together
        # must have run in other chunks as well
        certain = share * max(1 - 2 / max(samples, 1) ** 0.5, 0.0)
        chunks = int(np.searchsorted(longest, certain * longest[-1])) + 1
        if call.loads and chunks > workers:
            name, seconds = str(call.place), share * float(longest[-1])
            each = seconds / evidence.chunks
            yield Finding(
                what=f"{call.function}, called in {name}, takes {rough(share, FRACTION)} of the CPU time in process(): "
                f"{SECOND.text(each)} per chunk, {SECOND.text(seconds)} in all. It ran in at least {number(chunks)} "
                f"of {counted(evidence.chunks, 'chunk')}, on {counted(workers, 'worker')}.",
                advice="If the data are always the same, load them once per worker: use a @functools.cache function.",
                culprits=(Culprit("function", name, seconds),),
                rows=(rows := with_waits(evidence, name, seconds)),
                taken=_without_own_cpu(np.minimum(each, cpu), rows),
            )


def _without_own_cpu(seconds: Numbers, rows: Mapping[str, float]) -> Taken:
    """Removal of CPU time. The saving is an upper limit unless waits add more than a tenth to the CPU time."""
    cpu = float(seconds.sum())
    return Taken(without_cpu(seconds), cpu, at_most=rows.get(WAITS, 0.0) <= 0.1 * cpu)


@finding(
    "compute",
    "One function dominates process()",
    part="in chunks",
    shows="`compute`",
    least=0.25,
    page=CODE,
)
def compute(evidence: Evidence) -> Finding | None:
    """Limited by computing.

    One of your functions dominates the CPU time.

    **Check.** A healthy run is limited by `compute`. This is a finding only if one function's own lines take at least
    half the CPU time, or loop over the elements of awkward arrays.

    **Fix.** Replace the loop with array operations (`ak.combinations`, `ak.where`, masks), or compile it: `@numba.njit`
    accepts awkward arrays. Apply cheap cuts first.

    **Fine if** the physics needs it: this time scales with the number of workers.
    """
    cpu = evidence.process_cpu
    sums: dict[tuple[Any, ...], tuple[float, int, Place]] = {}
    looping = _loops(evidence)
    for call, (share, samples) in evidence.calls.items():
        # columnar code should spend its time in these libraries and in decompression; repeated loading is a
        # separate finding, and loading once per worker is start-up
        loop = _loop_of(call)
        if call.loads or call.decodes or (call.package in COLUMNAR and loop not in looping):
            continue
        if loop in looping:
            key: tuple[Any, ...] = (*loop, None, True)
            named = call.place._replace(function=loop.function)
        else:
            # for process() itself, name a line: users already know that process() takes time
            line = call.place.line if call.is_process or call.function is not None else 0
            key, named = (*call.place._replace(line=line), call.function, False), call.place
        before, earlier, place = sums.get(key, (0.0, 0, named))
        sums[key] = before + share, earlier + samples, place
    most = max(sums, key=lambda one: sums[one][:2], default=None)
    if most is None or cpu is None:
        return None
    (share, samples, place), (*_, line, library, loops) = sums[most], most
    seconds = share * float(cpu.sum())
    # ten samples determine a share to within a third; if threads wait for the GIL, the finding about the GIL names the
    # function
    if samples < 10 or (share < PYTHON and not loops) or evidence.time_of("interpreter lock") >= 0.5 * seconds:
        return None
    where = library or ("this line" if line else "its own lines")
    what = f"{place} takes {rough(share, FRACTION)} of the CPU time in process(), in {where}."
    advice = "If these lines loop in Python, use array operations (awkward, numpy), or compile them with numba."
    if loops:
        what = f"{place} loops over awkward arrays ({rough(share, FRACTION)} of CPU time)."
        advice = "Replace this loop with array operations such as ak.max(..., axis=1), or compile it with numba."
    elif library:
        advice = f"Call {library} less often: once per worker, or once per chunk."
    rows = with_waits(evidence, str(place), seconds)
    if rows.get(WAITS, 0.0) > 0.1 * seconds:
        what += " The saving includes its share of the waits for a core or the GIL."
    return Finding(
        what=what,
        advice=advice,
        culprits=(Culprit("function", str(place), seconds),),
        rows=rows,
        taken=_without_own_cpu(share * cpu, rows),
    )


def _loop_of(call: Call) -> Place:
    """Code that may contain a loop: a function with its comprehensions, or a line in process()."""
    function = call.place.function.partition(".<")[0]
    return call.place._replace(function=function, line=call.place.line if call.is_process else 0)


def _loops(evidence: Evidence) -> set[Place]:
    """Loops that spend at least a quarter of their CPU time reading awkward arrays element by element."""
    sums: dict[Place, list[float]] = {}
    for call, (share, _) in evidence.calls.items():
        known = sums.setdefault(_loop_of(call), [0.0, 0.0])
        known[call.elementwise] += share
    return {place for place, (other, loops) in sums.items() if loops >= (loops + other) / 4 > 0}


# Start-up


@finding(
    "start-up",
    "New workers are slow to start",
    part="in chunks",
    shows="`start-up`",
    outranks=True,
)
def start_up(evidence: Evidence) -> Finding | None:
    """Limited by start-up.

    New workers import modules and compile functions.

    **Check.** `modules` lists imports made while chunks ran. A second run on the same workers has no start-up time.

    ```python
    for one in measurement.time_ledger.startup:
        print(one.worker, round(one.seconds, 1), "s", one.modules)
    ```

    **Fix.**

    - Import modules before tasks arrive, using one `--preload` per module.
    - Reuse the workers: open the `Client` once for several `Runner` calls.
    - `FuturesExecutor` creates separate pools for preprocessing and chunks. Pass a persistent pool:
      `FuturesExecutor(pool=loky.get_reusable_executor(max_workers=4))`.
    - Put the environment on each node's local disk, and compile with `numba.njit(cache=True)`.

    **Fine if** the run is long: each process starts up once.
    """
    rows = evidence.rows_of("start-up")
    if not rows:
        return None
    found = sorted(evidence.ledger.startup, key=lambda one: -one.seconds)
    culprits = [Culprit("worker", one.worker, one.seconds) for one in found[:NAMED]]
    # a worker imports coffea while it unpickles its first task, and imports in process() happen in the worker's first
    # chunk
    before = sum(one.idle_seconds for one in found) >= 0.2 * sum(one.seconds for one in found)
    once = None if before else _once(evidence)
    loaded = dict.fromkeys(name for one in found for name in one.modules if not name.startswith(("roastcoffea", "_")))
    # standard library modules are quick to import
    own = {name: name.partition(".")[0] for name in loaded}
    modules = {name: package for name, package in own.items() if package not in sys.stdlib_module_names}
    why = f"; they imported {', '.join([*dict.fromkeys(modules.values())][:4])}" if modules else ""
    # packages import their private modules themselves
    preloaded = [name for name in modules if "._" not in name]
    if before or not preloaded or "coffea" in modules:
        further = (name for name in preloaded if modules[name] not in WITH_COFFEA or name.startswith("coffea."))
        preloaded = ["coffea.processor", *further]
    preloaded = preloaded[:4]
    advice = f"Import {', '.join(preloaded)} in a worker preload."
    remedy: str | None = evidence.started_importing(preloaded)
    if once is not None:
        why, remedy = f": {once} takes most of the first chunk's time", None
        advice = f"Reuse the workers for several runs, or save what {once} creates to a file that loads faster."
        culprits.append(Culprit("function", str(once)))
    if evidence.local:
        remedy = _pool_that_stays(evidence)
        advice = "Only the first chunks in a process are slow: have each process run more chunks."
        if remedy:
            advice = "Reuse the processes for all steps and runs."
    warm = Scenario(
        lambda chunks: chunks.with_parts(first=np.zeros(len(chunks))),
        costs=lambda costs: costs._replace(cold_before=0.0, cold_wait=0.0),
    )
    share, workers = evidence.share_of("start-up"), counted(len(found), "new worker")
    return Finding(
        what=f"Start-up takes {share} of thread time on {workers}{why}.",
        advice=advice,
        culprits=tuple(culprits),
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(warm)),
    )


def _once(evidence: Evidence) -> Place | None:
    """Line that takes most of the time in workers' first chunks; None if it is unknown or imports dominate.

    The profile keeps the longest attempt's stacks separately. If first chunks are slow, the longest attempt is a
    first chunk.
    """
    if evidence.counted is None or evidence.profile is None:
        return None
    chunks = plain(evidence.counted.select(["id", "worker", "start", "process_seconds"])).to_pandas()
    leaders = chunks.sort_values("start", kind="stable").drop_duplicates("worker")
    excess = leaders["process_seconds"].fillna(0.0) - chunks["process_seconds"].fillna(0.0).median()
    started = leaders["worker"].map({one.worker: one.seconds for one in evidence.ledger.startup}).fillna(np.inf)
    # first chunks whose start-up was mostly in process()
    first = set(leaders["id"][2 * excess > started])
    stacks = [stack for stack in evidence.profile.stacks if stack.chunk in first]
    imports = [one for one in stacks if any(place.file.startswith("<frozen importlib") for place in one.places)]
    if not stacks or sum(one.seconds for one in imports) > 0.25 * sum(one.seconds for one in stacks):
        return None
    for call, (share, _) in evidence.profile.calls(stacks[0].chunk).items():
        # a line that takes just as long in every chunk is not a one-time cost
        usual, _ = evidence.calls.get(call, (0.0, 0))
        return call.place if share >= max(0.5, 1.5 * usual) else None
    return None


def _pool_that_stays(evidence: Evidence) -> str | None:
    """Line that creates a persistent pool; None unless the executor creates a pool for each step."""
    calls = [call.options for call in evidence.run.calls if call.options.get("executor.pool") == "ProcessPoolExecutor"]
    workers = [size for options in calls if isinstance(size := options.get("executor.workers"), int)]
    return f"FuturesExecutor(pool=loky.get_reusable_executor(max_workers={max(workers)}))" if workers else None
