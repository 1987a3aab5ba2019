"""Saving, loading and tables of metrics by the names of 0.1.2."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from rich.table import Table

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


def save_measurement(  # noqa: PLR0917  (the order in which 0.1.2 took them)
    metrics: Mapping[str, Any],
    t0: float,
    t1: float,
    output_dir: str | PathLike[str],
    measurement_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save metrics as they are, without the records behind them; `load_measurement` returns all three.

    Parameters
    ----------
    t0, t1
        Readings of one clock in seconds, at the start and end of the measurement.
    config
        Settings of the analysis, kept with them as plain JSON and without passwords and tokens.
    overwrite
        Overwrite a measurement of that name.

    Raises
    ------
    MeasurementError
        If the name leaves the folder, is taken, or the measurement cannot be written.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config is a mapping of names to settings, not {type(config).__name__}: pass vars(config)")
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
    return Measurement(run).save(output_dir, measurement_name, overwrite)


def load_measurement(path: str | PathLike[str], config: bool = False) -> tuple[Any, ...]:
    """Metrics, start and stop of a saved measurement, as in version 0.1.2.

    The dictionary has every metric that could be computed, also under its older name. Start and stop are Unix seconds;
    for a folder of 0.1.2 they are stored readings of a clock of unknown origin.

    Parameters
    ----------
    config
        Whether to return as a fourth value the `config` of `save_measurement`, or None without one.

    Raises
    ------
    MissingMeasurementError
        If there is none, or a file of it is missing; it is a FileNotFoundError as well.
    UnreadableMeasurementError
        If it is damaged, or of a newer version; it is a ValueError as well.
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
    """Function that builds a table of the metrics of these groups."""
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


format_throughput_table: Final = _format("format_throughput_table", "Throughput", THROUGHPUT, BYTES)
format_event_processing_table: Final = _format("format_event_processing_table", "Event processing", EVENTS)
format_resources_table: Final = _format("format_resources_table", "Resources", RESOURCES)
format_timing_table: Final = _format("format_timing_table", "Timing", TIMING)
format_fine_metrics_table: Final = _format("format_fine_metrics_table", "Fine metrics", FINE)
format_chunk_metrics_table: Final = _format("format_chunk_metrics_table", "Chunks", CHUNKS)
