"""Links into the published documentation lead to what it has."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from roastcoffea.metrics.phases import BYTE_CLASSES, TIME_CLASSES
from roastcoffea.report.links import DOCUMENTATION, TERMS, address_of

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"


def test_terms_have_an_address_and_other_texts_have_none() -> None:
    assert address_of("idle: queued") == f"{DOCUMENTATION}glossary.html#term-idle-queued"
    assert address_of("start-up") == f"{DOCUMENTATION}glossary.html#term-start-up"
    assert address_of("no such term") is None


def test_every_class_of_the_ledgers_is_a_term() -> None:
    assert {one.name for one in (*TIME_CLASSES, *BYTE_CLASSES)} <= TERMS


def test_addresses_are_those_of_the_project() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls")
    if urls is None:
        pytest.skip("the project has no published address")
    assert urls["Documentation"] == DOCUMENTATION


def test_the_glossary_has_every_term() -> None:
    if not GLOSSARY.exists():
        pytest.skip("the glossary is not written")
    lines = set(GLOSSARY.read_text(encoding="utf-8").splitlines())
    assert sorted(term for term in TERMS if term not in lines) == []
