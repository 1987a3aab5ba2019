"""Branches to preload for each dataset, and the saving from requesting all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from roastcoffea.diagnosis.savings import Taken, in_order, of_chunks
from roastcoffea.metrics.catalogue import fact, refuse_if
from roastcoffea.metrics.facts import recorded
from roastcoffea.metrics.statistics import Numbers, amounts, places
from roastcoffea.records.run import Run
from roastcoffea.replay.changes import ratio

SPENT: Final = ["read_seconds", "decompress_seconds", "interpret_seconds"]


@dataclass(frozen=True, eq=False)
class Preloading:
    """Branches worth preloading in each dataset, and each counted chunk's read time before and after."""

    branches: Mapping[str, list[str]]
    before: Numbers
    after: Numbers

    @property
    def seconds(self) -> float:
        return float((self.before - self.after).sum())

    @property
    def taken(self) -> Taken:
        left = np.where(self.before > 0, ratio(self.after, self.before), 1.0)
        removal = of_chunks(lambda old: old.with_parts(read=old.parts.read * in_order(left, old, 1.0)))
        return Taken(removal, self.seconds)


@fact
def preloading(run: Run, counted_chunks: pa.Table) -> Preloading:
    """Estimate the saving, based on each branch's wait for storage and its chunk's shortest request.

    Preloading a branch pays off if the round-trip time saved exceeds the cost of reading and unpacking the branch for
    chunks that do not use it. Nested branches are excluded, because coffea does not find them among preloaded branches.
    """
    reads, before = recorded(run, "branch_reads"), amounts(counted_chunks, "read_seconds")
    refuse_if(
        counted_chunks["shortest_request_seconds"].null_count == len(counted_chunks),
        "no requests were measured: files may be local",
    )
    late = amounts(counted_chunks, "requests") > amounts(counted_chunks, "metadata_requests")
    refuse_if(not late.any(), "no branch was read after process() began: all are already preloaded")
    trip = np.where(late, amounts(counted_chunks, "shortest_request_seconds"), 0.0)
    frame = reads.select(["branch", *SPENT]).to_pandas().fillna(dict.fromkeys(SPENT, 0.0))
    frame["chunk"] = places(reads["chunk"], counted_chunks["id"].combine_chunks())
    frame = frame[frame["chunk"].ge(0) & frame["read_seconds"].gt(0) & ~frame["branch"].str.contains("/", na=True)]
    frame["trip"] = np.minimum(frame["read_seconds"], trip[frame["chunk"]])
    frame["rest"] = frame["read_seconds"] - frame["trip"]
    frame["unused"] = frame[SPENT].sum(axis=1) - frame["trip"]
    found, after, names = dict[str, list[str]](), before.copy(), np.array(counted_chunks["dataset"].to_pylist())
    # datasets with the most reads first
    for dataset, each in sorted(frame.groupby(names[frame["chunk"]]), key=lambda group: -len(group[1])):
        rows = np.flatnonzero((names == dataset) & late)
        branches = each.groupby("branch").agg({"chunk": "nunique", "trip": "sum", "rest": "mean", "unused": "mean"})
        chosen = branches[branches["trip"] > (len(rows) - branches["chunk"]) * branches["unused"]]
        own = each[each["branch"].isin(chosen.index)]
        # with preloading, a chunk waits for one round trip and all chosen branches, whether or not it uses them
        waited = np.bincount(own["chunk"], own["trip"] + own["branch"].map(chosen["rest"]), len(before))[rows]
        saved = waited - trip[rows] - float(chosen["rest"].sum())
        if saved.sum() > 0:
            found[str(dataset)] = list(chosen.index)
            after[rows] = np.maximum(before[rows] - saved, 0.0)
    refuse_if(not found, "no chunk waits for several branches in succession")
    return Preloading(found, before, after)
