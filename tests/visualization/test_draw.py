"""What plots are drawn of: units, names, notes and bars, on axes of their own."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import T
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.visualization import draw


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(6, 4)).add_subplot()


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.0, "s"), (0.5, "ms"), (1.0, "s"), (179.0, "s"), (180.0, "min"), (10_800.0, "h")]
)
def test_units_of_time(seconds: float, unit: str) -> None:
    assert draw.seconds_scale(seconds).unit == unit


@pytest.mark.parametrize(("amount", "unit"), [(0, "B"), (999, "B"), (1000, "kB"), (5e9, "GB"), (1e30, "EB")])
def test_units_of_bytes(amount: float, unit: str) -> None:
    assert draw.bytes_scale(amount).unit == unit


def test_names_are_shortened() -> None:
    assert len(draw.short("x" * 100)) <= draw.LONGEST_NAME
    assert draw.short(None) == "(none)"


def test_a_time_axis_begins_with_the_run(ax: Axes) -> None:
    axis = draw.time_axis(ax, T, T + 600)
    assert axis(np.array([T, T + 90.0])).tolist() == [0, 1.5]
    assert (ax.get_xlabel(), ax.get_xlim()) == ("time since the start of the run (min)", (0, 10))


def test_notes_stand_below_the_label_and_are_cut(ax: Axes) -> None:
    ax.set_xlabel("bytes")
    draw.note(ax, "$x$ is not known")
    assert ax.get_xlabel() == "bytes\n\\$x\\$ is not known"
    draw.note(ax, "word " * 100)
    assert ax.get_xlabel().endswith("...")
    assert max(map(len, ax.get_xlabel().split("\n"))) <= draw.NOTE_WIDTH


def test_bars_are_stacked_and_parts_of_nothing_left_out(ax: Axes) -> None:
    parts = {"one": np.array([1.0, 2.0]), "none": np.zeros(2), "two": np.array([3.0, 0.5])}
    draw.bars(ax, ["a", None], parts, {"one": "red", "two": "blue"})
    first, second = ax.containers
    assert [(bar.get_x(), bar.get_width()) for bar in first] == [(0, 1), (0, 2)]
    assert [(bar.get_x(), bar.get_width()) for bar in second] == [(1, 3), (2, 0.5)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "(none)"]


def test_the_largest_have_bars_of_their_own() -> None:
    totals = np.array([1.0, 5.0, 3.0, 4.0])
    assert draw.largest_first(totals) == ([1, 3, 2, 0], [])
    assert draw.largest_first(totals, 3) == ([1, 3], [2, 0])


def test_the_smallest_are_drawn_together(ax: Axes) -> None:
    number = draw.MOST_BARS + 5
    amounts = 1000.0 * np.arange(1, number + 1)
    draw.pooled_bars(ax, [str(n) for n in range(number)], {"all": (amounts, "red")}, draw.bytes_scale, "read")
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (draw.MOST_BARS, str(number - 1), "6 others")
    assert ax.containers[0][-1].get_width() == pytest.approx(1 + 2 + 3 + 4 + 5 + 6)
    assert ax.get_xlabel() == "read (kB)"
