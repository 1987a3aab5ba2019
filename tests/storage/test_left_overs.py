"""What killed processes leave is found, used or removed; what living ones write is left alone."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from killed_saves import Saver, minimal_run
from saved_runs import a_run, hidden_in

from roastcoffea.errors import MeasurementError
from roastcoffea.storage import folders, store
from roastcoffea.storage.store import list_runs, load_run, save_run


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
    done = subprocess.run([sys.executable, script, "40"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 kills" in done.stdout


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
