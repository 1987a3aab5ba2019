"""Findings about reading: storage servers, repeated reads, decompression, arrays and opening files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import CORE_WAIT_OUTSIDE, NAMED, Evidence, by_part, largest_first, most_of, names_of
from roastcoffea.diagnosis.finding import Culprit, Finding, Page, finding
from roastcoffea.diagnosis.findings.computing import with_waits
from roastcoffea.diagnosis.savings import Taken, of_chunks, without_cpu, without_parts
from roastcoffea.generations import READS_ON
from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger, Repeated
from roastcoffea.metrics.byte_ledger import Saving as ByteSaving
from roastcoffea.metrics.endpoints import LOCAL, UNKNOWN, XCACHE, with_endpoints
from roastcoffea.metrics.statistics import amounts
from roastcoffea.records.arrow import rows_in
from roastcoffea.records.run import OF_TASKS
from roastcoffea.replay.changes import STORAGE_FACTOR, with_computing
from roastcoffea.units import BYTE, BYTE_PER_SECOND, FRACTION, SECOND, counted, number, rough

HALF: Final = 0.5
"""Share of a total above which a contribution dominates."""


STORAGE: Final = Page("storage", "Limited by reading")


@finding(
    "storage",
    "Reading waits for storage",
    part="in chunks",
    shows="`read`",
    page=STORAGE,
)
def storage(evidence: Evidence) -> Finding | None:
    """Limited by storage.

    Threads wait for baskets in `process()`.

    **Check.** If the rate is near the link's bandwidth, more threads will not help. If it is far below, latency
    dominates. [`roastcoffea storage RUN`](../howto/storage.md) measures what the storage can deliver.

    ```python
    print(measurement.time_ledger.by("endpoint")["read"])
    print(measurement.metrics["data_rate_gbps"], "Gbit/s")
    print(measurement.byte_ledger.by("branch").sort_values("payload").tail())
    ```

    **Fix.** Read a nearer copy, use a cache ([XCache](../howto/xrootd.md)), or read fewer of the heaviest branches. If
    [the rule](contention.md) allows it, hide the wait with two threads per core.

    **Fine if** this pass fills caches: measure the next one. The saving assumes preloading, or
    storage twice as fast.
    """
    rows = evidence.rows_of("storage")
    if not rows:
        return None
    waited, found, stream = sum(rows.values()), endpoints(evidence, rows), rate_of_stream(evidence)
    most = found[0].seconds or 0.0 if found else 0.0
    # a server that is slower than others has its own finding
    slow = slow_servers(evidence.endpoints)
    if found and most >= HALF * sum(one.seconds or 0.0 for one in found) and found[0].name in slow:
        return None
    why = answering(evidence, found[0].name) if found else None
    # the rate is meaningless if round trips are the bottleneck
    speed = f" ({BYTE_PER_SECOND.text(stream)} per stream)" if stream and not (why and why.far) else ""
    verb, where = "dominates" if waited >= HALF * evidence.total else "is slow", names_of(found) or "local files"
    what = f"Reading {verb}: {evidence.share(waited)} of thread time is spent waiting for {where}{speed}."
    of_others = evidence.seconds_in("other_read_seconds") >= HALF * waited
    files = "the files that process() opens" if of_others else "the dataset" if found else "the files"
    advice, remedy = f"Cache {files} nearby" if found else f"Move {files} to a faster disk", None
    if why is not None:
        what = f"{what} {'It' if len(found) == 1 else found[0].name} {why.what}"
        advice, remedy = why.advice, why.remedy
    elif evidence.layout.more:
        advice = f"{advice}, or run 2 threads per core, so that one computes while the other waits"
        remedy = evidence.workers_line if found and not evidence.local else None
    faster = evidence.savings.faster_storage(STORAGE_FACTOR)
    return Finding(
        what=what,
        advice=f"{advice.removesuffix('.')}.",
        culprits=tuple(found),
        remedy=remedy,
        rows=rows,
        taken=(why and why.taken) or replace(faster, seconds=waited * (1 - 1 / STORAGE_FACTOR)),
        outranks=why is not None and why.far,
    )


def endpoints(evidence: Evidence, rows: Mapping[str, float]) -> list[Culprit]:
    """Servers that account for most of the time in these classes; empty if local files dominate."""
    columns = [column for name in rows for column in phases.COLUMNS_OF.get(name, ())]
    chunks = None if evidence.counted is None else with_endpoints(evidence.counted)
    sums = by_part(chunks, "endpoint", columns)
    if chunks is not None and "read_seconds" in columns:
        sums = _with_other_files(chunks, sums)
    if next(iter(sums), None) == LOCAL:
        return []
    return most_of("endpoint", {name: sums[name] for name in sums.keys() - {None, LOCAL, UNKNOWN}})


def _with_other_files(chunks: pa.Table, sums: dict[Any, float]) -> dict[Any, float]:
    """Thread time per server, in seconds. Waits for files opened in process() are split in proportion to bytes."""
    opened = chunks.filter(pc.and_(chunks["other_read_seconds"].is_valid(), chunks["other_requested"].is_valid()))
    chunk = pc.list_parent_indices(opened["other_requested"]).to_numpy()
    size = pc.list_flatten(opened["other_requested"]).to_numpy()
    share = size / np.maximum(np.bincount(chunk, size, len(opened)), 1)[chunk]
    seconds = opened["other_read_seconds"].to_numpy()[chunk] * share
    files = pa.table({"file": pc.list_flatten(opened["other_files"]), "seconds": seconds})
    theirs = by_part(with_endpoints(files), "endpoint", ["seconds"])
    own = by_part(opened, "endpoint", ["other_read_seconds"])
    return largest_first(
        {name: sums.get(name, 0.0) + theirs.get(name, 0.0) - own.get(name, 0.0) for name in {**sums, **theirs}}
    )


def rate_of_stream(evidence: Evidence) -> float | None:
    """Bytes per second received by a thread while it opens and reads files; None if unknown."""
    seconds = evidence.seconds_in(*phases.COLUMNS_OF[phases.READ], *phases.COLUMNS_OF[phases.OPEN])
    own = evidence.sum_of("bytes_requested")
    amount = None if own is None else own + (evidence.sum_of("bytes_other") or 0)
    return amount / seconds if amount and seconds else None


# How servers respond

LARGE: Final = 4096.0
"""Minimum request size for comparing rates, in bytes. The rate of smaller requests mostly reflects latency."""

TIMES: Final = 3.0
"""Minimum ratio of latencies or rates for a slow server or cold cache. Identical servers differ by up to 2x."""

SLOW_RATE: Final = 25e6
"""Rate per request, in bytes per second, below which a run's only server counts as slow. Even one disk is faster."""

VECTORS: Final = 'uproot_options={"handler": uproot.XRootDSource}'

Row = Mapping[str, Any]


class Answering(NamedTuple):
    """How a server responds, as a predicate, with advice and a line to copy."""

    what: str
    advice: str
    remedy: str | None = None
    far: bool = False
    """Whether the server is far away. Larger chunks are then only one of several remedies."""
    taken: Taken | None = None


def _servers(table: pa.Table | None) -> Iterator[tuple[Row, list[Row]]]:
    """Yield each server with enough requests, and the fastest of the others (because most servers may be slow)."""
    rows = rows_in(table)
    known = [row for row in rows if (row["requests"] or 0) >= 10 and row["latency"] and row["rate"]]
    rates = sorted(row["rate"] for row in known)
    for row in known:
        yield row, [one for one in known if one is not row and one["rate"] >= rates[-((len(rates) + 3) // 4)]]


def slow_servers(table: pa.Table | None) -> dict[str, float]:
    """Slow servers, each with its request time relative to the fastest servers."""
    found = {}
    for row, others in _servers(table):
        waited = sum(one["requests"] * (one["latency"] - one["shortest_latency"]) for one in others)
        if waited > 0:
            each = row["bytes_per_request"] * waited / sum(one["bytes_transferred"] for one in others)
            found[row["endpoint"]] = row["latency"] / (min(one["shortest_latency"] for one in others) + each)
    return {name: factor for name, factor in found.items() if factor >= TIMES}


def answering(evidence: Evidence, endpoint: str) -> Answering | None:
    """How a server responds; None if nothing is wrong or its requests were not measured."""
    for row, others in _servers(evidence.endpoints):
        if row["endpoint"] == endpoint:
            return _far(row, evidence) or _cold(row) or _slow(row, others)
    return None


def _far(row: Row, evidence: Evidence) -> Answering | None:
    trip = row["shortest_latency"]
    # within a site, a round trip takes less than a millisecond
    if trip < 0.005 or trip < HALF * row["latency"]:
        return None
    what = (
        f"gets {number(row['requests'])} requests of {BYTE.text(row['bytes_per_request'])}, which "
        f"take {SECOND.text(row['latency'])} each, including a round trip of {SECOND.text(trip)}: too many small "
        f"requests over a wide-area network."
    )
    ahead = evidence.branches_ahead if row["vector_reads"] is None else None
    # ignore preloading if it saves less than other remedies are assumed to save
    if ahead is not None and ahead.seconds >= (1 - 1 / STORAGE_FACTOR) * evidence.time_of("storage"):
        advice = "Use larger chunks, and read all branches at once, not one by one."
        dataset, *others = ahead.branches
        if others:
            advice = f"{advice[:-1]}: `roastcoffea export --format preload` writes all datasets' lines."
        line = f'fileset["{dataset}"]["preload"] = {json.dumps(ahead.branches[dataset])}'
        return Answering(what, advice, line, far=True, taken=ahead.taken)
    if row["vector_reads"] is not None and row["vector_reads"] < HALF * row["requests"]:
        return Answering(what, "Read many ranges in one request.", VECTORS, far=True)
    return Answering(what, "Use larger chunks, or read a nearer copy.", far=True)


def _cold(row: Row) -> Answering | None:
    before, first, early = row["metadata_rate"], row["payload_rate"], row["metadata_latency"]
    if before is None or first is None or first > SLOW_RATE:
        return None
    if before * early >= LARGE and before >= TIMES * first:
        rates = BYTE_PER_SECOND.text(before), BYTE_PER_SECOND.text(first)
        what = "serves repeated reads at {} but first reads at {}: its cache was cold."
    elif row["service"] == XCACHE and row["latency"] >= TIMES * early:
        rates = SECOND.text(early), SECOND.text(row["latency"])
        what = (
            "is an XCache that answers repeated requests after {} and all requests after {} on average: it was "
            "probably cold."
        )
    else:
        return None
    return Answering(what.format(*rates), "Run again: the cache now has the files.")


def _slow(row: Row, others: list[Row]) -> Answering | None:
    # in these cases the rate reflects the latency, even over a short distance
    if row["bytes_per_request"] < LARGE or row["shortest_latency"] >= HALF * row["latency"]:
        return None
    seconds = sum(one["requests"] * one["latency"] for one in others)
    usual = sum(one["bytes_transferred"] for one in others) / seconds if seconds else None
    if row["rate"] > (usual / TIMES if usual else SLOW_RATE):
        return None
    against = f" (others {BYTE_PER_SECOND.text(usual)})" if usual else ""
    rate, latency, trip = (
        BYTE_PER_SECOND.text(row["rate"]),
        *map(SECOND.text, (row["latency"], row["shortest_latency"])),
    )
    return Answering(
        f"serves {rate} per request{against} and answers after {latency} with a round trip of {trip}: the server, or "
        "the link to it, is slow.",
        "Read its files from another server, or contact its site.",
    )


# Repeated reads

AGAIN: Final = {
    SAME_LOOP: ("because {pieces} span chunk boundaries", "use larger chunks, or files with smaller {pieces}"),
    SAME_DATASET: ("by another Runner call", "process shared files in a single Runner call"),
    OTHER_DATASET: ("because files are listed in two datasets", "list each file in one dataset only"),
    SAME_ATTEMPT: ("within a chunk, by the processor or the reader", "keep arrays that are used more than once"),
    OF_TASKS: ("by another function", "read each file in one function only"),
}
"""Cause of and remedy for repeated reads, keyed by what the reads have in common."""


def pieces(repeated: Repeated) -> str:
    return "row groups" if repeated.parquet else "baskets"


@finding(
    "re-read",
    "The same data are read again",
    part="in chunks",
    shows="`read`, `decompress`; `re-read` of the byte ledger",
)
def read_again(evidence: Evidence) -> Iterator[Finding]:
    """Limited by repeated reads.

    At least a quarter of the requested bytes had been read before.

    **Check.** `advice` explains what the reads have in common.

    ```python
    print(measurement.byte_ledger.advice)
    print(measurement.byte_ledger.by("branch")[["payload", "re-read"]])
    ```

    **Fix.** With `align_clusters=True`, each TTree basket is read once. For Parquet, read whole row groups, or
    write smaller ones. List each file in one dataset only, process shared files in a single Runner call, and reuse
    arrays within `process()`.

    **Fine if** these bytes come from local disks or a warm cache: only decompression is repeated.
    """
    ledger = evidence.bytes
    if ledger is None or ledger.repeated is None or not ledger.total:
        return
    # re-reading this much data is a finding, regardless of the time spent
    least, again, whole = 0.25 * ledger.total, ledger.repeated, f"of {BYTE.text(ledger.total)}"
    if (reread := ledger.get(phases.REREAD) or 0) >= least:
        row, why = "re-read", again.readers(max(again.baskets, key=lambda one: again.baskets[one]))
        because, advice = (text.format(pieces=pieces(again)) for text in AGAIN[why])
        remedy = None
        if why == SAME_LOOP:
            remedy = evidence.larger
            if not (remedy or again.parquet or again.aligned):
                advice, remedy = "have the Runner end chunks at cluster boundaries", "align_clusters=True"
            if again.reads_on and not again.parquet:
                advice = f"{READS_ON}; {advice}"
        yield Finding(
            what=f"{BYTE.text(reread)} {whole} ({rough(reread / ledger.total, FRACTION)}) were re-read {because}.",
            advice=f"{advice[0].upper()}{advice[1:]}.",
            remedy=remedy,
            rows=with_waits(evidence, row, evidence.reread * evidence.time_of("decompression"))
            | {row: evidence.reread * evidence.time_of("storage", "decompression")},
            always=True,
        )
    # files opened by process() and read by several chunks: their baskets, and objects such as histograms
    entries = 'entry_start=events.metadata["entrystart"], entry_stop=events.metadata["entrystop"]'
    own = ", or read only the chunk's entries"
    for others, beside, words, or_else, remedy in (
        (again.others, (phases.PAYLOAD, phases.REREAD), ("storage", "decompression"), own, entries),
        (again.objects, (phases.METADATA,), ("metadata",), "", None),
    ):
        size = sum(others.values())
        if size >= least:
            opened = sum(ledger.get(name) or 0 for name in (*beside, phases.OTHER_FILES))
            seconds = size / opened * evidence.time_of(*words)
            found = [Culprit("file", name, seconds * amount / size) for name, amount in largest_first(others).items()]
            more = f", and {number(len(found) - NAMED)} more files" if len(found) > NAMED else ""
            yield Finding(
                what=f"At least {BYTE.text(size)} {whole} ({rough(size / ledger.total, FRACTION)}) were re-read: "
                f"chunks read the same parts of {names_of(found[:NAMED])}{more}, which process() opens.",
                advice=f"Keep these in memory for all chunks (functools.cache){or_else}.",
                culprits=tuple(found),
                remedy=remedy,
                rows={"re-read": seconds},
                always=True,
            )


@ByteLedger.advised_by
def savings_of_bytes(repeated: Repeated, total: int) -> list[ByteSaving]:
    found = largest_first({**repeated.baskets, phases.METADATA: repeated.metadata})
    return [
        ByteSaving(cause, int(size), f"{BYTE.text(size)} {_advised(repeated, cause)}")
        for cause, size in found.items()
        if size > (0.01 * total if cause == phases.METADATA else 0)
    ]


def _advised(repeated: Repeated, cause: str) -> str:
    """Advice on bytes that were re-read for this cause. Only the verdict recommends a chunk size."""
    memory = ", at the cost of more memory"
    if cause == phases.METADATA:
        fewer = f"in {counted(repeated.files, 'chunk')} instead of {number(repeated.chunks)}{memory}"
        return (
            "of metadata was read again, because each chunk of a file reads it: with one chunk per file, it is read "
            f"once per file, {fewer}"
        )
    because, advice = (text.format(pieces=pieces(repeated)) for text in AGAIN[repeated.readers(cause)])
    if repeated.readers(cause) == SAME_LOOP:
        advice = f"with one chunk per file, each is read once{memory}"
        # Parquet has no clusters, and alignment may already be on
        if not (repeated.parquet or repeated.aligned):
            aligned = "align_clusters=True in the Runner also works if the files contain TTrees"
            advice = f"{advice}; {READS_ON if repeated.reads_on else aligned}"
    return f"were read again {because}: {advice}"


UNPACKING: Final = Page(
    "decompression",
    "Limited by unpacking baskets",
    """\
Read fewer branches: the slowest are at the end of the tables. Select on flat branches before you use a jagged one,
because NanoEvents reads branches on first use.""",
)


@finding(
    "decompression",
    "Decompression is slow",
    part="in chunks",
    shows="`decompress`",
    least=0.20,
    page=UNPACKING,
)
def decompression(evidence: Evidence) -> Finding | None:
    """Limited by decompression.

    LZMA needs several times as much CPU time as zstd for the same data.

    **Check.**

    ```python
    print(measurement.metrics["chunk_decompress_seconds"], "s")
    print(measurement.metrics["compression_ratio"])
    print(measurement.branches.groupby("branch")["decompress_seconds"].sum().sort_values().tail())
    ```

    **Fix.** Write skims with `uproot.recreate("skim.root", compression=uproot.ZSTD(5))` or
    [`hadd`](../howto/inspect.md).

    **Fine if** the link is slow: LZMA saves bandwidth. The estimate assumes that zstd or LZ4 needs 30 % of the time.
    """
    rows = evidence.rows_of("decompression")
    if not rows:
        return None
    seconds = by_part(evidence.counted, "dataset", phases.COLUMNS_OF[phases.DECOMPRESS])
    found = most_of("dataset", seconds)
    most = f", most of it in dataset {found[0].name}" if found and len(seconds) > 1 else ""
    # zstd and lz4 need 30 % of LZMA's CPU time
    change = of_chunks(lambda old: with_computing(old, decompress=0.3 * old.parts.decompress))
    return Finding(
        what=f"Decompression takes {evidence.share_of('decompression')} of thread time{most}.",
        advice="Read fewer branches, or write the files with zstd or lz4 instead of LZMA or zlib.",
        culprits=tuple(found),
        remedy="hadd -f505 new.root FILES",
        rows=rows,
        taken=Taken(change, 0.7 * sum(rows.values())),
    )


@finding(
    "interpretation",
    "Building arrays is slow",
    part="in chunks",
    shows="`interpret`",
    least=0.25,
    page=UNPACKING,
)
def interpretation(evidence: Evidence) -> Finding | None:
    """Limited by interpretation.

    Jagged and nested branches are slow to build; flat ones cost almost nothing.

    **Check.**

    ```python
    reads = measurement.branches.groupby("branch")[["interpret_seconds", "bytes_uncompressed"]].sum()
    print(reads.sort_values("interpret_seconds").tail())
    ```

    **Fix.** Flatten nested types when skimming.

    **Fine if** you need these branches.
    """
    rows = evidence.rows_of("interpretation")
    if not rows or evidence.counted is None:
        return None
    seconds = by_part(evidence.run.branch_reads, "branch", ["interpret_seconds"])
    found = most_of("branch", seconds)
    most = f", most of it for {names_of(found)}" if found else ""
    repeated = None if evidence.bytes is None else evidence.bytes.repeated
    read = "baskets" if repeated is None else pieces(repeated)
    advice = "Read fewer branches, especially jagged ones."
    return Finding(
        what=f"Building arrays from {read} takes {evidence.share_of('interpretation')} of thread time{most}.",
        advice="Read it for fewer events, or read a flat branch instead." if len(seconds) == 1 else advice,
        culprits=tuple(found),
        rows=rows,
        taken=Taken(without_cpu(amounts(evidence.counted, "interpret_seconds")), at_most=True),
    )


@finding(
    "metadata",
    "Opening files is slow",
    part="in chunks",
    shows="`open`",
    least=0.10,
)
def metadata(evidence: Evidence) -> Finding | None:
    """Limited by metadata.

    Threads open files and build events.

    **Check.** Each chunk reads its file's header, streamers and tree (`open_seconds`), then builds events
    (`build_seconds`).

    ```python
    print(measurement.chunks[["open_seconds", "build_seconds"]].describe().loc[["mean", "max"]])
    print(measurement.byte_ledger["metadata"], "bytes of", measurement.byte_ledger.total)
    ```

    **Fix.** Use larger chunks, up to whole files. If `build_seconds` dominates, use a lighter schema: `BaseSchema`, or
    a subclass of `NanoAODSchema` for the collections you read. If `open_seconds` dominates, [storage](storage.md) is
    slow.

    **Fine if** each file is opened only once. The first file opened on a thread counts as [start-up](start-up.md).
    """
    total = evidence.time_of("metadata") - evidence.core_wait.get(CORE_WAIT_OUTSIDE, 0.0)
    if total <= 0:
        return None
    # files that process() opens itself are not assigned to servers here
    found = [] if evidence.sum_of("bytes_other") else endpoints(evidence, {phases.OPEN: total})
    each = ""
    if evidence.chunks:
        each = f", {SECOND.text(total / evidence.chunks)} for each of {number(evidence.chunks)} chunks"
    at = f" at {names_of(found)}" if found else ""
    several = evidence.counted is not None and evidence.chunks > len(evidence.counted["file"].unique()) > 0
    size, remedy = evidence.chunk_size, evidence.larger
    taken = Taken(without_parts("open_cpu", "open_wait"), at_most=True)
    advice = "Read the files from nearer storage, or merge small ones: each file is opened only once."
    if remedy or (evidence.local and several):
        advice = "Use larger chunks, so that fewer chunks open files."
    elif not all(call.options.get("schema") == "BaseSchema" for call in evidence.run.calls):
        advice = "Use a schema with fewer collections."
    elif several:
        advice = "Read the files from nearer storage: each chunk opens its file."
    if remedy:
        taken = Taken(size.removal, last=True, known=size.saving.up_to(evidence.wall(total)))
    elif few := merged(evidence):
        left = few / evidence.chunks
        advice = f"Merge small files: {number(evidence.chunks)} would become {number(few)}, with one chunk each."
        remedy = "hadd -O merged.root FILES"
        taken = Taken(
            of_chunks(
                lambda old: old.with_parts(open_cpu=left * old.parts.open_cpu, open_wait=left * old.parts.open_wait)
            ),
            (1 - left) * total,
        )
    return Finding(
        what=f"Opening files and building events takes {evidence.share(total)} of thread time{at}{each}.",
        advice=advice,
        culprits=tuple(found),
        remedy=remedy,
        rows={phases.OPEN: total},
        taken=taken,
    )


def merged(evidence: Evidence) -> int:
    """Number of files left after merging up to the Runner's chunk size; 0 if more than half would remain.

    At least two files per thread remain, to keep all threads busy.
    """
    sizes, table = {call.options.get("chunksize") for call in evidence.run.calls}, evidence.counted
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int) or table is None or len(table["file"].unique()) < len(table):
        return 0
    events = by_part(table, "dataset", ["events"]).values()
    few = max(sum(-(-int(each) // size) for each in events), math.ceil(2 * evidence.total / evidence.elapsed))
    return few if 2 * few <= len(table) else 0
