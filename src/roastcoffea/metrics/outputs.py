"""The write ledger, which divides the bytes written by chunks into classes, and the outputs by server."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics import phases
from roastcoffea.metrics.catalogue import WRITING, Sourced, metric, refuse_if, table
from roastcoffea.metrics.endpoints import with_endpoints
from roastcoffea.metrics.facts import aggregated, among, joined, known_sum, rows_where
from roastcoffea.metrics.ledger import (
    Attempts,
    Certificate,
    LedgerOfBytes,
    attempts_of_calls,
    classified,
    metrics_of_classes,
)
from roastcoffea.metrics.statistics import Flags, integers
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, WRITTEN_COLUMNS
from roastcoffea.records.columns import Column, Row, bytes_column, seconds_column, text_column
from roastcoffea.records.run import Run
from roastcoffea.sheets.sheet import WRITE_LEDGER
from roastcoffea.units import BYTE, COUNT, STRUCTURE

if TYPE_CHECKING:
    import pandas as pd

NAMES: Final = tuple(one.name for one in phases.WRITTEN_CLASSES)
MEANINGS: Final = {
    **{one.name: one.meaning for one in phases.WRITTEN_CLASSES},
    phases.TOTAL: "Bytes written by process(), in all classes.",
}

OTHER_MEANS: Final = "other means"
"""Kind of the bytes that were not written with uproot, awkward or Arrow."""

Breakdown = Literal["dataset", "file", "kind", "endpoint"]
BREAKDOWNS: Final = get_args(Breakdown)

OUTPUT_COLUMNS: Final = (
    text_column("endpoint", "server that the files were written to; none for bytes of unknown files"),
    text_column("kind", f'"ROOT", "Parquet", "dataset" (Arrow), or "{OTHER_MEANS}" (plain files, logs)'),
    text_column("folder", "innermost folder that contains all of these files"),
    Column("files", "integer", "files", "different files; an Arrow dataset counts as one"),
    bytes_column("bytes_in_files", "bytes by which the files grew, excluding failed attempts"),
    bytes_column("bytes_written", "bytes written, including failed attempts and bytes that replaced earlier ones"),
    seconds_column("seconds", "time that threads spent writing these files"),
    Column("rate", "number", "B/s", "bytes written per second and thread"),
)


@dataclass(eq=False, repr=False)
class WriteLedger(LedgerOfBytes):
    """Bytes written by process(), by class.

    On Linux, the total is the operating system's count. The value of a class is None if the class was not measured. If
    nothing was measured, the ledger is empty and `absent` gives the reason.
    """

    name: ClassVar[str] = "write ledger"
    title: ClassVar[str] = WRITE_LEDGER
    why_unmeasured: ClassVar[str] = "the system does not count the bytes that a thread writes"

    rows: Table
    """Bytes by class and in total, with one row for each attempt and file, and one for each attempt's other writes."""
    certificate: Certificate
    _: KW_ONLY
    unmeasured: tuple[str, ...] = ()
    absent: str | None = None

    def __post_init__(self) -> None:
        self._add_up(self.rows, NAMES)

    @classmethod
    def not_measured(cls, reason: str) -> WriteLedger:
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_rows(table_of_rows(CHUNK_COLUMNS, []), np.zeros(0, np.bool_)), certificate, absent=reason)

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Break down the bytes by dataset, file, kind or endpoint. Bytes of unknown files have a separate row."""
        if what not in BREAKDOWNS:
            raise ValueError(f"there is no breakdown by {what!r}; choose {', '.join(BREAKDOWNS)}")
        sums = aggregated(self.rows, [what], {name: (name, "sum") for name in (*NAMES, phases.TOTAL)})
        return self._frame(what, sums.sort_by(what))


@metric(
    STRUCTURE,
    group=WRITING,
    source="chunk records",
    formula="bytes written to files, growth of these files, and the system's count of the thread's bytes",
)
def write_ledger(run: Run, chunks: Table, counted_chunks: Table) -> WriteLedger:
    """Bytes written by process(): {class: bytes}, with `.total`, `.certificate` and `.by(...)`."""
    is_known = chunks["bytes_written"].is_valid()
    known = rows_where(chunks, is_known)
    lacking = len(chunks) - len(known)
    refuse_if(
        lacking and not len(known),
        "no chunk has a count of written bytes: an older version did not measure writing, or the problems say why",
    )
    attempts, reasons = attempts_of_calls(run, chunks, counted_chunks)
    reasons += [f"{lacking} chunk attempts have no count of written bytes"] if lacking else []
    rows = _rows(known, among(chunks, counted_chunks)[is_known.to_numpy()])
    if missing := -int(known_sum(rows[phases.RESIDUAL])):
        reasons.append(f"the system counts {BYTE.text(missing)} less than was written to files")
    # an attempt that ended before process() wrote nothing
    uncounted = pc.and_(known["process_seconds"].is_valid(), known["bytes_written_unmetered"].is_null())
    unmeasured = (phases.REWRITTEN, phases.OTHER_WRITES, phases.RESIDUAL) if pc.any(uncounted).as_py() else ()
    return WriteLedger(rows, Certificate(attempts=attempts, reasons=reasons), unmeasured=unmeasured)


def _rows(chunks: Table, counted: Flags) -> Table:
    wrote = chunks["written_files"].is_valid()
    lists = rows_where(chunks, wrote)
    attempt = pc.list_parent_indices(lists["written_files"])
    file, kind, size, written, took = (pc.list_flatten(lists[column.name]) for column in WRITTEN_COLUMNS[3:])
    places = {"dataset": lists["dataset"].take(attempt), "file": file, "kind": kind, "seconds": pc.divide(took, 1e6)}
    # uproot leaves holes in files
    grew, total = integers(size), np.maximum(integers(size), integers(written))
    classes = {phases.NEW_BYTES: grew, phases.REWRITTEN: total - grew}
    useful = counted[wrote.to_numpy()][attempt.to_numpy()]
    of_files = classified(NAMES, pa.table(places), total, useful, classes)
    others = integers(chunks["bytes_written_unmetered"])
    classes = {phases.OTHER_WRITES: others.clip(min=0)}
    of_rest = classified(NAMES, chunks.select(["dataset"]), others, counted, classes)
    return with_endpoints(joined([of_files, of_rest]))


@table
def outputs(write_ledger: WriteLedger) -> Table:
    """Outputs by server and kind, with OUTPUT_COLUMNS, starting with the most bytes."""
    rows = rows_where(write_ledger.rows, pc.greater(write_ledger.rows[phases.TOTAL], 0))
    refuse_if(not len(rows), "process() wrote nothing")
    steps = {"files": ("file", "count_distinct"), "first": ("file", "min"), "last": ("file", "max")}
    steps |= {"bytes_in_files": (phases.NEW_BYTES, "sum"), "bytes_written": (phases.TOTAL, "sum")}
    sums = aggregated(rows, ["endpoint", "kind"], steps | {"seconds": ("seconds", "sum")}, None)
    return table_of_rows(OUTPUT_COLUMNS, map(_output, sums.sort_by([("bytes_written", "descending")]).to_pylist()))


def _output(row: Row) -> Row:
    ends = row.pop("first"), row.pop("last")
    if None in ends:
        return {"kind": OTHER_MEANS, "bytes_written": row["bytes_written"]}
    # the names of all other files are between these two
    folder = os.path.commonprefix(ends).rpartition("/")[0] or None  # noqa: RUF071
    return row | {"folder": folder, "rate": row["bytes_written"] / row["seconds"] if row["seconds"] else None}


# Metrics of the ledger

of_ledger = partial(metric, group=WRITING, source=WriteLedger.name)


@of_ledger(BYTE, phases.TOTAL, "sum of all classes")
def bytes_written(write_ledger: WriteLedger) -> Sourced:
    """Bytes written by process() in all attempts."""
    return write_ledger.sourced(write_ledger.total or 0)


metrics_of_classes("write_ledger", BYTE, phases.WRITTEN_CLASSES, of_ledger)


@of_ledger(COUNT, formula="files_written, summed over attempts whose result was used")
def files_written(counted_chunks: Table, write_ledger: WriteLedger) -> Sourced:
    """Files that process() wrote with uproot, awkward or Arrow, in attempts whose result was used."""
    return write_ledger.sourced(int(known_sum(counted_chunks["files_written"])))
