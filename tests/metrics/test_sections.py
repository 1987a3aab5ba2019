"""Sections, summed by name and dataset."""

import pytest
from handmade import CHUNKS, SECTIONS

from roastcoffea.metrics.profile import totals_of
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS, SECTION_COLUMNS


def totals(sections):
    table = totals_of(table_of_rows(CHUNK_COLUMNS, CHUNKS), table_of_rows(SECTION_COLUMNS, sections))
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
