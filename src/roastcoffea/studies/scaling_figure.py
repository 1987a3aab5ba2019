"""Scaling as a picture and as a page: speed-up with what it loses, its laws, and thread time per event."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Final

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics.phases import COMPUTING, RESIDUAL
from roastcoffea.report.page.frame import page
from roastcoffea.sheets.sheet import Heading, Picture, Sheet
from roastcoffea.studies.scaling_limits import FAMILIES, SHOWN, USEFUL, Law, Limits, Point
from roastcoffea.visualization.draw import LIGHT, by_family, family_labels, legend, whole_numbers
from roastcoffea.visualization.registry import own_style, save

SMALL: Final = 0.01
REST: Final = "all others"


def scaling_figure(
    points: Sequence[Point],
    explanation: Limits,
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


def _draw_lost(ax: Axes, points: Sequence[Point], explanation: Limits, counted: str) -> None:
    """Draw useful workers, and above them what the others are lost to, up to all workers."""
    workers = np.array([point.workers for point in points], dtype=np.float64)
    below = np.array([useful.value for useful in explanation.useful])
    ax.fill_between(workers, 0, below, color=LIGHT.of(COMPUTING), linewidth=0, label=USEFUL)
    large = [cause for cause in explanation.causes if cause.share.value >= SHOWN][:5]
    for cause in large:
        above = np.minimum(below + workers * np.array(cause.shares), workers)
        colour = LIGHT.of(FAMILIES[cause.name])
        ax.fill_between(workers, below, above, facecolor=colour, edgecolor=LIGHT.ground, label=cause.name)
        below = above
    if (workers - below).max() > SMALL * workers[-1]:
        ax.fill_between(workers, below, workers, color=LIGHT.quiet, alpha=0.3, linewidth=0, label=REST)
    if explanation.main is not None:
        ax.axvline(explanation.main.turning.value, color=LIGHT.ink, linewidth=1, linestyle="--")
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
    bounds = [(each.low or each.value, each.high or each.value) for each in (point.speedup for point in points)]
    bars = np.abs(np.array(bounds) - values[:, None]).T
    ax.errorbar(workers, values, yerr=bars, fmt="o", color=LIGHT.ink, markersize=5, capsize=3, label="measured")
    ax.set(title="Speed-up", xlabel=counted, ylabel="speed-up over one", xlim=(0, workers[-1] * 1.05))
    ax.set_ylim(bottom=0)
    whole_numbers(ax.xaxis)
    legend(ax)


def _draw_classes(ax: Axes, points: Sequence[Point], counted: str) -> None:
    """Draw the thread time per event by class, stacked; the classes that grew most keep their names."""
    totals = [sum(point.classes.values()) for point in points]
    scale, unit = (1e6, "us") if max(totals) < 1e-3 else (1e3, "ms")
    amounts = {
        name: np.array([max(point.classes.get(name, 0.0), 0.0) for point in points])
        for name in by_family(name for name in points[0].classes if name != RESIDUAL)
    }
    total = np.sum(list(amounts.values()), axis=0)
    weight = {name: float((values / total).max()) for name, values in amounts.items()}
    large = sorted(weight, key=lambda name: -weight[name])[:7]
    shown = {name: values for name, values in amounts.items() if name in large and weight[name] >= SMALL}
    labels = family_labels({name: name for name in shown})
    rest = total - np.sum(list(shown.values()), axis=0)
    if (rest / total).max() >= SMALL:
        shown[REST] = rest
    places, below = np.arange(len(points)), np.zeros(len(points))
    for name, values in shown.items():
        colour, label = LIGHT.of_time.get(name, LIGHT.series[1]), labels.get(name, name)
        ax.bar(places, scale * values, 0.7, below, edgecolor=LIGHT.ground, linewidth=0.6, color=colour, label=label)
        below = below + scale * values
    ax.set_xticks(places, [str(point.workers) for point in points])
    ax.set(title="Thread time by class", xlabel=counted, ylabel=f"thread time per event ({unit})")
    legend(ax)


def page_of(title: str, facts: str, sheets: Sequence[Sheet], figure: Figure) -> str:
    """The page of a study; its first sheet begins with the reason, which becomes the page's own first line."""
    reasons, useful, *others = sheets
    why, *lead = reasons.lead
    picture = Sheet(title="speed-up and thread time", pictures=[Picture("scaling")])
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    source = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    image = Markup(f'<img class="still" style="width: 100%" alt="{escape(why)}" src="{source}">')
    heading = Heading(title=title, label="scaling", lead=[facts], alarm=why)
    return page(heading, [replace(reasons, lead=lead), useful, picture, *others], drawn={"scaling": image})
