"""Sections, summed by name and dataset."""

import pytest
from handmade import SECTIONS, handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import SECTION_COLUMNS


def totals(sections):
    run = handmade_run(sections=table_of_rows(SECTION_COLUMNS, sections))
    table = Measurement(run).metrics.evaluator.value("section_totals")
    return {(row["name"], row["dataset"]): row for row in table.to_pylist()}


@pytest.mark.parametrize("unknown", [(), ("bytes",), ("memory_peak",), ("cpu_seconds", "max_seconds")])
def test_what_one_pass_did_not_measure_is_not_known_of_all(unknown):
    known = {"bytes": 100, "memory_peak": 7, "cpu_seconds": 0.25, "max_seconds": 0.5}
    both = [row | known for row in SECTIONS if row["chunk"] in (12, 13) and row["name"] == "jets"]
    both[1] |= dict.fromkeys(unknown)
    total = totals(both)["jets", "data"]
    expected = {"bytes": 200, "memory_peak": 7, "cpu_seconds": 0.5, "max_seconds": 0.5} | dict.fromkeys(unknown)
    assert {name: total[name] for name in known} == expected
    assert (total["count"], total["wall_seconds"], total["errors"]) == (3, 1.25, 1)
