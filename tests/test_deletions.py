"""Whatever the package removes, it knows by its content, and what is others' stays: to the last byte, in every way."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from killed_saves import minimal_run
from processes import collected_until
from saved_runs import a_run

from roastcoffea import MetricsCollector
from roastcoffea.cli import main
from roastcoffea.errors import MeasurementError
from roastcoffea.log.journal import JournalWriter
from roastcoffea.log.journals import hold, journals_in, saved
from roastcoffea.recording.assembly import remove_old
from roastcoffea.storage.store import save_run

STREAM = pa.BufferOutputStream()
with pa.ipc.new_stream(STREAM, pa.schema([("pt", pa.float64())])):
    pass

FOREIGN = {
    "notes.txt": b"mine",
    "histograms.root": b"root",
    "events.arrows": STREAM.getvalue().to_pybytes(),
    "000077.arrows": STREAM.getvalue().to_pybytes(),
    "plots/chunks.parquet": b"PAR1",
    "plots/run.json": b"{}",
}
"""What others may have in a folder of ours, or beside it."""

LOOKALIKES = {
    "ntuple/run.json": json.dumps({"run": 362_000, "luminosity": 1.0}).encode(),
    "ntuple/events.root": b"root",
    "arrows/events.arrows": STREAM.getvalue().to_pybytes(),
    "numbered/000001.arrows": STREAM.getvalue().to_pybytes(),
    "empty/metrics.json": b"{}",
    ".roastcoffea-notes/run.json": b"{}",
    "loose.arrows": b"x",
    "run.json": b"{}",
}
"""What has names like ours, and is not."""


def planted(folder: Path, files: dict[str, bytes]) -> dict[Path, bytes]:
    """Files of others in a folder, all old."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    made = {folder / name: content for name, content in files.items()}
    for path in (*made, *{path.parent for path in made}):
        os.utime(path, (0, 0))
    return made


def intact(made: dict[Path, bytes]) -> bool:
    return {path: path.read_bytes() if path.is_file() else None for path in made} == made


def a_journal(folder: Path) -> JournalWriter:
    """A journal whose writer has ended."""
    writer = JournalWriter(folder, {"start": 1e9}, pytest.fail)
    writer.write("records", b"one")
    writer.close()
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    return writer


def ours_in(folder: Path) -> list[str]:
    """Names in a folder that are not of others."""
    return sorted(path.name for path in folder.iterdir() if path.name not in {name.split("/")[0] for name in FOREIGN})


def old_journal(folder: Path) -> None:
    a_journal(folder)
    remove_old(folder.parent, 1, None)


def much_journal(folder: Path) -> None:
    a_journal(folder)
    remove_old(folder.parent, None, 0)


def dropped_journal(folder: Path) -> None:
    owner = type("Owner", (), {})()
    hold(owner, a_journal(folder))
    del owner
    assert collected_until(lambda: not (folder / "000001.arrows").exists())


def saved_journal(folder: Path) -> None:
    owner = type("Owner", (), {})()
    hold(owner, a_journal(folder))
    saved(owner)


def recovered_journal(folder: Path) -> None:
    collector = MetricsCollector(journal=folder.parent)  # its journal is removed as it is dropped
    with collector:
        pass
    (journal,) = (one for one in journals_in(folder.parent)[0] if one.folder != folder)
    shutil.copytree(journal.folder, folder, dirs_exist_ok=True)  # nobody has a lock on a copy
    gc.collect()
    assert main(["recover", str(folder), "-o", str(folder.parent / "out")]) == 0


OF_JOURNALS = [old_journal, much_journal, dropped_journal, saved_journal, recovered_journal]


@pytest.mark.slow
@pytest.mark.parametrize("removed", OF_JOURNALS)
def test_of_a_journal_its_own_files_go(removed: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "journals"
    lookalikes = planted(place, LOOKALIKES)
    removed(place / "alone")
    assert collected_until(lambda: not (place / "alone").exists())  # the folder goes after its files
    assert intact(lookalikes)


@pytest.mark.parametrize("removed", OF_JOURNALS)
def test_what_others_put_into_a_journal_stays(
    removed: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign: dict[Path, bytes] = {}
    close = JournalWriter.close

    def closed(writer: JournalWriter) -> None:
        close(writer)
        if writer.folder / "notes.txt" not in foreign:  # it is closed again while a thread removes it
            foreign.update(planted(writer.folder, FOREIGN))

    monkeypatch.setattr(JournalWriter, "close", closed)
    removed(tmp_path / "journals" / "one")
    assert len(foreign) >= len(FOREIGN)
    assert intact(foreign)
    assert ours_in(tmp_path / "journals" / "one") == []


def test_a_journal_in_the_state_folder_itself_takes_nothing_along(tmp_path: Path) -> None:
    others = planted(tmp_path, LOOKALIKES | FOREIGN)
    a_journal(tmp_path / "young")
    os.utime(tmp_path / "young" / "000001.arrows")
    a_journal(tmp_path / "made")
    (tmp_path / "made" / "000001.arrows").rename(tmp_path / "000001.arrows")
    (tmp_path / "made").rmdir()
    assert remove_old(tmp_path, 1, None) == []
    assert intact(others)
    assert (tmp_path / "young" / "000001.arrows").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    a_journal(tmp_path / "elsewhere" / "one")
    save_run(a_run(), tmp_path / "elsewhere", "saved")
    place = tmp_path / "place"
    place.mkdir()
    for name in ("one", "saved"):
        (place / name).symlink_to(tmp_path / "elsewhere" / name)
    a_journal(place / "two")
    (place / "two" / "000002.arrows").symlink_to(tmp_path / "elsewhere" / "one" / "000001.arrows")
    assert remove_old(place, 1, 0) == [place / "two"]
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["one", "saved"]
    assert (tmp_path / "elsewhere" / "one" / "000001.arrows").exists()


def test_measurements_go_by_age_and_size_and_those_with_other_files_stay(tmp_path: Path) -> None:
    others = planted(tmp_path, LOOKALIKES)
    for age in range(1, 6):
        path = save_run(a_run(), tmp_path, f"run-{age}", metrics_json=lambda: b"{}")
        for file in path.iterdir():
            os.utime(file, (file.stat().st_mtime - 86_400 * 10 * age,) * 2)
    annotated = planted(tmp_path / "run-5", {"notes.txt": b"mine"})
    assert [path.name for path in remove_old(tmp_path, 35, None)] == ["run-4"]
    size = sum(file.stat().st_size for file in (tmp_path / "run-1").iterdir())
    assert [path.name for path in remove_old(tmp_path, None, 1.5e-9 * size)] == ["run-2", "run-3"]
    assert (tmp_path / "run-1" / "run.json").exists()
    assert remove_old(tmp_path, None, None) == []
    assert remove_old(tmp_path / "missing", 1, 1) == []
    assert intact(others | annotated)


@pytest.mark.parametrize("state", ["unfinished", "complete", "replaced"])
def test_of_left_overs_what_we_write_goes(state: str, tmp_path: Path) -> None:
    hidden = tmp_path / ".roastcoffea-00000000-1-1-01234567"
    foreign = planted(hidden / state / "saved", {"histograms.root": b"root", "deeper/chunks.parquet": b"PAR1"})
    foreign |= planted(hidden, {"notes.txt": b"mine", "analysis/notes.json": b"{}"})
    foreign |= planted(tmp_path, LOOKALIKES)
    planted(hidden / state / "saved", {"chunks.parquet": b"PAR1"})
    os.utime(hidden, (0, 0))
    save_run(minimal_run(), tmp_path, "other")
    found = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.name for path in foreign} <= found.keys()
    assert found["histograms.root"] == b"root"
    assert intact({path: content for path, content in foreign.items() if state not in path.parts})


def test_overwriting_spares_what_others_have(tmp_path: Path) -> None:
    others = planted(tmp_path, LOOKALIKES)
    path = save_run(a_run(), tmp_path, "saved")
    foreign = planted(path, FOREIGN)
    for name in ("saved", "ntuple", "arrows", "numbered"):
        with pytest.raises(MeasurementError, match="is not overwritten"):
            save_run(minimal_run(), tmp_path, name, overwrite=True)
    for file in foreign:
        file.unlink()
    (path / "plots").rmdir()
    assert save_run(minimal_run(), tmp_path, "saved", overwrite=True) == path
    assert [file.name for file in path.iterdir()] == ["run.json"]
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".roastcoffea-0")]
    assert intact(others)


@pytest.mark.parametrize("length", [0, 3, 8, 100])
def test_a_file_that_was_only_begun_goes_with_the_journal(length: int, tmp_path: Path) -> None:
    a_journal(tmp_path / "one")
    begun = (tmp_path / "one" / "000001.arrows").read_bytes()[:length]
    (tmp_path / "one" / "000002.arrows").write_bytes(begun)
    gc.collect()
    assert remove_old(tmp_path, None, 0) == [tmp_path / "one"]
    assert list(tmp_path.iterdir()) == []
