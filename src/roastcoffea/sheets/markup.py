"""Render sheets as HTML, notebook output and Markdown. The HTML templates escape all text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from roastcoffea.redaction import neutral
from roastcoffea.sheets.sheet import Heading, Paint, Sheet, flat, palette
from roastcoffea.units import number

OF_FORMULAS: Final = str.maketrans({sign: f"<span>{sign}</span>" for sign in "$\\"})


def text(content: object) -> Markup:
    """Escape text, and prevent notebooks from rendering formulas in it.

    Templates escape all expressions with this function, except in attributes, which use the `e` filter.
    """
    if isinstance(content, Markup):
        return content
    return Markup(str(attribute(content)).translate(OF_FORMULAS))


def attribute(content: object) -> Markup:
    return content if isinstance(content, Markup) else escape(neutral(str(content)))


def prose(content: object) -> Markup:
    """Show text between backticks as code, unless the backticks are unpaired."""
    parts = str(content).split("`")
    if isinstance(content, Markup) or len(parts) % 2 == 0:
        return text(content)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(text(part)) if place % 2 else text(part) for place, part in enumerate(parts))


def rendered(template: str, /, **values: Any) -> Markup:
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    """Create the template environment. Templates are read and compiled once per process."""
    blocks: dict[str, Any] = {"auto_reload": False, "trim_blocks": True, "lstrip_blocks": True}
    templates = PackageLoader(__package__)
    environment = Environment(loader=templates, autoescape=True, finalize=text, undefined=StrictUndefined, **blocks)
    environment.filters |= {"e": attribute, "number": number, "prose": prose}
    return environment


def html(sheets: Iterable[Sheet]) -> str:
    """Render sheets as HTML with their styles. If any sheet has drawings, tables without drawings are collapsed."""
    shown = list(sheets)
    paints = _paints(shown)
    drawn = any(sheet.is_drawn for sheet in shown)
    if drawn:
        shown = [replace(one, folded=bool(one.title and one.columns and not one.is_drawn)) for one in shown]
    palettes = [Markup(palette(paints.values(), scheme)) for scheme in ("light", "dark")]
    return rendered("notebook.html", sheets=shown, drawn=drawn, palettes=palettes)


def _paints(sheets: Iterable[Sheet]) -> dict[str, Paint]:
    every = list(flat(sheets))
    parts = [part.family for sheet in every for bar in sheet.bars for part in bar.segments]
    cards = [card.family for sheet in every for card in sheet.cards if card.family is not None]
    return {paint.name: paint for paint in (*parts, *cards)}


SIGNS: Final = "\\`*_[]<>|~$&#"
"""Characters with a special meaning in Markdown."""


def markdown(sheets: Iterable[Sheet]) -> str:
    return "\n".join(f"{block}\n" for sheet in flat(sheets) for block in _blocks(sheet))


def plain(text: str) -> str:
    """Escape text for Markdown, and join its lines."""
    line = neutral(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in SIGNS else letter for letter in line)


def _blocks(sheet: Sheet) -> Iterator[str]:
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
