"""Sections that the user named, summed by name and dataset."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.baskets import rows_of
from roastcoffea.metrics.catalogue import CHUNKS, NotMeasuredError, fact, metric
from roastcoffea.metrics.facts import reason_of_absence, recorded
from roastcoffea.metrics.statistics import integers
from roastcoffea.records.columns import Column
from roastcoffea.records.run import Run
from roastcoffea.units import STRUCTURE

SECTION_TOTALS: Final = (
    Column("name", "text", None, "name of the section, after those that it stands in: outer/inner"),
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("count", "integer", None, "how often it was passed"),
    Column("wall_seconds", "number", "s", "wall time in it"),
    Column("self_seconds", "number", "s", "wall time in it and in no section inside of it"),
    Column("cpu_seconds", "number", "s", "CPU time of the threads in it"),
    Column("max_seconds", "number", "s", "longest pass"),
    Column("bytes", "integer", "B", "requested from storage in it (track_bytes)"),
    Column("memory_peak", "integer", "B", "highest resident memory of a process in it (track_memory)"),
    Column("errors", "integer", None, "passes that an exception ended"),
)
"""One row for each section and dataset, over all attempts: those that failed passed through sections as well."""

LARGEST: Final = ("max_seconds", "memory_peak")
OF_ALL: Final = pc.ScalarAggregateOptions(skip_nulls=False)
"""What a pass did not measure is not known of all passes together."""


def totals_of(chunks: pa.Table, sections: pa.Table) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    places = rows_of(integers(chunks["id"]), integers(sections["chunk"]))
    known = places >= 0
    datasets = chunks["dataset"].take(pa.array(np.where(known, places, 0), mask=~known))
    table = sections.append_column("dataset", datasets)
    keys = ["name", "dataset"]
    amounts = [column.name for column in SECTION_TOTALS if column.name not in keys]
    steps = [(name, "max" if name in LARGEST else "sum", OF_ALL) for name in amounts]
    totals = table.group_by(keys).aggregate(steps)
    named = totals.select([*keys, *(f"{name}_{step}" for name, step, _ in steps)]).rename_columns([*keys, *amounts])
    return named.sort_by([(key, "ascending") for key in keys])


@fact
def section_totals(run: Run) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    if run.chunks is None or run.sections is None:
        raise NotMeasuredError(reason_of_absence(run, "chunks" if run.chunks is None else "sections"))
    return totals_of(run.chunks, run.sections)


@metric(STRUCTURE, group=CHUNKS, source="section records", formula="sums, and largest values, over attempts of chunks")
def sections(run: Run, chunks: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Sections by name and dataset, over all attempts: {name: {dataset: {column: amount}}}.

    Columns are `count`, `wall_seconds`, `self_seconds`, `cpu_seconds`, `max_seconds`, `bytes`, `memory_peak` and
    `errors`. What a section does not track, or not in all of its passes, is None.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in totals_of(chunks, recorded(run, "sections")).to_pylist():
        found.setdefault(row.pop("name"), {})[row.pop("dataset")] = row
    return found
