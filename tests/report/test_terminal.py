"""Sheets in a terminal: all of it fits, nothing is cut, and no text steers it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from roastcoffea.sheets.sheet import Amount, Column, Heading, Reason, Sheet
from roastcoffea.sheets.terminal import for_terminal, print_sheets
from roastcoffea.units import COUNT, SECOND

NAME = Column(name="name")


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def printed(*sheets: Sheet) -> list[str]:
    file = io.StringIO()
    print_sheets(sheets, file)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def table(names: list[str], columns: list[Column], cell: Any = 1, **values: Any) -> Sheet:
    return Sheet(columns=[NAME, *columns], rows=[(name, *(cell for _ in columns)) for name in names], **values)


def test_a_sheet_has_title_list_table_and_notes() -> None:
    column = Column(name="wall", unit=SECOND)
    sheet = table(["a"], [column], 63, title="runs", lead=["of today"], items=["an item"], notes=["a note"], total=3)
    assert printed(sheet) == [
        *("", "Runs", "of today", "  - an item"),
        *("  name               wall", "  a             1 min 3 s", "  and 2 more", "  a note"),
    ]


def test_in_a_notebook_files_and_texts_get_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[str] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: displayed.append(text))
    sheet = Sheet(title="runs", items=["an item"])
    assert printed(sheet) == ["", "Runs", "  - an item"]
    assert "an item" in for_terminal([sheet])
    assert displayed == []
    print_sheets([sheet])
    assert len(displayed) == 1


def test_a_heading_names_what_it_is_about() -> None:
    heading = Heading(title="ttbar", label="what if", lead=["facts"], alarm="it failed", notes=["as reported"])
    assert printed(heading) == ["", "what if  ttbar", "facts", "", "it failed", "", "as reported"]


def test_a_sheet_without_a_title_continues_and_notes_have_a_line_below() -> None:
    columns = [Column(name="", width=6), Column(name="")]
    first = Sheet(title="one", columns=columns, rows=[("a", Amount(1))])
    other = Sheet(columns=columns, rows=[("b", Reason("nobody looked"))], notes=["a note"])
    assert printed(first, other, first.without(1)) == [
        *("", "One", "  a       1", "  b       nobody looked", "  a note"),
        *("", "One", "  a"),
    ]
    assert printed(other, other)[2:4] == ["", "  b       nobody looked"]


def test_columns_are_left_out_by_rank_where_there_is_no_room() -> None:
    ranks = {"first": 1, "always": 0, "second": 2, "third": 2}
    columns = [Column(name=f"{name} {'x' * 18}", unit=COUNT, dispensable=rank) for name, rank in ranks.items()]
    shown = printed(table(["a"], columns))[0]
    assert [name for name in ranks if name in shown] == ["always", "second"]


def test_amounts_are_folded_where_nothing_can_be_left_out() -> None:
    columns = [Column(name=str(number), unit=COUNT) for number in range(4)]
    lines = printed(table(["a"], columns, Amount(1, text="123456789 " * 3)))
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("123456789") == 12


def test_names_fold_and_amounts_stay_whole() -> None:
    lines = printed(table(["z" * 100], [Column(name="amount", unit=COUNT)], 123456789))
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("z") == 100
    assert lines[1].endswith(" 123,456,789")


@pytest.mark.parametrize(("text", "shown"), [("[red]x[/red]", "[red]x[/red]"), ("a\x1b[31mb", "a\\x1b[31mb")])
def test_no_text_steers_the_terminal(text: str, shown: str) -> None:
    sheet = Sheet(
        title=text, lead=[text], items=[text], columns=[Column(name=text)], rows=[[text], [Reason(text)]], notes=[text]
    )
    out = "\n".join(printed(sheet, Heading(title=text, label=text, alarm=text, notes=[text])))
    assert out.lower().count(shown) == 11
    assert "\x1b" not in out


def test_it_can_be_had_as_the_standard_output_would_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    sheets = [Sheet(title="one", items=["an item"])]
    text = for_terminal(sheets)
    print_sheets(sheets)
    assert capsys.readouterr().out == text
