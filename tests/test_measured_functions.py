"""Functions without a Runner on a real cluster: their reads, against the files' own baskets and Dask's own answers."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, wait
from planted_work import increment, materialize, mean_of, patient, quiet, reads_and_fails, slow, tolerant, total
from processes import PATIENCE, wait_until
from stored import baskets_of, clusters_of, write_rntuple, write_tree

from roastcoffea import MetricsCollector, load, measured, what_if
from roastcoffea.measurement import Measurement

BRANCHES = ["f0", "f3", "Jet_pt"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [str(write_tree(folder / f"{number}.root", baskets=2 + number)) for number in range(4)]


def assert_complete(measurement: Measurement) -> None:
    """Both ledgers close, and nothing is known to be missing of them."""
    # a busy host's scheduler may answer late, and then says so
    assert [problem for problem in measurement.problems if "did not answer" not in problem] == []
    for ledger in (measurement.byte_ledger, measurement.time_ledger):
        assert ledger.certificate.complete, ledger.certificate
    assert measurement.byte_ledger.residual == 0
    assert abs(measurement.time_ledger.residual or 0.0) < 1e-3 * (measurement.time_ledger.total or 0.0) + 1e-3


def payload_of(path: str, branches: list[str]) -> int:
    return sum(size for name in branches for size, _ in baskets_of(path, name, 0, 10**9).values())


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_function_over_files(client: Client, files: list[str], everything: bool, tmp_path: Path) -> None:
    """The shape of scripts that test 200 Gbit/s: `client.map` over files, `uproot.open`, chosen branches."""
    function = materialize if everything else measured(materialize)
    plain = client.gather(client.map(materialize, files, branches=BRANCHES, pure=False))
    with MetricsCollector(client, everything=everything) as collector:
        results = client.gather(client.map(function, files, branches=BRANCHES, pure=False))
    assert results == plain
    measurement = collector.measurement
    assert_complete(measurement)
    ledger = measurement.byte_ledger
    assert ledger.total == sum(result["read"] for result in results)
    assert ledger["payload"] == sum(payload_of(path, BRANCHES) for path in files)
    for path in files:
        assert ledger.by("file").loc[path, "payload"] == payload_of(path, BRANCHES)
    for row in measurement.branches.to_dict("records"):
        assert row["bytes_payload"] == payload_of(row["file"], [row["branch"]])
    assert measurement.metrics["total_events"] == sum(result["entries"] for result in results)
    assert measurement.metrics["num_chunks"] == len(files)
    assert measurement.tasks["kind"].tolist() == ["processor"] * len(files)
    assert set(measurement.chunks["key"]) == set(measurement.tasks["key"])
    assert measurement.fine_metrics
    assert what_if(measurement, workers=[4]).sheets()
    saved = load(measurement.save(tmp_path, "run"))
    assert saved.byte_ledger == ledger
    assert "materialize" in saved.run.calls[0].processor


def test_nanoevents_in_delayed_functions(client: Client, files: list[str]) -> None:
    tasks = [dask.delayed(measured(mean_of))(path, "Jet_pt") for path in files]
    plain = client.gather(client.map(mean_of, files, ["Jet_pt"] * len(files), pure=False))
    with MetricsCollector(client) as collector:
        results = dask.compute(*tasks)
    assert list(results) == plain
    measurement = collector.measurement
    assert_complete(measurement)
    assert measurement.byte_ledger["payload"] == sum(payload_of(path, ["Jet_pt"]) for path in files)
    assert set(measurement.chunks["dataset"]) == {"dy"}


def test_rntuples(client: Client, tmp_path: Path) -> None:
    path = str(write_rntuple(tmp_path / "ntuple.root"))
    with MetricsCollector(client, everything=True) as collector:
        client.submit(total, path, pure=False).result()
    assert_complete(collector.measurement)
    assert collector.measurement.byte_ledger["payload"] == sum(clusters_of(path, "f0", 0, 10**9).values())


def test_everything_that_reads(client: Client, files: list[str]) -> None:
    """Tasks that read nothing are other tasks; sections are kept all the same, and errors are the users' own."""
    with MetricsCollector(client, everything=True, events="entries") as collector:
        first = client.submit(increment, 1, pure=False)
        read = client.submit(materialize, files[0], ["f0"], pure=False)
        named = client.submit(quiet, first, pure=False)
        failing = client.submit(reads_and_fails, files[1], pure=False)
        decorated = client.submit(total, files[2], pure=False)
        wait([read, named, failing, decorated])
        with pytest.raises(LookupError, match="planted"):
            failing.result()
    measurement = collector.measurement
    kinds = dict(measurement.tasks[["prefix", "kind"]].to_numpy())
    assert kinds.pop("increment") == "other"
    assert kinds == dict.fromkeys(("materialize", "quiet", "reads_and_fails", "total"), "processor")
    assert measurement.sections["name"].tolist() == ["quiet"]
    assert measurement.metrics["total_events"] == read.result()["entries"] + 4000
    assert measurement.failed["error"].tolist() == ["LookupError: planted"]
    assert measurement.byte_ledger["failed"] > payload_of(files[1], ["f0"])
    assert_complete(measurement)

    def left_behind(dask_worker: Any) -> list[str]:
        return [type(task.run_spec).__name__ for task in dask_worker.state.tasks.values()]

    assert {name for names in client.run(left_behind).values() for name in names} <= {"Task", "NoneType"}


def test_tasks_that_read_nothing_are_not_told_to_use_what_is_used(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetricsCollector(client, everything=True) as collector:
        client.gather(client.map(increment, range(4), pure=False))
    for measurement in (collector.measurement, load(collector.measurement.save(tmp_path, "one"))):
        measurement.print_summary()
        for text in (measurement.verdict.conclusion, " ".join(capsys.readouterr().out.split())):
            assert "No task opened a file with uproot" in text
            assert "everything=True" not in text


def test_without_everything_nothing_is_recorded_of_tasks(client: Client, files: list[str]) -> None:
    with MetricsCollector(client) as collector:
        client.submit(materialize, files[0], ["f0"], pure=False).result()
    assert collector.measurement.tasks["kind"].tolist() == ["other"]
    assert collector.measurement.run.absent["chunks"] == "no Runner call was recorded"


def test_two_collectors_see_the_same(client: Client, files: list[str]) -> None:
    with MetricsCollector(client, everything=True) as outer:
        with MetricsCollector(client, everything=True) as inner:
            client.submit(materialize, files[0], ["f0"], pure=False).result()
        client.submit(materialize, files[1], ["f0"], pure=False).result()
    assert inner.measurement.chunks["file"].tolist() == files[:1]
    assert outer.measurement.chunks["file"].tolist() == files[:2]


def test_a_task_that_goes_on_when_the_collector_is_left(client: Client, files: list[str], tmp_path: Path) -> None:
    sign = tmp_path / "left"
    with MetricsCollector(client, everything=True) as collector:
        client.submit(materialize, files[0], ["f0"], pure=False).result()
        future = client.submit(patient, files[1], str(sign), pure=False)
        assert wait_until(lambda: any(client.processing().values()))
    sign.touch()
    assert future.result()["entries"] == 3000
    assert collector.measurement.tasks["outcome"].tolist().count("unfinished") == 1


@pytest.mark.slow
def test_a_worker_that_is_killed(files: list[str], command_line_cluster: Any) -> None:
    """An attempt that was lost with it is told, though no task of its name left a record before."""
    cluster = command_line_cluster(workers=1, path=str(Path(__file__).parent))
    with Client(scheduler_file=str(cluster.file)) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        with MetricsCollector(client) as collector:
            client.submit(measured(materialize), files[0], ["f0"], pure=False).result()
            future = client.submit(measured(slow), files[0], 60.0, pure=False)
            assert wait_until(lambda: any(client.processing().values()))
            time.sleep(1.0)
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.workers[0].wait()
            assert wait_until(lambda: not client.scheduler_info()["workers"])
            future.cancel()
    measurement = collector.measurement
    ends = measurement.tasks[["prefix", "kind", "outcome"]].to_numpy().tolist()
    assert ends == [["materialize", "processor", "ok"], ["slow", "processor", "worker lost"]]
    assert not measurement.byte_ledger.certificate.complete
    assert measurement.failed["reason"].tolist() == ["worker lost"]


@pytest.mark.parametrize("everything", [False, True])
def test_files_that_cannot_be_opened_are_failed_reads(
    client: Client, files: list[str], everything: bool, tmp_path: Path
) -> None:
    gone = [str(tmp_path / name) for name in ("gone.root", "also.root")]
    wanted = [[files[0], gone[0]], [gone[1]], [files[1]]]
    function = tolerant if everything else measured(tolerant)
    with MetricsCollector(client, everything=everything) as collector:
        results = client.gather(client.map(function, wanted, pure=False))
    assert [len(result["errors"]) for result in results] == [1, 1, 0]
    measurement = collector.measurement
    ledger = measurement.byte_ledger
    assert ledger["payload"] == sum(payload_of(path, ["f0"]) for path in files[:2])
    assert ledger.residual == 0
    assert ledger.certificate.reasons == []
    assert abs(measurement.time_ledger.residual or 0.0) < 1e-3 * (measurement.time_ledger.total or 0.0) + 1e-3
    assert sorted(measurement.failed["file"]) == sorted(gone)
    assert measurement.failed["error"].str.contains("FileNotFoundError").all()
    assert measurement.failed["bytes"].sum() == ledger["failed"]
    assert ledger.by("file").loc[gone[0], "failed"] == measurement.failed.set_index("file").loc[gone[0], "bytes"]
    (finding,) = [one for one in measurement.verdict if one.severity == "incomplete result"]
    assert finding.what.startswith("2 files could not be opened in tasks that continued (")
    assert [culprit.name for culprit in finding.culprits] == measurement.failed["file"].tolist()
    assert measurement.metrics["num_chunks"] == 3
