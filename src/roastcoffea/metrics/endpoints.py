"""Storage: the server that each attempt used, server response times, and the sites that hold the files."""

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
from roastcoffea.metrics.facts import FAILED, aggregated, joined
from roastcoffea.records.arrow import arrow_schema, plain, table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.columns import Column, Row, bytes_column, picked, seconds_column, text_column
from roastcoffea.records.run import Run


def with_sites(attempts: Table, asked: Table | None) -> Table:
    """Add a column with the site of each file, or null if the site is unknown."""
    sites = pa.nulls(len(attempts), pa.string())
    if asked is not None and "site" in asked.column_names and asked["site"].null_count < len(asked):
        known = asked.filter(asked["site"].is_valid())
        known = aggregated(known, ["dataset", "file"], {"site": ("site", "max")}, None)
        sites = known["site"].take(pc.index_in(_places(attempts), value_set=_places(known).combine_chunks()))
    return attempts.append_column("site", sites)


def _places(table: Table) -> pa.ChunkedArray:
    table = plain(table.select(["dataset", "file"]))
    return pc.binary_join_element_wise(table["dataset"], table["file"], "\0", null_handling="replace")


LOCAL: Final = "local files"
UNKNOWN: Final = "unknown"

XCACHE: Final = "XCache"
SERVICEX: Final = "ServiceX"

SERVER_COLUMNS: Final = (
    text_column("endpoint", "server from which the data were read"),
    text_column("redirector", "host in the URLs, if it differs from the server"),
    text_column("service", f'"{XCACHE}" or "{SERVICEX}", if the URL shows that one was used'),
    text_column("origin", "server behind the cache, according to the URL"),
    text_column("sites", "sites that hold the files, if the fileset names them"),
    Column("files", "integer", "files", "number of files opened on this server"),
    Column("attempts", "integer", "attempts", "number of chunk and preprocessing attempts that read from this server"),
    Column("errors", "integer", "attempts", "number of failed attempts"),
    Column("retries", "integer", "attempts", "number of retries"),
    Column(
        "losses", "integer", "attempts", "number of attempts that switched from this server to another (XRootD only)"
    ),
    Column("opens", "integer", "opens", "number of times a file was opened on this server"),
    seconds_column("seconds_per_open", "mean time to open a file, including connection setup and redirection"),
    Column("requests", "integer", "requests", "number of read requests answered by the server"),
    Column("vector_reads", "integer", "requests", "number of vector reads among the requests"),
    bytes_column("bytes_requested", "bytes requested from this server"),
    bytes_column("bytes_transferred", "bytes received from this server"),
    Column("bytes_per_request", "number", "B", "mean number of bytes received per request"),
    seconds_column("latency", "mean time from sending a request to receiving the complete response"),
    seconds_column("metadata_latency", "mean latency of requests sent before process() started"),
    seconds_column("shortest_latency", "shortest request latency, close to one round trip"),
    Column("rate", "number", "B/s", "throughput with one request at a time: bytes received divided by total latency"),
    Column(
        "metadata_rate",
        "number",
        "B/s",
        "throughput before process(), when most reads are re-reads; excludes round trips",
    ),
    Column(
        "payload_rate",
        "number",
        "B/s",
        "throughput in process(), where most data are read for the first time; excludes round trips",
    ),
)
"""The table has one row per server. Opens and vector reads are recorded only for XRootD. Requests are also recorded for
HTTP and S3.
"""

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
"""Pairs of columns: the total, and the part before process(). The difference is the amount in process(), which is not
measured for preprocessing.
"""

ALL_SUMMED: Final = (*SUMMED, *LATE, "failed", "tried")

OF_OPENINGS: Final = arrow_schema(
    picked(CHUNK_COLUMNS, "file", "endpoint", "outcome", "attempt", "left_endpoint", *SUMMED, SHORTEST)
)

NAMES: Final = ("redirector", "service", "origin")


CHAIN: Final = re.compile(r"::(?=\w+://|/)")
"""Separator in an fsspec URL chain. File names from ServiceX also contain colons."""

BEHIND: Final = re.compile(r"^\w+://[^/]+/+(?=root:/)")
"""Prefix that XCache adds to the URL of the server behind it."""


def service(file: str | None) -> str | None:
    host = endpoint(file) or ""
    if "servicex" in host.lower() or "root:::" in (file or ""):
        return SERVICEX
    return XCACHE if "xcache" in host.lower() or origin(file) is not None else None


def origin(file: str | None) -> str | None:
    """Host of the server behind a cache, or None if there is no cache."""
    behind = BEHIND.match(file or "")
    return behind and endpoint(re.sub("^root:/+", "root://", str(file)[behind.end() :]))


def endpoint(file: str | None) -> str | None:
    """Host and port of a URL without its credentials, or "local files" for a path.

    For a URL chain, the last URL is used.
    """
    if file is None:
        return None
    # cached, because even a million files are on only a few hosts
    return _host("/".join(CHAIN.split(file)[-1].split("/", 3)[:3]))


@lru_cache(1000)
def _host(url: str) -> str:
    try:
        place = urlsplit(url).netloc
    except ValueError:
        return UNKNOWN
    place = place.rpartition("@")[2]
    # many URLs omit XRootD's default port
    return (place.removesuffix(":1094") if "root" in url.partition(":")[0] else place) or LOCAL


def hosts_of_urls(attempts: Table) -> pa.Array:
    return _by_url(attempts, endpoint)


def _by_url(attempts: Table, function: Callable[[str | None], str | None]) -> pa.Array:
    """Value of a function of each attempt's URL, which is called once for each host."""
    files = attempts["file"].combine_chunks().dictionary_encode()
    # drop the path after the host, unless it contains another URL
    begin = pc.replace_substring_regex(files.dictionary, r"(?s)^([^/]*/[^/]*/[^/]*)/.*$", r"\1")
    begin = pc.if_else(pc.match_substring_regex(files.dictionary, "::|.root:/"), files.dictionary, begin)
    begin = begin.dictionary_encode()
    found = pa.array([function(url) for url in begin.dictionary.to_pylist()], pa.string())
    return found.take(begin.indices).take(files.indices)


def with_endpoints(attempts: Table) -> Table:
    """Add each attempt's server, as reported by XRootD or, if unknown, as named in the URL."""
    if "endpoint" not in attempts.column_names:
        return attempts.append_column("endpoint", hosts_of_urls(attempts))
    known = attempts["endpoint"]
    if not known.null_count:
        return attempts
    hosts = pa.chunked_array([hosts_of_urls(attempts)])
    known = hosts if known.null_count == len(known) else pc.coalesce(known.cast(pa.string()), hosts)
    return attempts.set_column(attempts.schema.get_field_index("endpoint"), "endpoint", known)


@table
def endpoints(run: Run, chunks: Table) -> Table:
    tables = [chunks] if run.preprocessing is None else [chunks, run.preprocessing]
    every = joined(_openings(each, run.asked) for each in tables)
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
            "service": _by_url(whole, service),
            "origin": _by_url(whole, origin),
            "site": with_sites(whole.select(["dataset", "file"]), asked)["site"],
        }
    )


def _row(row: Row, losses: int) -> Row:
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
    """Throughput in bytes per second, excluding one round trip per request."""
    if seconds is None or requests is None or shortest is None:
        return None
    return _ratio(size, seconds - requests * shortest)


def _ratio(amount: float | None, of: float | None) -> float | None:
    return None if amount is None or of is None or of <= 0 else amount / of
