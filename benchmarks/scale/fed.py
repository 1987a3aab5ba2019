"""A simulated run as the recorder records it: the plugin on the scheduler, its log, the drains, and the collector.

Scheduler and workers are stand-ins (`tests/stand_ins.py`), which report each task at its simulated time; all that
handles these reports is what handles those of a real run.
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from benchmarks.scale.client_cost import FACTS, Fed, Item
from benchmarks.scale.scheduler_cost import Clock, drain, make
from benchmarks.scheduler import ANNOTATIONS, CALL, PREFIX, runner_call

from roastcoffea import Measurement, MetricsCollector
from roastcoffea.backends import attempts, scheduler
from roastcoffea.log.journal import LOG
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.log.packing import packed_records
from roastcoffea.records.run import Run

from .plan import Plan
from .simulated import simulated

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from stand_ins import NAME, Scheduler, Task, Worker, started_plugin

THREAD = 140_000_000_000_000


class Event(NamedTuple):
    """A transition of a task, or the arrival of a worker."""

    time: float
    number: int
    worker: Worker
    task: Task | None = None
    states: tuple[str, str] = ("", "")


def fed(plan: Plan, workers: int, *, seed: int, first: bool = False, name: str | None = None) -> Measurement:
    """Measurement of a simulated run that went through the recorder."""
    run = simulated(plan, workers, seed=seed, first=first)
    clock, stand_in = Clock(), Scheduler(0)
    clock.now = run.start
    events = sorted(_events(run, plan))
    attempts.time = scheduler.time = clock  # type: ignore[assignment]
    plugin = started_plugin(stand_in)  # type: ignore[arg-type]
    plugin.interval = 1.0
    log, pieces, begin = io.BytesIO(), [], 0
    for second in range(int(run.stop - run.start) + 2):
        until, late = run.start + second, [0.0]
        while begin < len(events) and events[begin].time <= until:
            _happens(events[begin], stand_in, plugin, clock)
            if events[begin].states[1] == "memory":
                late.append(events[begin].time - events[begin].task.stop)
            begin += 1
        clock.now = until
        _beat(stand_in, until, second)
        # the event loop answers its own clock when it has handled what came before
        plugin.tick(second, float(np.mean(late)), 0)
        drain(plugin, log)
        pieces.append(log.tell())
    attempts.time = scheduler.time = time  # type: ignore[assignment]
    assert plugin.problems.failures == 0, plugin.problems
    counted = plugin.attempts.by_kind()
    return _collected(run, plan, log.getvalue(), pieces, counted, name or f"workers-{workers}")


def _events(run: Run, plan: Plan) -> Iterator[Event]:
    """Arrivals of workers and transitions of tasks."""
    assert run.tasks is not None
    assert run.chunks is not None
    assert run.lifetimes is not None
    here: dict[str, Worker] = {}
    for row in run.lifetimes.to_pylist():
        number = int(row["worker"][1:])
        address = f"tcp://{row['host']}:{40_000 + number}"
        here[row["worker"]] = Worker(address, f"worker-{number}", host=row["host"], nthreads=1)
        yield Event(row["start"], -number - 1, here[row["worker"]])
    records = {row["key"]: row for row in run.chunks.to_pylist()}
    rows = [row | {"seen": row["seen"] or run.stop} for row in run.tasks.to_pylist()]
    rows.sort(key=lambda row: row["seen"])
    for number, (row, inputs) in enumerate(_with_inputs(rows, plan.tree)):
        worker, record = here[row["worker"]], records.get(row["key"])
        task = Task(
            key=row["key"],
            worker=worker,
            prefix_name=PREFIX if record else "reduce",
            run_id=row["run_id"],
            annotations=ANNOTATIONS,
            start=row["start"],
            stop=row["stop"],
            nbytes=row["nbytes"],
            thread=THREAD,
            metadata={NAME: [row["arrived"], row["ready"], row["start"], 0.0]},
            dependencies=tuple(inputs),
        )
        row["task"] = task
        if record:
            own = {"worker": worker.address, "call": CALL, "thread": THREAD}
            task.metadata[METADATA_KEY] = packed_records([{**record, **own}])
        waiting = "queued" if record else "waiting"
        yield Event(row["runnable"], 4 * number, worker, task, ("released", "waiting"))
        if record:
            yield Event(row["runnable"], 4 * number + 1, worker, task, ("waiting", "queued"))
        yield Event(row["assigned"], 4 * number + 2, worker, task, (waiting, "processing"))
        yield Event(row["seen"], 4 * number + 3, worker, task, ("processing", "memory"))


def _with_inputs(rows: Sequence[dict[str, Any]], tree: int) -> Iterator[tuple[dict[str, Any], list[Task]]]:
    """Tasks in the order in which they ended, each with the tasks whose results it merges."""
    results: deque[dict[str, Any]] = deque()
    for row in rows:
        inputs = [] if row["kind"] == "processor" else [results.popleft() for _ in range(min(tree, len(results)))]
        yield row, [one["task"] for one in inputs]
        results.append(row)


def _happens(event: Event, stand_in: Scheduler, plugin: Any, clock: Clock) -> None:
    task, address = event.task, event.worker.address
    clock.now = event.time
    if task is None:
        stand_in.workers[address] = event.worker
        plugin.add_worker(stand_in, address)
        return
    stand_in.tasks[task.key] = task
    if event.states[1] == "processing":
        event.worker.processing[task.key] = 1.0
    if event.states[1] == "memory":
        event.worker.processing.pop(task.key, None)
    told = task.told() if event.states[1] == "memory" else {}
    make(plugin, clock, [(event.time, task.key, *event.states, told)])


def _beat(stand_in: Scheduler, now: float, second: int) -> None:
    """Heartbeats, as often as Dask asks so many workers for."""
    every = max(1, round(len(stand_in.workers) / 200) + 1)
    for place, worker in enumerate(stand_in.workers.values()):
        if place % every == second % every:
            worker.last_seen = now
            worker.metrics = {"time": now, "cpu": 90.0 * bool(worker.processing), "memory": 500_000_000}


def _collected(  # noqa: PLR0917
    run: Run, plan: Plan, log: bytes, pieces: Sequence[int], counted: dict[str, int], name: str
) -> Measurement:
    """What a collector makes of the log."""
    assert run.chunks is not None
    collector = MetricsCollector(name=name, profile=False)
    collector._backend = Fed()
    with collector:
        collector._records.started(run.start)
        collector._watcher.call_began(CALL)
        asked = sorted(run.chunks.to_pylist(), key=lambda row: row["id"])
        collector._watcher.items_requested(CALL, [*map(_item, asked)])
        begin = 0
        for end in pieces:
            collector._backend.take(LOG, log[begin:end])
            begin = end
        assert run.lifetimes is not None
        used = sorted(set(run.lifetimes["host"].to_pylist()))
        hosts = [{"name": host, "cores": plan.per_host, "memory": None} for host in used]
        collector._backend.learn({"recorded": True, "problems": [], **FACTS, "hosts": hosts})
        collector._backend.attempts = counted
        collector._watcher.call_ended(runner_call(run.stop, len(asked)))
        collector.t_start, collector._began = run.start, time.perf_counter() - (run.stop - run.start)
        collector.__exit__(None, None, None)
    return collector.measurement


def _item(row: dict[str, Any]) -> Item:
    place = (row[name] for name in ("dataset", "file", "tree", "entry_start", "entry_stop"))
    return Item(*place, UUID(row["uuid"]).bytes)
