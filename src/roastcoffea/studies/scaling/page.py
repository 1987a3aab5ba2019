"""The page of a study of scaling: why, speed-up with what it loses, and the tables."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from roastcoffea.errors import MeasurementError
from roastcoffea.report.page.frame import page
from roastcoffea.report.sheets import Heading, Picture, Sheet
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.scaling.why import headline
from roastcoffea.units import number

if TYPE_CHECKING:
    from roastcoffea.studies.scaling.scaling import Scaling

PICTURE = "scaling"


def write_page(study: Scaling, path: Path, *, overwrite: bool = False) -> Path:
    """Write the page to a file, whole or not at all; give its path.

    Raises
    ------
    MeasurementError
        If something is there already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, overwrite=overwrite) as file:
            file.write(page_of(study).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise MeasurementError(f"the page was not written to {path}: {error}") from error
    return path


def page_of(study: Scaling) -> str:
    """The page of a study."""
    sizes = ", ".join(number(point.workers) for point in study.points)
    why = headline(study.explanation, study.points, study.unit)
    heading = Heading(
        title=f"Scaling of {study.name}",
        label="scaling",
        lead=[f"{study.kind} scaling, {sizes} {study.unit}"],
        alarm=why,
    )
    first, *others = study.sheets()
    sections = [replace(first, lead=first.lead[1:]), *others]  # the headline is in the heading
    drawing = Sheet(title="speed-up and thread time", pictures=[Picture(PICTURE)])
    return page(heading, [*sections[:2], drawing, *sections[2:]], drawn={PICTURE: _drawn(study)})


def _drawn(study: Scaling) -> Markup:
    """The plot as an image that needs no other file."""
    file = io.BytesIO()
    study.plot().savefig(file, format="svg")
    image = base64.b64encode(file.getvalue()).decode()
    words = escape(headline(study.explanation, study.points, study.unit))
    return Markup(f'<img class="still" style="width: 100%" alt="{words}" src="data:image/svg+xml;base64,{image}">')
