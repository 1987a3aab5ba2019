"""Sheets as Markdown: text stays text, and tables are tables."""

from __future__ import annotations

import pytest

from roastcoffea.sheets.markup import markdown, plain
from roastcoffea.sheets.sheet import Column, Heading, Reason, Sheet
from roastcoffea.units import SECOND


def test_a_sheet_has_title_list_table_and_notes() -> None:
    columns = (Column(name="name"), Column(name="wall", unit=SECOND))
    sheet = Sheet(title="runs", lead=["of today"], items=["an item"], columns=columns, rows=[("a|b", 63)], total=3)
    assert markdown([Heading(title="ttbar", alarm="it failed", notes=["as reported"]), sheet]).split("\n\n") == [
        "## ttbar",
        "**it failed**",
        "- as reported",
        "### Runs",
        "of today",
        "- an item",
        "| name | wall |\n| :-- | --: |\n| a\\|b | 1 min 3 s |",
        "and 2 more\n",
    ]


def test_parts_follow_and_reasons_stand_in_cells() -> None:
    part = Sheet(columns=[Column(name="a")], rows=[[Reason("why\nnot")]], notes=["a note"])
    assert markdown([Sheet(title="one", parts=[part])]) == "### One\n\n| a |\n| :-- |\n| why not |\n\n- a note\n"


@pytest.mark.parametrize("sign", "\\`*_[]<>|~$&#")
def test_signs_of_markdown_are_escaped(sign: str) -> None:
    assert plain(f"a{sign}b") == f"a\\{sign}b"
