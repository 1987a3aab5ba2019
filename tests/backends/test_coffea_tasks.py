"""What tasks do for coffea, read from the tasks themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from coffea.processor.executor import FileMeta, WorkItem, _reduce

from roastcoffea.backends.attempts import CoffeaTasks, chunk_of
from roastcoffea.records.workers import KINDS

ITEM = WorkItem("qcd", "a.root", "Events", 0, 100, "uuid")
FILE = FileMeta("qcd", "a.root", "Events")


def task(function: Any, *arguments: Any, key: str = "a", needs: tuple[str, ...] = ()) -> Any:
    spec = SimpleNamespace(func=function, args=arguments)
    return SimpleNamespace(key=key, run_spec=spec, dependencies=[SimpleNamespace(key=need) for need in needs])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (task(len, ITEM), "processor"),
        (task(len, (ITEM, "heavy")), "processor"),
        (task(len, FILE), "preprocessing"),
        (task(_reduce(1), [1, 2]), "merge"),
        (task(len, [1]), None),
        (task(len), None),
        (SimpleNamespace(key="a", run_spec=None), None),
    ],
)
def test_kinds_come_from_what_a_task_calls(given: Any, kind: str | None) -> None:
    described = CoffeaTasks().described(given)
    assert (KINDS[described[0]] if described else None) == kind
    if kind == "processor":
        assert described[1:] == ("qcd", "a.root", "Events", 0, 100)


def test_the_chunk_of_a_task_is_what_json_has() -> None:
    assert chunk_of(task(len, ITEM)) == chunk_of(task(len, (ITEM, "heavy"))) == ["qcd", "a.root", "Events", 0, 100]
    assert chunk_of(task(len, FILE)) is chunk_of(task(len)) is chunk_of(SimpleNamespace()) is None
    parquet = WorkItem("qcd", "a.parquet", None, 0, 100, "uuid")
    assert chunk_of(task(len, parquet)) == ["qcd", "a.parquet", None, 0, 100]


def test_a_merge_of_preprocessing_is_preprocessing() -> None:
    tasks = CoffeaTasks()
    tasks.described(task(len, FILE, key="file"))
    assert KINDS[tasks.described(task(_reduce(1), [1], key="b", needs=("file",)))[0]] == "preprocessing"
    tasks.forget("file")
    assert KINDS[tasks.described(task(_reduce(1), [1], key="c", needs=("file",)))[0]] == "merge"
