"""What plots are drawn of: units, names, legends, bars, distributions and clouds, on axes of their own."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import T
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roastcoffea.visualization import draw, plots


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
    assert draw.worker_names(["tcp://10.0.0.1:1234", "tcp://10.0.0.1:1235"]) == ["1234", "1235"]
    assert draw.worker_names(["tcp://10.0.0.1:1234", "tcp://10.0.0.2:1234"]) == ["10.0.0.1:1234", "10.0.0.2:1234"]
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


def test_bins_and_edges_are_those_that_were_asked_for() -> None:
    chunks = [{"duration": float(seconds)} for seconds in (2, 3, 5, 10)]
    _, ax = plots.plot_runtime_distribution(chunks, bins=4)
    (steps,) = ax.patches
    assert steps.get_data().edges.tolist() == [2, 4, 6, 8, 10]
    assert steps.get_data().values.tolist() == [2, 1, 0, 1]
    _, ax = plots.plot_runtime_distribution(chunks, bins=[0, 4, 12])
    assert ax.patches[0].get_data().values.tolist() == [2, 2]
    with pytest.raises(ValueError, match="bins"):
        plots.plot_runtime_distribution(chunks, bins=0)
    with pytest.raises(TypeError, match="plot_sections takes no argument bins"):
        plots.plot_sections(chunks, bins=3)


def test_a_legend_has_as_many_entries_as_were_asked_for() -> None:
    series = {f"tcp://h:{port}": [(T + at, 50.0) for at in range(3)] for port in range(6)}
    _, ax = plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=2)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1"]
    assert len(ax.lines) == len(series)
    _, ax = plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=0)
    assert ax.get_legend() is None
    with pytest.raises(ValueError, match="0 entries or more, not -1"):
        plots.plot_cpu_utilization_per_worker_timeline({"worker_cpu": series}, max_legend_entries=-1)


def test_whole_numbers_have_bins_of_their_own(ax: Axes) -> None:
    draw.distribution(ax, np.array([3.0, 3.0, 5.0]), ["a"] * 3, "chunks", whole=True)
    (steps,) = ax.patches
    assert steps.get_data().edges.tolist() == [2.5, 3.5, 4.5, 5.5]
    assert steps.get_data().values.tolist() == [2, 0, 1]
    assert ax.get_ylabel() == "chunks"


def test_few_groups_are_told_apart_the_largest_below(ax: Axes) -> None:
    draw.distribution(ax, np.array([1.0, 1.0, 2.0, 3.0]), ["b", "a", "a", None], "chunks", bins=[0, 1.5, 4])
    layers = {steps.get_label(): steps.get_data() for steps in ax.patches}
    assert list(layers) == ["a", "(none)", "b"]
    heights = [(layer.values - layer.baseline).tolist() for layer in layers.values()]
    assert heights == [[1, 1], [0, 1], [1, 0]]


def test_a_cloud_has_a_colour_for_each_group_and_axes_for_its_spread(ax: Axes) -> None:
    x, y = np.array([1.0, 2.0, 200.0]), np.array([1.0, 2.0, 3.0])
    draw.cloud(ax, x, y, ["a", "b", "a"], "chunks")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert {line.get_label(): line.get_xydata().tolist() for line in ax.lines} == {
        "a": [[1, 1], [200, 3]],
        "b": [[2, 2]],
    }


def test_a_cloud_of_many_points_is_their_density(ax: Axes) -> None:
    values = np.linspace(0.0, 1.0, draw.MOST_POINTS + 1)
    draw.cloud(ax, values, values, ["a"] * len(values), "chunks")
    assert ax.lines[:] == []
    assert ax.collections[0].get_array().sum() == len(values)
