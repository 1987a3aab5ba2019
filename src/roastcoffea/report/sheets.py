"""Sheets: the one form in which results are handed to terminal, Markdown, notebook and page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Final, Literal, NamedTuple, Self

from roastcoffea.report.cards import Card, Drawn
from roastcoffea.units import COUNT, Unit

NOT_KNOWN: Final = "-"

Form = Literal["sortable", "plain"]
"""How pages show rows: as a table that sorts and filters, or as they stand."""


class Amount(NamedTuple):
    """A cell with a unit, or a text, of its own: `value` is what it is sorted by, None where it is not known."""

    value: float | None
    unit: Unit = COUNT
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        return NOT_KNOWN if self.value is None else self.unit.text(self.value)


class Reason(str):
    """A cell that says why its amount is missing."""

    __slots__ = ()


class Term(str):
    """A cell that is a term: where the glossary has it, HTML leads there."""

    __slots__ = ()


Cell = str | float | Amount | None
"""What stands in a row: a number is in the unit of its column, None is not known."""


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column: words where it has no unit, else amounts, flush right."""

    name: str
    unit: Unit | None = None
    meaning: str = ""
    dispensable: int = 0
    """Rank in being left out where a terminal is too narrow: 1 goes first, of equals the last; 0 always stays."""
    width: int | None = None
    """Letters in a terminal, where tables below each other line up."""
    bars: bool = False
    """Whether its amounts are shares, beside which HTML shows bars."""

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if cell is None:
            return NOT_KNOWN
        return str(cell) if isinstance(cell, str | Amount) or self.unit is None else self.unit.text(cell)

    def value(self, cell: Cell) -> float | None:
        """What a cell is sorted by; None for text, and for what is not known."""
        value = cell.value if isinstance(cell, Amount) else cell
        if not isinstance(value, Real) or (self.unit is None and value is cell):
            return None
        return float(value) if math.isfinite(value) else None


def columns(unit: Unit | None, *names: str) -> list[Column]:
    """Columns of one unit."""
    return [Column(name, unit) for name in names]


LABELS: Final = Column("", width=26)
"""Labels in tables below each other, which line up."""


class Shown(NamedTuple):
    """A cell as it is shown."""

    text: str
    value: float | None
    column: Column
    missing: bool
    is_term: bool

    @classmethod
    def of(cls, column: Column, cell: Cell) -> Self:
        """A cell of a column."""
        return cls(column.text(cell), column.value(cell), column, isinstance(cell, Reason), isinstance(cell, Term))


class Picture(NamedTuple):
    """A drawing by its name, for renderers that can show one."""

    plot: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title, lines and a list below it, a table whose first column holds names, notes, pictures, and parts.

    A sheet without a title continues the one before.
    """

    title: str = ""
    lead: Sequence[str] = ()
    """Lines right below the title, in a quiet style."""
    items: Sequence[str] = ()
    """Texts of a list."""
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()
    """Lines below the table."""
    pictures: Sequence[Picture] = ()
    parts: Sequence[Sheet] = ()
    """Sheets of lower rank that belong to it."""

    things: str = "rows"
    """What the rows are, in the plural."""
    total: int | None = None
    """Rows that there are in all, where that is more than stand here."""
    first: int | None = None
    """Rows that a page shows at first; None for all."""
    form: Form = "sortable"
    folded: bool = False
    """Whether HTML shows it only when its title is clicked."""
    beside: bool = False
    """Whether HTML shows its parts beside each other, where there is room."""
    bars: Sequence[Drawn] = ()
    """What HTML draws above its rows, which it folds then."""
    cards: Sequence[Card] = ()
    """What HTML shows in place of its items; its rows are folded then."""
    caption: str = ""
    """Line of HTML above its cards."""

    @property
    def is_drawn(self) -> bool:
        """Whether it brings more than text."""
        return bool(self.bars or self.cards)

    @property
    def heading(self) -> str:
        """The title, as it stands above the table."""
        return f"{self.title[:1].upper()}{self.title[1:]}"

    @property
    def headed(self) -> bool:
        """Whether a column has a name."""
        return any(column.name for column in self.columns)

    @property
    def left_out(self) -> int:
        """Number of rows that do not stand here."""
        return 0 if self.total is None else self.total - len(self.rows)

    def cells(self) -> list[list[Shown]]:
        """Rows as people read them, and as they are sorted."""
        return [[Shown.of(*pair) for pair in zip(self.columns, row, strict=True)] for row in self.rows]

    def without(self, place: int) -> Self:
        """It without a column."""
        columns = [column for number, column in enumerate(self.columns) if number != place]
        rows = [[cell for number, cell in enumerate(row) if number != place] for row in self.rows]
        return replace(self, columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading(Sheet):
    """The first sheet of a document: its title is what the document is about, with facts in `lead`."""

    label: str = ""
    """What kind of document it is."""
    alarm: str = ""
    """What went wrong."""

    @property
    def heading(self) -> str:
        """The title, which may be a name, as it is."""
        return self.title


def flat(sheets: Iterable[Sheet]) -> Iterator[Sheet]:
    """Sheets and their parts, one after the other."""
    for sheet in sheets:
        yield sheet
        yield from flat(sheet.parts)
