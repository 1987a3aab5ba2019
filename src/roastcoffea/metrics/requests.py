"""Bytes requested and received per attempt: the rows of the byte ledger and its completeness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.generations import reads_on
from roastcoffea.metrics import facts, phases
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_DATASET, Reads, split_reads
from roastcoffea.metrics.catalogue import refuse_if
from roastcoffea.metrics.facts import aggregated, among, known_sum, rows_where, rows_with, with_outcome
from roastcoffea.metrics.ledger import Attempts, Certificate, attempts_of_calls, compared
from roastcoffea.metrics.phases import RESIDUAL
from roastcoffea.metrics.statistics import Flags, Integers, having, integers, one_of
from roastcoffea.records.chunks import CHECKPOINT, ERROR, OK
from roastcoffea.records.run import FINISHED, OF_TASKS, OUTSIDE, Run
from roastcoffea.records.tasks import CANCELLED, LOST, MERGE_PREFIX, PREPROCESSING, PROCESSOR, UNFINISHED
from roastcoffea.units import BYTE, counted

PLACES: Final = ("dataset", "file", "endpoint")
"""What a request is attributed to."""


class Transferred(NamedTuple):
    """Bytes received from storage; a failed request received nothing, or an unknown part.

    `gaps` were received without being requested; `lacking` were requested by attempts that did not fail, and not
    received. If the total is unknown, `absent` has the reason.
    """

    total: int | None = None
    gaps: int | None = None
    lacking: int = 0
    absent: str | None = None


def requests_table(parts: list[pa.Table]) -> pa.Table:
    """One row per attempt: dataset, file, endpoint, bytes of each class, total."""
    texts = [(name, pa.string()) for name in PLACES]
    schema = pa.schema([*texts, *((name, pa.int64()) for name in (*phases.BYTE_NAMES, phases.TOTAL))])
    return pa.concat_tables([schema.empty_table(), *parts])


def _requests_of(table: pa.Table, total: Integers, classes: dict[str, Integers]) -> pa.Table:
    """Rows of requests of these attempts, including the residual."""
    residual = total - np.sum(list(classes.values()), axis=0, dtype=np.int64)
    amounts = dict.fromkeys(phases.BYTE_NAMES, np.zeros(len(table), dtype=np.int64)) | classes
    amounts |= {phases.RESIDUAL: residual, phases.TOTAL: total}
    return requests_table([pa.table({name: table[name] for name in PLACES} | amounts)])


class Repeated(NamedTuple):
    """Bytes that counted attempts requested more than once, and settings that could have avoided it."""

    baskets: Mapping[str, int]
    """Re-read bytes of baskets, by what the readers have in common."""
    metadata: int
    """Bytes of metadata read by all chunks of a file after the first."""
    chunks: int
    files: int
    aligned: bool
    """Whether chunks ended at cluster boundaries."""
    parquet: bool
    others: Mapping[str, int]
    """Bytes of baskets of files that process() opened itself that earlier chunks had read, by file: at least."""
    objects: Mapping[str, int]
    """The same for objects without baskets, such as histograms."""
    reads_on: bool = False
    """Whether uproot read the basket behind each chunk as well."""
    of_tasks: bool = False
    """Whether functions without a Runner read all of it, so that their names stand for datasets."""

    def readers(self, cause: str) -> str:
        """What the readers have in common by a cause of `baskets`: functions, where no fileset has datasets."""
        return OF_TASKS if self.of_tasks and cause in {SAME_DATASET, OTHER_DATASET} else cause


@dataclass(frozen=True, slots=True)
class ChunkRequests:
    """Attempts of chunks whose source counted bytes, and the branches they read."""

    table: pa.Table
    known: Flags
    counted: Flags
    reads: Reads

    @classmethod
    def of(cls, run: Run, counted: pa.Table | None) -> ChunkRequests:
        """Attempts of a run's chunks.

        Raises
        ------
        NotMeasuredError
            If too few of them have a byte count.
        """
        table: pa.Table = run.chunks
        loaded = pc.equal(table["outcome"], CHECKPOINT)
        for name in ("bytes_requested", "bytes_transferred", "bytes_metadata"):
            # one that loaded a checkpoint requested nothing
            column = pc.if_else(loaded, pa.scalar(0, pa.int64()), table[name])
            table = table.set_column(table.schema.get_field_index(name), name, column)
        known = np.asarray(table["bytes_requested"].is_valid().to_numpy(), dtype=np.bool_)
        unknown, nameless = int(np.count_nonzero(~known)), table["id"].null_count
        of_all = f"of {len(table)} attempts of chunks"
        # a ledger of the others is still useful
        refuse_if(unknown > 0.1 * len(table), f"requested bytes are unknown for {unknown} {of_all}")
        refuse_if(nameless, f"{nameless} {of_all} have no identity")
        used = among(table, facts.counted_chunks(table) if counted is None else counted) & known
        return cls(table, known, used, split_reads(table, used, run.branch_reads))

    def requests(self) -> pa.Table:
        """Rows of requests, one for each attempt with a byte count."""
        total = integers(self.table["bytes_requested"])
        classes = {
            phases.PAYLOAD: self.of_reads(self.reads.payload),
            phases.REREAD: self.of_reads(self.reads.all_reread),
            phases.METADATA: np.where(self.counted, integers(self.table["bytes_metadata"]), 0),
            phases.FAILED: np.where(self.counted, 0, total),
        }
        kept = {name: amounts[self.known] for name, amounts in classes.items()}
        return _requests_of(rows_where(self.table.select(PLACES), self.known), total[self.known], kept)

    def other_files(self) -> pa.Table:
        """Rows of requests of files that process() opened itself, one for each file and attempt."""
        opened = self.table["other_requested"].is_valid()
        table = rows_where(self.table.select(["dataset", *OF_OTHERS]), opened)
        attempts = pc.list_parent_indices(table["other_files"])
        file, total, payload, metadata = (pc.list_flatten(table[name]) for name in OF_OTHERS[:4])
        places = pa.table({"dataset": table["dataset"].take(attempts), "file": file})
        places = places.append_column("endpoint", pa.nulls(len(file), pa.string()))
        counted = self.counted[opened.to_numpy()][attempts.to_numpy()]
        read = integers(payload) + integers(metadata)
        classes = {
            phases.OTHER_FILES: np.where(counted, read, 0),
            phases.FAILED: np.where(counted, 0, integers(total)),
        }
        return _requests_of(places, integers(total), classes)

    def openings_of_others(self) -> pa.Table:
        """What each attempt that opened files itself requested and received of them."""
        table = rows_where(self.table, self.table["other_requested"].is_valid())
        own = {"bytes_requested": "bytes_other", "bytes_transferred": "bytes_other_transferred"}
        return pa.table({name: table[own.get(name, name)] for name in OF_OPENINGS})

    @property
    def unmetered(self) -> int | None:
        """Bytes that threads read in process() by other means than uproot; None where nothing tells."""
        return pc.sum(self.table["bytes_unmetered"]).as_py()  # type: ignore[no-any-return]

    @property
    def without_others(self) -> bool:
        """Whether no attempt tells what it read of other files."""
        told = pc.or_(self.table["bytes_other"].is_valid(), self.table["other_files"].is_valid())
        return len(self.table) > 0 == int(known_sum(told))

    def of_reads(self, amounts: Integers) -> Integers:
        """Sums over the reads of each attempt."""
        sums = np.bincount(self.reads.attempt, weights=amounts, minlength=len(self.table))
        return np.rint(sums).astype(np.int64)

    def missing_branches(self) -> int:
        """Attempts that counted and whose reads of branches do not add up to their payload."""
        given = integers(self.reads.table["bytes_payload"]) + integers(self.reads.table["bytes_again"])
        payload = self.table["bytes_payload"]
        differs = integers(payload) != self.of_reads(given)
        return int(np.count_nonzero(differs & self.counted & payload.is_valid().to_numpy()))

    def repeated(self, run: Run) -> Repeated:
        """Bytes that attempts that counted requested more than once."""
        place = ["call", "dataset", "file", "tree"]
        counted = rows_where(self.table.select([*place, "source", "bytes_metadata"]), self.counted)
        files = counted.group_by(place).aggregate([("bytes_metadata", "sum"), ("bytes_metadata", "max")])
        others, objects = self._others_again()
        return Repeated(
            baskets={cause: int(amounts.sum()) for cause, amounts in self.reads.reread.items()},
            metadata=int(known_sum(pc.subtract(files["bytes_metadata_sum"], files["bytes_metadata_max"]))),
            chunks=len(counted),
            files=len(files),
            aligned=any(call.options.get("align_clusters") for call in run.calls),
            parquet=bool(pc.any(pc.starts_with(counted["source"], "Parquet")).as_py()),
            others=others,
            objects=objects,
            reads_on=reads_on(run.environment.versions.get("uproot")),
            of_tasks=bool(pc.all(pc.starts_with(counted["call"], OF_TASKS)).as_py()),
        )

    def _others_again(self) -> tuple[dict[str, int], dict[str, int]]:
        opened = self.counted & self.table["other_baskets"].is_valid().to_numpy()
        table = rows_where(self.table.select(OF_OTHERS), opened)
        each = pa.table({name: pc.list_flatten(table[name]) for name in OF_OTHERS})
        baskets = pc.greater(each["other_payload"], 0)
        # a chunk may have read only a part of the same clusters
        others = _again(each.filter(baskets), "other_baskets", "other_payload")
        return others, _again(each.filter(pc.invert(baskets)), "other_requested", "other_requested")


def _again(reads: pa.Table, which: str, amount: str) -> dict[str, int]:
    """Bytes by file that were read before, where what is read of it is the same if `which` is equal."""
    each = aggregated(reads, ["other_files", which], {"all": (amount, "sum"), "largest": (amount, "max")}, None)
    found = Counter[str]()
    for row in each.to_pylist():
        found[row["other_files"]] += (row["all"] or 0) - (row["largest"] or 0)
    return {name: size for name, size in found.items() if size}


def preprocessing_requests(preprocessing: pa.Table) -> pa.Table:
    """Rows of requests of the metadata tasks; failed ones are wasted, as for chunks."""
    known = rows_where(preprocessing, preprocessing["bytes_requested"].is_valid())
    total = integers(known["bytes_requested"])
    good = ~having(known["outcome"], ERROR)
    classes = {phases.PREPROCESSING: np.where(good, total, 0), phases.FAILED: np.where(good, 0, total)}
    return _requests_of(known, total, classes)


def transferred(openings: list[pa.Table]) -> Transferred:
    """Bytes transferred by all attempts; none, with the reason, if a source cannot count them."""
    table = pa.concat_tables([opening.select(OF_OPENINGS) for opening in openings])
    asked = rows_where(table, pc.fill_null(pc.not_equal(table["bytes_requested"], 0), True))
    unknown = asked.filter(asked["bytes_transferred"].is_null())
    if len(unknown):
        names = ", ".join(sorted(filter(None, unknown["source"].unique().to_pylist())))
        through = f"read through {names or 'an unknown source'}, which does not report transfers"
        return Transferred(absent=f"{len(unknown)} of {len(asked)} attempts {through}")
    beyond = integers(table["bytes_transferred"]) - integers(table["bytes_requested"])
    failed = one_of(table["outcome"], pa.array(facts.FAILED))
    of_good = int(beyond[~failed].sum())
    return Transferred(
        total=int(known_sum(table["bytes_transferred"])),
        gaps=of_good + int(beyond[failed].clip(min=0).sum()),
        lacking=max(-of_good, 0),
    )


OF_OPENINGS: Final = ("bytes_requested", "bytes_transferred", "source", "outcome")
OF_OTHERS: Final = ("other_files", "other_requested", "other_payload", "other_metadata", "other_baskets")


def certificate(run: Run, chunks: ChunkRequests, requests: pa.Table, transferred: Transferred) -> Certificate:
    """Missing parts of the byte ledger."""
    if run.tasks is None:
        attempts, missing = attempts_of_calls(run, chunks.table, facts.counted_chunks(chunks.table))
    else:
        attempts, missing = _against_tasks(run.tasks, PROCESSOR, chunks.table, "attempts of chunks")
    tables = ("chunks", "branch_reads", "preprocessing", "tasks")
    reasons = [*missing, *facts.why_calls_lack(run), *_missing_preprocessing(run), *facts.lost_rows(run, *tables)]
    table = chunks.table
    without_count = pc.and_(table["bytes_other"].is_null(), table["other_files"].is_valid())
    counts = {
        "attempts of chunks have no count of requested bytes": np.count_nonzero(~chunks.known),
        "chunks have no count of metadata bytes": np.sum(chunks.counted & table["bytes_metadata"].is_null().to_numpy()),
        "chunks lack some of the branches they read": chunks.missing_branches(),
        "chunks have no count of bytes from files that they opened themselves": known_sum(without_count),
    }
    reasons += [f"{count} {what}" for what, count in counts.items() if count]
    # bytes in no class, or not received although no request failed
    if unexplained := int(np.count_nonzero(integers(requests[RESIDUAL]))):
        attempts_of = f"{counted(unexplained, 'attempt')} {'has' if unexplained == 1 else 'have'}"
        reasons.append(f"{attempts_of} unaccounted bytes ({BYTE.text(known_sum(requests[RESIDUAL]))} in total)")
    if transferred.lacking:
        reasons.append(f"{BYTE.text(transferred.lacking)} fewer were transferred than requested")
    unmetered = chunks.unmetered or 0
    if unmetered >= max(1_000_000, 0.01 * known_sum(requests[phases.TOTAL])):
        size = BYTE.text(unmetered)
        reasons.append(f"process() read {size} by other means than uproot (files, or pipes from programs)")
    estimated = int(np.count_nonzero(chunks.reads.estimated))
    outside = [run.absent[OUTSIDE]] if OUTSIDE in run.absent else []
    # process() ran where the system does not report what a thread reads; older versions recorded neither
    ran = pc.and_(table["bytes_other"].is_valid(), table["process_seconds"].is_valid())
    if pc.any(pc.and_(ran, table["bytes_unmetered"].is_null()), min_count=0).as_py():
        outside.append("what process() read by other means than uproot could not be counted")
    if cached := known_sum(table["bytes_cached"]):
        outside.append(f"{BYTE.text(cached)} of arrays came from coffea's buffer cache")
    return Certificate(attempts=attempts, reasons=reasons, estimated=estimated, outside="; ".join(outside) or None)


def _missing_preprocessing(run: Run) -> list[str]:
    records, what = run.preprocessing, "preprocessing tasks"
    if records is None:
        absent = run.absent.get("preprocessing")
        return ["preprocessing was not recorded" if absent is None else f"preprocessing: {absent}"]
    unknown = records["bytes_requested"].null_count
    reasons = [f"{unknown} {what} have no count of requested bytes"] if unknown else []
    if run.tasks is not None:
        openings = rows_with(run.tasks, "kind", [PREPROCESSING])
        openings = rows_where(openings, pc.fill_null(pc.not_equal(openings["prefix"], MERGE_PREFIX), True))
        return [*reasons, *_against_tasks(openings, PREPROCESSING, records, what)[1]]
    # a file that is retried has a record for each attempt, and finishes once
    submitted = {call.id: call.files for call in run.calls if call.outcome == FINISHED and call.files is not None}
    ours = rows_with(records, "call", submitted)
    seen = ours.group_by(["call", "dataset", "file", "tree"]).aggregate([])
    finished = len(with_outcome(ours, (OK,)))
    return [*reasons, *compared(sum(submitted.values()), finished, "files of preprocessing", len(seen))[1]]


def _against_tasks(tasks: pa.Table, kind: str, records: pa.Table, what: str) -> tuple[Attempts, list[str]]:
    """Tasks of a kind; how many left no record, by outcome, or more than one."""
    ours = rows_with(tasks.select(["key", "run_id", "outcome", "kind"]), "kind", [kind])
    known, attempts = facts.identities(ours, records)
    missing = rows_where(ours, (attempts < 0) | ~np.isin(attempts, known))
    how = {
        LOST: "whose worker was lost",
        CANCELLED: "that were cancelled",
        UNFINISHED: "that were unfinished at the end",
    }
    ends = [how.get(outcome, "that ended") for outcome in missing["outcome"].to_pylist()]
    reasons = [f"{ends.count(end)} {what} {end} left no record" for end in dict.fromkeys(ends)]
    found = known[(known >= 0) & np.isin(known, attempts)]
    if more := int(np.count_nonzero(np.diff(np.sort(found)) == 0)):
        reasons.append(f"{more} {what} are recorded more than once")
    return Attempts(len(ours) - len(missing), len(ours)), reasons
