"""What the meter sees where files are read in odd ways, and that nothing depends on its seeing."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import awkward as ak
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from coffea.processor.executor import WorkItem
from fsspec.implementations.local import LocalFileSystem
from releases import needs_retries, needs_whole_columns
from stored import baskets_of, clusters_of, served, write_parquet, write_rntuple, write_tree

from roastcoffea import MetricsCollector, track_time
from roastcoffea.instrument.attempt import Attempt
from roastcoffea.instrument.channels import DaskTask
from roastcoffea.instrument.meter import meter as meter_module
from roastcoffea.instrument.meter import sources, tally
from roastcoffea.instrument.meter.meter import Meter
from roastcoffea.instrument.meter.tally import READ, BranchRead, Tally
from roastcoffea.log.packing import BASKETS_LISTED
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
    return all(-small <= difference <= between + small for difference in differences)


def slow_storage(monkeypatch: pytest.MonkeyPatch) -> Slept:
    """Have each request of local storage take 0.2 s; give how long each took."""
    ranges, slept = LocalFileSystem.cat_ranges, Slept()

    def slow_ranges(self: Any, *args: Any, **kwargs: Any) -> Any:
        slept.sleep(0.2)
        return ranges(self, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "cat_ranges", slow_ranges)
    return slept


def test_waiting_for_what_is_read_beside_the_events_is_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")

    def beside(events: Any) -> float:
        (tree,) = events.attrs["@events_factory"]._mapping._cache.values()
        return float(ak.sum(tree["f0"].array()))

    read = slow_storage(monkeypatch)
    _, measurement = outcome(tmp_path / "tree.root", beside)
    (chunk,) = measurement.chunks.to_dict("records")
    assert is_spent_on(chunk, read[1:], [])  # the first run had no collector


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


def test_what_is_read_in_a_step_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")
    array, file = uproot.AsDtype.basket_array, LocalFileSystem.cat_file
    slept, in_steps = Slept(), []

    def asking(self: Any, data: Any, offsets: Any, basket: Any, branch: Any, *args: Any) -> Any:
        branch.file.source.chunk(0, 100)
        in_steps.append(slept[-1])
        return array(self, data, offsets, basket, branch, *args)

    def slow_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        slept.sleep(0.05)
        return file(self, *args, **kwargs)

    monkeypatch.setattr(uproot.AsDtype, "basket_array", asking)
    monkeypatch.setattr(LocalFileSystem, "cat_file", slow_file)
    _, measurement = outcome(tmp_path / "tree.root", total_of_f0)
    (chunk,) = measurement.chunks.to_dict("records")
    of_the_second_run = sum(in_steps[len(in_steps) // 2 :])
    assert 0.2 < of_the_second_run < chunk["read_seconds"] <= chunk["process_seconds"]


def test_a_collector_within_a_collector_sees_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree.root")

    def read_and_sleep(events: Any) -> float:
        total = total_of_f0(events)
        wait_for(0.3)
        return total

    read = slow_storage(monkeypatch)
    with MetricsCollector() as outer:
        _, inner = outcome(tmp_path / "tree.root", read_and_sleep)
    (chunk,) = inner.chunks.to_dict("records")
    assert is_spent_on(chunk, read[1:], WAITED[-1:])
    assert chunk["bytes_payload"] == sum(
        size for size, _ in baskets_of(tmp_path / "tree.root", "f0", 0, 10**9).values()
    )
    for place, seen in enumerate(outer.measurement.chunks.to_dict("records")):
        assert is_spent_on(seen, [read[place]], [WAITED[place - 2]])
        assert {name for name in READ if seen[name] != chunk[name]} == set()
    assert len(outer.measurement.chunks) == 2
    for measurement in (inner, outer.measurement):
        (of_branch,) = measurement.branches["read_seconds"]
        assert of_branch == pytest.approx(measurement.chunks["read_seconds"].sum(), rel=1e-4)


def total_of_all(events: Any) -> list[float]:
    return [float(ak.sum(events[f"f{number}"])) for number in range(FLAT)]


def test_phases_of_many_short_steps_add_up(folder: Path) -> None:
    """Clocks are read side by side: what passes between two of them would be waiting, and CPU time as well."""

    def repeated(events: Any) -> list[float]:
        (tree,) = events.attrs["@events_factory"]._mapping._cache.values()
        return [float(ak.sum(tree[f"f{number % FLAT}"].array())) for number in range(200)]

    _, measurement = outcome(folder / "tree.root", repeated)
    (chunk,) = measurement.run.chunks.to_pylist()
    phases = ("read_seconds", "decompress_seconds", "interpret_seconds", "compute_seconds", "wait_seconds")
    assert sum(chunk[phase] for phase in phases) == pytest.approx(chunk["process_seconds"], rel=1.5e-3)


def test_steps_may_be_added_up_before_the_chunk_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_VALUES", 2)
    _, measurement = outcome(folder / "tree.root", total_of_all)
    read = {branch.branch: branch for branch in measurement.branches.itertuples()}
    assert len(read) == FLAT
    for name, branch in read.items():
        payload = sum(size for size, _ in baskets_of(str(folder / "tree.root"), name, 0, 10**9).values())
        assert branch.bytes_payload == payload > 0
        assert min(branch.decompress_seconds, branch.interpret_seconds) > 0


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Reading:
    """Steps as uproot makes them of a file with one basket, which take known CPU times."""

    num_requested_bytes = 0

    def __init__(self, *, in_line: bool) -> None:
        self.meter = Meter()
        options = self.meter.options({})
        self.submit = {kind: options[f"{kind}_executor"].submit for kind in ("decompression", "interpretation")}
        sources.watch_source(self.meter, self)
        self.meter.in_process = self.meter.in_line = in_line

    def chunk(self) -> None:
        """Shadowed."""

    def chunks(self, _ranges: list[Any]) -> None:
        burn(0.05)

    def decompress(self, name: str, step: Callable[[], None]) -> None:
        piece = SimpleNamespace(start=0, stop=1)
        self.submit["decompression"](lambda *_: step(), piece, branch_named(name), 0)

    def interpret(self, name: str, step: Callable[[], None], *, came_with_tree: bool = False) -> None:
        held = SimpleNamespace(nbytes=1)
        basket = SimpleNamespace(
            parent=branch_named(name),
            basket_num=0,
            is_embedded=came_with_tree,
            uncompressed_bytes=1,
            data=held,
            byte_offsets=None,
        )
        self.submit["interpretation"](lambda _: step(), basket)


def branch_named(name: str) -> Any:
    return SimpleNamespace(_bases=[SimpleNamespace(_members={"fName": name})], _parent=None)


@pytest.mark.parametrize("came_with_tree", [False, True])
@pytest.mark.parametrize("in_line", [False, True])
def test_what_is_read_in_a_step_is_not_counted_twice(in_line: bool, came_with_tree: bool) -> None:
    reading = Reading(in_line=in_line)

    def nested() -> None:
        reading.chunks([(0, 1)])
        reading.decompress("inner", partial(burn, 0.02))
        reading.interpret("inner", partial(burn, 0.05))
        burn(0.01)

    reading.chunks([(0, 1)])
    if not came_with_tree:
        reading.decompress("outer", partial(burn, 0.03))
    reading.interpret("outer", nested, came_with_tree=came_with_tree)
    _, decompress, interpret = reading.meter.seconds()
    assert decompress == pytest.approx(0.02 if came_with_tree else 0.05, abs=0.005)
    assert interpret == pytest.approx(0.06, abs=0.005)
    assert not reading.meter.problems


def test_asking_for_baskets_is_not_interpretation_of_others() -> None:
    reading = Reading(in_line=True)
    reading.chunks([(0, 1)])
    reading.interpret("here already", partial(burn, 0.01))
    assert reading.meter.seconds()[2] == pytest.approx(0.01, abs=0.005)


def test_trees_of_one_name_have_their_own_number_of_branches(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "two.root") as file:
        for folder, branches in (("a", "x"), ("b", "xy")):
            file.mktree(f"{folder}/Events", dict.fromkeys(branches, "float32"))
            file[f"{folder}/Events"].extend({branch: np.zeros(5, "float32") for branch in branches})
    runner = Runner(executor=IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        for folder in "ab":
            files = {str(tmp_path / "two.root"): f"{folder}/Events"}
            runner({folder: {"files": files}}, processor_instance=Doing(lambda events: float(ak.sum(events.x))))
    assert dict(collector.measurement.chunks[["dataset", "tree_branches"]].to_numpy()) == {"a": 1, "b": 2}


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


def test_an_open_file_does_not_keep_the_meter(tmp_path: Path) -> None:
    """Else what the meter knows would wait for the collection of garbage, with the file."""
    write_tree(tmp_path / "tree.root")
    meter = Meter()
    with uproot.open(tmp_path / "tree.root", **meter.options({})) as file:
        events = NanoEventsFactory.from_root(file, treepath="Events", schemaclass=BaseSchema).events()
        meter.events_are_built(events)
        total = ak.sum(events["f0"])
        assert meter.payload > 0
        meter.close()
        left = weakref.ref(meter)
        gc.disable()
        try:
            del meter
            # a thread that read for it may still be on its way out
            for _ in range(100):
                if left() is None:
                    break
                time.sleep(0.01)
            assert left() is None
        finally:
            gc.enable()
        assert ak.sum(file["Events"]["f0"].array()) == total


def total_of_f0(events: Any) -> float:
    return float(ak.sum(events["f0"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_tree(folder / "tree.root", flat=FLAT)
    write_rntuple(folder / "ntuple.root", flat=FLAT)
    write_parquet(folder / "columns.parquet")
    return folder


# A hook that is not there


def missing(*_: Any, **__: Any) -> Any:
    raise AttributeError("not there")


UNKNOWN_BRANCHES = {"bytes_payload", "bytes_metadata", "bytes_uncompressed", "branches", "compute_seconds"}


@pytest.mark.parametrize(
    ("file", "place", "hook", "told", "unknown"),
    [
        ("tree.root", meter_module, "leaves_once", "bytes of branches", UNKNOWN_BRANCHES),
        ("ntuple.root", meter_module, "watch_ntuple", "bytes of branches", UNKNOWN_BRANCHES),
        ("tree.root", tally, "branch_path", "bytes of branches", UNKNOWN_BRANCHES),
        ("ntuple.root", Tally, "branch_read", "bytes of branches", UNKNOWN_BRANCHES),
        ("tree.root", sources, "CountedFileSystem", "bytes transferred", {"bytes_transferred"}),
    ],
)
def test_where_a_hook_is_missing_the_chunk_works_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, place: Any, hook: str, told: str, unknown: set[str]
) -> None:
    monkeypatch.setattr(place, hook, missing)
    _, measurement = outcome(folder / file, total_of_f0)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any(f"{told} could not be metered: AttributeError: not there" in text for text in measurement.problems)
    assert {name for name in unknown if chunk[name] is None} == unknown
    assert chunk["bytes_requested"] > 0
    assert (chunk["bytes_transferred"] is None) == ("bytes_transferred" in unknown)


def test_where_a_handler_cannot_be_given_nothing_is_known_of_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter_module, "watched_source", missing)
    _, measurement = outcome(folder / "tree.root", total_of_f0)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any("bytes requested from storage could not be metered" in text for text in measurement.problems)
    assert {chunk[name] for name in READ} == {None}
    assert measurement.byte_ledger.absent is not None


def test_pages_that_are_asked_for_by_keyword_are_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ntuple = uproot.models.RNTuple.Model_ROOT_3a3a_RNTuple
    original = ntuple.read_cluster_pages

    def by_keyword(self: Any, cluster_idx: int, col_idx: int, *args: Any, **kwargs: Any) -> Any:
        return original(self, cluster_idx, col_idx, *args, **kwargs)

    monkeypatch.setattr(ntuple, "read_cluster_pages", by_keyword)
    _, measurement = outcome(folder / "ntuple.root", total_of_f0)
    assert measurement.byte_ledger["payload"] == sum(clusters_of(str(folder / "ntuple.root"), "f0", 0, 10**9).values())
    assert measurement.byte_ledger.residual == 0


def test_waiting_for_branches_needs_no_queue_of_a_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uproot.behaviors.TBranch, "queue", SimpleNamespace(Queue=queue.SimpleQueue))
    with served(folder, 0.01) as server:
        _, measurement = outcome(server.url("tree.root"), total_of_f0)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert measurement.problems == []
    assert chunk["read_seconds"] > 0.01
    assert measurement.byte_ledger.residual == 0


# Sources of the user's own


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


class CountingSource(OwnSource):
    """It counts what it is asked for."""

    def __init__(self, file_path: str, **options: Any) -> None:
        super().__init__(file_path, **options)
        self._num_requested_bytes = 0

    def chunk(self, start: int, stop: int) -> Any:
        self._num_requested_bytes += stop - start
        return super().chunk(start, stop)


def test_a_source_that_keeps_no_counts_is_told(folder: Path) -> None:
    _, measurement = outcome(folder / "tree.root", total_of_f0, handler=OwnSource)
    (chunk,) = measurement.run.chunks.to_pylist()
    assert chunk["bytes_requested"] is None
    assert any("bytes requested from storage could not be metered" in text for text in measurement.problems)


def test_a_source_that_reads_baskets_one_by_one_is_counted_once(folder: Path) -> None:
    _, measurement = outcome(folder / "tree.root", total_of_f0, handler=CountingSource)
    payload = sum(size for size, _ in baskets_of(str(folder / "tree.root"), "f0", 0, 10**9).values())
    assert measurement.byte_ledger["payload"] == payload
    assert measurement.byte_ledger.residual == 0


# What processors do with the events


def mapping_of(events: Any) -> Any:
    return events.attrs["@events_factory"]._mapping


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy of events": lambda events: total_of_f0(copy.deepcopy(events)),
    "pickle of events": lambda events: total_of_f0(pickle.loads(pickle.dumps(events))),
    "deepcopy of a tree": lambda events: [len(copy.deepcopy(tree)) for tree in mapping_of(events)._cache.values()],
    "pickle of a tree": lambda events: [
        len(pickle.loads(pickle.dumps(tree))) for tree in mapping_of(events)._cache.values()
    ],
}


@pytest.mark.parametrize("copies", COPIES)
def test_copies_are_made_as_without_a_meter(folder: Path, copies: str) -> None:
    _, measurement = outcome(folder / "tree.root", COPIES[copies])
    assert [text for text in measurement.problems if "metered" in text] == []


def read_in_threads(events: Any) -> float:
    with ThreadPoolExecutor(6) as pool:
        return sum(pool.map(lambda number: float(ak.sum(events[f"f{number}"])), range(FLAT)))


@pytest.mark.parametrize(("file", "sizes"), [("tree.root", baskets_of), ("ntuple.root", clusters_of)])
def test_threads_of_the_processor_may_read(folder: Path, file: str, sizes: Callable[..., dict[int, Any]]) -> None:
    path = folder / file
    for _ in range(5):
        _, measurement = outcome(path, read_in_threads)
        truth = 0
        for number in range(FLAT):
            of_branch = sizes(str(path), f"f{number}", 0, 10**9).values()
            truth += sum(size[0] if isinstance(size, tuple) else size for size in of_branch)
        assert measurement.byte_ledger["payload"] == truth
        assert measurement.byte_ledger.residual == 0
        (chunk,) = measurement.run.chunks.to_pylist()
        assert chunk["decompress_seconds"] <= chunk["cpu_seconds"]
        assert chunk["helper_cpu_seconds"] > 0


class Late:
    """A thread that reads a branch, and what it waits for between decompression and interpretation."""

    threads: ClassVar[list[threading.Thread]] = []
    came: ClassVar = threading.Semaphore(0)
    ended: ClassVar = threading.Event()


def read_ahead(events: Any) -> float:
    Late.threads.append(threading.Thread(target=total_of_f0, args=(events,)))
    Late.threads[-1].start()
    assert Late.came.acquire(timeout=60)
    return 0.0


def thread_locals() -> set[int]:
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), threading.local)}


def test_nothing_of_an_attempt_is_local_to_threads() -> None:
    """In CPython 3.11 a `threading.local` that is collected as garbage can stop a process that Dask profiles."""
    before = thread_locals()
    attempt = Attempt(DaskTask())
    with attempt.current, track_time("jets"):
        attempt.meter.options({})
        assert thread_locals() <= before
    attempt.end()


def test_what_a_thread_still_reads_at_the_end_is_payload(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = uproot.AsDtype.basket_array

    def held(self: Any, *args: Any, **kwargs: Any) -> Any:
        Late.came.release()
        assert Late.ended.wait(60)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(uproot.AsDtype, "basket_array", held)
    try:
        _, measurement = outcome(folder / "tree.root", read_ahead)
    finally:
        Late.ended.set()
        for thread in Late.threads:
            thread.join()
    payload = sum(size for size, _ in baskets_of(str(folder / "tree.root"), "f0", 0, 10**9).values())
    assert measurement.byte_ledger["payload"] == payload > 0
    assert measurement.byte_ledger.residual == 0


def test_of_baskets_far_apart_the_first_and_the_last_tell_their_sizes() -> None:
    meter = Meter()
    meter.branches["far"] = read = BranchRead()
    for basket in (10**9, 0):
        read.add(basket, 5)
    columns = meter.branch_columns()
    assert [*map(columns.get, ("baskets", BASKETS_LISTED, "basket"))] == [[2], [2], [10**9, 0]]
    assert columns["basket_bytes"] == [5, 5]


def test_of_very_many_baskets_the_first_and_the_last_tell_their_sizes() -> None:
    meter = Meter()
    for name, baskets in (("few", 1), ("many", 1000)):
        meter.branches[name] = read = BranchRead()
        for basket in reversed(range(baskets)):
            read.add(basket, 5 + basket)
    columns = meter.branch_columns()
    assert [*map(columns.get, ("baskets", BASKETS_LISTED, "basket"))] == [[1, 1000], [1, 2], [0, 0, 999]]
    assert (columns["bytes_payload"], columns["basket_bytes"]) == ([5, 504_500], [5, 5, 1004])


@pytest.mark.filterwarnings("ignore:the filter_branch kwarg:DeprecationWarning")
def test_what_is_preloaded_of_an_rntuple_is_not_called_metadata(folder: Path) -> None:
    _, measurement = outcome(folder / "ntuple.root", total_of_f0, preload=["f0", "f1"])
    (chunk,) = measurement.run.chunks.to_pylist()
    assert any("preloaded of an RNTuple" in text for text in measurement.problems)
    assert chunk["bytes_metadata"] is chunk["bytes_payload"] is None
    assert not measurement.byte_ledger.certificate.complete


# Parquet


class CountingFile(io.RawIOBase):
    """A file that counts what is read of it."""

    read_bytes = 0

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, *place: int) -> int:
        return self._file.seek(*place)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        CountingFile.read_bytes += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._file.close()


class CountingFileSystem(LocalFileSystem):
    """A file system that counts what is read of its files."""

    protocol = "counting"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("counting://")))

    def open(self, path: str, mode: str = "rb", **_: Any) -> CountingFile:
        return CountingFile(self._strip_protocol(path))


@needs_whole_columns
def test_columns_of_parquet_are_what_a_file_system_counts(folder: Path) -> None:
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)

    def counted(columns: list[str]) -> tuple[int, Measurement]:
        item = WorkItem("a", f"counting://{folder / 'columns.parquet'}", "Events", 0, 1000, b"1" * 16, {})
        CountingFile.read_bytes = 0
        _, measurement = outcome(
            item, lambda events: sum(float(ak.sum(events[name])) for name in columns), kind="parquet"
        )
        # once without a collector, once with it
        return CountingFile.read_bytes // 2, measurement

    nothing, _ = counted([])
    for columns in (["f0"], ["f0", "Jet_pt"]):
        number, measurement = counted(columns)
        assert measurement.byte_ledger["payload"] == number - nothing
        assert measurement.byte_ledger.residual == 0


def test_a_column_of_parquet_may_have_dots(tmp_path: Path) -> None:
    path = tmp_path / "dots.parquet"
    pq.write_table(pa.table({"a.b": pa.array(range(1000)), "a": pa.array([1.5] * 1000)}), path)
    item = WorkItem("a", str(path), "Events", 0, 1000, b"1" * 16, {})
    _, measurement = outcome(item, lambda events: float(ak.sum(events["a.b"])), kind="parquet")
    sizes = {
        column.path_in_schema: column.total_compressed_size
        for column in map(pq.ParquetFile(path).metadata.row_group(0).column, range(2))
    }
    assert measurement.byte_ledger["payload"] == sizes["a.b"]


def test_baskets_that_came_with_the_tree_have_the_size_of_what_is_in_them(real_files: dict[str, Any]) -> None:
    (path,) = real_files["ttbar"]["files"]
    with uproot.open(path) as file:
        basket = file["Events/nMuon"].basket(0)
        assert basket.is_embedded
        events = len(basket.array())
    _, measurement = outcome(path, lambda events: int(ak.sum(events["nMuon"])))
    (read,) = measurement.run.branch_reads.to_pylist()
    assert (read["bytes_payload"], read["bytes_uncompressed"]) == (0, 4 * events)
