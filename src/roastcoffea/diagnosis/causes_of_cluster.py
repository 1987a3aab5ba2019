"""Causes around chunks: time that threads spend on Dask, the client, other workers, large outputs and batch jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from roastcoffea.diagnosis import culprits
from roastcoffea.diagnosis.causes import Draft, cause
from roastcoffea.diagnosis.causes_of_chunks import share_of
from roastcoffea.diagnosis.completeness import caught_errors
from roastcoffea.diagnosis.evidence import LARGE_OUTPUT, LEAST_OF_CLIENT, MORE_AT_ONCE, WORDS, Evidence
from roastcoffea.diagnosis.finding import Culprit, Rows
from roastcoffea.diagnosis.savings import Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records import tasks as task_records
from roastcoffea.records.run import Run
from roastcoffea.units import BYTE, SECOND, counted, number

WALLTIME: Final = "the walltime of their jobs"
LIFETIME: Final = "their --lifetime"

BEFORE: Final = 5.0
"""Seconds before the limit at which a job may be ended: its start is that of its first process."""
AFTER: Final = 60.0
"""Seconds after the limit within which a worker has gone: it finishes its task, or is killed after a warning."""


class Ended(NamedTuple):
    """Workers that one kind of limit ended.

    Thread time is missing from each departure to the arrival of a replacement, otherwise to the end of the run.
    """

    limit: str
    workers: int
    after: float
    """Median time from the start of the job, otherwise from arrival, to departure."""
    missing: float


def ended_by_limits(run: Run) -> list[Ended]:
    """Workers that left at a limit before the end of a run, by limit."""
    if run.lifetimes is None:
        return []
    lives = [life for life in run.lifetimes.to_pylist() if None not in (life["start"], life["stop"], life["threads"])]
    arrivals = sorted(life["start"] for life in lives)
    found: dict[str, list[tuple[float, float]]] = {}
    for life in sorted(lives, key=lambda one: one["stop"]):
        limit = _limit(life) if life["stop"] < run.stop else None
        if limit is not None:
            back = next((moment for moment in arrivals if moment >= life["stop"]), run.stop)
            if back in arrivals:
                arrivals.remove(back)
            age = life["stop"] - (life["start"] if life["job_start"] is None else life["job_start"])
            found.setdefault(limit, []).append((age, life["threads"] * (back - life["stop"])))
    return [
        Ended(limit, len(each), median(age for age, _ in each), sum(missing for _, missing in each))
        for limit, each in found.items()
    ]


def _limit(life: dict[str, Any]) -> str | None:
    """What ended a worker when it left; None if it was none of these."""
    closes, start, most = life["lifetime_end"], life["job_start"], life["job_limit"]
    closed = life["stop"] if life["closing"] is None else life["closing"]
    if closes is not None and -BEFORE <= closed - closes <= AFTER:
        return LIFETIME
    if start is not None and most is not None and -BEFORE <= life["stop"] - start - most <= AFTER:
        return WALLTIME
    return None


ADVICE: Final = "Request a longer walltime"
LINE: Final = 'worker_extra_args=["--lifetime", "{minutes}m", "--lifetime-stagger", "{stagger}m"]'
MARGIN: Final = 0.9
"""Share of the walltime that a --lifetime may last, so that workers finish their task."""


@cause("time limit")
def time_limit(evidence: Evidence) -> Iterator[Draft]:
    """Workers ended by a time limit while there was work."""
    workers = 0 if evidence.run.lifetimes is None else len(evidence.run.lifetimes)
    for ended in ended_by_limits(evidence.run):
        what = (
            f"{number(ended.workers)} of {counted(workers, 'worker')} end after {SECOND.text(ended.after)}: "
            f"{ended.limit}. Until others replace them, {SECOND.text(ended.missing)} of thread time are missing."
        )
        line, advice = None, f"{ADVICE}, and a --lifetime a little shorter."
        minutes = int(MARGIN * ended.after / 60)
        if ended.limit == WALLTIME and minutes:
            line = LINE.format(minutes=minutes, stagger=max(minutes // 10, 1))
            advice = f"{ADVICE}, or let workers finish their task and leave before it: {line}"
        yield Draft(what, advice, remedy=line, rows={"ended by a time limit": ended.missing})


HANDLED: Final = (phases.OVERHEAD, phases.TRANSFER)
"""Classes in which large outputs are compressed and moved, besides being merged."""

WAITED_FOR: Final[Mapping[str, str]] = {task_records.MERGE: "merge", task_records.PREPROCESSING: "preprocessing"}
"""Cause that idle threads wait for, by the kind of the tasks that are left."""


def mean_output(run: Run) -> float | None:
    """Mean size of a chunk's result in bytes; None if unknown."""
    if run.tasks is None:
        return None
    sizes = run.tasks["nbytes"].filter(pc.equal(run.tasks["kind"], task_records.PROCESSOR))
    mean: float | None = pc.mean(sizes).as_py() if len(sizes) else None
    return mean


def large_output(run: Run) -> float:
    """Mean output of a chunk in bytes; 0 if unknown or small."""
    size = mean_output(run) or 0.0
    return size if size >= LARGE_OUTPUT else 0.0


def mostly_moved(ledger: TimeLedger) -> bool:
    """Whether moving outputs takes longer than compressing and merging them."""
    handled = sum(ledger.get(name, 0.0) for name in (phases.OVERHEAD, phases.MERGE))
    return ledger.get(phases.TRANSFER, 0.0) > handled


def merged_output(run: Run, ledger: TimeLedger) -> float:
    """Mean output of a chunk in bytes if handling it belongs to merging; 0 if it does not."""
    return 0.0 if mostly_moved(ledger) else large_output(run)


def thread_time(run: Run, ledger: TimeLedger) -> dict[str, float]:
    """Thread seconds by cause, as the causes claim them, largest first."""
    of_merging = HANDLED if merged_output(run, ledger) else ()
    amounts: dict[str, float] = {}
    for name, own in WORDS.items():
        word = "merge" if name in of_merging else own
        if name in ledger:
            amounts[word] = amounts.get(word, 0.0) + ledger[name]
    for kind, word in WAITED_FOR.items():
        waited = ledger.tail_of.get(kind, 0.0)
        if waited and "tail" in amounts:
            amounts["tail"] -= waited
            amounts[word] = amounts.get(word, 0.0) + waited
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))


LEAST_OUTSIDE: Final = 0.005
"""Share of a chunk's fixed cost outside process() that is worth a word."""

SMALLER_OUTPUT: Final = "Return a smaller output (histograms instead of columns, fewer bins)"
SATURATION: Final = "distributed.scheduler.worker-saturation: "
"""Setting of Dask: tasks that a worker is given for each of its threads."""

SHORT_OF_CORE: Final = 0.05
"""Share of the wall time that the scheduler waits for a core from which one of its own helps."""


@cause("chunk size", names_culprit=True)
def chunk_size(evidence: Evidence) -> Draft | None:
    """Chunks so small that their fixed cost matters."""
    found = evidence.chunk_size
    if evidence.larger is None or large_output(evidence.run):
        return None
    now = number(found.usual)
    cost = found.fixed + (found.in_process or 0.0)
    part = "all" if found.fixed < LEAST_OUTSIDE * cost else SECOND.text(found.in_process or 0.0)
    inside = f", {part} of it in process()" if found.in_process else ""
    what = f"Chunks of {now} events are too small: each has a fixed cost of {SECOND.text(cost)}{inside}."
    memory = "" if found.memory is None else f" A worker then needs {BYTE.text(found.memory)}."
    culprit = Culprit("chunk size", f"{now} events", cost * evidence.chunks)
    rows = {"fixed cost of chunks": cost * evidence.chunks}
    taken = Taken("chunk size", removal=found.removal)
    return Draft(what, f"Use {found.line}.{memory}", (culprit,), found.line, rows, taken, found.saving)


@cause("scheduler", looks_idle=True)
def scheduler(evidence: Evidence) -> Draft | None:
    """Distributing tasks."""
    outputs = bool(large_output(evidence.run))
    # large outputs are compressed outside process(), and event loops need the interpreter too
    others = {phases.OVERHEAD} if outputs else set()
    others |= {phases.OVERHEAD, phases.WORKER_OVERHEAD} if evidence.is_due_to("interpreter lock") else set()
    rows = {name: seconds for name, seconds in evidence.rows_of("scheduler").items() if name not in others}
    if not rows or (others and evidence.wall(sum(rows.values())) < evidence.least("scheduler")):
        return None
    largest = max(rows, key=lambda name: rows[name])
    doing = "Task overhead outside process()" if evidence.local else f"Scheduling {culprits.task_length(evidence)}"
    what = f"{doing} takes {evidence.share(sum(rows.values()))} of thread time, most of it {largest}."
    larger = None if outputs else evidence.larger
    advice, line = (f"Use {larger} to get fewer, longer tasks.", larger) if larger else _scheduling(evidence, largest)
    return Draft(what, advice, remedy=line, rows=rows, taken=Taken("scheduler", outputs=outputs))


def _scheduling(evidence: Evidence, largest: str) -> tuple[str, str | None]:
    """Advice on the class with most of the scheduler's time, and a line to copy, where chunks should not be larger."""
    calls = evidence.run.calls
    if evidence.local or largest == phases.OVERHEAD:
        return f"{SMALLER_OUTPUT if calls else 'Return smaller results'}: each task packs its own.", None
    if largest == phases.MISPLACED:
        if any(call.options.get("executor.worker_affinity") for call in calls):
            line = "DaskExecutor(worker_affinity=False)"
            return f"Let Dask move chunks to free workers: {line}.", line
        line = f"{SATURATION}1.0"
        return f"Do not pin tasks to workers, and keep them at the scheduler until a thread is free: {line}.", line
    if culprits.scheduler_waited(evidence) >= SHORT_OF_CORE:
        return "Give the scheduler a dedicated core: it was ready to run and had none.", None
    if largest == phases.WORKER_OVERHEAD:
        return "Submit fewer, longer tasks: workers take a while to begin each.", None
    line = f"{SATURATION}2.0"
    return f"Submit fewer, longer tasks, or give workers some in advance: {line}.", line


@cause("transfer")
def transfer(evidence: Evidence) -> Draft | None:
    """Waiting for results from other workers."""
    if not evidence.rows_of("transfer") or (large_output(evidence.run) and not mostly_moved(evidence.ledger)):
        return None
    what = f"Tasks wait for results from other workers for {share_of(evidence, 'transfer')} of thread time."
    more, line = _merging(evidence)
    return Draft(what, f"{_smaller(evidence)}{more}.", remedy=line)


def _smaller(evidence: Evidence) -> str:
    """Advice on what tasks return."""
    return SMALLER_OUTPUT if evidence.run.calls else "Return smaller results from tasks that others use"


def _merging(evidence: Evidence) -> tuple[str, str | None]:
    """Advice to merge more results at once, and its line, where fewer are merged now."""
    now = [call.options.get("executor.treereduction") for call in evidence.run.calls]
    if not now or not all(isinstance(one, int) and one < MORE_AT_ONCE for one in now):
        return "", None
    line = f"DaskExecutor(treereduction={MORE_AT_ONCE})"
    return f", or merge more results at once: {line}", line


def _with_tail(evidence: Evidence, word: str, kind: str) -> Rows:
    """Classes of a word, plus the time in which idle threads only waited for such tasks."""
    waited = evidence.ledger.tail_of.get(kind, 0.0)
    return evidence.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


@cause("merge", looks_idle=True)
def merge(evidence: Evidence) -> Draft | None:
    """Merging results."""
    rows = dict(_with_tail(evidence, "merge", task_records.MERGE))
    size = merged_output(evidence.run, evidence.ledger)
    if size:
        rows |= {name: evidence.ledger[name] for name in HANDLED if name in evidence.ledger}
    if not rows:
        return None
    share, (more, line) = _with_waiting(evidence, rows), _merging(evidence)
    what = f"The merge step takes {share}."
    if size:
        outputs = f"{number(evidence.chunks)} outputs of {BYTE.text(size)} each"
        what = f"Compressing, moving and merging {outputs} takes {share}."
    taken = Taken("merge", seconds=sum(rows.values()), outputs=bool(size))
    return Draft(what, f"{_smaller(evidence)}{more}.", remedy=line, rows=rows, taken=taken)


def _with_waiting(evidence: Evidence, rows: Rows) -> str:
    """Share of thread time of the work, and of waiting for it, which bars show as idle."""
    waited = sum(seconds for name, seconds in rows.items() if name.startswith(phases.TAIL))
    idle = f"; threads sit idle for another {evidence.share(waited)} until it is done" if waited else ""
    return f"{evidence.share(sum(rows.values()) - waited)} of thread time{idle}"


@cause("preprocessing", looks_idle=True)
def preprocessing(evidence: Evidence) -> Draft | None:
    """Fetching file metadata."""
    rows = _with_tail(evidence, "preprocessing", task_records.PREPROCESSING)
    if not rows:
        return None
    seconds = culprits.traced(evidence) if evidence.local else 0.0
    tracing = f"; {SECOND.text(seconds)} of it coffea's trace of the columns to preload" if seconds else ""
    share = evidence.share(sum(rows.values()))
    what = f"Preprocessing takes {share} of thread time, opening files for their metadata{tracing}."
    advice, line = _kept_chunks(evidence, traced=bool(seconds))
    taken = _as_share("preprocessing", rows)
    return Draft(what, advice, remedy=line, rows=rows, taken=taken)


def _kept_chunks(evidence: Evidence, *, traced: bool) -> tuple[str, str]:
    """Advice to make chunks once for several runs, and its line; traced ones know the columns to preload."""
    asked = evidence.run.asked
    trees = [] if asked is None else asked["tree"].drop_null().unique().to_pylist()
    tree = f', treename="{trees[0]}"' if trees else ""
    tracing = ", trace=trace, processor_instance=processor" if traced else ""
    line = f"chunks = list(runner.preprocess(fileset{tree}{tracing}))"
    return f"Keep the chunks between runs, and pass them to the Runner in place of the fileset: {line}.", line


@cause("tail", looks_idle=True)
def tail(evidence: Evidence) -> Draft | None:
    """Idle threads while others still work."""
    of_others = sum(evidence.ledger.tail_of.get(kind, 0.0) for kind in (task_records.MERGE, task_records.PREPROCESSING))
    idle = evidence.ledger.get(phases.TAIL, 0.0) - of_others
    if idle <= 0:
        return None
    threads, few = round(evidence.total / evidence.elapsed), _fewer(evidence)
    if not evidence.chunks:
        what = f"Threads sit idle for {evidence.share(idle)} of thread time while the last tasks run"
        tasks = 0 if evidence.run.tasks is None else len(evidence.run.tasks)
        last = f": there are {counted(tasks, 'task')} for {counted(threads, 'thread')}" if tasks < threads else ""
        advice = f"Split the longest tasks, or submit them first{few}."
        return Draft(f"{what}{last}.", advice, rows={phases.TAIL: idle}, taken=Taken("tail", seconds=idle))
    worst, smaller = culprits.worst_straggler(evidence), evidence.smaller
    longest = culprits.longest_chunk(evidence) if worst is None else worst
    last = f"; the {'longest' if worst is None else 'slowest'} is {longest.name}" if longest is not None else ""
    if evidence.chunks < threads:
        last = f": there are {counted(evidence.chunks, 'chunk')} for {counted(threads, 'thread')}{last}"
    what = f"Threads sit idle for {evidence.share(idle)} of thread time while the last chunks run{last}."
    advice = f"Split the longest chunks{few}."
    if evidence.larger and few:
        advice = f"{few.removeprefix(', or ').capitalize()}."
    if smaller:
        advice = f"Use {smaller}, so that all threads finish together."
    found = () if longest is None else (longest,)
    # stragglers end late whatever the size of chunks
    split = smaller is not None and worst is None
    taken = Taken("chunk size", removal=evidence.chunk_size.removal) if split else Taken("tail", seconds=idle)
    return Draft(what, advice, found, smaller, {phases.TAIL: idle}, taken)


def _fewer(evidence: Evidence) -> str:
    """Advice to use less of what there are several of."""
    lifetimes = evidence.run.lifetimes
    workers = 0 if lifetimes is None else len(lifetimes["worker"].unique())
    return f", or use fewer {'workers' if workers > 1 else 'threads'}" if evidence.total > evidence.elapsed else ""


WHEN: Final = {"before": "before the first task", "between": "between tasks", "after": "after the last task"}


@cause("client", looks_idle=True)
def client(evidence: Evidence) -> Draft | None:
    """Idle threads with no work to do."""
    if not evidence.rows_of("client"):
        return None
    parts = [
        f"{SECOND.text(evidence.wall(seconds))} {WHEN[when]}"
        for when, seconds in evidence.ledger.client_of.items()
        if seconds > LEAST_OF_CLIENT * evidence.total
    ]
    traced, of_client = culprits.traced(evidence), evidence.ledger.client_of
    if traced:
        parts.append(f"{SECOND.text(traced)} for coffea's trace of the columns to preload")
    when = f" ({', '.join(parts)})" if parts else ""
    what = f"The workers sit idle for {share_of(evidence, 'client')} of thread time while the client works{when}."
    longest = max(of_client, key=lambda when: of_client[when], default="between")
    line = None
    if 2 * traced > evidence.wall(of_client.get(longest, 0.0)):
        advice, line = _kept_chunks(evidence, traced=True)
    else:
        advice = _of_client(evidence, longest)
    return Draft(what, advice, remedy=line)


def _of_client(evidence: Evidence, when: str) -> str:
    """What to do about the client's time, by when most of it is."""
    calls = evidence.run.calls
    match when:
        case "before":
            return _before_tasks(evidence)
        case "after":
            close = "Leave the collector" if evidence.local else "Close the cluster, or leave the collector,"
            return f"{close} before work that {'is no part of the run' if evidence.local else 'needs no workers'}."
        case _ if evidence.local:
            return "This process prepares chunks and merges outputs: return a smaller output."
        case _ if len(calls) > 1:
            return "Make fewer Runner calls, and do in tasks what the client does between them."
        case _:
            what = "prepares chunks and merges outputs" if calls else "works between tasks"
            less = "return a smaller output" if calls else "submit many at once"
            return f"The client {what}: {less}, or do in tasks what it does."


def _before_tasks(evidence: Evidence) -> str:
    """What to do about the time before the first task."""
    calls = evidence.run.calls
    if culprits.workers_came(evidence) and not evidence.local:
        return f"Start workers when {'chunks' if calls else 'tasks'} are ready."
    if culprits.prepared(evidence):
        chunks = "" if calls[0].files is None else ", and chunks in place of the fileset"
        return f"The Runner prepares until then: pass it a processor that holds little data{chunks}."
    return f"Enter the `with` when the fileset and the {'processor' if calls else 'functions'} are ready."


@cause("memory", names_culprit=True)
def memory(evidence: Evidence) -> Draft | None:
    """Workers that were killed, paused, or moved results to disk."""
    found = evidence.memory
    if found is None or not evidence.lacks_memory:
        return None
    paused = evidence.ledger.get(phases.PAUSED, 0.0)
    rows = {
        name: seconds for name, seconds in {phases.PAUSED: paused, "lost or spilling": found.seconds}.items() if seconds
    }
    what = f"{found.what} {found.how_much}"
    line = None if evidence.fitting is None else f"chunksize={evidence.fitting}"
    named = tuple(Culprit(*one) for one in found.culprits())
    taken = Taken("memory", seconds=sum(rows.values()))
    advice = found.remedy if evidence.chunks else "Give workers more memory, or have tasks hold less data"
    return Draft(what, f"{advice}.", named, line, rows, taken)


@cause("failures")
def failures(evidence: Evidence) -> Draft | None:
    """Failed attempts."""
    found = evidence.failures
    if found is None or not found.attempts:
        return None
    named = tuple(Culprit(*one) for one in found.culprits())
    return Draft(f"{found.what} {found.how_much}", f"{found.remedy}.", named, rows={phases.FAILED: found.seconds})


@cause("missing data")
def missing_data(evidence: Evidence) -> Iterator[Draft]:
    """Missing data in the result."""
    found, caught = evidence.incompleteness, caught_errors(evidence.run)
    if found is not None and not found.complete:
        named = tuple(Culprit(*one) for one in found.culprits())
        yield Draft(f"{found.what} {found.how_much}", found.advice, named, found.line, {})
    if caught is not None:
        files = tuple(Culprit("file", name, 0.0) for name in caught.files)
        yield Draft(caught.what, "`measurement.failed` lists them: fix them, then repeat these tasks.", files, rows={})


def _fine(evidence: Evidence, *names: str) -> Rows:
    """Activities that Dask metered inside tasks, summed over workers."""
    workers = (evidence.fine or {}).values()
    sums = {name: sum(worker.get(name, 0.0) for worker in workers) for name in names}
    return {name.removesuffix("_time_seconds"): seconds for name, seconds in sums.items() if seconds > 0}


def _parts(rows: Rows) -> str:
    return ", ".join(f"{name} {SECOND.text(seconds)}" for name, seconds in rows.items())


@cause("serialization")
def serialization(evidence: Evidence) -> Draft | None:
    """Pickling of functions and results inside tasks."""
    rows = _fine(evidence, "serialization_time_seconds", "deserialization_time_seconds")
    if not rows:
        return None
    what = (
        f"Dask's serialization inside tasks takes {evidence.share(sum(rows.values()))} of thread time ({_parts(rows)})."
    )
    where = "processor" if evidence.run.calls else "functions"
    advice = f"Return arrays, histograms and numbers rather than other objects, and keep large data out of the {where}."
    return Draft(what, advice, rows=rows)


@cause("compression")
def compression(evidence: Evidence) -> Draft | None:
    """Dask's compression of spilled and fetched data."""
    rows = _fine(evidence, "compression_time_seconds", "decompression_time_seconds")
    if not rows:
        return None
    share = evidence.share(sum(rows.values()))
    what = f"Dask's own compression inside tasks (not ROOT's) takes {share} of thread time ({_parts(rows)})."
    line = "distributed.comm.compression: false"
    advice = f"Switch it off in Dask's configuration ({line}; distributed.worker.memory.spill-compression: false)."
    return Draft(what, advice, remedy=line, rows=rows)


def _as_share(name: str, rows: Rows) -> Taken:
    """A cause with its thread seconds; where no replay models it, all threads share them."""
    return Taken(name, seconds=sum(rows.values()))


@cause("other tasks")
def other_tasks(evidence: Evidence) -> Draft | None:
    """Tasks that no Runner call of this run submitted."""
    rows = evidence.rows_of("other tasks")
    # without a Runner call, these tasks are what the user measures
    if not rows or not evidence.run.calls:
        return None
    share = share_of(evidence, "other tasks")
    what = f"Other tasks take {share} of thread time: no Runner call of this run submitted them."
    advice = "If they belong to another user or run, use dedicated workers."
    return Draft(what, advice)
