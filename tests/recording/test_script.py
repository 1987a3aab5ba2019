"""Scripts that run as with python, and are measured."""

from __future__ import annotations

import re
import signal
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import handmade_run
from scripts_run import MEASURED, PYTHON, START, TOLD, own_words, printed, run_in, saved_in

from roastcoffea.measurement import Measurement
from roastcoffea.recording import auto as script

ENDS = [
    "",
    "sys.exit(3)",
    "sys.exit('words')",
    "raise ValueError('planted')",
    "raise KeyboardInterrupt",
    "os.kill(os.getpid(), signal.SIGINT)",
    "os.kill(os.getpid(), signal.SIGTERM)",
    "os._exit(5)",
    "atexit.register(print, 'late')",
    "sys.excepthook = lambda *_: print('hooked'); raise OSError(2, 'planted')",
    "1 +",
    "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise BrokenPipeError(32, 'planted') from error",
    "if os.fork() == 0: sys.exit(7)\nos.wait()",
    "print(sorted(globals()), sys.argv, sys.path[0], __file__, __name__, __spec__ and __spec__.name, __builtins__)",
]
WAYS = {"file": ("./script.py",), "module": ("-m", "script"), "folder": (".",)}


ALSO_OTHERWISE = ENDS[-1]
"""Says what differs by the way in which a script is named."""


@pytest.mark.parametrize(
    ("end", "way"),
    [*((end, WAYS["file"]) for end in ENDS), (ALSO_OTHERWISE, WAYS["module"]), (ALSO_OTHERWISE, WAYS["folder"])],
)
def test_a_script_runs_as_with_python(tmp_path: Path, end: str, way: tuple[str, ...]) -> None:
    name = "__main__.py" if way == (".",) else "script.py"
    (tmp_path / name).write_text(f"import atexit, os, signal, sys\nprint('words')\n{end}\n")
    plain = run_in(tmp_path, *PYTHON, *way, "--out", "1")
    measured = run_in(tmp_path, *MEASURED, *way, "--out", "1")
    # python -m and older versions take an interrupt for any other error
    status = -signal.SIGINT if "KeyboardInterrupt" in plain.stderr else plain.returncode
    assert (measured.returncode, measured.stdout) == (status, plain.stdout)
    assert own_words(measured.stderr) == plain.stderr
    assert measured.stderr.count("nothing was saved") == ("os._exit" not in end)


@pytest.mark.slow
def test_two_calls_one_of_which_raises(folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(f"{START}\nprint(call(analyses.Jets()).keys())\ncall(analyses.Raising(1000))\n")
    plain, measured = run_in(folder, *PYTHON, "script.py"), run_in(folder, *MEASURED, "script.py")
    assert (measured.returncode, printed(measured)) == (1, printed(plain))
    assert "planted" in plain.stderr
    assert without_what_differs(own_words(measured.stderr)) == without_what_differs(plain.stderr)
    first, second = saved_in(folder)
    assert TOLD.findall(measured.stderr) == [str(path) for path in sorted((folder / "runs").iterdir())]
    assert (first.outcome, first.metrics["num_chunks"]) == ("finished", 16)
    assert second.outcome == "failed"
    assert "planted" in str(second.error)
    assert measured.stderr.count("\nAll tables: roastcoffea show ") == 2
    for measurement in (first, second):
        assert f"roastcoffea: page: {measurement.path}/report.html" in measured.stderr
        assert (measurement.path / "report.html").read_text().startswith("<!doctype html>")


def without_what_differs(stderr: str) -> str:
    """Text of an error without the file's identity, which coffea prints."""
    return re.sub(r"fileuuid=.*?, usermeta", "", stderr)


@pytest.mark.slow
def test_a_slow_host_makes_the_page_of_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = [Measurement(handmade_run()).save(tmp_path, name) for name in "ab"]
    opened: list[str] = []
    monkeypatch.setattr(script, "LONGEST_PAGES", -1.0)
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or True)
    recorder: Any = SimpleNamespace(recording=True, saved=saved, import_seconds=0.25)
    script.print_summaries(recorder, pages=True, open_page=True)
    assert "\nroastcoffea: importing roastcoffea took 250 ms, which" in capsys.readouterr().err
    assert [path.name for path in saved if (path / "report.html").exists()] == ["a"]
    assert opened == [(saved[0] / "report.html").as_uri()]


@pytest.mark.slow
def test_options_of_run(folder: Path) -> None:
    """A name, a folder in the environment, also where the script imports auto, and a page that is opened."""
    (folder / "script.py").write_text(
        f"import roastcoffea.auto, time\nbegan = time.perf_counter()\n{START}\ntook = time.perf_counter() - began\n"
        "assert 0 < roastcoffea.recording.auto._recorders[0].import_seconds < took\n"
        "print('roastcoffea.collector' in sys.modules, sys.argv)\ncall(analyses.count_events)\n"
    )
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o700)
    command = (*MEASURED[:2], "--name", "zmumu", "--open", "script.py", "--name", "of the script")
    measured = run_in(folder, *command, ROASTCOFFEA="runs", BROWSER=f"{browser} %s")
    assert (measured.returncode, printed(measured)[0]) == (0, "True ['script.py', '--name', 'of the script']")
    (measurement,) = saved_in(folder)
    assert measurement.path is not None
    assert (measurement.run.name, measurement.path.name) == ("zmumu", "zmumu-001")
    assert len(TOLD.findall(measured.stderr)) == measured.stderr.count("All tables: ") == 1
    assert re.search(r"^zmumu\b", measured.stderr, re.MULTILINE)
    assert (folder / "opened").read_text().strip() == (measurement.path / "report.html").as_uri()
