"""An analysis that does what a plan says in each chunk, to plant causes of lost time; workers import this module."""

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
from coffea.processor import ProcessorABC

from roastcoffea import track_time
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
