"""Runs on disk: a folder with `run.json`, a Parquet file per table, and nothing that is ever unpickled."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roastcoffea import legacy, tagged_json
from roastcoffea.errors import MeasurementError
from roastcoffea.folders import file_name, new_folder, put_in_place, reading, sync_folder, synced_file
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.asked import ASKED_COLUMNS
from roastcoffea.records.branches import BRANCH_READ_COLUMNS
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.preprocessing import PREPROCESSING_COLUMNS
from roastcoffea.records.run import Environment, Host, Run, RunnerCall
from roastcoffea.records.sections import SECTION_COLUMNS
from roastcoffea.records.tasks import TASK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS, PAUSE_COLUMNS, SAMPLE_COLUMNS

FORMAT: Final = "roastcoffea_run"
SCHEMA: Final = 7
RUN_FILE: Final = "run.json"
TABLES: Final[Mapping[str, Sequence[Column]]] = {
    "asked": ASKED_COLUMNS,
    "chunks": CHUNK_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "tasks": TASK_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
    "pauses": PAUSE_COLUMNS,
}

NOT_RECORDED: Final = "this measurement was saved by a version that did not record them"

Body = dict[str, Any]
Tables = dict[str, pa.Table]


def _with_bytes(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 2: schema 1 knew nothing of branches, sections and preprocessing, and less of chunks."""
    absent = dict.fromkeys(("branch_reads", "sections", "preprocessing"), NOT_RECORDED) | dict(body["absent"])
    known = {name: _with_all_columns(table, TABLES[name]) for name, table in tables.items()}
    return body | {"absent": absent}, known


def _with_all_columns(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Table with these columns first; those that it lacks were not measured."""
    schema = arrow_schema(columns)
    known = {field.name: table[field.name] for field in table.schema}
    return pa.table({field.name: pa.nulls(len(table), field.type) for field in schema} | known)


def _with_times(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 3: schema 2 did not know when tasks could run, were assigned, arrived and were ready."""
    known = {name: _with_all_columns(table, TABLES[name]) for name, table in tables.items()}
    return body | {"absent": {"span_metrics_per_worker": NOT_RECORDED} | dict(body["absent"])}, known


def _with_asked_and_pauses(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 4: schema 3 did not know what was asked for, what was stolen, and when workers were paused."""
    known = {name: _with_all_columns(table, TABLES[name]) for name, table in tables.items()}
    return body | {
        "attempts": None,
        "absent": dict.fromkeys(("asked", "pauses"), NOT_RECORDED) | dict(body["absent"]),
    }, known


def _with_more_columns(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 5 or 6: 4 did not know how long chunks waited for a core, 5 when the scheduler noted samples."""
    return body, {name: _with_all_columns(table, TABLES[name]) for name, table in tables.items()}


def _with_throttling_and_without_trees(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 7: 6 did not know of throttling, and wrote "None" for the tree of a file that has none."""
    named = set() if "asked" not in tables else set(tables["asked"]["tree"].unique().to_pylist())
    if NO_TREE not in named:
        trees = {name: _without_text(table, "tree", NO_TREE) for name, table in tables.items() if name in OF_TREES}
        tables = tables | trees
    return _with_more_columns(body, tables)


NO_TREE: Final = "None"
"""What older records have in place of a tree, where a file has none."""

OF_TREES: Final = ("chunks", "preprocessing")


def _without_text(table: pa.Table, column: str, text: str) -> pa.Table:
    """Table that has nothing where a column has this text."""
    place = table.schema.get_field_index(column)
    values = pc.if_else(pc.equal(table[column], text), pa.scalar(None, pa.string()), table[column])
    return table.set_column(place, column, values)


UPGRADES: Final[Mapping[int, Callable[[Body, Tables], tuple[Body, Tables]]]] = {
    1: _with_bytes,
    2: _with_times,
    3: _with_asked_and_pauses,
    4: _with_more_columns,
    5: _with_more_columns,
    6: _with_throttling_and_without_trees,
}
"""For each older schema the function that makes the next one of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A measurement in a folder, without its tables; `error` says why it cannot be read, where it cannot."""

    path: Path
    name: str
    """Name of its folder."""
    start: float | None = None
    outcome: str | None = None
    elapsed: float | None = None
    error: str | None = None


def save_run(
    run: Run,
    folder: str | os.PathLike[str],
    name: str | None = None,
    *,
    overwrite: bool = False,
    extra_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Path of the new folder that holds the run.

    Everything is written to a hidden folder beside it and moved into place in one step: whatever fails, what
    was there stays as it was.

    Parameters
    ----------
    name
        Name of the new folder; None takes the UTC time of the run's start and a running number.
    overwrite
        Replace a measurement of that name with all that its folder holds; nothing else is ever replaced.
    extra_files
        Contents of further files, by name.
    """
    folder = Path(folder)
    names = _automatic_names(run) if name is None else [file_name(name)]
    replaces = _is_measurement if overwrite and name is not None else None
    for extra in extra_files or {}:
        file_name(extra)
    tables = {table: getattr(run, table) for table in TABLES if getattr(run, table) is not None}
    for table, rows in tables.items():
        _check_columns(rows, table, f"{table} of run {run.id}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as temporary:
            _write(temporary, run, tables, extra_files or {})
            for target in (folder / each for each in names):
                if put_in_place(temporary, target, replaces):
                    return target
    except OSError as error:
        raise MeasurementError(f"nothing was saved in {folder}: {error}") from error
    raise MeasurementError(f"{folder / str(name)} exists; choose another name, or overwrite=True to replace it")


def load_run(path: str | os.PathLike[str]) -> Run:
    """Run that was saved in a folder, by this version or an older one; its `run.json` will do as well."""
    path = Path(path)
    try:
        folder = path.parent if path.name == RUN_FILE and path.is_file() else path
        if not folder.is_dir():
            raise MeasurementError(f"there is no folder {folder}; give the folder of a measurement")
        return _load(folder)
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error


def list_runs(folder: str | os.PathLike[str]) -> list[StoredRun]:
    """Measurements that lie in a folder, oldest first; those that cannot be read come last."""
    folder = Path(folder)
    try:
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise MeasurementError(f"{folder} cannot be listed: {error}; give a folder with measurements") from error
    stored = [run for run in map(_stored, paths) if run is not None]
    return sorted(stored, key=lambda run: (run.start is None, run.start or 0, run.name))


def _automatic_names(run: Run) -> Iterator[str]:
    start = datetime.fromtimestamp(run.start, UTC)
    return (f"{start:%Y-%m-%dT%H%M%SZ}-{number:03d}" for number in itertools.count(1))


def _write(folder: Path, run: Run, tables: Tables, extra_files: Mapping[str, bytes]) -> None:
    for name, table in tables.items():
        with synced_file(_table_file(folder, name)) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True, use_compliant_nested_type=False)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "tables": {name: _description(table) for name, table in tables.items()},
        "run": _body(run),
    }
    for name, content in [(RUN_FILE, tagged_json.dumps(document).encode()), *extra_files.items()]:
        with synced_file(folder / name) as file:
            file.write(content)
    sync_folder(folder)


def _description(table: pa.Table) -> dict[str, Any]:
    return {"rows": table.num_rows, "columns": {field.name: str(field.type) for field in table.schema}}


def _body(run: Run) -> Body:
    """JSON form of everything but the tables; its problems tell what could not be kept."""
    parts = {name: value for name, value in _fields(run).items() if name not in TABLES}
    parts["environment"] = _fields(run.environment) | {"hosts": [_fields(host) for host in run.environment.hosts]}
    parts["calls"] = [_fields(call) for call in run.calls]
    problems: list[str] = []
    body = {name: tagged_json.tagged(value, name, problems) for name, value in parts.items()}
    return body | {"problems": tagged_json.tagged([*run.problems, *problems], "problems", [])}


def _fields(record: Any) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _is_measurement(path: Path) -> bool:
    """Whether a folder holds a measurement, be it damaged: other programs have a run.json, too."""
    marks = {path / RUN_FILE: FORMAT, path / legacy.METADATA_FILE: legacy.FORMAT}
    return not path.is_symlink() and any(_has(file, mark) for file, mark in marks.items())


def _has(file: Path, mark: str) -> bool:
    try:
        return mark.encode() in file.read_bytes()
    except OSError:
        return False


def _load(folder: Path) -> Run:
    file = folder / RUN_FILE
    if not file.exists():
        if (folder / legacy.METADATA_FILE).exists():
            return legacy.load_legacy(folder)
        raise MeasurementError(f"{folder} is no measurement: it has no {RUN_FILE}; give the folder of one")
    body, described, schema = _document(file)
    tables = {name: _table(_table_file(folder, name), name, table) for name, table in described.items()}
    for older in range(schema, SCHEMA):
        body, tables = UPGRADES[older](body, tables)
    for name, table in tables.items():
        _check_columns(table, name, str(_table_file(folder, name)))
    with reading(file):
        return _run(body, tables)


def _stored(path: Path) -> StoredRun | None:
    """Entry of a list; None for what does not look like a measurement."""
    try:
        if (path / RUN_FILE).exists():
            body, _, _ = _document(path / RUN_FILE)
        elif (path / legacy.METADATA_FILE).exists():
            body = _fields(legacy.load_legacy(path))
        else:
            return None
    except (MeasurementError, OSError) as error:
        return StoredRun(path=path, name=path.name, error=str(error))
    elapsed = body["stop"] - body["start"]
    return StoredRun(path=path, name=path.name, start=body["start"], outcome=body["outcome"], elapsed=elapsed)


def _document(path: Path) -> tuple[Body, dict[str, Any], int]:
    """What `run.json` holds: all but the tables, a description of each table, and the schema."""
    with reading(path):
        content = path.read_bytes()
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise MeasurementError(f"{path} is not of roastcoffea; give the folder of a measurement")
        schema = _readable_schema(found["schema"], path)
        document = tagged_json.loads(content)
        body, described = document["run"], document["tables"]
        _check_document(body, described)
        return body, described, schema


SHAPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("id", "outcome", "backend"), (str,)),
    **dict.fromkeys(("name", "error", "reported_by"), (str, NoneType)),
    **dict.fromkeys(("start", "stop"), (int, float)),
    **dict.fromkeys(("environment", "dropped", "absent"), (Mapping,)),
    **dict.fromkeys(("span_metrics", "reported"), (Mapping, NoneType)),
    **dict.fromkeys(("calls", "problems"), (list, tuple)),
}
LATEST_TIME: Final = 253_402_300_800
"""The year 10000: what `datetime` cannot show."""


def _check_document(body: Body, described: Mapping[str, Any]) -> None:
    for name, kinds in SHAPES.items():
        if not isinstance(body[name], kinds):
            raise TypeError(f"{name} is {type(body[name]).__name__}")
    if not all(0 <= body[time] < LATEST_TIME for time in ("start", "stop")):
        raise ValueError("start and stop are no times")
    if not described.keys() <= TABLES.keys():
        raise ValueError(f"tables are {', '.join(described)}")


def _readable_schema(schema: int, path: Path) -> int:
    if schema > SCHEMA:
        raise MeasurementError(f"{path} has schema {schema}; this version reads up to {SCHEMA}: update roastcoffea")
    if schema not in (SCHEMA, *UPGRADES):
        raise ValueError(f"there is no schema {schema}")
    return schema


def _table(path: Path, name: str, described: Mapping[str, Any]) -> pa.Table:
    with reading(path):
        with path.open("rb") as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
        if table.num_rows != described["rows"]:
            raise ValueError(f"{table.num_rows} rows instead of {described['rows']}")
        return _restored(table, name, described["columns"]).replace_schema_metadata(None)


def _restored(table: pa.Table, name: str, described: Mapping[str, str]) -> pa.Table:
    """Table with the types that it had, where another program wrote it again with similar ones."""
    for field in arrow_schema(TABLES[name]):
        place = table.schema.get_field_index(field.name)
        if place >= 0 and described.get(field.name) != str(table.schema.field(place).type):
            table = table.set_column(place, field, table.column(place).cast(field.type))
    return table


def _run(body: Body, tables: Tables) -> Run:
    environment = body["environment"]
    hosts = tuple(Host(**host) for host in environment["hosts"])
    parts = {
        "environment": Environment(**{**environment, "hosts": hosts}),
        "calls": tuple(RunnerCall(**call) for call in body["calls"]),
        "problems": tuple(body["problems"]),
    }
    return Run(**{**body, **parts}, **tables)


def _table_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _check_columns(table: pa.Table, name: str, where: str) -> None:
    missing = [column.name for column in TABLES[name] if column.name not in table.column_names]
    if missing:
        raise MeasurementError(
            f"{where} lacks the columns {', '.join(missing)}; restore it from a copy, or measure again"
        )
