"""Files that process() opens itself: their bytes against their baskets, and what no meter sees against file sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from coffea.processor import FuturesExecutor, IterativeExecutor, ProcessorABC, Runner
from releases import needs_exact_ranges, needs_parquet, needs_rntuples
from servers import http_server
from stored import Doing, outcome

from roastcoffea import MetricsCollector, load
from roastcoffea.instrument.gauges import CoreWait
from roastcoffea.measurement import Measurement

EVENTS = 30_000
CHUNK = 10_000
READABLE = os.access("/proc/thread-self/io", os.R_OK)
on_linux = pytest.mark.skipif(not READABLE, reason="the system does not tell what a thread reads")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A main file with a second tree, a friend tree, an RNTuple, and a JSON of 3 MB."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(1)

    def column() -> Any:
        return random.normal(size=CHUNK).astype("f4")

    with uproot.recreate(folder / "main.root") as file:
        file.mktree("Events", {"x": "f4"})
        for _ in range(EVENTS // CHUNK):
            file["Events"].extend({"x": column()})
        file.mktree("Runs", {"weight": "f8"})
        file["Runs"].extend({"weight": random.normal(size=5000)})
    with uproot.recreate(folder / "friend.root", compression=uproot.LZMA(1)) as file:
        file.mktree("Events", {"p0": "f4", "p1": "f4", "unread": "f4"})
        for _ in range(EVENTS // CHUNK):
            file["Events"].extend({name: column() for name in ("p0", "p1", "unread")})
    with uproot.recreate(folder / "ntuple.root") as file:
        file.mkrntuple("Events", ak.Array({"p0": column()}))
    (folder / "corrections.json").write_text(json.dumps(random.normal(size=150_000).tolist()))
    return folder


def baskets(path: Path, tree: str, *branches: str) -> int:
    with uproot.open(path) as file:
        return sum(file[tree][branch].compressed_bytes for branch in branches)


def run(files: Path, function: Callable[[Any], Any], executor: Any = None) -> Measurement:
    runner = Runner(executor or IterativeExecutor(status=False), schema=BaseSchema, chunksize=CHUNK, metadata_cache={})
    with MetricsCollector() as collector:
        runner({"d": {"files": {str(files / "main.root"): "Events"}}}, processor_instance=Doing(function))
    return collector.measurement


def friend_by_nanoevents(events: Any, folder: Path) -> float:
    given = events.metadata
    friend = NanoEventsFactory.from_root(
        {str(folder / "friend.root"): "Events"},
        schemaclass=BaseSchema,
        entry_start=given["entrystart"],
        entry_stop=given["entrystop"],
    ).events()
    return float(ak.sum(events.x) + ak.sum(friend.p0) + ak.sum(friend.p1))


def friend_by_uproot(events: Any, folder: Path) -> float:
    start, stop = events.metadata["entrystart"], events.metadata["entrystop"]
    with uproot.open(folder / "friend.root") as file:
        arrays = file["Events"].arrays(["p0", "p1"], entry_start=start, entry_stop=stop)
    return float(ak.sum(events.x) + ak.sum(arrays.p0) + ak.sum(arrays.p1))


def friend_by_iterate(events: Any, folder: Path) -> float:
    start, stop = events.metadata["entrystart"], events.metadata["entrystop"]
    names = {str(folder / "friend.root"): "Events"}
    parts = uproot.iterate(names, ["p0", "p1"], entry_start=start, entry_stop=stop, step_size=3000)
    return float(ak.sum(events.x) + sum(ak.sum(part.p0) + ak.sum(part.p1) for part in parts))


def friend_in_a_thread(events: Any, folder: Path) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(friend_by_uproot, events, folder).result()


KEPT: dict[str, Any] = {}
"""What stays open from chunk to chunk: no pickle of a processor has it."""


def friend_that_two_read(events: Any) -> int:
    KEPT["meeting"].wait(60)
    read = KEPT["tree"]["p0"].array(array_cache=None)
    KEPT["meeting"].wait(60)
    return len(read)


def whole_friend(events: Any, folder: Path) -> float:
    with uproot.open(folder / "friend.root") as file:
        return float(ak.sum(events.x) + ak.sum(file["Events"]["p0"].array()))


FRIENDS = [friend_by_nanoevents, friend_by_uproot, friend_in_a_thread]


def test_a_friend_that_each_chunk_reads_whole_is_a_finding(files: Path) -> None:
    measurement = run(files, lambda events: whole_friend(events, files))
    again = (len(measurement.chunks) - 1) * baskets(files / "friend.root", "Events", "p0")
    assert measurement.byte_ledger.repeated.others == {str(files / "friend.root"): again}
    (finding,) = (one for one in measurement.verdict if one.cause == "re-read")
    assert [one.name for one in finding.culprits] == [str(files / "friend.root")]
    assert finding.remedy == 'entry_start=events.metadata["entrystart"], entry_stop=events.metadata["entrystop"]'


def test_a_histogram_that_each_chunk_reads_is_a_finding(files: Path, tmp_path: Path) -> None:
    name = str(tmp_path / "weights.root")
    with uproot.recreate(name, compression=None) as file:
        file["w"] = (np.ones((300, 300)), np.arange(301.0), np.arange(301.0))

    def weighted(events: Any) -> float:
        with uproot.open(name) as file:
            return float(ak.sum(events.x) + file["w"].values().sum())

    measurement = run(files, weighted)
    once = measurement.byte_ledger["other files"] // len(measurement.chunks)
    assert measurement.byte_ledger.repeated.objects == {name: 2 * once}
    (finding,) = (one for one in measurement.verdict if one.cause == "re-read")
    assert [one.name for one in finding.culprits] == [name]
    assert finding.remedy is None


def test_waiting_for_a_friend_on_a_server_is_of_that_server(files: Path) -> None:
    with http_server(files, delay=0.05) as server:

        def read(events: Any) -> float:
            with uproot.open(f"{server.url}/friend.root") as file:
                return float(ak.sum(events.x) + ak.sum(file["Events"]["p0"].array()))

        measurement = run(files, read)
    chunks = measurement.chunks
    assert (chunks["other_read_seconds"] > 0).all()
    assert (chunks["other_read_seconds"] <= chunks["read_seconds"]).all()


@needs_exact_ranges
@pytest.mark.parametrize("read", FRIENDS)
def test_baskets_of_a_friend_tree_are_in_a_class_of_their_own(files: Path, read: Callable[..., float]) -> None:
    measurement = run(files, lambda events: read(events, files))
    ledger = measurement.byte_ledger
    friend, own = str(files / "friend.root"), str(files / "main.root")
    payload = baskets(files / "friend.root", "Events", "p0", "p1")
    assert ledger["payload"] == baskets(files / "main.root", "Events", "x")
    assert (
        ledger["other files"] == ledger.by("file").loc[friend, "other files"] == ledger.by("file").loc[friend, "total"]
    )
    chunks = measurement.chunks
    assert sum(amount for (amount,) in chunks["other_payload"]) == payload
    assert ledger["other files"] == payload + sum(amount for (amount,) in chunks["other_metadata"])
    assert ledger.by("file").loc[own, "other files"] == ledger.residual == 0
    assert ledger.total == sum(ledger.values())
    assert ledger.certificate.complete
    # what coffea counts is that of the chunks' own file
    assert measurement.metrics["total_bytes_read"] == chunks["bytes_requested"].sum()
    assert not measurement.problems


@pytest.mark.parametrize("read", FRIENDS[:1])
def test_time_of_a_friend_tree_goes_by_what_it_is_used_for(files: Path, read: Callable[..., float]) -> None:
    with_friend = run(files, lambda events: read(events, files)).chunks
    phases = with_friend[["read_seconds", "decompress_seconds", "interpret_seconds", "compute_seconds"]].sum()
    assert (phases > 0).all()
    parts = ["read", "decompress", "interpret", "compute", "contention", "lock", "blocked"]
    inside = with_friend[[f"{name}_seconds" for name in parts]].sum(axis=1)
    assert (inside <= with_friend["process_seconds"] * 1.01 + 1e-4).all()
    assert (with_friend[["open_seconds", "build_seconds"]].sum(axis=1) > 0).all()


class BuiltLate(BaseSchema):
    """Events that take a while to build."""

    def __init__(self, *args: Any, **options: Any) -> None:
        time.sleep(0.1)
        super().__init__(*args, **options)


def friend_built_late(events: Any, folder: Path) -> float:
    friend = NanoEventsFactory.from_root({str(folder / "friend.root"): "Events"}, schemaclass=BuiltLate).events()
    KEPT["delay"] += 10.0
    return float(ak.sum(events.x) + len(friend))


def test_waiting_for_a_core_is_no_more_than_what_is_left_beside_building(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's delay may grow between the moments at which it and the clocks are read."""
    monkeypatch.setitem(KEPT, "delay", 0.0)
    monkeypatch.setattr(CoreWait, "seconds", lambda self: KEPT["delay"])

    chunks = run(files, lambda events: friend_built_late(events, files)).chunks
    assert (chunks["build_seconds"] > 0.1).all()
    assert (chunks["contention_seconds"] <= chunks["process_seconds"]).all()


def test_another_tree_of_the_chunks_own_file(files: Path) -> None:
    """The file's row has what its Events were read for, and what was opened by hand, apart."""

    def weighted(events: Any) -> float:
        with uproot.open(events.metadata["filename"]) as file:
            return float(ak.sum(events.x) + file["Runs"]["weight"].array(library="np").sum())

    measurement = run(files, weighted)
    ledger, own = measurement.byte_ledger, str(files / "main.root")
    of_file = ledger.by("file").loc[own]
    runs = baskets(files / "main.root", "Runs", "weight")
    assert [amounts for (amounts,) in measurement.chunks["other_payload"]] == [runs] * 3
    assert of_file["payload"] == ledger["payload"] == baskets(files / "main.root", "Events", "x")
    assert of_file["other files"] == ledger["other files"] > 3 * runs
    assert (ledger.residual, ledger.certificate.complete) == (0, True)
    assert "weight" not in measurement.branches["branch"].tolist()


@needs_exact_ranges
def test_the_chunks_own_tree_opened_by_hand_is_no_payload(files: Path) -> None:
    def twice(events: Any) -> float:
        start, stop = events.metadata["entrystart"], events.metadata["entrystop"]
        with uproot.open(events.metadata["filename"]) as file:
            again = file["Events"]["x"].array(entry_start=start, entry_stop=stop)
        return float(ak.sum(events.x) + ak.sum(again))

    measurement = run(files, twice)
    ledger = measurement.byte_ledger
    payload = baskets(files / "main.root", "Events", "x")
    assert (ledger["payload"], ledger["re-read"], ledger.residual) == (payload, 0, 0)
    assert sum(amount for (amount,) in measurement.chunks["other_payload"]) == payload


def test_an_rntuple_as_a_friend(files: Path) -> None:
    def read(events: Any) -> float:
        with uproot.open(files / "ntuple.root") as file:
            ntuple = file["Events"]
            return float(ak.sum(events.x) + ak.sum(ntuple.arrays(["p0"]).p0))

    measurement = run(files, read)
    with uproot.open(files / "ntuple.root") as file:
        ntuple = file["Events"]
        before = file.file.source.num_requested_bytes
        ntuple.arrays(["p0"])
        pages = file.file.source.num_requested_bytes - before
    ledger = measurement.byte_ledger
    assert all(0 < amount <= pages for (amount,) in measurement.chunks["other_payload"])
    assert all(amount >= CHUNK for (amount,) in measurement.chunks["other_payload"])
    assert (ledger.residual, ledger.certificate.complete) == (0, True)


def test_what_a_failed_attempt_read_of_other_files_is_failed(files: Path) -> None:
    def fails(events: Any) -> None:
        friend_by_uproot(events, files)
        raise LookupError("planted")

    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, maxchunks=1, metadata_cache={})
    with MetricsCollector() as collector, pytest.raises(Exception, match="planted"):
        runner({"d": {"files": {str(files / "main.root"): "Events"}}}, processor_instance=Doing(fails))
    ledger = collector.measurement.byte_ledger
    assert ledger["other files"] == 0
    assert ledger.by("file").loc[str(files / "friend.root"), "failed"] > baskets(files / "friend.root", "Events", "p0")


def tolerant_of(events: Any, *names: str) -> list[Any]:
    """What a processor gives that goes on without the files that it cannot open; it returns the last exception."""
    kept: list[Any] = []
    for name, opened in zip(names, (uproot.open, by_nanoevents), strict=False):
        try:
            opened(name)
        except Exception as error:
            kept = [error]
    return [float(ak.sum(events.x)), *kept]


def by_nanoevents(name: str) -> Any:
    return NanoEventsFactory.from_root({name: "Events"}, schemaclass=BaseSchema)


class Tolerant(ProcessorABC):  # type: ignore[misc]
    def __init__(self, *names: str) -> None:
        self.names = names

    def process(self, events: Any) -> list[Any]:
        return tolerant_of(events, *self.names)

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def caught_in_chunks(files: Path, folder: Path, executor: Any, client: Any = None) -> None:
    """Check a run whose chunks go on without two files: a damaged one that is read, and a missing one."""
    bad, absent = str(folder / "bad.root"), str(folder / "absent.root")
    Path(bad).write_bytes(bytes(5000))
    runner = Runner(executor, schema=BaseSchema, chunksize=CHUNK, metadata_cache={})
    with MetricsCollector(client) as collector:
        runner({"d": {"files": {str(files / "main.root"): "Events"}}}, processor_instance=Tolerant(bad, absent))
    measurement, ledger = collector.measurement, collector.measurement.byte_ledger
    chunks = EVENTS // CHUNK
    assert (measurement.metrics["num_chunks"], measurement.metrics["total_events"]) == (chunks, EVENTS)
    failed = measurement.failed
    assert sorted(failed["file"]) == [absent] * chunks + [bad] * chunks
    assert failed["error"].notna().all()
    assert ledger["failed"] == failed["bytes"].sum() > 0
    assert (ledger["other files"], ledger.residual) == (0, 0)
    assert ledger.certificate.reasons == []
    assert ledger.by("file").loc[[bad, absent], "failed"].sum() == ledger["failed"]
    assert measurement.time_ledger.certificate.reasons == []
    (finding,) = [one for one in measurement.verdict if one.severity == "incomplete result"]
    assert finding.what.startswith(f"2 files could not be opened in tasks that continued ({bad}, {absent})")


@pytest.mark.slow
def test_files_that_chunks_could_not_open_are_failed_reads(files: Path, tmp_path: Path) -> None:
    caught_in_chunks(files, tmp_path, FuturesExecutor(workers=2, status=False))


def test_files_that_a_chunk_opened_in_the_end_are_not_missing(files: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.root"

    def patient(events: Any) -> Any:
        if not late.exists():
            with pytest.raises(FileNotFoundError):
                uproot.open(late)
            late.write_bytes((files / "friend.root").read_bytes())
        with uproot.open(late) as file:
            return float(ak.sum(file["Events"]["p0"].array()))

    measurement = run(files, patient)
    assert measurement.failed["file"].tolist() == [str(late)]
    assert [one for one in measurement.verdict if one.severity == "incomplete result"] == []


def test_exceptions_that_chunks_return_are_counted(files: Path) -> None:
    measurement = run(files, lambda events: {"x": LookupError("planted"), "n": len(events)})
    assert measurement.failed["error"].tolist() == ["LookupError: planted"] * (EVENTS // CHUNK)
    assert measurement.metrics["num_chunks"] == EVENTS // CHUNK
    assert measurement.byte_ledger["failed"] == measurement.byte_ledger.residual == 0
    assert measurement.byte_ledger.certificate.reasons == []
    (finding,) = [one for one in measurement.verdict if one.severity == "incomplete result"]
    assert finding.what.startswith(f"Tasks returned {EVENTS // CHUNK} exceptions among their values")


def test_other_files_survive_saving_and_have_made_up_names(files: Path, tmp_path: Path) -> None:
    measurement = run(files, lambda events: friend_by_uproot(events, files))
    again = load(measurement.save(tmp_path, "m"))
    assert dict(again.byte_ledger) == dict(measurement.byte_ledger)
    shared = load(measurement.save(tmp_path, "shared", share=True))
    names = {name for names in shared.chunks["other_files"] for name in names}
    assert len(names) == 1
    assert str(files) not in names.pop()
    assert shared.byte_ledger["other files"] == measurement.byte_ledger["other files"]


def test_chunks_of_several_threads(files: Path) -> None:
    executor = FuturesExecutor(workers=2, status=False, pool=ThreadPoolExecutor)
    folder = files

    def read(events: Any) -> float:
        start, stop = events.metadata["entrystart"], events.metadata["entrystop"]
        with uproot.open(folder / "friend.root") as file:
            return float(ak.sum(file["Events"]["p0"].array(entry_start=start, entry_stop=stop)))

    before = [dict(vars(owner)) for owner in (uproot.reading.ReadOnlyFile, uproot.behaviors.TBranch)]
    ledger = run(files, read, executor).byte_ledger
    payload = baskets(files / "friend.root", "Events", "p0")
    assert payload < ledger["other files"] < 2 * payload + 100_000
    assert (ledger.residual, ledger.certificate.complete) == (0, True)
    assert [dict(vars(owner)) for owner in (uproot.reading.ReadOnlyFile, uproot.behaviors.TBranch)] == before
    assert not [name for name in sys.modules if name.startswith("_roastcoffea")]


def test_an_open_file_that_two_chunks_read_at_once_is_not_counted_twice(files: Path) -> None:
    with uproot.open(files / "friend.root") as file:
        KEPT.update(tree=file["Events"], meeting=threading.Barrier(2))
        KEPT["tree"]["p0"].array(array_cache=None)
        runner = Runner(FuturesExecutor(workers=2, status=False, pool=ThreadPoolExecutor), schema=BaseSchema)
        runner.chunksize = EVENTS // 2
        with MetricsCollector() as collector:
            runner(
                {"d": {"files": {str(files / "main.root"): "Events"}}}, processor_instance=Doing(friend_that_two_read)
            )
    (reason,) = collector.measurement.byte_ledger.certificate.reasons
    assert reason == "2 chunks lack a count of bytes from files opened inside process()"
    assert collector.measurement.byte_ledger["other files"] == 0


@on_linux
def test_a_json_is_said_with_its_size(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files / "corrections.json"

    def corrected(events: Any) -> float:
        return float(ak.sum(events.x) + sum(json.loads(path.read_text())))

    measurement = run(files, corrected)
    assert measurement.byte_ledger.unmetered == pytest.approx(3 * path.stat().st_size, abs=3000)
    (reason,) = measurement.byte_ledger.certificate.reasons
    assert "MB without uproot (from files or pipes)" in reason
    measurement.print_summary(all=True)
    assert "Incomplete: process() read" in " ".join(capsys.readouterr().out.split())
    measurement.report(tmp_path / "page.html")
    assert f"incomplete: {reason}" in (tmp_path / "page.html").read_text()
    assert measurement.byte_ledger["other files"] == 0


@on_linux
@pytest.mark.parametrize("read", [friend_in_a_thread, friend_by_iterate])
def test_what_is_metered_is_not_read_by_other_means(files: Path, read: Callable[..., float]) -> None:
    measurement = run(files, lambda events: read(events, files))
    assert measurement.byte_ledger.unmetered < 10_000


@on_linux
def test_baskets_that_the_chunks_own_thread_reads_are_metered(files: Path) -> None:
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=CHUNK, metadata_cache={})
    options = {"handler": uproot.MultithreadedFileSource, "use_threads": False}
    fileset = {"d": {"files": {str(files / "main.root"): "Events"}}}
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=Doing(lambda events: float(ak.sum(events.x))), uproot_options=options)
    assert collector.measurement.byte_ledger.unmetered < 10_000


@needs_rntuples
@on_linux
@pytest.mark.parametrize("kind", ["root", pytest.param("parquet", marks=needs_parquet)])
def test_what_a_chunk_reads_of_its_own_file_is_not_read_by_other_means(files: Path, tmp_path: Path, kind: str) -> None:
    source = files / "ntuple.root"
    if kind == "parquet":
        source = tmp_path / "events.parquet"
        ak.to_parquet(ak.zip({"p0": np.random.default_rng(1).normal(size=400_000)}), source)
    _, measurement = outcome(source, lambda events: float(ak.sum(events.p0)), kind=kind)
    assert measurement.byte_ledger.unmetered < 20_000


@on_linux
@pytest.mark.slow
def test_imports_are_no_files_of_the_analysis(files: Path, tmp_path: Path) -> None:
    """A fresh process, whose first chunk imports what is larger than a megabyte."""
    module = tmp_path / "large_module.py"
    module.write_text("VALUES = " + repr([float(number) for number in range(200_000)]))
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(tmp_path)!r}]
        from coffea.nanoevents import BaseSchema
        from coffea.processor import IterativeExecutor, ProcessorABC, Runner
        from roastcoffea import MetricsCollector

        class Importing(ProcessorABC):
            def process(self, events):
                import large_module
                return {{"n": len(large_module.VALUES)}}

            def postprocess(self, accumulator):
                return accumulator

        with MetricsCollector() as collector:
            runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize={CHUNK})
            runner({{"d": {{"files": {{{str(files / "main.root")!r}: "Events"}}}}}}, processor_instance=Importing())
        print(collector.measurement.byte_ledger.certificate.complete, collector.measurement.byte_ledger.unmetered)
        """)
    )
    for _ in range(2):  # from the source, and as compiled before
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        complete, unmetered = done.stdout.split()[-2:]
        assert (complete, int(unmetered) < 200_000) == ("True", True)


@pytest.mark.slow
def test_on_dask(files: Path) -> None:
    from coffea.processor import DaskExecutor
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        runner = Runner(
            DaskExecutor(client=client, status=False), schema=BaseSchema, chunksize=CHUNK, metadata_cache={}
        )
        folder = files

        def read(events: Any) -> float:
            start, stop = events.metadata["entrystart"], events.metadata["entrystop"]
            with uproot.open(folder / "friend.root") as file:
                return float(ak.sum(file["Events"]["p0"].array(entry_start=start, entry_stop=stop)))

        class Friendly(ProcessorABC):  # type: ignore[misc]
            def process(self, events: Any) -> list[float]:
                return [read(events)]

            def postprocess(self, accumulator: Any) -> Any:
                return accumulator

        with MetricsCollector(client) as collector:
            runner({"d": {"files": {str(files / "main.root"): "Events"}}}, processor_instance=Friendly())
    measurement = collector.measurement
    ledger = measurement.byte_ledger
    payload = sum(sum(amounts) for amounts in measurement.chunks["other_payload"])
    assert payload == baskets(files / "friend.root", "Events", "p0")
    assert ledger.by("file").loc[str(files / "friend.root"), "other files"] == ledger["other files"] > payload
    assert (ledger.residual, ledger.certificate.complete) == (0, True)
