"""How often a comparison of repeats of one run finds a difference, and how often it finds one of 20 %.

Makes real repeats of a short analysis on a local cluster, and of the same with a sleep that makes it 20 % slower, in
random order, or takes those of a folder. Groups of them are then drawn at random and compared, many times; and those
that followed each other are compared as if they had been made A B A B, and A A B B. The exit status is 1 where a goal
is missed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, ProcessorABC, Runner
from distributed import Client, LocalCluster
from scipy.stats import beta

from roastcoffea.cli.sample import DijetProcessor, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.diagnosis.slowness import DATASET, Slow, slowness
from roastcoffea.measurement import Measurement, load
from roastcoffea.metrics.facts import counted_chunks
from roastcoffea.studies.observations import Observation, observed
from roastcoffea.studies.side_by_side import CANNOT_TELL, SLOWER, speed

DRAWS: Final = 5000
SIZES: Final = (2, 3, 4, 5)
SLOWER_BY: Final = 0.2
CHUNKS: Final = 16
WORKERS: Final = 2
MOST_FALSE: Final = 0.08
LEAST_FOUND: Final = 0.95
FOUND_BY: Final = 5
"""Runs of each that have to find the slower one in so many draws."""
MOST_BLAMING: Final = 0.05
"""Share of healthy runs that may name a slow worker, host or file."""
FOREIGN: Final = "while True: pass"


class Short(ProcessorABC):  # type: ignore[misc]
    """Reads jets, and sleeps so many seconds a chunk."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, events: Any) -> dict[str, float]:
        time.sleep(self.seconds)
        return {"pt": float(ak.sum(events.Jet.pt))}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def measured(client: Client, fileset: Any, processor: ProcessorABC, chunksize: int = 1000) -> Measurement:
    """Measurement of a run."""
    executor = DaskExecutor(client=client, status=False)
    runner = Runner(executor, schema=NanoAODSchema, chunksize=chunksize, savemetrics=True)
    with MetricsCollector(client) as collector:
        runner(fileset, treename="Events", processor_instance=processor)
    return collector.measurement


def make(folder: Path, repeats: int, seconds: float) -> None:
    """Save repeats of both kinds, in random order: what drifts in time is in both."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        fileset = write_sample(scratch, datasets=["qcd"], files=4, events=CHUNKS // 4 * 1000)
        wall = min(measured(client, fileset, Short(seconds)).metrics["elapsed_time_seconds"] for _ in range(4))
        more = SLOWER_BY * wall * WORKERS / CHUNKS
        order = [("same", seconds), ("slower", seconds + more)] * repeats
        random.Random(1).shuffle(order)
        for number, (name, sleep) in enumerate(order):
            measured(client, fileset, Short(sleep)).save(folder, f"{name}-{number:03d}")


@contextmanager
def foreign_process(*, there: bool) -> Iterator[None]:
    """A process of somebody else that takes a core for the while."""
    if not there:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", FOREIGN]) as process:
        try:
            yield
        finally:
            process.kill()


def blaming(runs: int) -> int:
    """Print whom healthy runs blame, each on a cluster of its own; 1 where too many do."""
    alarms = 0
    with tempfile.TemporaryDirectory() as scratch:
        fileset = write_sample(scratch, files=2, events=50_000)
        for number in range(runs):
            beside = number % 2 == 1
            with (
                LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
                Client(cluster) as client,
                foreign_process(there=beside),
            ):
                measurement = measured(client, fileset, DijetProcessor(), 10_000)
            named = slow_of(measurement)
            blamed = [one for one in named if one.kind != DATASET]
            alarms += bool(blamed)
            where = "beside a foreign process" if beside else "quiet"
            text = "; ".join(f"{one.kind} {one.name} {one.factor:.2f} x, from {one.interval[0]:.2f}" for one in named)
            wall = measurement.metrics["elapsed_time_seconds"]
            print(f"run {number}, {where}, {wall:.1f} s: {text or 'nobody'}", flush=True)
    reached = alarms <= MOST_BLAMING * runs
    print(f"{alarms} of {runs} healthy runs name a slow worker, host or file, {'ok' if reached else 'MISSED'}")
    return 0 if reached else 1


def slow_of(measurement: Measurement) -> list[Slow]:
    """Who is slow in a run."""
    run = measurement.run
    return [] if run.chunks is None else slowness(counted_chunks(run.chunks), run.lifetimes).slow


def taken(folder: Path, name: str) -> list[Observation]:
    """What a comparison takes from the repeats of a name."""
    return [observed(load(path), path.name) for path in sorted(folder.glob(f"{name}-*"))]


def words(before: Sequence[Observation], after: Sequence[Observation], size: int, draws: int) -> Iterable[str]:
    """Verdicts on groups of this size that are drawn at random: of one kind of run they have none in common."""
    drawn = np.random.default_rng(size)
    for _ in range(draws):
        first = drawn.permutation(len(before))
        second = first[size : 2 * size] if after is before else drawn.permutation(len(after))[:size]
        yield speed([before[place] for place in first[:size]], [after[place] for place in second]).word


def words_in_order(runs: Sequence[Observation], order: str) -> list[str]:
    """Verdicts on runs that followed each other, told to be A and B in this order, from each run on."""
    windows = (runs[start : start + len(order)] for start in range(len(runs) - len(order) + 1))
    return [speed(*(_of(window, order, group) for group in "AB")).word for window in windows]


def _of(window: Sequence[Observation], order: str, group: str) -> list[Observation]:
    return [run for run, its in zip(window, order, strict=True) if its == group]


def upper_bound(found: int, draws: int) -> float:
    """Rate that is higher with a confidence of 95 % than that of what was found (Clopper and Pearson)."""
    return 1.0 if found == draws else float(beta.ppf(0.95, found + 1, draws - found))


def main() -> int:
    """Make repeats, or take them, and print the rates; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where repeats are kept, and taken from the next time")
    parser.add_argument("--repeats", type=int, default=40, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.6, help="sleep of a chunk (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=DRAWS, help="groups that are drawn (default: %(default)s)")
    parser.add_argument("--slow", type=int, metavar="RUNS", help="make so many healthy runs, and count who is blamed")
    options = parser.parse_args()
    if options.slow:
        return blaming(options.slow)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not list(folder.glob("same-*")):
            make(folder, options.repeats, options.seconds)
        same, slower = taken(folder, "same"), taken(folder, "slower")
    return report(same, slower, options.draws)


def report(same: Sequence[Observation], slower: Sequence[Observation], draws: int) -> int:
    """Print how repeats scatter, and the rates by size of the groups; 1 where a goal is missed."""
    for name, runs in (("same", same), ("slower", slower)):
        walls = np.array([run.metrics["elapsed_time_seconds"] for run in runs])
        scatter = np.std(np.log(walls), ddof=1)
        print(f"{len(runs)} runs, {name}: wall time {np.median(walls):.3f} s in the median, scatter {scatter:.1%}")
    reached = []
    for size in SIZES:
        false = sum(word != CANNOT_TELL for word in words(same, same, size, draws))
        found = sum(word == SLOWER for word in words(same, slower, size, draws))
        bound = upper_bound(false, draws)
        reached.append(bound <= MOST_FALSE)
        print(f"{size} against {size}, {draws} draws: false alarms {false / draws:.2%} (below {bound:.2%}), ", end="")
        print("ok" if reached[-1] else "MISSED")
        for name, order in (("A B A B", "AB" * size), ("A A B B", "A" * size + "B" * size)):
            in_order = words_in_order(same, order)
            told = sum(word != CANNOT_TELL for word in in_order)
            print(f"  of runs that followed each other, {name}: {told} of {len(in_order)}")
        print(f"  {SLOWER_BY:.0%} slower found in {found / draws:.1%}", end="")
        if size == FOUND_BY:
            reached.append(found >= LEAST_FOUND * draws)
            print(", ok" if reached[-1] else ", MISSED", end="")
        print()
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
