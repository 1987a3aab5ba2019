"""How RNTuples of each release of uproot read columns."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from releases import Processor
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.generations import READS_ON, classes_of_ntuples, column_readers
from roastcoffea.instrument.meter.formats import BranchShadow, Meter
from roastcoffea.measurement import Measurement


class Reading(Processor):
    """Adds up a branch."""

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": float(ak.sum(events.f0))}


class Since57:
    def read_cluster_range(self) -> None: ...


class Before57:
    def read_col_pages(self) -> None: ...


def test_cluster_and_column_change_places_with_5_7() -> None:
    new, old = column_readers(Since57), column_readers(Before57)
    assert (new.of_clusters, new.of_cluster, new.place((4, 7, None))) == (
        "read_cluster_range",
        "read_cluster_pages",
        (4, 7),
    )
    assert (old.of_clusters, old.of_cluster, old.place((7, 4, None))) == ("read_col_pages", "read_col_page", (4, 7))


def test_the_installed_one_has_these_methods() -> None:
    from uproot.models.RNTuple import Model_ROOT_3a3a_RNTuple as Ntuple

    readers = column_readers(Ntuple)
    assert callable(getattr(Ntuple, readers.of_clusters))
    assert callable(getattr(Ntuple, readers.of_cluster))


def test_uproot_4_has_no_ntuples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert classes_of_ntuples() is not None
    monkeypatch.setitem(sys.modules, "uproot.behaviors.RNTuple", None)
    assert classes_of_ntuples() is None


class MappingOf07:
    """The mapping of coffea 0.7 has no executors: uproot's own read a branch."""

    def extract_column(self, branch: Any, start: int, stop: int) -> Any:
        return branch.array(entry_start=start, entry_stop=stop)


def test_branches_that_a_mapping_reads_without_executors_are_metered(tmp_path: Path) -> None:
    meter = Meter()
    with uproot.open({write_tree(tmp_path / "a.root"): "Events"}) as tree:
        branch = tree["f0"]
        column = BranchShadow(MappingOf07().extract_column, meter)(branch, 0, branch.num_entries)
        assert column.tolist() == branch.array().tolist()
        assert meter.payload == sum(branch.basket_compressed_bytes(basket) for basket in range(branch.num_baskets)) > 0


def test_what_is_read_behind_a_chunk_is_told_of_those_that_do(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "a.root")
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=700, metadata_cache={})
    with MetricsCollector() as collector:
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=Reading())
    run = collector.measurement.run
    for version, told in {"5.7.5": True, "5.7.6": False, "6.0.0": False}.items():
        environment = replace(run.environment, versions={**run.environment.versions, "uproot": version})
        advice = [saving.text for saving in Measurement(replace(run, environment=environment)).byte_ledger.advice]
        assert any(READS_ON in text for text in advice) == told
        assert any("align_clusters" in text for text in advice) != told
