"""What studies are made of: a measurement, a collector, a run, or the folder of one."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from roastcoffea.measurement import Measurement, load
from roastcoffea.records.run import Run

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector

Source: TypeAlias = "Measurement | MetricsCollector | Run | str | PathLike[str]"


def measurement_of(source: Source) -> Measurement:
    """Measurement of what stands for one."""
    if isinstance(source, str | PathLike):
        return load(source)
    found = getattr(source, "measurement", source)
    if isinstance(found, Run):
        return Measurement(found)
    if isinstance(found, Measurement):
        return found
    raise TypeError(f"give a measurement, a collector, a Run or a path, not {type(source).__name__}")


def name_of(source: Source) -> str:
    """Name by which people know it: that of its folder, else its own, else its identity."""
    if isinstance(source, str | PathLike):
        return Path(source).resolve().name
    run = measurement_of(source).run
    return run.name or run.id[:8]
