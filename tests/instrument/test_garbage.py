"""Collections of garbage and modules that appear, against what was planted."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import awkward as ak
import pytest
from metered import outcome
from stored import write_tree

from roastcoffea.instrument.garbage import MOST_MODULES, Garbage, modules_since
from roastcoffea.instrument.switching import STATE


def test_collections_are_counted_whichever_thread_makes_them() -> None:
    before, garbage = len(gc.callbacks), Garbage()
    other = threading.Thread(target=gc.collect)
    gc.disable()
    try:
        assert garbage.seconds == 0.0
        other.start()
        other.join()
        of_other = garbage.seconds
        assert of_other > 0.0
        gc.collect()
        assert garbage.seconds > of_other
    finally:
        gc.enable()
    garbage.close()
    garbage.close()
    seconds = garbage.seconds
    gc.collect()
    assert (garbage.seconds, len(gc.callbacks)) == (seconds, before)


def test_modules_that_appear_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    number = len(sys.modules)
    assert modules_since(number) is None
    for name in (f"{STATE}1", "_roastcoffea_2", "roastcoffea_appears", "roastcoffea_appears.inner", "roastcoffea_too"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert modules_since(number) == ["roastcoffea_appears", "roastcoffea_too"]
    for place in range(2 * MOST_MODULES):
        monkeypatch.setitem(sys.modules, f"roastcoffea_{place}", ModuleType("many"))
    assert len(modules_since(number) or ()) == MOST_MODULES


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
