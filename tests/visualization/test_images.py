"""Pictures of a fixed run against those that were looked at and stored: the shapes, without letters.

Letters move with the version of matplotlib; what they say is tested by value. Where a change is meant,
`PYTHONPATH=tests:tests/visualization python tests/visualization/test_images.py` draws the pictures anew: look at them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave
from matplotlib.testing.compare import calculate_rms
from matplotlib.testing.decorators import remove_ticks_and_titles
from numpy.typing import NDArray
from pictures import synthetic_run

from roastcoffea.measurement import Measurement
from roastcoffea.visualization.inputs import inputs_of
from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import own_style

IMAGES = Path(__file__).parent / "images"
DOTS_PER_INCH = 48
TOLERANCE = 4.0
"""Other versions of matplotlib draw edges that differ by less; a plot that lacks its data differs by more."""


@functools.cache
def measurement() -> Measurement:
    return Measurement(synthetic_run())


def shapes(name: str) -> Figure:
    """Figure of a plot, with everything in the same place whatever the letters are."""
    figure = Figure(figsize=PLOTS[name].size, dpi=DOTS_PER_INCH)
    with own_style():
        PLOTS[name].drawn(inputs_of(measurement()), figure.add_axes((0.2, 0.2, 0.7, 0.7)), "", None)
    remove_ticks_and_titles(figure)
    for axes in figure.axes:
        legend = axes.get_legend()
        for words in (axes.xaxis.label, axes.yaxis.label, *axes.texts, *([legend] if legend else [])):
            words.set_visible(False)
    return figure


def picture(figure: Figure) -> NDArray[np.float64]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(np.float64)


def stored(name: str) -> NDArray[np.float64]:
    return np.rint(255 * imread(IMAGES / f"{name}.png")[..., :3].astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_it_looks_as_it_did_and_the_comparison_sees_what_is_not_there(name: str) -> None:
    figure, wanted = shapes(name), stored(name)
    found = picture(figure)
    assert found.shape == wanted.shape
    assert calculate_rms(wanted, found) < TOLERANCE
    for axes in [*figure.axes, *(child for parent in figure.axes for child in parent.child_axes)]:
        for artist in (*axes.lines, *axes.patches, *axes.collections, *axes.images):
            artist.set_visible(False)
    assert calculate_rms(wanted, picture(figure)) > TOLERANCE


def test_there_is_no_picture_of_a_plot_that_is_gone() -> None:
    assert {path.stem for path in IMAGES.glob("*.png")} == set(PLOTS)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for plot in PLOTS:
        imsave(IMAGES / f"{plot}.png", picture(shapes(plot)).astype(np.uint8))
