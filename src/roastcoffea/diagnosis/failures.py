"""Attempts that failed and were repeated: how many, why, where they cluster, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from scipy.stats import hypergeom

from roastcoffea.diagnosis.completeness import CommonError, CulpritParts, commonest
from roastcoffea.diagnosis.memory import MemoryEvidence
from roastcoffea.metrics.catalogue import fact
from roastcoffea.metrics.failures import RANGE, REPEATED
from roastcoffea.records.tasks import ERROR, LOST, PROCESSOR
from roastcoffea.units import FRACTION, SECOND, counted, number

BY_CHANCE: Final = 0.01
"""Probability below which failures cluster on a name, over all names that are tried."""

MOST_OF_THEM: Final = 0.5
"""Share of the failures that a name must have to be blamed for them."""

KINDS: Final = ("worker", "host", "file", "dataset")
"""What failures may cluster on; of two that are as unlikely by chance the first is named."""


class Cluster(NamedTuple):
    """A name that most failures have, and far more of them than of all attempts.

    It is tested by the hypergeometric distribution, over chunks: attempts of one chunk on one worker count once.
    """

    kind: str
    name: str
    failed: int
    tried: int
    all_failed: int
    all_tried: int
    probability: float
    """Of as many failures there by chance, times the number of names that were tried."""


@dataclass(frozen=True, kw_only=True)
class FailureEvidence:
    """Attempts that failed, without those whose worker was killed for its memory.

    Attributes
    ----------
    attempts : int
        Attempts of chunks that raised, or were lost with their worker.
    chunks : int
        Chunks that they were of.
    repeated : int
        Of these, chunks that gave a result at another attempt.
    seconds : float
        Thread seconds of the attempts.
    by_reason : mapping
        Thread seconds by reason.
    error : CommonError or None
        What most of them ended with.
    cluster : Cluster or None
        Where they cluster; None where they do not.
    """

    attempts: int
    chunks: int
    repeated: int
    seconds: float
    by_reason: Mapping[str, float]
    error: CommonError | None
    cluster: Cluster | None

    @property
    def what(self) -> str:
        """Which attempts failed, and where."""
        where = ""
        if self.cluster is not None:
            all_of_them = self.cluster.failed == self.cluster.all_failed
            share = "all" if all_of_them else f"{FRACTION.text(self.cluster.failed / self.cluster.all_failed)} of them"
            where = f", {share} on {self.cluster.kind} {self.cluster.name}"
        again = f"{number(self.repeated)} of {counted(self.chunks, 'chunk')} succeeded on another attempt"
        return f"{counted(self.attempts, 'attempt')} failed{where}; {again}."

    @property
    def how_much(self) -> str:
        """What they cost, and the commonest error."""
        found = {reason: seconds for reason, seconds in self.by_reason.items() if seconds}
        parts = ", ".join(f"{SECOND.text(seconds)} {reason}" for reason, seconds in found.items())
        reasons = f" ({parts})" if len(found) > 1 else ""
        error = f" Commonest error{self.error.how_often}: {self.error.text}." if self.error is not None else ""
        return f"They took {SECOND.text(self.seconds)} of thread time{reasons}.{error}"

    @property
    def remedy(self) -> str:
        """What to do."""
        listed = "`measurement.failed` lists them"
        match None if self.cluster is None else self.cluster.kind:
            case "worker" | "host":
                return f"Look at {self.cluster.kind} {self.cluster.name}, or leave it out; {listed}"  # type: ignore[union-attr]
            case "file" | "dataset":
                return f"Check {self.cluster.kind} {self.cluster.name}, or read another copy of it; {listed}"  # type: ignore[union-attr]
            case _:
                return f"Fix the error: it is on no worker, host, file or dataset in particular; {listed}"

    def culprits(self) -> list[CulpritParts]:
        """The name that failures cluster on, with its rate of failures divided by that of all."""
        if self.cluster is None:
            return []
        one = self.cluster
        rate = (one.failed / one.tried) / (one.all_failed / one.all_tried)
        return [(one.kind, one.name, self.seconds * one.failed / one.all_failed, rate)]


@fact
def failure_evidence(
    chunks: pa.Table,
    counted_chunks: pa.Table,
    failed_work: pa.Table,
    lifetimes: pa.Table | None = None,
    memory_evidence: MemoryEvidence | None = None,
) -> FailureEvidence:
    """Attempts that failed for other reasons than memory."""
    killed = {row["worker"] for row in memory_evidence.killed} if memory_evidence is not None else set()
    rows = [row for row in failed_work.to_pylist() if row["kind"] == PROCESSOR and row["seconds"] != 0]
    rows = [row for row in rows if not (row["worker"] in killed and row["reason"] in {LOST, REPEATED})]
    rows = [row for row in rows if row["reason"] in {ERROR, LOST, REPEATED}]
    places = {_chunk(row) for row in rows}
    gave = set(map(_chunk, counted_chunks.select(CHUNK).to_pylist()))
    by_reason: dict[str, float] = {}
    for row in rows:
        by_reason[row["reason"]] = by_reason.get(row["reason"], 0.0) + (row["seconds"] or 0.0)
    hosts = (
        {} if lifetimes is None else dict(zip(*lifetimes.select(["worker", "host"]).to_pydict().values(), strict=True))
    )
    return FailureEvidence(
        attempts=len(rows),
        chunks=len(places),
        repeated=len(places & gave),
        seconds=sum(by_reason.values()),
        by_reason=by_reason,
        error=commonest(row["error"] for row in rows),
        cluster=_cluster(chunks, [row for row in rows if row["reason"] != REPEATED], hosts),
    )


CHUNK: Final = ("dataset", "file", *RANGE)


def _chunk(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in CHUNK)


def _cluster(chunks: pa.Table, failed: list[dict[str, Any]], hosts: Mapping[str, str | None]) -> Cluster | None:
    """The name on which failures cluster the most, if they do."""
    if not failed:
        return None
    tried = chunks.select([*CHUNK, "worker"]).to_pylist() + failed
    found = [one for kind in KINDS for one in _tested(kind, tried, failed, hosts)]
    likely = [
        one._replace(probability=min(one.probability * len(found), 1.0))
        for one in found
        if one.failed >= MOST_OF_THEM * one.all_failed
    ]
    best = min(likely, key=lambda one: one.probability, default=None)
    return best if best is not None and best.probability < BY_CHANCE else None


def _tested(
    kind: str, tried: list[dict[str, Any]], failed: list[dict[str, Any]], hosts: Mapping[str, str | None]
) -> Iterator[Cluster]:
    """Each name of a kind, with the probability of as many failures by chance."""

    def pairs(rows: list[dict[str, Any]]) -> set[tuple[str, tuple[Any, ...]]]:
        named = ((hosts.get(row["worker"]) if kind == "host" else row[kind], _chunk(row)) for row in rows)
        return {(name, chunk) for name, chunk in named if name is not None}

    everywhere, bad = pairs(tried), pairs(failed)
    counts: dict[str, list[int]] = {}
    for rows, place in ((everywhere, 0), (bad, 1)):
        for name, _ in rows:
            counts.setdefault(name, [0, 0])[place] += 1
    for name, (here, wrong) in counts.items():
        if wrong:
            chance = float(hypergeom.sf(wrong - 1, len(everywhere), len(bad), here))
            yield Cluster(kind, name, wrong, here, len(bad), len(everywhere), chance)
