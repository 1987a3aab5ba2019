"""When a client's cluster asked the batch system for its jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


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
        known = [row["job_queued"] or self.known.get(row["job"]) for row in rows]
        place = lifetimes.schema.get_field_index("job_queued")
        return lifetimes.set_column(place, "job_queued", pa.array(known, lifetimes.schema.types[place]))

    def _jobs(self) -> Iterator[str]:
        workers = getattr(self._cluster, "workers", None)
        for worker in list(workers.values()) if isinstance(workers, dict) else ():
            job = getattr(worker, "job_id", None)
            if job:
                yield str(job)
