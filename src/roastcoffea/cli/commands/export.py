"""`roastcoffea export`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.report.exports.formats import FORMATS, default_name


@click.command
@shell.measurement
@shell.choice("--format", "file_format", among=list(FORMATS), required=True, help="What to write.")
@shell.output(
    "Folder (csv, parquet, json) or file to write; else it gets the measurement's name, in this folder.",
    click.Path(path_type=Path),
)
@shell.overwrite("the export, or the file, that is there")
def command(*, path: Path, file_format: str, output: Path | None, overwrite: bool) -> None:
    """Write the measurement in PATH for other programs.

    csv, parquet and json make a folder with a file for each table, the metrics among them, and columns.json, which
    tells what their columns mean. openmetrics makes a file of the metrics for Prometheus, perfetto one with a track for
    each worker thread, for https://ui.perfetto.dev (compressed where its name ends with .gz). speedscope and
    collapsed make a file of the profile, for https://www.speedscope.app and for flamegraph.pl.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    shell.say(measurement.export(output or default_name(path, FORMATS[file_format]), file_format, overwrite))
