"""Tables of metrics by the names of 0.1.2, for `rich.print`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.table import Table

from roastcoffea.compat.shapes import with_older
from roastcoffea.metrics import CATALOGUE, Metric, Metrics, evaluate
from roastcoffea.metrics.catalogue import BYTES, CHUNKS, EVENTS, FINE, RESOURCES, THROUGHPUT, TIMING
from roastcoffea.report.sheets import Column, Reason, Sheet
from roastcoffea.report.summary import amount_of, labels_by_reason
from roastcoffea.report.terminal import console_for, table_of
from roastcoffea.units import STRUCTURE

TableOf = Callable[[Mapping[str, Any]], Table]


def _format(name: str, title: str, *groups: str) -> TableOf:
    """Function that builds a table of the metrics of these groups."""
    members = [metric for metric in CATALOGUE.metrics() if metric.group in groups and metric.unit is not STRUCTURE]

    def table(metrics: Mapping[str, Any]) -> Table:
        found = metrics if isinstance(metrics, Metrics) else evaluate(with_older(None, {"metrics": metrics}).run)
        known = [metric for metric in members if metric.name in found]
        rows = [(_label(metric), amount_of(found, metric.name)) for metric in known]
        reasons = [("\n".join(labels), Reason(reason)) for reason, labels in labels_by_reason(members, found).items()]
        made = table_of(console_for(None), Sheet(columns=(Column(""), Column("")), rows=[*rows, *reasons]))
        made.title, made.title_justify, made.title_style = title, "left", "bold"
        return made

    table.__name__ = table.__qualname__ = name
    table.__doc__ = f"""Make a table of {title.lower()}: values with units, and reasons where one is missing.

    Parameters
    ----------
    metrics : mapping
        What `collector.get_metrics()`, `measurement.metrics` or `load_measurement` give.

    Returns
    -------
    rich.table.Table
        For `rich.print` and notebooks; plain `print` does not show it.
    """
    return table


def _label(metric: Metric) -> str:
    return metric.label if metric.statistic is None else f"{metric.label} per chunk ({metric.statistic})"


format_throughput_table: Final = _format("format_throughput_table", "Throughput", THROUGHPUT, BYTES)
format_event_processing_table: Final = _format("format_event_processing_table", "Event processing", EVENTS)
format_resources_table: Final = _format("format_resources_table", "Resources", RESOURCES)
format_timing_table: Final = _format("format_timing_table", "Timing", TIMING)
format_fine_metrics_table: Final = _format("format_fine_metrics_table", "Fine metrics", FINE)
format_chunk_metrics_table: Final = _format("format_chunk_metrics_table", "Chunks", CHUNKS)
