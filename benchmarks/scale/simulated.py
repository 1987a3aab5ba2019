"""A run on the model cluster without waiting: an event loop whose clock jumps, and a scheduler of a few lines."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    FINISHED,
    PREPROCESSING_COLUMNS,
    SECTION_COLUMNS,
    Environment,
    Host,
    Run,
    RunnerCall,
)
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS, TASK_COLUMNS

from .cluster import START, THREAD, Cluster
from .plan import Plan, Work, work_of

T = TypeVar("T")

NOTHING = {
    "asked": ASKED_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "pauses": PAUSE_COLUMNS,
}


class _Jump(selectors.SelectSelector):
    """Selector that does not wait, but sets the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("the simulated cluster waits for something that never happens")
        self.now += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to the next event."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def jumped(work: Coroutine[Any, Any, T]) -> T:
    """Result of a coroutine whose waiting takes no time."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


def simulated(
    plan: Plan, workers: int, *, seed: int, first: bool = False, place: int = 0, again: int | None = None
) -> Run:
    """Run of a plan with this many workers; `first` if files are cold, `place` its number in time."""
    return jumped(
        _Simulation(plan, workers, first, work_of(plan, seed, again)).run(f"workers-{workers}", START + 86400 * place)
    )


class _Simulation:
    """One run: workers that take tasks from the scheduler, which does one thing after the other."""

    def __init__(self, plan: Plan, workers: int, first: bool, work: list[Work]) -> None:
        self.plan, self.workers = plan, workers
        self.cluster = Cluster(plan, workers, cold=first)
        self.work = work
        self.scheduler = asyncio.Lock()
        self.ready: deque[tuple[Any, float]] = deque()
        self.some = asyncio.Condition()
        self.results: deque[None] = deque()
        self.left = plan.chunks
        self.number = 0
        self.tasks: list[dict[str, Any]] = []
        self.chunks: list[dict[str, Any]] = []
        self.lives: dict[int, list[float]] = {}

    async def run(self, name: str, start: float) -> Run:
        """Everything from the first moment to the last."""
        clock = asyncio.get_running_loop().time
        slots = [asyncio.create_task(self._slot(worker)) for worker in range(self.workers)]
        await asyncio.sleep(self.plan.prepare * self.plan.chunks)
        async with self.some:
            self.ready.extend((work, clock()) for work in self.work)
            self.some.notify_all()
        async with self.some:
            await self.some.wait_for(lambda: not self.left and len(self.results) == 1 and not self._merging())
        await asyncio.sleep(self.plan.result / self.plan.gather_rate)
        for slot in slots:
            slot.cancel()
        return self._recorded(name, start, clock())

    def _merging(self) -> int:
        return sum(row["stop"] is None for row in self.tasks) + len(self.ready)

    async def _slot(self, worker: int) -> None:
        """A worker with one thread."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self.plan.arrival(worker))
        self.lives[worker] = [clock()]
        while True:
            async with self.some:
                await self.some.wait_for(lambda: self.ready)
            await self._scheduled()
            if self.ready:
                await self._ran(worker, *self.ready.popleft())

    async def _scheduled(self) -> None:
        """Wait until the scheduler has handled one more thing."""
        async with self.scheduler:
            await asyncio.sleep(self.plan.scheduler * (1 + self.plan.scheduler_load * self.workers) / 2)

    async def _ran(self, worker: int, what: Work | int, runnable: float) -> None:
        clock = asyncio.get_running_loop().time
        self.number += 1
        merge = isinstance(what, int)
        row: dict[str, Any] = {"key": f"{'reduce' if merge else 'Planned'}-{self.number}", "run_id": self.number}
        row |= {"prefix": "reduce" if merge else "Planned", "kind": "merge" if merge else "processor", "stop": None}
        row |= {"worker": f"w{worker}", "thread": THREAD, "runnable": runnable, "attempt": 1, "outcome": "ok"}
        row |= {"assigned": clock(), "arrived": clock(), "nbytes": round(self.plan.result)}
        self.tasks.append(row)
        if isinstance(what, int):
            await self.cluster.transferred(self.plan.result * what * (1 - 1 / self.workers))
            row["ready"] = row["start"] = clock()
            await asyncio.sleep(self.plan.result * what / self.plan.merge_rate)
        else:
            row["ready"] = row["start"] = clock()
            record = await self.cluster.chunk(what, worker)
            own = {"key": row["key"], "run_id": row["run_id"], "worker": row["worker"], "attempt": 1, "call": "c1"}
            self.chunks.append(record | own | {"start": row["start"], "stop": clock()})
        row["stop"] = stop = clock()
        await self._scheduled()
        row["seen"] = clock()
        row["stop"] = stop
        async with self.some:
            self._ended(isinstance(what, Work))
            self.some.notify_all()

    def _ended(self, chunk: bool) -> None:
        """Collect a result, and have results merged as soon as there are enough."""
        clock = asyncio.get_running_loop().time
        self.left -= chunk
        self.results.append(None)
        last = not self.left and not self._merging()
        while len(self.results) >= self.plan.tree or (last and len(self.results) > 1):
            inputs = min(self.plan.tree, len(self.results))
            for _ in range(inputs):
                self.results.popleft()
            self.ready.append((inputs, clock()))

    def _recorded(self, name: str, start: float, stop: float) -> Run:
        """The records of it all."""
        times = ("runnable", "assigned", "arrived", "ready", "start", "stop", "seen")
        for row in (*self.tasks, *self.chunks):
            row.update({each: start + row[each] for each in times if each in row})
        call = RunnerCall(
            id="c1", processor="Planned", executor="DaskExecutor", start=start, stop=start + stop, outcome=FINISHED,
            chunks=self.plan.chunks, options={"chunksize": self.plan.events},
        )  # fmt: skip
        hosts = {self.plan.host(worker) for worker in self.lives}
        return Run(
            id=f"{name}-{start:.0f}",
            name=name,
            start=start,
            stop=start + stop,
            outcome=FINISHED,
            error=None,
            backend="dask",
            environment=Environment(
                versions={},
                client_host="client",
                hosts=tuple(Host(name=f"node{host}", cores=self.plan.per_host, memory=None) for host in sorted(hosts)),
            ),
            calls=(call,),
            chunks=table_of_rows(CHUNK_COLUMNS, self.chunks),
            tasks=table_of_rows(TASK_COLUMNS, self.tasks),
            lifetimes=table_of_rows(LIFETIME_COLUMNS, [self._life(worker, start, stop) for worker in self.lives]),
            attempts={"processor": self.plan.chunks, "merge": len(self.tasks) - self.plan.chunks},
            **{table: table_of_rows(columns, []) for table, columns in NOTHING.items()},
        )

    def _life(self, worker: int, start: float, stop: float) -> dict[str, Any]:
        """Lifetime of a worker."""
        host = f"10.0.0.{self.plan.host(worker)}"
        there = {"start": start + self.lives[worker][0], "stop": start + stop}
        return {"worker": f"w{worker}", "host": host, "threads": 1, "cpu_seconds": 0.0, **there}
