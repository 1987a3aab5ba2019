"""No room of the package is heavier than its budget in benchmarks/weight.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = '''
"""Prose."""
from elsewhere import other

MOST = LEAST = 3  # two


def _helper(number):
    """What it gives."""

    return number + MOST


@other
def public(number):
    return -_helper(number)


class Thing:
    def _twice(self): ...
    def asked(self): return self._twice() or self._twice()
'''


@pytest.fixture(scope="module")
def weight() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weight", Path(__file__).parents[1] / "benchmarks" / "weight.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_each_room_is_within_its_budget(weight: ModuleType) -> None:
    nodes = weight.nodes_by_room(weight.modules_of(weight.PACKAGE))
    assert nodes.keys() == weight.BUDGETS.keys(), "give each room a budget in benchmarks/weight.py"
    over = {room: found for room, found in nodes.items() if found > weight.BUDGETS[room]}
    assert over == {}, "make it lighter, or raise the budget in benchmarks/weight.py with the reason in the commit"


@pytest.mark.slow
def test_the_recorder_is_small(weight: ModuleType) -> None:
    """Of what runs inside an analysis: tests/test_import.py lists the libraries that it loads."""
    recorder = weight.recorder(weight.modules_of(weight.PACKAGE))
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = [f"roastcoffea.{name}" for name in weight.RECORDER]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert recorder.keys() == {name for name in done.stdout.split() if name.partition(".")[0] == "roastcoffea"}
    assert sum(len(module.code) for module in recorder.values()) <= weight.GOALS["lines of the recorder"]


def test_what_is_counted(weight: ModuleType, tmp_path: Path) -> None:
    for name in ("room/one.py", "one.py", "tests/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("X = 1\n")
    (tmp_path / "one.py").write_text(SOURCE)
    modules = weight.modules_of(tmp_path)
    # X = 1: module, assignment, name, number
    assert weight.nodes_by_room(modules)["room"] == 4
    found = weight.totals(modules)
    assert (found["lines"], found["files"], found["constants"], found["functions"]) == (11, 2, 3, 4)
    assert [name for _, name in weight.used_once(modules)] == ["_helper"]
    assert (found["module names twice"], found["class names twice"]) == (1, 0)
    assert found["lines of a function, most"] == 3  # public, with its decorator
