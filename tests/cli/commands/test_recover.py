"""`roastcoffea recover`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import collected_until, wait_until
from stand_ins import Observed, recorded

from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.log.journals import Journal, claimed, journals_in
from roastcoffea.measurement import load


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folder with a journal, whose process is taken for dead."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with MetricsCollector(name="mine [red]") as collector:
        pass
    place = tmp_path / "state" / "roastcoffea" / "journals"
    (journal,) = journals_in(place)[0]
    journal.folder.rename(place / "one")
    del collector, journal
    assert collected_until(lambda: not journals_in(place)[0][0].is_locked)
    return place


def test_a_running_one_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsCollector(journal=tmp_path / "journals"):
        wait_until(lambda: bool(journals_in(tmp_path / "journals")[0]))
        assert main(["recover", str(tmp_path / "journals")]) == 0
        assert "running, process" in capsys.readouterr().out
        assert len(list((tmp_path / "journals").iterdir())) == 1


def test_what_another_one_recovers_is_left_to_it(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_and_claimed(journal: Journal) -> bool:
        return False  # it is claimed between the look and the claim

    monkeypatch.setattr(Journal, "is_written", property(lost_and_claimed))
    with claimed(place / "one") as ours:
        assert ours
        assert main(["recover", "-o", str(tmp_path / "out")]) == 0
    assert "another process" in capsys.readouterr().out
    assert (place / "one").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_at_once_make_one_measurement(place: Path, tmp_path: Path) -> None:
    for number in range(4):
        shutil.copytree(place / "one", place / f"copy-{number}")
    words = [sys.executable, "-m", "roastcoffea", "recover", str(place), "-o", str(tmp_path / "out")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate()[0] is not None and one.returncode for one in both] == [0, 0]
    assert len(list((tmp_path / "out").iterdir())) == 5
    assert list(place.iterdir()) == []


def test_a_lost_one_becomes_a_measurement(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["recover", "--list"]) == 0
    assert "mine [red]" in capsys.readouterr().out
    assert main(["recover", "--keep", "-o", str(out)]) == 0
    assert main(["recover", str(place / "one"), "-o", str(out)]) == 0
    assert capsys.readouterr().out.count("finished: ") == 2
    assert {load(path).run.name for path in out.iterdir()} == {"mine [red]"}
    assert len(list(out.iterdir())) == 2
    assert main(["recover"]) == 0
    assert "There are no journals in" in capsys.readouterr().out


def test_a_list_of_measurements_mentions_it(place: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(runs)]) == 0
    assert f"1 lost run in {place} can be recovered: roastcoffea recover" in capsys.readouterr().err


def test_journals_of_a_scheduler_are_for_another_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(Observed(monkeypatch), tmp_path).end()
    assert main(["recover", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    assert f"roastcoffea facility {tmp_path} --save" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_one_that_cannot_be_read_is_named_and_the_others_are_recovered(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "broken").mkdir()
    (place / "broken" / "000001.arrows").write_bytes(b"no arrow\x1b[31m")
    assert main(["recover", "-o", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert str(place / "broken") in printed.err
    assert "finished: " in printed.out


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", str(tmp_path / "missing")]) == 1
    assert "does not exist" in capsys.readouterr().err
