"""Export of a measurement in any of the formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics import Metrics
from roastcoffea.metrics.profile import PROFILE_FORMATS, profile_of
from roastcoffea.records.run import Run
from roastcoffea.report.exports.formats import FORMATS, TABLE_FORMATS
from roastcoffea.report.exports.openmetrics import write_openmetrics
from roastcoffea.report.exports.perfetto import write_perfetto
from roastcoffea.report.exports.tables import Frames, write_tables
from roastcoffea.storage.folders import whole_file


def export(  # noqa: PLR0917
    run: Run, metrics: Metrics, tables: Callable[[], Frames], path: Path, file_format: str, overwrite: bool
) -> Path:
    """Write a measurement in a format, completely or not at all, and return the path of the folder or file.

    Raises
    ------
    MeasurementError
        If the path exists already or cannot be written.
    """
    if file_format not in FORMATS:
        raise MeasurementError(f"unknown format {file_format!r}; choose {', '.join(FORMATS)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if file_format in TABLE_FORMATS:
            return write_tables(run, metrics, tables(), path, file_format, overwrite)
        if file_format in PROFILE_FORMATS:
            return profile_of(metrics).export(path, file_format, overwrite)
        with whole_file(path, overwrite=overwrite) as file:
            if file_format == "openmetrics":
                write_openmetrics(run, metrics, file)
            else:
                write_perfetto(run, file, packed=path.suffix == ".gz")
    except OSError as error:
        raise MeasurementError(f"nothing was exported to {path}: {error}") from error
    return path
