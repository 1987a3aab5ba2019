"""`roastcoffea scaling`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@shell.runs
@shell.as_json
@click.option("--plot", "picture", type=shell.FILE, help="File for a plot.")
def command(*, runs: tuple[str, ...], as_json: bool, picture: Path | None) -> None:
    """Show the gain from more workers, how many pay off, and where the loss goes.

    Takes measurements with at least two different numbers of workers, on the same files or on files that grow with the
    workers; repeats provide the intervals. A RUN may also be a folder, a quoted pattern, or a name with repeats.
    """
    from roastcoffea.studies.scaling.scaling import scaling

    formats = shell.PICTURE_FORMATS
    if picture is not None and picture.suffix[1:].lower() not in formats:
        raise click.UsageError(f"--plot {picture}: the name of a plot must end with .{', .'.join(formats)}")
    found = scaling(shell.paths_of(runs))
    shell.print_study(found, as_json)
    if picture is not None:
        found.plot(picture)
        shell.say(picture, err=as_json)
