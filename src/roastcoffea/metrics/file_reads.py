"""Branches and bytes read from each file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypedDict

import numpy as np
import pyarrow as pa

from roastcoffea.metrics.branches import branches_of
from roastcoffea.metrics.byte_ledger import LEDGER_RECORDS, ByteLedger
from roastcoffea.metrics.catalogue import BYTES, fact, metric, refuse_if
from roastcoffea.metrics.facts import NULL_IF_ANY, aggregated, reason_of_absence
from roastcoffea.records.run import Run
from roastcoffea.units import COUNT, PERCENT, STRUCTURE

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
    read = _read_of_files(byte_ledger.tree_branches)
    return {
        size["file"]: _shares(*read.get(size["file"], (0, 0)), size["tree_branches_sum"], size["file_bytes_max"])
        for size in files.sort_by("file").to_pylist()
        if size["file"] is not None
    }


def _read_of_files(tree_branches: pa.Table) -> dict[str, tuple[int, int]]:
    """Number of distinct branches in all trees, and payload, of each file."""
    branches = tree_branches.group_by(["file", "tree", "branch"]).aggregate([("bytes_payload", "sum")])
    files = branches.group_by("file").aggregate([("branch", "count"), ("bytes_payload_sum", "sum")])
    return {row["file"]: (row["branch_count"], row["bytes_payload_sum_sum"]) for row in files.to_pylist()}


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
