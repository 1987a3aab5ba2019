"""`roastcoffea duet`: two scripts run up to their Runner calls, and their processors are compared."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scripts_run import START, run_in

from roastcoffea.cli import main

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "duet.json"
COMMAND = (sys.executable, "-m", "roastcoffea", "duet")
SCRIPT = f"""{START}
import constants

class Spins(analyses.Jets):
    def process(self, events):
        analyses.spin(constants.SECONDS)
        return super().process(events) | {{"argument": len(sys.argv[1]), "seconds": constants.SECONDS}}

print("before", __file__, sys.argv[1:])
call(Spins())
print("after")
"""


@pytest.fixture
def scripts(tmp_path: Path, sample: Any) -> Path:
    """Two folders with the same script, and modules of the same name that differ."""
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    for name, seconds in (("old", 0.02), ("new", 0.03)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "script.py").write_text(SCRIPT)
        (tmp_path / name / "constants.py").write_text(f"SECONDS = {seconds}\n")
    return tmp_path


def test_scripts_with_modules_of_their_own(scripts: Path) -> None:
    done = run_in(scripts, *COMMAND, "--minutes", "0.3", "old/script.py", "new/script.py", "--year")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"before .*?(\w+)/script.py \['--year'\]", done.stdout) == ["new", "old"]
    for words in (
        "duet  A: old/script.py, B: new/script.py",
        "more CPU than A (99 % interval: ",
        "In process(), trimmed mean per chunk",
        "The outputs differ in 1 place",
        "output['seconds']: differs in 1 of 1 value",
    ):
        assert words in done.stdout
    assert "after" not in done.stdout
    assert "the script ends here: new/script.py is version B" in done.stderr
    assert {path.name for path in scripts.iterdir()} == {"sample.json", "old", "new"}


def test_json_and_page_of_equal_scripts(scripts: Path) -> None:
    options = ("--minutes", "0.1", "--json", "-o", "duet.html")
    done = run_in(scripts, *COMMAND, *options, "old/script.py", "old/script.py", "x")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(found)
    assert found["names"] == ["old/script.py", "old/script.py"]
    assert found["differences"] == []
    assert {row["first"] for row in found["pairs"]} <= {"a", "b"}
    assert all(row["a"]["bytes"] == row["b"]["bytes"] > 0 for row in found["pairs"])
    assert "before" in done.stderr
    assert (scripts / "duet.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("old", "new", "status", "words"),
    [
        (SCRIPT, "raise SystemExit(3)", 3, "there is no processor in new/script.py, because no Runner was called"),
        ("print('nothing')", SCRIPT, 1, "there is no duet, because no Runner was called"),
        (SCRIPT, SCRIPT.replace("analyses.spin(constants.SECONDS)", "raise LookupError('planted')"), 1, "planted"),
    ],
)
def test_how_scripts_end_otherwise(scripts: Path, old: str, new: str, status: int, words: str) -> None:
    (scripts / "old" / "script.py").write_text(old)
    (scripts / "new" / "script.py").write_text(new)
    done = run_in(scripts, *COMMAND, "--minutes", "0.1", "old/script.py", "new/script.py", "x")
    assert done.returncode == status
    assert words in done.stderr
    assert not re.search(r"roastcoffea/(recording|studies|instrument|cli)", done.stderr)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--minutes", "0", "a.py", "b.py"), "0.0 is not in the range x>0"),
        (("-o", "nowhere/duet.html", "a.py", "b.py"), "there is no folder nowhere"),
        (("a.py",), "Missing argument 'B'"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path,
    options: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["duet", *options]) in {1, 2}
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
