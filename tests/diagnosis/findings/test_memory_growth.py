"""Which processes keep memory of their chunks, how much of each, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import T, evidence_of
from limited_runs import LIMITED, edited, with_rows

from roastcoffea.diagnosis.finding import CAUSES, Culprit, Finding
from roastcoffea.diagnosis.findings.memory_growth import growth
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.run import Run

PLANT = LIMITED["memory grows"]()
MB = 1_000_000
SCATTER = np.random.default_rng(1).normal(0, 10 * MB, 40)
AT = np.arange(40)


def found(run: Run) -> list[Finding]:
    return list(CAUSES["memory grows"].findings(evidence_of(run)))


def test_a_process_that_keeps_memory_is_named_with_what_its_limit_allows() -> None:
    (one,) = found(PLANT)
    # 500 MB and 12 MB for each of 20 chunks are there at the end: 2 GB come 105 chunks later
    assert one.what.startswith(
        "Memory grows from chunk to chunk on 1 worker: w1 (12 MB per chunk, the limit after about"
    )
    assert 100 <= float(one.what.split()[-3]) <= 115
    assert one.culprits == (Culprit("worker", "w1"),)
    assert one.remedy == "client.restart()"


def test_it_costs_no_time_and_is_said_all_the_same() -> None:
    (one,) = Measurement(PLANT).verdict
    assert (one.cause, one.seconds, one.page) == ("memory grows", None, "limited/memory-grows")
    assert one.text.endswith("Keep nothing of chunks in the processor; restart between Runner calls: client.restart()")


def test_memory_that_scatters_is_healthy() -> None:
    """Of 60 chunks with up to 5 MB more or less, after the first two of each worker."""
    run = edited(PLANT, chunks=lambda row: {"memory_after": 500 * MB + (row["id"] * 7 % 11 - 5) * MB})
    assert found(run) == []
    assert Measurement(run).verdict.healthy


@pytest.mark.parametrize(
    "memory",
    [
        SCATTER,
        np.cumsum(SCATTER),  # as an allocator drifts
        200 * MB * (AT > 25) + SCATTER / 10,  # a library, a correction
        200 * MB * np.minimum(AT / 20, 1.0) + SCATTER / 10,  # a cache that is full halfway
        np.maximum.accumulate(SCATTER),  # the largest chunk so far, which the allocator keeps
        50 * MB * (AT / 7 % 1) + SCATTER / 10,  # garbage that is collected now and then
        12.0 * MB * AT[:12],  # too few to tell
        np.zeros(40),
    ],
)
def test_what_only_looks_like_growth(memory: Numbers) -> None:
    assert growth(500 * MB + memory, 1e-3) == 0.0


@pytest.mark.parametrize(("each", "scatter"), [(12.0 * MB, 0.0), (12.0 * MB, 1.0), (2.0 * MB, 0.1)])
def test_growth_is_measured_within_its_scatter(each: float, scatter: float) -> None:
    assert growth(500 * MB + each * AT + scatter * SCATTER, 1e-3) == pytest.approx(each, rel=0.05)


def test_a_small_growth_shows_in_many_chunks() -> None:
    memory = 500 * MB + 0.5 * MB * np.arange(2000) + np.random.default_rng(2).normal(0, 50 * MB, 2000)
    assert growth(memory, 1e-5) == pytest.approx(0.5 * MB, rel=0.05)


def test_results_that_a_worker_holds_are_no_growth() -> None:
    """The scheduler knows of 12 MB more with each chunk of two seconds."""
    held = [
        {"worker": "w1", "time": T + second, "nbytes": int(12 * MB * second / 2.3), "spilled": 0}
        for second in range(60)
    ]
    assert found(with_rows(PLANT, samples=held)) == []
    on_disk = [row | {"spilled": row["nbytes"]} for row in held]
    assert len(found(with_rows(PLANT, samples=on_disk))) == 1
    assert len(found(with_rows(PLANT, samples=[row | {"worker": "w0"} for row in held]))) == 1


def test_growth_that_reaches_no_limit_is_no_finding() -> None:
    assert found(edited(PLANT, lifetimes=lambda row: {"memory_limit": 64_000 * MB})) == []


def test_without_a_limit_nothing_is_said_of_it() -> None:
    (one,) = found(edited(PLANT, lifetimes=lambda row: {"memory_limit": None}))
    assert one.what.endswith("w1 (12 MB per chunk).")


def test_without_a_cluster_nothing_is_restarted() -> None:
    (one,) = found(replace(PLANT, tasks=None))
    assert one.remedy is None
    assert one.advice == "Keep nothing of chunks in the processor."


def test_many_workers_are_counted_and_three_are_named() -> None:
    run = edited(PLANT, chunks=lambda row: {"memory_after": 300 * MB + int(12 * MB * (row["start"] - T))})
    (one,) = found(edited(run, chunks=lambda row: {"worker": f"w{row['id'] % 4}"}))
    assert "on 4 workers: " in one.what
    assert one.what.count("per chunk") == 3
    assert len(one.culprits) == 4


def test_a_run_without_chunks_has_none() -> None:
    assert found(replace(PLANT, chunks=None)) == []
    assert found(edited(PLANT, chunks=lambda row: {"memory_after": None})) == []
