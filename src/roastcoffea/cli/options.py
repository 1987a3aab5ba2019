"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

RUNS_FOLDER: Final = Path("roastcoffea-runs")
PICTURE_FORMATS: Final = ("png", "pdf", "svg")

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FILE: Final = click.Path(path_type=Path, dir_okay=False)

measurement: Final = click.argument("path", type=click.Path(path_type=Path))
runs: Final = click.argument("runs", nargs=-1, required=True, metavar="RUN...")
as_json: Final = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


def choice(*names: str, among: Sequence[str], **settings: Any) -> Option:
    """Option that is one of several words; its default is shown."""
    return click.option(*names, type=click.Choice(among), show_default=True, **settings)


def bounded(name: str, kind: click.IntRange | click.FloatRange, default: float, text: str) -> Option:
    """Option that is a number within limits; its default is shown."""
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def measurements_folder(text: str, **settings: Any) -> Option:
    """Option for the folder that gets measurements."""
    return click.option("--out", type=FOLDER, default=RUNS_FOLDER, show_default=True, help=text, **settings)


def output(text: str, kind: click.Path = FILE) -> Option:
    """Option for what is written."""
    return click.option("-o", "--output", type=kind, help=text)


def overwrite(what: str = "the file that is there") -> Option:
    """Option to replace what is there."""
    return click.option("--overwrite", is_flag=True, help=f"Replace {what}.")


def paths_of(words: Sequence[str]) -> list[Path]:
    """Folders of the measurements that paths, patterns or names with repeats stand for, each once."""
    from roastcoffea.studies.compare.sides import paths_of as paths_of_word

    return list(dict.fromkeys(path.resolve() for word in words for path in paths_of_word(word, RUNS_FOLDER)))
