"""Requests of Runner calls, and their chunks and attempts without a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.log.sites import sites_of
from roastcoffea.records.arrow import arrow_schema, row_codes
from roastcoffea.records.calls import ASKED_COLUMNS
from roastcoffea.records.chunks import ERROR
from roastcoffea.records.run import FINISHED, RunnerCall
from roastcoffea.records.tasks import PROCESSOR
from roastcoffea.redaction import redacted_each
from roastcoffea.units import counted

ATTEMPT = ["key", "run_id"]
"""Columns that identify an attempt of a Dask task."""


NO_RUN = -(2**63)
"""Placeholder for an unknown run_id."""

EQUAL_CHUNKS = "equal to another chunk (a file that is listed twice), one task for Dask, twice in coffea's report"


class AskedItems:
    """Requested files and chunks, without secrets in their names.

    Attributes
    ----------
    files : int
        Files whose metadata was requested.
    chunks : int
        Requested chunks.
    """

    def __init__(self) -> None:
        self.files = self.chunks = 0
        self._tables: list[pa.Table] = [arrow_schema(ASKED_COLUMNS).empty_table()]

    def add(self, call: str, items: Sequence[Any]) -> tuple[pa.Table, int]:
        """Add coffea's items of a Runner call; return their table, and how many files became equal to others without
        their secrets."""
        uuids = [getattr(item, "fileuuid", None) for item in items]
        files = [str(item.filename) for item in items]
        clean_files = redacted_each(files)
        columns = {
            "call": [call] * len(items),
            "dataset": redacted_each(str(item.dataset) for item in items),
            "file": clean_files,
            "tree": redacted_each(None if item.treename is None else str(item.treename) for item in items),
            "uuid": [None if uuid is None else uuid.hex() for uuid in uuids],
            "entry_start": [getattr(item, "entrystart", None) for item in items],
            "entry_stop": [getattr(item, "entrystop", None) for item in items],
            "site": redacted_each(sites_of(items)),
        }
        table = pa.table(columns, schema=arrow_schema(ASKED_COLUMNS))
        self.take(table)
        return table, len(set(files)) - len(set(clean_files))

    def take(self, table: pa.Table) -> None:
        """Add rows for items."""
        files = table["entry_start"].null_count
        self.files += files
        self.chunks += len(table) - files
        self._tables.append(table)

    def table(self) -> pa.Table:
        """One row for each item, in order of request."""
        return pa.concat_tables(self._tables)


@dataclass(frozen=True)
class Losses:
    """Why records of chunks may be missing.

    `equal_run_once`: equal chunks are one task. `dropped` and `refused`: numbers of lost chunk records and messages.
    `cached`: number of records of earlier runs, which came with their results. `otherwise`: why others are missing.
    """

    equal_run_once: bool = False
    dropped: int = 0
    refused: int = 0
    cached: int = 0
    otherwise: str = "for an unknown reason"

    def reasons(self, equal: int, others: int) -> Iterator[str]:
        """Why chunks have no record: those equal to another one, and the others."""
        reasons = {
            EQUAL_CHUNKS: equal,
            "records dropped on the scheduler": others and self.dropped,
            "refused entries of the scheduler's log": others and self.refused,
            "results of earlier runs, which a cache had": others and self.cached,
            self.otherwise: max(others - self.dropped - self.refused - self.cached, 0),
        }
        return (f"{reason}: {number}" for reason, number in reasons.items() if number)


def chunks_without_record(
    calls: Iterable[RunnerCall], chunks: pa.Table, asked: pa.Table, losses: Losses
) -> Iterator[str]:
    """Chunks without a record in each successful Runner call, and why.

    Parameters
    ----------
    chunks
        Received records of attempts.
    asked
        Requests of the calls.
    """
    recorded = ended_chunks(chunks)
    for call in calls:
        lacking = (call.chunks or 0) - recorded.get(call.id, 0)
        if call.outcome == FINISHED and lacking > 0:
            equal = min(lacking, equal_chunks(asked, call.id)) if losses.equal_run_once else 0
            reasons = "; ".join(losses.reasons(equal, lacking - equal))
            yield f"{lacking} of {call.chunks} chunks have no record of their own: {reasons}"


def attempts_without_record(tasks: pa.Table, chunks: pa.Table) -> Iterator[str]:
    """Number of processor task attempts without a record, by outcome of the task."""
    attempts = tasks.select([*ATTEMPT, "outcome"]).filter(pc.equal(tasks["kind"], PROCESSOR))
    lacking = attempts["outcome"].filter(pa.array(~are_recorded(attempts, chunks.select(ATTEMPT))))
    for count in lacking.value_counts().to_pylist():
        yield (
            f"{counted(count['counts'], 'attempt')} of chunks left no record (the task's outcome: {count['values']}): "
            "the sums over chunks do not include them"
        )


def ended_chunks(chunks: pa.Table) -> dict[str, int]:
    """Number of chunks with a record of their end, by Runner call; attempts of one task are one chunk."""
    ended = pc.fill_null(pc.not_equal(chunks["outcome"], ERROR), True)
    counts = {row["values"]: row["counts"] for row in chunks["call"].filter(ended).value_counts().to_pylist()}
    tried_again = chunks["key"].filter(pc.greater(chunks["attempt"], 1)).drop_null()
    if len(tried_again):
        of_these = pc.is_in(chunks["key"], tried_again.combine_chunks())
        again = chunks.select(["call", "key"]).filter(pc.and_(ended, of_these)).group_by("call")
        for row in again.aggregate([("key", "count"), ("key", "count_distinct")]).to_pylist():
            counts[row["call"]] -= row["key_count"] - row["key_count_distinct"]
    return counts


def equal_chunks(asked: pa.Table, call: str) -> int:
    """How many chunks requested by a Runner call equal another one of it."""
    chunks = asked.filter(pc.and_(pc.equal(asked["call"], call), pc.is_valid(asked["entry_start"])))
    codes = row_codes(chunks.select(["file", "entry_start"]))
    in_order = np.sort(codes)
    # file and entry alone distinguish most chunks
    alike = chunks.filter(pa.array(np.isin(codes, in_order[1:][in_order[1:] == in_order[:-1]])))
    return len(alike) - len(alike.group_by(alike.column_names, use_threads=False).aggregate([]))


def are_recorded(attempts: pa.Table, records: pa.Table) -> npt.NDArray[np.bool_]:
    """For each attempt of a task, whether a record has its key and run_id; null equals null."""
    if not len(records):
        return np.zeros(len(attempts), np.bool_)
    wanted, known = (pc.fill_null(table["run_id"], NO_RUN).to_numpy() for table in (attempts, records))
    order = np.argsort(known)
    in_order = known[order]  # a sorter takes four times as long
    first = order[np.minimum(np.searchsorted(in_order, wanted), len(known) - 1)]
    same_key = pc.equal(attempts["key"], records["key"].combine_chunks().take(pa.array(first)))
    recorded: npt.NDArray[np.bool_] = (known[first] == wanted) & pc.fill_null(same_key, False).to_numpy()
    # the run_id nearly always identifies one record; the others are compared completely
    others = np.flatnonzero(~recorded)
    if len(others):
        near = records.filter(pa.array(np.isin(known, wanted[others])))
        recorded[others] = are_among(attempts.select(ATTEMPT).take(pa.array(others)), near)
    return recorded


def are_among(rows: pa.Table, others: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row, whether another table has it; null equals null."""
    codes = row_codes(pa.concat_tables([rows, others]))
    return np.isin(codes[: len(rows)], codes[len(rows) :])
