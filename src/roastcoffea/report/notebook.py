"""Sheets in a notebook: nothing is a script, and colours follow those around."""

from __future__ import annotations

from collections.abc import Iterable

from roastcoffea.report.markup import rendered
from roastcoffea.report.sheets import Sheet


def html(sheets: Iterable[Sheet]) -> str:
    """Sheets below each other, with the style that is theirs alone."""
    return rendered("notebook.html", sheets=list(sheets))
