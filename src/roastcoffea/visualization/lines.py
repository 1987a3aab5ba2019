"""Workers over time: lines of few, bands of many, their mean and their sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes

from roastcoffea.metrics.statistics import Numbers
from roastcoffea.visualization.colours import scheme_of
from roastcoffea.visualization.draw import entry, time_axis
from roastcoffea.visualization.series import Presence, Series, Span, held, lasting, on_grid, steps_on_grid

MOST_LINES: Final = 7
"""Workers that have a line each; of more there are bands."""

GRID: Final = 300
MOST_STEPS: Final = 2000
"""Moments of values that hold until the next one; of more those on a grid are drawn."""

SOLID: Final = "-"
DASHED: Final = (0, (3, 1.2))
DASHES: Final = (SOLID, SOLID, DASHED, DASHED, DASHED, DASHED, SOLID, SOLID)
"""Of lines whose colours are those of a scheme, twice over."""


def worker_lines(ax: Axes, series: Series, span: Span, label: str, scale: float = 1.0) -> None:
    """Draw each worker's line; of many workers the median, and bands of 80 % and all."""
    if len(series.workers) > MOST_LINES:
        _worker_bands(ax, *_gridded(series), span, scale, None)
    else:
        _worker_lines(ax, series, span, scale, "default")
    _end_of_workers(ax, label)


def worker_steps(  # noqa: PLR0917
    ax: Axes, series: Series, span: Span, label: str, there: Presence, scale: float = 1.0
) -> None:
    """Draw what `worker_lines` does of values that hold from sample to sample, the last one until the worker left."""
    series = held(series, there)
    if len(series.workers) > MOST_LINES:
        _worker_bands(ax, *_stepped(series), span, scale, "post")
    else:
        _worker_lines(ax, series, span, scale, "steps-post")
    _end_of_workers(ax, label)


def _worker_bands(  # noqa: PLR0917
    ax: Axes, moments: Numbers, rows: Numbers, span: Span, scale: float, step: Literal["post"] | None
) -> None:
    x = time_axis(ax, *span)(moments)
    low, tenth, middle, ninth, high = scale * np.nanquantile(rows, [0, 0.1, 0.5, 0.9, 1], axis=0)
    ink, drawstyle = scheme_of(ax).ink, f"steps-{step}" if step else "default"
    _band(ax, x, low, high, 0.2, f"all {len(rows)} workers", step)
    _band(ax, x, tenth, ninth, 0.4, "80 % of them", step)
    ax.plot(x, middle, color=ink, linewidth=1.4, label="median", drawstyle=drawstyle)


def _worker_lines(ax: Axes, series: Series, span: Span, scale: float, drawstyle: str) -> None:
    axis, names = time_axis(ax, *span), [entry(name) for name in series.names]
    wider = range(len(names) - 1, -1, -1)  # so that lines which lie on each other are all seen
    for name, times, values, (colour, dashes), more in zip(
        names, series.times, series.values, _looks(ax), wider, strict=False
    ):
        dotted = len(times) < 30 and drawstyle == "default"
        look: dict[str, Any] = {"marker": "." if dotted else None, "markersize": 4, "drawstyle": drawstyle}
        width = 1.2 + 0.5 * more
        ax.plot(axis(times), values * scale, color=colour, linestyle=dashes, label=name, linewidth=width, **look)


def _looks(ax: Axes) -> Iterator[tuple[str, Any]]:
    """Colours and dashes of lines."""
    return zip(2 * scheme_of(ax).series, DASHES, strict=True)


def worker_mean(ax: Axes, series: Series, span: Span, label: str) -> None:
    """Draw the mean over the workers present, in a band from the least to the most."""
    grid, rows = _gridded(series)
    x = time_axis(ax, *span)(grid)
    if len(rows) > 1:
        _band(ax, x, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), 0.25, "least to most")
    ax.plot(x, np.nanmean(rows, axis=0), color=scheme_of(ax).ink, linewidth=1.4, label="mean over workers")
    _end_of_workers(ax, label)


def worker_sum(ax: Axes, series: Series, span: Span, label: str, there: Presence) -> None:
    """Draw the sum over the workers present; each has its first value from its arrival on."""
    moments, rows = _stepped(lasting(series, there))
    x, total = time_axis(ax, *span)(moments), np.nansum(rows, axis=0)
    colour = scheme_of(ax).series[0]
    ax.fill_between(x, total, step="post", color=colour, alpha=0.3, linewidth=0)
    ax.step(x, total, where="post", color=colour, linewidth=1.4)
    _end_of_workers(ax, label)


def _band(  # noqa: PLR0917
    ax: Axes, x: Numbers, low: Numbers, high: Numbers, alpha: float, label: str, step: Literal["post"] | None = None
) -> None:
    colour = scheme_of(ax).series[0]
    ax.fill_between(x, low, high, step=step, color=colour, alpha=alpha, linewidth=0, label=label)


def _end_of_workers(ax: Axes, label: str) -> None:
    ax.set_ylim(bottom=0)
    ax.set_ylabel(label)


def _gridded(series: Series) -> tuple[Numbers, Numbers]:
    """Moments at which any worker was sampled, and what each had there."""
    sampled = max(map(len, series.times))
    number = min(GRID, max(2 * sampled, 2)) if series.end > series.begin else 1
    grid = np.linspace(series.begin, series.end, number)
    return _where_known(grid, on_grid(series, grid))


def _stepped(series: Series) -> tuple[Numbers, Numbers]:
    """Moments at which a value changed, and what each worker had from there on."""
    moments = np.unique(np.concatenate(series.times))
    if len(moments) > MOST_STEPS:
        moments = np.linspace(series.begin, series.end, MOST_STEPS)
    return _where_known(moments, steps_on_grid(series, moments))


def _where_known(moments: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Those of the moments at which anything is known of any worker."""
    known = ~np.isnan(rows).all(axis=0)
    return moments[known], rows[:, known]
