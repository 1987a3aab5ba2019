"""Runs on disk: a folder with `run.json`, a Parquet file per table, and nothing that is ever unpickled."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roastcoffea.compat import legacy
from roastcoffea.errors import MeasurementError
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
from roastcoffea.storage import shapes, tagged_json
from roastcoffea.storage.folders import (
    LONGEST_SAVE,
    NewFolder,
    content_of,
    file_name,
    has_format,
    holds_only,
    left_overs,
    names_in,
    new_folder,
    older_left_overs,
    opened,
    read_whole,
    reading,
    synced_file,
)

FORMAT: Final = "roastcoffea_run"
SCHEMA: Final = 7
RUN_FILE: Final = "run.json"
METRICS_FILE: Final = "metrics.json"
"""Metrics for other programs; they are never read here."""
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

OWN_FILES: Final = frozenset((RUN_FILE, METRICS_FILE, *(f"{name}.parquet" for name in TABLES)))
"""Files of a measurement, by the versions since 1.0."""

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
    metrics_json: Callable[[], bytes] | None = None,
) -> Path:
    """Path of the new folder that holds the run.

    Everything is written to a hidden folder beside it and moved into place in one step: whatever fails, what
    was there stays as it was. The records are written first: they are saved also where `metrics_json` raises.

    Parameters
    ----------
    name
        Name of the new folder; None takes the UTC time of the run's start and a running number.
    overwrite
        Replace a measurement of that name; a folder that holds anything else is never replaced.
    metrics_json
        Gives the content of `metrics.json`.
    """
    folder = Path(folder)
    tables = {table: getattr(run, table) for table in TABLES if getattr(run, table) is not None}
    for table, rows in tables.items():
        _check_columns(rows, table, f"{table} of run {run.id}")
    names = _automatic_names(run) if name is None else iter([file_name(name)])
    replaces = _is_replaceable if overwrite and name is not None else None
    target = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder)
        first = next(each for each in names if name is not None or not os.path.lexists(folder / each))
        with new_folder(folder, first) as new:
            _write(new.path, run, tables)
            new.complete()
            try:
                if metrics_json is not None:
                    _write_metrics(new, metrics_json)
            finally:
                target = _put_in_place(new, (folder / each for each in itertools.chain([first], names)), replaces)
    except OSError as error:
        what = f"nothing was saved in {folder}" if target is None else f"{target} lacks its {METRICS_FILE}"
        raise MeasurementError(f"{what}: {error}") from error
    return target


def _put_in_place(new: NewFolder, targets: Iterable[Path], replaces: Callable[[Path], bool] | None) -> Path:
    """First of these places that the new folder could take."""
    for target in targets:
        if new.put_in_place(target, replaces):
            return target
    raise MeasurementError(f"{target} exists; choose another name, or overwrite=True to replace it")


def _write_metrics(new: NewFolder, metrics_json: Callable[[], bytes]) -> None:
    content = metrics_json()
    with new.late_file(METRICS_FILE) as file:
        file.write(content)


def _remove_unfinished(folder: Path) -> None:
    """Remove what killed saves of older versions left, unless it is whole: then it is listed under its hidden name."""
    for hidden in older_left_overs(folder):
        with suppress(OSError):
            if not (hidden / RUN_FILE).exists() and time.time() - hidden.stat().st_mtime > LONGEST_SAVE:
                shutil.rmtree(hidden)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Run that was saved in a folder, by this version or an older one; its `run.json` will do as well."""
    path = Path(path)
    try:
        return read_whole(path.parent if path.name == RUN_FILE and path.is_file() else path, _load)
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error


def list_runs(folder: str | os.PathLike[str]) -> list[StoredRun]:
    """Measurements that lie in a folder, oldest first; those that cannot be read come last."""
    folder = Path(folder)
    try:
        paths = [folder / name for name in names_in(folder)]
    except OSError as error:
        raise MeasurementError(f"{folder} cannot be listed: {error}; give a folder with measurements") from error
    found = [_entry(path) for path in (*paths, *older_left_overs(folder))]
    stored = [run for run in found if run is not None]
    return sorted(stored, key=lambda run: (run.start is None, run.start or 0, run.name))


def is_measurement(path: Path) -> bool:
    """Whether a measurement is found under a path, be it damaged."""
    places = path, left_overs(path.parent).get(path.name, path)
    return any((place / name).exists() for place in places for name in (RUN_FILE, legacy.METADATA_FILE))


def _automatic_names(run: Run) -> Iterator[str]:
    start = datetime.fromtimestamp(run.start, UTC)
    return (f"{start:%Y-%m-%dT%H%M%SZ}-{number:03d}" for number in itertools.count(1))


def _write(folder: Path, run: Run, tables: Tables) -> None:
    for name, table in tables.items():
        with synced_file(_table_file(folder, name)) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True, use_compliant_nested_type=False)
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "tables": {name: _description(table) for name, table in tables.items()},
        "run": _body(run),
    }
    with synced_file(folder / RUN_FILE) as file:
        file.write(tagged_json.dumps(document).encode())


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


def _is_replaceable(path: Path) -> bool:
    """Whether a folder holds a measurement, be it damaged, and nothing but the files of one."""
    ours = holds_only(path, OWN_FILES) and has_format(path / RUN_FILE, FORMAT)
    return ours or (holds_only(path, legacy.FILES) and has_format(path / legacy.METADATA_FILE, legacy.FORMAT))


def _load(folder: Path) -> Run:
    if not folder.is_dir():
        raise MeasurementError(f"there is no folder {folder}; give the folder of a measurement")
    file = folder / RUN_FILE
    if not file.exists():
        if (folder / legacy.METADATA_FILE).exists():
            return legacy.load_legacy(folder)
        raise MeasurementError(f"{folder} is no measurement: it has no {RUN_FILE}; give the folder of one")
    body, described, schema = _document(file)
    tables = {name: _table(_table_file(folder, name), name, table["rows"]) for name, table in described.items()}
    with reading(file):
        for older in range(schema, SCHEMA):
            body, tables = UPGRADES[older](body, tables)
        _check_body(body)
    for name, table in tables.items():
        _check_columns(table, name, str(_table_file(folder, name)))
    with reading(file):
        return _run(body, tables)


def _entry(path: Path) -> StoredRun | None:
    """Entry of a list, with the path under which it is found; None for what does not look like a measurement."""
    stored = read_whole(path, _stored)
    return None if stored is None else replace(stored, path=path)


def _stored(path: Path) -> StoredRun | None:
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
        content = content_of(path)
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise MeasurementError(f"{path} is not of roastcoffea; give the folder of a measurement")
        schema = _readable_schema(found["schema"], path)
        if shapes.deeper_than(found, DEEPEST_JSON):
            raise ValueError(f"it is nested deeper than {DEEPEST_JSON} levels")
        document = tagged_json.loads(content)
        body, described = document["run"], document["tables"]
        _check_times(body)
        if schema == SCHEMA:
            _check_body(body)
        _check_described(described)
        return body, described, schema


DEEPEST_JSON: Final = 4 * tagged_json.DEEPEST
"""Levels of nesting in `run.json`: a dictionary whose keys are no text takes three, and what is around them a few."""
LATEST_TIME: Final = 253_370_764_800
"""The year 9999, near the end of what `datetime` can show."""


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Types of a record's fields."""
    return get_type_hints(kind, localns={"pa": pa})


def _check_times(body: Body) -> None:
    """Raise where a run has no outcome, or its times are none."""
    shapes.check_fields({name: body[name] for name in ("start", "stop", "outcome")}, _hints(Run), "the run")
    if not all(0 <= body[name] < LATEST_TIME for name in ("start", "stop")):
        raise ValueError("start and stop are no times")


def _check_body(body: Body) -> None:
    """Raise where the fields of a run are not of the types that the records give."""
    if not body.keys().isdisjoint(TABLES):
        raise TypeError("tables are not kept there")
    environment, calls = body["environment"], body.get("calls", [])
    if not all(isinstance(records, list) for records in (calls, environment["hosts"])):
        raise TypeError("calls or hosts are no list")
    parts = {"environment": Environment(versions={}, client_host=None), "calls": ()}
    shapes.check_fields(body | parts, _hints(Run), "the run")
    shapes.check_fields({**environment, "hosts": ()}, _hints(Environment), "the environment")
    for host in environment["hosts"]:
        shapes.check_fields(host, _hints(Host), "a host")
    for call in calls:
        shapes.check_fields(call, _hints(RunnerCall), "a Runner call")
        _check_times(call)
    for metered in (body.get("span_metrics"), *(body.get("span_metrics_per_worker") or {}).values()):
        if () in (metered or {}):
            raise ValueError("span metrics have an empty key")


def _check_described(described: Any) -> None:
    """Raise where there are no tables but ours, with their numbers of rows."""
    if not described.keys() <= TABLES.keys():
        raise ValueError(f"tables are {', '.join(described)}")
    for name, table in described.items():
        if not shapes.fits(table["rows"], int):
            raise TypeError(f"rows of {name} are {type(table['rows']).__name__}")


def _readable_schema(schema: int, path: Path) -> int:
    if schema > SCHEMA:
        raise MeasurementError(f"{path} has schema {schema}; this version reads up to {SCHEMA}: update roastcoffea")
    if schema not in (SCHEMA, *UPGRADES):
        raise ValueError(f"there is no schema {schema}")
    return schema


def _table(path: Path, name: str, rows: int) -> pa.Table:
    with reading(path):
        with opened(path) as file, pq.ParquetFile(file, page_checksum_verification=True) as stored:
            _check_rows(stored.metadata.num_rows, rows)
            _check_memory(rows, stored.metadata.num_columns)
            table = stored.read()
        _check_rows(table.num_rows, rows)
        return _restored(table, name).replace_schema_metadata(None)


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} rows instead of {expected}")


def _check_memory(rows: int, columns: int) -> None:
    """Raise where a table has more rows than fit into this machine's memory: a few bytes can promise any number."""
    import psutil

    needed, memory = SMALLEST_VALUE * rows * columns, psutil.virtual_memory().total
    if needed > memory:
        raise MemoryError(f"{rows} rows need {needed} bytes of memory; there are {memory}")


SMALLEST_VALUE: Final = 4
"""Bytes that a value takes in memory, at the least: the offset of a text."""


def _restored(table: pa.Table, name: str) -> pa.Table:
    """Table with the types of its columns, where another program wrote it again with similar ones."""
    for field in arrow_schema(TABLES[name]):
        place = table.schema.get_field_index(field.name)
        if place >= 0 and table.schema.field(place).type != field.type:
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
