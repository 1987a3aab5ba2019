"""`roastcoffea run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from roastcoffea.cli import shell


def _given(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    from roastcoffea.instrument.names import given_name

    try:
        return given_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings={"allow_interspersed_args": False})
@shell.measurements_folder("Folder for the measurements.", envvar="ROASTCOFFEA", show_envvar=True)
@click.option("--name", callback=_given, help="Name of the measurements: their title, and their folders' names.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option(
    "--profile/--no-profile", default=True, help="Sample which functions process() is at.  [default: profile]"
)
@click.option("--open", "open_page", is_flag=True, help="Open the page of the last measurement in a browser.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    output: Path,
    name: str | None,
    as_module: bool,
    profile: bool,
    open_page: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Callable[[], None]:
    """Run SCRIPT as python does, and measure each Runner call in it.

    Output and exit status are those of the script. Each call becomes a measurement, saved when it ends, even if it
    fails or is interrupted. At the end each measurement gets a page for a browser, and its summary is printed on
    stderr. Options of this command come before SCRIPT, those of the script after it.
    """
    from roastcoffea.recording.script import runnable

    try:
        return runnable(
            script, list(arguments), as_module=as_module, out=output, profile=profile, open_page=open_page, name=name
        )
    except OSError as error:
        raise click.UsageError(f"can't open file {script!r}: {error.strerror}") from error
