"""Attempts that failed and were repeated: their number, cost and error, and where they cluster if they do."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analyses import RaisingOnce, runner_for
from distributed import Client
from handmade import T, chunk, handmade_run, with_chunks

from roastcoffea import MetricsCollector
from roastcoffea.diagnosis.completeness import FailureEvidence
from roastcoffea.diagnosis.finding import CAUSES, Finding
from roastcoffea.measurement import Measurement
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.chunks import CHUNK_COLUMNS
from roastcoffea.records.workers import LIFETIME_COLUMNS

WORKERS = ("w1", "w2", "w3", "w4")
FILES = tuple(f"f{number}.root" for number in range(6))


def evidence_of(measurement: Measurement) -> FailureEvidence:
    found: FailureEvidence = measurement.metrics.evaluator.value("failure_evidence")
    return found


def said(evidence: FailureEvidence) -> Finding:
    """What is said of it."""
    seen: Any = SimpleNamespace(failures=evidence)
    (one,) = CAUSES["failures"].findings(seen)
    return one


def run_in_which(fails: Any, chunks: int = 120, seed: int = 1) -> FailureEvidence:
    """A run of chunks on random workers, of which the first attempt fails where `fails` says so of worker and file."""
    drawn, rows = random.Random(seed), []
    for number in range(chunks):
        file, entry = FILES[number % len(FILES)], 100 * (number // len(FILES))
        first, second = drawn.sample(WORKERS, 2)
        place = {"file": file, "entry_start": entry, "entry_stop": entry + 100, "start": T + number}
        bad = fails(drawn, first, file)
        times = {"wall_seconds": 2.0, "stop": T + number + 2}
        if bad:
            error = {"error": "OSError: planted", "outcome": "error"}
            rows.append(chunk("d", f"k{number}", 2 * number, "error", attempt=1, worker=first, id=2 * number) | place)
            rows[-1] |= times | error
        worker = second if bad else first
        rows.append(chunk("d", f"k{number}", 2 * number + 1, "ok", attempt=1 + bad, worker=worker, id=2 * number + 1))
        rows[-1] |= place | times
    lives = [{"worker": name, "host": "h", "threads": 1, "start": T, "stop": T + 1000} for name in WORKERS]
    lifetimes = table_of_rows(LIFETIME_COLUMNS, lives)
    return evidence_of(Measurement(with_chunks(*rows, lifetimes=lifetimes, tasks=None)))


def test_failures_of_one_worker_are_its_own() -> None:
    evidence = run_in_which(lambda drawn, worker, file: worker == "w3" and drawn.random() < 0.5)
    assert evidence.cluster is not None
    assert evidence.cluster[:2] == ("worker", "w3")
    assert evidence.cluster.failed == evidence.attempts == evidence.chunks == evidence.repeated
    assert evidence.seconds == 2.0 * evidence.attempts
    ((kind, name, seconds, factor, _),) = said(evidence).culprits
    assert (kind, name, seconds) == ("worker", "w3", evidence.seconds)
    assert factor is not None
    assert factor > 2
    assert "11 attempts failed, all on worker w3; 11 of 11 chunks succeeded on another attempt." in said(evidence).what
    assert "Check worker w3" in said(evidence).advice


def test_failures_of_one_file_are_its_own() -> None:
    evidence = run_in_which(lambda drawn, worker, file: file == "f2.root" and drawn.random() < 0.6)
    assert evidence.cluster is not None
    assert evidence.cluster[:2] == ("file", "f2.root")
    assert "Check file f2.root" in said(evidence).advice


@pytest.mark.slow
def test_nobody_is_blamed_for_failures_that_fall_anywhere() -> None:
    blamed = [
        run_in_which(lambda drawn, worker, file: drawn.random() < 0.2, seed=seed).cluster is not None
        for seed in range(40)
    ]
    assert sum(blamed) <= 1
    anywhere = run_in_which(lambda drawn, *_: drawn.random() < 0.2)
    assert "not specific to a worker, host, file or dataset" in said(anywhere).advice


def test_few_failures_in_one_place_are_said_to_be_there() -> None:
    fails = iter([True, False, False, False, False, False, True] + [False] * 200)
    evidence = run_in_which(lambda *_: next(fails))
    assert evidence.cluster is None
    assert said(evidence).what.startswith("2 attempts failed, all with file f0.root;")
    assert said(evidence).advice.startswith("Fix the error: with so few failures, file f0.root may be a coincidence;")


def test_a_single_failure_is_no_cluster() -> None:
    evidence = run_in_which(lambda drawn, worker, file: False)
    assert (evidence.attempts, evidence.cluster) == (0, None)
    once = iter([True] + [False] * 200)
    single = run_in_which(lambda *_: next(once))
    assert (single.cluster, single.common) == (None, None)
    assert said(single).advice == "Fix the error; `measurement.failed` lists all attempts."


def test_an_interrupt_is_no_failure() -> None:
    run = handmade_run()
    assert run.chunks is not None
    ended = [row | {"error": row["error"] and "KeyboardInterrupt"} for row in run.chunks.to_pylist()]
    evidence = evidence_of(Measurement(dataclasses.replace(run, chunks=table_of_rows(CHUNK_COLUMNS, ended))))
    assert evidence.attempts == 1
    assert set(evidence.by_reason) == {"repeated"}
    assert "It took " in said(evidence).what


def test_the_run_by_hand() -> None:
    evidence = evidence_of(Measurement(handmade_run()))
    # k1, which was repeated as its result was lost, and k2, which erred; k3 was skipped, and is missing for good
    assert (evidence.attempts, evidence.chunks, evidence.repeated) == (2, 2, 2)
    assert set(evidence.by_reason) == {"error", "repeated"}
    assert evidence.error is not None
    assert evidence.error.text == "boom"


@pytest.mark.slow
def test_first_attempts_that_raise(client: Client, sample: Any, tmp_path: Path) -> None:
    with MetricsCollector(client) as collector:
        output, report = runner_for(client, 1000, retries=3)(
            {"qcd": sample["qcd"]}, processor_instance=RaisingOnce(str(tmp_path))
        )
    evidence = evidence_of(collector.measurement)
    assert output == {"events": report["entries"]}
    # each chunk number raised once, whichever of the two files came first
    assert evidence.attempts == evidence.chunks == evidence.repeated == len(list(tmp_path.iterdir())) == 4
    assert (str(evidence.error), evidence.cluster) == ("OSError: planted, once (4 times)", None)
    chunks = collector.measurement.chunks
    assert evidence.seconds == pytest.approx(chunks["wall_seconds"][chunks["outcome"] == "error"].sum())
    # they may all be on one of the files by chance
    again = r"4 attempts failed(, all with file \S+)?; 4 of 4 chunks succeeded on another attempt\."
    assert re.match(again, said(evidence).what)
    assert "Most common error (4 times): OSError: planted, once." in said(evidence).what
    assert collector.measurement.metrics.evaluator.value("incompleteness").complete
    assert collector.measurement.metrics["num_failed_attempts"] == 4
