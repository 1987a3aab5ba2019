"""What findings name: hosts, sections, chunks, errors, in words; and chunk sizes that would take less time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import LARGER, LONGEST_LINE, MOST, ROUNDS_OF_CHUNKS, TARGET, Evidence
from roastcoffea.errors import root_cause
from roastcoffea.metrics import phases
from roastcoffea.metrics.byte_ledger import endpoint
from roastcoffea.units import BYTE, FRACTION, SECOND, number


def slowest_endpoint(evidence: Evidence, rows: Iterable[str]) -> str:
    """The host whose files the chunks spent most time of these classes on, where files have one."""
    columns = [column for name in rows for column in phases.COLUMNS_OF.get(name, ())]
    if evidence.counted is None or not columns:
        return ""
    waited: dict[str, float] = {}
    for row in evidence.counted.group_by("file").aggregate([(column, "sum") for column in columns]).to_pylist():
        host = endpoint(row["file"])
        if host is not None:
            waited[host] = waited.get(host, 0.0) + sum(row[f"{column}_sum"] or 0.0 for column in columns)
    slowest = max(waited, key=lambda host: waited[host], default="")
    return f", most at {slowest}" if waited.get(slowest) else ""


def waiting_section(evidence: Evidence) -> str:
    """The section that waits the most, the innermost of those that hold each other; how to have one, where none is."""
    sections = evidence.run.sections
    known = None if sections is None else sections.select(["name", "wall_seconds", "cpu_seconds"]).drop_null()
    if known is None or not len(known):
        return "sections (track_time) find them"
    waited = known.append_column("waited", pc.subtract(known["wall_seconds"], known["cpu_seconds"]))
    sums = dict(zip(*waited.group_by("name").aggregate([("waited", "sum")]).to_pydict().values(), strict=True))
    most = max(sums.values())
    innermost = max((name for name in sums if sums[name] >= MOST * most), key=lambda name: name.count("/"))
    return f"section {innermost!r} was without CPU for {SECOND.text(sums[innermost])}, reading included"


def crowded_host(evidence: Evidence) -> str | None:
    """A host on which there are more threads for tasks than cores."""
    if evidence.run.lifetimes is None:
        return None
    threads: Counter[str] = Counter()
    for row in evidence.run.lifetimes.select(["host", "threads", "start", "stop"]).to_pylist():
        if row["start"] <= evidence.run.start + evidence.elapsed / 2 <= row["stop"]:
            threads[row["host"]] += row["threads"]
    cores = {host.cores for host in evidence.run.environment.hosts}
    if len(cores) != 1 or None in cores:
        return None
    (each,) = cores
    host, most = max(threads.items(), key=lambda item: item[1], default=("", 0))
    return f"{host} has {number(most)} threads for tasks on {number(each)} cores" if each and most > each else None


def task_length(evidence: Evidence) -> str:
    """How many tasks there were, and how long."""
    tasks = evidence.run.tasks
    if tasks is None or not len(tasks):
        return ""
    mean = pc.mean(pc.subtract(tasks["stop"], tasks["start"])).as_py()
    return "" if mean is None else f"; {number(len(tasks))} tasks of {SECOND.text(mean)} in the mean"


def fetched(evidence: Evidence) -> str:
    """What workers fetched from each other."""
    if evidence.fine is None:
        return ""
    came = sum(worker["transfer_bytes"] for worker in evidence.fine.values())
    return f" ({BYTE.text(came)} were fetched)" if came else ""


def worst_straggler(evidence: Evidence) -> str:
    """The slowest chunk, where one is slower than its like."""
    if not evidence.stragglers:
        return ""
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    return (
        f"; the slowest chunk took {SECOND.text(worst['wall_seconds'])} instead of "
        f"{SECOND.text(worst['expected_seconds'])} ({worst['file']}, entries {worst['entry_start']} to "
        f"{worst['entry_stop']}, {worst['phase']})"
    )


def commonest_error(evidence: Evidence) -> str:
    """The error that most attempts ended with."""
    chunks = evidence.run.chunks
    errors = [] if chunks is None else chunks["error"].drop_null().to_pylist()
    if not errors:
        return ""
    ((commonest, times),) = Counter(errors).most_common(1)
    return f"; {number(times)} x {root_cause(commonest)[:LONGEST_LINE]}"


def larger_chunks(evidence: Evidence, fixed: float) -> str:
    """The chunk size at which a fixed cost of each chunk would be a small share."""
    generic = "Make chunks larger"
    events, chunks = evidence.sum_of("events"), evidence.chunks
    if not events or evidence.counted is None:
        return "Make tasks longer: fewer of them, each with more to do"
    if _out_of_memory(evidence):
        return "Larger chunks would help, but workers are out of memory: give them more first"
    now = events / chunks
    set_size = _set_chunksize(evidence)
    if set_size is not None and set_size > 2 * now:
        return f"Merge files: they have about {_rounded(now)} events, and chunksize={set_size} is larger"
    work = (evidence.sum_of("wall_seconds") or 0.0) - evidence.ledger.get(phases.OPEN, 0.0)
    factor = fixed * (1 - TARGET) / (TARGET * work) if work > 0 else float("inf")
    size, purpose = min(
        (factor * events / chunks, f"makes that {FRACTION.text(TARGET)} of a chunk's work"),
        (events / (ROUNDS_OF_CHUNKS * evidence.threads), f"leaves {ROUNDS_OF_CHUNKS} chunks for each thread"),
        (pc.max(evidence.counted["entry_stop"]).as_py() or events, "has the largest file's events"),
    )
    if size < LARGER * now:
        return f"{generic}, if there are enough of them for all threads"
    return f"{generic}: chunksize={_rounded(size)} instead of about {_rounded(now)} {purpose}"


def smaller_chunks(evidence: Evidence) -> str:
    """The chunk size at which the last round is short."""
    events, wall, chunks = evidence.sum_of("events"), evidence.sum_of("wall_seconds"), evidence.chunks
    if not events or not wall:
        return "Cut the longest tasks"
    size = events / chunks * TARGET * 2 * evidence.elapsed / (wall / chunks)
    size = min(size, events / (ROUNDS_OF_CHUNKS * evidence.threads))
    if evidence.stragglers or size >= events / chunks:
        return "Look at the slowest chunks: `measurement.stragglers`"
    return f"Make chunks smaller: chunksize={_rounded(size)} instead of about {_rounded(events / chunks)}"


def _set_chunksize(evidence: Evidence) -> int | None:
    """The smallest chunk size that a Runner was given."""
    sizes = [call.options.get("chunksize") for call in evidence.run.calls]
    return min((size for size in sizes if isinstance(size, int)), default=None)


def _out_of_memory(evidence: Evidence) -> bool:
    lost = evidence.ledger.get(phases.PAUSED, 0.0) + evidence.spilled
    return evidence.wall(lost) >= evidence.least("memory")


def _rounded(size: float) -> int:
    """Number of events with two digits that count."""
    return max(int(float(f"{size:.2g}")), 1)
