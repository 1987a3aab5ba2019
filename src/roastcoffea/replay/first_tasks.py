"""The first task of a process, which loads and compiles what all others need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roastcoffea.metrics.statistics import Numbers, codes, moments
from roastcoffea.replay.inputs import Counts

FEWEST: Final = 3
"""Tasks from which a median is taken."""

ABOUT: Final = 0.25
"""Relative difference of events up to which chunks are alike."""

ENOUGH: Final = 1000
"""Tasks that tell a median well."""

COMPARED: Final = 20_000
"""Tasks among which they are looked for."""

STANDS_OUT: Final = 2.0
"""Standard deviations from which on the first tasks of processes take longer than others."""


@dataclass(frozen=True, slots=True)
class FirstTasks:
    """Tasks that began before the first one of their process ended.

    `alike` has for each of them later tasks to compare it with, `leaders` are the first of each process. Both are empty
    where first tasks took no longer than others, or there is nothing to compare.
    """

    alike: Mapping[int, Counts]
    leaders: Counts
    events: Numbers

    def warm(self, values: Numbers) -> Numbers:
        """Values with those of the first tasks replaced by what is typical."""
        warm = values.copy()
        for row in self.alike:
            warm[row] = self.typical(values, row)
        return warm

    def excess(self, values: Numbers) -> float:
        """What the first task of a process took beyond what is typical, in the mean."""
        beyond = [values[row] - self.typical(values, row) for row in self.leaders.tolist()]
        return max(float(np.mean(beyond)), 0.0) if beyond else 0.0

    def typical(self, values: Numbers, row: int) -> float:
        """What is typical for a task of so many events."""
        alike = self.alike[row]
        return float(np.median(values[alike] / self.events[alike]) * self.events[row])

    def stands_out(self, values: Numbers) -> bool:
        """Whether first tasks took longer than chance makes of so few."""
        spread = float(np.mean([np.std(values[self.alike[row]]) for row in self.leaders.tolist()]))
        return bool(self.excess(values) > STANDS_OUT * spread / len(self.leaders) ** 0.5)


def first_tasks(tasks: pa.Table, group: Counts, events: Numbers, seconds: Numbers) -> FirstTasks:
    """First tasks of processes, of tasks in the order of their starts; those of a group are alike."""
    worker, start, stop = codes(tasks["worker"]), moments(tasks, "start"), moments(tasks, "stop")
    _, leaders = np.unique(worker, return_index=True)
    ended = np.zeros(worker.max() + 1)
    ended[worker[leaders]] = stop[leaders]
    early = start < ended[worker]
    others = ~early[:COMPARED]
    alike = {row: _alike(row, others, group, events) for row in np.flatnonzero(early).tolist()}
    first = FirstTasks(alike, leaders, np.maximum(events, 1.0))
    if all(len(others) >= FEWEST for others in alike.values()) and first.stands_out(seconds):
        return first
    return FirstTasks({}, leaders[:0], events)


def _alike(row: int, others: npt.NDArray[np.bool_], group: Counts, events: Numbers) -> Counts:
    """Tasks of the same group with about as many events, as far as there are enough; not more than tell a median."""
    of_group = others & (group[: len(others)] == group[row])
    of_size = np.abs(events[: len(others)] - events[row]) <= ABOUT * events[row]
    for some in (of_group & of_size, of_group, others):
        if np.count_nonzero(some) >= FEWEST:
            break
    found = np.flatnonzero(some)
    return found[:: max(len(found) // ENOUGH, 1)]


def late_start(tasks: pa.Table, latency: float) -> float:
    """Seconds between assignment and start of the first task of a process, beyond the way: unpickling, imports."""
    _, leaders = np.unique(codes(tasks["worker"]), return_index=True)
    late = (moments(tasks, "start") - moments(tasks, "assigned"))[leaders]
    return max(float(np.nanmean(late)) - latency, 0.0) if np.isfinite(late).any() else 0.0
