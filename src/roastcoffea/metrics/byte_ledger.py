"""The byte ledger: what was requested from storage, in classes that exclude each other; and metrics of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics.advice import ADVISED, Saving, savings
from roastcoffea.metrics.attempts import among, identities
from roastcoffea.metrics.baskets import Flags, Integers, Reads, came_with_tree, integers, split_reads
from roastcoffea.metrics.catalogue import BYTES, CATALOGUE, Metric, NotMeasuredError, Sourced, metric
from roastcoffea.metrics.facts import FAILED, complete_sum, reason_of_absence, rows_where, with_outcome
from roastcoffea.metrics.facts import counted_chunks as last_attempts
from roastcoffea.metrics.ledger import RESIDUAL, TOTAL, Attempts, Certificate, Ledger
from roastcoffea.records.arrow import arrow_schema
from roastcoffea.records.chunks import CHECKPOINT, OK, SKIPPED
from roastcoffea.records.columns import Column
from roastcoffea.records.run import FINISHED, Run, RunnerCall
from roastcoffea.records.tasks import CANCELLED, LOST, MERGE_PREFIX, PREPROCESSING, PROCESSOR
from roastcoffea.report.html import heading, page, paragraph
from roastcoffea.units import BYTE, COUNT, FRACTION, GIGABIT_PER_SECOND, PERCENT, RATIO, STRUCTURE

if TYPE_CHECKING:
    import pandas as pd

PAYLOAD: Final = "payload"
REREAD: Final = "re-read"
METADATA: Final = "metadata"
BEFORE: Final = "preprocessing"
WASTED: Final = "failed"
CLASSES: Final = (PAYLOAD, REREAD, METADATA, BEFORE, WASTED, RESIDUAL)
OF_BRANCHES: Final = (PAYLOAD, REREAD)

MOST_UNTOLD: Final = 0.1
"""Share of attempts without a count of bytes up to which a ledger of the others is worth having."""

LEDGER: Final = "byte ledger"
LEDGER_RECORDS: Final = "chunk, branch and preprocessing records"
LOCAL: Final = "local files"
UNKNOWN: Final = "unknown"

OF_ALL: Final = pc.ScalarAggregateOptions(skip_nulls=False)
"""A sum of which a part is not known is not known."""

BRANCH_COLUMNS: Final = (
    Column("dataset", "text", None, "dataset in the fileset"),
    Column("file", "text", None, "path or URL of the file"),
    Column("branch", "text", None, "branch, RNTuple field or Parquet column"),
    Column("bytes_payload", "integer", "B", "of baskets that nobody had read before in this run"),
    Column("bytes_reread", "integer", "B", "of baskets that had been read before in this run"),
    Column("bytes_uncompressed", "integer", "B", "size after decompression, of all that was read"),
    Column("baskets", "integer", "baskets", "baskets that nobody had read before in this run"),
    Column("chunks", "integer", "chunks", "chunks that read the branch"),
    Column("read_seconds", "number", "s", "waiting for storage"),
    Column("decompress_seconds", "number", "s", "CPU time of the chunks' threads in decompression"),
    Column("interpret_seconds", "number", "s", "CPU time of the chunks' threads in interpretation"),
)
"""One row for each branch of a file in a dataset, over the attempts that counted."""

Breakdown = Literal["dataset", "file", "branch", "endpoint"]


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


class ByteLedger(Ledger["int | None"]):
    """Bytes requested from storage by class; `total` was measured on its own.

    A class that was not measured is None. Where there is no ledger at all it is empty, and `absent` has the reason.
    """

    def __init__(
        self,
        requests: pa.Table,
        tree_branches: pa.Table,
        certificate: Certificate,
        *,
        unmeasured: tuple[str, ...] = (),
        transferred: Transferred | None = None,
        advice: tuple[Saving, ...] = (),
        absent: str | None = None,
    ) -> None:
        self.requests = requests
        """One row for each attempt: dataset, file, bytes of each class, total."""
        self.tree_branches = tree_branches
        """As `branches`, told apart by `tree`; `embedded`: whether baskets came with the tree, without a size."""
        self.branches = _over_trees(tree_branches)
        came = transferred or Transferred(absent=absent)
        self.transferred = came.total
        """Bytes that came from storage, with the gaps between ranges that were merged."""
        self.gaps = came.gaps
        """Bytes that were transferred and not requested."""
        self.transferred_absent = came.absent
        self.advice = list(advice)
        self._unmeasured = unmeasured
        names = CLASSES if absent is None else ()
        classes = {name: None if name in unmeasured else _sum(requests[name]) for name in names}
        super().__init__(classes, certificate, absent)

    @classmethod
    def not_measured(cls, reason: str) -> ByteLedger:
        """Ledger of a run for which there is none."""
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_requests([]), NO_TREE_BRANCHES, certificate, absent=reason)

    @property
    def total(self) -> int | None:
        """Bytes that were requested, as the sources of all attempts counted them."""
        return None if self.absent else _sum(self.requests[TOTAL])

    def _repr_html_(self) -> str:
        transferred = [] if self.transferred is None else [paragraph(f"Transferred: {BYTE.text(self.transferred)}.")]
        return page(heading("Byte ledger"), self.html_table(self.total, BYTE), *transferred)

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Classes and total as columns, with a row for each dataset, file, branch or endpoint.

        Columns sum to the ledger. The endpoint is the host of a URL. By branch, what belongs to none
        has rows of its own, in parentheses, and there is a column `uncompressed`.
        """
        if what not in ("dataset", "file", "branch", "endpoint"):
            raise ValueError(f"there is no breakdown by {what!r}; choose dataset, file, branch or endpoint")
        table = self._by_branch() if what == "branch" else self._by_request(what)
        frame: pd.DataFrame = table.to_pandas().set_index(what)
        for name in self._unmeasured:
            frame[name] = None
        if self.absent:
            frame.attrs["absent"] = self.absent
        return frame

    def _by_request(self, what: str) -> pa.Table:
        names = (*CLASSES, TOTAL)
        table = self.requests
        if what == "endpoint":
            files = table["file"].combine_chunks().dictionary_encode()
            endpoints = pa.array([endpoint(file) for file in files.dictionary.to_pylist()], pa.string())
            table = table.append_column(what, endpoints.take(files.indices))
        sums = table.group_by(what).aggregate([(name, "sum") for name in names])
        return sums.select([what, *(f"{name}_sum" for name in names)]).rename_columns([what, *names]).sort_by(what)

    def _by_branch(self) -> pa.Table:
        columns = ("bytes_payload", "bytes_reread", "bytes_uncompressed")
        sums = self.branches.group_by("branch").aggregate([(name, "sum", OF_ALL) for name in columns]).sort_by("branch")
        rows = [
            {"branch": row["branch"], PAYLOAD: row["bytes_payload_sum"], REREAD: row["bytes_reread_sum"]}
            | {"uncompressed": row["bytes_uncompressed_sum"]}
            for row in sums.to_pylist()
        ]
        for row in rows:
            row[TOTAL] = row[PAYLOAD] + row[REREAD]
        others = [(name, _sum(self.requests[name])) for name in CLASSES if name not in OF_BRANCHES and name in self]
        rows += [{"branch": f"({name})", name: amount, TOTAL: amount} for name, amount in others]
        amounts = pa.schema([("branch", pa.string()), *((name, pa.int64()) for name in (*CLASSES, TOTAL))])
        filled = [dict.fromkeys((*CLASSES, TOTAL), 0) | row for row in rows]
        return pa.Table.from_pylist(filled, schema=amounts.append(pa.field("uncompressed", pa.float64())))


def endpoint(file: str | None) -> str | None:
    """Host of a URL, the last one of a chain, with its port and no credentials; a path is of local files."""
    if file is None:
        return None
    try:
        place = urlsplit(file.rpartition("::")[2]).netloc
    except ValueError:
        return UNKNOWN
    return place.rpartition("@")[2] or LOCAL


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


PLACES: Final = ("dataset", "file")
"""What a request belongs to."""


def _requests(parts: list[pa.Table]) -> pa.Table:
    texts = [(name, pa.string()) for name in PLACES]
    schema = pa.schema([*texts, *((name, pa.int64()) for name in (*CLASSES, TOTAL))])
    return pa.concat_tables([schema.empty_table(), *parts])


def _requests_of(table: pa.Table, total: Integers, classes: dict[str, Integers]) -> pa.Table:
    """Rows of requests of these attempts, with the residual."""
    residual = total - np.sum(list(classes.values()), axis=0, dtype=np.int64)
    amounts = dict.fromkeys(CLASSES, np.zeros(len(table), dtype=np.int64)) | classes
    amounts |= {RESIDUAL: residual, TOTAL: total}
    return _requests([pa.table({"dataset": table["dataset"], "file": table["file"], **amounts})])


@dataclass(slots=True)
class _Chunks:
    """Attempts of chunks whose source counted bytes, and what they read."""

    table: pa.Table
    known: Flags
    counted: Flags
    reads: Reads = field(init=False)

    def requests(self) -> pa.Table:
        """Rows of requests, one for each attempt that told what it requested."""
        total = integers(self.table["bytes_requested"])
        counted = self.counted
        classes = {
            PAYLOAD: self.of_reads(self.reads.payload),
            REREAD: self.of_reads(self.reads.all_reread),
            METADATA: np.where(counted, integers(self.table["bytes_metadata"]), 0),
            WASTED: np.where(counted, 0, total),
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
        told = self.table["bytes_payload"]
        differs = integers(told) != self.of_reads(given)
        return int(np.count_nonzero(differs & self.counted & told.is_valid().to_numpy()))


def _known(table: pa.Table) -> Flags:
    """Attempts that told what they requested; one that loaded a checkpoint requested nothing."""
    return np.asarray(table["bytes_requested"].is_valid().to_numpy(), dtype=np.bool_)


@metric(
    STRUCTURE,
    group=BYTES,
    source=LEDGER_RECORDS,
    formula="classes of bytes_requested, summed over all attempts and preprocessing",
)
def byte_ledger(run: Run, counted_chunks: pa.Table | None = None) -> ByteLedger:
    """Bytes requested from storage by class: {class: bytes}, with `.total`, `.certificate`, `.by(...)`, `.advice`.

    Classes are "payload" (baskets read for the first time), "re-read", "metadata" (all three of attempts that
    counted), "preprocessing", "failed" (attempts that did not count) and "residual".
    """
    for name in ("chunks", "branch_reads"):
        if getattr(run, name) is None or name in run.absent:
            raise NotMeasuredError(reason_of_absence(run, name))
    chunks = _metered(run, counted_chunks)
    preprocessing = run.preprocessing
    parts = [chunks.requests()]
    openings = [chunks.table]
    if preprocessing is not None:
        parts.append(_preprocessing_requests(preprocessing))
        openings.append(preprocessing)
    requests = _requests(parts)
    transferred = _transferred(openings)
    return ByteLedger(
        requests,
        _tree_branches(chunks.table, chunks.reads),
        _certificate(run, chunks, requests, transferred),
        unmeasured=() if _tells_bytes(preprocessing) else (BEFORE,),
        transferred=transferred,
        advice=savings(
            rows_where(chunks.table.select(ADVISED), chunks.counted),
            run.calls,
            {cause: int(amounts.sum()) for cause, amounts in chunks.reads.reread.items()},
            _sum(requests[TOTAL]),
        ),
    )


def _tells_bytes(preprocessing: pa.Table | None) -> bool:
    """Whether any opening of a file told what it requested, or there was none; coffea of 2025 lets nobody count."""
    return preprocessing is not None and not 0 < len(preprocessing) == preprocessing["bytes_requested"].null_count


def _metered(run: Run, counted: pa.Table | None) -> _Chunks:
    table = _with_checkpoints(run.chunks)
    known = _known(table)
    untold = int(np.count_nonzero(~known))
    if untold > MOST_UNTOLD * len(table):
        raise NotMeasuredError(f"bytes requested are not known for {untold} of {len(table)} attempts of chunks")
    if table["id"].null_count:
        raise NotMeasuredError(f"{table['id'].null_count} of {len(table)} attempts of chunks have no identity")
    chunks = _Chunks(table, known, among(table, last_attempts(table) if counted is None else counted) & known)
    chunks.reads = split_reads(table, chunks.counted, run.branch_reads)
    return chunks


def _with_checkpoints(chunks: pa.Table) -> pa.Table:
    """Attempts of chunks, where one that loaded a checkpoint requested 0 bytes."""
    loaded = pc.equal(chunks["outcome"], CHECKPOINT)
    for name in ("bytes_requested", "bytes_transferred", "bytes_metadata"):
        place = chunks.schema.get_field_index(name)
        chunks = chunks.set_column(place, name, pc.if_else(loaded, pa.scalar(0, pa.int64()), chunks[name]))
    return chunks


def _preprocessing_requests(preprocessing: pa.Table) -> pa.Table:
    """Rows of requests of the metadata tasks: what erred is wasted, as it is of chunks."""
    known = rows_where(preprocessing, _known(preprocessing))
    total = integers(known["bytes_requested"])
    good = np.asarray(pc.fill_null(pc.equal(known["outcome"], OK), False).to_numpy(), dtype=np.bool_)
    return _requests_of(known, total, {BEFORE: np.where(good, total, 0), WASTED: np.where(good, 0, total)})


def _transferred(openings: list[pa.Table]) -> Transferred:
    """Bytes transferred by all attempts; where a source could not tell, none, with the reason."""
    columns = ("bytes_requested", "bytes_transferred", "source", "outcome")
    table = pa.concat_tables([opening.select(columns) for opening in openings])
    asked = rows_where(table, pc.fill_null(pc.not_equal(table["bytes_requested"], 0), True))
    untold = asked.filter(asked["bytes_transferred"].is_null())
    if len(untold):
        sources = ", ".join(sorted(filter(None, untold["source"].unique().to_pylist()))) or "a source that was not seen"
        return Transferred(absent=f"{len(untold)} of {len(asked)} attempts read through {sources}, which does not tell")
    beyond = integers(table["bytes_transferred"]) - integers(table["bytes_requested"])
    failed = np.asarray(pc.is_in(table["outcome"], value_set=pa.array(FAILED, pa.string())).to_numpy(), dtype=np.bool_)
    of_good = int(beyond[~failed].sum())
    return Transferred(
        total=_sum(table["bytes_transferred"]),
        gaps=of_good + int(beyond[failed].clip(min=0).sum()),
        lacking=max(-of_good, 0),
    )


def branch_table(chunks: pa.Table, reads: Reads) -> pa.Table:
    """Branches of files by dataset, with BRANCH_COLUMNS."""
    return _over_trees(_tree_branches(chunks, reads))


KEYS: Final = ("dataset", "file", "branch")
AMOUNTS: Final = tuple(column.name for column in BRANCH_COLUMNS if column.name not in KEYS)


def _tree_branches(chunks: pa.Table, reads: Reads) -> pa.Table:
    """Branches of trees of files by dataset: keys, tree, amounts, and whether baskets came with the tree."""
    seconds = [column.name for column in BRANCH_COLUMNS if column.kind == "number"]
    table = pa.table(
        {
            **{name: chunks[name].take(pa.array(reads.attempt)) for name in ("dataset", "file", "tree")},
            **{name: reads.table[name] for name in ("branch", "bytes_uncompressed", *seconds)},
            "bytes_payload": reads.payload,
            "bytes_reread": reads.all_reread,
            "baskets": reads.baskets,
            "chunks": np.ones(len(reads.attempt), dtype=np.int64),
            "embedded": came_with_tree(reads.table),
        }
    )
    return _summed(table, (*KEYS, "tree"), {"embedded": "any"})


def _over_trees(tree_branches: pa.Table) -> pa.Table:
    """Branches of files by dataset, with BRANCH_COLUMNS, of branches that are told apart by tree."""
    return _summed(tree_branches, KEYS, {})


def _summed(table: pa.Table, keys: tuple[str, ...], others: dict[str, str]) -> pa.Table:
    """Sums of the amounts by these keys, and other columns in other ways."""
    ways = dict.fromkeys(AMOUNTS, "sum") | others
    found = table.group_by(list(keys)).aggregate([(name, way, OF_ALL) for name, way in ways.items()])
    columns = [*keys, *(f"{name}_{way}" for name, way in ways.items())]
    return found.select(columns).rename_columns([*keys, *ways]).sort_by([(key, "ascending") for key in keys])


NO_TREE_BRANCHES: Final = pa.schema(
    [*arrow_schema(BRANCH_COLUMNS), pa.field("tree", pa.string()), pa.field("embedded", pa.bool_())]
).empty_table()


def branches_of(run: Run) -> pa.Table | None:
    """Branches of files by dataset, with BRANCH_COLUMNS; None where they were not measured."""
    if run.chunks is None or run.branch_reads is None or run.chunks["id"].null_count:
        return None
    return branch_table(
        run.chunks, split_reads(run.chunks, among(run.chunks, last_attempts(run.chunks)), run.branch_reads)
    )


# The certificate


def _certificate(run: Run, chunks: _Chunks, requests: pa.Table, transferred: Transferred) -> Certificate:
    attempts, missing = _missing_attempts(run, chunks.table)
    reasons = [*missing, *_missing_preprocessing(run), *_dropped(run)]
    counts = {
        "attempts of chunks do not tell what they requested": np.count_nonzero(~chunks.known),
        "chunks do not tell their metadata": np.count_nonzero(
            chunks.counted & ~chunks.table["bytes_metadata"].is_valid().to_numpy()
        ),
        "chunks lack branches that they read": chunks.lacking_branches(),
    }
    reasons += [f"{count} {what}" for what, count in counts.items() if count]
    reasons += _contradictions(requests, transferred)
    return Certificate(attempts=attempts, reasons=reasons, estimated=int(np.count_nonzero(chunks.reads.estimated)))


def _contradictions(requests: pa.Table, transferred: Transferred) -> list[str]:
    """What cannot be where all was seen: bytes in no class, and bytes that never came though no request failed."""
    unexplained = np.count_nonzero(integers(requests[RESIDUAL]))
    reasons = []
    if unexplained:
        reasons.append(f"{unexplained} attempts have a residual, of {BYTE.text(_sum(requests[RESIDUAL]))} in all")
    if transferred.lacking:
        reasons.append(f"{BYTE.text(transferred.lacking)} less were transferred than requested")
    return reasons


def _missing_attempts(run: Run, chunks: pa.Table) -> tuple[Attempts, list[str]]:
    """Attempts of chunks by Dask's tasks, else by what the Runner handed out; and those without a record."""
    if run.tasks is not None:
        tasks, missing = _without_record(run.tasks, PROCESSOR, chunks)
        reasons = [*_told(missing, "attempts of chunks"), *_doubled(tasks, chunks, "attempts of chunks")]
        return Attempts(len(tasks) - len(missing), len(tasks)), reasons
    finished = [call for call in run.calls if call.outcome == FINISHED]
    if not finished or len(finished) < len(run.calls) or any(call.chunks is None for call in finished):
        return Attempts(len(chunks), None), ["nobody counted the attempts of chunks that began"]
    assigned = sum(call.chunks or 0 for call in finished)
    ended = len(last_attempts(chunks)) + len(with_outcome(chunks, (SKIPPED,)))
    return Attempts(ended, assigned), _compared(assigned, ended, ended, "chunks")


def _compared(assigned: int, seen: int, ended: int, what: str) -> list[str]:
    """What is wrong where fewer things left a record than were handed out, or more ended."""
    if seen < assigned:
        return [f"{assigned - seen} of {assigned} {what} left no record"]
    return [f"{ended} {what} ended, of {assigned} that were handed out"] if ended > assigned else []


def _missing_preprocessing(run: Run) -> list[str]:
    if run.preprocessing is None:
        return [f"{BEFORE}: {run.absent[BEFORE]}" if BEFORE in run.absent else f"{BEFORE} was not recorded"]
    unknown = run.preprocessing["bytes_requested"].null_count
    reasons = [f"{unknown} preprocessing tasks do not tell what they requested"] if unknown else []
    if run.tasks is not None:
        openings = run.tasks.filter(pc.equal(run.tasks["kind"], PREPROCESSING))
        openings = openings.filter(pc.fill_null(pc.not_equal(openings["prefix"], MERGE_PREFIX), True))
        tasks, missing = _without_record(openings, PREPROCESSING, run.preprocessing)
        told = _told(missing, "preprocessing tasks")
        return [*reasons, *told, *_doubled(tasks, run.preprocessing, "preprocessing tasks")]
    return [*reasons, *_missing_files(run.calls, run.preprocessing)]


def _missing_files(calls: tuple[RunnerCall, ...], preprocessing: pa.Table) -> list[str]:
    """What is wrong with records of the files that finished Runner calls handed out, where they were counted.

    A file that is tried again has a record for each time, and ends once.
    """
    handed = {call.id: call.files for call in calls if call.outcome == FINISHED and call.files is not None}
    ours = preprocessing.filter(pc.is_in(preprocessing["call"], value_set=pa.array(list(handed), pa.string())))
    seen = ours.group_by(["call", "dataset", "file", "tree"]).aggregate([])
    return _compared(sum(handed.values()), len(seen), len(with_outcome(ours, (OK,))), "files of preprocessing")


def _without_record(tasks: pa.Table, kind: str, records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Tasks of a kind, and those of them that left no record."""
    wanted = pc.fill_null(pc.equal(tasks["kind"], kind), False)
    ours = rows_where(tasks.select(["key", "run_id", "outcome"]), wanted)
    known, attempts = identities(ours, records)
    return ours, ours.filter(pa.array((attempts < 0) | ~np.isin(attempts, known)))


def _doubled(tasks: pa.Table, records: pa.Table, what: str) -> list[str]:
    """How many records there are beyond one for each attempt of a task."""
    known, assigned = identities(tasks, records)
    found = known[(known >= 0) & np.isin(known, assigned)]
    more = int(np.count_nonzero(np.diff(np.sort(found)) == 0))
    return [f"{more} {what} are recorded once more"] if more else []


ENDS: Final = {LOST: "whose worker was lost", CANCELLED: "that were cancelled"}


def _told(missing: pa.Table, what: str) -> list[str]:
    """How many left no record, by the way in which they ended."""
    ends = [ENDS.get(outcome, "that ended") for outcome in missing["outcome"].to_pylist()]
    return [f"{ends.count(end)} {what} {end} left no record" for end in dict.fromkeys(ends)]


def _dropped(run: Run) -> list[str]:
    names = ("chunks", "branch_reads", "preprocessing", "tasks")
    return [f"{run.dropped[name]} rows of {name} were lost" for name in names if run.dropped.get(name)]


# Metrics of the ledger


def _class(name: str, byte_ledger: ByteLedger) -> Sourced:
    amount = byte_ledger[name]
    if amount is None:
        raise NotMeasuredError(f"{name} was not measured: {byte_ledger.certificate.reasons[0]}")
    return _from_ledger(amount, byte_ledger)


def _from_ledger(amount: int, byte_ledger: ByteLedger) -> Sourced:
    reasons = byte_ledger.certificate.reasons
    return Sourced(amount, f"{LEDGER}, incomplete: {'; '.join(reasons)}" if reasons else LEDGER)


@metric(
    BYTE, group=BYTES, source=LEDGER, label=TOTAL, formula="bytes_requested, summed over attempts and preprocessing"
)
def bytes_requested(byte_ledger: ByteLedger) -> Sourced:
    """Bytes requested from storage, by all attempts of chunks and of preprocessing, as their sources counted them."""
    return _from_ledger(byte_ledger.total or 0, byte_ledger)


MEANINGS: Final = {
    PAYLOAD: ("bytes_payload", "Bytes of baskets, pages or column chunks that chunks read for the first time."),
    REREAD: ("bytes_reread", "Bytes of baskets, pages or column chunks that chunks read again."),
    METADATA: ("bytes_metadata", "Bytes of headers, keys, streamers, trees and schemata that chunks requested."),
    BEFORE: ("bytes_preprocessing", "Bytes that coffea's metadata tasks requested."),
    WASTED: ("bytes_failed", "Bytes requested by attempts that erred or whose result was not used."),
    RESIDUAL: ("bytes_residual", "Bytes requested that are in no class of the byte ledger: 0 where all is understood."),
}
for name, (metric_name, meaning) in MEANINGS.items():
    CATALOGUE.add(
        Metric(
            name=metric_name,
            function=partial(_class, name),
            inputs=("byte_ledger",),
            unit=BYTE,
            group=BYTES,
            source=LEDGER,
            meaning=meaning,
            label=name,
            written_formula=f'byte_ledger["{name}"]',
        )
    )


@metric(BYTE, group=BYTES, source=LEDGER, label="transferred", formula="sum of bytes_transferred")
def bytes_transferred(byte_ledger: ByteLedger) -> Sourced:
    """Bytes that came from storage: those requested, and gaps between ranges that were merged.

    What came of a request that failed is not known, and not in it. Only this compares with what a server counted.
    """
    if byte_ledger.transferred is None:
        raise NotMeasuredError(str(byte_ledger.transferred_absent))
    return _from_ledger(byte_ledger.transferred, byte_ledger)


@metric(GIGABIT_PER_SECOND, group=BYTES, source=f"{LEDGER}, wall clock", label="data rate (all requested)")
def data_rate_requested_gbps(bytes_requested: float, elapsed_time_seconds: float) -> float:
    """Rate of all that was requested from storage, preprocessing and failed attempts included."""
    return 8e-9 * bytes_requested / elapsed_time_seconds


@metric(GIGABIT_PER_SECOND, group=BYTES, source=f"{LEDGER}, wall clock", label="data rate (payload)")
def data_rate_payload_gbps(bytes_payload: float, elapsed_time_seconds: float) -> float:
    """Rate of payload, each basket counted once."""
    return 8e-9 * bytes_payload / elapsed_time_seconds


@metric(FRACTION, group=BYTES, source=LEDGER, label="useful fraction")
def useful_fraction(bytes_payload: float, bytes_requested: float) -> float:
    """Share of payload, each basket counted once, in all that was requested."""
    return bytes_payload / bytes_requested


@metric(RATIO, group=BYTES, source=LEDGER, label="read amplification")
def read_amplification(bytes_payload: float, bytes_reread: float) -> float:
    """How often a byte of payload was read on average: 1 where each basket was read once."""
    return (bytes_payload + bytes_reread) / bytes_payload


@metric(BYTE, group=BYTES, source=LEDGER, label="uncompressed", formula="sum of bytes_uncompressed over branches")
def total_bytes_uncompressed(byte_ledger: ByteLedger) -> int:
    """Size of what chunks read, after decompression; what was read by two chunks is in it twice."""
    return int(complete_sum(byte_ledger.branches, "bytes_uncompressed", "branches"))


@metric(
    RATIO,
    group=BYTES,
    source=LEDGER,
    label="compression factor",
    formula="uncompressed / compressed bytes of branches with payload",
)
def compression_ratio(byte_ledger: ByteLedger) -> float:
    """How many times smaller the payload is in the files than in memory.

    Branches of which baskets came with the tree's metadata are left out: the compressed size of those is not known.
    """
    branches = byte_ledger.tree_branches
    read = branches.filter(pc.invert(branches["embedded"]))
    stored = _sum(read["bytes_payload"]) + _sum(read["bytes_reread"])
    if stored == 0:
        raise NotMeasuredError("no branch was read of which all baskets are payload")
    return float(complete_sum(read, "bytes_uncompressed", "branches")) / stored


# What was read of each file


@metric(
    STRUCTURE,
    group=BYTES,
    source=LEDGER_RECORDS,
    formula="branches and payload of each file, over its branches and size",
)
def file_read_metrics(counted_chunks: pa.Table, byte_ledger: ByteLedger) -> dict[str, dict[str, Any]]:
    """What was read of each file: {file: {name: amount}}.

    `branches_read` of `total_branches`, and `branches_read_percent`; `bytes_read` (payload, each basket once) of
    `file_bytes`, and `bytes_read_percent`. An amount that is not known is None.
    """
    keys = ["tree_branches", "file_bytes"]
    trees = counted_chunks.group_by(["file", "tree"]).aggregate([(key, "max") for key in keys])
    trees = trees.select(["file", "tree_branches_max", "file_bytes_max"]).rename_columns(["file", *keys])
    files = trees.group_by("file").aggregate([("tree_branches", "sum", OF_ALL), ("file_bytes", "max")])
    read = _read_of_files(byte_ledger.tree_branches)
    return {
        size["file"]: _shares(*read.get(size["file"], (0, 0)), size["tree_branches_sum"], size["file_bytes_max"])
        for size in files.sort_by("file").to_pylist()
        if size["file"] is not None
    }


def _read_of_files(tree_branches: pa.Table) -> dict[str, tuple[int, int]]:
    """Number of different branches of all trees, and payload, of each file."""
    branches = tree_branches.group_by(["file", "tree", "branch"]).aggregate([("bytes_payload", "sum")])
    files = branches.group_by("file").aggregate([("branch", "count"), ("bytes_payload_sum", "sum")])
    return {row["file"]: (row["branch_count"], row["bytes_payload_sum_sum"]) for row in files.to_pylist()}


def _shares(branches: int, payload: int, total_branches: int | None, file_bytes: int | None) -> dict[str, Any]:
    return {
        "total_branches": total_branches,
        "branches_read": branches,
        "branches_read_percent": 100 * branches / total_branches if total_branches else None,
        "file_bytes": file_bytes,
        "bytes_read": payload,
        "bytes_read_percent": 100 * payload / file_bytes if file_bytes else None,
    }


def _mean_share(files: Mapping[str, Mapping[str, Any]], name: str) -> float:
    shares = [file[name] for file in files.values()]
    if not shares:
        raise NotMeasuredError("no file was read")
    if None in shares:
        raise NotMeasuredError(f"not known for {shares.count(None)} of {len(shares)} files")
    return float(np.mean(shares))


@metric(PERCENT, group=BYTES, source=LEDGER_RECORDS, label="share of the files read", formula="mean over files")
def avg_bytes_read_percent(file_read_metrics: dict[str, dict[str, Any]]) -> float:
    """Share of a file's bytes that was read as payload, each basket once; averaged over files."""
    return _mean_share(file_read_metrics, "bytes_read_percent")


@metric(PERCENT, group=BYTES, source=LEDGER_RECORDS, label="share of branches read", formula="mean over files")
def avg_branches_read_percent(file_read_metrics: dict[str, dict[str, Any]]) -> float:
    """Share of a file's branches that was read; averaged over files."""
    return _mean_share(file_read_metrics, "branches_read_percent")


@metric(COUNT, group=BYTES, source=LEDGER_RECORDS, label="branches read", formula="different branches, by name")
def total_branches_read(byte_ledger: ByteLedger) -> int:
    """Number of different branches that were read, over all files."""
    return len(byte_ledger.branches["branch"].unique())
