"""Import path from version 0.1.2, kept for compatibility."""

from roastcoffea.compat.measurements import (
    format_chunk_metrics_table,
    format_event_processing_table,
    format_fine_metrics_table,
    format_resources_table,
    format_throughput_table,
    format_timing_table,
)

__all__ = [
    "format_chunk_metrics_table",
    "format_event_processing_table",
    "format_fine_metrics_table",
    "format_resources_table",
    "format_throughput_table",
    "format_timing_table",
]
