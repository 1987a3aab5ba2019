"""Files that a processor reads with and without a collector, and storage that is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import awkward as ak
import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from coffea.processor.executor import WorkItem
from fsspec.implementations.local import LocalFileSystem

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

FLAT = 12
"""Branches of one number an event in the files below."""


class Doing(ProcessorABC):
    """Gives what a function makes of the events."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def process(self, events: Any) -> list[Any]:
        return [self.function(events)]

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def outcome(
    source: Any,
    function: Callable[[Any], Any],
    *,
    kind: str = "root",
    preload: list[str] | None = None,
    **options: Any,
) -> tuple[Any, Measurement]:
    """What the function gives, which must be the same without a collector; and a measurement of it."""
    runner = Runner(
        executor=IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={}, format=kind, chunksize=10**6
    )
    fileset: Any = {"a": {"files": {str(source): "Events"}} | ({"preload": preload} if preload else {})}
    if isinstance(source, WorkItem):
        fileset = [source]
    if options:
        options = {"uproot_options": options}
    plain = runner(fileset, processor_instance=Doing(function), **options)
    runner.metadata_cache = {}
    with MetricsCollector() as collector:
        output = runner(fileset, processor_instance=Doing(function), **options)
    assert output == plain
    return output[0], collector.measurement


class Slept(list[float]):
    """Seconds that sleeps really took: on a busy host they take longer."""

    def sleep(self, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        self.append(time.perf_counter() - began)


WAITED = Slept()


def wait_for(seconds: float) -> None:
    """Sleep in a processor: coffea copies the processor, and with it what is defined in a test."""
    WAITED.sleep(seconds)


def is_spent_on(chunk: Any, read: list[float], waited: list[float]) -> bool:
    """Whether a chunk's reading and waiting hold these sleeps, each once, and nothing of the others.

    Between a sleep and the clock that measures it the host may do something else; it cannot take time away.
    """
    between = chunk["process_seconds"] - sum(read) - sum(waited)
    small = 0.005 * (1 + len(read) + len(waited))
    differences = chunk["read_seconds"] - sum(read), chunk["wait_seconds"] - sum(waited)
    # when it wakes up the thread may wait for a core, which is neither
    late = chunk["contention_seconds"] if chunk["contention_seconds"] is not None else 0.0
    return all(-small - late <= difference <= between + small + late for difference in differences)


def slow_storage(monkeypatch: pytest.MonkeyPatch) -> Slept:
    """Have each request of local storage take 0.2 s; give how long each took."""
    ranges, slept = LocalFileSystem.cat_ranges, Slept()

    def slow_ranges(self: Any, *args: Any, **kwargs: Any) -> Any:
        slept.sleep(0.2)
        return ranges(self, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "cat_ranges", slow_ranges)
    return slept


def total_of_all(events: Any) -> list[float]:
    return [float(ak.sum(events[f"f{number}"])) for number in range(FLAT)]


def total_of_f0(events: Any) -> float:
    return float(ak.sum(events["f0"]))


def branch_named(name: str) -> Any:
    return SimpleNamespace(_bases=[SimpleNamespace(_members={"fName": name})], _parent=None)
