"""Has a scheduler show the runs of a collector, where its environment can: a live page and Prometheus metrics.

This module may be pickled by value.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any

from roastcoffea.backends.scheduler import Addition, ClusterPlugin

SHOWN_BY = "roastcoffea.recording.facility.display"
"""Module that shows runs, in the package of the scheduler: it is above this one, and may be missing there."""


class Display(Addition):
    """Joins what shows the runs on a scheduler as long as the collector's plugin stays there."""

    def start(self, plugin: ClusterPlugin) -> None:
        self._plugin = plugin
        self._shown_by: Any = None
        self._joining = asyncio.ensure_future(self._join())

    def end(self) -> None:
        self._joining.cancel()
        if self._shown_by is not None:
            self._shown_by.leave(self._plugin.scheduler, self._plugin.name)

    async def _join(self) -> None:
        """Load the module on a thread, as tasks go on meanwhile, and join it; a scheduler without it shows nothing."""
        try:
            # always imported: while another collector's thread loads the module, half of it is in sys.modules
            module: Any = await asyncio.to_thread(import_module, SHOWN_BY)
            await asyncio.to_thread(module.load, self._plugin.scheduler)
            module.join(self._plugin.scheduler, self._plugin.name, self._plugin.token)
            self._shown_by = module
        except Exception as problem:  # noqa: BLE001  (a run is measured where it cannot be shown)
            logging.getLogger(__name__).debug("the scheduler does not show the run: %s", problem)
