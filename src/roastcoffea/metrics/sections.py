"""Sections named by the user, summed by name and dataset."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from roastcoffea.metrics.catalogue import CHUNKS, NotMeasuredError, fact, metric
from roastcoffea.metrics.facts import aggregated, by_name_and_dataset, reason_of_absence, recorded
from roastcoffea.metrics.statistics import places
from roastcoffea.records.chunks import SECTION_COLUMNS
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run
from roastcoffea.units import STRUCTURE

SECTION_TOTALS: Final = (
    *picked(SECTION_COLUMNS, "name"),
    Column("dataset", "text", None, "dataset in the fileset"),
    *picked(SECTION_COLUMNS, "count", "wall_seconds", "self_seconds"),
    Column("cpu_seconds", "number", "s", "CPU time of the threads in it"),
    *picked(SECTION_COLUMNS, "max_seconds", "bytes"),
    Column("memory_peak", "integer", "B", "highest resident memory of a process in it (track_memory)"),
    Column("errors", "integer", None, "passes ended by an exception"),
)
"""One row per section and dataset, over all attempts; failed ones pass through sections as well."""


def totals_of(chunks: pa.Table, sections: pa.Table) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    rows = places(sections["chunk"], chunks["id"].combine_chunks())
    datasets = chunks["dataset"].take(pa.array(rows, mask=rows < 0))
    table = sections.append_column("dataset", datasets)
    keys = ["name", "dataset"]
    amounts = [column.name for column in SECTION_TOTALS if column.name not in keys]
    # a sum is unknown if one pass did not measure it
    steps = {name: (name, "max" if name in {"max_seconds", "memory_peak"} else "sum") for name in amounts}
    return aggregated(table, keys, steps).sort_by([(key, "ascending") for key in keys])


@fact
def section_totals(run: Run) -> pa.Table:
    """Sections by name and dataset, with SECTION_TOTALS."""
    if run.chunks is None or run.sections is None:
        raise NotMeasuredError(reason_of_absence(run, "chunks" if run.chunks is None else "sections"))
    return totals_of(run.chunks, run.sections)


@metric(STRUCTURE, group=CHUNKS, source="section records", formula="sums and maxima over attempts of chunks")
def sections(run: Run, chunks: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """Sections by name and dataset, over all attempts: {name: {dataset: {column: amount}}}.

    Columns are `count`, `wall_seconds`, `self_seconds`, `cpu_seconds`, `max_seconds`, `bytes`, `memory_peak` and
    `errors`. Amounts not tracked in every pass are None.
    """
    return by_name_and_dataset(totals_of(chunks, recorded(run, "sections")))
