"""Pictures for browsers without scripts."""

from __future__ import annotations

import numpy as np

from roastcoffea.report.page.stills import classes_picture


def test_the_picture_of_classes_says_what_its_highest_point_is() -> None:
    edges, threads = np.arange(601.0), {"compute": np.tile([0.0, 0.0, 0.0, 8.0], 150)}
    assert 'aria-label="2 threads"' in classes_picture(edges, threads, 600.0)
