"""The picture of a branch study: input, output, growth, and output against input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.metrics import phases
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.studies.branches.growth import COLUMNS, SCALING, Growth
from roastcoffea.visualization import draw
from roastcoffea.visualization.colours import CYCLE, GREY, OF_BYTES
from roastcoffea.visualization.registry import new_figure, own_style

COLOURS: Final[Mapping[str, str]] = {
    "bytes_read": CYCLE[5],
    "bytes_payload": OF_BYTES[phases.PAYLOAD],
    "bytes_reread": OF_BYTES[phases.REREAD],
    "bytes_metadata": OF_BYTES[phases.METADATA],
    "bytes_uncompressed": CYCLE[4],
    "bytes_results": CYCLE[1],
    "bytes_output": CYCLE[2],
}
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


def _amounts(ax: Axes, study: Growth, title: str, names: Sequence[str]) -> None:
    """Draw amounts in bytes against the number of branches; the payload also where it is 0."""
    known = {name: values for name, values in study.known(names).items() if values.any() or name == "bytes_payload"}
    scale = draw.bytes_scale(max((float(values.max()) for values in known.values()), default=1.0))
    _lines(ax, study, {name: values * scale.factor for name, values in known.items()})
    _finish(ax, title, "branches read", f"bytes ({scale.unit})")


def _growth(ax: Axes, study: Growth) -> None:
    """Draw how many times each amount is that of the first count, beside the number of branches itself."""
    branches = study.amounts("branches_read")
    ratios = {name: study.ratios[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in SCALING[1:]}
    if branches[0]:
        ax.plot(branches, branches / branches[0], "--", color=GREY, linewidth=1, label="branches")
    _lines(ax, study, {name: values for name, values in ratios.items() if not np.isnan(values).any()})
    _finish(ax, "Growth from the first count", "branches read", "times")


def _against(ax: Axes, study: Growth) -> None:
    """Draw output against what was read."""
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
    # the first are wider, so that lines which lie on each other are seen
    for narrower, (name, values) in enumerate(columns.items()):
        width, colour, label = 1.2 + 0.5 * (len(columns) - 1 - narrower), COLOURS[name], COLUMNS[name].label
        ax.plot(branches, values, "o-", color=colour, markersize=width + 2.5, linewidth=width, label=label)
    draw.whole_numbers(ax.xaxis)


def _finish(ax: Axes, title: str, across: str, up: str) -> None:
    ax.set(title=title, xlabel=across, ylabel=up)
    ax.set_ylim(bottom=0)
    draw.legend(ax)
