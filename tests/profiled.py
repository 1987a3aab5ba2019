"""Functions that take planned time, and what the profile says of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import pyarrow as pa
from coffea.processor import ProcessorABC
from processes import wait_until

from roastcoffea.instrument.sampler import Stacks
from roastcoffea.log.received import ReceivedProfiles
from roastcoffea.log.stacks import packed_stacks
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import PROFILE_COLUMNS

STATES = ("core_seconds", "contention_seconds", "blocked_seconds")


def packed_of(code: CodeType) -> list[Any]:
    """Profile of an attempt that was in one function, as its record has it."""
    return packed_stacks({((1, 7),): [1, 0.1, 0.1, 0.0, 0.0]}, {1: code})


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def heavy(seconds: float) -> None:
    spin(seconds)


def light(seconds: float) -> None:
    spin(seconds)


def nap(seconds: float) -> None:
    time.sleep(seconds)


class Planned(ProcessorABC):
    """Spins and sleeps in named functions, and gives what its clocks say of that: wall and CPU time by function."""

    def __init__(self, rounds: int = 10, heavy: float = 0.007, light: float = 0.003, nap: float = 0.01) -> None:
        self.rounds = rounds
        self.parts = {"heavy": heavy, "light": light, "nap": nap}

    def process(self, events: Any) -> dict[str, float]:
        taken: Counter[str] = Counter()
        for _ in range(self.rounds):
            for name, seconds in self.parts.items():
                wall, cpu = time.perf_counter(), time.thread_time()
                globals()[name](seconds)
                taken[name] += time.perf_counter() - wall  # type: ignore[assignment]
                taken[f"{name} cpu"] += time.thread_time() - cpu  # type: ignore[assignment]
        return dict(taken)

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def packed_profile(function: Any, *args: Any) -> list[Any]:
    """What the sampler found in a call of a function."""
    stacks = Stacks(raise_problem)
    stacks.run(function, *args)
    return stacks.packed()


def raise_problem(problem: str) -> None:
    raise AssertionError(problem)


def rows_of(packed: Iterable[list[Any]]) -> list[dict[str, Any]]:
    """Stacks of several attempts."""
    received = ReceivedProfiles()
    for one in packed:
        if one:
            received.add("call", "data", one)
    return received.table({"call"}).to_pylist()


def seconds_in(rows: Sequence[dict[str, Any]], function: str, column: str = "seconds") -> float:
    """Seconds of the stacks that have a function in them."""
    return sum(row[column] for row in rows if function in row["functions"])


def threads_here() -> set[int]:
    """Threads of this process, as the kernel has them."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def wait_until_none_but(before: set[int]) -> None:
    """Wait until threads that were not there before are gone."""
    assert wait_until(lambda: not threads_here() - before), threading.enumerate()


PROCESS = ("P.process", "/home/p.py", 10)
SPIN = ("spin", "/home/p.py", 20)
ROWS: list[tuple[str, list[tuple[str, str, int]], int, float, float, float, float]] = [
    ("tt", [PROCESS, SPIN], 60, 6.0, 5.0, 1.0, 0.0),
    ("dy", [PROCESS, SPIN], 40, 4.0, 4.0, 0.0, 0.0),
    ("tt", [PROCESS, SPIN, SPIN], 20, 2.0, 2.0, 0.0, 0.0),
    ("tt", [PROCESS, ("ak.sum", "awkward/sum.py", 5), ("kernel", "awkward/k.py", 6)], 50, 5.0, 5.0, 0.0, 0.0),
    ("tt", [PROCESS, ("helper", "/home/lib/h.py", 3)], 20, 2.0, 0.0, 0.0, 1.0),
    ("tt", [PROCESS], 10, 1.0, 1.0, 0.0, 0.0),
]
"""Dataset, stack, samples, seconds, and those by state."""


def profile_table() -> pa.Table:
    """A profile written by hand."""
    names = [column.name for column in PROFILE_COLUMNS]
    rows = [
        dict(zip(names, ["c1", dataset, *map(list, zip(*stack, strict=True)), *amounts, None], strict=True))
        for dataset, stack, *amounts in ROWS
    ]
    return table_of_rows(PROFILE_COLUMNS, rows)
