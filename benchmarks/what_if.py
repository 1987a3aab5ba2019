"""What-if against the truth: predicted and measured wall time of runs that were really made.

Run it on a quiet machine: `python benchmarks/what_if.py --json what_if.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, IterativeExecutor, Runner

from roastcoffea.cli.demonstration import local_client
from roastcoffea.cli.sample import TREE, DijetProcessor, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement, load
from roastcoffea.replay.cluster import Cluster, Load, replayed
from roastcoffea.replay.inputs import Costs
from roastcoffea.studies.what_if.what_if import what_if

RECORDED: Final = 2
"""Worker processes of the recorded runs, one thread each."""

MEDIAN_ERROR: Final = 0.10
WORST_ERROR: Final = {"workers": 0.25}
"""What predictions have to keep. Those of sizes go beyond what was recorded: the worst of them has no limit."""

RECORDED_SIZES: Final = (0.5, 2)
"""Sizes, beside the usual one, of the chunks from which others are predicted: one to each side, so that what a chunk
costs beside its events stands out of the noise."""

LONGEST: Final = 10.0
"""Seconds that simulating MANY_CHUNKS on MANY_THREADS may take."""

MANY_CHUNKS: Final = 1_000_000
MANY_THREADS: Final = 2000


class Dijets(DijetProcessor):  # type: ignore[misc]
    """The dijet analysis, so many times over, and waiting for so long for each event."""

    def __init__(self, times: int, wait: float) -> None:
        self.times = times
        self.wait = wait

    def process(self, events: Any) -> Any:
        for _ in range(self.times):
            output = super().process(events)
        time.sleep(self.wait * len(events))
        return output


ANALYSES: Final[Mapping[str, Dijets]] = {
    "waiting": Dijets(times=1, wait=40e-6),
    "computing": Dijets(times=12, wait=0.0),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One prediction beside what was measured, in the median of the repeats."""

    analysis: str
    what: str
    predicted: float
    measured: float
    spread: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass
class Bench:
    """An analysis of a sample, of which runs are made, each on a cluster of its own."""

    scratch: Path
    fileset: Any
    keep: Path | None
    cache: dict[Any, Any]

    def run(self, analysis: str, workers: int, chunksize: int, repeat: int) -> Measurement:
        """Measurement of one run; a kept one is taken again."""
        name = f"{analysis}-{workers}-{chunksize}-{repeat}"
        if self.keep is not None and (self.keep / name).exists():
            return load(self.keep / name)
        with local_client(workers, 1, str(self.scratch)) as client:
            runner = Runner(
                executor=DaskExecutor(client=client, status=False),
                schema=NanoAODSchema,
                chunksize=chunksize,
                savemetrics=True,
                metadata_cache=self.cache,
            )
            with MetricsCollector(client) as collector:
                runner(self.fileset, treename=TREE, processor_instance=ANALYSES[analysis])
        if self.keep is not None:
            collector.save_measurement(self.keep, name)
        return collector.measurement

    def runs(self, analysis: str, workers: int, chunksize: int, repeats: int) -> list[Measurement]:
        return [self.run(analysis, workers, chunksize, repeat) for repeat in range(repeats)]


def metadata_of(fileset: Any) -> dict[Any, Any]:
    """What preprocessing learns: done once, so that all runs consist of chunks alone."""
    cache: dict[Any, Any] = {}
    quiet = IterativeExecutor(status=False)
    runner = Runner(executor=quiet, pre_executor=quiet, schema=NanoAODSchema, metadata_cache=cache)
    list(runner.preprocess(fileset, treename=TREE))
    return cache


def cases_of(bench: Bench, analysis: str, workers: Sequence[int], chunksize: int, repeats: int) -> list[Case]:
    """Predictions for other workers, and for other chunk sizes, from runs on two workers."""
    base = bench.runs(analysis, RECORDED, chunksize, repeats)
    found = [case(analysis, "the recorded run itself", what_if(*base, same_host=True), base)]
    for number in workers:
        predicted = what_if(*base, workers=[number], same_host=True)
        found.append(case(analysis, f"{number} workers", predicted, bench.runs(analysis, number, chunksize, repeats)))
    two = [run for by in RECORDED_SIZES for run in bench.runs(analysis, RECORDED, round(chunksize * by), repeats)]
    for factor in (0.25, 4):
        size = round(chunksize * factor)
        predicted = what_if(*two, chunksize=[size], same_host=True)
        found.append(case(analysis, f"chunks x {factor:g}", predicted, bench.runs(analysis, RECORDED, size, repeats)))
    return found


def case(analysis: str, what: str, predicted: Any, runs: Sequence[Measurement]) -> Case:
    """The last prediction that is not of a scenario beside what was measured."""
    seconds = [one.seconds for one in predicted.predictions if one.scenario == "as recorded"][-1]
    measured = np.array([run.run.stop - run.run.start for run in runs])
    middle = float(np.median(measured))
    for doubt in predicted.doubts:
        print(f"  ({analysis}, {what}: {doubt})")
    return Case(analysis, what, seconds, middle, float(np.ptp(measured)) / middle)


def seconds_for_many() -> tuple[float, float]:
    """Seconds to simulate very many chunks, the first time (with compiling) and the second."""
    random = np.random.default_rng(1)
    cpu, wait = random.gamma(4, 5.0, MANY_CHUNKS), random.gamma(4, 2.0, MANY_CHUNKS)
    load_of = Load(before=0.1 * cpu, wait=wait, after=0.9 * cpu)
    cluster = Cluster(threads=4, hosts=[(2, 8.0)] * (MANY_THREADS // 8))
    took = []
    for _ in range(2):
        began = time.perf_counter()
        replayed(load_of, cluster, Costs(gap=1e-3, latency=5e-3, scheduler=1e-3, own=5e-3))
        took.append(time.perf_counter() - began)
    return took[0], took[1]


def print_cases(cases: Sequence[Case]) -> bool:
    """Print predictions and truth; whether they keep what they have to."""
    print(f"\n{'analysis':<12}{'what':<26}{'predicted':>11}{'measured':>11}{'error':>9}{'repeats':>10}")
    for one in cases:
        print(
            f"{one.analysis:<12}{one.what:<26}{one.predicted:>9.2f} s{one.measured:>9.2f} s"
            f"{one.error:>+9.1%}{one.spread:>10.1%}"
        )
    all_kept = True
    for what, some in (
        ("workers", [one for one in cases if "workers" in one.what]),
        ("chunk sizes", [one for one in cases if "chunks" in one.what]),
    ):
        errors = np.abs([one.error for one in some])
        worst = WORST_ERROR.get(what)
        kept = bool(np.median(errors) <= MEDIAN_ERROR and (worst is None or errors.max() <= worst))
        all_kept &= kept
        print(
            f"{what}: median error {np.median(errors):.1%} (at most {MEDIAN_ERROR:.0%}), worst {errors.max():.1%}"
            f"{'' if worst is None else f' (at most {worst:.0%})'}: {'kept' if kept else 'MISSED'}"
        )
    return all_kept


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each kind (default 2)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8], help="predicted (default 1 4 8)")
    parser.add_argument("--files", type=int, default=8, help="files of 80,000 events (default 8)")
    parser.add_argument("--chunksize", type=int, default=10_000, help="of the recorded runs (default 10000)")
    parser.add_argument("--analyses", nargs="+", default=list(ANALYSES), choices=list(ANALYSES))
    parser.add_argument("--keep", type=Path, help="folder of measurements, in which those that are there are taken")
    parser.add_argument("--sample", type=Path, help="folder that keeps the sample")
    parser.add_argument("--json", type=Path, help="file for all cases")
    return parser.parse_args()


def main() -> int:
    """Record, predict, measure, and print; the exit status is 1 where something was missed."""
    options = parsed()
    cases = []
    with tempfile.TemporaryDirectory(prefix="roastcoffea-what-if-") as folder:
        scratch = Path(folder)
        fileset = write_sample(
            options.sample or scratch, datasets=("zprime",), files=options.files, events=80_000, baskets=32
        )
        bench = Bench(scratch, fileset, options.keep, metadata_of(fileset))
        for analysis in options.analyses:
            cases += cases_of(bench, analysis, options.workers, options.chunksize, options.repeats)
    kept = print_cases(cases)
    first, second = seconds_for_many()
    print(
        f"{MANY_CHUNKS:,} chunks on {MANY_THREADS:,} threads: simulated in {first:.1f} s with compiling, "
        f"{second:.1f} s without (at most {LONGEST:g} s): {'kept' if first <= LONGEST else 'MISSED'}"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(one) | {"error": one.error} for one in cases], indent=1) + "\n")
    return 0 if kept and first <= LONGEST else 1


if __name__ == "__main__":
    sys.exit(main())
