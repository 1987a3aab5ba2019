"""The frame of pages: nothing but what is allowed runs, tables hold their frames, and text is text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
from test_notebook import NAMES

from roastcoffea.report.html import Html
from roastcoffea.report.page import former as frame
from roastcoffea.units import PERCENT


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
        if tag not in {"meta", "link", "input", "br", "img"}:
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


def measured_frame(rows: int = 3) -> pd.DataFrame:
    made = pd.DataFrame(
        {
            "file": [f"file {number}" for number in range(rows)],
            "wall_seconds": [1.5 * number for number in range(rows)],
            "bytes_payload": pd.array([None, *(1000 * number for number in range(1, rows))], "Int64"),
            "start": [1_700_000_000.25] * rows,
        }
    )
    made.attrs["columns"] = {"wall_seconds": "duration [s]", "start": "when it began (Unix time) [s]"}
    made.attrs["units"] = {"wall_seconds": "s", "bytes_payload": "B", "start": "s"}
    return made


def test_only_the_scripts_of_the_page_may_run() -> None:
    page = Parsed(frame.page("a page", [frame.section("one", Html("<p>text</p>"))], scripts=["let x = 1 < 2"]))
    policy = next(attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert "unsafe" not in rules["script-src"]
    assert len(page.scripts) == 3
    assert page.open == []


@pytest.mark.parametrize("program", ["'</script>'", "'</SCRIPT '", "// <!--", "a\r\nb"])
def test_a_program_that_would_end_its_own_element_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match="each would change it"):
        frame.page("a page", [], scripts=[program])


def test_data_cannot_leave_its_block() -> None:
    block = frame.data_block("names", NAMES)
    assert block.count("</script>") == 1
    assert json.loads(Parsed(block).scripts[0]) == NAMES
    packed = frame.packed_block("bytes", b"\0</script>")
    assert gzip.decompress(base64.b64decode(Parsed(packed).scripts[0])) == b"\0</script>"


def test_a_table_holds_text_with_units_and_the_values_to_sort_by() -> None:
    table = frame.table(measured_frame(), "files")
    page = Parsed(table)
    assert page.rows[0] == ["file", "wall seconds", "bytes payload", "start"]
    assert page.rows[1][:3] == ["file 0", "0 s", "-"]
    assert page.rows[3][:3] == ["file 2", "3 s", "2 kB"]
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:20\.250 \S+", page.rows[1][3])
    values = [attributes.get("data-v") for tag, attributes in page.elements if tag == "td"]
    assert values[:4] == [None, "0.0", None, "1700000000.25"]
    assert "duration [s]" in table


def test_a_unit_may_be_given() -> None:
    assert Parsed(frame.table(measured_frame(), "files", units={"wall_seconds": PERCENT})).rows[3][1] == "3 %"


def test_rows_beyond_the_first_are_packed_and_those_beyond_the_most_are_told() -> None:
    table = frame.table(measured_frame(100), "files", most=80)
    page = Parsed(table)
    assert len(page.rows) == 1 + frame.FIRST_ROWS
    rest = json.loads(gzip.decompress(base64.b64decode(page.scripts[0])))
    assert [row[0][0] for row in rest] == [f"file {number}" for number in range(frame.FIRST_ROWS, 80)]
    assert rest[-1][1] == ["1 min 58 s", 118.5]
    assert "The first 80 of 100 files are in this page." in table


def test_hostile_text_is_text_in_pages_and_tables() -> None:
    made = pd.DataFrame({NAMES[0]: NAMES, "number": range(len(NAMES))})
    made.attrs["columns"] = {NAMES[0]: NAMES[3]}
    page = Parsed(frame.page(NAMES[0], [frame.section(NAMES[3], frame.table(made, NAMES[3]))]))
    assert [row[0] for row in page.rows] == [NAMES[0], *NAMES]
    assert not {"img"} & {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert len(page.scripts) == 2


def test_an_absent_table_gives_its_reason() -> None:
    made = pd.DataFrame({"a": []})
    assert "There are no things." in frame.table(made, "things")
    made.attrs["absent"] = "nobody looked"
    assert "Not measured: nobody looked." in frame.table(made, "things")
