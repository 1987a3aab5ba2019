"""`run.json`: everything of a run except its tables, and their numbers of rows; runs of older schemas, upgraded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.compat.legacy import untagged, with_python_types
from roastcoffea.errors import UnreadableMeasurementError
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.run import Environment, Gaps, Host, MergedRun, Run, RunnerCall, SpanMetrics
from roastcoffea.storage.folders import synced_file
from roastcoffea.storage.reading import (
    DEEPEST,
    check_fields,
    check_times,
    deeper_than,
    fits,
    json_of,
    plain,
    reading,
    restored,
)
from roastcoffea.storage.tables import (
    SPANS,
    TABLES,
    WORKER_SPANS,
    Tables,
    fields_of,
    span_table,
    worker_span_table,
)

SCHEMA: Final = 15
"""It is one higher where more than a column is new."""
LAST_TAGGED: Final = 7
"""The last schema with tagged values in `run.json`, which `compat.legacy` reads."""

NOT_RECORDED: Final = "this measurement was saved by a version that did not record them"
NEW_FIELDS: Final[Mapping[int, Sequence[str]]] = {
    1: ("branch_reads", "sections", "preprocessing"),
    2: ("span_metrics_per_worker",),
    3: ("asked", "pauses"),
    8: ("sampling", "worker_states"),
    9: ("profile",),
    12: ("client_steps",),
}
"""Fields of a run that the schema after this one added."""

NO_TREE: Final = "None"
"""Text that records up to schema 6 have for the tree of a file without one."""

Body = dict[str, Any]

FORMAT: Final = "roastcoffea_run"
RUN_FILE: Final = "run.json"

DEEPEST_JSON: Final = 4 * DEEPEST
"""Most levels of nesting in `run.json`: a dictionary of schema 7 with non-text keys takes three."""


class Document(NamedTuple):
    """Content of a `run.json`: of each table "rows", and the type of each of its "columns"."""

    body: Body
    tables: dict[str, dict[str, Any]]
    schema: int


def write_document(folder: Path, run: Run, tables: Tables) -> None:
    """Write `run.json` into a folder."""
    described = {
        name: {"rows": table.num_rows, "columns": {field.name: str(field.type) for field in table.schema}}
        for name, table in tables.items()
    }
    document = {"format": FORMAT, "schema": SCHEMA, "tables": described, "run": body_of(run)}
    with synced_file(folder / RUN_FILE) as file:
        file.write(json.dumps(document, allow_nan=False, indent=1).encode())


def body_of(run: Run) -> Body:
    """JSON form of everything except the tables; its problems list what could not be kept."""
    parts = {name: value for name, value in fields_by_name(run).items() if name not in TABLES}
    parts["environment"] = fields_by_name(run.environment) | {"hosts": [*map(fields_by_name, run.environment.hosts)]}
    parts["calls"] = [*map(fields_by_name, run.calls)]
    parts["merged"] = [*map(fields_by_name, run.merged)]
    problems: list[str] = []
    body = {name: plain(value, name, problems) for name, value in parts.items()}
    return body | {"problems": plain([*run.problems, *problems], "problems", [])}


def fields_by_name(record: Any) -> dict[str, Any]:
    """Fields of a record, without fields of nested records."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def read_document(path: Path) -> Document:
    """Content of a `run.json`."""
    with reading(path):
        found = json_of(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UnreadableMeasurementError(f"{path} was not written by roastcoffea; pass the folder of a measurement")
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
    """Body of a run from its JSON form."""
    body = {name: restored(value) for name, value in form.items()}
    if body.get("reported") is not None:
        body["reported"] = with_python_types(body["reported"])
    return body


def _check_times(body: Body) -> None:
    """Raise if a run has no outcome, or invalid times."""
    check_fields({name: body[name] for name in ("start", "stop", "outcome")}, Run, "the run")
    check_times(body["start"], body["stop"])


def check_body(body: Body) -> None:
    """Raise if the fields of a run are not of the types of the records."""
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
    """Run of the present schema."""
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
    """A run in the present schema and with the present columns; those that it did not have were not measured."""
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
    """Run of schema 7: 6 wrote "None" for the tree of a file without one."""
    if "asked" in tables and NO_TREE in tables["asked"]["tree"].unique().to_pylist():
        return body, tables
    changed = {}
    for name, table in tables.items():
        if name in {"chunks", "preprocessing"}:
            trees = pc.if_else(pc.equal(table["tree"], NO_TREE), pa.scalar(None, pa.string()), table["tree"])
            changed[name] = table.set_column(table.schema.get_field_index("tree"), "tree", trees)
    return body, tables | changed


def _with_tables_of_spans(body: Body, tables: Tables) -> tuple[Body, Tables]:
    """Run of schema 8: 7 had the metrics of spans in `run.json`."""
    others = {name: value for name, value in body.items() if name not in (SPANS, WORKER_SPANS)}
    made: Tables = {}
    if body.get(SPANS) is not None:
        made[SPANS] = span_table(_checked(body[SPANS]))
    if body.get(WORKER_SPANS) is not None:
        by_worker = body[WORKER_SPANS].items()
        made[WORKER_SPANS] = worker_span_table({str(worker): _checked(counted) for worker, counted in by_worker})
    return others, tables | made


def _checked(metrics: SpanMetrics) -> SpanMetrics:
    """Metrics of a span; TypeError for anything else."""
    if not fits(metrics, SpanMetrics):
        raise TypeError(f"span metrics are {type(metrics).__name__}, or hold other things")
    return metrics


UPGRADES: Final = {6: _without_text_for_trees, 7: _with_tables_of_spans}
"""Upgrades from older schemas to the next one that do more than add columns and fields."""
