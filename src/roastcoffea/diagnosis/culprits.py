"""Culprits behind a class of time: endpoints, files, sections, functions and workers; and why a server is late."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import MOST_INSIDE, SHORTEST, Evidence
from roastcoffea.diagnosis.finding import Culprit, Rows
from roastcoffea.metrics import phases
from roastcoffea.metrics.endpoints import LOCAL, UNKNOWN, XCACHE, with_endpoints
from roastcoffea.metrics.facts import is_loopback, known_sum
from roastcoffea.metrics.profile import Call
from roastcoffea.records.chunks import TRACED
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, BYTE_PER_SECOND, SECOND, counted, number

WAITS_OF_CPU: Final = (phases.COLUMNS_OF[phases.CONTENTION][0], phases.COLUMNS_OF[phases.LOCK][0])
"""Columns of chunks with what CPU time waits for."""

LEAST_OF_OTHERS: Final = 0.1
"""Cores that other processes must have taken to be mentioned."""

NAMED: Final = 3
"""Number of culprits of one kind that are named."""


def by_part(table: pa.Table | None, key: str, columns: Iterable[str]) -> dict[Any, float]:
    """Sum of these columns of the chunks by a key, largest first."""
    names = list(columns)
    if table is None or not names:
        return {}
    sums = table.group_by(key).aggregate([(name, "sum") for name in names]).to_pylist()
    found = {row[key]: sum(row[f"{name}_sum"] or 0.0 for name in names) for row in sums}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def endpoints(evidence: Evidence, rows: Iterable[str]) -> list[Culprit]:
    """Servers whose files took most time of these classes; none if local files took most."""
    columns = [column for name in rows for column in phases.COLUMNS_OF.get(name, ())]
    counted = None if evidence.counted is None else with_endpoints(evidence.counted)
    sums = by_part(counted, "endpoint", columns)
    if counted is not None and "read_seconds" in columns:
        sums = _with_other_files(counted, sums)
    if next(iter(sums), None) == LOCAL:
        return []
    found = [(name, seconds) for name, seconds in sums.items() if name not in {None, LOCAL, UNKNOWN}]
    return [Culprit("endpoint", name, seconds) for name, seconds in found[:NAMED] if seconds > 0]


def _with_other_files(counted: pa.Table, sums: dict[Any, float]) -> dict[Any, float]:
    """Seconds of each server, with waiting for files that process() opened moved to theirs, by the files' bytes."""
    known = pc.and_(counted["other_read_seconds"].is_valid(), counted["other_requested"].is_valid())
    opened = counted.filter(known)
    chunk = pc.list_parent_indices(opened["other_requested"]).to_numpy()
    size = pc.list_flatten(opened["other_requested"]).to_numpy()
    of_chunk = np.maximum(np.bincount(chunk, size, len(opened)), 1)
    seconds = opened["other_read_seconds"].to_numpy()[chunk] * size / of_chunk[chunk]
    files = pa.table({"file": pc.list_flatten(opened["other_files"]), "seconds": seconds})
    theirs = by_part(with_endpoints(files), "endpoint", ["seconds"])
    own = by_part(opened, "endpoint", ["other_read_seconds"])
    found = {name: sums.get(name, 0.0) + theirs.get(name, 0.0) - own.get(name, 0.0) for name in {**sums, **theirs}}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def rate_of_stream(evidence: Evidence) -> float | None:
    """Bytes per second that a thread received while opening and reading; None if bytes or time are unknown."""
    columns = [*phases.COLUMNS_OF[phases.READ], *phases.COLUMNS_OF[phases.OPEN]]
    seconds = sum(evidence.sum_of(column) or 0.0 for column in columns)
    own = evidence.sum_of("bytes_requested")
    amount = None if own is None else own + (evidence.sum_of("bytes_other") or 0)
    return amount / seconds if amount and seconds else None


def blocked_sections(evidence: Evidence) -> list[Culprit]:
    """Sections that waited longest; of nested ones, the innermost."""
    sections = evidence.run.sections
    known = None if sections is None else sections.select(["name", "wall_seconds", "cpu_seconds"]).drop_null()
    if known is None or not len(known):
        return []
    # under load CPU time waits for cores and for the interpreter
    cpu = evidence.sum_of("cpu_seconds") or 0.0
    rate = sum(evidence.sum_of(column) or 0.0 for column in WAITS_OF_CPU) / cpu if cpu else 0.0
    taken = pc.multiply(known["cpu_seconds"], 1.0 + rate)
    waited = known.append_column("waited", pc.subtract(known["wall_seconds"], taken))
    sums = by_part(waited, "name", ["waited"])
    found = []
    for name, seconds in sums.items():
        inner = [other for other in sums if other.startswith(f"{name}/") and sums[other] >= MOST_INSIDE * seconds]
        if not inner and seconds > 0:
            found.append(Culprit("section", name, seconds))
    return found[:NAMED]


def functions(evidence: Evidence, state: str, *, own: bool = False) -> list[Culprit]:
    """User functions with the most time in a state, as file:line.

    With `own`, only time in the lines themselves counts, not in what they call.
    """
    if evidence.hot is None:
        return []
    sums: dict[tuple[str, str], float] = {}
    lines: dict[tuple[str, str], tuple[float, int]] = {}
    for row in evidence.hot.to_pylist():
        seconds = row[f"{state}_seconds"] or 0.0
        if own and row["leaf"] is not None:
            continue
        key = row["function"], row["file"]
        sums[key] = sums.get(key, 0.0) + seconds
        lines[key] = max(lines.get(key, (0.0, row["line"])), (seconds, row["line"]))
    found = sorted(sums.items(), key=lambda item: -item[1])
    return [
        Culprit("function", f"{function} ({file}:{lines[function, file][1]})", seconds)
        for (function, file), seconds in found[:NAMED]
        if seconds > 0
    ]


class RepeatedLoad(NamedTuple):
    """A call that loads something, in more chunks than there are workers."""

    call: Call
    share: float
    """Of the CPU time in process()."""
    seconds: float
    """CPU seconds in all chunks."""
    chunks: int
    """Chunks in which it ran, at least."""
    workers: int


def repeated_loads(evidence: Evidence) -> list[RepeatedLoad]:
    """Calls that load files, corrections or models again and again.

    A profile does not tell chunks apart, but no chunk has more CPU time than it took: a load that takes more than the
    longest few chunks together ran in others, too.
    """
    cpu = evidence.process_cpu
    if cpu is None or evidence.counted is None:
        return []
    longest, workers = np.cumsum(np.sort(cpu)[::-1]), len(evidence.counted["worker"].unique())
    found = []
    for call, (share, samples) in evidence.calls.items():
        if call.loads:
            certain = share * max(1 - 2 / max(samples, 1) ** 0.5, 0.0)
            chunks = int(np.searchsorted(longest, certain * longest[-1])) + 1
            if chunks > workers:
                found.append(RepeatedLoad(call, share, share * float(longest[-1]), chunks, workers))
    return found


def with_waits(evidence: Evidence, name: str, seconds: float) -> Rows:
    """CPU seconds, and what they wait for a core and for the interpreter: that goes with them."""
    cpu = evidence.sum_of("cpu_seconds") or 0.0
    # chunks have the delay while opening files, too
    inside, lock, whole = (evidence.sum_of(column) or 0.0 for column in (*WAITS_OF_CPU, "core_wait_seconds"))
    waited = max(inside, whole) + lock
    waits = waited * min(seconds / cpu, 1.0) if cpu else 0.0
    return {name: seconds} | ({"waiting for a core or the interpreter": waits} if waits else {})


class Crowded(NamedTuple):
    """A host with more threads for tasks than cores."""

    host: str
    workers: int
    threads: int
    cores: int
    surplus: float
    """Thread seconds of chunks that ran beyond its cores."""

    def explains(self, waited: float, computed: float) -> bool:
        """Whether its own threads can have waited for each other for most of what they waited."""
        if_all_ran = (self.threads - self.cores) / self.threads * (waited + computed)
        return min(if_all_ran, self.surplus) >= waited / 2

    def remedy(self, evidence: Evidence) -> str:
        """Line that starts workers with a core for each thread."""
        each = self.cores // self.workers
        return started_with(evidence, each or 1, self.workers if each else self.cores)


def started_with(evidence: Evidence, threads: int, workers: int | None = None) -> str:
    """Line that starts workers with so many threads each: workers of each host, or None for as many as now."""
    present = set() if evidence.run.lifetimes is None else set(evidence.run.lifetimes["worker"].to_pylist())
    if present and all(one.startswith("inproc:") or is_loopback(one) for one in present):
        return f"LocalCluster(n_workers={workers or len(_present(evidence))}, threads_per_worker={threads})"
    return f"dask worker ... {f'--nworkers {workers} ' if workers else ''}--nthreads {threads}"


def processes(evidence: Evidence) -> str:
    """Line that starts as many threads as now, each in a process of its own: those of the largest host."""
    of_hosts = dict[str, int]()
    for row in _present(evidence):
        of_hosts[row["host"]] = of_hosts.get(row["host"], 0) + row["threads"]
    return started_with(evidence, 1, max(of_hosts.values(), default=1))


def core_wait_in_wait(evidence: Evidence) -> float:
    """Seconds without a free core in "wait", which older measurements did not split."""
    whole, delay = evidence.rows_of("blocked").get(phases.WAIT, 0.0), evidence.sum_of("core_wait_seconds")
    return min(whole, delay or 0.0)


def delay_outside_process(evidence: Evidence) -> float:
    """Seconds without a free core while chunks were opened and built; 0 where unknown."""
    of_attempts, inside = evidence.sum_of("core_wait_seconds"), evidence.sum_of("contention_seconds")
    return 0.0 if of_attempts is None or inside is None else max(of_attempts - inside, 0.0)


def threads_per_core(evidence: Evidence) -> float:
    """Threads for tasks divided by cores, of the most crowded host; 0 where unknown."""
    found = _threads_of_hosts(evidence)
    return max((sum(threads) / cores for threads, cores in found.values()), default=0.0)


def chunks_of_a_file(evidence: Evidence) -> float:
    """Mean number of chunks of a file that were computed."""
    files = 0 if evidence.counted is None else len(evidence.counted["file"].unique())
    return evidence.chunks / files if files else 0.0


def crowded_hosts(evidence: Evidence) -> list[Crowded]:
    """Hosts with more threads for tasks than cores."""
    found = _threads_of_hosts(evidence).items()
    return [
        Crowded(host, len(each), sum(each), cores, _surplus(evidence, host, cores))
        for host, (each, cores) in found
        if sum(each) > cores
    ]


def _surplus(evidence: Evidence, host: str, cores: int) -> float:
    """Thread seconds of chunks that ran on a host while as many as it has cores ran there already."""
    chunks = evidence.run.chunks
    if chunks is None:
        return 0.0
    workers = [worker for worker, its_host in hosts_of(evidence).items() if its_host == host]
    rows = chunks.filter(pc.is_in(chunks["worker"], pa.array(workers, pa.string()))).select(["start", "stop"])
    starts, stops = (column.to_numpy() for column in rows.drop_null().columns)
    moments = np.concatenate([starts, stops])
    order = np.argsort(moments, kind="stable")
    running = np.cumsum(np.repeat([1, -1], len(starts))[order])
    return float(np.sum(np.maximum(running[:-1] - cores, 0) * np.diff(moments[order])))


def _threads_of_hosts(evidence: Evidence) -> dict[str, tuple[list[int], int]]:
    """Threads of the workers on each host in the middle of the run, and its cores; none where cores are unknown."""
    if evidence.run.lifetimes is None:
        return {}
    threads = dict[str, list[int]]()
    for row in _present(evidence):
        threads.setdefault(row["host"], []).append(row["threads"])
    cores = {host.cores for host in evidence.run.environment.hosts}
    each = cores.pop() if len(cores) == 1 else None
    return {} if each is None else {host: (most, each) for host, most in threads.items()}


def _present(evidence: Evidence) -> list[dict[str, Any]]:
    """Workers in the middle of the run."""
    middle, lifetimes = (evidence.run.start + evidence.run.stop) / 2, evidence.run.lifetimes
    lives = [] if lifetimes is None else lifetimes.select(["host", "threads", "start", "stop"]).to_pylist()
    return [row for row in lives if row["start"] <= middle <= row["stop"]]


def hosts_of(evidence: Evidence) -> Mapping[str, str]:
    """Host of each worker."""
    lifetimes = evidence.run.lifetimes
    if lifetimes is None:
        return {}
    return dict(zip(*lifetimes.select(["worker", "host"]).to_pydict().values(), strict=True))


def contended(evidence: Evidence) -> list[Culprit]:
    """Hosts, else workers, whose chunks waited longest for a core."""
    columns = phases.COLUMNS_OF[phases.CONTENTION]
    of_host, hosts = dict[str, float](), hosts_of(evidence)
    for worker, seconds in by_part(evidence.counted, "worker", columns).items():
        host = hosts.get(worker) or str(worker)
        of_host[host] = of_host.get(host, 0.0) + seconds
    found = sorted(of_host.items(), key=lambda item: -item[1])
    return [Culprit("host", host, seconds) for host, seconds in found[:NAMED] if seconds > 0]


def cores_of_others(run: Run) -> str:
    """Cores that other processes took, of hosts whose cores the run may all use; empty if few, or unknown."""
    found = [host for host in run.environment.hosts if host.others is not None and host.cores == host.node_cores]
    most = max(found, key=lambda host: host.others or 0.0, default=None)
    if most is None or most.others is None or most.others < LEAST_OF_OTHERS:
        return ""
    where = f" of {most.name}" if len(run.environment.hosts) > 1 else ""
    return f"other processes took {number(round(most.others, 1))} of {counted(most.node_cores or 0, 'core')}{where}"


def workers_came(evidence: Evidence) -> bool:
    """Whether most workers came after the run had begun."""
    lifetimes = evidence.run.lifetimes
    return lifetimes is not None and pc.min(lifetimes["start"]).as_py() > evidence.run.start + SHORTEST


def traced(evidence: Evidence) -> float:
    """Seconds in which coffea found out, in this process, which columns to preload."""
    opened = evidence.run.preprocessing
    return 0.0 if opened is None else known_sum(opened.filter(pc.equal(opened["outcome"], TRACED))["wall_seconds"])


def prepared(evidence: Evidence) -> bool:
    """Whether a Runner call took most of the time before the first task, and not what came before the call."""
    run = evidence.run
    begun = [table["start"].drop_null() for table in (run.tasks, run.chunks, run.preprocessing) if table is not None]
    first = min([moment for starts in begun if (moment := pc.min(starts).as_py()) is not None], default=run.start)
    call = min((each.start for each in run.calls), default=first)
    return bool(first - call > call - run.start)


def gone(evidence: Evidence) -> set[str]:
    """Addresses of the workers that left before the end."""
    lives = [] if evidence.run.lifetimes is None else evidence.run.lifetimes.select(["worker", "stop"]).to_pylist()
    here = {row["worker"] for row in lives if row["stop"] >= evidence.run.stop}
    return {row["worker"] for row in lives} - here


def scheduler_waited(evidence: Evidence) -> float:
    """Share of the wall time in which the scheduler was ready to run and had no core; 0 where unknown."""
    queue = (
        None if evidence.run.sampling is None else evidence.run.sampling["loop_queue_seconds"].drop_null().to_numpy()
    )
    return 0.0 if queue is None or len(queue) < 2 else float(queue[-1] - queue[0]) / evidence.elapsed


def withheld(evidence: Evidence, column: str) -> float:
    """Seconds of throttling or steal over all hosts; workers of one host share them."""
    lifetimes = evidence.run.lifetimes
    if lifetimes is None:
        return 0.0
    of_hosts = lifetimes.group_by("host").aggregate([(column, "max")])
    return float(pc.sum(of_hosts[f"{column}_max"]).as_py() or 0.0)


def task_length(evidence: Evidence) -> str:
    """Number of tasks, and their mean duration."""
    tasks = evidence.run.tasks
    if tasks is None or not len(tasks):
        return "tasks"
    mean = pc.mean(pc.subtract(tasks["stop"], tasks["start"])).as_py()
    of = "" if mean is None else f" of {SECOND.text(mean)}"
    return f"{counted(len(tasks), 'task')}{of}"


def longest_chunk(evidence: Evidence) -> Culprit | None:
    """File of the chunk that took longest, if that is known."""
    if evidence.counted is None or not len(evidence.counted):
        return None
    names = ["file", "entry_start", "entry_stop", "wall_seconds"]
    rows = evidence.counted.select(names).drop_null().sort_by([("wall_seconds", "descending")]).slice(0, 1).to_pylist()
    return next((Culprit("file", entries_of(row), row["wall_seconds"]) for row in rows), None)


def entries_of(row: Mapping[str, Any]) -> str:
    """Name of a chunk."""
    return f"{row['file']}, entries {row['entry_start']} to {row['entry_stop']}"


def worst_straggler(evidence: Evidence) -> Culprit | None:
    """File of the slowest chunk, if it is a straggler."""
    if not evidence.stragglers:
        return None
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    return Culprit(
        "file", entries_of(worst), worst["excess_seconds"], worst["wall_seconds"] / worst["expected_seconds"]
    )


FAR: Final = 0.005
"""Shortest round trip, in seconds, to a server that is far away: within a site it takes less than a millisecond."""

MOSTLY: Final = 0.5
"""Smallest share of the latency in round trips for which larger requests are the remedy."""

COLD: Final = 3.0
"""Smallest ratio of the rates of repeated and first reads that shows a cold cache: for one server they vary by two."""

LARGE: Final = 4096.0
"""Smallest request, in bytes, whose rate can be compared with others: smaller ones show the latency."""

FEWEST: Final = 10
"""Fewest requests for which latencies and rates mean something."""

SLOWER: Final = 3.0
"""Smallest ratio of its requests' latency to that elsewhere for a slow server: equal servers differ by up to two."""

SLOW: Final = 25e6
"""Rate of a request, in bytes per second, below which a lone server is slow: a single disk is faster."""

VECTORS: Final = 'uproot_options={"handler": uproot.XRootDSource}'


class Answering(NamedTuple):
    """How a server answers, what to do about it, and a line to copy."""

    what: str
    """What it does: a sentence without its subject."""
    advice: str
    remedy: str | None = None
    far: bool = False
    """Whether it is far away: then larger chunks are one remedy of several, and no reason to leave it unnamed."""


def slower_than_others(evidence: Evidence) -> dict[str, float]:
    """Servers whose requests take much longer than they would at the fast ones, and how many times."""
    found = {}
    for row in (known := _known(evidence)):
        others = _fast_ones(row, known)
        waited = sum(one["requests"] * (one["latency"] - one["shortest_latency"]) for one in others)
        if waited <= 0:
            continue
        each = row["bytes_per_request"] * waited / sum(one["bytes_transferred"] for one in others)
        factor = row["latency"] / (min(one["shortest_latency"] for one in others) + each)
        if factor >= SLOWER:
            found[row["endpoint"]] = factor
    return found


def _known(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Servers with requests enough to tell how they answer."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    return [row for row in rows if (row["requests"] or 0) >= FEWEST and row["latency"] and row["rate"]]


def _fast_ones(row: Mapping[str, Any], known: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Other servers that are in the fastest quarter of all: most may be slow."""
    rates = sorted(one["rate"] for one in known)
    return [one for one in known if one is not row and one["rate"] >= rates[-((len(rates) + 3) // 4)]]


def redirector_of(evidence: Evidence, endpoint: str) -> str | None:
    """The redirector that a server stands behind, if any."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    return next((row["redirector"] for row in rows if row["endpoint"] == endpoint), None)


def answering(evidence: Evidence, endpoint: str) -> Answering | None:
    """How a server answers; None where its requests were not measured, or nothing is wrong with them."""
    for row in (known := _known(evidence)):
        if row["endpoint"] == endpoint:
            return _far(row, evidence) or _cold(row) or _slow(row, _fast_ones(row, known))
    return None


def _far(row: Mapping[str, Any], evidence: Evidence) -> Answering | None:
    trip = row["shortest_latency"]
    if trip < FAR or trip < MOSTLY * row["latency"]:
        return None
    what = (
        f"gets {number(row['requests'])} requests of {BYTE.text(row['bytes_per_request'])}, which "
        f"take {SECOND.text(row['latency'])} each and the round trip alone {SECOND.text(trip)}: too many small "
        f"requests over a wide-area network."
    )
    if row["vector_reads"] is None:
        line = _preload(row, evidence)
        if line is not None:
            advice = f"Read the branches at once rather than in turn: {line}. Larger chunks help as well."
            return Answering(what, advice, line, far=True)
    elif row["vector_reads"] < MOSTLY * row["requests"]:
        return Answering(what, f"Read many ranges in one request: {VECTORS}.", VECTORS, far=True)
    return Answering(what, "Use larger chunks, or read a nearer copy.", far=True)


def _preload(row: Mapping[str, Any], evidence: Evidence) -> str | None:
    """Line for the fileset that has the branches of its largest dataset preloaded; None if they are, or are unknown."""
    reads, chunks = evidence.run.branch_reads, evidence.counted
    if row["payload_rate"] is None or reads is None or chunks is None or not len(reads):
        return None
    here = with_endpoints(chunks).filter(pc.equal(with_endpoints(chunks)["endpoint"], row["endpoint"]))
    if not len(here):
        return None
    dataset = max(here["dataset"].value_counts().to_pylist(), key=lambda one: one["counts"])["values"]
    own = here.filter(pc.equal(here["dataset"], dataset))["id"]
    found = reads.filter(pc.is_in(reads["chunk"], value_set=own.combine_chunks()))["branch"].unique().to_pylist()
    return f'fileset["{dataset}"]["preload"] = {json.dumps(sorted(filter(None, found)))}' if any(found) else None


def _cold(row: Mapping[str, Any]) -> Answering | None:
    before, first = row["metadata_rate"], row["payload_rate"]
    if before is None or first is None or first > SLOW:
        return None
    size, early = before * row["metadata_latency"], row["metadata_latency"]
    if size >= LARGE and before >= COLD * first:
        what = (
            f"delivers what was read before at {BYTE_PER_SECOND.text(before)} and what is read for the first time at "
            f"{BYTE_PER_SECOND.text(first)}: its cache was cold."
        )
    elif row["service"] == XCACHE and row["latency"] >= COLD * early:
        what = (
            f"is an XCache that answers requests for what was read before after {SECOND.text(early)} and all on "
            f"average after {SECOND.text(row['latency'])}: it was probably cold."
        )
    else:
        return None
    return Answering(what, "Run it again: from then on the cache has the files.")


def _slow(row: Mapping[str, Any], others: list[Mapping[str, Any]]) -> Answering | None:
    # the rate shows the latency then, on a short way as well
    if row["bytes_per_request"] < LARGE or row["shortest_latency"] >= MOSTLY * row["latency"]:
        return None
    seconds = sum(one["requests"] * one["latency"] for one in others)
    usual = sum(one["bytes_transferred"] for one in others) / seconds if seconds else None
    if row["rate"] > (usual / SLOWER if usual else SLOW):
        return None
    against = f" (others {BYTE_PER_SECOND.text(usual)})" if usual else ""
    latency, trip = SECOND.text(row["latency"]), SECOND.text(row["shortest_latency"])
    what = (
        f"delivers {BYTE_PER_SECOND.text(row['rate'])} per request{against} and answers after {latency} with a round "
        f"trip of {trip}: the server, or the link to it, is slow."
    )
    return Answering(what, "Read its files from another server, or ask its site.")
