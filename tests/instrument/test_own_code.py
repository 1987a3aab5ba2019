"""Functions of scripts and notebooks have their files in the profile, although cloudpickle sends them without."""

from __future__ import annotations

import functools
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from profiled import packed_of

from roastcoffea.instrument.calls import files_of_functions
from roastcoffea.log.received import ReceivedProfiles, with_files
from roastcoffea.log.stacks import SENT

SCRIPT = """
from os.path import join

def weight(events):
    return [(lambda one: one + 1)(each) for each in events]

class Mine:
    def process(self, events):
        def inner():
            return weight(events)
        return inner()

    @staticmethod
    def fixed():
        return 1

    @property
    def size(self):
        return 1
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Module of a script."""
    module = types.ModuleType("a_script")
    exec(compile(SCRIPT, "/home/me/script.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "a_script", module)
    return module


def test_functions_have_the_file_of_their_script(script: Any) -> None:
    for processor in (script.Mine(), script.Mine().process, functools.partial(script.weight, 1)):
        files = files_of_functions(processor)
        names = {"weight", "weight.<lambda>", "Mine.process", "Mine.process.inner", "Mine.fixed", "Mine.size"}
        # comprehensions are part of their function from Python 3.12 on
        assert {name.replace("<listcomp>.", "") for name in files} - {"weight.<listcomp>"} == names
        assert set(files.values()) == {"/home/me/script.py"}


@pytest.mark.parametrize("known", [True, False])
def test_a_class_that_a_worker_of_this_process_has_changed_has_its_file(script: Any, *, known: bool) -> None:
    if known:
        files_of_functions(script.Mine())
    else:
        script.__name__, script.__file__ = "another_script", "/home/me/script.py"
        sys.modules["another_script"] = script
        script.Mine.__module__ = script.Mine.process.__module__ = "another_script"
    script.Mine.process.__code__ = script.Mine.process.__code__.replace(co_filename=SENT)
    assert files_of_functions(script.Mine())["Mine.process"] == "/home/me/script.py"
    sys.modules.pop("another_script", None)


def test_a_name_in_two_files_has_none(script: Any) -> None:
    exec(compile("def weight(events): pass", "/home/me/other.py", "exec"), script.__dict__)
    script.former = types.FunctionType(compile(SCRIPT, "/home/me/script.py", "exec").co_consts[2], script.__dict__)
    assert "weight" not in files_of_functions(script.Mine())


def test_cells_of_a_notebook_are_called_as_in_tracebacks(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = types.SimpleNamespace(format_code_name={"/home/me/script.py": ("Cell", "In[3]")}.get)
    shell = types.SimpleNamespace(compile=cells)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert files_of_functions(script.Mine())["Mine.process"] == "In[3]"


def test_what_was_sent_gets_its_file_back() -> None:
    def sent() -> None:
        """Travels by value, as it is no name of a module."""

    code = pickle.loads(cloudpickle.dumps(sent)).__code__
    assert code.co_filename in {SENT, __file__}  # cloudpickle kept it until 3.0
    received = ReceivedProfiles()
    received.add("c1", "data", packed_of(code.replace(co_filename=SENT)))
    profile = received.table({"c1"})
    name = "test_what_was_sent_gets_its_file_back.sent"
    assert with_files(profile, {"c1": {name: "In[3]"}})["files"].to_pylist() == [["In[3]"]]
    assert with_files(profile, {"c2": {name: "In[3]"}})["files"].to_pylist() == [[SENT]]
    received.add("c2", "data", packed_of(sent.__code__))
    own = received.table({"c2"})
    assert with_files(own, {"c2": {name: "In[3]"}}) is own
    assert Path(own["files"].to_pylist()[0][0]) == Path(__file__)
