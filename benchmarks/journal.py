"""What a journal costs: bytes on disk for each task, chunk and sample, and CPU time of the client.

    python benchmarks/journal.py

Stand-ins for a scheduler and its workers make the log that a client drains each second; no two records of chunks are
alike. CPU time is that of the journal's own work: removing secrets, checksums, compression, and writing to disk.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from roastcoffea.log.journal import LOG, JournalWriter
from roastcoffea.log.journals import journal_in
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.log.packing import BASKETS_LISTED, BRANCHES, BRANCHES_HAVE, packed_records

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parent))
from scheduler_memory import BEGINNING, Load
from stand_ins import Scheduler, started_plugin

SECONDS: Final = 60
PIECE: Final = 1_000_000


class Cost(NamedTuple):
    """Of one scenario."""

    drained: int
    written: int
    cpu: float
    """Seconds of CPU time for a second of the run."""


def record(number: int) -> bytes:
    """Record of a chunk that read 20 columns, with figures of its own."""
    draw = random.Random(number)
    names = [f"Jet_{name}{place}" for place in range(5) for name in ("pt", "eta", "phi", "mass")]
    branches = {name: [draw.randrange(2**20) for _ in names] for name in BRANCHES_HAVE}
    branches |= {"branch": names, BASKETS_LISTED: [1] * len(names)}
    figures = {
        name: BEGINNING + draw.random() * 3600
        for name in ("start", "stop", "wall_seconds", "cpu_seconds", "process_cpu_seconds")
    }
    texts = {
        "dataset": f"TTToSemiLeptonic_UL{number % 3}",
        "file": f"root://storage.example.org//store/mc/RunIISummer20UL18NanoAODv9/{draw.randrange(10**6)}.root",
        "worker": f"tcp://10.0.0.{number % 250}:40000",
        "key": f"DijetProcessor-{draw.randrange(16**32):032x}",
        "call": "fedcba9876543210" * 2,
        "outcome": "ok",
    }
    numbers = {"id": draw.randrange(2**62), "entry_start": number * 1000, "entry_stop": number * 1000 + 1000}
    return packed_records([texts | numbers | figures | {BRANCHES: branches}])


def drained(load: Load) -> Iterator[bytes]:
    """What a client drains each second."""
    scheduler = Scheduler(load.workers)
    plugin = started_plugin(scheduler)
    tasks = load.tasks_of(scheduler, b"")
    number = 0
    for second in range(load.seconds):
        scheduler.beat(BEGINNING + second, second)
        plugin.sample()
        for task in islice(tasks, load.tasks // load.seconds):
            number += 1
            task.metadata[METADATA_KEY] = record(number)
            scheduler.run(plugin, task)
        pieces = []
        while not pieces or plugin.log.size:
            pieces.append(plugin.drain(PIECE, plugin.log.given)["data"])
        yield b"".join(pieces)


def cost_of(load: Load, folder: Path) -> Cost:
    """Cost of the journal of a run."""
    pieces = list(drained(load))
    writer = JournalWriter(folder, {"start": BEGINNING}, print)
    began = time.process_time()
    for piece in pieces:
        writer.write(LOG, piece)
        writer.flush()
    writer.close()
    cpu = (time.process_time() - began) / load.seconds
    written = journal_in(folder).size
    writer.remove()
    return Cost(sum(map(len, pieces)), written, cpu)


def main() -> None:
    """Print what each scenario costs."""
    scenarios = {
        "2 workers, 10 chunks a second": Load(2, SECONDS, 10 * SECONDS),
        "1000 workers, no chunks": Load(1000, SECONDS, 0),
        "1000 workers, 30 chunks a second": Load(1000, SECONDS, 30 * SECONDS),
        "1000 workers, 500 chunks a second": Load(1000, SECONDS, 500 * SECONDS),
    }
    with tempfile.TemporaryDirectory() as place:
        for number, (name, load) in enumerate(scenarios.items()):
            cost = cost_of(load, Path(place) / str(number))
            share = cost.written / cost.drained
            rate = cost.written / load.seconds / 1000
            print(f"{name:34} {rate:7.1f} kB/s ({share:.0%} of what is drained), CPU {1000 * cost.cpu:5.2f} ms/s")
        samples = cost_of(Load(1000, SECONDS, 0), Path(place) / "samples")
        chunks = cost_of(Load(1, SECONDS, 500 * SECONDS), Path(place) / "chunks")
    print(f"a sample of a worker: {samples.written / (1000 * SECONDS):.0f} B")
    print(f"a task with the record of its chunk: {chunks.written / (500 * SECONDS):.0f} B")


if __name__ == "__main__":
    main()
