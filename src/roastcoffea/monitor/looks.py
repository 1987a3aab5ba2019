"""Polling a cluster from outside: Dask's own counts, with nothing of ours on the scheduler.

`counts_now` may be pickled by value.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from roastcoffea.backends.connection import Connection, NoAnswerError
from roastcoffea.monitor.pace import ticks


@dataclass(frozen=True, kw_only=True)
class Look:
    """Tasks by prefix and state at one moment, from the scheduler's own counts.

    Attributes
    ----------
    time : float
        Unix seconds, on the scheduler's clock.
    num_workers : int
        Number of workers.
    prefixes : dict of collections.Counter
        Number of tasks by prefix and state.
    finished : dict of int
        Results computed since the first look, by prefix.
    """

    time: float
    num_workers: int
    prefixes: Mapping[str, Counter[str]]
    finished: Mapping[str, int]

    @property
    def timestamp(self) -> datetime:
        """The moment, with the local time zone."""
        return datetime.fromtimestamp(self.time, UTC).astimezone()

    @property
    def states(self) -> Counter[str]:
        """Number of tasks by state."""
        return sum(self.prefixes.values(), Counter())

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return self.states.total()


def counts_now(dask_scheduler: Any) -> tuple[float, int, dict[str, tuple[dict[str, int], int]]]:
    """Time, number of workers, and by prefix the tasks in each state and the results so far."""
    counts = {
        prefix.name: (dict(prefix.states), prefix.state_counts["memory"])
        for prefix in dask_scheduler.task_prefixes.values()
    }
    return time.time(), len(dask_scheduler.workers), counts


def looks(client: Any, interval: float) -> Iterator[Look]:
    """One look per interval, until the scheduler no longer answers.

    Parameters
    ----------
    client : distributed.Client
        A connected, synchronous client.
    interval : float
        Seconds between looks; late ones are skipped.
    """
    connection, before = Connection(client), None
    for _ in ticks(interval):
        try:
            moment, workers, counts = connection.answer(counts_now, {})
        except NoAnswerError:
            return
        results = {prefix: count for prefix, (_, count) in counts.items()}
        before = results if before is None else before
        finished = {prefix: count - before.get(prefix, 0) for prefix, count in results.items()}
        prefixes = {prefix: known for prefix, (states, _) in counts.items() if (known := _known(states))}
        yield Look(time=moment, num_workers=workers, prefixes=prefixes, finished=finished)


def _known(states: Mapping[str, int]) -> Counter[str]:
    """Number of tasks by state, of those still known to the scheduler."""
    return Counter({state: count for state, count in states.items() if count and state != "forgotten"})
