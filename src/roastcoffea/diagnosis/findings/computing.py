"""Findings about threads that compute, or that could: cores, the interpreter, waiting, functions, and start-up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import NAMED, Evidence, by_part, most_of, names_of
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.savings import Removal, Taken, without_cpu, without_parts
from roastcoffea.metrics import phases
from roastcoffea.metrics.profile import COLUMNAR, Place
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import Scenario
from roastcoffea.units import FRACTION, SECOND, counted, number

PYTHON: Final = 0.5
"""Share of CPU time in process() that a function's own lines must use: columnar code spends it in library calls."""

WITH_COFFEA: Final = frozenset(
    {"awkward", "coffea", "fsspec", "hist", "numba", "numpy", "pyarrow", "scipy", "uproot", "vector"}
)
"""Packages that `import coffea.processor` imports."""


# Cores


def core_wait_outside_process(evidence: Evidence) -> float:
    """Seconds without a free core while chunks were opened and built; 0 where unknown."""
    of_attempts, inside = evidence.sum_of("core_wait_seconds"), evidence.sum_of("contention_seconds")
    return 0.0 if of_attempts is None or inside is None else max(of_attempts - inside, 0.0)


def _core_wait_in_wait(evidence: Evidence) -> float:
    """Seconds without a free core in "wait", which older measurements did not split."""
    return min(evidence.rows_of("blocked").get(phases.WAIT, 0.0), evidence.seconds_in("core_wait_seconds"))


def threads_of_workers(evidence: Evidence) -> int | None:
    """Threads of the worker with the most, if that has several."""
    most: int = max((life["threads"] for life in evidence.lives), default=0)
    return most if most > 1 else None


def threads_per_core(evidence: Evidence) -> float:
    """Threads for tasks divided by cores, of the most crowded host; 0 where unknown."""
    cores = _cores(evidence)
    return max((sum(each) / cores for each in _threads_of_hosts(evidence).values()), default=0.0) if cores else 0.0


def _threads_of_hosts(evidence: Evidence) -> dict[str, list[int]]:
    """Threads of the workers on each host in the middle of the run."""
    threads = dict[str, list[int]]()
    for life in evidence.present:
        threads.setdefault(life["host"], []).append(life["threads"])
    return threads


def _cores(evidence: Evidence) -> int | None:
    """Cores of each host; None where they are unknown, or differ."""
    cores = {host.cores for host in evidence.run.environment.hosts}
    return cores.pop() if len(cores) == 1 else None


def cores_of_others(run: Run) -> str:
    """Cores that other processes took, of hosts whose cores the run may all use; empty if few, or unknown."""
    hosts = run.environment.hosts
    whole = [host for host in hosts if host.cores == host.node_cores]
    most = max(whole, key=lambda host: host.others or 0.0, default=None)
    if most is None or (most.others or 0.0) < 0.1:
        return ""
    where = f" of {most.name}" if len(hosts) > 1 else ""
    return (
        f"other processes took {number(round(most.others or 0.0, 1))} of {counted(most.node_cores or 0, 'core')}{where}"
    )


@finding(
    "contention",
    "Threads wait for a free core",
    part="in chunks",
    shows="`contention`",
    first="as many threads as cores",
    least=0.10,
)
def contention(evidence: Evidence) -> Finding | None:
    """Limited by CPU contention.

    Threads could run and no core is free: the class `contention` of the time ledger is large.

    **How to make sure.** The kernel counts how long runnable threads wait in the run queue (Linux only). Compare
    hosts: if one has most of it, other programs run there; `cores_of_others` has what they used. The lifetimes have
    `throttled_seconds` (the container's CPU limit) and `steal_seconds` (the hypervisor).

    ```python
    print(measurement.time_ledger.by("host")[["total", "contention"]])
    print(measurement.metrics.get("cores_of_others"))
    print(measurement.lifetimes[["worker", "host", "threads", "throttled_seconds", "steal_seconds"]])
    ```

    **What to do.**

    - Get more cores for the threads: whole cores from the batch system, or other hosts. That saves what the finding
      says.
    - Or as many worker threads as the host has cores for you: `dask worker --nworkers 4 --nthreads 1` on four. The
      cores do not get faster, but fewer threads share caches and memory, and it costs nothing to try.
    - Keep libraries from starting threads of their own: `OMP_NUM_THREADS=1` in the environment of the workers.
    - Scheduler and client need a core as well if they live on the same host.

    **When it is not a problem.** With two threads per core to hide slow storage, some contention is the price. On a
    shared machine up to a tenth of the wall time is normal and not reported.
    """
    more = {
        # older measurements did not split waiting in process()
        "contention in wait": _core_wait_in_wait(evidence),
        "contention while opening": core_wait_outside_process(evidence),
    }
    rows = evidence.rows_of("contention") | {name: seconds for name, seconds in more.items() if seconds}
    if not rows:
        return None
    waited, hosts, cores = sum(rows.values()), _contended(evidence), _cores(evidence)
    threads = _threads_of_hosts(evidence).get(hosts[0].name, []) if hosts else []
    why, remedy = cores_of_others(evidence.run), None
    advice = "Stop other processes on these cores, or request dedicated cores."
    if not why and any(host.others is not None for host in evidence.run.environment.hosts):
        advice = "Leave a core to the client, the scheduler and their threads: other processes took next to none."
    if cores and sum(threads) > cores and _wait_for_each_other(evidence, hosts[0].name, cores, waited):
        why = f"the host has {number(sum(threads))} threads for tasks on {counted(cores, 'core')}"
        advice = f"Request a core for each of the {number(sum(threads))} threads, or use fewer threads."
        each = cores // len(threads)
        remedy = evidence.started_with(each or 1, len(threads) if each else cores)
        if evidence.local:
            # a pool that the executor was given has a number of its own
            makes_pool = all("executor.pool" in call.options for call in evidence.run.calls)
            remedy = (
                f"FuturesExecutor(workers={cores})" if makes_pool else f"max_workers={cores}, where the pool is made"
            )
            advice = f"Use {counted(cores, 'worker')}."
    else:
        for column, who, instead in (
            ("throttled_seconds", "its container was throttled for", "Raise its CPU limit, or use fewer threads."),
            ("steal_seconds", "the hypervisor took", "Move to a less crowded host, or request dedicated cores."),
        ):
            # workers of one host share them
            lives = sorted((life[column] or 0.0, life["host"] or "") for life in evidence.lives)
            seconds = sum({host: withheld for withheld, host in lives}.values())
            if seconds >= 0.3 * waited:
                why, advice = f"{who} {SECOND.text(seconds)}", instead
                break
    opening = ", counting start-up and the opening of files" if "contention while opening" in rows else ""
    no_core = f"had no free core on {names_of(hosts) or 'the host'} for {evidence.share(waited)} of thread time"
    # a core for each job; using fewer threads saves less than that
    change = Scenario(lambda chunks: chunks.with_parts(contention=np.zeros(len(chunks))))
    return Finding(
        what=f"CPU contention: threads that were ready to run {no_core}{opening}{f'; {why}' if why else ''}.",
        advice=advice,
        culprits=tuple(hosts),
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(change), at_most=remedy is not None),
    )


def _contended(evidence: Evidence) -> list[Culprit]:
    """Hosts, else workers, whose chunks waited longest for a core."""
    of_host = Counter[str]()
    for worker, seconds in by_part(evidence.counted, "worker", phases.COLUMNS_OF[phases.CONTENTION]).items():
        of_host[evidence.hosts.get(worker) or str(worker)] += seconds  # type: ignore[assignment]
    return most_of("host", of_host)


def _wait_for_each_other(evidence: Evidence, host: str, cores: int, waited: float) -> bool:
    """Whether threads of a host can have waited for each other for most of what they waited."""
    if evidence.run.chunks is None:
        return False
    chunks = evidence.run.chunks.select(["worker", "start", "stop"]).to_pandas().dropna()
    starts, stops = chunks.loc[chunks["worker"].map(evidence.hosts) == host, ["start", "stop"]].to_numpy().T
    if not (stops > starts).any():
        return False
    middle = (starts + stops) / 2
    running = np.searchsorted(np.sort(starts), middle) - np.searchsorted(np.sort(stops), middle)
    # of those that ran at a time, as many as it has cores did not wait
    share = 1 - cores / np.average(running, weights=stops - starts)
    return bool(share * (waited + evidence.seconds_in("cpu_seconds")) >= waited / 2)


# The interpreter, and waiting in process()


@finding(
    "interpreter lock",
    "Threads wait for the interpreter lock (GIL)",
    part="in chunks",
    shows="`interpreter lock`",
    first="one thread in each process",
    least=0.10,
)
def interpreter_lock(evidence: Evidence) -> Finding | None:
    """Limited by the interpreter lock.

    Threads of one process wait for each other: the class `interpreter lock` of the time ledger is large.

    **How to make sure.** Workers have more than one thread, and `process_cpu_seconds` of a chunk is close to its wall
    time: the process computes on one core, however many threads it has. The class is estimated from that.

    ```python
    print(measurement.lifetimes[["worker", "threads"]])
    print(measurement.chunks[["wall_seconds", "process_cpu_seconds", "lock_seconds", "overlaps"]].describe())
    print(measurement.hot_functions[["function", "line", "core_seconds", "leaf"]])
    ```

    **What to do.**

    - One thread in each process: `LocalCluster(n_workers=4, threads_per_worker=1)`, `dask worker --nworkers 4
      --nthreads 1`.
    - If memory forbids that, replace loops in Python by operations on arrays: numpy and awkward release the lock in
      most kernels, numba does with `nogil=True`.

    **When it is not a problem.** Threads share corrections and caches, which saves memory. Up to a tenth of the wall
    time is normal. The saving is a bound: separate processes also share memory bandwidth.
    """
    rows = evidence.rows_of("interpreter lock")
    if not rows:
        return None
    threads, functions = threads_of_workers(evidence), evidence.functions("core", own=True)
    of = f"; {number(threads)} threads share one interpreter" if threads else ""
    by = f"; {functions[0].name} holds it most" if functions else ""
    advice, remedy = "Replace plain Python loops with array operations.", None
    if threads or evidence.local:
        advice = f"{advice[:-1]}, or run processes with one thread each instead of threads."
    if threads and not evidence.local:
        # as many threads as now, each in a process of its own: those of the largest host
        remedy = evidence.started_with(1, max(map(sum, _threads_of_hosts(evidence).values()), default=1))
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
    first="fetch once what all chunks share",
    least=0.10,
)
def blocked(evidence: Evidence) -> Finding | None:
    """Limited by blocking.

    `process()` waits for something that is neither a core nor storage: the class `blocked` of the time ledger is
    large.

    **How to make sure.** A blocked thread sleeps, waits for a lock, or waits for a service: a database of conditions,
    an inference server, a file that the processor opens itself. The profile has the line, sections that you name have
    the part.

    ```python
    hot = measurement.hot_functions.sort_values("blocked_seconds", ascending=False)
    print(hot[["function", "file", "line", "leaf", "blocked_seconds"]].head())
    print(measurement.sections.groupby("name")[["wall_seconds", "cpu_seconds"]].sum())
    ```

    **What to do.**

    - Fetch what all chunks share once, in the processor's `__init__`, and keep it as an attribute: it travels with
      the task.
    - Send one request for a chunk, not one for an event.
    - Copy corrections and models to a local disk, instead of reading them from a network file system in each chunk.
    - If the wait cannot be avoided, use two threads per core, so that one computes while the other waits.

    **When it is not a problem.** Up to a tenth of the wall time is normal and not reported. The saving is an upper
    bound: any answer takes time.
    """
    rows = evidence.rows_of("blocked")
    if phases.WAIT in rows:
        rows[phases.WAIT] -= _core_wait_in_wait(evidence)
    seconds, read = sum(rows.values()), evidence.time_of("storage")
    if seconds <= 0:
        return None
    # samples that wait are of reading, too: in seconds of the ledger
    hot = 0.0 if evidence.hot is None else pc.sum(evidence.hot["blocked_seconds"]).as_py() or 0.0
    named = []
    for found, scale in (
        (blocked_sections(evidence), 1.0),
        (evidence.functions("blocked"), (seconds + read) / (hot or 1)),
    ):
        waits = ((one, scale * (one.seconds or 0.0)) for one in found)
        # those that were blocked even if all reading was theirs: neither sections nor samples tell what they wait for
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
        advice = f"Look at {functions[0].name}." if functions else f"Check what section {sections[0].name} calls."
    return Finding(
        what=f"Chunks are blocked in process() for {evidence.share(seconds)} of thread time{where}: sleep, a lock or a "
        "network service.",
        advice=advice,
        culprits=(*sections[:1], *functions[:1], *sections[1:]),
        rows=rows,
        taken=Taken(without_parts("wait"), at_most=True),
    )


def blocked_sections(evidence: Evidence) -> list[Culprit]:
    """Sections that waited longest; of nested ones, the innermost."""
    sections = evidence.run.sections
    if sections is None:
        return []
    # under load CPU time waits for cores and for the interpreter
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
    """CPU seconds, and what they wait for a core and for the interpreter: that goes with them."""
    cpu = evidence.seconds_in("cpu_seconds")
    # chunks have the delay while opening files, too
    waited = max(map(evidence.seconds_in, ("contention_seconds", "core_wait_seconds")))
    waits = (waited + evidence.seconds_in("lock_seconds")) * min(seconds / cpu, 1.0) if cpu else 0.0
    return {name: seconds} | ({"waiting for a core or the interpreter": waits} if waits else {})


@finding(
    "repeated work",
    "Loading is repeated from chunk to chunk",
    part="in chunks",
    shows="`compute`",
    first="load it once per worker",
    outranks=True,
)
def repeated_work(evidence: Evidence) -> Iterator[Finding]:
    """Limited by repeated loading.

    A file, a correction or a model is loaded in chunk after chunk, where once per worker may do.

    **How to make sure.** The profile shows a function that loads something (`json.load`, `CorrectionSet.from_file`,
    `uproot.open`, `torch.load` and others), called from a line of your code, with more CPU time than the longest few
    chunks have: it ran in more chunks than there are workers. Whether it loads the same each time, only the code
    tells. Functions that are written in C, such as `pickle.load`, have no frame: they are time of your line itself.

    ```python
    for line in measurement.hot_functions.itertuples():
        print(line.function, line.file, line.line, line.leaf, line.core_seconds)
    ```

    **What to do.**

    - Load it in a function with `@functools.cache`: the first chunk of each worker process pays, the others do not.
    - Do not load it in the processor's `__init__` if it is large: each task carries the processor.
    - A large JSON loads faster as a `.pkl`, `.npz` or Parquet file; corrections do from `.json.gz` on a local disk.

    **When it is not a problem.** A friend tree or a skim has another file for each chunk: there is nothing to keep.
    """
    cpu = evidence.process_cpu
    if cpu is None or evidence.counted is None:
        return
    longest, workers = np.cumsum(np.sort(cpu)[::-1]), len(evidence.counted["worker"].unique())
    for call, (share, samples) in evidence.calls.items():
        # the profile does not tell chunks apart, but no chunk has more CPU time than it took: a load that takes more
        # than the longest few together ran in others, too
        certain = share * max(1 - 2 / max(samples, 1) ** 0.5, 0.0)
        chunks = int(np.searchsorted(longest, certain * longest[-1])) + 1
        if call.loads and chunks > workers:
            name, seconds = str(call.place), share * float(longest[-1])
            each = seconds / evidence.chunks
            yield Finding(
                what=f"{call.function}, called in {name}, takes {FRACTION.text(share)} of the CPU time in process(): "
                f"{SECOND.text(each)} a chunk, {SECOND.text(seconds)} in all. It ran in at least {number(chunks)} "
                f"of {counted(evidence.chunks, 'chunk')}, on {counted(workers, 'worker')}.",
                advice="If it loads the same each time, load it once per worker, in a function with @functools.cache.",
                culprits=(Culprit("function", name, seconds),),
                rows=with_waits(evidence, name, seconds),
                taken=_without_own_cpu(np.minimum(each, cpu)),
            )


def _without_own_cpu(seconds: Numbers) -> Taken:
    return Taken(without_cpu(seconds), float(seconds.sum()), at_most=True)


@finding(
    "compute",
    "One function dominates process()",
    part="in chunks",
    shows="`compute`",
    first="array operations instead of the loop",
    least=0.25,
)
def compute(evidence: Evidence) -> Finding | None:
    """Limited by computing.

    The analysis computes, and most of it is one function of yours: its own lines, not what they call.

    **How to make sure.** A run whose `bound` is `compute` is as it should be: threads do the analysis. It is a
    finding only where the profile shows one function of your code with half of the CPU time in its own lines, as
    loops over events have.

    ```python
    hot = measurement.hot_functions.sort_values("core_seconds", ascending=False)
    print(hot[["function", "file", "line", "leaf", "core_seconds", "share"]].head())
    print(measurement.profile)
    ```

    A row without a `leaf` is time in the line itself; with one it is time in what the line calls.

    **What to do.**

    - Replace the loop by array operations: `ak.combinations`, `ak.where`, masks.
    - Where that is awkward to write, compile it: `@numba.njit` takes awkward arrays as arguments.
    - Compute on selected events only: move the cheap cuts to the front.

    **When it is not a problem.** If the physics needs it, use more workers: this part of a run scales. The saving is
    a bound: the arrays that replace the loop take time as well.
    """
    cpu = evidence.process_cpu
    sums: dict[tuple[Any, ...], tuple[float, int, Place]] = {}
    for call, (share, samples) in evidence.calls.items():
        # columnar libraries and decompression are where an analysis is meant to spend its time; what is loaded again
        # and again is a finding of its own, and what each worker loads once is start-up
        if not (call.loads or call.decodes or call.package in COLUMNAR):
            # in process() it is a line: that process() takes its own time is no news
            line = call.place.line if call.is_process or call.function is not None else None
            key = call.place.function, call.place.file, line, call.function
            before, earlier, place = sums.get(key, (0.0, 0, call.place))
            sums[key] = before + share, earlier + samples, place
    most = max(sums, key=lambda one: sums[one][:2], default=None)
    if most is None or cpu is None:
        return None
    (share, samples, place), (*_, line, library) = sums[most], most
    seconds = share * float(cpu.sum())
    # ten samples tell a share to a third; of threads that wait for each other's Python the lock's finding names it
    if samples < 10 or share < PYTHON or evidence.time_of("interpreter lock") >= 0.5 * seconds:
        return None
    where = library or ("its own lines" if line is None else "this line")
    loops = "Where these lines loop in Python, use array operations (awkward, numpy), or compile them with numba."
    return Finding(
        what=f"{place} takes {FRACTION.text(share)} of the CPU time in process(), in {where}.",
        advice=f"Call {library} less often: once per worker, or once per chunk." if library else loops,
        culprits=(Culprit("function", str(place), seconds),),
        rows=with_waits(evidence, str(place), seconds),
        taken=_without_own_cpu(share * cpu),
    )


@finding(
    "checkpoint",
    "Checkpoints are slow",
    part="in chunks",
    shows="`checkpoint`",
    first="a faster disk",
)
def checkpoint(evidence: Evidence) -> Finding | None:
    """Limited by checkpoints.

    Chunks load and save checkpoints: the class `checkpoint` of the time ledger is large.

    **How to make sure.** `checkpoint_seconds` is the wall time of each chunk for its checkpoint, and it does not
    depend on the number of events if outputs are histograms.

    ```python
    print(measurement.chunks[["checkpoint_seconds", "wall_seconds"]].describe())
    ```

    **What to do.**

    - Keep checkpoints on a disk that is near the workers and fast for small files.
    - Use larger chunks: fewer checkpoints.
    - Return a smaller output: histograms instead of columns.

    **When it is not a problem.** Checkpoints are insurance. If runs often end early, they save more time than they
    cost.
    """
    rows = evidence.rows_of("checkpoint")
    what = f"Checkpoints take {evidence.share_of('checkpoint')} of thread time."
    return (
        Finding(what=what, advice="Store them on a faster disk, or make the output smaller.", rows=rows)
        if rows
        else None
    )


# Start-up


@finding(
    "start-up",
    "New workers are slow to start",
    part="in chunks",
    shows="`start-up`",
    first="`--preload`; keep the workers",
    outranks=True,
)
def start_up(evidence: Evidence) -> Finding | None:
    """Limited by start-up.

    New workers import modules and compile functions: the class `start-up` of the time ledger is large.

    **How to make sure.** The table has the seconds of each worker; its `modules` appeared while its chunks ran. In
    the timeline start-up is at the left edge, and wherever workers arrive. A second run on the same workers has none
    of it.

    ```python
    for one in measurement.time_ledger.startup:
        print(one.worker, round(one.seconds, 1), "s", one.modules)
    ```

    **What to do.**

    - Import before tasks arrive: `dask worker ... --preload "coffea.processor"`; name more modules with more
      `--preload`.
    - Keep the workers from run to run: open the `Client` once, and call the `Runner` as often as you like.
    - Without Dask: `FuturesExecutor` makes a new pool for preprocessing, and one for the chunks. Give it one that
      stays: `FuturesExecutor(pool=loky.get_reusable_executor(max_workers=4))`.
    - Put the environment on a local disk of the worker nodes: imports from a network file system are slow.
    - Compile with `numba.njit(cache=True)`, so that later processes load the compiled code.

    **When it is not a problem.** Each process pays it once. It is a large share of a one-minute test, and of a run of
    an hour a small one: look at the seconds, not at the share.
    """
    rows = evidence.rows_of("start-up")
    if not rows:
        return None
    found = sorted(evidence.started, key=lambda one: -one.seconds)
    culprits = [Culprit("worker", one.worker, one.seconds) for one in found[:NAMED]]
    # a worker imports coffea while it unpickles its first task, and what process() imports in its first chunk
    before = sum(one.idle_seconds for one in found) >= 0.2 * sum(one.seconds for one in found)
    once = None if before else _once(evidence)
    loaded = dict.fromkeys(name for one in found for name in one.modules if not name.startswith(("roastcoffea", "_")))
    modules = [name for name in loaded if name not in sys.stdlib_module_names][:4]  # Python's own load fast
    why = f"; they imported {', '.join(modules)}" if modules else ""
    preloaded = modules
    if before or not modules or "coffea" in modules:
        preloaded = ["coffea.processor", *(name for name in modules if name not in WITH_COFFEA)]
    advice = f"Import {', '.join(preloaded)} in a preload of the workers."
    remedy: str | None = f"dask worker ... {' '.join(f'--preload {one}' for one in preloaded)}"
    if once is not None:
        why, remedy = f": {once} takes most of the time of a first chunk", None
        advice = f"Keep the workers from run to run, or store what {once} makes in a file that loads faster."
        culprits.append(Culprit("function", str(once)))
    if evidence.local:
        remedy = _pool_that_stays(evidence)
        advice = "Only the first chunks of a process take it: let the same one process more of them."
        if remedy:
            advice = "Keep the processes from step to step, and from run to run."
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
    """Line that takes the time of a worker's first chunk; None where imports do, or where the profile lacks it.

    The profile has the stacks of the longest attempt apart, which is a first one where these take long.
    """
    if evidence.counted is None or evidence.profile is None:
        return None
    chunks = evidence.counted.select(["id", "worker", "start", "process_seconds"]).to_pandas()
    leaders = chunks.sort_values("start", kind="stable").drop_duplicates("worker")
    excess = leaders["process_seconds"].fillna(0.0) - chunks["process_seconds"].fillna(0.0).median()
    started = leaders["worker"].map({one.worker: one.seconds for one in evidence.started}).fillna(np.inf)
    # those whose start-up was in process(), for the most part
    first = set(leaders["id"][2 * excess > started])
    stacks = [stack for stack in evidence.profile.stacks if stack.chunk in first]
    imports = [one for one in stacks if any(place.file.startswith("<frozen importlib") for place in one.places)]
    if not stacks or sum(one.seconds for one in imports) > 0.25 * sum(one.seconds for one in stacks):
        return None
    for call, (share, _) in evidence.profile.calls(stacks[0].chunk).items():
        # a line that takes as much of any chunk is not what the first one does once
        usual, _ = evidence.calls.get(call, (0.0, 0))
        return call.place if share >= max(0.5, 1.5 * usual) else None
    return None


def _pool_that_stays(evidence: Evidence) -> str | None:
    """Line that makes a pool before the Runner call; None unless executors are known to make one for each step."""
    calls = [call.options for call in evidence.run.calls if call.options.get("executor.pool") == "ProcessPoolExecutor"]
    workers = [size for options in calls if isinstance(size := options.get("executor.workers"), int)]
    return f"FuturesExecutor(pool=loky.get_reusable_executor(max_workers={max(workers)}))" if workers else None
