"""Common parts of commands: arguments and options, output, and exit statuses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from roastcoffea.studies.scaling import Scaling
    from roastcoffea.studies.what_if import WhatIf

RUNS_FOLDER: Final = Path("roastcoffea-runs")
PICTURE_FORMATS: Final = ("png", "pdf", "svg")

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130
"""Exit statuses."""

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FILE: Final = click.Path(path_type=Path, dir_okay=False)

SHARED: Final = "-shared"
"""End of the default names of what is shared."""

share: Final = click.option("--share", is_flag=True, help="Give hosts, users and paths made-up names.")
measurement: Final = click.argument("path", type=click.Path(path_type=Path))
runs: Final = click.argument("runs", nargs=-1, required=True, metavar="RUN...")
as_json: Final = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


def choice(*names: str, among: Sequence[str], **settings: Any) -> Option:
    """Option with a choice of words; its default is shown."""
    return click.option(*names, type=click.Choice(among), show_default=True, **settings)


def bounded(name: str, kind: click.IntRange | click.FloatRange, default: float, text: str) -> Option:
    """Option for a number within limits; its default is shown."""
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def output(text: str, kind: click.Path = FILE, **settings: Any) -> Option:
    """Option for output, with the same names in every command."""
    return click.option("-o", "--output", "--out", "output", type=kind, help=text, **settings)


def measurements_folder(text: str, **settings: Any) -> Option:
    """Option for the folder of measurements."""
    return output(text, FOLDER, default=RUNS_FOLDER, show_default=True, **settings)


def overwrite(what: str = "an existing file") -> Option:
    """Option to overwrite existing output."""
    return click.option("--overwrite", is_flag=True, help=f"Overwrite {what}.")


def paths_of(words: Sequence[str]) -> list[Path]:
    """Folders of the measurements from paths, patterns or names with repeats, without duplicates."""
    from roastcoffea.studies.observations import paths_of as paths_of_word

    return list(dict.fromkeys(path.resolve() for word in words for path in paths_of_word(word, RUNS_FOLDER)))


def leave_stdout() -> None:
    """Give Python, which flushes stdout again at exit, somewhere to write: the reader is gone, as with `head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(reason: str, status: int) -> int:
    """Print the reason in one line, and return the status."""
    say(f"roastcoffea: {' '.join(reason.split())}", err=True)
    return status


def say(what: object, *, err: bool = False) -> None:
    """Print a line in which names of files and folders cannot control the terminal."""
    from roastcoffea.sheets.terminal import printable

    click.echo(printable(str(what)), err=err)


def print_study(found: Scaling | WhatIf, as_json: bool) -> None:
    """Print the result of a study."""
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        found.print(sys.stdout)
