"""The byte ledger: bytes requested from storage in classes that do not overlap, and metrics derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import NO_TREE_BRANCHES, branches_of, over_trees, tree_branches_of
from roastcoffea.metrics.catalogue import BYTES, NotMeasuredError, Sourced, fact, metric, refuse_if
from roastcoffea.metrics.endpoints import with_endpoints, with_sites
from roastcoffea.metrics.facts import NULL_IF_ANY, aggregated, complete_sum, known_sum, reason_of_absence
from roastcoffea.metrics.ledger import LABELS_OF, Attempts, Certificate, Ledger
from roastcoffea.metrics.requests import (
    ChunkRequests,
    Repeated,
    certificate,
    preprocessing_requests,
    requests_table,
    transferred,
)
from roastcoffea.records.run import Run
from roastcoffea.sheets.sheet import BYTE_LEDGER, TRANSFERRED, Cell, Sheet
from roastcoffea.units import BYTE, COUNT, FRACTION, GIGABIT_PER_SECOND, PERCENT, RATIO, STRUCTURE, Unit

if TYPE_CHECKING:
    import pandas as pd


AMOUNTS: Final = (*phases.BYTE_NAMES, phases.TOTAL)
UNCOMPRESSED: Final = "uncompressed"

MEANINGS: Final[Mapping[str, str]] = {
    **{one.name: one.meaning for one in phases.BYTE_CLASSES},
    phases.TOTAL: "Bytes requested from storage, of all classes.",
    UNCOMPRESSED: "Size of what was read after decompression.",
}

LEDGER_RECORDS: Final = "chunk, branch and preprocessing records"

Breakdown = Literal["dataset", "file", "branch", "endpoint", "site"]
BREAKDOWNS: Final = get_args(Breakdown)


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that a change would save: why they were requested, how many, and what to change."""

    cause: str
    bytes: int
    text: str


Adviser = Callable[[Repeated, int], Sequence[Saving]]
"""Recommends changes that save bytes, given repeated requests and the total."""


@dataclass(eq=False, repr=False)
class ByteLedger(Ledger["int | None"]):
    """Bytes requested from storage by class; `total` is measured independently.

    A class that was not measured is None. Without any measurement the ledger is empty and `absent` has the reason.
    """

    name: ClassVar[str] = "byte ledger"
    title: ClassVar[str] = BYTE_LEDGER
    unit: ClassVar[Unit] = BYTE
    _advisers: ClassVar[list[Adviser]] = []

    requests: pa.Table
    """One row per attempt: dataset, file, bytes of each class, total."""
    tree_branches: pa.Table
    """As `branches`, but by `tree` as well; `embedded`: whether baskets are stored in the tree, without a size."""
    certificate: Certificate
    _: KW_ONLY
    unmeasured: tuple[str, ...] = ()
    """Classes that were not measured."""
    transferred: int | None = None
    """Bytes received from storage, including the gaps between merged ranges."""
    gaps: int | None = None
    """Bytes transferred without being requested."""
    transferred_absent: str | None = None
    repeated: Repeated | None = None
    """Bytes requested more than once."""
    unmetered: int | None = None
    """Bytes that threads of chunks read in process() by other means than uproot; None if the system does not tell."""
    absent: str | None = None
    asked: pa.Table | None = None
    """Files that were asked for, with their sites."""

    def __post_init__(self) -> None:
        self.branches = over_trees(self.tree_branches)
        self.total = None if self.absent else _sum(self.requests[phases.TOTAL])
        names = phases.BYTE_NAMES if self.absent is None else ()
        self._classes = {name: None if name in self.unmeasured else _sum(self.requests[name]) for name in names}

    @classmethod
    def not_measured(cls, reason: str) -> ByteLedger:
        """Ledger of a run without byte records."""
        certificate = Certificate(attempts=Attempts(0, None), reasons=[reason])
        return cls(requests_table([]), NO_TREE_BRANCHES, certificate, transferred_absent=reason, absent=reason)

    def measured(self, name: str) -> int:
        """Bytes of a class; see `Ledger.measured`."""
        amount = self[name]
        if amount is None:
            reasons = [*self.certificate.reasons, "the version that recorded this run did not"]
            raise NotMeasuredError(f"{name} was not measured: {reasons[0]}")
        return amount

    @classmethod
    def advised_by(cls, adviser: Adviser) -> Adviser:
        """Register the function that recommends how to save bytes; recommendations live above the metrics."""
        cls._advisers.append(adviser)
        return adviser

    @property
    def advice(self) -> list[Saving]:
        """Changes that save bytes, largest saving first."""
        if self.repeated is None:
            return []
        return [saving for adviser in self._advisers for saving in adviser(self.repeated, self.total or 0)]

    def sheets(self) -> list[Sheet]:
        """Classes with amounts and shares of the total, missing records, and changes that save bytes."""
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
        """Classes and total as columns, one row per dataset, file, branch, endpoint or site.

        Columns sum to the ledger. The endpoint is the server that XRootD read from, else the host of a URL; sites are
        known if the fileset names them. By branch, bytes that belong to no branch have their own rows in parentheses,
        and there is a column `uncompressed`.
        """
        if what not in BREAKDOWNS:
            raise ValueError(f"there is no breakdown by {what!r}; choose {', '.join(BREAKDOWNS)}")
        table = self._by_branch() if what == "branch" else self.requests
        if what == "endpoint":
            table = with_endpoints(table)
        if what == "site":
            table = with_sites(table, self.asked)
        if what != "branch":
            table = aggregated(table, [what], {name: (name, "sum") for name in AMOUNTS}).sort_by(what)
        frame: pd.DataFrame = table.to_pandas().set_index(what)
        frame[[*self.unmeasured]] = None
        if self.absent:
            frame.attrs["absent"] = self.absent
        return frame

    def _by_branch(self) -> pa.Table:
        columns = {one.name: (one.metric_name, "sum") for one in phases.BYTE_CLASSES if one.of_branches}
        sums = aggregated(self.branches, ["branch"], columns | {UNCOMPRESSED: ("bytes_uncompressed", "sum")})
        rows = [row | {phases.TOTAL: sum(row[name] for name in columns)} for row in sums.sort_by("branch").to_pylist()]
        others = [(name, _sum(self.requests[name])) for name in self if name not in columns]
        rows += [{"branch": f"({name})", name: amount, phases.TOTAL: amount} for name, amount in others]
        amounts = pa.schema([("branch", pa.string()), *((name, pa.int64()) for name in AMOUNTS)])
        filled = [dict.fromkeys(AMOUNTS, 0) | row for row in rows]
        return pa.Table.from_pylist(filled, schema=amounts.append(pa.field(UNCOMPRESSED, pa.float64())))


def _sum(column: pa.ChunkedArray) -> int:
    return int(known_sum(column))


@metric(
    STRUCTURE,
    group=BYTES,
    source=LEDGER_RECORDS,
    formula="classes of bytes_requested, summed over all attempts and preprocessing",
)
def byte_ledger(run: Run, counted_chunks: pa.Table | None = None) -> ByteLedger:
    """Bytes requested from storage by class: {class: bytes}, with `.total`, `.certificate`, `.by(...)`, `.advice`.

    Classes are "payload" (baskets read for the first time), "re-read", "metadata" and "other files" (which process()
    opened itself) for attempts whose result was used, "failed" for all other attempts, "preprocessing", and "residual".
    """
    for name in ("chunks", "branch_reads"):
        refuse_if(getattr(run, name) is None or name in run.absent, reason_of_absence(run, name))
    chunks, preprocessing = ChunkRequests.of(run, counted_chunks), run.preprocessing
    unmeasured = [phases.OTHER_FILES] if chunks.without_others else []
    parts, openings = [chunks.requests(), chunks.other_files()], [chunks.table, chunks.openings_of_others()]
    # whether no opening of a file reported its requests
    if preprocessing is None or 0 < len(preprocessing) == preprocessing["bytes_requested"].null_count:
        unmeasured.append(phases.PREPROCESSING)
    if preprocessing is not None:
        parts.append(preprocessing_requests(preprocessing))
        openings.append(preprocessing)
    requests, received = requests_table(parts), transferred(openings)
    return ByteLedger(
        requests,
        tree_branches_of(chunks.table, chunks.reads),
        certificate(run, chunks, requests, received),
        unmeasured=tuple(unmeasured),
        transferred=received.total,
        gaps=received.gaps,
        transferred_absent=received.absent,
        repeated=chunks.repeated(run),
        unmetered=chunks.unmetered,
        asked=run.asked,
    )


# Metrics of the ledger

of_ledger = partial(metric, group=BYTES, source=ByteLedger.name)


of_clock = partial(metric, GIGABIT_PER_SECOND, group=BYTES, source=f"{ByteLedger.name}, wall clock")


@of_ledger(BYTE, label=phases.TOTAL, formula="bytes_requested, summed over attempts and preprocessing")
def bytes_requested(byte_ledger: ByteLedger) -> Sourced:
    """Bytes requested from storage by all attempts of chunks and by preprocessing."""
    return byte_ledger.sourced(byte_ledger.total or 0)


def _bytes_of(name: str, byte_ledger: ByteLedger) -> Sourced:
    return byte_ledger.sourced(byte_ledger.measured(name))


for one in phases.BYTE_CLASSES:
    label = LABELS_OF.get(one.name, one.name)
    of_class = partial(of_ledger, name=one.metric_name, label=label, meaning=one.meaning)
    of_class(BYTE, formula=f'byte_ledger["{one.name}"]')(partial(_bytes_of, one.name))


@of_ledger(BYTE, label=TRANSFERRED, formula="sum of bytes_transferred")
def bytes_transferred(byte_ledger: ByteLedger) -> Sourced:
    """Bytes received from storage: requested bytes plus gaps between merged ranges.

    Bytes received by a failed request are unknown and not included. This is the number to compare with a server's
    count.
    """
    refuse_if(byte_ledger.transferred is None, str(byte_ledger.transferred_absent))
    return byte_ledger.sourced(byte_ledger.transferred)


@of_clock(label="data rate (all requests)")
def data_rate_requested_gbps(bytes_requested: float, elapsed_time_seconds: float) -> float:
    """Rate of all requested bytes, including preprocessing and failed attempts."""
    return 8e-9 * bytes_requested / elapsed_time_seconds


@of_clock(label="data rate (payload)")
def data_rate_payload_gbps(bytes_payload: float, elapsed_time_seconds: float) -> float:
    """Rate of payload bytes, each basket counted once."""
    return 8e-9 * bytes_payload / elapsed_time_seconds


@of_ledger(FRACTION, label="useful fraction")
def useful_fraction(bytes_payload: float, bytes_requested: float, bytes_other_files: float | None = None) -> float:
    """Payload, each basket counted once, as a share of the bytes requested from the chunks' own files."""
    return bytes_payload / (bytes_requested - (bytes_other_files or 0))


@of_ledger(RATIO, label="read amplification")
def read_amplification(bytes_payload: float, bytes_reread: float) -> float:
    """Times an average payload byte was read; 1 if each basket was read once."""
    return (bytes_payload + bytes_reread) / bytes_payload


@of_ledger(BYTE, label=UNCOMPRESSED, formula="sum of bytes_uncompressed over branches")
def total_bytes_uncompressed(byte_ledger: ByteLedger) -> int:
    """Size after decompression of everything chunks read; baskets read by two chunks count twice."""
    return int(complete_sum(byte_ledger.branches, "bytes_uncompressed", "branches"))


@of_ledger(RATIO, label="compression factor", formula="uncompressed / compressed bytes of branches with payload")
def compression_ratio(byte_ledger: ByteLedger) -> float:
    """Uncompressed size divided by compressed size of the payload.

    Branches with baskets embedded in the tree are left out, because their compressed size is unknown.
    """
    branches = byte_ledger.tree_branches
    read = branches.filter(pc.invert(branches["embedded"]))
    stored = _sum(read["bytes_payload"]) + _sum(read["bytes_reread"])
    refuse_if(stored == 0, "no branch has a known compressed size")
    return float(complete_sum(read, "bytes_uncompressed", "branches")) / stored


Share = Literal["branches_read_percent", "bytes_read_percent"]


class FileRead(TypedDict):
    """What was read from a file; unknown amounts are None."""

    total_branches: int | None
    branches_read: int
    branches_read_percent: float | None
    file_bytes: int | None
    bytes_read: int
    bytes_read_percent: float | None


of_files = partial(metric, group=BYTES, source=LEDGER_RECORDS)


@of_files(STRUCTURE, formula="branches and payload of each file, relative to its branches and size")
def file_read_metrics(counted_chunks: pa.Table, byte_ledger: ByteLedger) -> dict[str, FileRead]:
    """What was read from each file: {file: {name: amount}}.

    `branches_read` of `total_branches`, and `branches_read_percent`; `bytes_read` (payload, each basket once) of
    `file_bytes`, and `bytes_read_percent`. Unknown amounts are None.
    """
    largest = {key: (key, "max") for key in ("tree_branches", "file_bytes")}
    trees = aggregated(counted_chunks, ["file", "tree"], largest, None)
    files = trees.group_by("file").aggregate([("tree_branches", "sum", NULL_IF_ANY), ("file_bytes", "max")])
    branches = aggregated(byte_ledger.tree_branches, ["file", "tree", "branch"], {"payload": ("bytes_payload", "sum")})
    sums = branches.group_by("file").aggregate([("branch", "count"), ("payload", "sum")]).to_pylist()
    read = {row["file"]: (row["branch_count"], row["payload_sum"]) for row in sums}
    return {
        size["file"]: _shares(*read.get(size["file"], (0, 0)), size["tree_branches_sum"], size["file_bytes_max"])
        for size in files.sort_by("file").to_pylist()
        if size["file"] is not None
    }


def _shares(branches: int, payload: int, total_branches: int | None, file_bytes: int | None) -> FileRead:
    return {
        "total_branches": total_branches,
        "branches_read": branches,
        "branches_read_percent": 100 * branches / total_branches if total_branches else None,
        "file_bytes": file_bytes,
        "bytes_read": payload,
        "bytes_read_percent": 100 * payload / file_bytes if file_bytes else None,
    }


def _mean_share(files: Mapping[str, FileRead], name: Share) -> float:
    shares = [share for file in files.values() if (share := file[name]) is not None]
    refuse_if(not files, "no file was read")
    refuse_if(len(shares) < len(files), f"unknown for {len(files) - len(shares)} of {len(files)} files")
    return float(np.mean(shares))


@of_files(PERCENT, label="share of the files read", formula="mean over files")
def avg_bytes_read_percent(file_read_metrics: dict[str, FileRead]) -> float:
    """Share of a file's bytes read as payload, each basket counted once; averaged over files."""
    return _mean_share(file_read_metrics, "bytes_read_percent")


@of_files(PERCENT, label="share of branches read", formula="mean over files")
def avg_branches_read_percent(file_read_metrics: dict[str, FileRead]) -> float:
    """Share of a file's branches that were read; averaged over files."""
    return _mean_share(file_read_metrics, "branches_read_percent")


@of_files(COUNT, label="branches read", formula="distinct branch names")
def total_branches_read(byte_ledger: ByteLedger) -> int:
    """Number of distinct branches read, over all files."""
    return len(byte_ledger.branches["branch"].unique())


@fact
def branches(run: Run, byte_ledger: ByteLedger | None = None) -> pa.Table:
    """Branches by dataset and file, with BRANCH_COLUMNS, as counted by the ledger if there is one."""
    found = branches_of(run) if byte_ledger is None else byte_ledger.branches
    refuse_if(found is None, reason_of_absence(run, "chunks" if run.chunks is None else "branch_reads"))
    return found
