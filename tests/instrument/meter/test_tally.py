"""What the steps of reading add up to, whatever thread they are on."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import awkward as ak
import pytest
import uproot
from fsspec.implementations.local import LocalFileSystem
from processes import PATIENCE
from stored import FLAT, Slept, baskets_of, branch_named, clusters_of, outcome, total_of_f0, write_tree

from roastcoffea.instrument.meter import servers as sources
from roastcoffea.instrument.meter.formats import Meter
from roastcoffea.instrument.meter.tally import BranchRead, Shadow, Tally, branch_path
from roastcoffea.log.packing import BASKETS_LISTED
from roastcoffea.records.chunks import PHASES


@pytest.mark.slow
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


def test_phases_of_many_short_steps_add_up(folder: Path) -> None:
    """Clocks are read side by side: what passes between two of them would be waiting, and CPU time as well."""

    def repeated(events: Any) -> list[float]:
        (tree,) = events.attrs["@events_factory"]._mapping._cache.values()
        return [float(ak.sum(tree[f"f{number % FLAT}"].array())) for number in range(200)]

    _, measurement = outcome(folder / "tree.root", repeated)
    (chunk,) = measurement.run.chunks.to_pylist()
    parts = sum(chunk[phase.column] or 0.0 for phase in PHASES if phase.in_process)
    assert parts == pytest.approx(chunk["process_seconds"], rel=1.5e-3)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Reading:
    """Steps as uproot makes them of a file with one basket, which take known CPU times."""

    num_requested_bytes = 0

    def __init__(self, *, in_line: bool, asking: float = 0.0) -> None:
        self.meter, self._asking = Meter(), asking
        options = self.meter.options({})
        self.submit = {kind: options[f"{kind}_executor"].submit for kind in ("decompression", "interpretation")}
        sources.watch_source(self.meter, self)
        self.meter.in_process = self.meter.in_line = in_line

    def chunk(self) -> None:
        """Shadowed."""

    def chunks(self, _ranges: list[Any]) -> None:
        burn(self._asking)

    def decompress(self, name: str, step: Callable[[], None]) -> None:
        piece = SimpleNamespace(start=0, stop=40_000)
        self.submit["decompression"](lambda *_: step(), piece, branch_named(name), 0)

    def interpret(self, name: str, step: Callable[[], None], *, embedded_in_tree: bool = False) -> None:
        held = SimpleNamespace(nbytes=1)
        basket = SimpleNamespace(
            parent=branch_named(name),
            basket_num=0,
            is_embedded=embedded_in_tree,
            uncompressed_bytes=1,
            data=held,
            byte_offsets=None,
        )
        self.submit["interpretation"](lambda _: step(), basket)


@pytest.mark.parametrize("embedded_in_tree", [False, True])
@pytest.mark.parametrize("in_line", [False, True])
def test_what_is_read_in_a_step_is_not_counted_twice(in_line: bool, embedded_in_tree: bool) -> None:
    reading = Reading(in_line=in_line)

    def nested() -> None:
        reading.chunks([(0, 1)])
        reading.decompress("inner", partial(burn, 0.02))
        reading.interpret("inner", partial(burn, 0.05))
        burn(0.01)

    reading.chunks([(0, 1)])
    if not embedded_in_tree:
        reading.decompress("outer", partial(burn, 0.03))
    reading.interpret("outer", nested, embedded_in_tree=embedded_in_tree)
    _, decompress, interpret = reading.meter.seconds()
    assert decompress + interpret == pytest.approx(0.08 if embedded_in_tree else 0.11, abs=0.005)
    if not in_line:  # else both share a reading of the clock
        assert decompress == pytest.approx(0.02 if embedded_in_tree else 0.05, abs=0.005)
    assert not reading.meter.problems


def test_asking_for_baskets_is_not_interpretation_of_others() -> None:
    reading = Reading(in_line=True, asking=0.05)
    reading.chunks([(0, 1)])
    reading.interpret("here already", partial(burn, 0.01))
    assert reading.meter.seconds()[2] == pytest.approx(0.01, abs=0.005)


def read_in_threads(events: Any) -> float:
    with ThreadPoolExecutor(6) as pool:
        return sum(pool.map(lambda number: float(ak.sum(events[f"f{number}"])), range(FLAT)))


@pytest.mark.parametrize(
    ("file", "sizes"),
    [("tree.root", baskets_of), pytest.param("ntuple.root", clusters_of, marks=pytest.mark.slow)],
)
def test_threads_of_the_processor_may_read(folder: Path, file: str, sizes: Callable[..., dict[int, Any]]) -> None:
    path = folder / file
    for _ in range(3):
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
    assert Late.came.acquire(timeout=PATIENCE)
    return 0.0


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


def test_of_very_many_baskets_the_first_and_the_last_tell_their_sizes() -> None:
    meter = Meter()
    for name, baskets in (("few", 1), ("many", 1000)):
        meter.branches[name] = read = BranchRead()
        for basket in reversed(range(baskets)):
            read.add(basket, 5 + basket)
    columns = meter.branch_columns()
    assert [*map(columns.get, ("baskets", BASKETS_LISTED, "basket"))] == [[1, 1000], [1, 2], [0, 0, 999]]
    assert (columns["bytes_payload"], columns["basket_bytes"]) == ([5, 504_500], [5, 5, 1004])


def test_what_could_not_be_metered_is_said_once() -> None:
    tally = Tally()
    for _ in range(2):
        tally.miss("bytes by branch", KeyError("x"), "bytes_payload")
    tally.miss("waiting", "nobody tells", "read_seconds")
    assert tally.problems == (
        "bytes by branch could not be metered: KeyError: 'x'",
        "waiting could not be metered: nobody tells",
    )
    assert tally.unknown == {"bytes_payload", "read_seconds"}


def test_bytes_are_those_of_all_sources_as_long_as_each_counts_them() -> None:
    tally = Tally()
    assert tally.requested() is None
    tally.sources += [SimpleNamespace(num_requested_bytes=5), SimpleNamespace(num_requested_bytes=7)]
    assert tally.requested() == 12
    tally.sources.append(object())
    assert tally.requested() is None
    assert tally.unknown >= {"bytes_requested", "bytes_payload"}
    tally.without_source = 3
    assert tally.requested() == 3


class Greeting:
    """Has a method that can be shadowed."""

    def __init__(self, word: str) -> None:
        self.word = word

    def greet(self) -> str:
        return self.word


class Loud(Shadow):
    """Says it louder."""

    def __call__(self) -> str:
        return str(self.original()).upper()


def test_a_shadow_is_taken_away_and_a_copy_has_none() -> None:
    tally, thing = Tally(), Greeting("hello")
    tally.shadow(thing, "greet", Loud)
    tally.change(thing, "word", "hi", thing.word)
    assert thing.greet() == "HI"
    assert copy.deepcopy(thing).greet() == "hi"
    tally.restore()
    assert thing.greet() == "hello"
    assert vars(thing) == {"word": "hello"}
    assert tally.problems == ()


def test_a_branch_is_named_with_those_that_it_is_in() -> None:
    class Branch(SimpleNamespace):
        basket = None

    tree = SimpleNamespace(name="Events")
    outer = Branch(name="muons", parent=tree)
    assert branch_path(Branch(name="pt", parent=outer)) == "muons/pt"
    assert branch_path(outer) == "muons"
    assert branch_path(branch_named("eta")) == "eta"
