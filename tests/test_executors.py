"""Every executor of coffea gives the same output with and without a collector, and a record for each chunk."""

from __future__ import annotations

import concurrent.futures
import copy
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loky
import pytest
from analyses import Jets, Raising, RaisingOnce
from coffea.nanoevents import NanoAODSchema
from coffea.processor import DaskExecutor, FuturesExecutor, IterativeExecutor, ParslExecutor, Runner
from conftest import ServedPool
from distributed import Client
from releases import needs_caches, needs_checkpoints, needs_results, needs_retries

from roastcoffea import MetricsCollector, load
from roastcoffea.measurement import Measurement

CHUNKSIZE = 2100

pytestmark = [
    pytest.mark.filterwarnings("ignore:Performed attempt:UserWarning"),
    pytest.mark.filterwarnings("ignore:Skipping bad file:UserWarning"),
]


ON_DASK = {
    "dask without compression": {"compression": None},
    "dask with worker affinity": {"worker_affinity": True, "treereduction": 2},
}
HERE = {
    "iterative": (IterativeExecutor, {}),
    "processes": (FuturesExecutor, {"pool": ServedPool, "workers": 2}),
    "threads": (FuturesExecutor, {"pool": concurrent.futures.ThreadPoolExecutor, "workers": 4, "compression": None}),
    "loky": (FuturesExecutor, {"pool": loky.ProcessPoolExecutor, "workers": 2}),
    "merging": (FuturesExecutor, {"pool": ServedPool, "workers": 2, "merging": (2, 2, 3)}),
}


@contextmanager
def executor_of(kind: str, stack: ExitStack, client: Client | None = None, **options: Any) -> Iterator[Any]:
    if kind in ON_DASK:
        yield DaskExecutor(client=client, status=False, **ON_DASK[kind], **options)
    elif kind in HERE:
        executor, own = HERE[kind]
        yield executor(status=False, **own, **options)
    else:
        stack.enter_context(parsl())
        yield ParslExecutor(status=False, **options)


@contextmanager
def parsl() -> Iterator[None]:
    """Parsl with processes of its HighThroughputExecutor on this host."""
    parsl = pytest.importorskip("parsl")
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    executor = HighThroughputExecutor(
        address="127.0.0.1",
        max_workers_per_node=2,
        cores_per_worker=0.5,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
        encrypted=False,
    )
    folder = str(Path.cwd() / "parsl")
    parsl.load(Config(executors=[executor], run_dir=folder, usage_tracking=0, initialize_logging=False))
    try:
        yield
    finally:
        parsl.dfk().cleanup()
        parsl.clear()


def runner_with(executor: Any, **options: Any) -> Runner:
    defaults: dict[str, Any] = {"chunksize": CHUNKSIZE, "savemetrics": True, "metadata_cache": {}}
    return Runner(executor=executor, schema=NanoAODSchema, **defaults | options)


def checked(measurement: Measurement, report: dict[str, Any]) -> None:
    """There is one record for each chunk, and they add up to coffea's report."""
    chunks = measurement.chunks
    assert measurement.outcome == "finished"
    assert len(chunks) == report["chunks"]
    assert set(chunks["outcome"]) == {"ok"}
    assert chunks["events"].sum() == report["entries"]
    assert chunks["bytes_requested"].sum() == chunks["coffea_bytes_read"].sum() == report["bytesread"]
    assert chunks["id"].is_unique
    phases = ["read_seconds", "decompress_seconds", "interpret_seconds", "compute_seconds", "wait_seconds"]
    assert (chunks[phases].sum(axis=1) / chunks["process_seconds"]).between(0.98, 1.02).all()
    assert measurement.byte_ledger.residual == 0
    assert len(measurement.preprocessing) == chunks["file"].nunique()
    assert measurement.byte_ledger.certificate.complete, measurement.byte_ledger.certificate.reasons


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "iterative" else pytest.mark.slow) for kind in HERE],
)
def test_executors_without_dask(kind: str, sample: dict[str, Any]) -> None:
    check_executor(kind, sample, None)


def test_a_pool_that_the_executor_makes_is_recorded_by_name(sample: dict[str, Any]) -> None:
    """And a pool that it was given is not: nobody needs to keep that."""
    threads = concurrent.futures.ThreadPoolExecutor
    with threads(1) as given:
        for pool, name in ((threads, "ThreadPoolExecutor"), (given, None)):
            with MetricsCollector() as collector:
                runner_with(FuturesExecutor(pool=pool, status=False))(sample, processor_instance=Jets())
            (call,) = collector.measurement.run.calls
            assert (call.options.get("executor.pool"), call.options["schema"]) == (name, "NanoAODSchema")
            assert not any("Reuse the processes" in finding.advice for finding in collector.measurement.verdict)
    # what remedies go by
    assert FuturesExecutor().pool.__name__ == "ProcessPoolExecutor"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_DASK)
def test_executors_on_dask(kind: str, sample: dict[str, Any], client: Client) -> None:
    check_executor(kind, sample, client)


@pytest.mark.slow
def test_processes_of_parsl(sample: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    measurement = check_executor("parsl", sample, None)
    # its processes are found though it lets go of them
    assert set(measurement.lifetimes["worker"]) == set(measurement.chunks["worker"])
    assert (measurement.lifetimes["cpu_seconds"] > 0).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:parsl")
def test_the_example_for_parsl(sample: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsl = pytest.importorskip("parsl")
    page = (Path(__file__).parent.parent / "docs" / "howto" / "executors.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- tests/test_executors.py runs this -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"fileset": sample, "processor": Jets()}
    try:
        exec(compile(example, "docs/howto/executors.md", "exec"), names)
    finally:
        parsl.clear()
    metrics = names["collector"].metrics
    assert metrics["total_events"] == sum(each["events"] for each in names["output"].values())
    assert metrics["num_chunks"] == len(names["collector"].measurement.chunks)


def check_executor(kind: str, sample: dict[str, Any], client: Client | None) -> Measurement:
    with ExitStack() as stack, executor_of(kind, stack, client) as executor:
        runner = runner_with(executor)
        expected, expected_report = runner(sample, processor_instance=Jets())
        runner.metadata_cache.clear()
        with MetricsCollector(client) as collector:
            output, report = runner(sample, processor_instance=Jets())
    assert output == expected
    for timed in ("processtime",):
        expected_report.pop(timed), report.pop(timed)
    assert {name: _sorted(value) for name, value in report.items()} == {
        name: _sorted(value) for name, value in expected_report.items()
    }
    checked(collector.measurement, report)
    assert collector.problems == []
    return collector.measurement


def _sorted(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


@needs_retries
def test_a_run_that_raises_leaves_its_records(sample: dict[str, Any]) -> None:
    with ExitStack() as stack, executor_of("iterative", stack, retries=1) as executor:
        runner = runner_with(executor, chunksize=10**6)
        with pytest.raises(Exception, match="planted"), MetricsCollector() as collector:
            runner(sample, processor_instance=Raising(entry=0))
    measurement = collector.measurement
    assert measurement.outcome == "failed"
    failed = measurement.chunks.query("outcome == 'error'")
    assert len(failed) >= 2
    assert failed["error"].str.contains("planted").all()
    assert measurement.byte_ledger["failed"] == failed["bytes_requested"].sum() > 0
    assert measurement.byte_ledger.residual == 0


@needs_retries
def test_attempts_that_are_repeated_have_records_of_their_own(sample: dict[str, Any], tmp_path: Path) -> None:
    with ExitStack() as stack, executor_of("threads", stack, retries=2) as executor:
        runner = runner_with(executor, chunksize=2000)
        with MetricsCollector() as collector:
            _, report = runner({"a": sample[next(iter(sample))]}, processor_instance=RaisingOnce(str(tmp_path)))
    chunks = collector.measurement.chunks
    outcomes = chunks["outcome"].value_counts()
    assert outcomes["ok"] == report["chunks"]
    assert outcomes["error"] >= 2
    assert chunks.query("outcome == 'error'")["attempt"].min() == 1
    assert chunks.query("outcome == 'ok'")["attempt"].max() == 2


@needs_retries
@pytest.mark.parametrize("as_type", [False, True])
def test_a_recoverable_executor_gives_what_was_done(
    as_type: bool, sample: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # coffea gives what it has not merged yet: so it merges only when all chunks have ended
    options: dict[str, Any] = {"retries": 0, "recoverable": True, "merging": (1, 1000, 1000)}
    skipped = {"use_result_type": True, "skipbadfiles": (ZeroDivisionError,)} if as_type else {}
    with ExitStack() as stack, executor_of("threads", stack, **options) as executor:
        runner = runner_with(executor, savemetrics=False, **skipped)

        def partial_output() -> dict[str, Any]:
            if as_type:
                return runner(sample, processor_instance=Raising(entry=0)).value
            with pytest.raises(Exception, match="planted") as raised:
                runner(sample, processor_instance=Raising(entry=0))
            return raised.value.partial_output

        plain = partial_output()
        with MetricsCollector() as collector:
            output = partial_output()
    assert output == plain
    measurement = collector.measurement
    missing = measurement.missing_items()
    (call,) = measurement.run.calls
    kept = call.chunks - len(missing)
    assert output["events"] + sum(map(len, missing)) == sum(map(len, runner.preprocess(sample)))
    assert {item.entrystart for item in missing} == {0}
    assert measurement.metrics["num_missing_chunks"] == len(missing) == 4
    assert (call.outcome, len(call.kept)) == ("failed", kept)
    assert f"{kept} others are only in the partial output returned with the error" in measurement.verdict[0].text
    assert load(measurement.save(tmp_path)).missing_items() == missing


@pytest.mark.slow
@needs_caches
def test_the_cache_of_workers_is_no_reading(sample: dict[str, Any], client: Client) -> None:
    from coffea.processor.dask import ColumnCache

    class Plain(ColumnCache):
        """The same without compression, which would need another package."""

        def setup(self, worker: Any) -> None:
            self.cache: dict[str, Any] = {}
            self.lock, self.hits, self.misses = threading.Lock(), 0, 0

    def kept(dask_worker: Any) -> tuple[int, int]:
        cache = dask_worker.plugins[ColumnCache.name]
        return cache.hits, sum(array.nbytes for array in cache.cache.values())

    client.register_plugin(Plain())
    try:
        runner = runner_with(
            DaskExecutor(client=client, status=False, worker_affinity=True), cachestrategy="dask-worker"
        )
        expected, _ = runner(sample, processor_instance=Jets())
        size = sum(held for _, held in client.run(kept).values())
        with MetricsCollector(client) as collector:
            output, report = runner(sample, processor_instance=Jets())
        assert sum(hits for hits, _ in client.run(kept).values()) > 0
    finally:
        client.unregister_worker_plugin(ColumnCache.name)
    assert output == expected
    chunks, ledger = collector.measurement.chunks, collector.measurement.byte_ledger
    assert chunks["bytes_cached"].sum() == size > 0
    assert chunks["bytes_payload"].sum() == 0
    assert ledger["metadata"] == report["bytesread"]
    assert ledger.certificate.complete
    assert "of arrays came from coffea's buffer cache" in str(ledger.certificate)
    assert collector.problems == []


@needs_results
def test_an_error_as_a_result_is_a_failed_call(sample: dict[str, Any]) -> None:
    with ExitStack() as stack, executor_of("iterative", stack, retries=1) as executor:
        runner = runner_with(executor, use_result_type=True, skipbadfiles=(ZeroDivisionError,))
        plain = runner(sample, processor_instance=Raising(entry=0))
        with MetricsCollector() as collector:
            result = runner(sample, processor_instance=Raising(entry=0))
    assert (result.is_err(), type(result.exception)) == (True, type(plain.exception))
    measurement = collector.measurement
    (call,) = measurement.run.calls
    assert (measurement.outcome, call.outcome, call.kept) == ("finished", "failed", None)
    assert "planted" in call.error
    assert measurement.metrics["num_missing_chunks"] == call.chunks
    failed = measurement.chunks.query("outcome == 'error'")
    assert measurement.byte_ledger["failed"] == failed["bytes_requested"].sum() > 0
    assert measurement.byte_ledger.residual == 0


@dataclass
class Remembering(IterativeExecutor):
    """Gives results of chunks again that it has from earlier runs, as the cache of TaskVine's manager does."""

    results: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, items: Any, function: Any, accumulator: Any) -> Any:
        if self.function_name == "get_metadata":
            return super().__call__(items, function, accumulator)

        def remembered(item: Any) -> Any:
            if item not in self.results:
                self.results[item] = function(item)
            return copy.deepcopy(self.results[item])

        return super().__call__(items, remembered, accumulator)


def test_results_of_earlier_runs_are_no_work(sample: dict[str, Any]) -> None:
    runner = runner_with(Remembering(status=False), savemetrics=False)
    with MetricsCollector() as first:
        expected = runner(sample, processor_instance=Jets())
    with MetricsCollector() as second:
        output = runner(sample, processor_instance=Jets())
    assert output == expected
    worked, again = first.measurement, second.measurement
    number = len(worked.chunks)
    assert worked.problems == []
    assert len(again.chunks) == 0
    assert again.byte_ledger["payload"] == 0
    assert again.time_ledger["compute"] == 0
    reason = f"cached results from earlier runs: {number}"
    assert again.problems == [f"{number} of {number} chunks have no record of their own: {reason}"]
    assert not again.byte_ledger.certificate.complete


@pytest.mark.slow
def test_a_cluster_that_coffea_makes_is_said_to_be_out_of_reach(sample: dict[str, Any]) -> None:
    runner = runner_with(DaskExecutor(status=False))
    with MetricsCollector() as collector:
        output, report = runner(sample, processor_instance=Jets())
    assert sum(dataset["events"] for dataset in output.values()) == report["entries"]
    measurement = collector.measurement
    assert any("DaskExecutor(client=client)" in problem for problem in measurement.problems)
    for ledger in (measurement.byte_ledger, measurement.time_ledger):
        assert "DaskExecutor(client=client)" in str(ledger.certificate)
    assert measurement.metrics["total_events"] == report["entries"]
    assert "num_chunks" in measurement.metrics.missing


@needs_checkpoints
def test_chunks_from_checkpoints_read_nothing(sample: dict[str, Any], tmp_path: Path) -> None:
    from coffea.processor.checkpointer import SimpleCheckpointer

    with ExitStack() as stack, executor_of("iterative", stack) as executor:
        runner = runner_with(executor, checkpointer=SimpleCheckpointer(str(tmp_path)))
        with MetricsCollector() as first:
            expected, _ = runner(sample, processor_instance=Jets())
        with MetricsCollector() as second:
            output, _ = runner(sample, processor_instance=Jets())
    assert output == expected
    worked, loaded = first.measurement.chunks, second.measurement.chunks
    assert set(worked["outcome"]) == {"ok"}
    assert (worked["checkpoint_seconds"] > 0).all()
    assert set(loaded["outcome"]) == {"checkpoint"}
    assert loaded["bytes_requested"].sum() == 0
    assert (loaded["checkpoint_seconds"] > 0).all()
    assert second.measurement.byte_ledger["payload"] == 0
    assert second.measurement.metrics["total_bytes_read"] == 0
    assert second.measurement.metrics["total_events"] == first.measurement.metrics["total_events"]


@pytest.mark.slow
@needs_results
def test_results_as_a_type(sample: dict[str, Any], client: Client) -> None:
    runner = runner_with(DaskExecutor(client=client, status=False), use_result_type=True, skipbadfiles=True)
    with MetricsCollector(client) as collector:
        result = runner(sample, processor_instance=Jets())
    output, report = result.unwrap()
    assert sum(dataset["events"] for dataset in output.values()) == report["entries"]
    checked(collector.measurement, report)
