"""Which processes keep memory of their chunks, how much of each, and what only looks like it.

`benchmarks/simulated.py` tries many more runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from handmade import T, evidence_of
from limited_runs import LIMITED, edited, with_rows
from made_runs import made_run, plan

from roastcoffea.diagnosis.finding import CAUSES, Culprit, Finding
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.catalogue import NotMeasuredError
from roastcoffea.metrics.memory import memory_growth
from roastcoffea.metrics.statistics import Numbers
from roastcoffea.records.run import Run

PLANT = LIMITED["memory grows"]()
MB = 1_000_000
SCATTER = np.random.default_rng(1).normal(0, 10 * MB, 40)
AT = np.arange(40)


def found(run: Run) -> list[Finding]:
    return list(CAUSES["memory grows"].findings(evidence_of(run)))


def growth(memory: Numbers) -> float:
    """Bytes per chunk by which the memory of one worker grows; 0 if it may be due to chance."""
    names, lifetimes = np.full(len(memory), "w0"), pa.table({"worker": ["w0"], "memory_limit": [2000 * MB]})
    try:
        (row,) = memory_growth(
            pa.table({"worker": names, "dataset": names, "stop": T + np.arange(len(memory)), "memory_after": memory}),
            lifetimes,
        ).to_pylist()
    except NotMeasuredError:
        return 0.0
    return row["growth"] if row["grows"] else 0.0


def test_a_process_that_keeps_memory_is_named_with_what_its_limit_allows() -> None:
    (one,) = found(PLANT)
    # 500 MB and 12 MB for each of 20 chunks are there at the end: 2 GB come 105 chunks later
    assert one.what == (
        "Memory grows from chunk to chunk on 1 worker: w1 (11.8 MB per chunk, 10.9 MB to 12.8 MB; "
        "limit reached after about 110 more chunks, 3 min 45 s)."
    )
    assert one.culprits == (Culprit("worker", "w1"),)
    assert one.remedy == "client.restart()"


def test_it_costs_no_time_and_is_said_all_the_same() -> None:
    (one,) = Measurement(PLANT).verdict
    assert (one.cause, one.seconds, one.page) == ("memory grows", None, "limited/memory#memory-grows")
    assert one.text.endswith("Do not keep chunk data in the processor; restart between Runner calls: client.restart()")


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
    assert growth(500 * MB + memory) == 0.0


@pytest.mark.parametrize(("each", "scatter"), [(12.0 * MB, 0.0), (12.0 * MB, 1.0), (2.0 * MB, 0.1)])
def test_growth_is_measured_within_its_scatter(each: float, scatter: float) -> None:
    assert growth(500 * MB + each * AT + scatter * SCATTER) == pytest.approx(each, rel=0.05)


def test_a_small_growth_shows_in_many_chunks() -> None:
    memory = 500 * MB + 0.5 * MB * np.arange(2000) + np.random.default_rng(2).normal(0, 50 * MB, 2000)
    assert growth(memory) == pytest.approx(0.5 * MB, rel=0.05)


def test_results_that_dask_holds_are_told_from_the_process() -> None:
    """The scheduler knows of 12 MB more with each chunk of two seconds."""
    held = [
        {"worker": "w1", "time": T + second, "nbytes": int(12 * MB * second / 2.3), "spilled": 0}
        for second in range(60)
    ]
    (one,) = found(with_rows(PLANT, samples=held))
    assert one.remedy is None
    assert "return less from process()" in one.advice
    for other in ([row | {"spilled": row["nbytes"]} for row in held], [row | {"worker": "w0"} for row in held]):
        (one,) = found(with_rows(PLANT, samples=other))
        assert one.remedy == "client.restart()"


def test_growth_that_reaches_no_limit_is_no_finding() -> None:
    assert found(edited(PLANT, lifetimes=lambda row: {"memory_limit": 64_000 * MB})) == []


def test_chunks_before_the_growth_count_for_how_long_a_run_may_become() -> None:
    """16 of 60 chunks leak, 300 more reach the limit: ten times as many chunks as the worker ran, not as grew."""
    run = made_run([plan(1.0, dataset="flat" if place < 44 else "leak") for place in range(60)], 1)
    memory = iter(500 * MB + 12 * MB * np.maximum(np.arange(60) - 43, 0) + SCATTER[AT.repeat(2)[:60]] / 10)
    run = edited(
        run,
        chunks=lambda row: {"memory_after": int(next(memory))},
        lifetimes=lambda row: {"memory_limit": 4300 * MB},
    )
    (one,) = found(run)
    assert one.culprits[1:] == (Culprit("dataset", "leak"),)


def test_without_a_limit_nothing_is_said_of_it() -> None:
    (one,) = found(edited(PLANT, lifetimes=lambda row: {"memory_limit": None}))
    assert one.what.endswith("w1 (11.8 MB per chunk, 10.9 MB to 12.8 MB).")


def test_without_a_cluster_nothing_is_restarted() -> None:
    (one,) = found(replace(PLANT, tasks=None))
    assert one.remedy is None
    assert one.advice == "Do not keep chunk data in the processor."


def test_many_workers_are_counted_and_three_are_named() -> None:
    run = edited(PLANT, chunks=lambda row: {"memory_after": 300 * MB + int(12 * MB * (row["start"] - T))})
    (one,) = found(edited(run, chunks=lambda row: {"worker": f"w{row['id'] % 4}"}))
    assert "on 4 workers: " in one.what
    assert one.what.count("per chunk") == 3
    assert len(one.culprits) == 4


def test_a_run_without_chunks_has_none() -> None:
    assert found(replace(PLANT, chunks=None)) == []
    assert found(edited(PLANT, chunks=lambda row: {"memory_after": None})) == []


class Grown(NamedTuple):
    """A run whose memory grows, where, and by how much a chunk (of the dataset, if it is one)."""

    run: Run
    workers: frozenset[str]
    dataset: str | None
    grows: str
    each: dict[str, float]
    """Growth per chunk of each worker after its first quarter: which chunks are of the dataset is drawn."""
    left: dict[str, float]


def grown(seed: int, *, healthy: bool = False) -> Grown:
    """A run with a leak that the seed draws: all workers or one, a dataset, or results that Dask holds."""
    draw = np.random.default_rng(seed)
    kind = "none" if healthy else ("all", "worker", "dataset", "last dataset", "results")[seed % 5]
    workers, chunks = int(draw.integers(3, 9)), int(draw.integers(40, 120))
    each, number = float(draw.uniform(15 if kind == "dataset" else 5, 40)) * MB, workers * chunks
    # a run up to seven times as long reaches the limit
    limit = round(600 * MB + draw.uniform(2, 7) * chunks * each / (3 if kind == "dataset" else 1))
    if kind == "last dataset" or (healthy and seed % 2):
        dataset = np.where(np.arange(number) < draw.uniform(0.3, 0.5) * number, "ttbar", "qcd")
    else:
        dataset = draw.choice(["ttbar", "wjets", "qcd"], number)
    run = made_run([plan(float(draw.uniform(1, 2)), dataset=one) for one in dataset], workers)
    assert run.chunks is not None
    rows, used = run.chunks.to_pylist(), dict[int, int]()
    leaks = {"all": lambda row: True, "worker": lambda row: row["worker"] == "w1", "results": lambda row: True}
    of_dataset = {"dataset": "ttbar", "last dataset": "qcd"}.get(kind)
    samples, left, growth_of = [], dict[str, float](), dict[str, float]()
    for name in sorted({row["worker"] for row in rows}):
        own = sorted((row for row in rows if row["worker"] == name), key=lambda row: row["stop"])
        leak = leaks.get(kind, lambda row: row["dataset"] == of_dataset)
        kept = each * np.cumsum([leak(row) for row in own])
        noise = draw.normal(0, draw.uniform(2, 30) * MB, len(own))
        if healthy:
            shapes = [
                np.cumsum(noise) / 3,
                300 * MB * (np.arange(len(own)) > draw.uniform(0.2, 0.8) * len(own)),
                400 * MB * np.minimum(np.arange(len(own)) / (draw.uniform(0.1, 0.6) * len(own)), 1),
                np.maximum.accumulate(noise),
                100 * MB * (np.arange(len(own)) / draw.uniform(5, 15) % 1),
                np.where([row["dataset"] == "qcd" for row in own], 200 * MB, 0.0),
            ]
            kept = kept + shapes[int(draw.integers(len(shapes)))]
        for row, size in zip(own, 500 * MB + kept + noise, strict=True):
            used[row["id"]] = int(max(size, MB))
        held = kept if kind == "results" else draw.uniform(0, 5) * MB * np.ones(len(own))
        samples += [
            {"worker": name, "time": row["stop"] - 0.01, "nbytes": int(size), "spilled": 0}
            for row, size in zip(own, held, strict=True)
        ]
        later = kept[len(own) // 4 :]
        growth_of[name] = np.polyfit(range(len(later)), later, 1)[0] if kind == "dataset" else each
        left[name] = (limit - (500 * MB + kept[-3:].mean())) / growth_of[name]
    run = edited(
        with_rows(run, samples=samples),
        chunks=lambda row: {"memory_after": used[row["id"]]},
        lifetimes=lambda row: {"memory_limit": limit},
    )
    names = frozenset({"w1"} if kind == "worker" else {f"w{who}" for who in range(workers)})
    return Grown(run, names, of_dataset, "results" if kind == "results" else "process", growth_of, left)


def judged(seed: int) -> dict[str, Any]:
    """What is found of such a run, with what is true."""
    true = grown(seed)
    findings = found(true.run)
    named = {(one.kind, one.name) for one in findings[0].culprits} if findings else set()
    rows = [row for row in Measurement(true.run).memory_growth.to_dict("records") if row["worker"] in true.workers]
    slopes = [row["growth"] / true.each[row["worker"]] - 1 for row in rows]
    inside = [row["growth_low"] <= true.each[row["worker"]] <= row["growth_high"] for row in rows]
    off = [row["chunks_left"] / true.left[row["worker"]] - 1 for row in rows if row["grows"] == row["grows"]]
    workers = {name for kind, name in named if kind == "worker"}
    return {
        "true": f"{true.grows} of {'w1' if len(true.workers) == 1 else 'all'} {true.dataset or ''}",
        "each": np.mean([*true.each.values()]) / MB,
        "right": 2 * len(workers & true.workers) >= len(true.workers)
        and workers <= true.workers
        and {name for kind, name in named if kind == "dataset"} == {true.dataset} - {None}
        and {row["grows"] for row in rows if row["grows"] == row["grows"]} == {true.grows},
        "slope": float(np.median(slopes)),
        "inside": inside,
        "left": float(np.median(off or [np.nan])),
    }


@pytest.mark.parametrize("seed", range(200, 205))
def test_planted_growth_is_found_with_its_culprit(seed: int) -> None:
    """Of all workers, of one, of a dataset, of the last one, and of results."""
    one = judged(seed)
    assert one["right"]
    assert abs(one["slope"]) < 0.1
    assert np.mean(one["inside"]) >= 0.5


@pytest.mark.parametrize("seed", [200, 201, 202])
def test_healthy_runs_do_not_grow(seed: int) -> None:
    assert found(grown(seed, healthy=True).run) == []
