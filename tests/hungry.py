"""Analyses that take memory, of a size that was planned; workers import this module."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from coffea.processor import ProcessorABC

from roastcoffea import track_memory


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
