"""What is compared, as it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run
from made_runs import independent_job, with_call

from roastcoffea.errors import ComparisonError, MeasurementError
from roastcoffea.measurement import Measurement
from roastcoffea.storage.store import save_run
from roastcoffea.studies.merging import paths_of
from roastcoffea.studies.observations import side_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Measurements of two names, one of them with repeats, and another folder."""
    for name in ("one", "again-1", "again-2", "again-10x"):
        save_run(handmade_run(), tmp_path, name)
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


@pytest.mark.slow
def test_a_folder_with_the_jobs_of_a_campaign_is_one_run(tmp_path: Path) -> None:
    """Each has files of its own; of the same files they are repeats."""
    for folder, files in (("jobs", ("a", "b", "c")), ("repeats", ("a", "a", "a")), ("some", ("a", "b", "b"))):
        for number, name in enumerate(files):
            run = with_call(independent_job(number, [1.0, 2.0]), fileset=name * 64)
            save_run(run, tmp_path / folder, f"{number}")
    side = side_of("A", tmp_path / "jobs")
    assert [run.name for run in side.runs] == ["jobs"]
    assert side.runs[0].metrics["total_events"] == 600
    assert len(side_of("B", tmp_path / "repeats").runs) == len(side_of("C", tmp_path / "some").runs) == 3


def test_what_is_nowhere_is_refused(folder: Path) -> None:
    with pytest.raises(MeasurementError, match="no measurement found at nowhere, and none matching it"):
        paths_of("nowhere", folder)
    with pytest.raises(MeasurementError, match="empty contains no measurement"):
        paths_of(folder / "empty")


@pytest.mark.slow
def test_repeats_failed_runs_and_labels(folder: Path) -> None:
    failed = Measurement(handmade_run(outcome="failed", error="OSError: gone", name="broken"))
    side = side_of("B", [folder / "again", failed], "new")
    assert (side.letter, side.label, len(side.runs)) == ("B", "new", 2)
    assert [run.name for run in side.runs] == ["again-1", "again-2"]
    assert side.left_out == ("broken failed: OSError: gone",)
    assert side_of("A", str(folder / "one")).label == "one"  # no path of this machine
    assert side_of("A", folder / "again-*").label == "again-*"
    with pytest.raises(ComparisonError, match="C contains no comparable run: nothing was passed"):
        side_of("C", [])
