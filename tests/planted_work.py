"""Analyses and functions that do what a plan says: to plant causes of lost time, to take memory, to run as tasks.

Workers import this module.
"""

from __future__ import annotations

import importlib
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import uproot
from coffea.processor import ProcessorABC

from roastcoffea import measured, track_memory, track_time
from roastcoffea.cli.sample import DijetProcessor

SLOWER = "PLANTED_SLOWER"
"""Environment variable of a worker: how many times slower it is."""

KEPT: list[Any] = []
"""What a chunk holds while it needs much memory."""

NUMBERS: Final = np.linspace(0.0, 1.0, 20_000)


class Analysis(ProcessorABC):
    """Selects, smears and fills for some time a thousand events, and does what its plan says.

    Parameters
    ----------
    cpu
        Seconds of CPU time for 1000 events.
    each
        Seconds of CPU time for each chunk, whatever its size.
    blocked
        Seconds of sleep for 1000 events, outside of any section.
    section, sleep
        A section that sleeps so many seconds for 1000 events.
    heavy
        Factor of all these by dataset.
    function
        Seconds of CPU time for 1000 events in `reweighted`, which holds the interpreter.
    failing, share, folder
        The first attempt computes so many seconds and raises, in this share of the chunks; marks are in the folder.
    hungry, limit
        The first attempt of this share of the chunks needs more than so many bytes.
    size
        Bytes of the output.
    branches
        Flat branches to read.
    imports
        Modules that process() imports.
    """

    def __init__(self, **plan: Any) -> None:
        self.plan = plan

    def process(self, events: Any) -> dict[str, Any]:
        plan, metadata = self.plan, events.metadata
        factor = float(os.environ.get(SLOWER, "1")) * plan.get("heavy", {}).get(metadata["dataset"], 1.0)
        amount = factor * len(events) / 1000
        for module in plan.get("imports", ()):
            importlib.import_module(module)
        if plan.get("failing") and self._first_of(plan["share"], metadata):
            smeared(plan["failing"])
            raise OSError("planted: the calibration service did not answer")
        if plan.get("hungry") and self._first_of(plan["hungry"], metadata):
            hold(plan["limit"])
        for branch in events.fields[: plan.get("branches", 0)]:
            ak.materialize(events[branch])
        if plan.get("sleep"):
            with track_time(plan["section"]):
                time.sleep(amount * plan["sleep"])
        time.sleep(amount * plan.get("blocked", 0.0))
        cpu = amount * plan.get("cpu", 0.0) + plan.get("each", 0.0)
        selected(cpu / 3)
        smeared(cpu / 3)
        filled(cpu / 3)
        if plan.get("function"):
            reweighted(amount * plan["function"])
        output: dict[str, Any] = {"events": len(events)}
        if plan.get("size"):
            output["histogram"] = np.random.default_rng(metadata["entrystart"]).random(plan["size"] // 8)
        return output

    def _first_of(self, share: float, metadata: Any) -> bool:
        """Whether this is the first attempt of a chunk that is in the share."""
        name = f"{Path(metadata['filename']).name}-{metadata['entrystart']}"
        if zlib.crc32(name.encode()) % 1000 >= 1000 * share:
            return False
        marker = Path(self.plan["folder"], name)
        first = not marker.exists()
        marker.touch()
        return first

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def selected(seconds: float) -> None:
    """Select events, for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.count_nonzero((NUMBERS > 0.25) & (NUMBERS * NUMBERS < 0.75))


def smeared(seconds: float) -> None:
    """Smear jets, for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.sqrt(NUMBERS * NUMBERS + 1.0).sum()


def filled(seconds: float) -> None:
    """Fill histograms, for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.histogram(NUMBERS, bins=50, range=(0.0, 1.0))


def reweighted(seconds: float) -> None:
    """Compute weights of events in Python alone, for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        weights = 0.0
        for number in range(1, 2000):
            weights += 1.0 / number


def hold(limit: float) -> None:
    """Hold more memory than the limit, so long that somebody notices."""
    block = 32 * 2**20
    while sum(map(len, KEPT)) < 1.2 * limit:
        KEPT.append(np.ones(block, np.uint8))
        time.sleep(0.01)
    time.sleep(5.0)
    KEPT.clear()


def corrections(path: str) -> Any:
    """Corrections from a file."""
    with Path(path).open() as file:
        return json.load(file)


class Calibrated(DijetProcessor):
    """The demo's analysis, which loads corrections in each chunk."""

    def __init__(self, path: str | None) -> None:
        self.path = path

    def process(self, events: Any) -> Any:
        if self.path is not None:
            corrections(self.path)
        return super().process(events)


class Dijets(DijetProcessor):
    """A real analysis, so many times over."""

    def __init__(self, times: int) -> None:
        self.times = times

    def process(self, events: Any) -> Any:
        for _ in range(self.times):
            output = super().process(events)
        return output


def resident() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def highest_resident() -> int:
    """Highest resident memory of this process, as the kernel tells other monitors."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def fill(megabytes: int = 400) -> int:
    """The same after the process held so much."""
    np.ones(megabytes * 1_000_000, np.uint8)
    return highest_resident()


class Monitored(ProcessorABC):
    """Says what another monitor in the process reads."""

    def process(self, events: Any) -> list[int]:
        with track_memory("part"):
            return [highest_resident()]

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Hungry(ProcessorABC):
    """Takes so many bytes for each event; the first times, chunks that begin at entry 0 fill the process to `lethal`.

    Each attempt notes its process, file, first entry, and the process's own resident memory at the peak in a folder.
    """

    def __init__(self, each: int, folder: str, *, lethal: int = 0, times: int = 0, seconds: float = 0.0) -> None:
        self.each = each
        self.folder = folder
        self.lethal = lethal
        self.times = times
        self.seconds = seconds

    def process(self, events: Any) -> dict[str, int]:
        start, file = events.metadata["entrystart"], Path(events.metadata["filename"]).name
        size, kind = self.each * len(events), "mild"
        if start == 0 and len(list(Path(self.folder).glob(f"lethal-{file}-*"))) < self.times:
            size, kind = self.lethal - resident(), "lethal"
        note = Path(self.folder) / f"{kind}-{file}-{start}-{time.time_ns()}"
        note.write_text(f"{os.getpid()} {file} {start} 0")
        block = np.ones(size, np.uint8)
        note.write_text(f"{os.getpid()} {file} {start} {resident()}")
        time.sleep(self.seconds if kind == "mild" else 2.0)
        return {"events": len(events), "sum": int(block[::4096].sum() > 0)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


@measured
def total(path: str) -> float:
    """Sum of a branch, in a function that its own module has decorated."""
    with uproot.open(path) as file:
        return float(ak.sum(file["Events"]["f0"].array()))


@measured
def first_event(path: str) -> int:
    """Number of the first event of a sample file."""
    with uproot.open(path) as file:
        return int(file["Events/event"].array()[0])


def materialize(path: str, branches: list[str]) -> dict[str, Any]:
    """Read chosen branches of a file and tell how much that was, in the shape of scripts that test 200 Gbit/s."""
    with uproot.open(path, filter_name=branches) as file:
        tree = file["Events"]
        entries = tree.num_entries
        sums = [float(ak.sum(tree[name].array())) for name in branches]
        read = file.file.source.num_requested_bytes
    return {"file": path, "entries": entries, "read": read, "sums": sums}


def mean_of(path: str, branch: str) -> float:
    """A mean over NanoEvents, as `dask.delayed` runs it."""
    from coffea.nanoevents import BaseSchema, NanoEventsFactory

    events = NanoEventsFactory.from_root({path: "Events"}, schemaclass=BaseSchema, metadata={"dataset": "dy"}).events()
    return float(ak.mean(events[branch]))


def slow(path: str, seconds: float) -> dict[str, Any]:
    """Read a branch and sleep."""
    result = materialize(path, ["f0"])
    time.sleep(seconds)
    return result


def patient(path: str, sign: str) -> dict[str, Any]:
    """Read a branch and wait until a file exists."""
    result = materialize(path, ["f0"])
    while not Path(sign).exists():
        time.sleep(0.01)
    return result


def increment(number: int) -> int:
    """Read nothing."""
    return number + 1


def quiet(number: int) -> int:
    """Read nothing, and name a section."""
    with track_time("quiet"):
        return number


def reads_and_fails(path: str) -> None:
    """Read a branch and fail."""
    materialize(path, ["f0"])
    raise LookupError("planted")


def tolerant(paths: list[str]) -> dict[str, Any]:
    """Read a branch of each file, and go on where one cannot be opened."""
    sums, errors = [], []
    for path in paths:
        try:
            with uproot.open(path) as file:
                sums.append(float(ak.sum(file["Events"]["f0"].array())))
        except OSError as error:
            errors.append(error)
    return {"sums": sums, "errors": errors}
