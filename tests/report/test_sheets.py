"""Sheets: what their cells show, and by what they are sorted."""

from __future__ import annotations

import math

import pytest

from roastcoffea.report.sheets import Amount, Cell, Column, Heading, Reason, Sheet, flat
from roastcoffea.units import BYTE, SECOND, WORD


@pytest.mark.parametrize(
    ("unit", "cell", "text", "value"),
    [
        (SECOND, 63, "1 min 3 s", 63.0),
        (SECOND, None, "-", None),
        (SECOND, "itself", "itself", None),
        (SECOND, Reason("nobody looked"), "nobody looked", None),
        (SECOND, Amount(2000, BYTE), "2 kB", 2000.0),
        (SECOND, Amount(7, text="seven"), "seven", 7.0),
        (SECOND, Amount(None, BYTE), "-", None),
        (SECOND, math.inf, "inf s", None),
        (WORD, "both", "both", None),
        (None, "name", "name", None),
        (None, 7768090475584863073, "7768090475584863073", None),
        (None, Amount(7), "7", 7.0),
    ],
)
def test_a_cell_has_a_text_and_a_value(unit: object, cell: Cell, text: str, value: float | None) -> None:
    sheet = Sheet(title="one", columns=[Column(name="it", unit=unit)], rows=[[cell]])  # type: ignore[arg-type]
    ((shown,),) = sheet.cells()
    assert (shown.text, shown.value, shown.missing) == (text, value, isinstance(cell, Reason))


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match=r"argument|shorter|longer"):
        Sheet(title="one", columns=[Column(name="a"), Column(name="b")], rows=[["x"]]).cells()


def test_a_title_begins_with_a_capital_and_a_name_as_it_does() -> None:
    assert Sheet(title="thread time").heading == "Thread time"
    assert Heading(title="ttbar").heading == "ttbar"
    assert Sheet().heading == ""


def test_parts_follow_their_sheet() -> None:
    below = Sheet(title="c")
    sheets = [Sheet(title="a", parts=[Sheet(title="b", parts=[below])]), Sheet(title="d")]
    assert [sheet.title for sheet in flat(sheets)] == ["a", "b", "c", "d"]


def test_a_column_can_be_left_out() -> None:
    sheet = Sheet(title="t", columns=[Column(name="a"), Column(name="b")], rows=[["x", "y"]], total=5)
    less = sheet.without(0)
    assert ([column.name for column in less.columns], less.rows) == (["b"], [["y"]])
    assert less.left_out == 4
