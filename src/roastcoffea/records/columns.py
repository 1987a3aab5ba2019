"""Descriptions of bulky records: a table is a tuple of columns, each with unit and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]
"""Values of a row of a table by column."""

Kind = Literal["text", "texts", "integer", "integers", "number", "values"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table of records.

    `kind` is "text", "texts" (a list of text), "integer" (signed, 64 bits), "integers" (a list of them), "number"
    (64-bit float) or "values" (JSON of values by name; in a DataFrame a dictionary).
    `unit` is None for columns without one. A value that was not measured is None in every kind of column.
    """

    name: str
    kind: Kind
    unit: str | None
    meaning: str

    @property
    def documentation(self) -> str:
        """Meaning and unit."""
        return self.meaning if self.unit is None else f"{self.meaning} [{self.unit}]"


def picked(columns: Sequence[Column], *names: str) -> list[Column]:
    """Columns of these names, for a table that shares them with another."""
    return [column for name in names for column in columns if column.name == name]


def text_column(name: str, meaning: str) -> Column:
    """Column of text."""
    return Column(name, "text", None, meaning)


def integer_column(name: str, meaning: str) -> Column:
    """Column of integers without a unit."""
    return Column(name, "integer", None, meaning)


def bytes_column(name: str, meaning: str) -> Column:
    """Column of sizes in bytes."""
    return Column(name, "integer", "B", meaning)


def seconds_column(name: str, meaning: str) -> Column:
    """Column of durations or moments in seconds."""
    return Column(name, "number", "s", meaning)
