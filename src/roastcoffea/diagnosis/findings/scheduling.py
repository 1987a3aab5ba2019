"""Findings around chunks: their size, Dask, merging, preprocessing, idle threads, the client, and other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import SHORTEST, WORDS, Evidence, largest_first
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
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
"""Classes in which large outputs are compressed and moved, besides being merged."""

WAITED_FOR: Final = {task_records.MERGE: "merge", task_records.PREPROCESSING: "preprocessing"}
"""Cause that idle threads wait for, by the kind of the tasks that are left."""

LARGE_OUTPUT: Final = 1_000_000
"""Output size per chunk above which compressing, moving and merging it outweighs every other cost of a chunk."""


def large_output(run: Run) -> float:
    """Mean size of a chunk's result in bytes; 0 if unknown or small."""
    if run.tasks is None:
        return 0.0
    sizes = run.tasks["nbytes"].filter(pc.equal(run.tasks["kind"], task_records.PROCESSOR))
    size = pc.mean(sizes).as_py() or 0.0
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
    return largest_first(amounts)


@finding(
    "chunk size",
    "Small chunks repeat fixed work",
    part="around chunks",
    shows="spread over `open`, `compute` and the scheduler's classes",
    first="the chunk size of the finding",
    outranks=True,
)
def chunk_size(evidence: Evidence) -> Finding | None:
    """Limited by the chunk size.

    Each chunk has a cost that does not depend on its events, and there are too many chunks.

    **How to make sure.** Draw durations against events: the line does not go through zero. The cost is in opening and
    building (`open`), in Dask's handling of the task, or in `process()` itself, such as loading corrections in each
    call.

    ```python
    from roastcoffea import plot_runtime_vs_events

    plot_runtime_vs_events(measurement)
    print(measurement.chunks[["events", "open_seconds", "build_seconds", "wall_seconds"]].describe())
    ```

    **What to do.**

    - Copy the line of the finding: `Runner(..., chunksize=60_000)`. The replay has weighed opening, re-read baskets,
      the cost in `process()`, scheduling, the tail and memory; no finding recommends another size.
    - Move what is the same for all chunks out of `process()`, into `__init__` of the processor.

    **When it is not a problem.** Small chunks are right for a quick look, and where memory is scarce. From chunks of
    equal size alone the cost in `process()` cannot be determined, and the interval of the saving is wide. One run
    with another size narrows it.
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
    shows="`task overhead`, `worker overhead`, `in flight`, `idle: queued`, `idle: misplaced`",
    first="fewer, longer tasks",
    least=0.10,
    looks_idle=True,
)
def scheduler(evidence: Evidence) -> Finding | None:
    """Limited by the scheduler.

    Threads are free and tasks exist, but tasks do not begin: `task overhead`, `worker overhead`, `in flight`, `idle:
    queued` and `idle: misplaced` are large together.

    **How to make sure.** Compare the length of tasks with the gaps between them. Dask's scheduler handles about a
    thousand tasks a second: `num_chunks` divided by the wall time should be far below.

    ```python
    from roastcoffea import plot_task_stream

    plot_task_stream(measurement)
    print((measurement.tasks["stop"] - measurement.tasks["start"]).describe())
    ```

    **What to do.**

    - Fewer, longer tasks: `chunksize` as the finding has it. Tasks of ten seconds and more hide any scheduler.
    - Merge tiny files: a chunk is never larger than its file.
    - Give the scheduler a core of its own, and keep plugins and dashboards with many viewers away from it.
    - For `idle: misplaced`, tasks were stuck behind long ones on other workers: smaller chunks, or one thread per
      worker.

    **When it is not a problem.** A task takes milliseconds to reach its worker and back. Up to a tenth of the wall
    time is not reported.
    """
    outputs = bool(large_output(evidence.run))
    # large outputs are compressed outside process(), and event loops need the interpreter too
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
    """Advice on the class with most of the scheduler's time, and a line to copy, where chunks should not be larger."""
    calls, saturation = evidence.run.calls, "distributed.scheduler.worker-saturation: "
    if evidence.local or largest == phases.OVERHEAD:
        return f"{SMALLER_OUTPUT if calls else 'Return smaller results'}: each task packs its own.", None
    if largest == phases.MISPLACED:
        if any(call.options.get("executor.worker_affinity") for call in calls):
            return "Let Dask move chunks to free workers.", "DaskExecutor(worker_affinity=False)"
        return "Do not pin tasks to workers, and keep them at the scheduler until a thread is free.", f"{saturation}1.0"
    sampling = evidence.run.sampling
    queue = np.zeros(1) if sampling is None else sampling["loop_queue_seconds"].drop_null().to_numpy()
    if len(queue) > 1 and queue[-1] - queue[0] >= 0.05 * evidence.elapsed:
        return "Give the scheduler a dedicated core: it was ready to run and had none.", None
    if largest == phases.WORKER_OVERHEAD:
        return "Submit fewer, longer tasks: workers take a while to begin each.", None
    return "Submit fewer, longer tasks, or give workers some in advance.", f"{saturation}2.0"


# Merging


def _without_merging(**costs: Any) -> Removal:
    return Removal(Scenario(merging=lambda old: replace(old, **costs)))


def _merging(evidence: Evidence) -> tuple[str, str | None]:
    """Advice on what tasks return; and a line to merge more results at once, where fewer are merged now."""
    calls = evidence.run.calls
    now = [call.options.get("executor.treereduction") for call in calls]
    smaller = SMALLER_OUTPUT if calls else "Return smaller results from tasks that others use"
    if now and all(isinstance(one, int) and one < 50 for one in now):
        return f"{smaller}, or merge more results at once.", "DaskExecutor(treereduction=50)"
    return f"{smaller}.", None


@finding(
    "transfer",
    "Tasks wait for results from other workers",
    part="around chunks",
    shows="`transfer`",
    first="a smaller output",
)
def transfer(evidence: Evidence) -> Finding | None:
    """Limited by transfers.

    Threads wait for results of other workers: the class `transfer` of the time ledger is large.

    **How to make sure.** Look at the size of the outputs: coffea merges them in tasks, and each merge fetches what
    was computed elsewhere.

    ```python
    ours = measurement.tasks[measurement.tasks["kind"] == "processor"]
    print(ours["nbytes"].describe())
    print(measurement.worker_balance[["worker", "transfer_seconds"]])
    ```

    **What to do.**

    - Return histograms, not columns; write columns to files in `process()`, and return their names.
    - Fewer bins and fewer categories: the size of a histogram is their product.
    - Merge in larger steps: `DaskExecutor(client=client, treereduction=50)`. Each result then moves fewer times.

    **When it is not a problem.** Results have to come together once. The saving is a bound: it takes out all waiting.
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
    """Classes of a word, plus the time in which idle threads only waited for such tasks."""
    waited = evidence.ledger.tail_of.get(kind, 0.0)
    return evidence.rows_of(word) | ({f"{phases.TAIL} ({kind})": waited} if waited > 0 else {})


@finding(
    "merge",
    "Merging results is slow",
    part="around chunks",
    shows="`merge`, and `idle: tail` behind it",
    first="`treereduction=50`",
    looks_idle=True,
)
def merge(evidence: Evidence) -> Finding | None:
    """Limited by merging.

    Outputs are merged while other threads have nothing to do: the class `merge` is large, and `idle: tail` behind it.

    **How to make sure.** `tail_of` has the idle time that waited for merges. Merges are tasks: their number and
    length are in the table.

    ```python
    print(measurement.time_ledger["merge"], measurement.time_ledger.tail_of)
    merges = measurement.tasks[measurement.tasks["kind"] == "merge"]
    print((merges["stop"] - merges["start"]).describe(), merges["nbytes"].max())
    ```

    **What to do.**

    - Make the output smaller: histograms instead of columns, fewer bins, fewer categories, 32 bits where they will
      do.
    - Merge in larger steps: `DaskExecutor(client=client, treereduction=50)`.
    - Larger chunks have fewer outputs to merge.
    - If memory for the output is scarce, split the fileset into several calls and add their outputs at the end.

    **When it is not a problem.** The last merge has to wait for all chunks. It takes as long in a short run as in a
    long one.
    """
    rows = _with_tail(evidence, "merge", task_records.MERGE)
    size, doing = merged_output(evidence.run, evidence.ledger), "The merge step"
    change = _without_merging(cpu=0.0, wait=0.0)  # fetching small results is "transfer"
    if size:
        rows |= {name: evidence.ledger[name] for name in HANDLED if name in evidence.ledger}
        doing = f"Compressing, moving and merging {number(evidence.chunks)} outputs of {BYTE.text(size)} each"
        packing = Scenario(lambda chunks: chunks.with_parts(overhead=np.zeros(len(chunks))))
        change = Removal(packing).then(_without_merging(cpu=0.0, wait=0.0, fetch=0.0))
    if not rows:
        return None
    # bars show the waiting as idle
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
    """Seconds in which coffea found out, in this process, which columns to preload."""
    opened = evidence.run.preprocessing
    return 0.0 if opened is None else known_sum(opened.filter(pc.equal(opened["outcome"], TRACED))["wall_seconds"])


def _kept_chunks(evidence: Evidence, *, traced: bool) -> tuple[str, str]:
    """Advice to make chunks once for several runs, and its line; traced ones know the columns to preload."""
    asked = evidence.run.asked
    trees = [] if asked is None else asked["tree"].drop_null().unique().to_pylist()
    tree = f', treename="{trees[0]}"' if trees else ""
    tracing = ", trace=trace, processor_instance=processor" if traced else ""
    advice = "Keep the chunks between runs, and pass them to the Runner in place of the fileset."
    return advice, f"chunks = list(runner.preprocess(fileset{tree}{tracing}))"


@finding(
    "preprocessing",
    "Preprocessing delays the run",
    part="around chunks",
    shows="`preprocessing`, and `idle: tail` behind it",
    first="keep the chunks of `Runner.preprocess`",
    looks_idle=True,
)
def preprocessing(evidence: Evidence) -> Finding | None:
    """Limited by preprocessing.

    coffea opens every file for its number of events before the first chunk: the class `preprocessing` is large.

    **How to make sure.** It is at the left edge of the timeline, before the first chunk. The table has a row for each
    file.

    ```python
    print(measurement.time_ledger["preprocessing"], measurement.time_ledger.tail_of)
    print(measurement.preprocessing[["file", "bytes_requested", "outcome"]].head())
    ```

    **What to do.**

    - Keep the chunks, in a pickle for other sessions, and pass them to the `Runner` in place of the fileset:

    <!-- not run here -->
    ```python
    chunks = list(runner.preprocess(fileset, treename="Events"))
    output = runner(chunks, processor_instance=processor)
    ```

    - Within a session a `Runner` knows the files of an earlier one, unless it was given a `metadata_cache` of its
      own.

    **When it is not a problem.** The first run over new files has to count their entries. A second one in the same
    session does not.
    """
    rows = _with_tail(evidence, "preprocessing", task_records.PREPROCESSING)
    if not rows:
        return None
    seconds = _traced(evidence) if evidence.local else 0.0
    tracing = f"; {SECOND.text(seconds)} of it coffea's trace of the columns to preload" if seconds else ""
    share = evidence.share(sum(rows.values()))
    advice, remedy = _kept_chunks(evidence, traced=bool(seconds))
    return Finding(
        what=f"Preprocessing takes {share} of thread time, opening files for their metadata{tracing}.",
        advice=advice,
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(stages=(task_records.PREPROCESSING,))),
    )


@finding(
    "tail",
    "Threads sit idle while the last chunks run",
    part="around chunks",
    shows="`idle: tail`",
    first="smaller chunks, fewer workers",
    least=0.12,
    looks_idle=True,
)
def tail(evidence: Evidence) -> Finding | None:
    """Limited by the tail.

    At the end threads have nothing left to do while others still work: the class `idle: tail` is large.

    **How to make sure.** The task stream shows it: a few long bars at the right, and nothing below them. `stragglers`
    has chunks that took longer than their events predict; without any, chunks are simply too long for the number of
    threads.

    ```python
    from roastcoffea import plot_task_stream

    plot_task_stream(measurement)
    print(measurement.stragglers[["file", "entry_start", "worker", "wall_seconds", "expected_seconds", "phase"]])
    ```

    **What to do.**

    - Smaller chunks, as the finding has it: `Runner(..., chunksize=25_000)`. Three or more chunks per thread end
      together.
    - Fewer workers for a short run: those that idle at the end were not needed.
    - Where one file or worker is behind it, see [slow file](slow-file.md) and [slow worker](slow-worker.md).

    **When it is not a problem.** The last round ends together only by luck: up to 12 % of the wall time is not
    reported. The saving is a bound, with all threads at work until the end.
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
    # stragglers end late whatever the size of chunks
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
    """File of the slowest chunk, if it is a straggler."""
    if not evidence.stragglers:
        return None
    (worst,) = evidence.stragglers.slice(0, 1).to_pylist()
    factor = worst["wall_seconds"] / worst["expected_seconds"]
    return Culprit("file", entries_of(worst), worst["excess_seconds"], factor)


def _longest_chunk(evidence: Evidence) -> Culprit | None:
    """File of the chunk that took longest, if that is known."""
    if evidence.counted is None:
        return None
    rows = evidence.counted.select(["file", "entry_start", "entry_stop", "wall_seconds"]).drop_null()
    longest = rows.sort_by([("wall_seconds", "descending")]).slice(0, 1).to_pylist()
    return next((Culprit("file", entries_of(row), row["wall_seconds"]) for row in longest), None)


def entries_of(row: Mapping[str, Any]) -> str:
    """Name of a chunk."""
    return f"{row['file']}, entries {row['entry_start']} to {row['entry_stop']}"


WHEN: Final = {"before": "before the first task", "between": "between tasks", "after": "after the last task"}


@finding(
    "client",
    "Workers sit idle while the client is busy",
    part="around chunks",
    shows="`idle: client`",
    first="leave the collector before plots and fits",
    least=0.10,
    looks_idle=True,
)
def client(evidence: Evidence) -> Finding | None:
    """Limited by the client.

    Nothing is on the cluster, and all threads idle: the class `idle: client` is large.

    **How to make sure.** `client_of` splits it: before the first task the client prepares, between tasks it prepares
    the next call, after the last one it merges, plots, or still holds the collector open.

    ```python
    print(measurement.time_ledger.client_of)
    print(measurement.metrics["runner_time_seconds"], measurement.metrics["elapsed_time_seconds"])
    ```

    **What to do.**

    - After the last task: leave the `with MetricsCollector(...)` and close the cluster before plots and fits.
    - Between tasks: one `Runner` call with all datasets instead of a call for each.
    - Before the first task: build corrections and filesets before workers are asked for; scale the cluster late.
    - In the merge on the client: return a smaller output.

    **When it is not a problem.** If the `with` holds a notebook in which you think, the idle time is yours and costs
    only the workers. Up to a tenth of the wall time is not reported.
    """
    rows, traced, of_client = evidence.rows_of("client"), _traced(evidence), evidence.ledger.client_of
    if not rows:
        return None
    parts = [
        f"{SECOND.text(evidence.wall(seconds))} {WHEN[when]}"
        for when, seconds in of_client.items()
        if seconds > 0.01 * evidence.total
    ]
    parts += [f"{SECOND.text(traced)} for coffea's trace of the columns to preload"] if traced else []
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
    """What to do about the client's time, by when most of it is."""
    calls, smaller = evidence.run.calls, "return a smaller output"
    if when == "before":
        return _before_tasks(evidence)
    if when == "after":
        if evidence.local:
            return "Leave the collector before work that is no part of the run."
        return "Close the cluster, or leave the collector, before work that needs no workers."
    if evidence.local or len(calls) > 1:
        fewer = "Make fewer Runner calls, and do in tasks what the client does between them."
        return f"This process prepares chunks and merges outputs: {smaller}." if evidence.local else fewer
    what = f"prepares chunks and merges outputs: {smaller}" if calls else "works between tasks: submit many at once"
    return f"The client {what}, or do in tasks what it does."


def _before_tasks(evidence: Evidence) -> str:
    """What to do about the time before the first task."""
    run = evidence.run
    if not evidence.local and min((life["start"] for life in evidence.lives), default=run.start) > run.start + SHORTEST:
        return f"Start workers when {'chunks' if run.calls else 'tasks'} are ready."
    tables = (table for table in (run.tasks, run.chunks, run.preprocessing) if table is not None)
    begun = [moment for table in tables if (moment := pc.min(table["start"]).as_py()) is not None]
    first = min(begun, default=run.start)
    call = min((each.start for each in run.calls), default=first)
    # a Runner call took most of it, and not what came before the call
    if first - call > call - run.start:
        chunks = "" if run.calls[0].files is None else ", and chunks in place of the fileset"
        return f"The Runner prepares until then: pass it a processor that holds little data{chunks}."
    return f"Enter the `with` when the fileset and the {'processor' if run.calls else 'functions'} are ready."


# What Dask counts inside tasks, and tasks of others


def _fine(evidence: Evidence, *names: str) -> dict[str, float]:
    """Activities that Dask metered inside tasks, summed over workers."""
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
    shows="in other classes: Dask counts it inside of tasks",
    first="arrays instead of Python objects",
)
def serialization(evidence: Evidence) -> Finding | None:
    """Limited by serialization.

    Dask pickles functions and results inside of tasks, and it takes a large share of them.

    **How to make sure.** Dask counts it itself, by task prefix. It is time in tasks, so it is part of other classes
    of the time ledger as well.

    ```python
    print(measurement.metrics.get("total_serialization_overhead_seconds"), "s")
    ours = measurement.tasks[measurement.tasks["kind"] == "processor"]
    print(ours["nbytes"].describe(), ours["type"].unique())
    ```

    **What to do.**

    - Return arrays, histograms and numbers: they are sent as buffers. Lists and dictionaries of Python objects are
      pickled one by one.
    - Keep large data out of the processor: it travels with every task. Load it on the worker, from a file, once.

    **When it is not a problem.** Small outputs cost little in any form. Below 5 % of the wall time it is not
    reported.
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
    shows="in other classes: Dask counts it inside of tasks",
    first="switch it off",
)
def compression(evidence: Evidence) -> Finding | None:
    """Limited by Dask's compression.

    Dask compresses what it sends or moves to disk. This is not ROOT's compression, which is
    [decompression](decompression.md).

    **How to make sure.** Dask counts it by task. If results are moved to disk, `spilled` tells how much.

    ```python
    print(measurement.metrics.get("total_compression_overhead_seconds"), "s")
    print(measurement.worker_memory[["worker", "spilled", "spill_seconds"]])
    ```

    **What to do.** Switch it off before the cluster starts:

    <!-- not run here -->
    ```python
    import dask

    dask.config.set({"distributed.comm.compression": False, "distributed.worker.memory.spill-compression": False})
    ```

    If workers spill, they lack [memory](memory.md): fix that first. A smaller output helps in both cases.

    **When it is not a problem.** Between sites, or over a slow link, compression pays off.
    """
    rows = _fine(evidence, "compression", "decompression")
    what = f"Dask's own compression inside tasks (not ROOT's) {_in_tasks(evidence, rows)}"
    spilling = "and, if workers spill, distributed.worker.memory.spill-compression: false"
    advice = f"Switch it off in Dask's configuration ({spilling})."
    remedy = "distributed.comm.compression: false"
    return Finding(what=what, advice=advice, remedy=remedy, rows=rows) if rows else None


@finding(
    "other tasks",
    "Other tasks occupy the workers",
    part="around chunks",
    shows="`other tasks`",
    first="workers of your own",
)
def other_tasks(evidence: Evidence) -> Finding | None:
    """Limited by other tasks.

    Workers ran tasks that no measured Runner call had asked for: the class `other tasks` of the time ledger is large.

    **How to make sure.** Only place and times are kept of tasks of others. Their rows tell when they ran, and where.

    ```python
    others = measurement.tasks[measurement.tasks["kind"] == "other"]
    print((others["stop"] - others["start"]).groupby(others["worker"]).sum())
    ```

    **What to do.**

    - If they are of another user or another notebook, use workers of your own: one cluster for each analysis.
    - If they are yours, such as `client.map` or a Dask array next to the Runner, measure them apart: [Watch tasks
      while they run](../howto/watch.md).

    **When it is not a problem.** If you share workers on purpose, the run takes longer and nothing is lost. The
    saving is a bound.
    """
    rows = evidence.rows_of("other tasks")
    share = evidence.share_of("other tasks")
    what = f"Other tasks take {share} of thread time: no Runner call of this run submitted them."
    advice = "If they belong to another user or run, use dedicated workers."
    # without a Runner call, these tasks are what the user measures
    return Finding(what=what, advice=advice, rows=rows) if rows and evidence.run.calls else None
