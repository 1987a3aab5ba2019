"""Functions that run without a task of Dask's: their records go to the collectors that are open in this process."""

from __future__ import annotations

from typing import Any

from roastcoffea.instrument.calls import Watchers, is_watched, watchers
from roastcoffea.instrument.channels import DaskTask, dask_worker
from roastcoffea.instrument.tasks import Home, Settings, home_of_task
from roastcoffea.log.packing import packed_records
from roastcoffea.redaction import added_patterns


class LocalHome:
    """Collectors of this process as those to whom records go."""

    def __init__(self, reached: Watchers, name: str) -> None:
        self.settings = Settings(
            added_patterns(), any(one.profile for one in reached), any(one.peak_memory for one in reached)
        )
        self.task = DaskTask()
        self.name = name
        self.complain = reached.note
        self._reached = reached

    def take(self, records: list[dict[str, Any]], *, failed: bool) -> None:  # noqa: ARG002  (there is one way)
        """Hand records over."""
        packed = packed_records(records)
        for watcher in self._reached:
            watcher.take_records(packed)


def find_home(function: Any) -> Home | LocalHome | None:
    """Where records of a function go that runs here; None where nobody waits for them."""
    if dask_worker() is not None:
        return home_of_task(function)
    if not is_watched():
        return None
    reached = Watchers(watcher for watcher in watchers() if watcher.out_of_reach(None) is None)
    name = getattr(function, "__name__", type(function).__name__)
    return LocalHome(reached, name) if reached else None
