"""The causes of lost time, one function each: what it claims, and what is to be said of it.

A row of the time ledger belongs to one cause: the one that is its class's word. Spilling, and what a slow worker takes
longer, are no rows of it, and may be won with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.evidence import LEAST_OF_CLIENT, Evidence, Finding, Rows
from roastcoffea.metrics import phases
from roastcoffea.records import tasks as task_records
from roastcoffea.units import SECOND, number


class Claim(NamedTuple):
    """Evidence with the thread seconds that a cause claims of it."""

    evidence: Evidence
    rows: Rows

    @property
    def seconds(self) -> float:
        """All that is claimed."""
        return sum(self.rows.values())


class Cause(NamedTuple):
    """A cause of lost time."""

    name: str
    text: Callable[[Claim], str]
    rows: Callable[[Evidence], Rows]
    looks_idle: bool
    """Whether a missing row of a task would look like it."""
    of_threads: bool
    """Whether the share of the threads' time stands before the text."""

    def finding(self, evidence: Evidence) -> Finding | None:
        """Potential saving, where it is large enough."""
        claim = Claim(evidence, self.rows(evidence))
        seconds = evidence.wall(claim.seconds)
        if seconds < evidence.least(self.name):
            return None
        share = f"{evidence.share(claim.seconds)} of the threads' time " if self.of_threads else ""
        return Finding(self.name, seconds, f"{share}{self.text(claim)}", claim.rows)


CAUSES: Final[dict[str, Cause]] = {}

Text = Callable[[Claim], str]


def cause(
    name: str, *, rows: Callable[[Evidence], Rows] | None = None, looks_idle: bool = False, of_threads: bool = True
) -> Callable[[Text], Text]:
    """Make a function that says what is slow, and what to change, a cause.

    Parameters
    ----------
    rows
        What it claims, where that is not the classes that have its name as their word.
    of_threads
        Whether the share of the threads' time stands before the text.
    """

    def add(text: Text) -> Text:
        claimed = rows or (lambda evidence: evidence.rows_of(name))
        CAUSES[name] = Cause(name, text, claimed, looks_idle, of_threads)
        return text

    return add


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Potential savings; none for idle time where something is missing."""
    complete = evidence.ledger.certificate.complete
    found = (one.finding(evidence) for one in CAUSES.values() if complete or not one.looks_idle)
    return (finding for finding in found if finding is not None)


@cause("storage")
def storage(claim: Claim) -> str:
    """Waiting for storage."""
    return (
        f"waits for storage{culprits.slowest_endpoint(claim.evidence, claim.rows)}. "
        "Read from a nearer or faster place; or run more processes than there are cores: who waits needs none"
    )


@cause("decompression")
def decompression(_: Claim) -> str:
    """Decompression of baskets."""
    return "decompresses. Store the files with zstd or lz4 instead of lzma or zlib, or read fewer branches"


@cause("metadata")
def metadata(claim: Claim) -> str:
    """Opening files and building events."""
    evidence, chunks = claim.evidence, claim.evidence.chunks
    each = f", {SECOND.text(claim.seconds / chunks)} for each of {number(chunks)} chunks" if chunks else ""
    larger = culprits.larger_chunks(evidence, claim.seconds)
    return f"opens files and builds events{each}. {larger}, or a schema with fewer collections"


@cause("contention")
def contention(claim: Claim) -> str:
    """Threads that could run and had no core."""
    crowded = culprits.crowded_host(claim.evidence)
    remedy = "Others use the same cores: take other hosts" if crowded is None else f"{crowded}: take fewer threads"
    return f"waits for a core. {remedy}, or more cores"


@cause("interpreter lock")
def interpreter_lock(_: Claim) -> str:
    """Threads that wait for another one of their process."""
    return "waits for the interpreter's lock, which the threads of a process share. Use processes of one thread"


@cause("blocked")
def blocked(claim: Claim) -> str:
    """Time in process() that is spent neither computing nor reading."""
    section = culprits.waiting_section(claim.evidence)
    return f"is blocked in process(), and not in reading. Look for sleeps, locks, calls of services; {section}"


@cause("start-up")
def startup(_: Claim) -> str:
    """Imports and first tasks."""
    return "goes into start-up: imports, first tasks. Keep workers from run to run, or import in a worker preload"


@cause("scheduler", looks_idle=True)
def scheduler(claim: Claim) -> str:
    """Handing out tasks."""
    evidence, largest = claim.evidence, max(claim.rows, key=lambda name: claim.rows[name])
    doing = "the rest of the tasks around process()" if evidence.local else "handing out tasks"
    what = f'goes into {doing} (most of it: "{largest}"){culprits.task_length(evidence)}'
    return f"{what}. {culprits.larger_chunks(evidence, claim.seconds)}"


@cause("transfer")
def transfer(claim: Claim) -> str:
    """Waiting for results from other workers."""
    return (
        f"waits for results from other workers{culprits.fetched(claim.evidence)}. "
        "Make the output smaller, or merge in larger steps (treereduction in DaskExecutor)"
    )


def _with_tail(word: str, kind: str) -> Callable[[Evidence], Rows]:
    """Classes of a word, and the idle time of the threads that had nothing else to do than such tasks."""

    def rows(evidence: Evidence) -> Rows:
        waited = evidence.ledger.tail_of.get(kind, 0.0)
        return evidence.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})

    return rows


@cause("merge", rows=_with_tail("merge", task_records.MERGE), looks_idle=True)
def merge(_: Claim) -> str:
    """Merging of results."""
    return (
        "merges results, or waits for that. "
        "Make the output smaller (fewer bins, no columns), or merge in larger steps (treereduction in DaskExecutor)"
    )


@cause("preprocessing", rows=_with_tail("preprocessing", task_records.PREPROCESSING), looks_idle=True)
def preprocessing(_: Claim) -> str:
    """Fetching of the files' metadata."""
    return (
        "fetches the metadata of files, or waits for that. "
        "Keep it: give the Runner a metadata_cache, or the chunks of an earlier Runner.preprocess"
    )


def _rest_of_tail(evidence: Evidence) -> Rows:
    """Idle time at an end that is neither merging's nor preprocessing's."""
    others = sum(evidence.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = evidence.ledger.get(phases.TAIL, 0.0) - others
    return {phases.TAIL: idle} if idle > 0 else {}


@cause("tail", rows=_rest_of_tail, looks_idle=True)
def tail(claim: Claim) -> str:
    """Idle threads while others still work."""
    worst, smaller = culprits.worst_straggler(claim.evidence), culprits.smaller_chunks(claim.evidence)
    return f"is idle at an end, while others still work{worst}. {smaller}"


def _with_spilling(evidence: Evidence) -> Rows:
    return evidence.rows_of("memory") | ({"spilling": evidence.spilled} if evidence.spilled > 0 else {})


@cause("memory", rows=_with_spilling, of_threads=False)
def memory(claim: Claim) -> str:
    """Workers that are paused or move results to disk."""
    # Dask does not tell for whom a worker spills
    others = claim.evidence.ledger.get(phases.OTHER_TASKS, 0.0) > 0
    return (
        f"workers ran out of memory: {SECOND.text(claim.rows.get(phases.PAUSED, 0.0))} of thread time paused, and "
        f"moving results to disk and back for {SECOND.text(claim.evidence.spilled)}"
        f"{' (with what others did on these workers)' if others else ''}. "
        "Give them more memory, or make chunks or outputs smaller"
    )


def _fine(*names: str) -> Callable[[Evidence], Rows]:
    """What Dask counted inside of tasks, over all workers."""

    def rows(evidence: Evidence) -> Rows:
        workers = (evidence.fine or {}).values()
        sums = {name: sum(worker.get(name, 0.0) for worker in workers) for name in names}
        return {name.removesuffix("_time_seconds"): seconds for name, seconds in sums.items() if seconds > 0}

    return rows


def _parts(rows: Rows) -> str:
    return ", ".join(f"{name} {SECOND.text(seconds)}" for name, seconds in rows.items())


@cause("serialization", rows=_fine("serialization_time_seconds", "deserialization_time_seconds"))
def serialization(claim: Claim) -> str:
    """Pickling of functions and results inside of tasks."""
    return (
        f"goes into Dask's serialization in tasks ({_parts(claim.rows)}). "
        "Return arrays, histograms and numbers instead of other objects, and keep large data out of the processor"
    )


@cause("compression", rows=_fine("compression_time_seconds", "decompression_time_seconds"))
def compression(claim: Claim) -> str:
    """Dask's compression of what is spilled and fetched, inside of tasks."""
    return (
        f"goes into Dask's compression in tasks, which is not ROOT's ({_parts(claim.rows)}). Switch it off "
        "(distributed.worker.memory.spill-compression and distributed.comm.compression in Dask's configuration)"
    )


WHEN: Final = {"before": "before the first task", "between": "between tasks", "after": "after the last one"}


@cause("client", looks_idle=True)
def client(claim: Claim) -> str:
    """Idle threads while nothing is to be done."""
    evidence = claim.evidence
    parts = [
        f"{SECOND.text(evidence.wall(seconds))} {WHEN[when]}"
        for when, seconds in evidence.ledger.client_of.items()
        if seconds > LEAST_OF_CLIENT * evidence.total
    ]
    remedy = (
        "Meanwhile this process prepares, sends chunks to its workers, and merges: make the output smaller"
        if evidence.local
        else "Do before and after the run what needs no cluster, make the output smaller, and start workers late"
    )
    return f"nothing was to be done: {', '.join(parts) or 'the client prepared or merged'}. {remedy}"


def _beyond_typical(evidence: Evidence) -> Rows:
    return {f"slow: {worker}": slow.beyond for worker, slow in evidence.slow_workers.items() if slow.beyond > 0}


@cause("workers", rows=_beyond_typical, of_threads=False)
def workers(claim: Claim) -> str:
    """Workers that are slower than the typical one."""
    slow = claim.evidence.slow_workers
    worst = max(slow, key=lambda worker: slow[worker].beyond)
    return (
        f"{number(len(slow))} worker(s) are slower than the typical one for the same chunks, "
        f"{worst} by {slow[worst].factor:.2g} x. Look what else runs on its host"
    )


@cause("failures")
def failures(claim: Claim) -> str:
    """Attempts that failed."""
    failed = claim.evidence.ledger.failed
    reasons = ", ".join(f"{SECOND.text(seconds)} {reason}" for reason, seconds in failed.items())
    error = culprits.commonest_error(claim.evidence)
    return f"went into failed attempts ({reasons}){error}. `measurement.failed` has them all"


@cause("interpretation")
def interpretation(_: Claim) -> str:
    """Making arrays of baskets."""
    return (
        "makes arrays of what was read. Read fewer branches, above all of those that are no plain numbers: "
        "`measurement.branches` has their times"
    )


@cause("checkpoint")
def checkpoint(_: Claim) -> str:
    """Checkpoints."""
    return "loads and saves checkpoints. Make the output smaller, chunks larger, or keep checkpoints in a faster place"


def _of_others(evidence: Evidence) -> Rows:
    # where no Runner was called, these tasks are what was to be measured
    return evidence.rows_of("other tasks") if evidence.run.calls else {}


@cause("other tasks", rows=_of_others)
def other_tasks(_: Claim) -> str:
    """Tasks that no Runner call here asked for."""
    return (
        "went to tasks that belong to no Runner call here. "
        "Where they are another user's or another run's, take workers of your own"
    )
