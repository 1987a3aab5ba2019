"""Bytes read per branch by the attempts that counted, with first reads separated from repeated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.facts import aggregated, among, counted_chunks, rows_where
from roastcoffea.metrics.statistics import Flags, Integers, integers, places
from roastcoffea.records.arrow import arrow_schema, row_codes
from roastcoffea.records.chunks import BRANCH_READ_COLUMNS, CHUNK_COLUMNS
from roastcoffea.records.columns import Column, picked
from roastcoffea.records.run import Run

SAME_LOOP: Final = "chunks of a file"
SAME_DATASET: Final = "Runner calls"
OTHER_DATASET: Final = "datasets"
SAME_ATTEMPT: Final = "one chunk"
CAUSES: Final = (SAME_LOOP, SAME_DATASET, OTHER_DATASET, SAME_ATTEMPT)
"""What the two readers of a re-read basket have in common."""

ROWS_AT_ONCE: Final = 200_000
UNKNOWN_SIZE: Final = -1
"""Placeholder for a size missing from the record of a read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Reads of branches by attempts that counted; the arrays have one element per row of `table`."""

    table: pa.Table
    attempt: Integers
    """Row of the attempt in the table of chunks."""
    payload: Integers
    """Bytes of baskets read for the first time."""
    reread: dict[str, Integers]
    """Bytes of all other baskets, by cause."""
    baskets: Integers
    """Baskets read for the first time."""
    estimated: Flags
    """Whether payload and re-read bytes were separated by a mean basket size."""

    @property
    def all_reread(self) -> Integers:
        """Bytes read before, for any cause."""
        return np.asarray(np.sum(list(self.reread.values()), axis=0), dtype=np.int64)


def codes(table: pa.Table, columns: Sequence[str]) -> Integers:
    """A number for each row, from 0 without gaps; rows with equal values in all these columns share it."""
    return np.asarray(np.unique(row_codes(table.select([*columns])), return_inverse=True)[1])


def split_reads(chunks: pa.Table, counted: Flags, branch_reads: pa.Table) -> Reads:
    """Reads of the attempts that counted, with first reads separated from repeated ones.

    A basket is identified by file, uuid, tree, branch and number. If attempts read different parts of one, the largest
    is assumed to contain the others. Attempts are in order of their start.

    Parameters
    ----------
    counted
        For each row of `chunks`, whether the attempt counted.
    """
    attempt = places(branch_reads["chunk"], chunks["id"].combine_chunks())
    ours = (attempt >= 0) & counted[attempt] if len(chunks) else attempt >= 0
    table, attempt = rows_where(branch_reads, ours), attempt[ours]
    began = pc.fill_null(chunks["start"], np.inf).to_numpy()
    rank = np.argsort(np.argsort(began, kind="stable"))
    name = codes(table, ["branch"])
    branch = codes(chunks, ["file", "uuid", "tree"])[attempt] * (int(name.max(initial=0)) + 1) + name
    dataset, loop = (codes(chunks, keys)[attempt] for keys in (["dataset"], ["dataset", "call"]))
    order = rank[attempt]
    payload = integers(table["bytes_payload"])
    first, last = integers(table["basket_first"], -1), integers(table["basket_last"], -1)
    line = branch * (int(last.max(initial=0)) + 2)  # baskets of all branches on one line
    start, stop = line + first, line + last + 1
    sizes_of = _Sizes(table["basket_bytes"], payload, start, stop)
    reread = {cause: np.zeros(len(table), dtype=np.int64) for cause in CAUSES}
    reread[SAME_ATTEMPT] += integers(table["bytes_again"])
    repeated = np.zeros(len(table), dtype=np.int64)
    estimated = np.zeros(len(table), dtype=np.bool_)
    for rows in _overlapping(start, stop, np.flatnonzero(first >= 0)):
        parts = _Parts(start[rows], stop[rows])
        sizes, guessed = sizes_of.of(rows, parts)
        again, known_before = _read_before(parts, sizes, guessed, order[rows])
        for cause, shared in _causes(parts, order[rows], loop[rows], dataset[rows]):
            reread[cause][rows] += parts.sums(np.where(shared, again, 0))
        repeated[rows] = parts.sums(np.where(known_before, parts.width, 0))
        estimated[rows] = parts.any(guessed & known_before) & parts.any(guessed & ~known_before)
    before = reread[SAME_LOOP] + reread[SAME_DATASET] + reread[OTHER_DATASET]
    baskets = np.maximum(integers(table["baskets"]) - repeated, 0)
    return Reads(
        table=table, attempt=attempt, payload=payload - before, reread=reread, baskets=baskets, estimated=estimated
    )


def embedded_in_tree(reads: pa.Table) -> Flags:
    """Whether baskets of a read are embedded in the tree: their size is 0.

    A basket in between that was not read has no size either, even if all others from first to last have one.
    """
    number = integers(pc.list_value_length(reads["basket_bytes"]))
    empty = np.concatenate([[0], np.cumsum(integers(pc.list_flatten(reads["basket_bytes"])) == 0)])
    end = np.cumsum(number)
    span = integers(reads["basket_last"]) - integers(reads["basket_first"]) + 1
    not_read = np.where(number == span, span - integers(reads["baskets"]), 0)
    return np.asarray(empty[end] - empty[end - number] > not_read, dtype=np.bool_)


def _overlapping(start: Integers, stop: Integers, rows: Integers) -> Iterator[Integers]:
    """Rows that share baskets, in batches with no basket in common."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    covered = np.maximum.accumulate(stop[rows])
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = start[rows][1:] >= covered[:-1]
    sizes = np.diff(np.append(np.flatnonzero(first), len(rows)))
    shared = rows[np.repeat(sizes > 1, sizes)]
    ends = np.cumsum(sizes[sizes > 1])
    done = 0
    while done < len(shared):
        begin, done = done, int(ends[min(int(np.searchsorted(ends, done + ROWS_AT_ONCE)), len(ends) - 1)])
        yield shared[begin:done]


class _Parts:
    """Reads split at every boundary of another read, and around their first and last baskets.

    Two parts are equal or disjoint; `place` numbers the distinct ones. Arrays have one element per part of a read, read
    by read.
    """

    def __init__(self, start: Integers, stop: Integers) -> None:
        borders = np.sort(np.concatenate([start, start + 1, stop - 1, stop]))
        borders = borders[np.diff(borders, prepend=-1) != 0]
        lowest = np.searchsorted(borders, start)
        number = np.searchsorted(borders, stop) - lowest
        self.first = np.cumsum(number) - number
        self.read = np.repeat(np.arange(len(start)), number)
        self.place = np.arange(len(self.read)) + (lowest - self.first)[self.read]
        self.start = borders[self.place]
        self.stop = borders[self.place + 1]
        self.width = self.stop - self.start

    def sums(self, amounts: Integers) -> Integers:
        """Sum over the parts of each read."""
        return np.add.reduceat(amounts, self.first)

    def any(self, flags: Flags) -> Flags:
        """Whether a flag is set in any part of each read."""
        return np.logical_or.reduceat(flags, self.first)

    def in_order(self, *keys: Integers) -> Integers:
        """Order of the parts by place, then by these keys."""
        return np.lexsort((*reversed(keys), self.place))


class _Sizes:
    """Sizes of parts of reads, if recorded."""

    def __init__(self, basket_bytes: pa.ChunkedArray, payload: Integers, start: Integers, stop: Integers) -> None:
        self.number = integers(pc.list_value_length(basket_bytes))
        self.offset = np.cumsum(self.number) - self.number
        values = integers(pc.list_flatten(basket_bytes))
        self.values = np.append(values, 0)
        self.before = np.concatenate([[0], np.cumsum(values)])
        self.payload, self.start, self.stop = payload, start, stop

    def of(self, rows: Integers, parts: _Parts) -> tuple[Integers, Flags]:
        """Size of each part, and whether it is estimated from the mean basket size."""
        whole = (self.number == self.stop - self.start)[rows][parts.read]
        ends = (self.number == 2)[rows][parts.read] & ~whole
        row = rows[parts.read]
        offset, start, stop = self.offset[row], self.start[row], self.stop[row]
        low = np.where(whole, offset + parts.start - start, 0)
        high = np.where(whole, offset + parts.stop - start, 0)
        found = np.where(whole, self.before[high] - self.before[low], UNKNOWN_SIZE)
        found = np.where(ends & (parts.start == start), self.values[np.where(ends, offset, 0)], found)
        found = np.where(ends & (parts.stop == stop), self.values[np.where(ends, offset + 1, 0)], found)
        guessed = found == UNKNOWN_SIZE
        if guessed.any():
            # other reads of the same part may know it
            known = np.full(int(parts.place.max()) + 1, UNKNOWN_SIZE, dtype=np.int64)
            np.maximum.at(known, parts.place, found)
            found = np.where(guessed, known[parts.place], found)
            guessed = found == UNKNOWN_SIZE
            found = _distributed(parts, found, self.payload[rows])
        return found, guessed & (parts.sums(guessed.astype(np.int64))[parts.read] > 1)


def _distributed(parts: _Parts, sizes: Integers, payload: Integers) -> Integers:
    """Sizes, with the remaining bytes of each read split over its parts without one, in proportion to their baskets."""
    unknown = sizes == UNKNOWN_SIZE
    rest = np.maximum(payload - parts.sums(np.where(unknown, 0, sizes)), 0)[parts.read]
    width = np.where(unknown, parts.width, 0)
    through = np.cumsum(width)
    through -= (through - width)[parts.first][parts.read]
    whole = np.maximum(parts.sums(width), 1)[parts.read].astype(np.float64)
    upper, lower = np.rint(rest * (through / whole)), np.rint(rest * ((through - width) / whole))
    return np.where(unknown, (upper - lower).astype(np.int64), sizes)


def _read_before(parts: _Parts, sizes: Integers, guessed: Flags, order: Integers) -> tuple[Integers, Flags]:
    """Bytes of each part that were read before, and whether there are any."""
    sorted_parts = parts.in_order(order[parts.read])
    place, size = parts.place[sorted_parts], sizes[sorted_parts]
    new_place = np.diff(place, prepend=-1) != 0
    step = np.cumsum(new_place) * (size.max(initial=0) + 1)
    largest_before = np.concatenate([[0], np.maximum.accumulate(size + step)[:-1]]) - step
    unsure = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.bool_)
    unsure[parts.place[guessed]] = True
    again = np.where(new_place, 0, np.where(unsure[place], size, np.minimum(size, largest_before)))
    result, known_before = np.empty_like(again), np.empty_like(new_place)
    result[sorted_parts], known_before[sorted_parts] = again, ~new_place
    return result, known_before


def _causes(parts: _Parts, order: Integers, loop: Integers, dataset: Integers) -> Iterator[tuple[str, Flags]]:
    """For each cause, the parts that this kind of thing had already read."""
    in_loop, in_dataset = (_follows(parts, order, group[parts.read]) for group in (loop, dataset))
    yield SAME_LOOP, in_loop
    yield SAME_DATASET, in_dataset & ~in_loop
    yield OTHER_DATASET, ~in_dataset & ~in_loop


def _follows(parts: _Parts, order: Integers, group: Integers) -> Flags:
    """Whether the same group had already read the part."""
    sorted_parts = parts.in_order(group, order[parts.read])
    result = np.empty(len(group), np.bool_)
    of_one = (np.diff(each[sorted_parts], prepend=-1) == 0 for each in (parts.place, group))
    result[sorted_parts] = np.logical_and(*of_one)
    return result


BRANCH_COLUMNS: Final = (
    *picked((*CHUNK_COLUMNS, *BRANCH_READ_COLUMNS), "dataset", "file", "branch"),
    Column("bytes_payload", "integer", "B", "of baskets read for the first time in this run"),
    Column("bytes_reread", "integer", "B", "of baskets already read in this run"),
    *picked(BRANCH_READ_COLUMNS, "bytes_uncompressed"),
    Column("baskets", "integer", "baskets", "baskets read for the first time in this run"),
    Column("chunks", "integer", "chunks", "chunks that read the branch"),
    *(column for column in BRANCH_READ_COLUMNS if column.kind == "number"),
)
"""One row per dataset, file and branch, over the attempts that counted."""

KEYS: Final = ("dataset", "file", "branch")
AMOUNTS: Final = tuple(column.name for column in BRANCH_COLUMNS if column.name not in KEYS)


def tree_branches_of(chunks: pa.Table, reads: Reads) -> pa.Table:
    """Branches by dataset, file and tree: keys, amounts, and whether their baskets are embedded in the tree."""
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


def over_trees(tree_branches: pa.Table) -> pa.Table:
    """Branches by dataset and file, with BRANCH_COLUMNS, from branches by tree."""
    return _summed(tree_branches, KEYS, {})


def _summed(table: pa.Table, keys: tuple[str, ...], others: dict[str, str]) -> pa.Table:
    """Sums of the amounts by these keys; other columns are combined in other ways."""
    steps = {name: (name, step) for name, step in (dict.fromkeys(AMOUNTS, "sum") | others).items()}
    return aggregated(table, keys, steps).sort_by([(key, "ascending") for key in keys])


NO_TREE_BRANCHES: Final = pa.Table.from_batches(
    [], pa.schema([*arrow_schema(BRANCH_COLUMNS), pa.field("tree", pa.string()), pa.field("embedded", pa.bool_())])
)
"""Made without `empty_table`, which imports pandas."""


def branches_of(run: Run) -> pa.Table | None:
    """Branches by dataset and file, with BRANCH_COLUMNS; None if not measured."""
    if run.chunks is None or run.branch_reads is None or run.chunks["id"].null_count:
        return None
    counted = among(run.chunks, counted_chunks(run.chunks))
    return over_trees(tree_branches_of(run.chunks, split_reads(run.chunks, counted, run.branch_reads)))
