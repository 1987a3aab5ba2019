"""Sheets: the common form of results for terminal, Markdown, notebook and page, with bars and cards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, Self

from roastcoffea.units import COUNT, RATES, Unit

NAMED: Final = 0.005
"""Share from which a part of a bar has a name below it."""


MIDDLE: Final = 0.179
"""Luminance at which black and white have the same contrast."""


class Paint(Protocol):
    """A colour with a fixed meaning, on both backgrounds."""

    @property
    def name(self) -> str:
        """Its name in style sheets."""

    @property
    def light(self) -> str:
        """Colour on a light background."""

    @property
    def dark(self) -> str:
        """Colour on a dark background."""


class Segment(NamedTuple):
    """A part of a bar: what stands in it, and below it."""

    family: Paint
    fraction: float
    """Of the whole bar, from 0 to 1."""
    name: str
    """Below it; empty where that would be too much."""
    amount: str
    details: str
    """What it holds, in words."""

    @property
    def percent(self) -> str:
        """Its share."""
        return percent_of(self.fraction)

    @property
    def label(self) -> str:
        """What stands in it; empty where there is no room."""
        return self.name if self.fraction >= 0.03 else ""

    @property
    def ink(self) -> str:
        """Colour of what stands in it, on a light background."""
        return ink_on(self.family.light)


class Drawn(NamedTuple):
    """A bar with its title."""

    title: str
    note: str
    segments: Sequence[Segment]
    length: float = 1.0
    """Share of the width that it takes: bars below each other have one scale."""

    @property
    def spoken(self) -> str:
        """What a screen reader says in its place."""
        return f"{self.title}: {', '.join(f'{part.name} {part.percent}' for part in self.segments if part.name)}"


class Card(NamedTuple):
    """Something to change, or that differs."""

    title: str
    saving: str
    """How much it is about, in a few words."""
    what: str
    advice: str = ""
    culprit: str = ""
    """Name in `what` that stands out; empty for none."""
    remedy: str | None = None
    family: Paint | None = None
    evidence: str = ""
    """Anchor of what shows it; empty where nothing does."""
    page: str = ""
    """Address of the documentation's page on it; empty where there is none."""
    measure: str = ""
    """What the evidence is to show where it has a choice; empty for what it shows at first."""


def segment(family: Paint, fraction: float, name: str, amount: str, *, details: str = "") -> Segment:
    """A part of a bar with this share of it; its details tell its name where none are given."""
    return Segment(family, fraction, name, amount, details or f"{name} {amount} ({percent_of(fraction)})")


drawn: Final = Drawn


def percent_of(share: float) -> str:
    """A share of a bar, as exact as people look at it."""
    return "< 1 %" if share < NAMED else f"{100 * share:.0f} %"


# Colours


def palette(paints: Iterable[Paint], scheme: str) -> str:
    """Colours as variables of CSS, with the ink that is legible on each."""
    colours: Mapping[str, str] = {paint.name: getattr(paint, scheme) for paint in paints}
    return " ".join(f"--rc-{name}: {colour}; --rc-on-{name}: {ink_on(colour)};" for name, colour in colours.items())


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour of six digits: its contrast is 4.5:1 at least."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "#000000" if luminance(parts) > MIDDLE else "#FFFFFF"


def luminance(parts: Iterable[float]) -> float:
    """Relative luminance of red, green and blue, from 0 (black) to 1 (white), as contrasts need it (WCAG 2)."""
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


NOT_KNOWN: Final = "-"

Form = Literal["sortable", "plain"]
"""Layout of rows on pages: a table to sort and filter, or plain."""


class Amount(NamedTuple):
    """A cell with its own unit or text; `value` is its sort key, None if unknown."""

    value: float | None
    unit: Unit = COUNT
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        return NOT_KNOWN if self.value is None else self.unit.text(self.value)


class Reason(str):
    """A cell with the reason why its amount is missing."""

    __slots__ = ()


Cell = str | float | Amount | None
"""Content of a cell: a number is in its column's unit, None is unknown."""

Writers = Mapping[str, Callable[[float], str]]
"""Writers of amounts by the symbol of their unit, in place of the unit's own."""

NO_WRITERS: Final[Writers] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column: words if it has no unit, otherwise right-aligned amounts."""

    name: str
    unit: Unit | None = None
    meaning: str = ""
    dispensable: int = 0
    """Order of removal if a terminal is too narrow: 1 first, of equals the last; 0 is never removed."""
    width: int | None = None
    """Characters in a terminal, for tables that line up below each other."""
    bars: bool = False
    """Whether its amounts are shares that HTML shows with bars."""

    def text(self, cell: Cell, writers: Writers = NO_WRITERS) -> str:
        """A cell as people read it, its amount by the writer of its unit where there is one."""
        if cell is None:
            return NOT_KNOWN
        if isinstance(cell, str) or (self.unit is None and not isinstance(cell, Amount)):
            return str(cell)
        amount = cell if isinstance(cell, Amount) else Amount(cell, self.unit or COUNT)
        if amount.text is not None or amount.value is None or amount.unit.symbol not in writers:
            return str(amount)
        return writers[amount.unit.symbol](amount.value)

    def value(self, cell: Cell) -> float | None:
        """Sort key of a cell; None for text and unknown values."""
        value = cell.value if isinstance(cell, Amount) else cell
        if not isinstance(value, Real) or (self.unit is None and value is cell):
            return None
        return float(value) if math.isfinite(value) else None


def columns(unit: Unit | None, *names: str) -> list[Column]:
    """Columns of one unit."""
    return [Column(name, unit) for name in names]


LABELS: Final = Column("", width=26)
"""Label column of tables that line up below each other."""


class Shown(NamedTuple):
    """A cell as displayed."""

    text: str
    value: float | None
    column: Column
    missing: bool

    @classmethod
    def of(cls, column: Column, cell: Cell, writers: Writers = NO_WRITERS) -> Self:
        """A cell of a column."""
        return cls(column.text(cell, writers), column.value(cell), column, isinstance(cell, Reason))


class Picture(NamedTuple):
    """A plot by name, for renderers that can show one."""

    plot: str
    caption: str = ""


class Link(str):
    """A cell of words that lead somewhere on a page; elsewhere they are words."""

    target: str

    def __new__(cls, text: str, target: str = "") -> Self:
        """A text with the address that it leads to; an empty one leads nowhere."""
        link = super().__new__(cls, text)
        link.target = target
        return link

    def __str__(self) -> str:
        return self  # so that it still leads there when it is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title, lines and a list below it, a table whose first column holds names, notes, pictures, and parts.

    A sheet without a title continues the previous one.
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
    """Subordinate sheets."""

    things: str = "rows"
    """What the rows are, in the plural."""
    total: int | None = None
    """Total number of rows, if more than shown here."""
    first: int | None = None
    """Rows that a page shows initially; None for all."""
    form: Form = "sortable"
    folded: bool = False
    """Whether HTML shows it only after a click on its title."""
    beside: bool = False
    """Whether HTML shows its parts side by side if there is room."""
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
        """The title as shown above the table."""
        return f"{self.title[:1].upper()}{self.title[1:]}"

    @property
    def headed(self) -> bool:
        """Whether a column has a name."""
        return any(column.name for column in self.columns)

    @property
    def left_out(self) -> int:
        """Number of rows not shown here."""
        return 0 if self.total is None else self.total - len(self.rows)

    def cells(self) -> list[list[Shown]]:
        """Rows as people read them, and as they are sorted; rates of one kind have one prefix."""
        writers = self._writers()
        return [[Shown.of(*pair, writers) for pair in zip(self.columns, row, strict=True)] for row in self.rows]

    def _writers(self) -> Writers:
        """Writers of rates, with the prefix of the largest one in the table."""
        largest: dict[str, float] = {}
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                unit = cell.unit if isinstance(cell, Amount) else column.unit
                if unit is not None and unit.symbol in RATES:
                    size = abs(column.value(cell) or 0.0)
                    largest[unit.symbol] = max(size, largest.get(unit.symbol, 0.0))
        return {symbol: RATES[symbol](like=size) for symbol, size in largest.items() if size}

    def without(self, place: int) -> Self:
        """The sheet without one column."""
        columns = [column for number, column in enumerate(self.columns) if number != place]
        rows = [[cell for number, cell in enumerate(row) if number != place] for row in self.rows]
        return replace(self, columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading(Sheet):
    """First sheet of a document: its title is the subject, with facts in `lead`."""

    label: str = ""
    """Kind of document."""
    alarm: str = ""
    """What went wrong."""

    @property
    def heading(self) -> str:
        """The title as it is, since it may be a name."""
        return self.title


def flat(sheets: Iterable[Sheet]) -> Iterator[Sheet]:
    """Sheets, each followed by its parts."""
    for sheet in sheets:
        yield sheet
        yield from flat(sheet.parts)


BYTE_LEDGER: Final = "byte ledger"
TIME_LEDGER: Final = "time ledger: worker threads x time"
THREAD_TIME: Final = "thread time"
TRANSFERRED: Final = "transferred"
UNACCOUNTED: Final = "unaccounted"
NOT_MEASURED: Final = "not measured"
NO_PROBLEMS: Final = "measurement problems: none"
SHARED: Final = "names of hosts, users and paths are made up"


def absence(reason: str) -> str:
    """Text in place of something that was not measured."""
    return f"Not measured: {reason}."
