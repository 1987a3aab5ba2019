"""What is compared, as it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea.errors import ComparisonError
from roastcoffea.measurement import Measurement
from roastcoffea.studies.compare.sides import paths_of, side_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Measurements of two names, one of them with repeats, and another folder."""
    for name in ("one", "again-1", "again-2", "again-10x"):
        Measurement(handmade_run()).save(tmp_path, name)
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_path_a_pattern_and_a_name_with_repeats(folder: Path) -> None:
    assert names(paths_of(folder / "one")) == ["one"]
    assert names(paths_of(folder / "again")) == ["again-1", "again-2"]
    assert names(paths_of(folder / "again-*")) == ["again-1", "again-10x", "again-2"]
    assert sorted(names(paths_of(folder))) == ["again-1", "again-10x", "again-2", "one"]


def test_a_name_is_looked_for_in_the_folder(folder: Path) -> None:
    assert names(paths_of("one", folder)) == ["one"]
    assert names(paths_of("again", folder)) == ["again-1", "again-2"]


def test_what_is_nowhere_is_refused(folder: Path) -> None:
    with pytest.raises(ComparisonError, match="is no measurement, no pattern of some, and no name with repeats"):
        paths_of("nowhere", folder)
    with pytest.raises(ComparisonError, match="empty holds no measurement"):
        paths_of(folder / "empty")


def test_repeats_failed_runs_and_labels(folder: Path) -> None:
    failed = Measurement(handmade_run(outcome="failed", error="OSError: gone", name="broken"))
    side = side_of("B", [folder / "again", failed], "new")
    assert (side.letter, side.label, len(side.runs)) == ("B", "new", 2)
    assert [run.name for run in side.runs] == ["again-1", "again-2"]
    assert side.left_out == ("broken failed: OSError: gone",)
    assert side_of("A", str(folder / "one")).label == str(folder / "one")
    with pytest.raises(ComparisonError, match="C has no run that can be compared: nothing was given"):
        side_of("C", [])
