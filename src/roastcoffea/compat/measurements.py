"""Functions from version 0.1.2 for saving and loading metrics and for formatting tables."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from roastcoffea.compat import older_keywords
from roastcoffea.compat.shapes import sections_of, with_older
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics import CATALOGUE, Metrics, evaluate
from roastcoffea.metrics.catalogue import BYTES, CHUNKS, EVENTS, FINE, RESOURCES, THROUGHPUT, TIMING
from roastcoffea.records.run import Environment, unwatched_run
from roastcoffea.redaction import redacted_values
from roastcoffea.report.summary import amount_of, labels_by_reason
from roastcoffea.sheets.sheet import Column, Reason, Sheet
from roastcoffea.sheets.terminal import console_for, table_of
from roastcoffea.units import STRUCTURE

__all__ = ["load_measurement", "save_measurement"]


@older_keywords(output_dir="path")
def save_measurement(  # noqa: PLR0917  (the order of 0.1.2)
    metrics: Mapping[str, Any],
    t0: float,
    t1: float,
    path: str | PathLike[str],
    measurement_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save metrics and two clock readings, without the underlying records.

    `load_measurement` returns the metrics and the readings.

    Parameters
    ----------
    t0, t1
        Readings of the same clock at the start and the end of the measurement, in seconds.
    path
        Folder in which to create the measurement's folder.
    config
        Analysis settings, stored as plain JSON with passwords and tokens masked.
    overwrite
        Whether to overwrite an existing measurement with that name.

    Raises
    ------
    MeasurementError
        If the name is taken or points outside the folder, or if the measurement cannot be written.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f"config must be a mapping of names to settings, not {type(config).__name__}: pass vars(config)"
        )
    stop = time.time()
    run = unwatched_run(
        name=measurement_name,
        start=stop - (t1 - t0),
        stop=stop,
        backend="unknown",
        environment=Environment(versions={}, client_host=socket.gethostname()),
        reported={**metrics, "t0": t0, "t1": t1, "config": redacted_values(config and dict(config))},
        reported_by="the caller of save_measurement",
        absent=dict.fromkeys(
            ("calls", "chunks", "tasks", "samples", "lifetimes", "span_metrics"),
            "only computed metrics were passed to save_measurement",
        ),
    )
    return Measurement(run).save(path, measurement_name, overwrite)


def load_measurement(path: str | PathLike[str], config: bool = False) -> tuple[Any, ...]:
    """Load a measurement's metrics and its start and stop times, as in version 0.1.2.

    The dictionary contains every metric that could be computed; metrics with an older name are repeated under that
    name. Start and stop are in Unix seconds. If version 0.1.2 saved the measurement, they are readings of a clock with
    an unknown origin.

    Parameters
    ----------
    config
        Whether to return a fourth value: the `config` passed to `save_measurement`, or None.

    Raises
    ------
    MissingMeasurementError
        If the measurement or one of its files does not exist. This error is also a FileNotFoundError.
    UnreadableMeasurementError
        If the measurement is damaged or is from a newer version. This error is also a ValueError.
    """
    measurement = load(path)
    metrics = measurement.metrics.built()
    metrics |= {alias: metrics[name] for alias, name in CATALOGUE.aliases.items() if name in metrics}
    reported = measurement.run.reported or {}
    sections = reported.get("sections") or sections_of(metrics.get("raw_chunk_metrics", ()))
    if sections or "sections" in metrics:
        metrics["sections"] = sections
    loaded = metrics, reported.get("t0", measurement.run.start), reported.get("t1", measurement.run.stop)
    return (*loaded, reported.get("config")) if config else loaded


TableOf = Callable[[Mapping[str, Any]], Table]


def _format(name: str, title: str, *groups: str) -> TableOf:
    members = [metric for metric in CATALOGUE.metrics() if metric.group in groups and metric.unit is not STRUCTURE]

    def table(metrics: Mapping[str, Any]) -> Table:
        found = metrics if isinstance(metrics, Metrics) else evaluate(with_older(None, {"metrics": metrics}).run)
        known = [metric for metric in members if metric.name in found]
        rows = [
            (
                f"{one.label} per chunk ({one.statistic})" if one.statistic else one.label,
                amount_of(found, one.name),
            )
            for one in known
        ]
        reasons = [("\n".join(labels), Reason(reason)) for reason, labels in labels_by_reason(members, found).items()]
        made = table_of(console_for(None), Sheet(columns=(Column(""), Column("")), rows=[*rows, *reasons]))
        made.title, made.title_justify, made.title_style = title, "left", "bold"
        return made

    table.__name__ = table.__qualname__ = name
    table.__doc__ = f"""Format a table of {title.lower()}, with the reasons for missing values.

    Parameters
    ----------
    metrics : mapping
        Metrics from `collector.get_metrics()`, `measurement.metrics` or `load_measurement`.

    Returns
    -------
    rich.table.Table
        Table for `rich.print` or a notebook; the built-in `print` does not render it.
    """
    return table


format_throughput_table: Final = _format("format_throughput_table", "Throughput", THROUGHPUT, BYTES)
format_event_processing_table: Final = _format("format_event_processing_table", "Event processing", EVENTS)
format_resources_table: Final = _format("format_resources_table", "Resources", RESOURCES)
format_timing_table: Final = _format("format_timing_table", "Timing", TIMING)
format_fine_metrics_table: Final = _format("format_fine_metrics_table", "Fine metrics", FINE)
format_chunk_metrics_table: Final = _format("format_chunk_metrics_table", "Chunks", CHUNKS)
