"""What the parts of the probe cost on their own, without a cluster.

Run it on a quiet machine: `python benchmarks/probe.py`. It stays on one core: else the system moves its threads to and
fro, and a chunk takes half as long again in one run as in the next.
"""

from __future__ import annotations

import gc
import math
import os
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import awkward as ak
import numpy as np
import numpy.typing as npt
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner

from roastcoffea import track_bytes, track_memory, track_time
from roastcoffea.instrument.attempt import Attempt
from roastcoffea.instrument.channels import OUTPUT_KEY, DaskTask
from roastcoffea.instrument.probe import Probe
from roastcoffea.instrument.sampler import Stacks
from roastcoffea.instrument.tasks import Settings, call_measured
from roastcoffea.instrument.track import OpenChunk, open_chunk
from roastcoffea.log.packing import packed_records

ROUNDS: Final = 200
"""Short rounds, of which some find the machine quiet."""

LONGEST_SECTION: Final = {"inactive": 1e-6, "active": 5e-6}
"""Seconds that a pass through `track_time` may take, without and with a collector."""


PROFILED_SECONDS: Final = 60.0
MOST_OF_SAMPLER: Final = 0.005
"""CPU time of the sampler's thread, as a share of the time in which a chunk is open."""

LIMITS: Final = {20: (1e-3, 1000), 300: (10e-3, 6000)}
"""For so many branches: CPU seconds that the probe may take for a chunk, and bytes of its record."""

BASKETS: Final = 4
EVENTS: Final = 1000
PAIRS: Final = {20: 2000, 300: 200}
WINDOW: Final = 10
"""Pairs that follow one another; their fastest runs are those that noise hardly reached."""

RESAMPLED: Final = 1000


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
    kept = "" if highest is None else f", below {1e6 * highest:g} us: {verdict(seconds < highest)}"
    print(f"  {what:24}{1e6 * seconds:8.2f} us{kept}")


def print_sampler() -> None:
    """Print the CPU time of the sampler's thread while chunks are open that wait, use awkward, or spin in Python."""
    print(f"the sampler, {PROFILED_SECONDS:g} s with an open chunk")
    for what, work in (("waiting", waiting), ("awkward, NumPy", arrays), ("Python", spinning)):
        stacks = Stacks(print)
        time.sleep(0.5)  # until the last sampler has ended
        before = threads()
        share = stacks.run(sampler_share, work, before)
        samples = sum(stacks.packed()[2][1::6])
        kept = f"below {100 * MOST_OF_SAMPLER:g} %: {verdict(share < MOST_OF_SAMPLER)}"
        print(f"  {what:24}{100 * share:8.3f} % of a core, {samples} samples, {kept}")


def sampler_share(work: Callable[[], None], before: set[str]) -> float:
    """CPU time of the thread that came since, as a share of the time that the work goes on."""
    time.sleep(0.3)
    (sampler,) = threads() - before
    began, cpu = time.perf_counter(), cpu_of_thread(sampler)
    while time.perf_counter() - began < PROFILED_SECONDS:
        work()
    return (cpu_of_thread(sampler) - cpu) / (time.perf_counter() - began)


def threads() -> set[str]:
    """Threads of this process."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def cpu_of_thread(thread: str) -> float:
    """CPU time of a thread of this process, as the kernel counts it."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) * 1e-9


def waiting() -> None:
    time.sleep(0.1)


def arrays() -> None:
    array = ak.Array([[1.0, 2.0, 3.0], [], [4.0]] * 2000)
    for _ in range(20):
        ak.sum(array[array > 1.5])
        np.sort(np.random.default_rng(1).random(5000))


def spinning() -> None:
    sum(number * number for number in range(100_000))


def function_for_chunks(file: Path, size: int, handler: type | None) -> tuple[Callable[[Any], Any], Any]:
    """coffea's function for a chunk as the Runner makes it, and its second chunk of so many events."""
    caught: list[Any] = []

    class Catching(IterativeExecutor):  # type: ignore[misc]
        def __call__(self, items: Any, function: Any, accumulator: Any) -> Any:
            caught.extend((function, items[1]))
            return super().__call__(items, function, accumulator)

    runner = Runner(
        executor=Catching(status=False),
        pre_executor=IterativeExecutor(status=False),
        schema=BaseSchema,
        chunksize=size,
        savemetrics=True,
        metadata_cache={},
    )
    options = {} if handler is None else {"uproot_options": {"handler": handler}}
    runner({"a": {"files": {str(file): "Events"}}}, processor_instance=Reading(), **options)
    function, item = caught
    return function, item


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """CPU time of one call on this thread, and of the whole process meanwhile."""
    process, thread = time.process_time(), time.thread_time()
    function()
    return time.thread_time() - thread, time.process_time() - process


def print_chunks(branches: int) -> None:
    """Print what the probe adds to chunks of so many branches: one that is a basket of each, and one across two."""
    print(f"a chunk of {branches} branches")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "events.root")
        with uproot.recreate(file) as root:
            random = np.random.default_rng(1)
            names = [f"Collection{number // 10}_variable{number % 10}" for number in range(branches)]
            root.mktree("Events", dict.fromkeys(names, np.float32))
            for _ in range(BASKETS):
                root["Events"].extend({name: random.normal(size=EVENTS).astype(np.float32) for name in names})
        pairs = PAIRS[branches]
        one, two = (chunks_of(file, size) for size in (EVENTS, EVENTS * 3 // 2))
        print_added(*one, *LIMITS[branches], pairs, "one basket of each")
        print_added(*two, math.inf, LIMITS[branches][1], pairs // 2, "two baskets of each")
        print_added(
            *functions_of(str(file)), *LIMITS[branches], pairs, "a function without a Runner, one basket of each"
        )


Way = Callable[[], Any]


def chunks_of(file: Path, size: int, handler: type | None = None) -> tuple[Way, Way, int]:
    """A chunk without the probe and with it, and the size of its record; `handler` is uproot's class for its source."""
    function, item = function_for_chunks(file, size, handler)
    probed = Probe(function, "Reading", "0" * 32, ((), None, True))
    return partial(function, item), partial(probed, item), sum(map(len, probed(item)[OUTPUT_KEY]))


def functions_of(file: str, handler: type | None = None) -> tuple[Way, Way, int]:
    """A function that reads a basket of each branch, as it is and measured, and the size of its record."""
    sizes: list[int] = []

    class Home:
        name = "read_all"
        settings = Settings()
        task = DaskTask()
        complain = print

        @staticmethod
        def take(records: Any, *, failed: bool) -> None:  # noqa: ARG004
            sizes.append(len(records if isinstance(records, bytes) else packed_records(records)))

    options = {} if handler is None else {"handler": handler}
    with_probe = partial(call_measured, read_all, (file,), options, None, lambda *_: Home)
    with_probe()
    return partial(read_all, file, **options), with_probe, sizes[0]


def read_all(file: str, **options: Any) -> int:
    """Read a basket of each branch."""
    with uproot.open(file, **options) as root:
        tree = root["Events"]
        return sum(len(tree[name].array(entry_start=EVENTS, entry_stop=2 * EVENTS)) for name in tree.keys())  # noqa: SIM118


def print_added(  # noqa: PLR0917
    function: Way, probed: Way, size: int, highest_cpu: float, highest_size: int, pairs: int, what: str
) -> None:
    """Print the CPU time that the probe adds, and the size of the record."""
    probed()
    function()
    # else a full collection of what was there before falls now on one of the two, now on the other
    gc.collect()
    gc.freeze()
    seconds: tuple[list[tuple[float, float]], ...] = ([], [])
    with measuring_of_records() as recorded:
        for pair in range(pairs):
            for place in (0, 1) if pair % 2 else (1, 0):
                seconds[place].append(cpu_seconds((function, probed)[place]))
    (plain, of_process), (with_probe, of_process_with) = np.moveaxis(np.array(seconds) * 1e3, 2, 1)
    quiet = in_quiet_windows(with_probe, plain)
    kept = (
        ""
        if highest_cpu == math.inf
        else f", below {1e3 * highest_cpu:g} ms: {verdict(np.median(quiet) < 1e3 * highest_cpu)}"
    )
    print(f"  {what}, {np.median(plain):.0f} ms of CPU without the probe, {pairs} pairs")
    print(f"    CPU added   {median_and_interval(quiet)} in the fastest of {WINDOW}{kept}")
    print(f"                {median_and_interval(with_probe - plain)} in the median pair")
    of_all = in_quiet_windows(of_process_with, of_process)
    print(f"                {median_and_interval(of_all)} in the fastest of {WINDOW}, with the other threads")
    print(f"    measuring   {1e3 * np.median(recorded):5.2f} ms in the median record")
    print(f"    record      {size:5} B, below {highest_size} B: {verdict(size < highest_size)}")


@contextmanager
def measuring_of_records() -> Iterator[list[float]]:
    """CPU time of the probe by its own records."""
    seconds, end = list[float](), Attempt.end

    def ended(self: Attempt, error: BaseException | None = None) -> dict[str, Any]:
        record = end(self, error)
        seconds.append(record["measuring_seconds"])
        return record

    with patch.object(Attempt, "end", ended):
        yield seconds


def in_quiet_windows(with_probe: npt.NDArray[np.float64], plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Difference of the fastest runs of each window."""
    fastest, fastest_plain = (arm.reshape(-1, WINDOW).min(axis=1) for arm in (with_probe, plain))
    return fastest - fastest_plain


def median_and_interval(milliseconds: npt.NDArray[np.float64]) -> str:
    """The median and its 95 % interval."""
    draws = np.random.default_rng(1).choice(milliseconds, (RESAMPLED, len(milliseconds)))
    lowest, highest = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return f"{np.median(milliseconds):5.2f} ms [{lowest:.2f}, {highest:.2f}]"


def verdict(kept: bool) -> str:
    """What is printed of a limit."""
    return "kept" if kept else "MISSED"


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print_sections()
    print_sampler()
    for number_of_branches in LIMITS:
        print_chunks(number_of_branches)
