"""Real NanoAOD files on several kinds of clusters: the same output, and records that add up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from analyses import Jets, runner_for
from distributed import Client
from processes import PATIENCE

import roastcoffea
from roastcoffea.collector import MetricsCollector
from roastcoffea.instrument.tasks import measured
from roastcoffea.instrument.track import record, track_bytes, track_memory, track_metrics, track_time
from roastcoffea.monitor.task_monitor import TaskMonitor

TESTS = Path(__file__).parent


OLDER = """
from contextlib import contextmanager

__version__ = "0.1.2"


@contextmanager
def track_time(processor, name):
    raise AssertionError("a section of the client's version called that of the worker's")
    yield


track_memory = track_bytes = track_time


def track_metrics(process):
    return process
"""
"""In place of version 0.1.2 on workers: what analyses import of it."""


@pytest.fixture(scope="module")
def without_package(
    packages_without_ours: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Client]:
    """`dask scheduler` and `dask worker` of an environment that lacks roastcoffea, or has an older one."""
    from conftest import CommandLineCluster

    bare = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = bare / "bin" / "python"
    older = tmp_path_factory.mktemp("older")
    if request.param is not None:
        (older / "roastcoffea").mkdir()
        (older / "roastcoffea" / "__init__.py").write_text(OLDER)
        (older / f"roastcoffea-{request.param}.dist-info").mkdir()
        (older / f"roastcoffea-{request.param}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: roastcoffea\nVersion: {request.param}\n"
        )
    path = os.pathsep.join((str(packages_without_ours), str(older), str(TESTS)))
    lacking = subprocess.run(
        [str(python), "-c", "import roastcoffea.instrument"], env={"PYTHONPATH": path}, capture_output=True, check=False
    )
    assert b"No module named 'roastcoffea" in lacking.stderr
    cluster = CommandLineCluster(
        tmp_path_factory.mktemp("cluster"),
        workers=1,
        path=path,
        python=str(python),
        # a lost worker ends a test with an error
        environment={"DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT": "100s", "PYTHONPYCACHEPREFIX": ""},
    )
    try:
        with Client(scheduler_file=str(cluster.file)) as client:
            client.wait_for_workers(1, timeout=PATIENCE)
            yield client
    finally:
        cluster.close()


NONE_THERE, OLDER_THERE = (
    pytest.mark.parametrize("without_package", [version], indirect=True) for version in (None, "0.1.2")
)


def plain_output(client: Client, fileset: Any, chunksize: int) -> Any:
    return runner_for(client, chunksize)(fileset, processor_instance=Jets())[0]


def check(client: Client, fileset: Any, chunksize: int, plain: Any = None) -> MetricsCollector:
    plain = plain or plain_output(client, fileset, chunksize)
    with MetricsCollector(client) as collector:
        measured, report = runner_for(client, chunksize)(fileset, processor_instance=Jets())
    assert measured == plain
    measurement = collector.measurement
    chunks = measurement.chunks
    assert (chunks["outcome"] == "ok").sum() == report["chunks"] == len(chunks)
    assert chunks["events"].sum() == report["entries"]
    assert chunks["coffea_bytes_read"].sum() == report["bytesread"]
    joined = chunks.merge(measurement.tasks, on=["key", "run_id"], suffixes=("", "_task"))
    assert len(joined) == len(chunks)
    assert (joined["worker"] == joined["worker_task"]).all()
    assert set(joined["kind"]) == {"processor"}
    return collector


@pytest.mark.slow
def test_two_workers(client: Client, real_files: Any) -> None:
    assert check(client, real_files, 50).measurement.problems == []


@pytest.mark.slow
@OLDER_THERE
def test_cluster_without_the_package(without_package: Client, real_files: Any) -> None:
    collector = check(without_package, real_files, 100_000)
    assert any("do not have roastcoffea" in problem for problem in collector.measurement.problems)


@pytest.mark.slow
@NONE_THERE
def test_sample_on_a_cluster_without_the_package(without_package: Client, sample: Any) -> None:
    from conftest import wait_until, what_stays

    collector = check(without_package, sample, 1000)
    assert collector.metrics["worker_cpu_time_seconds"] > 0
    assert collector.span_metrics["execute", "Jets", "memory-read", "count"] == 16
    assert wait_until(lambda: what_stays(without_package) == [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without_package", "everything"), [(None, False), ("0.1.2", True)], indirect=["without_package"]
)
def test_functions_on_a_cluster_without_the_package(without_package: Client, sample: Any, everything: bool) -> None:
    from conftest import wait_until, what_stays
    from stored import baskets_of

    def read(path: str) -> tuple[float, int]:
        import awkward as ak
        import uproot

        with uproot.open(path) as file:
            return float(ak.sum(file["Events/Jet_pt"].array())), file.file.source.num_requested_bytes

    paths = [path for dataset in sample.values() for path in dataset["files"]]
    plain = without_package.gather(without_package.map(read, paths, pure=False))
    with MetricsCollector(without_package, everything=everything) as collector:
        function = read if everything else measured(read)
        assert without_package.gather(without_package.map(function, paths, pure=False)) == plain
    measurement = collector.measurement
    payload = sum(size for path in paths for size, _ in baskets_of(path, "Jet_pt", 0, 10**9).values())
    assert measurement.byte_ledger["payload"] == payload
    assert measurement.byte_ledger.total == sum(read for _, read in plain)
    assert measurement.byte_ledger.certificate.complete
    assert measurement.time_ledger.certificate.complete
    assert all("do not have roastcoffea" in problem for problem in measurement.problems)
    assert wait_until(lambda: what_stays(without_package) == [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without_package", "registered"), [(None, False), ("0.1.2", True)], indirect=["without_package"]
)
def test_sections_on_a_cluster_without_the_package(without_package: Client, sample: Any, registered: bool) -> None:
    class Sectioned(Jets):
        @track_metrics
        def process(self, events: Any) -> dict[str, Any]:
            with track_time(self, "all"), track_memory("memory"), track_bytes(self, events, "bytes"):
                record("chunks", 1)
                return Jets.process(self, events)

    plain = runner_for(without_package, 1000)(sample, processor_instance=Sectioned())[0]
    if registered:
        cloudpickle.register_pickle_by_value(roastcoffea)
    try:
        with MetricsCollector(without_package) as collector:
            output = runner_for(without_package, 1000)(sample, processor_instance=Sectioned())[0]
    finally:
        if registered:
            cloudpickle.unregister_pickle_by_value(roastcoffea)
    assert output == plain
    sections = collector.measurement.sections
    assert sections.groupby("name")["count"].sum().to_dict() == dict.fromkeys(
        ("all", "all/memory", "all/memory/bytes"), 16
    )
    assert sections.set_index("name").loc["all/memory/bytes", "bytes"].sum() > 0
    assert collector.measurement.custom["sum"].sum() == 16
    assert collector.measurement.byte_ledger.certificate.complete


@pytest.mark.slow
@OLDER_THERE
def test_a_monitor_on_a_cluster_without_the_package(without_package: Client) -> None:
    from conftest import wait_until, what_stays

    with TaskMonitor(without_package, worker_view=True) as monitor:
        futures = without_package.map(abs, range(20), pure=False)
        without_package.gather(futures)
    assert monitor.problems == []
    finished = {task["key"]: task["worker"] for task in monitor.get_all_tasks() if task["stop"] is not None}
    assert finished.keys() == {future.key for future in futures}
    assert finished == {view["key"]: view["worker"] for view in monitor.worker_tasks if view["stop"] is not None}
    assert wait_until(lambda: what_stays(without_package) == [])
