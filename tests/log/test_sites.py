"""Sites of files, as metadata of a fileset or a map of sites tell."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roastcoffea.log.completeness import MAP, sites_of

FILE = "root://eos.example.org//store/a.root"
OTHER = "root://dtn.example.org//store/b.root"


def items(metadata: Any, *files: str) -> list[Any]:
    return [SimpleNamespace(filename=file, usermeta=metadata) for file in files]


@pytest.mark.parametrize(
    ("metadata", "sites"),
    [
        ({"site": "T2_CH_CERN"}, ["T2_CH_CERN", "T2_CH_CERN"]),
        ({"sites": {"T2_CH_CERN": [FILE], "T2_US_Nebraska": [OTHER]}}, ["T2_CH_CERN", "T2_US_Nebraska"]),
        ({"replicas": {OTHER: "T2_US_Nebraska"}}, [None, "T2_US_Nebraska"]),
        ({"sites": ["T2_CH_CERN"]}, [None, None]),
        ({"year": 2018}, [None, None]),
        (None, [None, None]),
    ],
)
def test_metadata_tell_the_site(metadata: Any, sites: list[str | None]) -> None:
    assert sites_of(items(metadata, FILE, OTHER)) == sites


def test_metadata_of_files_tell_it_before_they_are_opened() -> None:
    assert sites_of([SimpleNamespace(filename=FILE, metadata={"site": "T2_CH_CERN"})]) == ["T2_CH_CERN"]


def test_the_map_of_coffea_tells_it_by_the_longest_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sites_of(items(None, FILE)) == [None]
    rules = {"T2_CH_CERN": {"/+store/(.*)": "root://eos.example.org//store/$1"}, "T3": "root://eos.example.org/"}
    MAP.write_text(json.dumps(rules), encoding="utf-8")
    assert sites_of(items(None, FILE, OTHER, "/data/a.root")) == ["T2_CH_CERN", None, None]
    assert sites_of(items({"site": "T1"}, FILE)) == ["T1"]
    MAP.write_text("[", encoding="utf-8")
    assert sites_of(items(None, FILE)) == [None]
