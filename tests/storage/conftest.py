"""A saved run, and a process that saves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_saves import Saver, started
from saved_runs import a_run

from roastcoffea.storage.store import save_run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_run(a_run(), tmp_path, "saved")


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    with started() as saver:
        yield saver
