"""The journal of a collector: where it is, when it goes, and that it disturbs nobody."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import analyses
import pytest
from analyses import runner_for
from coffea.processor import IterativeExecutor
from processes import collected_until, wait_until

from roastcoffea import MetricsCollector
from roastcoffea.instrument.calls import active
from roastcoffea.log.journals import journals_in
from roastcoffea.recording.assembly import checked_place, state_folder
from roastcoffea.recording.importers import recovered


def journals_of(place: Path) -> list[str]:
    return [journal.folder.name for journal in journals_in(place)[0]]


def test_it_is_in_the_state_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "roastcoffea" / "journals"
    with MetricsCollector(name="a name/with a slash"):
        pass
    assert len(journals_of(state_folder())) <= 1
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert state_folder() == tmp_path / "home" / ".local" / "state" / "roastcoffea" / "journals"


def test_without_one_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for journal in (None, False):
        with MetricsCollector(journal=journal) as collector:
            pass
        assert collector.measurement.problems == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder_is_refused() -> None:
    for wrong in (3, "", [], b""):
        with pytest.raises(TypeError, match="journal must be a folder"):
            MetricsCollector(journal=wrong)  # type: ignore[arg-type]
    assert checked_place("x") == Path("x")


@pytest.mark.slow
def test_it_stays_until_the_measurement_is_saved_or_dropped(tmp_path: Path) -> None:
    place = tmp_path / "journals"
    with MetricsCollector(journal=place) as collector:
        pass
    collector.set_coffea_report({"bytesread": 1})
    gc.collect()
    assert len(journals_of(place)) == 1
    collector.save_measurement(tmp_path, "saved")
    assert list(place.iterdir()) == []
    collector.set_coffea_report({"bytesread": 2})
    assert list(place.iterdir()) == []
    with MetricsCollector(journal=place) as collector:
        pass
    measurement = collector.measurement
    del collector
    gc.collect()
    assert len(journals_of(place)) == 1
    assert measurement.outcome == "finished"
    del measurement
    assert collected_until(lambda: not list(place.iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("removed", [False, True])
def test_a_slow_disk_is_a_problem_and_loses_nothing(
    sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    place, answers, sync = tmp_path / "journals", threading.Event(), os.fsync

    def slow_sync(file: int) -> None:
        assert answers.wait(100)
        sync(file)

    if not removed:
        monkeypatch.setattr(os, "fsync", slow_sync)
    with MetricsCollector(journal=place) as collector:
        if removed:
            assert wait_until(lambda: len(journals_of(place)) == 1)
            monkeypatch.setattr(os, "fsync", slow_sync)
            shutil.rmtree(place)
        runner = runner_for(None, 4000, lambda **_: IterativeExecutor(status=False))
        runner(sample, processor_instance=analyses.Jets())
    measurement = collector.measurement
    assert ["disk is slow" in problem for problem in measurement.problems] == [True]
    answers.set()
    assert wait_until(lambda: all_on_disk(place))
    (journal,) = journals_in(place)[0]
    assert len(recovered(journal).chunks) == 4
    assert any("was removed during the run" in problem for problem in measurement.problems) == removed
    measurement.save(tmp_path)
    assert journals_of(place) == []


def all_on_disk(place: Path) -> bool:
    return any(entry.kind == "end" for journal in journals_in(place)[0] for entry in journal.entries())


def test_two_at_once_have_one_each(tmp_path: Path) -> None:
    with MetricsCollector(journal=tmp_path) as outer, MetricsCollector(journal=tmp_path) as inner:
        pass
    found, _ = journals_in(tmp_path)
    assert {journal.header["id"] for journal in found} == {outer.measurement.run.id, inner.measurement.run.id}
    assert all(journal.is_written for journal in found)


def test_a_place_that_cannot_be_written_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with MetricsCollector(journal=tmp_path / "file" / "below") as collector:
        time.sleep(0.1)
    (problem,) = collector.measurement.problems
    assert "the journal ended early" in problem
    assert "Not a directory" in problem


def test_a_collector_that_cannot_be_entered_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("roastcoffea.collector.watch", broken)
    with pytest.raises(KeyboardInterrupt), MetricsCollector(journal=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_not_in_it(tmp_path: Path, no_patterns: None) -> None:
    with MetricsCollector(journal=tmp_path, name="token=abcdef") as collector:
        active[-1].chunks_lost("no way to root://jane:abcdef@host")
        active[-1].note("password=abcdef")
        item = SimpleNamespace(dataset="qcd?token=abcdef", filename="root://u:abcdef@h//f", treename="Events")
        active[-1].items_requested("call", [item])
        collector.set_coffea_report({"token": "abcdef"})
    (journal,) = journals_in(tmp_path)[0]
    recovered(journal)
    texts = [file.read_bytes() for file in journal.folder.iterdir()]
    texts += [entry.data for entry in journal.entries()]
    assert any(b"***" in text for text in texts)
    assert not any(b"abcdef" in text for text in texts)


SCRIPT = """
import os, sys, time
from roastcoffea import MetricsCollector
with MetricsCollector(journal=sys.argv[1]) as collector:
    if sys.argv[2] == "inside":
        time.sleep(2.5)  # what is older than two seconds is kept
        os._exit(3)
if sys.argv[2] == "fork":
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    assert os.listdir(sys.argv[1])
if sys.argv[2] == "raise":
    raise ValueError("mine")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "outcome"), [("fork", None), ("raise", "finished"), ("inside", "lost")])
def test_it_outlives_a_process_that_does_not_end_well(tmp_path: Path, end: str, outcome: str | None) -> None:
    place = tmp_path / "journals"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, place, end], env=os.environ, capture_output=True, text=True, check=False
    )
    assert ("ValueError: mine" in ended.stderr) == (end == "raise"), ended.stderr
    assert [recovered(journal).outcome for journal in journals_in(place)[0]] == ([outcome] if outcome else [])
