"""Measurements of what others recorded: reports of Dask collections."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement, load
from roastcoffea.recording.importers import measurement_from_report

REPORTING = {"allow_read_errors_with_report": True}
READ = {"num_requested_bytes": 93170, "num_requests": 4, "num_requested_chunks": 4}
FAILURE = {
    "call_time": 1_795_263_905_818_284_513,
    "duration": None,
    "performance_counters": None,
    "exception": "FileNotFoundError",
    "message": "[Errno 2] No such file or directory: 'gone.root'",
    "fqdn": "node7.site",
    "hostname": "node7",
}


def partition(*arguments: str, **values: Any) -> dict[str, Any]:
    """What uproot writes of a partition that was read, in its own form."""
    nothing = dict.fromkeys(("call_time", "exception", "message", "fqdn", "hostname"))
    read = {"duration": 0.5, "performance_counters": READ}
    return {**nothing, **read, "args": list(arguments), "kwargs": [], **values}


def measured(*partitions: dict[str, Any]) -> Measurement:
    return measurement_from_report(ak.Array(list(partitions)), start=100.0, stop=110.0)


def only_row(measurement: Measurement) -> dict[str, Any]:
    (row,) = measurement.run.chunks.to_pylist()
    return {name: value for name, value in row.items() if value is not None and name != "id"}


def test_a_partition_that_was_read_is_a_chunk() -> None:
    measurement = measured(partition("'it\\'s a.root'", "'Events'", "4", "10", "True"))
    assert only_row(measurement) == {
        "file": "it's a.root",
        "tree": "Events",
        "entry_start": 4,
        "entry_stop": 10,
        "events": 6,
        "wall_seconds": 0.5,
        "bytes_requested": 93170,
        "outcome": "ok",
    }
    assert measurement.problems == []
    assert measurement.metrics["elapsed_time_seconds"] == 10
    assert measurement.metrics["num_chunks"] == 1
    assert measurement.metrics["total_events"] == 6
    assert "total_cpu_time" in measurement.metrics.missing


def test_a_partition_that_failed_is_a_failed_attempt() -> None:
    row = only_row(measured(partition("'gone.root'", "'Events'", "0", "6", "True", **FAILURE)))
    assert row.pop("start") == pytest.approx(1_795_263_905.818284513, abs=1e-6)
    assert row == {
        "file": "gone.root",
        "tree": "Events",
        "entry_start": 0,
        "entry_stop": 6,
        "outcome": "error",
        "error": "FileNotFoundError: [Errno 2] No such file or directory: 'gone.root' (on node7)",
    }


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_tree(tmp_path / "tree.root"))


def report_of(path: str, *entries: tuple[int, int]) -> ak.Array:
    """A report of uproot's on these partitions of a file."""
    return ak.Array([partition(repr(path), "'Events'", str(start), str(stop), "True") for start, stop in entries])


def read_part(path: str, start: int, stop: int) -> float:
    with uproot.open(path) as file:
        return float(ak.sum(file["Events/f0"].array(entry_start=start, entry_stop=stop)))


def test_a_live_run_and_its_report_are_one_measurement(path: str, client: Any, tmp_path: Path) -> None:
    """Partitions that the live run has recorded count once, and have the dataset of the report."""
    with MetricsCollector(client, everything=True) as collector:
        client.submit(read_part, path, 0, 1000, pure=False).result()
    live = collector.measurement
    joined = measurement_from_report({"dy": report_of(path, (0, 1000), (1000, 3000))}, live=live)
    assert joined.chunks[["dataset", "entry_start", "entry_stop"]].to_numpy().tolist() == [
        ["dy", 0, 1000],
        ["dy", 1000, 3000],
    ]
    assert joined.metrics["total_events"] == 3000
    assert joined.byte_ledger.total == live.byte_ledger.total + READ["num_requested_bytes"]
    assert len(joined.tasks) == len(live.tasks) == 1
    assert joined.metrics["elapsed_time_seconds"] == live.metrics["elapsed_time_seconds"]
    assert joined.time_ledger.total == live.time_ledger.total
    assert len(load(joined.save(tmp_path, "joined")).chunks) == 2


@pytest.mark.slow
def test_partitions_whose_file_or_entries_are_unknown_count_once(path: str, client: Any) -> None:
    with MetricsCollector(client, everything=True) as collector:
        client.gather(client.map(read_part, [path] * 2, [0, 1000], [1000, 3000], pure=False))
    live = collector.measurement
    opened = partition("<TTree 'Events'>", "1000", "3000")
    fractions = [partition(repr(path), "'Events'", str(step), "3", "False") for step in range(3)]
    for report, chunks, problem in (
        ([opened], 2, None),
        (fractions[:2], 2, None),
        ([opened, fractions[0], *report_of(path, (0, 1000))], 3, "1 of 1 partitions are fractions"),
        (fractions, 3, "1 of 1 partitions are fractions"),
    ):
        joined = measurement_from_report({"dy": ak.Array(report)}, live=live)
        assert len(joined.chunks) == chunks
        assert "dy" in set(joined.chunks["dataset"])
        assert [text[:31] for text in joined.problems] == ([problem] if problem else [])
        assert joined.byte_ledger.total == live.byte_ledger.total + (chunks - 2) * READ["num_requested_bytes"]


def test_a_live_run_without_records_of_chunks(path: str, client: Any) -> None:
    with MetricsCollector(client) as collector:
        client.submit(read_part, path, 0, 1000, pure=False).result()
    joined = measurement_from_report(report_of(path, (0, 1000)), live=collector.measurement, name="joined")
    assert joined.metrics["total_events"] == 1000
    assert joined.run.name == "joined"
    assert joined.tasks["kind"].tolist() == ["other"]
    assert joined.run.absent["sections"] == "the report of a Dask collection does not contain it"
    assert joined.time_ledger.total > 0


def test_a_report_without_times_needs_a_live_run(path: str) -> None:
    with pytest.raises(TypeError, match="pass start and stop"):
        measurement_from_report(report_of(path, (0, 1000)))


def test_secrets_are_replaced() -> None:
    failure = FAILURE | {"message": "403 for url 'http://h/f.root?token=abc'"}
    row = only_row(measured(partition("'root://u:p@h//f.root'", "'Events'", "0", "6", "True", **failure)))
    assert row["file"] == "root://***@h//f.root"
    assert row["error"] == "FileNotFoundError: 403 for url 'http://h/f.root?token=***' (on node7)"


def test_a_part_of_a_file_has_no_known_entries() -> None:
    measurement = measured(partition("'a.root'", "'Events'", "0", "2", "False"))
    assert only_row(measurement).keys() == {"file", "tree", "wall_seconds", "bytes_requested", "outcome"}
    assert "1 of 1 partitions are fractions of a file" in measurement.problems[0]


def test_a_tree_that_was_open_has_no_known_file_and_no_bytes_of_its_own() -> None:
    measurement = measured(partition("<TTree 'Events' (1499 branches) at 0x7f3ed0be1f10>", "20", "40"))
    assert only_row(measurement) == {
        "entry_start": 20,
        "entry_stop": 40,
        "events": 20,
        "wall_seconds": 0.5,
        "outcome": "ok",
    }
    assert "1 of 1 partitions read trees that were already open" in measurement.problems[0]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (None, "not NoneType; compute it together with the output"),
        (ak.Array([{"columns": ["a"], "args": ["'a.parquet'"], "exception": None}]), "has no duration, performance_co"),
        ({"qcd": ak.Array([1, 2])}, "not a report from uproot's"),
    ],
)
def test_what_is_no_report_is_told(report: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        measurement_from_report(report, start=0, stop=1)


# real reports


@pytest.fixture
def dask_awkward() -> Any:
    return pytest.importorskip("dask_awkward", reason="dask-awkward is not installed")


def requested(file: str, start: int, stop: int) -> int:
    """What uproot itself requests of a file that it opens for these entries."""
    with uproot.open(file) as opened:
        opened["Events"].arrays(["nMuon"], entry_start=start, entry_stop=stop)
        return int(opened.file.source.num_requested_bytes)


@pytest.mark.filterwarnings("ignore")
def test_real_reports_against_uproot(dask_awkward: Any, real_files: Any, tmp_path: Path) -> None:
    import dask

    (dy,), (dimuon,) = (real_files[dataset]["files"] for dataset in ("dy", "dimuon"))
    gone = str(tmp_path / "gone.root")
    form = uproot.dask({dy: "Events"}, open_files=False).form
    reports, start = {}, time.time()
    for dataset, file, steps in (("dy", dy, [[0, 4], [4, 40]]), ("dimuon", dimuon, [[0, 6]]), ("gone", gone, [[0, 6]])):
        files = {file: {"object_path": "Events", "steps": steps}}
        events, report = uproot.dask(files, open_files=False, known_base_form=form, **REPORTING)
        reports[dataset] = dask.compute(ak.sum(events.nMuon), report, scheduler="synchronous")[1]
    stop = time.time()
    measurement = load(measurement_from_report(reports, start=start, stop=stop).save(tmp_path, "imported"))
    assert measurement.run.backend == "dask-awkward"
    chunks = measurement.chunks.set_index(["dataset", "entry_start"])
    for (dataset, first), chunk in chunks[chunks["outcome"] == "ok"].iterrows():
        assert Path(chunk["file"]) == Path(next(iter(real_files[dataset]["files"])))
        assert chunk["events"] == chunk["entry_stop"] - first
        assert chunk["bytes_requested"] == requested(chunk["file"], first, chunk["entry_stop"])
        assert 0 < chunk["wall_seconds"] < stop - start
    assert list(chunks["outcome"]) == ["ok", "ok", "ok", "error"]
    failed = chunks.loc[("gone", 0)]
    assert failed["error"].startswith("FileNotFoundError: ")
    assert start < failed["start"] < stop
    assert math.isnan(failed["wall_seconds"])
    assert measurement.metrics["total_events"] == 46
    assert measurement.metrics["num_failed_chunks"] == 1


@pytest.mark.filterwarnings("ignore")
def test_real_reports_of_coffea(dask_awkward: Any, real_files: Any) -> None:
    import dask
    from coffea.dataset_tools import apply_to_fileset

    (file,) = real_files["dy"]["files"]
    steps = {"object_path": "Events", "steps": [[0, 10], [10, 40]], "uuid": None, "num_entries": 40}
    fileset = {"dy": {"files": {file: steps}}}
    outputs, reports = apply_to_fileset(lambda events: ak.sum(events.Muon.pt), fileset, uproot_options=REPORTING)
    with pytest.raises(TypeError, match="compute it together with the output"):
        measurement_from_report(reports, start=0, stop=1)
    outputs, reports = dask.compute(outputs, reports, scheduler="synchronous")
    measurement = measurement_from_report(reports, start=0, stop=1)
    chunks = measurement.chunks
    assert list(chunks["dataset"]) == ["dy", "dy"]
    assert list(chunks["events"]) == [10, 30]
    assert list(chunks["bytes_requested"]) == list(reports["dy"].performance_counters.num_requested_bytes)
    assert measurement.problems == []
    assert list(measurement.metrics["per_dataset"]) == ["dy"]
