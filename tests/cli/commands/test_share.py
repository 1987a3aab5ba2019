"""`roastcoffea share`, and `redact`, its older name."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import handmade_run

from roastcoffea.cli import main
from roastcoffea.records.run import Environment
from roastcoffea.storage.store import load_run, save_run

RUN = handmade_run(name="ttbar", environment=Environment(versions={}, client_host="login"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["share", "redact"])
def test_a_copy_with_made_up_names_is_put_beside_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save_run(RUN, tmp_path, "mine")
    assert main([name, str(saved / "run.json")]) == 0
    found = load_run(tmp_path / "mine-shared")
    assert found.shared
    assert (found.environment.client_host, found.name) == ("host-1", "ttbar")
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'mine-shared'}\n"
    assert "check them before publishing" in printed.err
    assert load_run(saved) == RUN
    assert main([name, str(saved)]) == 1
    assert "mine-shared exists" in capsys.readouterr().err
    assert main([name, str(saved), "--overwrite", "-o", str(tmp_path / "mine-shared")]) == 0
