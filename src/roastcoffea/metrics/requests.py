"""What attempts requested from storage, and what came: the rows of the byte ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import phases
from roastcoffea.metrics.baskets import Reads, split_reads
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.facts import FAILED, among, counted_chunks, known_sum, rows_where
from roastcoffea.metrics.statistics import Flags, Integers, having, integers, one_of
from roastcoffea.records.chunks import CHECKPOINT, OK
from roastcoffea.records.run import Run, RunnerCall

PLACES: Final = ("dataset", "file")
"""What a request belongs to."""

MOST_UNKNOWN: Final = 0.1
"""Share of attempts without a count of bytes up to which a ledger of the others is worth having."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """What came from storage, in bytes; of a request that failed nothing came, or a part that is not known.

    `gaps` came without having been requested, and `lacking` were requested by attempts that did not fail and never
    came. Where the total is not known, `absent` has the reason.
    """

    total: int | None = None
    gaps: int | None = None
    lacking: int = 0
    absent: str | None = None


def requests_table(parts: list[pa.Table]) -> pa.Table:
    """One row for each attempt: dataset, file, bytes of each class, total."""
    texts = [(name, pa.string()) for name in PLACES]
    schema = pa.schema([*texts, *((name, pa.int64()) for name in (*phases.BYTE_NAMES, phases.TOTAL))])
    return pa.concat_tables([schema.empty_table(), *parts])


def _requests_of(table: pa.Table, total: Integers, classes: dict[str, Integers]) -> pa.Table:
    """Rows of requests of these attempts, with the residual."""
    residual = total - np.sum(list(classes.values()), axis=0, dtype=np.int64)
    amounts = dict.fromkeys(phases.BYTE_NAMES, np.zeros(len(table), dtype=np.int64)) | classes
    amounts |= {phases.RESIDUAL: residual, phases.TOTAL: total}
    return requests_table([pa.table({"dataset": table["dataset"], "file": table["file"], **amounts})])


class Repeated(NamedTuple):
    """What attempts that counted requested more than once, and what could have spared that."""

    baskets: Mapping[str, int]
    """Bytes of baskets by between what they were shared."""
    metadata: int
    """Bytes of metadata of all chunks of a file but one."""
    chunks: int
    files: int
    largest_file: int | None
    """Events of the largest file, as far as they were seen."""
    cut_short: bool
    """Whether a Runner was told to leave chunks out."""
    aligned: bool
    """Whether chunks ended where clusters do."""
    parquet: bool


@dataclass(slots=True)
class ChunkRequests:
    """Attempts of chunks whose source counted bytes, and what they read."""

    table: pa.Table
    known: Flags
    counted: Flags
    reads: Reads = field(init=False)

    @classmethod
    def of(cls, run: Run, counted: pa.Table | None) -> ChunkRequests:
        """Attempts of a run's chunks.

        Raises
        ------
        NotMeasuredError
            If too few of them tell what they requested.
        """
        table = _with_checkpoints(run.chunks)
        known = is_known(table)
        unknown = int(np.count_nonzero(~known))
        if unknown > MOST_UNKNOWN * len(table):
            raise NotMeasuredError(f"bytes requested are not known for {unknown} of {len(table)} attempts of chunks")
        if table["id"].null_count:
            raise NotMeasuredError(f"{table['id'].null_count} of {len(table)} attempts of chunks have no identity")
        chunks = cls(table, known, among(table, counted_chunks(table) if counted is None else counted) & known)
        chunks.reads = split_reads(table, chunks.counted, run.branch_reads)
        return chunks

    def requests(self) -> pa.Table:
        """Rows of requests, one for each attempt that told what it requested."""
        total = integers(self.table["bytes_requested"])
        counted = self.counted
        classes = {
            phases.PAYLOAD: self.of_reads(self.reads.payload),
            phases.REREAD: self.of_reads(self.reads.all_reread),
            phases.METADATA: np.where(counted, integers(self.table["bytes_metadata"]), 0),
            phases.FAILED: np.where(counted, 0, total),
        }
        kept = {name: amounts[self.known] for name, amounts in classes.items()}
        return _requests_of(rows_where(self.table.select(PLACES), self.known), total[self.known], kept)

    def of_reads(self, amounts: Integers) -> Integers:
        """Sums over the reads of each attempt."""
        sums = np.bincount(self.reads.attempt, weights=amounts, minlength=len(self.table))
        return np.rint(sums).astype(np.int64)

    def lacking_branches(self) -> int:
        """Attempts that counted and whose reads of branches do not sum to their payload."""
        given = integers(self.reads.table["bytes_payload"]) + integers(self.reads.table["bytes_again"])
        payload = self.table["bytes_payload"]
        differs = integers(payload) != self.of_reads(given)
        return int(np.count_nonzero(differs & self.counted & payload.is_valid().to_numpy()))

    def repeated(self, calls: tuple[RunnerCall, ...]) -> Repeated:
        """What attempts that counted requested more than once."""
        counted = rows_where(self.table.select(FILE_COLUMNS), self.counted)
        files = counted.group_by(["call", "dataset", "file", "tree"]).aggregate(
            [("bytes_metadata", "sum"), ("bytes_metadata", "max")]
        )
        return Repeated(
            baskets={cause: int(amounts.sum()) for cause, amounts in self.reads.reread.items()},
            metadata=int(known_sum(pc.subtract(files["bytes_metadata_sum"], files["bytes_metadata_max"]))),
            chunks=len(counted),
            files=len(files),
            largest_file=pc.max(counted["entry_stop"]).as_py(),
            cut_short=any(call.options.get("maxchunks") is not None for call in calls),
            aligned=any(call.options.get("align_clusters") for call in calls),
            parquet=bool(pc.any(pc.starts_with(counted["source"], "Parquet")).as_py()),
        )


FILE_COLUMNS: Final = ("call", "dataset", "file", "tree", "entry_stop", "source", "bytes_metadata")


def is_known(table: pa.Table) -> Flags:
    """Attempts that told what they requested; one that loaded a checkpoint requested nothing."""
    return np.asarray(table["bytes_requested"].is_valid().to_numpy(), dtype=np.bool_)


def _with_checkpoints(chunks: pa.Table) -> pa.Table:
    """Attempts of chunks, where one that loaded a checkpoint requested 0 bytes."""
    loaded = pc.equal(chunks["outcome"], CHECKPOINT)
    for name in ("bytes_requested", "bytes_transferred", "bytes_metadata"):
        place = chunks.schema.get_field_index(name)
        chunks = chunks.set_column(place, name, pc.if_else(loaded, pa.scalar(0, pa.int64()), chunks[name]))
    return chunks


def preprocessing_requests(preprocessing: pa.Table) -> pa.Table:
    """Rows of requests of the metadata tasks: what erred is wasted, as it is of chunks."""
    known = rows_where(preprocessing, is_known(preprocessing))
    total = integers(known["bytes_requested"])
    good = having(known["outcome"], OK)
    classes = {phases.PREPROCESSING: np.where(good, total, 0), phases.FAILED: np.where(good, 0, total)}
    return _requests_of(known, total, classes)


def transferred(openings: list[pa.Table]) -> Transferred:
    """Bytes transferred by all attempts; where a source could not tell, none, with the reason."""
    columns = ("bytes_requested", "bytes_transferred", "source", "outcome")
    table = pa.concat_tables([opening.select(columns) for opening in openings])
    asked = rows_where(table, pc.fill_null(pc.not_equal(table["bytes_requested"], 0), True))
    unknown = asked.filter(asked["bytes_transferred"].is_null())
    if len(unknown):
        sources = (
            ", ".join(sorted(filter(None, unknown["source"].unique().to_pylist()))) or "a source that was not seen"
        )
        return Transferred(
            absent=f"{len(unknown)} of {len(asked)} attempts read through {sources}, which does not tell"
        )
    beyond = integers(table["bytes_transferred"]) - integers(table["bytes_requested"])
    failed = one_of(table["outcome"], pa.array(FAILED))
    of_good = int(beyond[~failed].sum())
    return Transferred(
        total=int(known_sum(table["bytes_transferred"])),
        gaps=of_good + int(beyond[failed].clip(min=0).sum()),
        lacking=max(-of_good, 0),
    )
