"""What merging the measurements of many jobs takes, and whether the sums of the whole are those of the jobs.

`python benchmarks/merging.py` writes 1000 measurements of independent jobs on 40 hosts, merges their folder, and asks
for both ledgers. That has to take less than 10 s; `--keep FOLDER` keeps the measurements, and takes those that are
there.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import independent_job

from roastcoffea import Measurement, load, merge
from roastcoffea.storage.store import save_run

LIMIT = 10.0
HOSTS = 40
AT_ONCE = 60
DURATIONS = [1.0, 2.0, 0.5] * 4


def write_jobs(folder: Path, number: int) -> None:
    """Write so many measurements, of which AT_ONCE run at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    for job in range(number):
        name = f"job-{job:05d}"
        run = independent_job(job, DURATIONS, late=5.0 * (job % AT_ONCE), host=f"node-{job % HOSTS}")
        if not (folder / name).exists():
            save_run(run, folder, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="folder for the measurements")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        write_jobs(folder, options.jobs)
        before, cpu = time.perf_counter(), time.process_time()
        merged = merge(folder)
        time_ledger, byte_ledger = merged.time_ledger, merged.byte_ledger
        wall, cpu = time.perf_counter() - before, time.process_time() - cpu
        one = Measurement(load(next(folder.iterdir())).run)
    print(f"{len(merged.run.merged)} jobs merged in {wall:.1f} s, {cpu:.1f} s of CPU (load {os.getloadavg()[0]:.1f})")
    whole = options.jobs * (one.time_ledger.total or 0.0)
    closes = math.isclose(time_ledger.total or 0.0, whole, rel_tol=1e-9) and not byte_ledger.residual
    print(f"thread time {time_ledger.total:.1f} s of {whole:.1f} s, unaccounted {time_ledger.residual:.6f} s")
    return int(wall > LIMIT or not closes)


if __name__ == "__main__":
    sys.exit(main())
