"""What it takes to conclude from a large run: ledger, model of who is slow, profile and verdict, and the memory for it.

The run is made up: a million chunks on 2000 workers, in files of twenty chunks, with a profile of many stacks. Run it
on a quiet machine: `python benchmarks/conclusions.py`. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import pyarrow as pa
from pictures import synthetic_run

from roastcoffea.measurement import Measurement, load
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PROFILE_COLUMNS, Run, RunnerCall

WORKERS: Final = 2000
CHUNKS_OF_FILE: Final = 20
MOST_SECONDS: Final = 15.0
MOST_BYTES: Final = 2e9
STACKS: Final = 5000


def large_run(chunks: int) -> Run:
    """A run of this many chunks."""
    run = synthetic_run(workers=WORKERS, threads=1, rounds=max(chunks // WORKERS, 2), samples=300)
    assert run.chunks is not None
    table, place = run.chunks, np.arange(len(run.chunks))
    turn = place % CHUNKS_OF_FILE
    columns = {
        "file": [f"root://storage//store/{number}.root" for number in place // CHUNKS_OF_FILE],
        "entry_start": turn * 20_000,
        "entry_stop": (turn + 1) * 20_000,
    }
    for name, values in columns.items():
        number = table.schema.get_field_index(name)
        table = table.set_column(number, table.field(number), pa.array(values).cast(table.field(number).type))
    call = RunnerCall(
        id="c1",
        processor="Dijet",
        executor="DaskExecutor",
        start=run.start,
        stop=run.stop,
        outcome="finished",
        options={"chunksize": 20_000, "executor.treereduction": 20},
    )
    return replace(run, chunks=table, calls=(call,), profile=profile())


def profile() -> pa.Table:
    """Stacks of ten frames, each another one."""
    empty = dict.fromkeys((column.name for column in PROFILE_COLUMNS), None)
    rows = [
        empty
        | {
            "dataset": "qcd",
            "functions": [f"function{(number + depth) % 97}" for depth in range(10)],
            "files": ["analysis.py"] * 10,
            "lines": [(number * 7 + depth) % 500 for depth in range(10)],
            "samples": 10,
            "seconds": 1.0,
            "core_seconds": 1.0,
            "contention_seconds": 0.0,
            "blocked_seconds": 0.0,
        }
        for number in range(STACKS)
    ]
    return table_of_rows(PROFILE_COLUMNS, rows)


def concluded(folder: Path) -> int:
    """Conclude from a saved run, and print what it took; 1 where a goal is missed."""
    measurement = load(folder)
    before = peak()
    print(f"{len(measurement.run.chunks or ()):,} chunks on {WORKERS:,} workers, {before / 1e9:.2f} GB when loaded")
    total = 0.0
    for name in ("time_ledger", "slowness", "profile", "verdict"):
        began, cpu = time.perf_counter(), time.process_time()
        measurement.metrics.evaluator.value(name)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        total += wall
        print(f"{name:<14}{wall:>7.2f} s, {cpu:>6.2f} s of CPU")
    more = peak() - before
    kept = total <= MOST_SECONDS and more <= MOST_BYTES
    print(f"together {total:.1f} s (at most {MOST_SECONDS:g} s), {more / 1e9:.2f} GB more at the peak (at most 2 GB)")
    print("kept" if kept else "MISSED")
    return int(not kept)


def peak() -> float:
    """Bytes of memory that this process had at most."""
    # what getrusage tells is at least what the process had that started this one
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) * 1024


def main() -> int:
    """Save a large run, and conclude from it in a process of its own; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--saved", type=Path, help="conclude from this measurement instead")
    options = parser.parse_args()
    if options.saved is not None:
        return concluded(options.saved)
    with tempfile.TemporaryDirectory(prefix="roastcoffea-conclusions-") as folder:
        saved = Measurement(large_run(options.chunks)).save(folder, "large")
        return subprocess.run([sys.executable, __file__, "--saved", str(saved)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
