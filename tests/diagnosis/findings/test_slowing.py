"""Runs that slow down half-way: when, by how much, what it goes with, and what only looks like it.

`benchmarks/simulated.py` tries many more runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pytest
from handmade import T
from limited_runs import edited
from made_runs import made_run, plan

from roastcoffea.diagnosis.slowdown import Slowdown
from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run
from roastcoffea.report.tables import known

PARTS: Final = {"read": "read", "compute": "cpu", "blocked": "wait", "open": "open_wait"}
"""Part of a plan of each class of time."""


@dataclass(frozen=True)
class Slowed:
    """What takes longer, from which share of the run on."""

    factor: float
    onset: float
    time_class: str
    kind: str | None = None
    name: str = ""
    until: float = np.inf
    """Share of the run at which it ends."""
    gradual: bool = False
    """Whether the factor is reached only after twice the plain length of the run."""


@dataclass(frozen=True)
class Shape:
    """What a simulated run is like.

    Attributes
    ----------
    order
        Whether datasets come one after the other; else they alternate.
    arrive, leave
        Share of the run at which half of the workers arrive, or leave.
    shared
        How much reading slows down with the number of chunks that run.
    """

    chunks: int = 600
    workers: int = 8
    hosts: int = 4
    datasets: Mapping[str, float] = field(default_factory=lambda: {"ttbar": 1.0})
    servers: int = 1
    order: bool = True
    noise: float = 0.2
    files: float = 0.05
    tails: float = 0.02
    first: float = 1.0
    arrive: float = 0.0
    leave: float = 1.0
    shared: float = 0.0
    slow_worker: float = 1.0
    parts: Mapping[str, float] = field(default_factory=lambda: {"read": 0.8, "cpu": 1.0, "wait": 0.1, "open_wait": 0.1})
    slowed: Slowed | None = None


def simulated(shape: Shape, seed: int) -> tuple[Run, float]:
    """A run of this shape, and when it slows down: the end of the run where it does not."""
    draw = np.random.default_rng(seed)
    number, names = shape.chunks, list(shape.datasets)
    file = np.sort(draw.integers(0, max(number // 10, 1), number))
    if not shape.order:
        file = file[draw.permutation(number)]
    dataset = file * len(names) // (file.max() + 1) if shape.order else file % len(names)
    server = draw.integers(0, shape.servers, file.max() + 1)[file]
    of_file = np.exp(shape.files * draw.standard_normal(file.max() + 1))[file]
    events = np.where(draw.random(number) < 0.1, draw.integers(20_000, 100_000, number), 100_000)
    parts = {
        part: each
        * np.exp(shape.noise * draw.standard_normal(number))
        * np.where(draw.random(number) < shape.tails, draw.uniform(2, 8, number), 1.0)
        * of_file
        * events
        / 100_000
        for part, each in shape.parts.items()
    }
    weight = np.array([shape.datasets[names[one]] for one in dataset])
    plain = sum(parts.values()) * weight
    length = float(plain.sum()) / shape.workers
    began = shape.slowed.onset * length if shape.slowed else np.inf
    late = [shape.arrive * length if who % 2 else 0.0 for who in range(shape.workers)]
    gone = [shape.leave * length if who % 2 and shape.leave < 1 else np.inf for who in range(shape.workers)]
    free, fresh, stops = list(late), [True] * shape.workers, list[float]()
    plans, rows = [], []
    for place in range(number):
        who = min((one for one in range(shape.workers) if free[one] < gone[one]), key=free.__getitem__)
        start, name = free[who], names[dataset[place]]
        own = {part: float(each[place] * weight[place]) for part, each in parts.items()}
        running = 1 + sum(stop > start for stop in stops[-shape.workers :])
        own["read"] *= 1 + shape.shared * running / shape.workers
        if fresh[who]:
            own["cpu"] *= shape.first
        if who == shape.workers - 1:
            own["cpu"] *= shape.slow_worker
        at = {"host": f"node-{who % shape.hosts}", "dataset": name, "endpoint": f"server-{server[place]}.org"}
        at["worker"] = f"w{who}"
        slow = shape.slowed
        if slow and began <= start < slow.until * length and (slow.kind is None or at[slow.kind] == slow.name):
            own[PARTS[slow.time_class]] *= slow.factor ** (start / (2 * length) if slow.gradual else 1.0)
        url = f"root://{at['endpoint']}//store/{name}/{file[place]}.root"
        plans.append(plan(own.pop("cpu"), own.pop("wait"), events=int(events[place]), dataset=name, file=url, **own))
        stops.append(start + sum(plans[-1][part] for part in PARTS.values()))
        rows.append({"worker": f"w{who}", "start": T + start, "stop": T + stops[-1]})
        free[who], fresh[who] = stops[-1], False
    return placed(made_run(plans, shape.workers), rows, shape, late, free), T + began


def placed(run: Run, rows: Sequence[Any], shape: Shape, late: Sequence[float], free: Sequence[float]) -> Run:
    """The same run with each chunk where and when it ran."""
    stop = max(row["stop"] for row in rows)
    leaves = [T + free[who] if who % 2 and shape.leave < 1 else stop for who in range(shape.workers)]

    def life(row: Any) -> Any:
        who = int(row["worker"][1:])
        return {"host": f"node-{who % shape.hosts}", "start": T + late[who], "stop": leaves[who]}

    calls = tuple(replace(call, stop=stop) for call in run.calls)
    return replace(
        edited(
            run,
            chunks=lambda row: rows[row["id"]] | {"thread": 1},
            tasks=lambda row: rows[row["run_id"]] | {"seen": rows[row["run_id"]]["stop"]},
            lifetimes=life,
        ),
        stop=stop,
        calls=calls,
    )


MIXED: Final = {"ttbar": 1.0, "wjets": 0.6, "qcd": 0.4, "data": 0.3}


def planted(seed: int) -> Shape:
    """A run that slows down in a way drawn by the seed."""
    draw = np.random.default_rng(1000 + seed)
    kind = (None, "endpoint", "host", "dataset")[seed % 4]
    time_class = {"endpoint": "read", "host": "compute"}.get(kind or "", ("read", "compute", "blocked")[seed % 3])
    names = {"endpoint": "server-1.org", "host": "node-2", "dataset": "ttbar"}
    datasets = MIXED if kind == "dataset" or seed % 2 or seed % 8 == 4 else {"ttbar": 1.0}
    slowed = Slowed(
        float(draw.uniform(1.7, 4)), float(draw.uniform(0.3, 0.65)), time_class, kind, names.get(kind or "", "")
    )
    parts = {"read": 0.8, "cpu": 1.0, "wait": 0.1, "open_wait": 0.1}
    if time_class == "blocked":
        parts["wait"] = 0.6
    return Shape(
        chunks=int(draw.integers(500, 1600)),
        workers=int(draw.choice([8, 12, 16])),
        servers=3 if kind == "endpoint" else 1,
        datasets=datasets,
        order=kind != "dataset" and bool(draw.random() < 0.5),
        noise=float(draw.uniform(0.1, 0.3)),
        first=float(draw.uniform(1, 5)),
        parts=parts,
        slowed=slowed,
    )


def healthy(seed: int) -> Shape:
    """A run that does not slow down, of a shape drawn by the seed."""
    draw = np.random.default_rng(2000 + seed)
    return Shape(
        chunks=int(draw.integers(80, 1500)),
        workers=int(draw.choice([4, 8, 16])),
        hosts=int(draw.integers(1, 5)),
        servers=int(draw.integers(1, 4)),
        datasets=MIXED if draw.random() < 0.7 else {"ttbar": 1.0},
        order=bool(draw.random() < 0.6),
        noise=float(draw.uniform(0.05, 0.5)),
        files=float(draw.uniform(0, 0.3)),
        tails=float(draw.choice([0, 0.02, 0.1])),
        first=float(draw.choice([1, 3, 10])),
        arrive=float(draw.choice([0, 0.1, 0.5])),
        leave=float(draw.choice([1, 0.6])),
        shared=float(draw.choice([0, 1, 3])),
        slow_worker=float(draw.choice([1, 3])),
    )


def slowdown_of(run: Run) -> Slowdown | None:
    """How a run slows down; None if it does not."""
    found: Slowdown | None = known(Measurement(run).metrics.evaluator, "slowdown")
    return found


def judged(seed: int) -> dict[str, Any]:
    """What is found in a planted run, next to what is true."""
    shape = planted(seed)
    run, began = simulated(shape, seed)
    true, found = shape.slowed, slowdown_of(run)
    assert true is not None
    # the only server is named as well
    name = true.name or ("server-0.org" if true.time_class == "read" else None)
    text = f"{true.time_class} {true.name or 'all'} {true.factor:.2f}"
    if found is None:
        return {"planted": text, "found": "nothing", "named": False, "factor": np.nan, "onset": np.nan, "inside": False}
    low, high = found.interval
    return {
        "planted": text,
        "found": f"{found.time_class} {found.name or 'all'} {found.factor:.2f} ({low:.2f} to {high:.2f})",
        "named": (found.time_class, found.name) == (true.time_class, name),
        "factor": found.factor / true.factor - 1,
        "onset": (found.onset - began) / (run.stop - run.start),
        "inside": low <= true.factor <= high,
    }


def test_gradual_slowdowns_are_told_from_steps() -> None:
    shape = Shape(slowed=Slowed(4.0, 0.0, "compute", gradual=True))
    run, _ = simulated(shape, 300)
    found = slowdown_of(run)
    assert found is not None
    assert (found.time_class, found.name, found.gradual) == ("compute", None, True)
    assert run.chunks is not None
    plain = sum(shape.parts.values()) * shape.chunks / shape.workers
    assert found.factor == pytest.approx(4.0 ** ((run.stop - run.start) / (2 * plain)), rel=0.1)


def test_a_host_with_a_single_worker_is_named() -> None:
    shape = Shape(chunks=1200, workers=8, hosts=8, slowed=Slowed(3.0, 0.5, "compute", "host", "node-2"))
    run, began = simulated(shape, 302)
    found = slowdown_of(run)
    assert found is not None
    assert (found.time_class, found.kind, found.name) == ("compute", "host", "node-2")
    assert found.factor == pytest.approx(3.0, rel=0.1)
    assert found.onset - began == pytest.approx(0, abs=0.1 * (run.stop - run.start))
    assert run.chunks is not None
    slow = [row for row in run.chunks.select(["id", "worker", "start"]).to_pylist() if row["id"] in set(found.ids)]
    assert {row["worker"] for row in slow} == {"w2"}


def test_bursts_are_no_slowdown() -> None:
    run, _ = simulated(Shape(slowed=Slowed(4.0, 0.4, "read", until=0.5)), 301)
    assert slowdown_of(run) is None


@pytest.mark.parametrize("seed", [200, 201, 202])
def test_planted_slowdowns_are_found_with_their_culprit(seed: int) -> None:
    one = judged(seed)
    assert one["named"]
    assert abs(one["factor"]) < 0.1
    assert abs(one["onset"]) < 0.1


@pytest.mark.parametrize("seed", [200, 201, 202])
def test_healthy_runs_do_not_slow_down(seed: int) -> None:
    assert slowdown_of(simulated(healthy(seed), seed)[0]) is None
