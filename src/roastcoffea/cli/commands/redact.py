"""`roastcoffea redact`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.report.exports.formats import default_name

KEPT = "Names of datasets, sections and the run are kept: check them before publishing."


@click.command
@shell.measurement
@shell.output("Folder of the copy; by default PATH-shared.", shell.FOLDER)
@shell.overwrite("an existing measurement")
def command(*, path: Path, output: Path | None, overwrite: bool) -> None:
    """Copy the measurement in PATH with made-up names of hosts, users and paths, to show it to anybody.

    Equal names stay equal: the first host is host-1 everywhere, and addresses keep their ports. Batch jobs, queues and
    sites have made-up names as well. All numbers are the same.
    """
    from roastcoffea.studies.merging import measurement_at

    measurement = measurement_at(path)
    target = output or _beside(path)
    shell.say(measurement.save(target.parent, target.name, overwrite, share=True))
    shell.say(KEPT, err=True)


def _beside(path: Path) -> Path:
    """Folder of the copy, next to the measurement."""
    folder = path.resolve()
    return (folder.parent if folder.is_file() else folder).with_name(default_name(path, shell.SHARED))
