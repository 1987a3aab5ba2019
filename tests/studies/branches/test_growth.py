"""Growth of amounts with the number of branches, by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from roastcoffea.studies.branches.branch_figure import COLUMNS, SCALING, Growth


def growth(counts: list[int], **columns: list[float | None]) -> Growth:
    """Amounts that are twice the count, but for those that are given."""
    table = {name: [2.0 * count for count in counts] for name in COLUMNS} | {"branches_asked": counts} | columns
    return Growth(pd.DataFrame(table))


def test_growth_is_from_the_first_count() -> None:
    found = growth([1, 2, 5], bytes_results=[10.0, 10.0, 40.0])
    assert found.ratios["bytes_results"].tolist() == [1.0, 1.0, 4.0]
    assert (found.growth("bytes_results"), found.growth("bytes_read")) == (4.0, 5.0)
    assert found.correlations.keys() == set(SCALING[1:])
    assert found.correlations["bytes_read"] == pytest.approx(1.0)


def test_what_is_0_or_unknown_does_not_grow() -> None:
    found = growth([1, 2, 5], bytes_payload=[0.0, 1.0, 2.0], bytes_results=[None, 1.0, 2.0])
    assert found.growth("bytes_payload") is None
    assert found.growth("bytes_results") is None
    assert found.correlation("branches_read", "bytes_results") is None
    assert found.known(["bytes_payload", "bytes_results"]).keys() == {"bytes_payload"}


def test_input_and_output_scale_alike_or_differ() -> None:
    found = growth([1, 2, 4], bytes_read=[10.0, 20.0, 40.0], bytes_results=[100.0, 210.0, 440.0])
    pair = found.compared("bytes_read", "bytes_results")
    assert (pair.read_factor, pair.output_factor) == pytest.approx((7 / 3, 7.5 / 3))
    assert pair.difference == pytest.approx(0.5 / 3)
    assert pair.alike
    assert pair.sentence == (
        "Bytes read and results as sent scale alike: x2.33 and x2.5 on average; "
        "the mean difference of 0.167 is below 0.2."
    )
    apart = growth([1, 2, 4], bytes_results=[100.0, 100.0, 100.0]).compared("bytes_read", "bytes_results")
    assert (apart.alike, apart.correlation) == (False, None)
    assert apart.constant == ("bytes_results",)
    assert apart.sentence.startswith("Bytes read and results as sent differ: x2.33 and x1 on average")
    assert apart.sentence.endswith("is not below 0.2. For every count, results as sent is the same.")
    assert growth([1, 2], bytes_payload=[0.0, 1.0]).compared("bytes_payload", "bytes_results") is None


def test_what_does_not_vary_goes_with_nothing() -> None:
    assert growth([1, 2, 5], bytes_output=[7.0, 7.0, 7.0]).correlation("branches_read", "bytes_output") is None


def test_two_counts_are_few() -> None:
    assert growth([1, 2]).few
    assert growth([1, 2]).correlation("branches_read", "bytes_read") is None
    assert not growth([1, 2, 3]).few
