"""Legends that cover little, by family of classes, and names within areas."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import T
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.metrics.phases import FAMILY_OF, TIME_NAMES
from roastcoffea.visualization import plots
from roastcoffea.visualization.draw import by_family, family_labels, legend
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import figure_alone

SMALL = (4.0, 3.2)
"""Inches: about half of a page."""


def test_a_legend_has_as_many_entries_as_were_asked_for() -> None:
    series = {f"tcp://h:{port}": [(T + at, 50.0) for at in range(3)] for port in range(6)}
    _, ax = plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=2)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["h:1", "h:2"]
    assert len(ax.lines) == len(series)
    _, ax = plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=0)
    assert ax.get_legend() is None
    with pytest.raises(ValueError, match="0 or more, not -1"):
        plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=-1)


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(synthetic_run())


def covered(ax: Axes) -> float:
    """Share of the axes that lies below their legend."""
    shown = ax.get_legend()
    if shown is None:
        return 0.0
    ax.figure.draw_without_rendering()
    inside = Bbox.intersection(shown.get_window_extent(), ax.get_window_extent())
    return 0.0 if inside is None else inside.width * inside.height / np.prod(ax.get_window_extent().size)


def beyond(ax: Axes) -> float:
    """By how many dots a legend is outside of the figure."""
    box, shown = ax.figure.bbox, ax.get_legend()
    extent = box if shown is None else shown.get_window_extent()
    return max(box.x0 - extent.x0, extent.x1 - box.x1, box.y0 - extent.y0, extent.y1 - box.y1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_no_legend_covers_a_fifth_of_the_axes(name: str, measurement: Measurement) -> None:
    figure = figure_alone(PLOTS[name], measurement, SMALL)
    assert covered(figure.axes[0]) <= 0.2
    assert beyond(figure.axes[0]) <= 1


@pytest.mark.parametrize("entries", [1, 4, 12])
def test_on_axes_of_others_it_stays_within_their_place(entries: int) -> None:
    figure = Figure(figsize=(9, 3.5))
    left, right = figure.subplots(1, 2)
    for number in range(entries):
        left.plot([0, 1], [0, number], label=f"a rather long name {number}")
    legend(left)
    assert covered(left) <= 0.2
    assert left.get_legend().get_window_extent().x1 <= right.get_window_extent().x0
    assert len(left.get_legend().get_texts()) == entries


def test_families_are_next_to_each_other_in_their_order() -> None:
    ordered = by_family(TIME_NAMES)
    families = list(dict.fromkeys(FAMILY_OF[name].name for name in ordered))
    assert families == ["computing", "decoding", "reading", "opening", "handling", "trouble", "idling"]
    assert sorted(ordered) == sorted(TIME_NAMES)
    last = {FAMILY_OF[name].name: place for place, name in enumerate(ordered)}
    assert list(last) == families


def test_the_first_class_of_a_family_names_all() -> None:
    shown = {name: name for name in ("open", "compute", "merge", "transfer")} | {"residual": "not recorded"}
    assert family_labels(shown) == {
        "compute": "compute",
        "open": "open",
        "merge": "merge, transfer",
        "transfer": None,
        "residual": "not recorded",
    }
