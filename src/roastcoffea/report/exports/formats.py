"""Export formats: tables in a folder, or one file. This module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

TABLE_FORMATS: Final = ("csv", "parquet", "json")
"""Formats that make a folder with a file per table."""

FORMATS: Final[Mapping[str, str]] = {
    **{name: f"-{name}" for name in TABLE_FORMATS},
    "openmetrics": ".openmetrics.txt",
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
    "collapsed": ".collapsed.txt",
}
"""Formats, with the default ending of an export's name."""


def default_name(measurement: Path, end: str) -> str:
    """Default name of an export: that of the measurement's folder with another ending."""
    folder = measurement.resolve()
    return (folder.parent if folder.is_file() else folder).name + end
