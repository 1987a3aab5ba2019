"""Findings about reading: storage and its servers, bytes read again, decompression, arrays, and opening files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roastcoffea.diagnosis.evidence import NAMED, Evidence, by_part, largest_first, most_of, names_of
from roastcoffea.diagnosis.finding import Culprit, Finding, finding
from roastcoffea.diagnosis.findings.computing import core_wait_outside_process, threads_of_workers, threads_per_core
from roastcoffea.diagnosis.savings import Removal, Taken, of_chunks, without_cpu, without_parts
from roastcoffea.generations import READS_ON
from roastcoffea.metrics import phases
from roastcoffea.metrics.branches import OTHER_DATASET, SAME_ATTEMPT, SAME_DATASET, SAME_LOOP
from roastcoffea.metrics.byte_ledger import ByteLedger, Repeated
from roastcoffea.metrics.byte_ledger import Saving as ByteSaving
from roastcoffea.metrics.endpoints import LOCAL, UNKNOWN, XCACHE, with_endpoints
from roastcoffea.metrics.statistics import amounts
from roastcoffea.records.run import OF_TASKS
from roastcoffea.replay.changes import STORAGE_FACTOR, faster_storage, with_computing
from roastcoffea.units import BYTE, BYTE_PER_SECOND, FRACTION, SECOND, counted, number

HALF: Final = 0.5
"""Share of thread time at which reading dominates, and of waiting from which one server or kind of file is named."""


@finding(
    "storage",
    "Reading waits for storage",
    part="in chunks",
    shows="`read`",
    first="a nearer copy; 2 threads per core",
)
def storage(evidence: Evidence) -> Finding | None:
    """Limited by storage.

    Threads wait for bytes: the class `read` of the time ledger is large.

    **How to make sure.** `read` is the time in `process()` that waited for baskets. The endpoint with the most of it
    is the slow one; `data_rate_gbps` is what all threads received together. If it is near the bandwidth of the link,
    more threads will not help. If it is far below, each request waits for its answer. Through XRootD the finding says
    itself whether small requests over a wide-area network, a cold cache or the server is to blame; [XRootD and
    XCache](../howto/xrootd.md) has the numbers.

    ```python
    print(measurement.time_ledger.by("endpoint")["read"])
    print(measurement.metrics["data_rate_gbps"], "Gbit/s")
    print(measurement.byte_ledger.by("branch").sort_values("payload").tail())
    ```

    **What to do.**

    - Read from a nearer copy, or through a cache at the facility (XCache): change the URLs of the fileset.
    - Hide the waiting: two threads per core (`dask worker --nthreads 2`, `threads_per_worker=2`), where the link has
      room.
    - Read less: the last table lists the heaviest branches.

    **When it is not a problem.** The first pass over a dataset fills caches: measure the second one. The saving is
    for storage at twice the rate; reading nothing at all is not on offer.
    """
    rows = evidence.rows_of("storage")
    if not rows:
        return None
    waited, found, stream = sum(rows.values()), endpoints(evidence, rows), rate_of_stream(evidence)
    most = found[0].seconds or 0.0 if found else 0.0
    # a server that is slower than others is a finding of its own
    if found and most >= HALF * sum(one.seconds or 0.0 for one in found) and found[0].name in slow_servers(evidence):
        return None
    why = answering(evidence, found[0].name) if found else None
    # what limits round trips is no rate
    speed = f" ({BYTE_PER_SECOND.text(stream)} per stream)" if stream and not (why and why.far) else ""
    verb, where = "dominates" if waited >= HALF * evidence.total else "is slow", names_of(found) or "local files"
    what = f"Reading {verb}: {evidence.share(waited)} of thread time waits for {where}{speed}."
    of_others = evidence.seconds_in("other_read_seconds") >= HALF * waited
    files = "the files that process() opens" if of_others else "the dataset" if found else "the files"
    advice, remedy = f"Cache {files} nearby" if found else f"Move {files} to a faster disk", None
    if why is not None:
        what = f"{what} {'It' if len(found) == 1 else found[0].name} {why.what}"
        advice, remedy = why.advice, why.remedy
    elif not _threads_are_scarce(evidence):
        advice = f"{advice}, or run 2 threads per core, so that one computes while the other waits"
        each = 2 * (threads_of_workers(evidence) or 1)
        remedy = evidence.started_with(each) if found and not evidence.local else None
    return Finding(
        what=what,
        advice=f"{advice.removesuffix('.')}.",
        culprits=tuple(found),
        remedy=remedy,
        rows=rows,
        taken=Taken(Removal(faster_storage(STORAGE_FACTOR)), waited * (1 - 1 / STORAGE_FACTOR)),
        outranks=why is not None and why.far,
    )


def _threads_are_scarce(evidence: Evidence) -> bool:
    """Whether more threads would wait for cores, the interpreter, memory or chunks, or the executor has only one."""
    return (
        evidence.lacks_memory
        or any(map(evidence.is_due_to, ("contention", "interpreter lock")))
        or threads_per_core(evidence) >= 2
        or evidence.chunks <= evidence.total / evidence.elapsed
        or any(call.executor == "IterativeExecutor" for call in evidence.run.calls)
    )


def endpoints(evidence: Evidence, rows: Mapping[str, float]) -> list[Culprit]:
    """Servers whose files took most time of these classes; none if local files took most."""
    columns = [column for name in rows for column in phases.COLUMNS_OF.get(name, ())]
    chunks = None if evidence.counted is None else with_endpoints(evidence.counted)
    sums = by_part(chunks, "endpoint", columns)
    if chunks is not None and "read_seconds" in columns:
        sums = _with_other_files(chunks, sums)
    if next(iter(sums), None) == LOCAL:
        return []
    return most_of("endpoint", {name: sums[name] for name in sums.keys() - {None, LOCAL, UNKNOWN}})


def _with_other_files(chunks: pa.Table, sums: dict[Any, float]) -> dict[Any, float]:
    """Seconds of each server, with waiting for files that process() opened moved to theirs, by the files' bytes."""
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
    """Bytes per second that a thread received while opening and reading; None if bytes or time are unknown."""
    seconds = evidence.seconds_in(*phases.COLUMNS_OF[phases.READ], *phases.COLUMNS_OF[phases.OPEN])
    own = evidence.sum_of("bytes_requested")
    amount = None if own is None else own + (evidence.sum_of("bytes_other") or 0)
    return amount / seconds if amount and seconds else None


# How servers answer

LARGE: Final = 4096.0
"""Smallest request, in bytes, whose rate can be compared with others: smaller ones show the latency."""

TIMES: Final = 3.0
"""Smallest ratio of latencies or rates for a slow server, or a cold cache: those of equal servers differ by two."""

SLOW_RATE: Final = 25e6
"""Rate of a request, in bytes per second, below which a lone server is slow: a single disk is faster."""

VECTORS: Final = 'uproot_options={"handler": uproot.XRootDSource}'

Row = Mapping[str, Any]


class Answering(NamedTuple):
    """How a server answers (without the subject), what to do about it, and a line to copy."""

    what: str
    advice: str
    remedy: str | None = None
    far: bool = False
    """Whether it is far away: then larger chunks are one remedy of several, and no reason to leave it unnamed."""


def _servers(evidence: Evidence) -> Iterator[tuple[Row, list[Row]]]:
    """Servers with requests enough, and the others that are in the fastest quarter of all, as most may be slow."""
    rows = [] if evidence.endpoints is None else evidence.endpoints.to_pylist()
    known = [row for row in rows if (row["requests"] or 0) >= 10 and row["latency"] and row["rate"]]
    rates = sorted(row["rate"] for row in known)
    for row in known:
        yield row, [one for one in known if one is not row and one["rate"] >= rates[-((len(rates) + 3) // 4)]]


def slow_servers(evidence: Evidence) -> dict[str, float]:
    """Servers whose requests take much longer than they would at the fast ones, and how many times."""
    found = {}
    for row, others in _servers(evidence):
        waited = sum(one["requests"] * (one["latency"] - one["shortest_latency"]) for one in others)
        if waited > 0:
            each = row["bytes_per_request"] * waited / sum(one["bytes_transferred"] for one in others)
            found[row["endpoint"]] = row["latency"] / (min(one["shortest_latency"] for one in others) + each)
    return {name: factor for name, factor in found.items() if factor >= TIMES}


def answering(evidence: Evidence, endpoint: str) -> Answering | None:
    """How a server answers; None where its requests were not measured, or nothing is wrong with them."""
    for row, others in _servers(evidence):
        if row["endpoint"] == endpoint:
            return _far(row, evidence) or _cold(row) or _slow(row, others)
    return None


def _far(row: Row, evidence: Evidence) -> Answering | None:
    trip = row["shortest_latency"]
    # within a site a round trip takes less than a millisecond
    if trip < 0.005 or trip < HALF * row["latency"]:
        return None
    what = (
        f"gets {number(row['requests'])} requests of {BYTE.text(row['bytes_per_request'])}, which "
        f"take {SECOND.text(row['latency'])} each and the round trip alone {SECOND.text(trip)}: too many small "
        f"requests over a wide-area network."
    )
    if row["vector_reads"] is None and (line := _preload(row, evidence)) is not None:
        advice = "Use larger chunks, and read the branches at once rather than in turn."
        return Answering(what, advice, line, far=True)
    if row["vector_reads"] is not None and row["vector_reads"] < HALF * row["requests"]:
        return Answering(what, "Read many ranges in one request.", VECTORS, far=True)
    return Answering(what, "Use larger chunks, or read a nearer copy.", far=True)


def _preload(row: Row, evidence: Evidence) -> str | None:
    """Line for the fileset that has the branches of its largest dataset preloaded; None if they are, or are unknown."""
    reads = evidence.run.branch_reads
    if row["payload_rate"] is None or reads is None or evidence.counted is None:
        return None
    chunks = with_endpoints(evidence.counted).select(["id", "dataset", "endpoint"]).to_pandas()
    chunks = chunks[chunks["endpoint"] == row["endpoint"]]
    for dataset in chunks["dataset"].mode().head(1):
        own = pc.is_in(reads["chunk"], pa.array(chunks.loc[chunks["dataset"] == dataset, "id"]))
        branches = sorted(reads.filter(own)["branch"].drop_null().unique().to_pylist())
        return f'fileset["{dataset}"]["preload"] = {json.dumps(branches)}' if branches else None
    return None


def _cold(row: Row) -> Answering | None:
    before, first, early = row["metadata_rate"], row["payload_rate"], row["metadata_latency"]
    if before is None or first is None or first > SLOW_RATE:
        return None
    if before * early >= LARGE and before >= TIMES * first:
        rates = BYTE_PER_SECOND.text(before), BYTE_PER_SECOND.text(first)
        what = "delivers what was read before at {} and what is read for the first time at {}: its cache was cold."
    elif row["service"] == XCACHE and row["latency"] >= TIMES * early:
        rates = SECOND.text(early), SECOND.text(row["latency"])
        what = (
            "is an XCache that answers requests for what was read before after {} and all on average after {}: it was "
            "probably cold."
        )
    else:
        return None
    return Answering(what.format(*rates), "Run it again: from then on the cache has the files.")


def _slow(row: Row, others: list[Row]) -> Answering | None:
    # the rate shows the latency then, on a short way as well
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
        f"delivers {rate} per request{against} and answers after {latency} with a round trip of {trip}: the server, or "
        "the link to it, is slow.",
        "Read its files from another server, or ask its site.",
    )


# Bytes that were read before

AGAIN: Final = {
    SAME_LOOP: ("because {pieces} span chunk boundaries", "use larger chunks, or files with smaller {pieces}"),
    SAME_DATASET: ("by another Runner call", "process shared files in a single Runner call"),
    OTHER_DATASET: ("because files are listed in two datasets", "list each file in one dataset only"),
    SAME_ATTEMPT: ("within a chunk, by the processor or the reader", "keep arrays that are used more than once"),
    OF_TASKS: ("by another function", "read each file in one function only"),
}
"""Why bytes are read again, and what to do, by what the readers have in common."""


def pieces(repeated: Repeated) -> str:
    """What a format reads at once."""
    return "row groups" if repeated.parquet else "baskets"


@finding(
    "re-read",
    "Much was read more than once",
    part="in chunks",
    shows="`read`, `decompress`; `re-read` of the byte ledger",
    first="the line of the finding",
)
def read_again(evidence: Evidence) -> Iterator[Finding]:
    """Limited by reading again.

    Chunks request bytes that other chunks, or the same one, have read before: the class `re-read` of the byte ledger
    is large. From a quarter of all requested bytes it is a finding, even where storage is so fast that it saves
    little time.

    **How to make sure.** `advice` of the byte ledger says what the readers have in common. Compare branches and
    files.

    ```python
    print(measurement.byte_ledger.advice)
    print(measurement.byte_ledger.by("branch")[["payload", "re-read"]])
    ```

    **What to do.**

    - Copy the line of the finding. Chunks that end where the file's clusters do (`align_clusters=True`, for TTrees)
      read each basket once.
    - Parquet is read by row groups: use chunks of whole ones, or write smaller ones.
    - List a file in one dataset only, and process shared files in a single Runner call.
    - Keep arrays that `process()` uses more than once.

    **When it is not a problem.** A local disk or a warm cache nearby delivers again what it has delivered before;
    what is left is the CPU time of decompressing it.
    """
    ledger = evidence.bytes
    if ledger is None or ledger.repeated is None or not ledger.total:
        return
    # as much is a finding, whatever time it takes
    least, again, whole = 0.25 * ledger.total, ledger.repeated, f"of {BYTE.text(ledger.total)}"
    if (reread := ledger.get(phases.REREAD) or 0) >= least:
        why = again.readers(max(again.baskets, key=lambda one: again.baskets[one]))
        because, advice = (text.format(pieces=pieces(again)) for text in AGAIN[why])
        remedy = None
        if why == SAME_LOOP:
            remedy = evidence.larger
            if not (remedy or again.parquet or again.aligned):
                advice, remedy = "end chunks where clusters of baskets end, in the Runner", "align_clusters=True"
            if again.reads_on and not again.parquet:
                advice = f"{READS_ON}; {advice}"
        yield Finding(
            what=f"{BYTE.text(reread)} {whole} ({FRACTION.text(reread / ledger.total)}) were read before {because}.",
            advice=f"{advice[0].upper()}{advice[1:]}.",
            remedy=remedy,
            rows={"re-read": evidence.reread * evidence.time_of("storage", "decompression")},
            always=True,
        )
    # what several chunks read of files that process() opens itself: baskets, and objects such as histograms
    entries = 'entry_start=events.metadata["entrystart"], entry_stop=events.metadata["entrystop"]'
    own = ", or read only their own entries"
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
                what=f"At least {BYTE.text(size)} {whole} ({FRACTION.text(size / ledger.total)}) were read before: "
                f"chunks read the same of {names_of(found[:NAMED])}{more}, which process() opens.",
                advice=f"Keep what they need from chunk to chunk (functools.cache){or_else}.",
                culprits=tuple(found),
                remedy=remedy,
                rows={"re-read": seconds},
                always=True,
            )


@ByteLedger.advised_by
def savings_of_bytes(repeated: Repeated, total: int) -> list[ByteSaving]:
    """Changes that would save bytes, largest saving first."""
    found = largest_first({**repeated.baskets, phases.METADATA: repeated.metadata})
    return [
        ByteSaving(cause, int(size), f"{BYTE.text(size)} {_advised(repeated, cause)}")
        for cause, size in found.items()
        if size > (0.01 * total if cause == phases.METADATA else 0)
    ]


def _advised(repeated: Repeated, cause: str) -> str:
    """What is said of bytes of a cause; which chunk size pays is weighed by the verdict alone."""
    memory = ", at the cost of more memory"
    if cause == phases.METADATA:
        fewer = f"in {counted(repeated.files, 'chunk')} instead of {number(repeated.chunks)}{memory}"
        return (
            "of metadata were read again, as each chunk of a file reads them: one chunk per file reads them once per "
            f"file, {fewer}"
        )
    because, advice = (text.format(pieces=pieces(repeated)) for text in AGAIN[repeated.readers(cause)])
    if repeated.readers(cause) == SAME_LOOP:
        advice = f"one chunk per file reads each once{memory}"
        # Parquet has no clusters, and once on they help no more
        if not (repeated.parquet or repeated.aligned):
            aligned = "align_clusters=True in the Runner also reads each once, if the files hold TTrees"
            advice = f"{advice}; {READS_ON if repeated.reads_on else aligned}"
    return f"were read again {because}: {advice}"


@finding(
    "decompression",
    "Decompression is slow",
    part="in chunks",
    shows="`decompress`",
    first="zstd instead of LZMA",
    least=0.20,
)
def decompression(evidence: Evidence) -> Finding | None:
    """Limited by decompression.

    CPU time goes into unpacking baskets: the class `decompress` of the time ledger is large.

    **How to make sure.** `chunk_decompress_seconds` is CPU time, so it does not grow on a busy host. Bytes before and
    after decompression tell how hard the files are packed; LZMA takes several times the CPU time of zstd for the same
    bytes.

    ```python
    print(measurement.metrics["chunk_decompress_seconds"], "s")
    print(measurement.metrics["compression_ratio"])
    print(measurement.branches.groupby("branch")["decompress_seconds"].sum().sort_values().tail())
    ```

    **What to do.**

    - Write skims with zstd: `uproot.recreate("skim.root", compression=uproot.ZSTD(5))`; for files from elsewhere, ask
      for it.
    - Read fewer branches: only those that are read are decompressed.
    - Keep what many runs share as a skim, so that it is unpacked once.

    **When it is not a problem.** Compressed files save bandwidth: over a slow link LZMA may still be the faster
    choice. Up to a fifth of the wall time is normal and not reported. The saving assumes that zstd or lz4 need 30 %
    of the CPU time.
    """
    rows = evidence.rows_of("decompression")
    if not rows:
        return None
    seconds = by_part(evidence.counted, "dataset", phases.COLUMNS_OF[phases.DECOMPRESS])
    found = most_of("dataset", seconds)
    most = f", most of it in dataset {found[0].name}" if found and len(seconds) > 1 else ""
    # zstd or lz4 need 30 % of the CPU time of LZMA
    change = of_chunks(lambda old: with_computing(old, decompress=0.3 * old.parts.decompress))
    return Finding(
        what=f"Decompression takes {evidence.share_of('decompression')} of thread time{most}.",
        advice="Write the files with zstd or lz4 instead of LZMA or zlib, or read fewer branches.",
        culprits=tuple(found),
        rows=rows,
        taken=Taken(change, 0.7 * sum(rows.values())),
    )


@finding(
    "interpretation",
    "Building arrays is slow",
    part="in chunks",
    shows="`interpret`",
    first="fewer jagged branches",
    least=0.25,
)
def interpretation(evidence: Evidence) -> Finding | None:
    """Limited by interpretation.

    CPU time goes into making arrays of decompressed baskets: the class `interpret` of the time ledger is large.

    **How to make sure.** Flat branches of numbers cost almost nothing; jagged and nested ones do. The table has the
    branches with the most time.

    ```python
    reads = measurement.branches.groupby("branch")[["interpret_seconds", "bytes_uncompressed"]].sum()
    print(reads.sort_values("interpret_seconds").tail())
    ```

    **What to do.**

    - Read fewer branches, the ones at the end of this table first.
    - Select events on flat branches before the first jagged one is touched: NanoEvents reads a branch when it is
      used.
    - Skim nested types into flat ones if many runs need them.

    **When it is not a problem.** What is read has to become arrays. Below a quarter of the wall time it is not
    reported, and the saving is a bound: nothing in its place is not possible.
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
        advice="Read it for fewer events, or a flat branch instead." if len(seconds) == 1 else advice,
        culprits=tuple(found),
        rows=rows,
        taken=Taken(without_cpu(amounts(evidence.counted, "interpret_seconds")), at_most=True),
    )


@finding(
    "metadata",
    "Opening files is slow",
    part="in chunks",
    shows="`open`",
    first="larger chunks",
    least=0.10,
)
def metadata(evidence: Evidence) -> Finding | None:
    """Limited by metadata.

    Threads open files and build events: the class `open` of the time ledger is large.

    **How to make sure.** Each chunk opens its file: header, streamers and tree are read again, then the schema builds
    the events. `open_seconds` is the first part, `build_seconds` the second; `metadata` of the byte ledger is what
    was requested.

    ```python
    print(measurement.chunks[["open_seconds", "build_seconds"]].describe().loc[["mean", "max"]])
    print(measurement.byte_ledger["metadata"], "bytes of", measurement.byte_ledger.total)
    ```

    **What to do.**

    - If a file has several chunks, use larger ones, up to whole files: then the finding names a `chunksize`.
    - If `build_seconds` dominates, use a lighter schema: `BaseSchema`, or a subclass of `NanoAODSchema` for what you
      read.
    - If `open_seconds` dominates, the storage answers late: see [storage](storage.md).

    **When it is not a problem.** Each file has to be opened once. Many tiny files stay expensive with any chunk size:
    merge them. The first opening on a thread is [start-up](start-up.md).
    """
    total = evidence.time_of("metadata") - core_wait_outside_process(evidence)
    if total <= 0:
        return None
    # the servers of files that process() opens itself are not told apart here
    found = [] if evidence.sum_of("bytes_other") else endpoints(evidence, {phases.OPEN: total})
    each = ""
    if evidence.chunks:
        each = f", {SECOND.text(total / evidence.chunks)} for each of {number(evidence.chunks)} chunks"
    at = f" at {names_of(found)}" if found else ""
    several = evidence.counted is not None and evidence.chunks > len(evidence.counted["file"].unique()) > 0
    size, remedy = evidence.chunk_size, evidence.larger
    taken = Taken(without_parts("open_cpu", "open_wait"), at_most=True)
    advice = "Keep the files nearer, or merge small ones: each is opened once."
    if remedy or (evidence.local and several):
        advice = "Use larger chunks, so that fewer of them open files."
    elif not all(call.options.get("schema") == "BaseSchema" for call in evidence.run.calls):
        advice = "Use a schema with fewer collections."
    elif several:
        advice = "Keep the files nearer: each chunk opens its file."
    if remedy:
        taken = Taken(size.removal, last=True, known=size.saving.up_to(evidence.wall(total)))
    return Finding(
        what=f"Opening files and building events takes {evidence.share(total)} of thread time{each}{at}.",
        advice=advice,
        culprits=tuple(found),
        remedy=remedy,
        rows={phases.OPEN: total},
        taken=taken,
    )
