"""Why a server answers late: round trips of small requests, a cold cache, or the server itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.metrics.endpoints import XCACHE, with_endpoints
from roastcoffea.units import BYTE, BYTE_PER_SECOND, SECOND, number

FAR: Final = 0.005
"""Shortest round trip, in seconds, to a server that is far away: within a site it takes less than a millisecond."""

MOSTLY: Final = 0.5
"""Smallest share of the latency in round trips for which larger requests are the remedy."""

COLD: Final = 3.0
"""Smallest ratio of the rates of repeated and first reads that shows a cold cache: for one server they vary by two."""

LARGE: Final = 4096.0
"""Smallest request, in bytes, whose rate can be compared with others: smaller ones show the latency."""

FEWEST: Final = 10
"""Fewest requests for which latencies and rates mean something."""

SLOWER: Final = 3.0
"""Smallest ratio of its requests' latency to that elsewhere for a slow server: equal servers differ by up to two."""

SLOW: Final = 25e6
"""Rate of a request, in bytes per second, below which a lone server is slow: a single disk is faster."""

VECTORS: Final = 'uproot_options={"handler": uproot.XRootDSource}'


class Answering(NamedTuple):
    """How a server answers, what to do about it, and a line to copy."""

    what: str
    """What it does: a sentence without its subject."""
    advice: str
    remedy: str | None = None
    far: bool = False
    """Whether it is far away: then larger chunks are one remedy of several, and no reason to leave it unnamed."""


def slower_than_others(evidence: Evidence) -> dict[str, float]:
    """Servers whose requests take much longer than they would at the fast ones, and how many times."""
    found = {}
    for row in (known := _known(evidence)):
        others = _fast_ones(row, known)
        waited = sum(one["requests"] * (one["latency"] - one["shortest_latency"]) for one in others)
        if waited <= 0:
            continue
        each = row["bytes_per_request"] * waited / sum(one["bytes_transferred"] for one in others)
        factor = row["latency"] / (min(one["shortest_latency"] for one in others) + each)
        if factor >= SLOWER:
            found[row["endpoint"]] = factor
    return found


def _known(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Servers with requests enough to tell how they answer."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    return [row for row in rows if (row["requests"] or 0) >= FEWEST and row["latency"] and row["rate"]]


def _fast_ones(row: Mapping[str, Any], known: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Other servers that are in the fastest quarter of all: most may be slow."""
    rates = sorted(one["rate"] for one in known)
    return [one for one in known if one is not row and one["rate"] >= rates[-((len(rates) + 3) // 4)]]


def redirector_of(evidence: Evidence, endpoint: str) -> str | None:
    """The redirector that a server stands behind, if any."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    return next((row["redirector"] for row in rows if row["endpoint"] == endpoint), None)


def answering(evidence: Evidence, endpoint: str) -> Answering | None:
    """How a server answers; None where its requests were not measured, or nothing is wrong with them."""
    for row in (known := _known(evidence)):
        if row["endpoint"] == endpoint:
            return _far(row, evidence) or _cold(row) or _slow(row, _fast_ones(row, known))
    return None


def _far(row: Mapping[str, Any], evidence: Evidence) -> Answering | None:
    trip = row["shortest_latency"]
    if trip < FAR or trip < MOSTLY * row["latency"]:
        return None
    what = (
        f"gets {number(row['requests'])} requests of {BYTE.text(row['bytes_per_request'])}, which "
        f"take {SECOND.text(row['latency'])} each and the round trip alone {SECOND.text(trip)}: too many small "
        f"requests over a wide-area network."
    )
    if row["vector_reads"] is None:
        line = _preload(row, evidence)
        if line is not None:
            advice = f"Read the branches at once rather than in turn: {line}. Larger chunks help as well."
            return Answering(what, advice, line, far=True)
    elif row["vector_reads"] < MOSTLY * row["requests"]:
        return Answering(what, f"Read many ranges in one request: {VECTORS}.", VECTORS, far=True)
    return Answering(what, "Use larger chunks, or read a nearer copy.", far=True)


def _preload(row: Mapping[str, Any], evidence: Evidence) -> str | None:
    """Line for the fileset that has the branches of its largest dataset preloaded; None if they are, or are unknown."""
    reads, chunks = evidence.run.branch_reads, evidence.counted
    if row["payload_rate"] is None or reads is None or chunks is None or not len(reads):
        return None
    here = with_endpoints(chunks).filter(pc.equal(with_endpoints(chunks)["endpoint"], row["endpoint"]))
    if not len(here):
        return None
    dataset = max(here["dataset"].value_counts().to_pylist(), key=lambda one: one["counts"])["values"]
    own = here.filter(pc.equal(here["dataset"], dataset))["id"]
    found = reads.filter(pc.is_in(reads["chunk"], value_set=own.combine_chunks()))["branch"].unique().to_pylist()
    return f'fileset["{dataset}"]["preload"] = {json.dumps(sorted(filter(None, found)))}' if any(found) else None


def _cold(row: Mapping[str, Any]) -> Answering | None:
    before, first = row["metadata_rate"], row["payload_rate"]
    if before is None or first is None or first > SLOW:
        return None
    size, early = before * row["metadata_latency"], row["metadata_latency"]
    if size >= LARGE and before >= COLD * first:
        what = (
            f"delivers what was read before at {BYTE_PER_SECOND.text(before)} and what is read for the first time at "
            f"{BYTE_PER_SECOND.text(first)}: its cache was cold."
        )
    elif row["service"] == XCACHE and row["latency"] >= COLD * early:
        what = (
            f"is an XCache that answers requests for what was read before after {SECOND.text(early)} and all on "
            f"average after {SECOND.text(row['latency'])}: it was probably cold."
        )
    else:
        return None
    return Answering(what, "Run it again: from then on the cache has the files.")


def _slow(row: Mapping[str, Any], others: list[Mapping[str, Any]]) -> Answering | None:
    # the rate shows the latency then, on a short way as well
    if row["bytes_per_request"] < LARGE or row["shortest_latency"] >= MOSTLY * row["latency"]:
        return None
    seconds = sum(one["requests"] * one["latency"] for one in others)
    usual = sum(one["bytes_transferred"] for one in others) / seconds if seconds else None
    if row["rate"] > (usual / SLOWER if usual else SLOW):
        return None
    against = f" (others {BYTE_PER_SECOND.text(usual)})" if usual else ""
    latency, trip = SECOND.text(row["latency"]), SECOND.text(row["shortest_latency"])
    what = (
        f"delivers {BYTE_PER_SECOND.text(row['rate'])} per request{against} and answers after {latency}, of which the "
        f"round trip takes {trip}: the server, or the link to it, is slow."
    )
    return Answering(what, "Read its files from another server, or ask its site.")
