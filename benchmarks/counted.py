"""Instructions and system calls that the probe adds to a chunk: counted, so that a busy machine changes nothing.

`python benchmarks/counted.py` needs valgrind and strace. With `--before COMMIT` the probe of that commit is counted
too. A child process reads the same chunk of a fixed file again and again, and what is above the chunks without the
probe is the probe's. A function without a Runner that reads these branches with uproot is counted too. Of system calls
the difference between FEW and MANY chunks is that of the chunks alone. `--bytecodes` counts what Python executes, which
does not scatter and needs no other program. Used as a clock, this shows how much of it is in the class "measuring".
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import uproot

BRANCHES: Final = (20, 300)
FEW: Final = 2
MANY: Final = 6
BASKETS: Final = 4
EVENTS: Final = 1000
FOREVER: Final = 1e3
WARM: Final = 10
"""Chunks that are read first: the interpreter specializes code that has run eight times."""

TICK: Final = 1e-8
VARIANTS: Final = ("plain", "probe", "function", "measured")
"""A chunk without and with the probe; a function without a Runner, without and with it."""
COUNTED: Final = "PyRun_StringFlags"
"""Function of the interpreter whose instructions are counted: `exec` of a text, in which the chunks are read."""
REPOSITORY: Final = Path(__file__).parents[1]
SETTINGS: Final = {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": ""}
TOTAL_CALLS: Final = re.compile(r"^100\.00\s+\S+\s+(?:\S+\s+)?(\d+).*total$", re.MULTILINE)
TOTAL_INSTRUCTIONS: Final = re.compile(r"Collected : (\d+)")


def write_file(path: Path, branches: int) -> None:
    """Write a tree whose branches have BASKETS baskets each."""
    random = np.random.default_rng(1)
    names = [f"Collection{number // 10}_variable{number % 10}" for number in range(branches)]
    with uproot.recreate(path) as root:
        root.mktree("Events", dict.fromkeys(names, np.float32))
        for _ in range(BASKETS):
            root["Events"].extend({name: random.normal(size=EVENTS).astype(np.float32) for name in names})


class Bytecodes:
    """A clock in place of a thread's CPU time: each bytecode that Python executes takes TICK seconds."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        return TICK * self.count

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Bytecodes.__call__.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self.trace

    def of(self, call: Any) -> int:
        """Bytecodes of a call."""
        before = self.count
        sys.settrace(self.trace)
        try:
            call()
        finally:
            sys.settrace(None)
        return self.count - before


def bytecodes(path: Path, way: str) -> tuple[int, int, float]:
    """Bytecodes of a chunk or function without the probe, those that it adds, and those in the class "measuring"."""
    from probe import chunks_of, functions_of, measuring_of_records

    from roastcoffea.instrument import attempt, gauges
    from roastcoffea.instrument.meter import files, formats, servers, tally

    clock = Bytecodes()
    with ExitStack() as patched:
        times = SimpleNamespace(**vars(time) | {"thread_time": clock, "perf_counter": clock})
        for owner, name, ours in (
            (attempt, "time", times),
            *((module, "thread_time", clock) for module in (formats, gauges, servers, tally)),
            *((module, "perf_counter", clock) for module in (files, formats, gauges, servers, tally)),
        ):
            patched.enter_context(patch.object(owner, name, ours))
        recorded = patched.enter_context(measuring_of_records())
        plain, probed, _ = chunks_of(path, EVENTS) if way == "plain" else functions_of(str(path))
        for _ in range(WARM):
            plain()
            probed()
        without = clock.of(plain)
        return without, clock.of(probed) - without, recorded[-1] / TICK


def read_chunks(path: str, way: str, times: int) -> None:
    """Read the second chunk of the file so often, in one of VARIANTS."""
    from probe import chunks_of, functions_of

    # a source without threads of its own: what these do differs from one time to the next
    made = functions_of(path, uproot.MemmapSource) if way in VARIANTS[2:] else None
    plain, probed, _ = made or chunks_of(Path(path), EVENTS, uproot.MemmapSource)
    gc.collect()
    gc.disable()  # else a collection falls into one count and not into another
    sys.setswitchinterval(FOREVER)  # else threads take the interpreter from one another as often as a tracer is slow
    chunk = probed if VARIANTS.index(way) % 2 else plain
    for _ in range(WARM):
        chunk()
    exec("for _ in range(times): chunk()", {"times": times, "chunk": chunk})


def counted(source: Path, path: Path, way: str) -> tuple[float, float]:
    """Instructions and system calls of one chunk."""
    run(child(path, way, 1), source)  # so that all modules are compiled
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "written")
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={written}", f"--toggle-collect={COUNTED}"]
        told = run([*valgrind, *child(path, way, MANY - FEW)], source)
        calls = []
        for times in (FEW, MANY):
            run(["strace", "-f", "-c", "-o", str(written), *child(path, way, times)], source)
            calls.append(int(found(TOTAL_CALLS, written.read_text())))
    instructions = int(found(TOTAL_INSTRUCTIONS, told))
    return instructions / (MANY - FEW), (calls[1] - calls[0]) / (MANY - FEW)


def child(path: Path, way: str, times: int) -> list[str]:
    return [sys.executable, __file__, "--read", str(path), way, str(times)]


def run(command: list[str], source: Path) -> str:
    """What a command writes to the standard error; it imports the package from this folder."""
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return done.stderr


def found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    if match is None:
        sys.exit(f"there is no {pattern.pattern!r} in:\n{text}")
    return match.group(1)


def count(before: str | None, wanted: list[int]) -> None:
    """Print what the probe adds now, and what the probe of a commit added."""
    with tempfile.TemporaryDirectory() as folder:
        sources = {"now": REPOSITORY / "src"}
        if before is not None:
            archive = subprocess.run(["git", "archive", before, "src"], cwd=REPOSITORY, capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            sources[before] = Path(folder, "src")
        for branches in wanted:
            path = Path(folder, f"{branches}.root")
            write_file(path, branches)
            for plain, probed in (VARIANTS[:2], VARIANTS[2:]):
                # of each source: what it executes when it is imported is counted, too
                without = {name: counted(source, path, plain) for name, source in sources.items()}
                tell(f"a {plain if plain in VARIANTS[2:] else 'chunk'} that reads {branches} branches", without["now"])
                added = {
                    name: np.subtract(counted(source, path, probed), without[name]) for name, source in sources.items()
                }
                for name, more in added.items():
                    tell(f"  the probe of {name}", more)
                if before is not None:
                    shares = added["now"] / added[before]
                    print("  now / before: {:.3f} of the instructions, {:.3f} of the calls".format(*shares), flush=True)


def count_bytecodes(wanted: list[int]) -> None:
    """Print the bytecodes that the probe adds, and the share of them in the class "measuring"."""
    with tempfile.TemporaryDirectory() as folder:
        for branches in wanted:
            path = Path(folder, f"{branches}.root")
            write_file(path, branches)
            for way in ("plain", "function"):
                of_all, of_probe, row = bytecodes(path, way)
                what = "a chunk" if way == "plain" else "a function"
                print(f"{what} that reads {branches} branches: {of_all:,} bytecodes")
                print(f"  the probe: {of_probe:,}, {row / of_probe:.2f} of them in the class measuring", flush=True)


def tell(what: str, counts: tuple[float, float] | np.ndarray) -> None:
    print("{}: {:,.0f} instructions, {:,.2f} system calls".format(what, *counts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="a commit whose probe is counted too")
    parser.add_argument("--branches", nargs="+", type=int, default=list(BRANCHES), help="branches of the files")
    parser.add_argument("--bytecodes", action="store_true", help="count bytecodes alone")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read_chunks(given.read[0], given.read[1], int(given.read[2]))
    elif given.bytecodes:
        count_bytecodes(given.branches)
    else:
        count(given.before, given.branches)
