"""Pictures of a fixed run against those that were looked at and stored.

Where a change is meant, `PYTHONPATH=tests:tests/visualization python tests/visualization/test_images.py` draws them
anew: look at them before they are committed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.testing.compare import calculate_rms
from numpy.typing import NDArray
from pictures import synthetic_run

from roastcoffea.visualization.plots import PLOTS
from roastcoffea.visualization.registry import figure_alone

IMAGES = Path(__file__).parent / "images"
DOTS_PER_INCH = 50
TOLERANCE = 6.0
"""Letters of another version of FreeType differ by less, a plot that lacks its data by more."""


def picture(figure: Figure) -> NDArray[np.float64]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(np.float64)


def stored(name: str) -> NDArray[np.float64]:
    return np.rint(255 * imread(IMAGES / f"{name}.png")[..., :3].astype(np.float64))


@pytest.mark.parametrize("name", PLOTS)
def test_it_looks_as_it_did(name: str) -> None:
    found, wanted = picture(figure_alone(PLOTS[name], synthetic_run())), stored(name)
    assert found.shape == wanted.shape
    assert calculate_rms(wanted, found) < TOLERANCE


@pytest.mark.parametrize("name", PLOTS)
def test_the_comparison_sees_what_is_not_there(name: str) -> None:
    figure = figure_alone(PLOTS[name], synthetic_run())
    for axes in figure.axes:
        for artist in (*axes.lines, *axes.patches, *axes.collections, *axes.images):
            artist.set_visible(False)
    assert calculate_rms(stored(name), picture(figure)) > TOLERANCE


def test_there_is_no_picture_of_a_plot_that_is_gone() -> None:
    assert {path.stem for path in IMAGES.glob("*.png")} == set(PLOTS)


if __name__ == "__main__":
    from matplotlib.image import imsave

    IMAGES.mkdir(exist_ok=True)
    for plot, entry in PLOTS.items():
        imsave(IMAGES / f"{plot}.png", picture(figure_alone(entry, synthetic_run())).astype(np.uint8))
