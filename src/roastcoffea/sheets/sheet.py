"""Sheets: the common format of results for terminals, Markdown, notebooks and HTML pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from roastcoffea.units import COUNT, RATES, Unit

if TYPE_CHECKING:
    from typing_extensions import Self

NAMED: Final = 0.005
"""Minimum share of the bar for a segment to have a label below the bar."""


MIDDLE: Final = 0.179
"""Luminance of a colour that contrasts equally with black and white."""


class Paint(Protocol):
    """A colour with a fixed meaning, for light and dark backgrounds."""

    @property
    def name(self) -> str:
        """Name of the colour in style sheets."""

    @property
    def light(self) -> str:
        """Colour on a light background."""

    @property
    def dark(self) -> str:
        """Colour on a dark background."""


class Segment(NamedTuple):
    """A part of a bar, with text inside the bar and below it."""

    family: Paint
    fraction: float
    """Fraction of the whole bar, from 0 to 1."""
    name: str
    """Label below the bar, or an empty string."""
    amount: str
    details: str

    @property
    def percent(self) -> str:
        return percent_of(self.fraction)

    @property
    def label(self) -> str:
        """Text inside the bar, or an empty string if the text does not fit."""
        return self.name if self.fraction >= 0.03 else ""

    @property
    def ink(self) -> str:
        """Text colour inside the segment on a light background."""
        return ink_on(self.family.light)


class Drawn(NamedTuple):
    title: str
    note: str
    segments: Sequence[Segment]
    length: float = 1.0
    """Fraction of the full width, so that successive bars share a scale."""

    @property
    def spoken(self) -> str:
        """Alternative text for screen readers."""
        return f"{self.title}: {', '.join(f'{part.name} {part.percent}' for part in self.segments if part.name)}"


class Card(NamedTuple):
    """A card for a suggested change or a difference."""

    title: str
    saving: str
    """The size of the effect in a few words."""
    what: str
    advice: str = ""
    culprit: str = ""
    """Name to highlight in `what`, or an empty string."""
    remedy: str | None = None
    family: Paint | None = None
    evidence: str = ""
    """HTML anchor of the evidence, or an empty string."""
    page: str = ""
    """URL of the documentation page, or an empty string."""
    measure: str = ""
    """Quantity to select in the evidence. An empty string selects the default."""


def segment(family: Paint, fraction: float, name: str, amount: str, *, details: str = "") -> Segment:
    """Create a segment. By default, its details consist of the name, amount and share."""
    return Segment(family, fraction, name, amount, details or f"{name} {amount} ({percent_of(fraction)})")


drawn: Final = Drawn


def percent_of(share: float) -> str:
    return "< 1 %" if share < NAMED else f"{100 * share:.0f} %"


# Colours


def palette(paints: Iterable[Paint], scheme: str) -> str:
    """Define colours as CSS variables, each with a contrasting text colour."""
    colours: Mapping[str, str] = {paint.name: getattr(paint, scheme) for paint in paints}
    return " ".join(f"--rc-{name}: {colour}; --rc-on-{name}: {ink_on(colour)};" for name, colour in colours.items())


def ink_on(colour: str) -> str:
    """Return black or white, whichever contrasts more with a six-digit colour (at least 4.5:1)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "#000000" if luminance(parts) > MIDDLE else "#FFFFFF"


def luminance(parts: Iterable[float]) -> float:
    """Return the relative luminance of red, green and blue values (0 is black, 1 is white), as defined by WCAG 2."""
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


NOT_KNOWN: Final = "-"

Form = Literal["sortable", "plain"]
"""Layout of rows on HTML pages: a table that can be sorted and filtered, or a plain table."""


class Amount(NamedTuple):
    """A cell with its own unit or text. `value` is the sort key, or None if the amount is unknown."""

    value: float | None
    unit: Unit = COUNT
    text: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        return NOT_KNOWN if self.value is None else self.unit.text(self.value)


class Reason(str):
    """A cell with the reason for a missing amount."""

    __slots__ = ()


Cell = str | float | Amount | None
"""Cell content. Numbers are in the column's unit, and None means unknown."""

Writers = Mapping[str, Callable[[float], str]]
"""Functions that replace the default formatting of amounts, by unit symbol."""

NO_WRITERS: Final[Writers] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text, or of right-aligned numbers if the column has a unit."""

    name: str
    unit: Unit | None = None
    meaning: str = ""
    dispensable: int = 0
    """Order in which columns are removed if a terminal is too narrow.

    Columns with the value 1 are removed first, from last to first. Columns with the value 0 are never removed.
    """
    width: int | None = None
    """Width in terminal characters, used to align consecutive tables."""
    bars: bool = False
    """Whether the amounts are shares, shown as bars in HTML."""

    def text(self, cell: Cell, writers: Writers = NO_WRITERS) -> str:
        """Format a cell as text, using the writer for its unit, if any."""
        if cell is None:
            return NOT_KNOWN
        if isinstance(cell, str) or (self.unit is None and not isinstance(cell, Amount)):
            return str(cell)
        amount = cell if isinstance(cell, Amount) else Amount(cell, self.unit or COUNT)
        if amount.text is not None or amount.value is None or amount.unit.symbol not in writers:
            return str(amount)
        return writers[amount.unit.symbol](amount.value)

    def value(self, cell: Cell) -> float | None:
        """Return a cell's sort key, or None for text and unknown values."""
        value = cell.value if isinstance(cell, Amount) else cell
        if not isinstance(value, Real) or (self.unit is None and value is cell):
            return None
        return float(value) if math.isfinite(value) else None


def columns(unit: Unit | None, *names: str) -> list[Column]:
    return [Column(name, unit) for name in names]


LABELS: Final = Column("", width=26)
"""Label column with a fixed width, used to align consecutive tables."""


class Shown(NamedTuple):
    text: str
    value: float | None
    column: Column
    missing: bool

    @classmethod
    def of(cls, column: Column, cell: Cell, writers: Writers = NO_WRITERS) -> Self:
        return cls(column.text(cell, writers), column.value(cell), column, isinstance(cell, Reason))


class Picture(NamedTuple):
    """The name of a plot, for renderers that support plots."""

    plot: str
    caption: str = ""


class Link(str):
    """Cell text that becomes a link on an HTML page and stays plain text elsewhere."""

    target: str

    def __new__(cls, text: str, target: str = "") -> Self:
        """Create text with a link target. If the target is empty, the text is not a link."""
        link = super().__new__(cls, text)
        link.target = target
        return link

    def __str__(self) -> str:
        return self  # the formatted cell must keep the link's target


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A title with optional lines, a list, a table, notes, pictures and parts.

    The first column of the table contains names. A sheet without a title continues the previous sheet.
    """

    title: str = ""
    lead: Sequence[str] = ()
    """Lines directly below the title, in a muted style."""
    items: Sequence[str] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    parts: Sequence[Sheet] = ()

    things: str = "rows"
    """Plural noun for the rows."""
    total: int | None = None
    """Total number of rows, if some rows are not shown."""
    first: int | None = None
    """Number of rows that an HTML page shows initially, or None to show all rows."""
    form: Form = "sortable"
    folded: bool = False
    """Whether the sheet is collapsed in HTML until its title is clicked."""
    beside: bool = False
    """Whether HTML shows the parts side by side if they fit."""
    bars: Sequence[Drawn] = ()
    """Bars to draw above the rows in HTML. The rows are then collapsed."""
    cards: Sequence[Card] = ()
    """Cards to show in place of the items in HTML. The rows are then collapsed."""
    caption: str = ""
    """Line above the cards in HTML."""

    @property
    def is_drawn(self) -> bool:
        return bool(self.bars or self.cards)

    @property
    def heading(self) -> str:
        return f"{self.title[:1].upper()}{self.title[1:]}"

    @property
    def headed(self) -> bool:
        return any(column.name for column in self.columns)

    @property
    def left_out(self) -> int:
        return 0 if self.total is None else self.total - len(self.rows)

    def cells(self) -> list[list[Shown]]:
        """Format the rows for display, with sort keys. Rates with the same unit share a prefix."""
        writers = self._writers()
        return [[Shown.of(*pair, writers) for pair in zip(self.columns, row, strict=True)] for row in self.rows]

    def _writers(self) -> Writers:
        """Return functions that format rates with the unit prefix of the table's largest rate."""
        largest: dict[str, float] = {}
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                unit = cell.unit if isinstance(cell, Amount) else column.unit
                if unit is not None and unit.symbol in RATES:
                    size = abs(column.value(cell) or 0.0)
                    largest[unit.symbol] = max(size, largest.get(unit.symbol, 0.0))
        return {symbol: RATES[symbol](like=size) for symbol, size in largest.items() if size}

    def without(self, place: int) -> Self:
        columns = [column for number, column in enumerate(self.columns) if number != place]
        rows = [[cell for number, cell in enumerate(row) if number != place] for row in self.rows]
        return replace(self, columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading(Sheet):
    """The first sheet of a document, with the subject as its title and key figures in `lead`."""

    label: str = ""
    alarm: str = ""

    @property
    def heading(self) -> str:
        """The title, unchanged because it may be a run's name."""
        return self.title


def flat(sheets: Iterable[Sheet]) -> Iterator[Sheet]:
    for sheet in sheets:
        yield sheet
        yield from flat(sheet.parts)


BYTE_LEDGER: Final = "byte ledger"
WRITE_LEDGER: Final = "bytes written"
TIME_LEDGER: Final = "time ledger: worker threads x time"
THREAD_TIME: Final = "thread time"
TRANSFERRED: Final = "transferred"
UNACCOUNTED: Final = "unaccounted"
NOT_MEASURED: Final = "not measured"
NO_PROBLEMS: Final = "measurement problems: none"
SHARED: Final = "names of hosts, users and paths are made up"


def absence(reason: str) -> str:
    return f"Not measured: {reason}."
