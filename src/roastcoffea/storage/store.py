"""Runs on disk: a folder with `run.json`, a Parquet file per table, and no pickles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError, MissingMeasurementError, UnreadableMeasurementError
from roastcoffea.records.run import Run
from roastcoffea.storage.document import (
    FORMAT,
    RUN_FILE,
    SCHEMA,
    TABLES,
    check_body,
    check_columns,
    read_document,
    read_table,
    run_of,
    table_file,
    tables_of,
    upgraded,
    write_document,
    write_table,
)
from roastcoffea.storage.folders import (
    OR_OVERWRITE,
    file_name,
    holds_only,
    left_overs,
    name_from,
    names_in,
    new_folder,
    read_whole,
)
from roastcoffea.storage.parquet import Room, check_end
from roastcoffea.storage.reading import has_format, reading

METRICS_FILE: Final = "metrics.json"
"""Metrics for other programs; they are never read here."""

MONITOR_FILE: Final = "monitor.json"
MONITOR_FORMAT: Final = "roastcoffea-monitor"
"""Output of a `TaskMonitor`, which is not a measurement but easily mistaken for one."""

PAGE_FILE: Final = "report.html"
"""Page for a browser, where one was made."""

OWN_FILES: Final = frozenset((RUN_FILE, METRICS_FILE, PAGE_FILE, *(f"{name}.parquet" for name in TABLES)))
"""Files of a measurement, by the versions since 1.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A measurement in a folder, without its tables; `error` says why it cannot be read."""

    path: Path
    name: str
    """Name of its folder."""
    start: float | None = None
    outcome: str | None = None
    elapsed: float | None = None
    error: str | None = None
    run_error: str | None = None
    """Error that ended the run."""
    processors: tuple[str, ...] = ()
    """Processors of its Runner calls; empty where none was called."""
    reported: Mapping[str, Any] | None = None
    """Metrics that another program computed and stored without records (roastcoffea 0.1.2)."""


def save_run(
    run: Run,
    folder: str | os.PathLike[str],
    name: str | None = None,
    *,
    overwrite: bool = False,
    metrics_json: Callable[[], bytes] | None = None,
) -> Path:
    """Save a run and return the path of its new folder.

    Everything is written to a hidden folder next to it and moved into place in one step, so that a failure leaves
    existing data unchanged. The records are written first: they are saved even if `metrics_json` raises.

    Parameters
    ----------
    name
        Name of the new folder; by default the run's name, or the UTC time of its start, and a number.
    overwrite
        Overwrite a measurement of that name; a folder that holds anything else is never overwritten.
    metrics_json
        Returns the content of `metrics.json`.
    """
    folder = Path(folder)
    tables = tables_of(run)
    stem = name_from(run.name or "") or f"{datetime.fromtimestamp(run.start, UTC):%Y-%m-%dT%H%M%SZ}"
    automatic = (f"{stem}-{number:03d}" for number in count(1))
    names = automatic if name is None else iter([file_name(name)])
    replaces = is_replaceable if overwrite and name is not None else None
    target = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        first = next(each for each in names if name is not None or not os.path.lexists(folder / each))
        with new_folder(folder, first) as new:
            for table_name, table in tables.items():
                write_table(new.path, table_name, table)
            write_document(new.path, run, tables)
            new.complete()
            try:
                content = None if metrics_json is None else metrics_json()
                if content is not None:
                    with new.late_file(METRICS_FILE) as file:
                        file.write(content)
            finally:
                places = (folder / each for each in chain([first], names))
                target = next((place for place in places if new.put_in_place(place, replaces)), None)
                if target is None:
                    raise MeasurementError(f"{folder / first} exists; {OR_OVERWRITE}")
    except OSError as error:
        what = f"nothing was saved in {folder}" if target is None else f"{target} lacks its {METRICS_FILE}"
        raise MeasurementError(f"{what}: {error}") from error
    return target


def load_run(path: str | os.PathLike[str]) -> Run:
    """Run saved in a folder by this or an older version; the path of its `run.json` works as well."""
    path = Path(path)
    try:
        return read_whole(path.parent if path.name == RUN_FILE and path.is_file() else path, _load)
    except MeasurementError:
        raise
    except OSError as error:
        raise UnreadableMeasurementError(f"{path} cannot be read: {error}") from error


def list_runs(folder: str | os.PathLike[str]) -> list[StoredRun]:
    """Measurements in a folder, oldest first; unreadable ones come last."""
    read = ((path, read_whole(path, _stored)) for path in paths_in(Path(folder)))
    found = [replace(run, path=path) for path, run in read if run is not None]
    return sorted(found, key=lambda run: (run.start is None, run.start or 0, run.name))


def paths_in(folder: Path) -> list[Path]:
    """Paths of a folder's measurements, even of damaged ones."""
    try:
        names = names_in(folder)
    except NotADirectoryError:
        raise MeasurementError(f"{folder} is a file; pass a folder with measurements") from None
    except OSError as error:
        raise MeasurementError(f"{folder} cannot be listed: {error}; pass a folder with measurements") from error
    return [path for path in (folder / name for name in names) if is_measurement(path)]


def is_measurement(path: Path) -> bool:
    """Whether there is a measurement at a path, even a damaged one."""
    place = path if os.path.lexists(path) else left_overs(path.parent).get(path.name, path)
    return any((place / name).exists() for name in (RUN_FILE, legacy.METADATA_FILE))


def is_monitor(path: Path) -> bool:
    """Whether a folder holds output of a `TaskMonitor`."""
    return has_format(path / MONITOR_FILE, MONITOR_FORMAT)


def not_a_measurement(path: Path) -> str:
    """How to load a folder that a `TaskMonitor` saved."""
    return f"{path} was saved by a TaskMonitor and is not a measurement; load it with TaskMonitor.load({str(path)!r})"


def is_replaceable(path: Path) -> bool:
    """Whether a folder holds only a measurement, even a damaged one."""
    ours = holds_only(path, OWN_FILES) and has_format(path / RUN_FILE, FORMAT)
    return ours or (holds_only(path, legacy.FILES) and has_format(path / legacy.METADATA_FILE, legacy.FORMAT))


def _load(folder: Path) -> Run:
    if not folder.is_dir():
        found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise MissingMeasurementError(f"{found}; pass the folder of a measurement")
    file = folder / RUN_FILE
    if not file.exists():
        if (folder / legacy.METADATA_FILE).exists():
            return legacy.load_legacy(folder)
        if is_monitor(folder):
            raise MissingMeasurementError(not_a_measurement(folder))
        raise MissingMeasurementError(f"{folder} is not a measurement: it has no {RUN_FILE}; pass the folder of one")
    document = read_document(file)
    room = Room()
    tables = {name: read_table(folder, name, table["rows"], room) for name, table in document.tables.items()}
    with reading(file):
        for name, table in tables.items():
            check_columns(table, document.tables[name]["columns"], str(table_file(folder, name)))
        body, tables = upgraded(document.body, tables, document.schema)
        if document.schema < SCHEMA:  # others are checked already
            check_body(body)
        return run_of(body, tables)


def _stored(path: Path) -> StoredRun | None:
    """Entry of a list; None for a folder that does not look like a measurement."""
    try:
        if (path / RUN_FILE).exists():
            return _stored_now(path)
        if (path / legacy.METADATA_FILE).exists():
            run = legacy.load_legacy(path)
            return StoredRun(
                path=path,
                name=path.name,
                start=run.start,
                elapsed=run.stop - run.start,
                outcome=run.outcome,
                reported=run.reported or {},
            )
    except (MeasurementError, OSError) as error:
        return StoredRun(path=path, name=path.name, error=str(error))
    return None


def _stored_now(path: Path) -> StoredRun:
    """Entry of a measurement of this version or an older one since 1.0."""
    document = read_document(path / RUN_FILE)
    body, damage = document.body, None
    try:
        for name in document.tables:
            check_end(table_file(path, name))
    except MeasurementError as error:
        damage = str(error)
    with reading(path / RUN_FILE):
        return StoredRun(
            path=path,
            name=path.name,
            start=body["start"],
            outcome=None if damage else body["outcome"],
            elapsed=body["stop"] - body["start"],
            error=damage,
            reported=body.get("reported"),
            run_error=body["error"],
            processors=tuple(dict.fromkeys(str(call["processor"]) for call in body["calls"])),
        )
