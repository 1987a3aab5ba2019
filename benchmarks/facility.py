"""A day's worth of chunks at full speed through `dask scheduler --preload roastcoffea.facility`.

    python benchmarks/facility.py [--chunks 200000] [--workers 4]

Two clients without a collector submit runs of 2000 chunks each. The workers are Dask's, and end chunks at once with a
record as the workers' preload leaves it. The scheduler's memory is read after each 10,000 chunks, once
garbage is collected and free memory given back. At the end all journals are read back: every chunk must be there, in
the run and of the client that it belongs to.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import dask
import numpy as np
from coffea.processor import Runner
from coffea.processor.executor import WorkItem
from distributed import Client, Worker
from distributed.worker_state_machine import ExecuteSuccessEvent

from roastcoffea.log.journals import journals_in
from roastcoffea.log.marks import METADATA_KEY
from roastcoffea.recording.facility.index import is_cluster, recorded_in, run_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parent))
from processes import CommandLineCluster, wait_until
from scheduler import chunk_record

STEP: Final = 10_000
MOST_MEGABYTES: Final = 1.0
"""Growth per 10,000 chunks."""

WARM: Final = 4
"""Steps until Dask's own logs, caches and buffers have their size."""

OF_A_RUN: Final = 2000
FILE: Final = "root://storage.example.org//store/mc/NanoAODv9/{:06d}.root"
BEGINNING: Final = 1_700_000_000.0
"""Origin of the times of `chunk_record`."""

QUIET: Final = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.admin.system-monitor.interval": "10s",
}
"""Monitors of workers that would take most of the time."""


class AtOnce(Worker):  # type: ignore[misc]
    """A worker that ends each chunk at once, and leaves the record of one."""

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:  # noqa: ARG002  (distributed's signature)
        """End a task."""
        task, now = self.state.tasks[key], time.time()
        record = chunk_record(task.run_id, now - 30 - BEGINNING, now - BEGINNING, self.address)
        task.metadata[METADATA_KEY] = record
        known = {"value": 1, "nbytes": 28, "type": int}
        self.threads[key] = 1
        return ExecuteSuccessEvent(
            key=key, run_id=task.run_id, start=now - 30, stop=now, stimulus_id=f"task-finished-{now}", **known
        )


async def work(address: str, workers: int) -> None:
    """Have workers until the process is ended."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with dask.config.set(QUIET):
        running = [AtOnce(address, nthreads=4, dashboard=False, memory_limit=0) for _ in range(workers)]
        await asyncio.gather(*running)
        await asyncio.gather(*(worker.finished() for worker in running))


class Facility(CommandLineCluster):
    """A scheduler with the preload, and workers that end chunks at once."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.journal = folder / "journal"
        super().__init__(folder, workers=0, path=os.environ.get("PYTHONPATH", ""))
        address = Client(scheduler_file=str(self.file))
        self.address = address.scheduler.address
        address.close()
        self.processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--work-for", self.address, "--workers", str(workers)],
                start_new_session=True,
            )
        )

    def _run_dask(self, *command: str, **more: Any) -> Any:
        preload = ("--preload", "roastcoffea.facility", "--roastcoffea-journal", str(self.journal))
        return super()._run_dask(*command, *preload, **more)

    @property
    def megabytes(self) -> float:
        """Memory of the scheduler."""
        lines = Path(f"/proc/{self.processes[0].pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


@contextmanager
def facility(folder: Path, workers: int) -> Iterator[Facility]:
    """A facility until it is left, and its scheduler closes."""
    cluster = Facility(folder, workers)
    try:
        yield cluster
    finally:
        cluster.close()


def trimmed(dask_scheduler: Any = None) -> None:  # noqa: ARG001  (Dask's name)
    """Collect garbage, and give free memory back to the system, so that what is left is in use."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def one_run(client: Client, number: int) -> None:
    """Have all chunks of a run processed, and drop the results."""
    items = [
        WorkItem(f"run {number}", FILE.format(chunk // 10), "Events", chunk, chunk + 1, b"", {})
        for chunk in range(OF_A_RUN)
    ]
    name = f"Processor{number}"
    keys = [f"{name}-{number:08x}{chunk:024x}" for chunk in range(OF_A_RUN)]
    futures = client.map(partial(Runner._work_function, None), items, key=keys)
    client.gather(futures)


def soak(cluster: Facility, chunks: int) -> list[float]:
    """Memory after each 10,000 chunks."""
    clients = [Client(cluster.address, name=name, set_as_default=False) for name in ("jane", "john")]
    memory, began = [], time.monotonic()
    clients[0].wait_for_workers(1)
    for number in range(chunks // OF_A_RUN):
        one_run(clients[number % 2], number)
        done = (number + 1) * OF_A_RUN
        if done % STEP == 0:
            clients[0].run_on_scheduler(trimmed)
            memory.append(cluster.megabytes)
            rate = done / (time.monotonic() - began)
            print(f"{done:>8,} chunks  {memory[-1]:.1f} MB  {rate:,.0f} chunks a second", flush=True)
    for client in clients:
        client.close()
    return memory


def not_ended(folder: Path) -> int:
    """Journals of runs whose end is not written yet."""
    runs = [journal for journal in journals_in(folder)[0] if not is_cluster(journal)]
    return sum(not recorded_in(journal).run.get("ended") for journal in runs)


def recorded(folder: Path) -> Counter[str]:
    """Chunks of each user in all journals of runs; one with chunks of another user, or a problem, is an error."""
    found: Counter[str] = Counter()
    journals, problems = journals_in(folder)
    for journal in journals:
        if not is_cluster(journal):
            run = run_of(journal)
            problems += run.problems
            user = str(journal.header["client"]).split("-")[1]
            found[user] += 0 if run.chunks is None else len(run.chunks)
    if problems:
        raise SystemExit("\n".join(problems))
    return found


def main() -> None:
    """Print what memory did, and whether every chunk is in the journals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=200_000, help="default 200000")
    parser.add_argument("--workers", type=int, default=4, help="default 4")
    parser.add_argument("--work-for", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_for:
        asyncio.run(work(options.work_for, options.workers))
        return
    with tempfile.TemporaryDirectory() as folder:
        with facility(Path(folder), options.workers) as cluster:
            memory = soak(cluster, options.chunks)
            ended = wait_until(lambda: not_ended(cluster.journal) == 0, 60)
        found = recorded(cluster.journal)
    slope = float(np.polyfit(range(len(memory) - WARM), memory[WARM:], 1)[0]) if len(memory) > WARM + 1 else 0.0
    print(f"memory of the scheduler grows by {slope:+.2f} MB per {STEP:,} chunks")
    print(f"{found.total():,} of {options.chunks:,} chunks are in the journals: {dict(found)}")
    even = len(set(found.values())) == 1
    sys.exit(not (ended and even and slope < MOST_MEGABYTES and found.total() == options.chunks))


if __name__ == "__main__":
    main()
