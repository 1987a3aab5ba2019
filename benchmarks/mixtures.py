"""Whether the largest of two or three planted causes is found first: ten runs, of which nine have to be right.

Each cause takes a known part of the wall time on two threads, and the next one 0.7 times as much. Another cause may
only come first by what other programs took from the run: `python benchmarks/mixtures.py`, in two minutes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import uproot

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from analyses import Planted, runner_for
from coffea.nanoevents import BaseSchema
from plants import cluster
from processes import contended
from stored import served

from roastcoffea import MetricsCollector

BRANCHES: Final = 12
CHUNKS: Final = 16


def write(folder: Path) -> None:
    """Two files of 4000 events, with one basket in each branch for each 500."""
    for name in ("a", "b"):
        with uproot.recreate(folder / f"{name}.root") as file:
            file.mktree("Events", {f"branch{number}": np.float64 for number in range(BRANCHES)})
            for _ in range(CHUNKS // 2):
                file["Events"].extend({f"branch{number}": np.arange(500.0) for number in range(BRANCHES)})


def mixtures() -> Iterator[dict[str, float]]:
    """Seconds of wall time that each of two or three causes takes, the largest first."""
    for seed in range(10):
        drawn = random.Random(seed)
        causes = drawn.sample(["blocked", "slow chunk", "client", "failures", "storage"], drawn.choice([2, 3]))
        largest = drawn.uniform(1.0, 1.5)
        yield {cause: largest * 0.7**place for place, cause in enumerate(causes)}


def run(client: Any, folder: Path, causes: dict[str, float]) -> tuple[dict[str, float], float]:
    """Seconds of each finding, and those in which something on this host waited for a core."""
    failing = 4
    plan = {
        "spin": 0.02,
        "sleep": causes.get("blocked", 0.0) * 2 / CHUNKS,
        "straggler": causes.get("slow chunk", 0.0),  # it is the last one: the other thread waits for its end
        "last": 3500,
        "file": "b.root",
        "failing": causes.get("failures", 0.0) * 2 / failing,
        "until": 1000,
        "branches": BRANCHES if "storage" in causes else 0,
    }
    late = causes.get("storage", 0.0) * 2 / CHUNKS / BRANCHES
    with tempfile.TemporaryDirectory() as marks, served(folder, latency=late) as server:
        urls = [server.url(f"{name}.root") if late else str(folder / f"{name}.root") for name in "ab"]
        runner = runner_for(client, 500, schema=BaseSchema, retries=3)
        # its work is a loop in plain Python, which would be a finding of its own: there is no profile
        with contended() as host, MetricsCollector(client, profile=False) as collector:
            runner({"data": {"files": dict.fromkeys(urls, "Events")}}, processor_instance=Planted(**plan, folder=marks))
            time.sleep(causes.get("client", 0.0))
    return {finding.cause: finding.seconds or 0.0 for finding in collector.measurement.verdict}, host.seconds


def main() -> int:
    right = 0
    with tempfile.TemporaryDirectory() as folder, cluster() as client:
        write(Path(folder))
        for causes in mixtures():
            found, busy = run(client, Path(folder), causes)
            good = max(found.values(), default=0.0) <= found.get(next(iter(causes)), 0.0) + busy
            right += good
            planted, told = (
                ", ".join(f"{name} {value:.1f} s" for name, value in one.items()) for one in (causes, found)
            )
            print(f"{'ok ' if good else 'WRONG'} planted {planted}; found {told}; others {busy:.1f} s", flush=True)
    print(f"{right} of 10 right")
    return int(right < 9)


if __name__ == "__main__":
    sys.exit(main())
