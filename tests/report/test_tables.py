"""Sheets of DataFrames: cells are in the units of their columns, and what is absent says why."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from roastcoffea.report.tables import heading_of, sheet_of_table
from roastcoffea.sheets.sheet import Sheet


def shown(sheet: Sheet) -> list[list[str]]:
    return [[cell.text for cell in row] for row in sheet.cells()]


def test_quotients_have_units_by_their_names() -> None:
    frame = pd.DataFrame({"busy_share": [0.03], "slowness": [1.5]})
    assert shown(sheet_of_table(frame, "workers")) == [["3 %", "1.5 x"]]


def test_columns_are_what_their_attributes_say() -> None:
    frame = pd.DataFrame({"took": [63.0, None], "start": [0.25, 0.5], "size": pd.array([None, 2000], "Int64")})
    frame.attrs = {
        "columns": {"start": "when (Unix time)", "took": "how long"},
        "units": {"took": "s", "start": "s", "size": "B"},
    }
    sheet = sheet_of_table(frame, "things")
    assert [column.meaning for column in sheet.columns] == ["how long", "when (Unix time)", ""]
    assert [row[0] for row in shown(sheet)] == ["1 min 3 s", "-"]
    assert ":00.250 " in shown(sheet)[0][1]
    assert [row[2] for row in shown(sheet)] == ["-", "2 kB"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, "a"], "1, a"),
        (np.array(["a", "b"]), "a, b"),
        ({"jets": 3, "region": "SR"}, "jets=3, region=SR"),
        (True, "True"),
        ("text", "text"),
        (None, "-"),
    ],
)
def test_other_values_are_words(value: object, text: str) -> None:
    assert shown(sheet_of_table(pd.DataFrame({"a": pd.Series([value], dtype=object)}), "things")) == [[text]]


def test_identities_have_all_of_their_digits() -> None:
    frame = pd.DataFrame({"id": [7768090475584863073], "events": [12345]})
    assert shown(sheet_of_table(frame, "stragglers")) == [["7768090475584863073", "12,345"]]


def test_rows_beyond_the_most_are_counted() -> None:
    sheet = sheet_of_table(pd.DataFrame({"a": range(9)}), "things", most=4)
    assert (len(sheet.rows), sheet.left_out) == (4, 5)


def test_an_absent_table_gives_its_reason() -> None:
    made = pd.DataFrame({"a": []})
    assert sheet_of_table(made, "things").rows == []
    made.attrs["absent"] = "nobody looked"
    assert sheet_of_table(made, "things", title="x") == Sheet(title="x", lead=["Not measured: nobody looked."])


def test_headings_are_words_of_people() -> None:
    names = ["residual", "bound", "present_seconds", "cpu_seconds", "cpu_share", "seconds", "file"]
    assert list(map(heading_of, names)) == [
        "unaccounted",
        "limited by",
        "present",
        "CPU",
        "CPU share",
        "seconds",
        "file",
    ]


@pytest.mark.parametrize(("rest", "shown"), [([0, 0], False), ([1e-9, -2e-8], False), ([0, 5], True)])
def test_a_breakdown_has_no_column_of_nothing_unaccounted(rest: list[float], shown: bool) -> None:
    frame = pd.DataFrame({"file": ["a", "b"], "payload": [50, 95], "residual": rest, "total": [50, 100]})
    heads = [column.name for column in sheet_of_table(frame, "files").columns]
    assert heads == ["file", "payload", *["unaccounted"] * shown, "total"]
