"""The byte ledger, which divides the bytes requested from storage into classes, and metrics derived from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.generations import reads_on
from roastcoffea.metrics import facts, phases
from roastcoffea.metrics.branches import (
    NO_TREE_BRANCHES,
    OTHER_DATASET,
    SAME_DATASET,
    Reads,
    branches_of,
    codes,
    over_trees,
    split_reads,
    tree_branches_of,
)
from roastcoffea.metrics.catalogue import BYTES, Sourced, fact, metric, refuse_if
from roastcoffea.metrics.endpoints import with_endpoints, with_sites
from roastcoffea.metrics.facts import (
    NULL_IF_ANY,
    aggregated,
    among,
    complete_sum,
    joined,
    known_sum,
    reason_of_absence,
    rows_where,
    rows_with,
)
from roastcoffea.metrics.ledger import (
    Attempts,
    Certificate,
    LedgerOfBytes,
    attempts_of_calls,
    classified,
    compared,
    metrics_of_classes,
)
from roastcoffea.metrics.statistics import Flags, Integers, having, integers, of_texts, one_of, rows_of
from roastcoffea.records.chunks import CHECKPOINT, ERROR, OK
from roastcoffea.records.columns import Row
from roastcoffea.records.run import FINISHED, OF_TASKS, OUTSIDE, Run
from roastcoffea.records.workers import CANCELLED, LOST, MERGE_PREFIX, PREPROCESSING, PROCESSOR, UNFINISHED
from roastcoffea.sheets.sheet import BYTE_LEDGER, TRANSFERRED, Cell, Sheet
from roastcoffea.units import BYTE, COUNT, FRACTION, GIGABIT_PER_SECOND, PERCENT, RATIO, STRUCTURE
from roastcoffea.units import counted as in_words

if TYPE_CHECKING:
    import pandas as pd


PLACES: Final = ("dataset", "file", "endpoint")

AMOUNTS: Final = (*phases.BYTE_NAMES, phases.TOTAL)
UNCOMPRESSED: Final = "uncompressed"

MEANINGS: Final = {
    **{one.name: one.meaning for one in phases.BYTE_CLASSES},
    phases.TOTAL: "Total number of bytes requested from storage.",
    UNCOMPRESSED: "Uncompressed size of the data read.",
}

LEDGER_RECORDS: Final = "chunk, branch and preprocessing records"

Breakdown = Literal["dataset", "file", "branch", "endpoint", "site"]
BREAKDOWNS: Final = get_args(Breakdown)


@dataclass(frozen=True, slots=True)
class Saving:
    """Potential saving in bytes, with its cause and a recommendation."""

    cause: str
    bytes: int
    text: str


class Repeated(NamedTuple):
    """Data requested repeatedly by attempts whose result was used, as input for recommendations."""

    baskets: Mapping[str, int]
    """Maps each cause of re-reads (the readers that share a basket) to the number of bytes re-read."""
    metadata: int
    """Metadata bytes re-read by all but the first chunk of each file."""
    chunks: int
    files: int
    aligned: bool
    parquet: bool
    others: Mapping[str, int]
    """Maps each file that process() opened itself to a lower bound on the basket bytes re-read from it."""
    objects: Mapping[str, int]
    """Likewise for objects without baskets, such as histograms."""
    reads_on: bool = False
    """Whether uproot also read the next basket after the end of each chunk."""
    of_tasks: bool = False
    """Whether all reads come from functions run without a Runner. If so, function names replace dataset names."""

    def readers(self, cause: str) -> str:
        """Readers to name in a recommendation, for a key in `baskets`."""
        return OF_TASKS if self.of_tasks and cause in {SAME_DATASET, OTHER_DATASET} else cause


Adviser = Callable[[Repeated, int], Sequence[Saving]]


@dataclass(eq=False, repr=False)
class ByteLedger(LedgerOfBytes):
    """Bytes requested from storage, by class.

    The total is measured independently of the classes. A class that was not measured has the value None. If nothing was
    measured, the ledger is empty and `absent` holds the reason.
    """

    name: ClassVar[str] = "byte ledger"
    title: ClassVar[str] = BYTE_LEDGER
    why_unmeasured: ClassVar[str] = "the version that recorded this run did not measure it"
    _adviser: ClassVar[Adviser]

    requests: Table
    """Requested bytes by class and in total, with one row for each attempt and file."""
    tree_branches: Table
    """The `branches` table, also broken down by tree. `embedded` marks baskets that are stored in the tree itself and
    have no separate size.
    """
    certificate: Certificate
    _: KW_ONLY
    unmeasured: tuple[str, ...] = ()
    """Classes that were not measured."""
    transferred: int | None = None
    """Bytes received from storage, including gaps between merged ranges."""
    gaps: int | None = None
    """Bytes transferred without having been requested."""
    transferred_absent: str | None = None
    repeated: Repeated | None = None
    """Bytes requested more than once."""
    unmetered: int | None = None
    """Bytes that chunk threads read in process() without uproot, or None if the system does not report them."""
    absent: str | None = None
    asked: Table | None = None
    """Requested files, with the sites that hold them."""

    def __post_init__(self) -> None:
        self.branches = over_trees(self.tree_branches)
        self._add_up(self.requests, phases.BYTE_NAMES)

    @classmethod
    def not_measured(cls, reason: str) -> ByteLedger:
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(_requests([]), NO_TREE_BRANCHES, certificate, transferred_absent=reason, absent=reason)

    @classmethod
    def advised_by(cls, adviser: Adviser) -> Adviser:
        """Register the function that makes recommendations."""
        cls._adviser = adviser
        return adviser

    @property
    def advice(self) -> list[Saving]:
        """Recommended changes, largest saving first."""
        return [] if self.repeated is None else [*type(self)._adviser(self.repeated, self.total or 0)]

    def sheets(self) -> list[Sheet]:
        advice = [saving.text for saving in self.advice]
        return [*super().sheets(), *([Sheet(title="how to read fewer bytes", items=advice)] if advice else [])]

    def _rows(self) -> list[tuple[Cell, ...]]:
        if self.transferred is None:
            return super()._rows()
        gaps = self.gaps or 0
        what = f"{BYTE.text(abs(gaps))} {'not requested' if gaps > 0 else 'requested but not received'}" if gaps else ""
        return [*super()._rows(), (TRANSFERRED, self.transferred, what)]

    def _notes(self) -> list[str]:
        missing = [] if self.transferred is not None else [f"Transferred: {self.transferred_absent}."]
        return [*super()._notes(), *missing]

    def by(self, what: Breakdown) -> pd.DataFrame:
        """Break down the bytes by dataset, file, branch, endpoint or site.

        Each column is a class, and its values add up to the amount in the ledger. An endpoint is the server that XRootD
        read from or, for other protocols, the host in the URL. Sites are known only if the fileset names them. The
        breakdown by branch also has an `uncompressed` column, and rows with names in parentheses for bytes not
        attributed to any branch.
        """
        if what not in BREAKDOWNS:
            raise ValueError(f"there is no breakdown by {what!r}; choose {', '.join(BREAKDOWNS)}")
        if what == "branch":
            table = self._by_branch()
        else:
            table = self.requests
            if what == "endpoint":
                table = with_endpoints(table)
            if what == "site":
                table = with_sites(table, self.asked)
            table = aggregated(table, [what], {name: (name, "sum") for name in AMOUNTS}).sort_by(what)
        return self._frame(what, table)

    def _by_branch(self) -> Table:
        columns = {one.name: (one.metric_name, "sum") for one in phases.BYTE_CLASSES if one.of_branches}
        sums = aggregated(self.branches, ["branch"], columns | {UNCOMPRESSED: ("bytes_uncompressed", "sum")})
        rows = [row | {phases.TOTAL: sum(row[name] for name in columns)} for row in sums.sort_by("branch").to_pylist()]
        others = [(name, _sum(self.requests[name])) for name in self if name not in columns]
        rows += [{"branch": f"({name})", name: amount, phases.TOTAL: amount} for name, amount in others]
        amounts = pa.schema([("branch", pa.string()), *((name, pa.int64()) for name in AMOUNTS)])
        filled = [dict.fromkeys(AMOUNTS, 0) | row for row in rows]
        return Table.from_pylist(filled, schema=amounts.append(pa.field(UNCOMPRESSED, pa.float64())))


def _sum(column: pa.ChunkedArray) -> int:
    return int(known_sum(column))


@metric(
    STRUCTURE,
    group=BYTES,
    source=LEDGER_RECORDS,
    formula="bytes_requested in each class, summed over all attempts and preprocessing",
)
def byte_ledger(run: Run, counted_chunks: Table | None = None) -> ByteLedger:
    """Bytes requested from storage: {class: bytes}, with `.total`, `.certificate`, `.by(...)` and `.advice`.

    For attempts whose result was used, the classes are "payload" (baskets read for the first time), "re-read",
    "metadata" and "other files" (files that process() opened itself). The other classes are "failed" (all other
    attempts), "preprocessing" and "residual".
    """
    for name in ("chunks", "branch_reads"):
        refuse_if(getattr(run, name) is None or name in run.absent, reason_of_absence(run, name))
    chunks = _metered(run, counted_chunks)
    table, preprocessing = chunks.table, run.preprocessing
    parts, openings = [chunks.requests(), chunks.requests_of_others()], [table, chunks.openings_of_others()]
    # "other files" was not measured if no attempt recorded it; the same applies to preprocessing
    told = pc.or_(table["bytes_other"].is_valid(), table["other_files"].is_valid())
    unmeasured = [phases.OTHER_FILES] if len(table) > 0 == known_sum(told) else []
    if preprocessing is None or 0 < len(preprocessing) == preprocessing["bytes_requested"].null_count:
        unmeasured.append(phases.PREPROCESSING)
    if preprocessing is not None:
        opened = rows_where(preprocessing, preprocessing["bytes_requested"].is_valid())
        good = ~having(opened["outcome"], ERROR)
        parts.append(_requests_of(opened, integers(opened["bytes_requested"]), good, {phases.PREPROCESSING: None}))
        openings.append(preprocessing)
    requests = _requests(parts)
    received, lacking = _transferred(openings)
    return ByteLedger(
        requests,
        tree_branches_of(table, chunks.reads),
        _certificate(run, chunks, requests, lacking),
        unmeasured=tuple(unmeasured),
        repeated=chunks.repeated(run),
        unmetered=pc.sum(table["bytes_unmetered"]).as_py(),
        asked=run.asked,
        **received,
    )


def _requests(parts: list[Table]) -> Table:
    columns = [(name, pa.string()) for name in PLACES] + [(name, pa.int64()) for name in AMOUNTS]
    return joined([pa.schema(columns).empty_table(), *parts])


def _requests_of(places: Table, total: Integers, counted: Flags, classes: Mapping[str, Integers | None]) -> Table:
    return classified(phases.BYTE_NAMES, places.select(PLACES), total, counted, classes)


class _Metered(NamedTuple):
    """Chunk attempts and their branch reads.

    `known` marks attempts with a byte count, and `counted` marks attempts whose result was used.
    """

    table: Table
    known: Flags
    counted: Flags
    reads: Reads

    def of_reads(self, amounts: Integers) -> Integers:
        return np.rint(np.bincount(self.reads.attempt, amounts, len(self.table))).astype(np.int64)

    def requests(self) -> Table:
        known, table = self.known, self.table
        classes = {
            phases.PAYLOAD: self.of_reads(self.reads.payload)[known],
            phases.REREAD: self.of_reads(self.reads.all_reread)[known],
            phases.METADATA: integers(table["bytes_metadata"])[known],
        }
        total = integers(table["bytes_requested"])[known]
        return _requests_of(rows_where(table.select(PLACES), known), total, self.counted[known], classes)

    def requests_of_others(self) -> Table:
        """Request rows for files that process() opened itself, with one row for each file and attempt."""
        opened = self.table["other_requested"].is_valid()
        table = rows_where(self.table.select(["dataset", *OF_OTHERS]), opened)
        attempts = pc.list_parent_indices(table["other_files"])
        file, total, payload, metadata = (pc.list_flatten(table[name]) for name in OF_OTHERS[:4])
        places = {
            "dataset": table["dataset"].take(attempts),
            "file": file,
            "endpoint": pa.nulls(len(file), pa.string()),
        }
        counted = self.counted[opened.to_numpy()][attempts.to_numpy()]
        classes = {phases.OTHER_FILES: integers(payload) + integers(metadata)}
        return _requests_of(pa.table(places), integers(total), counted, classes)

    def openings_of_others(self) -> Table:
        table = rows_where(self.table, self.table["other_requested"].is_valid())
        own = {"bytes_requested": "bytes_other", "bytes_transferred": "bytes_other_transferred"}
        return pa.table({name: table[own.get(name, name)] for name in OF_OPENINGS})

    def repeated(self, run: Run) -> Repeated:
        place = ["call", "dataset", "file", "tree"]
        counted = rows_where(self.table.select([*place, "source", "bytes_metadata"]), self.counted)
        file, metadata = codes(counted, place), integers(counted["bytes_metadata"])
        once = np.zeros(file.max(initial=-1) + 1, np.int64)
        np.maximum.at(once, file, metadata)
        opened = self.counted & self.table["other_baskets"].is_valid().to_numpy()
        table = rows_where(self.table.select(OF_OTHERS), opened)
        each = pa.table({name: pc.list_flatten(table[name]) for name in OF_OTHERS})
        baskets = pc.greater(each["other_payload"], 0)
        return Repeated(
            baskets={cause: int(amounts.sum()) for cause, amounts in self.reads.reread.items()},
            metadata=int(metadata.sum() - once.sum()),
            chunks=len(counted),
            files=len(once),
            aligned=any(call.options.get("align_clusters") for call in run.calls),
            parquet=bool(pc.any(of_texts(counted["source"], pc.starts_with, "Parquet")).as_py()),
            # a chunk may have read only part of a cluster that another chunk also read
            others=_again(each.filter(baskets), "other_baskets", "other_payload"),
            objects=_again(each.filter(pc.invert(baskets)), "other_requested", "other_requested"),
            reads_on=reads_on(run.environment.versions.get("uproot")),
            of_tasks=bool(pc.all(of_texts(counted["call"], pc.starts_with, OF_TASKS)).as_py()),
        )


OF_OPENINGS: Final = ("bytes_requested", "bytes_transferred", "source", "outcome")
OF_OTHERS: Final = ("other_files", "other_requested", "other_payload", "other_metadata", "other_baskets")


def _metered(run: Run, counted: Table | None) -> _Metered:
    """Collect a run's chunk attempts.

    Raises
    ------
    NotMeasuredError
        If more than 10 % of the attempts have no byte count, or if an attempt has no ID.
    """
    table: Table = run.chunks
    loaded = pc.equal(table["outcome"], CHECKPOINT)
    for name in ("bytes_requested", "bytes_transferred", "bytes_metadata"):
        # an attempt that loaded a checkpoint requested nothing
        column = pc.if_else(loaded, pa.scalar(0, pa.int64()), table[name])
        table = table.set_column(table.schema.get_field_index(name), name, column)
    known = np.asarray(table["bytes_requested"].is_valid().to_numpy(), np.bool_)
    unknown, nameless = int(np.count_nonzero(~known)), table["id"].null_count
    of_all = f"of {len(table)} chunk attempts"
    # if byte counts are missing for only a few attempts, a ledger of the others is still useful
    refuse_if(unknown > 0.1 * len(table), f"requested bytes are unknown for {unknown} {of_all}")
    refuse_if(nameless, f"{nameless} {of_all} have no ID")
    used = among(table, facts.counted_chunks(table) if counted is None else counted) & known
    return _Metered(table, known, used, split_reads(table, used, run.branch_reads))


def _again(reads: Table, which: str, amount: str) -> dict[str, int]:
    """Number of bytes re-read from each file. Rows with the same value in the column `which` read the same data."""
    each = aggregated(reads, ["other_files", which], {"all": (amount, "sum"), "largest": (amount, "max")}, None)
    found = Counter[str]()
    for row in each.to_pylist():
        found[row["other_files"]] += (row["all"] or 0) - (row["largest"] or 0)
    return {name: size for name, size in found.items() if size}


def _transferred(openings: list[Table]) -> tuple[Row, int]:
    """Count the bytes received by all attempts.

    Returns the total (or the reason why it is unknown), and the number of bytes that successful attempts requested but
    did not receive. A failed request received either nothing or an unknown amount.
    """
    table = joined(opening.select(OF_OPENINGS) for opening in openings)
    asked = rows_where(table, pc.fill_null(pc.not_equal(table["bytes_requested"], 0), True))
    unknown = asked.filter(asked["bytes_transferred"].is_null())
    if len(unknown):
        names = ", ".join(sorted(filter(None, unknown["source"].unique().to_pylist()))) or "an unknown source"
        of_all = f"{len(unknown)} of {len(asked)} attempts read"
        return {"transferred_absent": f"{of_all} through {names}, which does not report transfers"}, 0
    beyond = integers(table["bytes_transferred"]) - integers(table["bytes_requested"])
    failed = one_of(table["outcome"], pa.array(facts.FAILED))
    of_good = int(beyond[~failed].sum())
    gaps = of_good + int(beyond[failed].clip(min=0).sum())
    return {"transferred": _sum(table["bytes_transferred"]), "gaps": gaps}, max(-of_good, 0)


def _certificate(run: Run, chunks: _Metered, requests: Table, lacking: int) -> Certificate:
    table, reads = chunks.table, chunks.reads
    if run.tasks is None:
        attempts, missing = attempts_of_calls(run, table, facts.counted_chunks(table))
    else:
        attempts, missing = _against_tasks(run.tasks, PROCESSOR, table, "chunk attempts")
    tables = ("chunks", "branch_reads", "preprocessing", "tasks")
    reasons = [*missing, *facts.why_calls_lack(run), *_missing_preprocessing(run), *facts.lost_rows(run, *tables)]
    given = chunks.of_reads(integers(reads.table["bytes_payload"]) + integers(reads.table["bytes_again"]))
    payload = table["bytes_payload"]
    differs = chunks.counted & payload.is_valid().to_numpy() & (integers(payload) != given)
    counts = {
        "chunk attempts have no count of requested bytes": np.sum(~chunks.known),
        "chunks have no count of metadata bytes": np.sum(chunks.counted & table["bytes_metadata"].is_null().to_numpy()),
        "chunks have no record of some branches they read": np.sum(differs),
        "chunks lack a count of bytes from files opened inside process()": known_sum(
            pc.and_(table["bytes_other"].is_null(), table["other_files"].is_valid())
        ),
    }
    reasons += [f"{count} {what}" for what, count in counts.items() if count]
    # bytes that belong to no class, and bytes that were not received although no request failed
    if unexplained := int(np.count_nonzero(integers(requests[phases.RESIDUAL]))):
        attempts_of = f"{in_words(unexplained, 'attempt')} {'has' if unexplained == 1 else 'have'}"
        reasons.append(
            f"{attempts_of} unaccounted-for bytes ({BYTE.text(known_sum(requests[phases.RESIDUAL]))} in total)"
        )
    if lacking:
        reasons.append(f"{BYTE.text(lacking)} less was transferred than requested")
    unmetered = known_sum(table["bytes_unmetered"])
    if unmetered >= max(1_000_000, 0.01 * known_sum(requests[phases.TOTAL])):
        size = BYTE.text(unmetered)
        reasons.append(f"process() read {size} without uproot (from files or pipes)")
    outside = [run.absent[OUTSIDE]] if OUTSIDE in run.absent else []
    # process() ran on a system that does not count the bytes a thread reads; older versions recorded neither column
    ran = pc.and_(table["bytes_other"].is_valid(), table["process_seconds"].is_valid())
    if pc.any(pc.and_(ran, table["bytes_unmetered"].is_null()), min_count=0).as_py():
        outside.append("bytes that process() read without uproot could not be counted")
    if cached := known_sum(table["bytes_cached"]):
        outside.append(f"{BYTE.text(cached)} of arrays came from coffea's buffer cache")
    estimated = int(np.count_nonzero(reads.estimated))
    return Certificate(attempts=attempts, reasons=reasons, estimated=estimated, outside="; ".join(outside) or None)


def _missing_preprocessing(run: Run) -> list[str]:
    records, what = run.preprocessing, "preprocessing tasks"
    if records is None:
        absent = run.absent.get("preprocessing")
        return ["preprocessing was not recorded" if absent is None else f"preprocessing: {absent}"]
    unknown = records["bytes_requested"].null_count
    reasons = [f"{unknown} {what} have no count of requested bytes"] if unknown else []
    if run.tasks is not None:
        tasks = run.tasks.select(["key", "run_id", "outcome", "kind", "prefix"])
        tasks = rows_with(tasks, "kind", [PREPROCESSING])
        others = pc.fill_null(pc.not_equal(tasks["prefix"], MERGE_PREFIX), True)
        return reasons + _against_tasks(rows_where(tasks, others), PREPROCESSING, records, what)[1]
    # a retried file has one record per attempt but finishes only once
    submitted = {call.id: call.files for call in run.calls if call.outcome == FINISHED and call.files is not None}
    ours = rows_with(records, "call", submitted)
    seen = ours.group_by(["call", "dataset", "file", "tree"]).aggregate([])
    finished = len(facts.with_outcome(ours, (OK,)))
    return reasons + compared(sum(submitted.values()), finished, "files in preprocessing", len(seen))[1]


def _against_tasks(tasks: Table, kind: str, records: Table, what: str) -> tuple[Attempts, list[str]]:
    """Count attempts, and describe tasks of this kind that have no record or more than one."""
    ours = having(tasks["kind"], kind)
    known, attempts = facts.identities(tasks, records)
    missing = tasks["outcome"].filter(pa.array(ours & (attempts < 0)))
    how = {
        LOST: "whose worker was lost",
        CANCELLED: "that were cancelled",
        UNFINISHED: "that were unfinished at the end",
    }
    ends = Counter(how.get(outcome, "that ended") for outcome in missing.to_pylist())
    reasons = [f"{number} {what} {end} left no record" for end, number in ends.items()]
    found = known[(known >= 0) & np.isin(known, attempts[ours])]
    if more := np.count_nonzero(rows_of(found, found) != np.arange(len(found))):
        reasons.append(f"{more} {what} are recorded more than once")
    number = int(np.count_nonzero(ours))
    return Attempts(number - len(missing), number), reasons


# Ledger metrics

of_ledger = partial(metric, group=BYTES, source=ByteLedger.name)


of_clock = partial(metric, GIGABIT_PER_SECOND, group=BYTES, source=f"{ByteLedger.name}, wall clock")


@of_ledger(BYTE, phases.TOTAL, "bytes_requested, summed over attempts and preprocessing")
def bytes_requested(byte_ledger: ByteLedger) -> Sourced:
    """Bytes requested from storage by all chunk attempts and by preprocessing."""
    return byte_ledger.sourced(byte_ledger.total or 0)


metrics_of_classes("byte_ledger", BYTE, phases.BYTE_CLASSES, of_ledger)


@of_ledger(BYTE, TRANSFERRED, "sum of bytes_transferred")
def bytes_transferred(byte_ledger: ByteLedger) -> Sourced:
    """Bytes received from storage: the requested bytes plus the gaps between merged ranges.

    Bytes received by failed requests are unknown and therefore not included. Compare this metric with the server's own
    byte count.
    """
    refuse_if(byte_ledger.transferred is None, str(byte_ledger.transferred_absent))
    return byte_ledger.sourced(byte_ledger.transferred)


@of_clock("data rate (all requests)")
def data_rate_requested_gbps(bytes_requested: float, elapsed_time_seconds: float) -> float:
    """Rate at which bytes were requested, including requests by preprocessing and failed attempts."""
    return 8e-9 * bytes_requested / elapsed_time_seconds


@of_clock("data rate (payload)")
def data_rate_payload_gbps(bytes_payload: float, elapsed_time_seconds: float) -> float:
    """Rate at which payload was read, counting each basket once."""
    return 8e-9 * bytes_payload / elapsed_time_seconds


@of_ledger(FRACTION, "useful fraction")
def useful_fraction(bytes_payload: float, bytes_requested: float, bytes_other_files: float | None = None) -> float:
    """Payload as a share of the bytes requested from the chunks' own files. Each basket is counted once."""
    return bytes_payload / (bytes_requested - (bytes_other_files or 0))


@of_ledger(RATIO, "read amplification")
def read_amplification(bytes_payload: float, bytes_reread: float) -> float:
    """Mean number of times each payload byte was read; 1 if nothing was re-read."""
    return (bytes_payload + bytes_reread) / bytes_payload


@of_ledger(BYTE, UNCOMPRESSED, "sum of bytes_uncompressed over branches")
def total_bytes_uncompressed(byte_ledger: ByteLedger) -> int:
    """Uncompressed size of all data read by chunks. A basket read by two chunks counts twice."""
    return int(complete_sum(byte_ledger.branches, "bytes_uncompressed", "branches"))


@of_ledger(RATIO, "compression factor", "uncompressed / compressed bytes of branches whose compressed size is known")
def compression_ratio(byte_ledger: ByteLedger) -> float:
    """Uncompressed size of the data read, divided by its compressed size.

    Branches with baskets embedded in the tree are excluded, because their compressed size is unknown.
    """
    branches = byte_ledger.tree_branches
    read = branches.filter(pc.invert(branches["embedded"]))
    stored = _sum(read["bytes_payload"]) + _sum(read["bytes_reread"])
    refuse_if(stored == 0, "no branch has a known compressed size")
    return float(complete_sum(read, "bytes_uncompressed", "branches")) / stored


of_files = partial(metric, group=BYTES, source=LEDGER_RECORDS)


@of_files(STRUCTURE, formula="branches and payload read from each file, as fractions of its branch count and size")
def file_read_metrics(counted_chunks: Table, byte_ledger: ByteLedger) -> dict[str, Row]:
    """Branches and bytes read from each file: {file: {name: amount}}.

    The names are `branches_read`, `total_branches`, `branches_read_percent`, `bytes_read` (payload, counting each
    basket once), `file_bytes` and `bytes_read_percent`. Unknown amounts are None.
    """
    largest = {key: (key, "max") for key in ("tree_branches", "file_bytes")}
    trees = aggregated(counted_chunks, ["file", "tree"], largest, None)
    files = trees.group_by("file").aggregate([("tree_branches", "sum", NULL_IF_ANY), ("file_bytes", "max")])
    branches = aggregated(byte_ledger.tree_branches, ["file", "tree", "branch"], {"payload": ("bytes_payload", "sum")})
    sums = branches.group_by("file").aggregate([("branch", "count"), ("payload", "sum")]).to_pylist()
    read = {row["file"]: (row["branch_count"], row["payload_sum"]) for row in sums}
    files = files.filter(files["file"].is_valid()).sort_by("file")
    columns = (files[name].to_pylist() for name in ("file", "tree_branches_sum", "file_bytes_max"))
    found = {}
    for file, of, size in zip(*columns, strict=True):
        number, payload = read.get(file, (0, 0))
        found[file] = {
            "total_branches": of,
            "branches_read": number,
            "branches_read_percent": 100 * number / of if of else None,
            "file_bytes": size,
            "bytes_read": payload,
            "bytes_read_percent": 100 * payload / size if size else None,
        }
    return found


def _mean_share(files: Mapping[str, Row], name: str) -> float:
    shares = [share for file in files.values() if (share := file[name]) is not None]
    refuse_if(not files, "no file was read")
    refuse_if(len(shares) < len(files), f"unknown for {len(files) - len(shares)} of {len(files)} files")
    return float(np.mean(shares))


@of_files(PERCENT, "share of files read", "mean over files")
def avg_bytes_read_percent(file_read_metrics: dict[str, Row]) -> float:
    """Share of a file's bytes read as payload, averaged over files. Each basket is counted once."""
    return _mean_share(file_read_metrics, "bytes_read_percent")


@of_files(PERCENT, "share of branches read", "mean over files")
def avg_branches_read_percent(file_read_metrics: dict[str, Row]) -> float:
    """Share of a file's branches read, averaged over files."""
    return _mean_share(file_read_metrics, "branches_read_percent")


@of_files(COUNT, "branches read", "distinct branch names")
def total_branches_read(byte_ledger: ByteLedger) -> int:
    """Number of distinct branch names read across all files."""
    return len(byte_ledger.branches["branch"].unique())


@fact
def branches(run: Run, byte_ledger: ByteLedger | None = None) -> Table:
    """Branch table by dataset and file (BRANCH_COLUMNS), from the byte ledger if it is available."""
    found = branches_of(run) if byte_ledger is None else byte_ledger.branches
    refuse_if(found is None, reason_of_absence(run, "chunks" if run.chunks is None else "branch_reads"))
    return found
