"""Sheets of DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from roastcoffea.metrics.phases import RESIDUAL, TOTAL
from roastcoffea.report.phrases import UNACCOUNTED
from roastcoffea.report.sheets import Cell, Column, Sheet
from roastcoffea.units import BY_SYMBOL, COUNT, FRACTION, RATIO, SECOND, SMALLEST_SHARE, Unit, moment

if TYPE_CHECKING:
    import pandas as pd

FIRST_ROWS: Final = 30
"""Rows of a table in the page itself; scripts show more."""

MOST_ROWS: Final = 2000
"""Most rows of a table in a page."""

MOMENT: Final = Unit("Unix time", partial(moment, milliseconds=True))
"""Seconds that are a moment rather than a duration, according to the meaning of their column."""

_BEFORE_REASON: Final = "Not measured: "

SHARES: Final = {"busy_share": FRACTION, "cpu_share": FRACTION, "slowness": RATIO}
"""Units of columns that are quotients without a unit of their own."""

HEADINGS: Final = {RESIDUAL: UNACCOUNTED, "bound": "limited by"}
"""Headings of columns whose names are not what people call them."""

CAPITALS: Final = {"cpu": "CPU", "gc": "GC"}

IDENTITIES: Final = frozenset({"id", "run_id", "thread"})
"""Columns of numbers that are never added: shown with all digits."""


def sheet_of_table(frame: pd.DataFrame, things: str, *, title: str = "", most: int = MOST_ROWS) -> Sheet:
    """Sheet of a DataFrame with the meanings of its columns, or the reason for its absence.

    Units and meanings come from `frame.attrs`, as set by measurements.

    Parameters
    ----------
    things
        What its rows are, in the plural.
    most
        Largest number of rows, from the first.
    """
    if "absent" in frame.attrs:
        return not_measured(frame.attrs["absent"], title)
    attributes, frame = frame.attrs, frame.copy(deep=False)
    frame.attrs = {}  # pandas copies them with each column
    frame = _without_small_rest(frame)
    columns = [_column(frame[label], attributes) for label in frame.columns]
    taken = frame.head(most)
    rows = list(zip(*(map(_cell, taken[label]) for label in taken), strict=True))
    return Sheet(title=title, columns=columns, rows=rows, things=things, total=len(frame), first=FIRST_ROWS)


def _without_small_rest(frame: pd.DataFrame) -> pd.DataFrame:
    """A breakdown of a ledger without the column of what is unaccounted, if that is next to nothing in all rows."""
    if RESIDUAL not in frame or TOTAL not in frame:
        return frame
    small = frame[RESIDUAL].abs() <= SMALLEST_SHARE * frame[TOTAL]
    return frame.drop(columns=RESIDUAL) if small.all() else frame


def not_measured(reason: str, title: str = "") -> Sheet:
    """Text in place of an absent table."""
    return Sheet(title=title, lead=[f"{_BEFORE_REASON}{reason}."])


def reason_in(sheet: Sheet) -> str | None:
    """Reason for an absent table, from its sheet; None for any other sheet."""
    lead = sheet.lead[0] if len(sheet.lead) == 1 else ""
    return lead.removeprefix(_BEFORE_REASON).removesuffix(".") if lead.startswith(_BEFORE_REASON) else None


def _column(values: pd.Series, attributes: Mapping[Any, Any]) -> Column:
    label: Any = values.name
    meaning, symbol = (str(attributes.get(name, {}).get(label, "")) for name in ("columns", "units"))
    known = values.dropna().iloc[:100]
    unit: Unit | None = SHARES.get(label) or BY_SYMBOL.get(symbol, COUNT)
    if label in IDENTITIES or not len(known) or not all(map(_is_number, known)):
        unit = None
    elif symbol == SECOND.symbol and MOMENT.symbol in meaning:
        unit = MOMENT
    return Column(heading_of(str(label)), unit, meaning)


def heading_of(name: str) -> str:
    """Heading of a column of this name; its cells bring the unit."""
    words = name.removesuffix("_seconds").split("_")
    return HEADINGS.get(name) or " ".join(CAPITALS.get(word, word) for word in words)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _cell(value: Any) -> Cell:
    """Value of a frame in Python types."""
    import pandas as pd

    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(map(str, value))
    if pd.isna(value):
        return None
    if not _is_number(value):
        return str(value)
    return int(value) if isinstance(value, Integral) else float(value)
