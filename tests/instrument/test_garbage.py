"""Collections of garbage and modules that appear, against what was planted."""

from __future__ import annotations

import _thread
import gc
import hashlib
import operator
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import awkward as ak
import pytest
from stored import outcome, write_tree

from roastcoffea.instrument.gauges import Garbage, modules_since
from roastcoffea.instrument.sampler import STATE


@contextmanager
def counted() -> Iterator[Garbage]:
    """Collections that are asked for alone are counted."""
    gc.disable()
    garbage = Garbage()
    try:
        yield garbage
    finally:
        garbage.close()
        gc.enable()


@pytest.mark.slow
def test_collections_are_counted_by_who_makes_them() -> None:
    before = len(gc.callbacks)
    other = threading.Thread(target=gc.collect)
    with counted() as garbage:
        assert garbage.seconds() == (0.0, 0.0)
        other.start()
        other.join()
        own, of_others = garbage.seconds()
        assert own == 0.0 < of_others
        cpu = time.thread_time()
        gc.collect()
        own, others = garbage.seconds()
        assert 0.0 < own <= time.thread_time() - cpu
        assert others == of_others
    garbage.close()
    gc.collect()
    assert (garbage.seconds(), len(gc.callbacks)) == ((own, others), before)


@pytest.mark.parametrize(
    ("waited", "lock", "cost"),
    [
        (0.0, 0.0, 1.0),  # while another thread collected this one computed in C
        (5.0, 4.0, 1.0),  # it waited for the interpreter: that is `lock_seconds`
        (5.0, 3.0, 2.0),  # some of it outside of process(), of which `lock_seconds` does not tell
        (5.0, 0.0, 5.0),
        (2.0, 0.0, 3.0),
        (-1.0, 0.0, 1.0),  # clocks
    ],
)
def test_others_collections_cost_what_the_thread_waited_for_them(
    monkeypatch: pytest.MonkeyPatch, waited: float, lock: float, cost: float
) -> None:
    with counted() as garbage, monkeypatch.context() as patched:
        patched.setattr(garbage, "seconds", lambda: (1.0, 4.0))
        assert garbage.cost(waited, lock) == pytest.approx(cost)


@pytest.mark.slow
def test_a_chunk_that_computes_on_loses_nothing_to_others_collections(tmp_path: Path) -> None:
    def hashing(_: Any) -> float:
        many: list[list[int]] = [[] for _ in range(100_000)]
        other = threading.Thread(target=lambda: [gc.collect() for _ in range(3)])
        other.start()
        data = bytes(10_000_000)
        while other.is_alive():
            hashlib.sha256(data)  # without the interpreter
        return float(len(many))

    path = write_tree(tmp_path / "tree.root", baskets=1)
    gc.disable()
    try:
        _, measurement = outcome(path, hashing)
    finally:
        gc.enable()
    assert measurement.run.chunks is not None
    (chunk,) = measurement.run.chunks.to_pylist()
    lost = chunk["gc_seconds"] + chunk["lock_seconds"] + chunk["core_wait_seconds"]
    assert lost <= chunk["wall_seconds"] - chunk["cpu_seconds"] + 1e-3


class _StoppedError(Exception):
    pass


class _Sending(map):  # type: ignore[type-arg]
    """Sends a signal where a collection stops, without code in Python, which would handle it at once."""

    start, stop = property(None, operator.is_), property(None, next)


def test_what_a_handler_raises_after_a_collection_comes_out() -> None:
    def stop(*_: object) -> None:
        raise _StoppedError

    before, first = signal.signal(signal.SIGUSR1, stop), len(gc.callbacks)
    with counted():
        gc.callbacks.insert(first, partial(setattr, _Sending(_thread.interrupt_main, repeat(signal.SIGUSR1))))
        try:
            with pytest.raises(_StoppedError):
                gc.collect()
        finally:
            del gc.callbacks[first]
            signal.signal(signal.SIGUSR1, before)


def test_modules_that_appear_are_named_without_their_submodules(monkeypatch: pytest.MonkeyPatch) -> None:
    number = len(sys.modules)
    assert modules_since(number) is None
    for name in (f"{STATE}1", "_roastcoffea_2", "roastcoffea_appears", "roastcoffea_appears.inner", "json.appears"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert modules_since(number) == ["roastcoffea_appears", "json.appears"]
    for place in range(2 * 20):
        monkeypatch.setitem(sys.modules, f"roastcoffea_{place}", ModuleType("many"))
    assert len(modules_since(number) or ()) == 20


@pytest.mark.slow
def test_a_chunk_tells_its_collections(tmp_path: Path) -> None:
    def collecting(events: Any) -> float:
        gc.collect()
        return float(ak.sum(events["f0"]))

    before = list(gc.callbacks)
    path = write_tree(tmp_path / "tree.root", baskets=1)
    _, measurement = outcome(path, collecting)
    assert measurement.run.chunks is not None
    (chunk,) = measurement.run.chunks.to_pylist()
    assert 0.0 < chunk["gc_seconds"] < chunk["process_seconds"]
    assert gc.callbacks == before
