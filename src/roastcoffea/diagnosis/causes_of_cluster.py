"""Causes around chunks: what Dask, the client and other workers do with the threads' time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.causes_of_chunks import share_of
from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.diagnosis.finding import Culprit, Rows
from roastcoffea.diagnosis.savings import Taken
from roastcoffea.diagnosis.slowness import Slow
from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records import tasks as task_records
from roastcoffea.units import BYTE, SECOND, counted, number

LEAST_OF_CLIENT: Final = 0.01
"""Share of all thread time from which on a part of the client's time is named."""

LARGE_OUTPUT: Final = 1_000_000
"""Bytes of a chunk's output from which on what a chunk costs besides its events is that of its output."""

SMALLER_OUTPUT: Final = "Return a smaller output (histograms instead of columns, fewer bins)"


@cause("chunk size", names_culprit=True)
def chunk_size(seen: Evidence) -> Draft | None:
    """Chunks that are too small: what each costs besides its events."""
    found = seen.chunk_size
    if found.size is None or found.line is None or found.size <= found.now:
        return None
    if (culprits.largest_outputs(seen) or 0.0) >= LARGE_OUTPUT:
        return None
    now = number(round(found.now))
    inside = f", {SECOND.text(found.in_process)} of it in process()" if found.in_process else ""
    each = found.fixed + (found.in_process or 0.0)
    what = f"Chunks of {now} events are too small: each costs {SECOND.text(each)} besides its events{inside}."
    memory = "" if found.memory is None else f" A worker then needs {BYTE.text(found.memory)}."
    culprit = Culprit("chunk size", f"{now} events", each * seen.chunks)
    rows = {"fixed cost of chunks": each * seen.chunks}
    return Draft(what, f"Use {found.line}.{memory}", (culprit,), found.line, rows, saving=found.saving)


@cause("scheduler", looks_idle=True)
def scheduler(seen: Evidence) -> Draft | None:
    """Handing out tasks."""
    rows = seen.rows_of("scheduler")
    if not rows:
        return None
    largest = max(rows, key=lambda name: rows[name])
    doing = "the rest of the tasks around process()" if seen.local else "handing out tasks"
    share = share_of(seen, "scheduler")
    what = f"Scheduling limits the run: {share} of thread time goes to {doing}{culprits.task_length(seen)}, "
    size = seen.chunk_size
    larger = size.size is not None and size.size > size.now
    advice = f"Use {size.line}: fewer, longer tasks." if larger else "Give the scheduler a core of its own."
    return Draft(f'{what}most of it "{largest}".', advice, remedy=size.line if larger else None)


@cause("transfer")
def transfer(seen: Evidence) -> Draft | None:
    """Waiting for results of other workers."""
    if not seen.rows_of("transfer"):
        return None
    came = sum(worker.get("transfer_bytes", 0.0) for worker in (seen.fine or {}).values())
    fetched = f" ({BYTE.text(came)} moved between workers)" if came else ""
    what = f"Tasks wait for results of other workers for {share_of(seen, 'transfer')} of thread time{fetched}."
    return Draft(what, f"{SMALLER_OUTPUT}, or merge in larger steps: DaskExecutor(treereduction=50).")


def _with_tail(seen: Evidence, word: str, kind: str) -> Rows:
    """Classes of a word, and the idle time of threads that had nothing else to do than such tasks."""
    waited = seen.ledger.tail_of.get(kind, 0.0)
    return seen.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


@cause("merge", looks_idle=True)
def merge(seen: Evidence) -> Draft | None:
    """Merging of results."""
    rows = dict(_with_tail(seen, "merge", task_records.MERGE))
    size = culprits.largest_outputs(seen)
    if (size or 0.0) >= LARGE_OUTPUT and phases.OVERHEAD in seen.ledger:
        rows[phases.OVERHEAD] = seen.ledger[phases.OVERHEAD]
    if not rows:
        return None
    outputs = f"; the output of a chunk has {BYTE.text(size)}" if size else ""
    what = f"The merge step takes {seen.share(sum(rows.values()))} of thread time, with waiting for it{outputs}."
    advice = f"{SMALLER_OUTPUT}, or merge in larger steps."
    return Draft(what, advice, remedy="DaskExecutor(treereduction=50)", rows=rows)


@cause("preprocessing", looks_idle=True)
def preprocessing(seen: Evidence) -> Draft | None:
    """Fetching of the files' metadata."""
    rows = _with_tail(seen, "preprocessing", task_records.PREPROCESSING)
    if not rows:
        return None
    what = f"Preprocessing takes {seen.share(sum(rows.values()))} of thread time: files are opened for their metadata."
    advice = "Keep the metadata between runs: Runner(metadata_cache=...), or the chunks of Runner.preprocess."
    return Draft(what, advice, remedy="Runner(..., metadata_cache=cache)", rows=rows)


@cause("tail", looks_idle=True)
def tail(seen: Evidence) -> Draft | None:
    """Idle threads while others still work."""
    of_others = sum(seen.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = seen.ledger.get(phases.TAIL, 0.0) - of_others
    if idle <= 0:
        return None
    worst, size = culprits.worst_straggler(seen), seen.chunk_size
    last = f"; the slowest chunk is {worst.name}" if worst is not None else ""
    what = f"{seen.share(idle)} of thread time is idle at an end, while other threads still work{last}."
    smaller = size.size is not None and size.size < size.now
    advice = (
        f"Use {size.line}, so that all threads end together."
        if smaller
        else "Cut the longest chunks, or use fewer workers."
    )
    found = () if worst is None else (worst,)
    return Draft(what, advice, found, size.line if smaller else None, {phases.TAIL: idle})


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
    told = f" ({', '.join(parts)})" if parts else ""
    what = f"The client keeps the workers idle for {share_of(seen, 'client')} of thread time{told}."
    advice = (
        "It prepares, sends chunks and merges in this process: return a smaller output."
        if seen.local
        else "Leave the collector and free the workers before you do what needs no cluster; start workers late."
    )
    return Draft(what, advice)


@cause("memory", names_culprit=True)
def memory(seen: Evidence) -> Draft | None:
    """Workers that were killed, paused, or moved results to disk."""
    found = seen.memory
    if found is None or not (found.killed or found.paused or found.spilled):
        return None
    paused = seen.ledger.get(phases.PAUSED, 0.0)
    rows = {
        name: seconds for name, seconds in {phases.PAUSED: paused, "lost or spilling": found.seconds}.items() if seconds
    }
    what = f"{found.what} {found.how_much}"
    size = found.fit
    line = None if size is None or found.results_fill_it else f"chunksize={size.events}"
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
    return Draft(what, advice, rows=rows, taken=_as_share("serialization", rows))


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
    return Draft(what, advice, remedy=line, rows=rows, taken=_as_share("compression", rows))


def _as_share(name: str, rows: Rows) -> Taken:
    """A cause that a replay does not know: its thread seconds, shared by all threads."""
    return Taken(name, seconds=sum(rows.values()))


@cause("other tasks")
def other_tasks(seen: Evidence) -> Draft | None:
    """Tasks that no Runner call here asked for."""
    rows = seen.rows_of("other tasks")
    # where no Runner was called, these tasks are what was to be measured
    if not rows or not seen.run.calls:
        return None
    what = f"{share_of(seen, 'other tasks')} of thread time went to tasks of no Runner call here."
    advice = "If they are another user's or another run's, use workers of your own."
    return Draft(what, advice, taken=_as_share("other tasks", rows))


PHASES_IN_WORDS: Final = {
    "read": "waits for its storage",
    "open": "takes long to open",
    "build": "takes long to open",
    "compute": "computes slowly",
    "decompress": "decompresses slowly",
    "interpret": "interprets slowly",
    "blocked": "is blocked",
}


def _slow(seen: Evidence, kind: str) -> Iterator[Draft]:
    for one in seen.slow:
        if one.kind != kind:
            continue
        phase = PHASES_IN_WORDS.get(one.phase.removesuffix("_seconds")) if one.phase else None
        why = f" and {phase}" if phase else ""
        low, high = one.interval
        factor = f"{one.factor:.3g} times ({low:.2g} to {high:.2g})"
        on = f" on {one.host}" if one.host and one.host != one.name else ""
        if kind == "dataset":
            what = f"Dataset {one.name} takes {factor} as long per event as the others."
            advice = "Look at what its events need beyond the others; give it smaller chunks if it ends last."
        else:
            chunks = counted(one.chunks, "chunk")
            what = f"{kind.capitalize()} {one.name}{on} is slow{why}: its {chunks} took {factor} as long as expected."
            advice = ADVICE[kind]
        others = ", ".join(f"{other} {name}" for other, name in one.confounded_with)
        if others:
            what = f"{what[:-1]}; this run cannot tell it from {others}."
        taken = Taken(f"slow {kind}", factors=_as_fast_as_others(seen, one))
        culprit = Culprit(kind, one.name, one.seconds, one.factor)
        yield Draft(what, advice, (culprit,), rows={f"{kind} {one.name}": one.seconds}, taken=taken)


def _as_fast_as_others(seen: Evidence, one: Slow) -> Numbers | None:
    """What each chunk that counted would take of what it took."""
    if seen.counted is None:
        return None
    names = seen.counted["worker" if one.kind == "host" else one.kind].to_pylist()
    if one.kind == "host":
        hosts = culprits.hosts_of(seen)
        names = [hosts.get(worker) for worker in names]
    return np.array([1 / one.factor if name == one.name else 1.0 for name in names])


ADVICE: Final = {
    "worker": "Look at what else runs on its host, or retire it: client.retire_workers([...]).",
    "host": "Look at what else runs there, or leave it out.",
    "file": "Read another copy of it, or move it to faster storage.",
}


@cause("slow worker", names_culprit=True)
def slow_worker(seen: Evidence) -> Iterator[Draft]:
    """Workers whose chunks take longer than the model expects."""
    return _slow(seen, "worker")


@cause("slow host", names_culprit=True)
def slow_host(seen: Evidence) -> Iterator[Draft]:
    """Hosts whose workers are slow."""
    return _slow(seen, "host")


@cause("slow file", names_culprit=True)
def slow_file(seen: Evidence) -> Iterator[Draft]:
    """Files that take longer than others of their dataset."""
    return _slow(seen, "file")


@cause("slow dataset", names_culprit=True)
def slow_dataset(seen: Evidence) -> Iterator[Draft]:
    """Datasets that are heavier per event."""
    return _slow(seen, "dataset")
