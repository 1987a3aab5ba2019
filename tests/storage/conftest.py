"""A saved run, and a process that saves."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_saves import Saver, started
from saved_runs import a_run

from roastcoffea.storage.store import save_run


@pytest.fixture(scope="session")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(a_run(), tmp_path_factory.mktemp("saved"), "saved")


@pytest.fixture
def saved(saved_once: Path, tmp_path: Path) -> Path:
    """A folder of the test's own."""
    return Path(shutil.copytree(saved_once, tmp_path / "saved"))


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    with started() as saver:
        yield saver
