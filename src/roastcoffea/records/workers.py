"""Workers (their lifetimes and pauses, what they reported, what the scheduler did), and the client while they work."""

from __future__ import annotations

import dataclasses
from typing import Final

from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, bytes_column, integer_column, picked, seconds_column, text_column

IN_THROTTLED_GROUPS: Final = (
    "throttling of the worker's control groups (cgroups) in the run, summed over processors; workers of one group "
    "share it, and it is unknown for workers that left"
)

LIFETIME_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    text_column("name", "name of the worker in its cluster"),
    text_column("host", "address of the host it ran on"),
    integer_column("process", "process on that host; workers that share one share its CPU time"),
    Column("threads", "integer", "threads", "threads for tasks (what Dask calls cores)"),
    bytes_column("memory_limit", "memory that Dask may use"),
    seconds_column("start", "arrival, or start of the run (Unix time, the client's clock)"),
    seconds_column("stop", "departure, or end of the run (Unix time, the client's clock)"),
    seconds_column("cpu_seconds", "CPU time of the worker's process in this time (operating system)"),
    seconds_column("clock_offset", "the worker's clock minus the client's, as bounded by its tasks"),
    seconds_column("throttled_seconds", IN_THROTTLED_GROUPS),
    Column("throttled_periods", "integer", "periods", "periods with such throttling"),
    seconds_column("steal_seconds", "time that the hypervisor took from the host's processors in the run"),
    bytes_column("killed_memory", "resident memory when its nanny (Dask) killed it, if it did"),
    text_column("node", "name of its node, as the batch system or the node itself tells it"),
    text_column("batch_system", "batch system of its job: slurm, htcondor, lsf, pbs or kubernetes"),
    text_column("job", "identity of its batch job; of a pod its name"),
    text_column("queue", "partition, queue, flavour or namespace of the job"),
    Column("job_cores", "number", "cores", "cores of the job, which are charged"),
    bytes_column("job_memory", "memory of the job"),
    seconds_column("job_queued", "when the job was submitted (Unix time)"),
    seconds_column("job_start", "start of the job, or of its first process (Unix time)"),
    seconds_column("job_limit", "time limit of the job"),
    seconds_column("lifetime_end", "when its --lifetime (Dask) has it close (Unix time, the client's clock)"),
    seconds_column("closing", "when the scheduler learned that it closes (Unix time, the client's clock)"),
    text_column("run", "identity of its run, if independent runs were merged"),
)
OF_JOB: Final = ("node", "batch_system", "job", "queue", "job_cores", "job_memory", "job_queued", "job_limit")
"""Columns of lifetimes that a worker reports of its job as they are."""
WITHHELD: Final = ("throttled_seconds", "throttled_periods", "steal_seconds")
"""Columns of lifetimes with CPU time withheld from a worker or its host."""

PAUSE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("start", "when the scheduler learned of its pause, or start of the run (the client's clock)"),
    seconds_column("stop", "when it resumed or left, or end of the run (Unix time, the client's clock)"),
)

SAMPLE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("time", "when the worker measured (Unix time, the worker's clock)"),
    seconds_column("last_seen", "when the scheduler last heard from it (Unix time, the scheduler's clock)"),
    seconds_column("noted", "when `processing`, `nbytes` and `occupancy` were read (the client's clock)"),
    Column("cpu_percent", "number", "%", "CPU use of the process; 100 is one core"),
    bytes_column("memory", "resident memory of the process"),
    bytes_column("memory_limit", "memory that Dask may use"),
    Column("processing", "integer", "tasks", "tasks that the scheduler has assigned to it"),
    Column("executing", "integer", "tasks", "tasks it was executing"),
    bytes_column("nbytes", "size of the results it holds"),
    seconds_column("occupancy", "work that the scheduler expects from it"),
    bytes_column("spilled", "results it has spilled (their size in memory)"),
    seconds_column("cpu_seconds", "CPU time of the process since this run first saw it"),
    seconds_column("event_loop_seconds", "observed interval between ticks of its event loop"),
    integer_column("file_descriptors", "open file descriptors of the process"),
    Column("network_read", "number", "B/s", "network traffic into the host"),
    Column("network_write", "number", "B/s", "network traffic out of the host"),
    Column("disk_read", "number", "B/s", "disk traffic of the host"),
    Column("disk_write", "number", "B/s", "disk traffic of the host"),
)
"""What a worker reported at its own times, and what the scheduler knew of it when the sample was taken."""

SAMPLING_COLUMNS: Final = (
    seconds_column("time", "when the sample was taken (Unix time, the client's clock)"),
    Column("workers", "integer", "workers", "workers present"),
    seconds_column("late_seconds", "delay of the sample"),
    Column("missed", "integer", "samples", "samples missed before it while the scheduler's event loop was blocked"),
    seconds_column("loop_cpu_seconds", "CPU time of the scheduler's event loop so far: of its thread"),
    seconds_column("loop_queue_seconds", "time so far in which that thread was runnable, and had no core"),
    seconds_column("process_cpu_seconds", "CPU time of the scheduler's process so far"),
    integer_column("transitions", "transitions of tasks so far, as counted by the scheduler"),
)
"""One row for each sample that the scheduler took itself, at the sampling interval."""

WORKER_STATE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("time", "when the sample was taken (Unix time, the client's clock)"),
    Column("processing", "integer", "tasks", "tasks that the scheduler has assigned to it"),
    bytes_column("nbytes", "size of the results it holds"),
    seconds_column("occupancy", "work that the scheduler expects from it"),
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

CLIENT_STEP_COLUMNS: Final = (
    text_column("call", "identity of the Runner call; none for the event loop"),
    text_column("work", '"processing" or "preprocessing"; none for the event loop'),
    text_column(
        "step",
        '"executor" (all of its work), "submit" (a graph of tasks), "results" (from the last graph until the result is '
        'there), "merge" (into the output, on the client), "event loop" (a sample of it), or "shared event loop" (a '
        "sample, if the scheduler has the same one)",
    ),
    seconds_column("start", "when it began; for the event loop, the previous sample (Unix time)"),
    seconds_column("stop", "when it ended (Unix time)"),
    seconds_column("cpu_seconds", "CPU time of its thread meanwhile"),
    seconds_column("process_cpu_seconds", "CPU time of the client's process meanwhile (event loop only)"),
    bytes_column("graph_bytes", "size of the graph that was sent (submit only)"),
    Column("tasks", "integer", "tasks", "tasks of that graph (submit only)"),
    seconds_column("late_seconds", "delay until the event loop took a call (event loop only)"),
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

TASK_COLUMNS: Final = (
    text_column("key", "key of the task; none for other users' tasks: only their worker and times are kept"),
    integer_column("run_id", "number that the scheduler gave this attempt"),
    text_column("prefix", "task prefix: the key without its token"),
    text_column("kind", 'its role in this run: "processor", "merge", "preprocessing" or "other"'),
    text_column("worker", "address of the worker"),
    integer_column("thread", "identity of the thread in its process"),
    seconds_column("runnable", "when all its inputs were available (Unix time, the client's clock)"),
    seconds_column("assigned", "when the scheduler assigned it to the worker (Unix time, the client's clock)"),
    seconds_column("arrived", "when it arrived at the worker (Unix time, the client's clock)"),
    seconds_column("ready", "when the worker had its inputs (Unix time, the client's clock)"),
    seconds_column("start", "when it started on its thread (Unix time, the client's clock)"),
    seconds_column("stop", "when it ended on its thread (Unix time, the client's clock)"),
    seconds_column(
        "startup_seconds",
        "of its time, start of the process that was made for it alone, until its chunk or file began (TaskVine)",
    ),
    seconds_column("seceded", "when it seceded from the thread pool (Unix time, the client's clock)"),
    seconds_column("seen", "when the scheduler learned of its end (Unix time, the client's clock)"),
    bytes_column("nbytes", "size of the result in memory"),
    text_column("type", "type of the result"),
    text_column("outcome", '"ok", "error", "worker lost", "cancelled" or "unfinished" (when the run stopped)'),
    integer_column("attempt", "number of this attempt at its task, from 1, among recorded ones"),
    integer_column("stolen", "times it was moved to another worker before it started (work stealing)"),
    text_column("span", "identity of the Dask span that counts it"),
    text_column("error", "text of the error, if any"),
    *(
        dataclasses.replace(column, meaning=f"{column.meaning}, if its attempt failed")
        for column in picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop")
    ),
    integer_column("merge_level", "of a merge, its level in the tree: 1 merges results of chunks"),
    integer_column("inputs", "of a merge, the results that it merges"),
    bytes_column("input_bytes", "of a merge, their size in memory"),
)

SPAN_COLUMNS: Final = (
    text_column("context", "context of the count, such as execute or get-data"),
    text_column("prefix", "task prefix; none outside tasks"),
    text_column("activity", "activity, such as thread-cpu or disk-read"),
    text_column("unit", "unit of the amount"),
    Column("amount", "number", None, "the amount"),
)
WORKER_SPAN_COLUMNS: Final = (text_column("worker", "address of the worker"), *SPAN_COLUMNS)
"""A worker without counts has one row, without a context."""
