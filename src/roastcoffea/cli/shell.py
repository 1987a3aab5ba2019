"""Code shared by the commands: runs, options, pages, output and exit statuses."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from roastcoffea.errors import MeasurementError, MissingMeasurementError, RoastcoffeaError
from roastcoffea.storage.folders import OR_OVERWRITE, OVERWRITE

if TYPE_CHECKING:
    from distributed import Client

    from roastcoffea.measurement import Measurement

RUNS_FOLDER: Final = Path("roastcoffea-runs")
PICTURE_FORMATS: Final = ("png", "pdf", "svg")

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130
"""Exit statuses."""

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FILE: Final = click.Path(path_type=Path, dir_okay=False)
ANY: Final = click.Path(path_type=Path)

SHARED: Final = "-shared"
"""Suffix for the default name of a shared copy."""

OLDER: Final = ("--out", "--page")
"""Former option names, not shown in the help text."""

A_RUN: Final = f"RUN is a path, a name in {RUNS_FOLDER}, or a quoted pattern"
LATEST: Final = f"{A_RUN};\nby default, the latest run in {RUNS_FOLDER} is used.\n\n\b\n"
GIVEN: Final = f"{A_RUN}.\n\n\b\n"


def command(example: str, about: str = "", **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Create a command whose help text ends with `about` and an example."""
    settings["epilog"] = f"\b\n{about}Example: roastcoffea {example}"
    decorator: Callable[[Callable[..., Any]], click.Command] = click.command(**settings)
    return decorator


class Aliased(click.Option):
    """Option whose help text does not show its former names."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every, self.opts = self.opts, [name for name in self.opts if name not in OLDER]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


share: Final = click.option("--share", is_flag=True, help="Use made-up host, user and path names.")
run: Final = click.argument("run", required=False, metavar="[RUN]")
as_json: Final = click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
opened: Final = click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")


def runs(*, required: bool = True) -> Option:
    return click.argument("runs", nargs=-1, required=required, metavar="RUN..." if required else "[RUN]...")


def choice(*names: str, among: Sequence[str], **settings: Any) -> Option:
    return click.option(*names, type=click.Choice(among), show_default=True, **settings)


def bounded(name: str, kind: click.IntRange | click.FloatRange, default: float | None, text: str) -> Option:
    def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise click.BadParameter(f"{value} is not a finite number.")
        return value

    return click.option(name, type=kind, default=default, show_default=True, help=text, callback=finite)


def output(text: str, kind: click.Path = FILE, older: Sequence[str] = ("--out",), **settings: Any) -> Option:
    """Output option, which has the same names in every command."""
    return click.option("-o", "--output", *older, "output", cls=Aliased, type=kind, help=text, **settings)


def measurements_folder(text: str, **settings: Any) -> Option:
    return output(text, FOLDER, default=RUNS_FOLDER, show_default=True, **settings)


def overwrite(what: str = "an existing file") -> Option:
    return click.option("--overwrite", is_flag=True, help=f"Overwrite {what}.")


def study(decorated: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all studies share."""
    for option in (overwrite(), opened, output("Write an HTML page to this file.", older=OLDER), as_json):
        decorated = option(decorated)
    return decorated


# Runs


def paths_of(words: Sequence[str]) -> list[Path]:
    """Return the measurement folders for paths, patterns or names; default to the latest run."""
    from roastcoffea.studies.merging import paths_of as paths_of_word
    from roastcoffea.units import few

    if not words:
        return latest(1)
    paths: dict[Path, Path] = {}
    for word in words:
        found = paths_of_word(word, RUNS_FOLDER)
        # a path, or a name in the default folder, is unambiguous
        if not Path(word).exists() and found != [RUNS_FOLDER / word]:
            tell(f"{word} is {few([*map(str, found)])}")
        for path in found:
            paths.setdefault(path.resolve(), path)
    return list(paths.values())


def latest(number: int) -> list[Path]:
    """Return the most recently started runs in the default folder, oldest first."""
    from roastcoffea.storage.store import list_runs

    stored = list_runs(RUNS_FOLDER) if RUNS_FOLDER.is_dir() else []
    found = [run.path for run in stored if run.error is None][-number:]
    if len(found) < number:
        raise MissingMeasurementError(
            f"there are {len(found)} measurements in {RUNS_FOLDER}; name a RUN, or measure one"
        )
    tell(f"latest {'runs' if number > 1 else 'run'}: {', '.join(map(str, found))}")
    return found


def measurement(word: str | None) -> tuple[Measurement, Path]:
    """Load the measurement for RUN, and return it with its path; merge campaign jobs."""
    from roastcoffea.studies.merging import measurement_at

    found = paths_of([word] if word else [])
    path = found[0] if len(found) == 1 else Path(word or "")
    return measurement_at(path, found), path


def client_at(address: str) -> Client:
    """Connect to a scheduler."""
    from distributed import Client, Security
    from distributed.comm import connect

    from roastcoffea.backends.deployment import SCHEDULER_TIMEOUT
    from roastcoffea.redaction import redacted

    async def try_it() -> None:
        connecting = connect(address, SCHEDULER_TIMEOUT / 2, **Security().get_connection_args("client"))
        (await asyncio.wait_for(connecting, SCHEDULER_TIMEOUT)).abort()

    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # logs a traceback if the scheduler stops
    try:
        asyncio.run(try_it())  # a Client would wait forever for an unknown scheme, or for a server of another kind
        return Client(address, timeout=SCHEDULER_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError, MemoryError, asyncio.TimeoutError) as error:
        reason = f"no scheduler answers at {address} ({str(error) or 'no answer'}); use tcp://HOST:PORT"
        raise RoastcoffeaError(redacted(reason)) from None


# Output


def new_file(path: Path | str, overwrite: bool = True) -> Path:
    """Check that output can be written to the path, so that errors are raised before any computation."""
    path = Path(path)
    if not path.parent.is_dir():
        raise MissingMeasurementError(f"there is no folder {path.parent} for {path.name}; create it, or choose another")
    if not overwrite and os.path.lexists(path):
        raise MeasurementError(f"{path} exists; {OR_OVERWRITE}")
    return path


def show_page(page: Path, open_page: bool, err: bool = False) -> None:
    say(page, err=err)
    if open_page:
        from roastcoffea.recording.auto import open_in_browser

        open_in_browser(page)


def present(
    find: Callable[[], Any],
    default: str,
    *,
    as_json: bool,
    output: Path | None,
    open_page: bool,
    overwrite: bool,
    **shown: Any,
) -> Any:
    page = new_file(output or default, overwrite) if output or open_page else None
    found = find()
    if as_json:
        print_json(found.as_dict())
    else:
        found.print(sys.stdout, **shown)
    if page is not None:
        show_page(found.page(page, overwrite=overwrite), open_page, err=as_json)
    return found


def print_json(document: Any) -> None:
    """Print standard JSON, in which NaN and infinities are null."""
    plain = json.loads(json.dumps(document), parse_constant=lambda _: None)
    click.echo(json.dumps(plain, indent=1))


def leave_stdout() -> None:
    """Redirect stdout to the null device, because Python flushes it at exit even if the reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(reason: str, status: int) -> int:
    """Print an error on one line and return the status; name the option instead of the Python argument."""
    tell(" ".join(reason.split()).replace(OVERWRITE, "--overwrite"))
    return status


def tell(text: str) -> None:
    say(f"roastcoffea: {text}", err=True)


def say(what: object, *, err: bool = False) -> None:
    """Print a line, and escape its control characters."""
    from roastcoffea.sheets.terminal import printable

    click.echo(printable(str(what)), err=err)
