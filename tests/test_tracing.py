"""coffea's trace of the columns to preload: its time and bytes are those of preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, Runner
from stored import baskets_of, write_tree
from test_real_bytes import preprocessing_bytes

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement

trace = pytest.importorskip("coffea.nanoevents.trace", reason="this coffea does not trace columns").trace
pytestmark = pytest.mark.skipif(not hasattr(Runner, "_trace_preload"), reason="this coffea does not trace columns")


def baskets(path: str, branch: str) -> int:
    """Compressed size of a branch."""
    return sum(compressed for compressed, _ in baskets_of(path, branch, 0, 10**9).values())


EXECUTORS = {
    "here": lambda client: IterativeExecutor(status=False),
    "threads": lambda client: FuturesExecutor(pool=ThreadPoolExecutor, workers=2, status=False),
    "dask": lambda client: DaskExecutor(client=client, status=False),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Two datasets with two files and one."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{number}.root" for number in range(3)]
    for path in paths:
        write_tree(path)
    return {"a": [str(path) for path in paths[:2]], "b": [str(paths[2])]}


def summing(events: Any) -> dict[str, Any]:
    return {"sum": ak.sum(events["f3"])}


def run(executor: Any, files: dict[str, list[str]], processor: Any, client: Any = None, **options: Any) -> Measurement:
    """Measurement of a run with tracing."""
    runner = Runner(executor, schema=BaseSchema, chunksize=1000, metadata_cache={}, **options)
    with MetricsCollector(client) as collector:
        runner(files, treename="Events", processor_instance=processor, trace=trace)
    return collector.measurement


def traced_bytes(path: str) -> int:
    """What opening a file and building its events for a trace requests."""
    with uproot.open({path: None}) as file:
        NanoEventsFactory.from_root(
            file=file, treepath="Events", schemaclass=BaseSchema, mode="virtual", entry_start=0, entry_stop=0
        ).events()
        return int(file.file.source.num_requested_bytes)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_trace_is_preprocessing_once_for_each_dataset(
    client: Any, files: dict[str, list[str]], executor: str
) -> None:
    measurement = run(EXECUTORS[executor](client), files, summing, client if executor == "dask" else None)
    every, traced = [*files["a"], *files["b"]], [files["a"][0], files["b"][0]]
    records = measurement.preprocessing.query("outcome == 'traced'")
    assert dict(zip(records["file"], records["bytes_requested"], strict=True)) == {
        path: traced_bytes(path) for path in traced
    }
    assert records["dataset"].tolist() == ["a", "b"]
    assert (records["wall_seconds"] > 0).all()
    assert records["worker"].notna().all() == (executor == "here")
    ledger = measurement.byte_ledger
    assert ledger["preprocessing"] == sum(map(preprocessing_bytes, every)) + sum(map(traced_bytes, traced))
    assert ledger["payload"] == sum(baskets(path, "f3") for path in every)
    assert ledger.certificate.complete, ledger.certificate.reasons
    assert not any("unknown workers" in reason for reason in measurement.time_ledger.certificate.reasons)
    if executor == "here":
        assert measurement.time_ledger["preprocessing"] == pytest.approx(
            measurement.preprocessing["wall_seconds"].sum()
        )
    assert not measurement.problems
    assert len(measurement.failed) == 0


def test_what_the_processor_opens_while_it_is_traced_counts(files: dict[str, list[str]]) -> None:
    friend = files["b"][0]

    def with_friend(events: Any) -> dict[str, Any]:
        with uproot.open(friend) as file:
            file["Events"]["f0"].array()
        return summing(events)

    ledger = run(IterativeExecutor(status=False), {"a": files["a"][:1]}, with_friend).byte_ledger
    opened = preprocessing_bytes(files["a"][0])
    of_friend = preprocessing_bytes(friend) + baskets(friend, "f0")
    assert ledger["preprocessing"] == opened + traced_bytes(files["a"][0]) + of_friend
    assert ledger.certificate.complete


def test_a_file_that_cannot_be_traced_is_a_failed_opening(files: dict[str, list[str]]) -> None:
    def failing(fun: Callable[[Any], Any], events: Any) -> frozenset[str]:
        raise ValueError("no columns")

    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector, pytest.raises(RuntimeError, match="no columns"):
        runner(files, treename="Events", processor_instance=summing, trace=failing)
    failed = collector.measurement.failed
    assert failed["kind"].tolist() == ["preprocessing"]
    assert "no columns" in failed["error"].iloc[0]


def test_coffea_is_as_it_was(files: dict[str, list[str]]) -> None:
    before = vars(Runner)["_trace_preload"]
    run(IterativeExecutor(status=False), files, summing)
    assert vars(Runner)["_trace_preload"] is before


def test_chunks_that_are_made_apart_are_traced(files: dict[str, list[str]]) -> None:
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        chunks = list(runner.preprocess(files, treename="Events", trace=trace, processor_instance=summing))
    assert {chunk.preload for chunk in chunks} == {frozenset({"f3"})}
    assert collector.measurement.preprocessing["outcome"].tolist() == ["ok", "ok", "ok", "traced", "traced"]
