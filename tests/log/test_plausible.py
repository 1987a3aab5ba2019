"""Bounds of what a record can hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from roastcoffea.log.batches import MOST_BYTES, MOST_CORES, impossible_times, impossible_values


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({}, None),
        ({"start": 0.0, "stop": 0.0, "wall_seconds": 0.0}, None),
        ({"start": "early", "stop": None}, None),
        ({"start": -0.5}, "start at -0.5 s"),
        ({"stop": math.nan}, "stop at nan s"),
        ({"stop": 253_402_300_800.0}, "stop at 2.53402e+11 s"),
        ({"start": 12.0, "stop": 10.0}, "an end 2 s before its start"),
        ({"wall_seconds": math.inf}, "a duration of inf s"),
        ({"start": 1.0, "stop": 2.0, "wall_seconds": -1.0}, "a duration of -1 s"),
    ],
)
def test_times_that_cannot_be_are_named_with_what_was_found(record: dict[str, Any], found: str | None) -> None:
    assert impossible_times(record) == found


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ({"wall_seconds": 10.0, "cpu_seconds": 11.1}, set()),
        ({"wall_seconds": 10.0, "cpu_seconds": 11.2}, {"cpu_seconds"}),
        ({"wall_seconds": 10.0, "cpu_seconds": -0.1, "read_seconds": -0.2}, {"read_seconds"}),
        ({"wall_seconds": 10.0, "helper_cpu_seconds": MOST_CORES * 11.1}, set()),
        ({"wall_seconds": 10.0, "helper_cpu_seconds": MOST_CORES * 11.2}, {"helper_cpu_seconds"}),
        ({"cpu_seconds": 1e12}, set()),
        ({"memory_peak": MOST_BYTES, "bytes_requested": MOST_BYTES + 1}, {"bytes_requested"}),
        ({"memory_peak": None, "bytes_payload": "many"}, set()),
    ],
    ids=["slack", "cpu", "below zero", "all cores", "more cores", "no duration", "bytes", "not measured"],
)
def test_values_that_cannot_be_are_named(record: dict[str, Any], names: set[str]) -> None:
    assert impossible_values(record).keys() == names


def test_what_was_found_is_said_with_its_unit() -> None:
    found = impossible_values({"wall_seconds": 1.0, "cpu_seconds": 99.0, "memory_peak": -5})
    assert found == {"cpu_seconds": "cpu_seconds of 99 s", "memory_peak": "memory_peak of -5 B"}
