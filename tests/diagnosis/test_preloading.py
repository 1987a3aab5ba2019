"""Branches that pay to be preloaded, of made runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from limited_runs import edited, with_rows
from made_runs import made_run, plan

from roastcoffea.measurement import Measurement

HOST = "https://far.org"
TRIP = 0.03


def far_run(reads: Sequence[tuple[str, str, float]]) -> Measurement:
    """20 chunks of each dataset, every one of which waits so long for these branches."""
    names = sorted({dataset for dataset, *_ in reads})
    read = {name: sum(seconds for dataset, _, seconds in reads if dataset == name) for name in names}
    plans = [plan(0.05, read=read[name], file=f"{HOST}/{name}.root", dataset=name) for name in names for _ in range(20)]
    number = {"requests": 20, "metadata_requests": 2, "shortest_request_seconds": TRIP}
    rows = [
        {"chunk": 20 * names.index(dataset) + place, "branch": branch, "read_seconds": seconds}
        for dataset, branch, seconds in reads
        for place in range(20)
        if not (branch == "rare" and place)
    ]
    return Measurement(with_rows(edited(made_run(plans, 2), chunks=lambda row: number), branch_reads=rows))


def exported(measurement: Measurement, folder: Path) -> Any:
    return json.loads(measurement.export(folder / "preload.json", "preload").read_text())


def test_branches_that_do_not_pay_are_left_out(tmp_path: Path) -> None:
    """One that a chunk of twenty reads, and takes longer than the round trips; one inside another; other datasets."""
    ttbar = [("ttbar", f"Jet_{number}", TRIP + 0.001) for number in range(10)]
    others = [("ttbar", "rare", 0.2), ("ttbar", "Muon/Muon.pt", TRIP), ("qcd", "Jet_1", 2.0)]
    document = exported(far_run([*ttbar, *others]), tmp_path)
    assert document["fileset"] == {"ttbar": {"preload": sorted(name for _, name, _ in ttbar)}}
    # 10 round trips become one in each of 20 chunks
    assert document["saves"]["read_seconds"] == pytest.approx(180 * TRIP)
    # two workers
    assert document["saves"]["wall"]["seconds"] == pytest.approx(90 * TRIP, rel=0.1)


@pytest.mark.parametrize(
    ("reads", "reason"),
    [
        ([("ttbar", "Jet_pt", 0.1)], "in succession"),
        ([("ttbar", "Jet_pt", 0.0), ("ttbar", "nJet", 0.0)], "in succession"),
    ],
)
def test_nothing_is_preloaded_without_gain(reads: Any, reason: str, tmp_path: Path) -> None:
    document = exported(far_run(reads), tmp_path)
    assert document["fileset"] == {}
    assert reason in document["reason"]


def test_local_files_have_no_requests(tmp_path: Path) -> None:
    run = with_rows(made_run([plan(1.0)] * 4, 2), branch_reads=[{"chunk": 0, "branch": "x", "read_seconds": 0.1}])
    assert "files may be local" in exported(Measurement(run), tmp_path)["reason"]
