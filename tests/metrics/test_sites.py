"""Sites of attempts, and ledgers by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import handmade_run
from stored import Doing, total_of_f0, write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.endpoints import with_sites
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.run import ASKED_COLUMNS


def test_attempts_have_the_site_of_their_file_and_dataset() -> None:
    rows = [{"dataset": "a", "file": "1"}, {"dataset": "b", "file": "1"}, {"dataset": "a", "file": "2"}]
    attempts = table_of_rows(CHUNK_COLUMNS, rows)
    asked = table_of_rows(ASKED_COLUMNS, [rows[0] | {"site": "T1"}, rows[0], rows[1] | {"site": "T2"}, rows[2]])
    assert with_sites(attempts, asked)["site"].to_pylist() == ["T1", "T2", None]
    assert with_sites(attempts, None)["site"].to_pylist() == [None] * 3
    assert with_sites(attempts, asked.drop(["site"]))["site"].to_pylist() == [None] * 3


def test_ledgers_are_split_by_site() -> None:
    run = handmade_run()
    assert run.chunks is not None
    (first, *_) = sorted({(row["dataset"], row["file"]) for row in run.chunks.to_pylist()})
    asked = [{"dataset": dataset, "file": file, "site": "T1"} for dataset, file in [first]]
    measurement = Measurement(replace(run, asked=table_of_rows(ASKED_COLUMNS, asked)))
    for ledger in (measurement.byte_ledger, measurement.time_ledger):
        by_site = ledger.by("site")
        assert "T1" in by_site.index
        assert 0 < by_site.loc["T1", "total"] < by_site["total"].sum()
        assert by_site["total"].sum() == pytest.approx(ledger.by("endpoint")["total"].sum())


def test_a_run_has_the_sites_that_its_fileset_tells(tmp_path: Path) -> None:
    files = [str(write_tree(tmp_path / name, baskets=1, flat=2)) for name in ("a.root", "b.root")]
    sites = dict(zip(files, ("T2_CH_CERN", "T2_US_Nebraska"), strict=True))
    fileset: Any = {"data": {"files": dict.fromkeys(files, "Events"), "metadata": {"sites": sites}}}
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=Doing(total_of_f0))
    measurement = collector.measurement
    ledger = measurement.byte_ledger.by("site")
    assert ledger.index.tolist() == sorted(sites.values())
    assert (ledger[["payload", "preprocessing"]] > 0).all(axis=None)
    assert ledger["total"].sum() == measurement.byte_ledger.total
    assert set(measurement.endpoints["sites"]) == {", ".join(sorted(sites.values()))}
