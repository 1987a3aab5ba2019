"""Dask's part in the time of a recorded run: gaps between tasks, event loops, merges."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.statistics import Numbers, amounts, codes, moments
from roastcoffea.records.run import Run, RunnerCall
from roastcoffea.records.tasks import MERGE_PREFIX
from roastcoffea.replay.cluster import CROWDED, Merging, tree
from roastcoffea.replay.engine import MOST_OWN
from roastcoffea.replay.first_tasks import FEWEST, late_start
from roastcoffea.replay.inputs import Costs

SCHEDULER_SECONDS: Final = 1.1e-3
"""CPU time of Dask's scheduler for a task: assumed, as no run tells it."""

TYPICAL_GAP: Final = 1.5e-3
"""Seconds between two tasks of a thread where a run has too few to tell."""

CPU_OF_CHUNKS: Final = ("cpu_seconds", "helper_cpu_seconds")


def task_durations(tasks: pa.Table) -> Numbers:
    """Seconds of each task; 0 where they are not known."""
    return np.nan_to_num(moments(tasks, "stop") - moments(tasks, "start"))


def costs_of(run: Run, tasks: pa.Table) -> Costs:
    """What Dask adds to the tasks of a run that ended well."""
    gap = _gap(tasks)
    latency = _middle(tasks, "seen", "stop") + _middle(tasks, "arrived", "assigned") + gap
    own = _own(run, tasks, latency)
    return Costs(gap=gap, latency=latency, scheduler=SCHEDULER_SECONDS, own=own, crowded=CROWDED)


def _middle(tasks: pa.Table, later: str, earlier: str) -> float:
    """Median time between two moments of tasks."""
    took = moments(tasks, later) - moments(tasks, earlier)
    return max(float(np.nanmedian(took)), 0.0) if np.isfinite(took).any() else 0.0


def _gap(tasks: pa.Table) -> float:
    """Median time between two tasks of a thread, the second of which was ready before the first ended."""
    thread, worker = codes(tasks["thread"]), codes(tasks["worker"])
    start, stop, ready = (moments(tasks, name) for name in ("start", "stop", "ready"))
    order = np.lexsort((start, thread, worker))
    one, other = order[:-1], order[1:]
    follows = (thread[one] == thread[other]) & (worker[one] == worker[other]) & (ready[other] <= stop[one])
    gaps = (start[other] - stop[one])[follows]
    return max(float(np.median(gaps)), 0.0) if len(gaps) >= FEWEST else TYPICAL_GAP


def _own(run: Run, tasks: pa.Table, latency: float) -> float:
    """CPU time of a worker's process, for each task, but for the tasks' and for its beginning: its event loop."""
    if run.lifetimes is None or run.lifetimes["cpu_seconds"].null_count or not len(tasks):
        return 0.0
    busy = float(pc.sum(run.lifetimes["cpu_seconds"]).as_py())
    began = late_start(tasks.sort_by("start"), latency) * len(tasks["worker"].unique())
    return max(busy - began - _tasks_cpu(run, tasks), 0.0) / len(tasks) / _longer(run)


def _longer(run: Run) -> float:
    """How many times as long as they needed chunks took, for want of cores, as far as event loops compute more then."""
    if run.chunks is None:
        return 1.0
    wall, waited = (float(amounts(run.chunks, name).sum()) for name in ("wall_seconds", "core_wait_seconds"))
    return min(wall / (wall - waited), MOST_OWN) if wall > waited else 1.0


def _tasks_cpu(run: Run, tasks: pa.Table) -> float:
    """CPU time of tasks: of chunks as it was measured, of all else their time."""
    total = float(task_durations(tasks).sum())
    if run.chunks is not None:
        wall, *cpu = (float(amounts(run.chunks, name).sum()) for name in ("wall_seconds", *CPU_OF_CHUNKS))
        total += sum(cpu) - wall
    return total


def merging_of(run: Run, call: RunnerCall, results: int, merges: pa.Table) -> Merging:
    """How results were merged, and what it took for each."""
    fan_in = call.options.get("executor.treereduction")
    if not len(merges) or not isinstance(fan_in, int) or fan_in < 2:
        return Merging()
    each = float(task_durations(merges).sum()) / max(int(tree(results, fan_in)[1].sum()), 1)
    cpu = _cpu_share(run)
    return Merging(fan_in=fan_in, cpu=each * cpu, wait=each * (1 - cpu), fetch=_middle(merges, "ready", "arrived"))


def _cpu_share(run: Run) -> float:
    """Share of CPU in the time of merges, as Dask metered it; 1 where it did not."""
    metered = run.span_metrics or {}
    cpu, other = (
        metered.get(("execute", MERGE_PREFIX, activity, "seconds"), 0.0) for activity in ("thread-cpu", "thread-noncpu")
    )
    return cpu / (cpu + other) if cpu + other else 1.0
