"""Pictures for browsers without scripts."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from roastcoffea.metrics.phases import COMPUTING
from roastcoffea.report.page.figures import picture, stacked


def test_the_picture_of_classes_says_what_its_highest_point_is() -> None:
    threads = {"compute": np.array([1.0, 5.0, 2.0]), "read": np.array([0.0, 3.0, 4.0])}
    html = stacked(np.arange(4.0), threads, ["blue", "brown"], "threads")
    assert 'aria-label="8 threads"' in html
    assert "M0,218V193.0H267V93.0H533V168.0H800V218Z" in html  # 200 pixels are 8 threads, from below
    assert html.index("brown") < html.index("blue")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_has_the_colours_of_the_scheme_that_the_system_prefers(scheme: str) -> None:
    alpha = np.array([[1.0, 0.5, 0.0]])

    def shaded(one: str) -> Any:
        return np.dstack([np.broadcast_to(to_rgb(getattr(COMPUTING, one)), (1, 3, 3)), alpha])

    html = picture("workers", shaded)
    before = 'prefers-color-scheme: dark)" srcset="' if scheme == "dark" else 'alt="workers" src="'
    (data,) = re.findall(re.escape(before) + 'data:image/png;base64,([^"]+)', html)
    points = imread(io.BytesIO(base64.b64decode(data)))
    assert points[0, 0, :3] == pytest.approx(to_rgb(getattr(COMPUTING, scheme)), abs=0.01)
    assert points[0, :, 3] == pytest.approx([1.0, 0.5, 0.0], abs=0.01)
