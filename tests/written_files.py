"""All that can be written of a measurement, and what is in it, also packed."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from roastcoffea.log import kinds
from roastcoffea.log.journal import ENDING, LOG, RECORDS
from roastcoffea.log.journals import Entry, journal_in
from roastcoffea.log.packing import checked_content
from roastcoffea.measurement import Measurement
from roastcoffea.report.exports.metrics_json import FORMATS

BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")


def write_everything(measurement: Measurement, folder: Path, **options: Any) -> Path:
    """Save, report and export in every form; give the folder of the measurement."""
    measurement.report(folder / "report.html", **options)
    for file_format in FORMATS:
        measurement.export(folder / f"exported-{file_format}", file_format, **options)
    measurement.export(folder / "trace.json.gz", "perfetto", **options)
    return measurement.save(folder, "saved", **options)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Contents of all files below a folder, as they are and decoded."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            yield str(path), data
            yield from ((f"{path} (decoded)", decoded) for decoded in decoded_contents(path, data))


def decoded_contents(path: Path, data: bytes) -> Iterator[bytes]:
    if path.suffix == ".parquet":
        yield repr(pq.read_table(path).to_pydict()).encode()
        return
    if path.suffix == ENDING:
        yield from (part for entry in journal_in(path.parent).entries() for part in decoded_entry(entry))
        return
    if path.suffix == ".gz":
        yield gzip.decompress(data)
    for block in BASE64.findall(data):
        with suppress(binascii.Error):
            decoded = base64.b64decode(block)
            yield decoded
            with suppress(OSError, EOFError, zlib.error):
                yield gzip.decompress(decoded)


def decoded_entry(entry: Entry) -> Iterator[bytes]:
    """An entry of a journal as it is, and with the records of chunks unpacked."""
    yield entry.data
    if entry.kind == RECORDS:
        yield checked_content(entry.data)
    at = 0
    while entry.kind == LOG and at < len(entry.data):
        code, length = struct.unpack_from(kinds.HEADER, entry.data, at)
        at += kinds.HEADER_SIZE + length
        if code == kinds.CHUNK.code:
            yield checked_content(entry.data[at - length : at])


def found_in(texts: Iterable[tuple[str, bytes]], secrets: Iterable[str]) -> list[tuple[str, str]]:
    """Where which secret is, also in the forms that it takes in URLs, JSON and base64."""
    return [(place, secret) for place, text in texts for secret in secrets if secret.encode() in text]
