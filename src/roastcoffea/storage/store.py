"""Runs on disk: folders with a `run.json` and one Parquet file per table, without pickles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError, MissingMeasurementError, UnreadableMeasurementError
from roastcoffea.records.arrow import give_memory_back, smaller
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
"""File with metrics for other programs. roastcoffea never reads this file."""

MONITOR_FILE: Final = "monitor.json"
MONITOR_FORMAT: Final = "roastcoffea-monitor"
"""Format of a `TaskMonitor`'s output, which is not a measurement but could be mistaken for one."""

PAGE_FILE: Final = "report.html"

OWN_FILES: Final = frozenset((RUN_FILE, METRICS_FILE, PAGE_FILE, *(f"{name}.parquet" for name in TABLES)))
"""Names of files in a measurement saved by version 1.0 or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A measurement in a folder, without its tables. If it cannot be read, `error` contains the reason."""

    path: Path
    name: str
    start: float | None = None
    outcome: str | None = None
    elapsed: float | None = None
    error: str | None = None
    run_error: str | None = None
    processors: tuple[str, ...] = ()
    """Processors used in the run's Runner calls. Empty if there were no calls."""
    reported: Mapping[str, Any] | None = None
    """Metrics computed by another program and stored without records (roastcoffea 0.1.2)."""


def save_run(
    run: Run,
    folder: str | os.PathLike[str],
    name: str | None = None,
    *,
    overwrite: bool = False,
    metrics_json: Callable[[], bytes] | None = None,
) -> Path:
    """Save a run and return the path of its new folder.

    Everything is written to a hidden folder next to the destination and moved into place in one step, so a failure
    leaves existing data unchanged. The records are written first, and are saved even if `metrics_json` raises an error.

    Parameters
    ----------
    name
        Name of the new folder. The default is the run's name or UTC start time, followed by a number.
    overwrite
        Overwrite a measurement with that name. A folder with any other content is never overwritten.
    metrics_json
        Function that returns the content of `metrics.json`.
    """
    folder = Path(folder)
    tables = tables_of(run)
    stem = name_from(run.name or "") or f"{datetime.fromtimestamp(run.start, timezone.utc):%Y-%m-%dT%H%M%SZ}"
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
        failed = MeasurementError(f"{what}: {error}")
        failed.saved = target
        raise failed from error
    return target


def load_run(path: str | os.PathLike[str]) -> Run:
    """Load a run from its folder or its `run.json`, saved by this version or an older one."""
    path = Path(path)
    try:
        return read_whole(path.parent if path.name == RUN_FILE and path.is_file() else path, _load)
    except MeasurementError:
        raise
    except OSError as error:
        raise UnreadableMeasurementError(f"{path} cannot be read: {error}") from error


def list_runs(folder: str | os.PathLike[str]) -> list[StoredRun]:
    """Return the measurements in a folder, oldest first. Unreadable measurements come last."""
    return stored_runs(paths_in(Path(folder)))


def stored_runs(paths: Iterable[Path]) -> list[StoredRun]:
    read = ((path, read_whole(path, _stored)) for path in paths)
    found = [replace(run, path=path) for path, run in read if run is not None]
    return sorted(found, key=lambda run: (run.start is None, run.start or 0, run.name))


def paths_in(folder: Path) -> list[Path]:
    """Return the paths of the measurements in a folder, including damaged measurements."""
    try:
        names = names_in(folder)
    except NotADirectoryError:
        raise MeasurementError(f"{folder} is a file; pass a folder with measurements") from None
    except OSError as error:
        raise MeasurementError(
            f"{folder} cannot be listed: {error.strerror}; pass a folder with measurements"
        ) from error
    return [path for path in (folder / name for name in names) if is_measurement(path)]


def is_measurement(path: Path) -> bool:
    """Whether there is a measurement, possibly damaged, at a path."""
    place = path if os.path.lexists(path) else left_overs(path.parent).get(path.name, path)
    return any((place / name).exists() for name in (RUN_FILE, legacy.METADATA_FILE))


def is_monitor(path: Path) -> bool:
    return has_format(path / MONITOR_FILE, MONITOR_FORMAT)


def not_a_measurement(path: Path) -> str:
    return f"{path} was saved by a TaskMonitor and is not a measurement; load it with TaskMonitor.load({str(path)!r})"


def is_replaceable(path: Path) -> bool:
    ours = holds_only(path, OWN_FILES) and has_format(path / RUN_FILE, FORMAT)
    return ours or (holds_only(path, legacy.FILES) and has_format(path / legacy.METADATA_FILE, legacy.FORMAT))


def _load(folder: Path) -> Run:
    if not folder.is_dir():
        found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise MissingMeasurementError(f"{found}; pass a measurement folder")
    file = folder / RUN_FILE
    if not file.exists():
        if (folder / legacy.METADATA_FILE).exists():
            return legacy.load_legacy(folder)
        if is_monitor(folder):
            raise MissingMeasurementError(not_a_measurement(folder))
        raise MissingMeasurementError(f"{folder} is not a measurement: it has no {RUN_FILE}; pass a measurement folder")
    document = read_document(file)
    room = Room()
    tables = {}
    for name, stored in document.tables.items():
        table = read_table(folder, name, stored["rows"], room)
        # tables that lack columns are made smaller once they have been upgraded
        complete = document.schema == SCHEMA and len(table.column_names) >= len(TABLES[name])
        tables[name] = smaller(table) if complete else table
    with reading(file):
        for name, table in tables.items():
            check_columns(table, document.tables[name]["columns"], str(table_file(folder, name)))
        body, tables = upgraded(document.body, tables, document.schema)
        if document.schema < SCHEMA:  # the current schema's fields have already been checked
            check_body(body)
        tables = {name: smaller(table) for name, table in tables.items()}
        run = run_of(body, tables)
    give_memory_back(*tables.values())
    return run


def _stored(path: Path) -> StoredRun | None:
    """Return the list entry for a folder, or None if the folder does not look like a measurement."""
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
