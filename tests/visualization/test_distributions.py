"""Distributions, clouds and layers, against counts that are made here."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from roastcoffea.visualization import distributions, plots
from roastcoffea.visualization.draw import LIGHT


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(6, 4)).add_subplot()


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


def test_whole_numbers_have_bins_of_their_own(ax: Axes) -> None:
    distributions.distribution(ax, np.array([3.0, 3.0, 5.0]), ["a"] * 3, "chunks", "branches", whole=True)
    (steps,) = ax.patches
    assert steps.get_data().edges.tolist() == [2.5, 3.5, 4.5, 5.5]
    assert steps.get_data().values.tolist() == [2, 0, 1]
    assert ax.get_ylabel() == "chunks"


def test_few_groups_are_told_apart_the_largest_below(ax: Axes) -> None:
    distributions.distribution(
        ax, np.array([1.0, 1.0, 2.0, 3.0]), ["b", "a", "a", None], "chunks", "s", bins=[0, 1.5, 4]
    )
    layers = {steps.get_label(): steps.get_data() for steps in ax.patches}
    assert list(layers) == ["a", "(none)", "b"]
    heights = [(layer.values - layer.baseline).tolist() for layer in layers.values()]
    assert heights == [[1, 1], [0, 1], [1, 0]]


def test_a_cloud_has_a_colour_for_each_group_and_axes_for_its_spread(ax: Axes) -> None:
    x, y = np.array([1.0, 2.0, 200.0]), np.array([1.0, 2.0, 3.0])
    distributions.cloud(ax, x, y, ["a", "b", "a"], "chunks")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert {line.get_label(): line.get_xydata().tolist() for line in ax.lines} == {
        "a": [[1, 1], [200, 3]],
        "b": [[2, 2]],
    }


def test_a_cloud_of_many_points_is_their_density(ax: Axes) -> None:
    values = np.linspace(0.0, 1.0, distributions.MOST_POINTS + 1)
    distributions.cloud(ax, values, values, ["a"] * len(values), "chunks")
    assert ax.lines[:] == []
    assert ax.collections[0].get_array().sum() == len(values)


def words(ax: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in ax.texts]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([38.6] * 16, "requested (kB): 38.6 for all 16 chunks"),
        ([7.0], "requested (kB): 7 for the only chunk"),
        ([1000.0, 1004.0, 1002.0], "requested (kB): 1,000 (within 1 %) for all 3 chunks"),
        ([0.0, 0.0], "requested (kB): 0 for all 2 chunks"),
    ],
)
def test_one_bin_is_a_sentence(ax: Axes, values: list[float], wanted: str) -> None:
    distributions.distribution(ax, np.array(values), ["a"] * len(values), "chunks", "requested (kB)")
    assert words(ax) == [wanted]
    assert not ax.axison
    assert ax.patches[:] == []


def test_bins_that_were_asked_for_are_no_sentence(ax: Axes) -> None:
    distributions.distribution(ax, np.array([2.0, 2.0]), ["a"] * 2, "chunks", "s", bins=3)
    assert sum(ax.patches[0].get_data().values) == 2


def test_whole_numbers_that_differ_are_no_sentence(ax: Axes) -> None:
    distributions.distribution(ax, np.array([1000.0, 1001.0]), ["a"] * 2, "chunks", "branches", whole=True)
    assert len(ax.patches) == 1


def test_the_smallest_of_many_groups_are_one(ax: Axes) -> None:
    names = [name for name, size in zip("abcdef", (6, 5, 4, 3, 2, 1), strict=True) for _ in range(size)]
    distributions.distribution(ax, np.arange(21.0), names, "chunks", "s")
    sizes = {steps.get_label(): sum(np.subtract(*steps.get_data()[::2])) for steps in ax.patches if steps.get_fill()}
    assert sizes == {"a": 6, "b": 5, "c": 4, "3 others": 6}


def test_groups_of_a_cloud_differ_in_their_marks_too(ax: Axes) -> None:
    distributions.cloud(ax, np.arange(4.0), np.arange(4.0), list("abcd"), "chunks")
    assert len({line.get_marker() for line in ax.lines}) == len({line.get_color() for line in ax.lines}) == 4


def test_layers_of_one_colour_are_separated_where_both_are(ax: Axes) -> None:
    layers = [("a", [1, 1, 0], "red"), ("b", [2, 0, 2], "red"), ("c", [1, 1, 1], "blue")]
    arrays = [(name, np.array(heights, float), colour) for name, heights, colour in layers]
    distributions.stacked(ax, np.arange(4.0), arrays)
    above = [steps.get_data().values.tolist() for steps in ax.patches if steps.get_fill()]
    assert above == [[1, 1, 0], [3, 1, 2], [4, 2, 3]]
    (between,) = [steps for steps in ax.patches if not steps.get_fill()]
    np.testing.assert_array_equal(between.get_data().values, [1, np.nan, np.nan])
    assert to_hex(between.get_edgecolor()).upper() == LIGHT.ground
