"""With and without a collector the analysis is the same, and nothing of ours stays."""

from __future__ import annotations

import threading
import time
from typing import Any

import analyses
import pytest
from analyses import OwnCopy, runner_for
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from conftest import wait_until
from distributed import Client, LocalCluster
from processes import PATIENCE
from releases import RELEASE, needs_checkpoints, needs_no_compression

from roastcoffea.collector import MetricsCollector


def with_and_without(client: Any, run: Any) -> tuple[Any, Any, MetricsCollector]:
    without = run()
    with MetricsCollector(client) as collector:
        measured = run()
    return measured, without, collector


PROCESSORS: tuple[Any, ...] = (
    (analyses.Jets(), 1),
    (analyses.COUNT_EVENTS, None),
    (analyses.Nested(), 1),
    (analyses.Histogram(), None),
    (analyses.Frozen(), 1),
    (analyses.Listing(), None),
    (analyses.Numbering(), 1),
    (analyses.Slotted(3), None),
    *([(lambda events: {"events": len(events)}, 1)] if RELEASE >= (2025, 10) else []),
)
"""With the level of compression of what they give."""


def test_outputs_are_the_same(client: Any, sample: Any) -> None:
    fileset = {"qcd": sample["qcd"]}

    def run() -> list[Any]:
        return [
            runner_for(client, 4000, compression=compression)(fileset, processor_instance=processor)[0]
            for processor, compression in PROCESSORS
        ]

    measured, without, collector = with_and_without(client, run)
    assert list(map(type, measured)) == list(map(type, without))
    assert measured == without
    assert list(collector.measurement.chunks["outcome"]) == ["ok"] * 2 * len(PROCESSORS)
    assert (collector.measurement.tasks["kind"] == "processor").sum() == 2 * len(PROCESSORS)
    assert collector.measurement.problems == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"savemetrics": False, "treereduction": 2, "maxchunks": 3},
        pytest.param({"processor_compression": None}, marks=needs_no_compression),
        {"executor": OwnCopy},
        {"align_clusters": True},
    ],
    ids=str,
)
def test_options_of_coffea(client: Any, sample: Any, options: dict[str, Any]) -> None:
    fileset = {"qcd": sample["qcd"]}

    def run() -> Any:
        output = runner_for(client, 2000, **options)(fileset, processor_instance=analyses.Jets())
        return output[0] if isinstance(output, tuple) else output

    measured, without, collector = with_and_without(client, run)
    assert measured == without
    chunks = collector.measurement.chunks
    assert len(chunks) == collector.measurement.run.calls[0].chunks
    assert chunks["events"].sum() == sum(dataset["events"] for dataset in measured.values())
    assert chunks["coffea_entries"].isna().all() == (options.get("savemetrics") is False)


def test_a_bad_file_is_skipped_as_without(client: Any, sample: Any, tmp_path: Any) -> None:
    import shutil

    good = next(iter(sample["qcd"]["files"]))
    bad = tmp_path / "bad.root"
    shutil.copy(good, bad)
    fileset = {"qcd": {"files": {good: "Events", str(bad): "Events"}}}
    runner = runner_for(client, 4000, skipbadfiles=True, retries=0)
    chunks = list(runner.preprocess(fileset))
    bad.write_bytes(b"no longer a ROOT file")

    def run() -> Any:
        return runner.run(list(chunks), analyses.Jets())["out"]

    measured, without, collector = with_and_without(client, run)
    assert measured == without
    skipped = collector.measurement.chunks.set_index("file").loc[str(bad)]
    assert skipped["outcome"] == "skipped"
    assert "Failed to open file" in skipped["error"] or "expected Chunk" in skipped["error"]
    assert collector.metrics["num_failed_chunks"] == 1
    assert collector.metrics["num_chunks"] == 1


@needs_checkpoints
def test_checkpoints_are_told_apart_from_work(client: Any, sample: Any, tmp_path: Any) -> None:
    from coffea.processor import SimpleCheckpointer

    checkpointer = SimpleCheckpointer(str(tmp_path))
    runner = runner_for(client, 4000, checkpointer=checkpointer)
    with MetricsCollector(client) as first:
        worked = runner(sample, processor_instance=analyses.Jets())[0]
    with MetricsCollector(client) as second:
        resumed = runner(sample, processor_instance=analyses.Jets())[0]
    assert worked == resumed
    assert set(first.measurement.chunks["outcome"]) == {"ok"}
    assert set(second.measurement.chunks["outcome"]) == {"checkpoint"}
    assert first.metrics["total_bytes_read"] > 0
    assert second.metrics["total_bytes_read"] == 0
    assert second.metrics["num_chunks"] == 4


@pytest.mark.slow
@needs_no_compression
def test_four_threads_and_an_uncompressed_processor(sample: Any) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def run() -> Any:
            return runner_for(client, 500, processor_compression=None)(sample, processor_instance=analyses.Jets())[0]

        measured, without, collector = with_and_without(client, run)
    assert measured == without
    chunks = collector.measurement.chunks
    assert len(chunks) == 32
    assert chunks["overlaps"].max() > 0
    assert chunks["overlaps"].max() <= 3
    assert collector.metrics["total_cores"] == pytest.approx(4)
    ledger = collector.measurement.time_ledger
    assert abs(ledger.residual) <= 0.01 * ledger.total
    assert collector.metrics["peak_workers"] == 1


@pytest.mark.slow
def test_workers_in_the_process_of_the_client(sample: Any) -> None:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        MetricsCollector(client) as collector,
    ):
        began = time.process_time()
        output = runner_for(client, 4000)(sample, processor_instance=analyses.Jets())[0]
        used = time.process_time() - began
    assert output["qcd"]["events"] == 8000
    assert len(collector.measurement.chunks) == 4
    # both workers share one process, whose CPU time counts once
    assert used <= collector.metrics["worker_cpu_time_seconds"] <= used + 0.5


@pytest.mark.slow
def test_a_run_shorter_than_the_sampling_interval(client: Any, sample: Any) -> None:
    with MetricsCollector(client, worker_tracking_interval=60) as collector:
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
    assert set(collector.measurement.workers["worker"]) == set(client.scheduler_info()["workers"])
    assert collector.metrics["peak_memory_bytes"] > 50e6


@pytest.mark.slow
def test_restart_inside_of_the_with(sample: Any) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        MetricsCollector(client) as collector,
    ):
        runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
        client.restart()
        output = runner_for(client, 4000)(sample, processor_instance=analyses.Jets())[0]
    measurement = collector.measurement
    assert output["qcd"]["events"] == 8000
    assert len(measurement.chunks) == 8
    assert len(measurement.lifetimes) == 2
    assert measurement.lifetimes["cpu_seconds"].notna().all()
    assert collector.metrics["peak_workers"] == 1


@pytest.mark.slow
def test_a_worker_that_holds_the_gil_does_not_hold_the_collector(client: Any) -> None:
    with MetricsCollector(client) as collector:
        workers = sorted(client.scheduler_info()["workers"])
        stuck = client.submit(hold_the_gil, 7, workers=workers[0], pure=False)
        time.sleep(0.5)
    assert not stuck.done()
    assert any(workers[0] in problem and "did not answer" in problem for problem in collector.measurement.run.problems)
    stuck.result()


def hold_the_gil(seconds: int) -> None:
    import ctypes

    ctypes.PyDLL(None).sleep(seconds)


def test_threads_of_ours_are_gone(client: Any) -> None:
    before = {*threading.enumerate()}  # a facility's of another test may still close its journal

    def ours() -> list[str]:
        new = {*threading.enumerate()} - before
        return [thread.name for thread in new if "roastcoffea" in thread.name]

    with MetricsCollector(client):
        assert ours()
    assert wait_until(lambda: ours() == []), ours()


def test_annotations_of_the_user_survive(client: Any) -> None:
    import dask

    with MetricsCollector(client), dask.annotate(mine=1):
        future = client.submit(annotations_of_task, pure=False)
        assert future.result()["mine"] == 1
    assert dask.get_annotations() == {}


def annotations_of_task() -> dict[str, Any]:
    from distributed.worker import get_worker

    worker = get_worker()
    return dict(worker.state.tasks[worker.get_current_task()].annotations)


def test_preprocessing_apart_from_the_run(client: Any, sample: Any) -> None:
    runner = runner_for(client, 4000)
    with MetricsCollector(client) as collector:
        chunks = list(runner.preprocess(sample))
        output = runner.run(chunks, analyses.Jets())["out"]
    assert output["qcd"]["events"] == 8000
    kinds = collector.measurement.tasks["kind"].value_counts().to_dict()
    assert kinds == {"preprocessing": 5, "processor": 4, "merge": 1, "other": 1}


@pytest.mark.slow
def test_output_as_a_dask_dataframe(client: Any, sample: Any) -> None:
    runner = runner_for(client, 2000, use_dataframes=True, savemetrics=False)
    with MetricsCollector(client) as collector:
        frame = runner({"qcd": sample["qcd"]}, processor_instance=analyses.Frame()).compute()
    assert frame["events"].sum() == 8000
    chunks = collector.measurement.chunks
    assert len(chunks) == 4
    assert chunks["events"].sum() == 8000


@pytest.mark.slow
def test_preprocessing_may_run_elsewhere(client: Any, sample: Any) -> None:
    runner = Runner(
        executor=DaskExecutor(client=client, status=False),
        pre_executor=IterativeExecutor(status=False),
        schema=analyses.NanoAODSchema,
        chunksize=4000,
        metadata_cache={},
    )
    with MetricsCollector(client) as collector:
        runner(sample, processor_instance=analyses.Jets())
    assert len(collector.measurement.chunks) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_dask_dataframes_inside_of_the_with_raise_no_warning(client: Any) -> None:
    import warnings

    import dask.dataframe.dask_expr._collection as collection
    import pandas as pd
    from dask.dataframe import from_pandas

    collection._WARN_ANNOTATIONS = True
    before = list(warnings.filters)
    with MetricsCollector(client), MetricsCollector(client):
        assert from_pandas(pd.DataFrame({"a": [1, 2]}), npartitions=1).sum().compute()["a"] == 3
    assert list(warnings.filters) == before


@pytest.mark.slow
def test_datasets_and_files_of_any_type(client: Any, sample: Any) -> None:
    from pathlib import Path

    files = [{Path(file): tree for file, tree in dataset["files"].items()} for dataset in sample.values()]
    fileset: Any = {1: {"files": files[0]}, "a": {"files": files[1]}}
    runner = runner_for(client, 4000)

    def run() -> Any:
        return runner(fileset, processor_instance=analyses.COUNT_EVENTS)[0]

    measured, without, collector = with_and_without(client, run)
    assert measured == without == {"events": 16000}
    assert set(collector.measurement.chunks["dataset"]) == {"1", "a"}
    assert collector.measurement.problems == []


@pytest.mark.slow
def test_what_was_not_seen_is_not_zero(client: Any, sample: Any) -> None:
    with MetricsCollector(client) as idle:
        client.submit(str, 1, pure=False).result()
    runner = Runner(
        executor=IterativeExecutor(status=False), schema=analyses.NanoAODSchema, chunksize=4000, metadata_cache={}
    )
    with MetricsCollector(client) as elsewhere:
        runner(sample, processor_instance=analyses.COUNT_EVENTS)
    for collector, reason in ((idle, "no Runner call was recorded"), (elsewhere, "IterativeExecutor")):
        for name in ("num_chunks", "total_cpu_time", "core_efficiency", "speedup_factor", "num_failed_chunks"):
            assert reason in collector.measurement.metrics.missing[name]


def test_a_run_in_a_thread_that_left_its_collector_belongs_to_nobody(client: Any, sample: Any) -> None:
    import threading

    opened, done = threading.Event(), threading.Event()
    found = []

    def other() -> None:
        with MetricsCollector(client) as collector:
            opened.set()
            done.wait(PATIENCE)
        found.append(collector)

    with MetricsCollector(client):
        pass
    thread = threading.Thread(target=other)
    thread.start()
    opened.wait(PATIENCE)
    runner_for(client, 4000)(sample, processor_instance=analyses.Jets())
    done.set()
    thread.join()
    assert len(found[0].measurement.chunks) == 0


def test_a_file_that_is_listed_twice_is_told(client: Any, sample: Any) -> None:
    from coffea.processor.executor import WorkItem

    runner = runner_for(client, 4000)
    chunks: list[WorkItem] = list(runner.preprocess({"qcd": sample["qcd"]}))
    with MetricsCollector(client) as collector:
        runner.run([*chunks, *chunks], analyses.COUNT_EVENTS)
    assert len(collector.measurement.chunks) == 2
    assert any("2 of 4 chunks have no record of their own" in problem for problem in collector.measurement.problems)
