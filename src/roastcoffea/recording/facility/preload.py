"""The preload of schedulers and workers: `dask scheduler --preload roastcoffea.facility`.

On a scheduler it shows runs as a collector does, and records every run of every client, if it has a folder for them. On
a worker it meters the chunks of clients without roastcoffea.
"""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path
from typing import Any, Final

import click
import dask

from roastcoffea.errors import reported
from roastcoffea.recording.facility import display
from roastcoffea.recording.facility import recorder as metering
from roastcoffea.recording.facility.recorder import METRIC, NAME, TICK, PackageEnergy, Recorder

CONFIG: Final = "roastcoffea.facility"

_ends: Final[dict[Any, list[Any]]] = {}
"""What ends with each server of this process."""


@click.command()
@click.option("--roastcoffea-journal", type=click.Path(path_type=Path), help="Folder in which every run is recorded.")
@click.option("--roastcoffea-keep-days", type=float, help="Days after which records are removed.")
@click.option("--roastcoffea-keep-gigabytes", type=float, help="Size of all records beyond which the oldest go.")
async def dask_setup(
    server: Any,
    roastcoffea_journal: Path | None,
    roastcoffea_keep_days: float | None,
    roastcoffea_keep_gigabytes: float | None,
) -> None:
    """Begin on a scheduler or a worker; once, though it may be named twice, in the configuration and by an option."""
    if server in _ends:
        return
    if hasattr(server, "worker_plugins"):
        given = {"journal": roastcoffea_journal, "keep-days": roastcoffea_keep_days}
        await _begin(server, given | {"keep-gigabytes": roastcoffea_keep_gigabytes})
    else:
        metering.start()
        _ends[server] = [metering.stop]
        with reported(logging.getLogger(__name__).debug, "energy is not measured", (OSError, ValueError)):
            server.metrics[METRIC] = PackageEnergy().joules
            _ends[server].append(lambda: server.metrics.pop(METRIC, None))


async def dask_teardown(server: Any) -> None:
    """End on a scheduler or a worker."""
    for end in _ends.pop(server, ()):
        end()


async def _begin(scheduler: Any, given: dict[str, Any]) -> None:
    """Show the runs of a scheduler, and record them if there is a folder."""
    options = {
        name: dask.config.get(f"{CONFIG}.{name}", None) if value is None else value for name, value in given.items()
    }
    token = secrets.token_hex(16)
    observer = display.join(scheduler, NAME, token)
    _ends[scheduler] = [lambda: display.leave(scheduler, NAME)]
    if options["journal"] is None:
        logging.getLogger(__name__).info("runs are shown and not recorded: --roastcoffea-journal has no folder")
        return
    from tornado.ioloop import PeriodicCallback

    from roastcoffea.backends.connection import pickled
    from roastcoffea.backends.worker import WorkerHalf

    recorder = Recorder(scheduler, observer, Path(options["journal"]).expanduser().resolve())
    recorder.limits = options["keep-days"], options["keep-gigabytes"]
    scheduler.add_plugin(recorder, name=NAME, idempotent=True)
    ticker = PeriodicCallback(lambda: recorder.tick(time.time()), 1000 * TICK)
    ticker.start()
    # an event loop of its own has the workers' plugins sent to those that come later
    half = pickled(WorkerHalf(NAME, token, counts=False))
    await scheduler.register_worker_plugin(None, plugin=half, name=NAME, idempotent=True)
    _ends[scheduler][:0] = [ticker.stop, recorder.end]
