"""Limits that are planted are found, with the number of workers from which on they limit.

`python -m benchmarks.scale` judges whole campaigns, and equal times with different causes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_runs import laboratory, made_run, plan

from roastcoffea.measurement import Measurement
from roastcoffea.studies.scaling import scaling
from roastcoffea.studies.scaling_limits import (
    FAMILIES,
    LIMIT_OF,
    STORAGE,
    WORDS,
    WORK,
    ScaledRun,
    peak_of,
    turning_of,
)


def small(**changes: Any) -> list[Any]:
    """Runs of 2, 4 and 8 workers on a plan of few chunks."""
    made = laboratory("plan").Plan(**{"chunks": 80, "size": 80e6, "cpu": 2.0, "per_host": 2} | changes)
    simulated = laboratory("simulated").simulated
    return [simulated(made, workers, seed=5, first=workers == 2, place=workers) for workers in (2, 4, 8)]


@pytest.mark.slow
def test_saturated_storage_and_its_limit() -> None:
    study = scaling(small(storage_rate=60e6), rate="4.8 Gbit/s")
    main = study.explanation.main
    assert main is not None
    assert main.name == "storage bandwidth"
    # streams of 20 MB/s, which a worker uses for 4.07 of 6.57 s: 60 MB/s feed 4.9 workers
    assert main.turning.value == pytest.approx(60 / (20 * 4.05 / 6.57), rel=0.1)
    assert main.rate is not None
    assert main.rate.value.value == pytest.approx(8e-3 * 60, rel=0.07)
    times = 4.8 / main.rate.value.value
    assert study.needs[0].startswith(f"4.8 Gbit/s needs {times:.3g} times the storage")
    assert "Storage bandwidth limits these runs" in str(study)


@pytest.mark.slow
def test_a_limit_of_connections_is_latency() -> None:
    study = scaling(small(connections=2, latency=0.05))
    main = study.explanation.main
    assert main is not None
    assert main.name == "storage latency"
    assert main.rate is not None
    assert main.rate.unit.symbol == "requests/s"


@pytest.mark.slow
def test_requests_that_always_take_most_of_the_time_are_latency() -> None:
    main = scaling(small(latency=0.6, cpu=0.5)).explanation.main
    assert main is not None
    assert (main.name, main.turning.value) == ("storage latency", 2.0)


@pytest.mark.slow
def test_a_cold_cache() -> None:
    main = scaling(small(cold_rate=8e6)).explanation.main
    assert main is not None
    assert (main.name, main.at) == ("cold cache", 2)


def test_perfect_scaling_has_no_reason() -> None:
    study = scaling([made_run([plan(1.0)] * 64, workers) for workers in (1, 2, 4)])
    assert study.explanation.main is None
    assert "Nothing limits these runs" in str(study)


@pytest.mark.slow
def test_useful_and_lost_workers_are_all_workers() -> None:
    study = scaling(small(storage_rate=60e6, late_after=4, late_seconds=5.0))
    for place, point in enumerate(study.points):
        lost = sum(cause.shares[place] for cause in study.explanation.causes)
        useful = study.explanation.useful[place].value / point.workers
        assert useful + lost == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_costs_add_up_to_the_most_workers_for_the_whole_run() -> None:
    for run in small(late_after=4, late_seconds=5.0, slow_hosts={1: 3.0}):
        taken = ScaledRun("run", Measurement(run), by_threads=False)
        assert taken.costs.sum() == pytest.approx(taken.workers * (run.stop - run.start))


def test_workers_that_wait_for_a_slow_submission_wait_for_the_client() -> None:
    """Chunks become runnable one by one, while others run: nothing is left to run, and yet it is no tail."""
    run = made_run([plan(1.0)] * 8, 4)
    assert run.tasks is not None
    rows = run.tasks.to_pylist()
    assert run.chunks is not None
    chunks = run.chunks.to_pylist()
    for place, (task, chunk) in enumerate(zip(rows, chunks, strict=True)):
        late = run.start + 0.75 * place
        task.update(dict.fromkeys(("runnable", "assigned", "arrived", "ready", "start"), late), stop=late + 1.0)
        task["seen"] = task["stop"]
        chunk.update(start=late, stop=late + 1.0)
    stop = rows[-1]["stop"]
    assert run.lifetimes is not None
    lives = [row | {"stop": stop} for row in run.lifetimes.to_pylist()]
    slow = replace(
        run,
        stop=stop,
        calls=tuple(replace(call, stop=stop) for call in run.calls),
        tasks=pa.Table.from_pylist(rows, run.tasks.schema),
        chunks=pa.Table.from_pylist(chunks, run.chunks.schema),
        lifetimes=pa.Table.from_pylist(lives, run.lifetimes.schema),
    )
    seconds = ScaledRun("slow", Measurement(slow), by_threads=False).costs
    total = 4 * (stop - run.start)
    assert float(seconds["client"]) == pytest.approx(total - 8 - float(seconds["tail"]), rel=0.05)
    # three workers wait while the last chunk runs
    assert float(seconds["tail"]) == pytest.approx(3.0, rel=0.15)


def test_saturation_begins_at_its_height_or_where_the_rate_is_highest() -> None:
    sizes = np.array([8.0, 16.0, 32.0, 64.0, 128.0])
    for knee in (10.0, 16.0, 60.0):
        assert turning_of(sizes, np.minimum(sizes, knee)) == knee
    falling = np.array([8.0, 15.0, 20.0, 16.0, 11.0])
    assert turning_of(sizes, falling) == 32
    assert peak_of(sizes, falling[:, None] * [1.0, 1.01, 0.99]) == 32
    # chance explains this fall
    useful = np.array([8.0, 15.0, 20.0, 20.0, 18.0])
    assert peak_of(sizes, np.column_stack([useful, useful, [8.0, 15.0, 18.0, 18.0, 19.0]])) is None


def test_each_class_of_time_has_a_limit_with_words_and_a_colour() -> None:
    assert set(LIMIT_OF.values()) - {WORK, STORAGE} <= WORDS.keys() <= FAMILIES.keys()
