"""Sheets in a notebook: nothing is a script, and colours follow those around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from markupsafe import Markup

from roastcoffea.report.cards import Paint, palette
from roastcoffea.report.markup import rendered
from roastcoffea.report.sheets import Sheet, flat


def html(sheets: Iterable[Sheet]) -> str:
    """Sheets below each other, with the style that is theirs alone; tables are folded below what is drawn."""
    shown = list(sheets)
    paints = _paints(shown)
    drawn = any(sheet.is_drawn for sheet in shown)
    if drawn:
        shown = [replace(one, folded=bool(one.title and one.columns and not one.is_drawn)) for one in shown]
    palettes = [Markup(palette(paints.values(), scheme)) for scheme in ("light", "dark")]
    return rendered("notebook.html", sheets=shown, drawn=drawn, palettes=palettes)


def _paints(sheets: Iterable[Sheet]) -> dict[str, Paint]:
    """Colours of what they draw, by name."""
    every = list(flat(sheets))
    parts = [part.family for sheet in every for bar in sheet.bars for part in bar.segments]
    cards = [card.family for sheet in every for card in sheet.cards if card.family is not None]
    return {paint.name: paint for paint in (*parts, *cards)}
