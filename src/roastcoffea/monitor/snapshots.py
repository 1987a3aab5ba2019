"""The tasks that the scheduler knew at one moment, drawn from the history of their states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roastcoffea.monitor.history import History

TASK_PARTS: Final = ("key", "state", "worker", "nbytes", "type")
"""What a snapshot tells of a task."""


class Snapshot(Mapping[str, Any]):
    """The tasks that the scheduler knew at one moment; its parts are attributes, and entries as well.

    Attributes
    ----------
    timestamp : float
        Unix seconds, on the client's clock.
    num_tasks : int
        Tasks that the scheduler knew.
    num_workers : int
        Workers that the scheduler knew.
    tasks : list of dict
        `key`, `state`, `worker` (None where no worker has it), `nbytes` and `type` (None where not known yet).
    """

    PARTS = ("timestamp", "num_tasks", "num_workers", "tasks")

    def __init__(self, timestamp: float, num_tasks: int, num_workers: int, history: History, rows: int) -> None:
        self.timestamp = timestamp
        self.num_tasks = num_tasks
        self.num_workers = num_workers
        self._history = history
        self._rows = rows

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, made anew at each access."""
        latest = self._history.described(self._history.latest(self._rows))
        return [{part: task[part] for part in TASK_PARTS} for task in latest]

    def __getitem__(self, part: str) -> Any:
        if part not in self.PARTS:
            raise KeyError(part)
        return getattr(self, part)

    def __iter__(self) -> Iterator[str]:
        return iter(self.PARTS)

    def __len__(self) -> int:
        return len(self.PARTS)

    def __repr__(self) -> str:
        return f"<Snapshot at {self.timestamp:.3f}: {self.num_tasks} tasks, {self.num_workers} workers>"


def drawn(history: History, lifetimes: pa.Table, start: float, stop: float, interval: float) -> list[Snapshot]:
    """Snapshots at each interval from start to stop; `lifetimes` are those of the workers."""
    moments = start + interval * np.arange(1 + math.floor((stop - start) / interval))
    rows = np.searchsorted(history.rows["time"], moments, side="right")
    tasks = np.concatenate([[0], history.count_after_each()])[rows]
    arrived, left = (np.sort(lifetimes[name].to_numpy()) for name in ("start", "stop"))
    workers = np.searchsorted(arrived, moments, side="right") - np.searchsorted(left, moments, side="left")
    counts = zip(moments.tolist(), tasks.tolist(), workers.tolist(), rows.tolist(), strict=True)
    return [Snapshot(moment, known, here, history, row) for moment, known, here, row in counts]
