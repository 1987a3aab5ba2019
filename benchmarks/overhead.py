"""What measuring costs: the same analysis without a collector, with one, and with Dask's `performance_report`.

Run it on a quiet machine: `python benchmarks/overhead.py --json overhead.json`. With `--challenge` the analysis is a
program in the shape of the Integration Challenge's, each time in new processes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, Runner
from distributed import Client, performance_report

from roastcoffea.cli.sample import TREE, DijetProcessor, local_client, write_sample
from roastcoffea.collector import MetricsCollector

WORKERS: Final = 2
DATASET: Final = "zprime"
CHUNKS_PER_FILE: Final = 10
RESAMPLES: Final = 10_000
LONGEST_WAIT: Final = 30.0
"""Seconds in which the cluster must have forgotten the tasks of the arm before."""

PLAIN: Final = "plain"
ARMS: Final[Mapping[str, Callable[[Client, Path], AbstractContextManager[Any]]]] = {
    PLAIN: lambda _client, _folder: nullcontext(),
    "plain again": lambda _client, _folder: nullcontext(),
    "MetricsCollector": lambda client, _folder: MetricsCollector(client),
    "performance_report": lambda _client, folder: performance_report(filename=str(folder / "report.html")),
}
"""What is put around the analysis; "plain again" shows what the machine's noise alone gives."""

QUANTITIES: Final[Mapping[str, str]] = {
    "runner_seconds": "wall time of the Runner call",
    "workers_cpu_seconds": "CPU of the worker processes",
    "client_cpu_seconds": "CPU of client and scheduler",
}
HIGHEST_RATIO: Final[Mapping[str, float]] = {"runner_seconds": 1.02, "workers_cpu_seconds": 1.02}
"""What MetricsCollector may reach in the median, in an analysis of at least so many chunks as below."""

MANY_CHUNKS: Final = 400

LONGEST_LEAVE: Final = 0.1
"""Seconds that leaving the collector may take in the median."""

PROGRAM: Final = Path(__file__).with_name("challenge.py")
IN_CHALLENGE: Final[Mapping[str, str]] = {
    "workers": "CPU of the workers",
    "client": "CPU of the client, importing included",
    "import": "  of which importing",
    "scheduler": "CPU of the scheduler",
    "wall": "wall time",
    "tables": "CPU of get_metrics(), afterwards",
}
MOST_IN_CHALLENGE: Final[Mapping[str, float]] = {"client": 0.5, "import": 0.5}
"""Seconds that a collector may add in the median."""
MOST_OF_WORKERS: Final = 0.02
"""Share of the workers' CPU that it may add in the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One run of the analysis in one arm.

    CPU times are user and system time over the whole `with`, so that entering and leaving are in them. Client and
    scheduler share a process, which is how LocalCluster works: their CPU time cannot be told apart.
    """

    round: int
    arm: str
    enter_seconds: float
    runner_seconds: float
    leave_seconds: float
    workers_cpu_seconds: float
    client_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of an arm's ratios to the plain run of the same round, with the 95 % interval of that median."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Bench:
    """An analysis on a cluster, and a folder for what the arms write."""

    client: Client
    workers: Sequence[psutil.Process]
    fileset: Any
    chunks: int
    events: int
    """In a chunk."""
    folder: Path

    def analyse(self) -> None:
        """Run the analysis as a user would, preprocessing included."""
        runner = Runner(
            executor=DaskExecutor(client=self.client, status=False),
            schema=NanoAODSchema,
            chunksize=self.events,
            savemetrics=True,
            metadata_cache={},
        )
        output, report = runner(self.fileset, treename=TREE, processor_instance=DijetProcessor())
        if (report["chunks"], output[DATASET]["events"]) != (self.chunks, self.chunks * self.events):
            raise RuntimeError(f"expected {self.chunks} chunks of {self.events} events; coffea reports {report}")

    def timing(self, number: int, arm: str) -> Timing:
        """Run the analysis once in this arm."""
        wait_for_quiet(self.client)
        workers_before, client_before = cpu_seconds(self.workers), time.process_time()
        began = time.perf_counter()
        with ARMS[arm](self.client, self.folder):
            entered = time.perf_counter()
            self.analyse()
            ran = time.perf_counter()
        left = time.perf_counter()
        return Timing(
            round=number,
            arm=arm,
            enter_seconds=entered - began,
            runner_seconds=ran - entered,
            leave_seconds=left - ran,
            workers_cpu_seconds=cpu_seconds(self.workers) - workers_before,
            client_cpu_seconds=time.process_time() - client_before,
        )


def bench_of(client: Client, chunks: int, events: int, folder: Path) -> Bench:
    """Analysis of a new sample that has so many chunks of so many events."""
    fileset = write_sample(
        folder,
        datasets=(DATASET,),
        files=chunks // CHUNKS_PER_FILE,
        events=CHUNKS_PER_FILE * events,
        baskets=CHUNKS_PER_FILE,
    )
    workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    return Bench(client, workers, fileset, chunks, events, folder)


def measured(bench: Bench, rounds: int, seed: int) -> list[Timing]:
    """Timings of all rounds and arms, interleaved; one warm-up of each arm is not counted."""
    for arm in ARMS:
        bench.timing(-1, arm)
    return [bench.timing(number, arm) for number, arm in interleaved(rounds, seed)]


def interleaved(rounds: int, seed: int) -> Iterator[tuple[int, str]]:
    """Each arm once a round, in an order that differs from round to round."""
    random = np.random.default_rng(seed)
    for number in range(rounds):
        for arm in random.permutation(list(ARMS)).tolist():
            yield number, arm


def wait_for_quiet(client: Client) -> None:
    """Give every arm the same beginning: no tasks, no garbage, and no plugin that the arm before left behind."""
    client.run_on_scheduler(without_task_stream)
    gc.collect()
    deadline = time.monotonic() + LONGEST_WAIT
    while client.cluster.scheduler.tasks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster still holds tasks after {LONGEST_WAIT:g} s")
        time.sleep(0.01)


def without_task_stream(dask_scheduler: Any) -> None:
    """Remove the plugin that `performance_report` leaves on the scheduler; it would slow the arms that follow."""
    if "task-stream" in dask_scheduler.plugins:
        dask_scheduler.remove_plugin("task-stream")


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """CPU time of these processes so far, user and system; the kernel counts in steps of 0.01 s."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def values(timings: Sequence[Timing], arm: str, quantity: str) -> np.ndarray[Any, Any]:
    """A quantity of one arm, in the order of the rounds."""
    return np.array([getattr(timing, quantity) for timing in timings if timing.arm == arm])


def ratio(timings: Sequence[Timing], arm: str, quantity: str, seed: int) -> Ratio:
    """How an arm compares with the plain runs of the same rounds; the interval comes from resampled rounds."""
    return median_of(values(timings, arm, quantity) / values(timings, PLAIN, quantity), seed)


def median_of(figures: np.ndarray[Any, Any], seed: int) -> Ratio:
    """Median of a figure of each round, and its 95 % interval."""
    rounds = np.random.default_rng(seed).integers(len(figures), size=(RESAMPLES, len(figures)))
    low, high = np.quantile(np.median(figures[rounds], axis=1), [0.025, 0.975])
    return Ratio(float(np.median(figures)), float(low), float(high))


def summary(timings: Sequence[Timing], seed: int) -> dict[str, Any]:
    """Medians and ratios by arm and quantity."""
    return {
        arm: {
            quantity: {
                "median": float(np.median(values(timings, arm, quantity))),
                "ratio": asdict(ratio(timings, arm, quantity, seed)),
            }
            for quantity in QUANTITIES
        }
        | {
            cost: {
                "median": float(np.median(values(timings, arm, cost))),
                "max": float(np.max(values(timings, arm, cost))),
            }
            for cost in ("enter_seconds", "leave_seconds")
        }
        for arm in ARMS
    }


def print_heading(bench: Bench, rounds: int, found: Mapping[str, Any]) -> None:
    """Print what was run."""
    milliseconds = 1e3 * found[PLAIN]["workers_cpu_seconds"]["median"] / bench.chunks
    chunks = f"{bench.chunks} chunks of {bench.events} events (about {milliseconds:.0f} ms of CPU each)"
    print(f"\n== {chunks}, {len(bench.workers)} workers with 1 thread, {rounds} rounds ==")


def print_tables(found: Mapping[str, Any]) -> None:
    """Print the ratios of each quantity, and the cost of entering and leaving, arm by arm."""
    for quantity, meaning in QUANTITIES.items():
        print(f"\n{meaning:44}{'median':>10}    ratio to plain [95 %]")
        for arm in ARMS:
            value = found[arm][quantity]
            text = "" if arm == PLAIN else str(Ratio(**value["ratio"]))
            print(f"  {arm:42}{value['median']:8.3f} s    {text}")
    print(f"\n{'fixed cost, not in the wall time above':44}{'enter: median, max':>20}{'leave: median, max':>24}")
    for arm in ARMS:
        enter, leave = (
            "{median:.1f}, {max:.1f} ms".format(**{name: 1e3 * value for name, value in found[arm][cost].items()})
            for cost in ("enter_seconds", "leave_seconds")
        )
        print(f"  {arm:42}{enter:>20}{leave:>24}")


def print_verdict(found: Mapping[str, Any], chunks: int) -> None:
    """Print what MetricsCollector has to keep, and what the machine's noise allows to say about it."""
    ours, noise = found["MetricsCollector"], found["plain again"]
    print()
    for quantity, highest in HIGHEST_RATIO.items() if chunks >= MANY_CHUNKS else ():
        measured_ratio = Ratio(**ours[quantity]["ratio"])
        print(
            f"{QUANTITIES[quantity]}: {measured_ratio}, at most {highest:g}: {kept(measured_ratio.median <= highest)}; "
            f"noise alone gives {Ratio(**noise[quantity]['ratio'])}"
        )
    leave = ours["leave_seconds"]["median"]
    print(f"leaving: {1e3 * leave:.1f} ms, below {1e3 * LONGEST_LEAVE:g} ms: {kept(leave < LONGEST_LEAVE)}")


def kept(true: bool) -> str:
    """A word for a limit that was kept or was not."""
    return "kept" if true else "MISSED"


def of_challenge(python: str, folder: str, *given: str) -> dict[str, Any]:
    """What `challenge.py` prints in the environment of this Python; as after an installation, modules are compiled."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [python, "-W", "ignore", str(PROGRAM), folder, *given]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout else {}


def challenge(pythons: Mapping[str, str], rounds: int, seed: int) -> dict[str, list[tuple[Any, Any]]]:
    """Runs without and with the collector of each environment, as many as there are rounds, after one of each."""
    found: dict[str, list[tuple[Any, Any]]] = {name: [] for name in pythons}
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="roastcoffea-overhead-") as folder:
        of_challenge(sys.executable, folder, "--write")
        for _ in range(rounds + 1):
            for name, python in pythons.items():
                order = random.permutation(2).tolist()
                runs = {way: of_challenge(python, folder, *["--measured"] * way) for way in order}
                if not np.allclose(runs[0]["sums"], runs[1]["sums"], rtol=1e-9):
                    sys.exit(f"outputs differ with the collector of {python}")
                found[name].append((runs[0], runs[1]))
    return {name: pairs[1:] for name, pairs in found.items()}


def print_challenge(name: str, pairs: Sequence[tuple[Any, Any]], seed: int) -> bool:
    """Print what a collector added, in the median of the rounds; return whether the goals were kept."""
    print(f"\n{name + ', seconds':44}{'without':>9}{'with':>9}    added [95 %]")
    added = {}
    for quantity, meaning in IN_CHALLENGE.items():
        without, measured_too = (np.array([pair[way][quantity] for pair in pairs]) for way in (0, 1))
        added[quantity] = median_of(measured_too - without, seed)
        print(f"  {meaning:42}{np.median(without):9.2f}{np.median(measured_too):9.2f}    {added[quantity]}")
    share = median_of(np.array([after["workers"] / before["workers"] - 1 for before, after in pairs]), seed)
    goals = [(f"share added to {IN_CHALLENGE['workers']}", share, MOST_OF_WORKERS)]
    goals += [
        (f"added to {IN_CHALLENGE[quantity].strip()}", added[quantity], most)
        for quantity, most in MOST_IN_CHALLENGE.items()
    ]
    for what, figure, most in goals:
        print(f"{what}: {figure}, at most {most:g}: {kept(figure.median <= most)}")
    return all(figure.median <= most for _, figure, most in goals)


def environment() -> dict[str, Any]:
    """On what was measured; a load above zero before the start is noise."""
    packages = ("roastcoffea", "coffea", "distributed", "dask", "uproot", "awkward")
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, help="rounds, each with every arm (default 10, with --challenge 8, at least 2)"
    )
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=[40, 400], help="chunks of the analysis (default 40 400)"
    )
    parser.add_argument("--events", type=int, default=1000, help="events in a chunk: its work (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of arms and of the intervals (default 1)")
    parser.add_argument("--json", type=Path, help="file for all timings and the summary")
    parser.add_argument(
        "--challenge", action="store_true", help="run a program in the shape of the Integration Challenge's instead"
    )
    parser.add_argument("--other", metavar="PYTHON", help="with --challenge, a Python with another collector installed")
    options = parser.parse_args()
    options.pairs = options.pairs or (8 if options.challenge else 10)
    if options.pairs < 2:
        parser.error("--pairs must be at least 2")
    if options.events < 1 or any(chunks < 1 or chunks % CHUNKS_PER_FILE for chunks in options.chunks):
        parser.error(f"--chunks must be multiples of {CHUNKS_PER_FILE}, and --events at least 1")
    return options


def main() -> None:
    """Measure, print tables, and write the timings where that was asked for."""
    options = parsed()
    results = []
    seen = environment()
    print(", ".join(f"{name} {value}" for name, value in seen.items()))
    if options.challenge:
        pythons = {"roastcoffea": sys.executable} | ({"the other collector": options.other} if options.other else {})
        pairs = challenge(pythons, options.pairs, options.seed)
        verdicts = [print_challenge(name, some, options.seed) for name, some in pairs.items()]
        print(f"load afterwards: {os.getloadavg()[0]:.1f}")
        if options.json:
            options.json.write_text(json.dumps({"environment": seen, "pairs": pairs}, indent=1) + "\n")
        sys.exit(not verdicts[0])
    with (
        tempfile.TemporaryDirectory(prefix="roastcoffea-overhead-") as scratch,
        local_client(WORKERS, 1, scratch) as client,
    ):
        for chunks in options.chunks:
            bench = bench_of(client, chunks, options.events, Path(scratch))
            timings = measured(bench, options.pairs, options.seed)
            found = summary(timings, options.seed)
            print_heading(bench, options.pairs, found)
            print_tables(found)
            print_verdict(found, chunks)
            results.append({"chunks": chunks, "summary": found, "timings": [asdict(timing) for timing in timings]})
    if options.json:
        settings = {"events": options.events, "pairs": options.pairs, "seed": options.seed, "workers": WORKERS}
        document = {"environment": seen, "settings": settings, "results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
