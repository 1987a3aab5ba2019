"""Do intervals hold what they promise? Each kind of interval over at least 200 cases whose truth is known.

`python -m benchmarks.calibration --seed 2026` draws clusters and analyses at random, simulates their runs
(`scale/simulated.py`), and compares each published interval with the truth, which is another simulated run or a known
factor:

what-if      wall time on half and on twice the workers, from three repeats; the truth is a run on these workers
savings      of a slow host, and of storage twice as fast; the truth is the same run without the slow host, or with half
             the waits for storage
comparison   CPU time per chunk of five repeats before and after; the truth is the planned factor
forecast     total cost of a fileset from a sample of its chunks; the truth is the sum over all chunks
time left    at a random moment of a run; the truth is when it ended
slow host    factor by which a host's chunks take longer; the truth is the planned factor
scaling      speed-up (95 %) from five repeats on one and on several times the workers; the truth is the ratio of the
             mean rates of 25 other repeats

For each kind: the share of intervals that hold (goal: within 5 % of their confidence level) and their median width
relative to the truth. Use seeds that were never tried while working on a model. The exit status is 1 where a goal is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from roastcoffea import compare, scaling, what_if
from roastcoffea.measurement import Measurement
from roastcoffea.report.live import Progress, Rates
from roastcoffea.sheets.sheet import Sheet, columns
from roastcoffea.sheets.terminal import print_sheets
from roastcoffea.studies.stratified import Population, Sampled, drawn
from roastcoffea.units import COUNT, FRACTION

from .scale.plan import Plan
from .scale.simulated import simulated

CONFIDENCE: Final = 0.90
NEAR: Final = 0.05
"""Goal: the share of intervals that hold differs from the confidence level by at most this."""


class Case(NamedTuple):
    """An interval, and the truth."""

    low: float
    high: float
    truth: float

    @property
    def holds(self) -> bool:
        return self.low <= self.truth <= self.high

    @property
    def width(self) -> float:
        return (self.high - self.low) / abs(self.truth)


def plan_of(random: np.random.Generator, **more: Any) -> tuple[Plan, int]:
    """A plan and a number of workers, drawn at random."""
    workers = int(random.integers(4, 17))
    chosen: dict[str, Any] = {
        "chunks": int(workers * random.integers(8, 40)),
        "cpu": float(random.uniform(0.5, 8)),
        "build": 0.1,
        "size": float(random.uniform(5e6, 60e6)),
        "spread": float(random.uniform(0.05, 0.5)),
        "noise": float(random.uniform(0.005, 0.03)),
        "per_host": int(random.integers(2, 5)),
        "storage_rate": float(random.uniform(5, 40)) * workers * 1e6,
    }
    return Plan(**chosen | more), workers


def seconds(run: Any) -> float:
    """Wall time of a run."""
    return float(run.stop - run.start)


def what_ifs(random: np.random.Generator) -> Iterator[Case]:
    """Predictions for half and for twice the workers."""
    plan, workers = plan_of(random)
    workers += workers % 2
    seed = int(random.integers(1 << 30))
    runs = [Measurement(simulated(plan, workers, seed=seed, again=place, place=place)) for place in range(3)]
    wanted = [workers // 2, workers * 2]
    for one in what_if(*runs, workers=wanted).predictions:
        if one.scenario == "as recorded" and one.workers in wanted:
            truth = seconds(simulated(plan, one.workers, seed=seed, again=10))
            yield Case(float(one.low), float(one.high), truth)


CAUSES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "slow host": ({"slow_hosts": {1: 2.0}}, {"slow_hosts": {}}),
    "storage": ({}, {}),
}
"""What is planted, and what undoes it."""


def savings(random: np.random.Generator) -> Iterator[Case]:
    """Savings of the findings on a planted cause."""
    cause = str(random.choice([*CAUSES]))
    planted, undone = CAUSES[cause]
    plan, workers = plan_of(random, **planted)
    if cause == "storage":
        undone = {"storage_rate": 2 * plan.storage_rate, "stream_rate": 2 * plan.stream_rate}
        undone |= {"latency": plan.latency / 2}
    seed = int(random.integers(1 << 30))
    run = simulated(plan, workers, seed=seed)
    truth = seconds(run) - seconds(simulated(replace(plan, **undone), workers, seed=seed))
    for finding in Measurement(run).verdict:
        if finding.cause == cause and finding.interval is not None and truth > 0.02 * seconds(run):
            yield Case(*map(float, finding.interval), truth)


def comparisons(random: np.random.Generator) -> Iterator[Case]:
    """Change of the CPU time per chunk between five repeats before and five after."""
    plan, workers = plan_of(random, build=0.0)
    factor, seed = float(random.uniform(0.9, 1.1)), int(random.integers(1 << 30))
    sides = [
        [Measurement(simulated(one, workers, seed=seed, again=place, place=place)) for place in range(begin, begin + 5)]
        for one, begin in ((plan, 0), (replace(plan, cpu=factor * plan.cpu), 5))
    ]
    condition = "avg_cpu_time_per_chunk > 0%"
    (outcome,) = compare(*sides, fail_if=[condition], confidence=CONFIDENCE).outcomes
    judgement = outcome.judgement
    if judgement.low is not None and judgement.high is not None:
        yield Case(1 + judgement.low, 1 + judgement.high, factor)


def forecasts(random: np.random.Generator) -> Iterator[Case]:
    """Total cost, from a sample of the chunks of a few datasets whose costs per event differ."""
    files = int(random.integers(40, 300))
    dataset = np.sort(random.integers(0, random.integers(2, 8), files))
    chunks = random.integers(1, 30, files)
    file = np.repeat(np.arange(files), chunks)
    size = np.maximum(random.normal(100_000, 20_000, files), 10_000).astype(np.int64)[file]
    start = np.concatenate([np.arange(number) for number in chunks]) * size
    every = Population(dataset=dataset[file], host=dataset[file], file=file, start=start, stop=start + size)
    rate = random.uniform(1e-6, 2e-5, dataset.max() + 1)[dataset[file]]
    rate = rate * np.exp(random.normal(0, 0.1, files))[file]  # files differ, and chunks of a file
    cost = rate * every.events * np.exp(random.normal(0, random.uniform(0.05, 0.4), len(every)))
    sample = drawn(every, max(20, round(0.05 * len(every))), int(random.integers(1 << 30)))
    found = Sampled(every, sample.stratum, np.sort(sample.rows)).total(cost[np.sort(sample.rows)])
    yield Case(found.low, found.high, float(cost.sum()))


def times_left(random: np.random.Generator) -> Iterator[Case]:
    """Remaining time at a random moment."""
    plan, workers = plan_of(random, result=1e3)
    run = simulated(plan, workers, seed=int(random.integers(1 << 30)))
    assert run.chunks is not None
    stops = np.sort(run.chunks["stop"].to_numpy())
    walls = run.chunks["wall_seconds"].to_numpy()[np.argsort(run.chunks["stop"].to_numpy())]
    rates, until = Rates(0.0), float(random.uniform(0.2, 0.8)) * (stops[-1] - run.start)
    for moment in np.arange(0.5, until, 0.5):
        done = int(np.searchsorted(stops, run.start + moment, side="right"))
        rates.add(
            float(moment),
            Progress(
                chunks=done,
                chunks_asked=plan.chunks,
                threads=(workers, workers),
                workers=workers,
                wall_seconds=float(walls[:done].sum()),
                wall_squares=float((walls[:done] ** 2).sum()),
            ),
        )
    between = rates.left_between if until > 0.5 else None
    if between is not None:
        yield Case(*between, float(stops[-1] - run.start - moment))


def slow_hosts(random: np.random.Generator) -> Iterator[Case]:
    """Factor of a slow host, whose chunks only compute."""
    factor = float(random.uniform(1.6, 4))
    plan, workers = plan_of(random, slow_hosts={1: factor}, size=0.0, metadata=0.0, latency=0.0, build=0.0)
    run = Measurement(simulated(plan, workers, seed=int(random.integers(1 << 30))))
    for one in run.metrics.evaluator.value("slow_places"):
        if (one.kind, one.name) == ("host", "10.0.0.1"):
            yield Case(*one.interval, factor)


def scalings(random: np.random.Generator) -> Iterator[Case]:
    """Speed-ups from eight times five repeats of two numbers of workers."""
    plan, workers = plan_of(random)
    seed, sizes = int(random.integers(1 << 30)), (workers, workers * int(random.integers(2, 6)))
    runs = [[simulated(plan, size, seed=seed, again=place, place=place) for place in range(40)] for size in sizes]
    fewer, more = (float(np.mean([1 / seconds(run) for run in some])) for some in runs)
    for begin in range(0, 40, 5):
        some = [Measurement(run) for each in runs for run in each[begin : begin + 5]]
        speedup = scaling(some).points[-1].speedup
        if speedup.low is not None and speedup.high is not None:
            yield Case(speedup.low, speedup.high, workers * more / fewer)


KINDS: Final[dict[str, tuple[Callable[[np.random.Generator], Iterator[Case]], float]]] = {
    "what-if": (what_ifs, CONFIDENCE),
    "savings": (savings, CONFIDENCE),
    "comparison": (comparisons, CONFIDENCE),
    "forecast": (forecasts, CONFIDENCE),
    "time left": (times_left, CONFIDENCE),
    "slow host": (slow_hosts, CONFIDENCE),
    "scaling": (scalings, 0.95),
}
"""Cases of each kind of interval, and its confidence level."""


def main() -> int:
    """Try all kinds and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="for drawing the cases")
    parser.add_argument("--cases", type=int, default=200, help="of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--json", type=Path, help="file for all cases")
    options = parser.parse_args()
    found: dict[str, list[Case]] = {}
    for kind in options.kinds:
        cases, number = list[Case](), 0
        while len(cases) < options.cases and number < 10 * options.cases:
            cases += KINDS[kind][0](np.random.default_rng((options.seed, [*KINDS].index(kind), number)))
            number += 1
        found[kind] = cases
    rows = []
    for kind, cases in found.items():
        share = float(np.mean([one.holds for one in cases]))
        below = float(np.mean([one.truth < one.low for one in cases]))
        above = float(np.mean([one.truth > one.high for one in cases]))
        width = float(np.median([one.width for one in cases]))
        rows.append((kind, len(cases), KINDS[kind][1], share, below, above, width))
    heads = [
        *columns(None, "interval"),
        *columns(COUNT, "cases"),
        *columns(FRACTION, "promised", "hold", "too high", "too low", "median width"),
    ]
    print_sheets([Sheet(title=f"Intervals (goal: within {NEAR:.0%} of what is promised)", columns=heads, rows=rows)])
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")
    return int(any(abs(share - promised) > NEAR for _, _, promised, share, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
