"""`roastcoffea plan`: a script is run up to its Runner call, of which there is a forecast."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts_run import START, run_in

from roastcoffea.cli import main

COMMAND = (sys.executable, "-m", "roastcoffea", "plan")
WRITES = f"""{START}
print("before", sys.argv[1:])
output = call(analyses.Jets())
with open("result.json", "w") as file:
    json.dump({{name: each["events"] for name, each in output.items()}}, file)
call(analyses.Jets())
print("after")
"""


FAILS = f"""{START}
class Fails(analyses.Jets):
    def process(self, events):
        raise ValueError("planted")

call(Fails())
"""


@pytest.fixture
def script(tmp_path: Path, sample: Any) -> Path:
    """Script that writes a file between two Runner calls."""
    (tmp_path / "sample.json").write_text(json.dumps(sample))
    (tmp_path / "script.py").write_text(WRITES)
    return tmp_path


def test_the_script_ends_at_its_runner_call(script: Path) -> None:
    done = run_in(script, *COMMAND, "--sample=20%", "script.py", "--sample", "3")
    assert done.returncode == 0, done.stderr
    assert "before ['--sample', '3']" in done.stdout
    for words in (
        "forecast  Jets",
        "from 4 of 16 chunks (25 %), 16,000 events in total",
        "Wall time by number of workers",
    ):
        assert words in done.stdout
    assert "after" not in done.stdout
    assert "the script ends here: its first Runner call processed only a sample of the chunks" in done.stderr
    assert {path.name for path in script.iterdir()} == {"sample.json", "script.py"}


def test_json_is_all_of_stdout(script: Path) -> None:
    options = ("--sample", "50", "--workers", "1,8", "--seed", "4", "--json", "-o", "plan.html")
    done = run_in(script, *COMMAND, *options, "script.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sampled"], found["chunks"], found["seed"]) == (8, 16, 4)
    assert [one["workers"] for one in found["clusters"]] == [1, 8]
    assert found["cpu"]["low"] < found["cpu"]["value"] < found["cpu"]["high"]
    assert "before" in done.stderr
    assert (script / "plan.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("raise SystemExit(3)", 3, "there is no forecast, because no Runner was called"),
        (FAILS, 1, "planted"),
    ],
)
def test_how_scripts_end_otherwise(script: Path, code: str, status: int, words: str) -> None:
    (script / "script.py").write_text(code)
    done = run_in(script, *COMMAND, "script.py")
    assert done.returncode == status
    assert words in done.stderr
    assert not re.search(r"roastcoffea/(recording|studies|instrument|cli)", done.stderr)


def test_a_collector_of_the_script_does_not_take_the_sample(script: Path) -> None:
    code = WRITES.replace("output = call(", "from roastcoffea import MetricsCollector\nwith MetricsCollector(): call(")
    (script / "script.py").write_text(code)
    done = run_in(script, *COMMAND, "--sample", "50", "--json", "script.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sampled"] == 8
    assert {path.name for path in script.iterdir()} == {"sample.json", "script.py"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sample", "200%"), "200.0 is not in the range 0<x<=100"),
        (("--sample", "many"), "'many' is not a valid float"),
        (("--workers", "1,0"), "0 is not in the range 1<=x<=10000"),
        (("-o", "nowhere/plan.html"), "there is no folder nowhere"),
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
    assert main(["plan", *options, "nowhere.py"]) in {1, 2}
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
