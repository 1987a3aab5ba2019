"""Sources of a file: what is requested of them and how long that takes, also those of a user's own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from fsspec.implementations.local import LocalFileSystem
from releases import needs_retries
from stored import (
    WAITED,
    Doing,
    Slept,
    is_spent_on,
    outcome,
    slow_storage,
    total_of_f0,
    wait_for,
    write_tree,
)

from roastcoffea import MetricsCollector
from roastcoffea.instrument.meter.servers import CountedFileSystem
from roastcoffea.instrument.meter.tally import Tally


def test_waiting_for_what_is_read_beside_the_events_is_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")

    def beside(events: Any) -> float:
        (tree,) = events.attrs["@events_factory"]._mapping._cache.values()
        return float(ak.sum(tree["f0"].array()))

    read = slow_storage(monkeypatch)
    _, measurement = outcome(tmp_path / "tree.root", beside)
    (chunk,) = measurement.chunks.to_dict("records")
    assert is_spent_on(chunk, read[1:], [])  # the first run had no collector


@pytest.mark.slow
@pytest.mark.parametrize("executors", [[], ["interpretation_executor"], ["decompression_executor"]])
def test_waiting_is_reading_whoever_reads_baskets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executors: list[str]
) -> None:
    write_tree(tmp_path / "tree.root")
    ranges = LocalFileSystem.cat_ranges
    read = Slept()

    def slow_ranges(self: Any, *args: Any, **kwargs: Any) -> Any:
        read.sleep(0.2)
        if len(read) in (1, 4):
            raise OSError("not now")
        return ranges(self, *args, **kwargs)

    def again_and_beside(events: Any) -> float:
        (tree,) = events.attrs["@events_factory"]._mapping._cache.values()
        with suppress(Exception):
            ak.sum(events["f0"])
        total = float(ak.sum(tree["f0"].array()))
        wait_for(0.3)
        return total + float(ak.sum(events["f1"]))

    monkeypatch.setattr(LocalFileSystem, "cat_ranges", slow_ranges)
    with ThreadPoolExecutor(2) as pool:
        # uproot would shut it down with the first file
        monkeypatch.setattr(pool, "shutdown", lambda: None)
        _, measurement = outcome(tmp_path / "tree.root", again_and_beside, **dict.fromkeys(executors, pool))
        monkeypatch.undo()
    (chunk,) = measurement.chunks.to_dict("records")
    assert len(read) == 6  # the first half is of a run without a collector
    assert is_spent_on(chunk, read[3:], WAITED[-1:])


@needs_retries
def test_waiting_for_what_never_comes_is_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")
    ranges = LocalFileSystem.cat_ranges
    asked, read = [], Slept()

    def failing_ranges(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        if len(asked) < 2:
            return ranges(self, *args, **kwargs)
        read.sleep(0.2)
        raise OSError("the storage gave up")

    def both(events: Any) -> float:
        total = float(ak.sum(events["f0"]))
        wait_for(0.1)
        return total + float(ak.sum(events["f1"]))

    monkeypatch.setattr(LocalFileSystem, "cat_ranges", failing_ranges)
    executor = IterativeExecutor(status=False, retries=0)
    runner = Runner(executor=executor, schema=BaseSchema, metadata_cache={}, chunksize=10**6)
    fileset = {"a": {"files": {str(tmp_path / "tree.root"): "Events"}}}
    with MetricsCollector() as collector, pytest.raises(Exception, match="gave up"):
        runner(fileset, processor_instance=Doing(both))
    (chunk,) = collector.measurement.chunks.to_dict("records")
    assert chunk["outcome"] == "error"
    assert is_spent_on(chunk, read, WAITED[-1:])


class OwnSource(uproot.source.chunk.Source):
    """A source that keeps no counts, and whose `chunks` calls its `chunk`."""

    def __init__(self, file_path: str, **options: Any) -> None:
        self._file_path = file_path
        self._file = Path(file_path).open("rb")  # noqa: SIM115
        self._turn = threading.Lock()

    def chunk(self, start: int, stop: int) -> Any:
        with self._turn:
            self._file.seek(start)
            data = uproot.source.futures.TrivialFuture(self._file.read(stop - start))
        return uproot.source.chunk.Chunk(self, start, stop, data)

    def chunks(self, ranges: Any, notifications: Any) -> Any:
        chunks = [self.chunk(*limits) for limits in ranges]
        for chunk in chunks:
            notifications.put(chunk)
        return chunks

    @property
    def num_bytes(self) -> int:
        return Path(self._file_path).stat().st_size

    @property
    def closed(self) -> bool:
        return self._file.closed

    def __enter__(self) -> OwnSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_source_that_keeps_no_counts_is_told(folder: Path) -> None:
    _, measurement = outcome(folder / "tree.root", total_of_f0, handler=OwnSource)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert chunk["bytes_requested"] is None
    assert any("bytes requested from storage could not be metered" in text for text in measurement.problems)


def test_a_file_system_counts_what_came_and_gives_it_as_it_is() -> None:
    failed = OSError("not now")
    inner = SimpleNamespace(
        cat_file=lambda path: b"12345",
        cat_ranges=lambda paths: [b"1", bytearray(b"23"), failed],
        exists=lambda path: path == "here",
    )
    tally = Tally()
    tally.transferred = 0
    system = CountedFileSystem(inner, tally)
    assert system.cat_file("x") == b"12345"
    assert system.cat_ranges(["x"] * 3) == [b"1", bytearray(b"23"), failed]
    assert tally.transferred == 5 + 3
    assert system.exists("here")
    assert (tally.problems, tally.helper_cpu) == ((), 0.0)
