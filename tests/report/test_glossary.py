"""The glossary has every class and phase, in the words of the tables that define them, and addresses that hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roastcoffea.metrics import CATALOGUE
from roastcoffea.metrics.phases import BYTE_CLASSES, PHASES, TIME_CLASSES
from roastcoffea.report.glossary import DOCUMENTATION, GROUPS, OF_METRICS, OWN, glossary, page_address

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def test_it_has_the_terms_of_the_field() -> None:
    named = {"dataset", "chunk", "branch", "basket", "worker", "task prefix", "span", "thread time", "core-hours"}
    classes = {one.name for one in (*TIME_CLASSES, *BYTE_CLASSES)}
    assert named | classes | {phase.name for phase in PHASES} <= glossary().keys()
    assert {term.group for term in glossary().values()} == set(GROUPS)
    assert all(term.meaning.endswith(".") for term in glossary().values())


def test_what_is_defined_elsewhere_is_not_written_again() -> None:
    for one in (*TIME_CLASSES, *BYTE_CLASSES):
        assert one.meaning in glossary()[one.name].meaning
    meanings = {metric.name: metric.meaning for metric in CATALOGUE.metrics()}
    for name, metric in OF_METRICS.items():
        assert meanings[metric].startswith(glossary()[name].meaning)
    written = [name for terms in OWN.values() for name in terms]
    assert len({*written, *OF_METRICS}) == len(written) + len(OF_METRICS)
    assert not {*written, *OF_METRICS} & {one.name for one in (*TIME_CLASSES, *BYTE_CLASSES, *PHASES)}


def test_addresses_are_those_of_the_published_documentation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION
    assert glossary()["idle: queued"].address == f"{DOCUMENTATION}glossary.html#term-idle-queued"
    assert page_address("limited/storage") == f"{DOCUMENTATION}limited/storage.html"
    anchors = [term.anchor for term in glossary().values()]
    assert len(set(anchors)) == len(anchors)


def test_anchors_are_those_that_sphinx_makes() -> None:
    nodes = pytest.importorskip("docutils.nodes")
    utils = pytest.importorskip("docutils.utils")
    make_id = pytest.importorskip("sphinx.util.nodes").make_id
    frontend, rst = pytest.importorskip("docutils.frontend"), pytest.importorskip("docutils.parsers.rst")
    settings = frontend.get_default_settings(rst.Parser)
    for term in glossary().values():
        document = utils.new_document("glossary", settings)
        assert isinstance(document, nodes.document)
        assert make_id(None, document, "term", term.name) == term.anchor
