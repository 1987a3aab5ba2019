"""What is there stays: a folder is whole or not at all, and nobody else's is replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_saves import Saver, minimal_run
from saved_runs import a_run, contents, hidden_in, modes

from roastcoffea.errors import MeasurementError
from roastcoffea.records.run import Run
from roastcoffea.storage import folders, store
from roastcoffea.storage.folders import file_name, name_from
from roastcoffea.storage.store import list_runs, load_run, save_run


def test_what_is_saved_is_the_users_own(tmp_path: Path) -> None:
    saved = save_run(a_run(), tmp_path / "runs", "m", metrics_json=lambda: b"{}")
    assert modes(saved.parent) == {"m": 0o700} | {f"m/{file.name}": 0o600 for file in saved.iterdir()}
    before = os.umask(0)
    try:
        save_run(a_run(), tmp_path / "runs", "m", overwrite=True)
    finally:
        os.umask(before)
    assert set(modes(saved.parent).values()) == {0o600, 0o700}


@pytest.mark.parametrize("name", ["a b", "日本", "ttbar.2026", "-", "C:x", "x" * 255, "run=1"])
def test_a_name_may_be_what_a_folder_may_be(name: str, tmp_path: Path) -> None:
    assert save_run(a_run(), tmp_path, name) == tmp_path / name
    assert load_run(tmp_path / name) == a_run()


BAD_NAMES = ["", " ", ".", "..", ".hidden", "../x", "a/b", "/tmp/x", "a\\b", "..\\x", "a\0b", "\ud800"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("zmumu", "zmumu"),
        ("Z → μμ, tight: 2018/v2", "Z-μμ-tight-2018-v2"),
        ("../.hidden_", "hidden"),
        ("-rf *", "rf"),
        ("\x00\n\ud800", ""),
        ("日本" * 50, "日本" * 21),
    ],
)
def test_a_folder_s_name_is_made_from_any_text(text: str, name: str) -> None:
    assert name_from(text) == name
    assert not name or file_name(f"{name}-001") == f"{name}-001"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\0b", r"the control character '\\x00'"),
        ("name\nline", r"the control character '\\n'"),
        ("a\u2028b", r"the control character '\\u2028'"),
        ("x" * 300, "it is 300 bytes long; choose one of at most 255"),
        ("é" * 128, "it is 256 bytes long"),
    ],
)
def test_names_that_are_no_line_or_too_long_are_told_why(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=reason):
        save_run(a_run(), tmp_path / "runs", name)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", [*BAD_NAMES, "x" * 256])
@pytest.mark.parametrize("overwrite", [False, True])
def test_names_that_leave_the_folder_are_refused(name: str, overwrite: bool, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        save_run(a_run(), tmp_path / "runs", name, overwrite=overwrite)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", ["file", "folder", "other run.json", "link", "dangling link"])
def test_what_is_no_measurement_is_never_replaced(make: str, overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    elsewhere = save_run(a_run(), tmp_path / "elsewhere", "m")
    if make == "file":
        target.write_text("mine")
    elif "link" in make:
        target.symlink_to(elsewhere if make == "link" else tmp_path / "nowhere")
    else:
        target.mkdir()
        (target / ("run.json" if "json" in make else "thesis.tex")).write_text('{"format": "other"}')
    before = contents(tmp_path)
    with pytest.raises(MeasurementError, match="another name"):
        save_run(minimal_run(), tmp_path, "taken", overwrite=overwrite)
    assert contents(tmp_path) == before
    assert load_run(elsewhere) == a_run()


def test_a_measurement_is_replaced_only_on_demand(saved: Path) -> None:
    before = contents(saved.parent)
    with pytest.raises(MeasurementError, match=r"saved exists.*overwrite=True"):
        save_run(minimal_run(), saved.parent, "saved")
    assert contents(saved.parent) == before
    assert save_run(minimal_run(), saved.parent, "saved", overwrite=True) == saved
    assert sorted(contents(saved.parent)) == ["saved/run.json"]
    assert load_run(saved) == minimal_run()


def test_a_damaged_measurement_can_be_replaced(saved: Path) -> None:
    (saved / "run.json").write_bytes((saved / "run.json").read_bytes()[:100])
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert load_run(saved) == minimal_run()


def test_automatic_names_overwrite_nothing(tmp_path: Path) -> None:
    first, second = (save_run(minimal_run(id=str(n)), tmp_path, overwrite=True) for n in range(2))
    assert (load_run(first).id, load_run(second).id) == ("0", "1")


FULL = OSError(28, "No space left on device")
CALLS_OF_SAVING = [
    *((Path, "mkdir"), (folders.os, "open"), (pq, "write_table"), (folders.os, "fsync"), (Path, "rename")),
    (Path, "rmdir"),
]


@pytest.mark.parametrize(
    ("overwrite", "error"), [(False, FULL), (True, KeyboardInterrupt())], ids=["error", "interrupt"]
)
@pytest.mark.parametrize(("place", "function"), CALLS_OF_SAVING, ids=str)
def test_what_fails_leaves_everything_as_it_was(
    place: Any,
    function: str,
    overwrite: bool,
    error: BaseException,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "saved" if overwrite else "new"
    run = minimal_run(chunks=a_run().chunks)
    before = contents(saved)
    failures = 0
    for nth in range(40):
        with monkeypatch.context() as patch:
            calls = fail_at_call(nth, error, place, function, patch)
            failed = not saves(run, saved.parent, name, overwrite)
        failures += failed
        if len(calls) <= nth:
            assert not failed
            assert function == "rmdir" or failures
            return
        as_before = contents(saved) == before and (overwrite or not (saved.parent / name).exists())
        assert as_before or load_run(saved.parent / name) == run
        assert as_before or failures > 2 or function not in ("mkdir", "write_table"), "these come before all renames"
        restore(saved, {f"saved/{file}": content for file, content in before.items()})
    pytest.fail("never succeeded")


def saves(run: Run, folder: Path, name: str, overwrite: bool) -> bool:
    try:
        save_run(run, folder, name, overwrite=overwrite)
    except (MeasurementError, KeyboardInterrupt):
        return False
    return True


def fail_at_call(nth: int, error: BaseException, place: Any, name: str, patch: pytest.MonkeyPatch) -> list[Any]:
    """Let the nth call of a function fail, once; the list has an entry per call."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(place, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == nth + 1:
            raise error
        return real(*args, **kwargs)

    patch.setattr(place, name, failing)
    return calls


def restore(saved: Path, files: dict[str, bytes]) -> None:
    for path in saved.parent.iterdir():
        shutil.rmtree(path)
    for name, content in files.items():
        path = saved.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: (folder / "thesis.tex").write_text("mine"),
    "table": lambda folder: (folder / "mine.parquet").write_text("mine"),
    "hidden file": lambda folder: (folder / ".git").write_text("mine"),
    "folder": lambda folder: (folder / "plots").mkdir(),
    "folder of one of our names": lambda folder: (folder / "sections.parquet").mkdir(),
    "link": lambda folder: (folder / "sections.parquet").symlink_to("nowhere"),
    "pipe": lambda folder: os.mkfifo(folder / "sections.parquet"),
    "other run.json": lambda folder: (folder / "run.json").write_text('{"uses": "roastcoffea_run", "format": 1}'),
    "text": lambda folder: (folder / "run.json").write_text('see "format": "roastcoffea_run"'),
}


@pytest.mark.parametrize(("foreign", "late"), [*((each, False) for each in FOREIGN), ("file", True)])
def test_a_folder_with_anything_else_in_it_is_not_replaced(
    foreign: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_run(minimal_run(), tmp_path, "saved", metrics_json=lambda: b"{}")
    if late:  # it comes when the folder has been looked at
        real, looks = store.is_replaceable, iter([True])
        add = lambda path: (FOREIGN[foreign](saved) or True) if next(looks, False) else real(path)  # noqa: E731
        monkeypatch.setattr(store, "is_replaceable", add)
    else:
        FOREIGN[foreign](saved)
    inode = saved.stat().st_ino
    with pytest.raises(MeasurementError, match="saved is not overwritten"):
        save_run(a_run(), tmp_path, "saved", overwrite=True)
    assert saved.stat().st_ino == inode
    assert len(list(saved.iterdir())) >= 2
    assert hidden_in(tmp_path) == []


def test_a_folder_that_cannot_get_its_name_back_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a file of another program after it was looked at, and another process takes its name meanwhile."""
    saved = save_run(minimal_run(), tmp_path, "saved", metrics_json=lambda: b"{}")
    looks = iter([True])

    def replaceable(path: Path) -> bool:
        if next(looks, False):
            return True
        (path / "notes.json").write_text("{}")
        saved.mkdir()
        (saved / "other").touch()
        return False

    monkeypatch.setattr(store, "is_replaceable", replaceable)
    with pytest.raises(MeasurementError, match="another process took its name") as raised:
        save_run(a_run(), tmp_path, "saved", overwrite=True)
    (kept,) = tmp_path.glob(".*/kept/saved")
    assert str(kept) in str(raised.value)
    for _ in range(2):
        assert {"notes.json", "run.json", "metrics.json"} <= {file.name for file in kept.iterdir()}
        folders.dissolve(kept.parents[1], ("complete", "replaced"))
    assert [file.name for file in saved.iterdir()] == ["other"]


@pytest.mark.slow
def test_processes_that_replace_at_once_leave_one_measurement(saver: Saver, saved: Path) -> None:
    assert saver.save(saved.parent, children=4, times=30, overwrite=True) == [0] * 4
    assert list(saved.parent.iterdir()) == [saved]
    assert load_run(saved) == minimal_run(id="new")


def test_another_process_may_fill_the_place_meanwhile(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename
    intruders = iter([True, True])

    def rename(path: Path, target: Path) -> Path:
        moved = real(path, target)
        if path == saved and next(intruders, False):
            shutil.copytree(moved, saved)
        return moved

    monkeypatch.setattr(Path, "rename", rename)
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert next(intruders, None) is None
    assert list(saved.parent.iterdir()) == [saved]
    assert load_run(saved) == minimal_run()


def test_another_process_may_leave_the_place_meanwhile(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(path: Path) -> bool:
        shutil.rmtree(path)
        return True

    monkeypatch.setattr(store, "is_replaceable", leave)
    save_run(minimal_run(), saved.parent, "saved", overwrite=True)
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_that_cannot_hold_measurements_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match=r"nothing was saved in .*file"):
        save_run(a_run(), tmp_path / "file")


def test_temporary_folders_are_hidden(tmp_path: Path) -> None:
    with folders.new_folder(tmp_path, "name") as new:
        (hidden,) = tmp_path.iterdir()
        assert hidden.name.startswith(".")
        assert hidden in new.path.parents
        assert set(modes(tmp_path).values()) == {0o700}
    assert list(tmp_path.iterdir()) == []


def killed(saver: Saver, folder: Path, overwrite: bool, steps: int) -> bool:
    """Whether a process that saves was killed after so many steps."""
    (status,) = saver.save(folder, overwrite=overwrite, steps=steps)
    assert status in (0, -9)
    return status == -9


@pytest.mark.slow
def test_a_whole_measurement_has_the_name_whenever_the_process_is_killed(saver: Saver, saved: Path) -> None:
    found = []
    for steps in range(12):
        save_run(a_run(), saved.parent, "saved", overwrite=True)
        if not killed(saver, saved.parent, True, steps):
            break
        found.append(load_run(saved).id)
        assert [run.name for run in list_runs(saved.parent)] == ["saved"]
        assert store.is_measurement(saved)
        assert hidden_in(saved.parent)
        save_run(minimal_run(), saved.parent, "other", overwrite=True)
        assert hidden_in(saved.parent) == []
        assert load_run(saved).id == found[-1]
        shutil.rmtree(saved.parent / "other")
    old = found.index("new")
    assert found == [a_run().id] * old + ["new"] * (len(found) - old)
    assert 2 <= old < len(found)


@pytest.mark.slow
def test_a_whole_measurement_has_the_name_after_kills_at_random_moments() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    done = subprocess.run([sys.executable, script, "12"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 kills" in done.stdout


def test_a_save_that_was_killed_when_all_was_written_is_found(saver: Saver, tmp_path: Path) -> None:
    found = []
    for steps in range(8):
        folder = tmp_path / str(steps)
        if not killed(saver, folder, False, steps):
            break
        found.append([run.name for run in list_runs(folder)])
        assert all(load_run(folder / "saved").id == "new" for _ in found[-1])
        save_run(minimal_run(), folder, "other")
        assert sorted(path.name for path in folder.iterdir()) == sorted(["other", *found[-1]])
        assert all(load_run(folder / "saved").id == "new" for _ in found[-1])
    assert found[0] == []
    assert found[1:] == [["saved"]] * (len(found) - 1)
    assert len(found) > 3


def test_a_name_that_a_killed_save_took_is_taken(saver: Saver, tmp_path: Path) -> None:
    assert killed(saver, tmp_path, False, 1)
    with pytest.raises(MeasurementError, match="saved exists"):
        save_run(a_run(), tmp_path, "saved")
    assert load_run(save_run(a_run(), tmp_path, "saved", overwrite=True)) == a_run()
    assert hidden_in(tmp_path) == []


def test_what_a_living_process_writes_is_left_alone(saved: Path) -> None:
    with folders.new_folder(saved.parent, "saved") as new, folders.new_folder(saved.parent, "later") as later:
        later.complete()
        save_run(minimal_run(), saved.parent, "other")
        assert new.path.is_dir()
        assert later.path.is_dir()
        assert [run.name for run in list_runs(saved.parent)] == ["other", "saved"]
    assert hidden_in(saved.parent) == []


@pytest.mark.parametrize(("days", "left"), [(6, True), (8, False)])
@pytest.mark.parametrize("kind", [Path.mkdir, Path.touch])
def test_what_another_machine_writes_is_left_alone_for_a_week(
    kind: Callable[[Path], None], days: int, left: bool, tmp_path: Path
) -> None:
    hidden = tmp_path / ".roastcoffea-00000000-1-1-01234567"
    kind(hidden)
    os.utime(hidden, (0, time.time() - days * 86_400))
    save_run(minimal_run(), tmp_path, "m")
    assert hidden_in(tmp_path) == [hidden.name] * left


def test_what_is_not_known_to_be_ours_is_left_alone(tmp_path: Path) -> None:
    for name in (".roastcoffea-notes", ".roastcoffea-00000000-1-1-0123456z", ".other"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    save_run(minimal_run(), tmp_path, "m")
    assert len(hidden_in(tmp_path)) == 3


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, replacements = store.read_table, iter([True])

    def replaced(*args: Any) -> pa.Table:
        if next(replacements, False):
            save_run(a_run(id="new"), saved.parent, "saved", overwrite=True)
        return real(*args)

    monkeypatch.setattr(store, "read_table", replaced)
    assert load_run(saved) == a_run(id="new")
