"""What the parts of the probe cost on their own, without a cluster.

Run it on a quiet machine: `python benchmarks/probe.py`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner

from roastcoffea import track_bytes, track_memory, track_time
from roastcoffea.instrument.channels import spooled
from roastcoffea.instrument.current import OpenChunk, open_chunk
from roastcoffea.instrument.probe import Probe

ROUNDS: Final = 200
"""Short rounds, of which some find the machine quiet."""

LONGEST_SECTION: Final = {"inactive": 1e-6, "active": 5e-6}
"""Seconds that a pass through `track_time` may take, without and with a collector."""


LIMITS: Final = {20: (1e-3, 1000), 300: (10e-3, 6000)}
"""For so many branches: CPU seconds that the probe may take for a chunk, and bytes of its record."""

BASKETS: Final = 4
EVENTS: Final = 1000
PAIRS: Final = 60


class Reading(ProcessorABC):  # type: ignore[misc]
    """Reads all branches."""

    def process(self, events: Any) -> dict[str, int]:
        return {"sum": sum(len(ak.materialize(events[branch])) for branch in events.fields)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Processor:
    """Stands for the user's own."""

    def empty(self) -> None:
        with nullcontext():
            pass

    def timed(self) -> None:
        with track_time(self, "jets"):
            pass

    def counted(self) -> None:
        with track_bytes(self, None, "jets"):
            pass

    def sized(self) -> None:
        with track_memory(self, "jets"):
            pass


def seconds_per_call(function: Callable[[], Any], number: int) -> float:
    """Time of a call, the least of several rounds: what is above it is the machine's noise."""
    return min(timeit.repeat(function, number=number, repeat=ROUNDS)) / number


def print_sections() -> None:
    """Print what a pass through an empty section costs, its `with` included."""
    processor = Processor()
    print(f"a section ({1e9 * seconds_per_call(processor.empty, 2000):.0f} ns of it for an empty with)")
    inactive = seconds_per_call(processor.timed, 2000)
    print_time("without a collector", inactive, LONGEST_SECTION["inactive"])
    chunk = OpenChunk()
    chunk.requested_bytes = lambda: 0
    with open_chunk(chunk):
        print_time("track_time", seconds_per_call(processor.timed, 2000), LONGEST_SECTION["active"])
        with track_time("outer"):
            print_time("track_time, nested", seconds_per_call(processor.timed, 2000), LONGEST_SECTION["active"])
        print_time("track_bytes", seconds_per_call(processor.counted, 2000))
        print_time("track_memory", seconds_per_call(processor.sized, 50))


def print_time(what: str, seconds: float, highest: float | None = None) -> None:
    """Print a time per call, and whether it keeps its limit."""
    kept = "" if highest is None else f", below {1e6 * highest:g} us: {'kept' if seconds < highest else 'MISSED'}"
    print(f"  {what:24}{1e6 * seconds:8.2f} us{kept}")


def function_for_chunks(file: Path) -> tuple[Callable[[Any], Any], Any]:
    """coffea's function for a chunk as the Runner makes it, and a chunk that lies across baskets."""
    caught: list[Any] = []

    class Catching(IterativeExecutor):  # type: ignore[misc]
        def __call__(self, items: Any, function: Any, accumulator: Any) -> Any:
            caught.extend((function, items[1]))
            return super().__call__(items, function, accumulator)

    runner = Runner(
        executor=Catching(status=False),
        pre_executor=IterativeExecutor(status=False),
        schema=BaseSchema,
        chunksize=EVENTS * 3 // 2,
        savemetrics=True,
        metadata_cache={},
    )
    runner({"a": {"files": {str(file): "Events"}}}, processor_instance=Reading())
    function, item = caught
    return function, item


def cpu_seconds(function: Callable[[], Any]) -> float:
    """CPU time of one call on this thread."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def print_chunk(branches: int) -> None:
    """Print the CPU time that the probe adds to a chunk of so many branches, and the size of its record."""
    highest_cpu, highest_size = LIMITS[branches]
    with tempfile.TemporaryDirectory() as folder:
        file, spool = Path(folder, "events.root"), Path(folder, "spool")
        spool.mkdir()
        with uproot.recreate(file) as root:
            random = np.random.default_rng(1)
            names = [f"Collection{number // 10}_variable{number % 10}" for number in range(branches)]
            root.mktree("Events", dict.fromkeys(names, np.float32))
            for _ in range(BASKETS):
                root["Events"].extend({name: random.normal(size=EVENTS).astype(np.float32) for name in names})
        function, item = function_for_chunks(file)
        probed = Probe(function, "Reading", "0" * 32, ((), str(spool), False))
        added = []
        for _ in range(PAIRS):
            plain = cpu_seconds(partial(function, item))
            added.append(cpu_seconds(partial(probed, item)) - plain)
        size = statistics.median(map(len, spooled(str(spool))))
    cpu = statistics.median(added)
    print(f"a chunk of {branches} branches, {plain * 1e3:.0f} ms of CPU without the probe")
    print(
        f"  CPU added{1e3 * cpu:19.2f} ms, below {1e3 * highest_cpu:g} ms: {'kept' if cpu < highest_cpu else 'MISSED'}"
    )
    print(f"  record{size:22.0f} B, below {highest_size} B: {'kept' if size < highest_size else 'MISSED'}")


if __name__ == "__main__":
    print_sections()
    for number_of_branches in LIMITS:
        print_chunk(number_of_branches)
