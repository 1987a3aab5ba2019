"""What processors are called: functions, classes, and those of an installed framework with its configuration."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.instrument.calls import LONGEST_NAME, given_name, name_of_processor

FRAMEWORK = """
class BaseProcessorABC:
    def __init__(self, cfg=None):
        self.cfg = cfg
"""
WORKFLOW = """
from framework_of_tests.workflows.base import BaseProcessorABC

class BasicProcessor(BaseProcessorABC):
    def process(self, events):
        return {}

class ZmumuBaseProcessor(BasicProcessor):
    pass
"""


class MyProcessor:
    def process(self, events: Any) -> None: ...


class Named(MyProcessor):
    name = "zmumu 2018"


class Slotted:
    __slots__ = ("name",)


class Hostile:
    """Nothing of it can be called."""

    @property
    def name(self) -> str:
        raise RuntimeError("not to be called")

    cfg = config = name

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError


def with_attributes(made: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def count_muons(events: Any) -> None: ...


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (count_muons, "count_muons"),
        (functools.partial(count_muons, 1), "count_muons"),
        (functools.partial(functools.partial(count_muons, 1), 2), "count_muons"),
        (MyProcessor(), "MyProcessor"),
        (MyProcessor().process, "MyProcessor"),
        (Named(), "zmumu 2018"),
        (with_attributes(MyProcessor(), name="a\tname\nof  three\x1b lines"), "a name of three lines"),
        (with_attributes(MyProcessor(), name=Text("zmumu")), "zmumu"),
        (with_attributes(MyProcessor(), name=" "), "MyProcessor"),
        (with_attributes(MyProcessor(), name=7), "MyProcessor"),
        (with_attributes(Slotted(), name="zmumu"), "zmumu"),
        (Slotted(), "Slotted"),
        # a configuration of the user's own is none of a framework
        (with_attributes(MyProcessor(), config={"name": "zmumu"}), "MyProcessor"),
        (with_attributes(MyProcessor(), name="/eos?authz=eyJhbGciOiJIUzI1NiJ9"), "/eos?authz=***"),
        (with_attributes(MyProcessor(), name="x" * 1000), "x" * LONGEST_NAME),
    ],
)
def test_names(processor: Any, name: str) -> None:
    assert name_of_processor(processor) == name


def test_nothing_of_a_processor_is_called() -> None:
    assert name_of_processor(Hostile()) == "Hostile"


@pytest.fixture
def workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Module of an analysis in the folder "dimuon", for a framework that is installed in "installed"."""
    package = tmp_path / "installed" / "framework_of_tests" / "workflows"
    information = tmp_path / "installed" / "framework_of_tests-1.0.dist-info"
    for folder in (package, information, tmp_path / "dimuon"):
        folder.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: framework-of-tests\nVersion: 1.0\n")
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / "base.py").write_text(FRAMEWORK)
    (package / "ttbar_validation.py").write_text(WORKFLOW)
    (tmp_path / "dimuon" / "workflow.py").write_text(WORKFLOW)
    for folder in ("installed", "dimuon"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.setattr(sys, "argv", ["pocket-coffea", "run"])
    yield importlib.import_module("workflow")
    for name in list(sys.modules):
        if name == "workflow" or name.startswith("framework_of_tests"):
            del sys.modules[name]


def test_a_framework_s_processor_is_called_after_its_workflow(workflow: Any) -> None:
    for kind, name in ((workflow.BasicProcessor, "dimuon"), (workflow.ZmumuBaseProcessor, "ZmumuBaseProcessor")):
        assert name_of_processor(kind(SimpleNamespace(workflow=kind))) == name
    assert name_of_processor(workflow.BasicProcessor()) == "dimuon"
    of_framework = importlib.import_module("framework_of_tests.workflows.ttbar_validation")
    assert name_of_processor(of_framework.BasicProcessor()) == "ttbar_validation"
    base = importlib.import_module("framework_of_tests.workflows.base")
    assert name_of_processor(base.BaseProcessorABC({"workflow": "single_top"})) == "single_top"
    assert name_of_processor(base.BaseProcessorABC()) == "BaseProcessorABC"


def test_a_framework_s_processor_is_called_after_its_configuration(workflow: Any) -> None:
    kind = workflow.ZmumuBaseProcessor
    assert name_of_processor(kind(SimpleNamespace(workflow=kind, name="dimuon_2018"))) == "dimuon_2018"
    assert name_of_processor(kind({"name": "dimuon_2018"})) == "dimuon_2018"
    assert name_of_processor(kind("configs/dimuon_2018.yaml")) == "dimuon_2018"
    assert name_of_processor(with_attributes(kind({"name": "dimuon_2018"}), name="mine")) == "mine"
    assert name_of_processor(kind(Hostile())) == "ZmumuBaseProcessor"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--cfg", "configs/zmumu_tight.py"], "zmumu_tight"),
        (["-o", "out", "--cfg=zmumu_tight.py"], "zmumu_tight"),
        (["--cfg", "analyses/zmumu/config.py"], "zmumu"),
        (["--cfg", "config.py"], "dimuon"),
        (["--cfg", "jobs/config_job_17.pkl"], "ZmumuBaseProcessor"),
        (["--cfg"], "ZmumuBaseProcessor"),
    ],
)
def test_a_configuration_that_the_command_names(
    arguments: list[str], name: str, workflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pocket-coffea", "run", *arguments])
    (tmp_path / "dimuon" / "config.py").touch()
    monkeypatch.chdir(tmp_path / "dimuon")
    kind = workflow.ZmumuBaseProcessor
    assert name_of_processor(kind(SimpleNamespace(workflow=kind))) == name
    assert name_of_processor(with_attributes(MyProcessor(), cfg=SimpleNamespace())) == "MyProcessor"


def test_a_name_that_is_given() -> None:
    assert given_name(None) is None
    assert given_name("  zmumu \n 2018 ") == "zmumu 2018"
    for blank in ("", " \n", "\x1b"):
        with pytest.raises(ValueError, match="visible letter"):
            given_name(blank)
    with pytest.raises(TypeError, match="int: 7"):
        given_name(7)  # type: ignore[arg-type]
