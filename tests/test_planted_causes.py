"""Causes that were planted in real runs are found: in the row of the time ledger, and in the verdict."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import pytest
import uproot
from analyses import Bulky, Planted, runner_for
from coffea.nanoevents import BaseSchema
from distributed import Client, LocalCluster
from evidence import contended
from stored import served

from roastcoffea.collector import MetricsCollector
from roastcoffea.diagnosis.evidence import LEAST
from roastcoffea.diagnosis.finding import Finding
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import phases

pytestmark = pytest.mark.slow

FLAT = 12
"""Flat branches of the files that are served."""

CHUNKS = 16


def first(measurement: Measurement) -> Finding:
    """The first finding; on a host that others use contention is true, and may come before what is planted."""
    return next(finding for finding in measurement.verdict if finding.cause != "contention")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of 4000 events with one basket in each flat branch for each 500 events."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("a", "b"):
        with uproot.recreate(folder / f"{name}.root") as file:
            file.mktree("Events", {f"branch{number}": np.float64 for number in range(FLAT)})
            for _ in range(CHUNKS // 2):
                file["Events"].extend({f"branch{number}": np.arange(500.0) for number in range(FLAT)})
    return folder


def local(folder: Path) -> dict[str, Any]:
    return {"data": {"files": {str(folder / f"{name}.root"): "Events" for name in "ab"}}}


class Planting(NamedTuple):
    """A run, and the seconds in which something on this host waited for a core meanwhile: that is a cause as well."""

    measurement: Measurement
    contended: float


def planted(
    client: Any, fileset: Any, processor: Any, chunksize: int = 500, pause: float = 0.0, **options: Any
) -> Planting:
    """A run, after which the client does nothing for a while.

    Its work is a loop in plain Python, which would be a finding of its own: there is no profile.
    """
    with contended() as host, MetricsCollector(client, profile=False) as collector:
        with suppress(OSError):
            runner_for(client, chunksize, schema=BaseSchema, **options)(fileset, processor_instance=processor)
        time.sleep(pause)
    return Planting(collector.measurement, host.seconds)


def measured(*arguments: Any, **options: Any) -> Measurement:
    return planted(*arguments, **options).measurement


def core_wait(measurement: Measurement) -> float:
    """Thread seconds in which chunks waited for cores."""
    return float(measurement.chunks["core_wait_seconds"].fillna(0).sum())


def named(measurement: Measurement) -> set[str | None]:
    """The word for what binds the run, and the first finding that is not contention."""
    return {measurement.bound, first(measurement).cause}


@pytest.fixture(scope="module", autouse=True)
def warm(shared_client: Client, folder: Path) -> None:
    """The first chunk of a process imports what the others find."""
    for _ in range(2):
        runner_for(shared_client, 500, schema=BaseSchema)(local(folder), processor_instance=Planted(sleep=0.05))


def test_a_healthy_run_has_no_findings(folder: Path) -> None:
    # on all cores, it would wait for them while scheduler and client compute
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        runner_for(client, 500, schema=BaseSchema)(local(folder), processor_instance=Planted(spin=0.01))
        measurement, busy = planted(client, local(folder), Planted(spin=0.4))
    ledger, verdict = measurement.time_ledger, measurement.verdict
    assert ledger["compute"] == pytest.approx(0.4 * CHUNKS, rel=0.1)
    # threads of the worker itself hold the interpreter for longer where they wait for cores, as its chunks do
    waited = ledger["interpreter lock"] + ledger["blocked"]
    assert waited <= 0.1 * ledger["compute"] + core_wait(measurement)
    assert (verdict.absent, verdict.incomplete) == (None, [])
    # what other programs took from it may be found, and nothing else
    least = LEAST * (measurement.run.stop - measurement.run.start)
    assert [finding for finding in verdict if (finding.seconds or 0.0) >= busy + least] == []


def test_sleeping(client: Any, folder: Path) -> None:
    measurement, busy = planted(client, local(folder), Planted(sleep=0.4))
    ledger = measurement.time_ledger
    waited = ledger["blocked"]
    # waiting for the interpreter is an estimate, which a sleep beside threads of the worker itself may raise
    slept = waited + ledger["interpreter lock"] + ledger["start-up"]
    assert slept + core_wait(measurement) >= 0.4 * CHUNKS
    assert waited <= 1.1 * 0.4 * CHUNKS + core_wait(measurement)
    assert measurement.bound == "blocked"
    assert first(measurement).cause == "blocked"
    assert first(measurement).seconds == pytest.approx(waited / 2, abs=0.05 * waited + busy)


def test_slow_storage(client: Any, folder: Path) -> None:
    with served(folder, latency=0.08) as server:
        fileset = {"data": {"files": {server.url(f"{name}.root"): "Events" for name in "ab"}}}
        measurement, busy = planted(client, fileset, Planted(branches=FLAT))
    # one request a branch; the server may wait for a core as well
    asked = 0.08 * FLAT * CHUNKS
    assert asked <= measurement.time_ledger["read"] <= 1.1 * asked + 2 * busy
    assert measurement.bound == "storage"
    assert first(measurement).cause == "storage"
    assert "127.0.0.1" in first(measurement).text


def test_one_long_chunk(client: Any, folder: Path) -> None:
    plan = {"spin": 0.3, "straggler": 3.0, "last": 3500, "file": "b.root"}
    measurement, busy = planted(client, local(folder), Planted(**plan))
    *others, longest = sorted(measurement.chunks["coffea_process_seconds"])
    longer = longest - float(np.median(others))
    assert longer > 2.5
    # the other worker ends its last chunk at any moment of the long one's beginning
    assert measurement.time_ledger["idle: tail"] == pytest.approx(longer, rel=0.1, abs=others[-1] + 0.05)
    named = [finding for finding in measurement.verdict if finding.cause in {"slow chunk", "tail"}]
    # what others took of a very busy host may be more than the planted time, and explain the tail
    assert named or busy > plan["straggler"], (measurement.verdict, measurement.time_ledger)
    for finding in named:
        assert first(measurement).seconds <= finding.seconds + busy
        assert "b.root" in finding.text
        assert "3500" in finding.text
    stragglers = measurement.stragglers
    assert len(stragglers) or busy > plan["straggler"], measurement.chunks
    for _, straggler in stragglers.head(1).iterrows():
        assert straggler["entry_start"] == 3500
        assert straggler["excess_seconds"] == pytest.approx(longer, rel=0.15, abs=core_wait(measurement))
        assert straggler["phase"] == "compute"


def test_short_tasks_by_the_thousand(client: Any) -> None:
    with MetricsCollector(client) as collector:
        client.gather(client.map(time.sleep, [0.002] * 2000, pure=False))
    assert "scheduler" in named(collector.measurement)


def test_a_client_that_sleeps(client: Any, folder: Path) -> None:
    measurement, busy = planted(client, local(folder), Planted(spin=0.1), pause=5.0)
    after = measurement.run.stop - measurement.tasks["stop"].max()
    assert after >= 5.0
    assert measurement.time_ledger.client_of["after"] == pytest.approx(2 * after, rel=0.05)
    assert measurement.bound == "client" or busy > 2 * after, measurement.time_ledger
    assert first(measurement).cause == "client"
    assert "after the last" in first(measurement).text


def test_too_little_memory(folder: Path, tmp_path: Path) -> None:
    settings = {
        "distributed.worker.memory.target": 0.5,
        "distributed.worker.memory.spill": 0.6,
        "distributed.worker.memory.pause": 0.75,
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="600MB",
            dashboard_address=":0",
            silence_logs=50,
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as own,
    ):
        measurement, busy = planted(own, local(folder), Bulky(80_000_000), compression=None)
    found = {finding.cause: finding.seconds or 0.0 for finding in measurement.verdict}
    assert measurement.bound == "memory" or max(found.values()) <= found["memory"] + busy, measurement.verdict


def test_failing_first_attempts(client: Any, folder: Path, tmp_path: Path) -> None:
    plan = {"spin": 0.1, "failing": 0.8, "until": 1200, "folder": str(tmp_path)}
    measurement, busy = planted(client, local(folder), Planted(**plan), retries=3)
    assert 6 * 0.8 <= measurement.time_ledger["failed"] <= 1.1 * 6 * 0.8 + 2 * busy
    assert "failures" in named(measurement)
    assert (measurement.verdict[0].seconds or 0.0) <= (first(measurement).seconds or 0.0) + busy, measurement.verdict
    assert "planted, once" in first(measurement).text
    failed = measurement.failed
    assert len(failed) == 6
    assert 6 * 0.8 <= failed["seconds"].sum() <= 1.01 * measurement.time_ledger["failed"]
    assert set(failed["reason"]) == {"error"}
    assert len(measurement.missing) == 0


def test_tiny_chunks_of_a_wide_file(client: Any, tmp_path: Path) -> None:
    names = [f"branch{number}" for number in range(1200)]
    with uproot.recreate(tmp_path / "wide.root") as file:
        file.mktree("Events", dict.fromkeys(names, np.int32))
        file["Events"].extend({name: np.arange(80, dtype=np.int32) for name in names})
    fileset = {"data": {"files": {str(tmp_path / "wide.root"): "Events"}}}
    measurement, busy = planted(client, fileset, Planted(branches=1), chunksize=10)
    chunks = measurement.chunks
    # what coffea itself does not count to process()
    outside = chunks["wall_seconds"].sum() - chunks["coffea_process_seconds"].sum()
    assert measurement.time_ledger["open"] == pytest.approx(outside, rel=0.15, abs=core_wait(measurement))
    assert measurement.bound == "metadata"
    found = next((one for one in measurement.verdict if one.cause in {"metadata", "chunk size"}), None)
    if found is None:  # opening takes that long because it waits for cores
        assert measurement.time_ledger["contention"] > measurement.time_ledger.total / 2, measurement.verdict
    else:
        assert (first(measurement).seconds or 0.0) <= (found.seconds or 0.0) + busy, measurement.verdict
        # a busy host may hide that larger chunks are cheaper, and then none is advised
        assert re.search("Use chunksize=|each chunk opens its file", found.text)


def mixtures() -> Iterator[tuple[int, dict[str, float]]]:
    """Seconds of wall time that each of two or three causes takes from a run on two threads."""
    for seed in range(10):
        drawn = random.Random(seed)
        causes = drawn.sample(["blocked", "tail", "client", "failures", "storage"], drawn.choice([2, 3]))
        largest = drawn.uniform(1.0, 1.5)
        yield seed, {cause: largest * 0.7**place for place, cause in enumerate(causes)}


def run_mixture(client: Any, folder: Path, marks: Path, causes: dict[str, float]) -> Planting:
    failing = 4
    plan = {
        "spin": 0.02,
        "sleep": causes.get("blocked", 0.0) * 2 / CHUNKS,
        "straggler": causes.get("tail", 0.0) * 2,
        "last": 3500,
        "file": "b.root",
        "failing": causes.get("failures", 0.0) * 2 / failing,
        "until": 1000,
        "folder": str(marks),
        "branches": FLAT if "storage" in causes else 0,
    }
    pause = causes.get("client", 0.0)
    if "storage" not in causes:
        return planted(client, local(folder), Planted(**plan), pause=pause, retries=3)
    with served(folder, latency=causes["storage"] * 2 / CHUNKS / FLAT) as server:
        fileset = {"data": {"files": {server.url(f"{name}.root"): "Events" for name in "ab"}}}
        return planted(client, fileset, Planted(**plan), pause=pause, retries=3)


def test_mixtures_of_causes(client: Any, folder: Path, tmp_path: Path) -> None:
    wrong = []
    for seed, causes in mixtures():
        marks = tmp_path / str(seed)
        marks.mkdir()
        measurement, busy = run_mixture(client, folder, marks, causes)
        found = {finding.cause: round(finding.seconds or 0.0, 2) for finding in measurement.verdict}
        # another cause may only be above the largest by what other programs took
        if max(found.values(), default=0.0) > found.get(next(iter(causes)), 0.0) + busy:
            wrong.append((causes, found, busy))
    assert len(wrong) <= 1, wrong


def test_a_row_that_is_taken_away_changes_the_certificate(client: Any, folder: Path) -> None:
    import dataclasses

    run = measured(client, local(folder), Planted(spin=0.01)).run
    assert Measurement(run).time_ledger.certificate.complete
    assert run.tasks is not None
    kept = run.tasks.filter(np.arange(len(run.tasks)) != run.tasks["kind"].to_pylist().index("processor"))
    assert not Measurement(dataclasses.replace(run, tasks=kept)).time_ledger.certificate.complete
    assert phases.TAIL in Measurement(run).time_ledger
