"""Measure coffea analyses: where the core-hours and the bytes went, in numbers that add up."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector as MetricsCollector
    from roastcoffea.compat.measurements import format_chunk_metrics_table as format_chunk_metrics_table
    from roastcoffea.compat.measurements import format_event_processing_table as format_event_processing_table
    from roastcoffea.compat.measurements import format_fine_metrics_table as format_fine_metrics_table
    from roastcoffea.compat.measurements import format_resources_table as format_resources_table
    from roastcoffea.compat.measurements import format_throughput_table as format_throughput_table
    from roastcoffea.compat.measurements import format_timing_table as format_timing_table
    from roastcoffea.compat.measurements import load_measurement as load_measurement
    from roastcoffea.compat.measurements import save_measurement as save_measurement
    from roastcoffea.errors import ComparisonError as ComparisonError
    from roastcoffea.errors import MeasurementError as MeasurementError
    from roastcoffea.errors import MissingMeasurementError as MissingMeasurementError
    from roastcoffea.errors import MissingMetricError as MissingMetricError
    from roastcoffea.errors import RoastcoffeaError as RoastcoffeaError
    from roastcoffea.errors import UnreadableMeasurementError as UnreadableMeasurementError
    from roastcoffea.instrument.tasks import measured as measured
    from roastcoffea.instrument.track import record as record
    from roastcoffea.instrument.track import track_bytes as track_bytes
    from roastcoffea.instrument.track import track_memory as track_memory
    from roastcoffea.instrument.track import track_metrics as track_metrics
    from roastcoffea.instrument.track import track_time as track_time
    from roastcoffea.measurement import Measurement as Measurement
    from roastcoffea.measurement import load as load
    from roastcoffea.monitor.task_monitor import TaskMonitor as TaskMonitor
    from roastcoffea.recording.importers import measurement_from_report as measurement_from_report
    from roastcoffea.studies.branches import branch_study as branch_study
    from roastcoffea.studies.compare import compare as compare
    from roastcoffea.studies.compare import compare_scenarios as compare_scenarios
    from roastcoffea.studies.duet import duet as duet
    from roastcoffea.studies.history import history as history
    from roastcoffea.studies.merging import merge as merge
    from roastcoffea.studies.plan import plan as plan
    from roastcoffea.studies.scaling import scaling as scaling
    from roastcoffea.studies.what_if import what_if as what_if
    from roastcoffea.visualization.plots import *  # noqa: F403  (an explicit list would have to be maintained)

__version__ = "1.0.0"

_PLOTS: Final = "roastcoffea.visualization.plots"

_TABLES: Final = " ".join(
    f"format_{name}_table"
    for name in ("chunk_metrics", "event_processing", "fine_metrics", "resources", "throughput", "timing")
)

# Workers import this package only to run the probe, so the import must not load anything else.
_MODULES: Final = {
    name: f"roastcoffea.{module}"
    for module, names in (
        ("collector", "MetricsCollector"),
        ("compat.measurements", "load_measurement save_measurement"),
        ("compat.measurements", _TABLES),
        ("errors", "ComparisonError MeasurementError MissingMeasurementError MissingMetricError"),
        ("errors", "RoastcoffeaError UnreadableMeasurementError"),
        ("instrument.tasks", "measured"),
        ("instrument.track", "track_bytes track_memory track_metrics track_time"),
        ("instrument.track", "record"),
        ("measurement", "Measurement load"),
        ("monitor.task_monitor", "TaskMonitor"),
        ("recording.importers", "measurement_from_report"),
        ("studies.branches", "branch_study"),
        ("studies.compare", "compare compare_scenarios"),
        ("studies.duet", "duet"),
        ("studies.merging", "merge"),
        ("studies.history", "history"),
        ("studies.plan", "plan"),
        ("studies.scaling", "scaling"),
        ("studies.what_if", "what_if"),
    )
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_MODULES, *_plots()]
    if name not in _MODULES and not (name.startswith("plot_") and name in _plots()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, _PLOTS)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_plots()})


def _plots() -> list[str]:
    return [entry.function_name for entry in importlib.import_module(_PLOTS).PLOTS.values()]
