"""What the meter sees where files are read in odd transport, and that nothing depends on its seeing."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow.compute as pc
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from coffea.processor import IterativeExecutor, Runner
from releases import needs_preloads, needs_rntuples
from stored import (
    WAITED,
    Doing,
    baskets_of,
    is_spent_on,
    outcome,
    served,
    slow_storage,
    total_of_f0,
    wait_for,
    write_tree,
)

from roastcoffea import MetricsCollector
from roastcoffea.instrument.meter import formats as meter_module
from roastcoffea.instrument.meter import servers as sources
from roastcoffea.instrument.meter import tally
from roastcoffea.instrument.meter.formats import Meter
from roastcoffea.instrument.meter.tally import READ, Tally
from roastcoffea.measurement import Measurement
from roastcoffea.records.chunks import PHASES


def test_a_collector_within_a_collector_sees_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")

    def read_and_sleep(events: Any) -> float:
        total = total_of_f0(events)
        wait_for(0.3)
        return total

    read = slow_storage(monkeypatch)
    with MetricsCollector() as outer:
        _, inner = outcome(tmp_path / "tree.root", read_and_sleep)
    (chunk,) = inner.chunks.to_dict("records")
    assert is_spent_on(chunk, read[1:], WAITED[-1:])
    assert chunk["bytes_payload"] == sum(
        size for size, _ in baskets_of(tmp_path / "tree.root", "f0", 0, 10**9).values()
    )
    for place, seen in enumerate(outer.measurement.chunks.to_dict("records")):
        assert is_spent_on(seen, [read[place]], [WAITED[place - 2]])
        assert {name for name in READ if seen[name] != chunk[name]} == set()
    assert len(outer.measurement.chunks) == 2
    for measurement in (inner, outer.measurement):
        (of_branch,) = measurement.branches["read_seconds"]
        assert of_branch == pytest.approx(measurement.chunks["read_seconds"].sum(), rel=1e-4)


def test_trees_of_one_name_have_their_own_number_of_branches(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "two.root") as file:
        for folder, branches in (("a", "x"), ("b", "xy")):
            file.mktree(f"{folder}/Events", dict.fromkeys(branches, "float32"))
            file[f"{folder}/Events"].extend({branch: np.zeros(5, "float32") for branch in branches})
    runner = Runner(executor=IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        for folder in "ab":
            files = {str(tmp_path / "two.root"): f"{folder}/Events"}
            runner({folder: {"files": files}}, processor_instance=Doing(lambda events: float(ak.sum(events.x))))
    assert dict(collector.measurement.chunks[["dataset", "tree_branches"]].to_numpy()) == {"a": 1, "b": 2}


def test_an_open_file_does_not_keep_the_meter(tmp_path: Path) -> None:
    """Else what the meter knows would wait for the collection of garbage, with the file."""
    write_tree(tmp_path / "tree.root")
    meter = Meter()
    with uproot.open(tmp_path / "tree.root", **meter.options({})) as file:
        events = NanoEventsFactory.from_root(file, treepath="Events", schemaclass=BaseSchema).events()
        meter.events_are_built(events)
        total = ak.sum(events["f0"])
        assert meter.payload > 0
        meter.close()
        left = weakref.ref(meter)
        gc.disable()
        try:
            del meter
            # a thread that read for it may still be on its way out
            for _ in range(100):
                if left() is None:
                    break
                time.sleep(0.01)
            assert left() is None
        finally:
            gc.enable()
        assert ak.sum(file["Events"]["f0"].array()) == total


# A hook that is not there


def missing(*_: Any, **__: Any) -> Any:
    raise AttributeError("not there")


UNKNOWN_BRANCHES = {"bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches", "compute_seconds"}


@pytest.mark.parametrize(
    ("file", "place", "hook", "told", "unknown"),
    [
        ("tree.root", meter_module, "leaves_once", "bytes by branch", UNKNOWN_BRANCHES),
        pytest.param(
            "ntuple.root", meter_module, "watch_ntuple", "bytes by branch", UNKNOWN_BRANCHES, marks=needs_rntuples
        ),
        ("tree.root", tally, "branch_path", "bytes by branch", UNKNOWN_BRANCHES),
        pytest.param("ntuple.root", Tally, "branch_read", "bytes by branch", UNKNOWN_BRANCHES, marks=needs_rntuples),
        ("tree.root", sources, "CountedFileSystem", "bytes transferred", {"bytes_transferred"}),
    ],
)
def test_where_a_hook_is_missing_the_chunk_works_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, place: Any, hook: str, told: str, unknown: set[str]
) -> None:
    monkeypatch.setattr(place, hook, missing)
    _, measurement = outcome(folder / file, total_of_f0)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any(f"{told} could not be metered: AttributeError: not there" in text for text in measurement.problems)
    assert {name for name in unknown if chunk[name] is None} == unknown
    assert chunk["bytes_requested"] > 0
    assert (chunk["bytes_transferred"] is None) == ("bytes_transferred" in unknown)


def test_where_a_handler_cannot_be_given_nothing_is_known_of_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter_module, "watched_source", missing)
    _, measurement = outcome(folder / "tree.root", total_of_f0)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any("bytes requested from storage could not be metered" in text for text in measurement.problems)
    assert {chunk[name] for name in READ} == {None}
    assert measurement.byte_ledger.absent is not None


@needs_rntuples
@pytest.mark.filterwarnings("ignore:the filter_branch kwarg:DeprecationWarning")
def test_what_is_preloaded_of_an_rntuple_is_not_called_metadata(folder: Path) -> None:
    _, measurement = outcome(folder / "ntuple.root", total_of_f0, preload=["f0", "f1"])
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any("preloaded fields of an RNTuple" in text for text in measurement.problems)
    assert chunk["bytes_metadata"] is chunk["bytes_payload"] is None
    assert not measurement.byte_ledger.certificate.complete


def sums_of_phases(measurement: Measurement) -> dict[str, float]:
    (chunk,) = measurement.run.chunks.to_pylist()
    return {phase.name: chunk[phase.column] or 0.0 for phase in PHASES}


@needs_preloads
@pytest.mark.parametrize("remote", [False, True])
def test_preloaded_branches_are_read_decompressed_and_interpreted(tmp_path: Path, remote: bool) -> None:
    path = write_tree(tmp_path / "a.root", 4, 5000, compression=uproot.LZMA(5))
    with served(tmp_path, latency=0.05) as server:
        where = server.url("a.root") if remote else path
        _, lazy = outcome(where, total_of_f0)
        _, measurement = outcome(where, total_of_f0, preload=["f0", "f1", "Jet_pt"])
    phases, branches = sums_of_phases(measurement), measurement.run.branch_reads
    (chunk,) = measurement.run.chunks.to_pylist()
    for name in ("decompress", "interpret"):
        of_branches = pc.sum(branches[f"{name}_seconds"]).as_py()
        assert of_branches > 0
        assert phases[name] == pytest.approx(of_branches, rel=1e-3)
    assert branches["read_seconds"].null_count == len(branches)
    assert measurement.byte_ledger["payload"] > 2 * lazy.byte_ledger["payload"]
    assert measurement.byte_ledger["metadata"] == lazy.byte_ledger["metadata"]
    # the phases share the time: what was read is in no other one
    # the record is sent after the attempt
    assert sum(phases.values()) - chunk["measuring_seconds"] <= chunk["wall_seconds"]
    assert phases["build"] >= 0
    assert abs(measurement.time_ledger.residual) < 0.01 * measurement.time_ledger.total
    if remote:
        # the server sleeps so long before it answers, and this thread needs the answer
        assert phases["read"] + phases["contention"] + phases["lock"] > 0.05
