"""Dask workers that wait instead of working: tasks take what is planned, and leave the records that are planned.

All else is a real worker's: it registers, gets tasks, fetches their inputs from others, reports their ends, has plugins
and answers questions. `python -m benchmarks.scale.planned_workers` runs many in one process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import dask
from dask.sizeof import sizeof
from distributed import Worker
from distributed.worker_state_machine import ExecuteFailureEvent, ExecuteSuccessEvent

from roastcoffea.instrument.channels import CarriedProbe
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.log.packing import packed_records

from .cluster import Cluster, place_of
from .plan import Plan, Work, work_of

QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.profile.interval": "10s",
    "distributed.worker.profile.cycle": "100s",
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.admin.tick.interval": "2s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.disk": False,
}
"""Monitors of which a thousand in one process would take a core."""


class Planned:
    """What all workers of a process know: the chunks, and the cluster that they share."""

    def __init__(self, plan: Plan, workers: int, seed: int, *, first: bool) -> None:
        self.plan = plan
        self.cluster = Cluster(plan, workers, cold=first)
        places = ((place_of(plan, work), work) for work in work_of(plan, seed))
        self._work = {(place["file"], place["entry_start"]): work for place, work in places}

    def work(self, spec: Any) -> tuple[Any, Work] | None:
        """Item and chunk of a task; None if it merges."""
        for item in getattr(spec, "args", ()):
            if hasattr(item, "entrystart"):
                return item, self._work[item.filename, item.entrystart]
            if (found := self.work(item)) is not None:  # coffea passes tuples of an item and the processor
                return found
        return None


class PlannedWorker(Worker):
    """A worker of one thread whose tasks wait as long as planned."""

    def __init__(self, address: str, planned: Planned, number: int) -> None:
        self.planned, self.number = planned, number
        host = f"127.0.0.{10 + planned.plan.host(number)}"
        super().__init__(address, nthreads=1, host=host, dashboard=False, memory_limit=0, name=f"planned-{number}")

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:  # noqa: ARG002
        """End the task after its planned time, with what it is planned to leave."""
        task, start, inputs = self.state.tasks[key], time.time(), {}
        run_id, spec = task.run_id, task.run_spec
        try:
            found = self.planned.work(spec)
            took = None
            if found is not None:
                value, took = await self._chunk(task, *found)
            else:
                inputs = {dependency.key: self.data[dependency.key] for dependency in task.dependencies}
                await asyncio.sleep(len(inputs) * self.planned.plan.result / self.planned.plan.merge_rate)
                value = spec(inputs)
        except Exception as error:  # noqa: BLE001  (the client gets it)
            return ExecuteFailureEvent.from_exception(error, key=key, run_id=run_id, stimulus_id=f"failed-{key}")
        self.threads[key] = self.number + 1
        # the processor, which coffea distributes as a task, is small
        size = round(self.planned.plan.result) if found is not None or inputs else None
        return ExecuteSuccessEvent(
            key=key,
            run_id=run_id,
            value=value,
            start=start,
            # the process has more workers than its event loop may have time for: none is late by its own fault
            stop=time.time() if took is None else start + took,
            nbytes=size or sizeof(value),
            type=type(value),
            stimulus_id=f"task-finished-{time.time()}",
        )

    async def _chunk(self, task: Any, item: Any, work: Work) -> tuple[dict[str, Any], float]:
        begun = time.time()
        record = await self.planned.cluster.chunk(work, self.number)
        call = _call_of(task.run_spec.func)
        if call is not None:
            record |= {"id": (self.number << 32) + task.run_id, "worker": self.address, "key": str(task.key)}
            record |= {"run_id": task.run_id, "attempt": 1, "call": call, "thread": self.number + 1}
            record |= {"start": begun, "stop": begun + record["wall_seconds"]}
            task.metadata[METADATA_KEY] = packed_records([record])
        return {"out": {"events": work.events}, "processed": {item}}, record["wall_seconds"]

    async def gather_dep(self, worker: str, to_gather: Any, total_nbytes: int, *, stimulus_id: str) -> Any:
        """Fetch results, which takes as long as the network is planned to take."""
        await self.planned.cluster.transferred(total_nbytes)
        return await super().gather_dep(worker, to_gather, total_nbytes, stimulus_id=stimulus_id)


def _call_of(function: Any) -> str | None:
    """Runner call that a probe records for, whether it came by reference or by value; None without a probe."""
    if type(function).__name__ == CarriedProbe.__name__:  # its class came with it
        call: str = function.__reduce__()[1][-1][0]
        return call
    return getattr(function, "call", None)


async def run(address: str, planned: Planned, workers: int) -> None:
    """Start all workers when they are planned to come, and stay until they are closed."""
    running = [PlannedWorker(address, planned, number) for number in range(workers)]
    plan = planned.plan
    now = [worker for worker in running if not plan.arrival(worker.number)]
    for begin in range(0, len(now), 50):
        await asyncio.gather(*now[begin : begin + 50])
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)  # the run begins
    await asyncio.gather(*(_later(worker) for worker in running if worker not in now))
    await asyncio.gather(*(_dying(running[number], when) for number, when in plan.deaths.items() if number < workers))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _later(worker: PlannedWorker) -> None:
    asyncio.get_running_loop().call_later(worker.planned.plan.arrival(worker.number), _start, worker)


_started = set()


def _start(worker: PlannedWorker) -> None:
    _started.add(asyncio.ensure_future(worker.start()))


async def _dying(worker: PlannedWorker, when: float) -> None:
    asyncio.get_running_loop().call_later(when, lambda: _started.add(asyncio.ensure_future(_killed(worker))))


async def _killed(worker: PlannedWorker) -> None:
    await worker.close(timeout=0, executor_wait=False, nanny=False)


def main(arguments: Mapping[str, Any]) -> None:
    """Run workers in this process until the standard input ends."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    plan = Plan(**{name: _numbered(value) for name, value in arguments["plan"].items()})
    planned = Planned(plan, arguments["workers"], arguments["seed"], first=arguments["first"])
    with dask.config.set(QUIET):
        asyncio.run(run(arguments["address"], planned, arguments["workers"]))


def _numbered(value: Any) -> Any:
    """Numbers of workers and hosts as numbers, which are texts in JSON."""
    return {int(key): each for key, each in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
