"""`roastcoffea export`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.report.exports.formats import FORMATS, default_name


@click.command
@shell.measurement
@shell.choice("--format", "file_format", among=list(FORMATS), required=True, help="Output format.")
@shell.output(
    "Folder (csv, parquet, json) or file to write; by default named after the measurement, in this folder.",
    click.Path(path_type=Path),
)
@shell.share
@shell.overwrite("existing output")
def command(*, path: Path, file_format: str, output: Path | None, share: bool, overwrite: bool) -> None:
    """Write the measurement in PATH for other programs.

    csv, parquet and json write a folder with a file per table, including metrics, and columns.json with the meanings of
    columns. openmetrics writes a file of metrics for Prometheus, perfetto one with a track per worker thread, for
    https://ui.perfetto.dev (compressed if its name ends with .gz). speedscope and collapsed write the profile, for
    https://www.speedscope.app and flamegraph.pl.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or default_name(path, shell.SHARED * share + FORMATS[file_format])
    shell.say(measurement.export(target, file_format, overwrite, share=share))
