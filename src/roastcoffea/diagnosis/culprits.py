"""Who or what is behind a class of time: endpoints, files, sections, functions, workers, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import LOCAL, UNKNOWN, endpoint
from roastcoffea.units import SECOND, counted

MOST: Final = 0.9
"""A section inside of another is named in its place where it waited for so much of the other's time."""

WAITS_OF_CPU: Final = (phases.COLUMNS_OF[phases.CONTENTION][0], phases.COLUMNS_OF[phases.LOCK][0])
"""Columns of chunks with what CPU time waits for."""

NAMED: Final = 3
"""Culprits of one kind that are named."""


def by_part(table: pa.Table | None, key: str, columns: Iterable[str]) -> dict[Any, float]:
    """Sum of these columns of the chunks by a key, largest first."""
    names = list(columns)
    if table is None or not names:
        return {}
    sums = table.group_by(key).aggregate([(name, "sum") for name in names]).to_pylist()
    found = {row[key]: sum(row[f"{name}_sum"] or 0.0 for name in names) for row in sums}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def endpoints(seen: Evidence, rows: Iterable[str]) -> list[Culprit]:
    """Hosts whose files took most time of these classes; local files have none."""
    columns = [column for name in rows for column in phases.COLUMNS_OF.get(name, ())]
    sums: dict[str, float] = {}
    for file, seconds in by_part(seen.counted, "file", columns).items():
        host = endpoint(file)
        if host not in {None, LOCAL, UNKNOWN}:
            sums[host] = sums.get(host, 0.0) + seconds
    found = sorted(sums.items(), key=lambda item: -item[1])
    return [Culprit("endpoint", name, seconds) for name, seconds in found[:NAMED] if seconds > 0]


def rate_of_stream(seen: Evidence) -> float | None:
    """Bytes that a thread received in a second of opening and reading; None where bytes or time are not known."""
    columns = [*phases.COLUMNS_OF[phases.READ], *phases.COLUMNS_OF[phases.OPEN]]
    seconds = sum(seen.sum_of(column) or 0.0 for column in columns)
    amount = seen.sum_of("bytes_requested")
    return amount / seconds if amount and seconds else None


def blocked_sections(seen: Evidence) -> list[Culprit]:
    """Sections that were without CPU the longest, the innermost of those that hold each other."""
    sections = seen.run.sections
    known = None if sections is None else sections.select(["name", "wall_seconds", "cpu_seconds"]).drop_null()
    if known is None or not len(known):
        return []
    # under load CPU time waits for cores and for the interpreter
    cpu = seen.sum_of("cpu_seconds") or 0.0
    rate = sum(seen.sum_of(column) or 0.0 for column in WAITS_OF_CPU) / cpu if cpu else 0.0
    taken = pc.multiply(known["cpu_seconds"], 1.0 + rate)
    waited = known.append_column("waited", pc.subtract(known["wall_seconds"], taken))
    sums = by_part(waited, "name", ["waited"])
    found = []
    for name, seconds in sums.items():
        inner = [other for other in sums if other.startswith(f"{name}/") and sums[other] >= MOST * seconds]
        if not inner and seconds > 0:
            found.append(Culprit("section", name, seconds))
    return found[:NAMED]


def functions(seen: Evidence, state: str, *, own: bool = False) -> list[Culprit]:
    """Functions of the user's own code with the most time in a state, as file:line.

    With `own` only time in the lines themselves counts, and not in what they call.
    """
    if seen.hot is None:
        return []
    sums: dict[tuple[str, str], float] = {}
    lines: dict[tuple[str, str], tuple[float, int]] = {}
    for row in seen.hot.to_pylist():
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


class Crowded(NamedTuple):
    """A host with more threads for tasks than cores."""

    host: str
    workers: int
    threads: int
    cores: int

    def explains(self, waited: float, computed: float) -> bool:
        """Whether its own threads can have waited for each other for most of what they waited."""
        return (self.threads - self.cores) / self.threads * (waited + computed) >= waited / 2

    @property
    def remedy(self) -> str:
        """What to give a cluster so that each thread has a core."""
        each = self.cores // self.workers
        return f"nthreads={each}" if each else f"n_workers={self.cores}"


def core_wait_in_wait(seen: Evidence) -> float:
    """Seconds without a free core in "wait", which older measurements did not split."""
    whole, delay = seen.rows_of("blocked").get(phases.WAIT, 0.0), seen.sum_of("core_wait_seconds")
    return min(whole, delay or 0.0)


def delay_outside_process(seen: Evidence) -> float:
    """Seconds without a free core while chunks were opened and built; 0 where unknown."""
    of_attempts, inside = seen.sum_of("core_wait_seconds"), seen.sum_of("contention_seconds")
    return 0.0 if of_attempts is None or inside is None else max(of_attempts - inside, 0.0)


def threads_per_core(seen: Evidence) -> float:
    """Threads for tasks divided by cores, of the most crowded host; 0 where unknown."""
    found = _threads_of_hosts(seen)
    return max((sum(threads) / cores for threads, cores in found.values()), default=0.0)


def chunks_of_a_file(seen: Evidence) -> float:
    """Mean number of chunks of a file that were computed."""
    files = 0 if seen.counted is None else len(seen.counted["file"].unique())
    return seen.chunks / files if files else 0.0


def crowded_hosts(seen: Evidence) -> list[Crowded]:
    """Hosts with more threads for tasks than cores."""
    found = _threads_of_hosts(seen).items()
    return [Crowded(host, len(each), sum(each), cores) for host, (each, cores) in found if sum(each) > cores]


def _threads_of_hosts(seen: Evidence) -> dict[str, tuple[list[int], int]]:
    """Threads of the workers on each host in the middle of the run, and its cores; none where cores are unknown."""
    if seen.run.lifetimes is None:
        return {}
    middle, threads = seen.run.start + seen.elapsed / 2, dict[str, list[int]]()
    for row in seen.run.lifetimes.select(["host", "threads", "start", "stop"]).to_pylist():
        if row["start"] <= middle <= row["stop"]:
            threads.setdefault(row["host"], []).append(row["threads"])
    cores = {host.cores for host in seen.run.environment.hosts}
    each = cores.pop() if len(cores) == 1 else None
    return {} if each is None else {host: (most, each) for host, most in threads.items()}


def hosts_of(seen: Evidence) -> Mapping[str, str]:
    """Host of each worker."""
    lifetimes = seen.run.lifetimes
    if lifetimes is None:
        return {}
    return dict(zip(*lifetimes.select(["worker", "host"]).to_pydict().values(), strict=True))


def contended(seen: Evidence) -> list[Culprit]:
    """Hosts, else workers, whose chunks waited for a core the longest."""
    columns = phases.COLUMNS_OF[phases.CONTENTION]
    of_host, hosts = dict[str, float](), hosts_of(seen)
    for worker, seconds in by_part(seen.counted, "worker", columns).items():
        host = hosts.get(worker) or str(worker)
        of_host[host] = of_host.get(host, 0.0) + seconds
    found = sorted(of_host.items(), key=lambda item: -item[1])
    return [Culprit("host", host, seconds) for host, seconds in found[:NAMED] if seconds > 0]


def withheld(seen: Evidence, column: str) -> float:
    """Seconds of throttling or steal over all hosts; workers of one host share them."""
    lifetimes = seen.run.lifetimes
    if lifetimes is None:
        return 0.0
    of_hosts = lifetimes.group_by("host").aggregate([(column, "max")])
    return float(pc.sum(of_hosts[f"{column}_max"]).as_py() or 0.0)


def task_length(seen: Evidence) -> str:
    """Number of tasks, and how long one takes."""
    tasks = seen.run.tasks
    if tasks is None or not len(tasks):
        return "tasks"
    mean = pc.mean(pc.subtract(tasks["stop"], tasks["start"])).as_py()
    of = "" if mean is None else f" of {SECOND.text(mean)}"
    return f"{counted(len(tasks), 'task')}{of}"


def mean_output(seen: Evidence) -> float | None:
    """Bytes of the result of a chunk's task, on average; None where not known."""
    tasks = seen.run.tasks
    if tasks is None:
        return None
    ours = tasks.filter(pc.equal(tasks["kind"], "processor"))
    mean: float | None = pc.mean(ours["nbytes"]).as_py() if len(ours) else None
    return mean


def worst_straggler(seen: Evidence) -> Culprit | None:
    """The file of the slowest chunk, where one is slower than its like."""
    if not seen.stragglers:
        return None
    (worst,) = seen.stragglers.slice(0, 1).to_pylist()
    name = f"{worst['file']}, entries {worst['entry_start']} to {worst['entry_stop']}"
    return Culprit("file", name, worst["excess_seconds"], worst["wall_seconds"] / worst["expected_seconds"])
