"""`roastcoffea merge`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@shell.runs
@shell.measurements_folder("Folder for the merged measurement.")
@click.option("--name", help="Name of the merged measurement.")
@shell.share
@click.option("--overwrite", is_flag=True, help="Overwrite a measurement of that name.")
def command(*, runs: tuple[str, ...], output: Path, name: str | None, share: bool, overwrite: bool) -> None:
    """Merge the measurements of independent jobs into one.

    Each RUN is the folder of a measurement, a pattern, or a folder that holds measurements.
    """
    from roastcoffea.studies.merging import merge

    campaign = merge(shell.paths_of(runs), name=name)
    path = campaign.save(output, name, overwrite, share=share)
    shell.say(f"{len(campaign.run.merged)} runs merged: {path}")
