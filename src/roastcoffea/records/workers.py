"""Worker, scheduler, client and task records."""

from __future__ import annotations

import dataclasses
from typing import Final

from roastcoffea.records.calls import *  # noqa: F403  (its names belong to these tables)
from roastcoffea.records.calls import WORKER_LOST
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, bytes_column, integer_column, picked, seconds_column, text_column

IN_THROTTLED_GROUPS: Final = (
    "time for which the worker's cgroups were throttled during the run, summed over processors; the same for all "
    "workers in a cgroup, and unknown for workers that left"
)

LOST: Final = WORKER_LOST

LIFETIME_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    text_column("name", "worker name in the cluster"),
    text_column("host", "address of the worker's host"),
    integer_column("process", "process ID on the host; workers in the same process share its CPU time"),
    Column("threads", "integer", "threads", "number of task threads, which Dask calls cores"),
    bytes_column("memory_limit", "Dask's memory limit for the worker"),
    seconds_column("start", "when the worker arrived; the run's start if later (Unix time, the client's clock)"),
    seconds_column("stop", "when the worker left; the run's end if earlier (Unix time, the client's clock)"),
    seconds_column("cpu_seconds", "CPU time of the worker's process between start and stop, as reported by the OS"),
    seconds_column(
        "clock_offset",
        "the worker's clock minus the client's clock, estimated from the timestamps of the worker's tasks",
    ),
    seconds_column("throttled_seconds", IN_THROTTLED_GROUPS),
    Column("throttled_periods", "integer", "periods", "number of periods in which the worker's cgroups were throttled"),
    seconds_column("steal_seconds", "CPU time that the hypervisor withheld from the host during the run"),
    bytes_column("killed_memory", "resident memory at which Dask's nanny killed the worker, if it did"),
    text_column("node", "name of the node, reported by the batch system or by the node itself"),
    text_column("batch_system", "batch system: slurm, htcondor, lsf, pbs or kubernetes"),
    text_column("job", "batch job ID or pod name"),
    text_column("queue", "the job's partition, queue, flavour or namespace"),
    Column("job_cores", "number", "cores", "cores charged to the job"),
    bytes_column("job_memory", "memory allocated to the job"),
    seconds_column("job_queued", "when the job was submitted (Unix time)"),
    seconds_column("job_start", "when the job, or its first process, started (Unix time)"),
    seconds_column("job_limit", "the job's time limit"),
    seconds_column("lifetime_end", "when the worker's Dask --lifetime ends (Unix time, the client's clock)"),
    seconds_column("closing", "when the scheduler learned that the worker was closing (Unix time, the client's clock)"),
    text_column("run", "ID of the worker's run, if independent runs were merged"),
)
OF_JOB: Final = ("node", "batch_system", "job", "queue", "job_cores", "job_memory", "job_queued", "job_limit")
"""Columns in the lifetime table that a worker reports about its job. The values are stored unchanged."""
WITHHELD: Final = ("throttled_seconds", "throttled_periods", "steal_seconds")
"""Columns in the lifetime table for CPU time withheld from a worker or its host."""

PAUSE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("start", "when the scheduler learned of the pause; the run's start if later (the client's clock)"),
    seconds_column("stop", "when the worker resumed or left; the run's end if earlier (the client's clock)"),
)

SAMPLE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("time", "when the worker took the measurement (Unix time, the worker's clock)"),
    seconds_column("last_seen", "when the scheduler last heard from the worker (Unix time, the scheduler's clock)"),
    seconds_column("noted", "when `processing`, `nbytes` and `occupancy` were read (the client's clock)"),
    Column("cpu_percent", "number", "%", "CPU usage of the process; 100 means one core"),
    bytes_column("memory", "resident memory of the process"),
    bytes_column("memory_limit", "Dask's memory limit for the worker"),
    Column("processing", "integer", "tasks", "number of tasks assigned to the worker by the scheduler"),
    Column("executing", "integer", "tasks", "number of tasks that the worker was executing"),
    bytes_column("nbytes", "size of the results held by the worker"),
    seconds_column("occupancy", "the scheduler's estimate of the worker's remaining work"),
    bytes_column("spilled", "in-memory size of spilled results"),
    seconds_column("cpu_seconds", "CPU time of the process since its first sample in this run"),
    seconds_column("event_loop_seconds", "measured interval between ticks of the worker's event loop"),
    integer_column("file_descriptors", "number of open file descriptors in the process"),
    Column("network_read", "number", "B/s", "rate of the host's inbound network traffic"),
    Column("network_write", "number", "B/s", "rate of the host's outbound network traffic"),
    Column("disk_read", "number", "B/s", "read rate of the host's disks"),
    Column("disk_write", "number", "B/s", "write rate of the host's disks"),
    Column("gpu_percent", "number", "%", "utilisation of the worker's first GPU, by Dask with pynvml"),
    bytes_column("gpu_memory", "memory in use on this GPU, by all processes"),
)
"""The worker's latest report, and the scheduler's view of the worker when the sample was taken."""

SAMPLING_COLUMNS: Final = (
    seconds_column("time", "when the sample was taken (Unix time, the client's clock)"),
    Column("workers", "integer", "workers", "number of workers in the cluster"),
    seconds_column("late_seconds", "delay in taking the sample"),
    Column(
        "missed",
        "integer",
        "samples",
        "number of samples missed just before this one because the scheduler's event loop was blocked",
    ),
    seconds_column("loop_cpu_seconds", "cumulative CPU time of the scheduler's event loop thread"),
    seconds_column(
        "loop_queue_seconds", "cumulative time that the event loop thread spent runnable but waiting for a core"
    ),
    seconds_column("process_cpu_seconds", "cumulative CPU time of the scheduler's process"),
    integer_column("transitions", "cumulative number of task transitions, as counted by the scheduler"),
)
"""One row per sample taken by the scheduler itself at the sampling interval."""

WORKER_STATE_COLUMNS: Final = (
    text_column("worker", "address of the worker"),
    seconds_column("time", "when the sample was taken (Unix time, the client's clock)"),
    Column("processing", "integer", "tasks", "number of tasks assigned to the worker by the scheduler"),
    bytes_column("nbytes", "size of the results held by the worker"),
    seconds_column("occupancy", "the scheduler's estimate of the worker's remaining work"),
)
"""One row per worker and sample, with values that the scheduler has without asking the worker."""

OF_SCHEDULER: Final = ("processing", "nbytes", "occupancy")
"""Sample columns read at `noted`, if `noted` is known. The other columns are read at `time`."""


REQUESTED, SUBMITTED, PENDING, HELD = "requested", "submitted", "pending", "held"
STARTED, ENDED, RELEASED = "started", "ended", "released"
"""States of a requested worker until it arrives."""

REQUEST_COLUMNS: Final = (
    text_column("name", "name of the worker in its cluster; a number if it has none yet (Dask Gateway)"),
    seconds_column("time", "when it was noticed; none if it was so before the run (Unix time)"),
    text_column(
        "state",
        '"requested", "submitted" (it has a job), "pending", "held", "started", "ended" (what the batch system reports '
        'about the job), or "released" (no longer requested)',
    ),
    *picked(LIFETIME_COLUMNS, "job"),
    text_column("reason", "the batch system's reason for this state"),
)
"""One row for each change of the workers that the client's cluster object requests, and of their jobs."""


CLIENT_STEP_COLUMNS: Final = (
    text_column("call", "Runner call ID; none for the event loop"),
    text_column("work", '"processing" or "preprocessing"; none for the event loop'),
    text_column(
        "step",
        '"executor" (all work by the executor), "submit" (sending a task graph), "results" (waiting for the result '
        'after the last graph was sent), "merge" (merging results on the client), "event loop" (a sample), or "shared '
        'event loop" (a sample if the scheduler runs on the same loop)',
    ),
    seconds_column("start", "when the step began; for the event loop, when the previous sample was taken (Unix time)"),
    seconds_column("stop", "when the step ended (Unix time)"),
    seconds_column("cpu_seconds", "thread CPU time between start and stop"),
    seconds_column("process_cpu_seconds", "CPU time of the client's process between start and stop (event loop only)"),
    bytes_column("graph_bytes", "size of the task graph (submit only)"),
    Column("tasks", "integer", "tasks", "number of tasks in the graph (submit only)"),
    seconds_column("late_seconds", "delay until the event loop ran a scheduled call (event loop only)"),
)
"""One row per step of the client thread, and about one row per second for the client's event loop."""


TASK_COLUMNS: Final = (
    text_column("key", "task key; none for other users' tasks, for which only the worker and times are kept"),
    integer_column("run_id", "number that the scheduler assigned to this attempt"),
    text_column("prefix", "task prefix: the key without its token"),
    text_column("kind", 'role of the task in this run: "processor", "merge", "preprocessing" or "other"'),
    text_column("worker", "address of the worker"),
    integer_column("thread", "thread ID within the process"),
    seconds_column("runnable", "when all the task's inputs were available (Unix time, the client's clock)"),
    seconds_column("assigned", "when the scheduler assigned the task to the worker (Unix time, the client's clock)"),
    seconds_column("arrived", "when the task arrived at the worker (Unix time, the client's clock)"),
    seconds_column("ready", "when all the task's inputs were on the worker (Unix time, the client's clock)"),
    seconds_column("start", "when the task started on its thread (Unix time, the client's clock)"),
    seconds_column("stop", "when the task ended on its thread (Unix time, the client's clock)"),
    seconds_column(
        "startup_seconds",
        "time from the start of the task's process until work on the chunk or file began; included in the "
        "task's time (TaskVine only)",
    ),
    seconds_column("seceded", "when the task seceded from the thread pool (Unix time, the client's clock)"),
    seconds_column("seen", "when the scheduler learned that the task had finished (Unix time, the client's clock)"),
    bytes_column("nbytes", "in-memory size of the result"),
    text_column("type", "type of the result"),
    text_column("outcome", '"ok", "error", "worker lost", "cancelled" or "unfinished" (when the run stopped)'),
    integer_column("attempt", "attempt number among the task's recorded attempts, starting at 1"),
    integer_column("stolen", "number of times the task was moved to another worker before it started (work stealing)"),
    text_column("span", "ID of the Dask span that contains the task"),
    text_column("error", "error message, if any"),
    *(
        dataclasses.replace(column, meaning=f"{column.meaning} (failed attempts only)")
        for column in picked(CHUNK_COLUMNS, "dataset", "file", "entry_start", "entry_stop")
    ),
    integer_column("merge_level", "level of a merge task in the merge tree; level 1 merges chunk results"),
    integer_column("inputs", "number of results merged by a merge task"),
    bytes_column("input_bytes", "in-memory size of the merged results"),
)

SPAN_COLUMNS: Final = (
    text_column("context", "context of the activity, such as execute or get-data"),
    text_column("prefix", "task prefix; none for activity outside tasks"),
    text_column("activity", "activity, such as thread-cpu or disk-read"),
    text_column("unit", "unit of the amount"),
    Column("amount", "number", None, "amount in `unit`"),
)
WORKER_SPAN_COLUMNS: Final = (text_column("worker", "address of the worker"), *SPAN_COLUMNS)
"""A worker without counts has one row, in which the context is null."""
