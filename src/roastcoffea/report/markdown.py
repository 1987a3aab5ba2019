"""Sheets as GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from roastcoffea.redaction import neutral
from roastcoffea.report.sheets import Heading, Sheet, flat
from roastcoffea.units import number

SIGNS: Final = "\\`*_[]<>|~$&#"
"""Characters with a meaning in Markdown."""


def markdown(sheets: Iterable[Sheet]) -> str:
    """Sheets in sequence."""
    return "\n".join(f"{block}\n" for sheet in flat(sheets) for block in _blocks(sheet))


def plain(text: str) -> str:
    """Text escaped for Markdown, in one line."""
    line = neutral(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in SIGNS else letter for letter in line)


def _blocks(sheet: Sheet) -> Iterator[str]:
    """Blocks to separate by blank lines."""
    if sheet.title:
        yield f"{'##' if isinstance(sheet, Heading) else '###'} {plain(sheet.heading)}"
    yield from map(plain, sheet.lead)
    if isinstance(sheet, Heading) and sheet.alarm:
        yield f"**{plain(sheet.alarm)}**"
    if sheet.items:
        yield _listed(sheet.items)
    if sheet.rows:
        yield _table(sheet)
    if sheet.left_out:
        yield f"and {number(sheet.left_out)} more"
    if sheet.notes:
        yield _listed(sheet.notes)


def _listed(texts: Iterable[str]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)


def _table(sheet: Sheet) -> str:
    head = [plain(column.name) for column in sheet.columns]
    rule = [":--" if column.unit is None else "--:" for column in sheet.columns]
    body = [[plain(cell.text) for cell in row] for row in sheet.cells()]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))
