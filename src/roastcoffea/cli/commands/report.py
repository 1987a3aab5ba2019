"""`roastcoffea report`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.report.exports.formats import default_name


@click.command
@shell.measurement
@shell.output("File to write; by default named after the measurement, in this folder.")
@click.option("--every-task", is_flag=True, help="Include every task, even if there are more than 100,000.")
@shell.overwrite()
def command(*, path: Path, output: Path | None, every_task: bool, overwrite: bool) -> None:
    """Write the measurement in PATH as one HTML page for any browser.

    It has the verdict, both ledgers, charts over time down to single tasks, and tables of datasets, files, branches,
    sections, workers and failures.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    shell.say(measurement.report(output or default_name(path, ".html"), every_task=every_task, overwrite=overwrite))
