"""What all charts of a page share: their data, and figures in the colours of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bokeh import models
from bokeh.plotting import figure
from markupsafe import Markup

from roastcoffea.metrics.evaluation import Evaluator
from roastcoffea.metrics.phases import FAMILY_OF, IDLING, Family
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

MILLISECONDS: Final = 1e3
BORDER: Final = 100
"""Pixels beside a chart; charts.js has it as well."""

INK: Final = "ink"
QUIET: Final = "quiet"


class Chart(NamedTuple):
    """A figure, what is shown without scripts, the legend, facts for scripts, and data that they unpack."""

    figure: Any
    still: Markup
    legend: Mapping[str, str]
    """Names of colours by what they stand for."""
    facts: Mapping[str, Any]
    packed: bytes | None = None
    note: str = ""


class Context(NamedTuple):
    """What all charts of a page have in common."""

    inputs: Evaluator
    start: float
    stop: float
    window: Any
    """The range of time that all figures over time show; people move it."""

    every_task: bool

    def since_start(self, moments: Numbers) -> Numbers:
        """Moments in milliseconds since the run began."""
        return (moments - self.start) * MILLISECONDS


def family_of(name: str) -> Family:
    """Family of a class of a ledger."""
    return FAMILY_OF.get(name, IDLING)


def variable(colour: str) -> str:
    """A colour by its name as CSS has it: that of a family, ink, or quiet ink."""
    return f"var(--{colour})" if colour in {INK, QUIET} else f"var(--rc-{colour})"


def painted(colour: str) -> dict[str, str]:
    """Arguments of a glyph by which scripts paint it in a colour of the page, in light and in dark."""
    return {"name": f"paint-{colour}"}


def time_figure(
    name: str, context: Context, label: str, heights: tuple[float, float], pixels: int, *, zooms_both: bool = False
) -> Any:
    """Figure over time, as wide as the page."""
    plot = figure(
        name=name,
        x_range=context.window,
        y_range=models.Range1d(start=heights[0], end=heights[1], bounds=(min(heights), max(heights))),
        x_axis_type="timedelta",
        y_axis_label=label,
        height=pixels,
        toolbar_location="above",
        tools=["xpan", "box_zoom" if zooms_both else "xbox_zoom", "xwheel_zoom", "reset"],
        active_drag="xpan",
        active_scroll=None,  # else the wheel would no longer move the page
        **LOOK,
    )
    plot.xaxis.formatter = _formatter(context.stop - context.start)
    return dressed(plot)


def own_figure(name: str, pixels: int, **options: Any) -> Any:
    """Figure with axes of its own, as wide as the page."""
    return dressed(figure(name=name, height=pixels, **{"toolbar_location": None, "tools": [], **LOOK, **options}))


LOOK: Final[Mapping[str, Any]] = {
    "sizing_mode": "stretch_width",
    "output_backend": "canvas",
    "min_border_left": BORDER,
    "min_border_right": BORDER,  # each has as much, so that moments are above each other
    "lod_threshold": None,
}


def dressed(plot: Any) -> Any:
    """Figure whose grid and axes suit any ground."""
    plot.toolbar.logo = None
    plot.grid.grid_line_color = "#808080"
    plot.grid.grid_line_alpha = 0.25
    for axis in plot.axis:
        dress(axis)
    return plot


def dress(axis: Any) -> None:
    """Have an axis look as all do."""
    axis.axis_label_text_font_style = "normal"
    axis.minor_tick_line_color = None


def _formatter(length: float) -> models.TimedeltaTickFormatter:
    """Format of moments in a run of this many seconds."""
    seconds = "%s" if length < SECONDS_PER_MINUTE else "%m min %S"
    minutes = "%m min"
    if length >= SECONDS_PER_HOUR:
        seconds, minutes = "%h h %M min %S", "%h h %M min"
    forms: dict[str, Any] = {"microseconds": f"{seconds}.%MS%US s", "milliseconds": f"{seconds}.%MS s"}
    forms |= dict.fromkeys(("seconds", "minsec"), f"{seconds} s") | dict.fromkeys(("minutes", "hourmin"), minutes)
    return models.TimedeltaTickFormatter(**forms, hours="%h h", days="%d days")
