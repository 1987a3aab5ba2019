"""Bytes read per branch by attempts whose result was used, divided into first reads and re-reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics.facts import aggregated, among, counted_chunks, rows_where
from roastcoffea.metrics.statistics import Flags, Integers, integers, rows_of
from roastcoffea.metrics.statistics import codes as codes_of
from roastcoffea.records.arrow import arrow_schema, row_codes
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.columns import Column, bytes_column, picked
from roastcoffea.records.run import Run

SAME_LOOP: Final = "chunks of a file"
SAME_DATASET: Final = "Runner calls"
OTHER_DATASET: Final = "datasets"
SAME_ATTEMPT: Final = "one chunk"
CAUSES: Final = (SAME_LOOP, SAME_DATASET, OTHER_DATASET, SAME_ATTEMPT)
"""Possible causes of a re-read, each named after the readers that share the basket."""

BASKETS_AT_ONCE: Final = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Branch reads by attempts whose result was used. Each array has one element per row of `table`."""

    table: Table
    attempt: Integers
    """Index of the attempt's row in the chunk table."""
    payload: Integers
    """Bytes of baskets that were read for the first time."""
    reread: dict[str, Integers]
    """Bytes of baskets that had already been read, by cause."""
    baskets: Integers
    estimated: Flags
    """Whether a mean basket size was used to separate payload from re-read bytes."""

    @property
    def all_reread(self) -> Integers:
        return np.asarray(np.sum(list(self.reread.values()), axis=0), dtype=np.int64)


def codes(table: Table, columns: Sequence[str]) -> Integers:
    """Consecutive integer codes for rows. Rows that agree in all these columns share a code."""
    return codes_of(pa.array(row_codes(table.select([*columns]))))


def split_reads(chunks: Table, counted: Flags, branch_reads: Table) -> Reads:
    """Divide the branch reads of attempts whose result was used into first reads and re-reads.

    A basket is identified by its file, UUID, tree, branch and index. If attempts read different parts of a basket, the
    largest part is assumed to contain the others. Attempts are ordered by start time.

    Parameters
    ----------
    counted
        Whether the result of each attempt in `chunks` was used.
    """
    attempt = rows_of(integers(branch_reads["chunk"], -1), integers(chunks["id"], -2))
    ours = (attempt >= 0) & counted[attempt] if len(chunks) else attempt >= 0
    table, attempt = rows_where(branch_reads, ours), attempt[ours]
    chunks = chunks if len(table) else chunks.slice(0, 0)
    began = pc.fill_null(chunks["start"], np.inf).to_numpy()
    rank = np.argsort(np.argsort(began, kind="stable"))
    name = codes(table, ["branch"])
    branch = codes(chunks, ["file", "uuid", "tree"])[attempt] * (int(name.max(initial=0)) + 1) + name
    dataset, loop = (codes(chunks, keys) for keys in (["dataset"], ["dataset", "call"]))
    payload = integers(table["bytes_payload"])
    first, last = integers(table["basket_first"], -1), integers(table["basket_last"], -1)
    line = branch * (int(last.max(initial=0)) + 2)  # number the baskets of all branches consecutively
    start, stop = line + first, line + last + 1
    number = integers(pc.list_value_length(table["basket_bytes"]))
    offset, told = np.cumsum(number) - number, np.append(integers(pc.list_flatten(table["basket_bytes"])), 0)
    reread = {cause: np.zeros(len(table), dtype=np.int64) for cause in CAUSES}
    reread[SAME_ATTEMPT] += integers(table["bytes_again"])
    baskets = np.array(integers(table["baskets"]))
    estimated = np.zeros(len(table), dtype=np.bool_)
    for rows in _overlapping(start, stop, np.flatnonzero(first >= 0)):
        width = stop[rows] - start[rows]
        read = np.repeat(np.arange(len(rows)), width)
        within = np.arange(len(read)) - (np.cumsum(width) - width)[read]
        place = np.unique(start[rows][read] + within, return_inverse=True)[1]
        # either the sizes of all baskets are recorded, or only those of the first and last basket
        is_last = within == (width - 1)[read]
        whole = (number[rows] == width)[read]
        known = whole | ((number[rows] == 2)[read] & ((within == 0) | is_last))
        told_at = np.where(known, offset[rows][read] + np.where(whole, within, is_last), -1)
        sizes, guessed = _completed(np.where(known, told[told_at], -1), known, read, place, payload[rows])
        time, group_of = rank[attempt[rows]][read], attempt[rows]
        again, before = _read_before(place, sizes, guessed, time)
        in_loop, in_dataset = (_follows(place, of[group_of][read], time) for of in (loop, dataset))
        causes = {SAME_LOOP: in_loop, SAME_DATASET: in_dataset & ~in_loop, OTHER_DATASET: ~in_dataset & ~in_loop}
        for cause, shared in causes.items():
            reread[cause][rows] += _count(read, np.where(shared, again, 0), len(rows))
        baskets[rows] -= _count(read, before, len(rows))
        some, others = (_count(read, guessed & flags, len(rows)) > 0 for flags in (before, ~before))
        estimated[rows] = some & others
    first_reads = payload - reread[SAME_LOOP] - reread[SAME_DATASET] - reread[OTHER_DATASET]
    baskets = np.maximum(baskets, 0)
    return Reads(table=table, attempt=attempt, payload=first_reads, reread=reread, baskets=baskets, estimated=estimated)


def _overlapping(start: Integers, stop: Integers, rows: Integers) -> list[Integers]:
    """Split rows into batches so that no basket is shared between batches."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    covered = np.maximum.accumulate(stop[rows])
    group = np.cumsum(start[rows] >= np.append(0, covered[:-1])[: len(rows)])
    shared = np.bincount(group)[group] > 1
    rows, group = rows[shared], group[shared]
    batch = (np.cumsum(stop[rows] - start[rows]) // BASKETS_AT_ONCE)[np.searchsorted(group, group)]
    return [part for part in np.split(rows, np.flatnonzero(np.diff(batch)) + 1) if len(part)]


def _count(read: Integers, amounts: Integers | Flags, number: int) -> Integers:
    return np.rint(np.bincount(read, amounts, number)).astype(np.int64)


def _completed(
    sizes: Integers, known: Flags, read: Integers, place: Integers, payload: Integers
) -> tuple[Integers, Flags]:
    """Fill in missing basket sizes and flag the estimates.

    A missing size is taken from another read of the same basket. A read's remaining bytes are divided evenly among
    those of its baskets whose size is still unknown.
    """
    if known.all():
        return sizes, ~known
    most = np.full(int(place.max()) + 1, -1)
    np.maximum.at(most, place, sizes)
    sizes = np.where(known, sizes, most[place])
    unknown = sizes < 0
    number = _count(read, unknown, len(payload))
    rest = np.maximum(payload - _count(read, np.where(unknown, 0, sizes), len(payload)), 0)
    through = np.cumsum(unknown) - (np.cumsum(number) - number)[read]
    share = (rest / np.maximum(number, 1))[read]
    even = np.rint(share * through) - np.rint(share * (through - 1))
    return np.where(unknown, even.astype(np.int64), sizes), unknown & (number[read] > 1)


def _read_before(place: Integers, sizes: Integers, guessed: Flags, time: Integers) -> tuple[Integers, Flags]:
    """For each read of a basket, the number of re-read bytes, and whether the basket had been read before."""
    order = np.lexsort((time, place))
    of, size = place[order], sizes[order]
    new = np.diff(of, prepend=-1) != 0
    step = of * (size.max(initial=0) + 1)
    largest_before = np.append(0, np.maximum.accumulate(size + step)[:-1]) - step
    unsure = np.bincount(place, guessed)[of] > 0
    again, before = np.empty_like(size), np.empty_like(new)
    again[order] = np.where(new, 0, np.where(unsure, size, np.minimum(size, largest_before)))
    before[order] = ~new
    return again, before


def _follows(place: Integers, group: Integers, time: Integers) -> Flags:
    """Whether the same group had already read the basket."""
    order = np.lexsort((time, group, place))
    found = np.empty(len(group), np.bool_)
    found[order] = (np.diff(place[order], prepend=-1) == 0) & (np.diff(group[order], prepend=-1) == 0)
    return found


def embedded_in_tree(reads: Table) -> Flags:
    """Whether the baskets of each read are embedded in the tree and therefore have size 0.

    Unread baskets between a read's first and last baskets also have size 0.
    """
    number = integers(pc.list_value_length(reads["basket_bytes"]))
    empty = np.concatenate([[0], np.cumsum(integers(pc.list_flatten(reads["basket_bytes"])) == 0)])
    end = np.cumsum(number)
    span = integers(reads["basket_last"]) - integers(reads["basket_first"]) + 1
    not_read = np.where(number == span, span - integers(reads["baskets"]), 0)
    return np.asarray(empty[end] - empty[end - number] > not_read, dtype=np.bool_)


BRANCH_COLUMNS: Final = (
    *picked((*CHUNK_COLUMNS, *BRANCH_READ_COLUMNS), "dataset", "file", "branch"),
    bytes_column("bytes_payload", "bytes of baskets that were read for the first time in this run"),
    bytes_column("bytes_reread", "bytes of baskets that had already been read in this run"),
    *picked(BRANCH_READ_COLUMNS, "bytes_uncompressed"),
    Column("baskets", "integer", "baskets", "number of baskets that were read for the first time in this run"),
    Column("chunks", "integer", "chunks", "number of chunks that read the branch"),
    *(column for column in BRANCH_READ_COLUMNS if column.kind == "number"),
)
"""The table has one row per dataset, file and branch, and covers attempts whose result was used."""

KEYS: Final = ("dataset", "file", "branch")
AMOUNTS: Final = tuple(column.name for column in BRANCH_COLUMNS if column.name not in KEYS)


def tree_branches_of(chunks: Table, reads: Reads) -> Table:
    """Branch totals by dataset, file and tree, with a flag for baskets embedded in the tree."""
    seconds = [column.name for column in BRANCH_COLUMNS if column.kind == "number"]
    table = pa.table(
        {
            **{name: chunks[name].take(pa.array(reads.attempt)) for name in ("dataset", "file", "tree")},
            **{name: reads.table[name] for name in ("branch", "bytes_uncompressed", *seconds)},
            "bytes_payload": reads.payload,
            "bytes_reread": reads.all_reread,
            "baskets": reads.baskets,
            "chunks": np.ones(len(reads.attempt), dtype=np.int64),
            "embedded": embedded_in_tree(reads.table),
        }
    )
    return _summed(table, (*KEYS, "tree"), {"embedded": "any"})


def over_trees(tree_branches: Table) -> Table:
    return _summed(tree_branches, KEYS, {})


def _summed(table: Table, keys: tuple[str, ...], others: dict[str, str]) -> Table:
    steps = {name: (name, step) for name, step in (dict.fromkeys(AMOUNTS, "sum") | others).items()}
    return aggregated(table, keys, steps).sort_by([(key, "ascending") for key in keys])


NO_TREE_BRANCHES: Final = Table.from_batches(
    [], pa.schema([*arrow_schema(BRANCH_COLUMNS), pa.field("tree", pa.string()), pa.field("embedded", pa.bool_())])
)
"""Does not use `empty_table`, which imports pandas."""


def branches_of(run: Run) -> Table | None:
    """Branch table by dataset and file (BRANCH_COLUMNS), or None if branch reads were not measured."""
    if run.chunks is None or run.branch_reads is None or run.chunks["id"].null_count:
        return None
    counted = among(run.chunks, counted_chunks(run.chunks))
    return over_trees(tree_branches_of(run.chunks, split_reads(run.chunks, counted, run.branch_reads)))
