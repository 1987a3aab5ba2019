"""Sheets: the one form in which results are handed to terminal, Markdown, notebook and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from roastcoffea.units import COUNT, Unit

NOT_KNOWN: Final = "-"


class Amount(NamedTuple):
    """A cell with a unit, or a text, of its own: `value` is what it is sorted by, None where it is not known."""

    value: float | None
    unit: Unit = COUNT
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        return NOT_KNOWN if self.value is None else self.unit.text(self.value)


Cell = str | float | Amount | None
"""What stands in a row: a number is in the unit of its column, None is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Head of a column: words where it has no unit, else amounts, flush right."""

    name: str
    unit: Unit | None = None
    meaning: str = ""
    dispensable: bool = False
    """Whether it is left out where a terminal is too narrow for all; the last such column goes first."""

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if cell is None:
            return NOT_KNOWN
        if isinstance(cell, str | Amount) or self.unit is None:
            return str(cell)
        return self.unit.text(cell)


class Picture(NamedTuple):
    """A plot by its name in the registry, for renderers that can show one."""

    plot: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title, a table whose first column holds names, notes below it, and pictures."""

    title: str
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()

    @property
    def heading(self) -> str:
        """The title, as it stands above the table."""
        return f"{self.title[:1].upper()}{self.title[1:]}"

    def texts(self) -> list[list[str]]:
        """Rows as people read them."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
