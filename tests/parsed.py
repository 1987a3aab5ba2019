"""HTML of notebooks and pages, and what is packed in it, read again; and names that are hostile to it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np

from roastcoffea.report.page.charts import ESCAPE

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


def unpacked(told: dict[str, Any], content: bytes, lanes: int) -> list[tuple[int, int, float, float, int]]:
    """Lane, class, begin, end and group of each task, as charts.js reads them."""
    at = 0

    def take(kind: str, length: int) -> Any:
        nonlocal at
        found = np.frombuffer(content, kind, length, at)
        at += found.nbytes
        return found.astype(np.int64)

    count = told["tasks"]
    of_lane = take("<u4", lanes)
    far = [take("<i4", told[name]).tolist() for name in ("gaps", "durations")]
    gaps, durations = [take("u1", count) + 256 * take("u1", count) for _ in range(2)]
    kinds = take("u1", count)
    groups = take("u1", count) + 256 * take("u1", count)
    assert at == len(content)
    found, task = [], 0
    for lane, number in enumerate(of_lane):
        now = 0
        for _ in range(number):
            now += far[0].pop(0) if gaps[task] == ESCAPE else gaps[task]
            begin = now
            now += far[1].pop(0) if durations[task] == ESCAPE else durations[task]
            found.append((lane, kinds[task], begin * told["unit"], now * told["unit"], groups[task]))
            task += 1
    return found
