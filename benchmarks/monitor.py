"""What `TaskMonitor` costs where it hurts most: ten thousand tasks of a millisecond, released as they end.

Run it on a quiet machine: `python benchmarks/monitor.py`. With `--watch` it measures what looking at tasks
while they run costs a scheduler in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psutil
import watching
from distributed import Client, as_completed

from roastcoffea import TaskMonitor
from roastcoffea.cli.sample import local_client

WORKERS: Final = 2
RESAMPLES: Final = 10_000
LONGEST_WAIT: Final = 30.0
HIGHEST_RATIO: Final = 1.03
"""What TaskMonitor may reach in wall time, in the median."""

PLAIN: Final = "plain"
OURS: Final = "TaskMonitor"
ARMS: Final[Mapping[str, Callable[[Client], AbstractContextManager[Any]]]] = {
    PLAIN: lambda _client: nullcontext(),
    "plain again": lambda _client: nullcontext(),
    OURS: TaskMonitor,
    "with worker_view": lambda client: TaskMonitor(client, worker_view=True),
}
QUANTITIES: Final[Mapping[str, str]] = {
    "wall_seconds": "wall time",
    "workers_cpu_seconds": "CPU of the worker processes",
    "client_cpu_seconds": "CPU of client and scheduler",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One run in one arm; CPU includes entering and leaving the `with`, wall time does not."""

    arm: str
    wall_seconds: float
    workers_cpu_seconds: float
    client_cpu_seconds: float
    enter_seconds: float
    leave_seconds: float


def short(_number: int) -> str:
    """Take a millisecond, and give the place where it ran."""
    time.sleep(1e-3)
    return str(os.getpid())


def run(client: Client, tasks: int) -> set[str]:
    """Compute so many tasks, and release each as it ends; give their keys."""
    futures = client.map(short, range(tasks), pure=False)
    keys = {future.key for future in futures}
    for future in as_completed(futures):
        future.release()
    return keys


def timing(client: Client, arm: str, tasks: int) -> Timing:
    """Run once in this arm."""
    workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    wait_for_quiet(client)
    workers_before, client_before, began = cpu_seconds(workers), time.process_time(), time.perf_counter()
    with ARMS[arm](client) as monitor:
        entered = time.perf_counter()
        keys = run(client, tasks)
        ran = time.perf_counter()
    left = time.perf_counter()
    used = cpu_seconds(workers) - workers_before, time.process_time() - client_before
    if monitor is not None:
        check(monitor, keys)
    return Timing(
        arm=arm,
        wall_seconds=ran - entered,
        workers_cpu_seconds=used[0],
        client_cpu_seconds=used[1],
        enter_seconds=entered - began,
        leave_seconds=left - ran,
    )


def check(monitor: TaskMonitor, keys: set[str]) -> None:
    """Every task must have been seen to its end."""
    frame = monitor.to_dataframe()
    frame = frame[frame["key"].isin(keys)]
    complete = int(frame[["worker", "start", "stop"]].notna().all(axis=1).sum())
    if monitor.problems or complete != len(keys):
        raise RuntimeError(f"{complete} of {len(keys)} tasks were seen with worker, start and stop: {monitor.problems}")


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time of these processes so far."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def wait_for_quiet(client: Client) -> None:
    """Give every arm the same beginning: no tasks, no garbage."""
    gc.collect()
    deadline = time.monotonic() + LONGEST_WAIT
    while client.cluster.scheduler.tasks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster still holds tasks after {LONGEST_WAIT:g} s")
        time.sleep(0.01)


def measured(client: Client, rounds: int, tasks: int, seed: int) -> Iterator[list[Timing]]:
    """Timings of each round: every arm once, in random order, after one of each that is not counted."""
    random = np.random.default_rng(seed)
    for arm in ARMS:
        timing(client, arm, tasks // 10)
    for _ in range(rounds):
        yield [timing(client, arm, tasks) for arm in random.permutation(list(ARMS)).tolist()]


def values(rounds: list[list[Timing]], arm: str, quantity: str) -> np.ndarray[Any, Any]:
    """A quantity of one arm, round by round."""
    return np.array([getattr(one, quantity) for timings in rounds for one in timings if one.arm == arm])


def median_with_interval(numbers: np.ndarray[Any, Any], seed: int) -> tuple[float, float, float]:
    """Median, and its 95 % interval from resampled rounds."""
    chosen = np.random.default_rng(seed).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    low, high = np.quantile(np.median(numbers[chosen], axis=1), [0.025, 0.975])
    return float(np.median(numbers)), float(low), float(high)


def print_tables(rounds: list[list[Timing]], seed: int) -> None:
    """Print medians and ratios to the plain run of the same round."""
    for quantity, meaning in QUANTITIES.items():
        print(f"\n{meaning:34}{'median':>10}    ratio to plain [95 %]")
        for arm in ARMS:
            numbers = values(rounds, arm, quantity)
            ratio = median_with_interval(numbers / values(rounds, PLAIN, quantity), seed)
            text = "" if arm == PLAIN else "{:.3f} [{:.3f}, {:.3f}]".format(*ratio)
            print(f"  {arm:32}{np.median(numbers):8.3f} s    {text}")
    for cost in ("enter_seconds", "leave_seconds"):
        milliseconds = ", ".join(f"{arm} {1e3 * np.median(values(rounds, arm, cost)):.1f} ms" for arm in ARMS)
        print(f"\n{cost}, median: {milliseconds}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="rounds, each with every arm (default 7)")
    parser.add_argument("--tasks", type=int, help="tasks of a run (default 10000)")
    parser.add_argument("--watch", action="store_true", help="measure watching instead (2000 tasks by default)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of arms and of the intervals (default 1)")
    return parser.parse_args()


def main() -> None:
    """Measure, and print tables."""
    options = parsed()
    if options.watch:
        watching.main(options.pairs, options.tasks or 2000, options.seed)
        return
    options.tasks = options.tasks or 10_000
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    with (
        tempfile.TemporaryDirectory(prefix="roastcoffea-monitor-") as scratch,
        local_client(WORKERS, 1, scratch) as client,
    ):
        rounds = list(measured(client, options.pairs, options.tasks, options.seed))
    print(f"{options.tasks} tasks of 1 ms, {WORKERS} workers with 1 thread, {options.pairs} rounds")
    print_tables(rounds, options.seed)
    ratio = median_with_interval(
        values(rounds, OURS, "wall_seconds") / values(rounds, PLAIN, "wall_seconds"), options.seed
    )
    word = "kept" if ratio[0] <= HIGHEST_RATIO else "MISSED"
    print(f"\nevery task was seen; wall time x {ratio[0]:.3f}, at most {HIGHEST_RATIO:g}: {word}")


if __name__ == "__main__":
    main()
