"""Scripts that run with python, or measured, and what they print and save."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import analyses
from coffea.processor import IterativeExecutor
from processes import PATIENCE

import roastcoffea

PYTHON = (sys.executable,)
MEASURED = (str(Path(sys.executable).with_name("roastcoffea")), "run", "--out", "runs")
START = """
import analyses, atexit, json, os, signal, sys
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, Runner

def call(processor, executor=None):
    runner = analyses.runner_for(None, 1000, executor=lambda **_: executor or IterativeExecutor(status=False))
    with open("sample.json") as file:
        return runner(json.load(file), processor_instance=processor)[0]
"""
TOLD = re.compile(r"^roastcoffea: measured a Runner call: (.*)$", re.MULTILINE)


def run_in(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(Path(__file__).parent), "NO_COLOR": "1"}
    quiet = {"DASK_LOGGING__DISTRIBUTED": "critical"}
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=os.environ | paths | quiet | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def call_in_a_task(fileset: Any) -> Any:
    """What a Runner gives that is called in a task."""
    runner = analyses.runner_for(None, 1000, executor=lambda **_: IterativeExecutor(status=False))
    return runner(fileset, processor_instance=analyses.count_events)[0]


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of the script's output, without coffea's progress bars."""
    return [line for line in done.stdout.splitlines() if "[ 0:0" not in line]


def saved_in(folder: Path) -> list[roastcoffea.Measurement]:
    runs = folder / "runs"
    return [roastcoffea.load(path) for path in sorted(runs.iterdir())] if runs.exists() else []


def own_words(stderr: str) -> str:
    """What the script wrote on stderr: without our lines, and without the tables at the end."""
    told = stderr.split("roastcoffea: nothing was saved", maxsplit=1)[0]
    before_tables = re.split(r"^roastcoffea: /", told, maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(f"{TOLD.pattern}\n", "", before_tables, flags=re.MULTILINE)
