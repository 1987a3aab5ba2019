"""What a chunk costs whatever its size: from chunks of other sizes, worked out from laws that are written here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from made_runs import chunks_in_two_sizes as chunks_of
from made_runs import measurement_in_two_sizes as measurement_of

from roastcoffea.studies.compare import compare
from roastcoffea.studies.observations import SPLIT, fixed_costs, sizes_of


def test_a_fixed_cost_is_told_from_that_of_an_event() -> None:
    large, small = sizes_of(chunks_of(8, 20_000, each=0.15)), sizes_of(chunks_of(64, 2500, each=0.15))
    fixed = fixed_costs("compute", "events", large, small)
    assert fixed is not None
    assert fixed == pytest.approx((8 * 0.15, 64 * 0.15, 0.15), rel=0.02)


def test_it_is_that_of_each_dataset() -> None:
    tables = [
        pa.concat_tables([chunks_of(number, size, each=0.15), chunks_of(number, size, each=0.3, dataset="mc")])
        for number, size in ((8, 20_000), (64, 2500))
    ]
    fixed = fixed_costs("compute", "events", sizes_of(tables[0]), sizes_of(tables[1]))
    assert fixed is not None
    assert fixed == pytest.approx((8 * 0.45, 64 * 0.45, 0.225), rel=0.02)


@pytest.mark.parametrize("number", [8, 400])
def test_where_sizes_are_equal_it_is_not_known(number: int) -> None:
    runs = [sizes_of(chunks_of(number, 20_000, each=0.15, seed=seed)) for seed in (1, 2)]
    assert fixed_costs("compute", "events", *runs) is None


@pytest.mark.slow
def test_where_there_is_none_it_does_not_stand_out() -> None:
    found = []
    for seed in range(1, 41):
        large, small = sizes_of(chunks_of(8, 20_000, seed=seed)), sizes_of(chunks_of(64, 2500, seed=-seed))
        found.append(fixed_costs("compute", "events", large, small))
    # two standard errors are passed by chance in 2.5 % of cases
    assert sum(fixed is not None for fixed in found) <= 4


@pytest.mark.filterwarnings("error")
def test_of_a_class_that_was_not_measured_nothing_is_known() -> None:
    def without(table: pa.Table, column: str) -> pa.Table:
        unknown = pa.chunked_array([pa.nulls(len(table), pa.float64())])
        return table.set_column(table.schema.get_field_index(column), column, unknown)

    tables = chunks_of(8, 20_000, each=0.15), chunks_of(64, 2500, each=0.15)
    for column, known in (("read_seconds", True), ("compute_seconds", False), ("events", False)):
        large, small = (sizes_of(without(table, column)) for table in tables)
        assert (fixed_costs("compute", "events", large, small) is not None) == known
    assert sizes_of(None) is None


def test_no_chunk_size_brings_what_others_do_to_the_cores() -> None:
    assert "compute" in SPLIT
    assert not {"contention", "interpreter lock"} & {*SPLIT}


@pytest.mark.parametrize("number", [8, 6])
def test_chunks_of_an_eighth_are_explained_by_their_size(number: int) -> None:
    # 150 ms a chunk and 7.5 us per event: an event of the smaller chunks takes 8 times as much
    before, after = measurement_of(number, 20_000, each=0.15), measurement_of(8 * number, 2500, each=0.15)
    explanation = compare(before, after).explanation
    largest = explanation.parts[0]
    assert largest.cause == "chunk size"
    assert largest.thread_seconds == pytest.approx(0.15 * 7 * number, rel=0.05)
    assert "process() has a fixed cost per chunk of 15" in largest.text
    assert abs(explanation.rest) < 1e-9
    assert sum(part.thread_seconds for part in explanation.parts) == pytest.approx(explanation.thread_seconds)
    others = [part for part in explanation.parts if part.cause == "compute"]
    assert all(abs(part.thread_seconds) < 0.1 * largest.thread_seconds for part in others)
    assert any("separates the fixed cost per chunk" in remark for remark in explanation.remarks)


def test_a_dearer_event_in_chunks_of_one_size_is_the_event_s() -> None:
    explanation = compare(measurement_of(16, 20_000), measurement_of(16, 20_000, event=15e-6)).explanation
    assert explanation.parts[0].cause == "compute"
    assert "us per event instead of 7.5" in explanation.parts[0].text
    assert np.isclose(explanation.parts[0].thread_seconds, 16 * 0.15, rtol=0.1)
