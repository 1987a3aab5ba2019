"""Scenarios side by side: the metrics of each, under its label."""

import io
from pathlib import Path

import pytest
from handmade import EXPECTED, handmade_run

from roastcoffea import compare_scenarios
from roastcoffea.errors import ComparisonError
from roastcoffea.measurement import Measurement


def test_scenarios_stand_side_by_side(tmp_path: Path) -> None:
    measurement = Measurement(handmade_run())
    file = io.StringIO()
    older = {"wall_time": 2.5, "processor_io_wait_percent": 40.0}
    scenarios = {"now": measurement, "saved": measurement.save(tmp_path), "values": measurement.metrics, "0.1.2": older}
    frame = compare_scenarios(scenarios, file)
    for label in ("now", "saved", "values"):
        assert dict(frame.loc[label]) == pytest.approx({name: EXPECTED[name] for name in frame.columns})
    assert frame.loc["0.1.2", "elapsed_time_seconds"] == 2.5
    assert frame.loc["0.1.2", "processor_noncpu_percentage"] == 40.0
    assert frame.loc["0.1.2"].isna().sum() == 5
    assert frame.attrs["units"]["processor_cpu_percentage"] == "%"
    text = file.getvalue()
    (wall,) = [line for line in text.splitlines() if "wall time" in line]
    assert wall.count("1 min 40 s") == 3
    assert wall.endswith("2.5 s")
    assert "0.1.2: overhead_cpu_time_seconds was not given" in text


def test_many_scenarios_take_several_tables() -> None:
    file = io.StringIO()
    compare_scenarios({f"scenario number {number}": Measurement(handmade_run()) for number in range(6)}, file)
    assert file.getvalue().count("wall time") == 2
    assert max(map(len, file.getvalue().splitlines())) <= 80


def test_there_have_to_be_scenarios() -> None:
    with pytest.raises(ComparisonError, match="there are no scenarios"):
        compare_scenarios({})
    with pytest.raises(ComparisonError, match="and no list"):
        compare_scenarios([1])
    with pytest.raises(TypeError, match="not int"):
        compare_scenarios({"one": 1})
