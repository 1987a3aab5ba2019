"""What studies are made of: a measurement, a run, or the folder of one."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from roastcoffea.measurement import Measurement, load
from roastcoffea.records.run import Run

Source = Measurement | Run | str | PathLike[str]


def measurement_of(source: Source) -> Measurement:
    """Measurement of what stands for one."""
    if isinstance(source, Measurement):
        return source
    return Measurement(source) if isinstance(source, Run) else load(source)


def name_of(source: Source) -> str:
    """Name by which people know it: that of its folder, else its own, else its identity."""
    if isinstance(source, Measurement | Run):
        run = source.run if isinstance(source, Measurement) else source
        return run.name or run.id[:8]
    return Path(source).resolve().name
