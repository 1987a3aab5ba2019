"""The byte ledger of real runs, against what the files themselves say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, ProcessorABC, Runner
from releases import (
    NO_RETRIES,
    READS_ON,
    needs_caches,
    needs_checkpoints,
    needs_exact_ranges,
    needs_kinds_of_skips,
    needs_options,
    needs_parquet,
    needs_preloads,
    needs_retries,
    needs_rntuples,
)
from stored import CUT, CountingServer, baskets_of, clusters_of, served, write_parquet, write_rntuple, write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

EVENTS = 1000
"""Events in a basket or cluster of the files that the tests write."""


class Reading(ProcessorABC):
    """Reads some branches."""

    def __init__(self, branches: list[str]) -> None:
        self.branches = branches

    def process(self, events: Any) -> dict[str, float]:
        return {"sum": sum(float(ak.sum(events[branch], axis=None)) for branch in self.branches), "events": len(events)}

    def postprocess(self, accumulator: Any) -> Any:
        return accumulator


def measured(
    files: dict[str, list[str]], branches: list[str], chunksize: int, **options: Any
) -> tuple[Measurement, dict[str, Any]]:
    """A measurement of reading branches in chunks, and coffea's report."""
    runner = Runner(
        executor=IterativeExecutor(status=False),
        schema=BaseSchema,
        chunksize=chunksize,
        savemetrics=True,
        metadata_cache={},
        **options,
    )
    fileset = {name: {"files": dict.fromkeys(paths, "Events")} for name, paths in files.items()}
    with MetricsCollector() as collector:
        _, report = runner(fileset, processor_instance=Reading(branches))
    return collector.measurement, report


def preprocessing_bytes(path: str) -> int:
    """What opening a file and its tree requests."""
    with uproot.open(path) as file:
        _ = file["Events"].num_entries
        return int(file.file.source.num_requested_bytes)


def counted(measurement: Measurement, sizes: Callable[..., dict[int, Any]]) -> Counter[tuple[str, str, int]]:
    """How often each basket was asked for: {(file, branch, basket): times}; each row of reads is checked on the way."""
    times: Counter[tuple[str, str, int]] = Counter()
    chunks = measurement.chunks.set_index("id")
    rows = chunks[["file", "entry_start", "entry_stop"]].to_dict("index")
    for row in measurement.run.branch_reads.to_pylist():
        chunk = rows[row["chunk"]]
        truth = sizes(chunk["file"], row["branch"], chunk["entry_start"], chunk["entry_stop"])
        compressed = [size[0] if isinstance(size, tuple) else size for size in truth.values()]
        assert row["bytes_payload"] == sum(compressed)
        assert (row["basket_first"], row["basket_last"], row["baskets"]) == (min(truth), max(truth), len(truth))
        if all(isinstance(size, tuple) for size in truth.values()):
            assert row["bytes_uncompressed"] == sum(size[1] for size in truth.values())
        times.update((chunk["file"], row["branch"], basket) for basket in truth)
    return times


def check_ledger(measurement: Measurement, report: dict[str, Any], sizes: Callable[..., dict[int, Any]]) -> None:
    """The ledger closes, and each of its classes is what the file says."""
    times = counted(measurement, sizes)
    one = {
        basket: size[0] if isinstance(size, tuple) else size
        for file, branch in {basket[:2] for basket in times}
        for number, size in sizes(file, branch, 0, 10**9).items()
        for basket in [(file, branch, number)]
    }
    ledger = measurement.byte_ledger
    preprocessing = sum(preprocessing_bytes(path) for path in measurement.chunks["file"].unique())
    assert ledger["payload"] == sum(one[basket] for basket in times)
    assert ledger["re-read"] == sum(one[basket] * (number - 1) for basket, number in times.items())
    assert ledger["preprocessing"] == preprocessing
    assert ledger["failed"] == 0
    assert ledger.residual == ledger["residual"] == 0
    assert ledger.total == report["bytesread"] + preprocessing == sum(ledger.values())
    assert ledger.certificate.complete, ledger.certificate.reasons


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


COMPRESSIONS = {"none": None, "zlib": uproot.ZLIB(1), "lz4": uproot.LZ4(1), "zstd": uproot.ZSTD(1)}


@pytest.mark.parametrize(
    ("compression", "chunksize"), [("none", EVENTS), ("zlib", 700), ("lz4", 10**6), ("zstd", EVENTS)]
)
def test_the_ledger_of_a_tree_is_that_of_its_baskets(folder: Path, compression: str, chunksize: int) -> None:
    path = folder / f"{compression}.root"
    if not path.exists():
        write_tree(path, compression=COMPRESSIONS[compression])
    measurement, report = measured({"a": [str(path)]}, ["f0", "f3", "Jet_pt"], chunksize)
    check_ledger(measurement, report, baskets_of)
    assert (measurement.byte_ledger["re-read"] == 0) == (chunksize == 10**6 or (chunksize == EVENTS and not READS_ON))


@pytest.mark.parametrize("branches", [1, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["tree", pytest.param("rntuple", marks=needs_rntuples)])
def test_the_ledger_closes_for_few_and_many_branches(folder: Path, branches: int, kind: str) -> None:
    write, sizes = (write_tree, baskets_of) if kind == "tree" else (write_rntuple, clusters_of)
    path = folder / f"{kind}-{branches}.root"
    write(path, 3, 200, branches)
    measurement, report = measured({"a": [str(path)]}, [f"f{number}" for number in range(branches)], 150)
    check_ledger(measurement, report, sizes)
    assert measurement.chunks["branches"].unique().tolist() == [branches]
    assert len(measurement.branches) == branches


@needs_rntuples
@pytest.mark.parametrize("chunksize", [EVENTS, 700, 10**6])
def test_the_ledger_of_an_rntuple_is_that_of_its_pages(folder: Path, chunksize: int) -> None:
    path = folder / "ntuple.root"
    if not path.exists():
        write_rntuple(path)
    measurement, report = measured({"a": [str(path)]}, ["f0", "f3", "Jet_pt"], chunksize)
    check_ledger(measurement, report, clusters_of)


@pytest.mark.parametrize(
    ("name", "chunksize"),
    [
        ("ttbar", 100_000),
        pytest.param("dy", 97, marks=pytest.mark.slow),
        pytest.param("dimuon", 100_000, marks=pytest.mark.slow),
    ],
)
def test_the_ledger_of_real_files_closes(real_files: dict[str, Any], name: str, chunksize: int) -> None:
    [path] = real_files[name]["files"]
    branches = ["nJet", "Jet_pt", "Jet_eta", "nMuon", "Muon_pt", "run"]
    measurement, report = measured({name: [path]}, branches, chunksize)
    ledger = measurement.byte_ledger
    if name == "ttbar":
        assert ledger["payload"] == 0
        assert ledger.total == report["bytesread"] + preprocessing_bytes(path)
        assert ledger.residual == 0
        assert measurement.metrics["total_bytes_uncompressed"] > 0
    else:
        check_ledger(measurement, report, baskets_of)


@needs_exact_ranges
def test_the_same_file_in_two_datasets_is_read_again(folder: Path) -> None:
    path = write_tree(folder / "twice.root")
    measurement, _ = measured({"a": [str(path)], "b": [str(path)]}, ["f0"], EVENTS)
    ledger = measurement.byte_ledger
    assert ledger["payload"] == ledger["re-read"] == sum(size for size, _ in baskets_of(path, "f0", 0, 10**9).values())
    assert ledger.residual == 0
    by_dataset = ledger.by("dataset")
    assert by_dataset.loc["b", "re-read"] == ledger["re-read"]
    assert by_dataset["total"].sum() == ledger.total


@needs_exact_ranges
def test_the_advice_makes_the_re_reading_vanish(folder: Path) -> None:
    path = write_tree(folder / "advised.root", compression=uproot.ZSTD(1))
    files = {"a": [str(path)]}
    measurement, _ = measured(files, ["f0", "Jet_pt"], 700)
    advice = measurement.byte_ledger.advice
    assert measurement.byte_ledger["re-read"] > 0
    saved = [finding for finding in advice if "align_clusters" in finding.text]
    assert saved
    assert saved[0].bytes == measurement.byte_ledger["re-read"]
    followed, _ = measured(files, ["f0", "Jet_pt"], 700, align_clusters=True)
    assert followed.byte_ledger["re-read"] == 0


@pytest.mark.parametrize("kind", ["tree", pytest.param("rntuple", marks=needs_rntuples)])
def test_what_is_transferred_is_what_the_server_sent(folder: Path, kind: str) -> None:
    path = (write_tree if kind == "tree" else write_rntuple)(folder / f"served-{kind}.root")
    with served(folder) as server:
        measurement, report = measured({"a": [server.url(path.name)]}, ["f0", "f4", "Jet_pt"], 700)
        sent = server.sent
    ledger = measurement.byte_ledger
    assert ledger.transferred == sent
    assert ledger.residual == 0
    assert ledger.total <= sent
    assert ledger["payload"] + ledger["re-read"] + ledger["metadata"] == report["bytesread"]
    assert ledger.by("endpoint").index.tolist() == [server.url("").split("/")[2]]


@needs_preloads
def test_preloaded_branches_are_payload(folder: Path) -> None:
    path = write_tree(folder / "preloaded.root")
    runner = Runner(
        executor=IterativeExecutor(status=False), schema=BaseSchema, chunksize=700, savemetrics=True, metadata_cache={}
    )
    fileset = {"a": {"files": {str(path): "Events"}, "preload": ["f0", "Jet_pt"]}}
    with MetricsCollector() as collector:
        _, report = runner(fileset, processor_instance=Reading(["f0", "f1", "Jet_pt"]))
    check_ledger(collector.measurement, report, baskets_of)
    assert set(collector.measurement.branches["branch"]) == {"f0", "f1", "Jet_pt"}


def test_parts_of_a_fileset_add_up_to_all_of_it(folder: Path) -> None:
    splitting = pytest.importorskip("coffea.dataset_tools.splitting", reason="this coffea splits no filesets")
    paths = [str(write_tree(folder / f"part-{number}.root")) for number in range(4)]
    fileset = {"a": {"files": dict.fromkeys(paths[:3], "Events")}, "b": {"files": dict.fromkeys(paths[3:], "Events")}}
    parts = splitting.split_fileset(fileset, percentage=50)
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=700, savemetrics=True)
    read = []
    with MetricsCollector() as collector:
        for part in parts:
            runner.metadata_cache = {}
            read.append(runner(part, processor_instance=Reading(["f0", "Jet_pt"]))[1]["bytesread"])
    assert len(parts) == len(collector.measurement.run.calls) == 2
    check_ledger(collector.measurement, {"bytesread": sum(read)}, baskets_of)
    assert collector.measurement.metrics["num_missing_chunks"] == 0
    assert collector.problems == []


class Twice(Reading):
    """Reads each branch, and uses it once more."""

    def process(self, events: Any) -> dict[str, float]:
        super().process(events)
        return super().process(events)


def cached_run(files: dict[str, Any], executor: Any, strategy: Any, branches: list[str]) -> tuple[Any, Any]:
    """What a run with a cache gives, with coffea's report."""
    runner = Runner(executor, schema=BaseSchema, chunksize=700, savemetrics=True, cachestrategy=strategy)
    return runner(files, treename="Events", processor_instance=Twice(branches))


@needs_caches
@pytest.mark.parametrize("kind", ["tree", pytest.param("ntuple", marks=needs_rntuples)])
def test_arrays_from_a_cache_are_no_payload(folder: Path, kind: str) -> None:
    write, sizes = {"tree": (write_tree, baskets_of), "ntuple": (write_rntuple, clusters_of)}[kind]
    path = write(folder / f"cached-{kind}.root")
    files, here, cache = {"a": [str(path)]}, IterativeExecutor(status=False), {}
    plain = cached_run(files, here, None, ["f0", "f1"])[0]
    with MetricsCollector() as cold:
        assert cached_run(files, here, lambda: cache, ["f0"])[1]["bytesread"] > 0
    size = sum(array.nbytes for array in cache.values())
    with MetricsCollector() as warm:
        output, report = cached_run(files, here, lambda: cache, ["f0", "f1"])
    assert output == plain
    assert cold.measurement.chunks["bytes_cached"].sum() == 0
    assert "buffer cache" not in str(cold.measurement.byte_ledger.certificate)
    assert warm.measurement.chunks["bytes_cached"].sum() == size > 0
    assert set(warm.measurement.branches["branch"]) == {"f1"}
    ledger = warm.measurement.byte_ledger
    assert counted(warm.measurement, sizes)
    assert ledger["payload"] + ledger["re-read"] + ledger["metadata"] == report["bytesread"]
    assert ledger.residual == 0
    assert ledger.certificate.complete
    assert "of arrays came from coffea's buffer cache" in str(ledger.certificate)
    assert warm.measurement.problems == []


@needs_parquet
def test_parquet_payload_is_that_of_its_column_chunks(folder: Path) -> None:
    import pyarrow.parquet as pq

    path = write_parquet(folder / "columns.parquet")
    runner = Runner(
        executor=IterativeExecutor(status=False), schema=BaseSchema, chunksize=1500, format="parquet", metadata_cache={}
    )
    with MetricsCollector() as collector:
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=Reading(["f0", "f3"]))
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    ours = [group.column(leaf) for group in groups for leaf in range(group.num_columns)]
    one_chunk = sum(leaf.total_compressed_size for leaf in ours if leaf.path_in_schema in ("f0", "f3"))
    chunks = len(collector.measurement.chunks)
    ledger = collector.measurement.byte_ledger
    assert chunks > 1
    assert ledger["payload"] == one_chunk
    assert ledger["re-read"] == (chunks - 1) * one_chunk
    assert ledger.residual == 0


def test_a_record_taken_away_changes_the_certificate(folder: Path) -> None:
    import dataclasses

    path = write_tree(folder / "certified.root")
    measurement, _ = measured({"a": [str(path)]}, ["f0"], EVENTS)
    assert measurement.byte_ledger.certificate.complete
    robbed = Measurement(dataclasses.replace(measurement.run, chunks=measurement.run.chunks[1:]))
    assert not robbed.byte_ledger.certificate.complete
    assert robbed.byte_ledger.certificate.reasons


@needs_retries
def test_failed_attempts_have_a_class_of_their_own(folder: Path) -> None:
    path = write_tree(folder / "failing.root")
    runner = Runner(
        executor=IterativeExecutor(status=False, retries=2), schema=BaseSchema, chunksize=EVENTS, metadata_cache={}
    )
    failing = FailingOnce(folder / "failed", ["f0"])
    with MetricsCollector() as collector, pytest.warns(UserWarning, match="attempt"):
        runner({"a": {"files": {str(path): "Events"}}}, processor_instance=failing)
    ledger = collector.measurement.byte_ledger
    failed = collector.measurement.chunks.query("outcome == 'error'")
    assert len(failed) == 4
    assert ledger["failed"] == failed["bytes_requested"].sum() > failed["bytes_payload"].sum() > 0
    assert ledger["payload"] == sum(size for size, _ in baskets_of(path, "f0", 0, 10**9).values())
    assert ledger["re-read"] == ledger.residual == 0


class FailingOnce(Reading):
    """Reads, and then fails in the first attempt of each chunk."""

    def __init__(self, folder: Path, branches: list[str]) -> None:
        super().__init__(branches)
        self.folder = folder

    def process(self, events: Any) -> dict[str, float]:
        output = super().process(events)
        marker = self.folder / str(events.metadata["entrystart"])
        if not marker.exists():
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
            raise OSError("planted, once")
        return output


def test_the_advised_chunk_per_file_makes_the_re_reading_vanish(folder: Path) -> None:
    files = {"a": [str(write_tree(folder / "large.root")), str(write_tree(folder / "small.root", baskets=3))]}
    measurement, _ = measured(files, ["f0", "Jet_pt"], 700)
    assert "boundaries: with one chunk per file, each is read once" in measurement.byte_ledger.advice[0].text
    assert measurement.byte_ledger["re-read"] > 0
    followed, _ = measured(files, ["f0", "Jet_pt"], 1_000_000)
    assert followed.metrics["num_chunks"] == len(files["a"])
    assert followed.byte_ledger["re-read"] == 0


# Requests that failed


skipping = pytest.mark.filterwarnings("ignore:Skipping bad file", "ignore:Performed attempt")
"""coffea warns of what it skips and repeats."""


def tolerant_runner(retries: int = 0, **options: Any) -> Runner:
    """A Runner that skips every file that cannot be read."""
    executor = IterativeExecutor(status=False, **({"retries": retries} if retries else NO_RETRIES))
    return Runner(
        executor=executor, schema=BaseSchema, chunksize=EVENTS, skipbadfiles=(Exception,), metadata_cache={}, **options
    )


def measured_with_failures(files: list[str], runner: Runner | None = None, **options: Any) -> Measurement:
    fileset = {"a": {"files": dict.fromkeys(files, "Events")}}
    with MetricsCollector() as collector:
        (runner or tolerant_runner())(fileset, processor_instance=Reading(["f0"]), **options)
    return collector.measurement


def check_that_failures_leave_the_ledger_complete(measurement: Measurement, failed: int) -> None:
    """Nothing is amiss where requests failed: attempts that failed have what they requested, and the rest is right."""
    ledger = measurement.byte_ledger
    assert ledger.certificate.complete, ledger.certificate.reasons
    assert (ledger.residual, ledger["failed"]) == (0, failed)
    assert ledger["failed"] == sum(
        rows.query("outcome in ('error', 'skipped')")["bytes_requested"].sum()
        for rows in (measurement.chunks, measurement.preprocessing)
    )
    assert ledger["payload"] == sum(
        size
        for file in measurement.chunks.query("outcome == 'ok'")["file"].unique()
        for size, _ in baskets_of(file, "f0", 0, 10**9).values()
    )
    if ledger.transferred is not None:
        assert ledger.gaps == 0
        assert ledger.total - failed <= ledger.transferred <= ledger.total


FIRST_REQUEST = 403
"""Bytes that uproot requests at once of a file that it opens."""


@needs_kinds_of_skips
@skipping
@pytest.mark.parametrize("kind", ["missing", "empty", "text", "cut"])
def test_files_that_cannot_be_opened_leave_the_ledger_complete(tmp_path: Path, kind: str) -> None:
    good = write_tree(tmp_path / "good.root")
    whole = good.read_bytes()
    contents = {"missing": None, "empty": b"", "text": b"no ROOT file" * 1000, "cut": whole[:3000]}[kind]
    bad = tmp_path / "bad.root"
    if contents is not None:
        bad.write_bytes(contents)
    measurement = measured_with_failures([str(good), str(bad)])
    failed = preprocessing_bytes(str(good)) if kind == "cut" else FIRST_REQUEST
    check_that_failures_leave_the_ledger_complete(measurement, failed)


@needs_options
@skipping
@pytest.mark.parametrize("handler", ["MemmapSource", "MultithreadedFileSource"])
def test_of_a_source_that_could_not_be_made_nothing_was_requested(tmp_path: Path, handler: str) -> None:
    good = write_tree(tmp_path / "good.root")
    options = {"handler": getattr(uproot.source.file, handler)}
    measurement = measured_with_failures([str(good), str(tmp_path / "bad.root")], uproot_options=options)
    (bad,) = measurement.preprocessing.query("outcome == 'error'").to_dict("records")
    assert (bad["source"], bad["bytes_requested"]) == (handler, 0)
    check_that_failures_leave_the_ledger_complete(measurement, 0)


def refused(server: CountingServer, status: int, requests: int) -> str:
    server.refusals["good.root"] = [status] * requests
    return server.url("good.root")


@needs_kinds_of_skips
@skipping
@pytest.mark.parametrize("status", [403, 404, 500, CUT])
def test_requests_that_a_server_refused_leave_the_ledger_complete(tmp_path: Path, status: int) -> None:
    good = write_tree(tmp_path / "good.root")
    with served(tmp_path) as server:
        measurement = measured_with_failures([str(good), refused(server, status, 1000)])
    check_that_failures_leave_the_ledger_complete(measurement, FIRST_REQUEST)


@needs_kinds_of_skips
@skipping
@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_opening_that_is_repeated_leaves_the_ledger_complete(tmp_path: Path, status: int) -> None:
    write_tree(tmp_path / "good.root")
    with served(tmp_path) as server:
        measurement = measured_with_failures([refused(server, status, 1)], tolerant_runner(retries=3))
        assert server.refusals["good.root"] == []
        check_that_failures_leave_the_ledger_complete(measurement, FIRST_REQUEST)
    assert measurement.preprocessing["outcome"].tolist() == ["error", "ok"]
    assert measurement.byte_ledger.transferred == measurement.byte_ledger.total - FIRST_REQUEST


@needs_kinds_of_skips
@skipping
@pytest.mark.parametrize("left", [0, 3000, None])
def test_files_that_break_after_preprocessing_leave_the_ledger_complete(tmp_path: Path, left: int | None) -> None:
    good, bad = (write_tree(tmp_path / f"{name}.root") for name in ("good", "bad"))
    runner = tolerant_runner()
    fileset = {"a": {"files": dict.fromkeys([str(good), str(bad)], "Events")}}
    items = list(runner.preprocess(fileset, processor_instance=Reading([])))
    whole = bad.read_bytes()
    bad.unlink()
    if left is not None:
        bad.write_bytes(whole[:left])
    with MetricsCollector() as collector:
        runner(items, processor_instance=Reading(["f0"]))
    skipped = collector.measurement.chunks.query("outcome == 'skipped'")
    assert len(skipped) == 4
    check_that_failures_leave_the_ledger_complete(collector.measurement, skipped["bytes_requested"].sum())


@needs_checkpoints
@skipping
def test_checkpoints_and_failures_leave_the_ledger_complete(tmp_path: Path) -> None:
    from coffea.processor.checkpointer import SimpleCheckpointer

    good = str(write_tree(tmp_path / "good.root"))
    runner = tolerant_runner(checkpointer=SimpleCheckpointer(str(tmp_path / "checkpoints")))
    measured_with_failures([good], runner)
    measurement = measured_with_failures([good, str(tmp_path / "bad.root")], runner)
    assert measurement.chunks["outcome"].tolist() == ["checkpoint"] * 4
    check_that_failures_leave_the_ledger_complete(measurement, FIRST_REQUEST)
