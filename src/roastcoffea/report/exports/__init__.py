"""Export of a measurement: each module here has the formats that it writes in `FORMATS`, and no other names them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from roastcoffea.errors import MeasurementError


class Format(NamedTuple):
    """A format of exports."""

    ending: str
    """Default ending of an export's name."""
    write: Callable[[Any, Path, bool], None]
    """Writes a measurement to a path, completely or not at all; whether it may overwrite an export."""


FORMATS: Final[Mapping[str, Format]] = {
    name: each
    for module in pkgutil.iter_modules(__path__)
    for name, each in import_module(f"{__name__}.{module.name}").FORMATS.items()
}
"""All formats by name."""


def export(measured: Any, path: Path, file_format: str, overwrite: bool) -> Path:
    """Write a measurement in a format, completely or not at all, and return the path of the folder or file.

    Raises
    ------
    MeasurementError
        If the format is unknown, or the path exists already or cannot be written.
    """
    if file_format not in FORMATS:
        raise MeasurementError(f"unknown format {file_format!r}; choose {', '.join(FORMATS)}")
    path = path.resolve() if path.name in ("", "..") else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        FORMATS[file_format].write(measured, path, overwrite)
    except OSError as error:
        raise MeasurementError(f"nothing was exported to {path}: {error}") from error
    return path


def default_name(measurement: Path, end: str) -> str:
    """Default name of an export: that of the measurement's folder with another ending."""
    folder = measurement.resolve()
    return (folder.parent if folder.is_file() else folder).name + end
