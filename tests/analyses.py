"""Analyses that the tests run; workers import this module."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import awkward as ak
import hist
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, IterativeExecutor, ProcessorABC, Runner
from releases import Processor, as_processor


class Jets(ProcessorABC):
    """Counts events and jets; works on every NanoAOD-like file."""

    def process(self, events: Any) -> dict[str, Any]:
        spectrum = hist.Hist.new.Reg(20, 0, 200, name="pt").Weight().fill(ak.flatten(events.Jet.pt))
        return {events.metadata["dataset"]: {"events": len(events), "jets": len(spectrum.axes[0]), "pt": spectrum}}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Sleeping(Processor):
    """Sleeps so many seconds a chunk."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def process(self, events: Any) -> dict[str, int]:
        time.sleep(self.seconds)
        return {"events": len(events)}


class Gated(Processor):
    """Sleeps 0.1 s, and in the later chunks of one file waits until another one exists."""

    def __init__(self, file: str, gate: Path) -> None:
        self.file, self.gate = file, gate

    def process(self, events: Any) -> dict[str, int]:
        time.sleep(0.1)
        waits = events.metadata["filename"] == self.file and events.metadata["entrystart"] > 0
        while waits and not self.gate.exists():
            time.sleep(0.01)
        return {"events": len(events)}


class Logging(Sleeping):
    """Reads a column, sleeps, and notes in a file of its process when which chunk was done."""

    def __init__(self, seconds: float, folder: str) -> None:
        super().__init__(seconds)
        self.folder = folder

    def process(self, events: Any) -> dict[str, int]:
        jets = int(ak.sum(ak.num(events.Jet.pt)))
        known = events.metadata
        chunk = known["dataset"], known["filename"], known["entrystart"], known["entrystop"]
        time.sleep(self.seconds)
        with Path(self.folder, str(os.getpid())).open("a") as notes:
            notes.write(" ".join(map(str, (time.clock_gettime(time.CLOCK_REALTIME), *chunk))) + "\n")
        return {"jets": jets}


class Spinning(Sleeping):
    """Computes so many seconds of CPU time a chunk."""

    def process(self, events: Any) -> dict[str, int]:
        spin(self.seconds)
        return {"events": len(events)}


def spin(seconds: float) -> None:
    """Compute for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


READY: list[float] = []
"""When a process of a pool that takes long to start was ready."""


def ready_later(seconds: float) -> None:
    """Make a process of a pool take so long to start."""
    time.sleep(seconds)
    READY.append(time.time())


class Born(Sleeping):
    """Sleeps; tells of its process its number, when the kernel made it, when it was ready, and when process() began."""

    def process(self, events: Any) -> dict[str, set[tuple[float, ...]]]:
        begun = time.time()
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        born = begun - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        time.sleep(self.seconds)
        return {"processes": {(os.getpid(), born, READY[0], begun)}}


class KernelCounted(Sleeping):
    """Reads a branch and computes; gives the CPU time of its thread in process() as the kernel counts it."""

    def process(self, events: Any) -> dict[str, float]:
        clock = Path("/proc/thread-self/schedstat")
        began = int(clock.read_text().split()[0])
        ak.materialize(events.Jet.pt)
        spin(self.seconds)
        return {"kernel": (int(clock.read_text().split()[0]) - began) / 1e9}


class Planted(ProcessorABC):
    """Does what a plan says in each chunk.

    It sleeps and computes for so many seconds, reads so many flat branches, computes longer in the chunk that begins at
    an entry of one file (`straggler` seconds), and fails the first time after a while in chunks that begin below an
    entry (`failing`, `until`), of which it keeps marks in a folder.
    """

    def __init__(self, **plan: Any) -> None:
        self.plan = plan

    def process(self, events: Any) -> dict[str, int]:
        plan, metadata = self.plan, events.metadata
        if plan.get("failing") and metadata["entrystart"] < plan["until"]:
            marker = Path(plan["folder"]) / f"{Path(metadata['filename']).name}-{metadata['entrystart']}"
            if not marker.exists():
                marker.touch()
                time.sleep(plan["failing"])
                raise OSError("planted, once")
        for branch in events.fields[: plan.get("branches", 0)]:
            ak.materialize(events[branch])
        time.sleep(plan.get("sleep", 0.0))
        spin(plan.get("spin", 0.0))
        if metadata["entrystart"] == plan.get("last") and metadata["filename"].endswith(plan["file"]):
            spin(plan["straggler"])
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Noting(Sleeping):
    """Sleeps, and writes a file for each attempt that began."""

    def __init__(self, seconds: float, folder: str) -> None:
        super().__init__(seconds)
        self.folder = folder

    def process(self, events: Any) -> dict[str, int]:
        marker = Path(self.folder) / f"{os.getpid()}-{threading.get_ident()}-{time.time_ns()}"
        marker.write_text(str(events.metadata["entrystart"]))
        return super().process(events)


class StuckInSecond(Noting):
    """Writes a file for each attempt that began, and sleeps in all but the first."""

    def process(self, events: Any) -> dict[str, int]:
        first = not list(Path(self.folder).glob(f"{os.getpid()}-*"))
        return Noting(0 if first else self.seconds, self.folder).process(events)


class Exiting(ProcessorABC):
    """Ends its process in the second chunk of a file, as `sys.exit` or at once."""

    def __init__(self, how: str = "exit") -> None:
        self.how = how

    def process(self, events: Any) -> dict[str, int]:
        if events.metadata["entrystart"] > 0:
            if self.how == "exit":
                sys.exit(3)
            os._exit(3)
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class Raising(Processor):
    """Raises in the chunk that begins at an entry, and works in the others."""

    def __init__(self, entry: int) -> None:
        self.entry = entry

    def process(self, events: Any) -> dict[str, int]:
        if events.metadata["entrystart"] == self.entry:
            raise ZeroDivisionError("planted")
        return {"events": len(events)}


class Failing(ProcessorABC):
    """Counts events, and raises an error in chunks of files with this in their name, from an entry on."""

    def __init__(self, error: BaseException, name: str, entry: int = 0) -> None:
        self.error = error
        self.name = name
        self.entry = entry

    def process(self, events: Any) -> dict[str, int]:
        if self.name in events.metadata["filename"] and events.metadata["entrystart"] >= self.entry:
            raise self.error
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


class RaisingLate(Sleeping):
    """Raises in each chunk: at once in the first, after a while in the others."""

    def process(self, events: Any) -> dict[str, int]:
        if events.metadata["entrystart"] > 0:
            time.sleep(self.seconds)
        raise ZeroDivisionError("planted")


class RaisingOnce(Processor):
    """Raises in the first attempt of each chunk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, events: Any) -> dict[str, int]:
        marker = Path(self.folder) / str(events.metadata["entrystart"])
        if not marker.exists():
            marker.touch()
            raise OSError("planted, once")
        return {"events": len(events)}


class KillingOnce(Processor):
    """Kills its worker in the first attempt of the first chunk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, events: Any) -> dict[str, int]:
        marker = Path(self.folder) / "killed"
        if events.metadata["entrystart"] == 0 and not marker.exists():
            marker.touch()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"events": len(events)}


class Listing(Processor):
    """Gives a list."""

    def process(self, events: Any) -> list[int]:
        return [len(events)]


class Numbering(Processor):
    """Gives a number."""

    def process(self, events: Any) -> int:
        return len(events)


class Nested(ProcessorABC):
    """Gives datasets whose values a postprocess walks."""

    def process(self, events: Any) -> dict[str, dict[str, int]]:
        return {events.metadata["dataset"]: {"events": len(events)}}

    def postprocess(self, accumulator: Any) -> Any:
        return {dataset: values["events"] * 2 for dataset, values in accumulator.items()}


class Histogram(Processor):
    """Gives a histogram alone."""

    def process(self, events: Any) -> Any:
        return hist.Hist.new.Reg(10, 0, 300).Double().fill(ak.flatten(events.Jet.pt))


@dataclass(frozen=True)
class Frozen(Processor):
    """A frozen dataclass."""

    scale: float = 2.0

    def process(self, events: Any) -> dict[str, float]:
        return {"scaled": self.scale * len(events)}


class Slotted(Processor):
    """A class without room for other attributes, with a state of its own when pickled."""

    __slots__ = ("scale",)

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def __getstate__(self) -> int:
        return self.scale

    def __setstate__(self, state: int) -> None:
        self.scale = state

    def process(self, events: Any) -> dict[str, int]:
        return {"scaled": self.scale * len(events)}


class Frame(Processor):
    """Gives a pandas DataFrame."""

    def process(self, events: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"events": [len(events)]})


def count_events(events: Any) -> dict[str, int]:
    """An analysis that is a function."""
    return {"events": len(events)}


COUNT_EVENTS = as_processor(count_events)


def careless(text: str) -> None:
    """Raise an error with a secret in its text and in its source."""
    raise ValueError(f"password=Plant4OfUser {text}")


async def wait_long(dask_scheduler: Any = None) -> None:
    """What a scheduler may be asked to do."""
    await asyncio.sleep(30)


class OwnCopy(DaskExecutor):
    """An executor with a `copy` of its own."""

    def copy(self, **changes: Any) -> Any:
        return type(self)(**(self.__dict__ | changes))


def runner_for(client: Any, chunksize: int, executor: Any = DaskExecutor, **options: Any) -> Runner:
    """A Runner on Dask as the tests use it."""
    executor_options = {
        name: options.pop(name)
        for name in ("compression", "retries", "treereduction", "use_dataframes")
        if name in options
    }
    return Runner(
        executor=executor(client=client, status=False, **executor_options),
        chunksize=chunksize,
        **{"schema": NanoAODSchema, "savemetrics": True, "metadata_cache": {}, **options},
    )


def run_job(dataset: str, path: str, folder: str) -> dict[str, Any]:
    """One job of a campaign: measured, and saved by the name of its file; coffea's report."""
    from roastcoffea import MetricsCollector

    runner = Runner(
        IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=100, savemetrics=True, metadata_cache={}
    )
    with MetricsCollector() as collector:
        _, report = runner({dataset: {"files": {path: "Events"}}}, processor_instance=Jets())
    collector.save_measurement(folder, Path(path).stem)
    return dict(report)


class Indiscreet(ProcessorABC):
    """Names sections after a URL, one of which it never leaves, and raises a text; without one it counts events."""

    def __init__(self, url: str, text: str | None = None) -> None:
        self.url = url
        self.text = text

    def process(self, events: Any) -> dict[str, int]:
        from roastcoffea import track_time  # workers may lack it where other analyses run

        with track_time(f"weights of {self.url}"):
            track_time(f"left open: {self.url}").__enter__()
            if self.text is not None:
                raise RuntimeError(self.text)
        return {"events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator
