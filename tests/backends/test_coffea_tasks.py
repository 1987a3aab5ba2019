"""What tasks do for coffea, read from the tasks themselves."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from coffea.processor.executor import FileMeta, WorkItem, _reduce

from roastcoffea.backends.attempts import CoffeaTasks, chunk_of
from roastcoffea.instrument.tasks import measured
from roastcoffea.log.marks import is_measured
from roastcoffea.records.workers import KINDS

ITEM = WorkItem("qcd", "a.root", "Events", 0, 100, "uuid")
FILE = FileMeta("qcd", "a.root", "Events")


def task(function: Any, *arguments: Any, key: str = "a", needs: tuple[str, ...] = ()) -> Any:
    spec = SimpleNamespace(func=function, args=arguments)
    return SimpleNamespace(key=key, run_spec=spec, dependencies=[SimpleNamespace(key=need) for need in needs])


def older(of: Any) -> Any:
    """The same task of Dask until 2024.11: a tuple of its function and arguments."""
    spec = of.run_spec and (of.run_spec.func, of.run_spec.args, {})
    return SimpleNamespace(**vars(of) | {"run_spec": spec})


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
    assert CoffeaTasks().described(older(given)) == described
    assert (KINDS[described[0]] if described else None) == kind
    if kind == "processor":
        assert described[1:] == ("qcd", "a.root", "Events", 0, 100)


def test_the_chunk_of_a_task_is_what_json_has() -> None:
    assert chunk_of(task(len, ITEM)) == chunk_of(task(len, (ITEM, "heavy"))) == ["qcd", "a.root", "Events", 0, 100]
    assert chunk_of(task(len, FILE)) is chunk_of(task(len)) is chunk_of(SimpleNamespace()) is None
    assert chunk_of(older(task(len, (ITEM, "heavy")))) == chunk_of(task(len, ITEM))
    parquet = WorkItem("qcd", "a.parquet", None, 0, 100, "uuid")
    assert chunk_of(task(len, parquet)) == ["qcd", "a.parquet", None, 0, 100]


def test_a_merge_of_preprocessing_is_preprocessing() -> None:
    tasks = CoffeaTasks()
    tasks.described(task(len, FILE, key="file"))
    assert KINDS[tasks.described(task(_reduce(1), [1], key="b", needs=("file",)))[0]] == "preprocessing"
    tasks.forget("file")
    assert KINDS[tasks.described(task(_reduce(1), [1], key="c", needs=("file",)))[0]] == "merge"


def test_a_measured_function_is_recognised_in_both_forms() -> None:
    for one in (task(measured(len), [1]), task(partial(measured(len)), [1])):
        assert is_measured(one)
        assert is_measured(older(one))
    assert not is_measured(task(len))
    assert not is_measured(older(task(len)))
    assert not is_measured(SimpleNamespace(run_spec=None))
