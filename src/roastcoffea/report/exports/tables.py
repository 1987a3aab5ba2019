"""Export a measurement's tables to files in a folder."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from roastcoffea.errors import MeasurementError
from roastcoffea.instrument.track import outside_chunks
from roastcoffea.metrics import CATALOGUE, Metric, Metrics
from roastcoffea.metrics.catalogue import RAW
from roastcoffea.records.run import Run
from roastcoffea.redaction import STEERING, neutral
from roastcoffea.report.exports import Format
from roastcoffea.storage.folders import OR_OVERWRITE, file_name, holds_only, new_folder, synced_file
from roastcoffea.storage.reading import has_format

if TYPE_CHECKING:
    import pandas as pd


Frames = Mapping[str, "pd.DataFrame"]

EXPORT_FORMAT: Final = "roastcoffea export 1"
COLUMNS_FILE: Final = "columns.json"
BATCH: Final = 10_000
"""Number of rows to convert to text at a time."""

FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
"""Characters that begin a formula in spreadsheets, and the quote that prevents formulas."""

CSV_NOTE: Final = (
    "Text that begins with one of = + - @ ' or with a tab or line break is prefixed with ', so that spreadsheets do "
    "not run it as a formula: remove one ' from text that begins with '. Control characters are escaped. Lists and "
    "mappings are JSON. Cells without a measurement are empty."
)
METRIC_COLUMNS: Final[Mapping[str, str]] = {
    "name": "name of the metric",
    "value": "value, if it is a number",
    "text": "value, if it is text",
    "unit": "unit of the value",
    "group": "metric group",
    "source": "source of the value in this run",
    "meaning": "meaning of the metric",
    "missing": "why the value is missing",
}


def write_tables(  # noqa: PLR0917
    run: Run, metrics: Metrics, tables: Frames, folder: Path, file_format: str, overwrite: bool
) -> None:
    """Write tables, metrics and `columns.json` to separate files in a new folder."""
    frames = {"metrics": metrics_table(metrics), **tables}
    replaces = partial(is_export, tables=frames.keys())
    if folder.exists() and not (overwrite and replaces(folder)):
        way_out = "it is not a roastcoffea export or contains other files, so it is kept" if overwrite else OR_OVERWRITE
        raise MeasurementError(f"{folder} exists; {way_out}")
    with new_folder(folder.parent, folder.name) as new:
        for name, frame in frames.items():
            with synced_file(new.path / f"{file_name(name)}.{file_format}") as file:
                WRITERS[file_format](_arrow(frame), file)
        with synced_file(new.path / COLUMNS_FILE) as file:
            file.write(json.dumps(_description(run, metrics, frames, file_format), indent=1, allow_nan=False).encode())
        new.complete()
        if not new.put_in_place(folder, replaces if overwrite else None):
            raise MeasurementError(f"{folder} exists; {OR_OVERWRITE}")


def is_export(path: Path, tables: Collection[str]) -> bool:
    files = {f"{name}.{file_format}" for name in tables for file_format in WRITERS} | {COLUMNS_FILE}
    return holds_only(path, files) and has_format(path / COLUMNS_FILE, EXPORT_FORMAT)


def metrics_table(metrics: Metrics) -> pd.DataFrame:
    """One row for each metric that is a number or text, and for each missing metric."""
    import pandas as pd

    entries = {metric.name: metric for metric in CATALOGUE.metrics()}
    rows = [_metric_row(metrics, name, entries.get(name)) for name in dict.fromkeys((*metrics, *metrics.missing))]
    frame = pd.DataFrame([row for row in rows if row is not None], columns=list(METRIC_COLUMNS))
    frame["value"] = frame["value"].astype("float64")
    frame.attrs["columns"] = dict(METRIC_COLUMNS)
    return frame


def _metric_row(metrics: Metrics, name: str, entry: Metric | None) -> dict[str, Any] | None:
    """Row for a metric; None for a structured value, which has its own tables."""
    row: dict[str, Any] = {"name": name, "source": None}
    if entry is not None:
        row |= {"source": entry.source, "unit": str(entry.unit), "group": entry.group, "meaning": entry.meaning}
    if name not in metrics:
        return row | {"missing": metrics.missing[name]}
    if entry is not None and entry.group == RAW:
        return None  # reading the value would compute it
    value = metrics[name]
    row |= {"source": metrics.source[name], "text" if isinstance(value, str) else "value": value}
    return row if isinstance(value, str | Real) else None


def _description(run: Run, metrics: Metrics, frames: Frames, file_format: str) -> dict[str, Any]:
    identity = {name: getattr(run, name) for name in ("id", "name", "start", "stop", "outcome", "error")}
    identity["problems"] = [*run.problems, *metrics.problems]
    notes = {"note": CSV_NOTE} if file_format == "csv" else {}
    tables = {}
    for name, frame in frames.items():
        meanings, units = frame.attrs.get("columns", {}), frame.attrs.get("units", {})
        absent = {"absent": frame.attrs["absent"]} if "absent" in frame.attrs else {}
        columns = {column: {"unit": units.get(column), "meaning": meanings.get(column)} for column in frame.columns}
        tables[name] = {"file": f"{name}.{file_format}", "rows": len(frame), **absent, "columns": columns}
    return {"format": EXPORT_FORMAT, "run": identity, **notes, "tables": tables}


def _arrow(frame: pd.DataFrame) -> pa.Table:
    """Convert a frame to an Arrow table. A column that contains no values becomes text."""
    import pandas as pd

    frame = frame.copy(deep=False)
    for label in frame:
        # as JSON, because each value may have different keys
        if pd.api.types.is_object_dtype(frame[label]) and any(isinstance(value, dict) for value in frame[label]):
            frame[label] = [_plain_json(value) if isinstance(value, dict) else value for value in frame[label]]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    fields = [pa.field(each.name, pa.string()) if pa.types.is_null(each.type) else each for each in table.schema]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def _plain_json(values: dict[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in values.items()}, ensure_ascii=False, allow_nan=False)


def _write_csv(table: pa.Table, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow(map(_cell, row.values()))
    text.detach()


def _write_json(table: pa.Table, file: BinaryIO) -> None:
    """Write a JSON array, with one row per line."""
    begin = "[\n"
    for row in _rows(table):
        line = {name: _plain(value) for name, value in row.items()}
        file.write((begin + re.sub(STEERING, _escape, _encoded(line))).encode())
        begin = ",\n"
    file.write(b"[]\n" if begin == "[\n" else b"\n]\n")


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


_encoded: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode


def _write_parquet(table: pa.Table, file: BinaryIO) -> None:
    with outside_chunks():
        pq.write_table(table, file, compression="zstd")


WRITERS: Final[Mapping[str, Callable[[pa.Table, BinaryIO], None]]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=BATCH):
        yield from batch.to_pylist()


def _cell(value: Any) -> Any:
    """Convert a value to a cell. Spreadsheets never run the text in a cell as a formula."""
    if isinstance(value, list):
        return neutral(json.dumps(value, ensure_ascii=False))
    if not isinstance(value, str):
        return value
    return f"'{neutral(value)}" if value.startswith(FORMULA_SIGNS) else neutral(value)


def _plain(value: Any) -> Any:
    """Convert a value to standard JSON. Infinity and NaN become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _format(name: str) -> Format:

    def write(measured: Any, path: Path, overwrite: bool) -> None:
        write_tables(measured.run, measured.metrics, measured.tables, path, name, overwrite)

    return Format(f"-{name}", write)


FORMATS: Final = {name: _format(name) for name in WRITERS}
