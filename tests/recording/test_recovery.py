"""What a journal gives back is what the collector had."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from analyses import Jets, runner_for
from coffea.processor import FuturesExecutor, IterativeExecutor, Runner
from distributed import Client

from roastcoffea import MetricsCollector
from roastcoffea.log.journals import Entry, Journal, journals_in
from roastcoffea.measurement import Measurement
from roastcoffea.recording.black_box import END
from roastcoffea.recording.recovery import recovered
from roastcoffea.records.run import LOST, Run
from roastcoffea.storage.store import load_run


def journal_of(folder: Path) -> Journal:
    ((journal,), unreadable) = journals_in(folder)
    assert unreadable == []
    return journal


class CutJournal(Journal):
    """A journal as it was before these entries, and all after the first of them."""

    before: str | float

    def entries(self) -> Iterator[Entry]:
        for entry in super().entries():
            if entry.kind == self.before or (isinstance(self.before, float) and entry.time > self.before):
                return
            yield entry


def cut(journal: Journal, before: str | float) -> CutJournal:
    found = CutJournal(journal.folder, journal.header, journal.last, journal.size)
    found.before = before
    return found


def differences(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Fields in which runs differ, as they are saved."""
    found = {}
    for field in fields(Run):
        values = getattr(one, field.name), getattr(other, field.name)
        if isinstance(values[0], pa.Table) and isinstance(values[1], pa.Table):
            if not values[0].combine_chunks().equals(values[1].combine_chunks()):
                found[field.name] = values
        elif values[0] != values[1]:
            found[field.name] = values
    return found


EXECUTORS = {"iterative": IterativeExecutor(status=False), "futures": FuturesExecutor(workers=2, status=False)}


def measured(client: Client, sample: Any, executor: str, place: Path) -> MetricsCollector:
    """A collector that has measured 8 chunks, with its journal in this place."""
    if executor == "dask":
        runner = runner_for(client, 2000)
    else:
        settings = {"chunksize": 2000, "metadata_cache": {}, "savemetrics": True}
        runner = Runner(executor=EXECUTORS[executor], **settings)
    with MetricsCollector(client if executor == "dask" else None, name="mine", journal=place) as collector:
        runner(sample, processor_instance=Jets())
    return collector


KINDS = ["iterative", *(pytest.param(executor, marks=pytest.mark.slow) for executor in ("dask", "futures"))]


@pytest.mark.parametrize("executor", KINDS)
def test_a_run_that_ended_and_was_not_saved_is_all_there(
    client: Client, sample: Any, tmp_path: Path, executor: str
) -> None:
    collector = measured(client, sample, executor, tmp_path / "journals")
    again = recovered(journal_of(tmp_path / "journals")).run
    assert len(again.chunks) == 8
    saved = load_run(collector.save_measurement(tmp_path))
    assert differences(saved, again) == {}


@pytest.mark.slow
def test_a_run_whose_tables_nobody_asked_for_is_all_there(client: Client, sample: Any, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    with pytest.raises(ZeroDivisionError), MetricsCollector(client, journal=journals) as collector:
        collector.note("something that was noted")
        runner_for(client, 2000)(sample, processor_instance=Jets())
        _ = 1 / 0
    collector.set_coffea_report({"bytesread": 5})
    again = recovered(journal_of(journals)).run
    assert (again.outcome, again.error) == ("failed", "ZeroDivisionError: division by zero")
    assert again.problems[0] == "something that was noted"
    assert again.coffea_report == {"bytesread": 5}
    assert again.span_metrics
    saved = load_run(collector.save_measurement(tmp_path, "saved"))
    assert differences(saved, again) == {}
    assert list(journals.iterdir()) == []


@pytest.mark.parametrize("executor", KINDS)
def test_a_run_that_was_lost_has_what_was_recorded(client: Client, sample: Any, tmp_path: Path, executor: str) -> None:
    collector = measured(client, sample, executor, tmp_path / "journals")
    measurement = recovered(cut(journal_of(tmp_path / "journals"), END))
    assert measurement.outcome == LOST
    assert "its journal ends at" in str(measurement.error)
    run = measurement.run
    lacking = {"outcome", "error", "stop", "problems", "absent", "attempts", "span_metrics", "span_metrics_per_worker"}
    assert differences(collector.measurement.run, run).keys() <= lacking | {"lifetimes", "samples"}
    assert any("the client was lost" in problem for problem in run.problems)
    assert measurement.metrics["num_chunks"] == 8
    assert differences(load_run(measurement.save(tmp_path, "lost")), run) == {}
    assert "lost: 8 of 8 chunks" in printed(measurement)


def test_a_call_that_ran_is_among_the_calls(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "dask", tmp_path / "journals")
    journal = journal_of(tmp_path / "journals")
    middle = collector.measurement.chunks["stop"].sort_values().iloc[4]
    run = recovered(cut(journal, middle)).run
    (call,) = run.calls
    assert (call.outcome, call.chunks) == (LOST, 8)
    assert call.stop <= middle
    assert len(run.asked) == 12
    assert set(run.chunks["id"].to_pylist()) <= set(collector.measurement.run.chunks["id"].to_pylist())
    assert recovered(cut(journal, middle)).metrics["num_missing_chunks"] == 8


@pytest.mark.slow
def test_a_report_that_was_set_later_is_there(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "iterative", tmp_path / "journals")
    collector.set_coffea_report({"bytesread": 5})
    assert recovered(journal_of(tmp_path / "journals")).run.coffea_report == {"bytesread": 5}


@pytest.mark.slow
def test_a_cut_off_journal_says_so(client: Client, sample: Any, tmp_path: Path) -> None:
    collector = measured(client, sample, "iterative", tmp_path / "journals")
    journal = journal_of(tmp_path / "journals")
    (file,) = journal.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    measurement = recovered(journal)
    assert measurement.outcome == LOST
    assert any("cut off" in problem for problem in measurement.problems)
    assert set(measurement.chunks["id"]) <= set(collector.measurement.chunks["id"])


def printed(measurement: Measurement) -> str:
    """The first look at a measurement."""
    out = io.StringIO()
    measurement.print_summary(out)
    return out.getvalue()
