"""Recorder for the workers, tasks and fine metrics of a Dask cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
from roastcoffea.backends.queues import NO_REQUESTS, Requests
from roastcoffea.backends.recorder import LoggedCluster, RecordingBackend, RunSpan
from roastcoffea.backends.scheduler import ClusterPlugin, Display
from roastcoffea.backends.worker import PUSH_SECONDS, WorkerHalf, flush
from roastcoffea.errors import RoastcoffeaError, reported
from roastcoffea.log.byvalue import is_registered, packed_by_value
from roastcoffea.log.journal import LOG
from roastcoffea.records.workers import LOOP, SHARED_LOOP
from roastcoffea.units import counted

if TYPE_CHECKING:
    from typing_extensions import Self


class ClientLoop:
    """Samples the lag and CPU time of a client's event loop on request.

    `take` is called with each sample.
    """

    def __init__(self, client: Any, take: Callable[[dict[str, Any]], None]) -> None:
        self._client = client
        self._take = take
        self._asked: float | None = None
        self._before: tuple[float, Usage] | None = None

    def look(self) -> None:
        if self._asked is None:
            self._asked = time.time()
            with suppress(RuntimeError):  # the loop was closed
                self._client.loop.add_callback(self._sample)

    def _sample(self) -> None:
        """Take a sample on the event loop's thread."""
        now, used = time.time(), usage()
        late = now - (now if self._asked is None else self._asked)
        before, self._before, self._asked = self._before, (now, used), None
        # a scheduler in this process may share the event loop, as in a LocalCluster
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
"""Shortest sampling interval in seconds; shorter ones would take too much of the scheduler's time."""

LOSS = f"fine metrics may lack its last {PUSH_SECONDS:g} s"


OTHER_VERSIONS = "workers and client have different versions; tasks ran with the workers' versions: "


class DaskRecorder(LoggedCluster):
    """Recorder for a client's cluster.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client.
    carried : optional
        Our task code, which is sent to workers that cannot import it.
    """

    def __init__(self, client: Any, carried: Any = None) -> None:
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
            raise ValueError("the collector and its DaskMetricsBackend have different clients; pass only one of them")
        fresh = super().renewed(client, carried)
        fresh._carried = carried
        return fresh

    def _reset(self) -> None:
        super()._reset()
        self._requests = Requests(self.take_requests)
        self._period = self._deployment = Deployment(
            self._connection, self.name, self.note, look=self.look, keep=self._keep
        )
        self._loop = ClientLoop(self.client, lambda sample: self.take_client_steps([sample]))
        self._scheduler_package: str | None = None
        self._packages: set[str | None] = set()
        self._is_carried = False
        """Whether any task submitted so far needs the code that the plugin carries."""
        self._loads: list[dict[str, Any]] = []
        self._last_loads: list[dict[str, Any]] = []
        self._workers_known = self._registered = False

    def _keep(self, data: bytes) -> None:
        if self.keep is not None:
            self.keep(LOG, data)

    def look(self) -> None:
        """Called about once a second to sample the client's event loop and note new batch jobs."""
        self._loop.look()
        with reported(self.note, "requested workers could not be read", Exception):
            self._requests.look(self.client.cluster, self.log.workers.names, self._deployment.requested)

    # life cycle of a collector

    def open(self, interval: float | None, span: str | None = None) -> None:
        self._begin()
        if interval is not None and interval < SHORTEST_INTERVAL:
            asked = f"an interval of {interval:g} s would burden the scheduler"
            self.note(f"{asked}: it was sampled every {SHORTEST_INTERVAL:g} s")
            interval = SHORTEST_INTERVAL
        # if the user has registered the package for pickling by value, every graph would carry the probe's code
        self._registered = is_registered()
        self._deployment.open(partial(self._plugins, interval, span))
        self.look()
        self._began = time.time()

    def _plugins(self, interval: float | None, span: str | None, answer: Mapping[str, Any]) -> Plugins:
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
        with suppress(NoAnswerError):  # retried a second later, and reported at the end
            self._deployment.drain(patience=SILENCE)

    def close(self) -> None:
        self.look()
        self._deployment.close(self._learn_fine_metrics, self._learn_counts)
        if not self._requested:
            self.absent["worker_requests"] = NO_REQUESTS
        if self._requests.silent is not None:
            self.absent["batch_queue"] = self._requests.silent
        lost = self._deployment.lost
        if lost is not None:
            self.absent["lifetimes"] = lost
        reason = lost or self._deployment.unanswered
        if reason is not None and self.span_metrics is None:
            self.absent["span_metrics"] = reason

    def reaches(self, executor: Any) -> bool:
        scheduler = getattr(getattr(executor, "client", None), "scheduler", None)
        address = getattr(scheduler, "address", None)
        return address is not None and bool(address == self.client.scheduler.address)

    def packed_for_tasks(self, thing: Any) -> bytes | None:
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

    def metrics_of_span(self, span: str, delay: float) -> dict[tuple[Any, ...], float]:
        arguments = {"flush": pickled(flush), "span": span, "timeout": delay}
        answer = self._connection.answer(metrics_of_span, arguments, self._connection.patience + delay)
        return dict(answer["span"] or ())

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
            self.problems = [one for one in self.problems if not one.startswith(OTHER_VERSIONS)]  # outdated
            self.note(OTHER_VERSIONS + "; ".join(f"{name} {version}" for name, version in differing.items()))
        self._packages = {self._scheduler_package, *(worker["package"] for worker in workers)}

    def _learn_fine_metrics(self, answer: Mapping[str, Any]) -> None:
        self._learn_environment(answer)
        self.attempts = None if self.gaps else dict(answer["attempts"])
        if answer["of_others"]:
            self.absent["span_metrics"] = (
                f"Dask counted {counted(answer['of_others'], 'other task')} along with this run's, because tasks with "
                "the same name were alive at the same time"
            )
            self.note(f"no fine metrics: {self.absent['span_metrics']}")
        elif answer["span"] is None:
            self.absent["span_metrics"] = "no Dask tasks ran in the run's span"
        else:
            self.span_metrics = dict(answer["span"])
        if answer["silent"]:
            self.note(
                f"{counted(len(answer['silent']), 'worker')} did not answer within {WORKERS_TIMEOUT:g} s at the end "
                f"({', '.join(answer['silent'][:5])}): the workers' fine metrics and CPU time may lack everything "
                "since their last heartbeat"
            )
        elif not answer["complete"]:
            self.note("some workers' counts are missing from the fine metrics")

    def _learn_counts(self, answer: Mapping[str, Any]) -> None:
        """Store host loads and Dask's per-worker counts once the log is complete.

        Only the complete log includes all workers that have left.
        """
        left = self.log.workers
        self.hosts = with_others(self.hosts, [*self._loads, *left.loads], self._last_loads, left.silent)
        if self.gaps:
            self.absent["span_metrics_per_worker"] = (
                "recording was interrupted, so the workers' earlier counts are lost"
            )
        elif self.span_metrics is not None:
            self.span_metrics_per_worker = self.log.workers.counted(answer["counted"], answer["spans"])


class DaskMetricsBackend(RecordingBackend):
    """Backend for worker samples and fine metrics on a Dask cluster.

    The scheduler's own state (assigned tasks, occupancy, results held, number of workers) is sampled at the given
    interval, but at most once every 0.05 s. Workers report their memory, CPU usage and executing tasks in their
    heartbeats: every 0.5 s if there are up to ten workers, and less often if there are more.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client.

    Raises
    ------
    ValueError
        If the client is None or not connected.
    TypeError
        If the client is asynchronous, or is not a `distributed.Client`.
    """

    _recorder: DaskRecorder

    def __init__(self, client: Any) -> None:
        if client is None:
            raise ValueError("DaskMetricsBackend needs a distributed.Client; its client is None")
        super().__init__(DaskRecorder(client))
        self.client = client

    def create_span(self, name: str) -> dict[str, Any]:
        return {"context": RunSpan(name), "name": name}

    def get_span_metrics(
        self, span_info: Mapping[str, Any], delay: float = FINE_METRICS_DELAY
    ) -> dict[tuple[Any, ...], float]:
        """Fine metrics for a span; empty if the span's ID is missing or unknown.

        This method asks the workers to report immediately. It returns when the scheduler has received all their counts,
        or after `delay` with the counts received so far.

        Parameters
        ----------
        span_info : mapping
            Result of `create_span`, with `id` set to the value returned by its context's `__enter__`.
        delay : float
            Maximum time in seconds to wait for the workers' reports.

        Raises
        ------
        ValueError
            If the delay is negative, infinite or not a number.
        ConnectionError
            If the scheduler does not answer.
        """
        if not (isinstance(delay, (int, float)) and 0 <= delay < math.inf):
            raise ValueError(f"delay must be a non-negative number of seconds, not {delay!r}")
        if span_info.get("id") is None:
            return {}
        return self._recorder.metrics_of_span(span_info["id"], delay)

    def supports_fine_metrics(self) -> bool:
        return True
