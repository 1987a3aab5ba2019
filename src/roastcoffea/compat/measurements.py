"""Saving and loading as the older prototype did it; `Measurement.save` and `roastcoffea.load` keep more."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import CATALOGUE
from roastcoffea.records.run import Environment, unwatched_run

__all__ = ["load_measurement", "save_measurement"]

NOT_HANDED_OVER: Final = "only computed metrics were handed to save_measurement"
RECORDS: Final = ("calls", "chunks", "tasks", "samples", "lifetimes", "span_metrics")


def save_measurement(
    metrics: Mapping[str, Any],
    t0: float,
    t1: float,
    output_dir: str | PathLike[str],
    measurement_name: str | None = None,
) -> Path:
    """Save metrics as they are, without the records behind them; `load_measurement` gives all three back.

    Parameters
    ----------
    t0, t1
        Readings of any one clock in seconds, at the beginning and the end of what was measured.
    """
    stop = time.time()
    run = unwatched_run(
        name=measurement_name,
        start=stop - (t1 - t0),
        stop=stop,
        backend="unknown",
        environment=Environment(versions={}, client_host=socket.gethostname()),
        reported={**metrics, "t0": t0, "t1": t1},
        reported_by="the caller of save_measurement",
        absent=dict.fromkeys(RECORDS, NOT_HANDED_OVER),
    )
    return Measurement(run).save(output_dir, measurement_name)


def load_measurement(path: str | PathLike[str]) -> tuple[dict[str, Any], float, float]:
    """Metrics, start and stop of a saved measurement, as version 0.1.2 gave them.

    The dictionary has every metric that could be computed, also under its older name. Start and stop are
    Unix seconds; of a folder of 0.1.2 they are what it stored, readings of a clock of unknown origin.
    """
    measurement = load(path)
    metrics = measurement.metrics.built()
    metrics |= {alias: metrics[name] for alias, name in CATALOGUE.aliases.items() if name in metrics}
    reported = measurement.run.reported or {}
    return metrics, reported.get("t0", measurement.run.start), reported.get("t1", measurement.run.stop)
