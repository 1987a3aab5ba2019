"""A day's worth of chunks at full speed through what the preload records on a scheduler: memory, and completeness.

Stand-ins for workers run 200,000 chunks. The recorder's journals go to a folder, as on a facility. Memory of the
process is read after each 10,000 chunks, and at the end all journals are read back: every chunk must be there.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from roastcoffea.log.journals import journals_in
from roastcoffea.log.marks import ANNOTATION, METADATA_KEY
from roastcoffea.recording.facility.journaled import is_cluster, recorded_in
from roastcoffea.recording.facility.observer import Observer
from roastcoffea.recording.facility.recorder import NAME, Recorder

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parent))
from scheduler import chunk_record, status
from stand_ins import Scheduler, Task

STEP: Final = 10_000
MOST_MEGABYTES: Final = 1.0
"""Growth per 10,000 chunks."""

WARM: Final = 4
"""Steps until caches and buffers have their size."""

OF_A_RUN: Final = 2000


def main() -> None:
    """Print what memory did, and whether every chunk is in the journals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=200_000, help="default 200000")
    parser.add_argument("--workers", type=int, default=100, help="default 100")
    options = parser.parse_args()
    scheduler: Any = Scheduler(options.workers)
    scheduler.queued, scheduler.unrunnable, scheduler.plugins = (), (), {}
    observer = Observer(scheduler, lambda: None)
    observer.tokens[NAME] = "token"
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(scheduler, observer, Path(folder))
        began, memory = time.perf_counter(), []
        for number in range(options.chunks):
            one_chunk(scheduler, observer, number)
            if number % 200 == 199:
                for worker in scheduler.workers.values():
                    worker.beat(time.time(), number)
                observer.tick(time.time())
                recorder.tick(time.time())
                time.sleep(0.01)  # the journals' threads write meanwhile
            if number % STEP == STEP - 1:
                gc.collect()
                memory.append((status("VmRSS") or 0) / 1e6)
                print(f"{number + 1:>8,} chunks  {memory[-1]:.1f} MB", flush=True)
        recorder.end()
        seconds = time.perf_counter() - began
        found = chunks_in(Path(folder))
    assert (observer.failures, recorder.failures) == (0, 0)
    slope = float(np.polyfit(range(len(memory) - WARM), memory[WARM:], 1)[0]) if len(memory) > WARM + 1 else 0.0
    print(f"{options.chunks / seconds:,.0f} chunks a second; memory grows by {slope:+.2f} MB per {STEP:,} chunks")
    print(f"{found:,} of {options.chunks:,} chunks are in the journals")
    sys.exit(slope > MOST_MEGABYTES or found != options.chunks)


def one_chunk(scheduler: Any, observer: Observer, number: int) -> None:
    """Bring a chunk through its transitions; each run has some thousand."""
    worker = list(scheduler.workers.values())[number % len(scheduler.workers)]
    call = f"call-{number // OF_A_RUN}"
    mark = {"collectors": [f"c-{number // OF_A_RUN}"], "step": "processing", "prefix": "Dijet", "call": call}
    now = time.time()
    task = Task(f"Dijet-{number:032x}", worker, "Dijet", number, {ANNOTATION: mark}, client=f"Client-{number % 7}")
    task.start, task.stop = now - 30, now
    task.metadata = {METADATA_KEY: chunk_record(number, now - 30 - 1.7e9, now - 1.7e9, worker.address)}
    scheduler.tasks[task.key] = task
    observer.transition(task.key, "released", "waiting", stimulus_id="update-graph-1")
    observer.transition(task.key, "waiting", "processing", stimulus_id="update-graph-1")
    observer.transition(task.key, "processing", "memory", stimulus_id="task-finished-1", **task.told())
    observer.transition(task.key, "memory", "released", stimulus_id="client-releases-keys-1")
    observer.transition(task.key, "released", "forgotten", stimulus_id="client-releases-keys-1")
    del scheduler.tasks[task.key]
    if number % OF_A_RUN == OF_A_RUN - 1:
        observer.runs.collector_left(mark["collectors"][0], time.time())


def chunks_in(folder: Path) -> int:
    """Chunks in all journals."""
    journals, problems = journals_in(folder)
    assert not problems, problems
    runs = (recorded_in(journal) for journal in journals if not is_cluster(journal))
    return sum(len(run.log.received.chunks(run.log.received.calls())) for run in runs)


if __name__ == "__main__":
    main()
