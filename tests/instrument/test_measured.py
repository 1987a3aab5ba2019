"""`measured`: what it takes, what it looks like, and how it travels."""

from __future__ import annotations

import asyncio
import functools
import pickle
import pickletools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import awkward as ak
import cloudpickle
import planted_work
import pytest
import uproot
from dask.utils import funcname
from stored import write_tree

from roastcoffea import MetricsCollector, measured
from roastcoffea.instrument.tasks import settings_of


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tree(tmp_path_factory.mktemp("files") / "tree.root"))


def total(path: str, branch: str = "f0") -> float:
    """Sum of a branch."""
    with uproot.open(path) as file:
        return float(ak.sum(file["Events"][branch].array()))


class Sums:
    """Has functions of every kind."""

    def __init__(self, branch: str) -> None:
        self.branch = branch

    def of(self, path: str) -> float:
        return total(path, self.branch)

    @measured
    def decorated(self, path: str) -> float:
        return total(path, self.branch)

    def __call__(self, path: str) -> float:
        return total(path, self.branch)

    @classmethod
    def first(cls, path: str) -> float:
        return total(path, "f0")


def twice(function: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> float:
        return 2 * function(*args)

    return wrapper


KINDS: dict[str, Callable[[str], float]] = {
    "function": measured(total),
    "lambda": measured(lambda path: total(path, "f0")),
    "partial": measured(partial(total, branch="f1")),
    "partial of measured": partial(measured(total), branch="f1"),
    "bound method": measured(Sums("f2").of),
    "decorated method": Sums("f2").decorated,
    "object": measured(Sums("f3")),
    "class method": measured(Sums.first),
    "decorator below": measured(twice(total)),
    "decorator above": twice(measured(total)),
    "decorator in a module": planted_work.total,
    "options": measured(events=len)(total),
}
PLAIN: dict[str, Callable[[str], float]] = {
    "function": total,
    "lambda": total,
    "partial": partial(total, branch="f1"),
    "partial of measured": partial(total, branch="f1"),
    "bound method": Sums("f2").of,
    "decorated method": Sums("f2").of,
    "object": Sums("f3"),
    "class method": Sums.first,
    "decorator below": twice(total),
    "decorator above": twice(total),
    "decorator in a module": total,
    "options": total,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_function(kind: str, path: str) -> None:
    assert KINDS[kind](path) == PLAIN[kind](path)
    with MetricsCollector() as collector:
        assert KINDS[kind](path) == PLAIN[kind](path)
    assert collector.measurement.chunks["file"].tolist() == [path]


@pytest.fixture
def waiting() -> Iterator[MetricsCollector]:
    with MetricsCollector() as collector:
        yield collector


BY_VALUE = {"lambda", "decorator below", "decorator above"}
"""Functions that Python alone cannot pickle."""
TRAVELS = [
    *((kind, pickle.dumps) for kind in KINDS if kind not in BY_VALUE),
    *((kind, cloudpickle.dumps) for kind in KINDS),
]


@pytest.mark.parametrize(("kind", "dumps"), TRAVELS)
@pytest.mark.usefixtures("waiting")
def test_it_travels(kind: str, dumps: Callable[[Any], bytes], path: str) -> None:
    """There and on, as from a client to the scheduler and from there to a worker."""
    function = KINDS[kind]
    for _ in range(3):
        function = pickle.loads(dumps(function))
    assert function(path) == PLAIN[kind](path)


@pytest.mark.parametrize("kind", ["function", "lambda", "partial", "bound method"])
def test_it_travels_as_the_function_where_nobody_waits(kind: str, path: str) -> None:
    """So it can run where the package is not installed."""
    packed = cloudpickle.dumps(KINDS[kind])
    names = [value for _, value, _ in pickletools.genops(packed) if isinstance(value, str)]
    assert not any(name.partition(".")[0] == "roastcoffea" for name in names)
    assert pickle.loads(packed)(path) == PLAIN[kind](path)


def test_it_looks_like_the_function() -> None:
    wrapped = measured(total)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("total", "Sum of a branch.", total)  # type: ignore[attr-defined]
    assert [funcname(measured(each)) for each in (total, partial(total), Sums("f0").of)] == ["total", "total", "of"]
    cached = measured(functools.lru_cache(total))
    assert cached.cache_info().hits == 0
    with pytest.raises(AttributeError):
        wrapped.nothing  # type: ignore[attr-defined]  # noqa: B018


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return await asyncio.sleep(0, 1)


@pytest.mark.parametrize("function", [generator, coroutine, 5, "total"])
def test_what_it_refuses(function: Any) -> None:
    with pytest.raises(TypeError, match=r"measured takes a (plain )?function"):
        measured(function)


@pytest.mark.parametrize("events", [5, ["entries"], b"entries"])
def test_events_that_are_neither_name_nor_function(events: Any) -> None:
    with pytest.raises(TypeError, match="events must be the name"):
        measured(total, events=events)
    with pytest.raises(TypeError, match="events must be the name"):
        settings_of("dask", True, events, profile=False, peak_memory=True)


def test_everything_needs_a_client() -> None:
    with pytest.raises(ValueError, match=r"MetricsCollector\(client, everything=True\)"):
        MetricsCollector(everything=True)
    with pytest.raises(ValueError, match="everything=True"):
        MetricsCollector(events="entries")


def test_a_module_that_travels_by_value(path: str, waiting: MetricsCollector) -> None:
    cloudpickle.register_pickle_by_value(planted_work)
    try:
        packed = cloudpickle.dumps(planted_work.total)
    finally:
        cloudpickle.unregister_pickle_by_value(planted_work)
    assert b"planted_work" in packed
    function = pickle.loads(packed)
    assert function is not planted_work.total
    assert function(path) == total(path)
    assert Path(path).exists()
