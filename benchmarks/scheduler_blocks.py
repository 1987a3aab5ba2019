"""Steps of a scheduler's event loop that take long while a collector is entered, runs and is left.

    python benchmarks/scheduler_blocks.py [--repeats 3]

Each repeat starts a new scheduler with a dashboard, and two workers. Steps above 10 ms that are in our code, or in a
module that it loads, are printed: wall time, CPU time of the loop's thread, and where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Client

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from processes import CommandLineCluster

LONG = 0.010


def watch(long: float, dask_scheduler: Any = None) -> None:
    """Time each step of the event loop, and look where its thread is."""
    import asyncio
    import sys
    import threading
    import time

    loop, began = threading.get_ident(), [0.0]
    seen: list[list[str]] = []
    found: list[tuple[float, float, list[list[str]]]] = []
    dask_scheduler.long_steps = found
    run = asyncio.events.Handle._run

    def timed(self: Any) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        began[0] = wall
        seen.clear()
        try:
            run(self)
        finally:
            began[0] = 0.0
            if time.perf_counter() - wall > long:
                found.append((time.perf_counter() - wall, time.thread_time() - cpu, list(seen)))

    def look() -> None:
        while True:
            time.sleep(0.001)
            frame, stack = sys._current_frames().get(loop), []
            while frame is not None and began[0]:
                if "importlib" not in frame.f_code.co_filename:
                    stack.append(f"{frame.f_code.co_filename[-40:]}:{frame.f_lineno} {frame.f_code.co_name}")
                frame = frame.f_back
            seen.append(stack)

    asyncio.events.Handle._run = timed
    threading.Thread(target=look, daemon=True).start()


def taken(dask_scheduler: Any = None) -> list[Any]:
    """Long steps since the last time."""
    steps = list(dask_scheduler.long_steps)
    dask_scheduler.long_steps.clear()
    return steps


def show(client: Client, what: str) -> float:
    """Print the steps that are ours; their longest CPU time."""
    time.sleep(2)
    longest = 0.0
    for wall, cpu, stacks in client.run_on_scheduler(taken):
        ours = [stack for stack in stacks if any("roastcoffea" in line or "dynamic" in line for line in stack[:-12])]
        if ours:
            longest = max(longest, cpu)
            print(f"{what:12} {1e3 * wall:5.0f} ms, {1e3 * cpu:5.0f} ms CPU: {' < '.join(ours[len(ours) // 2][:5])}")
    return longest


def measure() -> float:
    """Longest step of ours on a new scheduler."""
    from roastcoffea.collector import MetricsCollector

    with TemporaryDirectory() as folder:
        cluster = CommandLineCluster(Path(folder))
        try:
            with Client(scheduler_file=str(cluster.file)) as client:
                client.wait_for_workers(2)
                client.run_on_scheduler(watch, long=LONG)
                show(client, "before")
                longest = []
                with MetricsCollector(client, journal=None) as collector:
                    longest.append(show(client, "entered"))
                    client.gather(client.map(str, range(500), pure=False))
                    longest.append(show(client, "run"))
                longest.append(show(client, "left"))
                assert collector.measurement.tasks["prefix"].eq("str").sum() == 500
                return max(longest)
        finally:
            cluster.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    for _ in range(parser.parse_args().repeats):
        print(f"longest: {1e3 * measure():.0f} ms of CPU")
