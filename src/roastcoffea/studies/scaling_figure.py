"""Figure and HTML page of a scaling study."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Final

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics.phases import COMPUTING
from roastcoffea.report.page.frame import page
from roastcoffea.sheets.sheet import Heading, Picture, Sheet
from roastcoffea.studies.scaling_limits import FAMILIES, SHOWN, USEFUL, Law, Limits, Point
from roastcoffea.visualization.draw import LIGHT, legend, whole_numbers
from roastcoffea.visualization.registry import own_style

HATCHES: Final = ("", "//", "..", "xx")
"""Tell limits of one family, which have the same colour, apart."""


def scaling_figure(
    points: Sequence[Point],
    explanation: Limits,
    laws: Mapping[str, Law],
    unit: str,
) -> Figure:
    with own_style():
        figure = Figure(figsize=(11.0, 4.2), layout="constrained")
        lost, speedup = figure.subplots(1, 2)
        _draw_lost(lost, points, explanation, unit)
        _draw_speedup(speedup, points, laws, unit)
    return figure


def _draw_lost(ax: Axes, points: Sequence[Point], explanation: Limits, counted: str) -> None:
    workers = np.array([point.workers for point in points], dtype=np.float64)
    large = [cause for cause in explanation.causes if cause.share.value >= SHOWN][:5]
    layers = [np.array([useful.value for useful in explanation.useful])]
    layers += [workers * np.array(cause.shares) for cause in large]
    rest = np.maximum(workers - np.sum(layers, axis=0), 0.0)
    names = [USEFUL, *(cause.name for cause in large), "all others"]
    families = [COMPUTING, *(FAMILIES[cause.name] for cause in large)]
    colours = [*map(LIGHT.of, families), LIGHT.quiet]
    drawn = ax.stackplot(workers, *layers, rest, labels=names, colors=colours, edgecolor=LIGHT.ground)
    for place, family in enumerate(families):
        drawn[place].set_hatch(HATCHES[min(families[:place].count(family), len(HATCHES) - 1)])
    if explanation.main is not None:
        ax.vlines(explanation.main.turning.value, 0, workers[-1], LIGHT.ink, "--", linewidth=1)
    ax.set(title="Speed-up and losses", xlabel=counted, ylabel=counted)
    ax.set(xlim=(workers[0], workers[-1]), ylim=(0, workers[-1]))
    whole_numbers(ax.xaxis)
    legend(ax)


def _draw_speedup(ax: Axes, points: Sequence[Point], laws: Mapping[str, Law], counted: str) -> None:
    first, last = points[0].workers, points[-1].workers
    along = np.linspace(first, last, 200)
    ax.plot(along, along, color=LIGHT.quiet, linewidth=1, linestyle=":", label="ideal")
    for (name, law), colour, style in zip(laws.items(), LIGHT.series, ("--", "-"), strict=False):
        # rescale each law, because its speed-up is relative to its own one-worker rate, not to the measured rate
        scale = law.rate * first / points[0].rate.value
        ax.plot(along, scale * law.speedup(along), style, color=colour, label=name)
    workers = [point.workers for point in points]
    values, low, high = np.array([astuple(point.speedup) for point in points], np.float64).T
    bars = np.nan_to_num([values - low, high - values])
    ax.errorbar(workers, values, bars, fmt="o", color=LIGHT.ink, markersize=5, capsize=3, label="measured")
    ax.set(title="Speed-up", xlabel=counted, ylabel="speed-up over one", xlim=(0, last * 1.05))
    ax.set_ylim(bottom=0)
    whole_numbers(ax.xaxis)
    legend(ax)


def page_of(title: str, facts: str, sheets: Sequence[Sheet], figure: Figure) -> str:
    """Render the HTML page of a scaling study, with the first line of the first sheet at the top."""
    reasons, useful, *others = sheets
    why, *lead = reasons.lead
    picture = Sheet(title="speed-up", pictures=[Picture("scaling")])
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    source = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    image = Markup(f'<img class="still" style="width: 100%" alt="{escape(why)}" src="{source}">')
    heading = Heading(title=title, label="scaling", lead=[facts], alarm=why)
    return page(heading, [replace(reasons, lead=lead), useful, picture, *others], drawn={"scaling": image})
