"""The formats that a measurement can be exported to: tables in a folder, or one file. Listing them loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

TABLE_FORMATS: Final = ("csv", "parquet", "json")
"""Those that make a folder with a file for each table."""

FORMATS: Final[Mapping[str, str]] = {
    **{name: f"-{name}" for name in TABLE_FORMATS},
    "openmetrics": ".openmetrics.txt",
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
    "collapsed": ".collapsed.txt",
}
"""Formats, each with the end of the name that an export has where none was given."""


def default_name(measurement: Path, end: str) -> str:
    """Name of what is made of the measurement in a folder: that of the folder, with an end of its own."""
    folder = measurement.resolve()
    return (folder.parent if folder.is_file() else folder).name + end
