"""Why a server answers late: round trips of small requests, a cold cache, or the server itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from roastcoffea.diagnosis.evidence import Evidence
from roastcoffea.units import BYTE, SECOND, number

FAR: Final = 0.005
"""Seconds of a round trip from which on a server is far away: within a site it takes less than one millisecond."""

MOSTLY: Final = 0.5
"""Share of the latency that a round trip takes from which on larger requests are the remedy."""

COLD: Final = 4.0
"""Ratio of the rates of repeated and first reads from which on a cache was cold: rates of one server vary by two."""

FEWEST: Final = 10
"""Requests from which on latencies and rates mean something."""

VECTORS: Final = 'uproot_options={"handler": uproot.XRootDSource}'


class Answering(NamedTuple):
    """How a server answers, as two sentences, and a line to copy."""

    what: str
    advice: str
    remedy: str | None = None


def answering(evidence: Evidence, endpoint: str) -> Answering | None:
    """How a server answers; None where its requests were not measured."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    known = [row for row in rows if (row["requests"] or 0) >= FEWEST and row["latency"] and row["rate"]]
    for row in known:
        if row["endpoint"] == endpoint:
            return _far(row) or _cold(row) or _slow(row, [other for other in known if other is not row])
    return None


def _far(row: Mapping[str, Any]) -> Answering | None:
    trip = row["shortest_latency"]
    if trip < FAR or trip < MOSTLY * row["latency"]:
        return None
    what = (
        f"Its {number(row['requests'])} requests of {BYTE.text(row['bytes_per_request'])} take "
        f"{SECOND.text(row['latency'])} each, and the round trip alone {SECOND.text(trip)}: too many small requests "
        f"over a wide-area network."
    )
    if row["vector_reads"] < MOSTLY * row["requests"]:
        return Answering(what, f"Read many ranges in one request: {VECTORS}.", VECTORS)
    return Answering(what, "Use larger chunks, or read a nearer copy.")


def _cold(row: Mapping[str, Any]) -> Answering | None:
    before, first = row["metadata_rate"], row["payload_rate"]
    if before is None or first is None or before < COLD * first:
        return None
    what = (
        f"It delivers what was read before at {BYTE.text(before)}/s and what is read for the first time at "
        f"{BYTE.text(first)}/s: its cache was cold."
    )
    return Answering(what, "Run it again: from then on the cache has the files.")


def _slow(row: Mapping[str, Any], others: list[Mapping[str, Any]]) -> Answering:
    received = sum(other["bytes_transferred"] for other in others)
    seconds = sum(other["requests"] * other["latency"] for other in others)
    against = f", the others {BYTE.text(received / seconds)}/s" if seconds else ""
    what = (
        f"It delivers {BYTE.text(row['rate'])}/s to a request{against}, and answers after "
        f"{SECOND.text(row['latency'])}: the server is slow."
    )
    return Answering(what, "Read its files from another server, or ask its site.")
