"""`roastcoffea export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea.cli import main
from roastcoffea.storage.store import save_run


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--out", "--output"])
def test_what_is_written_goes_where_either_says(option: str, tmp_path: Path) -> None:
    folder = save_run(handmade_run(), tmp_path, "made")
    assert main(["export", str(folder), "--format", "json", option, str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "chunks.json").exists()
