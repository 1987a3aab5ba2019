"""`roastcoffea plot`."""

from __future__ import annotations

from pathlib import Path

import click

from roastcoffea.cli import shell
from roastcoffea.errors import MeasurementError
from roastcoffea.report.exports.formats import default_name
from roastcoffea.storage.folders import OR_OVERWRITE


@click.command
@shell.measurement
@click.argument("names", nargs=-1, metavar="[NAME]...")
@shell.output("Folder for the files  [default: roastcoffea-plots/NAME OF THE MEASUREMENT]", shell.FOLDER)
@shell.choice("--format", "suffix", among=shell.PICTURE_FORMATS, default="png", help="File format.")
@click.option("--dark", is_flag=True, help="Draw for a dark background.")
@shell.overwrite("existing files")
def command(
    *, path: Path, names: tuple[str, ...], output: Path | None, suffix: str, dark: bool, overwrite: bool
) -> int:
    """Draw the plots NAME of the measurement in PATH, or all available ones.

    Names are those of the functions, with or without "plot_". The reason for a plot that cannot be drawn is printed on
    stderr; that is a failure if the plot was requested by name, or if no plot could be drawn.
    """
    from roastcoffea.studies.merging import measurement_at
    from roastcoffea.visualization.plots import PLOTS
    from roastcoffea.visualization.registry import figure_alone, registered, save

    try:
        wanted = list(dict.fromkeys(registered(name) for name in names)) or list(PLOTS.values())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    measurement = measurement_at(path)
    folder = Path("roastcoffea-plots", default_name(path, "")) if output is None else output
    files = {entry: folder / f"{entry.name}.{suffix}" for entry in wanted}
    if not overwrite and (taken := next(filter(Path.exists, files.values()), None)):
        raise MeasurementError(f"{taken} exists; {OR_OVERWRITE}")  # before the first is drawn
    drawn = 0
    for entry, file in files.items():
        try:
            figure = figure_alone(entry, measurement, dark=dark)
        except ValueError as reason:
            shell.fail(str(reason), shell.FAILED)
        else:
            shell.say(save(figure, file, overwrite=overwrite))
            drawn += 1
    return 0 if drawn == len(wanted) or (drawn and not names) else shell.FAILED
