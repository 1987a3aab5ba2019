"""What process() writes: bytes against the files' sizes, and CPU time against the thread's own clock."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, ProcessorABC, Runner
from distributed import Client, LocalCluster
from releases import NO_RETRIES

from roastcoffea import MetricsCollector, load, measured
from roastcoffea.instrument.meter import openings
from roastcoffea.measurement import Measurement

EVENTS = 20_000
CHUNK = 10_000
READABLE = os.access("/proc/thread-self/io", os.R_OK)
on_linux = pytest.mark.skipif(not READABLE, reason="the system does not tell what a thread writes")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "main.root"
    random = np.random.default_rng(1)
    with uproot.recreate(path) as file:
        file.mktree("Events", {"x": "f4", "y": "f4"})
        for _ in range(EVENTS // CHUNK):
            file["Events"].extend({name: random.normal(size=CHUNK).astype("f4") for name in "xy"})
    return str(path)


def recreated(events: Any, path: Path) -> None:
    with uproot.recreate(path) as file:
        file.mktree("Events", {"x": "f4"})
        for part in np.array_split(ak.to_numpy(events.x), 4):
            file["Events"].extend({"x": part})
        file["spectrum"] = np.histogram(ak.to_numpy(events.x))


def updated(events: Any, path: Path) -> None:
    recreated(events, path)
    with uproot.update(path) as file:
        file["More"] = {"y": ak.to_numpy(events.y)}


def by_awkward(events: Any, path: Path) -> None:
    ak.to_parquet(ak.zip({"x": events.x}), str(path))


def by_arrow(events: Any, path: Path) -> None:
    table = pa.table({"x": ak.to_numpy(events.x)})
    pq.write_table(table, path.with_name(f"{path.name}.one"))
    with pq.ParquetWriter(path, table.schema) as writer:
        for start in range(0, CHUNK, 2500):
            writer.write_table(table.slice(start, 2500))


def plain(events: Any, path: Path) -> None:
    with path.open("w") as file:
        file.writelines(f"{x:.6f}\n" for x in ak.to_numpy(events.x))


def as_dataset(events: Any, path: Path) -> None:
    x = ak.to_numpy(events.x)
    table = pa.table({"x": x, "side": np.where(x > 0, "right", "left")})
    pq.write_to_dataset(table, path / "one", partition_cols=["side"])
    names: list[str] = []
    ds.write_dataset(
        table,
        path / "other",
        format="parquet",
        use_threads=False,
        file_visitor=lambda written: names.append(written.path),
    )
    assert [Path(name).parent for name in names] == [path / "other"]


FIVE = (recreated, updated, by_awkward, by_arrow, plain)


class Skim(ProcessorABC):
    """Writes the events of each chunk; returns their number, the sizes of its files, and the CPU time of writing."""

    def __init__(self, folder: Path, write: Callable[[Any, Path], Any]) -> None:
        self.folder, self.write = folder, write

    def process(self, events: Any) -> dict[str, Any]:
        path = self.folder / f"{self.write.__name__}-{events.metadata['entrystart']}"
        ak.materialize(events.x), ak.materialize(events.y)
        began = time.thread_time()
        result = self.write(events, path)
        cpu = time.thread_time() - began
        return {"events": len(events), "cpu": cpu, "paths": {str(path)}, "results": [result]}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def run(
    source: str, processor: Any, executor: Any = None, client: Any = None, **options: Any
) -> tuple[Measurement, Any]:
    runner = Runner(executor or IterativeExecutor(status=False), schema=BaseSchema, chunksize=CHUNK, **options)
    with MetricsCollector(client) as collector:
        output = runner({"d": {"files": {source: "Events"}}}, processor_instance=processor)
    return collector.measurement, output


def sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def written(measurement: Measurement) -> dict[str, int]:
    chunks = measurement.chunks.dropna(subset="written_files")
    rows = zip(chunks["written_files"], chunks["written_sizes"], strict=True)
    return {file: int(size) for files, own in rows for file, size in zip(files, own, strict=True)}


def check(measurement: Measurement, folder: Path, write: Any) -> None:
    """Compare with the files."""
    found, ledger = sizes(folder), measurement.write_ledger
    assert ledger.certificate.complete, ledger.certificate
    assert ledger.residual == 0
    assert sum(ledger.values()) == ledger.total
    if write is plain:
        assert ledger["other writes"] == sum(found.values()) == ledger.total
        assert not measurement.metrics["files_written"]
        return
    assert written(measurement) == found
    assert ledger["in files"] == sum(found.values())
    assert ledger["other writes"] == ledger["failed"] == 0
    assert measurement.metrics["files_written"] == len(found)
    (row,) = measurement.outputs.to_dict("records")
    assert row["endpoint"] == "local files"
    assert row["folder"] == str(folder)
    assert row["bytes_in_files"] == sum(found.values())
    assert row["bytes_written"] == ledger.total == ledger["in files"] + ledger["rewritten"]
    assert measurement.write_ledger.by("kind")["total"].sum() == ledger.total


def check_time(measurement: Measurement) -> None:
    chunks = measurement.chunks
    parts = ["read", "decompress", "interpret", "compute", "write_cpu", "write_wait", "contention", "lock", "blocked"]
    total = chunks[[f"{name}_seconds" for name in parts]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(chunks["process_seconds"].to_numpy(), rel=1e-6, abs=1e-4)
    ledger = measurement.time_ledger
    assert sum(ledger.values()) == pytest.approx(ledger.total)
    own = chunks["write_cpu_seconds"].sum() + chunks["write_wait_seconds"].sum()
    assert ledger["write"] == pytest.approx(own)


@on_linux
@pytest.mark.parametrize("write", FIVE)
def test_bytes_written_are_the_sizes_of_the_files(source: str, tmp_path: Path, write: Any) -> None:
    measurement, output = run(source, Skim(tmp_path, write))
    assert output["events"] == EVENTS
    assert set(sizes(tmp_path)) >= output["paths"]
    check(measurement, tmp_path, write)
    check_time(measurement)
    cpu = measurement.chunks["write_cpu_seconds"].sum()
    # Arrow's table is made before pyarrow writes it
    assert (cpu <= output["cpu"]) if write is not plain else (cpu == 0)
    assert cpu >= {recreated: 0.5, updated: 0.5, by_awkward: 0.5}.get(write, 0.0) * output["cpu"]
    kept = load(measurement.save(tmp_path / "runs", "skim"))
    assert dict(kept.write_ledger) == dict(measurement.write_ledger)
    assert kept.outputs.equals(measurement.outputs)
    shared = measurement.save(tmp_path / "shared", "skim", share=True)
    assert str(tmp_path) not in str(load(shared).chunks["written_files"].tolist())


@on_linux
@pytest.mark.parametrize("kind", [ProcessPoolExecutor, ThreadPoolExecutor])
def test_they_are_in_pools(source: str, tmp_path: Path, kind: Any) -> None:
    with kind(2) as pool:
        for write in FIVE:
            folder = tmp_path / write.__name__
            folder.mkdir()
            measurement, _ = run(source, Skim(folder, write), FuturesExecutor(pool=pool, workers=2, status=False))
            check(measurement, folder, write)
            check_time(measurement)


@on_linux
@pytest.mark.parametrize("threads", [1, 2])
def test_they_are_on_a_cluster(source: str, tmp_path: Path, threads: int) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=threads, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for write in FIVE:
            folder = tmp_path / write.__name__
            folder.mkdir()
            measurement, output = run(source, Skim(folder, write), DaskExecutor(client=client, status=False), client)
            assert output["events"] == EVENTS
            check(measurement, folder, write)
            assert measurement.time_ledger.residual == pytest.approx(0, abs=0.01 * measurement.time_ledger.total)


@on_linux
def test_files_of_a_dataset_are_written_by_threads_of_arrow(source: str, tmp_path: Path) -> None:
    measurement, _ = run(source, Skim(tmp_path, as_dataset))
    ledger, found = measurement.write_ledger, sizes(tmp_path)
    assert ledger["in files"] == ledger.total == sum(found.values())
    assert measurement.metrics["files_written"] == 2 * EVENTS // CHUNK
    assert ledger.residual == ledger["other writes"] == 0
    check_time(measurement)


def contents(folder: Path) -> dict[str, Any]:
    """What is in the files, without the identity and the times of ROOT files."""
    found: dict[str, Any] = {}
    for path in map(Path, sizes(folder)):
        if path.name.startswith(("recreated", "updated")):
            with uproot.open(path) as file:
                trees = file.keys(filter_classname="TTree")
                found[path.name] = trees, [file[tree].arrays().tolist() for tree in trees], path.stat().st_size
        else:
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.parametrize("write", FIVE)
def test_files_and_results_are_the_same_without_a_collector(source: str, tmp_path: Path, write: Any) -> None:
    folders = [tmp_path / name for name in ("with", "without")]
    for folder in folders:
        folder.mkdir()
    _, output = run(source, Skim(folders[0], write))
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=CHUNK)
    bare = runner({"d": {"files": {source: "Events"}}}, processor_instance=Skim(folders[1], write))
    assert output["events"] == bare["events"]
    ours, theirs = map(contents, folders)
    # a ROOT file holds its own path and compressed times of writing: its size may differ by some bytes
    assert ours.keys() == theirs.keys()
    for name, (one, other) in {name: (ours[name], theirs[name]) for name in ours}.items():
        assert one[:2] == other[:2] if isinstance(one, tuple) else one == other, name


PATCHED = (
    (sys.modules["uproot.writing._cascade"], ("create_empty", "update_existing")),
    (uproot.sink.file.FileSink, ("close",)),
    (uproot.writing.writable.WritableTree, ("extend", "add_branches")),
    (uproot.writing.writable.WritableDirectory, ("update", "mktree", "mkrntuple", "copy_from", "mkdir")),
    (sys.modules["awkward.operations.ak_to_parquet"], ("_impl",)),
    (pq.ParquetWriter, ("__init__", "write_table", "close")),
    (ds, ("write_dataset",)),
    (pq, ("write_to_dataset",)),
)


def methods() -> list[Any]:
    return [vars(owner).get(name) for owner, names in PATCHED for name in names]


def replaced() -> list[str]:
    names = [name for _, names in PATCHED for name in names]
    return sorted(name for name, method in zip(names, methods(), strict=True) if hasattr(method, "__wrapped__"))


def test_nothing_stays_behind(source: str, tmp_path: Path) -> None:
    before = methods()
    _, output = run(source, Skim(tmp_path, lambda _, path: replaced()))
    # while nothing is written, only what opens a file is replaced
    first = ["__init__", "_impl", "create_empty", "update_existing", "write_dataset", "write_to_dataset"]
    assert output["results"] == [first] * (EVENTS // CHUNK)
    for write in (*FIVE, as_dataset):
        run(source, Skim(tmp_path, write))
    assert all(one is other for one, other in zip(methods(), before, strict=True))


@on_linux
def test_a_file_that_is_overwritten_has_its_last_size(source: str, tmp_path: Path) -> None:
    path, larger = tmp_path / "skim", np.zeros(200_000, np.float64)

    def twice(events: Any, _: Path) -> None:
        with uproot.recreate(path, compression=None) as file:
            file["Events"] = {"x": larger}
        with uproot.recreate(path) as file:
            file["Events"] = {"x": ak.to_numpy(events.x)}
        for rows in (5000, 50):
            pq.write_table(pa.table({"x": larger[:rows]}), f"{path}.parquet")

    path.write_bytes(bytes(10_000_000))
    measurement, _ = run(source, Skim(tmp_path, twice), maxchunks=1)
    assert written(measurement) == sizes(tmp_path)
    assert measurement.write_ledger["rewritten"] > larger.nbytes
    assert measurement.write_ledger.residual == 0


@on_linux
def test_an_update_counts_what_it_adds(source: str, tmp_path: Path) -> None:
    path = tmp_path / "skim"
    with uproot.recreate(path) as file:
        file["Before"] = {"x": np.arange(10_000.0)}
    before = path.stat().st_size

    def update(events: Any, _: Path) -> None:
        with uproot.update(path) as file:
            file[f"Events{events.metadata['entrystart']}"] = {"x": ak.to_numpy(events.x)}

    measurement, _ = run(source, Skim(tmp_path, update))
    assert measurement.write_ledger["in files"] == path.stat().st_size - before
    assert measurement.write_ledger.residual == 0


KEPT: list[Any] = []
"""What stays open: no pickle of a processor has it."""


def fail_half_way(events: Any, path: Path) -> None:
    writer = pq.ParquetWriter(f"{path}.parquet", pa.schema({"x": pa.float32()}), compression="none")
    writer.write_table(pa.table({"x": ak.to_numpy(events.x)}))
    KEPT.append(writer)
    with uproot.recreate(path) as file:
        file["Events"] = {"x": ak.to_numpy(events.x)}
        raise RuntimeError("half-way")


@on_linux
def test_what_a_failed_attempt_wrote_is_failed(source: str, tmp_path: Path) -> None:
    runner = Runner(IterativeExecutor(status=False, **NO_RETRIES), schema=BaseSchema, chunksize=CHUNK)
    with pytest.raises(Exception, match="half-way"), MetricsCollector() as collector:
        runner({"d": {"files": {source: "Events"}}}, processor_instance=Skim(tmp_path, fail_half_way))
    ledger, found = collector.measurement.write_ledger, sizes(tmp_path)
    assert ledger["in files"] == ledger.residual == 0
    # the size of the Parquet file, whose footer is not yet written, is what the system has
    (chunk,) = collector.measurement.chunks.to_dict("records")
    assert dict(zip(chunk["written_files"], map(int, chunk["written_sizes"]), strict=True)) == found
    assert ledger["failed"] == ledger.total >= sum(found.values())
    KEPT.pop().close()


def test_errors_of_the_libraries_are_the_same(source: str, tmp_path: Path) -> None:
    def fail(_: Any, path: Path) -> list[str]:
        errors = []
        for action in (
            lambda: uproot.recreate(tmp_path / "none" / "\0"),
            lambda: uproot.update(tmp_path / "missing.root"),
            lambda: pq.ParquetWriter(path, None),
            lambda: ak.to_parquet(1, str(path)),
            lambda: ds.write_dataset(1, path),
            lambda: uproot.recreate(path).update({}, original=object()),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                action()
            errors.append(f"{caught.type}: {caught.value}")
        with uproot.recreate(path) as file, pytest.raises(ValueError) as missing:  # noqa: PT011
            file.mktree("Events", {"x": "f4"}).extend({"z": [1.0]})
        return [*errors, str(missing.value)]

    _, output = run(source, Skim(tmp_path, lambda events, path: fail(events, tmp_path / "same")), maxchunks=1)
    assert output["results"] == [fail(None, tmp_path / "same")]


@on_linux
def test_files_of_threads_of_the_function_count(source: str, tmp_path: Path) -> None:
    def in_thread(events: Any, path: Path) -> None:
        arrays = ak.to_numpy(events.x)
        thread = threading.Thread(target=lambda: ak.to_parquet({"x": arrays}, str(path)))
        thread.start()
        thread.join()

    measurement, _ = run(source, Skim(tmp_path, in_thread))
    assert written(measurement) == sizes(tmp_path)
    assert measurement.write_ledger.residual == measurement.write_ledger["other writes"] == 0
    # its time is that of another thread
    assert measurement.chunks["write_cpu_seconds"].sum() == 0
    assert measurement.outputs["seconds"].item() > 0


EARLIER: list[Measurement] = []
BOTH = threading.Barrier(2)


def saving(_: Any, path: Path) -> None:
    def write() -> None:
        EARLIER[0].save(path / "runs")
        EARLIER[0].export(path / "tables", "parquet")

    BOTH.wait(60)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    BOTH.wait(60)


@on_linux
def test_measurements_saved_meanwhile_are_no_writes_of_chunks(source: str, tmp_path: Path) -> None:
    EARLIER[:] = [run(source, Skim(tmp_path, recreated))[0]]
    folder = tmp_path / "meanwhile"
    folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        executor = FuturesExecutor(pool=pool, workers=2, status=False)
        measurement, output = run(source, Skim(folder, saving), executor)
    assert output["events"] == EVENTS
    assert len(sizes(folder)) > 20
    assert measurement.write_ledger.total == 0
    assert measurement.problems == []


@on_linux
def test_writes_are_unknown_where_the_libraries_cannot_be_patched(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise AttributeError("planted")

    monkeypatch.setattr(openings, "_first_written", fails)
    measurement, output = run(source, Skim(tmp_path, recreated))
    assert output["events"] == EVENTS
    assert measurement.chunks["bytes_written"].isna().all()
    assert measurement.chunks[["write_cpu_seconds", "write_wait_seconds"]].isna().all(axis=None)
    ledger = measurement.time_ledger
    assert "write" not in ledger
    assert ledger.residual == pytest.approx(0, abs=1e-3 * ledger.total)
    assert any("planted" in problem for problem in measurement.problems)


@on_linux
def test_urls_have_endpoints_and_memory_has_none(source: str, tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def write(events: Any, path: Path) -> None:
        x = ak.to_numpy(events.x)
        with uproot.recreate(f"memory://store/{path.name}.root") as file:
            file["Events"] = {"x": x}
        ak.to_parquet({"x": x}, f"memory://store/{path.name}.parquet")
        with uproot.recreate(io.BytesIO()) as file:
            file["Events"] = {"x": x}
        pq.write_table(pa.table({"x": x}), pa.BufferOutputStream())
        with (tmp_path / f"{path.name}.root").open("w+b") as raw, uproot.recreate(raw) as file:
            file["Events"] = {"x": x}

    measurement, _ = run(source, Skim(tmp_path, write))
    stored = {f"memory:/{name}": len(file.getvalue()) for name, file in MemoryFileSystem.store.items()}
    MemoryFileSystem.store.clear()
    found = {
        name.replace("memory://", "memory:/").replace("memory:///", "memory:/"): size
        for name, size in written(measurement).items()
        if "memory" in name
    }
    assert sorted(found.values()) == sorted(stored.values())
    assert measurement.write_ledger["in files"] == sum(stored.values()) + sum(sizes(tmp_path).values())
    assert measurement.write_ledger.residual == measurement.write_ledger["other writes"] == 0
    assert "local files" in set(measurement.outputs["endpoint"])
    assert len(measurement.outputs) == 2


@on_linux
def test_reading_inside_a_call_that_writes_is_reading(source: str, tmp_path: Path) -> None:
    class Lazy(Skim):
        def process(self, events: Any) -> int:
            with uproot.recreate(tmp_path / str(events.metadata["entrystart"])) as file:
                file["Events"] = {name: events[name] for name in "xy"}
            return len(events)

    measurement, output = run(source, Lazy(tmp_path, recreated))
    assert output == EVENTS
    assert written(measurement) == sizes(tmp_path)
    with uproot.open(source) as file:
        assert measurement.byte_ledger["payload"] == sum(branch.compressed_bytes for branch in file["Events"].branches)
    assert (measurement.chunks["decompress_seconds"] > 0).all()
    check_time(measurement)


@on_linux
def test_many_files_are_all_counted(source: str, tmp_path: Path) -> None:
    def many(events: Any, path: Path) -> None:
        for number in range(150):
            pq.write_table(pa.table({"x": [number]}), f"{path}-{number}")

    measurement, _ = run(source, Skim(tmp_path, many), maxchunks=1)
    assert len(measurement.chunks["written_files"][0]) == 150
    assert measurement.metrics["files_written"] == len(sizes(tmp_path)) == 150
    assert measurement.write_ledger["in files"] == sum(sizes(tmp_path).values())


@on_linux
def test_measured_functions_write_too(tmp_path: Path) -> None:
    @measured
    def skim(number: int) -> int:
        ak.to_parquet({"x": np.arange(number)}, str(tmp_path / "skim"))
        (tmp_path / "notes").write_text("x" * number)
        return number

    with MetricsCollector() as collector:
        assert skim(5000) == 5000
    ledger = collector.measurement.write_ledger
    assert ledger["in files"] == (tmp_path / "skim").stat().st_size
    assert ledger["other writes"] == 5000
    assert ledger.residual == 0


def test_older_measurements_did_not_measure_it() -> None:
    older = load(Path(__file__).parents[2] / "data" / "schema14")
    assert "write" not in older.time_ledger
    assert "older version" in older.metrics.missing["time_write_seconds"]
    assert "did not measure writing" in (older.write_ledger.absent or "")
    assert older.write_ledger.total is None
    assert older.chunks["bytes_written"].isna().all()
    assert "bytes_written" not in older.metrics
    assert older.time_ledger.residual == pytest.approx(0, abs=1e-3 * older.time_ledger.total)
