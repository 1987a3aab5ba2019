"""HTML of notebooks and pages, and all that can be written of a measurement, read again."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from roastcoffea.log import kinds
from roastcoffea.log.batches import checked_content
from roastcoffea.log.journal import ENDING, LOG, RECORDS
from roastcoffea.log.journals import Entry, journal_in
from roastcoffea.measurement import Measurement
from roastcoffea.report.exports import FORMATS

NAMES = ["<script>alert(1)</script>", "$$x$$", "a&b", '"><img src=x onerror=alert(1)>', r"\(y\)"]
SPREADSHEET = ["=1+1", "+cmd|' /C calc'!A0", "-dy", "@SUM(A1)", "\tx", "\rx", "\nx", "'quoted"]
SPREADSHEET += ['a "b", c', "../../x", "ä\\n"]
"""Names that mean something to spreadsheets and file systems."""


class Page(HTMLParser):
    """What is on a page: rows of its tables, all text, and each element with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.pieces.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Parsed(HTMLParser):
    """Elements with their attributes, and the text in cells and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "br", "img", "source"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def block(page: str, name: str) -> str:
    """Content of a block of data."""
    return page.partition(f'id="{name}">')[2].partition("</script>")[0]


def drawn(page: str) -> dict[str, Any]:
    """What the scripts of a page draw."""
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(block(page, "charts"))))
    return found


def tasks_in(told: dict[str, Any]) -> list[tuple[int, int, float, float, list[str]]]:
    """Lane, class, begin, end and what is known of each task, as charts.js reads them."""
    moments = (told["unit"] * np.cumsum(told["steps"])).reshape(-1, 2)
    lanes = np.repeat(np.arange(len(told["tasks"])), told["tasks"])
    known = [told["groups"][group] for group in told["group"]]
    return list(zip(lanes.tolist(), told["kind"], *moments.T.tolist(), known, strict=True))


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
