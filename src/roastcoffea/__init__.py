"""Measure coffea analyses: where the core-hours and the bytes went, in numbers that add up."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roastcoffea.collector import MetricsCollector as MetricsCollector
    from roastcoffea.errors import ComparisonError as ComparisonError
    from roastcoffea.errors import MeasurementError as MeasurementError
    from roastcoffea.errors import MissingMetricError as MissingMetricError
    from roastcoffea.errors import RoastcoffeaError as RoastcoffeaError
    from roastcoffea.instrument.track import track_bytes as track_bytes
    from roastcoffea.instrument.track import track_memory as track_memory
    from roastcoffea.instrument.track import track_metrics as track_metrics
    from roastcoffea.instrument.track import track_time as track_time
    from roastcoffea.measurement import Measurement as Measurement
    from roastcoffea.measurement import load as load
    from roastcoffea.measurement import load_measurement as load_measurement
    from roastcoffea.monitor.task_monitor import TaskMonitor as TaskMonitor
    from roastcoffea.recording.importers import measurement_from_report as measurement_from_report
    from roastcoffea.studies.branches.branch_study import branch_study as branch_study
    from roastcoffea.studies.compare.comparison import compare as compare
    from roastcoffea.studies.compare.scenarios import compare_scenarios as compare_scenarios
    from roastcoffea.studies.scaling.scaling import scaling as scaling
    from roastcoffea.studies.what_if.what_if import what_if as what_if
    from roastcoffea.visualization.plots import plot_branch_access_per_chunk as plot_branch_access_per_chunk
    from roastcoffea.visualization.plots import plot_branch_bytes as plot_branch_bytes
    from roastcoffea.visualization.plots import plot_byte_ledger as plot_byte_ledger
    from roastcoffea.visualization.plots import plot_bytes_accessed_per_chunk as plot_bytes_accessed_per_chunk
    from roastcoffea.visualization.plots import plot_chunk_phases as plot_chunk_phases
    from roastcoffea.visualization.plots import (
        plot_compression_ratio_distribution as plot_compression_ratio_distribution,
    )
    from roastcoffea.visualization.plots import plot_cpu_utilization_mean_timeline as plot_cpu_utilization_mean_timeline
    from roastcoffea.visualization.plots import (
        plot_cpu_utilization_per_worker_timeline as plot_cpu_utilization_per_worker_timeline,
    )
    from roastcoffea.visualization.plots import plot_data_access_percentage as plot_data_access_percentage
    from roastcoffea.visualization.plots import plot_efficiency_summary as plot_efficiency_summary
    from roastcoffea.visualization.plots import plot_executing_tasks_timeline as plot_executing_tasks_timeline
    from roastcoffea.visualization.plots import (
        plot_memory_utilization_mean_timeline as plot_memory_utilization_mean_timeline,
    )
    from roastcoffea.visualization.plots import (
        plot_memory_utilization_per_worker_timeline as plot_memory_utilization_per_worker_timeline,
    )
    from roastcoffea.visualization.plots import plot_occupancy_timeline as plot_occupancy_timeline
    from roastcoffea.visualization.plots import plot_per_task_bytes_read as plot_per_task_bytes_read
    from roastcoffea.visualization.plots import plot_per_task_cpu_io as plot_per_task_cpu_io
    from roastcoffea.visualization.plots import plot_per_task_overhead as plot_per_task_overhead
    from roastcoffea.visualization.plots import plot_resource_utilization as plot_resource_utilization
    from roastcoffea.visualization.plots import plot_runtime_distribution as plot_runtime_distribution
    from roastcoffea.visualization.plots import plot_runtime_vs_events as plot_runtime_vs_events
    from roastcoffea.visualization.plots import plot_sections as plot_sections
    from roastcoffea.visualization.plots import plot_stragglers as plot_stragglers
    from roastcoffea.visualization.plots import plot_task_stream as plot_task_stream
    from roastcoffea.visualization.plots import plot_throughput_timeline as plot_throughput_timeline
    from roastcoffea.visualization.plots import plot_time_ledger as plot_time_ledger
    from roastcoffea.visualization.plots import plot_time_ledger_timeline as plot_time_ledger_timeline
    from roastcoffea.visualization.plots import plot_total_active_tasks_timeline as plot_total_active_tasks_timeline
    from roastcoffea.visualization.plots import plot_worker_activity_timeline as plot_worker_activity_timeline
    from roastcoffea.visualization.plots import plot_worker_balance as plot_worker_balance
    from roastcoffea.visualization.plots import plot_worker_count_timeline as plot_worker_count_timeline

__version__ = "1.0.0.dev0"

_PLOTS: Final = (
    "plot_branch_access_per_chunk",
    "plot_branch_bytes",
    "plot_byte_ledger",
    "plot_bytes_accessed_per_chunk",
    "plot_chunk_phases",
    "plot_compression_ratio_distribution",
    "plot_cpu_utilization_mean_timeline",
    "plot_cpu_utilization_per_worker_timeline",
    "plot_data_access_percentage",
    "plot_efficiency_summary",
    "plot_executing_tasks_timeline",
    "plot_memory_utilization_mean_timeline",
    "plot_memory_utilization_per_worker_timeline",
    "plot_occupancy_timeline",
    "plot_per_task_bytes_read",
    "plot_per_task_cpu_io",
    "plot_per_task_overhead",
    "plot_resource_utilization",
    "plot_runtime_distribution",
    "plot_runtime_vs_events",
    "plot_sections",
    "plot_stragglers",
    "plot_task_stream",
    "plot_throughput_timeline",
    "plot_time_ledger",
    "plot_time_ledger_timeline",
    "plot_total_active_tasks_timeline",
    "plot_worker_activity_timeline",
    "plot_worker_balance",
    "plot_worker_count_timeline",
)

# Workers import this package for its probe alone, so nothing else may come with it.
_MODULES: Final = {
    "ComparisonError": "roastcoffea.errors",
    "Measurement": "roastcoffea.measurement",
    "MeasurementError": "roastcoffea.errors",
    "MetricsCollector": "roastcoffea.collector",
    "MissingMetricError": "roastcoffea.errors",
    "RoastcoffeaError": "roastcoffea.errors",
    "TaskMonitor": "roastcoffea.monitor.task_monitor",
    "branch_study": "roastcoffea.studies.branches.branch_study",
    "compare": "roastcoffea.studies.compare.comparison",
    "compare_scenarios": "roastcoffea.studies.compare.scenarios",
    "load": "roastcoffea.measurement",
    "load_measurement": "roastcoffea.measurement",
    "measurement_from_report": "roastcoffea.recording.importers",
    "scaling": "roastcoffea.studies.scaling.scaling",
    "track_bytes": "roastcoffea.instrument.track",
    "track_memory": "roastcoffea.instrument.track",
    "track_metrics": "roastcoffea.instrument.track",
    "track_time": "roastcoffea.instrument.track",
    "what_if": "roastcoffea.studies.what_if.what_if",
    **dict.fromkeys(_PLOTS, "roastcoffea.visualization.plots"),
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
