"""`roastcoffea plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from roastcoffea.cli import options
from roastcoffea.cli.output import FAILED, fail, say

if TYPE_CHECKING:
    from roastcoffea.measurement import Measurement

PLOTS_FOLDER: Final = Path("roastcoffea-plots")


@click.command
@options.measurement
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-o",
    "--out",
    type=options.FOLDER,
    help="Folder that gets the files  [default: roastcoffea-plots/NAME OF THE MEASUREMENT]",
)
@options.choice("--format", "suffix", among=options.PICTURE_FORMATS, default="png", help="Kind of files.")
def command(path: Path, names: tuple[str, ...], out: Path | None, suffix: str) -> int:
    """Draw the plots NAME of the measurement in PATH, or all that can be drawn of it.

    Names are those of the functions, with or without "plot_". Files that are there are replaced. A plot that cannot be
    drawn is told with its reason on stderr; that is a failure where it was asked for by name, or where there is no
    other.
    """
    from roastcoffea.measurement import load
    from roastcoffea.report.exports.formats import default_name
    from roastcoffea.visualization.plots import PLOTS
    from roastcoffea.visualization.registry import registered

    try:
        wanted = [registered(name) for name in names] or list(PLOTS.values())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    measurement = load(path)
    folder = PLOTS_FOLDER / default_name(path, "") if out is None else out
    drawn = [_drawn(measurement, entry.name, folder / f"{entry.name}.{suffix}") for entry in wanted]
    return 0 if all(drawn) or (not names and any(drawn)) else FAILED


def _drawn(measurement: Measurement, name: str, file: Path) -> bool:
    """Draw one plot into a file, and name the file; say why it cannot be drawn where that is so."""
    from roastcoffea.visualization.registry import PLOTS, figure_alone, save

    try:
        figure = figure_alone(PLOTS[name], measurement)
    except ValueError as reason:
        fail(str(reason), FAILED)
        return False
    say(save(figure, file))
    return True
