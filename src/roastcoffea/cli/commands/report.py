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
@shell.share
@shell.overwrite()
def command(*, path: Path, output: Path | None, every_task: bool, share: bool, overwrite: bool) -> None:
    """Write the measurement in PATH as one HTML page for any browser.

    It has the verdict, both ledgers, charts over time down to single tasks, and tables of datasets, files, branches,
    sections, workers and failures.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or default_name(path, f"{shell.SHARED * share}.html")
    shell.say(measurement.report(target, every_task=every_task, overwrite=overwrite, share=share))
