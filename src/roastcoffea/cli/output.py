"""What commands print, and their exit status."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from roastcoffea.studies.scaling.scaling import Scaling
    from roastcoffea.studies.what_if.what_if import WhatIf

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130


def leave_stdout() -> None:
    """Give Python, which flushes once more as it exits, a place to: the reader has gone, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(reason: str, status: int) -> int:
    """Say the reason in one line, and give the status back."""
    say(f"roastcoffea: {' '.join(reason.split())}", err=True)
    return status


def say(what: object, *, err: bool = False) -> None:
    """Print a line in which names of files and folders cannot steer the terminal."""
    from roastcoffea.report.terminal import printable

    click.echo(printable(str(what)), err=err)


def print_study(found: Scaling | WhatIf, as_json: bool) -> None:
    """Print the result of a study."""
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        found.print(sys.stdout)
