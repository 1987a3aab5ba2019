"""The transport home of records: which task they are of, and what comes where a way is closed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from processes import PATIENCE

from roastcoffea.instrument.channels import DaskTask, Transport, append_to_spool, spooled, taken_from
from roastcoffea.instrument.gauges import process_name
from roastcoffea.log.packing import packed_records
from roastcoffea.log.received import ReceivedRecords

RECORD = packed_records([{"id": 1, "call": "ours"}])


@pytest.fixture
def closed_spool(tmp_path: Path) -> str:
    """Folder to which this thread cannot write."""
    (tmp_path / f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}").mkdir()
    return str(tmp_path)


def test_only_records_that_dask_brings_home_are_of_its_task(client: Client) -> None:
    def identities() -> list[dict[str, Any]]:
        return [DaskTask(topics).known for topics in (("topic",), ())]

    future = client.submit(identities, key="outer", pure=False)
    with_dask, without = future.result()
    assert with_dask["key"] == "outer"
    assert with_dask["run_id"] is not None
    assert with_dask["worker"] in client.scheduler_info()["workers"]
    assert without == {}


@pytest.mark.slow
def test_a_local_executor_in_a_dask_task(client: Client, sample: dict[str, Any]) -> None:
    """An analysis that was submitted as a job, and knows nothing of the cluster that runs it."""

    def analysis() -> tuple[Any, ...]:
        from analyses import Jets
        from coffea.nanoevents import NanoAODSchema
        from coffea.processor import IterativeExecutor, Runner

        from roastcoffea import MetricsCollector

        runner = Runner(IterativeExecutor(status=False), schema=NanoAODSchema, chunksize=2000, savemetrics=True)
        with MetricsCollector() as collector:
            _, report = runner(sample, Jets())
        chunks = collector.measurement.chunks
        workers = collector.measurement.lifetimes["worker"].tolist()
        return report["chunks"], chunks, workers, process_name(), collector.measurement.run.problems

    expected, chunks, workers, name, problems = client.submit(analysis, pure=False).result()
    assert expected == len(chunks) > 4
    assert chunks["key"].isna().all()
    assert chunks["run_id"].isna().all()
    assert set(chunks["worker"]) == {name} == set(workers)
    assert not [problem for problem in problems if "record" in problem]


@pytest.mark.parametrize("output", [None, {"events": 5}])
def test_a_folder_that_takes_nothing_costs_no_record(
    output: Any, closed_spool: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")  # a local cluster of Dask silences the handlers
    home, transport = ReceivedRecords(), Transport((), closed_spool, in_output=True)
    for _ in range(2):
        given, records = taken_from(transport.deliver(DaskTask(), RECORD, output, failed=False))
        assert given == output
        for packed in records:
            home.take(packed)
    assert home.chunks({"ours"})["id"].to_pylist() == [1]
    (problem,) = home.problems
    assert "cannot be written to: Is a directory" in problem
    assert [line.getMessage() for line in caplog.records] == [problem]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of files")
def test_a_full_disk_takes_records_whole_or_not_at_all(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import resource, sys
        from roastcoffea.instrument.channels import append_to_spool
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))
        for size in (100, 200, 50):
            try:
                append_to_spool(sys.argv[1], b"x" * size)
            except OSError as error:
                print(error.strerror)
    """)
    answer = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert answer.stdout.splitlines() == ["No space left on device"]
    append_to_spool(str(tmp_path), b"y")
    assert sorted(map(len, spooled(str(tmp_path)))) == [1, 50, 100]
