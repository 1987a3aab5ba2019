"""A run of which scheduler, client and merges are known, by hand."""

from __future__ import annotations

from typing import Any

from handmade import T, call, handmade_run

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import Run
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS, SAMPLING_COLUMNS


def sample(second: int, cpu: float, **changes: Any) -> dict[str, Any]:
    """Sample of a scheduler whose event loop used so much CPU; a fifth of that was contention."""
    used = {"loop_cpu_seconds": cpu, "loop_queue_seconds": cpu / 5, "process_cpu_seconds": 2 * cpu}
    return {"time": T + second, "workers": 2, "late_seconds": 0.25, "missed": 0} | used | changes


# Half of its core from 20 s to 60 s; at 50 s it missed a sample, and nothing was sampled after 90 s.
SAMPLING = [sample(second, 0.5 * min(max(second - 20, 0), 40)) for second in range(0, 100, 10)]
SAMPLING[5] |= {"missed": 1, "late_seconds": 0.5}


def task(key: str, kind: str, seen: float, **changes: Any) -> dict[str, Any]:
    times = {"assigned": T + 20, "start": T + seen - 2, "stop": T + seen - 1, "seen": T + seen}
    return {"key": key, "kind": kind, "worker": "A", "outcome": "ok"} | times | changes


def merge(key: str, seen: float, level: int, inputs: int, size: int, nbytes: int) -> dict[str, Any]:
    return task(key, "merge", seen, merge_level=level, inputs=inputs, input_bytes=size, nbytes=nbytes)


TASKS = [
    *(task(f"k{seen}", "processor", seen) for seen in (25, 30, 35, 40, 45, 50)),
    *(merge(key, 55, 1, 3, 300, 150) for key in ("r1", "r2")),
    merge("r3", 60, 2, 2, 300, 200),
]


def step(name: str, start: float, stop: float, **known: Any) -> dict[str, Any]:
    return {"call": "c1", "work": "processing", "step": name, "start": T + start, "stop": T + stop} | known


def loop(start: float, stop: float, cpu: float, process: float, late: float, **known: Any) -> dict[str, Any]:
    used = {"cpu_seconds": cpu, "process_cpu_seconds": process, "late_seconds": late}
    return {"step": "event loop", "start": T + start, "stop": T + stop} | used | known


STEPS = [
    step("executor", 15, 80),
    step("submit", 15, 20, graph_bytes=900, tasks=6),
    step("submit", 20, 21, graph_bytes=300, tasks=3),
    step("results", 21, 70),
    step("merge", 70, 80),
]
LOOP = [loop(0, 10, 2.0, 3.0, 0.5), loop(10, 20, 4.0, 5.0, 1.5)]

OF_CENTRAL = {
    "scheduler_cpu_seconds": 20.0,
    "scheduler_queue_seconds": 4.0,
    "scheduler_idle_seconds": 66.0,
    "scheduler_unaccounted_seconds": 10.0,
    "scheduler_process_cpu_seconds": 40.0,
    "scheduler_core_share": 0.5,
    "scheduler_core_share_peak": 0.5,
    "scheduler_lag_seconds": (4 * 0.25 + 10.5) / 5,
    "scheduler_lag_peak_seconds": 10.5,
    "scheduler_task_rate": 9 / 40,
    "scheduler_task_rate_peak": 0.3,  # two at 55 s and one at 60 s
    "scheduler_cpu_per_task_seconds": 20 / 9,
    "scheduler_task_rate_limit": 9 / 20,
    "client_submit_seconds": 6.0,
    "client_waiting_seconds": 39.0,  # until the last merge ended
    "client_gather_seconds": 10.0,
    "client_merge_seconds": 10.0,
    "client_preparing_seconds": 15.0,
    "client_outside_seconds": 20.0,
    "client_unaccounted_seconds": 0.0,
    "client_busy_share": 0.61,
    "client_loop_cpu_seconds": 6.0,
    "client_loop_core_share": 0.3,
    "client_loop_lag_seconds": 1.0,
    "client_loop_lag_peak_seconds": 1.5,
    "client_process_cpu_seconds": 8.0,
    "graph_bytes": 1200,
    "graph_tasks": 9,
    "graph_bytes_per_task": 1200 / 9,
    "num_merges": 3,
    "merge_levels": 2,
    "merge_inputs_mean": 8 / 3,
    "merged_bytes": 900,
}
"""Metrics of this run, which a run without these records lacks."""


def central_run(**changes: Any) -> Run:
    """The run above, with some fields changed."""
    fields = {
        "calls": (call("c1", T + 10, T + 90, None),),
        "sampling": table_of_rows(SAMPLING_COLUMNS, SAMPLING),
        "sampling_interval": 10.0,
        "tasks": table_of_rows(TASK_COLUMNS, TASKS),
        "client_steps": table_of_rows(CLIENT_STEP_COLUMNS, [*STEPS, *LOOP]),
    }
    return handmade_run(**fields | changes)
