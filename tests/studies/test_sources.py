"""What stands for a measurement, and what it is called."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from handmade import handmade_run

from roastcoffea.measurement import Measurement
from roastcoffea.studies.merging import measurement_of, name_of


def test_whatever_stands_for_a_measurement_is_taken(tmp_path: Path) -> None:
    measurement = Measurement(handmade_run(name="mine"))
    folder = measurement.save(tmp_path, "saved")
    collector = SimpleNamespace(measurement=measurement)
    sources = (measurement, measurement.run, collector, folder, str(folder))
    assert {measurement_of(source).run.id for source in sources} == {measurement.run.id}
    assert [name_of(source) for source in sources] == ["mine", "mine", "mine", "saved", "saved"]


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="pass a measurement, a collector, a Run or a path, not int"):
        measurement_of(1)
