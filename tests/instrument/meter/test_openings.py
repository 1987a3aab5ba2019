"""Methods of uproot and coffea that pass through the meter: as they were afterwards, and for others meanwhile."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
import uproot.behaviors.RNTuple
import uproot.behaviors.TBranch
import uproot.models.RNTuple
from coffea.nanoevents import NanoEventsFactory
from processes import PATIENCE
from stored import baskets_of

from roastcoffea import MetricsCollector, measured

OWNERS = (
    uproot.reading.ReadOnlyFile,
    uproot.reading.ReadOnlyDirectory,
    uproot.reading.ReadOnlyKey,
    uproot.behaviors.TBranch,
    uproot.behaviors.RNTuple.HasFields,
    uproot.models.RNTuple.Model_ROOT_3a3a_RNTuple,
    NanoEventsFactory,
)


def attributes() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in OWNERS]


def total(path: Path, branch: str = "f0") -> float:
    with uproot.open(path) as file:
        return float(ak.sum(file["Events"][branch].array()))


def payload_of(path: Path, branch: str = "f0") -> int:
    return sum(size for size, _ in baskets_of(path, branch, 0, 10**9).values())


def called(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def fails(path: Path) -> None:
    total(path)
    raise LookupError("planted")


@pytest.mark.parametrize("function", [total, fails])
def test_methods_are_as_they_were(folder: Path, function: Callable[[Path], Any]) -> None:
    before, changed = attributes(), []

    def noting(path: Path) -> Any:
        changed.extend(now != then for now, then in zip(attributes(), before, strict=True))
        return function(path)

    with MetricsCollector() as collector, suppress(LookupError):
        measured(noting)(folder / "tree.root")
    assert changed == [True] * len(OWNERS)
    assert attributes() == before
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]
    assert len(collector.measurement.chunks) == 1


def test_what_somebody_else_patches_meanwhile_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def patching(path: Path) -> float:
        original = uproot.reading.ReadOnlyKey.get

        def get(self: Any) -> Any:
            opened.append(self)
            return original(self)

        monkeypatch.setattr(uproot.reading.ReadOnlyKey, "get", get)
        return total(path)

    with MetricsCollector():
        measured(patching)(folder / "tree.root")
    number = len(opened)
    assert number > 0
    total(folder / "tree.root")
    assert len(opened) > number


def test_others_are_not_metered_meanwhile(folder: Path) -> None:
    """The main thread, which no function has started, reads another file while one is metered."""
    entered, left = threading.Event(), threading.Event()

    def waiting(path: Path) -> float:
        entered.set()
        assert left.wait(PATIENCE)
        return total(path)

    with MetricsCollector() as collector, ThreadPoolExecutor(1) as pool:
        future = pool.submit(measured(waiting), folder / "tree.root")
        assert entered.wait(PATIENCE)
        total(folder / "tree.root", "f1")
        left.set()
        future.result()
    assert collector.measurement.branches["branch"].tolist() == ["f0"]
    assert collector.measurement.byte_ledger["payload"] == payload_of(folder / "tree.root")


@pytest.mark.parametrize("context", [True, False])
def test_threads_of_a_function_read_for_it(folder: Path, context: bool) -> None:
    path = folder / "tree.root"

    def read() -> list[float]:
        with ThreadPoolExecutor(2) as pool:
            here = [contextvars.copy_context().run if context else called for _ in range(2)]
            futures = [pool.submit(run, total, path, name) for run, name in zip(here, ("f0", "f1"), strict=True)]
            return [future.result() for future in futures]

    with MetricsCollector() as collector:
        measured(read)()
    measurement = collector.measurement
    assert measurement.byte_ledger["payload"] == payload_of(path) + payload_of(path, "f1")
    assert measurement.chunks["helper_cpu_seconds"][0] > 0


def test_threads_that_may_belong_to_several_functions_are_told(folder: Path) -> None:
    """Their reads are missing, with the reason, and nobody is given those of another."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def read() -> float:
        both.wait()
        with ThreadPoolExecutor(1) as inner:
            result = inner.submit(total, folder / "tree.root").result()
        both.wait()
        return result

    with MetricsCollector() as collector, ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(measured(read)) for _ in range(2)]:
            future.result()
    measurement = collector.measurement
    assert measurement.chunks["bytes_requested"].isna().all()
    assert "could not be attributed to any one of them" in " ".join(measurement.problems)
    assert measurement.byte_ledger.absent is not None


def test_a_file_that_was_open_before(folder: Path) -> None:
    """Only what the function itself requests is counted."""
    path = folder / "tree.root"
    with uproot.open(path) as file:
        tree = file["Events"]
        tree["f1"].array(array_cache=None)
        before = file.file.source.num_requested_bytes

        def read() -> float:
            return float(ak.sum(tree["f0"].array(array_cache=None)))

        with MetricsCollector() as collector:
            measured(read)()
        requested = file.file.source.num_requested_bytes - before
        assert "chunk" not in vars(file.file.source)
    ledger = collector.measurement.byte_ledger
    assert (ledger["payload"], ledger.total, ledger.residual) == (payload_of(path), requested, 0)
    assert collector.measurement.chunks["file"].tolist() == [str(path)]


def test_a_file_that_is_not_there() -> None:
    with MetricsCollector() as collector, pytest.raises(FileNotFoundError):
        measured(total)(Path("/nowhere/to/be/found.root"))
    (chunk,) = collector.measurement.chunks.to_dict("records")
    asked = uproot.open.defaults["begin_chunk_size"]
    assert (chunk["file"], chunk["outcome"]) == ("/nowhere/to/be/found.root", "error")
    # uproot before 5.7 finds out before it asks
    assert chunk["bytes_requested"] == collector.measurement.byte_ledger["failed"] in {0, asked}
    assert "FileNotFoundError" in chunk["error"]


def test_files_are_pickled_as_without_a_meter(folder: Path) -> None:
    import pickle

    def read() -> float:
        with uproot.open(folder / "tree.root") as file:
            tree = pickle.loads(pickle.dumps(file["Events"]))
            return float(ak.sum(tree["f0"].array()))

    with MetricsCollector() as collector:
        assert measured(read)() == total(folder / "tree.root")
    assert collector.measurement.byte_ledger["payload"] == payload_of(folder / "tree.root")


def test_events_that_are_imported_in_the_function_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["coffea.nanoevents.factory"]

    def read() -> float:
        sys.modules["coffea.nanoevents.factory"] = module
        return total(folder / "tree.root")

    with MetricsCollector() as collector:
        monkeypatch.delitem(sys.modules, "coffea.nanoevents.factory")
        measured(read)()
    assert any("NanoEvents was imported inside the function" in problem for problem in collector.measurement.problems)


def test_an_uproot_that_reads_in_another_way_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_ranges_or_baskets_to_arrays"
    original = getattr(uproot.behaviors.TBranch, name)

    def renamed(hasbranches: Any, *args: Any) -> Any:
        return original(hasbranches, *args)

    monkeypatch.setattr(uproot.behaviors.TBranch, name, renamed)
    with MetricsCollector() as collector:
        result = measured(total)(folder / "tree.root")
    assert result == total(folder / "tree.root")
    measurement = collector.measurement
    assert measurement.chunks["bytes_payload"].isna().all()
    assert any("has no entry_start" in problem for problem in measurement.problems)
