"""Scaling as a picture and as a page: speed-up with what it loses, its laws, and thread time per event."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.errors import MeasurementError
from roastcoffea.metrics.phases import COMPUTING, RESIDUAL
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.report.page.frame import page
from roastcoffea.sheets.sheet import Heading, Picture, Sheet
from roastcoffea.storage.folders import whole_file
from roastcoffea.studies.scaling.explanation import SHOWN, USEFUL, Explanation
from roastcoffea.studies.scaling.laws import Between, Law, Point
from roastcoffea.studies.scaling.shares import FAMILIES
from roastcoffea.visualization.draw import LIGHT, by_family, family_labels, legend, whole_numbers
from roastcoffea.visualization.registry import own_style, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_CLASSES: Final = 7
MOST_CAUSES: Final = 5

SMALL: Final = 0.01
REST: Final = "all others"


def scaling_figure(
    points: Sequence[Point],
    explanation: Explanation,
    laws: Mapping[str, Law],
    unit: str,
    output_path: str | PathLike[str] | None,
) -> Figure:
    """Figure of all three; written to a file if one is given."""
    with own_style():
        figure = Figure(figsize=(13.0, 4.2), layout="constrained")
        lost, speedup, classes = figure.subplots(1, 3)
        _draw_lost(lost, points, explanation, unit)
        _draw_speedup(speedup, points, laws, unit)
        _draw_classes(classes, points, unit)
    if output_path is not None:
        save(figure, output_path)
    return figure


def _draw_lost(ax: Axes, points: Sequence[Point], explanation: Explanation, counted: str) -> None:
    """Draw useful workers, and above them what the others are lost to, up to all workers."""
    workers = np.array([point.workers for point in points], dtype=np.float64)
    below = np.array([useful.value for useful in explanation.useful])
    ax.fill_between(workers, 0, below, color=LIGHT.of(COMPUTING), linewidth=0, label=USEFUL)
    large = [cause for cause in explanation.causes if cause.share.value >= SHOWN][:MOST_CAUSES]
    for cause in large:
        above = np.minimum(below + workers * np.array(cause.shares), workers)
        colour = LIGHT.of(FAMILIES[cause.name])
        ax.fill_between(workers, below, above, facecolor=colour, edgecolor=LIGHT.ground, label=cause.name)
        below = above
    if (workers - below).max() > SMALL * workers[-1]:
        ax.fill_between(workers, below, workers, color=LIGHT.quiet, alpha=0.3, linewidth=0, label=REST)
    turning = None if explanation.main is None else explanation.main.turning.value
    if turning is not None:
        ax.axvline(turning, color=LIGHT.ink, linewidth=1, linestyle="--")
    ax.set(title="Speed-up and what it loses", xlabel=counted, ylabel=counted)
    ax.set(xlim=(workers[0], workers[-1]), ylim=(0, workers[-1]))
    whole_numbers(ax.xaxis)
    legend(ax)


def _draw_speedup(ax: Axes, points: Sequence[Point], laws: Mapping[str, Law], counted: str) -> None:
    """Draw speed-ups with their intervals, the line without loss, and the laws."""
    workers = np.array([point.workers for point in points], dtype=np.float64)
    along = np.linspace(workers[0], workers[-1], 200)
    ax.plot(along, along, color=LIGHT.quiet, linewidth=1, linestyle=":", label="without loss")
    for name, colour, style in (("Amdahl", LIGHT.series[1], "--"), ("USL", LIGHT.series[0], "-")):
        if name in laws:
            law = laws[name]
            # a law's speed-up is relative to its own rate of one worker, a point's to the measured one
            scale = law.rate * workers[0] / points[0].rate.value
            ax.plot(along, scale * law.speedup(along), style, color=colour, label=name)
    values = np.array([point.speedup.value for point in points])
    bars = np.array([_arms(point.speedup) for point in points]).T
    ax.errorbar(workers, values, yerr=bars, fmt="o", color=LIGHT.ink, markersize=5, capsize=3, label="measured")
    ax.set(title="Speed-up", xlabel=counted, ylabel="speed-up over one", xlim=(0, workers[-1] * 1.05))
    ax.set_ylim(bottom=0)
    whole_numbers(ax.xaxis)
    legend(ax)


def _arms(found: Between) -> tuple[float, float]:
    """Lengths of an error bar, downwards and upwards."""
    if found.low is None or found.high is None:
        return 0.0, 0.0
    return max(found.value - found.low, 0.0), max(found.high - found.value, 0.0)


def _draw_classes(ax: Axes, points: Sequence[Point], counted: str) -> None:
    """Draw the thread time per event by class, stacked; the classes that grew most keep their names."""
    totals = [sum(point.classes.values()) for point in points]
    scale, unit = (1e6, "us") if max(totals) < 1e-3 else (1e3, "ms")
    places, below = np.arange(len(totals)), np.zeros(len(totals))
    shown = _shown(points)
    classes = by_family(name for name in shown if name != REST)
    labels = family_labels({name: name for name in classes}) | {REST: REST}
    for name in (*classes, *(shown.keys() - set(classes))):
        amounts, colour = shown[name], LIGHT.of_time.get(name, LIGHT.series[1])
        look: dict[str, Any] = {"edgecolor": LIGHT.ground, "linewidth": 0.6, "color": colour, "label": labels[name]}
        ax.bar(places, scale * amounts, 0.7, bottom=below, **look)
        below = below + scale * amounts
    ax.set_xticks(places, [str(point.workers) for point in points])
    ax.set(title="Thread time by class", xlabel=counted, ylabel=f"thread time per event ({unit})")
    legend(ax)


def _shown(points: Sequence[Point]) -> dict[str, Numbers]:
    """Classes that matter in any point, in the order of the ledger; the rest combined."""
    names = [name for name in points[0].classes if name != RESIDUAL]
    amounts = {name: np.array([max(point.classes.get(name, 0.0), 0.0) for point in points]) for name in names}
    totals = np.sum(list(amounts.values()), axis=0)
    weight = {name: float((values / totals).max()) for name, values in amounts.items()}
    large = sorted(weight, key=lambda name: -weight[name])[:MOST_CLASSES]
    shown = {name: values for name, values in amounts.items() if name in large and weight[name] >= SMALL}
    rest = totals - np.sum(list(shown.values()), axis=0)
    return shown | ({REST: rest} if (rest / totals).max() >= SMALL else {})


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
