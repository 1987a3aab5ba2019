"""The frame of pages: nothing but what is allowed runs, tables hold their frames, and text is text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re

import pandas as pd
import pytest
from markupsafe import Markup
from pages import NAMES, Parsed

from roastcoffea.report.page import frame
from roastcoffea.report.tables import FIRST_ROWS, sheet_of_table
from roastcoffea.sheets.sheet import Column, Picture, Sheet
from roastcoffea.units import COUNT


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
    page = Parsed(frame.page("a page", [Sheet(title="one", lead=["text"])], scripts=["let x = 1 < 2"]))
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
    packed = frame.packed_block("bytes", b"\0</script>")
    assert gzip.decompress(base64.b64decode(Parsed(packed).scripts[0])) == b"\0</script>"


def section(part: Sheet) -> str:
    """The one section of a page."""
    page = frame.page("a page", [Sheet(title="one", parts=[part])])
    return page.partition("</h2>")[2].partition("</section>")[0]


def test_a_table_holds_text_with_units_and_the_values_to_sort_by() -> None:
    table = section(sheet_of_table(measured_frame(), "files"))
    page = Parsed(table)
    assert page.rows[0] == ["file", "wall", "bytes payload", "start"]
    assert page.rows[1][:3] == ["file 0", "0 s", "-"]
    assert page.rows[3][:3] == ["file 2", "3 s", "2 kB"]
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:20\.250 \S+", page.rows[1][3])
    values = [attributes.get("data-v") for tag, attributes in page.elements if tag == "td"]
    assert values[:4] == [None, "0.0", None, "1700000000.25"]
    assert "duration [s]" in table


def test_what_is_not_known_is_flush_right_and_long_text_is_not() -> None:
    rows = [("a", None), ("b" * 41, 2)]
    columns = (Column(name="name"), Column(name="amount", unit=COUNT))
    cells = [
        attributes.get("class")
        for tag, attributes in Parsed(section(Sheet(columns=columns, rows=rows))).elements
        if tag == "td"
    ]
    assert cells == [None, "unknown", "long", None]


def test_rows_beyond_the_first_are_packed_and_those_beyond_the_most_are_told() -> None:
    table = section(sheet_of_table(measured_frame(100), "files", most=80))
    page = Parsed(table)
    assert len(page.rows) == 1 + FIRST_ROWS
    rest = json.loads(gzip.decompress(base64.b64decode(page.scripts[0])))
    assert [row[0][0] for row in rest] == [f"file {number}" for number in range(FIRST_ROWS, 80)]
    assert rest[-1][1] == ["1 min 58 s", 118.5]
    assert "This page contains the first 80 of 100 files." in table
    assert "<noscript>" in table


def test_a_table_without_rows_says_so() -> None:
    assert "There are no things." in section(Sheet(columns=[Column(name="a")], things="things"))


def test_hostile_text_is_text_in_pages_and_tables() -> None:
    made = pd.DataFrame({NAMES[0]: NAMES, "number": range(len(NAMES))})
    made.attrs["columns"] = {NAMES[0]: NAMES[3]}
    sheet = sheet_of_table(made, NAMES[3], title=NAMES[3])
    page = Parsed(frame.page(NAMES[0], [sheet]))
    assert [row[0] for row in page.rows] == [NAMES[0], *NAMES]
    assert not {"img"} & {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert len(page.scripts) == 2


def test_contents_lead_to_sections_and_what_has_no_title_belongs_to_the_one_before() -> None:
    page = frame.page("a page", [Sheet(title="over time"), Sheet(lead=["more"]), Sheet(title="\u00e9")])
    parsed = Parsed(page)
    assert [attributes["href"] for tag, attributes in parsed.elements if tag == "a"] == ["#over-time", "#part-1"]
    assert [attributes["id"] for tag, attributes in parsed.elements if tag == "section"] == ["over-time", "part-1"]
    assert "more" in page.partition('<section id="over-time">')[2].partition("</section>")[0]


def test_rows_may_stand_as_they_are() -> None:
    columns, rows = (Column(name=""), Column(name="v", unit=COUNT)), [("events", 2000.0)]
    plain = section(Sheet(columns=columns, rows=rows, form="plain"))
    assert "<td>events</td><td>2,000</td>" in plain


def test_a_picture_stands_where_it_was_drawn() -> None:
    sheet = Sheet(title="one", pictures=[Picture("rates", "what it shows"), Picture("other")])
    page = frame.page("a page", [sheet], drawn={"rates": Markup("<svg></svg>")})
    assert '<svg></svg><p class="quiet">what it shows</p></section>' in page
