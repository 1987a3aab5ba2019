"""Storage: which server each attempt read from, how servers answered, and the sites that hold the files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from roastcoffea.metrics.catalogue import refuse_if, table
from roastcoffea.metrics.facts import FAILED
from roastcoffea.records.arrow import arrow_schema, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, Row, bytes_column, picked, seconds_column, text_column
from roastcoffea.records.run import Run


def with_sites(attempts: Table, asked: Table | None) -> Table:
    """Attempts with the site of each file, as it was asked for; None where that is not known."""
    sites = pa.nulls(len(attempts), pa.string())
    if asked is not None and "site" in asked.column_names and asked["site"].null_count < len(asked):
        known = asked.filter(asked["site"].is_valid()).group_by(["dataset", "file"]).aggregate([("site", "max")])
        sites = known["site_max"].take(pc.index_in(_places(attempts), value_set=_places(known).combine_chunks()))
    return attempts.append_column("site", sites)


def _places(table: Table) -> pa.ChunkedArray:
    """Dataset and file as one text."""
    return pc.binary_join_element_wise(table["dataset"], table["file"], "\0", null_handling="replace")


LOCAL: Final = "local files"
UNKNOWN: Final = "unknown"

XCACHE: Final = "XCache"
SERVICEX: Final = "ServiceX"

SERVER_COLUMNS: Final = (
    text_column("endpoint", "server that the data came from"),
    text_column("redirector", "host of the URLs, where it is another one"),
    text_column("service", f'"{XCACHE}" or "{SERVICEX}", where URLs are of one by their names'),
    text_column("origin", "server that a cache has its files from, as URLs name it"),
    text_column("sites", "sites that hold the files, where the fileset tells"),
    Column("files", "integer", "files", "files that were opened there"),
    Column("attempts", "integer", "attempts", "attempts that read there, of chunks and of preprocessing"),
    Column("errors", "integer", "attempts", "of these, those that failed"),
    Column("retries", "integer", "attempts", "of these, those of a task that was tried before"),
    Column("losses", "integer", "attempts", "attempts that began there and that another server took over (XRootD)"),
    Column("opens", "integer", "opens", "how often files were opened there"),
    seconds_column("seconds_per_open", "mean time to open a file, with connection and redirection"),
    Column("requests", "integer", "requests", "requests to read that it answered"),
    Column("vector_reads", "integer", "requests", "of these, vector reads"),
    bytes_column("bytes_requested", "requested from it"),
    bytes_column("bytes_transferred", "received from it"),
    Column("bytes_per_request", "number", "B", "mean size of a request"),
    seconds_column("latency", "mean time from sending a request to its whole answer"),
    seconds_column("metadata_latency", "the same of requests of chunks before process()"),
    seconds_column("shortest_latency", "shortest latency of any request: hardly more than a round trip"),
    Column("rate", "number", "B/s", "bytes per second of latency: what one request at a time receives"),
    Column("metadata_rate", "number", "B/s", "the same before process(), beyond round trips: mostly repeated reads"),
    Column("payload_rate", "number", "B/s", "the same in process(), beyond round trips: mostly first reads"),
)
"""One row for each server; opens and vector reads are known of XRootD alone, requests of HTTP and S3 too."""

SHORTEST: Final = "shortest_request_seconds"
SUMMED: Final = (
    *("opens", "connect_seconds", "requests", "vector_reads", "request_seconds", "bytes_requested"),
    *("bytes_transferred", "metadata_requests", "metadata_request_seconds", "bytes_metadata"),
)
LATE: Final = {
    "late_bytes": ("bytes_requested", "bytes_metadata"),
    "late_requests": ("requests", "metadata_requests"),
    "late_seconds": ("request_seconds", "metadata_request_seconds"),
}
"""What is of process(): a whole, and what of it was before. Not known of preprocessing."""

ALL_SUMMED: Final = (*SUMMED, *LATE, "failed", "tried")

OF_OPENINGS: Final = arrow_schema(
    picked(CHUNK_COLUMNS, "file", "endpoint", "outcome", "attempt", "left_endpoint", *SUMMED, SHORTEST)
)
"""What is needed of attempts of chunks, and of preprocessing, which lacks some of it."""

NAMES: Final = ("redirector", "service", "origin")


CHAIN: Final = re.compile(r"::(?=\w+://|/)")
"""Between the parts of a chain of fsspec; ServiceX has colons in names of files."""

BEHIND: Final = re.compile(r"^\w+://[^/]+/+(?=root:/)")
"""Beginning of the URL of an XCache in front of another server's URL."""


def service(file: str | None) -> str | None:
    """XCache or ServiceX, where the URL has the form or the host the name."""
    host = endpoint(file) or ""
    if "servicex" in host.lower() or "root:::" in (file or ""):
        return SERVICEX
    return XCACHE if "xcache" in host.lower() or origin(file) is not None else None


def origin(file: str | None) -> str | None:
    """Host of the URL behind that of a cache; None where there is none."""
    behind = BEHIND.match(file or "")
    return behind and endpoint(re.sub("^root:/+", "root://", str(file)[behind.end() :]))


def endpoint(file: str | None) -> str | None:
    """Host of a URL, the last one of a chain, with its port and no credentials; a path is of local files."""
    if file is None:
        return None
    # of a million files few are of another host
    return _host("/".join(CHAIN.split(file)[-1].split("/", 3)[:3]))


@lru_cache(1000)
def _host(url: str) -> str:
    try:
        place = urlsplit(url).netloc
    except ValueError:
        return UNKNOWN
    place = place.rpartition("@")[2]
    # many URLs leave out the port of XRootD
    return (place.removesuffix(":1094") if "root" in url.partition(":")[0] else place) or LOCAL


def hosts_of_urls(attempts: Table) -> pa.Array:
    """Host of the URL of each attempt."""
    files = attempts["file"].combine_chunks().dictionary_encode()
    # without the path behind the host
    begin = pc.replace_substring_regex(files.dictionary, r"(?s)^([^/]*/[^/]*/[^/]*)/.*$", r"\1")
    if pc.any(pc.match_substring(files.dictionary, "::")).as_py():
        begin = files.dictionary
    begin = begin.dictionary_encode()
    hosts = pa.array([endpoint(url) for url in begin.dictionary.to_pylist()], pa.string())
    return hosts.take(begin.indices).take(files.indices)


def _by_file(attempts: Table, function: Callable[[str | None], str | None]) -> pa.Array:
    """What a function makes of the file of each attempt."""
    files = attempts["file"].combine_chunks().dictionary_encode()
    return pa.array([function(file) for file in files.dictionary.to_pylist()], pa.string()).take(files.indices)


def with_endpoints(attempts: Table) -> Table:
    """Attempts with the server that each read from: the one that XRootD told, else the host of the URL."""
    hosts = hosts_of_urls(attempts)
    if "endpoint" not in attempts.column_names:
        return attempts.append_column("endpoint", hosts)
    known = pc.coalesce(attempts["endpoint"], pa.chunked_array([hosts]))
    return attempts.set_column(attempts.schema.get_field_index("endpoint"), "endpoint", known)


@table
def endpoints(run: Run, chunks: Table) -> Table:
    """Servers with SERVER_COLUMNS, the one with the most attempts first."""
    tables = [chunks] if run.preprocessing is None else [chunks, run.preprocessing]
    every = pa.concat_tables([_openings(each, run.asked) for each in tables])
    refuse_if(not len(every), "no file was opened")
    steps = [
        *((name, "sum") for name in ALL_SUMMED),
        (SHORTEST, "min"),
        *((name, "max") for name in NAMES),
        ("site", "distinct", pc.CountOptions(mode="only_valid")),
        ("file", "count_distinct"),
        ("file", "count"),
    ]
    found = every.group_by("endpoint").aggregate(steps).sort_by([("file_count", "descending")])
    lost = {each["values"]: each["counts"] for each in every["left_endpoint"].drop_null().value_counts().to_pylist()}
    rows = [_row(row, lost.pop(row["endpoint"], 0)) for row in found.to_pylist()]
    rows += [{"endpoint": name, "attempts": 0, "losses": number} for name, number in lost.items()]
    return table_of_rows(SERVER_COLUMNS, rows)


def _openings(attempts: Table, asked: Table | None) -> Table:
    """Attempts with what is needed of them."""
    hosts = hosts_of_urls(attempts)
    whole = with_endpoints(attempts)
    columns = {
        field.name: whole[field.name] if field.name in whole.column_names else pa.nulls(len(whole), field.type)
        for field in OF_OPENINGS
    }
    late = {name: pc.subtract(columns[whole_of], columns[early]) for name, (whole_of, early) in LATE.items()}
    counts = {
        "failed": pc.is_in(whole["outcome"], value_set=pa.array(FAILED)),
        "tried": pc.greater(columns["attempt"], 1),
    }
    columns |= late | {name: pc.cast(flags, pa.int64()) for name, flags in counts.items()}
    return pa.table(
        {
            **columns,
            "redirector": pc.if_else(pc.equal(whole["endpoint"], hosts), pa.scalar(None, pa.string()), hosts),
            "service": _by_file(whole, service),
            "origin": _by_file(whole, origin),
            "site": with_sites(whole.select(["dataset", "file"]), asked)["site"],
        }
    )


def _row(row: Row, losses: int) -> Row:
    """Row of a server, of what its openings sum up to."""
    of = {name: row[f"{name}_sum"] for name in ALL_SUMMED}
    requests, seconds, shortest = of["requests"], of["request_seconds"], row[f"{SHORTEST}_min"]
    return {
        "endpoint": row["endpoint"],
        **{name: row[f"{name}_max"] for name in NAMES},
        "sites": ", ".join(sorted(row["site_distinct"])[:3]) or None,
        "files": row["file_count_distinct"],
        "attempts": row["file_count"],
        "errors": of["failed"],
        "retries": of["tried"],
        "losses": losses if of["opens"] is not None else None,
        "seconds_per_open": _ratio(of["connect_seconds"], of["opens"]),
        **{name: of[name] for name in ("opens", "requests", "vector_reads", "bytes_requested", "bytes_transferred")},
        "bytes_per_request": _ratio(of["bytes_transferred"], requests),
        "latency": _ratio(seconds, requests),
        "metadata_latency": _ratio(of["metadata_request_seconds"], of["metadata_requests"]),
        "shortest_latency": shortest,
        "rate": _ratio(of["bytes_transferred"], seconds),
        "metadata_rate": _rate(of["bytes_metadata"], of["metadata_request_seconds"], of["metadata_requests"], shortest),
        "payload_rate": _rate(of["late_bytes"], of["late_seconds"], of["late_requests"], shortest),
    }


def _rate(size: float | None, seconds: float | None, requests: float | None, shortest: float | None) -> float | None:
    """Bytes per second beyond round trips."""
    if seconds is None or requests is None or shortest is None:
        return None
    return _ratio(size, seconds - requests * shortest)


def _ratio(amount: float | None, of: float | None) -> float | None:
    """Quotient; None where it is not known or of nothing."""
    return None if amount is None or of is None or of <= 0 else amount / of
