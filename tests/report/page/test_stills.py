"""Pictures for browsers without scripts."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from roastcoffea.metrics.phases import COMPUTING
from roastcoffea.report.page.worker_map import classes_picture, shaded_picture


def test_the_picture_of_classes_says_what_its_highest_point_is() -> None:
    edges, threads = np.arange(601.0), {"compute": np.tile([0.0, 0.0, 0.0, 8.0], 150)}
    assert 'aria-label="2 threads"' in classes_picture(edges, threads, 600.0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_has_the_colours_of_the_scheme_that_the_system_prefers(scheme: str) -> None:
    html = shaded_picture(np.array([[1.0, 0.5, np.nan]]), COMPUTING, "workers")
    before = 'prefers-color-scheme: dark)" srcset="' if scheme == "dark" else 'alt="workers" src="'
    (data,) = re.findall(re.escape(before) + 'data:image/png;base64,([^"]+)', html)
    points = imread(io.BytesIO(base64.b64decode(data)))
    assert points[0, 0, :3] == pytest.approx(to_rgb(getattr(COMPUTING, scheme)), abs=0.01)
    assert points[0, :, 3] == pytest.approx([1.0, 0.5, 0.0], abs=0.01)
