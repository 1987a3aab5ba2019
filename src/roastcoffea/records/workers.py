"""Workers (their lifetimes and pauses, what they reported, what the scheduler did), and the client while they work."""

from __future__ import annotations

import dataclasses
from typing import Final

from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, picked

IN_THROTTLED_GROUPS: Final = (
    "throttling of the worker's control groups (cgroups) in the run, summed over processors; workers of one group "
    "share it, and it is unknown for workers that left"
)

LIFETIME_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker", "text", None, "address of the worker"),
    Column("name", "text", None, "name of the worker in its cluster"),
    Column("host", "text", None, "address of the host it ran on"),
    Column("process", "integer", None, "process on that host; workers that share one share its CPU time"),
    Column("threads", "integer", "threads", "threads for tasks (what Dask calls cores)"),
    Column("memory_limit", "integer", "B", "memory that Dask may use"),
    Column("start", "number", "s", "arrival, or start of the run (Unix time, the client's clock)"),
    Column("stop", "number", "s", "departure, or end of the run (Unix time, the client's clock)"),
    Column("cpu_seconds", "number", "s", "CPU time of the worker's process in this time (operating system)"),
    Column("clock_offset", "number", "s", "the worker's clock minus the client's, as bounded by its tasks"),
    Column("throttled_seconds", "number", "s", IN_THROTTLED_GROUPS),
    Column("throttled_periods", "integer", "periods", "periods with such throttling"),
    Column("steal_seconds", "number", "s", "time that the hypervisor took from the host's processors in the run"),
    Column("killed_memory", "integer", "B", "resident memory when its nanny (Dask) killed it, if it did"),
    Column("node", "text", None, "name of its node, as the batch system or the node itself tells it"),
    Column("batch_system", "text", None, "batch system of its job: slurm, htcondor, lsf, pbs or kubernetes"),
    Column("job", "text", None, "identity of its batch job; of a pod its name"),
    Column("queue", "text", None, "partition, queue, flavour or namespace of the job"),
    Column("job_cores", "number", "cores", "cores of the job, which are charged"),
    Column("job_memory", "integer", "B", "memory of the job"),
    Column("job_queued", "number", "s", "when the job was submitted (Unix time)"),
    Column("job_start", "number", "s", "start of the job, or of its first process (Unix time)"),
    Column("job_limit", "number", "s", "time limit of the job"),
    Column("lifetime_end", "number", "s", "when its --lifetime (Dask) has it close (Unix time, the client's clock)"),
    Column("closing", "number", "s", "when the scheduler learned that it closes (Unix time, the client's clock)"),
    Column("run", "text", None, "identity of its run, if independent runs were merged"),
)
OF_JOB: Final = ("node", "batch_system", "job", "queue", "job_cores", "job_memory", "job_queued", "job_limit")
"""Columns of lifetimes that a worker reports of its job as they are."""
WITHHELD: Final = ("throttled_seconds", "throttled_periods", "steal_seconds")
"""Columns of lifetimes with CPU time withheld from a worker or its host."""

PAUSE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker", "text", None, "address of the worker"),
    Column("start", "number", "s", "when the scheduler learned of its pause, or start of the run (the client's clock)"),
    Column("stop", "number", "s", "when it resumed or left, or end of the run (Unix time, the client's clock)"),
)

SAMPLE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker", "text", None, "address of the worker"),
    Column("time", "number", "s", "when the worker measured (Unix time, the worker's clock)"),
    Column("last_seen", "number", "s", "when the scheduler last heard from it (Unix time, the scheduler's clock)"),
    Column("noted", "number", "s", "when `processing`, `nbytes` and `occupancy` were read (the client's clock)"),
    Column("cpu_percent", "number", "%", "CPU use of the process; 100 is one core"),
    Column("memory", "integer", "B", "resident memory of the process"),
    Column("memory_limit", "integer", "B", "memory that Dask may use"),
    Column("processing", "integer", "tasks", "tasks that the scheduler has assigned to it"),
    Column("executing", "integer", "tasks", "tasks it was executing"),
    Column("nbytes", "integer", "B", "size of the results it holds"),
    Column("occupancy", "number", "s", "work that the scheduler expects from it"),
    Column("spilled", "integer", "B", "results it has spilled (their size in memory)"),
    Column("cpu_seconds", "number", "s", "CPU time of the process since this run first saw it"),
    Column("event_loop_seconds", "number", "s", "observed interval between ticks of its event loop"),
    Column("file_descriptors", "integer", None, "open file descriptors of the process"),
    Column("network_read", "number", "B/s", "network traffic into the host"),
    Column("network_write", "number", "B/s", "network traffic out of the host"),
    Column("disk_read", "number", "B/s", "disk traffic of the host"),
    Column("disk_write", "number", "B/s", "disk traffic of the host"),
)
"""What a worker reported at its own times, and what the scheduler knew of it when the sample was taken."""

SAMPLING_COLUMNS: Final[tuple[Column, ...]] = (
    Column("time", "number", "s", "when the sample was taken (Unix time, the client's clock)"),
    Column("workers", "integer", "workers", "workers present"),
    Column("late_seconds", "number", "s", "delay of the sample"),
    Column("missed", "integer", "samples", "samples missed before it while the scheduler's event loop was blocked"),
    Column("loop_cpu_seconds", "number", "s", "CPU time of the scheduler's event loop so far: of its thread"),
    Column("loop_queue_seconds", "number", "s", "time so far in which that thread was runnable, and had no core"),
    Column("process_cpu_seconds", "number", "s", "CPU time of the scheduler's process so far"),
    Column("transitions", "integer", None, "transitions of tasks so far, as counted by the scheduler"),
)
"""One row for each sample that the scheduler took itself, at the sampling interval."""

WORKER_STATE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("worker", "text", None, "address of the worker"),
    Column("time", "number", "s", "when the sample was taken (Unix time, the client's clock)"),
    Column("processing", "integer", "tasks", "tasks that the scheduler has assigned to it"),
    Column("nbytes", "integer", "B", "size of the results it holds"),
    Column("occupancy", "number", "s", "work that the scheduler expects from it"),
)
"""One row for each worker in each of these samples: what the scheduler knows without asking the worker."""

OF_SCHEDULER: Final = ("processing", "nbytes", "occupancy")
"""Columns of samples taken at `noted`, if known; the others are taken at `time`."""


SUBMIT: Final = "submit"
RESULTS: Final = "results"
EXECUTOR: Final = "executor"
LOOP: Final = "event loop"
SHARED_LOOP: Final = "shared event loop"
"""Steps; an event loop is shared if it is the scheduler's as well (LocalCluster)."""

CLIENT_STEP_COLUMNS: Final[tuple[Column, ...]] = (
    Column("call", "text", None, "identity of the Runner call; none for the event loop"),
    Column("work", "text", None, '"processing" or "preprocessing"; none for the event loop'),
    Column(
        "step",
        "text",
        None,
        '"executor" (all of its work), "submit" (a graph of tasks), "results" (from the last graph until the result is '
        'there), "merge" (into the output, on the client), "event loop" (a sample of it), or "shared event loop" (a '
        "sample, if the scheduler has the same one)",
    ),
    Column("start", "number", "s", "when it began; for the event loop, the previous sample (Unix time)"),
    Column("stop", "number", "s", "when it ended (Unix time)"),
    Column("cpu_seconds", "number", "s", "CPU time of its thread meanwhile"),
    Column("process_cpu_seconds", "number", "s", "CPU time of the client's process meanwhile (event loop only)"),
    Column("graph_bytes", "integer", "B", "size of the graph that was sent (submit only)"),
    Column("tasks", "integer", "tasks", "tasks of that graph (submit only)"),
    Column("late_seconds", "number", "s", "delay until the event loop took a call (event loop only)"),
)
"""One row for each step of the client's thread, and about one a second for its event loop."""


PROCESSOR: Final = "processor"
MERGE: Final = "merge"
"""Also a step of the client."""

PREPROCESSING: Final = "preprocessing"
OTHER: Final = "other"
KINDS: Final = (OTHER, PROCESSOR, MERGE, PREPROCESSING)

MERGE_PREFIX: Final = "reduce"
"""Prefix of coffea's tasks that merge results, including those of preprocessing."""

OK: Final = "ok"
ERROR: Final = "error"
LOST: Final = "worker lost"
CANCELLED: Final = "cancelled"
UNFINISHED: Final = "unfinished"
OUTCOMES: Final = (OK, ERROR, LOST, CANCELLED, UNFINISHED)

TASK_COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        "key", "text", None, "key of the task; none for other users' tasks, of which only worker and times are kept"
    ),
    Column("run_id", "integer", None, "number that the scheduler gave this attempt"),
    Column("prefix", "text", None, "task prefix: the key without its token"),
    Column("kind", "text", None, 'its role in this run: "processor", "merge", "preprocessing" or "other"'),
    Column("worker", "text", None, "address of the worker"),
    Column("thread", "integer", None, "identity of the thread in its process"),
    Column("runnable", "number", "s", "when all its inputs were available (Unix time, the client's clock)"),
    Column("assigned", "number", "s", "when the scheduler assigned it to the worker (Unix time, the client's clock)"),
    Column("arrived", "number", "s", "when it arrived at the worker (Unix time, the client's clock)"),
    Column("ready", "number", "s", "when the worker had its inputs (Unix time, the client's clock)"),
    Column("start", "number", "s", "when it started on its thread (Unix time, the client's clock)"),
    Column("stop", "number", "s", "when it ended on its thread (Unix time, the client's clock)"),
    Column(
        "startup_seconds",
        "number",
        "s",
        "of its time, start of the process that was made for it alone, until its chunk or file began (TaskVine)",
    ),
    Column("seceded", "number", "s", "when it seceded from the thread pool (Unix time, the client's clock)"),
    Column("seen", "number", "s", "when the scheduler learned of its end (Unix time, the client's clock)"),
    Column("nbytes", "integer", "B", "size of the result in memory"),
    Column("type", "text", None, "type of the result"),
    Column("outcome", "text", None, '"ok", "error", "worker lost", "cancelled" or "unfinished" (when the run stopped)'),
    Column("attempt", "integer", None, "number of this attempt at its task, from 1, among recorded ones"),
    Column("stolen", "integer", None, "times it was moved to another worker before it started (work stealing)"),
    Column("span", "text", None, "identity of the Dask span that counts it"),
    Column("error", "text", None, "text of the error, if any"),
    *(
        dataclasses.replace(column, meaning=f"{column.meaning}, if its attempt failed")
        for column in picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop")
    ),
    Column("merge_level", "integer", None, "of a merge, its level in the tree: 1 merges results of chunks"),
    Column("inputs", "integer", None, "of a merge, the results that it merges"),
    Column("input_bytes", "integer", "B", "of a merge, their size in memory"),
)

SPAN_COLUMNS: Final[tuple[Column, ...]] = (
    Column("context", "text", None, "context of the count, such as execute or get-data"),
    Column("prefix", "text", None, "task prefix; none outside tasks"),
    Column("activity", "text", None, "activity, such as thread-cpu or disk-read"),
    Column("unit", "text", None, "unit of the amount"),
    Column("amount", "number", None, "the amount"),
)
WORKER_SPAN_COLUMNS: Final = (Column("worker", "text", None, "address of the worker"), *SPAN_COLUMNS)
"""A worker without counts has one row, without a context."""
