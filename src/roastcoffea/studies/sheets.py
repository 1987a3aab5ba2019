"""Sheets: titled tables with remarks, printed to the terminal, as Markdown, or as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from roastcoffea.report.html import Html, heading, paragraph
from roastcoffea.report.html import table as html_table
from roastcoffea.report.page import frame
from roastcoffea.report.terminal import INDENT, NARROWEST_NAME, bare_table, verbatim

MARKDOWN_SIGNS: Final = "\\`*_[]<>|~$&#"


class Amount(str):
    """Text of an amount, with the value that it is sorted by; None where it is not known."""

    __slots__ = ("value",)

    value: float | None

    def __new__(cls, text: str, value: float | None = None) -> Self:
        """Text with a value."""
        made = super().__new__(cls, text)
        made.value = value
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title, a table whose first column holds names, and lines of text below it."""

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()

    @property
    def heading(self) -> str:
        """The title, as it stands above the table."""
        return f"{self.title[0].upper()}{self.title[1:]}"

    @property
    def worded(self) -> list[bool]:
        """Of each column whether it holds text, and not amounts alone."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.headers)
        return [not all(isinstance(cell, Amount) for cell in cells) for cells in columns]


def print_sheets(console: Console, sheets: Iterable[Sheet]) -> None:
    """Print sheets below each other."""
    for sheet in sheets:
        console.print()
        console.print(verbatim(console, sheet.heading), style="bold", overflow="fold")
        if sheet.rows:
            console.print(Padding(_terminal_table(console, sheet), INDENT, expand=False))
        for line in sheet.lines:
            console.print(Padding(verbatim(console, line), INDENT), overflow="fold")


def _terminal_table(console: Console, sheet: Sheet) -> Table:
    table = bare_table()
    for header, worded in zip(sheet.headers, sheet.worded, strict=True):
        if worded:
            table.add_column(verbatim(console, header), overflow="fold", min_width=NARROWEST_NAME)
        else:
            table.add_column(verbatim(console, header), justify="right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(verbatim(console, cell) for cell in row))
    return table


def markdown(sheets: Iterable[Sheet]) -> str:
    """Sheets as GitHub shows them."""
    return "\n".join(_markdown_sheet(sheet) for sheet in sheets)


def _markdown_sheet(sheet: Sheet) -> str:
    parts = [f"### {_plain(sheet.heading)}\n"]
    if sheet.rows:
        rule = [":--" if worded else "--:" for worded in sheet.worded]
        lines = [sheet.headers, *sheet.rows]
        head, *body = [[_plain(cell) for cell in line] for line in lines]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body)) + "\n")
    if sheet.lines:
        parts.append("\n".join(f"- {_plain(line)}" for line in sheet.lines) + "\n")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in MARKDOWN_SIGNS else letter for letter in line)


def page(title: str, sheets: Iterable[Sheet]) -> str:
    """Sheets as a page of its own, whose tables sort and filter."""
    return frame.page(title, [frame.section(sheet.heading, *_page_parts(sheet)) for sheet in sheets])


def _page_parts(sheet: Sheet) -> list[str]:
    heads = [frame.Head(header, numeric=not worded) for header, worded in zip(sheet.headers, sheet.worded, strict=True)]
    rows = [[frame.Cell(str(cell), getattr(cell, "value", None)) for cell in row] for row in sheet.rows]
    table = [frame.table_of_cells(heads, rows, "rows", first=len(rows))] if rows else []
    return [*table, *map(paragraph, sheet.lines)]


def html(sheets: Iterable[Sheet]) -> Html:
    """Sheets as pieces of HTML, without the page around them."""
    return Html("".join(_html_sheet(sheet) for sheet in sheets))


def _html_sheet(sheet: Sheet) -> str:
    table = html_table(sheet.headers, sheet.rows) if sheet.rows else Html("")
    return heading(sheet.heading) + table + "".join(paragraph(line) for line in sheet.lines)
