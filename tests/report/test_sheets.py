"""Sheets: what their cells show, and by what they are sorted."""

from __future__ import annotations

import math

import pytest

from roastcoffea.sheets.sheet import Amount, Cell, Column, Heading, Reason, Sheet, flat
from roastcoffea.units import BYTE, GIGABIT_PER_SECOND, KILOHERTZ, SECOND, WORD


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


def test_rates_of_a_table_have_one_unit() -> None:
    """Of columns and of single amounts alike; other sheets have their own, and sizes keep theirs."""
    rate, label = Column("rate", GIGABIT_PER_SECOND), Column("")
    rows = [[1.25, Amount(0.0313, GIGABIT_PER_SECOND)], [0.0123, Amount(5e-4, GIGABIT_PER_SECOND)], [None, 0.0]]
    cells = Sheet(columns=[rate, rate], rows=rows).cells()
    assert [[cell.text for cell in row] for row in cells] == [
        ["1.25 Gbit/s", "0.0313 Gbit/s"],
        ["0.0123 Gbit/s", "0.0005 Gbit/s"],
        ["-", "0 bit/s"],
    ]
    assert cells[1][1].value == 5e-4
    rows = [["fast", Amount(0.95, GIGABIT_PER_SECOND)], ["slow", Amount(0.0313, GIGABIT_PER_SECOND)]]
    rows += [["events", Amount(2.0, KILOHERTZ)], ["read", Amount(2e9, BYTE)], ["again", Amount(2e6, BYTE)]]
    cells = Sheet(columns=[label, label], rows=rows).cells()
    assert [row[1].text for row in cells] == ["950 Mbit/s", "31.3 Mbit/s", "2 kHz", "2 GB", "2 MB"]
    assert Sheet(columns=[rate], rows=[[0.0]]).cells()[0][0].text == "0 bit/s"
    assert Sheet(columns=[rate], rows=[[math.nan], ["not measured"]]).cells()[1][0].text == "not measured"


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
