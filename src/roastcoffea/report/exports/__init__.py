"""Measurement exports. Each module lists its formats in `FORMATS`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from roastcoffea.errors import MeasurementError
from roastcoffea.storage.folders import name_from


class Format(NamedTuple):
    ending: str
    """Default suffix for the name of an export."""
    write: Callable[[Any, Path, bool], None]
    """Function that writes a measurement atomically. Its flag allows overwriting an earlier export."""


FORMATS: Final[Mapping[str, Format]] = {
    name: each
    for module in pkgutil.iter_modules(__path__)
    for name, each in import_module(f"{__name__}.{module.name}").FORMATS.items()
}


def export(measured: Any, path: Path, file_format: str, overwrite: bool) -> Path:
    """Export a measurement atomically, and return the path written.

    Raises
    ------
    MeasurementError
        If the format is unknown, or the path already exists or cannot be written.
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
    """Default name for an export: the name of the folder or the pattern, with a different suffix."""
    folder = measurement.resolve()
    return (folder.name if folder.exists() else name_from(folder.name)) + end
