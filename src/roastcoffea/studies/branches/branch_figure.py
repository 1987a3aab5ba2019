"""The figure of a branch study: input, output, growth, and output against input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.branches.growth import COLUMNS, SCALING, Growth
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import LIGHT, OF_BYTES
from roastcoffea.visualization.legends import legend
from roastcoffea.visualization.registry import new_figure, own_style

COLOURS: Final[Mapping[str, str]] = {
    "bytes_read": LIGHT.ink,
    "bytes_payload": OF_BYTES[phases.PAYLOAD],
    "bytes_reread": OF_BYTES[phases.REREAD],
    "bytes_metadata": OF_BYTES[phases.METADATA],
    "bytes_uncompressed": LIGHT.series[1],
    "bytes_results": LIGHT.series[0],
    "bytes_per_task": LIGHT.series[3],
    "bytes_output": LIGHT.series[2],
}
ASKED: Final = "requested branches"
BY_ASKED: Final = ("bytes_read", "bytes_results", "bytes_per_task")
"""Amounts in the prototype's study."""

INPUT: Final = ("bytes_read", "bytes_payload", "bytes_reread", "bytes_metadata")

OUTPUT: Final = ("bytes_results", "bytes_output")


def drawn(study: Growth) -> Figure:
    """Figure of the four panels."""
    with own_style(), new_figure((9.0, 6.8)) as figure:
        first, second, third, fourth = figure.subplots(2, 2).flat
        _amounts(first, study, "Input", INPUT)
        _amounts(second, study, "Output", OUTPUT)
        _growth(third, study)
        _against(fourth, study)
    return figure


def drawn_by_asked(study: Growth) -> Figure:
    """Figure of the original study: its amounts by the number of requested branches.

    Raises
    ------
    ValueError
        If one of its amounts was not measured.
    """
    for name in BY_ASKED:
        if study.table[name].isna().any():
            reason = study.table.attrs["absent"][name]
            raise ValueError(f"{COLUMNS[name].label}: not measured, {reason}; pass a client to branch_study")
    with own_style(), new_figure((9.0, 6.8)) as figure:
        asked, (*amounts, ratios) = study.amounts("branches_asked"), figure.subplots(2, 2).flat
        for ax, name in zip(amounts, BY_ASKED, strict=True):
            values, label = study.amounts(name), COLUMNS[name].label
            scale = draw.bytes_scale(float(values.max()))
            ax.plot(asked, values * scale.factor, "o-", color=COLOURS[name])
            draw.whole_numbers(ax.xaxis)
            _finish(ax, f"{label[:1].upper()}{label[1:]}", ASKED, f"bytes ({scale.unit})")
        for name in ("bytes_read", "bytes_results"):
            values = study.ratios[name].to_numpy(dtype=np.float64, na_value=np.nan)
            if not np.isnan(values).any():
                ratios.plot(asked, values, "o-", color=COLOURS[name], label=COLUMNS[name].label)
        draw.whole_numbers(ratios.xaxis)
        _finish(ratios, "Growth from the first count", ASKED, "times")
    return figure


FIGURES: Final[Mapping[str, Callable[[Growth], Figure]]] = {"read": drawn, "asked": drawn_by_asked}
"""Figures of a study, by the quantity on their x axes."""


def _amounts(ax: Axes, study: Growth, title: str, names: Sequence[str]) -> None:
    """Draw amounts in bytes against the number of branches; the payload also if it is 0."""
    known = {name: values for name, values in study.known(names).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    _lines(ax, study, {name: values * scale.factor for name, values in known.items()})
    _finish(ax, title, "branches read", f"bytes ({scale.unit})")


def _growth(ax: Axes, study: Growth) -> None:
    """Draw each amount relative to the first count, next to the number of branches itself."""
    branches = study.amounts("branches_read")
    ratios = {name: study.ratios[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in SCALING[1:]}
    if branches[0]:
        ax.plot(branches, branches / branches[0], "--", color=LIGHT.quiet, linewidth=1, label="branches")
    _lines(ax, study, {name: values for name, values in ratios.items() if not np.isnan(values).any()})
    _finish(ax, "Growth from the first count", "branches read", "times")


def _against(ax: Axes, study: Growth) -> None:
    """Draw output against input."""
    payload = study.amounts("bytes_payload")
    name = "bytes_payload" if payload.any() and not np.isnan(payload).any() else "bytes_uncompressed"
    read = study.amounts(name)
    across = draw.bytes_scale(float(np.nanmax(read, initial=1.0)))
    known = study.known(OUTPUT)
    up = draw.bytes_scale(max(float(values.max()) for values in known.values()))
    for output, values in known.items():
        correlation = study.correlation(name, output)
        goes = "" if correlation is None else f", correlation {correlation:.2f}"
        label = f"{COLUMNS[output].label}{goes}"
        ax.plot(read * across.factor, values * up.factor, "o", color=COLOURS[output], markersize=5, label=label)
    _finish(ax, "Output against input", f"{COLUMNS[name].label} ({across.unit})", f"bytes ({up.unit})")


def _lines(ax: Axes, study: Growth, columns: Mapping[str, Numbers]) -> None:
    branches = study.amounts("branches_read")
    # the first lines are wider, so that overlapping ones remain visible
    for narrower, (name, values) in enumerate(columns.items()):
        width, colour, label = 1.2 + 0.5 * (len(columns) - 1 - narrower), COLOURS[name], COLUMNS[name].label
        ax.plot(branches, values, "o-", color=colour, markersize=width + 2.5, linewidth=width, label=label)
    draw.whole_numbers(ax.xaxis)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    legend(ax)
