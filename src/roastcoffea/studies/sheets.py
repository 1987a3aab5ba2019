"""Sheets: titled tables with remarks, printed to the terminal, as Markdown, or as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console

from roastcoffea.report import notebook, terminal
from roastcoffea.report import sheets as newer
from roastcoffea.report.markdown import markdown as markdown_of
from roastcoffea.report.page import frame
from roastcoffea.units import COUNT


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
    terminal.show(console, map(_newer, sheets))


def markdown(sheets: Iterable[Sheet]) -> str:
    """Sheets as GitHub shows them."""
    return markdown_of(map(_newer, sheets))


def page(title: str, sheets: Iterable[Sheet]) -> str:
    """Sheets as a page of its own, whose tables sort and filter."""
    return frame.page(title, list(map(_newer, sheets)))


def html(sheets: Iterable[Sheet]) -> str:
    """Sheets as a notebook shows them."""
    return notebook.html(map(_newer, sheets))


def _newer(sheet: Sheet) -> newer.Sheet:
    columns = [
        newer.Column(name=header, unit=None if worded else COUNT)
        for header, worded in zip(sheet.headers, sheet.worded, strict=True)
    ]
    rows = [
        [newer.Amount(cell.value, text=str(cell)) if isinstance(cell, Amount) else cell for cell in row]
        for row in sheet.rows
    ]
    return newer.Sheet(title=sheet.title, columns=columns, rows=rows, notes=sheet.lines)
