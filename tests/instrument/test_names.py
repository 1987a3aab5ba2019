"""What processors are called: functions, classes, and those with a configuration."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.instrument.calls import LONGEST_NAME, given_name, name_of_processor


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
        (with_attributes(MyProcessor(), config={"name": "zmumu"}), "zmumu"),
        (with_attributes(MyProcessor(), name="/eos?authz=eyJhbGciOiJIUzI1NiJ9"), "/eos?authz=***"),
        (with_attributes(MyProcessor(), name="x" * 1000), "x" * LONGEST_NAME),
    ],
)
def test_names(processor: Any, name: str) -> None:
    assert name_of_processor(processor) == name


def test_nothing_of_a_processor_is_called() -> None:
    assert name_of_processor(Hostile()) == "Hostile"
    assert name_of_processor(with_attributes(MyProcessor(), cfg=Hostile())) == "MyProcessor"


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        (SimpleNamespace(workflow=MyProcessor, name="dimuon_2018"), "dimuon_2018"),
        (SimpleNamespace(workflow=MyProcessor), "MyProcessor"),
        ({"workflow": "single_top"}, "single_top"),
        ("configs/dimuon_2018.yaml", "dimuon_2018"),
    ],
)
def test_a_processor_is_called_after_its_configuration(configuration: Any, name: str) -> None:
    assert name_of_processor(with_attributes(MyProcessor(), cfg=configuration)) == name
    assert name_of_processor(with_attributes(MyProcessor(), cfg=configuration, name="mine")) == "mine"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--cfg", "configs/zmumu_tight.py"], "zmumu_tight"),
        (["-o", "out", "--cfg=zmumu_tight.py"], "zmumu_tight"),
        (["--cfg", "analyses/zmumu/config.py"], "zmumu"),
        (["--cfg", "config.py"], "dimuon"),
        (["--cfg", "jobs/config_job_17.pkl"], "MyProcessor"),
        (["--cfg"], "MyProcessor"),
    ],
)
def test_a_configuration_that_the_command_names(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dimuon").mkdir()
    monkeypatch.setattr(sys, "argv", ["pocket-coffea", "run", *arguments])
    monkeypatch.chdir(tmp_path / "dimuon")
    assert name_of_processor(with_attributes(MyProcessor(), cfg=SimpleNamespace())) == name
    assert name_of_processor(MyProcessor()) == "MyProcessor"


def test_a_name_that_is_given() -> None:
    assert given_name(None) is None
    assert given_name("  zmumu \n 2018 ") == "zmumu 2018"
    for blank in ("", " \n", "\x1b"):
        with pytest.raises(ValueError, match="visible character"):
            given_name(blank)
    with pytest.raises(TypeError, match="int: 7"):
        given_name(7)  # type: ignore[arg-type]
