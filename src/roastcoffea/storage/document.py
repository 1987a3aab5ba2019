"""Stored form of a run: `run.json`, one Parquet file per table, and upgrades from older schemas."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roastcoffea.compat.legacy import untagged, with_python_types
from roastcoffea.errors import UnreadableMeasurementError
from roastcoffea.instrument.track import outside_chunks
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.columns import Column
from roastcoffea.records.run import (
    ASKED_COLUMNS,
    PREPROCESSING_COLUMNS,
    PROFILE_COLUMNS,
    SECTION_COLUMNS,
    Environment,
    Gaps,
    Host,
    MergedRun,
    Run,
    RunnerCall,
    SpanMetrics,
)
from roastcoffea.records.workers import (
    CLIENT_STEP_COLUMNS,
    LIFETIME_COLUMNS,
    PAUSE_COLUMNS,
    REQUEST_COLUMNS,
    SAMPLE_COLUMNS,
    SAMPLING_COLUMNS,
    SPAN_COLUMNS,
    TASK_COLUMNS,
    WORKER_SPAN_COLUMNS,
    WORKER_STATE_COLUMNS,
)
from roastcoffea.storage.folders import synced_file
from roastcoffea.storage.parquet import Room, read_parquet
from roastcoffea.storage.reading import (
    DEEPEST,
    check_fields,
    check_times,
    deeper_than,
    fits,
    json_of,
    literal,
    plain,
    reading,
    restored,
)

Tables = dict[str, pa.Table]

RECORDS: Final[Mapping[str, Sequence[Column]]] = {
    "asked": ASKED_COLUMNS,
    "chunks": CHUNK_COLUMNS,
    "branch_reads": BRANCH_READ_COLUMNS,
    "sections": SECTION_COLUMNS,
    "profile": PROFILE_COLUMNS,
    "preprocessing": PREPROCESSING_COLUMNS,
    "tasks": TASK_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "lifetimes": LIFETIME_COLUMNS,
    "pauses": PAUSE_COLUMNS,
    "sampling": SAMPLING_COLUMNS,
    "worker_states": WORKER_STATE_COLUMNS,
    "client_steps": CLIENT_STEP_COLUMNS,
    "worker_requests": REQUEST_COLUMNS,
}
"""Tables of a run that are stored unchanged."""

SPANS: Final = "span_metrics"
WORKER_SPANS: Final = "span_metrics_per_worker"
TABLES: Final[Mapping[str, Sequence[Column]]] = {**RECORDS, SPANS: SPAN_COLUMNS, WORKER_SPANS: WORKER_SPAN_COLUMNS}

ROWS_A_BYTE: Final = {
    **dict.fromkeys(("asked", "branch_reads", "profile", "worker_states"), 25.0),
    **dict.fromkeys((SPANS, WORKER_SPANS), 1.0),
    "samples": 8.0,
}
"""Maximum number of rows per byte of a table's file.

The limit for other tables is 1/4, because their rows have different times and IDs. Measured values are 13 for states of
idle workers, 6 for branch reads, 5 for simultaneous samples of a thousand idle workers, 4 for chunks of identical
files, 1/8 for chunks with only an ID, and 1/150 for ordinary chunks. Dask's metrics have a low limit because they are
converted to objects.
"""

_HEX = "[0-9a-fA-F]"
_CODE = rf"u(?:[0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
_TEXT = rf'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|{_CODE}))*"'
_NUMBER = r"-?(?:0|[1-9][0-9]{0,301})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity"
_VALUE = rf"\s*{_TEXT}\s*:\s*(?:{_TEXT}|{_NUMBER}|true|false|null)\s*"
VALUES: Final = rf"^\s*\{{(?:{_VALUE}(?:,{_VALUE})*|\s*)\}}\s*$"
"""Pattern for the JSON object with a chunk's values, which has no nested objects or arrays."""

PARTS: Final = ("context", "prefix", "activity", "unit")
PARTS_OF: Final = {1: PARTS[:1], 2: (PARTS[0], PARTS[3]), 3: (PARTS[0], *PARTS[2:])}
"""Maps the length of shorter keys to their columns. Keys for activity outside tasks have no prefix."""

SEVERAL: Final = "parts: "
LITERAL: Final = "literal: "
"""Prefixes for Python literals: a tuple of an activity's parts, and a part that is not a string."""
BATCH: Final = 10_000
COUNTED: Final = ("bytes", "count")
"""Units whose amounts are integers."""


def span_table(metrics: SpanMetrics) -> pa.Table:
    return table_of_rows(SPAN_COLUMNS, _rows(metrics))


def worker_span_table(by_worker: Mapping[str, SpanMetrics]) -> pa.Table:
    """Build a table of each worker's metrics. A worker without metrics has one empty row."""
    rows = [row | {"worker": worker} for worker, metrics in by_worker.items() for row in (*_rows(metrics),) or ({},)]
    return table_of_rows(WORKER_SPAN_COLUMNS, rows)


def spans_of(table: pa.Table) -> dict[tuple[Hashable, ...], float]:
    found: dict[tuple[Hashable, ...], float] = {}
    # different keys may have become equal if they contain parts other than strings and literals
    for _, key, amount in _keys(table):
        found[key] = found.get(key, 0) + amount
    return found


def spans_by_worker(table: pa.Table) -> dict[str, SpanMetrics]:
    found: dict[str, dict[tuple[Hashable, ...], float]] = {}
    for worker, key, amount in _keys(table):
        metrics = found.setdefault(str(worker), {})
        if key:
            metrics[key] = metrics.get(key, 0) + amount
    return dict(found)


def _rows(metrics: SpanMetrics) -> Iterator[dict[str, str | float]]:
    for key, amount in metrics.items():
        if not key:
            raise ValueError("span metrics have an empty key")
        parts = [_text(part) for part in key]
        if len(parts) > len(PARTS):
            parts = [*parts[:2], _several(key[2:-1]), parts[-1]]
        yield {**dict(zip(PARTS_OF.get(len(parts), PARTS), parts, strict=True)), "amount": float(amount)}


def _text(part: Hashable) -> str:
    """Return part of a key as a string. Strings stay unchanged unless they begin with a prefix for literals."""
    if isinstance(part, str) and not part.startswith((SEVERAL, LITERAL)):
        return part
    return f"{LITERAL}{part!r}" if _is_literal(part) else str(part)


def _several(parts: tuple[Hashable, ...]) -> str:
    return f"{SEVERAL}{tuple(part if _is_literal(part) else str(part) for part in parts)!r}"


def _is_literal(part: Hashable) -> bool:
    """Whether a part can be restored from its `repr`."""
    try:
        return literal(repr(part)) == part
    except ValueError:
        return False


def _parts(text: str) -> tuple[Hashable, ...]:
    with suppress(ValueError):
        if text.startswith(LITERAL):
            return (literal(text.removeprefix(LITERAL)),)
        if text.startswith(SEVERAL) and isinstance(parts := literal(text.removeprefix(SEVERAL)), tuple):
            return parts
    return (text,)


def _keys(table: pa.Table) -> Iterator[tuple[str | None, tuple[Hashable, ...], float]]:
    parts = cache(_parts)  # many rows contain the same string
    for row in chain.from_iterable(batch.to_pylist() for batch in table.to_batches(max_chunksize=BATCH)):
        key = tuple(chain.from_iterable(parts(row[part]) for part in PARTS if row[part] is not None))
        amount = row["amount"]
        # the column stores floats: restore Dask's integers
        yield row.get("worker"), key, int(amount) if row["unit"] in COUNTED and amount.is_integer() else amount


SPAN_FORMS: Final[dict[str, Any]] = {SPANS: (span_table, spans_of), WORKER_SPANS: (worker_span_table, spans_by_worker)}
"""Maps each of the run's other fields to functions that convert it to a table and back."""


def tables_of(run: Run) -> Tables:
    measured = {name: value for name in TABLES if (value := getattr(run, name)) is not None}
    tables = {name: SPAN_FORMS[name][0](value) if name in SPAN_FORMS else value for name, value in measured.items()}
    for name, table in tables.items():
        check_columns(table, _schema(name).names, f"{name} of run {run.id}")
    return tables


def fields_of(tables: Tables) -> dict[str, object]:
    return {name: SPAN_FORMS[name][1](table) if name in SPAN_FORMS else table for name, table in tables.items()}


def table_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    # in small tables, compression, dictionaries and statistics slow down reading without saving space
    large = table.nbytes >= 100_000
    with synced_file(table_file(folder, name)) as file, outside_chunks():
        pq.write_table(
            table,
            file,
            compression="zstd" if large else "none",
            use_dictionary=large,
            write_statistics=large,
            write_page_checksum=True,
            use_compliant_nested_type=False,
        )


@cache
def _schema(name: str) -> pa.Schema:
    return arrow_schema(TABLES[name])


def read_table(folder: Path, name: str, rows: int, room: Room) -> pa.Table:
    """Read a table with this number of rows. All tables in a folder share the same `room`."""
    columns, path = TABLES[name], table_file(folder, name)
    with reading(path):
        # a small file may consist mostly of its footer, and needs little memory in any case
        if rows > 50_000 + ROWS_A_BYTE.get(name, 0.25) * (size := path.stat().st_size):
            raise ValueError(f"it claims to hold {rows} rows in {size} bytes, which no measurement does")
        table = read_parquet(path, _schema(name), room, rows)
        for column in columns:
            if column.kind == "values" and column.name in table.column_names:
                _check_values(table[column.name], column.name)
        return table


def _check_values(texts: pa.ChunkedArray, name: str) -> None:
    if texts.null_count < len(texts) and pc.all(pc.match_substring_regex(texts, VALUES)).as_py() is False:
        raise ValueError(f"{name} contains a string that does not parse as a JSON object of numbers and strings")


def check_columns(table: pa.Table, names: Iterable[str], where: str) -> None:
    found = frozenset(table.column_names)
    if missing := ", ".join(name for name in names if name not in found):
        raise UnreadableMeasurementError(
            f"{where} lacks the columns {missing}; restore it from a copy, or repeat the measurement"
        )


SCHEMA: Final = 15
"""Schema version. It is incremented for all changes except new columns."""
LAST_TAGGED: Final = 7
"""The last schema with tagged values in `run.json`. `compat.legacy` reads tagged values."""

NOT_RECORDED: Final = "this measurement was saved by a version that did not record them"
NEW_FIELDS: Final[Mapping[int, Sequence[str]]] = {
    1: ("branch_reads", "sections", "preprocessing"),
    2: ("span_metrics_per_worker",),
    3: ("asked", "pauses"),
    8: ("sampling", "worker_states"),
    9: ("profile",),
    12: ("client_steps",),
    14: ("worker_requests",),
}
"""Maps each schema version to the run fields added in the next version."""

NO_TREE: Final = "None"
"""Name recorded up to schema 6 for the tree of a file without a tree."""

Body = dict[str, Any]

FORMAT: Final = "roastcoffea_run"
RUN_FILE: Final = "run.json"

DEEPEST_JSON: Final = 4 * DEEPEST
"""Maximum nesting depth in `run.json`. In schema 7, each dictionary with non-string keys takes up three levels."""


class Document(NamedTuple):
    """Content of a `run.json`. `tables` contains each table's number of "rows" and the types of its "columns"."""

    body: Body
    tables: dict[str, dict[str, Any]]
    schema: int


def write_document(folder: Path, run: Run, tables: Tables) -> None:
    described = {
        name: {"rows": table.num_rows, "columns": {field.name: str(field.type) for field in table.schema}}
        for name, table in tables.items()
    }
    document = {"format": FORMAT, "schema": SCHEMA, "tables": described, "run": body_of(run)}
    with synced_file(folder / RUN_FILE) as file:
        file.write(json.dumps(document, allow_nan=False, indent=1).encode())


def body_of(run: Run) -> Body:
    """Return the JSON form of a run without its tables, and with problems for values that could not be preserved."""
    parts = {name: value for name, value in fields_by_name(run).items() if name not in TABLES}
    parts["environment"] = fields_by_name(run.environment) | {"hosts": [*map(fields_by_name, run.environment.hosts)]}
    parts["calls"] = [*map(fields_by_name, run.calls)]
    parts["merged"] = [*map(fields_by_name, run.merged)]
    problems: list[str] = []
    body = {name: plain(value, name, problems) for name, value in parts.items()}
    return body | {"problems": plain([*run.problems, *problems], "problems", [])}


def fields_by_name(record: Any) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def read_document(path: Path) -> Document:
    with reading(path):
        found = json_of(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UnreadableMeasurementError(f"{path} was not written by roastcoffea; pass a measurement folder")
        schema = found["schema"]
        if schema > SCHEMA:
            reads = f"this version reads up to {SCHEMA}: update roastcoffea"
            raise UnreadableMeasurementError(f"{path} has schema {schema}; {reads}")
        if schema not in range(1, SCHEMA + 1):
            raise ValueError(f"unknown schema {schema}")
        if deeper_than(found, DEEPEST_JSON):
            raise ValueError(f"it is nested deeper than {DEEPEST_JSON} levels")
        body = untagged(found["run"]) if schema <= LAST_TAGGED else restored_body(found["run"])
        document = Document(body, found["tables"], schema)
        _check_times(document.body)
        if schema == SCHEMA:
            check_body(document.body)
        if not document.tables.keys() <= TABLES.keys():
            raise ValueError(f"tables are {', '.join(document.tables)}")
        for name, table in document.tables.items():
            if not fits(table["rows"], int):
                raise TypeError(f"rows of {name} are {type(table['rows']).__name__}")
        return document


def restored_body(form: Mapping[str, Any]) -> Body:
    body = {name: restored(value) for name, value in form.items()}
    if body.get("reported") is not None:
        body["reported"] = with_python_types(body["reported"])
    return body


def _check_times(body: Body) -> None:
    check_fields({name: body[name] for name in ("start", "stop", "outcome")}, Run, "the run")
    check_times(body["start"], body["stop"])


def check_body(body: Body) -> None:
    if not body.keys().isdisjoint(TABLES):
        raise TypeError("tables do not belong there")
    environment, calls, merged = body["environment"], body.get("calls", []), body.get("merged", [])
    if not all(isinstance(records, list) for records in (calls, merged, environment["hosts"])):
        raise TypeError("calls, hosts or merged runs are not lists")
    parts = {"environment": Environment(versions={}, client_host=None), "calls": (), "merged": ()}
    check_fields(body | parts, Run, "the run")
    check_fields({**environment, "hosts": ()}, Environment, "the environment")
    for host in environment["hosts"]:
        check_fields(host, Host, "a host")
    for call in calls:
        check_fields(call, RunnerCall, "a Runner call")
        _check_times(call)
    for run in merged:
        check_fields(run, MergedRun, "a merged run")
        _check_times(run)


def _gaps(body: Body) -> Gaps:
    return tuple(map(tuple, body.get("gaps", ())))


def run_of(body: Body, tables: Tables) -> Run:
    environment = body["environment"]
    hosts = tuple(Host(**host) for host in environment["hosts"])
    parts: dict[str, Any] = {
        "environment": Environment(**{**environment, "hosts": hosts}),
        "calls": tuple(RunnerCall(**call) for call in body["calls"]),
        "merged": tuple(MergedRun(**{**run, "gaps": _gaps(run)}) for run in body.get("merged", [])),
        "problems": tuple(body["problems"]),
        "gaps": _gaps(body),
    }
    return Run(**{**body, **parts, **fields_of(tables)})


def upgraded(body: Body, tables: Tables, schema: int) -> tuple[Body, Tables]:
    """Upgrade a run to the current schema and columns. Missing fields count as not measured."""
    absent = {name: NOT_RECORDED for older, names in NEW_FIELDS.items() if older >= schema for name in names}
    body = body | {"absent": absent | dict(body["absent"])}
    for name, table in tables.items():
        whole = arrow_schema(TABLES[name])
        if not set(whole.names) <= set(table.column_names):
            tables[name] = pa.concat_tables([whole.empty_table(), table], promote_options="default")
    for older in range(schema, SCHEMA):
        if older in UPGRADES:
            body, tables = UPGRADES[older](body, tables)
    return body, tables


def _without_text_for_trees(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Upgrade to schema 7. Schema 6 recorded "None" as the tree of a file without a tree."""
    if "asked" in tables and NO_TREE in tables["asked"]["tree"].unique().to_pylist():
        return body, tables
    changed = {}
    for name, table in tables.items():
        if name in {"chunks", "preprocessing"}:
            trees = pc.if_else(pc.equal(table["tree"], NO_TREE), pa.scalar(None, pa.string()), table["tree"])
            changed[name] = table.set_column(table.schema.get_field_index("tree"), "tree", trees)
    return body, tables | changed


def _with_tables_of_spans(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Upgrade to schema 8. Schema 7 stored span metrics in `run.json`."""
    others = {name: value for name, value in body.items() if name not in (SPANS, WORKER_SPANS)}
    made: Tables = {}
    if body.get(SPANS) is not None:
        made[SPANS] = span_table(_checked(body[SPANS]))
    if body.get(WORKER_SPANS) is not None:
        by_worker = body[WORKER_SPANS].items()
        made[WORKER_SPANS] = worker_span_table({str(worker): _checked(counted) for worker, counted in by_worker})
    return others, tables | made


def _checked(metrics: SpanMetrics) -> SpanMetrics:
    if not fits(metrics, SpanMetrics):
        raise TypeError(f"span metrics are {type(metrics).__name__}, or contain other types")
    return metrics


UPGRADES: Final = {6: _without_text_for_trees, 7: _with_tables_of_spans}
"""Maps a schema version to the upgrade to the next version, if it does more than add columns and fields."""
