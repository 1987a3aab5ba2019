"""Column definitions for large tables of records. Each table is defined by a tuple of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

Row = dict[str, Any]

Kind = Literal["text", "texts", "integer", "integers", "number", "values"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column in a table of records.

    `kind` is "text", "texts" (a list of strings), "integer" (signed, 64 bits), "integers" (a list of integers),
    "number" (64-bit float) or "values" (a JSON object, which becomes a dictionary in a DataFrame). `unit` is None for
    columns without a unit. A value that was not measured is None, whatever its kind.
    """

    name: str
    kind: Kind
    unit: str | None
    meaning: str

    @property
    def documentation(self) -> str:
        return self.meaning if self.unit is None else f"{self.meaning} [{self.unit}]"


def picked(columns: Sequence[Column], *names: str) -> list[Column]:
    """Select columns by name, for a table that shares them with another table."""
    return [column for name in names for column in columns if column.name == name]


def grouped(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[Any, list[Any]]:
    """Rows by their value in this column or, of several columns, by the tuple of their values."""
    found: dict[Any, list[Any]] = {}
    key = itemgetter(*columns)
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def text_column(name: str, meaning: str) -> Column:
    return Column(name, "text", None, meaning)


def integer_column(name: str, meaning: str) -> Column:
    return Column(name, "integer", None, meaning)


def bytes_column(name: str, meaning: str) -> Column:
    return Column(name, "integer", "B", meaning)


def seconds_column(name: str, meaning: str) -> Column:
    return Column(name, "number", "s", meaning)
