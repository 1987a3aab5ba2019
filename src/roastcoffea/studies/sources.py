"""What studies are made of: a measurement, a run, or the folder of one."""

from __future__ import annotations

from os import PathLike

from roastcoffea.measurement import Measurement, load
from roastcoffea.records.run import Run

Source = Measurement | Run | str | PathLike[str]


def measurement_of(source: Source) -> Measurement:
    """Measurement of what stands for one."""
    if isinstance(source, Measurement):
        return source
    return Measurement(source) if isinstance(source, Run) else load(source)
