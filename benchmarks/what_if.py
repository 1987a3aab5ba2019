"""What-if against the truth: predicted and measured wall time of runs that were really made.

Three analyses, one that waits, one that computes, and one that is limited by storage which its readers share
(`shared_storage.py`). Each is recorded, and predicted for half to four times its workers, for half to four times its
threads, and for a quarter to four times its chunk size. Run it on a quiet machine:
`python benchmarks/what_if.py --keep FOLDER --json what_if.json`. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from shared_storage import Rates, shared_storage

from roastcoffea.cli.sample import TREE, DijetProcessor, local_client, write_sample
from roastcoffea.collector import MetricsCollector
from roastcoffea.measurement import Measurement, load
from roastcoffea.replay.changes import AS_RECORDED
from roastcoffea.replay.cluster import Cluster, Costs, Load, replayed
from roastcoffea.studies.what_if import what_if

MEDIAN_ERROR: Final = 0.04
WORST_ERROR: Final = 0.15
COVERAGE: Final = 0.90
"""Goals of the predictions, and the share of cells whose interval has to hold what was measured."""

FACTORS: Final = (0.5, 1, 2, 4)
"""Predicted workers and threads, relative to the recorded ones."""

SIZES: Final = (0.25, 0.5, 1, 2, 4)
"""Predicted chunk sizes, relative to the usual one."""

ALIKE: Final = 0.03
"""How close two repeats have to be: they are repeated until two are, since other programs slow some of them down."""

MOST_REPEATS: Final = 4

LONGEST: Final = 10.0
"""Seconds that simulating MANY_CHUNKS on MANY_THREADS may take."""

MANY_CHUNKS: Final = 1_000_000
MANY_THREADS: Final = 2000

STORAGE: Final = Rates(rate=10e6, stream_rate=7e6, latency=0.004)
"""Storage that fewer than two streams saturate."""


class Dijets(DijetProcessor):  # type: ignore[misc]
    """The dijet analysis, several times over, with a wait for each event."""

    def __init__(self, times: int, wait: float) -> None:
        self.times = times
        self.wait = wait

    def process(self, events: Any) -> Any:
        for _ in range(self.times):
            output = super().process(events)
        time.sleep(self.wait * len(events))
        return output


ANALYSES: Final[Mapping[str, Dijets]] = {
    "waiting": Dijets(times=1, wait=16e-6),
    "computing": Dijets(times=5, wait=0.0),
    "storage": Dijets(times=1, wait=0.0),
}


class Setup(NamedTuple):
    """Cluster and chunk size of a run."""

    workers: int
    threads: int
    chunksize: int


class Cell(NamedTuple):
    """A prediction: for which setup, and from runs of which ones, of which the first is changed."""

    kind: str
    factor: float
    wanted: Setup
    sources: tuple[Setup, ...]

    @property
    def itself(self) -> bool:
        """Whether a run is predicted from others of its own setup."""
        return self.wanted == self.sources[0]


@dataclass(frozen=True, slots=True)
class Case:
    """One prediction next to the median of the measured runs. Without a number, `reason` tells why."""

    analysis: str
    kind: str
    factor: float
    predicted: float | None
    low: float
    high: float
    measured: float
    spread: float
    reason: str | None

    @property
    def error(self) -> float | None:
        """Relative error of the number."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.measured <= self.high


@dataclass
class Bench:
    """Runs of a sample, each on a new cluster. `keep` holds their measurements for the next time."""

    scratch: Path
    filesets: Mapping[str, Any]
    keep: Path | None
    cache: dict[Any, Any]
    made: dict[str, Measurement]

    def run(self, analysis: str, setup: Setup, repeat: int) -> Measurement:
        """Measurement of one run; one that exists is taken again."""
        name = f"{self._name(analysis, setup)}-{repeat}"
        if name not in self.made:
            kept = None if self.keep is None else self.keep / name
            self.made[name] = load(kept) if kept is not None and kept.exists() else self._new(analysis, setup, name)
        return self.made[name]

    def _name(self, analysis: str, setup: Setup) -> str:
        return f"{analysis}-{setup.workers}x{setup.threads}-{setup.chunksize}"

    def _new(self, analysis: str, setup: Setup, name: str) -> Measurement:
        with local_client(setup.workers, setup.threads, str(self.scratch)) as client:
            runner = Runner(
                executor=DaskExecutor(client=client, status=False),
                schema=NanoAODSchema,
                chunksize=setup.chunksize,
                savemetrics=True,
                metadata_cache=self.cache,
            )
            with MetricsCollector(client) as collector:
                runner(self.filesets[analysis], treename=TREE, processor_instance=ANALYSES[analysis])
        if self.keep is not None:
            collector.save_measurement(self.keep, name)
        print(f"  {name}: {wall(collector.measurement):.2f} s", flush=True)
        return collector.measurement

    def runs(self, analysis: str, setup: Setup, repeats: int) -> list[Measurement]:
        """Repeats whose wall times are closest. More are made until they are alike, or there are MOST_REPEATS."""
        made = [self.run(analysis, setup, repeat) for repeat in range(repeats)]
        while (found := _closest(made, repeats))[0] > ALIKE and len(made) < MOST_REPEATS:
            made.append(self.run(analysis, setup, len(made)))
        return [run for run in made if wall(run) in found[1]]

    def spread(self, analysis: str, setup: Setup) -> float:
        """Relative range of all repeats, also of those that are not used."""
        start = self._name(analysis, setup)
        times = [wall(run) for name, run in self.made.items() if name.startswith(f"{start}-")]
        return (max(times) - min(times)) / median(times)


def wall(measurement: Measurement) -> float:
    """Wall time of a run."""
    return measurement.run.stop - measurement.run.start


def _closest(runs: Sequence[Measurement], number: int) -> tuple[float, list[float]]:
    """Relative range of the wall times that are closest to each other, and these times."""
    times = sorted(map(wall, runs))
    groups = [times[first : first + number] for first in range(len(times) - number + 1)]
    return min((group[-1] / group[0] - 1, group) for group in groups)


@contextmanager
def filesets_of(local: Any) -> Iterator[dict[str, Any]]:
    """Files of each analysis: those of the one limited by storage are on a server."""
    (name, files) = next(iter(local.items()))
    folder = Path(next(iter(files["files"]))).parent
    with shared_storage(folder, STORAGE) as address:
        remote = {f"{address}/{Path(file).name}": tree for file, tree in files["files"].items()}
        yield {analysis: {name: {"files": remote}} if analysis == "storage" else local for analysis in ANALYSES}


def metadata_of(filesets: Mapping[str, Any]) -> dict[Any, Any]:
    """Result of preprocessing, made once, so that all runs consist of chunks alone."""
    cache: dict[Any, Any] = {}
    quiet = IterativeExecutor(status=False)
    for fileset in filesets.values():
        runner = Runner(executor=quiet, pre_executor=quiet, schema=NanoAODSchema, metadata_cache=cache)
        list(runner.preprocess(fileset, treename=TREE))
    return cache


def cells_of(chunksize: int) -> list[Cell]:
    """All predictions of an analysis: none uses a run of the setup that it predicts, except for x 1.

    A second setup shows how storage and the interpreter are shared.
    """
    usual, threaded, more = Setup(2, 1, chunksize), Setup(2, 2, chunksize), Setup(4, 1, chunksize)
    cells = [Cell("workers", by, usual._replace(workers=round(2 * by)), (usual, threaded)) for by in FACTORS]
    for by in FACTORS:
        wanted = threaded._replace(threads=round(2 * by))
        cells.append(Cell("threads", by, wanted, (threaded, more if wanted == usual else usual)))
    for by in SIZES:
        pair = [size for size in (0.5, 2) if size != by]
        two = (*pair, *((1,) if len(pair) == 1 else ()))
        sources = tuple(usual._replace(chunksize=round(chunksize * size)) for size in two)
        cells.append(Cell("chunk sizes", by, usual._replace(chunksize=round(chunksize * by)), sources))
    return cells


def case_of(bench: Bench, analysis: str, cell: Cell, repeats: int) -> Case:
    """A prediction next to the truth. For x 1 the first run is replayed, and the others are the truth."""
    used = 1 if cell.itself and repeats > 1 else repeats
    sources = [run for setup in cell.sources for run in bench.runs(analysis, setup, repeats)[:used]]
    truth = [wall(run) for run in bench.runs(analysis, cell.wanted, repeats)[used if used < repeats else 0 :]]
    asked: dict[str, Any] = {"workers": [cell.wanted.workers], "threads": [cell.wanted.threads]}
    if cell.kind == "chunk sizes":
        asked = {"chunksize": [cell.wanted.chunksize]}
    found = what_if(*sources, same_host=True, **asked)
    one = [each for each in found.predictions if each.scenario == AS_RECORDED][-1]
    middle = median(truth)
    return Case(
        analysis=analysis,
        kind=cell.kind,
        factor=cell.factor,
        predicted=one.seconds,
        low=one.low,
        high=one.high,
        measured=middle,
        spread=bench.spread(analysis, cell.wanted),
        reason=one.reason,
    )


def seconds_for_many() -> tuple[float, float]:
    """Seconds to simulate very many chunks, the first time (with compiling) and the second."""
    random = np.random.default_rng(1)
    cpu, wait = random.gamma(4, 5.0, MANY_CHUNKS), random.gamma(4, 2.0, MANY_CHUNKS)
    load_of = Load(before=0.1 * cpu, wait=wait, after=0.9 * cpu)
    cluster = Cluster(threads=4, hosts=[(2, 8.0)] * (MANY_THREADS // 8))
    took = []
    for _ in range(2):
        began = time.perf_counter()
        replayed(load_of, cluster, Costs(gap=1e-3, latency=5e-3, scheduler=1e-3))
        took.append(time.perf_counter() - began)
    return took[0], took[1]


def print_cases(cases: Sequence[Case]) -> bool:
    """Print predictions and truth; whether they keep the goals."""
    print(
        f"\n{'analysis':<11}{'changed':<20}{'predicted':>11}{'interval':>18}{'measured':>11}{'error':>9}{'repeats':>9}"
    )
    for one in cases:
        predicted = "refused" if one.predicted is None else f"{one.predicted:.2f} s"
        error = "" if one.error is None else f"{one.error:+.1%}"
        print(
            f"{one.analysis:<11}{f'{one.kind} x {one.factor:g}':<20}{predicted:>11}"
            f"{f'{one.low:.2f} to {one.high:.2f} s':>18}{one.measured:>9.2f} s{error:>9}{one.spread:>9.1%}"
            f"  {'held' if one.held else 'NOT HELD'}"
        )
    for reason in dict.fromkeys(one.reason for one in cases if one.reason):
        print(f"refused: {reason}")
    kept = [_goals(kind, [one for one in cases if one.kind == kind]) for kind in _kinds(cases)]
    return _goals("all", cases) and all(kept)


def _kinds(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in cases))


def _goals(name: str, cases: Sequence[Case]) -> bool:
    """Print errors and coverage of some cases; whether they keep the goals."""
    errors = [abs(one.error) for one in cases if one.error is not None]
    held = sum(one.held for one in cases) / len(cases)
    middle, worst = (median(errors), max(errors)) if errors else (float("inf"), float("inf"))
    kept = middle <= MEDIAN_ERROR and worst <= WORST_ERROR and held >= COVERAGE
    print(
        f"{name}: {len(errors)} of {len(cases)} have a number, median error {middle:.1%} (at most {MEDIAN_ERROR:.0%}), "
        f"worst {worst:.1%} (at most {WORST_ERROR:.0%}), intervals hold {held:.0%} (at least {COVERAGE:.0%}): "
        f"{'kept' if kept else 'MISSED'}"
    )
    return kept


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each kind (default 2)")
    parser.add_argument("--files", type=int, default=8, help="files of 80,000 events (default 8)")
    parser.add_argument("--chunksize", type=int, default=10_000, help="of the recorded runs (default 10000)")
    parser.add_argument("--analyses", nargs="+", default=list(ANALYSES), choices=list(ANALYSES))
    parser.add_argument("--kinds", nargs="+", default=["workers", "threads", "chunk sizes"], help="rows of the table")
    parser.add_argument("--keep", type=Path, help="folder of measurements: those in it are not made again")
    parser.add_argument("--sample", type=Path, help="folder that keeps the sample")
    parser.add_argument("--json", type=Path, help="file for all cases")
    return parser.parse_args()


def cases_of(bench: Bench, options: argparse.Namespace) -> list[Case]:
    """Make all runs, repeats apart in time so that drifts are in their spread, then predict."""
    cells = [cell for cell in cells_of(options.chunksize) if cell.kind in options.kinds]
    setups = dict.fromkeys(setup for cell in cells for setup in (*cell.sources, cell.wanted))
    for repeat in range(options.repeats):
        for analysis in options.analyses:
            for setup in setups:
                bench.run(analysis, setup, repeat)
    return [case_of(bench, analysis, cell, options.repeats) for analysis in options.analyses for cell in cells]


def main() -> int:
    """Record, predict, measure, and print."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that clusters and the server end as well
    with tempfile.TemporaryDirectory(prefix="roastcoffea-what-if-") as folder:
        scratch = Path(folder)
        local = write_sample(
            options.sample or scratch, datasets=("zprime",), files=options.files, events=80_000, baskets=32
        )
        with filesets_of(local) as filesets:
            cases = cases_of(Bench(scratch, filesets, options.keep, metadata_of(filesets), {}), options)
    kept = print_cases(cases)
    first, second = seconds_for_many()
    print(
        f"{MANY_CHUNKS:,} chunks on {MANY_THREADS:,} threads: simulated in {first:.1f} s with compiling, "
        f"{second:.1f} s without (at most {LONGEST:g} s): {'kept' if first <= LONGEST else 'MISSED'}"
    )
    if options.json:
        rows = [asdict(one) | {"error": one.error, "held": one.held} for one in cases]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if kept and first <= LONGEST else 1


if __name__ == "__main__":
    sys.exit(main())
