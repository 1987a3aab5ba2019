"""Failed attempts: how many, why, where they cluster, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from roastcoffea.diagnosis.completeness import CommonError, CulpritParts, commonest, is_interrupt
from roastcoffea.diagnosis.memory import MemoryEvidence
from roastcoffea.metrics.busy import REPEATED
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.facts import rows_where
from roastcoffea.metrics.failures import RANGE
from roastcoffea.metrics.statistics import Flags, Integers, codes, having, moments, one_of
from roastcoffea.records.tasks import ERROR, LOST, PROCESSOR
from roastcoffea.units import FRACTION, SECOND, counted, number

BY_CHANCE: Final = 0.01
"""Probability below which failures cluster on a name, corrected for all names tested."""

FEWEST: Final = 2
"""Chunks that must have failed before anything is said of where."""

MOST_OF_THEM: Final = 0.5
"""Share of the failures that a name must have to be blamed for them."""


class Cluster(NamedTuple):
    """A name shared by most failures, far more often than by all attempts.

    Tested with the hypergeometric distribution over chunks: attempts of one chunk on one worker count once.
    """

    kind: str
    name: str
    failed: int
    tried: int
    all_failed: int
    all_tried: int
    probability: float
    """Chance of as many failures under this name, times the number of names tested."""


@dataclass(frozen=True, kw_only=True)
class FailureEvidence:
    """Failed attempts, except those whose worker was killed for its memory.

    Attributes
    ----------
    attempts : int
        Attempts of chunks that raised an error or were lost with their worker.
    chunks : int
        Number of their chunks.
    repeated : int
        Chunks of these that succeeded in another attempt.
    seconds : float
        Thread seconds of the attempts.
    by_reason : mapping
        Thread seconds by reason.
    error : CommonError or None
        The most common error.
    cluster : Cluster or None
        Name on which they cluster; None if they do not.
    common : Cluster or None
        Name that all of them share, and not all attempts, where they are too few for a cluster.
    """

    attempts: int
    chunks: int
    repeated: int
    seconds: float
    by_reason: Mapping[str, float]
    error: CommonError | None
    cluster: Cluster | None
    common: Cluster | None = None

    @property
    def what(self) -> str:
        """Which attempts failed, and where."""
        where, place = "", self.cluster or self.common
        if place is not None:
            share = (
                "all"
                if place.failed == place.all_failed
                else f"{FRACTION.text(place.failed / place.all_failed)} of them"
            )
            where = f", {share} on {place.kind} {place.name}"
        again = f"{number(self.repeated)} of {counted(self.chunks, 'chunk')} succeeded in another attempt"
        return f"{counted(self.attempts, 'attempt')} failed{where}; {again}."

    @property
    def how_much(self) -> str:
        """What they cost, and the most common error."""
        found = {reason: seconds for reason, seconds in self.by_reason.items() if seconds}
        parts = ", ".join(f"{SECOND.text(seconds)} {reason}" for reason, seconds in found.items())
        reasons = f" ({parts})" if len(found) > 1 else ""
        error = f" Most common error{self.error.how_often}: {self.error.text}." if self.error is not None else ""
        they = "It" if self.attempts == 1 else "They"
        return f"{they} took {SECOND.text(self.seconds)} of thread time{reasons}.{error}"

    @property
    def remedy(self) -> str:
        """What to do."""
        listed = "`measurement.failed` lists them"
        match None if self.cluster is None else self.cluster.kind:
            case "worker" | "host":
                return f"Check {self.cluster.kind} {self.cluster.name}, or exclude it; {listed}"  # type: ignore[union-attr]
            case "file" | "dataset":
                return f"Check {self.cluster.kind} {self.cluster.name}, or read another copy of it; {listed}"  # type: ignore[union-attr]
            case _ if self.common is not None:
                chance = f"but so few may be on {self.common.kind} {self.common.name} by chance"
                return f"Fix the error, {chance}; {listed}"
            case _ if self.chunks < FEWEST:
                return f"Fix the error; {listed}"
            case _:
                return f"Fix the error, which is not specific to a worker, host, file or dataset; {listed}"

    def culprits(self) -> list[CulpritParts]:
        """The name on which failures cluster, with its failure rate divided by the overall rate."""
        if self.cluster is None:
            return []
        one = self.cluster
        rate = (one.failed / one.tried) / (one.all_failed / one.all_tried)
        return [(one.kind, one.name, self.seconds * one.failed / one.all_failed, rate)]


CHUNK: Final = ("dataset", "file", *RANGE)
LARGEST: Final = 1 << 62


@fact
def failure_evidence(
    chunks: pa.Table,
    counted_chunks: pa.Table,
    failed_work: pa.Table,
    lifetimes: pa.Table | None = None,
    memory_evidence: MemoryEvidence | None = None,
) -> FailureEvidence:
    """Attempts that failed for reasons other than memory."""
    killed = [] if memory_evidence is None else [row["worker"] for row in memory_evidence.killed]
    failed = _not_for_memory(failed_work, killed)
    tested = _tested_names(chunks, rows_where(failed, pc.not_equal(failed["reason"], REPEATED)), lifetimes)
    cluster = _cluster(tested)
    numbers = _numbers(counted_chunks, failed)
    succeeded, places = numbers[: len(counted_chunks)], np.unique(numbers[len(counted_chunks) :])
    sums = failed.group_by("reason", use_threads=False).aggregate([("seconds", "sum")]).to_pylist()
    by_reason = {row["reason"]: row["seconds_sum"] or 0.0 for row in sums}
    return FailureEvidence(
        attempts=len(failed),
        chunks=len(places),
        repeated=int(np.isin(places, succeeded).sum()),
        seconds=sum(by_reason.values()),
        by_reason=by_reason,
        error=commonest(failed["error"].to_pylist()),
        cluster=cluster,
        common=_common(tested) if cluster is None else None,
    )


def _not_for_memory(failed: pa.Table, killed: list[str]) -> pa.Table:
    """Failed attempts of chunks that took time, but not by Ctrl-C or with a worker that was killed for its memory."""
    raised = [not is_interrupt(error) for error in failed["error"].to_pylist()]
    failed = rows_where(failed, pa.array(raised, pa.bool_()))
    took = having(failed["kind"], PROCESSOR) & (moments(failed, "seconds") != 0)
    with_worker = one_of(failed["worker"], pa.array(killed, pa.string()))
    with_worker &= one_of(failed["reason"], pa.array([LOST, REPEATED]))
    return rows_where(
        failed, pa.array(took & one_of(failed["reason"], pa.array([ERROR, LOST, REPEATED])) & ~with_worker)
    )


def _numbers(*tables: pa.Table) -> Integers:
    """Number of the chunk of each row, across all tables."""
    every = pa.concat_tables([table.select(CHUNK) for table in tables], promote_options="permissive")
    number, most = np.zeros(len(every), np.int64), 1
    for name in CHUNK:
        own = codes(every[name])
        size = int(own.max(initial=0)) + 1
        if most * size > LARGEST:
            kept, number = np.unique(number, return_inverse=True)
            most = len(kept)
        number, most = number * size + own, most * size
    return number


def _tested_names(chunks: pa.Table, failed: pa.Table, lifetimes: pa.Table | None) -> list[Cluster]:
    """Names with failures, each with the chance of as many, corrected for all names."""
    if not len(failed):
        return []
    _, number = np.unique(_numbers(chunks, failed), return_inverse=True)
    bad = np.arange(len(chunks) + len(failed)) >= len(chunks)
    of_kinds = _names(chunks, failed, lifetimes).items()
    tested = [one for kind, names in of_kinds for one in _tested(kind, names, number, bad)]
    return [one._replace(probability=min(one.probability * len(tested), 1.0)) for one in tested]


def _cluster(tested: list[Cluster]) -> Cluster | None:
    """The name on which failures cluster most, if any."""
    found = [one for one in tested if one.failed >= MOST_OF_THEM * one.all_failed]
    best = min(found, key=attrgetter("probability"), default=None)
    return best if best is not None and best.probability < BY_CHANCE else None


def _common(tested: list[Cluster]) -> Cluster | None:
    """The name with the fewest attempts that has all failures, but not all attempts."""
    found = [one for one in tested if FEWEST <= one.failed == one.all_failed and one.tried < one.all_tried]
    return min(found, key=attrgetter("tried"), default=None)


def _names(chunks: pa.Table, failed: pa.Table, lifetimes: pa.Table | None) -> dict[str, pa.ChunkedArray]:
    """Names on which failures may cluster, per attempt; of two equally unlikely ones the first is reported."""
    every = pa.concat_tables(
        [table.select(["worker", "file", "dataset"]) for table in (chunks, failed)], promote_options="permissive"
    )
    of_worker = pa.table({"worker": pa.array([], pa.string()), "host": pa.array([], pa.string())})
    if lifetimes is not None:
        # a worker that came back has several lifetimes
        of_worker = lifetimes.select(["worker", "host"]).group_by("worker").aggregate([("host", "max")])
    known = pc.index_in(every["worker"], value_set=of_worker["worker"].combine_chunks())
    return {
        "worker": every["worker"],
        "host": pc.take(of_worker.column(1), known),
        "file": every["file"],
        "dataset": every["dataset"],
    }


def _tested(kind: str, names: pa.ChunkedArray, number: Integers, bad: Flags) -> list[Cluster]:
    """Names of a kind with failures, each with the probability of as many by chance."""
    encoded = pc.dictionary_encode(names).combine_chunks()
    known = np.asarray(names.is_valid().to_numpy(), np.bool_)
    place = np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(), np.int64)
    size, chunks = len(encoded.dictionary), int(number.max()) + 1
    pair = place * chunks + number
    here, wrong = (np.bincount(_distinct(pair[rows]) // chunks, minlength=size) for rows in (known, known & bad))
    (rows,), everywhere, all_wrong = np.nonzero(wrong), int(here.sum()), int(wrong.sum())
    chance = scipy.stats.hypergeom.sf(wrong[rows] - 1, everywhere, all_wrong, here[rows])
    return [
        Cluster(
            kind,
            encoded.dictionary[row].as_py(),
            int(wrong[row]),
            int(here[row]),
            all_wrong,
            everywhere,
            float(each),
        )
        for row, each in zip(rows.tolist(), chance, strict=True)
    ]


def _distinct(values: Integers) -> Integers:
    """Distinct values in order; `np.unique` takes four times as long for a million."""
    ordered: Integers = np.sort(values)
    first: Flags = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return ordered[first]
