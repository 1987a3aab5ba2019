"""Attempts of tasks and the records that they left, joined by key and run id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.arrays import having, one_of
from roastcoffea.metrics.statistics import Flags, Integers
from roastcoffea.records.run import FINISHED, Run


def places(column: pa.ChunkedArray, known: Sequence[str] | pa.Array) -> Integers:
    """Place of each value among those that are known; -1 for another, and for none."""
    values = known if isinstance(known, pa.Array) else pa.array(known, pa.string())
    found = pc.fill_null(pc.index_in(column, value_set=values, skip_nulls=True), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def assigned_chunks(run: Run) -> int | None:
    """Chunks that all Runner calls handed out; None where one did not finish, or nobody counted."""
    numbers = [call.chunks if call.outcome == FINISHED else None for call in run.calls]
    return None if None in numbers else sum(number or 0 for number in numbers)


def lost_rows(run: Run, *names: str) -> list[str]:
    """How many rows of these records were lost."""
    return [f"{run.dropped[name]} rows of {name} were lost" for name in names if run.dropped.get(name)]


def among(chunks: pa.Table, counted: pa.Table) -> Flags:
    """Whether attempts of chunks are among those that counted."""
    if len(counted) == len(chunks):
        return np.ones(len(chunks), np.bool_)
    return one_of(chunks["id"], counted["id"].combine_chunks())


def identities(tasks: pa.Table, records: pa.Table) -> tuple[Integers, Integers]:
    """A number for each key and run id of records, and those of tasks; -1 for none, and for what records do not have.

    As a scheduler gives a run id once, it will do for the key as well. That is checked: comparing many keys is much
    quicker than looking them up.
    """
    of_records, of_tasks = (np.asarray(pc.fill_null(table["run_id"], -1).to_numpy()) for table in (records, tasks))
    if len(records) and of_records.min() >= -1 and not records["key"].null_count:
        known, first, number = np.unique(of_records, return_index=True, return_inverse=True)
        if len(known) == len(records) or _same(records["key"], records["key"], first[number]).all():
            place = np.minimum(np.searchsorted(known, of_tasks), len(known) - 1)
            found = (of_tasks >= 0) & (known[place] == of_tasks)
            found[found] = _same(tasks["key"].filter(pa.array(found)), records["key"], first[place[found]])
            return of_records, np.where(found, of_tasks, -1)
    return _pairs(records, records), _pairs(tasks, records)


def _same(keys: pa.ChunkedArray, others: pa.ChunkedArray, rows: Integers) -> Flags:
    """Whether keys are those of these rows."""
    return having(keys, others.take(pa.array(rows)))


def _pairs(table: pa.Table, records: pa.Table) -> Integers:
    """A number for each key and run id that records have; -1 for others."""
    keys, runs = (records[name].unique().drop_null() for name in ("key", "run_id"))
    key, run = (places(table[name], known) for name, known in (("key", keys), ("run_id", runs)))
    return np.where((key >= 0) & (run >= 0), key * len(runs) + run, -1)
