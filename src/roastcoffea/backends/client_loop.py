"""Samples of a client's event loop, which takes what the scheduler sends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from roastcoffea.backends.usage import Usage, usage
from roastcoffea.records.client import LOOP, SHARED_LOOP


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
        if before is not None:
            self._take(
                {
                    "step": SHARED_LOOP if self._is_of_scheduler() else LOOP,
                    "start": before[0],
                    "stop": now,
                    "cpu_seconds": used.loop_cpu - before[1].loop_cpu,
                    "process_cpu_seconds": used.process_cpu - before[1].process_cpu,
                    "late_seconds": max(late, 0.0),
                }
            )

    def _is_of_scheduler(self) -> bool:
        """Whether a scheduler in this process has the same event loop, as in a LocalCluster."""
        scheduler = getattr(getattr(self._client, "cluster", None), "scheduler", None)
        return getattr(scheduler, "loop", None) is self._client.loop
