"""What both ledgers share: certificates, and what is shown of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import analyses
import pytest
import uproot
from coffea.nanoevents import BaseSchema
from coffea.processor import DaskExecutor, IterativeExecutor, Runner
from handmade import (
    BRANCH_READS,
    BY_DESIGN,
    CHUNKS,
    PREPROCESSINGS,
    TASKS,
    handmade_run,
    ledger_of,
    run_without_tables,
    runner_call,
    with_ids,
)
from releases import as_processor, needs_datasets, needs_kinds_of_skips
from stored import write_tree

from roastcoffea import MetricsCollector, measured
from roastcoffea.measurement import Measurement
from roastcoffea.metrics import evaluate
from roastcoffea.metrics.ledger import Attempts, Certificate
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import FAILED
from roastcoffea.records.workers import TASK_COLUMNS
from roastcoffea.sheets.sheet import Sheet


def texts(sheet: Sheet) -> list[list[str]]:
    return [[cell.text for cell in row] for row in sheet.cells()]


def test_a_name_that_is_none_has_those_that_are_near() -> None:
    metrics = evaluate(handmade_run())
    with pytest.raises(KeyError, match="there is no class of the byte ledger 'payloda'; did you mean payload"):
        metrics["byte_ledger"]["payloda"]
    assert metrics["byte_ledger"].get("payloda") is None
    with pytest.raises(KeyError, match=r"there is no metric 'total_event'; did you mean .*total_events"):
        metrics.unit["total_event"]
    with pytest.raises(KeyError, match="there is no table 'worker_balanc'; did you mean worker_balance"):
        metrics.tables["worker_balanc"]
    assert metrics.missing.get("total_events") is None


def test_classes_that_were_not_measured_are_named_by_their_reason() -> None:
    (sheet,) = Measurement(handmade_run(tasks=None, pauses=None)).time_ledger.sheets()
    assert sheet.notes[-2].startswith('Not measured: "merge", "transfer"')
    assert sheet.notes[-2].endswith("not recorded without a scheduler.")


def test_the_byte_ledger_shows_all_classes_and_advice() -> None:
    sheet, advice = ledger_of().sheets()
    assert texts(sheet)[-3:] == [
        ["unaccounted", "50 B", "0.826 %"],
        ["total", "6.05 kB", "100 %"],
        ["transferred", "6.43 kB", "384 B not requested"],
    ]
    assert sheet.notes[0] == f"Incomplete: {BY_DESIGN}; 5 of 5 attempts left a record."
    assert sheet.notes[1:] == ["Less than 0.1 %: other files."]
    assert len(advice.items) == 3


@pytest.mark.parametrize("name", ["time_ledger", "byte_ledger"])
def test_one_that_is_absent_gives_its_reason(name: str) -> None:
    ledger = getattr(Measurement(run_without_tables()), name)
    (sheet,) = ledger.sheets()
    assert (sheet.rows, sheet.lead) == ((), [f"Not measured: {ledger.absent}."])
    assert ledger.absent in str(ledger)
    assert ledger.absent in ledger.to_markdown()


def test_certificates() -> None:
    complete = Certificate(attempts=Attempts(1200, None), reasons=[], estimated=2)
    assert str(complete) == "Complete; 1,200 attempts left a record. Re-read bytes are estimated for 2 branch reads."
    lost = Certificate(attempts=Attempts(51, 55), reasons=[])
    assert str(lost) == "Complete; 51 attempts are accounted for, 4 others never started."
    lacking = Certificate(attempts=Attempts(1, 2), reasons=["one", "two"])
    assert (lacking.complete, str(lacking)) == (False, "Incomplete: one; two; 1 of 2 attempts left a record.")


def test_complete():
    certificate = ledger_of(with_ids(14, bytes_metadata=300)).certificate
    assert (certificate.complete, certificate.reasons, certificate.estimated) == (True, [], 0)
    assert certificate.attempts == Attempts(seen=5, assigned=5)


def test_a_residual_is_named_with_its_size():
    assert ledger_of().certificate.reasons == [BY_DESIGN]
    cancelled = ledger_of([row | {"bytes_metadata": {14: 300, 12: 100, 16: 200}.get(row["id"], 0)} for row in CHUNKS])
    assert cancelled.residual == 0
    assert cancelled.certificate.reasons == ["2 attempts have unaccounted-for bytes (0 B in total)"]


def test_less_cannot_come_than_was_requested():
    less = ledger_of(with_ids(14, bytes_metadata=300, bytes_transferred=2000))
    assert less.gaps == -680
    assert less.certificate.reasons == ["808 B less was transferred than requested"]  # of attempts that did not fail


def test_of_requests_that_failed_nothing_need_have_come():
    failed = {row["id"] for row in CHUNKS if row["outcome"] in ("error", "skipped")}
    ledger = ledger_of(with_ids(*failed, bytes_transferred=0))
    assert failed
    assert ledger.certificate.reasons == [BY_DESIGN]
    assert 0 < ledger.gaps < 384


def test_records_that_came_twice_are_told():
    chunks = with_ids(14, bytes_metadata=300)
    again = [row | {"id": 100} for row in chunks if row["id"] == 13]
    preprocessing = [*PREPROCESSINGS, PREPROCESSINGS[0] | {"id": 9}]
    assert ledger_of([*chunks, *again], preprocessing=preprocessing).certificate.reasons == [
        "1 chunk attempts are recorded more than once",
        "1 preprocessing tasks are recorded more than once",
    ]


@pytest.mark.parametrize("row", range(len(CHUNKS) - 1))
def test_a_record_taken_away_changes_it(row):
    ledger = ledger_of(CHUNKS[:row] + CHUNKS[row + 1 :])
    assert ledger.certificate.reasons[0] == "1 chunk attempts that ended left no record"
    assert ledger.certificate.attempts == Attempts(seen=4, assigned=5)


@pytest.mark.parametrize("row", range(len(PREPROCESSINGS)))
def test_so_does_one_of_preprocessing(row):
    ledger = ledger_of(preprocessing=PREPROCESSINGS[:row] + PREPROCESSINGS[row + 1 :])
    assert ledger.certificate.reasons == ["1 preprocessing tasks that ended left no record", BY_DESIGN]


def test_so_does_a_branch():
    ledger = ledger_of(reads=[read for read in BRANCH_READS if (read["chunk"], read["branch"]) != (14, "run")])
    assert ledger.certificate.reasons == [
        "1 chunks have no record of some branches they read",
        "1 attempt has unaccounted-for bytes (650 B in total)",
    ]
    assert ledger.residual == 650


def test_lost_workers_are_counted():
    lost = [{"key": f"k{n}", "run_id": n, "kind": "processor", "outcome": "worker lost"} for n in (20, 21)]
    ledger = ledger_of(tasks=[*TASKS, *lost])
    assert ledger.certificate.reasons == ["2 chunk attempts whose worker was lost left no record", BY_DESIGN]
    metrics = Measurement(handmade_run(tasks=table_of_rows(TASK_COLUMNS, [*TASKS, *lost]))).metrics
    assert metrics.source["bytes_payload"].startswith("byte ledger, incomplete: 2 chunk attempts")


def test_rows_that_were_dropped_are_told():
    ledger = ledger_of(dropped={"branch_reads": 7})
    assert ledger.certificate.reasons == ["7 rows of branch_reads were lost", BY_DESIGN]


@pytest.mark.parametrize(
    ("chunks", "reasons"),
    [
        (4, []),
        (6, ["2 of 6 chunks left no record"]),
        (3, ["4 chunks finished, but only 3 were submitted"]),
        (None, ["the number of chunk attempts that started is unknown"]),
    ],
)
def test_without_tasks_the_runner_tells_how_many_chunks_there_were(chunks, reasons):
    # Three gave a result, one was skipped.
    certificate = ledger_of(
        with_ids(14, bytes_metadata=300), tasks=None, calls=(runner_call("c1", chunks),)
    ).certificate
    assert [found[: len(reason)] for found, reason in zip(certificate.reasons, reasons, strict=True)] == reasons
    assert certificate.attempts.assigned == chunks


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        (2, []),
        (3, ["1 of 3 files in preprocessing left no record"]),
        (1, ["2 files in preprocessing finished, but only 1 were submitted"]),
        (None, []),
    ],
)
def test_without_tasks_the_runner_tells_how_many_files_there_were(files, reasons):
    # One of the two was tried again, and one belongs to a call that nobody counted in.
    other = {"id": 4, "dataset": "mc", "file": "c.root", "bytes_requested": 0, "outcome": "ok", "call": "c2"}
    preprocessing = [*(row | {"call": "c1", "tree": "Events"} for row in PREPROCESSINGS), other]
    calls = (runner_call("c1", 4, files=files), runner_call("c2", 0))
    chunks = with_ids(14, bytes_metadata=300)
    certificate = ledger_of(chunks, tasks=None, preprocessing=preprocessing, calls=calls).certificate
    assert certificate.reasons == reasons


@needs_datasets
def test_the_files_of_preprocessing_are_counted_as_they_are_handed_out(tmp_path):
    paths = [str(write_tree(tmp_path / f"{name}.root", 1, 10)) for name in "ab"]
    fileset = {"one": {"files": dict.fromkeys(paths, "Events")}, "other": {"files": {paths[0]: "Events"}}}
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=as_processor(len_of_events))
    run = collector.measurement.run
    assert [call.files for call in run.calls] == [3]
    assert collector.measurement.byte_ledger.certificate.complete
    robbed = Measurement(replace(run, preprocessing=run.preprocessing[:0])).byte_ledger
    assert robbed["preprocessing"] == 0
    assert robbed.certificate.reasons == ["3 of 3 files in preprocessing left no record"]
    with MetricsCollector() as known:
        runner(fileset, processor_instance=as_processor(len_of_events))
    assert known.measurement.run.calls[0].files is None
    assert known.measurement.byte_ledger.certificate.complete


def len_of_events(events):
    return {"events": len(events)}


def test_of_a_call_that_failed_nobody_knows_what_began():
    certificate = ledger_of(tasks=None, calls=(runner_call("c1", 9, outcome=FAILED),)).certificate
    assert (certificate.complete, certificate.attempts) == (False, Attempts(6, None))


@needs_kinds_of_skips
@pytest.mark.filterwarnings("ignore:Skipping bad file")
@pytest.mark.parametrize(
    ("executor", "options"),
    [
        (IterativeExecutor, {"retries": 2}),
        (DaskExecutor, {"retries": 1}),
    ],
)
def test_chunks_that_are_skipped_leave_both_ledgers_complete(
    executor: Any, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("client") if executor is DaskExecutor else None
    if client is not None:
        options = options | {"client": client}
    runner = Runner(
        executor(status=False, **options),
        schema=BaseSchema,
        chunksize=1000,
        skipbadfiles=(ZeroDivisionError,),
        metadata_cache={},
    )
    with MetricsCollector(client) as collector:
        output = runner(
            {"d": [str(write_tree(tmp_path / "a.root"))]},
            treename="Events",
            processor_instance=analyses.Raising(1000),
        )
    assert output == {"events": 3000}
    measurement = collector.measurement
    certificates = measurement.time_ledger.certificate, measurement.byte_ledger.certificate
    assert [certificate.reasons for certificate in certificates] == [[], []]
    # on Dask the file's own task is an attempt of the time ledger, too
    assert certificates[1].attempts == Attempts(4, 4)
    assert not any("incomplete" in str(cause) for cause in measurement.verdict)


def test_functions_without_a_runner_are_no_chunks_of_one(tmp_path: Path) -> None:
    path = str(write_tree(tmp_path / "a.root"))

    @measured
    def read(path: str) -> float:
        with uproot.open(path) as file:
            return float(file["Events/f0"].array()[0])

    def both_certificates() -> list[Certificate]:
        found = collector.measurement
        return [found.time_ledger.certificate, found.byte_ledger.certificate]

    with MetricsCollector() as collector:
        read(path)
    assert both_certificates() == [Certificate(attempts=Attempts(1, None), reasons=[])] * 2
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, chunksize=1000, metadata_cache={})
    with MetricsCollector() as collector:
        read(path)
        runner({"d": [path]}, treename="Events", processor_instance=as_processor(len_of_events))
    assert both_certificates() == [Certificate(attempts=Attempts(4, 4), reasons=[])] * 2
