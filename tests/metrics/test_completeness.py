"""The certificate of the byte ledger: whatever is taken away changes it."""

from dataclasses import replace

import pytest
from coffea.nanoevents import BaseSchema
from coffea.processor import IterativeExecutor, Runner
from handmade import BRANCH_READS, CHUNKS, PREPROCESSINGS, TASKS, handmade_run
from made_ledgers import BY_DESIGN, ledger_of, runner_call, with_ids
from stored import write_tree

from roastcoffea import MetricsCollector
from roastcoffea.measurement import Measurement
from roastcoffea.metrics.ledger import Attempts
from roastcoffea.records.arrow import table_of_rows
from roastcoffea.records.run import FAILED
from roastcoffea.records.tasks import TASK_COLUMNS


def test_complete():
    certificate = ledger_of(with_ids(14, bytes_metadata=300)).certificate
    assert (certificate.complete, certificate.reasons, certificate.estimated) == (True, [], 0)
    assert certificate.attempts == Attempts(seen=5, assigned=5)


def test_a_residual_is_named_with_its_size():
    assert ledger_of().certificate.reasons == [BY_DESIGN]
    cancelled = ledger_of([row | {"bytes_metadata": {14: 300, 12: 100, 16: 200}.get(row["id"], 0)} for row in CHUNKS])
    assert cancelled.residual == 0
    assert cancelled.certificate.reasons == ["2 attempts have a residual, of 0 B in all"]


def test_less_cannot_come_than_was_requested():
    less = ledger_of(with_ids(14, bytes_metadata=300, bytes_transferred=2000))
    assert less.gaps == -680
    assert less.certificate.reasons == ["808 B less were transferred than requested"]  # of attempts that did not fail


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
        "1 attempts of chunks are recorded once more",
        "1 preprocessing tasks are recorded once more",
    ]


@pytest.mark.parametrize("row", range(len(CHUNKS) - 1))
def test_a_record_taken_away_changes_it(row):
    ledger = ledger_of(CHUNKS[:row] + CHUNKS[row + 1 :])
    assert ledger.certificate.reasons[0] == "1 attempts of chunks that ended left no record"
    assert ledger.certificate.attempts == Attempts(seen=4, assigned=5)


@pytest.mark.parametrize("row", range(len(PREPROCESSINGS)))
def test_so_does_one_of_preprocessing(row):
    ledger = ledger_of(preprocessing=PREPROCESSINGS[:row] + PREPROCESSINGS[row + 1 :])
    assert ledger.certificate.reasons == ["1 preprocessing tasks that ended left no record", BY_DESIGN]


def test_so_does_a_branch():
    ledger = ledger_of(reads=[read for read in BRANCH_READS if (read["chunk"], read["branch"]) != (14, "run")])
    assert ledger.certificate.reasons == [
        "1 chunks lack branches that they read",
        "1 attempts have a residual, of 650 B in all",
    ]
    assert ledger.residual == 650


def test_lost_workers_are_counted():
    lost = [{"key": f"k{n}", "run_id": n, "kind": "processor", "outcome": "worker lost"} for n in (20, 21)]
    ledger = ledger_of(tasks=[*TASKS, *lost])
    assert ledger.certificate.reasons == ["2 attempts of chunks whose worker was lost left no record", BY_DESIGN]
    metrics = Measurement(handmade_run(tasks=table_of_rows(TASK_COLUMNS, [*TASKS, *lost]))).metrics
    assert metrics.source["bytes_payload"].startswith("byte ledger, incomplete: 2 attempts")


def test_rows_that_were_dropped_are_told():
    ledger = ledger_of(dropped={"branch_reads": 7})
    assert ledger.certificate.reasons == ["7 rows of branch_reads were lost", BY_DESIGN]


@pytest.mark.parametrize(
    ("chunks", "reasons"),
    [
        (4, []),
        (6, ["2 of 6 chunks left no record"]),
        (3, ["4 chunks ended, of 3 that were handed out"]),
        (None, ["nobody counted"]),
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
        (3, ["1 of 3 files of preprocessing left no record"]),
        (1, ["2 files of preprocessing ended, of 1 that were handed out"]),
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


def test_the_files_of_preprocessing_are_counted_as_they_are_handed_out(tmp_path):
    paths = [str(write_tree(tmp_path / f"{name}.root", 1, 10)) for name in "ab"]
    fileset = {"one": {"files": dict.fromkeys(paths, "Events")}, "other": {"files": {paths[0]: "Events"}}}
    runner = Runner(IterativeExecutor(status=False), schema=BaseSchema, metadata_cache={})
    with MetricsCollector() as collector:
        runner(fileset, processor_instance=len_of_events)
    run = collector.measurement.run
    assert [call.files for call in run.calls] == [3]
    assert collector.measurement.byte_ledger.certificate.complete
    robbed = Measurement(replace(run, preprocessing=run.preprocessing[:0])).byte_ledger
    assert robbed["preprocessing"] == 0
    assert robbed.certificate.reasons == ["3 of 3 files of preprocessing left no record"]
    with MetricsCollector() as known:
        runner(fileset, processor_instance=len_of_events)
    assert known.measurement.run.calls[0].files is None
    assert known.measurement.byte_ledger.certificate.complete


def len_of_events(events):
    return {"events": len(events)}


def test_of_a_call_that_failed_nobody_knows_what_began():
    certificate = ledger_of(tasks=None, calls=(runner_call("c1", 9, outcome=FAILED),)).certificate
    assert (certificate.complete, certificate.attempts) == (False, Attempts(6, None))
