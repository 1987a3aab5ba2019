"""All plots: each takes a collector, a measurement, a Run or the data of version 0.1.2, and gives (figure, axes)."""

from roastcoffea.visualization.plots.access import (
    plot_branch_access_per_chunk,
    plot_branch_bytes,
    plot_bytes_accessed_per_chunk,
    plot_compression_ratio_distribution,
    plot_data_access_percentage,
)
from roastcoffea.visualization.plots.balance import plot_stragglers, plot_worker_balance
from roastcoffea.visualization.plots.chunks import (
    plot_chunk_phases,
    plot_runtime_distribution,
    plot_runtime_vs_events,
    plot_sections,
)
from roastcoffea.visualization.plots.efficiency import plot_efficiency_summary, plot_resource_utilization
from roastcoffea.visualization.plots.ledgers import plot_byte_ledger, plot_time_ledger, plot_time_ledger_timeline
from roastcoffea.visualization.plots.per_task import (
    extract_per_task_metrics,
    plot_per_task_bytes_read,
    plot_per_task_cpu_io,
    plot_per_task_overhead,
)
from roastcoffea.visualization.plots.tasks import plot_task_stream
from roastcoffea.visualization.plots.throughput import plot_throughput_timeline
from roastcoffea.visualization.plots.workers import (
    plot_cpu_utilization_mean_timeline,
    plot_cpu_utilization_per_worker_timeline,
    plot_executing_tasks_timeline,
    plot_memory_utilization_mean_timeline,
    plot_memory_utilization_per_worker_timeline,
    plot_occupancy_timeline,
    plot_total_active_tasks_timeline,
    plot_worker_activity_timeline,
    plot_worker_count_timeline,
)
from roastcoffea.visualization.registry import PLOTS

__all__ = [
    "PLOTS",
    "extract_per_task_metrics",
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
]
