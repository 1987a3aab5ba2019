"""Memory that workers ran out of, against what was planted and what the processes themselves noted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import handmade
import numpy as np
import pytest
import uproot
from analyses import runner_for
from coffea.nanoevents import BaseSchema
from distributed import Client, LocalCluster
from handmade import MIB, handmade_run, run_with
from limited_runs import edited
from made_runs import made_run, plan
from planted_work import Hungry

from roastcoffea import MetricsCollector
from roastcoffea.diagnosis.completeness import TARGET, Fit, MemoryEvidence
from roastcoffea.diagnosis.finding import CAUSES, Finding
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.memory import BY_NANNY

LIMIT = 600 * MIB
EACH = 50_000
"""Bytes that an event takes."""


def evidence_of(measurement: Measurement) -> MemoryEvidence:
    found: MemoryEvidence = measurement.metrics.evaluator.value("memory_evidence")
    return found


def said(measurement: Measurement) -> Finding:
    """What is said of it, also where it costs too little to be a finding."""
    evidence = handmade.evidence_of(measurement.run, memory=evidence_of(measurement))
    (one,) = CAUSES["memory"].findings(evidence)
    return one


# Computed by hand


def test_the_size_that_fits_is_what_its_arithmetic_says() -> None:
    evidence = evidence_of(run_with("B", samples={"B": 990}, B=990 * MIB))
    before = 100 * MIB  # of the first chunk on A; B had none, and its only sample is of its end
    (mc,) = (row for row in evidence.datasets if row["dataset"] == "mc")
    typical = float(np.median([before, 990 * MIB]))
    assert mc["bytes_per_event"] == pytest.approx((990 * MIB - typical) / 4 / 1000)
    assert mc["at_least"] == 1
    fit = Fit(500, "mc", 1000, 2, 100.0, 0.25, at_most=False)
    assert fit.arithmetic == "(1 kB x 0.6 - 100 B before chunks) / 2 threads / 0.25 B per event"
    assert fit.limit_for(1000) == (100 + 2 * 0.25 * 1000) / TARGET


def test_without_a_limit_or_a_need_no_size_is_told() -> None:
    run = run_with("B", samples={"B": 810}, limit=None)
    without_limit = evidence_of(run)
    assert (without_limit.fit, without_limit.fit_absent) == (None, "no worker has a memory limit")
    assert "the size that would fit is unknown: no worker has a memory limit" in said(run).advice


def test_a_run_without_trouble_says_so() -> None:
    run = handmade_run()
    evidence = evidence_of(Measurement(dataclasses.replace(run, pauses=run.pauses and run.pauses.slice(0, 0))))
    assert (evidence.killed, evidence.paused, evidence.spilled) == ([], [], [])


def test_datasets_of_small_files_do_not_need_the_memory_of_full_chunks() -> None:
    plans = [plan(1.0, events=5000, dataset="large")] * 8 + [plan(1.0, events=40, dataset="small")] * 2
    run = edited(
        made_run(plans, 1),
        chunks=lambda row: {"memory_before": 200 * MIB, "memory_peak": 400 * MIB, "overlaps": 0},
        lifetimes=lambda row: {"memory_limit": 2000 * MIB},
    )
    fit = evidence_of(Measurement(run)).fit
    assert fit is not None
    # 200 MiB for 5000 events: five times as many fit below 60 % of the limit
    assert 5000 < fit.events == pytest.approx(5000 * 5, rel=0.05)


# Planted on a real cluster


class Note(NamedTuple):
    """What a process noted of itself."""

    lethal: bool
    process: int
    file: str
    start: int
    resident: int


def notes(folder: Path) -> list[Note]:
    found = []
    for path in sorted(folder.glob("*-*-*")):
        process, file, start, resident = path.read_text().split()
        found.append(Note(path.name.startswith("lethal"), int(process), file, int(start), int(resident)))
    return found


@pytest.fixture
def fileset(tmp_path: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        with uproot.recreate(tmp_path / f"{name}.root") as file:
            file.mktree("Events", {"x": np.float64})
            file["Events"].extend({"x": np.arange(4000.0)})
    return {"data": {"files": {str(tmp_path / f"{name}.root"): "Events" for name in ("a", "b")}}}


@pytest.fixture(scope="module")
def small() -> Iterator[Client]:
    """Two workers of 600 MiB with one thread each."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def measured(client: Client, fileset: Any, processor: Any, **options: Any) -> Measurement:
    with MetricsCollector(client) as collector:
        runner_for(client, options.pop("chunksize", 1000), schema=BaseSchema, **options)(
            fileset, processor_instance=processor
        )
    return collector.measurement


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_its_nanny_kills(small: Client, fileset: Any, tmp_path: Path) -> None:
    measurement = measured(small, fileset, Hungry(EACH, str(tmp_path), lethal=700 * MIB, times=1, seconds=0.2))
    noted = notes(tmp_path)
    lives = measurement.lifetimes.set_index("process")["worker"]
    killed = {lives[note.process]: note for note in noted if note.lethal}
    found = measurement.worker_memory.set_index("worker")
    assert set(found.index[found["killed_by"] == BY_NANNY]) == set(killed)
    assert (found.loc[list(killed), "killed_memory"] > 0.95 * LIMIT).all()
    assert (found["memory_limit"] == LIMIT).all()
    failed = measurement.failed
    lost = failed[(failed["reason"] == "worker lost") & (failed["seconds"] > 0)]
    told = {(row["worker"], Path(row["file"]).name, row["entry_start"]) for _, row in lost.iterrows()}
    assert {(worker, note.file, note.start) for worker, note in killed.items()} <= told | {
        # which of a worker's tasks ran when it was killed is estimated
        (row["worker"], Path(row["file"]).name, row["entry_start"])
        for _, row in failed.iterrows()
    }
    assert (lost["entry_stop"] - lost["entry_start"] == 1000).all()
    evidence = evidence_of(measurement)
    assert [row["worker"] for row in evidence.killed] == [culprit.name for culprit in said(measurement).culprits][
        : len(killed)
    ]
    assert "killed" in said(measurement).what
    assert BY_NANNY in said(measurement).what
    assert evidence.fit is not None
    assert evidence.fit.at_most
    # a chunk of that size would have fitted, had it needed as much for each event as those that were killed
    assert evidence.fit.events * 0.7 * LIMIT / 1000 < LIMIT
    assert said(measurement).remedy == f"chunksize={evidence.fit.events}"
    assert measurement.metrics["total_events"] == 8000
    assert measurement.metrics.evaluator.value("incompleteness").complete
    assert measurement.metrics.evaluator.value("failure_evidence").attempts == 0


@pytest.mark.slow
def test_memory_of_an_event_is_what_was_planted(small: Client, fileset: Any, tmp_path: Path) -> None:
    measurement = measured(small, fileset, Hungry(100_000, str(tmp_path)))
    (row,) = measurement.dataset_memory.to_dict("records")
    assert row["at_least"] == 0
    assert row["bytes_per_event"] == pytest.approx(100_000, rel=0.15)
    by_process = {
        note.process: max(other.resident for other in notes(tmp_path) if other.process == note.process)
        for note in notes(tmp_path)
    }
    peaks = measurement.worker_memory.set_index("worker")["memory_peak"]
    for process, worker in measurement.lifetimes.set_index("process")["worker"].items():
        assert peaks[worker] >= by_process[process] - MIB  # two readings of the kernel's may differ by that
        assert peaks[worker] == pytest.approx(by_process[process], rel=0.05)
    evidence = evidence_of(measurement)
    assert evidence.fit is not None
    assert not evidence.fit.at_most
    assert evidence.fit.baseline + evidence.fit.events * row["bytes_per_event"] <= TARGET * LIMIT
    assert not evidence.killed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_chunks_that_never_fit_are_told_with_their_entries(fileset: Any, tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as client,
        pytest.raises(RuntimeError, match="KilledWorker"),
        MetricsCollector(client) as collector,
    ):
        runner_for(client, 4000, schema=BaseSchema, retries=0)(
            fileset, processor_instance=Hungry(EACH, str(tmp_path), lethal=700 * MIB, times=99)
        )
    measurement = collector.measurement
    assert len(measurement.chunks) == 0
    lost = measurement.failed[measurement.failed["reason"] == "worker lost"]
    assert set(lost["file"]) <= {*fileset["data"]["files"]}
    assert len(lost)
    assert lost[["dataset", "file", "entry_start", "entry_stop", "worker", "seconds"]].notna().all().all()
    assert set(zip(lost["entry_start"], lost["entry_stop"], strict=True)) == {(0, 4000)}
    evidence = evidence_of(measurement)
    assert evidence.fit is not None
    assert evidence.fit.at_most
    missing = measurement.metrics.evaluator.value("incompleteness")
    assert (len(missing.chunks), missing.events, missing.share) == (2, 8000, 1.0)
    assert "measurement.missing_fileset(fileset)" in missing.remedy
