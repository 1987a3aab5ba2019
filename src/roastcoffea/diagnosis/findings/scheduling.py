"""Findings about chunk size, Dask, merging, preprocessing, idle threads, the client and other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import SHORTEST, WORDS, Evidence, largest_first
from roastcoffea.diagnosis.finding import Culprit, Finding, Page, finding
from roastcoffea.diagnosis.savings import Removal, Taken
from roastcoffea.metrics import phases
from roastcoffea.metrics.facts import known_sum
from roastcoffea.metrics.time_ledger import TimeLedger
from roastcoffea.records import workers as task_records
from roastcoffea.records.chunks import TRACED
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import Scenario, without_dask
from roastcoffea.units import BYTE, SECOND, counted, number

HANDLED: Final = (phases.OVERHEAD, phases.TRANSFER)
"""Time classes for compressing and moving large outputs, in addition to merging them."""

WAITED_FOR: Final = {task_records.MERGE: "merge", task_records.PREPROCESSING: "preprocessing"}
"""Maps the kind of task awaited by idle threads to the cause."""

LARGE_OUTPUT: Final = 1_000_000
"""Output size per chunk, in bytes, above which handling the output outweighs a chunk's other costs."""


def large_output(run: Run) -> float:
    """Mean result size per chunk in bytes; 0 if unknown or small."""
    if run.tasks is None:
        return 0.0
    sizes = run.tasks["nbytes"].filter(pc.equal(run.tasks["kind"], task_records.PROCESSOR))
    size = pc.mean(sizes).as_py() or 0.0
    return size if size >= LARGE_OUTPUT else 0.0


def mostly_moved(ledger: TimeLedger) -> bool:
    handled = sum(ledger.get(name, 0.0) for name in (phases.OVERHEAD, phases.MERGE))
    return ledger.get(phases.TRANSFER, 0.0) > handled


def merged_output(run: Run, ledger: TimeLedger) -> float:
    """Mean output size per chunk in bytes; 0 if handling the outputs does not count as merging."""
    return 0.0 if mostly_moved(ledger) else large_output(run)


def thread_time(run: Run, ledger: TimeLedger) -> dict[str, float]:
    """Thread seconds attributed to each cause, largest first."""
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
    return largest_first(amounts)


SHORT_TASKS: Final = Page("chunk-size", "Too many short tasks")


@finding(
    "chunk size",
    "Small chunks repeat fixed work",
    part="around chunks",
    shows="`open`, `compute`, and the scheduler's classes",
    outranks=True,
    page=SHORT_TASKS,
)
def chunk_size(evidence: Evidence) -> Finding | None:
    """Limited by the chunk size.

    Each chunk has a fixed cost: opening the file and building events (`open`), Dask's per-task overhead, and anything
    loaded in `process()`.

    **Check.** Even chunks with few events take noticeable time.

    ```python
    measurement.plot("runtime_vs_events")
    print(measurement.chunks[["events", "open_seconds", "build_seconds", "wall_seconds"]].describe())
    ```

    **Fix.** Copy the suggested line, such as `Runner(..., chunksize=60_000)`: it respects memory limits. Move
    shared work into the processor's `__init__`.

    **Fine if** memory is scarce, or this is a quick test. If all chunks are the same size, the fixed cost in
    `process()` is unknown: a run with a different chunk size narrows the interval.
    """
    size = evidence.chunk_size
    if evidence.larger is None or large_output(evidence.run):
        return None
    inside, now = size.in_process or 0.0, f"{number(size.usual)} events"
    cost = size.fixed + inside
    part = "all" if size.fixed < 0.005 * cost else SECOND.text(inside)
    of_process = f", {part} of it in process()" if inside else ""
    memory = "" if size.memory is None else f" A worker then needs {BYTE.text(size.memory)}."
    seconds = cost * evidence.chunks
    return Finding(
        what=f"Chunks of {now} are too small: each has a fixed cost of {SECOND.text(cost)}{of_process}.{memory}",
        advice="Use larger chunks.",
        culprits=(Culprit("chunk size", now, seconds),),
        remedy=size.line,
        rows={"fixed cost of chunks": seconds},
        taken=Taken(size.removal, last=True, known=size.saving),
    )


SMALLER_OUTPUT: Final = "Return a smaller output (histograms instead of columns, fewer bins)"


@finding(
    "scheduler",
    "Task scheduling is slow",
    part="around chunks",
    shows="`task overhead`, `measuring`, `worker overhead`, `in flight`, `idle: queued`, `idle: misplaced`",
    least=0.10,
    looks_idle=True,
    page=SHORT_TASKS,
)
def scheduler(evidence: Evidence) -> Finding | None:
    """Limited by the scheduler.

    Tasks are ready and threads are free, but tasks do not start.

    **Check.** Dask's scheduler handles about a thousand tasks a second; `num_chunks` divided by the wall time should be
    far below that.

    ```python
    measurement.plot("task_stream")
    print((measurement.tasks["stop"] - measurement.tasks["start"]).describe())
    ```

    **Fix.** Use larger chunks: tasks of ten seconds or more hide the scheduler's overhead. Merge tiny files: a chunk
    cannot span files. Give the scheduler its own core, and avoid plugins and busy dashboards. To reduce `idle:
    misplaced`, use smaller chunks or one thread per worker.

    **Fine if** the overhead is only milliseconds per task.
    """
    outputs = bool(large_output(evidence.run))
    # large outputs are compressed outside process(), and event loops also need the GIL
    others = {phases.OVERHEAD} if outputs else set()
    others |= {phases.OVERHEAD, phases.WORKER_OVERHEAD} if evidence.is_due_to("interpreter lock") else set()
    rows = {name: seconds for name, seconds in evidence.rows_of("scheduler").items() if name not in others}
    if not rows or (others and evidence.wall(sum(rows.values())) < evidence.least("scheduler")):
        return None
    largest = max(rows, key=lambda name: rows[name])
    advice, remedy = "Use larger chunks to get fewer, longer tasks.", None if outputs else evidence.larger
    if remedy is None:
        advice, remedy = _scheduling(evidence, largest)
    doing, tasks = "Task overhead outside process()", evidence.run.tasks
    if tasks is not None:
        mean = pc.mean(pc.subtract(tasks["stop"], tasks["start"])).as_py()
        length = "" if mean is None else f" of {SECOND.text(mean)}"
        doing = f"Scheduling {counted(len(tasks), 'task')}{length}" if len(tasks) else "Scheduling tasks"
    return Finding(
        what=f"{doing} takes {evidence.share(sum(rows.values()))} of thread time, most of it {largest}.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(without_dask(outputs=outputs)), at_most=True),
    )


def _scheduling(evidence: Evidence, largest: str) -> tuple[str, str | None]:
    """Advice on the largest scheduler class if larger chunks do not help, and a line to copy."""
    calls, saturation = evidence.run.calls, "distributed.scheduler.worker-saturation: "
    if largest == phases.OVERHEAD or (evidence.local and largest != phases.MEASURING):
        return f"{SMALLER_OUTPUT if calls else 'Return smaller results'}: each task compresses its result.", None
    if largest == phases.MISPLACED:
        if any(call.options.get("executor.worker_affinity") for call in calls):
            return "Let Dask move chunks to free workers.", "DaskExecutor(worker_affinity=False)"
        return "Do not pin tasks to workers; keep tasks on the scheduler until a thread is free.", f"{saturation}1.0"
    sampling = evidence.run.sampling
    queue = np.zeros(1) if sampling is None else sampling["loop_queue_seconds"].drop_null().to_numpy()
    if len(queue) > 1 and queue[-1] - queue[0] >= 0.05 * evidence.elapsed:
        return "Give the scheduler a dedicated core: it was ready to run but had to wait for one.", None
    if largest in {phases.MEASURING, phases.WORKER_OVERHEAD}:
        return "Submit fewer, longer tasks: each one has a fixed cost, also to measure it.", None
    return "Submit fewer, longer tasks, or queue some on the workers in advance.", f"{saturation}2.0"


# Merging


def _without_merging(**costs: Any) -> Removal:
    return Removal(Scenario(merging=lambda old: replace(old, **costs)))


def _merging(evidence: Evidence) -> tuple[str, str | None]:
    """Advice on merging and, if merges are small, a line to copy that makes them larger."""
    calls = evidence.run.calls
    now = [call.options.get("executor.treereduction") for call in calls]
    smaller = SMALLER_OUTPUT if calls else "Return smaller results from tasks that other tasks depend on"
    if now and all(isinstance(one, int) and one < 50 for one in now):
        return f"{smaller}, or merge more results at once.", "DaskExecutor(treereduction=50)"
    return f"{smaller}.", None


RESULTS: Final = Page(
    "results",
    "Limited by large results",
    """\
Return less: histograms instead of columns (write columns to files in `process()` and return the file names), fewer bins
and categories (the size is their product), and 32-bit numbers where they suffice.

```python
ours = measurement.tasks[measurement.tasks["kind"] == "processor"]
print(ours["nbytes"].describe(), ours["type"].unique())
```""",
)


@finding(
    "transfer",
    "Tasks wait for results from other workers",
    part="around chunks",
    shows="`transfer`",
    page=RESULTS,
)
def transfer(evidence: Evidence) -> Finding | None:
    """Limited by transfers.

    Each merge fetches results from other workers.

    **Check.**

    ```python
    print(measurement.worker_balance[["worker", "transfer_seconds"]])
    ```

    **Fix.** `DaskExecutor(client=client, treereduction=50)` merges in larger steps, so each result is moved less often.

    **Fine if** there is only one merging round: results have to be combined at least once.
    """
    rows = evidence.rows_of("transfer")
    if not rows or (large_output(evidence.run) and not mostly_moved(evidence.ledger)):
        return None
    advice, remedy = _merging(evidence)
    share = evidence.share_of("transfer")
    return Finding(
        what=f"Tasks wait for results from other workers for {share} of thread time.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(_without_merging(fetch=0.0), at_most=True),
    )


def _with_tail(evidence: Evidence, word: str, kind: str) -> dict[str, float]:
    """Thread seconds in the cause's classes, plus idle time spent waiting for tasks of this kind."""
    waited = evidence.ledger.tail_of.get(kind, 0.0)
    return evidence.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


@finding(
    "merge",
    "Merging results is slow",
    part="around chunks",
    shows="`merge`, `idle: tail`",
    looks_idle=True,
    page=RESULTS,
)
def merge(evidence: Evidence) -> Finding | None:
    """Limited by merging.

    Outputs are merged while other threads sit idle.

    **Check.** `tail_of` shows the idle time spent waiting for merges.

    ```python
    print(measurement.time_ledger["merge"], measurement.time_ledger.tail_of)
    merges = measurement.tasks[measurement.tasks["kind"] == "merge"]
    print((merges["stop"] - merges["start"]).describe(), merges["nbytes"].max())
    ```

    **Fix.** Larger chunks produce fewer outputs. If memory is scarce, split the fileset across several calls and add up
    their outputs.

    **Fine if** this is the final merge: it takes no longer in longer runs.
    """
    rows = _with_tail(evidence, "merge", task_records.MERGE)
    size, doing = merged_output(evidence.run, evidence.ledger), "The merge step"
    change = _without_merging(cpu=0.0, wait=0.0)  # fetching small results counts as "transfer"
    if size:
        rows |= {name: evidence.ledger[name] for name in HANDLED if name in evidence.ledger}
        doing = f"Compressing, moving and merging {number(evidence.chunks)} outputs of {BYTE.text(size)} each"
        packing = Scenario(lambda chunks: chunks.with_parts(overhead=np.zeros(len(chunks))))
        change = Removal(packing).then(_without_merging(cpu=0.0, wait=0.0, fetch=0.0))
    if not rows:
        return None
    # the bars show this wait as idle time
    waited = sum(seconds for name, seconds in rows.items() if name.startswith(phases.TAIL))
    idle = f"; threads sit idle for another {evidence.share(waited)} until it is done" if waited else ""
    advice, remedy = _merging(evidence)
    return Finding(
        what=f"{doing} takes {evidence.share(sum(rows.values()) - waited)} of thread time{idle}.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(change, at_most=True),
    )


# Before, between and after chunks


def _traced(evidence: Evidence) -> float:
    opened = evidence.run.preprocessing
    return 0.0 if opened is None else known_sum(opened.filter(pc.equal(opened["outcome"], TRACED))["wall_seconds"])


def _kept_chunks(evidence: Evidence, *, traced: bool) -> tuple[str, str]:
    """Advice on reusing chunks in several runs, and a line to copy. Traced chunks list the columns to preload."""
    asked = evidence.run.asked
    trees = [] if asked is None else asked["tree"].drop_null().unique().to_pylist()
    tree = f', treename="{trees[0]}"' if trees else ""
    tracing = ", trace=trace, processor_instance=processor" if traced else ""
    advice = "Keep the chunks between runs, and pass them to the Runner in place of the fileset."
    return advice, f"chunks = list(runner.preprocess(fileset{tree}{tracing}))"


CLIENT: Final = Page("client", "Workers wait before, between and after chunks")


@finding(
    "preprocessing",
    "Preprocessing delays the run",
    part="around chunks",
    shows="`preprocessing`, `idle: tail`",
    looks_idle=True,
    page=CLIENT,
)
def preprocessing(evidence: Evidence) -> Finding | None:
    """Limited by preprocessing.

    coffea opens every file to count its events.

    **Check.**

    ```python
    print(measurement.time_ledger["preprocessing"], measurement.time_ledger.tail_of)
    print(measurement.preprocessing[["file", "bytes_requested", "outcome"]].head())
    ```

    **Fix.** Keep the chunks, or pickle them for other sessions:

    <!-- not run here -->
    ```python
    chunks = list(runner.preprocess(fileset, treename="Events"))
    output = runner(chunks, processor_instance=processor)
    ```

    Within a session, a `Runner` reuses earlier metadata, unless it has its own `metadata_cache`.

    **Fine if** the files are new: their entries have to be counted.
    """
    rows = _with_tail(evidence, "preprocessing", task_records.PREPROCESSING)
    if not rows:
        return None
    seconds = _traced(evidence) if evidence.local else 0.0
    tracing = f"; {SECOND.text(seconds)} of it for coffea to trace the columns to preload" if seconds else ""
    share = evidence.share(sum(rows.values()))
    advice, remedy = _kept_chunks(evidence, traced=bool(seconds))
    return Finding(
        what=f"Preprocessing spends {share} of thread time opening files to read metadata{tracing}.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(stages=(task_records.PREPROCESSING,))),
    )


TAIL: Final = Page("tail", "Workers wait for the last chunks")


@finding(
    "tail",
    "Threads sit idle while the last chunks run",
    part="around chunks",
    shows="`idle: tail`",
    least=0.12,
    looks_idle=True,
    page=TAIL,
)
def tail(evidence: Evidence) -> Finding | None:
    """Limited by the tail.

    Threads sit idle while the last chunks run.

    **Check.** The task stream ends in a few long bars. If there are no `stragglers`, chunks are too long for the number
    of threads.

    ```python
    measurement.plot("task_stream")
    print(measurement.stragglers[["file", "entry_start", "worker", "wall_seconds", "expected_seconds", "phase"]])
    ```

    **Fix.** With three or more chunks per thread, threads finish together (`Runner(..., chunksize=25_000)`). Or use
    fewer workers. See [slow file](storage.md#slow-file) and [slow worker](slow-worker.md#slow-worker).

    **Fine if** the tail is short: all threads finish together only by luck.
    """
    idle = evidence.ledger.get(phases.TAIL, 0.0) - sum(evidence.ledger.tail_of.get(kind, 0.0) for kind in WAITED_FOR)
    if idle <= 0:
        return None
    threads, workers = round(evidence.total / evidence.elapsed), "workers" if len(evidence.hosts) > 1 else "threads"
    fewer = f"use fewer {workers}" if evidence.total > evidence.elapsed else ""
    things, things_number = "chunk", evidence.chunks
    if not evidence.chunks:
        things, things_number = "task", 0 if evidence.run.tasks is None else len(evidence.run.tasks)
    few = (
        f": there are {counted(things_number, things)} for {counted(threads, 'thread')}"
        if things_number < threads
        else ""
    )
    smaller = evidence.smaller if evidence.chunks else None
    worst = straggler(evidence)
    longest = (worst or _longest_chunk(evidence)) if evidence.chunks else None
    which = "longest" if worst is None else "slowest"
    last = f"{few}; the {which} is {longest.name}" if longest is not None else few
    split = "Split the longest chunks" if evidence.chunks else "Split the longest tasks, or submit them first"
    advice = f"{split}, or {fewer}." if fewer else f"{split}."
    if evidence.chunks and evidence.larger and fewer:
        advice = f"{fewer.capitalize()}."
    if smaller:
        advice = "Use smaller chunks, so that all threads finish together."
    # stragglers finish late regardless of the chunk size
    resized = smaller is not None and worst is None
    return Finding(
        what=f"Threads sit idle for {evidence.share(idle)} of thread time while the last {things}s run{last}.",
        advice=advice,
        culprits=() if longest is None else (longest,),
        remedy=smaller,
        rows={phases.TAIL: idle},
        taken=Taken(evidence.chunk_size.removal, last=True) if resized else Taken(Removal(balanced=True), at_most=True),
    )


def straggler(evidence: Evidence) -> Culprit | None:
    """The worst straggler's file and entries; None if there are no stragglers."""
    if not evidence.stragglers:
        return None
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    factor = worst["wall_seconds"] / worst["expected_seconds"]
    return Culprit("file", entries_of(worst), worst["excess_seconds"], factor)


def _longest_chunk(evidence: Evidence) -> Culprit | None:
    if evidence.counted is None:
        return None
    rows = evidence.counted.select(["file", "entry_start", "entry_stop", "wall_seconds"]).drop_null()
    longest = rows.sort_by([("wall_seconds", "descending")]).slice(0, 1).to_pylist()
    return next((Culprit("file", entries_of(row), row["wall_seconds"]) for row in longest), None)


def entries_of(row: Mapping[str, Any]) -> str:
    return f"{row['file']}, entries {row['entry_start']} to {row['entry_stop']}"


WHEN: Final = {"before": "before the first task", "between": "between tasks", "after": "after the last task"}


@finding(
    "client",
    "Workers sit idle while the client is busy",
    part="around chunks",
    shows="`idle: client`",
    least=0.10,
    looks_idle=True,
    page=CLIENT,
)
def client(evidence: Evidence) -> Finding | None:
    """Limited by the client.

    The cluster has no tasks.

    **Check.** `client_of` shows the time before, between and after tasks.

    ```python
    print(measurement.time_ledger.client_of)
    print(measurement.metrics["runner_time_seconds"], measurement.metrics["elapsed_time_seconds"])
    ```

    **Fix.** *Before:* build corrections and filesets before requesting workers. *Between:* process all datasets in one
    `Runner` call, and return a smaller output: the client merges it. *After:* leave the `with` block and close the
    cluster before making plots.

    **Fine if** you paused in a notebook: that wastes only worker time.
    """
    rows, traced, of_client = evidence.rows_of("client"), _traced(evidence), evidence.ledger.client_of
    if not rows:
        return None
    parts = [
        f"{SECOND.text(evidence.wall(seconds))} {WHEN[when]}"
        for when, seconds in of_client.items()
        if seconds > 0.01 * evidence.total
    ]
    parts += [f"{SECOND.text(traced)} for coffea to trace the columns to preload"] if traced else []
    when = f" ({', '.join(parts)})" if parts else ""
    longest = max(of_client, key=lambda when: of_client[when], default="between")
    advice, remedy = _of_client(evidence, longest), None
    if 2 * traced > evidence.wall(of_client.get(longest, 0.0)):
        advice, remedy = _kept_chunks(evidence, traced=True)
    share = evidence.share_of("client")
    return Finding(
        what=f"The workers sit idle for {share} of thread time while the client works{when}.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(client=True), at_most=True),
    )


def _of_client(evidence: Evidence, when: str) -> str:
    calls, smaller = evidence.run.calls, "return a smaller output"
    if when == "before":
        return _before_tasks(evidence)
    if when == "after":
        if evidence.local:
            return "Exit the collector before work that is not part of the run."
        return "Close the cluster, or exit the collector, before work that needs no workers."
    if evidence.local or len(calls) > 1:
        fewer = "Make fewer Runner calls, and move the client's work between them into tasks."
        return f"This process prepares chunks and merges outputs: {smaller}." if evidence.local else fewer
    what = f"prepares chunks and merges outputs: {smaller}" if calls else "works between tasks: submit many at once"
    return f"The client {what}, or move its work into tasks."


def _before_tasks(evidence: Evidence) -> str:
    run = evidence.run
    if not evidence.local and min((life["start"] for life in evidence.lives), default=run.start) > run.start + SHORTEST:
        return f"Start workers when {'chunks' if run.calls else 'tasks'} are ready."
    tables = (table for table in (run.tasks, run.chunks, run.preprocessing) if table is not None)
    begun = [moment for table in tables if (moment := pc.min(table["start"]).as_py()) is not None]
    first = min(begun, default=run.start)
    call = min((each.start for each in run.calls), default=first)
    # most client time was spent in a Runner call, not before it
    if first - call > call - run.start:
        # causes that cannot have taken this long are not mentioned
        sent = None if run.client_steps is None else pc.sum(run.client_steps["graph_bytes"]).as_py()
        large = "" if sent is not None and sent < 1e7 else " Data held by the processor are pickled in each call."
        many = " The fileset is split into chunks." if len(run.chunks or ()) > 10_000 else ""
        return (
            "The Runner is preparing for most of this time. The first call in a process imports parts of coffea and "
            f"Dask: a second call in the same script shows what remains.{large}{many}"
        )
    return f"Enter the `with` block once the fileset and the {'processor' if run.calls else 'functions'} are ready."


# Dask's overheads inside tasks, and other users' tasks


def _fine(evidence: Evidence, *names: str) -> dict[str, float]:
    workers = (evidence.fine or {}).values()
    sums = {name: sum(worker.get(f"{name}_time_seconds", 0.0) for worker in workers) for name in names}
    return {name: seconds for name, seconds in sums.items() if seconds > 0}


def _in_tasks(evidence: Evidence, rows: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {SECOND.text(seconds)}" for name, seconds in rows.items())
    return f"takes {evidence.share(sum(rows.values()))} of thread time ({parts})."


@finding(
    "serialization",
    "Serialization is slow",
    part="around chunks",
    shows="inside task time",
    page=RESULTS,
)
def serialization(evidence: Evidence) -> Finding | None:
    """Limited by serialization.

    Dask pickles functions and results, partly inside tasks.

    **Check.**

    ```python
    print(measurement.metrics.get("total_serialization_overhead_seconds"), "s")
    ```

    **Fix.** Arrays and histograms are sent as buffers; Python objects in lists and dictionaries are pickled one by one.
    Load large data on the workers.

    **Fine if** outputs are small.
    """
    rows = _fine(evidence, "serialization", "deserialization")
    where = "processor" if evidence.run.calls else "functions"
    advice = f"Return arrays, histograms and numbers rather than other objects, and keep large data out of the {where}."
    what = f"Dask's serialization inside tasks {_in_tasks(evidence, rows)}"
    return Finding(what=what, advice=advice, rows=rows) if rows else None


@finding(
    "compression",
    "Dask's compression is slow",
    part="around chunks",
    shows="inside task time",
    page=RESULTS,
)
def compression(evidence: Evidence) -> Finding | None:
    """Limited by Dask's compression.

    Dask compresses data that it sends or spills. For ROOT files, see [decompression](decompression.md).

    **Check.**

    ```python
    print(measurement.metrics.get("total_compression_overhead_seconds"), "s")
    print(measurement.worker_memory[["worker", "spilled", "spill_seconds"]])
    ```

    **Fix.** Call `dask.config.set({"distributed.comm.compression": False})` before the cluster starts. Spilling
    workers are short of [memory](memory.md): fix that first.

    **Fine if** the link is slow, for example between sites.
    """
    rows = _fine(evidence, "compression", "decompression")
    what = f"Dask's own compression inside tasks (not ROOT's) {_in_tasks(evidence, rows)}"
    spilling = "and, if workers spill, distributed.worker.memory.spill-compression: false"
    advice = f"Switch it off in Dask's configuration ({spilling})."
    remedy = "distributed.comm.compression: false"
    return Finding(what=what, advice=advice, remedy=remedy, rows=rows) if rows else None


@finding(
    "checkpoint",
    "Checkpoints are slow",
    part="in chunks",
    shows="`checkpoint`",
    page=RESULTS,
)
def checkpoint(evidence: Evidence) -> Finding | None:
    """Limited by checkpoints.

    Chunks load and save checkpoints.

    **Check.**

    ```python
    print(measurement.chunks[["checkpoint_seconds", "wall_seconds"]].describe())
    ```

    **Fix.** Keep checkpoints near the workers, on a disk that is fast for small files. Larger chunks need fewer
    checkpoints.

    **Fine if** runs often end early.
    """
    rows = evidence.rows_of("checkpoint")
    what = f"Checkpoints take {evidence.share_of('checkpoint')} of thread time."
    return (
        Finding(what=what, advice="Store them on a faster disk, or make the output smaller.", rows=rows)
        if rows
        else None
    )


@finding(
    "other tasks",
    "Other tasks occupy the workers",
    part="around chunks",
    shows="`other tasks`",
)
def other_tasks(evidence: Evidence) -> Finding | None:
    """Limited by other tasks.

    No measured Runner call submitted these tasks.

    **Check.** Only their workers and times are recorded.

    ```python
    others = measurement.tasks[measurement.tasks["kind"] == "other"]
    print((others["stop"] - others["start"]).groupby(others["worker"]).sum())
    ```

    **Fix.** If another user or notebook submits them, use one cluster per analysis. If they are yours (`client.map`, a
    Dask array), [measure them](../howto/watch.md) too.

    **Fine if** you share workers on purpose: nothing is lost.
    """
    rows = evidence.rows_of("other tasks")
    share = evidence.share_of("other tasks")
    what = f"Other tasks take {share} of thread time: no Runner call of this run submitted them."
    advice = "If they belong to another user or run, use dedicated workers."
    # without a Runner call, the user is measuring these tasks
    return Finding(what=what, advice=advice, rows=rows, of_others=True) if rows and evidence.run.calls else None
