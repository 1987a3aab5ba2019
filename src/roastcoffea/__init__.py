"""Measure coffea analyses: where the core-hours and the bytes went, in numbers that add up."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector as MetricsCollector
    from roastcoffea.errors import MeasurementError as MeasurementError
    from roastcoffea.errors import MissingMetricError as MissingMetricError
    from roastcoffea.errors import RoastcoffeaError as RoastcoffeaError
    from roastcoffea.importers import measurement_from_report as measurement_from_report
    from roastcoffea.instrument.track import track_bytes as track_bytes
    from roastcoffea.instrument.track import track_memory as track_memory
    from roastcoffea.instrument.track import track_metrics as track_metrics
    from roastcoffea.instrument.track import track_time as track_time
    from roastcoffea.measurement import Measurement as Measurement
    from roastcoffea.measurement import load as load
    from roastcoffea.measurement import load_measurement as load_measurement
    from roastcoffea.monitor import TaskMonitor as TaskMonitor

__version__ = "1.0.0.dev0"

# Workers import this package for its probe alone, so nothing else may come with it.
_MODULES: Final = {
    "Measurement": "roastcoffea.measurement",
    "MeasurementError": "roastcoffea.errors",
    "MetricsCollector": "roastcoffea.collector",
    "MissingMetricError": "roastcoffea.errors",
    "RoastcoffeaError": "roastcoffea.errors",
    "TaskMonitor": "roastcoffea.monitor",
    "load": "roastcoffea.measurement",
    "load_measurement": "roastcoffea.measurement",
    "measurement_from_report": "roastcoffea.importers",
    "track_bytes": "roastcoffea.instrument.track",
    "track_memory": "roastcoffea.instrument.track",
    "track_metrics": "roastcoffea.instrument.track",
    "track_time": "roastcoffea.instrument.track",
}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
