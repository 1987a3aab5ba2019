"""Lines of workers: told apart by colours and dashes, and by their names."""

from __future__ import annotations

import numpy as np
from handmade import T
from matplotlib.figure import Figure

from roastcoffea.visualization.draw import MOST_LINES, worker_lines
from roastcoffea.visualization.inputs import Series


def series(number: int) -> Series:
    names = [f"node:{place}" for place in range(number)]
    times = [np.array([T, T + 10.0])] * number
    return Series(names, names, times, [np.array([place, place + 1.0]) for place in range(number)])


def test_each_of_few_workers_has_a_line_of_its_own_look() -> None:
    ax = Figure().add_subplot()
    worker_lines(ax, series(MOST_LINES), (T, T + 10), "tasks")
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == len(ax.lines) == MOST_LINES
    assert [line.get_label() for line in ax.lines] == [f"node:{place}" for place in range(MOST_LINES)]


def test_more_workers_are_bands() -> None:
    ax = Figure().add_subplot()
    worker_lines(ax, series(MOST_LINES + 1), (T, T + 10), "tasks")
    assert [line.get_label() for line in ax.lines] == ["median"]
    assert ax.lines[0].get_ydata()[[0, -1]].tolist() == [3.5, 4.5]
