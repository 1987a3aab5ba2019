"""A Dask cluster: its workers, its tasks, and Dask's fine metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa

import roastcoffea
from roastcoffea.backends.attempts import TasksOfRun
from roastcoffea.backends.base import FINE_METRICS_DELAY
from roastcoffea.backends.deployment import (
    SILENCE,
    WORKERS_TIMEOUT,
    Connection,
    Deployment,
    NoAnswerError,
    Plugins,
    pickled,
)
from roastcoffea.backends.hosts import differing_versions, hosts_of, versions_on, with_more, with_others
from roastcoffea.backends.limits import Usage, load, usage, versions_of
from roastcoffea.backends.plugin_lifetime import leave_spans, metrics_of_span, survey
from roastcoffea.backends.recorder import LoggedCluster, RunSpan, jobs_of
from roastcoffea.backends.scheduler import ClusterPlugin, Display
from roastcoffea.backends.worker import PUSH_SECONDS, WorkerHalf, flush
from roastcoffea.errors import RoastcoffeaError
from roastcoffea.log.byvalue import is_registered, packed_by_value
from roastcoffea.log.journal import LOG
from roastcoffea.records.workers import LOOP, SHARED_LOOP
from roastcoffea.units import counted


class ClientLoop:
    """Takes samples of a client's event loop when asked to: CPU time since the previous one, and its lag.

    Parameters
    ----------
    client : distributed.Client
        The client.
    take : callable
        Receives each sample.
    """

    def __init__(self, client: Any, take: Callable[[dict[str, Any]], None]) -> None:
        self._client = client
        self._take = take
        self._asked: float | None = None
        self._before: tuple[float, Usage] | None = None

    def look(self) -> None:
        """Ask for a sample, unless the event loop has not come to the previous one."""
        if self._asked is None:
            self._asked = time.time()
            with suppress(RuntimeError):  # it was closed
                self._client.loop.add_callback(self._sample)

    def _sample(self) -> None:
        """Take a sample, on the thread of the event loop."""
        now, used = time.time(), usage()
        late = now - (now if self._asked is None else self._asked)
        before, self._before, self._asked = self._before, (now, used), None
        # a scheduler in this process may have the same event loop, as in a LocalCluster
        scheduler = getattr(getattr(self._client, "cluster", None), "scheduler", None)
        shared = getattr(scheduler, "loop", None) is self._client.loop
        if before is not None:
            self._take(
                {
                    "step": SHARED_LOOP if shared else LOOP,
                    "start": before[0],
                    "stop": now,
                    "cpu_seconds": used.loop_cpu - before[1].loop_cpu,
                    "process_cpu_seconds": used.process_cpu - before[1].process_cpu,
                    "late_seconds": max(late, 0.0),
                }
            )


SHORTEST_INTERVAL: Final = 0.05
"""Shortest interval between samples in seconds: the scheduler takes them itself, along with its other work."""

LOSS = f"its fine metrics may lack its last {PUSH_SECONDS:g} s"
"""What is missing for a lost worker."""


OTHER_VERSIONS = "workers and client have different versions; tasks ran with those of the workers: "


class DaskMetricsBackend(LoggedCluster):
    """Records the cluster that a client is connected to.

    The scheduler's own state (tasks assigned, occupancy, results held, number of workers) is sampled at the interval,
    down to 0.05 s. Workers report memory, CPU and executing tasks with their heartbeats: every 0.5 s for up to ten
    workers, less often for more.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client.
    carried : optional
        Our code for tasks, for workers that cannot import it.

    Raises
    ------
    ValueError
        The client is None, or not connected.
    TypeError
        The client is asynchronous, or not a client.
    """

    def __init__(self, client: Any, carried: Any = None) -> None:
        if client is None:
            raise ValueError("DaskMetricsBackend needs a distributed.Client; its client is None")
        self.client = client
        self._connection = Connection(client)
        self._carried = carried
        super().__init__()

    @classmethod
    def for_collector(cls, client: Any, carried: Any) -> Self:
        if client is None:
            raise ValueError('the backend "dask" needs a distributed.Client: MetricsCollector(client)')
        return cls(client, carried)

    def renewed(self, client: Any, carried: Any) -> Self:
        if client is not None and client is not self.client:
            raise ValueError("the collector and its DaskMetricsBackend have different clients: give one of them only")
        fresh = super().renewed(client, carried)
        fresh._carried = carried
        return fresh

    def _reset(self) -> None:
        super()._reset()
        self._asked = dict.fromkeys(jobs_of(getattr(self.client, "cluster", None)))
        self._period = self._deployment = Deployment(
            self._connection, self.name, self.note, look=self.look, keep=self._keep
        )
        self._loop = ClientLoop(self.client, lambda sample: self.take_client_steps([sample]))
        self._scheduler_package: str | None = None
        self._packages: set[str | None] = set()
        self._is_carried = False
        """Whether tasks were sent whose code is carried by the plugin."""
        self._loads: list[dict[str, Any]] = []
        self._last_loads: list[dict[str, Any]] = []
        self._workers_known = self._registered = False

    def _keep(self, data: bytes) -> None:
        if self.keep is not None:
            self.keep(LOG, data)

    def look(self) -> None:
        """Look at what no scheduler knows, about once a second."""
        self._loop.look()
        now = time.time()
        for job in jobs_of(getattr(self.client, "cluster", None)):
            self._asked.setdefault(job, now)

    # life cycle of a collector

    def open(self, interval: float | None, span: str | None = None) -> None:
        self._begin()
        if interval is not None and interval < SHORTEST_INTERVAL:
            asked = f"an interval of {interval:g} s would burden the scheduler"
            self.note(f"{asked}: it was sampled every {SHORTEST_INTERVAL:g} s")
            interval = SHORTEST_INTERVAL
        # else each graph would have the probe's code if its user has all of the package sent with tasks
        self._registered = is_registered()
        self._deployment.open(partial(self._plugins, interval, span))
        self._loop.look()
        self._began = time.time()

    def _plugins(self, interval: float | None, span: str | None, answer: Mapping[str, Any]) -> Plugins:
        """The plugins, made from facts about scheduler and workers."""
        self._scheduler_package = answer["package"]
        self._learn_environment(answer)
        token, run = self._deployment.token, TasksOfRun(self.name, self.client.id, span)
        self._is_carried |= self._lacking() or self._registered
        carried = packed_by_value(self._carried) if self._carried is not None and self._is_carried else None
        shown = (Display(),) if self._scheduler_package == roastcoffea.__version__ else ()
        plugin = ClusterPlugin(self.name, self.client.id, token, run, interval, LOSS, shown)
        plugin.leave_spans = pickled(leave_spans)
        return plugin, WorkerHalf(self.name, token, carried, functions=self.functions)

    def drain(self) -> None:
        with suppress(NoAnswerError):  # it is tried again a second later, and told at the end
            self._deployment.drain(patience=SILENCE)

    def close(self) -> None:
        self._loop.look()
        self._deployment.close(self._learn_fine_metrics, self._learn_counts)
        lost = self._deployment.lost
        if lost is not None:
            self.absent["lifetimes"] = lost
        reason = lost or self._deployment.unanswered
        if reason is not None and self.span_metrics is None:
            self.absent["span_metrics"] = reason

    def reaches(self, executor: Any) -> bool:
        """Whether this is a Dask executor whose tasks run on this cluster."""
        scheduler = getattr(getattr(executor, "client", None), "scheduler", None)
        address = getattr(scheduler, "address", None)
        return address is not None and bool(address == self.client.scheduler.address)

    def packed_for_tasks(self, thing: Any) -> bytes | None:
        """Pickle by value of our code for tasks; None if scheduler and workers have the package."""
        if not self._deployment.is_open:
            raise RoastcoffeaError("the cluster is not recorded")
        if self._deployment.wait_for_start() and not self._workers_known:
            with suppress(NoAnswerError):
                self._learn_environment(
                    self._connection.answer(survey, {"flush": pickled(flush), "timeout": WORKERS_TIMEOUT})
                )
        if not self._lacking():
            return packed_by_value(thing) if self._registered else None
        self._is_carried = True
        reason = (
            f"scheduler or workers do not have roastcoffea {roastcoffea.__version__}"
            if self._workers_known
            else "no worker reported whether it has roastcoffea"
        )
        self.note(f"{reason}: the probe's code was sent to them")
        return packed_by_value(thing)

    # records

    def chunks(self, calls: Collection[str]) -> pa.Table:
        self._deployment.freeze()
        return super().chunks(calls)

    # spans

    def create_span(self, name: str) -> dict[str, Any]:
        return {"context": RunSpan(name), "name": name}

    def get_span_metrics(
        self, span_info: Mapping[str, Any], delay: float = FINE_METRICS_DELAY
    ) -> dict[tuple[Any, ...], float]:
        """Fine metrics of a span; empty if its id is missing or unknown.

        The workers are asked to report immediately. This returns once the scheduler has all their counts, or after
        `delay` with the counts so far.

        Parameters
        ----------
        span_info : mapping
            Result of `create_span`, with the result of its context's `__enter__` as `id`.
        delay : float
            Most seconds to wait for the workers.

        Raises
        ------
        ValueError
            The delay is negative, or not a number of seconds.
        ConnectionError
            The scheduler does not answer.
        """
        if not (isinstance(delay, (int, float)) and 0 <= delay < math.inf):
            raise ValueError(f"delay must be a number of seconds, at least 0, not {delay!r}")
        if span_info.get("id") is None:
            return {}
        arguments = {"flush": pickled(flush), "span": span_info["id"], "timeout": delay}
        patience = self._connection.patience + delay
        return dict(self._connection.answer(metrics_of_span, arguments, patience)["span"] or ())

    def supports_fine_metrics(self) -> bool:
        return True

    # implementation

    def _lacking(self) -> bool:
        """Whether the scheduler or a worker may lack this version of the package."""
        return not (self._workers_known and self._packages == {roastcoffea.__version__})

    def _learn_environment(self, answer: Mapping[str, Any]) -> None:
        workers = list(answer["workers"].values())
        self._loads += [*self._last_loads, *(early for worker in workers for early in worker["loads"][:-1])]
        self._last_loads = [load(), answer["load"], *(worker["loads"][-1] for worker in workers)]
        self.hosts = with_others(with_more(self.hosts, hosts_of(workers)), self._loads, self._last_loads)
        self._withheld = {address: worker.get("withheld") for address, worker in answer["workers"].items()}
        self._workers_known = bool(workers) and not answer["silent"]
        self.versions = versions_on(workers, self.versions)
        if differing := differing_versions(self.versions, versions_of(self.versions)):
            self.problems = [one for one in self.problems if not one.startswith(OTHER_VERSIONS)]  # of fewer workers
            self.note(OTHER_VERSIONS + "; ".join(f"{name} {version}" for name, version in differing.items()))
        self._packages = {self._scheduler_package, *(worker["package"] for worker in workers)}

    def _learn_fine_metrics(self, answer: Mapping[str, Any]) -> None:
        self._learn_environment(answer)
        self.attempts = None if self.gaps else dict(answer["attempts"])
        if answer["of_others"]:
            self.absent["span_metrics"] = (
                f"Dask counted {counted(answer['of_others'], 'task')} of others along with those of this run, because "
                "tasks of the same name were alive at the same time"
            )
            self.note(f"no fine metrics: {self.absent['span_metrics']}")
        elif answer["span"] is None:
            self.absent["span_metrics"] = "no Dask task ran in the span of the run"
        else:
            self.span_metrics = dict(answer["span"])
        if answer["silent"]:
            self.note(
                f"{counted(len(answer['silent']), 'worker')} did not answer within {WORKERS_TIMEOUT:g} s at the end "
                f"({', '.join(answer['silent'][:5])}): the fine metrics and the CPU time of the workers may lack "
                "everything since their last heartbeat"
            )
        elif not answer["complete"]:
            self.note("the fine metrics lack some of the workers' counts")

    def _learn_counts(self, answer: Mapping[str, Any]) -> None:
        """Take CPU time and Dask's counts of each worker once the log is complete: it has the workers that left."""
        left = self.log.workers
        self.hosts = with_others(self.hosts, [*self._loads, *left.loads], self._last_loads, left.silent)
        if self.gaps:
            self.absent["span_metrics_per_worker"] = (
                "nothing was recorded for a while, and the workers' counts before that are lost"
            )
        elif self.span_metrics is not None:
            self.span_metrics_per_worker = self.log.workers.counted(answer["counted"], answer["spans"])
