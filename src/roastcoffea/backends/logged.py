"""A Dask cluster as the log of its scheduler's plugin tells it, while the log is drained or from a journal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from roastcoffea.backends.hosts import with_withheld
from roastcoffea.backends.limits import Withheld
from roastcoffea.backends.recorder import Period, Recorder
from roastcoffea.log.journal import CLIENT, LOG
from roastcoffea.log.reader import ClusterLog
from roastcoffea.records.arrow import table_of_rows, with_column
from roastcoffea.records.run import Run
from roastcoffea.records.workers import CLIENT_STEP_COLUMNS
from roastcoffea.storage.reading import check_fields
from roastcoffea.units import counted, were


class AskedJobs:
    """Jobs of a cluster object that asks a batch system for them, as those of dask-jobqueue do.

    The cluster keeps no times, so it is looked at again and again.

    Parameters
    ----------
    cluster
        Cluster of a client; None, or one of another kind, has no jobs.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.known: dict[str, float | None] = dict.fromkeys(self._jobs())
        """Times by job; None for jobs that were asked for earlier."""

    def look(self) -> None:
        """Note the jobs that are new since the last look."""
        now = time.time()
        for job in self._jobs():
            self.known.setdefault(job, now)

    def in_lifetimes(self, lifetimes: pa.Table) -> pa.Table:
        """Lifetimes with the time at which each job was asked for, where its batch system does not tell it."""
        rows = lifetimes.select(["job", "job_queued"]).to_pylist()
        return with_column(lifetimes, "job_queued", [row["job_queued"] or self.known.get(row["job"]) for row in rows])

    def _jobs(self) -> Iterator[str]:
        workers = getattr(self._cluster, "workers", None)
        for worker in list(workers.values()) if isinstance(workers, dict) else ():
            job = getattr(worker, "job_id", None)
            if job:
                yield str(job)


@dataclass(eq=False)
class LoggedPeriod(Period):
    """A period of which a scheduler's plugin keeps a log.

    Attributes
    ----------
    log : ClusterLog
        What was drained so far.
    failures : int
        Errors inside the plugin so far.
    """

    log: ClusterLog = field(default_factory=ClusterLog)
    failures: int = 0

    def __post_init__(self) -> None:
        self.received = self.log.received

    def last_contact(self, start: float, stop: float) -> float:  # noqa: ARG002  (for those with a connection)
        """The stop, or the last contact with the cluster if the connection was lost."""
        return stop

    def notes(self) -> list[str]:
        """Problems of the plugins and of their log."""
        notes = [*self.log.problems, *self.log.received.problems]
        if self.failures:
            notes.append(f"the scheduler plugin failed {counted(self.failures, 'time')}: records are missing")
        if self.refused:
            refused = counted(self.refused, "message")
            notes.append(f"{refused} of others to the collector's topic {were(self.refused)} refused")
        dropped = self.dropped.items()
        return notes + [
            f"{counted(rows, 'row')} of {table} {were(rows)} dropped on the scheduler" for table, rows in dropped
        ]


class LoggedCluster(Recorder):
    """Tables of a cluster, from the log of its scheduler's plugin."""

    kind = "dask"
    elsewhere = "it does not run on the cluster of the collector's client"
    holds_all = True
    merges_equal_chunks = True

    _period: LoggedPeriod

    def _reset(self) -> None:
        super()._reset()
        self.absent = {}
        self._asked = AskedJobs(None)
        self._period = LoggedPeriod()
        self._client_steps: list[Mapping[str, Any]] = []
        self._withheld: dict[str, Withheld | None] = {}
        """Throttling and steal of each worker present at the end."""

    @property
    def log(self) -> ClusterLog:
        """The log so far."""
        return self._period.log

    # records, on the client's clock

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        return tuple((since - self.clock_offset, time - self.clock_offset) for since, time in self.log.workers.gaps)

    def workers_now(self) -> int:
        """Workers present now."""
        return self.log.workers.here

    def threads_now(self) -> tuple[int, int] | None:
        """Threads of the workers present now, and how many execute a task; None before the first samples."""
        return self.log.workers.threads

    def lifetimes(self, start: float, stop: float) -> pa.Table:
        """Workers present between start and stop, or until the last contact with the cluster."""
        table = self.log.workers.lifetimes(self.clock_offset, start, self._period.last_contact(start, stop))
        return with_withheld(self._asked.in_lifetimes(table), self._withheld)

    def pauses(self, start: float, stop: float) -> pa.Table:
        """Pauses of workers by Dask between start and stop, or until the last contact with the cluster."""
        return self.log.workers.pauses(self.clock_offset, start, self._period.last_contact(start, stop))

    def samples(self) -> pa.Table:
        return self.log.workers.samples(self.clock_offset)

    def sampling(self) -> pa.Table:
        return self.log.sampling.sampling(self.clock_offset)

    def worker_states(self) -> pa.Table:
        return self.log.sampling.states(self.clock_offset)

    def tasks(self) -> pa.Table:
        return self.log.attempts.table(self.clock_offset)

    def take_client_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self._client_steps += steps
        if self.keep is not None:
            self.keep(CLIENT, json.dumps(list(steps)).encode())

    def client_steps(self) -> pa.Table:
        return table_of_rows(CLIENT_STEP_COLUMNS, self._client_steps).sort_by("start")

    def notes(self) -> list[str]:
        return [*self.problems, *self._period.notes()]

    # in a journal

    def facts(self) -> dict[str, Any]:
        period = self._period
        counts = {"dropped": dict(period.dropped), "refused": period.refused, "failures": period.failures}
        known = {
            "clock_offset": period.clock_offset,
            "withheld": dict(self._withheld),
            "asked": dict(self._asked.known),
        }
        return super().facts() | counts | known

    def take(self, kind: str, data: bytes) -> None:
        if kind == LOG:
            self.log.feed(data)
        elif kind == CLIENT:
            self._client_steps += json.loads(data)
        else:
            super().take(kind, data)

    def learn(self, facts: Mapping[str, Any]) -> None:
        check_fields({"scheduler_clock_offset": facts["clock_offset"], "dropped": facts["dropped"]}, Run, "the cluster")
        super().learn(facts)
        for name in ("clock_offset", "dropped", "refused", "failures"):
            setattr(self._period, name, facts[name])
        self._withheld = {worker: amounts and tuple(amounts) for worker, amounts in facts["withheld"].items()}
        self._asked.known = dict(facts["asked"])
