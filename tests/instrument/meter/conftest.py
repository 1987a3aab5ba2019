"""Files that tests of the meter read."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored import FLAT, write_parquet, write_rntuple, write_tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_tree(folder / "tree.root", flat=FLAT)
    write_rntuple(folder / "ntuple.root", flat=FLAT)
    write_parquet(folder / "columns.parquet")
    return folder
