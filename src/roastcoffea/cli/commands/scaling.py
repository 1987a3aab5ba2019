"""`roastcoffea scaling`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell


@click.command
@shell.runs
@shell.as_json
@click.option("--plot", "picture", type=shell.FILE, help="File for a plot.")
@click.option("--page", "page", type=shell.FILE, help="Write a page for a browser to this file.")
@click.option("--rate", metavar="RATE", help="A rate to reach, such as '200 Gbit/s' or '50 kHz': what has to change.")
@shell.overwrite("an existing page")
def command(
    *, runs: tuple[str, ...], as_json: bool, picture: Path | None, page: Path | None, rate: str | None, overwrite: bool
) -> None:
    """Show why more workers give less, from how many on, and what would have to change.

    Takes measurements with at least two different numbers of workers, on the same files or on files that grow with the
    workers; repeats provide the intervals. A RUN may also be a folder, a quoted pattern, or a name with repeats.
    """
    from roastcoffea.studies.scaling.scaling import scaling

    formats = shell.PICTURE_FORMATS
    if picture is not None and picture.suffix[1:].lower() not in formats:
        raise click.UsageError(f"--plot {picture}: the name of a plot must end with .{', .'.join(formats)}")
    try:
        found = scaling(shell.paths_of(runs), rate=rate)
    except ValueError as error:
        if rate is None:
            raise
        raise click.UsageError(f"--rate: {error}") from None
    shell.print_study(found, as_json)
    if picture is not None:
        found.plot(picture)
        shell.say(picture, err=as_json)
    if page is not None:
        shell.say(found.page(page, overwrite=overwrite), err=as_json)
