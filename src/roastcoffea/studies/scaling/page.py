"""The page of a study of scaling: why, speed-up with what it loses, and the tables."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from roastcoffea.errors import MeasurementError
from roastcoffea.report.page.frame import page
from roastcoffea.report.sheets import Heading, Picture, Sheet
from roastcoffea.storage.folders import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE: Final = "scaling"
BEFORE_PICTURE: Final = 2
"""Sheets above the plot."""


def write_page(path: Path, text: str, *, overwrite: bool = False) -> Path:
    """Write the page to a file, whole or not at all; give its path.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def page_of(title: str, facts: str, sheets: Sequence[Sheet], figure: Figure) -> str:
    """The page of a study; its first sheet begins with the reason, which becomes the page's own first line."""
    reasons, *others = sheets
    why, *lead = reasons.lead
    sections = [replace(reasons, lead=lead), *others]
    sections.insert(BEFORE_PICTURE, Sheet(title="speed-up and thread time", pictures=[Picture(PICTURE)]))
    heading = Heading(title=title, label="scaling", lead=[facts], alarm=why)
    return page(heading, sections, drawn={PICTURE: _drawn(figure, why)})


def _drawn(figure: Figure, words: str) -> Markup:
    """A plot as an image that needs no other file."""
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    image = base64.b64encode(file.getvalue()).decode()
    return Markup(
        f'<img class="still" style="width: 100%" alt="{escape(words)}" src="data:image/svg+xml;base64,{image}">'
    )
