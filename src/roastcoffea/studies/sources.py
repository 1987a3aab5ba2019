"""Sources of studies: a measurement, a collector, a run, or the folder of one."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import facts
from roastcoffea.records.run import Run

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector

Source: TypeAlias = "Measurement | MetricsCollector | Run | str | PathLike[str]"


def measurement_of(source: Source) -> Measurement:
    """Measurement from any of the sources."""
    if isinstance(source, str | PathLike):
        return load(source)
    found = getattr(source, "measurement", source)
    if isinstance(found, Run):
        return Measurement(found)
    if isinstance(found, Measurement):
        return found
    raise TypeError(f"pass a measurement, a collector, a Run or a path, not {type(source).__name__}")


def name_of(source: Source) -> str:
    """Name of the run: that of its folder, otherwise its own, otherwise its processor's with a part of its identity."""
    if isinstance(source, str | PathLike):
        return Path(source).resolve().name
    run = measurement_of(source).run
    return run.name or f"{facts.name_of(run)} {run.id[:8]}".strip()
