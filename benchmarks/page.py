"""What the page of a long run costs: seconds, memory and bytes to make it, and how a real browser moves in it.

The run has 1,000,000 tasks on 1000 workers with two threads each. Of the page alone, seconds and memory are counted
beyond the run whose metrics are evaluated; what that takes is told before.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from roastcoffea.measurement import Measurement
from roastcoffea.records.run import Run

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from browser import Browser, installed_browser
from pictures import synthetic_run

MEGABYTE: Final = 1e6
GIGABYTE: Final = 1e9
KIBIBYTE: Final = 1024
MARKS: Final[Mapping[str, float]] = {"seconds": 15, "GB": 0.6, "seconds to open": 2, "ms a frame (95 %)": 60}
MOST_MEGABYTES: Final = {False: 4.0, True: 8.0}
MISSED: Final[list[str]] = []
"""Marks that were not kept."""

DRAWN: Final = "document.documentElement.dataset.charts === 'drawn'"


def main() -> int:
    """Print what it costs, beside what it may cost; the exit status is 1 where a mark was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500, help="chunks of each thread")
    arguments = parser.parse_args()
    run = uneven(synthetic_run(workers=arguments.workers, threads=2, rounds=arguments.rounds, samples=600))
    print(f"{len(run.tasks):,} tasks on {arguments.workers} workers; {os.getloadavg()[0]:.1f} processes want a core")
    measurement = Measurement(run)
    timed("metrics", lambda: len(measurement.metrics), {})
    with tempfile.TemporaryDirectory() as folder:
        for every_task in (False, True):
            examine(measurement, Path(folder, f"page{every_task:d}.html"), every_task)
    print(f"MISSED: {', '.join(MISSED)}" if MISSED else "all marks are kept")
    return 1 if MISSED else 0


def uneven(run: Run) -> Run:
    """Run whose tasks begin and end some milliseconds beside what a rule says, as this does not compress so well."""
    random, tasks = np.random.default_rng(1), run.tasks
    assert tasks is not None
    for column, sign in (("start", -1), ("stop", 1)):
        times = tasks[column].to_numpy() + sign * random.uniform(0, 0.009, len(tasks))
        tasks = tasks.set_column(tasks.schema.get_field_index(column), column, pa.array(times))
    return dataclasses.replace(run, tasks=tasks)


def examine(measurement: Measurement, path: Path, every_task: bool) -> None:
    """Make a page, and look at it."""
    print("every task" if every_task else "pixels")
    timed("page", lambda: measurement.report(path, every_task=every_task))
    tell("MB", path.stat().st_size / MEGABYTE, MOST_MEGABYTES[every_task])
    program = installed_browser()
    if program is None:
        print("  there is no Chromium")
        return
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile), program) as browser:
        browser.size(1280, 900)
        browser.open(Path(__file__))  # so that the browser itself has started
        tell("seconds to open", browser.open(path, DRAWN), MARKS["seconds to open"])
        for what, clicks in (("half of the run", 1), ("an eighth of it", 2), ("single tasks", 6)):
            for _ in range(clicks):
                browser.evaluate("document.querySelector('[data-move=in]').click()")
            time.sleep(1)
            for chart in ("classes", "stream"):
                print(f"  dragging {what} in {chart}")
                before = browser.cpu_seconds()
                frames = frames_of(browser, chart)
                cpu = 1e3 * (browser.cpu_seconds() - before) / len(frames)
                half, most = np.quantile(frames, [0.5, 0.95])
                tell("ms a frame (95 %)", float(most), MARKS["ms a frame (95 %)"])
                tell("ms a frame (50 %)", float(half), None)
                tell("ms of CPU a frame, in all processes", cpu, None)
        print(f"  messages: {browser.messages}")


def frames_of(browser: Browser, chart: str) -> list[float]:
    """Milliseconds between frames while a chart is dragged to and fro."""
    box = browser.box(f"#plot-{chart}")
    left, right = (box["x"] + share * box["width"] for share in (0.35, 0.65))
    y = box["y"] + box["height"] / 2
    return browser.drag((left, y), (right, y)) + browser.drag((right, y), (left, y))


def timed(name: str, work: Callable[[], Any], marks: Mapping[str, float] = MARKS) -> None:
    """Print seconds and memory of some work."""
    before = forgotten()
    began, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"  {name}, of CPU {cpu:.1f} s")
    tell("seconds", seconds, marks.get("seconds"))
    tell("GB", memory("VmHWM") - before, marks.get("GB"))


def tell(unit: str, amount: float, mark: float | None) -> None:
    """Print an amount with its mark, and whether that is kept."""
    if mark is None:
        print(f"    {amount:8.2f} {unit}")
        return
    kept = amount <= mark
    print(f"    {amount:8.2f} {unit}, mark {mark:g}: {'kept' if kept else 'MISSED'}")
    if not kept:
        MISSED.append(f"{amount:.2f} {unit}")


def forgotten() -> float:
    """GB of memory that are held when all that is free was given back; the peak begins here."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> float:
    """GB of this process, as the kernel counts them (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(KIBIBYTE * float(line.split()[1]) / GIGABYTE for line in lines if line.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
