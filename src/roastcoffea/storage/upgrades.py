"""Runs of older schemas, upgraded step by step to the present one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.run import SpanMetrics
from roastcoffea.storage.reading import fits
from roastcoffea.storage.tables import SPANS, TABLES, WORKER_SPANS, Tables, span_table, worker_span_table

SCHEMA: Final = 14
LAST_TAGGED: Final = 7
"""The last schema with values of `compat.tagged_json` in `run.json`."""

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
OF_TREES: Final = ("chunks", "preprocessing")

Body = dict[str, Any]


def upgraded(body: Body, tables: Tables, schema: int) -> tuple[Body, Tables]:
    """A run of an older schema in the present one; columns that it did not have were not measured."""
    if schema == SCHEMA:
        return body, tables
    absent = {name: NOT_RECORDED for older, names in NEW_FIELDS.items() if older >= schema for name in names}
    body = body | {"absent": absent | dict(body["absent"])}
    whole = {name: arrow_schema(TABLES[name]).empty_table() for name in tables}
    tables = {name: pa.concat_tables([whole[name], table], promote_options="default") for name, table in tables.items()}
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
        if name in OF_TREES:
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
