"""Cores that other processes took, quiet and beside spinning ones, against psutil over the same time.

`python benchmarks/others.py` prints a row for each number of spinners; the exit status is 1 where a number is off by
more than 10 % or 0.1 core, whichever is larger.
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
from distributed import Client, LocalCluster

from roastcoffea import MetricsCollector

SPINNERS = (0, 1, 2, 8)
TASKS = 40


def work(number: int) -> int:
    """Use a quarter of a second of CPU."""
    began = time.thread_time()
    while time.thread_time() - began < 0.25:
        number = sum(range(number % 1000 + 1000))
    return number


def busy() -> float:
    """CPU time of this host so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def own(spinners: set[int]) -> float:
    """CPU time so far of this process, and of the workers that it started."""
    this = psutil.Process()
    every = [this, *(child for child in this.children(recursive=True) if child.pid not in spinners)]
    return float(sum(sum(one.cpu_times()[:2]) for one in every))


def compared(spinners: int) -> tuple[float, float]:
    """Cores of others beside so many spinners: as measured, and as psutil has them."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(spinners)]
    pids = {other.pid for other in others}
    try:
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            before = time.monotonic(), busy(), own(pids)
            with MetricsCollector(client) as collector:
                client.gather(client.map(work, range(TASKS), pure=False))
            seconds, whole, ours = time.monotonic() - before[0], busy() - before[1], own(pids) - before[2]
    finally:
        for other in others:
            other.kill()
            other.wait()
    return float(collector.measurement.metrics["cores_of_others"]), (whole - ours) / seconds


def main() -> int:
    """Print a table; return the number of wrong rows."""
    wrong = 0
    print(f"{'spinners':>8} {'measured':>9} {'psutil':>7}")
    for spinners in SPINNERS:
        found, expected = compared(spinners)
        is_off = abs(found - expected) > max(0.1 * expected, 0.1)
        wrong += is_off
        print(f"{spinners:>8} {found:>9.2f} {expected:>7.2f}{'  off' if is_off else ''}")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
