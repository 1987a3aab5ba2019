"""Functions of tasks as they are metered: their time by phase, sections, errors, and what counts as events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import uproot
from coffea.nanoevents import BaseSchema, NanoEventsFactory
from stored import REFUSED, served, slow_storage, write_tree

from roastcoffea import MetricsCollector, measured, record, track_bytes, track_time
from roastcoffea.instrument.tasks import MeasuredTask
from roastcoffea.measurement import Measurement

PARTS = ("read", "decompress", "interpret", "compute", "contention", "lock", "blocked")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("files") / "tree.root")


def total(path: Path) -> float:
    with uproot.open(path) as file:
        return float(ak.sum(file["Events/f0"].array()))


def measurement_of(function: Callable[..., Any], *args: Any, **options: Any) -> Measurement:
    with MetricsCollector() as collector:
        measured(function, **options)(*args)
    return collector.measurement


def test_time_is_split_as_that_of_a_chunk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening has its own time, waiting for storage and sleeping are told apart, and the parts sum to the whole."""
    slept = slow_storage(monkeypatch)

    def work() -> float:
        value = total(path)
        time.sleep(0.6)
        return value

    chunk = measurement_of(work).chunks.iloc[0]
    assert sum(chunk[f"{part}_seconds"] for part in PARTS) == pytest.approx(chunk["process_seconds"], abs=2e-3)
    assert chunk["read_seconds"] + chunk["contention_seconds"] >= slept[-1] - 0.005
    assert chunk["read_seconds"] < sum(slept) + 0.3  # threads may be late
    assert chunk["blocked_seconds"] + chunk["lock_seconds"] + chunk["contention_seconds"] >= 0.595
    assert chunk["open_seconds"] > 0
    inside = chunk["open_seconds"] + chunk["build_seconds"] + chunk["process_seconds"]
    assert 0 <= chunk["wall_seconds"] - inside < 0.3 + chunk["core_wait_seconds"]


def test_opening_is_no_part_of_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow opening takes time neither from reading nor from computing, and one in a building is not counted twice."""
    original, slept = uproot.reading.ReadOnlyKey.get, []

    def slow(self: Any) -> Any:
        began = time.perf_counter()
        time.sleep(0.1)
        slept.append(time.perf_counter() - began)
        return original(self)

    monkeypatch.setattr(uproot.reading.ReadOnlyKey, "get", slow)
    options: Any = {"schemaclass": BaseSchema}
    chunk = measurement_of(
        lambda: float(ak.sum(NanoEventsFactory.from_root({str(path): "Events"}, **options).events()["f0"]))
    ).chunks.iloc[0]
    assert sum(slept) <= chunk["open_seconds"] <= chunk["wall_seconds"]
    assert 0 < chunk["build_seconds"] <= chunk["wall_seconds"] - sum(slept)
    assert 0 < chunk["process_seconds"] <= chunk["wall_seconds"] - sum(slept)


class PlantedError(RuntimeError):
    """A user's own."""


def test_an_exception_comes_out_as_it_went_in(path: Path) -> None:
    planted = PlantedError("planted")

    def work() -> None:
        total(path)
        with track_time("fails"):
            raise planted

    with MetricsCollector() as collector, pytest.raises(PlantedError) as caught:
        measured(work)()
    assert caught.value is planted
    measurement = collector.measurement
    (chunk,) = measurement.chunks.to_dict("records")
    assert (chunk["outcome"], chunk["error"], chunk["file"]) == ("error", "PlantedError: planted", str(path))
    assert measurement.byte_ledger["failed"] == measurement.byte_ledger.total > 0
    assert measurement.sections["errors"].tolist() == [1]


def test_sections_and_values_are_kept(path: Path) -> None:
    def work() -> float:
        with track_time("all"), track_bytes("all"):
            value = total(path)
        record("sum", value)
        return value

    measurement = measurement_of(work)
    (section,) = measurement.sections.to_dict("records")
    assert (section["name"], section["dataset"], section["bytes"]) == ("all", "work", measurement.byte_ledger.total)
    assert measurement.custom["sum"].tolist() == [total(path)]


def test_a_function_that_reads_nothing() -> None:
    """It has a record of zeros: nothing is unknown of it."""

    def work() -> int:
        with track_time("counting"):
            return sum(range(1000))

    measurement = measurement_of(work)
    (chunk,) = measurement.chunks.to_dict("records")
    zeros = ("bytes_requested", "bytes_payload", "bytes_metadata", "events", "open_seconds", "build_seconds")
    assert [chunk[name] for name in zeros] == [0] * len(zeros)
    assert measurement.run.chunks["file"].to_pylist() == [None]
    assert measurement.sections["name"].tolist() == ["counting"]
    assert measurement.byte_ledger.residual == 0


def test_what_a_measured_function_calls_belongs_to_it(path: Path) -> None:
    measurement = measurement_of(lambda: measured(total)(path))
    assert len(measurement.chunks) == 1


def test_events_of_a_result(path: Path) -> None:
    measurement = measurement_of(lambda: {"sum": total(path), "jets": 17}, events="jets")
    assert measurement.metrics["total_events"] == 17
    assert measurement.chunks["entry_stop"].tolist() == [4000]


@pytest.mark.parametrize("events", ["muons", lambda result: result["sum"], lambda result: 1 / 0])
def test_events_that_cannot_be_told_are_missing(path: Path, events: Any) -> None:
    measurement = measurement_of(lambda: {"sum": total(path) + 0.5}, events=events)
    assert "total_events" in measurement.metrics.missing
    assert any("number of events is unknown" in problem for problem in measurement.problems)


def test_a_task_that_stands_for_another_is_that_one_to_others() -> None:
    import copy
    import pickle

    task = Task("key")
    stand_in = MeasuredTask(task)
    assert stand_in.stands_for is task
    assert (stand_in.key, repr(stand_in), stand_in({"a": 1})) == ("key", "Task key", {"a": 1})
    assert isinstance(pickle.loads(pickle.dumps(stand_in)), Task)
    assert isinstance(copy.copy(stand_in), Task)


class Task:
    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"Task {self.key}"

    def __call__(self, values: Any) -> Any:
        return values


OPENERS: dict[str, Callable[[str], Any]] = {
    "uproot": uproot.open,
    "no ROOT file": uproot.open,
    "server": uproot.open,
    "iterate": lambda path: list(uproot.iterate({path: "Events"})),
    "events": lambda path: NanoEventsFactory.from_root({path: "Events"}, schemaclass=BaseSchema, mode="virtual"),
    "parquet": lambda path: NanoEventsFactory.from_parquet(path, schemaclass=BaseSchema),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENERS)
def test_a_file_that_cannot_be_opened_is_a_failed_read(kind: str, path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.root"
    if kind == "no ROOT file":
        bad.write_bytes(bytes(5000))

    def tolerant(bad: str) -> Any:
        try:
            return OPENERS[kind](bad)
        except Exception as error:
            return str(error)

    def one_of_two(bad: str) -> None:
        assert isinstance(tolerant(bad), str)
        if kind != "parquet":
            total(path)

    with served(tmp_path) as server:
        name = server.url(REFUSED) if kind == "server" else str(bad)
        alone, both = measurement_of(tolerant, name), measurement_of(one_of_two, name)
    for measurement in (alone, both):
        (failed,) = measurement.failed.to_dict("records")
        assert failed["file"] == name
        assert failed["reason"] == "error"
        assert failed["error"]
        ledger = measurement.byte_ledger
        assert ledger["failed"] == failed["bytes"]
        assert ledger.residual == 0
        assert ledger.certificate.reasons == []
        assert abs(measurement.time_ledger.residual) < 1e-3
        (finding,) = [one for one in measurement.verdict if one.severity == "incomplete result"]
        assert finding.what.startswith(f"1 file could not be opened in tasks that continued ({name})")
    if kind != "parquet":
        good = measurement_of(total, path).byte_ledger
        assert (both.byte_ledger["payload"], both.byte_ledger["metadata"]) == (good["payload"], good["metadata"])


def test_a_file_that_another_function_could_open_is_missing_in_the_first(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tmp_path / "late.root"

    @measured
    def tolerant(name: Path) -> float:
        try:
            return total(name)
        except FileNotFoundError:
            return 0.0

    again = measured(total)
    with MetricsCollector(journal=None) as collector:
        first = [tolerant(path), tolerant(late)]
        late.write_bytes(path.read_bytes())
        second = [again(path), again(late)]
    assert first == [second[0], 0.0]
    findings = {one.cause: one for one in collector.measurement.verdict}
    assert findings["missing data"].what.startswith(f"1 file could not be opened in tasks that continued ({late})")
    assert findings["re-read"].what.endswith(" were re-read by another function.")
    assert "dataset" not in findings["re-read"].advice
    collector.measurement.print_summary()
    assert "1 file could not be opened in tasks that continued" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "pack",
    [
        lambda error: error,
        lambda error: [1.0, error],
        lambda error: (3, {"errors": {error}}),
    ],
)
def test_exceptions_that_are_returned_are_counted_and_named(pack: Callable[[Any], Any], path: Path) -> None:
    def function() -> Any:
        total(path)
        return pack(PlantedError("planted"))

    measurement = measurement_of(function)
    (failed,) = measurement.failed.to_dict("records")
    assert failed["error"] == "PlantedError: planted"
    assert measurement.failed["file"].isna().all()
    assert measurement.byte_ledger["failed"] == measurement.byte_ledger.residual == 0
    (finding,) = [one for one in measurement.verdict if one.severity == "incomplete result"]
    assert finding.what == "Tasks returned 1 exception among their values: PlantedError: planted."
