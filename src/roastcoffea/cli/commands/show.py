"""`roastcoffea show`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@shell.measurement
def command(path: Path) -> None:
    """Print the tables of the measurement in PATH."""
    from roastcoffea.studies.merging import measurement_at

    measurement_at(path).print_summary()
