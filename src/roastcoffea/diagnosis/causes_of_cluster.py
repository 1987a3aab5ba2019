"""Causes around chunks: what Dask, the client and other workers do with the threads' time."""

from __future__ import annotations

from typing import Final

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.causes_of_chunks import share_of
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Rows
from roastcoffea.diagnosis.removals import Taken
from roastcoffea.metrics import phases
from roastcoffea.records import tasks as task_records
from roastcoffea.units import BYTE, SECOND, number

LEAST_OF_CLIENT: Final = 0.01
"""Least share of all thread time of a part of the client's time that is named."""

LARGE_OUTPUT: Final = 1_000_000
"""Bytes of a chunk's output that take longer to compress, move and merge than anything else costs a chunk."""

SMALLER_OUTPUT: Final = "Return a smaller output (histograms instead of columns, fewer bins)"


def _output(seen: Evidence) -> float:
    """Bytes of a chunk's output, on average; 0 where they are not known or small."""
    size = culprits.mean_output(seen) or 0.0
    return size if size >= LARGE_OUTPUT else 0.0


def _mostly_moved(seen: Evidence) -> bool:
    """Whether moving outputs takes longer than compressing and merging them."""
    handled = sum(seen.ledger.get(name, 0.0) for name in (phases.OVERHEAD, phases.MERGE))
    return seen.ledger.get(phases.TRANSFER, 0.0) > handled


@cause("chunk size", names_culprit=True)
def chunk_size(seen: Evidence) -> Draft | None:
    """Chunks that are too small: what each costs besides its events."""
    found = seen.chunk_size
    if seen.larger is None or _output(seen):
        return None
    now = number(found.usual)
    inside = f", {SECOND.text(found.in_process)} of it in process()" if found.in_process else ""
    cost = found.fixed + (found.in_process or 0.0)
    what = f"Chunks of {now} events are too small: each costs {SECOND.text(cost)} whatever its events{inside}."
    memory = "" if found.memory is None else f" A worker then needs {BYTE.text(found.memory)}."
    culprit = Culprit("chunk size", f"{now} events", cost * seen.chunks)
    rows = {"fixed cost of chunks": cost * seen.chunks}
    taken = Taken("chunk size", removal=found.removal)
    return Draft(what, f"Use {found.line}.{memory}", (culprit,), found.line, rows, taken, found.saving)


@cause("scheduler", looks_idle=True)
def scheduler(seen: Evidence) -> Draft | None:
    """Handing out tasks."""
    outputs = bool(_output(seen))
    # large outputs are compressed around process(), and event loops need the interpreter as well
    others = {phases.OVERHEAD} if outputs else set()
    others |= {phases.OVERHEAD, phases.WORKER_OVERHEAD} if seen.is_due_to("interpreter lock") else set()
    rows = {name: seconds for name, seconds in seen.rows_of("scheduler").items() if name not in others}
    if not rows or (others and seen.wall(sum(rows.values())) < seen.least("scheduler")):
        return None
    largest = max(rows, key=lambda name: rows[name])
    doing = "Running tasks around process()" if seen.local else f"Handing out {culprits.task_length(seen)}"
    what = f"{doing} takes {seen.share(sum(rows.values()))} of thread time, most of it {largest}."
    larger = None if outputs else seen.larger
    advice = f"Use {larger}: fewer, longer tasks." if larger else "Give the scheduler a core of its own."
    return Draft(what, advice, remedy=larger, rows=rows, taken=Taken("scheduler", outputs=outputs))


@cause("transfer")
def transfer(seen: Evidence) -> Draft | None:
    """Waiting for results of other workers."""
    if not seen.rows_of("transfer") or (_output(seen) and not _mostly_moved(seen)):
        return None
    what = f"Tasks wait for results of other workers for {share_of(seen, 'transfer')} of thread time."
    more, line = _merging(seen)
    return Draft(what, f"{SMALLER_OUTPUT}{more}.", remedy=line)


MORE_AT_ONCE: Final = 50


def _merging(seen: Evidence) -> tuple[str, str | None]:
    """Advice to merge more results at once, and its line, where fewer are merged now."""
    now = [call.options.get("executor.treereduction") for call in seen.run.calls]
    if not all(isinstance(one, int) and one < MORE_AT_ONCE for one in now):
        return "", None
    line = f"DaskExecutor(treereduction={MORE_AT_ONCE})"
    return f", or merge more results at once: {line}", line


def _with_tail(seen: Evidence, word: str, kind: str) -> Rows:
    """Classes of a word, and the idle time of threads that had nothing else to do than such tasks."""
    waited = seen.ledger.tail_of.get(kind, 0.0)
    return seen.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


@cause("merge", looks_idle=True)
def merge(seen: Evidence) -> Draft | None:
    """Merging of results."""
    rows = dict(_with_tail(seen, "merge", task_records.MERGE))
    size = 0.0 if _mostly_moved(seen) else _output(seen)
    if size:
        rows |= {name: seen.ledger[name] for name in (phases.OVERHEAD, phases.TRANSFER) if name in seen.ledger}
    if not rows:
        return None
    share, (more, line) = seen.share(sum(rows.values())), _merging(seen)
    what = f"The merge step takes {share} of thread time, including waiting for it."
    if size:
        outputs = f"{number(seen.chunks)} outputs of {BYTE.text(size)}"
        what = f"Compressing, moving and merging {outputs} takes {share} of thread time, including waiting for it."
    taken = Taken("merge", seconds=sum(rows.values()), outputs=bool(size))
    return Draft(what, f"{SMALLER_OUTPUT}{more}.", remedy=line, rows=rows, taken=taken)


@cause("preprocessing", looks_idle=True)
def preprocessing(seen: Evidence) -> Draft | None:
    """Fetching of the files' metadata."""
    rows = _with_tail(seen, "preprocessing", task_records.PREPROCESSING)
    if not rows:
        return None
    what = f"Preprocessing takes {seen.share(sum(rows.values()))} of thread time: files are opened for their metadata."
    advice = "Keep the metadata between runs: Runner(metadata_cache=...), or the chunks of Runner.preprocess."
    taken = _as_share("preprocessing", rows)
    return Draft(what, advice, remedy="Runner(..., metadata_cache=cache)", rows=rows, taken=taken)


@cause("tail", looks_idle=True)
def tail(seen: Evidence) -> Draft | None:
    """Idle threads while others still work."""
    of_others = sum(seen.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = seen.ledger.get(phases.TAIL, 0.0) - of_others
    if idle <= 0:
        return None
    worst, smaller = culprits.worst_straggler(seen), seen.smaller
    last = f"; the slowest is {worst.name}" if worst is not None else ""
    what = f"Threads are idle for {seen.share(idle)} of thread time while the last chunks run{last}."
    advice = "Use fewer workers." if seen.larger else "Cut the longest chunks, or use fewer workers."
    if smaller:
        advice = f"Use {smaller}, so that all threads end together."
    found = () if worst is None else (worst,)
    return Draft(what, advice, found, smaller, {phases.TAIL: idle}, Taken("tail", seconds=idle))


WHEN: Final = {"before": "before the first task", "between": "between tasks", "after": "after the last task"}


@cause("client", looks_idle=True)
def client(seen: Evidence) -> Draft | None:
    """Idle threads while nothing is to be done."""
    if not seen.rows_of("client"):
        return None
    parts = [
        f"{SECOND.text(seen.wall(seconds))} {WHEN[when]}"
        for when, seconds in seen.ledger.client_of.items()
        if seconds > LEAST_OF_CLIENT * seen.total
    ]
    when = f" ({', '.join(parts)})" if parts else ""
    what = f"The client keeps the workers idle for {share_of(seen, 'client')} of thread time{when}."
    longest = max(seen.ledger.client_of, key=lambda when: seen.ledger.client_of[when], default="between")
    return Draft(what, (OF_LOCAL_CLIENT if seen.local else OF_CLIENT)[longest])


OF_CLIENT: Final = {
    "before": "Start workers when chunks are ready.",
    "between": "Make fewer Runner calls, and do in tasks what the client does between them.",
    "after": "Close the cluster before work that needs no workers.",
}
OF_LOCAL_CLIENT: Final = {
    "before": "Make the executor once, and use it for several runs: its processes take this to start.",
    "between": "This process prepares chunks and merges outputs: return a smaller output.",
    "after": "Leave the collector before work that is no part of the run.",
}
"""What to do about the client's time, by when most of it is."""


@cause("memory", names_culprit=True)
def memory(seen: Evidence) -> Draft | None:
    """Workers that were killed, paused, or moved results to disk."""
    found = seen.memory
    if found is None or not seen.lacks_memory:
        return None
    paused = seen.ledger.get(phases.PAUSED, 0.0)
    rows = {
        name: seconds for name, seconds in {phases.PAUSED: paused, "lost or spilling": found.seconds}.items() if seconds
    }
    what = f"{found.what} {found.how_much}"
    line = None if seen.fitting is None else f"chunksize={seen.fitting}"
    named = tuple(Culprit(*one) for one in found.culprits())
    taken = Taken("memory", seconds=sum(rows.values()))
    return Draft(what, f"{found.remedy}.", named, line, rows, taken)


@cause("failures")
def failures(seen: Evidence) -> Draft | None:
    """Attempts that failed."""
    found = seen.failures
    if found is None or not found.attempts:
        return None
    named = tuple(Culprit(*one) for one in found.culprits())
    return Draft(f"{found.what} {found.how_much}", f"{found.remedy}.", named, rows={phases.FAILED: found.seconds})


@cause("missing data")
def missing_data(seen: Evidence) -> Draft | None:
    """What the result lacks."""
    found = seen.incompleteness
    if found is None or found.complete:
        return None
    named = tuple(Culprit(*one) for one in found.culprits())
    return Draft(f"{found.what} {found.how_much}", found.advice, named, found.remedy, {})


def _fine(seen: Evidence, *names: str) -> Rows:
    """What Dask counted inside of tasks, over all workers."""
    workers = (seen.fine or {}).values()
    sums = {name: sum(worker.get(name, 0.0) for worker in workers) for name in names}
    return {name.removesuffix("_time_seconds"): seconds for name, seconds in sums.items() if seconds > 0}


def _parts(rows: Rows) -> str:
    return ", ".join(f"{name} {SECOND.text(seconds)}" for name, seconds in rows.items())


@cause("serialization")
def serialization(seen: Evidence) -> Draft | None:
    """Pickling of functions and results inside of tasks."""
    rows = _fine(seen, "serialization_time_seconds", "deserialization_time_seconds")
    if not rows:
        return None
    what = f"Dask's serialization takes {seen.share(sum(rows.values()))} of thread time in tasks ({_parts(rows)})."
    advice = "Return arrays, histograms and numbers instead of other objects, and keep large data out of the processor."
    return Draft(what, advice, rows=rows)


@cause("compression")
def compression(seen: Evidence) -> Draft | None:
    """Dask's compression of what is spilled and fetched."""
    rows = _fine(seen, "compression_time_seconds", "decompression_time_seconds")
    if not rows:
        return None
    share = seen.share(sum(rows.values()))
    what = f"Dask's own compression, which is not ROOT's, takes {share} of thread time in tasks ({_parts(rows)})."
    line = "distributed.comm.compression: false"
    advice = f"Switch it off in Dask's configuration ({line}; distributed.worker.memory.spill-compression: false)."
    return Draft(what, advice, remedy=line, rows=rows)


def _as_share(name: str, rows: Rows) -> Taken:
    """A cause with its thread seconds: where there is no replay that knows it, all threads share them."""
    return Taken(name, seconds=sum(rows.values()))


@cause("other tasks")
def other_tasks(seen: Evidence) -> Draft | None:
    """Tasks that no Runner call here asked for."""
    rows = seen.rows_of("other tasks")
    # where no Runner was called, these tasks are what was to be measured
    if not rows or not seen.run.calls:
        return None
    what = f"Other tasks take {share_of(seen, 'other tasks')} of thread time: no Runner call here submitted them."
    advice = "If they are another user's or another run's, use workers of your own."
    return Draft(what, advice)
